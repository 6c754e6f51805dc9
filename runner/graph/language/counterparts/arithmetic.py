"""NumPy counterparts of JAX's arithmetic, comparisons, logic and elementary functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.graph.language.counterparts.promotion import (
    array,
    as_number,
    common,
    convert,
    floating,
    ieee_maximum,
    ieee_minimum,
    in_floats,
    promoted,
    unsettled,
)

add, subtract, multiply = promoted(np.add), promoted(np.subtract), promoted(np.multiply)
divide = in_floats(np.true_divide)
left_shift, right_shift = promoted(np.left_shift), promoted(np.right_shift)
bitwise_and, bitwise_or, bitwise_xor = promoted(np.bitwise_and), promoted(np.bitwise_or), promoted(np.bitwise_xor)
negative, invert = promoted(np.negative), promoted(np.invert)


def _divided(x: Any, y: Any) -> tuple[Any, Any]:
    """XLA's integer quotient and remainder, toward zero; division by zero gives -1 (all bits set) and the dividend."""
    zero = y == 0
    safe = dtypes.where(zero, np.ones_like(y), y)
    remainder = np.fmod(x, safe)
    quotient = (x - remainder) // safe
    return dtypes.where(zero, np.invert(np.zeros_like(x)), quotient), dtypes.where(zero, x, remainder)


def _float_quotient(x: Any, y: Any) -> Any:
    """The floor quotient, computed in the steps of CPython's `float_divmod`, each of which rounds."""
    rest = np.fmod(x, y)
    quotient = dtypes.where(y == 0, x, x - rest) / y
    quotient = dtypes.where((rest != 0) & (np.sign(y) != np.sign(rest)), quotient - 1, quotient)
    whole = np.trunc(quotient)
    # Round halves away from zero.
    return dtypes.where(np.abs(quotient - whole) >= 0.5, whole + np.sign(quotient), whole)


@promoted
def floor_divide(x: Any, y: Any) -> Any:
    """`jnp.floor_divide`: an integer divided by zero gives -1 or -2, not an error."""
    x, y = as_number(x), as_number(y)
    if x.dtype.kind == "f":
        return _float_quotient(x, y)
    quotient, rest = _divided(x, y)
    return (
        quotient
        if x.dtype.kind == "u"
        else dtypes.where((np.sign(x) != np.sign(y)) & (rest != 0), quotient - 1, quotient)
    )


@promoted
def remainder(x: Any, y: Any) -> Any:
    """`jnp.remainder`, `%`: an integer modulo zero gives 0."""
    x, y = as_number(x), as_number(y)
    return np.remainder(x, y) if x.dtype.kind == "f" else np.remainder(x, dtypes.where(y == 0, np.ones_like(y), y))


@promoted
def fmod(x: Any, y: Any) -> Any:
    """`jnp.fmod`: the remainder has the dividend's sign; an integer modulo zero gives 0."""
    x, y = as_number(x), as_number(y)
    return np.fmod(x, y) if x.dtype.kind == "f" else np.fmod(x, dtypes.where(y == 0, np.ones_like(y), y))


def power(x1: Any, x2: Any, /) -> Any:
    """`jnp.power`: integers to the power of an integer array use the exponent's lowest six bits, as in JAX."""
    x, y = common(x1, x2)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "fc":
            # For a scalar exponent of 0.5, NumPy computes the square root, which differs at -inf.
            return np.power(x, np.array(np.broadcast_to(y, np.broadcast_shapes(x.shape, y.shape))))
        x, y = as_number(x), as_number(y)
        if isinstance(x2, int):
            return np.power(x, y)
        result = dtypes.where((x == 0) & (y != 0), np.zeros_like(x), np.ones_like(x))
        bits = y.astype(np.int64) & 63
        for _ in range(6):
            result = dtypes.where(bits & 1, result * x, result)
            x, bits = x * x, bits >> 1
        return result


def square(x: Any, /) -> Any:
    """`jnp.square`: booleans are converted to integers."""
    x = array(x)
    with np.errstate(all="ignore"):
        return np.square(as_number(x))


@promoted
def sign(x: Any, /) -> Any:
    """`jnp.sign`: -0.0 gives -0.0."""
    return dtypes.where(x == 0, x, np.sign(x))


_rounded: Callable[..., Any] = np.round


def round_(a: Any, decimals: int = 0) -> Any:
    """`jnp.round`: half to even; integers are returned unchanged."""
    a = array(a)
    return _rounded(a, decimals) if a.dtype.kind in "fc" else a


