"""Has the NumPy counterparts of `jax.lax`'s convolutions, `reduce_window` and `associative_scan`.

A window's counterpart loops over the offsets in the window, not over the windows: for one offset, the elements of all
windows are a strided view of the padded operand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from runner.base.untyped import is_sequence
from runner.graph.language.counterparts.promotion import array, common, ieee_maximum, ieee_minimum, preferred, promoted
from runner.graph.language.counterparts.reductions import highest, lowest

Sizes = Sequence[int]
Pads = Sequence[tuple[int, int]]


def _stretched(size: int, dilation: int) -> int:
    """The extent of `size` elements with `dilation - 1` holes between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


def padded_by(padding: Any, sizes: Sizes, windows: Sizes, strides: Sizes) -> Pads:
    """`jax.lax.padtype_to_pads`: the padding before and after each dimension; `windows` are dilated sizes."""
    if not isinstance(padding, str):
        return [(int(low), int(high)) for low, high in padding]
    if padding.upper() == "VALID":
        return [(0, 0)] * len(sizes)
    pads: list[tuple[int, int]] = []
    for size, window, stride in zip(sizes, windows, strides, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + window - size, 0)
        less, more = total // 2, total - total // 2
        pads.append((more, less) if padding.upper() == "SAME_LOWER" else (less, more))
    return pads


def _padded(operand: np.ndarray, pads: Pads, dilation: Sizes, fill: Any) -> np.ndarray:
    """Dilate and pad an operand with `fill`; negative padding crops it."""
    stretched = [_stretched(size, step) for size, step in zip(operand.shape, dilation, strict=True)]
    whole = [max(low, 0) + size + max(high, 0) for size, (low, high) in zip(stretched, pads, strict=True)]
    canvas = np.full_like(operand, fill, shape=whole)
    inside = zip(stretched, pads, dilation, strict=True)
    canvas[tuple(slice(max(low, 0), max(low, 0) + size, step) for size, (low, _), step in inside)] = operand
    kept = zip(whole, pads, strict=True)
    return canvas[tuple(slice(max(-low, 0), max(size - max(-high, 0), 0)) for size, (low, high) in kept)]


