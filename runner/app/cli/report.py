"""`python -m runner report FOLDER…` makes the pages of runs and sweeps from their records alone.

It neither imports JAX nor runs anything, and needs no devices.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.app.cli import subcommands
from runner.app.cli.answers import answered
from runner.base import plain
from runner.base.faults import BadInput
from runner.base.untyped import is_dict
from runner.base.words import of_system, shown
from runner.reports.record import folders, manifest, measures
from runner.reports.record import record as records
from runner.reports.record.folders import PAGE
from runner.reports.record.model import Record
from runner.reports.record.writing import write_text
from runner.reports.show.page import markup, measured, plan_section, run, sweep


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0; 2 for bad input, when nothing is written; 3 if writing fails."""
    parser = subcommands.parser("report")
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+", help="a run folder, or one that holds some")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the page; by default report.html in FOLDER")
    parser.add_argument("--only", action="store_true", help="for several runs, write only the common page")
    options = parser.parse_args(list(arguments))
    try:
        page = _report([path.parent if path.name == folders.RECORD else path for path in options.folders], options)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        print(of_system(error, options.output), file=sys.stderr)
        return 3
    print(shown(page))
    return 0


def _report(paths: list[Path], options: argparse.Namespace) -> Path:
    """Write the pages; return the path of the common one. Raises `BadInput`."""

    def page(folder: Path) -> Path:
        return named(options.output) if options.output else _replaced(folder / PAGE)

    if len(paths) == 1 and _is_plan(paths[0]):
        candidates = _read(paths)[0] if folders.runs(paths[0]) and not options.only else {}
        for folder, record in candidates.items():
            manifest.add([run.write(record, folder, _replaced(folder / PAGE))])
        written = page(paths[0])
        write_text(written, plan_section.page(paths[0], written.parent))
    else:
        by_folder, unreadable = _read(paths)
        if len(by_folder) == 1 and (paths[0] / folders.RECORD).is_file():
            folder, only = next(iter(by_folder.items()))
            written = run.write(only, folder, page(folder))
        else:
            written = page(_common(paths))
            for folder, record in () if options.only else by_folder.items():
                manifest.add([run.write(record, folder, _replaced(folder / PAGE))])
            write_sweep(by_folder, paths, written, unreadable)
    manifest.add([] if options.output else [written])
    return options.output or written


def _is_plan(path: Path) -> bool:
    """Return whether a folder is that of a plan, with its candidates, and not of a run with planned layouts."""
    return (path / folders.PLAN).is_file() and not (path / folders.RECORD).is_file()


def named(page: Path) -> Path:
    """Return the file of a page that the user named, with links resolved. Raises `BadInput`."""
    file = page.resolve()
    if file.exists() and not file.is_file():
        raise BadInput(f"-o {page}: this is not a regular file")
    return file


def _replaced(file: Path) -> Path:
    """Return a default file, if it is absent or was written by this command. Raises `BadInput`."""
    if os.path.lexists(file) and not (file.is_file() and not file.is_symlink() and _is_ours(file)):
        raise BadInput(f"{shown(file)}\n  this command did not write it: -o names another file")
    return file


def _is_ours(file: Path) -> bool:
    with open(file, "rb") as begin:
        text = begin.read(1000)
    return markup.GENERATOR.encode() in text


def _read(paths: Sequence[Path]) -> tuple[dict[Path, Record], list[str]]:
    """Read the records of all run folders below `paths`; return a message for each unreadable one.

    Raises `BadInput`.
    """
    by_folder: dict[Path, Record] = {}
    unreadable: list[str] = []
    for path in paths:
        if not path.is_dir():
            what = "it is not the folder of a run or sweep" if path.exists() else "there is no such folder"
            raise BadInput(f"{path}: {what}")
        inside = folders.runs(path, unreadable)
        if not inside:
            none = f"{shown(path)}: no run folder, and none in it: there is no {folders.RECORD}"
            raise BadInput("\n".join([*unreadable, none]))
        for folder in inside:
            try:
                by_folder[folder] = records.read(folder)
            except records.UnreadableRecord as error:
                unreadable.append(str(error))
    if not by_folder:
        raise BadInput("\n".join(unreadable))
    for message in unreadable:
        print(message, file=sys.stderr)
    return by_folder, unreadable


