"""`python -m runner runs` lists or deletes the runs and sweeps of a folder."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.app.cli import subcommands
from runner.app.cli.answers import answered
from runner.base.faults import BadInput
from runner.base.printable import json_text
from runner.base.words import bytes_text, of_system, shown
from runner.reports.record import manifest, shelf
from runner.reports.record.model import STATUSES
from runner.reports.record.shelf import ShelfEntry
from runner.reports.show.console import print_table, say
from runner.reports.show.table import Table, status_cell

_NAMED = 10
"""The most foreign files that a message names."""

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_ORDER: tuple[str, ...] = tuple(STATUSES)
"""The statuses of a run, from the best to the worst."""


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line.

    Returns 0; 1 if something was not deleted, or the answer was no; 2 for bad input.
    """
    parser = subcommands.parser("runs")
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="*", help="where to look; by default outputs")
    parser.add_argument("--experiment", metavar="PATTERN", help="only those with this name: 'case*'")
    parser.add_argument(
        "--status",
        metavar="S[,S]",
        help="only those with one of these statuses, or sweeps with such a point: failed,error",
    )
    parser.add_argument("--with", metavar="OVERRIDE", action="append", default=[], dest="overrides", help="dims.J=8")
    parser.add_argument("--older", metavar="AGE", help="that started at least this long ago: 30m, 12h, 7d, 2w")
    parser.add_argument("--newer", metavar="AGE", help="that started at most this long ago")
    parser.add_argument("--delete", action="store_true", help="delete them, after asking")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each")
    options = parser.parse_args(list(arguments))
    unread: list[str] = []
    entries = _selected(options, unread)
    for message in unread:
        print(message, file=sys.stderr)
    if options.json:
        _as_json(entries)
    else:
        _listing(entries)
    return _delete(entries, asked=not options.yes) if options.delete and entries else 0


def _selected(options: argparse.Namespace, unread: list[str]) -> list[ShelfEntry]:
    """Return the runs and sweeps that pass the filters; unreadable ones go to `unread`. Raises `BadInput`."""
    wanted = list(_filters(options, datetime.now(UTC)))
    if options.yes and not options.delete:
        raise BadInput("--yes belongs to --delete, which is missing")
    if options.delete and not wanted and not options.folders:
        raise BadInput("--delete: name the runs, by a folder, or by --experiment, --status, --with or --older")
    entries: dict[Path, ShelfEntry] = {}
    for folder in options.folders or [Path("outputs")]:
        if not folder.is_dir():
            what = "it is not a folder of runs" if folder.exists() else "there is no such folder"
            raise BadInput(f"{folder}: {what}")
        entries.update({entry.folder.resolve(): entry for entry in shelf.entries(folder, unread)})
    return [entry for entry in entries.values() if all(test(entry) for test in wanted)]


def _filters(options: argparse.Namespace, now: datetime) -> list[Callable[[ShelfEntry], bool]]:
    tests: list[Callable[[ShelfEntry], bool]] = []
    if (pattern := options.experiment) is not None:
        tests.append(lambda entry: any(fnmatch.fnmatchcase(name, pattern) for name in entry.experiments))
    if options.status is not None:
        statuses = set(options.status.split(","))
        if unknown := sorted(statuses - set(_ORDER)):
            raise BadInput(f"--status: there is no status '{unknown[0]}'; there are {', '.join(_ORDER)}")
        tests.append(lambda entry: bool(statuses & entry.statuses.keys()))
    for text in options.overrides:
        tests.append(lambda entry, text=text: text in [override.lstrip("+") for override in entry.overrides])
    if (age := options.older) is not None:
        before = (now - _age("--older", age)).isoformat(timespec="seconds")
        tests.append(lambda entry: entry.time < before)
    if (age := options.newer) is not None:
        after = (now - _age("--newer", age)).isoformat(timespec="seconds")
        tests.append(lambda entry: entry.time >= after)
    return tests


def _age(flag: str, text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS:
        raise BadInput(f"{flag}: '{text}' is not an age; 30m, 12h, 7d and 2w are")
    try:
        return timedelta(**{_UNITS[unit]: int(number)})
    except OverflowError:
        raise BadInput(f"{flag}: '{text}' reaches back before the year 1") from None


def _listing(entries: Sequence[ShelfEntry]) -> None:
    if not entries:
        say("no runs")
        return
    rows = [
        [
            shown(entry.folder),
            ", ".join(entry.experiments[:3]) + (", …" if len(entry.experiments) > 3 else ""),
            entry.time.replace("T", " ")[:19] or "–",
            str(entry.points) if entry.sweep else "–",
            status_cell(max(entry.statuses, key=_ORDER.index), _statuses(entry)),
            bytes_text(shelf.size(entry)),
            " ".join(o.lstrip("+") for o in entry.overrides if not o.lstrip("+").startswith("experiment=")) or "–",
        ]
        for entry in entries
    ]
    print_table(Table(("folder", "experiment", "began (UTC)", "points", "status", "size", "overrides"), rows))
    sweeps = sum(entry.sweep for entry in entries)
    runs = len(entries) - sweeps
    counted = f"{runs} run{'' if runs == 1 else 's'}, {sweeps} sweep{'' if sweeps == 1 else 's'}"
    say(f"\n{counted}, {bytes_text(sum(map(shelf.size, entries)))}")


def _statuses(entry: ShelfEntry) -> str:
    if not entry.sweep:
        return next(iter(entry.statuses))
    return ", ".join(f"{entry.statuses[status]} {status}" for status in _ORDER if entry.statuses[status])


def _as_json(entries: Sequence[ShelfEntry]) -> None:
    for entry in entries:
        line = {
            "folder": str(entry.folder),
            "experiments": entry.experiments,
            "time": entry.time,
            "sweep": entry.sweep,
            "statuses": entry.statuses,
            "overrides": entry.overrides,
            "bytes": shelf.size(entry),
        }
        print(json_text(json.dumps(line, ensure_ascii=False)))


def _delete(entries: Sequence[ShelfEntry], *, asked: bool) -> int:
    """Delete the listed entries whose files are all the runner's, and say what is left and why."""
    if asked:
        if not sys.stdin.isatty():
            print(
                "--delete asks first, and standard input is not a terminal; --yes deletes without asking",
                file=sys.stderr,
            )
            return 2
        print(f"\nDelete these {len(entries)}? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return 1
    left = 0
    for entry in entries:
        try:
            strangers = shelf.delete(entry)
        except OSError as error:
            print(of_system(error, entry.folder), file=sys.stderr)
            left += 1
            continue
        if strangers:
            left += 1
            print(f"{shown(entry.folder)} stays: {_why(entry, strangers)}", file=sys.stderr)
    say(f"{len(entries) - left} deleted" + (f", {left} left" if left else ""))
    return 1 if left else 0


def _why(entry: ShelfEntry, strangers: Sequence[Path]) -> str:
    """Say why the folder of an entry stays."""
    if strangers[0].name == manifest.FILE:
        where = "it" if strangers[0].parent == entry.folder.resolve() else shown(strangers[0].parent)
        return f"{where} has no {manifest.FILE}, so nothing says what a run wrote there; remove it yourself"
    named = ", ".join(shown(path) for path in strangers[:_NAMED])
    more = f" and {len(strangers) - _NAMED} more" if len(strangers) > _NAMED else ""
    return f"no run wrote {named}{more}, or it has changed since"
