"""Holds the lines that are written for one device, until they are data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TypeAlias

from runner.base.lazy import dataclass
from runner.experiment.traced import TracedLine, TracedLoop
from runner.graph.language.check import canonical_term
from runner.graph.model import Repeat
from runner.graph.source import Line
from runner.graph.term import Term, names


@dataclass(frozen=True)
class Written:
    """A line `name: term`."""

    line: Line
    term: Term

    @property
    def name(self) -> str:
        """The name by which later lines read it."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The name as a set, as repeats may define several."""
        return frozenset((self.name,))

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


def as_data(lines: Iterable[Writing]) -> dict[str, TracedLine]:
    """The lines by name, as data, as they would be read from a file."""
    return {line.name: canonical_term(line.term) if isinstance(line, Written) else _loop(line) for line in lines}


def _loop(line: Repeated) -> TracedLoop:
    form, body = line.form, as_data(line.body)
    carry, over = ({name: canonical_term(term) for name, term in part} for part in (line.carry, line.over))
    going = "" if form.going is None else line.carry[form.going][0]
    # JAX need not trace a body that never runs.
    unroll = form.unroll or not form.counted
    return TracedLoop(
        form.steps, body, line.index, carry, over, dict(line.stack), going, unroll=unroll,
        checkpoint=form.checkpoint,
    )  # fmt: skip
