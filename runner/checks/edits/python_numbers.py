"""Takes the edits of a section; returns those of what Python gives in a line without an equation, and other lines read.

`width = x.shape[-1]` leaves only literals in the lines that divide by it, `local = labels` another name of a value;
they are edited in all lines that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from runner.checks.edits.operands import OF_BLOCK
from runner.checks.edits.section import Edit, Edits, EditSite
from runner.graph.language.lines import axes_of, operator, parts
from runner.graph.language.operators import COMPARISONS
from runner.graph.language.python_source import Given, reading
from runner.graph.model import literal
from runner.graph.source import Frame
from runner.graph.term import Apply, Const, Name, Term, children, mapped, names, operates, remade, substituted

_OF_ALL = 2.0
"""The rank of a number of all devices in the place of that of one."""

_OTHER = 3.25
"""The rank of any other number."""


def computed(edits: Edits) -> Iterator[Edit]:
    """The edits of the numbers that lines of Python without an equation give."""
    traced = {(site.frame.file, site.frame.line) for site in edits.every if site.frame is not None}
    readers: dict[tuple[Given, float], list[EditSite]] = {}
    for site in edits.every:
        for given, number in _read(site, traced):
            readers.setdefault((given, number), []).append(site)
    lengths = frozenset(length for shape in edits.blocks.values() for length in shape)
    for (given, number), reading_sites in readers.items():
        for meant, rank in _meant(number, lengths, edits.counts).items():
            changed = [(site, _renumbered(site.term, number, meant)) for site in reading_sites]
            yield edits.of_terms(changed, given.frame, "number", partial(_message, given, number, meant), rank)
    yield from _passed_on(edits)


def _passed_on(edits: Edits) -> Iterator[Edit]:
    """The edits of a value that a statement gives another name, as it is: `local = labels`, `g = g`."""
    readers, of_lines = dict[Given, list[EditSite]](), dict[Frame, list[Given]]()
    for site in edits.every:
        if site.frame is not None and site.frame not in of_lines:
            of_lines[site.frame] = [given for given in reading(site.frame).given if given.passed]
        for given in of_lines[site.frame] if site.frame is not None else ():
            readers.setdefault(given, []).append(site)
    for given, sites in readers.items():
        read = dict.fromkeys(Name(name) for site in sites for name in names(site.term))
        values = [part for part in read if sites[0].text(part) in {given.name, *given.passed}]
        for value in values if len(values) == 1 and len(sites) > 1 else ():
            for meant, what, rank in _completed(edits, value, exact=value.name in sites[0].integers):
                changed = [(site, substituted(site.term, {value.name: meant}.get)) for site in sites]
                changed = [(site, term) for site, term in changed if term != site.term]
                message = partial(_message_on_value, given, sites[0], value, meant)
                yield edits.of_terms(changed, given.frame, what, message, rank)


def _completed(edits: Edits, value: Name, *, exact: bool) -> Iterator[tuple[Term, str, float]]:
    """What may be meant by a value: its sum or mean over devices, or an index in a device's block."""
    for axes in edits.combinations:
        for name in () if exact else ("psum", "pmean"):
            yield Apply(name, (value, axes_of(axes))), "collective", 1.0
        index = Apply("axis_index", (axes_of(axes),))
        for length in sorted({n for shape in edits.blocks.values() for n in shape if n > 1}) if exact else ():
            start = operator("multiply", index, Const(length))
            yield operator("subtract", value, start), "offset", 2.0
            yield operator("add", value, start), "offset", 2.0
    for count in edits.counts if not exact else ():
        yield operator("divide", value, Const(float(count))), "put back", 1.5


def _message_on_value(given: Given, site: EditSite, value: Name, meant: Term) -> str:
    return f"{given.frame} gives {site.text(value)} where {site.text(meant)} is meant: with that it equals the graph"


def _read(site: EditSite, traced: set[tuple[str, int]]) -> Iterator[tuple[Given, float]]:
    """The numbers that a site reads from statements which no equation comes from."""
    if site.frame is None:
        return
    numbers = dict.fromkeys(number for part in parts(site.term) for number in _operands(part))
    if not numbers:
        return
    read = reading(site.frame)
    # An exponent is written where it stands.
    exponents = {_number(part.operands[1]) for part in parts(site.term) if operates(part, ("power",))}
    spelled = read.spelled - exponents
    bounds = {number for part in parts(site.term) if _compares(part) for number in _operands(part)}
    for given in read.given:
        if given.passed or computes(given, traced):
            continue
        for number in numbers if given.spelled is None else [given.spelled] if given.spelled in numbers else []:
            if number not in (0.0, 1.0, *spelled) or (number == 1.0 and number in bounds - spelled):
                yield given, number


def _compares(part: Term) -> bool:
    return operates(part, COMPARISONS)


def computes(given: Given, traced: set[tuple[str, int]]) -> bool:
    """Whether an equation comes from a statement; `traced` has the files and lines of all equations."""
    return any((given.frame.file, line) in traced for line in range(given.frame.line, given.last + 1))


def _operands(part: Term) -> list[float]:
    """The numbers that a part computes with; those of shapes and dimensions are left out."""
    numbers = map(_number, _scaling(part)) if operates(part) else ()
    return [number for number in numbers if number is not None]


def _scaling(part: Apply) -> tuple[Term, ...]:
    """The operands of an operator without an exponent."""
    return part.operands[: 1 if part.operation == "power" else None]


def _number(term: Term) -> float | None:
    number = None if children(term) else literal(term)
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def _meant(number: float, lengths: frozenset[int], counts: Sequence[int]) -> Mapping[float, float]:
    """The numbers that may be meant by one, with their ranks."""
    block = number in lengths
    ranks = {number * count: OF_BLOCK if block else _OF_ALL for count in counts}
    for other in (*(number / count for count in counts), *((number + by for by in (1, -1)) if block else ())):
        ranks.setdefault(other, _OTHER)
    return ranks


def _renumbered(term: Term, number: float, meant: float) -> Term:
    """A term that computes with the number that is meant."""

    def renumbered(part: Term) -> Term:
        if not operates(part):
            return mapped(part, renumbered)
        scaling = _scaling(part)
        others = [_other(operand, number, meant) or renumbered(operand) for operand in scaling]
        return remade(part, (*others, *children(part)[len(scaling) :]))

    return renumbered(term)


def _other(operand: Term, number: float, meant: float) -> Const | None:
    """The number that is meant, of the same type; None for any other operand."""
    if _number(operand) != number:
        return None
    return Const(int(meant) if isinstance(literal(operand), int) and meant.is_integer() else meant)


def _message(given: Given, number: float, meant: float) -> str:
    return f"{given.frame}: {given.name} is the wrong number: with {meant:g} for {number:g} it equals the graph"
