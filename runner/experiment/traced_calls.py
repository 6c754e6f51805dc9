"""Makes a graph of lines that a worker made: those of a call of a function read from Python, or of a section.

Such lines are right as they are: JAX has traced them, so nothing is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.base.faults import Key
from runner.experiment.frames import Place, ReadingFrame, free
from runner.experiment.functions import RESULT
from runner.experiment.graphs import CallBuilder, GraphBuilder, RepeatBuilder, graph
from runner.experiment.model import FunctionCall, Line
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop
from runner.graph.language.check import canonical
from runner.graph.language.lines import RepeatLines, line_of, repeat
from runner.graph.language.lines import lines as lines_in
from runner.graph.language.syntax import Expression
from runner.graph.model import Graph
from runner.graph.spelling import Spelling
from runner.graph.term import Group, Name, Term, children


def traced_call(
    traced: TracedLines, call: FunctionCall, place: Place, scope: str, taken: set[str], *, parts: int
) -> CallBuilder:
    """A call at `place`, whose lines are in the named `scope` and get names that are not `taken`.

    `parts`: the number of names into which the lines after it unpack its only result, or 0.
    """
    outer, key = place.frame, ("functions", call.function)
    single = len(call.results) == 1
    head = outer.named(call.label, taken) if single else free(f"{outer.prefix}{call.label}", taken)
    frame = ReadingFrame(
        own=traced.names,
        hidden=traced.names,
        prefix=f"{head}_",
        scopes=(*outer.scopes, scope),
        uses=(place.key, *outer.uses),
        inside=(*outer.inside, call.function),
    )
    builder = CallBuilder(place.into, call)
    _put(traced.lines, builder.body, frame, key, taken)
    names: tuple[Term, ...] = tuple(map(Name, traced.results))
    whole = Expression.of(names[0] if len(names) == 1 else Group(names))
    given = (whole.term,) if single else children(whole.term)
    for position, (name, term) in enumerate(zip(call.results, given, strict=True)):
        label = RESULT if single else f"{RESULT}{position}"
        frame.names[label] = head if single else outer.named(name, taken)
        line = frame.line(label, builder.body.within, (*key, RESULT), parts=parts, result=single)
        builder.give(line, Expression(whole.text, term))
    return builder


def lines_of(graph: Graph) -> dict[str, TracedLine]:
    """The lines of a graph without calls, by name."""
    return _lines_of(graph, Spelling.of(graph))


def _lines_of(graph: Graph, spelling: Spelling) -> dict[str, TracedLine]:
    lines: dict[str, TracedLine] = {}
    for equation in lines_in(graph):
        loop = repeat(equation)
        lines[line_of(equation).name] = spelling.equation(equation) if loop is None else loop_of(loop, spelling)
    return lines


def loop_of(loop: RepeatLines, spelling: Spelling) -> TracedLoop:
    """A repeat with its lines."""
    firsts = {line.name: first.term for line, first in loop.firsts(spelling)}
    carry, over = ({name: firsts[name] for name in names} for names in (loop.carry, loop.over))
    form = loop.form
    return TracedLoop(
        form.steps, _lines_of(loop.body, spelling), loop.index or "i", carry, over, loop.stack, loop.going,
        form.region, form.unroll, form.checkpoint,
    )  # fmt: skip


def section_graph(lines: Mapping[str, TracedLine], key: Key, given: Iterable[str]) -> Graph:
    """The graph of a section whose lines are `lines`, at `key`; `given`: the names of its inputs."""
    return graph(given, lambda into: _put(lines, into, ReadingFrame(), key, set()))


def _put(lines: Mapping[str, TracedLine], into: GraphBuilder, frame: ReadingFrame, key: Key, taken: set[str]) -> None:
    """Append the lines at `key` to a graph."""
    for name, value in lines.items():
        frame.named(name, taken)
        line = frame.line(name, into.within, (*key, name))
        if isinstance(value, TracedLoop):
            _put_loop(value, line, into, frame, (*key, name), taken)
        else:
            into.line(line, _expression(value))


def _put_loop(loop: TracedLoop, line: Line, into: GraphBuilder, frame: ReadingFrame, key: Key, taken: set[str]) -> None:
    carry, over = ({name: _expression(term) for name, term in part.items()} for part in (loop.carry, loop.over))
    index = loop.index if loop.steps is not None and loop.region is None else ""
    repeat = RepeatBuilder(into, line, carry, over, index)
    given = {*((index,) if index else ()), *carry, *over}
    _put(loop.body, repeat.body, frame.in_repeat(given, loop.body), (*key, "body"), taken)
    repeat.put(
        loop.steps, loop.stack, unroll=loop.unroll, checkpoint=loop.checkpoint, region=loop.region, going=loop.going
    )


def _expression(term: Term) -> Expression:
    return canonical(Expression.of(term))
