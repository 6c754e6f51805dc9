"""Writes each repeated collective once: as a line that is read by name, or before the repeat whose steps need the same.

A short reshard is written where it is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from runner.experiment.traced import TracedLine, TracedLoop, TracedTerm
from runner.graph.language.lines import called, parts
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
        collective = called(term).communicates
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


def collectives(term: Term) -> Iterator[Term]:
    """Yield the collectives in a term."""
    return (part for part in parts(term) if called(part).communicates)


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


def hoisted(lines: Sequence[TracedLine], fresh: Callable[[str], str]) -> list[TracedLine]:
    """Move loop-invariant lines that communicate before their repeat, with the body's lines that they read."""
    left: list[TracedLine] = []
    for line in lines:
        if isinstance(line, TracedLoop) and line.form.counted > 1:
            inner = replace(line, body=tuple(hoisted(line.body, fresh)))
            left += _of_loop(inner, fresh)
        else:
            left.append(line)
    return left


def _of_loop(loop: TracedLoop, fresh: Callable[[str], str]) -> Iterator[TracedLine]:
    """Yield the hoisted lines, then the repeat without them."""
    body, invariant = _separated(loop, fresh)
    sending = [at for at in invariant if any(collectives(_written(body[at]).term))]
    before = {*sending, *(needed for at in sending for needed in _needed(at, invariant))}
    once = Counter(name for line in body for name in line.defines)
    called: dict[str, Name] = {}
    rest: list[TracedLine] = []
    for at, line in enumerate(body):
        if isinstance(line, TracedTerm):
            line = replace(line, term=substituted(line.term, called.get))
        if at not in before:
            rest.append(line)
            continue
        line = _written(line)
        name = fresh(f"{loop.name}_{line.name}")
        yield TracedTerm(name, line.term)
        if once[line.name] > 1 or any(isinstance(other, TracedLoop) and line.name in other.names for other in body):
            rest.append(replace(line, term=Name(name)))
        else:
            called[line.name] = Name(name)
    yield replace(loop, body=tuple(rest))


def _separated(loop: TracedLoop, fresh: Callable[[str], str]) -> tuple[list[TracedLine], dict[int, set[int]]]:
    """Split invariant collectives into lines of their own; returns the body and its invariant lines.

    The latter maps each invariant line's position to the positions of the invariant lines that it reads.
    """
    inputs = {loop.form.index, *loop.carry, *loop.over}
    kept = inputs.union(loop.form.stack.values())
    changing, last = set(inputs), dict[str, int]()
    body: list[TracedLine] = []
    invariant: dict[int, set[int]] = {}
    terms: dict[object, str] = {}

    def named(line: TracedTerm, part: Term) -> Name:
        # Equal collectives of equal values share a line.
        versions = frozenset((name, last.get(name)) for name in names(part))
        name = terms.get((part, versions))
        if name is None:
            name = terms[part, versions] = fresh(f"{line.name}_once")
            add(TracedTerm(name, part))
        return Name(name)

    def add(line: TracedTerm) -> None:
        invariant[len(body)] = {last[name] for name in line.names if name in last}
        changing.discard(line.name)
        last[line.name] = len(body)
        body.append(line)

    for line in loop.body:
        if isinstance(line, TracedTerm) and line.name not in kept and not line.names & changing:
            add(line)
            continue
        if isinstance(line, TracedTerm):
            line = replace(line, term=_apart(line.term, changing, partial(named, line)))
        changing |= line.defines
        for name in line.defines:
            last.pop(name, None)
        body.append(line)
    return body, invariant


def _apart(term: Term, changing: Collection[str], named: Callable[[Term], Name]) -> Term:
    """Replace each invariant collective in a term by a name."""
    if called(term).communicates and not any(name in changing for name in names(term)):
        return named(term)
    return mapped_outside(term, lambda part: _apart(part, changing, named))


def _needed(at: int, invariant: dict[int, set[int]]) -> Iterator[int]:
    """Yield the positions of the lines that a line depends on."""
    for position in invariant[at]:
        yield position
        yield from _needed(position, invariant)


def _written(line: TracedLine) -> TracedTerm:
    assert isinstance(line, TracedTerm)
    return line
