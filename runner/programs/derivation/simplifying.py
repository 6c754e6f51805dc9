"""Replaces an equation by an equivalent one for which devices send less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.graph.language.operations import OPERATIONS
from runner.graph.model import INDEX, Equation, Operand, Ref
from runner.graph.term import NOTHING, Const, Group, Slice
from runner.programs.derivation.calls import NotStatic
from runner.programs.derivation.scopes import Names
from runner.programs.derivation.sliding import pairs
from runner.programs.derivation.terms import constant, items


def simplified(names: Names, equation: Equation) -> Equation:
    """Simplify an equation.

    `concatenate([x[-1:], x[:-1]])` along a sharded dimension becomes a `roll`, and a convolution of an array padded
    with zeros one that pads.
    """
    if equation.operation == "concatenate":
        return _rolled(names, equation) or equation
    return (_of_unpadded(names, equation) or equation) if equation.operation in _CONVOLUTIONS else equation


def absorbed(names: Names, equation: Equation) -> bool:
    """Whether a line pads an array with zeros for convolutions alone, which then pad it themselves."""
    value, experiment = equation.results[0], names.experiment
    if equation.operation != "pad" or not _is_sharded(names, _argument(equation, "array")):
        return False
    known = {*experiment.results, *experiment.constraints}
    if value.name in known or equation.source.line.path in experiment.constrained:
        return False
    readers = names.readers(value.number)
    return bool(readers) and all(
        reader.operation in _CONVOLUTIONS
        and reader.reads.count(value.number) == 1
        and _of_unpadded(names, reader, alone=False) is not None
        for reader in readers
    )


_CONVOLUTIONS = "conv", "conv_general_dilated"


def _of_unpadded(names: Names, equation: Equation, *, alone: bool = True) -> Equation | None:
    """A convolution of a zero-padded array as one with padding of its own; None if it cannot be rewritten.

    It then needs only halos. `alone`: whether the padded array may have no other readers than convolutions.
    """
    source = equation.operands[0] if equation.operands else None
    pad = names.graph.producers.get(source.number) if isinstance(source, Ref) else None
    x = None if pad is None or pad.operation != "pad" or not _of_zeros(names, pad) else _argument(pad, "array")
    if pad is None or source is None or not isinstance(x, Ref) or _argument(equation, "lhs_dilation") is not None:
        return None
    if names.equation(source) is None and ((alone and not absorbed(names, pad)) or not _stays(names, x)):
        return None
    try:
        widths = pairs(names.statics.value(_argument(pad, "pad_width") or NOTHING))
        padding = names.statics.value(_argument(equation, "padding") or NOTHING)
        layout = names.statics.value(_argument(equation, "dimension_numbers") or NOTHING)
    except NotStatic:
        return None
    typed = names.type_of(source)
    if typed is None:
        return None
    rank = len(typed.shape)
    widths = widths * rank if len(widths) == 1 else widths
    left, right = (layout[0], layout[1]) if layout else ("NC" + _SPACE[: rank - 2], "OI" + _SPACE[: rank - 2])
    space = [left.index(letter) for letter in right if letter not in "OI"]
    if isinstance(padding, str):
        padding = [(0, 0)] * len(space) if padding == "VALID" else None
    if padding is None or any(low < 0 or high < 0 for low, high in widths):
        return None
    if any(widths[d] != (0, 0) for d in range(rank) if d not in space):
        return None
    together = [(int(a) + widths[d][0], int(b) + widths[d][1]) for (a, b), d in zip(padding, space, strict=True)]
    term = constant(together)
    operands = (x, *equation.operands[1:3], *((term,) if len(equation.operands) > 3 else ()))
    operands += equation.operands[4:]
    others = tuple((name, term if name == "padding" else part) for name, part in equation.named)
    return replace(equation, operands=operands, named=others)


_SPACE = "0123456789"

_ZEROS: Mapping[str, str | int] = {"mode": "constant", "constant_values": 0}


def _of_zeros(names: Names, pad: Equation) -> bool:
    """Whether the padding is with zeros."""
    given = dict(pad.named) | dict(zip(("mode", "constant_values"), pad.operands[2:], strict=False))
    try:
        mode, filling = (names.statics.value(given.get(name, Const(default))) for name, default in _ZEROS.items())
        return mode == "constant" and filling == 0
    except NotStatic:
        return False


def _stays(names: Names, operand: Ref) -> bool:
    """Whether a name is bound once, so that it has the same value wherever it is read."""
    named = names.statics.spelling.named
    return names.equation(operand) is None and list(named.values()).count(named[operand.number]) == 1


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


def _is_sharded(names: Names, x: Operand | None) -> bool:
    """Whether an array is sharded; also true for one without a name, whose layout is unknown."""
    if not isinstance(x, Ref) or names.equation(x) is not None:
        return True
    return any(names.binding(names.statics.spelling.named[x.number]).value.spec)


def _lies_along(names: Names, x: Ref, d: int) -> bool:
    """Whether a named array is sharded along a dimension."""
    spec = names.binding(names.statics.spelling.named[x.number]).value.spec
    return d < len(spec) and bool(spec[d])
