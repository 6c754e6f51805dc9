"""The edits of a section that change, remove or duplicate a part, as people do by mistake.

A collective twice, of another kind, over another axis, in the other direction, on another dimension, before instead of
after; a loop one step short or long; another edge of a mask; another scale, term or sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.base.lazy import dataclass
from runner.base.words import quoted, varying
from runner.checks.edits.section import Edit, Edits, EditSite, is_collective, is_reduced, is_reduction, named_by
from runner.graph.language.lines import (
    argument,
    at_index,
    axes_of,
    called,
    operator,
    parts,
    place_of,
    plus,
    transposed,
    with_argument,
)
from runner.graph.language.operations import DIAGONAL, DIMENSIONS, OPERATIONS, Operation, OverAxes
from runner.graph.language.operators import COMPARISONS
from runner.graph.language.printing import text
from runner.graph.model import literal
from runner.graph.term import NOTHING, Apply, Const, Group, Name, Slice, Term, name_of

_SLICED = 3.0
"""The penalty in rank of leaving out a gather whose result is sliced."""


def changing(edits: Edits) -> Iterator[Edit]:
    """The edits that change, remove or duplicate a part."""
    for site in edits.sites:
        for term in parts(site.term):
            yield from _of_term(_Part(edits, site, term))
    for loop in edits.loops:
        # A scan takes as many steps as there are slices, a while as many as its condition says.
        for by in () if loop.over or loop.stack or loop.form.steps is None else (1, -1):
            if loop.form.counted + by >= 0:
                yield edits.stepped(loop, by)


def removing(edits: Edits) -> Iterator[Edit]:
    """The edits that leave out a collective, an update of a part, a term or a factor, without a message."""
    for site in edits.sites:
        for term in parts(site.term):
            match term:
                case Apply(operation="dynamic_update_slice", operands=(whole, *_)):
                    yield edits.edit(site, term, whole, "update", str, 0.0)
                case Apply(operands=(operand, *_), spelled="call") if is_collective(term):
                    exchanges = OPERATIONS[term.operation].over.does in ("permute", "exchange")
                    yield edits.edit(site, term, operand, "exchange" if exchanges else "collective", str, 0.0)
                case Apply(operation=name, operands=(left, right), spelled="operator") if OPERATIONS[name].inverse:
                    kind = "operand" if OPERATIONS[name].adds else "factor"
                    yield edits.edit(site, term, left, kind, str, 0.0)
                    if OPERATIONS[name].commutes:
                        yield edits.edit(site, term, right, kind, str, 0.0)
                case _:
                    continue


@dataclass(frozen=True)
class _Part:
    """A part of an expression, and its position."""

    edits: Edits
    site: EditSite
    term: Term

    @property
    def shown(self) -> str:
        return self.text(self.term)

    def text(self, term: Term) -> str:
        """The text of a part, or of its replacement, for messages."""
        return self.site.text(term)

    def edit(self, new: Term, kind: str, meaning: str, rank: float) -> Edit:
        """The section with `new` in place of the part; `meaning` is the message if this mends a program."""
        mend = f"{self.site.named}: {meaning} it equals the graph"
        return self.edits.edit(self.site, self.term, new, kind, lambda: mend, rank)


def _of_term(part: _Part) -> Iterator[Edit]:
    shown = part.shown
    match part.term:
        case Apply(operation=name, spelled="call") as call:
            operation = OPERATIONS[name]
            if operation.over.does:
                yield from _of_collective(part, call, operation, operation.over)
            yield from _exchanged(part, call, operation)
            yield from _dimensions(part, call, operation)
            yield from _before_instead(part, call)
        case Apply(operation=name, operands=(left, right), spelled="operator") if name in COMPARISONS:
            row = OPERATIONS[name]
            for edge in row.confused_with:
                new = operator(edge, left, right)
                rank = 3.5 if row.decides == "equality" else 2.25
                yield part.edit(new, "edge", f"{shown} has the wrong edge: with {part.text(new)}", rank)
            for by in (1, -1):
                new = operator(name, left, plus(right, by))
                yield part.edit(new, "edge", f"{shown} has the wrong edge: with {part.text(new)}", 4.5)
            yield from _of_device(part, name, left, right)
        case Apply(operation=name, operands=(left, right), spelled="operator"):
            yield from _of_operator(part, OPERATIONS[name], left, right)
            yield from _inside_instead(part, OPERATIONS[name], left, right)
        case Apply(operands=(x, index), spelled="index"):
            for new in _shifted_index(index):
                changed = at_index(x, new)
                yield part.edit(changed, "number", f"{shown} takes the wrong part: with {part.text(changed)}", 7)
        case Apply(operands=(x,), spelled=".T"):
            yield part.edit(x, "dimension", f"{shown} is transposed once too often: without it,", 5)
        case _:
            return


def _of_device(part: _Part, comparison: str, left: Term, right: Term) -> Iterator[Edit]:
    """A comparison of a device's index with that of another device: `axis_index('x') == 0`."""
    for side, other in ((left, right), (right, left)):
        index, number = named_by(side, part.site), literal(other) if isinstance(other, Const) else None
        if not isinstance(index, Apply) or called(index).over.does != "index":
            continue
        for device in range(part.edits.experiment.mesh.axis_size(literal(index.operands[0]))):
            # Its neighbours are edges.
            if isinstance(number, int) and abs(device - number) > 1:
                new = operator(comparison, *((left, Const(device)) if side is left else (Const(device), right)))
                yield part.edit(new, "edge", f"{part.shown} is the wrong device: with {part.text(new)}", 6)


