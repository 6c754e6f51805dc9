"""Replaces an equation by an equivalent one for which devices send less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.graph.language.operations import OPERATIONS
from runner.graph.model import INDEX, Equation, Operand, Ref
from runner.graph.term import NOTHING, Const, Group, Slice
from runner.programs.derivation.calls import NotStatic
from runner.programs.derivation.scopes import Names
from runner.programs.derivation.terms import items


def simplified(names: Names, equation: Equation) -> Equation:
    """Simplify an equation: `concatenate([x[-1:], x[:-1]])` along a sharded dimension becomes a `roll`."""
    return _rolled(names, equation) or equation if equation.operation == "concatenate" else equation


def _rolled(names: Names, equation: Equation) -> Equation | None:
    """The concatenation of an array's last and first part along a sharded dimension, as a `roll`; None otherwise."""
    axis = _argument(equation, "axis") or Const(0)
    match _argument(equation, "arrays"):
        case Group(items=(Ref() as later, Ref() as former)):
            parts = [names.equation(later), names.equation(former)]
        case _:
            return None
    whole = {part.operands[0] for part in parts if part is not None and part.spelled == INDEX}
    if len(whole) != 1 or None in parts or not isinstance(axis, Const) or not isinstance(axis.value, int):
        return None
    (x,) = whole
    typed = names.type_of(x)
    if not isinstance(x, Ref) or typed is None or names.equation(x) is not None or not typed.shape:
        return None
    d = axis.value % len(typed.shape)
    size = typed.shape[d]
    ranges = [_range(names, part.operands[1], d, len(typed.shape), size) for part in parts if part is not None]
    if len(ranges) != 2 or None in ranges or not _lies_along(names, x, d):
        return None
    later_range, former_range = ranges
    assert later_range is not None
    assert former_range is not None
    if former_range != range(len(former_range)) or later_range != range(len(former_range), size):
        return None
    return replace(equation, operation="roll", operands=(x, Const(len(later_range))), named=(("axis", Const(d)),))


def _range(names: Names, index: Operand, d: int, rank: int, size: int) -> range | None:
    """The range that a subscript takes of dimension `d`; None if it restricts another dimension."""
    between = items(index)
    if len(between) > rank or d >= len(between):
        return None
    if any(item != Slice(NOTHING, NOTHING, NOTHING) for at, item in enumerate(between) if at != d):
        return None
    item = between[d]
    if not isinstance(item, Slice):
        return None
    bounds: list[Any] = []
    for part in (item.lower, item.upper, item.step):
        try:
            bounds.append(names.statics.value(part))
        except NotStatic:
            return None
    return range(size)[slice(*bounds)]


def _argument(equation: Equation, name: str) -> Operand | None:
    signature = OPERATIONS[equation.operation].signature
    return equation.argument(name, signature) if name in signature.parameters else None


def _lies_along(names: Names, x: Ref, d: int) -> bool:
    """Whether a named array is sharded along a dimension."""
    spec = names.binding(names.statics.spelling.named[x.number]).value.spec
    return d < len(spec) and bool(spec[d])
