"""The lines of a section in; the section as a graph out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runner.experiment import branches
from runner.experiment.lines import Line, Loop, Node, Statement, expressions
from runner.graph.model import (
    NAME,
    Called,
    Choice,
    Const,
    Equation,
    Function,
    Graph,
    Group,
    Operand,
    Ref,
    Repeat,
    Size,
    Slice,
    Spelled,
    Value,
)
from runner.graph.source import Call, Source
from runner.graph.term import Apply, Lambda, Listed, Name, Term
from runner.language.syntax import Expression


def graph(statements: Sequence[Statement], given: Iterable[str], *, flat: bool = False) -> Graph:
    """The graph of some lines that begin with the values of these names.

    Calls of functions and choices are equations with bodies where all of their lines are there. `flat`: their lines
    stand in their place; of a choice all branches are computed, and a `where` takes one.
    """
    reader = _Reader({}, itertools.count(), flat=flat)
    inputs = tuple(reader.value(name) for name in given)
    reader.statements(statements, 0)
    names = dict(reader.names)
    return Graph(inputs, tuple(reader.equations), tuple(names.values()), names)


class _Reader:
    """Reads lines into the equations of one graph; those of its bodies have readers of their own."""

    def __init__(self, names: dict[str, int], numbers: Iterator[int], *, flat: bool, local: bool = False) -> None:
        self.names = names
        """The numbers of what there is, by its name."""
        self.equations: list[Equation] = []
        self._numbers = numbers
        self._flat = flat
        self._local = local
        """Whether lines have the names that they have in the function in which they stand."""
        self._line: Line
        self._text = ""

    def value(self, name: str = "") -> Value:
        """A new value."""
        value = Value(next(self._numbers), name)
        if name:
            self.names[name] = value.number
        return value

    def _inside(self) -> _Reader:
        """A reader of lines that know what there is here."""
        return _Reader(dict(self.names), self._numbers, flat=self._flat, local=self._local)

    def statements(self, statements: Sequence[Statement], depth: int) -> None:
        """The equations of lines that stand in `depth` calls."""
        for call, lines in itertools.groupby(statements, lambda statement: _called(statement, depth)):
            group = tuple(lines)
            whole = call is not None and not self._flat and _is_whole(group, depth)
            choice = branches.choice_of(depth, group) if whole and call is not None and call.chooses else None
            if choice is not None:
                self._choice(choice)
            elif whole and call is not None and not call.chooses:
                self._call(call, group, depth)
            else:
                for statement in group:
                    if isinstance(statement, Loop):
                        self._repeat(statement)
                    else:
                        self._node(statement)

    def _name(self, line: Line) -> str:
        return line.label if self._local else line.name

    def _node(self, node: Node) -> int:
        return self._named(node.expression, node.line, self._name(node.line))

    def _named(self, expression: Expression, line: Line, name: str = "") -> int:
        """The number of the value of a line."""
        self._line, self._text = line, expression.text
        term = expression.local if self._local and expression.local is not None else expression.term
        before = len(self.equations)
        operand = self._operand(term)
        if not isinstance(operand, Ref) or len(self.equations) == before:
            operand = self._put(NAME, term, (operand,), spelled="name")
        # What was put last is all that the line says.
        made = self.equations[-1]
        value = Value(operand.number, name)
        self.equations[-1] = replace(made, results=(value,), source=replace(made.source, whole=True))
        if name:
            self.names[name] = value.number
        return value.number

    def _put(
        self,
        operation: str,
        term: Term,
        operands: tuple[Operand, ...],
        named: tuple[tuple[str, Operand], ...] = (),
        spelled: Spelled = "call",
    ) -> Ref:
        value, source = self.value(), self._source(term)
        self.equations.append(Equation(operation, operands, (value,), source, named, spelled))
        return Ref(value.number, source)

    def _source(self, term: Term) -> Source:
        return Source(self._line, self._text, *(term.at or (None, None)))

    def _ref(self, name: str, term: Term) -> Ref:
        return Ref(self.names[name], self._source(term))

    def _operand(self, term: Term) -> Operand:
        match term:
            case Const(value=value):
                return Const(value)
            case Name(name=name):
                return self._ref(name, term) if name in self.names else Size(name)
            case Apply(spelled=".T", operands=(Name(name=loop),)) if f"{loop}.T" in self.names:
                return self._ref(f"{loop}.T", term)
            case Apply(operation=operation, operands=operands, named=named, spelled=spelled):
                parts = tuple(map(self._operand, operands))
                return self._put(operation, term, parts, tuple((k, self._operand(v)) for k, v in named), spelled)
            case Group(items=items, kind=kind):
                return Group(tuple(map(self._operand, items)), kind)
            case Slice(lower=lower, upper=upper, step=step):
                return Slice(self._operand(lower), self._operand(upper), self._operand(step))
            case Lambda():
                return self._function(term)
            case Listed():
                raise AssertionError(term)  # It was written out where its line was read.

    def _function(self, term: Lambda) -> Function:
        inside = self._inside()
        inputs = tuple(map(inside.value, term.parameters))
        result = inside._named(Expression(self._text, term.body), self._line)
        return Function(Graph(inputs, tuple(inside.equations), (result,)))

    def _repeat(self, loop: Loop) -> None:
        firsts = [self._first(first, loop.first(name)) for name, first in loop.carry]
        over = [self._first(whole, loop.whole(name)) for name, whole in loop.over]
        inside = self._inside()
        inputs = tuple(inside.value(name) for name in (*loop.given, loop.index))
        inside.statements(loop.body, len(loop.line.calls) if self._local else 0)
        stacked = loop.locally if self._local else [inner for _, inner in loop.stack]
        ends = tuple(inside.names[end] for end in (*(name for name, _ in loop.carry), *stacked))
        body = Graph(inputs, tuple(inside.equations), ends, inside.names)
        results = tuple(self.value(f"{self._name(loop.line)}.{name}") for name in loop.results)
        starts = tuple(source for _, source in (*firsts, *over))
        form = Repeat(loop.line, loop.steps, len(firsts), starts, loop.unroll, loop.checkpoint)
        operands = tuple(operand for operand, _ in (*firsts, *over))
        self.equations.append(Equation("repeat", operands, results, Source(loop.line), form=form, bodies=(body,)))

    def _first(self, expression: Expression, line: Line) -> tuple[Ref, Source]:
        """What a repeat begins with, and where that is written."""
        number, source = self._named(expression, line), self.equations[-1].source
        return Ref(number, source), source

    def _call(self, call: Call, group: Sequence[Statement], depth: int) -> None:
        """A call of a function, in the place of which the lines of a group stand."""
        body, given = self._body(call, group, depth)
        form = Called(call, self._taken(group[-len(call.results) :]))
        self._put_results(
            Equation(call.function, given or (), (), form.taken[0], form=form, bodies=(body,)), call, group
        )

    def _choice(self, choice: branches.Choice) -> None:
        call = choice.call
        ((_, on),) = call.arguments
        bodies = [self._body(branch.call, branch.lines, choice.depth) for branch in choice.branches]
        form = Choice(
            call,
            tuple(branch.call for branch in choice.branches),
            tuple(given for _, given in bodies),
            self._taken(choice.results),
        )
        operands, graphs = (Ref(self.names[on]),), tuple(body for body, _ in bodies)
        made = Equation(call.function, operands, (), form.taken[0], form=form, bodies=graphs)
        self._put_results(made, call, choice.results)

    def _body(self, call: Call, lines: Sequence[Statement], depth: int) -> tuple[Graph, tuple[Ref, ...] | None]:
        """The lines of a call, which stands in `depth` calls, as a graph; and what it is called with.

        That is None for a lambda among the branches of a choice, which reads what the lines around it read.
        """
        gives = lines[-len(call.results) :]
        around = call.branch is not None and call.checkpoint is None and len(lines) == len(gives)
        around = around and all(name == own for own, name in call.arguments)
        inside = _Reader(dict(self.names) if around else {}, self._numbers, flat=False, local=True)
        arguments = () if around else call.arguments
        given = tuple(Ref(self.names[name]) for _, name in arguments)
        inputs = tuple(inside.value(parameter) for parameter, _ in arguments)
        inside.statements(lines[: -len(gives)], depth + 1 if call.branch is None else depth)
        outputs: list[int] = []
        for line in gives:
            assert isinstance(line, Node)
            outputs.append(inside._named(line.expression, line.line, line.line.label if len(gives) > 1 else ""))
        return Graph(inputs, tuple(inside.equations), tuple(outputs), inside.names), None if around else given

    def _taken(self, lines: Sequence[Statement]) -> tuple[Source, ...]:
        """Where the lines stand that say what a call or a choice gives."""
        taken: list[Source] = []
        for line in lines:
            assert isinstance(line, Node)
            self._line, self._text = line.line, line.expression.text
            taken.append(replace(self._source(line.expression.term), whole=True))
        return tuple(taken)

    def _put_results(self, equation: Equation, call: Call, lines: Sequence[Statement]) -> None:
        """An equation whose results have the names that the lines around the call know."""
        last = lines[-len(call.results) :]
        names = call.results if self._local else [line.name for line in last]
        self.equations.append(replace(equation, results=tuple(map(self.value, names))))


def _called(statement: Statement, depth: int) -> Call | None:
    """The call in which a statement stands, which stands in `depth` others."""
    calls = statement.line.calls
    return calls[depth] if len(calls) > depth else None


def _is_whole(group: Sequence[Statement], depth: int) -> bool:
    """Whether the lines of a call are as its function has them: what was edited since has the section's names only."""
    if any(expression.local is None for _, expression in expressions(group)):
        return False
    return bool(depth) or branches.complete(group)
