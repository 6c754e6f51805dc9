"""NumPy counterparts of `x.at[index]`, with JAX's rules for indices out of range.

A negative index counts from the end, once. If it is out of range then, an update ignores it and a `get` clamps it,
unless `mode` says otherwise. Of several values for one element, `set` uses the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from runner.base import dtypes
from runner.base.untyped import is_tuple
from runner.graph.language.counterparts import arithmetic
from runner.graph.language.counterparts.indexing import clamped, fill_of, getitem, static_slice
from runner.graph.language.counterparts.promotion import array, common, convert

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
