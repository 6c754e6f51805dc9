"""Reads from the folder of a sweep the command that began it and the one that resumes it."""

from __future__ import annotations

import shlex
from pathlib import Path

from runner.base import plain
from runner.base.invocation import invocation
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list

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
