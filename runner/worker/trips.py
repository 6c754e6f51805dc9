"""The condition and the body of a `while` in; its trip count, if constants bound it, out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from runner.worker.versions import Literal

Known: TypeAlias = "int | Carried | Bounds | None"
"""A value that is known in a step; None if nothing is known about it."""


@dataclass(frozen=True)
class Carried:
    """The carried value at a position plus an integer."""

    place: int
    more: int = 0


@dataclass(frozen=True)
class Bounds:
    """A predicate that implies comparisons of carried integers with constants.

    - `alone`: whether the comparisons imply the predicate.
    """

    comparisons: tuple[tuple[str, Carried, int], ...]
    alone: bool


@dataclass(frozen=True)
class Steps:
    """The trip count of a `while`: exact, or an upper bound."""

    count: int
    exact: bool


def steps(
    condition: Any, asked: Sequence[int | None], body: Any, read: Sequence[int | None], init: Sequence[int | None]
) -> Steps | None:
    """The steps of a `while` that counts up or down by a constant; None if constants do not bound them.

    - `asked`, `read`: the integers among the constants of the condition and of the body, None for other values.
    - `init`: the integers among the initial carry, None for other values.
    """
    carry = [Carried(place) for place in range(len(init))]
    (going,) = _evaluated(condition, [*asked, *carry])
    following = _evaluated(body, [*read, *carry])
    if not isinstance(going, Bounds):
        return None
    counts: list[int] = []
    for comparison, carried, bound in going.comparisons:
        first, after = init[carried.place], following[carried.place]
        if first is not None and isinstance(after, Carried) and after.place == carried.place:
            count = _count(comparison, first + carried.more, after.more, bound)
            counts += [] if count is None else [count]
    if not counts:
        return None
    return Steps(min(counts), exact=going.alone and len(counts) == len(going.comparisons))


def _count(comparison: str, first: int, by: int, bound: int) -> int | None:
    """How many of `first`, `first + by`, … satisfy a comparison before it first fails; None if all do."""
    if comparison in ("gt", "ge"):
        comparison, first, by, bound = {"gt": "lt", "ge": "le"}[comparison], -first, -by, -bound
    if comparison == "le":
        bound += 1
    left = bound - first
    if comparison == "ne":
        return left // by if by and left % by == 0 and left // by >= 0 else None
    if left <= 0:
        return 0
    return -(-left // by) if by > 0 else None


def _evaluated(jaxpr: Any, inputs: Sequence[Known]) -> list[Known]:
    """Evaluate the outputs of a jaxpr as far as they are known."""
    known: dict[Any, Known] = dict(zip(jaxpr.invars, inputs, strict=True))

    def value(variable: Any) -> Known:
        if isinstance(variable, Literal):
            number: Any = variable.val
            whole = jnp.issubdtype(jax.typeof(number).dtype, jnp.integer)
            return int(number) if whole and not jnp.shape(number) else None
        return known.get(variable)

    for equation in jaxpr.eqns:
        name, operands = equation.primitive.name, [value(v) for v in equation.invars]
        if name in ("jit", "pjit"):
            known.update(zip(equation.outvars, _evaluated(equation.params["jaxpr"].jaxpr, operands), strict=True))
        elif name in _RULES:
            known[equation.outvars[0]] = _RULES[name](name, operands, equation.outvars[0].aval)
    return [value(v) for v in jaxpr.outvars]


def _added(name: str, operands: Sequence[Known], _: Any) -> Known:
    sign = 1 if name == "add" else -1
    match operands:
        case [int(a), int(b)]:
            return a + sign * b
        case [Carried(place, more), int(b)]:
            return Carried(place, more + sign * b)
        case [int(a), Carried(place, more)] if sign == 1:
            return Carried(place, more + a)
        case _:
            return None


_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}


def _compared(name: str, operands: Sequence[Known], _: Any) -> Known:
    match operands:
        case [Carried() as carried, int(bound)]:
            return Bounds(((name, carried, bound),), alone=True)
        case [int(bound), Carried() as carried]:
            return Bounds(((_SWAPPED[name], carried, bound),), alone=True)
        case _:
            return None


def _both(_: str, operands: Sequence[Known], aval: Any) -> Known:
    if aval.dtype != bool:
        return None
    known = [each for each in operands if isinstance(each, Bounds)]
    comparisons = tuple(comparison for each in known for comparison in each.comparisons)
    # Of two counters the first to end ends the loop, so neither count is exact.
    return Bounds(comparisons, alone=False) if known else None


def _passed(_: str, operands: Sequence[Known], aval: Any) -> Known:
    whole = jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == bool
    return operands[0] if whole and not aval.shape else None


_RULES: Mapping[str, Callable[[str, Sequence[Known], Any], Known]] = {
    "add": _added, "sub": _added, "and": _both, "convert_element_type": _passed, "copy": _passed,
    "stop_gradient": _passed, **dict.fromkeys(_SWAPPED, _compared),
}  # fmt: skip