def _of_collective(part: _Part, call: Apply, operation: Operation, over: OverAxes) -> Iterator[Edit]:
    at = place_of(call, "axis_name")
    if over.does in ("cast", "size") or at is None:
        return
    shown, name, now = part.shown, operation.name, text(argument(call, at))
    for axes in part.edits.combinations:
        new_axes = axes_of(axes)
        if text(new_axes) != now:
            instead = f"over {quoted(axes)} instead of {now}"
            yield part.edit(
                with_argument(call, at, new_axes), "axis", f"{shown} runs over the wrong axis: {instead}", 3
            )
    if not is_collective(call):
        return
    operand = call.operands[0]
    rank = 0.5 if is_reduced(part.site, operand) else 2.0
    if over.collective == "all-gather" and not part.edits.sliced.isdisjoint({part.site.label, text(call)}):
        # A slice of the block alone is the block, since its start is clamped to 0.
        rank += _SLICED
    yield part.edit(operand, "missing", _too_many(part, name, argument(call, at)), rank)
    yield part.edit(with_argument(call, 0, call), "doubled", f"{shown} is left out once: with it twice,", 9)
    if operation.reduces:
        yield from _other_reductions(part, call, operation)
        yield from _after_instead(part, call, operation, argument(call, at))
    if over.does == "permute":
        yield from _other_ways(part, call)
    frame = part.site.frame
    if over.does == "scatter" and (frame is None or name in frame.text):
        # The derivative of a gather has one too.
        count = part.edits.experiment.mesh.axis_size(literal(argument(call, at)))
        mean = operator("divide", call, Const(count))
        yield part.edit(mean, "kind", f"{shown} is a sum where a mean is meant: with {part.text(mean)}", 0.8)


def _too_many(part: _Part, name: str, axes: Term) -> str:
    """The message for a collective that should not be there."""
    of = part.edits.added_sum(part.site) if part.term is part.site.term else None
    if of is None:
        return f"{part.shown} is one {name} too many: without it,"
    over = literal(axes)
    cast = varying(of or "x", [over] if isinstance(over, str) else over)
    what = f"the cotangents of {of}, which is replicated" if of else "cotangents of a value that is replicated"
    return f"JAX adds a psum of {what} over {text(axes)}: with {cast} before the derivative,"


def _other_reductions(part: _Part, call: Apply, operation: Operation) -> Iterator[Edit]:
    summed = is_reduced(part.site, call.operands[0])
    for other_row in OPERATIONS.values():
        if other_row.reduces and other_row.name != operation.name:
            new = replace(call, operation=other_row.name)
            does = {row.over.does for row in (operation, other_row)}
            meaning = f"{part.shown} is a {operation.name} where a {other_row.name} is meant: with {other_row.name}"
            likely, means = does == {"sum", "mean"}, other_row.over.does == "mean"
            if likely and means and summed:
                # The mean of what is the same on all devices is that.
                meaning = (
                    f"{part.shown} is one {operation.name} too many, of what is the same on all devices: without it,"
                )
                yield part.edit(new, "kind", meaning, 0.6)
                continue
            yield part.edit(new, "kind", meaning, (0.8 if means else 0.7) if likely else 2.5)


