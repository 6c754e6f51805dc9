"""Has the NumPy counterparts of slices, gathers, sorts and `x.at[index]`, with JAX's rules for indices out of range.

A negative index counts from the end, once. If it is out of range then, an update ignores it and a `get` clamps it,
unless `mode` says otherwise. Of several values for one element, `set` uses the last.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from runner.base import dtypes
from runner.base.untyped import is_sequence, is_tuple
from runner.graph.language.counterparts import arithmetic
from runner.graph.language.counterparts.promotion import array, common, convert, floating, integer

# Subscripts.


def clamped(index: Any, size: int) -> Any:
    """Clamp an integer or integer array to indices in range, after negative ones were counted from the end."""
    places = np.asarray(index).astype(np.int64)
    places = np.clip(dtypes.where(places < 0, places + size, places), 0, max(size - 1, 0))
    return places if places.ndim else int(places)


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`: an integer out of range is clamped to the nearest element, as in JAX, and does not raise."""
    if is_sequence(x):
        return x[index]
    parts = index if is_tuple(index) else (index,)
    x = array(x)

    def consumed(part: Any) -> int:
        if part is None or part is Ellipsis or isinstance(part, bool):
            return 0
        return np.ndim(part) if dtypes.is_array(part) and part.dtype == np.bool_ else 1

    missing = x.ndim - sum(map(consumed, parts))
    checked: list[Any] = []
    axis = 0
    for part in parts:
        if part is Ellipsis:
            axis += missing
        elif isinstance(part, slice):
            checked.append(static_slice(cast("slice", part)))
            axis += 1
            continue
        elif consumed(part) == 1 and np.asarray(part).dtype != np.bool_:
            if axis >= x.ndim:
                raise IndexError(f"too many indices for an array of {x.ndim} dimensions")
            part = clamped(part, x.shape[axis])
        axis += 0 if part is Ellipsis else consumed(part)
        checked.append(part)
    return x[tuple(checked)]


def static_slice(part: slice) -> slice:
    bounds = (part.start, part.stop, part.step)
    return slice(*(None if bound is None else operator.index(bound) for bound in bounds))


# Slices. A negative start counts from the end; a start out of range is moved so that the slice stays inside.


def _starts(start_indices: Any, operand: Any, sizes: Any) -> list[int]:
    starts = [int(start) for start in start_indices]
    bounds = zip(starts, operand.shape, sizes, strict=True)
    return [min(max(start + (length if start < 0 else 0), 0), length - size) for start, length, size in bounds]


def _window(start_indices: Any, operand: Any, sizes: Any) -> tuple[slice, ...]:
    starts = _starts(start_indices, operand, sizes)
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _in_dim(operand: Any, axis: int, start: Any) -> list[Any]:
    starts: list[Any] = [0] * operand.ndim
    starts[axis] = start
    return starts


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Any) -> Any:
    """`jax.lax.dynamic_slice`."""
    operand = array(operand)
    return operand[_window(start_indices, operand, slice_sizes)]


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Any:
    """`jax.lax.dynamic_update_slice`."""
    operand, update = array(operand), array(update)
    result = operand.copy()
    result[_window(start_indices, operand, update.shape)] = update
    return result


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """`jax.lax.dynamic_slice_in_dim`."""
    operand = array(operand)
    sizes = list(operand.shape)
    sizes[axis] = slice_size
    return dynamic_slice(operand, _in_dim(operand, axis, start_index), sizes)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """`jax.lax.dynamic_update_slice_in_dim`."""
    operand = array(operand)
    return dynamic_update_slice(operand, update, _in_dim(operand, axis, start_index))


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """`jax.lax.dynamic_update_index_in_dim`: the update may lack the dimension."""
    operand, update = array(operand), array(update)
    if update.ndim != operand.ndim:
        update = np.expand_dims(update, axis % operand.ndim)
    return dynamic_update_slice_in_dim(operand, update, index, axis)


def slice_(operand: Any, start_indices: Any, limit_indices: Any, strides: Any = None) -> Any:
    """`jax.lax.slice`."""
    operand = array(operand)
    strides = [1] * operand.ndim if strides is None else strides
    return operand[tuple(map(slice, start_indices, limit_indices, strides))]


def slice_in_dim(operand: Any, start_index: Any, limit_index: Any, stride: int = 1, axis: int = 0) -> Any:
    """`jax.lax.slice_in_dim`: a bound may be negative or missing."""
    operand = array(operand)
    window = [slice(None)] * operand.ndim
    window[axis] = slice(start_index, limit_index, stride)
    return operand[tuple(window)]


# Gathering.