def of_sweep(folder: Path) -> Path:
    """Write the page of a sweep with links to the pages of its points; return its path. Raises `OSError`."""
    by_folder, unreadable = _read([folder])
    return write_sweep(by_folder, [folder], folder / PAGE, unreadable)


def write_sweep(by_folder: dict[Path, Record], paths: Sequence[Path], page: Path, unreadable: Sequence[str]) -> Path:
    """Write the page of several runs; return its path."""
    points = [
        measured.MeasuredPoint(_name(folder, paths), record, record.overrides, _link(folder, page))
        for folder, record in by_folder.items()
    ]
    unreadable = list(unreadable)
    points += _alike(by_folder, points, unreadable)
    names = list(dict.fromkeys(record.experiment for record in by_folder.values() if record.experiment))
    name = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "no experiment"
    swept = measured.gather(points)
    notes = [f"{' '.join(line.strip() for line in message.splitlines())}" for message in unreadable]
    started = [folders.read(home) for home in dict.fromkeys(folder.parent for folder in by_folder)]
    # A command that ran only some of the runs would be taken for that of all.
    commands = [command for command in started if command] if all(started) else []
    write_text(page, sweep.page(name, swept, notes, commands))
    return page


def _alike(
    by_folder: dict[Path, Record], points: Sequence[measured.MeasuredPoint], unreadable: list[str]
) -> Iterator[measured.MeasuredPoint]:
    """Yield the points that were not run because another one stands for them, from their sweep's `results.jsonl`.

    A file that cannot be read is reported in `unreadable`.
    """
    at = {folder: k for k, folder in enumerate(by_folder)}
    for home in dict.fromkeys(folder.parent for folder in by_folder):
        file = home / "results.jsonl"
        try:
            rows = _rows(file)
        except plain.NotJson as error:
            unreadable.append(f"{file}\n  {error}")
            continue
        for number, row in {row["point"]: row for row in rows if row.get("same_as") is not None}.items():
            same = at.get(home / str(row["same_as"]))
            if same is not None:
                keys = [name for name in row if name not in measures.columns([])]
                like = points[same]
                overrides = [*like.overrides, *(f"{key}={row[key]}" for key in keys)]
                yield replace(like, name=_beside(like.name, str(number)), overrides=overrides, same_as=same)


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a sweep's `results.jsonl`; none if there is no such file. Raises `NotJson`."""
    if not file.is_file():
        return []
    try:
        rows = [plain.parse(line) for line in plain.read_text(file).split("\n") if line]
    except UnicodeDecodeError as error:
        raise plain.NotJson(f"not UTF-8: {error.reason}") from None
    for number, row in enumerate(rows, start=1):
        if not is_dict(row) or not isinstance(row.get("point"), int):
            raise plain.NotJson(f"line {number} is not the row of a point")
    return rows


def _beside(name: str, number: str) -> str:
    """Return the name of another point of the same sweep."""
    return "/".join([*name.split("/")[:-1], number])


def _name(folder: Path, paths: Sequence[Path]) -> str:
    """Return the name of a point: its number in its sweep, after the folder's name if several folders are given."""
    home = next(path for path in paths if folder == path or path in folder.parents)
    inside = folder.relative_to(home).as_posix()
    if len(paths) == 1:
        return inside
    return home.name if inside == "." else f"{home.name}/{inside}"


def _link(folder: Path, page: Path) -> str:
    """Return the link to a point's page, or to its record if it has no page."""
    there = folder / (PAGE if (folder / PAGE).is_file() else folders.RECORD)
    return quote(Path(os.path.relpath(there, page.parent)).as_posix())


def _common(paths: Sequence[Path]) -> Path:
    """Return the common parent folder of all paths."""
    return Path(os.path.commonpath([os.path.abspath(path) for path in paths]))
