"""The edits that put back what may be missing from a per-device program.

These are collectives, terms and scales of the graph, the device's own shard or random key, and the value that a line
should have read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property, partial
from typing import TypeGuard

from runner.base.lazy import dataclass
from runner.base.words import quoted
from runner.checks.edits.operands import is_mask, is_unary, uncast
from runner.checks.edits.section import Edit, Edits, EditSite, form, is_collective, is_reduced, is_reduction, named_by
from runner.graph.language.lines import (
    argument,
    at_index,
    axes_of,
    called,
    calls_in,
    operator,
    parts,
    place_of,
    with_argument,
)
from runner.graph.language.operations import OPERATIONS, Does, Operation, OverAxes, row_of
from runner.graph.language.operators import COMPARISONS
from runner.graph.language.printing import text
from runner.graph.language.python_source import given_as_it_is
from runner.graph.language.syntax import parse
from runner.graph.source import Frame
from runner.graph.term import (
    Apply,
    Const,
    Group,
    Name,
    Term,
    calls,
    children,
    heads,
    names,
    substituted,
    swapped,
    within,
)


def inserting(edits: Edits) -> Iterator[Edit]:
    """The edits that put something back."""
    added = _added(edits)
    unread = _Unread.of(edits)
    for site, term in edits.another_step:
        yield edits.edit(site, site.term, term, "loop", partial(_one_more, site), 2.0)
    # If one edit helps at two sites, the mistake is more likely at the site nearer the outputs.
    for site in reversed(edits.sites):
        yield from _collectives_around(edits, site)
        yield from _exchanged_instead(edits, site)
        yield from _parts_around(edits, site, added, unread)
        yield from _residual(edits, site)
        yield from _operands_back(edits, site, added)
        yield from _of_this_device(edits, site)
        yield from _of_its_block(edits, site)
        yield from _starts_of_blocks(edits, site)
        yield from _counted_by_masks(edits, site)
        yield from _other_names(edits, site, unread)
        yield from _instead_of_numbers(edits, site, unread)


def _one_more(site: EditSite) -> str:
    """The message that a loop which is unrolled lacks its last step, or a function a call."""
    if site.frame is not None and site.frame.caller:
        return f"{site.frame.caller} calls its function once too few: with one more call it equals the graph"
    return f"{site.named}: the steps of this line are one too few: with one more after the last it equals the graph"


@dataclass(frozen=True)
class _Unread:
    """The values that nothing reads: a mistake leaves them, where it reads another value or leaves a step out.

    - `lines`: those of lines, by the path around the line; `arrays`: the arrays of the section.
    """

    lines: Mapping[tuple[str, ...], frozenset[str]]
    arrays: frozenset[str]

    @classmethod
    def of(cls, edits: Edits) -> _Unread:
        every, read = edits.every, edits.read
        lines: dict[tuple[str, ...], set[str]] = {}
        for site in every:
            if site.label not in read:
                lines.setdefault(site.path[:-1], set()).add(site.label)
        given = {name for site in every for name in site.given}
        # What a loop carries is read after it, but perhaps by none of its steps.
        named = {name for site in every for name in names(site.term)}
        carried = {name for loop in edits.loops if loop.form.region is None for name in loop.carry}
        arrays = frozenset((given - read) | (given & carried - named))
        return cls({path: frozenset(labels) for path, labels in lines.items()}, arrays)

    def at(self, site: EditSite) -> frozenset[str]:
        """Those that stand before a site."""
        around = (self.lines.get(site.path[:depth], frozenset[str]()) for depth in range(len(site.path)))
        lines = frozenset(itertools.chain.from_iterable(around))
        return frozenset(name for name in lines if name in site.before) | (self.arrays & {*site.given})


_UNLIKELIER: Mapping[Does | None, float] = {"mean": 1.0, "sum": 3.5}
"""The rank of a collective that is not the likeliest at its place; of others 5."""


def _collectives_around(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """Put a collective around the whole expression, or around a part of it that may be partial."""
    term, name = site.term, site.label
    bare = _is_value(term)
    # A carry that a loop returns unchanged was meant to be moved; a value that is reduced where it is read was meant to
    # be partial.
    unmoved = len(site.path) > 1 and term == Name(name)
    reduced_later = any(
        is_reduction(part) and part.operands[0] == Name(name) for edited in edits.sites for part in parts(edited.term)
    )
    addends = [operand for part in parts(term) if _adds(part) for operand in children(part)]
    collected = [inner for part in parts(term) if is_collective(part) for inner in _scaled(part.operands[0])]
    for part in parts(term):
        whole, line = part is term, named_by(part, site)
        is_line = line is not part
        meant = _meant(line)
        named = _is_value(part) and part.name not in edits.experiment.dims
        adds = any(part is addend for addend in addends) and isinstance(part, Apply)
        if not (whole or meant or named or adds):
            continue
        for new, collective, does, over in _wrapped(edits, part, meant, whole=whole or adds):
            if site.frame is not None and not _keeps_shape(new, does):
                continue
            if meant in ("pmax", "pmin") and does in ("sum", "mean"):
                # What a softmax is shifted by changes nothing, so that a mean would mend it by accident.
                continue
            if does in ("exchange", "permute") and (
                (isinstance(part, Name) and part.carried) or is_reduced(site, part)
            ):
                # After a ring either may put blocks into the order that the ring should have given them. Of what all
                # devices have the same, either gives a device a part as a slice should.
                continue
            article = "an" if collective[0] in "ai" else "a"
            mend = site.lacking(partial(str, f"{article} {collective} over {over}"), part, new, later=True)
            likely = (collective == meant if meant else does == "sum") or (unmoved and does == "permute")
            rank = (0.0 if likely else _UNLIKELIER.get(does, 5.0)) - (0.5 if bare else 0.0)
            rank += 0.0 if meant or bare else 1.5 if whole else 3.0
            if not whole and is_line:
                # People write `partial: A @ B` and `C: psum(partial, 'x')`, but `total: psum(sum(x), 'x')`. In Python,
                # a partial product is not a reason for a separate line.
                rank += -0.25 if called(line).contraction is not None and site.frame is None else 0.5
            again = (
                is_reduced(site, part)
                or is_collective(part)
                or _scales(part)
                or any(part is known for known in collected)
            )
            rank += 3.0 if again or (whole and reduced_later) else 0.0
            yield edits.edit(site, part, new, "collective", mend, rank)


def _scaled(term: Term) -> Iterator[Term]:
    """A part and the parts that it adds up or scales: a collective around `sum(x) / B` is also one around `sum(x)`."""
    yield term
    if _is_binary(term):
        for operand in term.operands:
            yield from _scaled(operand)


def _scales(term: Term) -> bool:
    """Whether a part is a reduction over devices times a number, as a mean is."""
    return _is_binary(term) and any(is_reduction(operand) for operand in term.operands)


def _is_value(term: Term) -> TypeGuard[Name]:
    """Whether a part is the name of an array, a line or a size; not of a result of a repeat."""
    return isinstance(term, Name) and not term.carried


@cache
def _collectives() -> list[tuple[Operation, OverAxes, Apply]]:
    """The calls of every collective."""
    return [
        (operation, operation.over, _call(f"{operation.name}(_, _, {rest})"))
        for operation in OPERATIONS.values()
        if operation.over.does
        for rest in operation.over.calls
    ]


def _call(written: str) -> Apply:
    call = parse(written).term
    assert isinstance(call, Apply)
    return call


def _wrapped(
    edits: Edits, part: Term, meant: str | None, *, whole: bool
) -> Iterator[tuple[Term, str, Does | None, str]]:
    """A part in each collective: the new term, the collective's name, what it does, and its axes."""
    for axes, (operation, over, call) in itertools.product(edits.combinations, _collectives()):
        if (operation.reduces and not (whole or meant)) or (over.does == "permute" and len(axes) > 1):
            continue
        operands = (part, axes_of(axes), *call.operands[2:])
        yield Apply(operation.name, operands, call.named), operation.name, over.does, quoted(axes)


def _keeps_shape(new: Term, does: Does | None) -> bool:
    """Whether a collective keeps the shape of its operand: in a function all shapes are as JAX has traced them."""
    if does == "exchange" and isinstance(new, Apply):
        return new.operands[2] == new.operands[3]
    return does not in ("gather", "scatter")


@dataclass(frozen=True)
class _Added:
    """A term that is added, subtracted, multiplied or divided by.

    `own`: whether the program has it, not the graph; `undone`: whether the program has the inverse of it.
    """

    left: Term
    operation: str
    right: Term
    own: bool
    undone: bool = False

    @property
    def what(self) -> str:
        return "term" if OPERATIONS[self.operation].adds else "scale"

    @cached_property
    def texts(self) -> tuple[str, str]:
        """Its sides as text."""
        return text(self.left), text(self.right)

    @cached_property
    def form(self) -> Term:
        """The form of what it is added to."""
        return form(self.left)


def _added(edits: Edits) -> list[_Added]:
    collectives: dict[str, _Added] = {}
    for own, sites in ((False, Edits(edits.reference, "graph").sites), (True, edits.sites)):
        for part in (part for site in sites for part in parts(site.term)):
            match part:
                case Apply(operation=name, operands=(left, right), spelled="operator") if inverse := OPERATIONS[
                    name
                ].inverse:
                    collectives.setdefault(text(part), _Added(left, name, right, own))
                    if own:
                        # What was taken off is to be put back.
                        undone = operator(inverse, left, right)
                        collectives.setdefault(text(undone), _Added(left, inverse, right, own, undone=True))
                case _:
                    pass
    return [*collectives.values(), *itertools.chain.from_iterable(map(_of_factor, edits.factors))]


def _of_factor(by: float) -> Iterator[_Added]:
    """What a result that is off by a factor lacks: a quotient by that, or a product with its inverse. A factor that
    people would not write, as a fraction or a root, is one by chance.
    """
    operation, number = ("divide", by) if abs(by) > 1 else ("multiply", 1 / by)
    near = Fraction(number).limit_denominator(_DENOMINATOR)
    root = Fraction(number**2).limit_denominator(1)
    if math.isclose(number, near, rel_tol=SAME):
        yield _Added(_RESULT, operation, Const(float(near)), own=False)
    elif math.isclose(number**2, root, rel_tol=SAME):
        yield _Added(_RESULT, operation, Const(math.copysign(math.sqrt(root), number)), own=False)


SAME = 1e-6
"""The largest relative difference of two factors that are the same."""

_RESULT = Name("the result")
_OF_RESULT = 2.0
"""The penalty in rank of the factor of a result: one that the reference has, or a length, is likelier."""

_DENOMINATOR = 64
"""The largest denominator of a factor that a person would write."""


def _parts_around(edits: Edits, site: EditSite, added: Sequence[_Added], unread: _Unread) -> Iterator[Edit]:
    """Terms and factors of the graph, and lines that nothing reads, put back around the line or a product."""
    term = site.term
    there = set(names(term))
    around = [part for part in parts(term) if part is term or is_reduction(part) or _meant(part) or _adds(part)]
    around += [part.operands[0] for part in around if is_reduction(part) and isinstance(part.operands[0], Name)]
    taken = [operand for part in parts(term) if is_unary(part) or _is_binary(part) for operand in _given_to(part)]
    operands: dict[tuple[str, str], tuple[_Added, Term]] = {}
    for collective in added:
        commutes = OPERATIONS[collective.operation].commutes
        for side in (collective.right, collective.left) if commutes else (collective.right,):
            # One factor of a product of the graph may be missing.
            for operand in (side, *(side.operands if _is_binary(side) else ()), *_reshaped(side)):
                operands.setdefault((collective.operation, text(operand)), (collective, operand))
    visible = {*edits.experiment.dims, *site.before, *site.given}
    for collective, operand in operands.values():
        if not visible.issuperset(heads(operand)):
            continue
        # What is taken off inside of a function is put back around it: `log(sum(exp(x - m))) + m`.
        undone = collective.undone and operand in parts(term)
        if undone and _is_binary(term):
            continue
        number = edits.section == "graph" and (isinstance(operand, Const) or _is_of_scalars(edits, operand))
        for part in (
            [*around, *(taken if number else ())]
            if (not collective.own or isinstance(operand, Name)) and not undone
            else [term]
        ):
            rank = (
                (1.0 if collective.what == "scale" else 1.2)
                + (0.0 if part is term else 0.5)
                + (1.5 if collective.own else 0.0)
            )
            if undone:
                rank = _PUT_BACK
            elif not there.isdisjoint(names(operand)) or operand in parts(term):
                rank += 2.0
            # A literal may mend the result at any line between the mistake and the output.
            if not names(operand):
                # A number may stand at any line between two; it is likeliest where the graph has it.
                rank += 1.5 if form(part) == collective.form else 3.0
                rank += _OF_RESULT * (collective.left == _RESULT)
            yield _put_back(
                edits, site, part, operator(collective.operation, part, operand), collective.what, operand, rank
            )
            if isinstance(operand, Name) and OPERATIONS[collective.operation].adds:
                # A sum along the last dimension lacks what was taken off along it.
                flat = Apply("squeeze", (operand, Const(-1)))
                new = operator(collective.operation, part, flat)
                yield _put_back(edits, site, part, new, collective.what, flat, rank + 0.25)
    yield from _addends_scaled(edits, site, added, visible)
    if site.frame is not None and _adds(term):
        # A sum is scaled as a whole where it is in parentheses.
        addends = (part for total in parts(term) if _adds(total) for part in children(total))
        scaled = [term, *filter(_is_binary, addends)]
        near = (name for name in [*site.before][-_NEAR_FACTORS:] if name not in there)
        for name, part in itertools.product(near, scaled):
            yield _put_back(edits, site, part, operator("multiply", Name(name), part), "scale", Name(name), 3.25)
    for name in unread.at(site):
        yield _put_back(edits, site, term, operator("add", Name(name), term), "term", Name(name), 0.8)
        # What is done to another value is done to this one too: `g[0] + error[0]`.
        for other in dict.fromkeys(names(term)) if not isinstance(term, Name) else ():
            beside = substituted(term, {other: Name(name)}.get)
            for operation, what, rank in (
                ("add", "term", 1.0),
                ("subtract", "term", 1.25),
                ("multiply", "scale", 1.75),
            ):
                yield _put_back(edits, site, term, operator(operation, term, beside), what, beside, rank)
        # A shape times an array would be another shape.
        for part in (each for each in parts(term) if not isinstance(each, Group)):
            for factor in (Name(name), Apply("expand_dims", (Name(name), Const(-1)))):
                yield _put_back(edits, site, part, operator("multiply", part, factor), "scale", factor, 1.5)


