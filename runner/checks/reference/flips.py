"""Finds the other results that a decision can have if rounding changes it.

The possible error of an element is the one measured for it and for elements that are not larger. Numbers that are equal
in float64 and in every draw are equal in every program, and are not moved apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.checks.reference.rounded_numpy import plain

ALTERNATIVES = 4
"""The largest number of alternatives that are kept for elements that are decided together."""

COMPARED = {
    "comparison": 2, "equality": 2, "membership": 2, "search": 2, "bin": 2, "largest": 1, "smallest": 1, "order": 1,
}  # fmt: skip
"""The number of operands up to which equal elements are compared."""

_DRAWS = 16
"""The number of times a random draw with rounded weights is drawn again."""

_ORDERS = 4
"""The number of random permutations of elements to be ordered."""


class Other(NamedTuple):
    """An alternative result of a decision: `value`, which applies `where` elements that are decided together change.

    Both have as many arrays as the result, which may be a tuple.
    """

    where: tuple[np.ndarray, ...]
    value: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class LocalDecision:
    """A decision on one device: its function and operands, and the effect of rounding on these.

    - `windows`: for each operand, how far rounding may move its elements; None if it is exact.
    - `keys`: for each operand, numbers that are equal where its elements are, in float64 and in every draw; None if not
      needed.
    """

    kind: str
    axis: int | None
    function: Callable[..., Any]
    operands: Sequence[Any]
    windows: Sequence[Any]
    keys: Sequence[Any]


def leaves(value: Any) -> tuple[Any, ...]:
    """The arrays of a result, which may be a tuple."""
    return tuple(leaf for part in value for leaf in leaves(part)) if is_sequence(value) else (value,)


def again(value: Any, parts: Iterable[Any]) -> Any:
    """The arrays `parts` in the structure of `value`."""
    parts = iter(parts)

    def build(value: Any) -> Any:
        if not is_sequence(value):
            return next(parts)
        built = [build(part) for part in value]
        return type(value)(*built) if hasattr(value, "_fields") else type(value)(built)

    return build(value)


# The possible rounding errors of elements.


def widest(pairs: Sequence[tuple[Any, Any]]) -> np.ndarray:
    """For each power of two, the largest measured rounding error of elements below it.

    `pairs` are the exact and the rounded operands of devices with distinct values.
    """
    largest = np.zeros(_POWERS)
    for exact, own in pairs:
        apart = _apart(exact, own)
        if apart.any():
            np.maximum.at(largest, _power(exact).ravel(), apart.ravel())
    return np.maximum.accumulate(largest)


def window(exact: Any, largest: np.ndarray, safety: float, unit: float) -> np.ndarray:
    """The possible error of each element: `safety` times the measured one, plus `unit` relative to the element."""
    with np.errstate(all="ignore"):
        # If any element was rounded, one without an error may have been exact by chance.
        moved = safety * largest[_power(exact)] + unit * np.abs(exact)
    return dtypes.where(np.isfinite(exact), moved, 0.0)


_POWERS = 2200
"""Powers of two of float64, subnormals too, and one place for zero."""


def _power(value: Any) -> np.ndarray:
    value = np.abs(np.asarray(value))
    known = np.isfinite(value) & (value != 0)
    return dtypes.where(known, np.frexp(dtypes.where(known, value, 1.0))[1] + 1100, 0)


def _apart(exact: Any, own: Any) -> np.ndarray:
    exact = np.asarray(exact)
    with np.errstate(all="ignore"):
        apart = np.abs(np.asarray(plain(own)).astype(exact.dtype) - exact)
    return dtypes.where(np.isfinite(apart), apart, 0.0)


def key(known: Any, value: Any) -> np.ndarray:
    """Numbers that are equal where `value` is equal and `known` was."""
    value = np.asarray(plain(value))
    if value.dtype.kind == "c":
        return key(key(known, np.real(value)), np.imag(value))
    # 0.0 and -0.0 are equal.
    bits = (value.astype(np.float64) + 0.0).view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = (np.uint64(0) if known is None else known) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray(mixed ^ (mixed >> np.uint64(29)))


# The alternatives of a decision.


def step(at: LocalDecision, result: Any) -> Any:
    """How much a float result may change without a jump, such as the remainder of a division."""
    shifts = [window for window in at.windows if window is not None]
    shape = np.shape(leaves(result)[0])
    try:
        if at.kind not in ("order", "largest", "smallest") and np.broadcast_shapes(*map(np.shape, shifts)) == shape:
            return 4 * sum(shifts)
    except ValueError:
        pass
    if at.kind == "order" and at.axis is not None and np.ndim(shifts[0]) == len(shape):
        return 4 * np.max(shifts[0], axis=at.axis, keepdims=True, initial=0.0)
    return 4 * max(float(np.max(shift, initial=0.0)) for shift in shifts)


def joined(
    alternatives: tuple[Other, ...], at: LocalDecision, result: Any, candidate: Any, steps: Sequence[Any]
) -> tuple[Other, ...]:
    """The alternatives, and `candidate` too if it is more than `steps` away from `result`.

    There is a step for each array of the result.
    """
    decided, new = leaves(result), list(leaves(candidate))
    if [np.shape(leaf) for leaf in decided] != [np.shape(leaf) for leaf in new]:
        return alternatives

    def apart(values: Sequence[Any], alternative: Sequence[Any]) -> list[np.ndarray]:
        return [_differs(*parts) for parts in zip(values, alternative, steps, strict=True)]

    jumped = apart(new, decided)
    if not any(map(np.any, jumped)):
        return alternatives
    # Elements that moved without a jump stay.
    new = [dtypes.where(*parts) for parts in zip(jumped, new, decided, strict=True)]
    left = together(at.kind, at.axis, jumped)
    for alternative in alternatives:
        another = together(at.kind, at.axis, apart(new, alternative.value))
        left = [mask & ~(where & ~a) for mask, where, a in zip(left, alternative.where, another, strict=True)]
    filled: list[Other] = []
    for alternative in alternatives:
        free = [mask & ~where for mask, where in zip(left, alternative.where, strict=True)]
        if any(map(np.any, free)):
            value = tuple(dtypes.where(*parts) for parts in zip(free, new, alternative.value, strict=True))
            alternative = Other(tuple(w | f for w, f in zip(alternative.where, free, strict=True)), value)
            left = [mask & ~f for mask, f in zip(left, free, strict=True)]
        filled.append(alternative)
    if len(filled) < ALTERNATIVES and any(map(np.any, left)):
        value = tuple(dtypes.where(*parts) for parts in zip(left, new, decided, strict=True))
        filled.append(Other(tuple(left), value))
    return tuple(filled)


def differing(result: Any, alternatives: Sequence[Other]) -> Any:
    """The elements of a result for which there are alternatives."""
    near = [np.zeros(np.shape(leaf), bool) for leaf in leaves(result)]
    for alternative in alternatives:
        near = [n | _differs(a, b, 0.0) for n, a, b in zip(near, alternative.value, leaves(result), strict=True)]
    return again(result, near)


def _differs(a: Any, b: Any, step: Any) -> np.ndarray:
    if not dtypes.is_floating(b):
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        step = step if np.ndim(step) <= np.ndim(b) else float(np.max(step, initial=0.0))
        return np.asarray((np.abs(a - b) > step) | (np.isnan(a) != np.isnan(b)))


def together(kind: str, axis: int | None, differs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All elements that are decided together with differing ones: in all parts, and in the row of an order."""
    if kind == "order":
        differs = [np.broadcast_to(np.any(d, axis=axis, keepdims=True), d.shape) for d in differs]
    if len({d.shape for d in differs}) == 1:
        return [np.logical_or.reduce(list(differs))] * len(differs)
    anywhere = any(map(np.any, differs))
    return [np.full(d.shape, anywhere) for d in differs]


