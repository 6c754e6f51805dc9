"""A purpose in; a temporary folder that is gone with its process out, or, where that was killed, with a later one.

The folder is locked as long as its owner has it open, which the system sees to. Whoever removes a folder of its own
removes those of others that nobody has locked; what is to be kept says so inside.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

try:
    import fcntl
except ImportError:
    # There are no such locks: nothing is known of the owners of other folders, and nothing of theirs is removed.
    fcntl = None

PREFIX = "shardproof-run-"

_KEPT = ".kept"
"""What stands in a folder that outlives its owner, since somebody may want to look into it."""

_SOON = 60.0
"""Seconds in which an owner certainly has locked what it has made."""


class Folder:
    """One such folder, `path`; as a context it is removed at the end."""

    def __init__(self, purpose: str = "") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-" if purpose else PREFIX))
        self._lock = _locked(self.path)

    def keep(self) -> None:
        """Leave it where it is."""
        (self.path / _KEPT).touch()

    def remove(self) -> None:
        """Remove it, and once in a process those that nobody has any more; or let go of it where it is to be kept."""
        if not (self.path / _KEPT).exists():
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        remove_abandoned(Path(tempfile.gettempdir()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@functools.cache
def remove_abandoned(home: Path) -> None:
    """Remove the folders of ours in a folder that nobody has locked, and nobody wants kept."""
    for path in _abandoned(home):
        shutil.rmtree(path, ignore_errors=True)


def _abandoned(home: Path) -> Iterator[Path]:
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            state = entry.stat(follow_symlinks=False)
            path = Path(entry.path)
            is_own = state.st_uid == os.getuid() and time.time() - state.st_mtime > _SOON
            if is_own and not (path / _KEPT).exists() and (lock := _locked(path)) is not None:
                yield path
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that has a folder locked; None where another one has."""
    if fcntl is None:
        return None
    handle = None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle
