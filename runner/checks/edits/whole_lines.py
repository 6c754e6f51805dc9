"""The edits of all equations that one line of Python became: another axis, and two values in each other's place.

`softmax(x, axis=-2)` is a maximum, a sum and two reshapes along that axis; `a, b = x[::2], x[1::2]` gives two values.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TypeGuard

from runner.checks.edits.section import Edit, Edits, EditSite, form, gives_several
from runner.graph.language.lines import called, operator, with_argument
from runner.graph.language.operations import CONSTANTS
from runner.graph.model import literal
from runner.graph.source import Frame, Line
from runner.graph.term import (
    Apply,
    Const,
    Name,
    Term,
    bare,
    calls,
    children,
    elements,
    mapped,
    names,
    operates,
    remade,
    substituted,
    swapped,
    within,
)

_AXES = range(4)
"""The axes that are tried."""

_LONGEST = 200
"""The largest number of parts of what a line does to a value."""

_VALUES = 4
"""The largest number of values of a line of which two are exchanged."""


def together(edits: Edits) -> Iterator[Edit]:
    """The edits of whole lines of Python."""
    lines: dict[Frame, dict[Line, EditSite]] = {}
    for site in edits.every:
        if site.frame is not None:
            lines.setdefault(site.frame, {})[site.places[0].line] = site
    for frame, sites in lines.items():
        yield from _along_another_axis(edits, frame, [*sites.values()])
        yield from _scaled(edits, frame, [*sites.values()])
        yield from _read_exchanged(edits, frame, [*sites.values()])
        if gives_several(frame):
            yield from _exchanged(edits, frame, [*sites.values()])
            called_there = [site for other, of in lines.items() if other.caller == str(frame) for site in of.values()]
            yield from _done_to_another(edits, frame, [*called_there, *sites.values()])


def _along_another_axis(edits: Edits, frame: Frame, sites: Sequence[EditSite]) -> Iterator[Edit]:
    numbers = frozenset(site.label for site in sites if not names(site.term))
    axes = {axis for site in sites for part in within(site.term) if (axis := _reduced(part)) is not None}
    for now, axis in itertools.product(axes, _AXES):
        changed, reduced, written_out = list[tuple[EditSite, Term]](), set[str](), dict[str, Term]()
        for site in sites:
            new = substituted(_turned(site.term, now, axis, numbers, reduced), written_out.get)
            if _follows(site.term, now, reduced, numbers, reshaped=False):
                reduced.add(site.label)
            if new != site.term and _follows(site.term, now, {*reduced, *written_out}, numbers, reshaped=True):
                # A line keeps its shape: one that would have another is written out where it is read.
                written_out[site.label] = new
            elif new != site.term:
                changed.append((site, new))
        if axis != now and changed:
            message = f"{frame}: it works along the wrong dimension: along {axis} instead of {now} it equals the graph"
            yield edits.of_terms(changed, frame, "dimension", partial(str, message), 4.0)


def _reduced(part: Term) -> int | None:
    """The axis that a part reduces or accumulates along; None for other parts."""
    row = called(part)
    if not calls(part) or not (row.reduction or row.scan or row.decides in ("largest", "smallest")):
        return None
    axis = literal(dict(part.named).get("axis"))
    return axis if isinstance(axis, int) and not isinstance(axis, bool) else None


def _follows(term: Term, axis: int, values: Collection[str], numbers: Collection[str], *, reshaped: bool) -> bool:
    """Whether a term computes each element of what is reduced along an axis: of a line, or of others of these values.

    `numbers` as in `_as_mean`; `reshaped`: also where a part has another shape than that.
    """
    if bare(term) in values or (calls(term) and _reduced(term) == axis):
        return True
    if called(term).moves == "shape" and not reshaped:
        return False
    known = {None, *CONSTANTS, *numbers}
    operands = [part for part in children(term) if any(bare(inner) not in known for inner in within(part))]
    return bool(operands) and all(_follows(part, axis, values, numbers, reshaped=reshaped) for part in operands)


def _turned(term: Term, now: int, axis: int, numbers: Collection[str], reduced: Collection[str]) -> Term:
    """A term along another axis: what keeps a reduced dimension keeps it there.

    `numbers` as in `_as_mean`; `reduced`: the values of the same line that lack the dimension.
    """

    def turned(part: Term) -> Term:
        new = mapped(_as_mean(part, now, numbers), turned)
        if calls(new) and _reduced(new) == now:
            return with_argument(new, "axis", Const(axis))
        if calls(new, ("reshape", "broadcast_to")) and _reduces(part, now, reduced):
            sizes = elements(new.operands[1]) or ()
            keeps = max(now, axis) < len(sizes) and sizes[now] == Const(1)
            return Apply("expand_dims", (new.operands[0], Const(axis))) if keeps else new
        if not operates(new):
            return new
        return remade(
            new,
            tuple(
                Apply("expand_dims", (operand, Const(axis))) if _reduced(old) == now else operand
                for old, operand in zip(children(part), new.operands, strict=True)
            ),
        )

    return turned(term)


def _as_mean(part: Term, axis: int, numbers: Collection[str]) -> Term:
    """The mean along an axis for a sum along it that is divided by a number, or by one of these names of numbers, which
    is the axis's length.
    """
    if not operates(part, ("divide",)):
        return part
    if bare(part.operands[1]) not in numbers and not isinstance(literal(part.operands[1]), int | float):
        return part
    inner = total = part.operands[0]
    while called(inner).moves == "shape":
        inner = children(inner)[0]
    if not calls(inner, ("sum",)) or _reduced(inner) != axis:
        return part
    return swapped(total, inner, Apply("mean", inner.operands, inner.named))


def _reduces(part: Term, now: int, reduced: Collection[str]) -> bool:
    return any(_reduced(inner) == now or bare(inner) in reduced for inner in within(part))


def _scaled(edits: Edits, frame: Frame, sites: Sequence[EditSite]) -> Iterator[Edit]:
    """The mean for the sum over devices of a line, and the reverse, with what differentiation makes of it."""
    every = [called(part).over.does for site in sites for part in within(site.term)]
    does = [kind for kind in every if kind in ("sum", "mean")]
    here = {site.label for site in sites}
    inside, outside = (
        {name for site in edits.sites if (site.label in here) is own for name in names(site.term)}
        for own in (True, False)
    )
    given = [site for site in sites if site.label in outside or site.label not in inside]
    counts = [*itertools.product(edits.counts if does else (), _OTHER_SUMS)]
    if any(calls(part, ("sum",)) for site in sites for part in within(site.term)):
        lengths = sorted({length for shape in edits.blocks.values() for length in shape if length > 1})
        counts += [(length, _SUM_ALONG) for length in lengths]
    for count, (operation, what, rank) in counts if len(given) >= _SEVERAL else ():
        changed = [(site, operator(operation, site.term, Const(float(count)))) for site in given]
        message = f"{frame}: {what}: with that, and so its derivative, it equals the graph"
        yield edits.of_terms(changed, frame, "kind", partial(str, message), rank)
    for count in {part.operands[1] for site in sites for part in within(site.term) if _is_mean(part)}:
        changed = [(site, new) for site in sites if (new := _undivided(site.term, count)) != site.term]
        if len(changed) >= _SEVERAL:
            message = (
                f"{frame}: it takes a mean where a sum is meant: with that, and so its derivative, it equals the graph"
            )
            yield edits.of_terms(changed, frame, "kind", partial(str, message), _SUM_ALONG[-1])


def _is_mean(part: Term) -> TypeGuard[Apply]:
    """Whether a part is a sum along dimensions divided by their length."""
    if not operates(part, ("divide",)) or not calls(part.operands[0], ("sum",)):
        return False
    return isinstance(literal(part.operands[1]), int | float)


def _undivided(term: Term, count: Term) -> Term:
    """A term without its quotients by a number."""
    new = mapped(term, lambda part: _undivided(part, count))
    return new.operands[0] if operates(new, ("divide",)) and new.operands[1] == count else new


_SEVERAL = 2
"""The fewest values that a line gives of which some are of its derivative."""

_OTHER_SUMS = (
    ("divide", "it sums over devices where a mean is meant", 1.0),
    ("multiply", "it takes a mean over devices where a sum is meant", 1.0),
)

_SUM_ALONG = ("divide", "it sums where a mean is meant", 3.0)


def _read_exchanged(edits: Edits, frame: Frame, sites: Sequence[EditSite]) -> Iterator[Edit]:
    """Two values that several operations of a line read, each in the other's place."""
    own = {site.label for site in sites}
    read = dict.fromkeys(name for site in sites for name in names(site.term) if name not in own)
    for first, second in itertools.combinations([*read][:_VALUES], 2):
        shapes = {edits.blocks.get(name) for name in (first, second)} - {None}
        if len(shapes) <= 1 and not {first, second} & CONSTANTS.keys():
            turned = {first: Name(second), second: Name(first)}
            changed = [(site, new) for site in sites if (new := substituted(site.term, turned.get)) != site.term]
            if len(changed) > 1:
                message = f"{frame} reads two values in each other's place: exchanged, it equals the graph"
                yield edits.of_terms(changed, frame, "exchange", partial(str, message), 3.75)
            for value, meant in turned.items():
                only = [
                    (site, new) for site in sites if (new := substituted(site.term, {value: meant}.get)) != site.term
                ]
                if len(only) > 1 or any(names(site.term).count(value) > 1 for site, _ in only):
                    shown = [sites[0].text(each) for each in (Name(value), meant)]
                    message = f"{frame} reads {shown[0]} where {shown[1]} is meant: with that it equals the graph"
                    yield edits.of_terms(only, frame, "value", partial(str, message), 4.0)