def candidates(at: LocalDecision, result: Any) -> Iterator[Any]:
    """The results of the decision for operands moved by their possible errors, in both directions."""
    if at.kind == "equality":
        yield _equal(at, result)
    elif at.kind == "membership":
        yield _member(at, result)
    else:
        for operands in _MOVED.get(at.kind, _to_either_side)(at):
            candidate = at.function(*operands)
            yield _unless_same(at, result, candidate) if at.kind == "comparison" else candidate


def _unless_same(at: LocalDecision, result: Any, candidate: Any) -> Any:
    """A comparison of numbers that are equal in every draw does not change."""
    same = _same(at)

    def of(decided: Any, new: Any) -> Any:
        return dtypes.where(same if same.shape == np.shape(decided) else np.all(same), decided, new)

    return again(result, (of(*pair) for pair in zip(leaves(result), leaves(candidate), strict=True)))


def _same(at: LocalDecision) -> np.ndarray:
    """Where the two operands are the same number, whatever rounding does.

    A computed number may equal an exact one in every draw by chance: it did, if another number that equals its exact
    one was moved.
    """
    same = np.asarray(at.keys[0] == at.keys[1])
    if all(window is not None for window in at.windows[:2]):
        return same
    equal = np.asarray(at.operands[0] == at.operands[1])
    return same & (not np.any(equal & ~same))


def _off(at: LocalDecision) -> list[Any]:
    """The possible error of each operand's elements; 0 for an exact one."""
    return [0.0 if window is None else window for window in at.windows]


def _equal(at: LocalDecision, result: Any) -> Any:
    """An equality, reversed where rounding may make the numbers equal or different."""
    (a, b), (off_a, off_b) = at.operands[:2], _off(at)[:2]
    if np.ndim(result) == 0 and np.shape(a) != np.shape(b):
        # Arrays of different shapes are never equal.
        return result
    same = _same(at)
    with np.errstate(all="ignore"):
        near = np.abs(np.asarray(a) - np.asarray(b)) <= off_a + off_b
    if np.shape(near) != np.shape(result):
        near, same = np.all(near | same), np.all(same)
    return result ^ (near & ~same)


