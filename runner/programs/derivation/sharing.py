"""Writes each repeated collective once, as a line that is read by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runner.experiment.traced import TracedLine, TracedTerm
from runner.graph.language.parts import called, parts
from runner.graph.term import Name, Term, mapped_outside, names


def shared(lines: Sequence[TracedLine], fresh: Callable[[str], str]) -> list[TracedLine]:
    """Give each collective that occurs more than once in a section a line of its own."""
    again = Counter(each for line in lines if isinstance(line, TracedTerm) for each in collectives(line.term))
    held: dict[Term, tuple[str, frozenset[str]]] = {}
    left: list[TracedLine] = []
    for line in lines:
        if isinstance(line, TracedTerm):
            left += _of_one(line, again, held, fresh)
        else:
            left.append(replace(line, body=tuple(shared(line.body, fresh))))
        gone = line.defines
        held = {
            collective: (name, read)
            for collective, (name, read) in held.items()
            if not gone & read and name not in gone
        }
        if isinstance(line, TracedTerm) and isinstance(left[-1], TracedTerm) and again[line.term] > 1:
            held.setdefault(line.term, (line.name, frozenset(names(line.term))))
    return left


def _of_one(
    line: TracedTerm, again: Counter[Term], held: dict[Term, tuple[str, frozenset[str]]], fresh: Callable[[str], str]
) -> Iterator[TracedTerm]:
    """Yield the new lines for collectives in a line that occur again, then the line itself."""
    made: list[TracedTerm] = []

    def visit(term: Term) -> Term:
        collective = is_collective(term)
        if collective and term in held:
            return Name(held[term][0])
        if collective and again[term] > 1 and term is not line.term:
            name = fresh(f"{line.name}_shared")
            made.append(TracedTerm(name, term))
            held[term] = name, frozenset(names(term))
            return Name(name)
        return mapped_outside(term, visit)

    term = visit(line.term)
    yield from made
    yield replace(line, term=term)


def is_collective(term: Term) -> bool:
    """Whether a term is a collective that communicates."""
    row = called(term)
    return row is not None and row.communicates


def collectives(term: Term) -> Iterator[Term]:
    """Yield the collectives in a term."""
    return filter(is_collective, parts(term))
