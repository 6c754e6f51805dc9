"""An operation where it stands, and its arguments as they lie, in; what its rule sees of it out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.derivation.calls import UNKNOWN, Argument, Call, Kind, NotStatic
from runner.derivation.scopes import Names
from runner.derivation.statics import Statics
from runner.derivation.trees import arguments, name_of
from runner.derivation.values import Value
from runner.experiment.model import Node, Statement
from runner.language.notation import Labels
from runner.language.operations import OPERATIONS


def leaves(statics: Statics, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The arguments that arrays enter, by their places; of tuples, lists and slices, each part."""

    def within(place: str, tree: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
        if tree is None or statics.tree(tree) is not None:
            return
        inner = _parts(tree)
        if inner is None:
            yield place, tree
        for i, part in enumerate(inner or ()):
            yield from within(f"{place}[{i}]", part)

    for place, tree in arguments(node):
        yield from within(place, tree)


_KINDS: dict[type[ast.expr], Kind] = {
    ast.Tuple: "tuple", ast.List: "list", ast.Slice: "slice",
}  # fmt: skip


def _parts(tree: ast.expr) -> Sequence[ast.expr | None] | None:
    match tree:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return elements
        case ast.Slice(lower=lower, upper=upper, step=step):
            return (lower, upper, step)
        case _:
            return None


def call_of(names: Names, node: ast.expr, values: Mapping[str, Value], *, free: bool, alone: bool) -> Call:
    """The call, as a rule sees it; `values` are the arguments that arrays enter, by their places.

    `free`: whether nothing says how its result has to lie; `alone`: whether the first of several is all that is read.
    """
    name, statics = name_of(node), names.statics

    def argument(place: str, tree: ast.expr | None) -> Argument:
        if tree is None:
            return Argument(place, static=True, value=None)
        static = statics.tree(tree) is not None
        inner, value = _parts(tree), values.get(place)
        parts = None if inner is None else tuple(argument(f"{place}[{i}]", part) for i, part in enumerate(inner))
        kind: Kind = _KINDS.get(type(tree), "")
        if static or kind == "slice":
            return Argument(place, None, static, _known(statics, tree, parts), parts, kind)
        if value is None:
            return Argument(place, parts=parts, kind=kind)
        typed = None if value.shape is None else names.type_of(tree)
        return Argument(place, typed, below=value.below, halo=value.halo)

    found: dict[str, Argument] = {}
    for place, tree in arguments(node):
        if place.startswith("*"):
            several = place[: place.index("[")]
            before = found.get(several[1:], Argument(several, parts=()))
            found[several[1:]] = replace(before, parts=(*(before.parts or ()), argument(place, tree)))
        else:
            found[place] = argument(place, tree)
    call = Call(name, found, names.type_of(node), names.elements_of(node), alone)
    return replace(call, labels=_labels(call), trimmed=_trimmed(names, node, call) if free else frozenset())


def _known(statics: Statics, tree: ast.expr, parts: tuple[Argument, ...] | None) -> Any:
    """What stands for no array: its value, where it is known; a function is its tree."""
    if isinstance(tree, ast.Lambda):
        return tree
    if isinstance(tree, ast.Slice):
        values = [part.value for part in parts or ()]
        return UNKNOWN if any(value is UNKNOWN for value in values) else slice(*values)
    try:
        return statics.value(tree)
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


def _trimmed(names: Names, node: ast.expr, call: Call) -> frozenset[int]:
    """The dimensions of which all that reads a line takes as much as its operand has."""
    first = next(iter(call.arguments.values()), None)
    if first is None or first.typed is None or call.typed is None:
        return frozenset()
    shape, longer = first.typed.shape, call.typed.shape
    if len(shape) != len(longer) or shape == longer or (reading := names.readers(node)) is None or not reading[1]:
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
    tree = reader.expression.tree
    slices = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript) and _is(node.value, name)]
    if len(slices) != sum(_is(node, name) for node in ast.walk(tree)):
        return False
    for node in slices:
        typed = names.type_at(path, node)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if typed is None or len(typed.shape) != len(shape) or not all(isinstance(item, ast.Slice) for item in items):
            return False
        if typed.shape[d] != shape[d] or d >= len(items) or not _from_edges(names.statics, items[d]):
            return False
    return True


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _from_edges(statics: Statics, item: ast.expr) -> bool:
    """Whether a slice counts from the edges: `1:-1`, `:-2`, `2:`; so it says the same of a block."""
    assert isinstance(item, ast.Slice)
    try:
        lower = 0 if item.lower is None else statics.value(item.lower)
        upper = -1 if item.upper is None else statics.value(item.upper)
    except NotStatic:
        return False
    return item.step is None and isinstance(lower, int) and lower >= 0 and isinstance(upper, int) and upper < 0
