"""Lines of one device as they are written, in; the statements that the rest of Shardproof reads out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from runner.experiment.lines import Flat, Line, Loop, Named, Node
from runner.graph.model import Repeat
from runner.graph.term import Term, names
from runner.language.syntax import Expression


@dataclass(frozen=True)
class Written(Named):
    """A line that is written."""

    term: Term

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that it reads."""
        return frozenset(names(self.term))


@dataclass(frozen=True)
class Repeated:
    """A repeat that is written: what it begins with, its body and what is stacked; `form` is that of the graph.

    - `index`: what counts the steps; `results`: the names of what there is after the last one.
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
        """What the names of its results begin with."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The names of what there is after the last step."""
        return frozenset(self.results)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in it, those of its body too."""
        firsts = (name for _, term in (*self.carry, *self.over) for name in names(term))
        return frozenset(firsts).union(*(line.names for line in self.body))


Writing: TypeAlias = "Written | Repeated"


def statements(lines: Iterable[Writing]) -> tuple[Flat, ...]:
    """Lines as statements."""
    return tuple(map(_statement, lines))


def _statement(line: Writing) -> Flat:
    match line:
        case Written():
            return Node(line.line, Expression.of(line.term))
        case Repeated(form=form):
            carry = tuple((name, Expression.of(term)) for name, term in line.carry)
            over = tuple((name, Expression.of(term)) for name, term in line.over)
            # Nothing traces what never runs.
            unroll, body = form.unroll or not form.steps, statements(line.body)
            return Loop(line.line, form.steps, line.index, carry, body, unroll, over, line.stack, form.checkpoint)
