"""Rounds numbers as a machine of a narrower dtype does: to nearest, or, with a seed, randomly.

Random rounding (Monte Carlo arithmetic) covers effects that rounding to nearest does not show: the last bits of
elementary functions, the order of a sum, and the direction in which close numbers are rounded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.base.untyped import is_tuple
from runner.checks.reference import elementary


@dataclass(frozen=True)
class Machine:
    """The arithmetic of a machine.

    - `products`: the dtype to which float32 operands of products are rounded first: `bfloat16`, `tensorfloat32` or
      None.
    - `seed`: None rounds to nearest; a number draws the direction of every rounding.
    - `platform`: the one whose elementary functions it has.
    - `place`: where a number was computed; the last bits of an elementary function of equal numbers from two places
      differ, as a compiler's may. None: they are equal.
    """

    products: str | None = None
    seed: int | None = None
    platform: str = "cpu"
    place: int | None = None


NEAREST = Machine()


@cache
def carrier_of(kind: str) -> np.dtype:
    """The dtype in which a machine computes with `kind`, and in which values are kept."""
    known = dtypes.dtype(kind)
    wide = kind in ("float64", "complex128")
    return np.dtype(f"c{16 if wide else 8}" if known.kind == "complex" else f"f{8 if wide else 4}")


@cache
def wide_of(kind: str) -> np.dtype:
    """The dtype of 64-bit floats in which numbers of `kind` can be moved by less than its resolution."""
    return np.dtype(np.complex128 if dtypes.dtype(kind).kind == "complex" else np.float64)


@cache
def promoted(kinds: frozenset[str]) -> str:
    """The dtype that JAX gives floats of several dtypes."""
    parts = {PARTS.get(kind, kind) for kind in kinds}
    if len(parts) > 1:
        # An 8-bit float is promoted to a 16-bit one; two kinds of 16 bits to float32.
        parts = {kind for kind in parts if dtypes.dtype(kind).itemsize > 1} or parts
    joined = max(sorted(parts), key=lambda kind: dtypes.dtype(kind).itemsize)
    joined = "float32" if {"bfloat16", "float16"} <= parts and joined != "float64" else joined
    is_complex = any(kind in PARTS for kind in kinds)
    return with_parts(joined) if is_complex else joined


PARTS = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the real and the imaginary part."""


def with_parts(kind: str) -> str:
    """The complex dtype with parts of the dtype `kind`, or of one that represents it."""
    return "complex128" if kind == "float64" else "complex64"


