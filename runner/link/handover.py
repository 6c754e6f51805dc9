"""Arrays in; one file of their bytes out, and back again: how the worker leaves values for the parent.

A file begins with a line of JSON, the arrays' sizes in bytes, and then has the arrays one after the other, each at a
multiple of 64 bytes. It is mapped into memory and not read: what nobody looks at costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_ALIGNMENT = 64


def leave(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Write the bytes of `arrays`, of any dtype."""
    with open(path, "wb") as file:
        file.write(json.dumps([array.nbytes for array in arrays]).encode() + b"\n")
        for array in arrays:
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            file.write(raw_bytes(array).data)


def collect(path: Path) -> list[np.ndarray]:
    """The bytes of each array that `leave` wrote, and no file any more: it goes when the last array does."""
    raw = np.memmap(path, np.uint8, "r")
    with open(path, "rb") as file:
        sizes = json.loads(file.readline())
        at = file.tell()
    path.unlink()
    arrays: list[np.ndarray] = []
    for size in sizes:
        at += -at % _ALIGNMENT
        arrays.append(np.asarray(raw[at : at + size]))
        at += size
    return arrays


_AT_ONCE = 1 << 20
"""How many bytes of two arrays are compared at once."""


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of bytes, of the same size, are the same."""
    parts = range(0, one.size, _AT_ONCE)
    return all(np.array_equal(one[at : at + _AT_ONCE], other[at : at + _AT_ONCE]) for at in parts)


def raw_bytes(value: np.ndarray) -> np.ndarray:
    """The bytes of an array, one after the other; those of the array itself where they lie so."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
