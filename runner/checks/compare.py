"""Two arrays and a tolerance in; how far they are apart out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner import dtypes
from runner.reference import PerDevice, Rounding

SAFE = {1: 3.0, 2: 3.0, 4: 4.0, 8: 4.0}
"""How many times the largest rounding error that was measured a right program may be off, for each number of bytes.

JAX's programs on CPUs were off by at most 0.9 times it in 16 bits, 1.6 in 8, and 2.4 in 32: `benchmarks/tolerance.py`.
"""

UNITS = {1: 0.5, 2: 1.0, 4: 4.0, 8: 4.0}
"""How many units in the last place a result may be off where no rounding was measured, for each number of bytes.

Elementary functions of two libraries differ by such units in float32; narrower results are rounded once, from float32.
"""

FEW = 8
"""With so few measured distances the largest may be lucky: the tolerance is doubled, and less so with more of them."""

MANY = 64
"""From so many elements on, errors that average out are told from mistakes that do not."""

EXCUSED = 0.05
"""The share of an output's elements that may hang on undecided decisions and yet be none of what these lead to."""

OUTCOMES = 4
"""Where decisions lead an element to more numbers than this, not all of them are known."""


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| ≤ atol + rtol · |expected|; both 0 for exact dtypes."""

    rtol: float
    atol: float

    def __add__(self, other: Tolerance) -> Tolerance:
        """What two values may differ by when each is within its tolerance of a third."""
        return Tolerance(self.rtol + other.rtol, self.atol + other.atol)


NOTHING = Tolerance(0.0, 0.0)


def of_bytes(dtype: str, of: Mapping[int, float]) -> float:
    """What `of` says of a dtype with so many bytes."""
    kind = dtypes.dtype(dtype)
    return of[kind.itemsize // (2 if kind.kind == "complex" else 1)]


def units(dtype: str, of: Mapping[int, float]) -> float:
    """The units in the last place that `of` gives for a dtype, relative to a result."""
    return of_bytes(dtype, of) * dtypes.dtype(dtype).eps


def tolerance(dtype: str, rounding: Rounding) -> Tolerance:
    """The tolerance of an output of `dtype`, of what rounding was measured to do to it.

    rtol is a few units in the last place; atol is `SAFE` times the largest rounding error that was measured, and more
    where few were: the next draw of so few may be larger.
    """
    if dtypes.dtype(dtype).exact:
        return NOTHING
    times = lucky(rounding.elements) if rounding.error else 1.0
    return Tolerance(units(dtype, UNITS), of_bytes(dtype, SAFE) * rounding.error * times)


def lucky(measured: int) -> float:
    """How many times the largest of so many distances the next may be."""
    return 1 + FEW / max(measured, 1)


@dataclass(frozen=True)
class Beside:
    """What else may be there, since decisions may be taken otherwise: the elements of `others`.

    Elsewhere than where it `hangs` on decisions, others differ by rounding alone.

    Where these are many, what none of them has may still lie between `low` and `high`; nothing finite need be where it
    `overflows`, and if all does in all draws, so that rounding was `measured` nowhere, anything may be there.
    """

    low: np.ndarray | None = None
    high: np.ndarray | None = None
    overflows: np.ndarray | None = None
    others: tuple[np.ndarray, ...] = ()
    hangs: np.ndarray | None = None
    measured: bool = True

    @classmethod
    def of(cls, rounding: Rounding, part: Callable[[PerDevice], np.ndarray]) -> Beside | None:
        """What rounding allows in a `part` of what the devices hold; None where that is nothing else."""
        bounds = (rounding.low, rounding.high, rounding.overflows)
        if all(bound is None for bound in bounds):
            return None
        low, high, overflows = (None if bound is None else part(bound) for bound in bounds)
        hangs = None if rounding.hangs is None else part(rounding.hangs)
        return cls(low, high, overflows, tuple(map(part, rounding.others)), hangs, rounding.elements > 0)


@dataclass(frozen=True)
class Difference:
    """How far two arrays are apart.

    `wrong` counts the elements beyond the tolerance, `first` is the first of them; `share` is the largest part of its
    tolerance that an element within it used. `undecided` are those that hang on a decision which rounding may take
    otherwise; of these, `between` are none of the many things that the decisions lead to, but lie between, and
    `excused` do not even do that, or are none of few things: only a few elements may. `overflowing` are those that the
    dtype cannot hold; where these are many (`MANY`), which of them is luck, and `unforeseen` are those that no draw had
    among them.
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

    def joined(self, other: Difference) -> Difference:
        """The worse of two, their counts added."""
        return Difference(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            self.wrong + other.wrong,
            self.size + other.size,
            self.first if self.first is not None else other.first,
            self.nans + other.nans,
            max(self.share, other.share),
            self.undecided + other.undecided,
            self.between + other.between,
            self.excused + other.excused,
            self.overflowing + other.overflowing,
            self.unforeseen + other.unforeseen,
        )


