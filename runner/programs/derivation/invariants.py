"""Hoists loop-invariant collectives out of repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from runner.experiment.traced import TracedLine, TracedLoop, TracedTerm
from runner.graph.term import Name, Term, mapped_outside, names, substituted
from runner.programs.derivation.sharing import collectives, is_collective


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
    if is_collective(term) and not any(name in changing for name in names(term)):
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
