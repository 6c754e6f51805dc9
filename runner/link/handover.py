"""Passes arrays from the worker to the parent in one file.

A file begins with a line of JSON, the arrays' sizes in bytes, followed by the arrays, each at a multiple of 64 bytes.
It is mapped into memory, so that arrays that are not used cost nothing.
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
    """The arrays that `leave` wrote, as bytes; the file is removed when the last array is released."""
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
"""The number of bytes of two arrays that are compared at once."""


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays of bytes, of the same size, are equal."""
    parts = range(0, left.size, _AT_ONCE)
    return all(np.array_equal(left[at : at + _AT_ONCE], right[at : at + _AT_ONCE]) for at in parts)


def raw_bytes(value: np.ndarray) -> np.ndarray:
    """The bytes of an array in row-major order; a view of the array if it is contiguous."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