def clip(arr: Any, /, min: Any = None, max: Any = None) -> Any:
    """`jnp.clip`: where the bounds cross, the upper one wins."""
    if min is not None:
        arr = ieee_maximum(*common(min, arr))
    if max is not None:
        arr = ieee_minimum(*common(max, arr))
    return array(arr)


def logaddexp(x1: Any, x2: Any, /) -> Any:
    """`jnp.logaddexp`, by JAX's formula."""
    x1, x2 = np.broadcast_arrays(*map(floating, (x1, x2)), subok=True)
    with np.errstate(all="ignore"):
        apart = x1 - x2
        return dtypes.where(np.isnan(apart), x1 + x2, np.maximum(x1, x2) + np.log1p(np.exp(-np.abs(apart))))


def nan_to_num(x: Any, *, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`jnp.nan_to_num`: an infinity becomes the largest number of float32, the default dtype."""
    largest = float(np.finfo(np.float32).max)
    return np.nan_to_num(array(x), nan=nan, posinf=posinf or largest, neginf=neginf or -largest)


@in_floats
def digamma(x: Any) -> Any:
    """`jax.lax.digamma`; at 0 JAX 0.10 returns NaN, and 0.12 the limit."""
    return unsettled(importlib.import_module("scipy.special").psi(x), x == 0, np.nan)


def special(name: str) -> Callable[..., Any]:
    """The counterpart by a function of `scipy.special`, imported on the first call, since the import is slow."""

    @in_floats
    def counterpart(*values: Any) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*values)

    return counterpart


@in_floats
def rel_entr(p: Any, q: Any) -> Any:
    """`jax.scipy.special.rel_entr`; for NaN it is infinite in JAX 0.10, and for infinity NaN."""
    value = importlib.import_module("scipy.special").rel_entr(p, q)
    unknown = np.isnan(p) | np.isnan(q)
    return unsettled(value, unknown | np.isinf(p), dtypes.where(unknown, np.inf, np.nan))


@in_floats
def kl_div(p: Any, q: Any) -> Any:
    """`jax.scipy.special.kl_div`; outside its domain it is NaN in JAX 0.10 where terms are infinite."""
    value = importlib.import_module("scipy.special").kl_div(p, q)
    return unsettled(value, (np.isinf(p) | np.isinf(q)) & np.isinf(value), np.nan)


@in_floats
def betaln(a: Any, b: Any) -> Any:
    """`jax.scipy.special.betaln`, which is NaN where it subtracts infinite logarithms of the gamma function."""
    functions = importlib.import_module("scipy.special")
    a, b = np.minimum(a, b), np.maximum(a, b)
    by_parts = functions.gammaln(a) + (functions.gammaln(b) - functions.gammaln(a + b))
    exact = functions.betaln(np.asarray(a, np.float64), np.asarray(b, np.float64))
    # For a large `b` JAX has a series, which does not lose digits.
    return dtypes.where((b < 8) | ~np.isfinite(by_parts), by_parts, np.zeros_like(by_parts) + exact)


@in_floats
def zeta(x: Any, q: Any) -> Any:
    """`jax.scipy.special.zeta`; at a pole, a whole `q` of at most 0, it is infinite for an even `x`, otherwise NaN.

    For an infinite `x` JAX 0.10 returns NaN, and 0.12 the limit.
    """
    functions = importlib.import_module("scipy.special")
    at_pole = dtypes.where(np.remainder(x, 2.0) == 0, np.inf, np.nan)
    value = dtypes.where((q <= 0) & (q == np.floor(q)), at_pole, functions.zeta(x, q))
    value = dtypes.where(x == 1, np.inf, dtypes.where(q == np.inf, np.nan, value))
    return unsettled(value, np.isinf(x), np.nan)


@in_floats
def polygamma(n: Any, x: Any) -> Any:
    """`jax.lax.polygamma`: the `n`-th derivative of digamma, by the zeta function."""
    functions = importlib.import_module("scipy.special")
    with np.errstate(all="ignore"):
        derivative = np.exp(functions.gammaln(n + 1.0)) * zeta(n + 1.0, x)
        signed = dtypes.where(np.remainder(n, 2.0) == 0, -derivative, derivative)
        value = dtypes.where(n == 0, digamma(x), signed)
        return dtypes.where((n < 0) | (n != np.floor(n)), np.nan, value)


@in_floats
def gammainc(a: Any, x: Any) -> Any:
    """`jax.scipy.special.gammainc`, whose series is undefined for an `a` of 0; for infinity JAX 0.10 differs."""
    value = dtypes.where((a == 0) & (x < 1), np.nan, _incomplete("gammainc", a, x))
    value = dtypes.where(np.isinf(a) & (a > 0) & np.isinf(x) & (x > 0), 1.0, value)
    return unsettled(value, np.isinf(a), np.nan)


@in_floats
def gammaincc(a: Any, x: Any) -> Any:
    """`jax.scipy.special.gammaincc`, which JAX finds by the other function where `x` is at most `a` or 1."""
    value = dtypes.where((x <= 1) | (x <= a), 1.0 - _incomplete("gammainc", a, x), _incomplete("gammaincc", a, x))
    value = dtypes.where(np.isinf(a) & (a > 0) & np.isinf(x) & (x > 0), 0.0, value)
    return unsettled(value, np.isinf(a), np.nan)


def _incomplete(name: str, a: Any, x: Any) -> Any:
    """An incomplete gamma function as XLA rounds it: a series, exact here, times `x ** a * exp(-x) / gamma(a)`."""
    functions = importlib.import_module("scipy.special")

    def factor(a: Any, x: Any) -> Any:
        return np.exp(functions.xlogy(a, x) - x - functions.gammaln(a))

    with np.errstate(all="ignore"):
        plain = np.asarray(a, np.float64), np.asarray(x, np.float64)
        whole = getattr(functions, name)(*plain)
        series = whole / factor(*plain)
        return dtypes.where(np.isfinite(series), factor(a, x) * series, np.zeros_like(x) + whole)


@in_floats
def random_gamma_grad(a: Any, x: Any) -> Any:
    """`jax.lax.random_gamma_grad`: the derivative by `a` of a draw `x` of the gamma distribution.

    It is the series of the incomplete gamma function, differentiated by `a` and divided by the density: the sum over n
    of `x ** (n + 1) / (a * ... * (a + n)) * (digamma(a + n + 1) - log(x))`, as XLA rounds it. Far in the upper tail its
    terms cancel; there it is the integral of the upper incomplete function, differentiated.
    """
    functions = importlib.import_module("scipy.special")
    with np.errstate(all="ignore"):
        tail = functions.gammaincc(np.asarray(a, np.float64), np.asarray(x, np.float64)) < _TAIL
        terms, harmonic = _gamma_sums(a, dtypes.where(tail, a, x))
        slope = (np.zeros_like(x) + harmonic) - (np.log(x) - functions.psi(a + 1.0)) * terms
        if tail.any():
            slope = dtypes.where(tail & np.isfinite(x), _upper_slope(a, x, tail), slope)
        slope = dtypes.where(x == 0, np.zeros_like(slope), slope)
        return dtypes.where((a > 0) & (x >= 0), slope, np.nan)


@in_floats
def igamma_grad_a(a: Any, x: Any) -> Any:
    """`jax.lax.igamma_grad_a`: the derivative of the lower incomplete gamma function by `a`."""
    functions = importlib.import_module("scipy.special")
    with np.errstate(all="ignore"):
        density = np.exp(functions.xlogy(a - 1.0, x) - x - functions.gammaln(a))
        slope = -density * random_gamma_grad(a, x)
        slope = dtypes.where(np.isinf(a) | np.isinf(x), np.nan, dtypes.where((density == 0) & (a > 0), 0.0 * a, slope))
        return dtypes.where((x == 0) & (a > 0), np.zeros_like(slope), slope)


_TERMS = 100_000
"""The most terms of a series that are summed."""

_TAIL = 1e-3
"""The upper incomplete gamma function below which the series of its derivative has lost too many digits."""


def _upper_slope(a: Any, x: Any, tail: np.ndarray) -> np.ndarray:
    """The integral over s from 0 on of `(1 + s/x) ** (a - 1) * exp(-s) * (log(x + s) - digamma(a))`, in the `tail`.

    There x is above a; elsewhere it is 0.
    """
    functions = importlib.import_module("scipy.special")
    slope = np.zeros(tail.shape)
    a, x = (np.broadcast_to(np.asarray(operand, np.float64), tail.shape)[tail][..., None] for operand in (a, x))
    nodes, weights = np.polynomial.legendre.leggauss(100)
    scale = 22.5 * x / (x - np.maximum(a - 1.0, 0.0))
    s = (nodes + 1.0) * scale
    factor = np.exp((a - 1.0) * np.log1p(s / x) - s)
    slope[tail] = (weights * scale * factor * (np.log(x + s) - functions.psi(a))).sum(-1)
    return slope


def _gamma_sums(a: Any, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """The sums of `x ** (n + 1) / (a * ... * (a + n))`, and of these times `1/(a+1) + ... + 1/(a+n)`, in float64."""
    a, x = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
    power = x / a
    terms, harmonic, fractions = power.copy(), np.zeros_like(a), np.zeros_like(a)
    for n in range(1, _TERMS):
        power, fractions = power * x / (a + n), fractions + 1.0 / (a + n)
        terms, harmonic = terms + power, harmonic + power * fractions
        if not np.any(np.abs(power) * (1.0 + fractions) > np.finfo(np.float64).eps / 4 * np.abs(terms)):
            break
    return terms, harmonic


def _bits_of(dtype: np.dtype[Any]) -> int:
    return 8 * dtype.itemsize


def leading_zeros(x: Any) -> Any:
    """`jax.lax.clz`: the number of zeros before the first bit that is set."""
    x = array(x)
    unsigned = x.view(f"u{x.dtype.itemsize}")
    count = np.full(x.shape, _bits_of(x.dtype), x.dtype)
    for bit in range(_bits_of(x.dtype)):
        # Later bits are higher ones.
        count[(unsigned >> unsigned.dtype.type(bit)) & unsigned.dtype.type(1) == 1] = _bits_of(x.dtype) - 1 - bit
    return count


def _in_own_dtype(x: Any, own_dtype: str) -> Any:
    """Floats, rounded to the dtype that they have in JAX; integers unchanged."""
    numbers = np.asarray(x)
    if numbers.dtype.kind != "f":
        return numbers
    return numbers.astype(np.float32).astype(dtypes.dtype(own_dtype).numpy) if own_dtype != "float64" else numbers


class Resized(ValueError):
    """The bits of numbers as a dtype of another size, for which JAX adds or removes a dimension."""


def bitcast(operand: Any, new_dtype: str, *, own_dtype: str = "float32") -> Any:
    """`jax.lax.bitcast_convert_type`: the bits of numbers, in the dtype that they have in JAX, as another dtype.

    Raises `Resized` for dtypes of different sizes.
    """
    numbers, new = _in_own_dtype(operand, own_dtype), np.dtype(dtypes.dtype(new_dtype).numpy)
    if numbers.dtype.itemsize != new.itemsize:
        raise Resized(f"the bits of {numbers.dtype} are not read as {new}, which has another size")
    bits = np.ascontiguousarray(numbers).view(new).reshape(numbers.shape)
    return bits if new.kind in "iu" else bits.astype(np.float64)


def next_float(x: Any, y: Any, *, own_dtype: str = "float32") -> Any:
    """`jnp.nextafter`: the next number of the dtype that `x` has in JAX."""
    x, y = (_in_own_dtype(operand, own_dtype) for operand in common(x, y))
    return np.nextafter(x, y).astype(np.float64)


erf, erfc, erf_inv = special("erf"), special("erfc"), special("erfinv")


@in_floats
def lgamma(x: Any) -> Any:
    """`jax.lax.lgamma`: infinite at -inf too."""
    return dtypes.where(np.isinf(x), np.inf, importlib.import_module("scipy.special").gammaln(x))


@in_floats
def sinc(x: Any) -> Any:
    """`jnp.sinc`; at infinity JAX 0.10 returns NaN, and 0.12 the limit."""
    return unsettled(dtypes.where(np.isinf(x), 0.0, np.sinc(x)), np.isinf(x), np.nan)


_expit = special("expit")


def logistic(x: Any) -> Any:
    """`jax.lax.logistic`; SciPy's `expit` takes real numbers only."""
    if not np.iscomplexobj(x):
        return _expit(x)
    with np.errstate(all="ignore"):
        return 1 / (1 + np.exp(-x))


def rsqrt(x: Any) -> Any:
    """`jax.lax.rsqrt`."""
    with np.errstate(all="ignore"):
        return 1.0 / np.sqrt(floating(x))


def real(val: Any, /) -> Any:
    """`jnp.real`."""
    return array(val).real


def imag(val: Any, /) -> Any:
    """`jnp.imag`."""
    return array(val).imag


def conj(x: Any) -> Any:
    """`jnp.conj`: real values are returned unchanged."""
    x = array(x)
    return np.conj(x) if x.dtype.kind == "c" else x


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """`jnp.isclose`."""
    with np.errstate(all="ignore"):
        return np.isclose(*common(a, b), rtol=rtol, atol=atol, equal_nan=equal_nan)


def astype(x: Any, dtype: Any, /) -> Any:
    """`jnp.astype`: a float keeps its value in any float dtype, since the oracle is float64; `None` means float32."""
    return convert(x, "float32" if dtype is None else dtype)


def where(condition: Any, x: Any, y: Any, /) -> Any:
    """`jnp.where` with three arguments."""
    return dtypes.where(array(condition) != 0, *common(x, y))
