"""Replaces the calls in a graph by the equations of their functions, and finds those around a line."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from runner.base.lazy import dataclass
from runner.graph.model import (
    Branches,
    CalledFunction,
    CombiningFunction,
    Equation,
    Graph,
    Operand,
    Ref,
    Repeat,
    Size,
    Value,
    dependencies,
    inside,
    walk,
    with_parts,
)
from runner.graph.source import FunctionCall, Line

Numbering = Callable[[int], int]
"""The number of each value in another graph."""


def inlined(graph: Graph) -> Graph:
    """The graph of a section with the equations of a function in the place of each call.

    All branches and the lines that select one branch's values replace a choice. A value has the name that its line has
    in the section, and the number that it has in the function; equations that stay as they are are the same objects.
    """
    if graph.without_calls:
        return graph.without_calls[0]
    if any(isinstance(equation.form, CalledFunction | Branches) for equation in walk(graph)):
        equations = itertools.chain.from_iterable(Inliner().units(graph))
        graph.without_calls.append(of_equations(graph.inputs, equations))
        return graph.without_calls[0]
    return graph


def of_equations(inputs: Iterable[Value], equations: Iterable[Equation]) -> Graph:
    """The graph of a section, all of whose values with names are outputs."""
    inputs, equations = tuple(inputs), tuple(equations)
    values = (*inputs, *(value for equation in equations for value in equation.results))
    names = {value.name: value.number for value in values if value.name}
    return Graph(inputs, equations, tuple(names.values()), names)


def with_inputs(graph: Graph, names: Collection[str]) -> Graph:
    """The graph of a section with the inputs of these names; it depends on no other."""
    inputs = [value for value in graph.inputs if value.name in names]
    return graph if len(inputs) == len(graph.inputs) else of_equations(inputs, graph.equations)


def line_by_line(graph: Graph) -> Iterator[tuple[Equation, ...]]:
    """The equations of each line of a graph, of each repeat with its initial values, and each call and choice."""
    line: list[Equation] = []
    for equation in graph.equations:
        line.append(equation)
        if equation.form is not None or (equation.source.whole and equation.source.line.first is None):
            yield tuple(line)
            line = []


class Inliner:
    """Replaces calls."""

    def __init__(self) -> None:
        self.same: dict[int, int] = {}
        """The numbers of the values that parameters and results of calls are."""

    def number(self, number: int) -> int:
        """The number of a value without calls."""
        return self.same.get(number, number)

    def units(self, graph: Graph) -> Iterator[tuple[Equation, ...]]:
        """The lines and repeats of a graph and of the calls in it; all those of a choice together."""
        return itertools.chain.from_iterable(map(self.of_line, line_by_line(graph)))

    def of_line(self, line: Sequence[Equation]) -> Iterator[tuple[Equation, ...]]:
        """The units of a line, a repeat, a call or a choice."""
        equation = line[-1]
        match equation.form:
            case CalledFunction():
                yield from self._called(equation.bodies[0], equation.operands)
                self._give(equation, equation.bodies[0].outputs)
            case Branches(given=given, selecting=selecting):
                calls = zip(equation.bodies, given, strict=True)
                units = [unit for body, own in calls for unit in self._called(body, own or ())]
                yield tuple(itertools.chain.from_iterable((*units, *self.units(selecting))))
                self._give(equation, selecting.outputs)
            case _:
                yield tuple(map(self._inside, line))

    def _called(self, body: Graph, operands: Iterable[Operand]) -> Iterator[tuple[Equation, ...]]:
        for value, operand in zip(body.inputs, operands, strict=True):
            assert isinstance(operand, Ref)
            self.same[value.number] = self.number(operand.number)
        yield from self.units(body)

    def _give(self, equation: Equation, outputs: Iterable[int]) -> None:
        for value, number in zip(equation.results, outputs, strict=True):
            self.same[value.number] = self.number(number)

    def _inside(self, equation: Equation) -> Equation:
        """A line, a part of one or a repeat, in the names and numbers of the section."""
        form, source, results = equation.form, equation.source, equation.results
        if isinstance(form, Repeat):
            results = tuple(replace(value, name=f"{form.line.name}.{_own(value)}") for value in results)
            bodies = tuple(map(self._body, equation.bodies))
            if results != equation.results or not all(map(operator.is_, bodies, equation.bodies)):
                equation = replace(equation, results=results, bodies=bodies)
            return renumbered(equation, self.number)
        if source.whole and source.line.first is None and results[0].name != source.line.name:
            results = (Value(results[0].number, source.line.name),)
            equation = Equation(
                equation.operation, equation.operands, results, source, equation.named, equation.spelled, form
            )
        return equation if self.same.keys().isdisjoint(equation.reads) else renumbered(equation, self.number)

    def _body(self, graph: Graph) -> Graph:
        equations = tuple(itertools.chain.from_iterable(self.units(graph)))
        inside = of_equations(graph.inputs, equations)
        same = len(equations) == len(graph.equations) and all(map(operator.is_, equations, graph.equations))
        return graph if same else replace(inside, outputs=tuple(map(self.number, graph.outputs)))


def _own(result: Value) -> str:
    """The name of a result in its repeat: `acc` for `ring.acc`."""
    return result.name.rpartition(".")[2]


def renumbered(equation: Equation, number: Numbering) -> Equation:
    """An equation that reads the values that have these other numbers; the same object where none has."""
    form = equation.form
    if all(number(read) == read for read in dependencies(equation)):
        return equation
    if isinstance(form, Repeat):
        form = replace(form, sized_by=tuple(map(number, form.sized_by)))
    elif isinstance(form, Branches):
        given = tuple(
            None if operands is None else tuple(Ref(number(operand.number), operand.source) for operand in operands)
            for operands in form.given
        )
        form = replace(form, given=given, selecting=_renumbered(form.selecting, number))
    return replace(
        equation,
        operands=tuple(_operand(operand, number) for operand in equation.operands),
        named=tuple((name, _operand(operand, number)) for name, operand in equation.named),
        form=form,
        bodies=tuple(_renumbered(body, number) for body in equation.bodies),
    )


def _renumbered(graph: Graph, number: Numbering) -> Graph:
    """A body that reads values around it by other numbers; its own keep theirs."""
    own = graph.defines

    def inside(of: int) -> int:
        return of if of in own else number(of)

    equations = tuple(renumbered(equation, inside) for equation in graph.equations)
    return replace(graph, equations=equations, outputs=tuple(map(inside, graph.outputs)))


def _operand(operand: Operand, number: Numbering) -> Operand:
    match operand:
        case Ref():
            return replace(operand, number=number(operand.number))
        case Size():
            return operand
        case CombiningFunction(body=body):
            return CombiningFunction(_renumbered(body, number))
        case _:
            return with_parts(operand, [_operand(part, number) for part in inside(operand)])


@dataclass(frozen=True, eq=False)
class Enclosing:
    """A call or a choice around some lines; `gives`: the lines of its results; `chooses`: whether it is a choice."""

    call: FunctionCall
    gives: tuple[Line, ...]
    chooses: bool = False


def enclosed(graph: Graph, around: tuple[Enclosing, ...] = ()) -> Iterator[tuple[Line, tuple[Enclosing, ...]]]:
    """The lines inside calls and choices with what encloses them, outermost first, in the order of the section."""
    for equation in graph.equations:
        form, line = equation.form, equation.source.line
        match form:
            case CalledFunction(call=call, taken=taken):
                inside = Enclosing(call, tuple(source.line for source in taken))
                yield from enclosed(equation.bodies[0], (*around, inside))
            case Branches(call=call, taken=taken):
                choice = Enclosing(call, tuple(source.line for source in taken), chooses=True)
                for branch, body in zip(form.calls, equation.bodies, strict=True):
                    gives = tuple(body.producers[number].source.line for number in body.outputs)
                    yield from enclosed(body, (*around, choice, Enclosing(branch, gives)))
                yield from ((given, (*around, choice)) for given in choice.gives)
            case Repeat(line=line):
                if around:
                    yield line, around
                    yield from ((start.line, around) for start in form.starts)
                yield from enclosed(equation.bodies[0], around)
            case None if around and equation.source.whole and line.first is None:
                yield line, around
            case None:
                pass
