"""Makes a graph of lines that a worker made, such as those of a function read from Python, and makes such lines of it.

The lines are right as they are: JAX has traced them, so nothing is checked.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.base.faults import Key
from runner.experiment.frames import ReadingFrame
from runner.experiment.graphs import GraphBuilder, RepeatBuilder, graph
from runner.experiment.model import Line
from runner.experiment.traced import TracedLine, TracedLoop, TracedTerm
from runner.graph.language.check import canonical
from runner.graph.language.lines import RepeatLines, line_of, repeat
from runner.graph.language.lines import lines as lines_in
from runner.graph.language.syntax import Expression
from runner.graph.model import Graph
from runner.graph.spelling import Spelling
from runner.graph.term import Term


def lines_of(graph: Graph, spelling: Spelling | None = None) -> tuple[TracedLine, ...]:
    """The lines of a graph without calls, or of a body in one with this spelling."""
    spelling = spelling or Spelling.of(graph)
    loops = ((equation, repeat(equation)) for equation in lines_in(graph))
    return tuple(
        TracedTerm(line_of(equation).name, spelling.equation(equation)) if loop is None else loop_of(loop, spelling)
        for equation, loop in loops
    )


def loop_of(loop: RepeatLines, spelling: Spelling) -> TracedLoop:
    """A repeat with its lines."""
    firsts = {line.name: first.term for line, first in loop.firsts(spelling)}
    carry, over = ({name: firsts[name] for name in names} for names in (loop.carry, loop.over))
    return TracedLoop(loop.name, loop.by_name, lines_of(loop.body, spelling), carry, over)


def section_graph(lines: Iterable[TracedLine], key: Key, given: Iterable[str]) -> Graph:
    """The graph of a section whose lines are `lines`, at `key`; `given`: the names of its inputs."""
    return graph(given, lambda into: put_lines(lines, into, ReadingFrame(), key, set()))


def put_lines(lines: Iterable[TracedLine], into: GraphBuilder, frame: ReadingFrame, key: Key, taken: set[str]) -> None:
    """Append the lines at `key` to a graph."""
    for traced in lines:
        name = traced.name
        frame.named(name, taken)
        line = frame.line(name, into.within, (*key, name))
        if isinstance(traced, TracedLoop):
            _put_loop(traced, line, into, frame, (*key, name), taken)
        else:
            into.line(line, _expression(traced.term))


def _put_loop(loop: TracedLoop, line: Line, into: GraphBuilder, frame: ReadingFrame, key: Key, taken: set[str]) -> None:
    carry, over = ({name: _expression(term) for name, term in part.items()} for part in (loop.carry, loop.over))
    counter = loop.form.counter
    repeat = RepeatBuilder(into, line, carry, over, counter)
    given = {*((counter,) if counter else ()), *carry, *over}
    put_lines(loop.body, repeat.body, frame.in_repeat(given, (each.name for each in loop.body)), (*key, "body"), taken)
    repeat.put(loop.form)


def _expression(term: Term) -> Expression:
    return canonical(Expression.of(term))
