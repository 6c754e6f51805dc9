"""NumPy counterpart of `jax.lax.associative_scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runner.base.untyped import is_sequence
from runner.graph.language.counterparts.promotion import array, promoted
from runner.graph.language.counterparts.windows import COMPUTATIONS

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
