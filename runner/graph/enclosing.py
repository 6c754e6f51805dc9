"""Finds the calls around the lines of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.lazy import dataclass
from runner.graph.model import Branches, CalledFunction, Graph, Repeat
from runner.graph.source import FunctionCall, Line


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
