"""Makes the call that a sharding rule sees, of an operation at its place and its operands' layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.graph.language.notation import Labels
from runner.graph.language.operations import OPERATIONS, row_of
from runner.graph.model import CombiningFunction, Equation, Operand, Ref, entries, inside, kind_of
from runner.graph.term import NOTHING
from runner.programs.derivation.calls import UNKNOWN, Argument, Call, DeviceValue, NotStatic
from runner.programs.derivation.scopes import Names
from runner.programs.derivation.statics import Statics
from runner.programs.derivation.terms import arguments


def leaves(statics: Statics, equation: Equation) -> Iterator[tuple[str, Operand]]:
    """Yield the arguments that depend on arrays, each with its place; tuples, lists and slices part by part."""

    def below(place: str, part: Operand) -> Iterator[tuple[str, Operand]]:
        if statics.term(part) is not None:
            return
        if kind_of(part):
            for i, child in enumerate(inside(part)):
                yield from below(f"{place}[{i}]", child)
        else:
            yield place, part

    for place, part in arguments(equation):
        yield from below(place, part)


def call_of(names: Names, equation: Equation, values: Mapping[str, DeviceValue], *, free: bool, alone: bool) -> Call:
    """The call as its rule sees it.

    - `values`: the arguments that depend on arrays, by place.
    - `free`: whether the layout of the result is free.
    - `alone`: whether only the first of several results is read.
    """
    statics = names.statics

    def argument(place: str, part: Operand) -> Argument:
        static, kind, value = statics.term(part) is not None, kind_of(part), values.get(place)
        parts = tuple(argument(f"{place}[{i}]", item) for i, item in enumerate(inside(part))) if kind else None
        if static or kind == "slice":
            return Argument(place, None, static, _known(statics, part, parts), parts, kind)
        if value is None:
            return Argument(place, parts=parts, kind=kind)
        typed = None if value.shape is None else names.type_of(part)
        return Argument(place, typed, below=value.below, counts=value.counts, halo=value.halo)

    read: dict[str, Argument] = {}
    for place, part in arguments(equation):
        if place.startswith("*"):
            several = place[: place.index("[")]
            before = read.get(several[1:], Argument(several, parts=()))
            read[several[1:]] = replace(before, parts=(*(before.parts or ()), argument(place, part)))
        else:
            read[place] = argument(place, part)
    name = OPERATIONS[equation.operation].key if equation.operation in OPERATIONS else equation.operation
    (result,) = equation.results
    call = Call(name, read, names.type_at(result.number), names.elements_at(result.number), alone)
    trimmed = _trimmed(names, result.number, call) if free else frozenset[int]()
    slices = names.readers(result.number) if trimmed else []
    starts = frozenset(_start(statics, reader) for reader in slices)
    return replace(call, labels=_labels(call), trimmed=trimmed, starts=starts)


def _known(statics: Statics, operand: Operand, parts: tuple[Argument, ...] | None) -> Any:
    """The static value of an argument: `UNKNOWN` if it is not known, the term of a function."""
    if isinstance(operand, CombiningFunction):
        return statics.term(operand)
    if kind_of(operand) == "slice":
        values = [part.value for part in parts or ()]
        return UNKNOWN if any(value is UNKNOWN for value in values) else slice(*values)
    try:
        return statics.value(operand)
    except NotStatic:
        return UNKNOWN


def _labels(call: Call) -> Labels | None:
    """The labels of a contraction's dimensions, or None for any other operation and where an operand is unknown."""
    row = row_of(call.name)
    if row.contraction is None:
        return None
    flat = [part for each in call.arguments.values() for part in ((each,) if each.parts is None else each.parts)]
    operands = [part.value if part.typed is None else part.typed for part in flat]
    return None if any(operand is UNKNOWN for operand in operands) else row.contraction(operands)


def _trimmed(names: Names, number: int, call: Call) -> frozenset[int]:
    """The dimensions along which every reader slices the result back to the length of its first operand."""
    first = next(iter(call.arguments.values()), None)
    if first is None or first.typed is None or call.typed is None:
        return frozenset()
    shape, longer = first.typed.shape, call.typed.shape
    if len(shape) != len(longer) or shape == longer or not (readers := names.readers(number)):
        return frozenset()
    return frozenset(
        d
        for d, (size, more) in enumerate(zip(shape, longer, strict=True))
        if more > size and all(_trims(names, reader, number, d, shape) for reader in readers)
    )


def _trims(names: Names, reader: Equation, number: int, d: int, shape: tuple[int, ...]) -> bool:
    """Whether an equation slices value `number` relative to its edges, to the length of `shape` along `d`."""
    if reader.spelled != "index" or reader.reads.count(number) > 1 or not _is(reader.operands[0], number):
        return False
    typed, taken = names.type_at(reader.results[0].number), entries(reader.operands[1])
    if typed is None or len(typed.shape) != len(shape) or any(kind_of(item) != "slice" for item in taken):
        return False
    return typed.shape[d] == shape[d] and d < len(taken) and _from_edges(names.statics, taken[d])


def _start(statics: Statics, reader: Equation) -> tuple[int, ...]:
    """The start, in each dimension, of the slice that a trimming reader takes."""
    between = (inside(item)[0] for item in entries(reader.operands[1]) if kind_of(item) == "slice")
    return tuple(0 if lower == NOTHING else statics.value(lower) for lower in between)


def _is(operand: Operand, number: int) -> bool:
    return isinstance(operand, Ref) and operand.number == number


def _from_edges(statics: Statics, item: Operand) -> bool:
    """Whether a slice is relative to the edges (`1:-1`, `:-2`, `2:`), so that it applies to a block as well."""
    try:
        taken = statics.value(item)
    except NotStatic:
        return False
    lower, upper = 0 if taken.start is None else taken.start, -1 if taken.stop is None else taken.stop
    return taken.step is None and isinstance(lower, int) and lower >= 0 and isinstance(upper, int) and upper < 0
