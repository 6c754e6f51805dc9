"""Gives a purpose a temporary folder that is removed with its process, or, if that was killed, by a later one.

The owner keeps the folder locked; the system releases the lock when the process ends. Whoever removes its own folder
also removes those of others that nobody has locked, except folders that are marked to be kept. What was not made here
stays, whatever its name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
import threading
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

_MARK = ".shardproof-scratch"
"""The file of every folder that is made here: the folder's own number in the file system, which no other has."""

_KEPT = ".kept"
"""The mark of a folder that outlives its owner, since a user may want to look into it."""

_RANDOM = 8
"""The bytes of the random part of a name."""

_TRIES, _PAUSE = 3, 0.05
"""How often a folder is removed in which files appear meanwhile, and the seconds between."""

_LONGEST = 60
"""The most characters of a purpose in a name."""

_SOON = 60.0
"""The seconds after which an owner has certainly locked a new folder."""


class Folder:
    """One such folder, `path`; as a context it is removed at the end."""

    def __init__(self, purpose: str = "") -> None:
        """`purpose` is part of its name, for those who look at it; it may be any text."""
        purpose = re.sub(r"[^\w.-]+", "_", purpose, flags=re.ASCII)[:_LONGEST]
        name = f"{PREFIX}{purpose}-" if purpose else PREFIX
        self.path = Path(tempfile.gettempdir(), f"{name}{os.urandom(_RANDOM).hex()}")
        self._lock: int | None = None
        with _MAKING:
            # Known before it exists, so that no signal comes between.
            _OWN.add(self)
            os.mkdir(self.path, 0o700)
            self._lock = _locked(self.path)
            (self.path / _MARK).write_text(_number(self.path), "ascii")

    def keep(self) -> None:
        """Leave it where it is."""
        (self.path / _KEPT).touch()

    def remove(self) -> None:
        """Remove it and, once in a process, those that nobody has locked; a folder to be kept is only unlocked.

        A folder to which a process still writes may stay; `remove_own` removes it at the end.
        """
        kept = (self.path / _KEPT).exists()
        if not kept:
            _remove(self.path)
        if kept or not self.path.exists():
            _OWN.discard(self)
            # Another thread may be removing it too.
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)
        remove_abandoned(Path(tempfile.gettempdir()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_OWN: set[Folder] = set()
"""The folders of this process that have not been removed."""

_MAKING = threading.Lock()
"""Held by a thread that makes a folder, and by one that ends the process."""

_LONG = 0.5
"""The seconds in which a folder is made, on a busy machine too."""


def make_no_more() -> None:
    """Let no other thread of this process make a folder from here on: it would wait for the end of the process."""
    _MAKING.acquire(timeout=_LONG)


def remove_own() -> None:
    """Remove the folders of this process that are left."""
    for folder in list(_OWN):
        folder.remove()


def _number(folder: Path) -> str:
    """The number of a folder in its file system."""
    state = os.stat(folder, follow_symlinks=False)
    return f"{state.st_dev}:{state.st_ino}"


def _is_marked(folder: Path) -> bool:
    """Whether a folder was made here: it has its own number in it, which neither a copy nor a user's folder has."""
    file = folder / _MARK
    try:
        return file.is_file() and not file.is_symlink() and file.read_text("ascii") == _number(folder)
    except (OSError, ValueError):
        return False


def _is_bare(folder: Path) -> bool:
    """Whether a folder was being made or removed here when its process was killed: it has such a name, and no more."""
    return _RANDOM_END.search(folder.name) is not None and _is_unmarked(folder)


def _is_unmarked(folder: Path) -> bool:
    """Whether a folder has nothing in it, or a mark that was not yet written."""
    entries = _entries(folder)
    return [each.name for each in entries if each.stat(follow_symlinks=False).st_size or each.name != _MARK] == []


_RANDOM_END = re.compile(rf"-[0-9a-f]{{{2 * _RANDOM}}}\Z")


@functools.cache
def remove_abandoned(home: Path) -> None:
    """Remove the folders of this tool in `home` that nobody has locked or marked to be kept."""
    for path in _abandoned(home):
        _remove(path)


def _remove(folder: Path) -> None:
    """Remove a folder with all in it if it was made here; another one only if nothing is in it."""
    if not _is_marked(folder):
        with contextlib.suppress(OSError):
            if _is_unmarked(folder):
                (folder / _MARK).unlink(missing_ok=True)
            os.rmdir(folder)
        return
    for _ in range(_TRIES):
        # The mark goes last: a process that is killed meanwhile leaves what a later one recognizes.
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _MARK:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        with contextlib.suppress(OSError):
            if os.listdir(folder) == [_MARK]:
                os.unlink(folder / _MARK)
                os.rmdir(folder)
                return
        # A process that was just ended may still have written to it.
        time.sleep(_PAUSE)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing in one that another thread has removed meanwhile."""
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except FileNotFoundError:
        return []


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
            is_old = state.st_uid == os.getuid() and time.time() - state.st_mtime > _SOON
            if is_old and (_is_marked(path) or _is_bare(path)) and (lock := _locked(path)) is not None:
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
