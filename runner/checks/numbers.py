"""Takes the edits of a section; returns those of a number that Python computes in one line and other lines read.

`width = x.shape[-1]` leaves no equation, only literals in the lines that divide by it; it is edited in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from runner.checks.edits import Edit, Edits, EditSite
from runner.checks.oversights import OF_BLOCK
from runner.graph.language.lines import parts
from runner.graph.language.operators import COMPARISONS
from runner.graph.language.python_source import Given, reading
from runner.graph.model import literal
from runner.graph.term import Const, Term, children, mapped, operates

_OF_ALL = 2.0
"""The rank of a number of all devices in the place of that of one."""

_OTHER = 3.25
"""The rank of any other number."""


def computed(edits: Edits) -> Iterator[Edit]:
    """The edits of the numbers that lines of Python without an equation give."""
    sites = [*{site.places[0].line: site for each in edits.sites for site in (each, *each.copies)}.values()]
    traced = {(site.frame.file, site.frame.line) for site in sites if site.frame is not None}
    readers: dict[tuple[Given, float], list[EditSite]] = {}
    for site in sites:
        for given, number in _read(site, traced):
            readers.setdefault((given, number), []).append(site)
    lengths = frozenset(length for shape in edits.blocks.values() for length in shape)
    for (given, number), reading_sites in readers.items():
        for meant, rank in _meant(number, lengths, edits.counts).items():
            changed = [(site, _renumbered(site.term, number, meant)) for site in reading_sites]
            yield edits.of_terms(changed, given.frame, "number", partial(_message, given, number, meant), rank)


def _read(site: EditSite, traced: set[tuple[str, int]]) -> Iterator[tuple[Given, float]]:
    """The numbers that a site reads from statements which no equation comes from."""
    if site.frame is None:
        return
    numbers = dict.fromkeys(number for part in parts(site.term) for number in _operands(part))
    if not numbers:
        return
    read = reading(site.frame)
    bounds = {number for part in parts(site.term) if _compares(part) for number in _operands(part)}
    for given in read.given:
        if given.passes or computes(given, traced):
            continue
        for number in numbers if given.spelled is None else [given.spelled] if given.spelled in numbers else []:
            if number not in (0.0, 1.0, *read.spelled) or (number == 1.0 and number in bounds - {*read.spelled}):
                yield given, number


def _compares(part: Term) -> bool:
    return operates(part, COMPARISONS)


def computes(given: Given, traced: set[tuple[str, int]]) -> bool:
    """Whether an equation comes from a statement; `traced` has the files and lines of all equations."""
    return any((given.frame.file, line) in traced for line in range(given.frame.line, given.last + 1))


def _operands(part: Term) -> list[float]:
    """The numbers that a part computes with; those of shapes and dimensions are left out."""
    numbers = [_number(operand) for operand in part.operands] if operates(part) else []
    return [number for number in numbers if number is not None]


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
        return mapped(part, lambda operand: _other(operand, number, meant) or renumbered(operand))

    return renumbered(term)


def _other(operand: Term, number: float, meant: float) -> Const | None:
    """The number that is meant, of the same type; None for any other operand."""
    if _number(operand) != number:
        return None
    return Const(int(meant) if isinstance(literal(operand), int) and meant.is_integer() else meant)


def _message(given: Given, number: float, meant: float) -> str:
    return f"{given.frame}: {given.name} is the wrong number: with {meant:g} for {number:g} it equals the graph"
