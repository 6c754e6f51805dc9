"""Keeps a value in an oracle's precision, or rounds it to the dtype that JAX gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.layout import distinct, first_holders
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.checks.reference.rounded_numpy import Machine, Rounded, plain, rounded
from runner.graph.language.counterparts.promotion import NARROWED, Weak, strong

ANY = -1
"""The part number that stands for all parts without one."""

Floats = Mapping[str, Mapping[int, str]]
"""JAX's float dtypes, and its weak types, in a section: for each line (`ring/body/acc`), by the number of the part."""


@dataclass(frozen=True)
class Arithmetic:
    """The precision of floats: float64 in an oracle, the dtypes in `floats` on a machine.

    - `floats`: an oracle uses them too, for casts to narrower dtypes and for random draws. Missing ones are float32 or
      complex64.
    - `kind`: the dtype of every float on the machine, regardless of `floats`.
    - `casts`: whether the result of a cast is rounded.
    """

    floats: Floats = field(default_factory=dict[str, Mapping[int, str]])
    machine: Machine | None = None
    kind: str | None = None
    casts: bool = True

    def held(self, value: Any, x64: bool, kind: str | None = None) -> Any:
        """Return `value` as it is stored: floats in float64, or rounded to the dtype `kind` (None: their own)."""
        if self.machine is None:
            return widen(value, x64)
        if is_sequence(value):
            return type(value)(self.held(part, x64, kind) for part in value)
        if not dtypes.is_numeric(value):
            return value
        if isinstance(value, Rounded) and kind in (None, value.kind) and self.kind is None:
            return value
        if value.dtype.kind not in "fcV" or value.dtype.name in dtypes.NARROW_INTEGERS:
            return widen(value, x64)
        kind = self.kind or kind or "float32"
        is_complex = value.dtype.kind == "c"
        if is_complex != (dtypes.dtype(kind).kind == "complex"):
            wide = kind in ("float64", "complex128")
            kind = f"complex{128 if wide else 64}" if is_complex else f"float{64 if wide else 32}"
        if isinstance(value, Rounded) and value.kind == kind:
            return value
        return rounded(plain(value), kind, self.machine)

    def placed(self, value: Any, place: int) -> Any:
        """On a machine that tells places apart, return a value that was computed at this one."""
        if self.machine is None or self.machine.place is None or not isinstance(value, Rounded):
            return value
        placed = value.view(Rounded)
        placed.product, placed.weak, placed.machine = value.product, value.weak, replace(self.machine, place=place)
        return placed

    def widened(self, operand: list[Any], least: int) -> list[Any]:
        """On a machine, return an operand with its floats of `least` to 4 bytes in float32; others are unchanged."""
        if self.machine is None:
            return operand
        widened: list[Any] = []
        for position, first in enumerate(first_holders(operand)):
            value = operand[position]
            narrow = isinstance(value, Rounded) and least <= dtypes.dtype(value.kind).itemsize < 4
            if position > first:
                widened.append(widened[first])
            else:
                widened.append(rounded(plain(value), "float32", self.machine) if narrow else value)
        return widened


EXACT = Arithmetic()


def widen(value: Any, x64: bool) -> Any:
    """Floats to float64 and complex to complex128; integers to 32 bits unless `x64`."""
    if not dtypes.is_numeric(value):
        return value
    dtype = value.dtype
    if dtype.kind in "biu":
        return value.astype(NARROWED[dtype]) if not x64 and dtype in NARROWED else value
    if dtype.kind == "c":
        return value.astype(np.complex128, copy=False)
    if dtype.name in dtypes.NARROW_INTEGERS:
        return value.astype(np.int8 if dtype.name.startswith("int") else np.uint8)
    return value.astype(np.float64, copy=False)


def is_weak(value: Any) -> bool:
    """Whether a value takes the dtype of what it is combined with; Python numbers always do."""
    return isinstance(value, Weak) or (isinstance(value, Rounded) and value.weak)


def with_type(value: Any, weak: bool) -> Any:
    """An array of numbers with a weak type, or without; in float64 floats have none."""
    if isinstance(value, Rounded):
        held = value.view()
        held.weak = weak
        return held
    if not weak:
        return strong(value)
    return np.asarray(value).view(Weak) if dtypes.is_numeric(value) and value.dtype.kind in "iu" else value


def cast(value: Any, narrow: str) -> Any:
    """Floats rounded to the dtype `narrow`, kept in float64 or complex128."""
    if not dtypes.is_floating(value):
        return value
    kind, nearest = dtypes.dtype(narrow), plain(value)
    if nearest.dtype.kind != "c" and kind.itemsize < 4:
        # By way of float32, as a machine does.
        nearest = nearest.astype(np.float32)
    return nearest.astype(kind.numpy).astype(np.complex128 if kind.kind == "complex" else np.float64)


def magnitude(operand: Sequence[Any]) -> float:
    """The largest finite magnitude in numbers or arrays of numbers, such as an operand on every device."""
    largest = 0.0
    for value in map(np.asarray, distinct(operand)):
        if not value.size:
            continue
        if value.dtype.kind == "c":
            here = float(np.max(np.abs(value)))
        else:
            here = max(abs(float(np.max(value))), abs(float(np.min(value))))
        if not math.isfinite(here):
            finite = np.abs(value[np.isfinite(value)])
            here = float(finite.max()) if finite.size else 0.0
        largest = max(largest, here)
    return largest
