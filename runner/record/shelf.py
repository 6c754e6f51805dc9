"""A folder in; the runs and sweeps in it, in brief, out; and which of their files are ours, so that they may go.

Records of every schema are read here, since what they say in brief has not changed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from runner.record import folders, plain
from runner.record.model import Status
from runner.untyped import is_dict, is_list

STATUSES: tuple[str, ...] = get_args(Status)
"""The statuses of a run, from the best to the worst."""


@dataclass(frozen=True)
class Entry:
    """A run, or a sweep with all its points.

    - `experiment`: names, several where a sweep has them; `statuses`: how its points ended, how many each.
    - `time`: when it began, as its record has it: ISO 8601, UTC; `overrides`: those of a run, of a sweep those of all.
    """

    folder: Path
    experiments: tuple[str, ...]
    statuses: Counter[str]
    time: str
    overrides: tuple[str, ...]
    sweep: bool

    @property
    def points(self) -> int:
        """How many runs it is."""
        return self.statuses.total()


def entries(folder: Path, unread: list[str] | None = None) -> list[Entry]:
    """The runs and sweeps in a folder, the oldest first; a sweep is one of them, its points are not.

    What files called `result.json` cannot be read is appended to `unread`.
    """
    found: dict[Path, list[tuple[Path, dict[str, Any]]]] = {}
    for run in folders.runs(folder):
        told = _brief(run, unread)
        if told is not None:
            home = run.parent if run != folder and run.name.isdigit() and folders.is_sweep(run.parent) else run
            found.setdefault(home, []).append((run, told))
    return sorted((_entry(home, runs) for home, runs in found.items()), key=lambda entry: (entry.time, entry.folder))


def _entry(home: Path, runs: list[tuple[Path, dict[str, Any]]]) -> Entry:
    told = [brief for _, brief in runs]
    overrides = [{str(o) for o in brief["overrides"]} for brief in told]
    common = set[str].intersection(*overrides)
    return Entry(
        folder=home,
        experiments=tuple(dict.fromkeys(str(brief["experiment"] or "–") for brief in told)),
        statuses=Counter(str(brief["status"]) for brief in told),
        time=min(str(brief.get("time") or "") for brief in told),
        overrides=tuple(str(o) for o in told[0]["overrides"] if o in common),
        sweep=home != runs[0][0],
    )


def _brief(folder: Path, unread: list[str] | None = None) -> dict[str, Any] | None:
    """What a record says first; None where the file is none of ours, and why it is none appended to `unread`."""
    why = "not a record: it has no 'schema', 'status', 'experiment' and 'overrides'"
    try:
        data = plain.read(folder / folders.RECORD)
    except plain.NotJson as error:
        data, why = None, str(error)
    except OSError as error:
        data, why = None, f"{error.strerror or error}"
    ours = is_dict(data) and isinstance(data.get("schema"), int) and data.get("status") in list(STATUSES)
    if is_dict(data) and ours and "experiment" in data and is_list(data.get("overrides")):
        return data
    if unread is not None:
        unread.append(f"{folder / folders.RECORD}\n  {why}")
    return None


# What may be deleted.

_FILE = re.compile(
    r"result\.json|runner\.log|worker\.log|shardings\.(txt|svg)|collectives\.svg|report\.html|report\.vl\.json"
    r"|(program|trace)_\w+\.py|(stablehlo|hlo)_\w+\.txt|plan_\w+\.json|results\.(csv|jsonl)|sweep\.json|multirun\.yaml"
)
"""The files of run folders and sweeps, docs/record.md."""

_BELOW: dict[str, re.Pattern[str]] = {
    ".hydra": re.compile(r"(config|hydra|overrides)\.yaml"),
    "conf": re.compile(r"experiment/[^/]+\.yaml"),
    "profile": re.compile(r"\w+/plugins/profile/[^/]+/[^/]+\.(xplane\.pb|trace\.json\.gz|json\.gz|pb)"),
    "__pycache__": re.compile(r"program_\w+\.pyc"),
}
"""The folders in them, and what may be there."""


def strangers(entry: Entry) -> list[Path]:
    """What is in the folder of an entry and is not ours: whoever put it there may want it. Links are."""
    return list(_strangers(entry.folder))


def _strangers(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda each: folders.natural(each.name))
    for each in inside:
        path = Path(each.path)
        if each.is_file(follow_symlinks=False):
            if not _FILE.fullmatch(each.name):
                yield path
        elif each.is_symlink() or not each.is_dir():
            yield path
        elif each.name in _BELOW:
            yield from _within(path, _BELOW[each.name])
        elif (each.name == "verification" or each.name.isdigit()) and _brief_or_none(path):
            yield from _strangers(path)
        else:
            yield path


def _brief_or_none(folder: Path) -> bool:
    """Whether a folder is a run's, or may be what is left of one that died."""
    record = folder / folders.RECORD
    return _brief(folder) is not None if record.is_file() else not (folder / folders.RECORD).exists()


def _within(folder: Path, allowed: re.Pattern[str]) -> Iterator[Path]:
    for home, below, files in os.walk(folder):
        here = Path(home)
        yield from (here / name for name in below if (here / name).is_symlink())
        for name in files:
            path = here / name
            if path.is_symlink() or not allowed.fullmatch(path.relative_to(folder).as_posix()):
                yield path


def size(entry: Entry) -> int:
    """The bytes of all its files."""
    total = 0
    for home, _, files in os.walk(entry.folder):
        total += sum(os.lstat(os.path.join(home, name)).st_size for name in files)
    return total


def delete(entry: Entry) -> list[Path]:
    """Delete a run or a sweep, where everything in its folder is ours; else nothing, and what is not is returned."""
    left = strangers(entry)
    if not left:
        shutil.rmtree(entry.folder)
    return left
