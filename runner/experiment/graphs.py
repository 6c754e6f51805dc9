"""The lines of a section in; the section as a graph out."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from runner.experiment import branches
from runner.experiment.lines import Line, Loop, Node, Statement
from runner.graph.model import (
    INDEX,
    NAME,
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
from runner.graph.source import Source
from runner.language.operators import OPERATORS
from runner.language.syntax import Expression


def graph(statements: Sequence[Statement], given: Iterable[str], *, choosing: bool = True) -> Graph:
    """The graph of some lines that begin with the values of these names.

    Where nothing is `choosing`, what `cond` and `switch` choose between is computed, and a `where` takes one of it.
    """
    reader = _Reader({}, choosing=choosing)
    inputs = tuple(reader.value(name) for name in given)
    reader.statements(statements, 0)
    names = dict(reader.names)
    return Graph(inputs, tuple(reader.equations), tuple(names.values()), names)


class _Reader:
    """Reads lines into the equations of one graph; those of its bodies have readers of their own."""

    def __init__(self, names: dict[str, int], numbers: Iterator[int] | None = None, *, choosing: bool) -> None:
        self.names = names
        """The numbers of what there is, by its name."""
        self.equations: list[Equation] = []
        self._numbers = itertools.count() if numbers is None else numbers
        self._choosing = choosing
        self._line: Line
        self._text = ""

    def value(self, name: str = "") -> Value:
        """A new value."""
        value = Value(next(self._numbers), name)
        if name:
            self.names[name] = value.number
        return value

    def inside(self) -> _Reader:
        """A reader of lines that know what there is here."""
        return _Reader(dict(self.names), self._numbers, choosing=self._choosing)

    def statements(self, statements: Sequence[Statement], depth: int) -> None:
        """The equations of lines that stand in `depth` calls."""
        for part in branches.parts(statements, depth) if self._choosing else statements:
            match part:
                case Node():
                    self._named(part.expression, part.line, part.name)
                case Loop():
                    self._repeat(part)
                case branches.Choice():
                    self._choice(part)

    def _named(self, expression: Expression, line: Line, name: str = "") -> int:
        """The number of the value of a line."""
        self._line, self._text = line, expression.text
        before = len(self.equations)
        operand = self._operand(expression.tree)
        if not isinstance(operand, Ref) or len(self.equations) == before:
            operand = self._put(NAME, expression.tree, (operand,), spelled="name")
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
        node: ast.expr,
        operands: tuple[Operand, ...],
        named: tuple[tuple[str, Operand], ...] = (),
        spelled: Spelled = "call",
    ) -> Ref:
        value, source = self.value(), self._source(node)
        self.equations.append(Equation(operation, operands, (value,), source, named, spelled))
        return Ref(value.number, source)

    def _source(self, node: ast.expr) -> Source:
        if not hasattr(node, "lineno"):
            return Source(self._line, self._text)
        return Source(self._line, self._text, node.col_offset, node.end_col_offset)

    def _ref(self, name: str, node: ast.expr) -> Ref:
        return Ref(self.names[name], self._source(node))

    def _operand(self, node: ast.expr) -> Operand:
        match node:
            case ast.Constant(value=value):
                return Const(value)
            case ast.Name(id=name):
                return self._ref(name, node) if name in self.names else Size(name)
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if f"{loop}.{carried}" in self.names:
                return self._ref(f"{loop}.{carried}", node)
            case ast.Attribute(value=value):
                return self._put("transpose", node, (self._operand(value),), spelled=".T")
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                operands = (self._operand(left), self._operand(right))
                return self._put(OPERATORS[type(op)].name, node, operands, spelled="operator")
            case ast.UnaryOp(op=op, operand=operand):
                return self._put(OPERATORS[type(op)].name, node, (self._operand(operand),), spelled="operator")
            case ast.Tuple(elts=elements):
                return Group(tuple(map(self._operand, elements)))
            case ast.List(elts=elements):
                return Group(tuple(map(self._operand, elements)), "list")
            case ast.Slice(lower=lower, upper=upper, step=step):
                return Slice(*(Const(None) if part is None else self._operand(part) for part in (lower, upper, step)))
            case ast.Subscript(value=value, slice=index):
                return self._put(INDEX, node, (self._operand(value), self._operand(index)), spelled="index")
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                operands = tuple(map(self._operand, args))
                named = tuple((str(keyword.arg), self._operand(keyword.value)) for keyword in keywords)
                return self._put(name, node, operands, named)
            case ast.Lambda():
                return self._function(node)
            case _:
                raise AssertionError(ast.dump(node))  # `runner/language/syntax.py` lets nothing else through

    def _function(self, node: ast.Lambda) -> Function:
        inside = self.inside()
        inputs = tuple(inside.value(each.arg) for each in node.args.args)
        result = inside._named(Expression(self._text, node.body), self._line)
        return Function(Graph(inputs, tuple(inside.equations), (result,)))

    def _repeat(self, loop: Loop) -> None:
        firsts = [self._first(first, loop.first(name)) for name, first in loop.carry]
        over = [self._first(whole, loop.whole(name)) for name, whole in loop.over]
        inside = self.inside()
        inputs = tuple(inside.value(name) for name in (*loop.given, loop.index))
        inside.statements(loop.body, len(loop.line.calls))
        ends = [*(name for name, _ in loop.carry), *(inner for _, inner in loop.stack)]
        body = Graph(inputs, tuple(inside.equations), tuple(inside.names[end] for end in ends), inside.names)
        results = tuple(self.value(f"{loop.name}.{name}") for name in loop.results)
        starts = tuple(source for _, source in (*firsts, *over))
        form = Repeat(loop.line, loop.steps, len(firsts), starts, loop.unroll, loop.checkpoint)
        operands = tuple(operand for operand, _ in (*firsts, *over))
        self.equations.append(Equation("repeat", operands, results, Source(loop.line), form=form, bodies=(body,)))

    def _first(self, expression: Expression, line: Line) -> tuple[Ref, Source]:
        """What a repeat begins with, and where that is written."""
        number, source = self._named(expression, line), self.equations[-1].source
        return Ref(number, source), source

    def _choice(self, choice: branches.Choice) -> None:
        bodies: list[Graph] = []
        for branch in choice.branches:
            inside = self.inside()
            inside.statements(branch.lines, choice.depth)
            outputs = tuple(inside.names[line.name] for line in branch.gives if isinstance(line, Node))
            bodies.append(Graph((), tuple(inside.equations), outputs, inside.names))
        taken: list[Source] = []
        for line in choice.results:
            self._line, self._text = line.line, line.expression.text
            taken.append(replace(self._source(line.expression.tree), whole=True))
        form = Choice(choice.call, tuple(branch.call for branch in choice.branches), tuple(taken))
        on = Ref(self.names[choice.on])
        results = tuple(self.value(line.name) for line in choice.results)
        self.equations.append(Equation(choice.call.function, (on,), results, taken[0], form=form, bodies=tuple(bodies)))
