"""Builds the graph of a section from its lines, repeats, calls and choices, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

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
    LoopForm,
    Operand,
    Ref,
    Repeat,
    Size,
    Slice,
    Spelled,
    Value,
)
from runner.graph.source import FunctionCall, Line, Source, Start
from runner.graph.term import Apply, Lambda, Listed, Name, Term, name_of


def graph(given: Iterable[str], lines: Callable[[GraphBuilder], None]) -> Graph:
    """The graph of a section that begins with the values named in `given`, to which `lines` appends the rest."""
    builder = GraphBuilder({}, itertools.count())
    inputs = tuple(map(builder.value, given))
    lines(builder)
    names = dict(builder.names)
    return Graph(inputs, tuple(builder.equations), tuple(names.values()), names)


def of_line(line: Line, term: Term, given: Iterable[str]) -> Graph:
    """The graph of a single line with this term, which reads values named in `given`."""
    return graph(given, lambda builder: builder.line(line, Expression("", term)))


def equations(
    line: Line, term: Term, names: Mapping[str, int], numbers: Iterator[int], result: int
) -> tuple[Equation, ...]:
    """The equations of a line with this term that gives the value `result`.

    `names` are the numbers of the values that it may read; parts of it get the next of `numbers`.
    """
    builder = GraphBuilder(dict(names), numbers)
    builder.line(line, Expression("", term))
    *parts, last = builder.equations
    return (*parts, replace(last, results=(Value(result, line.name),)))


Placed = tuple[int, Source]
"""The number of a line's value, and the place of the line."""


class GraphBuilder:
    """Appends equations to one graph; the graphs of their bodies have builders of their own.

    - `within`: the repeat whose body the graph is, or None.
    - `local`: whether the lines are those of a function, which has its own names.
    """

    def __init__(
        self, names: dict[str, int], numbers: Iterator[int], *, within: Line | None = None, local: bool = False
    ) -> None:
        self.names = names
        """The numbers of the values in scope, by name."""
        self.equations: list[Equation] = []
        self.within = within
        self._numbers = numbers
        self._local = local
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

    def nested(self, *, within: Line | None = None, local: bool = False) -> GraphBuilder:
        """A builder of a body that may read the values around it."""
        return GraphBuilder(dict(self.names), self._numbers, within=within or self.within, local=local or self._local)

    def function(self) -> GraphBuilder:
        """A builder of a function's body, which has its own names."""
        return GraphBuilder({}, self._numbers, within=self.within, local=True)

    def line(self, line: Line, expression: Expression) -> None:
        """Append a line."""
        self.part(line, expression, self.name(line))

    def part(self, line: Line, expression: Expression, name: str = "") -> Placed:
        """Append the equations of an expression at a line; its value has a name, or none."""
        self._line, self._text, self._parts = line, expression.text, itertools.count(1)
        return self._whole(expression.term, name, part=0)

    def name(self, line: Line) -> str:
        """What the lines around a line call its value."""
        return line.label if self._local else line.name

    def put_call(self, equation: Equation, form: CalledFunction | Branches) -> None:
        """Append a call or a choice, with results of the names that the lines around it use."""
        names = form.call.results if self._local else [source.line.name for source in form.taken]
        self.equations.append(replace(equation, results=tuple(map(self.value, names))))

    def choice(
        self, call: FunctionCall, branches: Sequence[CallBuilder], gives: Iterable[tuple[Line, Expression]]
    ) -> None:
        """Append the equation of a `cond` or `switch`; the lines `gives` select the values of one branch."""
        ((_, on),) = call.arguments
        selecting = self.nested()
        for branch in branches:
            selecting.names.update(zip(branch.call.results, branch.outputs, strict=True))
        selected = [selecting.part(line, expression, self.name(line)) for line, expression in gives]
        lines = Graph((), tuple(selecting.equations), tuple(number for number, _ in selected))
        calls, given = tuple(branch.call for branch in branches), tuple(branch.given for branch in branches)
        taken = tuple(source for _, source in selected)
        form, bodies = Branches(call, calls, given, taken, lines), tuple(branch.graph for branch in branches)
        self.put_call(Equation(call.function, (Ref(self.names[on]),), (), taken[0], form=form, bodies=bodies), form)

    def _whole(self, term: Term, name: str = "", part: int | None = None) -> Placed:
        """Append the equations of a term; the last is the whole line, and that `part` of it, or the next."""
        if isinstance(term, Apply) and not self._is_result(term):
            return self._applied(term, name, part, whole=True)
        return self._put(NAME, term, (self._operand(term),), (), "name", name, part, whole=True)

    def _applied(self, term: Apply, name: str = "", part: int | None = None, *, whole: bool = False) -> Placed:
        operands = tuple(map(self._operand, term.operands))
        named = tuple((key, self._operand(value)) for key, value in term.named)
        return self._put(term.operation, term, operands, named, term.spelled, name, part, whole=whole)

    def _put(
        self,
        operation: str,
        term: Term,
        operands: tuple[Operand, ...],
        named: tuple[tuple[str, Operand], ...],
        spelled: Spelled,
        name: str,
        part: int | None,
        *,
        whole: bool,
    ) -> Placed:
        value, source = self.value(name), self._source(term, part, whole=whole)
        self.equations.append(Equation(operation, operands, (value,), source, named, spelled))
        return value.number, source

    def _source(self, term: Term, part: int | None = None, *, whole: bool = False) -> Source:
        start, end = term.at or (None, None)
        return Source(self._line, self._text, start, end, next(self._parts) if part is None else part, whole)

    def _is_result(self, term: Apply) -> bool:
        """Whether `ring.T` is a result of a repeat."""
        return term.spelled == ".T" and f"{name_of(term.operands[0])}.T" in self.names

    def _ref(self, name: str, term: Term) -> Ref:
        return Ref(self.names[name], self._source(term))

    def _operand(self, term: Term) -> Operand:
        match term:
            case Const(value=value):
                return Const(value)
            case Name(name=name):
                return self._ref(name, term) if name in self.names else Size(name)
            case Apply() if self._is_result(term):
                return self._ref(f"{name_of(term.operands[0])}.T", term)
            case Apply():
                return Ref(*self._applied(term))
            case Group(items=items, kind=kind):
                return Group(tuple(map(self._operand, items)), kind)
            case Slice(lower=lower, upper=upper, step=step):
                return Slice(self._operand(lower), self._operand(upper), self._operand(step))
            case Lambda():
                return self._function(term)
            case Listed():
                raise AssertionError(term)  # It was expanded where its line was read.

    def _function(self, term: Lambda) -> CombiningFunction:
        inside = self.nested()
        inside._line, inside._text, inside._parts = self._line, self._text, self._parts
        inputs = tuple(map(inside.value, term.parameters))
        result, _ = inside._whole(term.body)
        return CombiningFunction(Graph(inputs, tuple(inside.equations), (result,)))


