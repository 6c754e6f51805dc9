"""Reads a JSON file to plain data, or says in one line why it is not JSON; of files only regular, bounded ones.

Python's parser accepts more than JSON: `NaN`, `1e999`, integers of any length. The runner never writes these, and
computing with them would fail later, where the file is no longer known.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DIGITS = 300
"""The most digits of an integer: a longer one does not fit into a float64 either."""


class NotJson(ValueError):
    """A text is not JSON; the message says why."""


def read(path: Path) -> Any:
    """Return the data of a file. Raises `NotJson`; `OSError` if the file cannot be read."""
    try:
        return parse(read_text(path))
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8: {error.reason} at byte {error.start}") from None


def parse(text: str) -> Any:
    """Return the data of a text. Raises `NotJson`."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_float, parse_int=_integer)
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from None


def _refused(name: str) -> Any:
    raise NotJson(f"not valid JSON: it has no {name}")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotJson(f"not valid JSON: {text:.20} is beyond float64")
    return number


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise NotJson(f"not valid JSON: an integer of {len(text)} digits")
    return int(text)


LARGEST = 1 << 28
"""The most bytes of a file that is content as a whole: 256 MiB."""


class NotRegular(OSError):
    """A path is no regular file, or too large a one; the message says which."""


def content(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a file. Raises `OSError`, `NotRegular` for a folder, a pipe, a device and a huge file."""
    with open(path, "rb", opener=_opened) as file:
        # A file may grow while it is content.
        size = os.fstat(file.fileno()).st_size
        content = file.read(largest + 1) if size <= largest else b""
    if size > largest or len(content) > largest:
        raise NotRegular(errno.EFBIG, f"it has more than {largest >> 20} MiB", str(path))
    return content


def beginning(path: Path, count: int) -> bytes:
    """Return the first bytes of a file of any size. Raises as `content` does."""
    with open(path, "rb", opener=_opened) as file:
        return file.read(count)


def below(folder: Path) -> Iterator[Path]:
    """Yield the files at any depth of a folder, but none of folders that cannot be content or are links."""
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
    return content(path, largest).decode("utf-8", errors).replace("\r\n", "\n")
