"""Two arrays and a tolerance in; how far they are apart out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from runner import dtypes
from runner.reference import Rounding, magnitude


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| ≤ atol + rtol · |expected|; both 0 for exact dtypes."""

    rtol: float
    atol: float

    def doubled(self) -> Tolerance:
        """What two values may differ by when each is within this tolerance of a third."""
        return Tolerance(2 * self.rtol, 2 * self.atol)

    def widened(self, atol: float, largest: float) -> Tolerance:
        """This tolerance with an `atol` of at least so much, still below 2% of the `largest` result."""
        return Tolerance(self.rtol, max(self.atol, min(atol, max(self.rtol, _CAP) * largest)))


_CAP = 0.02
"""An absolute tolerance above this share of the largest result would let real mistakes pass."""


def tolerance(dtype: str, coarsest: str, rounding: Rounding, largest: float) -> tuple[Tolerance, bool]:
    """The tolerance for an output, and whether its reference is nothing but rounding noise.

    - `dtype`: the output's; `coarsest`: the least precise dtype on the way to it.
    - `rounding`: what the oracle counted on the way; `largest`: the largest finite magnitude of the reference.

    rtol = 2·eps·steps + 4·eps_acc·growth: `steps` roundings to the storage dtype, and sums of n terms in XLA's
    accumulator (float32 for narrower dtypes) whose errors add up like a random walk, √n (Higham, Accuracy and Stability
    of Numerical Algorithms, §2.8 and §4.2). atol = rtol times the largest term that was added, since cancellation
    leaves its rounding behind, but at most 2% of the largest result.
    """
    if dtypes.dtype(dtype).exact and dtypes.dtype(coarsest).exact:
        return Tolerance(0.0, 0.0), False
    eps = max(dtypes.dtype(coarsest).eps, dtypes.dtype(dtype).eps)
    accumulator = dtypes.accumulator_eps(coarsest) if not dtypes.dtype(coarsest).exact else eps
    rtol = 2 * eps * max(1.0, rounding.steps) + 4 * accumulator * rounding.growth
    if dtypes.dtype(dtype).exact:
        return Tolerance(0.0, 0.0), False
    by_terms = rtol * max(rounding.scale, largest)
    if largest <= by_terms and rounding.scale > 0:
        return Tolerance(rtol, by_terms), True
    return Tolerance(rtol, min(by_terms, max(rtol, _CAP) * largest)), False


def of_gradient(
    dtype: str, coarsest: str, growth: float, lost: float, error: float, largest: float
) -> tuple[Tolerance, bool]:
    """The tolerance for a gradient, and whether it is nothing but rounding noise.

    - `dtype`, `coarsest`, `largest`: as for `tolerance`; `growth`: that of the scalar.
    - `lost`: what rounding was measured to change in it, on one device; `error`: the oracle's own.

    rtol = 4·eps. atol is 4·lost, or 4·(eps + eps_acc·growth) of the largest element where that is more, since a small
    gradient may have been lucky; and the oracle's error. The way back adds up as the way there did, since every
    dimension was summed into one number: growth there and back is twice growth there, and one.

    It is noise where the measured part is above 2% of the largest element and above twice the usual (6% in bfloat16).
    """
    eps = max(dtypes.dtype(coarsest).eps, dtypes.dtype(dtype).eps)
    accumulator = min(eps, dtypes.dtype("float32").eps)
    usual = 4 * (eps + accumulator * (2 * growth + 1))
    measured = 4 * lost + error
    noise = measured > min(max(2 * usual, _CAP), 1.0) * largest
    return Tolerance(4 * eps, max(min(usual, _CAP) * largest, 4 * lost) + error), noise


@dataclass(frozen=True)
class Difference:
    """How far two arrays are apart. `wrong` counts the elements beyond the tolerance, `first` is the first of them."""

    max_abs: float
    max_rel: float
    wrong: int
    size: int
    first: tuple[int, ...] | None
    nans: int

    def joined(self, other: Difference) -> Difference:
        """The worse of two, their counts added."""
        return Difference(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            self.wrong + other.wrong,
            self.size + other.size,
            self.first if self.first is not None else other.first,
            self.nans + other.nans,
        )


SAME = Difference(0.0, 0.0, 0, 0, None, 0)


_CHUNK = 1 << 14
"""How many elements are compared at once, so that all that is computed of them stays in the cache."""


def difference(actual: Any, expected: Any, dtype: str, allowed: Tolerance) -> Difference:
    """How far `actual`, of `dtype`, is from the oracle's `expected`. NaN equals NaN, and is counted."""
    kind = dtypes.dtype(dtype)
    wanted = np.asarray(expected)
    got = np.asarray(actual)
    if got.shape != wanted.shape:
        # Not to be broadcast: values of another shape are other values.
        return Difference(math.inf, math.inf, max(got.size, 1), max(got.size, 1), (0,) * got.ndim, 0)
    wide = None if kind.exact else np.complex128 if kind.kind == "complex" else np.float64
    total, first = SAME, None
    for mine, theirs in np.nditer(
        (got, wanted),
        ["external_loop", "buffered", "zerosize_ok"],
        order="C",
        casting="unsafe",
        op_dtypes=[wide or got.dtype, wide or wanted.dtype],
        buffersize=_CHUNK,
    ):
        here = _in_chunk(mine, theirs, kind, allowed)
        if first is None and here.first is not None:
            first = np.unravel_index(total.size + here.first[0], got.shape)
        total = total.joined(here)
    return replace(total, first=None if first is None else tuple(map(int, first)))


def _in_chunk(got: np.ndarray, wanted: np.ndarray, kind: dtypes.DType, allowed: Tolerance) -> Difference:
    """The difference of some elements in a row."""
    same = got == wanted
    if same.all():
        return replace(SAME, size=got.size)
    if kind.exact:
        # Python's integers, since float64 cannot tell all those of 64 bits apart.
        apart = np.abs(_exact(got) - _exact(wanted)).astype(np.float64)
        wrong = apart > 0
        nans = 0
        wanted = wanted.astype(np.float64)
    else:
        with np.errstate(all="ignore"):
            if _overflows(wanted, kind):
                # What the dtype cannot hold overflows in JAX too.
                wanted = wanted.astype(kind.numpy).astype(wanted.dtype)
                same = got == wanted
            apart = np.abs(got - wanted)
            both_nan = np.isnan(got) & np.isnan(wanted)
            apart = np.where(same | both_nan, 0.0, apart)
            within = np.isfinite(wanted) & (apart <= allowed.atol + allowed.rtol * np.abs(wanted))
            wrong = ~(within | (apart == 0))
        nans = int(np.count_nonzero(both_nan))
        apart = np.where(np.isnan(apart), math.inf, apart)
    magnitudes = np.abs(wanted)
    with np.errstate(all="ignore"):
        relative = np.where(apart == 0, 0.0, apart / np.where(magnitudes > 0, magnitudes, np.nan))
    relative = relative[~np.isnan(relative)]
    wrong_at = np.flatnonzero(wrong)
    return Difference(
        float(apart.max(initial=0.0)),
        float(relative.max(initial=0.0)),
        len(wrong_at),
        got.size,
        (int(wrong_at[0]),) if len(wrong_at) else None,
        nans,
    )


def _exact(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind == "f":
        return value
    return value.astype(object if value.dtype.itemsize == 8 else np.int64)


def _overflows(wanted: np.ndarray, kind: dtypes.DType) -> bool:
    return kind.kind == "float" and magnitude([wanted]) > float(ml_dtypes.finfo(kind.numpy).max)
