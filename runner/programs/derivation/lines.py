"""Turns the lines written for one device into statements, as the rest of Shardproof reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from runner.experiment.lines import Flat, Line, Loop, Named, Node
from runner.graph.language.syntax import Expression
from runner.graph.model import Repeat
from runner.graph.term import Term, names


@dataclass(frozen=True)
class Written(Named):
    """A line `name: term`."""

    term: Term

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that the line reads."""
        return frozenset(names(self.term))


@dataclass(frozen=True)
class Repeated:
    """A repeat as written, with its initial carry, slices, body and stacked results.

    - `form`: the repeat in the graph.
    - `index`: the name of the step counter, "" for a while; `results`: the names of the results after the last step.
    """

    line: Line
    form: Repeat
    index: str
    results: tuple[str, ...]
    carry: tuple[tuple[str, Term], ...]
    over: tuple[tuple[str, Term], ...]
    stack: tuple[tuple[str, str], ...]
    body: tuple[Writing, ...]

    @property
    def name(self) -> str:
        """The prefix of its results' names."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The names of its results."""
        return frozenset(self.results)

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that it reads, including those in its body."""
        firsts = (name for _, term in (*self.carry, *self.over) for name in names(term))
        return frozenset(firsts).union(*(line.names for line in self.body))


Writing: TypeAlias = "Written | Repeated"


def statements(lines: Iterable[Writing]) -> tuple[Flat, ...]:
    """Convert lines to statements."""
    return tuple(map(_statement, lines))


def _statement(line: Writing) -> Flat:
    match line:
        case Written():
            return Node(line.line, Expression.of(line.term))
        case Repeated(form=form):
            carry = tuple((name, Expression.of(term)) for name, term in line.carry)
            over = tuple((name, Expression.of(term)) for name, term in line.over)
            # JAX need not trace a body that never runs.
            unroll, body = form.unroll or not form.counted, statements(line.body)
            going = "" if form.going is None else carry[form.going][0]
            return Loop(
                line.line, form.steps, line.index, carry, body, unroll, over, line.stack, form.checkpoint, going=going
            )