def multiplied(value: Any, kind: str, machine: Machine) -> Any:
    """An operand of a product, rounded as hardware that multiplies in fewer bits reads it."""
    if machine.products is None or kind not in ("float32", "complex64"):
        return value
    if not dtypes.is_array(value) or value.dtype.kind not in "fc":
        return value
    if value.dtype.kind == "c":
        return multiplied(np.real(value), "float32", machine) + 1j * multiplied(np.imag(value), "float32", machine)
    if machine.products == "bfloat16":
        return value.astype(ml_dtypes.bfloat16).astype(value.dtype)
    # TensorFloat-32 keeps 10 bits of float32's mantissa.
    single = np.asarray(value, np.float32, order="C")
    bits = (single.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(value.dtype)


def _draw(value: np.ndarray, seed: int) -> np.ndarray:
    """A number between -1 and 1 for each number, from its bits."""
    # At least one dimension: of arrays, products of integers wrap without a warning, and change in place.
    bits = np.array(value, np.float64, order="C", ndmin=1).view(np.uint64)
    bits ^= _mask(seed)
    for factor, shift in _MIXING:
        bits *= factor
        bits ^= bits >> shift
    bits >>= _UNUSED_BITS
    drawn = bits.astype(np.float64)
    drawn *= 2.0**-52
    drawn -= 1.0
    return drawn if value.ndim else drawn[0]


_MIXING = ((np.uint64(0xBF58476D1CE4E5B9), np.uint64(29)), (np.uint64(0x94D049BB133111EB), np.uint64(32)))
"""The factors and shifts of splitmix64."""

_UNUSED_BITS = np.uint64(11)


@cache
def _mask(seed: int) -> np.uint64:
    return np.uint64(0x9E3779B97F4A7C15 * (2 * seed + 1) % 2**64)


def moved(value: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Each number moved up or down by at most `share` of itself."""
    if value.dtype.kind == "c":
        return moved(np.real(value), share, seed) + 1j * moved(np.imag(value), share, seed)
    return value * (1.0 + share * _draw(value, seed))


def _beside(value: np.ndarray, seed: int) -> np.ndarray:
    """The next float64 number, up or down; needed where smaller moves would be rounded away."""
    if value.dtype.kind == "c":
        return _beside(np.real(value), seed) + 1j * _beside(np.imag(value), seed)
    return np.nextafter(value, np.copysign(np.inf, _draw(value, seed)))


def reordered(value: Any, kind: str, machine: Machine) -> Any:
    """An operand of sums of products, changed like another order's rounding of the partial sums would."""
    if not dtypes.is_array(value) or value.dtype.kind not in "fc":
        return value
    accumulator = 2.0**-53 if kind in ("float64", "complex128") else 2.0**-24
    return moved(
        value.astype(wide_of(kind) if value.dtype.kind == "f" else np.complex128), accumulator, _seed(machine, 1)
    )


def fused(product: Any, first: Any, kind: str, machine: Machine) -> Any:
    """Return a product that need not be rounded: in a * b - b * a a fused multiply-add rounds only one of the two."""
    value, known = np.asarray(product), dtypes.dtype(kind)
    if value.dtype.kind != "f" or known.kind != "float" or known.itemsize < 4:
        return product
    drawn = value * (1.0 + known.eps / 2 * _draw(np.asarray(first), _seed(machine, 4)))
    return dtypes.where(value.astype(carrier_of(kind)) == value, value, drawn)


def inexact(result: Any, ufunc: str, kind: str, machine: Machine) -> Any:
    """The result of the elementary function `ufunc`, as the machine's compiler might compute it."""
    if is_tuple(result):
        return tuple(inexact(part, ufunc, kind, machine) for part in result)
    value = np.asarray(result)
    if value.dtype.kind not in "fc":
        return result
    error, unit = _inexactness(ufunc, kind, machine)
    seed = _seed(machine, 2) + _PURPOSES * (machine.place or 0)
    drawn = moved(value.astype(np.complex128 if value.dtype.kind == "c" else np.float64), error.result * unit, seed)
    return drawn.astype(value.dtype) if machine.seed is None else drawn


def misread(operand: Any, ufunc: str, kind: str, machine: Machine) -> Any:
    """An operand of the elementary function `ufunc`, moved as far as its result is off by more than its last places."""
    error, unit = _inexactness(ufunc, kind, machine)
    if not error.operand or not dtypes.is_array(operand) or operand.dtype.kind not in "fc":
        return operand
    return moved(operand, error.operand * unit, _seed(machine, 5))


def _inexactness(ufunc: str, kind: str, machine: Machine) -> tuple[elementary.Inexactness, float]:
    """The error of a function of this dtype, and the unit in which it is given."""
    if kind in ("float64", "complex128"):
        return elementary.IN_FLOAT64, 2.0**-53
    error = elementary.inexactness(ufunc, machine.platform)
    return error, elementary.DRAWN * error.unit(dtypes.dtype(PARTS.get(kind, kind)).eps)


def _seed(machine: Machine, purpose: int) -> int:
    return 8 * (0 if machine.seed is None else machine.seed + 1) + purpose


_PURPOSES = 8 * 64
"""More than the seeds of all purposes."""


def nearest(value: np.ndarray, kind: str, machine: Machine, *, exact: bool = False) -> np.ndarray:
    """`value` rounded to `kind`, kept in its carrier; `exact` elements are rounded to nearest on every machine."""
    known, carrier = dtypes.dtype(kind), carrier_of(kind)

    def held(value: np.ndarray) -> np.ndarray:
        if carrier == known.numpy:
            return value.astype(carrier, copy=False)
        return value.astype(np.float32, copy=False).astype(known.numpy).astype(carrier)

    with np.errstate(all="ignore"):
        if kind in ("float64", "complex128"):
            wide = value.astype(carrier)
            if exact:
                return wide
            # Nor is a sum or product that fits into half of the digits, an integer, or a mask.
            single = value.astype(np.complex64 if wide.dtype.kind == "c" else np.float32)
            return dtypes.where(single == wide, wide, _beside(wide, _seed(machine, 3)))
        near = held(value)
        if exact or machine.seed is None or value.dtype.kind not in "fc":
            return near
        drawn = held(moved(value.astype(wide_of(kind)), known.eps / 4, _seed(machine, 3)))
        # What the dtype represents exactly is not rounded.
        return dtypes.where(near == value, near, drawn)