def fill_of(dtype: np.dtype[Any], fill_value: Any) -> Any:
    """The value for an index out of range: by default NaN, True, the lowest signed or the highest unsigned integer."""
    if fill_value is not None:
        return np.asarray(fill_value).astype(dtype)
    if dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def take(a: Any, indices: Any, axis: int | None = None, *, mode: str | None = None, fill_value: Any = None) -> Any:
    """`jnp.take`: by default NaN where an index is out of range; `mode="clip"` reads a negative one as 0."""
    a, indices = array(a), array(indices).astype(np.int64)
    if axis is None:
        a, axis = np.ravel(a), 0
    length = a.shape[axis]
    if mode == "clip":
        return np.take(a, np.clip(indices, 0, length - 1), axis)
    if mode == "wrap":
        return np.take(a, indices % length, axis)
    outside = (indices < -length) | (indices >= length)
    result = np.array(np.take(a, clamped(indices, length), axis))
    axis %= a.ndim
    outside = np.expand_dims(outside, tuple(range(indices.ndim, indices.ndim + a.ndim - axis - 1)))
    return dtypes.where(
        np.broadcast_to(outside, result.shape), np.asarray(fill_of(a.dtype, fill_value), a.dtype), result
    )


def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: str | None = None, fill_value: Any = None
) -> Any:
    """`jnp.take_along_axis`: by default NaN where an index is out of range; modes are "fill" and "clip"."""
    arr, indices = array(arr), array(indices).astype(np.int64)
    if axis is None:
        arr, axis = np.ravel(arr), 0
    length = arr.shape[axis]
    result = np.take_along_axis(arr, np.asarray(clamped(indices, length)), axis)
    if mode == "clip":
        return result
    outside = (indices < -length) | (indices >= length)
    return dtypes.where(outside, np.asarray(fill_of(arr.dtype, fill_value), arr.dtype), result)


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """`jnp.select`: the first choice whose condition holds."""
    *choices, default = common(*choicelist, default)
    return np.select([array(condition) != 0 for condition in condlist], choices, default)


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """`jax.lax.top_k`: the largest values and their int32 indices; equal values keep their order.

    Unlike a sort, XLA orders floats by their bits here: -NaN, -inf, …, -0.0, 0.0, …, inf, NaN.
    """
    operand = array(operand)
    places = np.take(argsort(_by_bits(operand), axis, descending=True), np.arange(k), axis)
    return np.take_along_axis(operand, places, axis), places.astype(np.int32)