SAME = Difference(0.0, 0.0, 0, 0, None, 0)


_CHUNK = 1 << 14
"""How many elements are compared at once, so that all that is computed of them stays in the cache."""


def difference(actual: Any, expected: Any, dtype: str, allowed: Tolerance, beside: Beside | None = None) -> Difference:
    """How far `actual`, of `dtype`, is from the oracle's `expected`. NaN equals NaN, and is counted."""
    kind = dtypes.dtype(dtype)
    wanted = np.asarray(expected)
    got = np.asarray(actual)
    if got.shape != wanted.shape:
        # Not to be broadcast: values of another shape are other values.
        return Difference(math.inf, math.inf, max(got.size, 1), max(got.size, 1), (0,) * got.ndim, 0)
    if beside is not None:
        mine, theirs = _comparable(got.ravel(), wanted.ravel(), kind)
        counted = _beside(mine, theirs, kind, allowed, beside)
        first = None if counted.first is None else np.unravel_index(counted.first[0], got.shape)
        return replace(counted, first=None if first is None else tuple(map(int, first)))
    wide = _wide(kind)
    total, first = SAME, None
    for mine, theirs in np.nditer(
        (got, wanted),
        ["external_loop", "buffered", "zerosize_ok"],
        order="C",
        casting="unsafe",
        op_dtypes=[wide or got.dtype, wide or wanted.dtype],
        buffersize=_CHUNK,
    ):
        here = _counted(mine, theirs, kind, allowed)
        if first is None and here.first is not None:
            first = np.unravel_index(total.size + here.first[0], got.shape)
        total = total.joined(here)
    return replace(total, first=None if first is None else tuple(map(int, first)))


def nearest(
    actual: Any, expected: Any, dtype: str, allowed: Tolerance, beside: Beside | None
) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays, wide enough to be subtracted; where something else may be, the expected one has what is there."""
    kind = dtypes.dtype(dtype)
    mine, theirs = _comparable(np.asarray(actual), np.asarray(expected), kind)
    if beside is not None and beside.hangs is not None:
        unknown = _led(mine, theirs, kind, allowed, beside)[2]
        for other in beside.others:
            with np.errstate(all="ignore"):
                nearer = beside.hangs & (np.abs(mine - other) < np.abs(mine - theirs))
            theirs = dtypes.where(nearer, other.astype(theirs.dtype), theirs)
        theirs = dtypes.where(unknown, mine, theirs)
    if beside is not None and beside.overflows is not None:
        mine = dtypes.where(beside.overflows & ~np.isfinite(mine), theirs, mine)
    return mine, theirs


def _wide(kind: dtypes.DType) -> type[np.inexact] | None:
    return None if kind.exact else np.complex128 if kind.kind == "complex" else np.float64


def _comparable(got: np.ndarray, wanted: np.ndarray, kind: dtypes.DType) -> tuple[np.ndarray, np.ndarray]:
    wide = _wide(kind)
    return (got, wanted) if wide is None else (got.astype(wide, copy=False), wanted.astype(wide, copy=False))


def _beside(mine: np.ndarray, theirs: np.ndarray, kind: dtypes.DType, allowed: Tolerance, beside: Beside) -> Difference:
    """The difference of some elements in a row from the nearest of what is possible, where more than one thing is."""
    undecided = between = excused = overflowing = unforeseen = 0
    if beside.overflows is not None:
        gone = beside.overflows.ravel() & ~(beside.measured & np.isfinite(mine))
        overflowing = int(np.count_nonzero(gone))
        if overflowing > max(EXCUSED * gone.size, MANY):
            gone |= ~np.isfinite(mine)
            unforeseen = int(np.count_nonzero(gone)) - overflowing
            overflowing += unforeseen
        # Not compared: the reference may be beyond the dtype as well, and overflows when it is.
        mine, theirs = dtypes.where(gone, 0, mine), dtypes.where(gone, 0, theirs)
    if beside.low is not None and beside.high is not None:
        theirs, several, unknown = _led(mine, theirs, kind, allowed, beside)
        undecided = int(np.count_nonzero(several))
        if unknown.any():
            low, high = beside.low.ravel(), beside.high.ravel()
            inside = ~_apart(mine, _between(mine, low, high), kind, allowed)[1]
            inside[unknown] &= many(theirs[unknown], [o.ravel()[unknown] for o in beside.others], kind, allowed)
            between = int(np.count_nonzero(unknown & inside))
            excused = int(np.count_nonzero(unknown)) - between
            theirs = dtypes.where(unknown, mine.astype(theirs.dtype), theirs)
    counted = _counted(mine, theirs, kind, allowed)
    return replace(
        counted,
        undecided=undecided,
        between=between,
        excused=excused,
        overflowing=overflowing,
        unforeseen=unforeseen,
    )


def _led(
    mine: np.ndarray, theirs: np.ndarray, kind: dtypes.DType, allowed: Tolerance, beside: Beside
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is expected, or else led to, where it is there; which elements are undecided, and which are none of this."""
    assert beside.low is not None
    assert beside.high is not None
    shape = theirs.shape
    several = _apart(beside.low.reshape(shape), beside.high.reshape(shape), kind, allowed)[1]
    unknown = several & _apart(mine, theirs, kind, allowed)[1]
    for other in beside.others:
        if not unknown.any():
            break
        other = other.reshape(shape).astype(theirs.dtype)
        led = unknown & ~_apart(mine, other, kind, allowed)[1]
        theirs, unknown = dtypes.where(led, other, theirs), unknown & ~led
    return theirs, several, unknown