class RepeatBuilder:
    """A repeat after its initial values: its `body` takes the lines of a step, and `put` appends it.

    The body begins with the carries, the slices and the `index`, "" where it has none.
    """

    def __init__(
        self,
        around: GraphBuilder,
        line: Line,
        carry: Mapping[str, Expression],
        over: Mapping[str, Expression],
        index: str,
    ) -> None:
        self._around, self._line, self._carry = around, line, tuple(carry)
        begins: tuple[tuple[Start, Mapping[str, Expression]], ...] = (("carry", carry), ("over", over))
        self._firsts = [
            around.part(line.inside(name, first=start), first)
            for start, firsts in begins
            for name, first in firsts.items()
        ]
        self.body = around.nested(within=line)
        self._inputs = tuple(map(self.body.value, (*carry, *over, *((index,) if index else ()))))

    def put(self, loop: LoopForm, counted: Iterable[str] = ()) -> None:
        """Append the repeat; `counted`: the lines from which its number of steps is computed."""
        around, body, line, carry = self._around, self.body, self._line, self._carry
        ends = tuple(body.names[end] for end in (*carry, *loop.stack.values()))
        graph = Graph(self._inputs, tuple(body.equations), ends, body.names)
        results = tuple(around.value(f"{around.name(line)}.{name}") for name in (*carry, *loop.stack))
        going = carry.index(loop.going) if loop.going else None
        sized_by = tuple(sorted(around.names[name] for name in counted if name in around.names))
        starts, operands = tuple(s for _, s in self._firsts), tuple(Ref(*first) for first in self._firsts)
        form = Repeat(line, loop.steps, len(carry), starts, loop.unroll, loop.checkpoint, loop.region, going, sized_by)
        around.equations.append(Equation("repeat", operands, results, Source(line), form=form, bodies=(graph,)))


class CallBuilder:
    """A call of a function: its `body` takes the lines, `give` the result; `put` appends it, or it is a branch."""

    def __init__(self, around: GraphBuilder, call: FunctionCall) -> None:
        self.call, self._around = call, around
        self.body = around.function()
        self._inputs = tuple(self.body.value(parameter) for parameter, _ in call.arguments)
        self._gives: list[Placed] = []
        self.given: tuple[Ref, ...] | None = tuple(Ref(around.names[name]) for _, name in call.arguments)
        """What it is called with; None where its lines read the values around it."""

    def open(self) -> None:
        """Let a branch that is one expression in the names around it read the values there."""
        if not self.body.equations and self.call.checkpoint is None and all(own == n for own, n in self.call.arguments):
            self.body, self._inputs, self.given = self._around.nested(local=True), (), None

    def give(self, line: Line, expression: Expression) -> None:
        """Append the line of a result."""
        self._gives.append(self.body.part(line, expression, line.label if len(self.call.results) > 1 else ""))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The values of its results."""
        return tuple(number for number, _ in self._gives)

    @property
    def graph(self) -> Graph:
        """Its lines."""
        return Graph(self._inputs, tuple(self.body.equations), self.outputs, self.body.names)

    def put(self) -> None:
        """Append the equation of the call."""
        form = CalledFunction(self.call, tuple(source for _, source in self._gives))
        operands, bodies = self.given or (), (self.graph,)
        equation = Equation(self.call.function, operands, (), form.taken[0], form=form, bodies=bodies)
        self._around.put_call(equation, form)
