"""A text in; a file that is there whole or not at all out."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

from runner.printable import printable


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all.

    On Linux it has no name before it is whole, so that nothing is left of it where the process is killed. On other
    systems, and file systems that know no such files, what is left then has a hidden name, and nobody reads it. What
    is there and is no file, a device or a pipe, is left alone: `OSError`. A `.txt` is for terminals: control characters
    are spelled out in it.
    """
    if path.exists() and not (path.is_file() or path.is_dir() or path.is_symlink()):
        raise OSError(errno.EINVAL, "it is no file, and is left alone", str(path))
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
    # Half of a character outside of the plane is what JSON and Python write as \\ud800, and UTF-8 has no bytes for.
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as file:
        file.write(text)


@contextlib.contextmanager
def _unnamed(folder: Path) -> Generator[int | None]:
    """A file that goes with its last descriptor; None where there is no such thing."""
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):
        # Where the folder is what is wrong, a file with a name shows it too.
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _named(handle: int, path: Path) -> bool:
    """Give a file that is whole its name. Returns whether the file system let it."""
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
    # A process that had this one's number left it: it was killed at this very place.
    hidden.unlink(missing_ok=True)
    try:
        _link(handle, hidden)
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def _link(handle: int, path: Path) -> None:
    # Python has the system follow the link in /proc where there is a folder to start from, and only there.
    root = os.open("/", os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=root, follow_symlinks=True)
    finally:
        os.close(root)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