def _residual(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """What a layer adds its result to: the last value of another line, or from outside of the function, or given."""
    own = site.frame
    if own is None or called(site.term).contraction is None:
        return
    frames = [(name, before.frame) for name, before in reversed(site.before.items()) if before.frame is not None]
    beside = (name for name, frame in frames if frame.caller == own.caller and frame.line != own.line)
    outside = (name for name, frame in frames if frame.caller != own.caller)
    # The layer before, where a layer is one line.
    same = (name for name, before in reversed(site.before.items()) if before.frame == own)
    layers = (name for name in same if form(site.before[name].term) == form(site.term))
    # An argument of the function, rather than one of many leaves of a tree.
    given = [name for name in site.given if "/" not in site.source.name(name)][-_NEAR_FACTORS:]
    nearest = (itertools.islice(beside, 1), itertools.islice(outside, 1), itertools.islice(layers, 2))
    for name in dict.fromkeys((*itertools.chain(*nearest), *given)):
        new = operator("add", Name(name), site.term)
        mend = site.lacking(partial(_the_term, site, Name(name)), site.term, new, later=True)
        yield edits.edit(site, site.term, new, "residual", mend, _RESIDUAL)


_RESIDUAL = 1.5
"""The rank of what a layer adds its result to."""

_PUT_BACK = 0.8
"""The rank of what is taken off inside of a function, and put back around it."""


def _is_of_scalars(edits: Edits, term: Term) -> bool:
    """Whether a term is computed of scalars that the section is given: `1 - 0.9 ** t`."""
    return isinstance(term, Apply) and bool(names(term)) and all(edits.blocks.get(name) == () for name in names(term))


_NEAR_FACTORS = 6
"""How many lines back to look for a factor of a sum."""


def _given_to(part: Apply) -> Iterator[Term]:
    """What a function of one array takes, and the values that an operator takes."""
    return (operand for operand in part.operands if len(part.operands) == 1 or isinstance(operand, Name))


def _adds(term: Term) -> bool:
    return _is_binary(term) and OPERATIONS[term.operation].adds


def _reshaped(term: Term) -> tuple[Term, ...]:
    """The value of which a part is the same values in another shape: `top` of `top[:, None]`."""
    inner = children(term)[:1] if called(term).moves == "shape" else ()
    return tuple(value for value in inner if isinstance(value, Name))


def _addends_scaled(edits: Edits, site: EditSite, added: Sequence[_Added], visible: set[str]) -> Iterator[Edit]:
    """A factor that other lines have, put back at one of the terms of a sum: `total * fix + new`."""
    sums = [part for part in parts(site.term) if _adds(part) or calls(part, ("sum", "mean"))]
    if not sums:
        return
    products = [scaled for scaled in added if scaled.operation == "multiply"]
    factors = (
        side
        for scaled in products
        for operand in (scaled.left, scaled.right)
        for side in (operand, *_reshaped(operand))
    )
    names = {factor.name: factor for factor in factors if isinstance(factor, Name) and factor.name in visible}
    numbers = {text(scaled.left): scaled.left for scaled in products if isinstance(scaled.left, Const)}
    written = {part for total in sums if _adds(total) for part in children(total)}
    for addend in dict.fromkeys(term for total in sums for part in _summed(total) for term in _factors(part)):
        for factor in names.values():
            if factor != addend:
                new = operator("multiply", addend, factor)
                yield _put_back(edits, site, addend, new, "scale", factor, 2.5)
        for number in numbers.values() if isinstance(addend, Name) and addend in written else ():
            yield _put_back(edits, site, addend, operator("multiply", number, addend), "scale", number, 3.0)


def _summed(total: Term) -> tuple[Term, ...]:
    """What a sum adds up: its terms, or an array."""
    return children(total)[: None if _adds(total) else 1]


def _factors(addend: Term) -> Iterator[Term]:
    """The values that are multiplied in a term of a sum: `b` and `u` of `b * u[:, None]`."""
    if isinstance(addend, Name):
        yield addend
    elif isinstance(addend, Apply) and addend.operation == "multiply":
        for operand in addend.operands:
            yield from _factors(operand)
    else:
        yield from _reshaped(addend)


def _is_binary(term: Term) -> TypeGuard[Apply]:
    return (
        isinstance(term, Apply)
        and term.spelled == "operator"
        and len(term.operands) == 2
        and term.operation not in COMPARISONS
    )


def _operands_back(edits: Edits, site: EditSite, added: Sequence[_Added]) -> Iterator[Edit]:
    """`x - y` for a line that has only `x` or `y`; `axis_index('x') * rows` for one that has `axis_index('x')`."""
    for part in parts(site.term):
        shown = text(part)
        truth = isinstance(part, Apply) and part.operation in COMPARISONS
        for collective in () if truth or isinstance(part, Const) else added:
            if collective.undone:
                continue
            rank = 1.8 if collective.own else 0.8
            rank += 3.0 * (isinstance(collective.left, Const) or isinstance(collective.right, Const))
            if collective.texts[0] == shown:
                new = operator(collective.operation, part, collective.right)
                yield _put_back(edits, site, part, new, collective.what, collective.right, rank)
            if collective.texts[1] == shown:
                new = operator(collective.operation, collective.left, part)
                yield _put_back(edits, site, part, new, collective.what, collective.left, rank)
        if _counts_devices(named_by(part, site)):
            for operation in ("add", "subtract") if site.index is not None else ():
                index = Name(site.index or "")
                yield _put_back(edits, site, part, operator(operation, part, index), "term", index, 2.5)
            for size in _sizes(edits, site):
                # It is likelier to be missing where the index is given than where it is read.
                rank = 3.5 if isinstance(part, Name) else 2.5
                yield _put_back(edits, site, part, operator("multiply", part, size), "scale", size, rank)


def _counts_devices(term: Term) -> bool:
    """Whether a part starts with the device's index: `axis_index('x')`, `axis_index('x') + i`."""
    while _is_binary(term):
        term = term.operands[0]
    return called(term).over.does == "index"


def _sizes(edits: Edits, site: EditSite) -> list[Term]:
    """The sizes that a line can use: dims, lines that give sizes, and in Python those of blocks."""
    if site.frame is not None:
        return [Const(length) for length in sorted({n for shape in edits.blocks.values() for n in shape if n > 1})]
    return [Name(name) for name in (*edits.experiment.dims, *(n for n, b in site.before.items() if _is_size(b.term)))]


def _is_size(term: Term) -> bool:
    """Whether a line computes a size: `shape(A)[0]`, `M // axis_size('x')`."""
    kinds = {row.kind for call, row in calls_in(term) if call.spelled == "call"}
    return kinds == {"static"}


def _put_back(edits: Edits, site: EditSite, part: Term, new: Term, what: str, operand: Term, rank: float) -> Edit:
    mend = site.lacking(partial(_the_term, site, operand, what), part, new)
    return edits.edit(site, part, new, "put back" if names(operand) else "constant", mend, rank)


def _of_this_device(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """Add the device's offset to what counts from 0 on all devices, or its index to a common random key."""
    for part in parts(site.term):
        operation = called(part)
        if not isinstance(part, Apply):
            continue
        length = _length(part)
        for axes in edits.combinations if operation.makes_key or length is not None else ():
            index = Apply("axis_index", (axes_of(axes),))
            if length is not None:
                start = operator("multiply", index, length)
                new = operator("add", start, part)
                mend = site.lacking(partial(_the_term, site, start), part, new)
                yield edits.edit(site, part, new, "offset", mend, 1.0)
            if operation.makes_key:
                new = Apply("fold_in", (part, index))
                mend = site.lacking(partial(str, f"the fold_in of {text(index)} into a key"), part, new)
                yield edits.edit(site, part, new, "missing", mend, 1.0)
                if part.operation == "fold_in" and isinstance(part.operands[1], Const):
                    own = Apply("fold_in", (part.operands[0], index))
                    yield edits.edit(site, part, own, "missing", partial(_mistaken, site, part, own), 1.0)


def _the_term(site: EditSite, term: Term, what: str = "term") -> str:
    return f"the {what} {site.text(term)}"


def _of_its_block(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """Make an index in the whole array of one in a device's block, and the reverse."""
    for part in parts(site.term):
        if not _is_index(site, part):
            continue
        for axes in edits.combinations:
            index = Apply("axis_index", (axes_of(axes),))
            for length in _sizes(edits, site):
                start = operator("multiply", index, length)
                for new in (operator("add", start, part), operator("subtract", part, start)):
                    mend = site.lacking(partial(_the_term, site, start, "device's offset"), part, new)
                    yield edits.edit(site, part, new, "offset", mend, 2.75)


def _starts_of_blocks(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """The start of a block in the place of its number, where a part of an array is read or written."""
    for part in parts(site.term):
        at = place_of(part, "start_indices") if isinstance(part, Apply) else None
        if not isinstance(part, Apply) or at is None:
            continue
        starts = argument(part, at)
        if not isinstance(starts, Group):
            continue
        for number, start in enumerate(starts.items):
            for size in _sizes(edits, site) if not isinstance(start, Const) else ():
                items = (*starts.items[:number], operator("multiply", start, size), *starts.items[number + 1 :])
                new = with_argument(part, at, Group(items, starts.kind))
                mend = site.lacking(partial(_the_term, site, size, "scale"), part, new)
                yield edits.edit(site, part, new, "offset", mend, 3.0)


def _counted_by_masks(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """The number of elements that a mask keeps in the place of that of all: the mean of a masked loss."""
    for part in parts(site.term):
        if not isinstance(part, Apply) or part.operation != "divide":
            continue
        total, count = part.operands
        for name, before in reversed(site.before.items()) if isinstance(uncast(count), Const) else ():
            if is_mask(uncast(before.term)):
                kept = operator("divide", total, Apply("sum", (Name(name),)))
                yield edits.edit(site, part, kept, "value", partial(_mistaken, site, part, kept), 4.0)


def _is_index(site: EditSite, part: Term) -> bool:
    """Whether a part has positions in an array: an array of integers, or what `argmax` gives."""
    match part:
        case Name(name=name):
            return name in site.integers
        case Apply(operation="argmax" | "argmin"):
            return True
        case _:
            return False


def _length(call: Apply) -> Term | None:
    """How far a call counts from 0; None for other calls."""
    counts = called(call).counts
    place = None if counts is None else place_of(call, counts)
    # With a stop, an `arange` counts from its first argument.
    return None if place is None or (place == 0 and len(call.operands) > 1) else argument(call, place)


_NEAR = 16
"""How many lines back to look for the value that a line should have read."""


def _other_names(edits: Edits, site: EditSite, unread: _Unread) -> Iterator[Edit]:
    """Replace a name by another value: one of the preceding lines, a carry of the repeat, or an array."""
    forgotten = unread.at(site)
    before = [*(name for name in site.before if name in forgotten), *[*site.before][-_NEAR:]]
    for part in within(site.term):
        if part is not site.term and called(part).contraction is not None:
            # A softmax of logits is read, or the logits themselves.
            for near, name in enumerate(before[::-1]):
                new = Name(name)
                yield edits.edit(site, part, new, "value", partial(_mistaken, site, part, new), 4.5 + 0.03 * near)
        if not _is_value(part) or part.name in edits.experiment.dims:
            continue
        for name in dict.fromkeys((*before, *site.given)):
            shapes = (edits.blocks.get(part.name), edits.blocks.get(name))
            if name == part.name or (None not in shapes and shapes[0] != shapes[1]):
                continue
            if _masks(site, name) != _masks(site, part.name):
                continue
            new = Name(name)
            near = (*before[::-1], *site.given).index(name)
            rank = _FORGOTTEN if name in forgotten else 4.0 + 0.03 * near
            yield edits.edit(site, part, new, "value", partial(_mistaken, site, part, new), rank)
        for frame, element in _siblings(site):
            yield edits.edit(site, part, element, "value", partial(_of_several, site, part, frame, element), _SIBLING)


_SIBLING = 3.75
"""The rank of an edit by which a line reads another of several values that are given together, and nothing reads it."""

_TOGETHER = 3
"""The largest number of values that are given together of which others are tried."""


def _siblings(site: EditSite) -> list[tuple[Frame, Term]]:
    """The elements of what a line of Python gives together, as `first, second = split(key)`, that nothing reads."""
    lines = [(before.frame, before.term) for before in site.before.values()]
    taken = {line for _, line in lines if isinstance(line, Apply) and line.spelled == "index"}
    several = {
        line.operands[0]: frame
        for frame, line in lines
        if frame is not None and line in taken and isinstance(line.operands[1], Const)
    }
    elements = ((frame, at_index(of, Const(at))) for of, frame in several.items() for at in range(_TOGETHER))
    return [(frame, element) for frame, element in elements if element not in taken]


def _of_several(site: EditSite, part: Term, frame: Frame, element: Term) -> str:
    """The message that another of several values is meant."""
    assert isinstance(element, Apply)
    which = f"value {text(element.operands[1])} of {frame}"
    return f"{site.named}: {site.text(part)} is used where {which} is meant: with that it equals the graph"


def _exchanged_instead(edits: Edits, site: EditSite) -> Iterator[Edit]:
    """An exchange of blocks between devices in the place of a rearrangement on each: `all_to_all` for `x.T`."""
    for part in parts(site.term):
        if not isinstance(part, Apply) or (row_of(part.operation).moves != "order" and part.operation != "reshape"):
            continue
        for axes, (operation, over, call) in itertools.product(edits.combinations, _collectives()):
            if over.does != "exchange":
                continue
            new = Apply(operation.name, (part.operands[0], axes_of(axes), *call.operands[2:]), call.named)
            yield edits.edit(site, part, new, "collective", partial(_mistaken, site, part, new), 4.0)


_FORGOTTEN = 2.0
"""The rank of an edit by which a line reads a value that nothing reads."""


def _instead_of_numbers(edits: Edits, site: EditSite, unread: _Unread) -> Iterator[Edit]:
    """Put a value that nothing reads, or a block's start that it numbers, in the place of a number."""
    for part in within(site.term):
        if not isinstance(part, Const) or not isinstance(part.value, int | float) or isinstance(part.value, bool):
            continue
        for name in unread.at(site):
            values: list[Term] = [Name(name)]
            if isinstance(part.value, int):
                values += [operator("multiply", Name(name), size) for size in _sizes(edits, site)]
            for new in values:
                yield edits.edit(site, part, new, "value", partial(_mistaken, site, part, new), _FORGOTTEN + 0.5)


def _masks(site: EditSite, name: str) -> bool:
    """Whether the line of this name compares something."""
    return name in site.before and is_mask(site.before[name].term)


def _mistaken(site: EditSite, part: Term, new: Term) -> str:
    """The message that a value is used in the place of another."""
    meant, replaced = site.text(new), site.text(swapped(site.term, part, new))
    giving = None if site.frame is None else given_as_it_is(site.frame, site.text(part))
    more = "" if giving is None else f"; or {giving} gives it the wrong value"
    return f"{site.named}: {site.text(part)} is used where {meant} is meant: with {replaced} it equals the graph{more}"


_COMPLETING = {row.over.reduction: row.name for row in OPERATIONS.values() if row.over.reduction}
"""The collectives that reduce devices' values, by how they do it."""


def _meant(term: Term) -> str | None:
    """The collective that completes a part with a partial result."""
    return _COMPLETING.get(called(term).completion or "")
