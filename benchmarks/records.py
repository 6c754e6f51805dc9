"""Corrupted records, in every command that reads records: `python -m benchmarks.records`.

One of a sweep's three points is replaced by a real record with one text, number or key changed. This may cost that
point, and no more: nothing raises, the other points are shown, and the unreadable file is named.
`tests/test_bad_records.py` tries a sample.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.app.cli import compare, report, runs
from runner.app.cli.options import Options
from runner.app.cli.sweep import passed
from runner.app.cli.sweeping import Sweeping
from runner.reports.record import record
from runner.reports.show import html

HOSTILE = (
    *('""', '"\\u001b[31m\\u0007"', '"\\ud800"', '"\\u202e</script>"', '"' + "x" * 5000 + '"', '"NaN"', '"0"'),
    *("null", "true", "[]", "{}", "[[[]]]", '{"a": 1}', "-1", "0", "1.5", "7", "1e999", "-1e999", "NaN", "Infinity"),
    *("1e308", "1" * 400, "9" * 5000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000),
)
"""The replacements, as JSON or as what Python accepts as JSON."""

POINTS = 3

_HERE = "@@@here@@@"


@dataclass(frozen=True)
class Case:
    """A record's text, and the change to it."""

    name: str
    text: str


def places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return the paths of all values in plain data, and of all mappings and lists."""
    if path:
        yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*path, key))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from places(value, (*path, number))


def cases(data: Any, first: int = 0) -> Iterator[Case]:
    """Return one case for each value, replaced by the next of `HOSTILE`; two for each key: removed, and misspelt."""
    turn = itertools.count(first)
    for path in places(data):
        key = ".".join(map(str, path))
        hostile = HOSTILE[next(turn) % len(HOSTILE)]
        yield Case(f"{key} = {hostile:.20}", _text(data, path, hostile))
        if isinstance(path[-1], str):
            yield Case(f"without {key}", _without(data, path))
            yield Case(f"{key} misspelt", _without(data, path, f"{path[-1]}\x1b"))


def _text(data: Any, path: tuple[str | int, ...], hostile: str) -> str:
    changed = _copy(data)
    _at(changed, path)[path[-1]] = _HERE
    return json.dumps(changed).replace(f'"{_HERE}"', hostile)


def _without(data: Any, path: tuple[str | int, ...], instead: str | None = None) -> str:
    changed = _copy(data)
    home = _at(changed, path)
    value = home.pop(path[-1])
    if instead is not None:
        home[instead] = value
    return json.dumps(changed)


def _copy(data: Any) -> Any:
    return json.loads(json.dumps(data))


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    for part in path[:-1]:
        data = data[part]
    return data


# The readers of records.


def _compared(home: Path) -> None:
    assert compare.main([str(home / "sweep"), str(home / "other")]) in (0, 1, 2)
    assert compare.main([str(home / "sweep" / "1"), str(home / "other" / "1")]) in (0, 1, 2)


def _reported(home: Path) -> None:
    assert report.main([str(home / "sweep")]) == 0
    report.main([str(home / "sweep" / "1")])


def _listed(home: Path) -> None:
    assert runs.main([str(home / "sweep")]) == 0
    assert runs.main([str(home / "sweep"), "--json", "--status", "failed"]) == 0


def _resumed(home: Path) -> None:
    folder = home / "sweep"
    overrides = {number: _overrides(folder / str(number)) for number in (0, 1, 2)}
    for number, given in overrides.items():
        passed(folder / str(number), given)
    options = Options(where="bytes_sent < 1e6 and run_s > 0", sort="peak_bytes", best=2)
    sweeping = Sweeping(folder, options, [], report=True)
    sweeping.points = dict(overrides)
    sweeping.leave()
    sweeping.finish()


def _overrides(folder: Path) -> list[str]:
    try:
        return record.read(folder).overrides
    except record.UnreadableRecord:
        return []


def _shown(home: Path) -> None:
    from runner.app.api import Record

    try:
        result = record.read(home / "sweep" / "1")
    except record.UnreadableRecord:
        return
    str(Record.of(result, home))
    html.fragment(result)


READERS: dict[str, Callable[[Path], None]] = {
    "report": _reported,
    "compare": _compared,
    "runs": _listed,
    "resume": _resumed,
    "shown": _shown,
}


@dataclass
class Tried:
    """The result of a case: the exceptions `raised`, and the readers that did not name the bad file, `silent`."""

    raised: list[str]
    silent: list[str]
    unreadable: bool


class Home:
    """A folder with a sweep of three points, the second of which becomes hostile, and another sweep like it."""

    def __init__(self, folder: Path, records: tuple[Any, Any, Any]) -> None:
        self.folder = folder
        for sweep, point in itertools.product(("sweep", "other"), range(POINTS)):
            home = folder / sweep / str(point)
            home.mkdir(parents=True)
            (home / "result.json").write_text(json.dumps(records[point]), encoding="utf-8")

    def tried(self, case: Case) -> Tried:
        """Return the result of each reader."""
        bad = self.folder / "sweep" / "1"
        (bad / "result.json").write_text(case.text, encoding="utf-8")
        try:
            record.read(bad)
            unreadable = False
        except record.UnreadableRecord:
            unreadable = True
        outcome = Tried([], [], unreadable)
        for name, read in READERS.items():
            out, err = io.StringIO(), io.StringIO()
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    read(self.folder)
            except Exception:
                outcome.raised.append(f"{name}: {case.name}\n{traceback.format_exc(limit=-4)}")
                continue
            if unreadable and name != "shown" and str(bad.relative_to(self.folder)) not in err.getvalue():
                outcome.silent.append(f"{name}: {case.name}\n{err.getvalue()}")
        return outcome


def real(run: Path, sweep: Path) -> tuple[Any, Any, Any]:
    """Return the records of a run and of the first two points of a sweep."""
    return tuple(json.loads((folder / "result.json").read_text("utf-8")) for folder in (sweep / "0", run, sweep / "1"))  # type: ignore[return-value]


def main() -> None:
    """Try all cases of a run's record and of a point's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records")
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("sweep", type=Path, help="the folder of a sweep")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th case")
    parser.add_argument("--first", type=int, default=0, help="with which of the hostile values it begins")
    parser.add_argument("--show", type=int, default=10)
    given = parser.parse_args()
    first, point, last = real(given.run, given.sweep)
    raised: list[str] = []
    silent: list[str] = []
    count = unreadable = 0
    with tempfile.TemporaryDirectory(prefix="shardproof-") as folder:
        for number, data in enumerate((point, first)):
            home = Home(Path(folder) / str(number), (first, data, last))
            for case in itertools.islice(cases(data, number + given.first), given.first, None, given.every):
                outcome = home.tried(case)
                raised += outcome.raised
                silent += outcome.silent
                count, unreadable = count + 1, unreadable + outcome.unreadable
            shutil.rmtree(home.folder)
    for text in [*raised[: given.show], *silent[: given.show]]:
        print(text)
    print(f"{count} records, {unreadable} of them cannot be read: {len(raised)} raised, {len(silent)} unsaid")
    sys.exit(bool(raised or silent))


if __name__ == "__main__":
    main()