def _member(at: LocalDecision, result: Any) -> Any:
    """A membership, reversed where rounding may make numbers equal or different."""
    (element, several), (off, offs) = at.operands[:2], _off(at)[:2]
    several, keys = np.ravel(several), np.ravel(at.keys[1])
    offs = np.broadcast_to(offs, np.shape(at.operands[1])).ravel()
    same = np.any(np.asarray(at.keys[0])[..., None] == keys, axis=-1)
    with np.errstate(all="ignore"):
        apart = np.abs(np.asarray(element)[..., None] - several)
        near = np.any(apart <= np.asarray(np.broadcast_to(off, np.shape(element)))[..., None] + offs, axis=-1)
    return result ^ (near & ~same)


def _to_either_side(at: LocalDecision) -> Iterator[list[Any]]:
    """All operands moved up, then down; with several, also one up and the rest down."""
    there = [i for i, window in enumerate(at.windows) if window is not None]

    def by(signs: Sequence[float]) -> list[Any]:
        moved = list(at.operands)
        for i, sign in zip(there, signs, strict=True):
            moved[i] = moved[i] + sign * at.windows[i]
        return moved

    for sign in (1.0, -1.0):
        yield by([sign] * len(there))
        if len(there) > 1:
            yield from (by([sign if i == j else -sign for j in range(len(there))]) for i in range(len(there)))


def _sought(at: LocalDecision) -> Iterator[list[Any]]:
    """The searched elements moved by their and the entries' possible errors; those that equal an entry stay."""
    sought = 1 if at.kind == "search" else 0
    off = _off(at)
    apart = off[sought] + np.max(off[1 - sought], initial=0.0)
    apart = dtypes.where(np.isin(at.keys[sought], at.keys[1 - sought]), 0.0, apart)
    for sign in (1.0, -1.0):
        moved = list(at.operands)
        moved[sought] = moved[sought] + sign * apart
        yield moved


def _drawn(at: LocalDecision) -> Iterator[list[Any]]:
    draws = np.random.default_rng(0)
    for _ in range(_DRAWS):
        yield [
            operand if window is None else operand + draws.choice([-1.0, 1.0], np.shape(operand)) * window
            for operand, window in zip(at.operands, at.windows, strict=True)
        ]


def _in_order(at: LocalDecision) -> Iterator[list[Any]]:
    """Swap neighbours in the order: the first with the second, then the second with the third, then random ones."""
    first, off, keys = np.asarray(at.operands[0]), at.windows[0], at.keys[0]
    ranks = _ranks(first, keys, at.axis)
    signs = [dtypes.where(ranks % 2, -1.0, 1.0), dtypes.where(ranks % 2, 1.0, -1.0)]
    for seed in range(_ORDERS):
        share = key(keys, np.float64(seed + 1)) >> np.uint64(11)
        signs.append(share.astype(np.float64) * 2.0**-52 - 1.0)
    yield from ([first + sign * off, *at.operands[1:]] for sign in signs)


def _largest(at: LocalDecision, side: float = 1.0) -> Iterator[list[Any]]:
    """For each element that may be the largest, move it up and the rest down: first the likeliest one."""
    first, off = np.asarray(at.operands[0]), side * np.asarray(at.windows[0])
    shape, axis = first.shape, at.axis
    keys = at.keys[0]
    if axis is None:
        first, off, keys, axis = first.ravel(), off.ravel(), np.ravel(keys), 0
    lost = np.zeros(first.shape, bool)
    for _ in range(ALTERNATIVES + 2):
        reach = dtypes.where(lost, -side * np.inf, first + off)
        best = np.expand_dims((np.argmax if side > 0 else np.argmin)(reach, axis=axis), axis)
        wins = (keys == np.take_along_axis(keys, best, axis)) & ~lost
        yield [dtypes.where(wins, first + off, first - off).reshape(shape), *at.operands[1:]]
        lost |= wins


def _smallest(at: LocalDecision) -> Iterator[list[Any]]:
    return _largest(at, -1.0)


_MOVED: dict[str, Callable[[LocalDecision], Iterator[list[Any]]]] = {
    "largest": _largest,
    "smallest": _smallest,
    "order": _in_order,
    "draw": _drawn,
    "search": _sought,
    "bin": _sought,
}


def _ranks(x: np.ndarray, keys: np.ndarray, axis: int | None) -> np.ndarray:
    """The rank of each element in the order; elements with equal keys share one."""
    if axis is None:
        return _ranks(x.ravel(), keys.ravel(), 0).reshape(x.shape)
    order = np.lexsort((keys, x), axis=axis)
    ordered = np.take_along_axis(keys, order, axis)
    new = np.diff(ordered, axis=axis, prepend=np.take(ordered, [0], axis)) != 0
    ranks = np.empty(x.shape, np.int64)
    np.put_along_axis(ranks, order, np.cumsum(new, axis=axis), axis)
    return ranks
