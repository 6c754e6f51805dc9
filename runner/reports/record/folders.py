"""Lists the run folders in a folder, in natural order, and the commands of sweeps."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from runner.base import plain
from runner.base.invocation import invocation
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list

RECORD = "result.json"
"""The file that makes a folder a run folder."""

PAGE = "report.html"
"""The page of a run or of a sweep."""

PLAN = "plan.json"
"""The file with the layouts that the planner found in a run."""

PLANNED = Path("conf/experiment/plan.yaml")
"""The experiment with the planned layouts, below the folder of `runner plan`, as `--config-dir` takes it."""

PICTURES = {"shardings.svg": "svg", "shardings.txt": "figures", "collectives.svg": "trace"}
"""The pictures of a run by their files: of each the module of `runner.reports.show` whose `picture` draws it of the
record."""


def runs(folder: Path, unread: list[str] | None = None) -> list[Path]:
    """Return the run folders in a folder, or the folder itself if it is one; not those inside another run folder.

    A message about each folder that cannot be read is appended to `unread`.
    """
    return list(_runs(folder, unread if unread is not None else []))


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds the points of a sweep: run folders whose names are numbers."""
    return not (folder / RECORD).is_file() and any(
        path.name.isdigit() and os.path.isfile(path / RECORD) for path in _folders(folder)
    )


def _runs(folder: Path, unread: list[str]) -> Iterator[Path]:
    try:
        if (folder / RECORD).is_file():
            yield folder
            return
        inside = sorted(_folders(folder), key=lambda path: natural(path.name))
    except OSError as error:
        unread.append(f"{folder}\n  {error.strerror}: what is in it is left out")
        return
    for path in inside:
        yield from _runs(path, unread)


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folders directly in a folder; links are not followed, since they may lead anywhere and in circles."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield Path(entry.path)


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key by which 10 comes after 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


FILE = "sweep.json"
"""The file in a sweep's folder that holds its command line."""


@dataclass(frozen=True)
class Command:
    """The command that started a sweep, and the one that runs its missing and failed points."""

    start: str
    resume: str


def read(folder: Path) -> Command | None:
    """Return the commands of a sweep; None if its folder does not have it."""
    try:
        content = plain.read(folder / FILE)
    except (OSError, plain.NotJson):
        return None
    arguments = content.get("arguments") if is_dict(content) else None
    if not is_dict(content) or not is_list(arguments):
        return None
    home = Path(str(content.get("from", "")))
    where = folder.resolve()
    shown = where.relative_to(home) if home.is_absolute() and where.is_relative_to(home) else where
    command = " ".join([invocation(), *map(shlex.quote, map(str, arguments))])
    return Command(command, f"{invocation()} {shlex.quote(f'resume={shown}')}")
