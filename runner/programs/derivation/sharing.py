"""Writes each repeated collective once, as a line that is read by name, and a short reshard where it is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.experiment.traced import TracedLine, TracedTerm
from runner.graph.language.parts import called, parts
from runner.graph.language.printing import is_within
from runner.graph.term import Name, Term, mapped_outside, names, substituted


def shared(lines: Sequence[TracedLine], fresh: Callable[[str], str]) -> list[TracedLine]:
    """Give each collective that occurs more than once in a section a line of its own."""
    again = Counter(
        collective for line in lines if isinstance(line, TracedTerm) for collective in collectives(line.term)
    )
    by_term: dict[Term, tuple[str, frozenset[str]]] = {}
    left: list[TracedLine] = []
    for line in lines:
        if isinstance(line, TracedTerm):
            left += _of_one(line, again, by_term, fresh)
        else:
            left.append(replace(line, body=tuple(shared(line.body, fresh))))
        gone = line.defines
        by_term = {
            collective: (name, read)
            for collective, (name, read) in by_term.items()
            if not gone & read and name not in gone
        }
        if isinstance(line, TracedTerm) and isinstance(left[-1], TracedTerm) and again[line.term] > 1:
            by_term.setdefault(line.term, (line.name, frozenset(names(line.term))))
    return left


def _of_one(
    line: TracedTerm, again: Counter[Term], by_term: dict[Term, tuple[str, frozenset[str]]], fresh: Callable[[str], str]
) -> Iterator[TracedTerm]:
    """Yield the new lines for collectives in a line that occur again, then the line itself."""
    made: list[TracedTerm] = []

    def visit(term: Term) -> Term:
        collective = is_collective(term)
        if collective and term in by_term:
            return Name(by_term[term][0])
        if collective and again[term] > 1 and term is not line.term:
            name = fresh(f"{line.name}_shared")
            made.append(TracedTerm(name, term))
            by_term[term] = name, frozenset(names(term))
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


_LONGEST = 96
"""The longest line, in characters, that inlining may produce."""


def inlined(lines: Sequence[TracedLine], moved: Collection[str]) -> list[TracedLine]:
    """Inline each line in `moved` (a mere reshard) into its only reader, unless that becomes too long."""
    left = list(lines)
    for name in [line.name for line in lines if isinstance(line, TracedTerm) and line.name in moved]:
        at, line = next(
            (i, other) for i, other in enumerate(left) if isinstance(other, TracedTerm) and other.name == name
        )
        readers = [i for i, other in enumerate(left) if name in other.names]
        reader = left[readers[0]] if len(readers) == 1 else None
        if not isinstance(reader, TracedTerm) or names(reader.term).count(name) > 1:
            continue
        term = substituted(reader.term, {name: line.term}.get)
        if is_within(term, _LONGEST):
            left[readers[0]] = replace(reader, term=term)
            del left[at]
    return left


def without_single(lines: Sequence[TracedLine], casts: Mapping[str, Name]) -> list[TracedLine]:
    """Leave out each cast of an array that a single line reads, once: it reads the array, which JAX casts for it."""
    left = list(lines)
    for name, array in casts.items():
        readers = [at for at, line in enumerate(left) if name in line.names]
        reader = left[readers[0]] if len(readers) == 1 else None
        if isinstance(reader, TracedTerm) and names(reader.term).count(name) == 1:
            left[readers[0]] = replace(reader, term=substituted(reader.term, {name: array}.get))
            left = [line for line in left if name not in line.defines]
    return left
