"""Lines of one device as they are written, in; the statements that the rest of Shardproof reads out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from runner.experiment.model import Line, Loop, Node, Statement
from runner.graph.term import Term, names
from runner.language.syntax import Expression


@dataclass(frozen=True)
class Written:
    """A line that is written."""

    line: Line
    term: Term

    @property
    def name(self) -> str:
        """The name that it gives."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The same, as one of several."""
        return frozenset((self.name,))

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that it reads."""
        return frozenset(names(self.term))


@dataclass(frozen=True)
class Repeated:
    """A repeat that is written: what it begins with, its body and what is stacked, the rest being that of the graph.

    What never runs has no types: its body stays as it is.
    """

    line: Line
    loop: Loop
    carry: tuple[tuple[str, Term], ...]
    over: tuple[tuple[str, Term], ...]
    stack: tuple[tuple[str, str], ...]
    body: tuple[Writing, ...]

    @property
    def name(self) -> str:
        """What the names of its results begin with."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The names of what there is after the last step."""
        return self.loop.defines

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in it, those of its body too."""
        firsts = (name for _, term in (*self.carry, *self.over) for name in names(term))
        return frozenset(firsts).union(*(line.names for line in self.body))


Writing = Written | Repeated | Statement


def statements(lines: Iterable[Writing]) -> tuple[Statement, ...]:
    """Lines as statements."""
    return tuple(map(_statement, lines))


def _statement(line: Writing) -> Statement:
    match line:
        case Written():
            return Node(line.line, Expression.of(line.term))
        case Repeated(loop=loop):
            carry = tuple((name, Expression.of(term)) for name, term in line.carry)
            over = tuple((name, Expression.of(term)) for name, term in line.over)
            # Nothing traces what never runs.
            unroll, body = loop.unroll or not loop.steps, statements(line.body)
            return Loop(line.line, loop.steps, loop.index, carry, body, unroll, over, line.stack, loop.checkpoint)
        case Node() | Loop():
            return line
