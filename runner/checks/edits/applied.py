"""Takes a section's graph and edits of its lines; returns the graph with these edits, which shares the rest.

Equations that the edit does not change are the same objects, so that their values need not be computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from runner.base.lazy import dataclass
from runner.checks.edits.section import Edit, is_collective
from runner.experiment.changing import ChangingGraph, single_line
from runner.experiment.model import Experiment, Section
from runner.graph.language.operations import row_of
from runner.graph.model import Graph, walk
from runner.graph.source import Line
from runner.graph.term import Term, mapped


@dataclass(frozen=True)
class Gone:
    """The equations, besides those of edited lines, on which no result depends any more; `collectives` among them."""

    equations: int
    collectives: int

    @property
    def penalty(self) -> float:
        """The penalty in rank of an edit that makes them pointless: the less changes, the likelier is an edit."""
        return 0.02 * self.equations + self.collectives


class ChangedGraphs:
    """The graphs of one section with edits."""

    def __init__(self, experiment: Experiment, section: Section) -> None:
        self.graph = experiment.computed(section)
        self._changing = ChangingGraph(self.graph)

    def of(self, *edits: Edit) -> Graph:
        """The graph with edits of different lines. Raises `Unlisted`."""
        changes = [edit.changed for edit in edits]
        terms = {edited.line: edited.in_section for change in changes for edited in change.edited}
        return self._changing.changed(terms, {line: count for change in changes for line, count in change.steps})

    def without_inner(self, edit: Edit) -> Graph | None:
        """The graph with an edit, without the collectives that move values inside of others in its lines; None where
        there are none. Raises `Unlisted`.
        """
        terms = {edited.line: edited.in_section for edited in edit.changed.edited}
        bare = {line: _without_inner(term) for line, term in terms.items()}
        return None if bare == terms else self._changing.changed(bare)

    def gone(self, edit: Edit, results: Iterable[str]) -> Gone:
        """The equations that an edit makes pointless for these results."""
        edited = edit.changed.lines
        before, after = (_live(graph, {graph.names[name] for name in results}) for graph in (self.graph, self.of(edit)))
        gone = [
            equation
            for equation in walk(self.graph)
            if single_line(equation) not in edited
            and any(value.number in before and value.number not in after for value in equation.results)
        ]
        return Gone(len(gone), sum(row_of(equation.operation).communicates for equation in gone))

    def lines(self, results: Iterable[str]) -> set[Line | None]:
        """The lines on which these results depend."""
        live = _live(self.graph, {self.graph.names[name] for name in results})
        return {
            single_line(equation)
            for equation in walk(self.graph)
            if any(value.number in live for value in equation.results)
        }

    def arrays(self, results: Iterable[str]) -> set[str]:
        """The arrays on which these results depend."""
        live = _live(self.graph, {self.graph.names[name] for name in results})
        return {value.name for value in self.graph.inputs if value.number in live}

    @property
    def exchanging(self) -> set[Line | None]:
        """The lines in which devices exchange values."""
        return {single_line(equation) for equation in walk(self.graph) if row_of(equation.operation).communicates}


def _without_inner(term: Term, *, inside: bool = False) -> Term:
    """A term without its collectives that stand inside of others."""
    if is_collective(term):
        if inside:
            return _without_inner(term.operands[0], inside=True)
        inside = True
    return mapped(term, lambda part: _without_inner(part, inside=inside))


def _live(graph: Graph, wanted: Collection[int]) -> set[int]:
    """The values of a graph on which the `wanted` ones depend, those of bodies included."""
    live = set(wanted)
    for equation in reversed(graph.equations):
        if live.isdisjoint(value.number for value in equation.results):
            continue
        live.update(equation.reads)
        for body in equation.bodies:
            # What one step gives may be read by the next.
            live |= _live(body, body.outputs)
    return live