def _done_to_another(edits: Edits, frame: Frame, sites: Sequence[EditSite]) -> Iterator[Edit]:
    """What a line does to one value, done to another that it gives too: `q, k = turn(x @ wq), x @ wk`."""
    own = {site.label: site for site in sites}

    def whole(term: Term) -> Term:
        return substituted(term, lambda name: whole(own[name].term) if name in own else None)

    readers = [site for site in edits.every if site.label not in own]
    read = {name for site in readers for name in names(site.term)}
    values = {name: whole(own[name].term) for name in own if name in read}
    for done, value in itertools.permutations([*values][:_VALUES], 2):
        made = values[done]
        inside = [*within(made)][1:]
        for part in inside if len(inside) <= _LONGEST else ():
            if form(part) == form(values[value]):
                terms = [
                    (site, substituted(site.term, {value: _replaced(made, part, Name(value))}.get))
                    for site in readers if value in names(site.term)
                ]  # fmt: skip
                shown = [sites[0].text(Name(name)) for name in (done, value)]
                message = f"{frame} does not do to {shown[1]} what it does to {shown[0]}: with that it equals the graph"
                yield edits.of_terms(terms, frame, "missing", partial(str, message), 3.0)


def _replaced(term: Term, old: Term, new: Term) -> Term:
    """A term with another in the place of each part that is equal to one."""
    return new if term == old else mapped(term, lambda part: _replaced(part, old, new))


def _exchanged(edits: Edits, frame: Frame, sites: Sequence[EditSite]) -> Iterator[Edit]:
    """Two of the values that a line gives, each in the other's place."""
    here = {site.label for site in sites}
    readers = [site for site in edits.every if site.label not in here and not here.isdisjoint(names(site.term))]
    given = {name for site in readers for name in names(site.term)}
    for first, second in itertools.combinations([site for site in sites if site.label in given][:_VALUES], 2):
        if first.path[:-1] == second.path[:-1] and first.term != second.term:
            message = f"{frame} gives two values in each other's place: exchanged, it equals the graph"
            turned = {first.label: Name(second.label), second.label: Name(first.label)}
            terms = [(site, new) for site in readers if (new := substituted(site.term, turned.get)) != site.term]
            yield edits.of_terms(terms, frame, "exchange", partial(str, message), 3.5)
