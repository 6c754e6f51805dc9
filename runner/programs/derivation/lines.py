"""Holds the lines that are written for one device, until they are data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from runner.base.lazy import dataclass
from runner.experiment.traced import TracedLine, TracedLoop
from runner.graph.language.check import canonical_term
from runner.graph.model import LoopForm
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
    """A repeat as written, with its initial carry, slices and body."""

    line: Line
    form: LoopForm
    carry: Mapping[str, Term]
    over: Mapping[str, Term]
    body: tuple[Writing, ...]

    @property
    def name(self) -> str:
        """The prefix of its results' names."""
        return self.line.name

    @cached_property
    def defines(self) -> frozenset[str]:
        """The names of its results after the last step."""
        return frozenset(f"{self.name}.{name}" for name in (*self.carry, *self.form.stack))

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that it reads, including those in its body."""
        firsts = (name for term in (*self.carry.values(), *self.over.values()) for name in names(term))
        return frozenset(firsts).union(*(line.names for line in self.body))


Writing: TypeAlias = "Written | Repeated"


def as_data(lines: Iterable[Writing]) -> dict[str, TracedLine]:
    """The lines by name, as data, as they would be read from a file."""
    return {line.name: canonical_term(line.term) if isinstance(line, Written) else _loop(line) for line in lines}


def _loop(line: Repeated) -> TracedLoop:
    carry, over = ({name: canonical_term(term) for name, term in part.items()} for part in (line.carry, line.over))
    # JAX need not trace a body that never runs.
    form = replace(line.form, unroll=line.form.unroll or not line.form.counted)
    return TracedLoop(form, as_data(line.body), carry, over)
