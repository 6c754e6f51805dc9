"""XLA's elementary functions, each over its whole range: how far from the exact result, in units in the last place?

`python -m benchmarks.elementary [--points 200000] [FUNCTION …]`, from the root of the repository.

Each function of `runner/checks/reference/elementary.py` is computed in float32 in large arrays, in fusions, in small
arrays and one number at a time, and compared with NumPy's and SciPy's float64; in float16 and bfloat16, which XLA
computes in float32, with the result that is rounded once. Prints the largest error, in units of 2⁻²⁴ of the result, and
its share of what the table allows; the exit status is 1 if an error is larger.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from scipy import special

from runner.checks.reference.elementary import ON_CPU, UNIT

LARGEST, SMALLEST = float(np.finfo(np.float32).max), 1.2e-37
"""The exact results that are compared: near the smallest ones XLA flushes to 0, or rounds in fewer digits."""

Points = Callable[[np.random.Generator, int], np.ndarray]


def _decades(low: float, high: float) -> Points:
    """Numbers of either sign, their magnitudes between two powers of ten, and many of ordinary size."""

    def points(rng: np.random.Generator, count: int) -> np.ndarray:
        sizes = 10.0 ** rng.uniform(low, high, count) * rng.choice([-1, 1], count)
        ordinary = [rng.normal(0, 1, count), rng.normal(0, 6, count), rng.uniform(-1, 1, count)]
        return np.concatenate([sizes, *(each[np.abs(each) < 10.0**high] for each in ordinary)])

    return points


def _positive(points: Points) -> Points:
    return lambda rng, count: np.abs(points(rng, count))


def _within(low: float, high: float) -> Points:
    return lambda rng, count: rng.uniform(low, high, 3 * count)


def _beyond(least: float) -> Points:
    return lambda rng, count: least + np.abs(_decades(-7, 37)(rng, count))


EVERYWHERE = _decades(-37, 38)
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Points, ...]]] = {
    "acos": (lax.acos, np.arccos, (_within(-1, 1),)),
    "acosh": (lax.acosh, np.arccosh, (_beyond(1),)),
    "asin": (lax.asin, np.arcsin, (_within(-1, 1),)),
    "asinh": (lax.asinh, np.arcsinh, (EVERYWHERE,)),
    "atan": (lax.atan, np.arctan, (EVERYWHERE,)),
    "atan2": (lax.atan2, np.arctan2, (_decades(-6, 6), _decades(-6, 6))),
    "atanh": (lax.atanh, np.arctanh, (_within(-1, 1),)),
    "cbrt": (lax.cbrt, np.cbrt, (EVERYWHERE,)),
    "cos": (lax.cos, np.cos, (_decades(-37, 6),)),
    "cosh": (lax.cosh, np.cosh, (_decades(-37, 1.94),)),
    "digamma": (lax.digamma, special.psi, (_positive(_decades(-6, 6)),)),
    "erf": (lax.erf, special.erf, (EVERYWHERE,)),
    "erf_inv": (lax.erf_inv, special.erfinv, (_within(-1, 1),)),
    "erfc": (lax.erfc, special.erfc, (_decades(-37, 2),)),
    "exp": (lax.exp, np.exp, (_decades(-37, 1.94),)),
    "exp2": (lax.exp2, np.exp2, (_decades(-37, 2.1),)),
    "expm1": (lax.expm1, np.expm1, (_decades(-37, 1.94),)),
    "igamma": (lax.igamma, special.gammainc, (_positive(_within(-9, 9)), _positive(_within(-9, 9)))),
    "igammac": (lax.igammac, special.gammaincc, (_within(0.5, 9), _positive(_within(-9, 9)))),
    "lgamma": (lax.lgamma, special.gammaln, (_positive(_decades(-6, 6)),)),
    "log": (lax.log, np.log, (_positive(EVERYWHERE),)),
    "log1p": (lax.log1p, np.log1p, (_positive(EVERYWHERE),)),
    "logistic": (lax.logistic, special.expit, (_decades(-37, 1.94),)),
    "pow": (lax.pow, np.power, (_positive(_decades(-3, 3)), _decades(-3, 1.5))),
    "rsqrt": (lax.rsqrt, lambda x: 1 / np.sqrt(x), (_positive(EVERYWHERE),)),
    "sin": (lax.sin, np.sin, (_decades(-37, 6),)),
    "sinh": (lax.sinh, np.sinh, (_decades(-37, 1.94),)),
    "tan": (lax.tan, np.tan, (_decades(-37, 6),)),
    "tanh": (lax.tanh, np.tanh, (EVERYWHERE,)),
}
"""For each function JAX's, the exact one, and the numbers at which they are compared, one for each operand."""

