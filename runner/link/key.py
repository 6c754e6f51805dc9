"""The key by which the processes of a run recognize each other.

It is in the environment of all, `SHARDPROOF_KEY`; or process 0 makes one, and leaves it in a file that only its user
can read, beside the run's folder, until all have connected.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "SHARDPROOF_KEY"

_SHORTEST = 16
"""The least number of characters of a key, so that it cannot be guessed."""


class Unusable(Exception):
    """A key that must not be used; the message says why."""


class Absent(OSError):
    """There is no key yet; the message says where it is expected."""


def file(folder: Path, address: str) -> Path:
    """The file of a run's key; the run's folder is in `folder`, and its processes meet at `address`."""
    return folder / f".shardproof-{hashlib.sha256(address.encode()).hexdigest()[:16]}.key"


def given() -> bytes | None:
    """The key of the environment; None if it has none. Raises `Unusable`."""
    text = os.environ.get(VARIABLE)
    if text is not None and len(text) < _SHORTEST:
        raise Unusable(f"{VARIABLE} has {len(text)} characters; a key needs at least {_SHORTEST}")
    return None if text is None else text.encode()


@contextmanager
def left(path: Path) -> Generator[bytes]:
    """The key of a new run: the environment's, or one that is stored at `path` while this is open.

    Raises `Unusable` and `OSError`.
    """
    key = given()
    if key is not None:
        yield key
        return
    key = secrets.token_hex(32).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed run may have left one.
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(key)
        yield key
    finally:
        path.unlink(missing_ok=True)


def read(path: Path) -> bytes:
    """The key of the run that process 0 began. Raises `Unusable`, and `Absent` where it is not there yet."""
    key = given()
    if key is not None:
        return key
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Absent(
            f"set {VARIABLE} to the same value in all processes, or let them share the folder where "
            f"process 0 writes {path} ({error.strerror})"
        ) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise Unusable(f"{path} must be a file that its user alone can read and write")
        key = os.read(handle, 1024)
    finally:
        os.close(handle)
    if not key:
        raise Absent(f"{path} is being written")
    return key
