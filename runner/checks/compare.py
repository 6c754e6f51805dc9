"""Takes two arrays and a tolerance; returns how far they are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.checks.reference import PerDevice, Rounding

SAFE = {1: 3.0, 2: 3.0, 4: 4.0, 8: 4.0}
"""The tolerance in units of the largest measured rounding error, by the dtype's size in bytes.

The error of JAX's programs on CPUs was at most 0.9 of these units in 16 bits, 1.6 in 8, and 2.4 in 32:
`benchmarks/tolerance.py`.
"""

UNITS = {1: 0.5, 2: 1.0, 4: 4.0, 8: 4.0}
"""The tolerance, in units in the last place, of results whose rounding was not measured, by the dtype's size in bytes.

Elementary functions of two libraries differ by such units in float32; narrower results are rounded once, from float32.
"""

FEW = 8
"""With this many measured distances the tolerance is doubled, as the next may be larger; with more it widens less."""

MANY = 64
"""Outputs with at least this many elements are also checked as a whole: rounding averages out, a mistake does not."""

EXCUSED = 0.05
"""The share of an output's elements that may depend on decisions and equal none of the candidate values."""

OUTCOMES = 4
"""With more possible values of an element than this, the list of them is taken to be incomplete."""


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| ≤ atol + rtol · |expected|; both are 0 for exact dtypes."""

    rtol: float
    atol: float

    def __add__(self, other: Tolerance) -> Tolerance:
        """The tolerance between two values that are each within their tolerance of a third."""
        return Tolerance(self.rtol + other.rtol, self.atol + other.atol)


NOTHING = Tolerance(0.0, 0.0)


def of_bytes(dtype: str, of: Mapping[int, float]) -> float:
    """The entry of `of` for a dtype's size in bytes."""
    kind = dtypes.dtype(dtype)
    return of[kind.itemsize // (2 if kind.kind == "complex" else 1)]


def units(dtype: str, of: Mapping[int, float]) -> float:
    """The units in the last place that `of` gives for a dtype, relative to the result."""
    return of_bytes(dtype, of) * dtypes.dtype(dtype).eps


def tolerance(dtype: str, rounding: Rounding) -> Tolerance:
    """The tolerance of an output of `dtype`, made of the measured rounding errors.

    rtol is a few units in the last place. atol is `SAFE` times the largest measured rounding error, and more where few
    were measured, since the next may be larger.
    """
    if dtypes.dtype(dtype).exact:
        return NOTHING
    times = lucky(rounding.elements) if rounding.error else 1.0
    return Tolerance(units(dtype, UNITS), of_bytes(dtype, SAFE) * rounding.error * times)


def lucky(measured: int) -> float:
    """The factor by which the tolerance allows the next distance to exceed the largest of this many measured ones."""
    return 1 + FEW / max(measured, 1)


@dataclass(frozen=True)
class Alternatives:
    """The values that are right besides the oracle's, since rounding may change decisions: those in `alternatives`.

    - `low`, `high`: bounds of what an element can be if it has many possible values.
    - `overflows`: the elements that may be infinite or NaN.
    - `hangs`: the elements that depend on decisions; the others differ by rounding alone.
    - `measured`: whether any draw was finite, so that rounding was measured. If none was, any value passes.
    """

    low: np.ndarray | None = None
    high: np.ndarray | None = None
    overflows: np.ndarray | None = None
    alternatives: tuple[np.ndarray, ...] = ()
    hangs: np.ndarray | None = None
    measured: bool = True

    @classmethod
    def of(cls, rounding: Rounding, part: Callable[[PerDevice], np.ndarray]) -> Alternatives | None:
        """The values that rounding allows in a `part` of each device's; None if only the oracle's are right."""
        bounds = (rounding.low, rounding.high, rounding.overflows)
        if all(bound is None for bound in bounds):
            return None
        low, high, overflows = (None if bound is None else part(bound) for bound in bounds)
        hangs = None if rounding.hangs is None else part(rounding.hangs)
        return cls(low, high, overflows, tuple(map(part, rounding.alternatives)), hangs, rounding.elements > 0)


@dataclass(frozen=True)
class Difference:
    """How far two arrays are apart.

    - `wrong`: the number of elements outside the tolerance; `first`: the index of the first of them.
    - `share`: the largest share of its tolerance that an element within it uses.
    - `undecided`: the elements that depend on a decision that rounding can change. Of these `between` have none of the
      many known values but lie between them; `excused` lie outside, or have none of a few known values. Only a few
      elements may.
    - `overflowing`: the elements beyond the dtype's range. Of those, `unforeseen` overflowed in no draw, although many
      (`MANY`) did.
    """

    max_abs: float
    max_rel: float
    wrong: int
    size: int
    first: tuple[int, ...] | None
    nans: int
    share: float = 0.0
    undecided: int = 0
    between: int = 0
    excused: int = 0
    overflowing: int = 0
    unforeseen: int = 0

    def joined(self, addend: Difference) -> Difference:
        """The larger of the two differences, with their counts added."""
        return Difference(
            max(self.max_abs, addend.max_abs),
            max(self.max_rel, addend.max_rel),
            self.wrong + addend.wrong,
            self.size + addend.size,
            self.first if self.first is not None else addend.first,
            self.nans + addend.nans,
            max(self.share, addend.share),
            self.undecided + addend.undecided,
            self.between + addend.between,
            self.excused + addend.excused,
            self.overflowing + addend.overflowing,
            self.unforeseen + addend.unforeseen,
        )


SAME = Difference(0.0, 0.0, 0, 0, None, 0)


_CHUNK = 1 << 14
"""The number of elements that are compared at once, so that intermediate arrays stay in the cache."""


def difference(
    actual: Any, expected: Any, dtype: str, allowed: Tolerance, beside: Alternatives | None = None
) -> Difference:
    """How far `actual`, of `dtype`, is from the oracle's `expected`. NaN equals NaN, and is counted."""
    kind = dtypes.dtype(dtype)
    wanted = np.asarray(expected)
    got = np.asarray(actual)
    if got.shape != wanted.shape:
        # A value of another shape is wrong; it must not be broadcast.
        return Difference(math.inf, math.inf, max(got.size, 1), max(got.size, 1), (0,) * got.ndim, 0)
    if beside is not None:
        actual_wide, expected_wide = _comparable(got.ravel(), wanted.ravel(), kind)
        counted = _beside(actual_wide, expected_wide, kind, allowed, beside)
        first = None if counted.first is None else np.unravel_index(counted.first[0], got.shape)
        return replace(counted, first=None if first is None else tuple(map(int, first)))
    wide = _wide(kind)
    total, first = SAME, None
    for actual_wide, expected_wide in np.nditer(
        (got, wanted),
        ["external_loop", "buffered", "zerosize_ok"],
        order="C",
        casting="unsafe",
        op_dtypes=[wide or got.dtype, wide or wanted.dtype],
        buffersize=_CHUNK,
    ):
        here = _counted(actual_wide, expected_wide, kind, allowed)
        if first is None and here.first is not None:
            first = np.unravel_index(total.size + here.first[0], got.shape)
        total = total.joined(here)
    return replace(total, first=None if first is None else tuple(map(int, first)))


def nearest(
    actual: Any, expected: Any, dtype: str, allowed: Tolerance, beside: Alternatives | None
) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays, widened to be subtracted; where several values are right, the nearest is the expected one."""
    kind = dtypes.dtype(dtype)
    wide, nearest_value = _comparable(np.asarray(actual), np.asarray(expected), kind)
    if beside is not None and beside.hangs is not None:
        unknown = _led(wide, nearest_value, kind, allowed, beside)[2]
        for alternative in beside.alternatives:
            with np.errstate(all="ignore"):
                nearer = beside.hangs & (np.abs(wide - alternative) < np.abs(wide - nearest_value))
            nearest_value = dtypes.where(nearer, alternative.astype(nearest_value.dtype), nearest_value)
        nearest_value = dtypes.where(unknown, wide, nearest_value)
    if beside is not None and beside.overflows is not None:
        wide = dtypes.where(beside.overflows & ~np.isfinite(wide), nearest_value, wide)
    return wide, nearest_value


def _wide(kind: dtypes.DType) -> type[np.inexact] | None:
    return None if kind.exact else np.complex128 if kind.kind == "complex" else np.float64


def _comparable(got: np.ndarray, wanted: np.ndarray, kind: dtypes.DType) -> tuple[np.ndarray, np.ndarray]:
    wide = _wide(kind)
    return (got, wanted) if wide is None else (got.astype(wide, copy=False), wanted.astype(wide, copy=False))


def _beside(
    actual: np.ndarray, expected: np.ndarray, kind: dtypes.DType, allowed: Tolerance, beside: Alternatives
) -> Difference:
    """The difference of elements, in one dimension, from the nearest of the values that are right."""
    undecided = between = excused = overflowing = unforeseen = 0
    if beside.overflows is not None:
        gone = beside.overflows.ravel() & ~(beside.measured & np.isfinite(actual))
        overflowing = int(np.count_nonzero(gone))
        if overflowing > max(EXCUSED * gone.size, MANY):
            gone |= ~np.isfinite(actual)
            unforeseen = int(np.count_nonzero(gone)) - overflowing
            overflowing += unforeseen
        # Not compared: the reference may also exceed the dtype's range, and overflow when it is rounded to the dtype.
        actual, expected = dtypes.where(gone, 0, actual), dtypes.where(gone, 0, expected)
    if beside.low is not None and beside.high is not None:
        expected, several, unknown = _led(actual, expected, kind, allowed, beside)
        undecided = int(np.count_nonzero(several))
        if unknown.any():
            low, high = beside.low.ravel(), beside.high.ravel()
            inside = ~_apart(actual, _between(actual, low, high), kind, allowed)[1]
            inside[unknown] &= many(expected[unknown], [o.ravel()[unknown] for o in beside.alternatives], kind, allowed)
            between = int(np.count_nonzero(unknown & inside))
            excused = int(np.count_nonzero(unknown)) - between
            expected = dtypes.where(unknown, actual.astype(expected.dtype), expected)
    counted = _counted(actual, expected, kind, allowed)
    return replace(
        counted,
        undecided=undecided,
        between=between,
        excused=excused,
        overflowing=overflowing,
        unforeseen=unforeseen,
    )


def _led(
    actual: np.ndarray, expected: np.ndarray, kind: dtypes.DType, allowed: Tolerance, beside: Alternatives
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The expected values, replaced by an alternative where that fits; which elements are undecided; which fit none."""
    assert beside.low is not None
    assert beside.high is not None
    shape = expected.shape
    several = _apart(beside.low.reshape(shape), beside.high.reshape(shape), kind, allowed)[1]
    unknown = several & _apart(actual, expected, kind, allowed)[1]
    for alternative in beside.alternatives:
        if not unknown.any():
            break
        alternative = alternative.reshape(shape).astype(expected.dtype)
        led = unknown & ~_apart(actual, alternative, kind, allowed)[1]
        expected, unknown = dtypes.where(led, alternative, expected), unknown & ~led
    return expected, several, unknown


def many(
    expected: np.ndarray, alternatives: Sequence[np.ndarray], kind: dtypes.DType, allowed: Tolerance
) -> np.ndarray:
    """Which elements have so many distinct alternatives that there may be more: `OUTCOMES`."""
    if not len(alternatives):
        return np.ones(expected.shape, bool)
    wide = _wide(kind)
    led = np.sort(np.stack([np.asarray(values, wide) for values in (expected, *alternatives)]), axis=0)
    with np.errstate(all="ignore"):
        apart = _apart(led[1:], led[:-1], kind, allowed)[1]
    return 1 + np.count_nonzero(apart, axis=0) > OUTCOMES


def _between(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The number between `low` and `high` that is nearest to a value; of complex numbers part by part."""
    if value.dtype.kind == "c":
        return _between(np.real(value), np.real(low), np.real(high)) + 1j * _between(
            np.imag(value), np.imag(low), np.imag(high)
        )
    return np.minimum(np.maximum(value.astype(np.result_type(low), copy=False), low), high)


def _counted(got: np.ndarray, wanted: np.ndarray, kind: dtypes.DType, allowed: Tolerance) -> Difference:
    """The difference of elements in one dimension."""
    if (got == wanted).all():
        return replace(SAME, size=got.size)
    apart, wrong, both_nan = _apart(got, wanted, kind, allowed)
    magnitudes = np.abs(wanted.astype(np.float64) if kind.exact else wanted)
    with np.errstate(all="ignore"):
        relative = dtypes.where(apart == 0, 0.0, apart / dtypes.where(magnitudes > 0, magnitudes, np.nan))
        relative = relative[~np.isnan(relative)]
        bounds = allowed.atol + allowed.rtol * magnitudes
        share = dtypes.where(wrong | (apart == 0), 0.0, apart / bounds)
    wrong_at = np.flatnonzero(wrong)
    return Difference(
        float(apart.max(initial=0.0)),
        float(relative.max(initial=0.0)),
        len(wrong_at),
        got.size,
        (int(wrong_at[0]),) if len(wrong_at) else None,
        int(np.count_nonzero(both_nan)),
        float(share.max(initial=0.0)),
    )


def _apart(
    got: np.ndarray, wanted: np.ndarray, kind: dtypes.DType, allowed: Tolerance
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distance of each element, whether it is beyond the tolerance, and whether both are NaN."""
    if kind.exact:
        # Python's integers, since float64 cannot represent all integers of 64 bits.
        apart = np.abs(_exact(got) - _exact(wanted)).astype(np.float64)
        return apart, apart > 0, np.zeros(got.shape, bool)
    with np.errstate(all="ignore"):
        same = got == wanted
        if kind.kind == "float":
            largest = float(dtypes.finfo(kind.numpy).max)
            beyond = np.abs(wanted) > largest
            if beyond.any():
                # A value beyond the dtype's range overflows in JAX too: to NaN or the largest number where there is no
                # infinity.
                held = wanted.astype(kind.numpy).astype(wanted.dtype)
                most = np.copysign(largest, wanted)
                held = held if kind.infinite else dtypes.where(got == most, most, held)
                wanted = dtypes.where(beyond, held, wanted)
        both_nan = np.isnan(got) & np.isnan(wanted)
        apart = dtypes.where(same | (got == wanted) | both_nan, 0.0, np.abs(got - wanted))
        within = np.isfinite(wanted) & (apart <= allowed.atol + allowed.rtol * np.abs(wanted))
    return dtypes.where(np.isnan(apart), math.inf, apart), ~(within | (apart == 0)), both_nan


def carried(bound: Any, start: Any, end: Any, dtype: str) -> np.ndarray:
    """`bound` moved by the distance from `start` to `end`, in `dtype`; unmoved where both are the same number."""
    kind = dtypes.dtype(dtype)
    wide = _wide(kind)
    bound, start, end = (
        _exact(np.asarray(bounds)) if wide is None else np.asarray(bounds).astype(wide, copy=False)
        for bounds in (bound, start, end)
    )
    with np.errstate(all="ignore"):
        return dtypes.where(start == end, bound, bound + (end - start))


def _exact(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind in "fc":
        return value
    return value.astype(object if value.dtype.itemsize == 8 else np.int64)
