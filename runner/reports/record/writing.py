"""Writes a text to a complete file, or to none."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

from runner.base.printable import printable


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: afterwards it is complete, or unchanged.

    On Linux the file has no name until it is complete, so that a killed process leaves nothing. On other systems, and
    on file systems without such files, a killed process may leave a file with a hidden name, which nothing reads. A
    device or a pipe is not replaced: `OSError`. In a `.txt`, which terminals show, control characters are escaped.
    """
    if path.exists() and not (path.is_file() or path.is_dir() or path.is_symlink()):
        raise OSError(errno.EINVAL, "it is not a file, so it is left as it is", str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    text = printable(text) if path.suffix == ".txt" else text
    with _unnamed(path.parent) as handle:
        if handle is not None:
            _write(handle, text)
            if _named(handle, path):
                return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        try:
            _write(handle, text)
        finally:
            os.close(handle)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _write(handle: int, text: str) -> None:
    # UTF-8 cannot encode a lone surrogate, which JSON and Python write as \\ud800.
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as file:
        file.write(text)


@contextlib.contextmanager
def _unnamed(folder: Path) -> Generator[int | None]:
    """Yield a file without a name that vanishes with its last descriptor; None if the system has no such files."""
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):
        # If the folder is at fault, creating a named file raises the same error.
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _named(handle: int, path: Path) -> bool:
    """Give a complete file its name. Returns whether the file system supports that."""
    try:
        try:
            _link(handle, path)
        except FileExistsError:
            _replace(handle, path)
    except OSError:
        return False
    return True


def _replace(handle: int, path: Path) -> None:
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{handle}")
    # A killed process with the same id left it.
    hidden.unlink(missing_ok=True)
    try:
        _link(handle, hidden)
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def _link(handle: int, path: Path) -> None:
    # Python makes the system follow the link in /proc only if `src_dir_fd` is given.
    root = os.open("/", os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=root, follow_symlinks=True)
    finally:
        os.close(root)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