def _met(
    padded: np.ndarray, window: Sizes, strides: Sizes, dilation: Sizes
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield each offset in the window with a view of its elements in all windows, of the result's shape."""
    reach = [_stretched(size, step) for size, step in zip(window, dilation, strict=True)]
    counts = [
        max((size - span) // stride + 1, 0) for size, span, stride in zip(padded.shape, reach, strides, strict=True)
    ]
    for place in itertools.product(*map(range, window)):
        corners = [at * step for at, step in zip(place, dilation, strict=True)]
        ends = [corner + count * stride for corner, count, stride in zip(corners, counts, strides, strict=True)]
        yield place, padded[tuple(map(slice, corners, ends, strides))]


# Convolutions.


def _permutations(dimension_numbers: Any, rank: int) -> tuple[list[int], list[int], list[int]]:
    """The dimensions of `lhs`, `rhs` and the result in the order batch (or output features), features, space."""
    if dimension_numbers is None:
        return list(range(rank)), list(range(rank)), list(range(rank))
    lhs, rhs, out = dimension_numbers
    space = [letter for letter in rhs if letter not in "OI"]
    return (
        [lhs.index(letter) for letter in ("N", "C", *space)],
        [rhs.index(letter) for letter in ("O", "I", *space)],
        [out.index(letter) for letter in ("N", "C", *space)],
    )


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sizes,
    padding: Any,
    lhs_dilation: Sizes | None = None,
    rhs_dilation: Sizes | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    *,
    preferred_element_type: Any = None,
) -> Any:
    """`jax.lax.conv_general_dilated`: strides and dilations follow the kernel's order of spatial dimensions.

    With feature groups, block i of the input features gives block i of the output features; with batch groups, block i
    of the batch does.
    """
    lhs, rhs = preferred(common(lhs, rhs), preferred_element_type)
    lhs_order, rhs_order, out_order = _permutations(dimension_numbers, lhs.ndim)
    lhs, rhs = lhs.transpose(lhs_order), rhs.transpose(rhs_order)
    batch, features, *space = lhs.shape
    outputs, _, *window = rhs.shape
    strides = tuple(window_strides)
    lhs_dilation, rhs_dilation = lhs_dilation or (1,) * len(space), rhs_dilation or (1,) * len(space)
    pads = padded_by(padding, space, [_stretched(*size) for size in zip(window, rhs_dilation, strict=True)], strides)
    # [group, batch, features, space], [group, output features, features, window]
    groups = max(feature_group_count, batch_group_count)
    if batch_group_count > 1:
        lhs = lhs.reshape(groups, batch // groups, features, *space)
    else:
        lhs = np.moveaxis(lhs.reshape(batch, groups, features // groups, *space), 1, 0)
    rhs = rhs.reshape(groups, outputs // groups, *rhs.shape[1:])
    ones = (1, 1, 1)
    padded = _padded(lhs, [(0, 0)] * 3 + list(pads), (*ones, *lhs_dilation), 0)
    total: Any = 0
    with np.errstate(all="ignore"):
        for place, met in _met(padded, (*ones, *window), (*ones, *strides), (*ones, *rhs_dilation)):
            kernel = rhs[(..., *place[3:])]
            columns = met.reshape(*met.shape[:3], -1)
            total = total + np.matmul(kernel[:, None], columns).reshape(*met.shape[:2], kernel.shape[1], *met.shape[3:])
    # [batch, group, output features, space]
    result = np.moveaxis(total, 0, 1).reshape(total.shape[1], outputs, *total.shape[3:])
    return result.transpose(np.argsort(out_order))


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sizes,
    padding: Any,
    rhs_dilation: Sizes | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    *,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:
    """`jax.lax.conv_transpose`: the strides dilate the operand; by default, features are last in operand and kernel."""
    lhs, rhs = array(lhs), array(rhs)
    space = "HWD"[: lhs.ndim - 2]
    dimension_numbers = dimension_numbers or (f"N{space}C", f"{space}IO", f"N{space}C")
    _, order, _ = _permutations(dimension_numbers, rhs.ndim)
    window = [rhs.shape[dimension] for dimension in order[2:]]
    rhs_dilation = rhs_dilation or (1,) * len(window)
    if isinstance(padding, str) or use_consistent_padding:
        pads = [padding] * len(window) if isinstance(padding, str) else padding
        reach = [_stretched(*pair) for pair in zip(window, rhs_dilation, strict=True)]
        padding = [_transposed_pads(*args) for args in zip(reach, strides, pads, strict=True)]
    if transpose_kernel:
        rhs = np.flip(rhs, tuple(order[2:])).swapaxes(order[0], order[1])
    return conv_general_dilated(
        lhs,
        rhs,
        (1,) * len(window),
        padding,
        strides,
        rhs_dilation,
        dimension_numbers,
        preferred_element_type=preferred_element_type,
    )


def _transposed_pads(window: int, stride: int, padding: Any) -> tuple[int, int]:
    """The padding of the dilated operand, given the padding of the convolution that is transposed."""
    if not isinstance(padding, str):
        low, high = padding
        return window - 1 - low, window - 1 - high
    if padding == "SAME":
        total = window + stride - 2
        low = window - 1 if stride > window - 1 else math.ceil(total / 2)
    else:
        total = window + stride - 2 + max(window - stride, 0)
        low = window - 1
    return low, total - low


# Reductions.


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: str,
    window_dimensions: Sizes,
    window_strides: Sizes | None = None,
    padding: Any = "VALID",
    base_dilation: Sizes | None = None,
    window_dilation: Sizes | None = None,
) -> Any:
    """`jax.lax.reduce_window`: `init_value` counts once in each window; padding and holes do not count."""
    operand = array(operand)
    combine, identity = COMPUTATIONS[computation]
    ones = (1,) * operand.ndim
    strides, base, dilation = window_strides or ones, base_dilation or ones, window_dilation or ones
    reach = [_stretched(*size) for size in zip(window_dimensions, dilation, strict=True)]
    padded = _padded(operand, padded_by(padding, operand.shape, reach, strides), base, identity(operand.dtype))
    total: Any = np.asarray(init_value).astype(operand.dtype)
    with np.errstate(all="ignore"):
        for _, met in _met(padded, window_dimensions, strides, dilation):
            total = combine(total, met)
    return total


COMPUTATIONS: dict[str, tuple[Callable[..., Any], Callable[[np.dtype[Any]], Any]]] = {
    "add": (np.add, lambda dtype: 0),
    "mul": (np.multiply, lambda dtype: 1),
    "max": (ieee_maximum, lowest),
    "min": (ieee_minimum, highest),
}
"""For each computation, its ufunc and its identity."""


Arrays = list[Any]


def associative_scan(fn: Any, elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """`jax.lax.associative_scan`, combining the same pairs as JAX; `fn` is a name or a function of two like `elems`."""
    several = is_sequence(elems)
    combine: Callable[..., Any] = promoted(COMPUTATIONS[fn][0]) if isinstance(fn, str) else fn
    arrays: Arrays = [array(operand) for operand in (elems if several else [elems])]
    axis %= arrays[0].ndim

    def both(left: Arrays, right: Arrays) -> Arrays:
        if not several:
            return [combine(left[0], right[0])]
        return list(combine(type(elems)(left), type(elems)(right)))

    def part(of: Arrays, start: int, stop: int | None, step: int = 1) -> Arrays:
        return [operand[(slice(None),) * axis + (slice(start, stop, step),)] for operand in of]

    def scan(of: Arrays) -> Arrays:
        count = of[0].shape[axis]
        if count < 2:
            return of
        odd = scan(both(part(of, 0, -1, 2), part(of, 1, None, 2)))
        even = both(part(odd, 0, -1) if count % 2 == 0 else odd, part(of, 2, None, 2))
        even = [np.concatenate(pair, axis) for pair in zip(part(of, 0, 1), even, strict=True)]
        return [_interleaved(*pair, axis) for pair in zip(even, odd, strict=True)]

    if reverse:
        arrays = [np.flip(operand, axis) for operand in arrays]
    with np.errstate(all="ignore"):
        scanned = scan(arrays)
    if reverse:
        scanned = [np.flip(result, axis) for result in scanned]
    return tuple(scanned) if several else scanned[0]


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """Interleave two arrays along an axis, beginning with `even`."""
    order = np.empty(even.shape[axis] + odd.shape[axis], np.intp)
    order[0::2] = np.arange(even.shape[axis])
    order[1::2] = even.shape[axis] + np.arange(odd.shape[axis])
    return np.take(np.concatenate([even, odd], axis), order, axis)
