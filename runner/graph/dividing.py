"""Divides the graph of a section at some of its inputs, such as the gradients that its lines read."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from runner.base.lazy import dataclass
from runner.graph.inlining import Inliner, line_by_line, of_equations, renumbered
from runner.graph.model import Equation, Graph, Repeat, Value, dependencies


@dataclass(frozen=True, eq=False)
class _Unit:
    """Equations of a section that stay together when it is divided; `line`: the position of their line."""

    line: int
    equations: tuple[Equation, ...]

    @cached_property
    def reads(self) -> frozenset[int]:
        """The values that they read."""
        return frozenset(number for equation in self.equations for number in dependencies(equation))

    @cached_property
    def defines(self) -> frozenset[int]:
        """The values that they give."""
        return frozenset(value.number for equation in self.equations for value in equation.results)


def _entered(units: Iterable[_Unit], numbers: Iterable[int]) -> list[_Unit]:
    """The units that depend on some of these values."""
    entered: list[_Unit] = []
    known = set(numbers)
    for unit in units:
        if not known.isdisjoint(unit.reads):
            entered.append(unit)
            known |= unit.defines
    return entered


def divided(graph: Graph, later: Collection[str]) -> tuple[Graph, Graph]:
    """The part of a section that needs none of the inputs named in `later`, and the part that does.

    The second begins with copies of what it reads and what depends on no input; it has the other values that it reads
    of the first among its inputs. A call that is divided is replaced by its lines; a choice stays whole.
    """
    if not any(value.name in later for value in graph.inputs):
        return graph, of_equations(graph.inputs, ())
    return _Division(graph, later).parts


class _Division:
    def __init__(self, graph: Graph, later: Collection[str]) -> None:
        self._graph, self._later = graph, later
        self._inliner = Inliner()
        self._lines = list(line_by_line(graph))
        self._units = [
            _Unit(position, equations)
            for position, line in enumerate(self._lines)
            for equations in self._inliner.of_line(line)
        ]
        self._counts = Counter(unit.line for unit in self._units)

    @property
    def parts(self) -> tuple[Graph, Graph]:
        """The two parts."""
        inputs, later = self._graph.inputs, self._later
        needing = _entered(self._units, (value.number for value in inputs if value.name in later))
        parted = set(needing)
        before = [unit for unit in self._units if unit not in parted]
        entered = set(_entered(self._units, (value.number for value in inputs if value.name not in later)))
        read = frozenset[int]().union(*(unit.reads for unit in needing))
        again: list[_Unit] = []
        for unit in reversed(before):
            if unit not in entered and unit.defines & read:
                read |= unit.reads
                again.insert(0, unit)
        places = {value.number: value.number for value in inputs}
        first = of_equations((value for value in inputs if value.name not in later), self._joined(before, places))
        second = tuple(self._joined([*again, *needing], places))
        own = {value.number for equation in second for value in equation.results}
        passed_on = frozenset(number for equation in second for number in dependencies(equation)) - own
        passed = [value for value in _in_order(first) if value.number in passed_on]
        return first, of_equations((*inputs, *passed), second)

    def _joined(self, kept: Iterable[_Unit], places: dict[int, int]) -> Iterator[Equation]:
        """The equations of the kept units: of a line all of whose units are kept, its own.

        `places` maps the numbers of values without calls to those that they have; it gets those of these equations.
        """

        def number(of: int) -> int:
            return places.get(self._inliner.number(of), of)

        for position, group in itertools.groupby(kept, lambda unit: unit.line):
            units = tuple(group)
            whole = len(units) == self._counts[position]
            equations = self._lines[position] if whole else (e for unit in units for e in unit.equations)
            for equation in equations:
                places.update((self._inliner.number(value.number), value.number) for value in equation.results)
                yield renumbered(equation, number)


def _in_order(graph: Graph) -> Iterator[Value]:
    """The values that a section gives in the order of its lines; the results of a repeat by their names."""
    for equation in graph.equations:
        repeats = isinstance(equation.form, Repeat)
        yield from sorted(equation.results, key=lambda value: value.name) if repeats else equation.results
