"""Makes the graph of a section's statements."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.experiment.lines import Choice, Invocation, Loop, Node, Statement
from runner.graph.language.syntax import Expression
from runner.graph.model import (
    NAME,
    Branches,
    CalledFunction,
    CombiningFunction,
    Const,
    Equation,
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
from runner.graph.source import Line, Source
from runner.graph.term import Apply, Lambda, Listed, Name, Term


def graph(statements: Sequence[Statement], given: Iterable[str]) -> Graph:
    """The graph of statements that begin with the values named in `given`."""
    reader = _GraphReader({}, itertools.count())
    inputs = tuple(reader.value(name) for name in given)
    reader.statements(statements)
    names = dict(reader.names)
    return Graph(inputs, tuple(reader.equations), tuple(names.values()), names)


def of_line(line: Line, term: Term, given: Iterable[str]) -> Graph:
    """The graph of a single line with this term, which reads values named in `given`."""
    return graph((Node(line, Expression("", term)),), given)


def equations(
    line: Line, term: Term, names: Mapping[str, int], numbers: Iterator[int], result: int
) -> tuple[Equation, ...]:
    """The equations of a line with this term that gives the value `result`.

    `names` are the numbers of the values that it may read; parts of it get the next of `numbers`.
    """
    reader = _GraphReader(dict(names), numbers)
    reader.statements((Node(line, Expression("", term)),))
    *parts, last = reader.equations
    return (*parts, replace(last, results=(Value(result, line.name),)))


class _GraphReader:
    """Reads statements into the equations of one graph; the graphs of their bodies have readers of their own."""

    def __init__(self, names: dict[str, int], numbers: Iterator[int], *, local: bool = False) -> None:
        self.names = names
        """The numbers of the values in scope, by name."""
        self.equations: list[Equation] = []
        self._numbers = numbers
        self._local = local
        """Whether the statements are those of a function, which has its own names."""
        self._line: Line
        self._text = ""
        self._parts = itertools.count(1)
        """Numbers the parts of the current line."""

    def value(self, name: str = "") -> Value:
        """Return a new value; a name is put in scope."""
        value = Value(next(self._numbers), name)
        if name:
            self.names[name] = value.number
        return value

    def _inside(self) -> _GraphReader:
        """A reader of statements with the same names in scope."""
        return _GraphReader(dict(self.names), self._numbers, local=self._local)

    def statements(self, statements: Iterable[Statement]) -> None:
        """Append the equations of statements."""
        for statement in statements:
            match statement:
                case Node():
                    self._node(statement)
                case Loop():
                    self._repeat(statement)
                case Invocation():
                    self._call(statement)
                case Choice():
                    self._choice(statement)

    def _name(self, line: Line) -> str:
        return line.label if self._local else line.name

    def _node(self, node: Node) -> int:
        return self._named(node.expression, node.line, self._name(node.line))

    def _named(self, expression: Expression, line: Line, name: str = "") -> int:
        """Append the equations of a line; return the number of its value."""
        self._line, self._text, self._parts = line, expression.text, itertools.count(1)
        return self._whole(expression, name, part=0)

    def _whole(self, expression: Expression, name: str = "", part: int | None = None) -> int:
        """Append the equations of an expression, which is that `part` of its line; return the number of its value."""
        term = expression.term
        before = len(self.equations)
        operand = self._operand(term)
        if not isinstance(operand, Ref) or len(self.equations) == before:
            operand = self._put(NAME, term, (operand,), spelled="name")
        # The last equation is the whole line.
        made = self.equations[-1]
        value = Value(operand.number, name)
        source = replace(made.source, whole=True, part=made.source.part if part is None else part)
        self.equations[-1] = replace(made, results=(value,), source=source)
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
        return Source(self._line, self._text, *(term.at or (None, None)), part=next(self._parts))

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
                raise AssertionError(term)  # It was expanded where its line was read.

    def _function(self, term: Lambda) -> CombiningFunction:
        inside = self._inside()
        inside._line, inside._text, inside._parts = self._line, self._text, self._parts
        inputs = tuple(map(inside.value, term.parameters))
        result = inside._whole(Expression(self._text, term.body))
        return CombiningFunction(Graph(inputs, tuple(inside.equations), (result,)))

    def _repeat(self, loop: Loop) -> None:
        firsts = [self._first(first, loop.line.inside(name, first="carry")) for name, first in loop.carry]
        over = [self._first(whole, loop.line.inside(name, first="over")) for name, whole in loop.over]
        inside = self._inside()
        inputs = tuple(map(inside.value, loop.bound))
        inside.statements(loop.body)
        ends = tuple(inside.names[end] for end in (*(name for name, _ in loop.carry), *(end for _, end in loop.stack)))
        body = Graph(inputs, tuple(inside.equations), ends, inside.names)
        results = tuple(self.value(f"{self._name(loop.line)}.{name}") for name in loop.results)
        starts = tuple(source for _, source in (*firsts, *over))
        carry = [name for name, _ in loop.carry]
        going = carry.index(loop.going) if loop.going else None
        sized_by = tuple(sorted(self.names[name] for name in loop.counted if name in self.names))
        form = Repeat(
            loop.line, loop.steps, len(firsts), starts, loop.unroll, loop.checkpoint, loop.region, going, sized_by
        )
        operands = tuple(operand for operand, _ in (*firsts, *over))
        self.equations.append(Equation("repeat", operands, results, Source(loop.line), form=form, bodies=(body,)))

    def _first(self, expression: Expression, line: Line) -> tuple[Ref, Source]:
        """Append the equations of a repeat's initial value; return a reference to it, and where it is written."""
        number, source = self._named(expression, line), self.equations[-1].source
        return Ref(number, source), source

    def _call(self, invocation: Invocation) -> None:
        """Append the equation of a function call."""
        body, given = self._body(invocation, around=False)
        form = CalledFunction(invocation.call, self._taken(invocation.gives))
        self._put_results(
            Equation(invocation.call.function, given, (), form.taken[0], form=form, bodies=(body,)), invocation
        )

    def _choice(self, choice: Choice) -> None:
        """Append the equation of a `cond` or `switch`; a lambda of one expression may read the values around it."""
        call, calls = choice.call, tuple(branch.call for branch in choice.branches)
        ((_, on),) = call.arguments
        around = list(map(_is_expression, choice.branches))
        bodies = [self._body(branch, around=inside) for branch, inside in zip(choice.branches, around, strict=True)]
        given = tuple(None if inside else read for (_, read), inside in zip(bodies, around, strict=True))
        selecting = self._inside()
        for branch, (body, _) in zip(choice.branches, bodies, strict=True):
            selecting.names.update(zip(branch.call.results, body.outputs, strict=True))
        selecting.statements(choice.gives)
        selected = tuple(selecting.names[self._name(node.line)] for node in choice.gives)
        taken = self._taken(choice.gives)
        form = Branches(call, calls, given, taken, Graph((), tuple(selecting.equations), selected))
        operands, graphs = (Ref(self.names[on]),), tuple(body for body, _ in bodies)
        self._put_results(Equation(call.function, operands, (), form.taken[0], form=form, bodies=graphs), choice)

    def _body(self, invocation: Invocation, *, around: bool) -> tuple[Graph, tuple[Ref, ...]]:
        """The lines of a call as a graph, and its operands; with `around` it may read the values around it."""
        inside = _GraphReader(dict(self.names) if around else {}, self._numbers, local=True)
        arguments = () if around else invocation.call.arguments
        given = tuple(Ref(self.names[name]) for _, name in arguments)
        inputs = tuple(inside.value(parameter) for parameter, _ in arguments)
        inside.statements(invocation.body)
        several = len(invocation.gives) > 1
        outputs = tuple(
            inside._named(node.expression, node.line, node.line.label if several else "") for node in invocation.gives
        )
        return Graph(inputs, tuple(inside.equations), outputs, inside.names), given

    def _taken(self, gives: Iterable[Node]) -> tuple[Source, ...]:
        """Return the places of the lines that a call or a choice returns."""
        taken: list[Source] = []
        for node in gives:
            at = node.expression.term.at or (None, None)
            taken.append(Source(node.line, node.expression.text, *at, whole=True))
        return tuple(taken)

    def _put_results(self, equation: Equation, statement: Invocation | Choice) -> None:
        """Append an equation whose results have the names that the lines around the call use."""
        names = statement.call.results if self._local else [node.line.name for node in statement.gives]
        self.equations.append(replace(equation, results=tuple(map(self.value, names))))


def _is_expression(branch: Invocation) -> bool:
    """Whether a branch is one expression in the names of the lines around it."""
    call = branch.call
    return not branch.body and call.checkpoint is None and all(own == name for own, name in call.arguments)
