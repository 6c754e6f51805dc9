"""Changes lines of a graph without calls; the rest of it stays the same objects.

So the values of equations that do not change need not be computed again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.experiment import graphs
from runner.graph.inlining import line_by_line, of_equations
from runner.graph.language.lines import every_line
from runner.graph.model import Equation, Graph, Repeat, walk
from runner.graph.source import Line
from runner.graph.term import Term, heads
from runner.graph.term import names as read_names


class Unlisted(ValueError):
    """A line that reads a value that is not there yet."""


class ChangingGraph:
    """A section's graph, of which lines are changed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._numbers = itertools.count(1 + max(_numbers(graph), default=0))
        self._holding = dict(_lines_inside(graph))

    def changed(self, terms: Mapping[Line, Term], steps: Mapping[Line, int] | None = None) -> Graph:
        """The graph with these terms of lines and numbers of steps of repeats. Raises `Unlisted`."""
        return self._changed(None, self.graph, terms, steps or {}, {})

    def _changed(
        self,
        repeat: Line | None,
        graph: Graph,
        terms: Mapping[Line, Term],
        steps: Mapping[Line, int],
        around: Mapping[str, int],
    ) -> Graph:
        if self._holding[repeat].isdisjoint({*terms, *steps}):
            return graph
        names = {**around, **graph.names, **{value.name: value.number for value in graph.inputs}}
        changed: list[Equation] = []
        for line, group in itertools.groupby(graph.equations, lambda equation: single_line(equation)):
            lines = list(group)
            if line is not None and line in terms:
                result, first = lines[-1].results[0].number, lines[0].results[0].number
                changed += self._read(line, terms[line], names, around, result, first)
                continue
            for equation in lines:
                form = equation.form
                bodies = equation.bodies
                if isinstance(form, Repeat):
                    bodies = tuple(self._changed(form.line, body, terms, steps, names) for body in bodies)
                    form = replace(form, steps=steps[form.line]) if form.line in steps else form
                same = form is equation.form and all(
                    new is old for new, old in zip(bodies, equation.bodies, strict=True)
                )
                changed.append(equation if same else replace(equation, form=form, bodies=bodies))
        return replace(graph, equations=tuple(changed))

    def _read(
        self, line: Line, term: Term, names: Mapping[str, int], around: Mapping[str, int], result: int, first: int
    ) -> tuple[Equation, ...]:
        """The equations of a changed line; it may read what is numbered before its `first` value."""
        earlier = {name: number for name, number in around.items() if number < first}
        earlier |= {name: number for name, number in names.items() if number < first}
        # A line may have the name of the operation that it calls: `mean: mean(x)`.
        if any(name in names and name not in earlier for name in (*read_names(term), *heads(term))):
            raise Unlisted(f"{line} reads a value that no line before it gives")
        return graphs.equations(line, term, earlier, self._numbers, result)


def remaining(graph: Graph, before: Graph) -> Graph:
    """The part of a changed graph from the first line that is not in `before`, which takes the earlier values."""
    pairs, at = zip(graph.equations, before.equations, strict=False), 0
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))
    for line in line_by_line(graph):
        if at + len(line) > same:
            break
        at += len(line)
    earlier = (value for equation in graph.equations[:at] for value in equation.results if value.name)
    return of_equations((*graph.inputs, *earlier), graph.equations[at:])


def single_line(equation: Equation) -> Line | None:
    """The line that an equation belongs to; None for a repeat."""
    return None if isinstance(equation.form, Repeat) else equation.source.line


def _numbers(graph: Graph) -> Iterator[int]:
    yield from (value.number for value in graph.inputs)
    for equation in walk(graph):
        yield from (value.number for value in equation.results)
        for body in equation.bodies:
            yield from (value.number for value in body.inputs)


def _lines_inside(graph: Graph, repeat: Line | None = None) -> Iterator[tuple[Line | None, frozenset[Line]]]:
    """The lines and repeats inside of each repeat, and inside of the section under None."""
    starts = (start.line for e in walk(graph) if isinstance(e.form, Repeat) for start in e.form.starts)
    yield repeat, frozenset((*every_line(graph), *starts))
    for equation in graph.equations:
        if isinstance(equation.form, Repeat):
            yield from _lines_inside(equation.bodies[0], equation.form.line)