def _by_bits(operand: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Map floats to integers in IEEE 754's total order."""
    if operand.dtype.kind != "f":
        return operand
    bits = np.array(operand, order="C").view(f"i{operand.itemsize}")
    return dtypes.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


# Order.


def sort(a: Any, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    """`jnp.sort`: NaN counts as the largest."""
    ordered = np.sort(array(a), axis=axis, kind="stable")
    return np.flip(ordered, 0 if axis is None else axis) if descending else ordered


def argsort(a: Any, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    """`jnp.argsort`; equal values keep their order, descending too."""
    a = array(a)
    if axis is None:
        a, axis = np.ravel(a), -1
    if not descending:
        return np.argsort(a, axis=axis, kind="stable").astype(integer())
    backwards = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
    return np.flip(a.shape[axis] - 1 - backwards, axis).astype(integer())


def searchsorted(a: Any, v: Any, side: Any = "left") -> Any:
    """`jnp.searchsorted`, in int32."""
    return np.asarray(np.searchsorted(*common(a, v), side=side)).astype(np.int32)


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """`jnp.digitize`, in int32."""
    return np.asarray(np.digitize(*common(x, bins), right=right)).astype(np.int32)


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """`jnp.bincount`: a negative number counts as 0; one of `length` or more is dropped."""
    x = np.maximum(array(x).astype(np.int64), 0)
    length = max(minlength, int(x.max(initial=-1)) + 1) if length is None else length
    weights = np.ones(x.shape, integer()) if weights is None else array(weights)
    counts = np.zeros(length, weights.dtype)
    np.add.at(counts, x[x < length], weights[x < length])
    return counts


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """`jnp.interp`, by JAX's formula: at a number that `xp` repeats, the value of the last occurrence."""
    x, xp, fp = floating(x), floating(xp), floating(fp)
    with np.errstate(all="ignore"):
        if period is not None:
            period = np.abs(period)
            x, xp = np.remainder(x, period), np.remainder(xp, period)
            order = np.argsort(xp, kind="stable")
            xp, fp = xp[order], fp[order]
            xp = np.concatenate([xp[-1:] - period, xp, xp[:1] + period])
            fp = np.concatenate([fp[-1:], fp, fp[:1]])
        i = np.clip(np.asarray(np.searchsorted(xp, x, side="right"), np.intp), 1, len(xp) - 1)
        apart = xp[i] - xp[i - 1]
        inside = fp[i - 1] + (x - xp[i - 1]) / dtypes.where(apart == 0, 1.0, apart) * (fp[i] - fp[i - 1])
        values = dtypes.where(apart == 0, fp[i - 1], inside)
        if period is None and left != "extrapolate":
            values = dtypes.where(x < xp[0], fp[0] if left is None else left, values)
        if period is None and right != "extrapolate":
            values = dtypes.where(x > xp[-1], fp[-1] if right is None else right, values)
    return values


def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """`jnp.unravel_index`: an index out of range is clamped."""
    flat = array(indices)
    unraveled = cast("Any", np).unravel_index(clamped(flat, math.prod(shape)), shape)
    return tuple(np.asarray(index).astype(flat.dtype) for index in unraveled)


_AT: dict[str, Any] = {"add": np.add, "multiply": np.multiply, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_OF_FACTORS: dict[str, Callable[..., Any]] = {"divide": arithmetic.divide, "power": arithmetic.power}


def updated(method: str) -> Callable[..., Any]:
    """The counterpart of `x.at[index].METHOD(values)`, in the dtype of `x` except for a quotient of integers."""

    def update(
        x: Any,
        index: Any,
        values: Any,
        /,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
    ) -> Any:
        x = array(x)
        places = _places(x.shape, index, clip=mode == "clip")
        flat, updates = common(np.ravel(x), values)
        # Without places, JAX ignores the shape of the values.
        updates = np.ravel(np.broadcast_to(updates, places.shape)) if places.size else np.ravel(updates)[:0]
        at, inside = np.ravel(places), np.ravel(places) >= 0
        at, updates = at[inside], updates[inside]
        with np.errstate(all="ignore"):
            if method == "subtract":
                result = _accumulated(np.add, flat, at, -updates)
            elif method in _AT:
                result = _accumulated(_AT[method], flat, at, updates)
            elif method == "set":
                result = _replaced(flat, at, updates)
            else:
                # JAX multiplies the factors of each element first, and the division of integers gives floats.
                factors = _accumulated(np.multiply, np.ones_like(flat), at, updates)
                return np.reshape(_OF_FACTORS[method](flat, factors), x.shape)
        result = np.reshape(result, x.shape)
        return result if x.dtype.kind in "fc" else convert(result, x.dtype)

    return update


def get(
    x: Any,
    index: Any,
    /,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Any:
    """`x.at[index].get()`: in the modes "fill" and "drop", `fill_value` or NaN where an index is out of range."""
    x = array(x)
    part = getitem(x, index)
    if mode not in ("fill", "drop"):
        return part
    outside = _places(x.shape, index, clip=False) < 0
    return dtypes.where(outside, np.asarray(fill_of(x.dtype, fill_value), x.dtype), part)


def _accumulated(ufunc: np.ufunc, flat: Any, at: Any, values: Any) -> Any:
    # In turn, as JAX scatters, in the common dtype of both, to which `concatenate` converts.
    result = np.concatenate([flat, values])[: len(flat)]
    ufunc.at(result, at, values)
    return result


def _replaced(flat: Any, at: Any, values: Any) -> Any:
    """Replace the elements at the places `at`, in the common dtype of both."""
    spread = np.zeros_like(values, shape=flat.shape)
    spread[at] = values
    touched = np.zeros(flat.shape, bool)
    touched[at] = True
    return dtypes.where(touched, spread, flat)


def _places(shape: tuple[int, ...], index: Any, *, clip: bool) -> np.ndarray[Any, Any]:
    """The flat position of each element of `x[index]`; -1 where the index is out of range."""
    parts = index if is_tuple(index) else (index,)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    checked: list[Any] = []
    axis, padded = 0, np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    for part in parts:
        if part is None or part is Ellipsis:
            axis += 0 if part is None else len(shape) - taken
            checked.append(part)
            continue
        if axis >= len(shape):
            raise IndexError(f"too many indices for an array of {len(shape)} dimensions")
        length = shape[axis]
        if isinstance(part, slice):
            checked.append(static_slice(cast("slice", part)))
        elif clip:
            checked.append(clamped(part, length))
        else:
            places = np.asarray(part).astype(np.int64)
            places = np.where(places < 0, places + length, places)
            # The padding after the last element, which holds -1.
            checked.append(np.where((places >= 0) & (places < length), places, length))
            widths = [(0, int(d == axis)) for d in range(len(shape))]
            padded = np.pad(padded, widths, constant_values=-1)
        axis += 1
    return padded[tuple(checked)]
