"""An operation where it stands, and its arguments as they lie, in; what its rule sees of it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.derivation.calls import UNKNOWN, Argument, Call, Kind, NotStatic
from runner.derivation.scopes import Names
from runner.derivation.statics import Statics
from runner.derivation.terms import arguments, items
from runner.derivation.values import Value
from runner.experiment.model import Node, Statement
from runner.graph.term import NOTHING, Apply, Group, Lambda, Name, Slice, Term, children, within
from runner.language.notation import Labels
from runner.language.operations import OPERATIONS


def leaves(statics: Statics, term: Apply) -> Iterator[tuple[str, Term]]:
    """The arguments that arrays enter, by their places; of tuples, lists and slices, each part."""

    def inside(place: str, part: Term) -> Iterator[tuple[str, Term]]:
        if statics.term(part) is not None:
            return
        if isinstance(part, Group | Slice):
            for i, child in enumerate(children(part)):
                yield from inside(f"{place}[{i}]", child)
        else:
            yield place, part

    for place, part in arguments(term):
        yield from inside(place, part)


def _kind(term: Term) -> Kind:
    match term:
        case Group(kind=kind):
            return kind
        case Slice():
            return "slice"
        case _:
            return ""


def call_of(names: Names, term: Apply, values: Mapping[str, Value], *, free: bool, alone: bool) -> Call:
    """The call, as a rule sees it; `values` are the arguments that arrays enter, by their places.

    `free`: whether nothing says how its result has to lie; `alone`: whether the first of several is all that is read.
    """
    statics = names.statics

    def argument(place: str, part: Term) -> Argument:
        static, kind, value = statics.term(part) is not None, _kind(part), values.get(place)
        parts = tuple(argument(f"{place}[{i}]", each) for i, each in enumerate(children(part))) if kind else None
        if static or kind == "slice":
            return Argument(place, None, static, _known(statics, part, parts), parts, kind)
        if value is None:
            return Argument(place, parts=parts, kind=kind)
        typed = None if value.shape is None else names.type_of(part)
        return Argument(place, typed, below=value.below, halo=value.halo)

    found: dict[str, Argument] = {}
    for place, part in arguments(term):
        if place.startswith("*"):
            several = place[: place.index("[")]
            before = found.get(several[1:], Argument(several, parts=()))
            found[several[1:]] = replace(before, parts=(*(before.parts or ()), argument(place, part)))
        else:
            found[place] = argument(place, part)
    name = OPERATIONS[term.operation].key if term.operation in OPERATIONS else term.operation
    call = Call(name, found, names.type_of(term), names.elements_of(term), alone)
    return replace(call, labels=_labels(call), trimmed=_trimmed(names, term, call) if free else frozenset())


def _known(statics: Statics, term: Term, parts: tuple[Argument, ...] | None) -> Any:
    """What stands for no array: its value, where it is known; a function is its term."""
    if isinstance(term, Lambda):
        return term
    if isinstance(term, Slice):
        values = [part.value for part in parts or ()]
        return UNKNOWN if any(value is UNKNOWN for value in values) else slice(*values)
    try:
        return statics.value(term)
    except NotStatic:
        return UNKNOWN


def _labels(call: Call) -> Labels | None:
    """The labels of a contraction, which its row has."""
    row = OPERATIONS.get(call.name)
    if row is None or row.contraction is None:
        return None
    flat = [part for each in call.arguments.values() for part in ((each,) if each.parts is None else each.parts)]
    operands = [each.value if each.typed is None else each.typed for each in flat]
    return None if any(each is UNKNOWN for each in operands) else row.contraction(operands)


def _trimmed(names: Names, term: Term, call: Call) -> frozenset[int]:
    """The dimensions of which all that reads a line takes as much as its operand has."""
    first = next(iter(call.arguments.values()), None)
    if first is None or first.typed is None or call.typed is None:
        return frozenset()
    shape, longer = first.typed.shape, call.typed.shape
    if len(shape) != len(longer) or shape == longer or (reading := names.readers(term)) is None or not reading[1]:
        return frozenset()
    name, readers = reading
    return frozenset(
        d
        for d, (size, more) in enumerate(zip(shape, longer, strict=True))
        if more > size and all(_trims(names, path, reader, name, d, shape) for path, reader in readers)
    )


def _trims(names: Names, path: str, reader: Statement, name: str, d: int, shape: tuple[int, ...]) -> bool:
    """Whether a line reads an array only in slices that count from its edges, as long as `shape` along a dimension."""
    if not isinstance(reader, Node):
        return False
    array, slices, reads = Name(name), list[Apply](), 0
    for part in within(reader.expression.term):
        reads += part == array
        if isinstance(part, Apply) and part.spelled == "index" and part.operands[0] == array:
            slices.append(part)
    if len(slices) != reads:
        return False
    for part in slices:
        typed, taken = names.type_at(path, part), items(part.operands[1])
        if typed is None or len(typed.shape) != len(shape) or not all(isinstance(item, Slice) for item in taken):
            return False
        if typed.shape[d] != shape[d] or d >= len(taken) or not _from_edges(names.statics, taken[d]):
            return False
    return True


def _from_edges(statics: Statics, item: Term) -> bool:
    """Whether a slice counts from the edges: `1:-1`, `:-2`, `2:`; so it says the same of a block."""
    assert isinstance(item, Slice)
    try:
        lower = 0 if item.lower == NOTHING else statics.value(item.lower)
        upper = -1 if item.upper == NOTHING else statics.value(item.upper)
    except NotStatic:
        return False
    return item.step == NOTHING and isinstance(lower, int) and lower >= 0 and isinstance(upper, int) and upper < 0
