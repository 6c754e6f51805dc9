"""Takes a section's graph and an edit of its statements; returns the graph with that edit, which shares the rest.

Equations that the edit does not change are the same objects, so that their values need not be computed again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from runner.checks.edits import Edit
from runner.experiment import graphs
from runner.experiment.lines import Node, Position, in_section, scopes
from runner.experiment.model import Experiment, Section
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import Equation, Graph, Repeat, walk
from runner.graph.source import Line
from runner.graph.term import Name, heads
from runner.graph.term import names as read_names


class Unlisted(ValueError):
    """An edit whose line reads a value that is not there yet."""


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
        self._scopes: Mapping[Position, Mapping[str, Name]] = {
            position: names for position, _, names in scopes(experiment.section(section))
        }
        self._numbers = itertools.count(1 + max(_numbers(self.graph), default=0))
        self._holding = _lines_inside(self.graph)

    def of(self, *edits: Edit) -> Graph:
        """The graph with edits of different lines. Raises `Unlisted`."""
        nodes: dict[Line, Node] = {}
        steps: dict[Line, int] = {}
        for position, statement in (changed for edit in edits for changed in edit.changed.edited):
            if isinstance(statement, Node):
                nodes[statement.line] = in_section(statement, self._scopes[position])
            else:
                steps[statement.line] = statement.counted_steps
        return self._changed(None, self.graph, nodes, steps, {})

    def gone(self, edit: Edit, results: Iterable[str]) -> Gone:
        """The equations that an edit makes pointless for these results."""
        edited = {statement.line for _, statement in edit.changed.edited}
        before, after = (_live(graph, {graph.names[name] for name in results}) for graph in (self.graph, self.of(edit)))
        gone = [
            equation
            for equation in walk(self.graph)
            if _line_of(equation) not in edited
            and any(value.number in before and value.number not in after for value in equation.results)
        ]
        rows = [OPERATIONS.get(equation.operation) for equation in gone]
        return Gone(len(gone), sum(row is not None and row.communicates for row in rows))

    def lines(self, results: Iterable[str]) -> set[Line | None]:
        """The lines on which these results depend."""
        live = _live(self.graph, {self.graph.names[name] for name in results})
        return {
            _line_of(equation)
            for equation in walk(self.graph)
            if any(value.number in live for value in equation.results)
        }

    @property
    def exchanging(self) -> set[Line | None]:
        """The lines in which devices exchange values."""
        rows = ((equation, OPERATIONS.get(equation.operation)) for equation in walk(self.graph))
        return {_line_of(equation) for equation, row in rows if row is not None and row.communicates}

    def _changed(
        self,
        repeat: Line | None,
        graph: Graph,
        nodes: Mapping[Line, Node],
        steps: Mapping[Line, int],
        around: Mapping[str, int],
    ) -> Graph:
        if self._holding[repeat].isdisjoint({*nodes, *steps}):
            return graph
        names = {**around, **graph.names, **{value.name: value.number for value in graph.inputs}}
        changed: list[Equation] = []
        for line, group in itertools.groupby(graph.equations, lambda equation: _line_of(equation)):
            lines = list(group)
            if line is not None and line in nodes:
                result, first = lines[-1].results[0].number, lines[0].results[0].number
                changed += self._read(nodes[line], names, around, result, first)
                continue
            for equation in lines:
                form = equation.form
                bodies = equation.bodies
                if isinstance(form, Repeat):
                    bodies = tuple(self._changed(form.line, body, nodes, steps, names) for body in bodies)
                    form = replace(form, steps=steps[form.line]) if form.line in steps else form
                same = form is equation.form and all(
                    new is old for new, old in zip(bodies, equation.bodies, strict=True)
                )
                changed.append(equation if same else replace(equation, form=form, bodies=bodies))
        return replace(graph, equations=tuple(changed))

    def _read(
        self, node: Node, names: Mapping[str, int], around: Mapping[str, int], result: int, first: int
    ) -> tuple[Equation, ...]:
        """The equations of an edited line; it may read what is numbered before its `first` value."""
        earlier = {name: number for name, number in around.items() if number < first}
        earlier |= {name: number for name, number in names.items() if number < first}
        # A line may have the name of the operation that it calls: `mean: mean(x)`.
        term = node.expression.term
        if any(name in names and name not in earlier for name in (*read_names(term), *heads(term))):
            raise Unlisted(f"{node.line} reads a value that no line before it gives")
        return graphs.equations(node, earlier, self._numbers, result)


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


def _line_of(equation: Equation) -> Line | None:
    """The line that an equation belongs to; None for a repeat."""
    return None if isinstance(equation.form, Repeat) else equation.source.line


def _numbers(graph: Graph) -> Iterator[int]:
    yield from (value.number for value in graph.inputs)
    for equation in walk(graph):
        yield from (value.number for value in equation.results)
        for body in equation.bodies:
            yield from (value.number for value in body.inputs)


def _lines_inside(graph: Graph) -> dict[Line | None, frozenset[Line]]:
    """The lines and repeats inside of each repeat, and inside of the section under None."""
    holding: dict[Line | None, frozenset[Line]] = {}

    def visit(graph: Graph, repeat: Line | None) -> frozenset[Line]:
        lines = set[Line]()
        for equation in graph.equations:
            if isinstance(equation.form, Repeat):
                lines.add(equation.form.line)
                (body,) = equation.bodies
                lines |= visit(body, equation.form.line)
            else:
                lines.add(equation.source.line)
        holding[repeat] = frozenset(lines)
        return holding[repeat]

    visit(graph, None)
    return holding