def _other_ways(part: _Part, call: Apply) -> Iterator[Edit]:
    """A permutation in the other direction, or by another number of devices."""
    shown = part.shown
    for name in ("shift", "perm"):
        at = place_of(call, name)
        value = NOTHING if at is None else argument(call, at)
        if at is not None and name == "shift":
            new = with_argument(call, at, operator("negative", value))
            yield part.edit(new, "direction", f"{shown} shifts the wrong way: with the opposite shift", 3)
            for shift in range(1, max(part.edits.experiment.manual.shape)):
                if text(value) != str(shift):
                    new = with_argument(call, at, Const(shift))
                    yield part.edit(new, "direction", f"{shown} shifts by the wrong number: with shift={shift}", 6)
        if at is not None and name == "perm" and isinstance(value, Group):
            pairs = [pair for pair in value.items if isinstance(pair, Group)]
            if pairs:
                turned = Group(tuple(replace(pair, items=pair.items[::-1]) for pair in pairs))
                meaning = f"{shown} sends the wrong way: with source and destination of every pair swapped"
                yield part.edit(with_argument(call, at, turned), "direction", meaning, 3)
                for others, meaning in _other_pairs(part, call, literal(value)):
                    items = tuple(replace(pairs[0], items=(Const(a), Const(b))) for a, b in others)
                    new = with_argument(call, at, replace(value, items=items))
                    yield part.edit(new, "direction", meaning, 6)


def _other_pairs(part: _Part, call: Apply, now: Any) -> Iterator[tuple[list[tuple[int, int]], str]]:
    """The pairs of a permutation along a ring that shifts by another number, and with or without the ends joined."""
    axes = place_of(call, "axis_name")
    size = part.edits.experiment.mesh.axis_size(literal(argument(call, axes))) if axes is not None else 0
    given = {tuple(pair) for pair in now}
    for shift in range(1, size):
        ring = [(source, (source + shift) % size) for source in range(size)]
        by = shift if shift <= size // 2 else shift - size
        chain = [(source, source + by) for source in range(size) if 0 <= source + by < size]
        for pairs, ends in ((ring, "with the ends joined"), (chain, "without joining the ends")):
            if {*pairs} == given:
                continue
            among = given <= {*pairs} or {*pairs} <= given
            what = f"{part.shown} joins the ends wrongly" if among else f"{part.shown} shifts by the wrong number"
            yield pairs, f"{what}: by {by}, {ends},"


def _exchanged(part: _Part, call: Apply, operation: Operation) -> Iterator[Edit]:
    """Two arguments that are easily confused, swapped."""
    if operation.pair is None:
        return
    names = list(operation.signature.parameters)
    first, second = sorted(map(names.index, operation.pair))
    if len(call.operands) <= second:
        return
    new = with_argument(with_argument(call, first, call.operands[second]), second, call.operands[first])
    if set(operation.pair) <= set(DIMENSIONS):
        yield part.edit(new, "dimension", f"{part.shown} splits what it should concatenate: with both swapped", 4)
    elif operation.over.does:
        names_of_pair = " and ".join(operation.pair)
        yield part.edit(new, "argument", f"{names_of_pair} of {part.shown} are swapped: exchanged,", 3.25)
    else:
        yield part.edit(new, "edge", f"the branches of {part.shown} are swapped: exchanged,", 6)


def _after_instead(part: _Part, call: Apply, operation: Operation, axes: Term) -> Iterator[Edit]:
    """Exchange a reduction and the operation around it: `psum(product + bias)` counts the bias once per device."""
    name, over = operation.name, text(axes)
    match named_by(call.operands[0], part.site):
        case Apply(operation=sign, operands=(left, right), spelled="operator") if OPERATIONS[sign].adds:
            size = part.edits.experiment.mesh.axis_size(literal(axes))
            adds = operation.over.does == "sum"
            before = part.site.before.get(name_of(call.operands[0]) or "")
            elsewhere = before is not None and before.frame is not None and before.frame != part.site.frame
            where = f" (in {before.frame})" if before is not None and elsewhere else ""
            counts = f"so that it counts {size} times; " if adds else ""
            for new, outside in (
                (operator(sign, with_argument(call, 0, left), right), right),
                (operator(sign, left, with_argument(call, 0, right)), left),
            ):
                meaning = f"{part.text(outside)} is added{where} before the {name} over {over}, {counts}added after it,"
                yield part.edit(new, "order", meaning, 1.5)
        case Apply(spelled="call") as summed if _is_plain(summed):
            new = with_argument(summed, 0, with_argument(call, 0, summed.operands[0]))
            yield part.edit(
                new, "order", f"{part.text(summed)} is computed before the {name} over {over}; computed after it,", 4
            )
        case _:
            return


