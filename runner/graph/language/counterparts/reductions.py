"""NumPy counterparts of JAX's reductions and scans."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.untyped import is_sequence, is_tuple
from runner.graph.language.counterparts.promotion import array, as_number, convert, dtype_of, floating, ieee, integer
from runner.graph.language.notation import spelled

_quantile: Callable[..., Any] = np.quantile  # NumPy's stubs take `method` only as a literal

# The mask for `where=None`.
_ALL: Any = True


# Sums.


def _summable(a: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Convert `a` to the dtype in which JAX sums it: booleans and small integers in that of Python integers."""
    if dtype is not None:
        return convert(a, dtype)
    a = array(a)
    unsigned = a.dtype.name.startswith("uint")
    if a.dtype.kind in "bV" or (a.dtype.kind in "iu" and a.dtype.itemsize < integer().itemsize):
        return a.astype(integer(unsigned=unsigned))
    return a


def _accumulated(function: Callable[..., Any], a: Any, axis: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    options = {} if initial is None else {"initial": np.asarray(initial).astype(a.dtype)}
    with np.errstate(all="ignore"):
        return function(
            a,
            axis=axis,
            dtype=a.dtype,
            keepdims=keepdims,
            where=_ALL if where is None else array(where) != 0,
            **options,
        )


def _axis(axis: Any) -> Any:
    return tuple(axis) if is_sequence(axis) else axis


def sum_(
    a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """`jnp.sum`: booleans and small integers are summed as Python integers, floats in `dtype`; integers wrap."""
    if dtype is not None and dtype_of(dtype).kind in "fc":
        return _added_in(array(a), dtype, _axis(axis), keepdims, initial, where)
    return _accumulated(np.sum, _summable(a, dtype), _axis(axis), keepdims, initial, where)


def prod(
    a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """`jnp.prod`: booleans and small integers are multiplied in the dtype of Python integers."""
    return _accumulated(np.prod, _summable(a, dtype), _axis(axis), keepdims, initial, where)


def added(a: Any, axis: Any, *, keepdims: bool = False) -> Any:
    """`jax.lax.reduce_sum`: a `Rounded` array rounds each step to its dtype, unlike `jnp.sum` with 16 bits."""
    along = range(a.ndim) if axis is None else axis if is_tuple(axis) else (axis,)
    axes = tuple(d % a.ndim for d in along)
    names = string.ascii_letters[: a.ndim]
    kept = "".join(name for place, name in enumerate(names) if place not in axes)
    total = np.einsum(spelled(([names], kept)), a)
    return np.expand_dims(total, axes) if keepdims else total


def _added_in(a: Any, dtype: Any, axis: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    """The sum of `a` in floats of `dtype`; a `Rounded` array is rounded to it before the sum too."""
    a = convert(a, dtype) if getattr(a, "cast", None) is None or a.dtype.kind not in "fc" else a.cast(dtype)
    with np.errstate(all="ignore"):
        kept = a if where is None else dtypes.where(array(where) != 0, a, np.zeros_like(a, shape=()))
        total = added(kept, axis, keepdims=keepdims)
        return total if initial is None else total + initial


def nanmean(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """`jnp.nanmean`: NaN where all elements are; sums, and counts the elements, in the dtype of `a`."""
    a = floating(a)
    zero, unit = np.zeros_like(a, shape=()), np.ones_like(a, shape=())
    with np.errstate(all="ignore"):
        total, count = (
            added(dtypes.where(np.isnan(a), zero, term), _axis(axis), keepdims=keepdims) for term in (a, unit)
        )
        return total / count


def mean(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Any:
    """`jnp.mean`: integers are converted to floats unless `dtype` is an integer dtype."""
    a = floating(a) if dtype is None else convert(a, dtype)
    counted = np.broadcast_to(True if where is None else array(where) != 0, a.shape)
    count = np.sum(counted, axis=_axis(axis), keepdims=keepdims)
    with np.errstate(all="ignore"):
        kind = None if a.dtype.kind in "fc" else a.dtype
        quotient = sum_(a, axis, kind, keepdims=keepdims, where=where) / count
    return quotient if dtype is None else convert(quotient, dtype)


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """`jnp.var`: integers are converted to floats; a divisor of zero or less gives NaN."""
    a = floating(a)
    counted = np.broadcast_to(True if where is None else array(where) != 0, a.shape)
    count = np.sum(counted, axis=_axis(axis), keepdims=True)
    with np.errstate(all="ignore"):
        if mean is None:
            mean = sum_(a, axis, keepdims=True, where=where) / count
        squares = np.abs(a - mean) ** 2
        freedom = np.sum(counted, axis=_axis(axis), keepdims=keepdims) - (ddof if correction is None else correction)
        return dtypes.where(freedom > 0, sum_(squares, axis, keepdims=keepdims, where=where) / freedom, np.nan)


def average(a: Any, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Any:
    """`jnp.average`: integers are converted to floats."""
    if weights is None:
        return mean(a, axis, keepdims=keepdims)
    return np.average(floating(a), _axis(axis), floating(weights), keepdims=keepdims)


def logmeanexp(logsumexp: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.nn.logmeanexp`, by the counterpart of `logsumexp`."""

    def counterpart(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
        counted = np.broadcast_to(True if where is None else array(where) != 0, np.shape(x))
        count = np.sum(counted, axis=_axis(axis), keepdims=keepdims)
        with np.errstate(all="ignore"):
            return logsumexp(x, axis, keepdims=keepdims, where=where) - np.log(count)

    return counterpart


# Selections of one element.


def _chosen(ufunc: np.ufunc) -> Callable[..., Any]:
    reduce = ieee(ufunc, "reduce")

    def choose(a: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Any:
        a = array(a)
        options = {} if initial is None else {"initial": np.asarray(initial).astype(a.dtype)}
        mask = _ALL if where is None else array(where) != 0
        return reduce(a, axis=_axis(axis), keepdims=keepdims, where=mask, **options)

    return choose


max_, min_ = _chosen(np.maximum), _chosen(np.minimum)


def _chosen_number(choose: Callable[..., Any], last: float) -> Callable[..., Any]:
    def choose_number(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        a = array(a)
        if a.dtype.kind != "f":
            return choose(a, axis, keepdims=keepdims)
        nan = np.isnan(a)
        chosen = choose(dtypes.where(nan, last, a), axis, keepdims=keepdims)
        return dtypes.where(np.all(nan, axis=_axis(axis), keepdims=keepdims), np.nan, chosen)

    return choose_number


nanmax, nanmin = _chosen_number(max_, -np.inf), _chosen_number(min_, np.inf)


def _position(function: Callable[..., Any]) -> Callable[..., Any]:
    def find(a: Any, axis: int | None = None, *, keepdims: bool | None = None) -> Any:
        return np.asarray(function(array(a), axis=axis, keepdims=bool(keepdims))).astype(integer())

    return find


argmax, argmin = _position(np.argmax), _position(np.argmin)


def _tested(function: Callable[..., Any]) -> Callable[..., Any]:
    def test(a: Any, axis: Any = None, *, keepdims: bool = False, where: Any = None) -> Any:
        return function(
            array(a) != 0, axis=_axis(axis), keepdims=keepdims, where=_ALL if where is None else array(where) != 0
        )

    return test


all_, any_ = _tested(np.all), _tested(np.any)


def quantile(a: Any, q: Any, axis: Any = None, *, method: Any = "linear", keepdims: bool = False) -> Any:
    """`jnp.quantile`: integers are converted to floats; between an infinity and a number is the infinity."""
    a, q, options = floating(a), floating(q), {"axis": _axis(axis), "keepdims": keepdims}
    with np.errstate(all="ignore"):
        result = _quantile(a, q, method=method, **options)
        if method != "linear" or not np.isinf(a).any():
            return result
        low, high = (_quantile(a, q, method=end, **options) for end in ("lower", "higher"))
        return dtypes.where(np.isinf(low) | np.isinf(high), low + high, result)


# Scans.


def _scanned(function: Callable[..., Any]) -> Callable[..., Any]:
    def scan(a: Any, axis: int | None = None, dtype: Any = None) -> Any:
        a = array(a) if dtype is None else convert(a, dtype)
        a = as_number(a)
        with np.errstate(all="ignore"):
            return function(a, axis=axis, dtype=a.dtype)

    return scan


# Unlike a sum, a scan of small integers stays in their dtype.
cumsum, cumprod = _scanned(np.cumsum), _scanned(np.cumprod)


def cumulative_sum(x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """`jnp.cumulative_sum`: `axis` may be omitted for an array of one dimension."""
    axis = 0 if axis is None else axis
    sums = cumsum(x, axis, dtype)
    if not include_initial:
        return sums
    first = list(sums.shape)
    first[axis] = 1
    return np.concatenate([np.zeros_like(sums, shape=first), sums], axis)


def _scanned_from_end(accumulate: Callable[..., Any], prepare: Callable[[Any], Any] = array) -> Callable[..., Any]:
    def scan(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
        operand = prepare(operand)
        with np.errstate(all="ignore"):
            if reverse:
                return np.flip(accumulate(np.flip(operand, axis), axis=axis), axis)
            return accumulate(operand, axis=axis)

    return scan


cummax = _scanned_from_end(ieee(np.maximum, "accumulate"))
cummin = _scanned_from_end(ieee(np.minimum, "accumulate"))
# The initial value is -inf, as in JAX; in a dtype without infinities that is NaN.
cumlogsumexp = _scanned_from_end(np.logaddexp.accumulate, lambda x: np.maximum(floating(x), -np.inf))


# Reductions by segment.


def _segmented(ufunc: np.ufunc, start: Callable[[np.dtype[Any]], Any]) -> Callable[..., Any]:
    choice = ufunc in (np.maximum, np.minimum)
    combine, reduceat = (ieee(ufunc), ieee(ufunc, "reduceat")) if choice else (ufunc, ufunc.reduceat)

    def reduce(data: Any, segment_ids: Any, num_segments: int | None = None) -> Any:
        data, ids = array(data), np.asarray(segment_ids).astype(np.int64)
        count = int(ids.max(initial=-1)) + 1 if num_segments is None else num_segments
        result = np.full((count, *data.shape[1:]), start(data.dtype), data.dtype)
        data = np.broadcast_to(data, (*ids.shape, *data.shape[1:]))  # JAX's scatter broadcasts its updates
        kept = (ids >= 0) & (ids < count)  # JAX drops ids out of range
        order = np.argsort(ids[kept], kind="stable")
        present, starts = np.unique(ids[kept][order], return_index=True)
        if present.size:
            with np.errstate(all="ignore"):
                result[present] = combine(result[present], reduceat(data[kept][order], indices=starts, axis=0))
        return result

    return reduce


def lowest(dtype: np.dtype[Any]) -> Any:
    """The identity of `max`."""
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    """The identity of `min`."""
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


segment_sum = _segmented(np.add, lambda dtype: 0)
segment_prod = _segmented(np.multiply, lambda dtype: 1)
segment_max = _segmented(np.maximum, lowest)
segment_min = _segmented(np.minimum, highest)