SMALL = 128


def _variants(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any], int]]:
    """Yield the ways to compute a function, each with the number of elements that it is given."""
    yield "array", jax.jit(function), 0
    unity = jnp.float32(1)
    yield "fused", jax.jit(lambda *each: function(*(x * unity for x in each)) * unity + 0 * each[0]), 0

    def cubed(*each: Any) -> Any:
        return function(*(x + 0 * x * x * x for x in each))

    def by_blocks(*each: Any) -> Any:
        return lax.map(lambda row: cubed(*row), tuple(x.reshape(-1, 16, 8) for x in each))

    yield "small", jax.jit(by_blocks), 512
    yield "scalar", jax.jit(lambda *each: lax.map(lambda row: function(*row), each)), 64


def _errors(name: str, count: int) -> Iterator[tuple[str, float, float, list[float]]]:
    """Yield for each variant the largest error in units, its share of what the table allows, and where that is."""
    function, exact, points = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    drawn = [each(rng, count).astype(np.float32) for each in points]
    size = min(map(len, drawn)) // SMALL * SMALL
    operands = [rng.permutation(each)[:size] for each in drawn]
    for kind, computed, few in _variants(function):
        given = [each[: few * SMALL or None] for each in operands]
        got = np.asarray(computed(*given)).ravel()
        yield kind, *_worst(name, exact, given, got)


def _worst(
    name: str, exact: Callable[..., Any], given: list[np.ndarray], got: np.ndarray
) -> tuple[float, float, list[float]]:
    table = ON_CPU[name]
    wide = [each.astype(np.float64) for each in given]
    with np.errstate(all="ignore"):
        expected = exact(*wide)
        beside = [exact(*(each * (1 + sign * table.operand * UNIT) for each in wide)) for sign in (-1, 1)]
        allowed = table.result * UNIT * np.abs(expected)
        allowed += np.max([np.abs(each - expected) for each in beside], axis=0, initial=0)
        compared = np.isfinite(got) & (np.abs(expected) < LARGEST) & (np.abs(expected) > SMALLEST)
        apart = np.abs(got.astype(np.float64) - expected)
        units = np.where(compared, apart / np.abs(expected) / UNIT, 0)
        share = np.where(compared, apart / allowed, 0)
    at = int(np.nanargmax(share))
    return float(np.nanmax(units)), float(share[at]), [float(each[at]) for each in given]


def _narrow(name: str, count: int, dtype: Any) -> float:
    """The largest distance, in units in the last place of a narrow dtype, from the result that is rounded once."""
    function, exact, points = FUNCTIONS[name]
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        operands = [each(rng, count).astype(np.float32).astype(dtype) for each in points]
        size = min(map(len, operands))
        operands = [each[:size] for each in operands]
        expected = np.asarray(exact(*(each.astype(np.float64) for each in operands)))
        got = np.asarray(jax.jit(function)(*operands)).astype(np.float64)
        limits = ml_dtypes.finfo(dtype)
        near, low, high = np.abs(expected), 4 * float(limits.tiny), float(limits.max)
        compared = np.isfinite(got) & (near > low) & (near < high)
        place = 2.0 ** np.floor(np.log2(near)) * float(limits.eps)
        return float(np.max(np.abs(got - expected) / place, where=compared, initial=0))


def main() -> None:
    """Measure the functions, print the errors, and compare them with the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", default=[])
    parser.add_argument("--points", type=int, default=200_000)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    print(f"jax {jax.__version__}; units of 2^-24 of the result; share of the table's error; units in the last place")
    larger = []
    for name in given.functions or FUNCTIONS:
        measured = list(_errors(name, given.points))
        narrow = {kind: _narrow(name, given.points // 4, np.dtype(getattr(ml_dtypes, kind, kind))) for kind in NARROW}
        cells = [f"{kind} {units:.3g} ({share:.2f} at {', '.join(f'{x:.6g}' for x in at)})"
                 for kind, units, share, at in measured]  # fmt: skip
        print(f"{name:9} {'; '.join(cells)}; {', '.join(f'{kind} {places:.3f}' for kind, places in narrow.items())}")
        larger += [name] if max(share for _, _, share, _ in measured) > 1 else []
    print(f"larger than the table's: {', '.join(larger)}" if larger else "none is larger than the table's")
    sys.exit(bool(larger))


NARROW = ("float16", "bfloat16")

if __name__ == "__main__":
    main()