def _before_instead(part: _Part, call: Apply) -> Iterator[Edit]:
    """Write `tanh(psum(x))` as `psum(tanh(x))`."""
    if _is_plain(call) and is_reduction(inner := call.operands[0]):
        new = with_argument(inner, 0, with_argument(call, 0, inner.operands[0]))
        yield part.edit(new, "order", f"{part.shown} is computed after the collective; computed before it,", 4)


def _inside_instead(part: _Part, row: Operation, left: Term, right: Term) -> Iterator[Edit]:
    """psum(x) + b as psum(x + b)."""
    name = row.name
    for reduced, addend in ((left, right), (right, left)) if row.adds else ():
        if is_reduction(reduced):
            summed = reduced.operands[0]
            inside = operator(name, summed, addend) if reduced is left else operator(name, addend, summed)
            meaning = f"{part.text(addend)} is added after the {reduced.operation}; added before it,"
            yield part.edit(with_argument(reduced, 0, inside), "order", meaning, 4)


def _of_operator(part: _Part, row: Operation, left: Term, right: Term) -> Iterator[Edit]:
    shown, name, adds = part.shown, row.name, row.adds
    what = "term" if adds else "scale"
    if row.inverse is not None:
        new = operator(row.inverse, left, right)
        yield part.edit(new, "sign" if adds else what, f"{shown} should be {part.text(new)}: with that", 3)
    if adds and not row.commutes:
        new = operator(name, right, left)
        yield part.edit(new, "sign", f"{shown} should be {part.text(new)}: with that", 3.5)
    if row.inverse is not None:
        yield part.edit(left, what, f"{part.text(right)} in {shown} is one {what} too many: without it,", 3)
    if row.commutes:
        yield part.edit(right, what, f"{part.text(left)} in {shown} is one {what} too many: without it,", 3.5)
    if adds and isinstance(right, Const) and isinstance(right.value, int):
        for by in (1, -1):
            new = operator(name, left, Const(right.value + by))
            yield part.edit(new, "number", f"{shown} is off by one: with {part.text(new)}", 5)
    if row.contraction is not None:
        for new in (
            operator(name, right, left),
            operator(name, transposed(left), right),
            operator(name, left, transposed(right)),
        ):
            yield part.edit(new, "dimension", f"{shown} should be {part.text(new)}: with that", 6)


def _dimensions(part: _Part, call: Apply, operation: Operation) -> Iterator[Edit]:
    """The same call on another dimension, or on a diagonal one off."""
    shown = part.shown
    gathers = operation.over.does == "gather"
    if gathers and "axis" not in dict(call.named):
        call = replace(call, named=(*call.named, ("axis", Const(0))))
    for i, (name, now) in enumerate(zip(operation.signature.parameters, call.operands, strict=False)):
        for value in _neighbours(now, name):
            new = with_argument(call, i, Const(value))
            yield part.edit(new, "dimension", f"{shown} works on the wrong dimension: with {part.text(new)}", 5)
    for name, now in call.named:
        for value in _neighbours(now, name):
            what = "has the wrong diagonal" if name == DIAGONAL else "works on the wrong dimension"
            new = with_argument(call, name, Const(value))
            yield part.edit(new, "dimension", f"{shown} {what}: with {name}={value}", 5)


def _neighbours(value: Term, argument: str) -> list[int]:
    now = literal(value) if argument in (*DIMENSIONS, DIAGONAL) else None
    if not isinstance(now, int) or isinstance(now, bool):
        return []
    return [now + 1, now - 1] if argument == DIAGONAL else [axis for axis in (0, 1, 2, -1) if axis != now]


def _shifted_index(index: Term) -> Iterator[Term]:
    """An index or slice that is one off."""
    match index:
        case Const(value=int() as number) if not isinstance(number, bool):
            yield from (Const(number + by) for by in (1, -1))
        case Slice(lower=lower, upper=upper):
            for by in (1, -1):
                if lower != NOTHING:
                    yield replace(index, lower=plus(lower, by))
                if upper != NOTHING:
                    yield replace(index, upper=plus(upper, by))
        case Group(items=items, kind="tuple"):
            for i, part in enumerate(items):
                for new in _shifted_index(part):
                    yield Group((*items[:i], new, *items[i + 1 :]))
        case Name() | Apply(operands=(_, _), spelled="operator"):
            yield from (plus(index, by) for by in (1, -1))
        case _:
            return


def _is_plain(call: Apply) -> bool:
    """Whether a call has a single array as its only argument: `tanh(x)`."""
    return not is_collective(call) and len(call.operands) == 1
