"""Reads files that others may have made: only regular files of a bounded size, not what waits or never ends."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

LARGEST = 1 << 28
"""The most bytes of a file that is read as a whole: 256 MiB."""


class NotRegular(OSError):
    """A path is no regular file, or too large a one; the message says which."""


def read(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a file. Raises `OSError`, `NotRegular` for a folder, a pipe, a device and a huge file."""
    with open(path, "rb", opener=_opened) as file:
        # A file may grow while it is read.
        size = os.fstat(file.fileno()).st_size
        content = file.read(largest + 1) if size <= largest else b""
    if size > largest or len(content) > largest:
        raise NotRegular(errno.EFBIG, f"it has more than {largest >> 20} MiB", str(path))
    return content


def beginning(path: Path, count: int) -> bytes:
    """Return the first bytes of a file of any size. Raises as `read` does."""
    with open(path, "rb", opener=_opened) as file:
        return file.read(count)


def below(folder: Path) -> Iterator[Path]:
    """Yield the files at any depth of a folder, but none of folders that cannot be read or are links."""
    for home, _, names in os.walk(folder):
        yield from (Path(home, name) for name in names)


def _opened(path: str, flags: int) -> int:
    # A pipe that nobody writes to would keep `open` waiting.
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegular(errno.EINVAL, "it is no regular file, but a folder, a pipe or a device", path)
    return handle


def read_text(path: Path, errors: str = "strict", largest: int = LARGEST) -> str:
    """Return the content of a UTF-8 file. Raises `OSError`, and `UnicodeDecodeError` unless `errors` is another."""
    return read(path, largest).decode("utf-8", errors).replace("\r\n", "\n")
