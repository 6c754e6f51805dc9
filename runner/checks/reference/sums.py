"""Adds or multiplies in a machine's dtype, with a compiler's order and roundings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.untyped import is_tuple
from runner.checks.reference.machine import Machine, nearest

_BLOCK = 32
"""In 16 bits, a compiler sums this many terms to one, and again this many of these to one."""

_STEPS = 4096
"""With more terms than this, only the order is drawn, not each rounding."""


def reduced(
    ufunc: np.ufunc,
    value: np.ndarray,
    kind: str,
    machine: Machine,
    axis: Any = 0,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
    every_step: bool = False,
    **_: Any,
) -> np.ndarray:
    """Return a sum or a product as a compiler computes it, term by term; if it is drawn, beginning with another term.

    `every_step` says that the dtype `kind` is so narrow that the compiler rounds after every step, not only at the end.
    """
    identity = np.asarray(ufunc.identity, value.dtype)
    terms = value if where is True else dtypes.where(where, value, identity)
    axes = tuple(range(terms.ndim)) if axis is None else axis if is_tuple(axis) else (axis,)
    axes = tuple(axis % terms.ndim for axis in axes) if terms.ndim else ()
    rest = tuple(axis for axis in range(terms.ndim) if axis not in axes)
    shape = tuple(terms.shape[axis] for axis in rest)
    rows = np.transpose(terms, (*axes, *rest)).reshape(math.prod(terms.shape[axis] for axis in axes), math.prod(shape))
    if machine.seed is not None and len(rows):
        rows = np.roll(rows, 1 + machine.seed * (len(rows) // 7), axis=0)
    if every_step:
        total = _stepwise(ufunc, rows, identity, kind, machine)
    elif rows.shape[1] > 1 or not len(rows):
        # Row by row is term by term.
        total = ufunc.reduce(np.ascontiguousarray(rows), axis=0)
    else:
        total = ufunc.accumulate(rows, axis=0)[-1]
    total = total.reshape(shape)
    if initial is not None:
        total = ufunc(total, initial)
    return np.expand_dims(total, axes) if keepdims else total


def _stepwise(ufunc: np.ufunc, rows: np.ndarray, identity: np.ndarray, kind: str, machine: Machine) -> np.ndarray:
    """Add or multiply the rows with a rounding after each: in blocks in 16 bits, one after the other in 8."""
    if dtypes.dtype(kind).itemsize == 1 and len(rows) > _STEPS:
        return ufunc.accumulate(rows.astype(dtypes.dtype(kind).numpy), axis=0)[-1].astype(rows.dtype)
    while len(rows) > _BLOCK and dtypes.dtype(kind).itemsize > 1:
        missing = np.full((-len(rows) % _BLOCK, rows.shape[1]), identity)
        blocks = np.concatenate([rows, missing]).reshape(-1, _BLOCK, rows.shape[1])
        rows = _stepwise(ufunc, np.swapaxes(blocks, 0, 1).reshape(_BLOCK, -1), identity, kind, machine)
        rows = rows.reshape(len(blocks), -1)
    total = np.full(rows.shape[1:], identity)
    for row in rows:
        total = nearest(ufunc(total, row), kind, machine)
    return total


def turned(ufunc: np.ufunc, operands: list[Any], machine: Machine) -> list[Any]:
    """The operands of a product; if it is drawn, starting with another term."""
    if machine.seed is None or any(np.ndim(operand) == 0 for operand in operands):
        return operands
    first, second = operands
    along = (-1, -1 if ufunc is np.vecdot or second.ndim == 1 else -2)
    by = 1 + machine.seed * (first.shape[-1] // 7)
    return [np.roll(operand, by, axis) for operand, axis in zip(operands, along, strict=True)]


def scanned(ufunc: np.ufunc, value: np.ndarray, kind: str, machine: Machine, axis: int = 0, **_: Any) -> np.ndarray:
    """A running sum or product as JAX computes it in a narrow dtype: ⌈log₂ n⌉ rounds, each rounded."""
    total = np.moveaxis(value, axis, 0).copy()
    step = 1
    while step < len(total):
        total[step:] = nearest(ufunc(total[step:], total[:-step]), kind, machine)
        step *= 2
    return np.moveaxis(total, 0, axis)


def added_at(ufunc: np.ufunc, target: Any, places: Any, values: Any, kind: str, machine: Machine) -> None:
    """`ufunc.at` with a rounding after each update, as scattered updates have it."""
    into, places, values = np.asarray(target), np.asarray(places), np.asarray(values)
    if ufunc not in (np.add, np.multiply) or dtypes.dtype(kind).itemsize >= 4:
        ufunc.at(into, places, values)
        return
    flat = places.reshape(-1)
    values = np.broadcast_to(values, places.shape + into.shape[1:]).reshape(flat.size, *into.shape[1:])
    order = np.argsort(flat, kind="stable")
    first = np.asarray(np.searchsorted(flat[order], flat[order]), np.int64)
    turn = np.empty(flat.size, np.int64)
    turn[order] = np.arange(flat.size) - first
    for number in range(int(turn.max(initial=-1)) + 1):
        now = turn == number
        into[flat[now]] = nearest(ufunc(into[flat[now]], values[now]), kind, machine)


def by_segments(ufunc: np.ufunc, value: np.ndarray, starts: Any, kind: str, machine: Machine) -> np.ndarray:
    """`ufunc.reduceat` along the first dimension, with a rounding after each step."""
    ends = np.append(starts[1:], len(value))
    total = value[starts]
    for step in range(1, int(np.max(ends - starts, initial=1))):
        more = starts + step < ends
        total[more] = nearest(ufunc(total[more], value[(starts + step)[more]]), kind, machine)
    return total
