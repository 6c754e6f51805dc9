"""Counts the steps of a `while`, if constants determine them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from runner.base.lazy import dataclass
from runner.worker.versions import evaluated

Known: TypeAlias = "int | Carried | Bound | None"
"""A value that is known in a step; None if nothing is known about it."""


@dataclass(frozen=True)
class Carried:
    """The carried value at a position plus an integer."""

    place: int
    more: int = 0


@dataclass(frozen=True)
class Bound:
    """A comparison of a carried integer with a constant."""

    comparison: str
    carried: Carried
    bound: int


def steps(
    condition: Any, asked: Sequence[int | None], body: Any, read: Sequence[int | None], init: Sequence[int | None]
) -> int | None:
    """The steps of a `while` that counts up or down by a constant to a constant; None for any other.

    - `asked`, `read`: the integers among the constants of the condition and of the body, None for other values.
    - `init`: the integers among the initial carry, None for other values.
    """
    carry = [Carried(place) for place in range(len(init))]
    (going,) = _evaluated(condition, [*asked, *carry])
    following = _evaluated(body, [*read, *carry])
    if not isinstance(going, Bound):
        return None
    carried = going.carried
    first, after = init[carried.place], following[carried.place]
    if first is None or not isinstance(after, Carried) or after.place != carried.place:
        return None
    return _count(going.comparison, first + carried.more, after.more, going.bound)


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
    return evaluated(jaxpr, inputs, _results, _whole, [None] * len(jaxpr.constvars))


def _whole(literal: Any) -> Known:
    whole = jnp.issubdtype(jax.typeof(literal.val).dtype, jnp.integer)
    return int(literal.val) if whole and not jnp.shape(literal.val) else None


def _results(equation: Any, operands: list[Known]) -> Sequence[Known]:
    name = equation.primitive.name
    if name == "jit":
        return _evaluated(equation.params["jaxpr"].jaxpr, operands)
    if name in _RULES:
        return [_RULES[name](name, operands, equation.outvars[0].aval)]
    return [None] * len(equation.outvars)


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
            return Bound(name, carried, bound)
        case [int(bound), Carried() as carried]:
            return Bound(_SWAPPED[name], carried, bound)
        case _:
            return None


def _passed(_: str, operands: Sequence[Known], aval: Any) -> Known:
    whole = jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == bool
    return operands[0] if whole and not aval.shape else None


_RULES: Mapping[str, Callable[[str, Sequence[Known], Any], Known]] = {
    "add": _added, "sub": _added, "convert_element_type": _passed, "copy": _passed,
    "stop_gradient": _passed, **dict.fromkeys(_SWAPPED, _compared),
}  # fmt: skip
