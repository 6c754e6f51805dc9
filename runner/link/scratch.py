"""Gives a purpose a temporary folder that is removed with its process, or, if that was killed, by a later one.

The owner keeps the folder locked; the system releases the lock when the process ends. Whoever removes its own folder
also removes those of others that nobody has locked, except folders that are marked to be kept.
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
    # Without such locks the owners of other folders are unknown, so none of theirs are removed.
    fcntl = None

PREFIX = "shardproof-run-"

_KEPT = ".kept"
"""The mark of a folder that outlives its owner, since a user may want to look into it."""

_SOON = 60.0
"""The seconds after which an owner has certainly locked a new folder."""


class Folder:
    """One such folder, `path`; as a context it is removed at the end."""

    def __init__(self, purpose: str = "") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-" if purpose else PREFIX))
        self._lock = _locked(self.path)

    def keep(self) -> None:
        """Leave it where it is."""
        (self.path / _KEPT).touch()

    def remove(self) -> None:
        """Remove it and, once in a process, those that nobody has locked; a folder to be kept is only unlocked."""
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
    """Remove the folders of this tool in `home` that nobody has locked or marked to be kept."""
    for path in _abandoned(home):
        shutil.rmtree(path, ignore_errors=True)


def _abandoned(home: Path) -> Iterator[Path]:
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            # There may be hundreds of these.
            if os.path.exists(os.path.join(entry.path, _KEPT)):
                continue
            state = entry.stat(follow_symlinks=False)
            path = Path(entry.path)
            is_own = state.st_uid == os.getuid() and time.time() - state.st_mtime > _SOON
            if is_own and (lock := _locked(path)) is not None:
                yield path
                os.close(lock)


def _locked(path: Path) -> int | None:
    """A descriptor that locks a folder; None if another process has it locked."""
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
