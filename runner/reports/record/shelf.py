"""Summarizes the runs and sweeps in a folder, and deletes runs if their manifests allow it.

It reads records of every schema, since the fields of the summary have never changed.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from runner.base import plain
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list
from runner.reports.record import folders, manifest
from runner.reports.record.model import SCHEMA, STATUSES


@dataclass(frozen=True)
class ShelfEntry:
    """A run, or a sweep with all its points.

    - `experiments`: their names, several for some sweeps; `statuses`: the number of points with each status.
    - `time`: its start as in the record, ISO 8601 in UTC; `overrides`: those of the run, or of all points of a sweep.
    """

    folder: Path
    experiments: tuple[str, ...]
    statuses: Counter[str]
    time: str
    overrides: tuple[str, ...]
    sweep: bool

    @property
    def points(self) -> int:
        """The number of runs."""
        return self.statuses.total()


def entries(folder: Path, unread: list[str] | None = None) -> list[ShelfEntry]:
    """Return the runs and sweeps in a folder, the oldest first; the points of a sweep are not listed.

    Messages about unreadable `result.json` files and folders are appended to `unread`. A record whose summary is
    readable is listed, even if the rest of it is damaged.
    """
    runs_of: dict[Path, list[tuple[Path, dict[str, Any]]]] = {}
    for run in folders.runs(folder, unread):
        brief = _brief(run, unread)
        if brief is not None:
            home = run.parent if run != folder and _is_point(run) else run
            runs_of.setdefault(home, []).append((run, brief))
    return sorted((_entry(home, runs) for home, runs in runs_of.items()), key=lambda entry: (entry.time, entry.folder))


def _is_point(run: Path) -> bool:
    """Return whether a run is a point of the sweep in whose folder it is; without manifests its number decides."""
    inner, outer = manifest.read(run), manifest.read(run.parent)
    if inner is not None or outer is not None:
        return inner is not None and inner.kind == "point" and outer is not None and outer.kind == "sweep"
    return run.name.isdecimal() and folders.is_sweep(run.parent)


def _entry(home: Path, runs: list[tuple[Path, dict[str, Any]]]) -> ShelfEntry:
    briefs = [brief for _, brief in runs]
    overrides = [{str(o) for o in brief["overrides"]} for brief in briefs]
    common = set[str].intersection(*overrides)
    return ShelfEntry(
        folder=home,
        experiments=tuple(dict.fromkeys(str(brief["experiment"] or "–") for brief in briefs)),
        statuses=Counter(str(brief["status"]) for brief in briefs),
        time=min(str(brief.get("time") or "") for brief in briefs),
        overrides=tuple(str(o) for o in briefs[0]["overrides"] if o in common),
        sweep=home != runs[0][0],
    )


def _brief(folder: Path, unread: list[str] | None = None) -> dict[str, Any] | None:
    """Return a record's data; None if the file is not a record, and then the reason is appended to `unread`."""
    why = "not a record: it has no 'schema', 'status', 'experiment' and 'overrides'"
    try:
        data = plain.read(folder / folders.RECORD)
    except plain.NotJson as error:
        data, why = None, str(error)
    except OSError as error:
        data, why = None, f"{error.strerror or error}"
    ours = is_dict(data) and isinstance(data.get("schema"), int) and data.get("status") in list(STATUSES)
    if is_dict(data) and ours and "experiment" in data and is_list(data.get("overrides")):
        if unread is not None and data["schema"] == SCHEMA and (damage := _damage(folder)):
            unread.append(damage)
        return data
    if unread is not None:
        unread.append(f"{folder / folders.RECORD}\n  {why}")
    return None


def _damage(folder: Path) -> str | None:
    """Return why the rest of a record cannot be read; a file that is unchanged since its run is not checked."""
    if manifest.is_as_written(folder / folders.RECORD):
        return None
    from runner.reports.record import record

    try:
        record.read(folder)
    except record.UnreadableRecord as error:
        return f"{error}; only the start of the file could be listed"
    return None


def size(entry: ShelfEntry) -> int:
    """Return the bytes of all files of an entry."""
    total = 0
    for home, _, files in os.walk(entry.folder):
        total += sum(os.lstat(os.path.join(home, name)).st_size for name in files)
    return total


def strangers(entry: ShelfEntry) -> list[Path]:
    """Return the files in the folder of an entry that no run wrote."""
    return manifest.strangers(entry.folder.resolve())


def delete(entry: ShelfEntry) -> list[Path]:
    """Delete a run or a sweep if runs wrote everything in its folder; otherwise nothing, and return the rest.

    Raises `OSError`.
    """
    return manifest.delete(entry.folder.resolve())
