"""NumPy counterparts of JAX's functions that create arrays or change their shape: exact data movement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from runner.base.untyped import is_sequence
from runner.graph.language.counterparts.promotion import (
    array,
    common,
    common_dtype,
    convert,
    dtype_of,
    floating,
    integer,
)

# Creation.


def _made(fill: Callable[..., Any]) -> Callable[..., Any]:
    def make(shape: Any, dtype: Any = None) -> Any:
        return fill(shape, dtype_of("float32" if dtype is None else dtype))

    return make


zeros, ones = _made(np.zeros), _made(np.ones)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """`jnp.full`: by default, in the value's own dtype."""
    return np.array(np.broadcast_to(_typed(fill_value, dtype), shape))


def _typed(value: Any, dtype: Any) -> Any:
    return array(value) if dtype is None else convert(value, dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """`jnp.full_like`."""
    a = array(a)
    return full(a.shape if shape is None else shape, fill_value, a.dtype if dtype is None else dtype)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """`jnp.eye`."""
    return np.eye(N, M, k, dtype_of("float32" if dtype is None else dtype))


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """`jnp.tri`."""
    return np.tri(N, M, k, dtype_of("float32" if dtype is None else dtype))


_counted: Callable[..., np.ndarray] = np.arange


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    """`jnp.arange`."""
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    inferred = common_dtype(start, stop, step)
    numbers = _counted(start, stop, step)
    return numbers.astype(inferred) if dtype is None else convert(numbers, dtype)


def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, *, dtype: Any = None, axis: int = 0) -> Any:
    """`jnp.linspace`: an integer dtype rounds down."""
    numbers = np.linspace(floating(start), floating(stop), num, endpoint, axis=axis)
    if dtype is None or dtype_of(dtype).kind in "fc":
        return numbers
    return convert(np.floor(numbers), dtype)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, ...]:
    """`jnp.tril_indices`."""
    return _places(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, ...]:
    """`jnp.triu_indices`."""
    return _places(np.triu_indices(n, k, m))


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """`jnp.diag_indices`."""
    return _places(np.diag_indices(n, ndim))


def _places(indices: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(index.astype(integer()) for index in indices)


def iota(dtype: Any, size: int) -> Any:
    """`jax.lax.iota`."""
    return convert(np.arange(size), dtype)


def broadcasted_iota(dtype: Any, shape: Any, dimension: int) -> Any:
    """`jax.lax.broadcasted_iota`: counts along one dimension of an array of `shape`."""
    counts = iota(dtype, shape[dimension])
    return np.array(np.broadcast_to(np.expand_dims(counts, tuple(range(1, len(shape) - dimension))), shape))


def array_(object: Any, dtype: Any = None, *, ndmin: int = 0) -> Any:
    """`jnp.array`: a Python int becomes int32 or int64."""
    return np.array(_typed(object, dtype), ndmin=ndmin)


def asarray(a: Any, dtype: Any = None) -> Any:
    """`jnp.asarray`."""
    return _typed(a, dtype)


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """`jax.nn.one_hot`: floats unless `dtype` says otherwise; a class out of range gives zeros."""
    x = array(x)
    hot = np.expand_dims(x, axis if axis >= 0 else axis + x.ndim + 1)
    classes = np.arange(num_classes).reshape([-1 if size == axis % (x.ndim + 1) else 1 for size in range(x.ndim + 1)])
    return convert(hot == classes, "float32" if dtype is None else dtype)


def meshgrid(*xi: Any, sparse: bool = False, indexing: Any = "xy") -> Any:
    """`jnp.meshgrid`."""
    return list(np.meshgrid(*map(array, xi), sparse=sparse, indexing=indexing))


# Shape.


def moved(function: Callable[..., Any]) -> Callable[..., Any]:
    """The counterpart by a NumPy function of one array with JAX's other arguments; lists become tuples."""

    def move(a: Any, *arguments: Any, **named: Any) -> Any:
        arguments = tuple(_tuple(argument) for argument in arguments)
        return function(array(a), *arguments, **{name: _tuple(value) for name, value in named.items()})

    return move


def _tuple(argument: Any) -> Any:
    return tuple(argument) if is_sequence(argument) else argument


def _parts(arrays: Any, dtype: Any) -> list[Any]:
    return common(*arrays) if dtype is None else [convert(part, dtype) for part in arrays]


def joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The counterpart of a function that joins arrays along `axis`, in their common dtype or in `dtype`."""

    def join(arrays: Any, axis: Any = 0, dtype: Any = None) -> Any:
        return function(_parts(arrays, dtype), axis=axis)

    return join


def piled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The counterpart of a function such as `vstack`, which joins arrays in their common dtype or in `dtype`."""

    def pile(tup: Any, dtype: Any = None) -> Any:
        return function(_parts(tup, dtype))

    return pile


def at_least(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jnp.atleast_1d` and the like: several arrays give a list."""

    def widen(*arys: Any) -> Any:
        widened = [function(array(ary)) for ary in arys]
        return widened[0] if len(widened) == 1 else widened

    return widen


def broadcast_arrays(*args: Any) -> list[Any]:
    """`jnp.broadcast_arrays`."""
    return list(np.broadcast_arrays(*map(array, args), subok=True))


def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Any) -> Any:
    """`jax.lax.broadcast_in_dim`: dimension `i` of `operand` becomes `broadcast_dimensions[i]`."""
    operand = array(operand)
    sizes = dict(zip(broadcast_dimensions, operand.shape, strict=True))
    return np.array(np.broadcast_to(operand.reshape([sizes.get(d, 1) for d in range(len(shape))]), shape))


def repeat(a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Any:
    """`jnp.repeat`: `total_repeat_length` truncates the result, or pads it with its last element."""
    result = np.repeat(array(a), repeats, axis)
    if total_repeat_length is None:
        return result
    axis = 0 if axis is None else axis
    places = np.minimum(np.arange(total_repeat_length), result.shape[axis] - 1)
    return np.take(result, places, axis)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """`jnp.roll`."""
    shift = tuple(np.ravel(shift).tolist()) if np.ndim(shift) else int(shift)
    return np.roll(array(a), shift, _tuple(axis))


def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    """`jnp.pad`."""
    array = _array(array)
    if mode == "constant":
        return np.pad(array, pad_width, mode, constant_values=np.asarray(constant_values).astype(array.dtype))
    return np.pad(array, pad_width, mode)


_array = array  # `array` is the name of an argument above


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """`jnp.diff`, in the dtype of `a`, in which it wraps."""
    a = array(a)
    around = [prepend, a, append]
    if prepend is not None or append is not None:
        row = list(a.shape)
        row[axis] = 1
        parts = [
            np.broadcast_to(part, row) if np.ndim(part) == 0 else part
            for part in common(*(part for part in around if part is not None))
        ]
        a = np.concatenate(parts, axis)
    with np.errstate(all="ignore"):
        return np.diff(a, n, axis)


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """`jnp.trapezoid`: integers are converted to floats."""
    return np.trapezoid(floating(y), None if x is None else floating(x), dx, axis)


# Static values, which Python computes while it traces.


def shape_(a: Any) -> tuple[int, ...]:
    """`jnp.shape`: a tuple of Python integers."""
    return np.shape(a)


def ndim(a: Any) -> int:
    """`jnp.ndim`: a Python integer."""
    return np.ndim(a)


def size(a: Any, axis: int | None = None) -> int:
    """`jnp.size`: a Python integer."""
    return math.prod(np.shape(a)) if axis is None else np.shape(a)[axis]