def many(expected: np.ndarray, others: Sequence[np.ndarray], kind: dtypes.DType, allowed: Tolerance) -> np.ndarray:
    """Where so many different things were led to that there may be more: `OUTCOMES`."""
    if not len(others):
        return np.ones(expected.shape, bool)
    wide = _wide(kind)
    led = np.sort(np.stack([np.asarray(each, wide) for each in (expected, *others)]), axis=0)
    with np.errstate(all="ignore"):
        apart = _apart(led[1:], led[:-1], kind, allowed)[1]
    return 1 + np.count_nonzero(apart, axis=0) > OUTCOMES


def _between(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The number between two others that is nearest; of complex numbers part by part."""
    if value.dtype.kind == "c":
        return _between(np.real(value), np.real(low), np.real(high)) + 1j * _between(
            np.imag(value), np.imag(low), np.imag(high)
        )
    return np.minimum(np.maximum(value.astype(np.result_type(low), copy=False), low), high)


def _counted(got: np.ndarray, wanted: np.ndarray, kind: dtypes.DType, allowed: Tolerance) -> Difference:
    """The difference of some elements in a row."""
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
    """The distance of each element, whether it is too far, whether both are NaN."""
    if kind.exact:
        # Python's integers, since float64 cannot tell all those of 64 bits apart.
        apart = np.abs(_exact(got) - _exact(wanted)).astype(np.float64)
        return apart, apart > 0, np.zeros(got.shape, bool)
    with np.errstate(all="ignore"):
        same = got == wanted
        if kind.kind == "float":
            largest = float(dtypes.finfo(kind.numpy).max)
            beyond = np.abs(wanted) > largest
            if beyond.any():
                # What the dtype cannot hold overflows in JAX too: without an infinity, to NaN or to the largest number.
                held = wanted.astype(kind.numpy).astype(wanted.dtype)
                most = np.copysign(largest, wanted)
                held = held if kind.infinite else dtypes.where(got == most, most, held)
                wanted = dtypes.where(beyond, held, wanted)
        both_nan = np.isnan(got) & np.isnan(wanted)
        apart = dtypes.where(same | (got == wanted) | both_nan, 0.0, np.abs(got - wanted))
        within = np.isfinite(wanted) & (apart <= allowed.atol + allowed.rtol * np.abs(wanted))
    return dtypes.where(np.isnan(apart), math.inf, apart), ~(within | (apart == 0)), both_nan


def carried(bound: Any, start: Any, end: Any, dtype: str) -> np.ndarray:
    """A bound of elements of `dtype`, as far on as `end` is from `start`: not at all where these are one number."""
    kind = dtypes.dtype(dtype)
    wide = _wide(kind)
    bound, start, end = (
        _exact(np.asarray(each)) if wide is None else np.asarray(each).astype(wide, copy=False)
        for each in (bound, start, end)
    )
    with np.errstate(all="ignore"):
        return dtypes.where(start == end, bound, bound + (end - start))


def _exact(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind in "fc":
        return value
    return value.astype(object if value.dtype.itemsize == 8 else np.int64)
