"""Makes statements of lines that a worker made: those of a call of a function read from Python, or of a section.

Such lines are right as they are: JAX has traced them, so nothing is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.base.faults import Key
from runner.experiment.frames import Place, ReadingFrame, free
from runner.experiment.functions import RESULT
from runner.experiment.graphs import graph
from runner.experiment.lines import Invocation, Loop, Node, Statement
from runner.experiment.model import FunctionCall, Line
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop
from runner.graph.language.check import canonical
from runner.graph.language.lines import RepeatLines, line_of, repeat
from runner.graph.language.lines import lines as lines_in
from runner.graph.language.syntax import Expression
from runner.graph.model import Graph
from runner.graph.spelling import Spelling
from runner.graph.term import Group, Name, Term, children


def traced_invocation(
    traced: TracedLines, call: FunctionCall, place: Place, scope: str, taken: set[str], *, parts: int
) -> Invocation:
    """The invocation of a call at `place`, whose lines are in the named `scope` and get names that are not `taken`.

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
    lines = _statements(traced.lines, frame, key, place.within, taken)
    names: tuple[Term, ...] = tuple(map(Name, traced.results))
    whole = Expression.of(names[0] if len(names) == 1 else Group(names))
    given = (whole.term,) if single else children(whole.term)
    gives: list[Node] = []
    for position, (name, term) in enumerate(zip(call.results, given, strict=True)):
        label = RESULT if single else f"{RESULT}{position}"
        frame.names[label] = head if single else outer.named(name, taken)
        line = frame.line(label, place.within, (*key, RESULT), parts=parts, result=single)
        gives.append(Node(line, Expression(whole.text, term, whole.term)))
    return Invocation(call, lines, tuple(gives))


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
    return graph(_statements(lines, ReadingFrame(), key, None, set()), given)


def _statements(
    lines: Mapping[str, TracedLine], frame: ReadingFrame, key: Key, within: Line | None, taken: set[str]
) -> tuple[Statement, ...]:
    """The statements of the lines at `key`."""
    statements: list[Statement] = []
    for name, value in lines.items():
        at = (*key, name)
        frame.named(name, taken)
        line = frame.line(name, within, at)
        statements.append(
            _loop(value, line, frame, at, taken) if isinstance(value, TracedLoop) else Node(line, _expression(value))
        )
    return tuple(statements)


def _loop(loop: TracedLoop, line: Line, frame: ReadingFrame, key: Key, taken: set[str]) -> Loop:
    indexed = loop.steps is not None and loop.region is None
    given = {*((loop.index,) if indexed else ()), *loop.carry, *loop.over}
    body = _statements(loop.body, frame.in_repeat(given, loop.body), (*key, "body"), line, taken)
    carry, over = (tuple((name, _expression(term)) for name, term in part.items()) for part in (loop.carry, loop.over))
    stack = tuple(loop.stack.items())
    return Loop(
        line, loop.steps, loop.index, carry, body, loop.unroll, over, stack, loop.checkpoint, region=loop.region,
        going=loop.going,
    )  # fmt: skip


def _expression(term: Term) -> Expression:
    expression = canonical(Expression.of(term))
    return Expression(expression.text, expression.term, expression.term)
