"""Reads the lines of a graph, as they are written, from its equations: names, texts and terms.

Only of a graph without calls, which `runner/graph/inlining.py` makes. The parts of a line, and the operations that they
call, are found and replaced here too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from runner.base.lazy import dataclass
from runner.graph.language.operations import NO_OPERATION, OPERATIONS, Operation
from runner.graph.language.operators import BY_NAME
from runner.graph.language.syntax import Expression
from runner.graph.model import INDEX, Equation, Graph, LoopForm, Region, Repeat, dependencies
from runner.graph.source import Line
from runner.graph.spelling import Spelling
from runner.graph.term import Apply, Const, Group, Lambda, Listed, Slice, Term, children, within


@dataclass(frozen=True, eq=False)
class RepeatLines:
    """A repeat by the names in it, where `form` has the numbers."""

    equation: Equation
    form: Repeat

    @property
    def line(self) -> Line:
        """Its line."""
        return self.form.line

    @property
    def name(self) -> str:
        """The first part of its results' names."""
        return self.line.name

    @property
    def body(self) -> Graph:
        """The graph of a step."""
        return self.equation.bodies[0]

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The names that its body starts with, without the index: the carries, then the slices."""
        return tuple(value.name for value in self.body.inputs[: len(self.equation.operands)])

    @property
    def carry(self) -> tuple[str, ...]:
        """The carries."""
        return self.given[: self.form.carried]

    @property
    def over(self) -> tuple[str, ...]:
        """The slices."""
        return self.given[self.form.carried :]

    @property
    def bound(self) -> tuple[str, ...]:
        """The names that its body starts with, the index last where it has one."""
        return tuple(value.name for value in self.body.inputs)

    @property
    def index(self) -> str:
        """The name of the step's number, "" where it has none."""
        return self.bound[-1] if self.form.indexed else ""

    @property
    def going(self) -> str:
        """The carry that decides whether a `while` takes another step; "" for any other repeat."""
        return "" if self.form.going is None else self.carry[self.form.going]

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of its results, without its own: the carries, then the stacked ones."""
        return tuple(value.name.rpartition(".")[2] for value in self.equation.results)

    @cached_property
    def stack(self) -> dict[str, str]:
        """The names of the stacked results, each with its name in the body."""
        inside = {number: name for name, number in self.body.names.items()}
        ends = zip(self.results, self.body.outputs, strict=True)
        return {name: inside[number] for name, number in list(ends)[self.form.carried :]}

    @property
    def by_name(self) -> LoopForm:
        """How it runs, by the names in it."""
        form = self.form
        return LoopForm(form.steps, self.index, self.stack, self.going, form.region, form.unroll, form.checkpoint)

    @property
    def often(self) -> str:
        """Its number of steps in words."""
        steps = self.form.steps
        return f"steps while {self.going}" if steps is None else f"{steps} step{'s' if steps != 1 else ''}"

    def firsts(self, spelling: Spelling) -> Iterator[tuple[Line, Expression]]:
        """The initial values, in their order in the file."""
        for start, operand in zip(self.form.starts, self.equation.operands, strict=True):
            yield start.line, Expression(start.text, spelling.operand(operand))


def repeat(equation: Equation) -> RepeatLines | None:
    """The names in a repeat; None for any other equation."""
    return RepeatLines(equation, equation.form) if isinstance(equation.form, Repeat) else None


def lines(graph: Graph) -> Iterator[Equation]:
    """The lines and repeats of a graph, without those inside: each line's last equation."""
    for equation in graph.equations:
        if isinstance(equation.form, Repeat) or (equation.source.whole and equation.source.line.first is None):
            yield equation


def line_of(equation: Equation) -> Line:
    """The identity of a line or a repeat."""
    return equation.form.line if isinstance(equation.form, Repeat) else equation.source.line


def expressions(graph: Graph) -> Iterator[tuple[Line, Expression]]:
    """Every expression of a graph, with its line; those of a repeat after its initial values."""
    spelling = Spelling.of(graph)

    def inside(graph: Graph) -> Iterator[tuple[Line, Expression]]:
        for equation in graph.equations:
            if equation.form is None and equation.source.whole:
                yield equation.source.line, Expression(equation.source.text, spelling.equation(equation))
            for body in equation.bodies:
                yield from inside(body)

    return inside(graph)


def every_line(graph: Graph) -> Iterator[Line]:
    """The lines and repeats of a graph and of the bodies of its repeats."""
    for equation in lines(graph):
        yield line_of(equation)
        for body in equation.bodies:
            yield from every_line(body)


def paths(graph: Graph) -> Iterator[tuple[str, str]]:
    """The path of each value, and its name in a constraint: `layers.h`, also for a value inside `layers`."""
    for equation in lines(graph):
        line, of = line_of(equation), repeat(equation)
        yield line.path, str(line)
        if of is not None:
            yield from ((f"{line.path}.{name}", f"{line}.{name}") for name in of.results)
            yield from paths(of.body)


def regions(graph: Graph) -> Iterator[Region]:
    """The `shard_map`s of the user's own in a graph and inside its repeats."""
    for equation in graph.equations:
        if isinstance(equation.form, Repeat):
            if equation.form.region is not None:
                yield equation.form.region
            yield from regions(equation.bodies[0])


def reached(graph: Graph, names: Iterable[str]) -> frozenset[int]:
    """The values with these names, and the graph's own values that depend on them."""
    wanted = set(names)
    known = {value.number for value in graph.inputs if value.name in wanted}
    known |= {graph.names[name] for name in wanted if name in graph.names}
    for equation in graph.equations:
        if not known.isdisjoint(dependencies(equation)):
            known |= {value.number for value in equation.results}
    return frozenset(known)


def parts(term: Term) -> Iterator[Term]:
    """Yield the parts of an expression that have a value of their own, parents first."""
    yield term
    match term:
        case Lambda() | Listed():
            return
        case Apply(spelled="index", operands=(x, Group(items=items, kind="tuple"))):
            inside = (x, *items)
        case _:
            inside = children(term)
    for part in inside:
        if not isinstance(part, Slice):
            yield from parts(part)


def called(term: Term) -> Operation:
    """The row of the operation that a term calls, by name or by an operator; `NO_OPERATION` where it calls none."""
    match term:
        case Apply(operation=operation, spelled="call" | "operator"):
            return OPERATIONS[operation]
        case _:
            return NO_OPERATION


def calls_in(term: Term) -> Iterator[tuple[Apply, Operation]]:
    """Yield each call of an operation in a term, by name or by an operator, with its row, parents first."""
    for part in within(term):
        row = called(part)
        if isinstance(part, Apply) and row is not NO_OPERATION:
            yield part, row


def operator(operation: str, *operands: Term) -> Apply:
    """Build a unary or binary operator term: `operator("add", a, b)` is `a + b`."""
    return Apply(operation, operands, spelled="operator")


def computed(operation: str, *operands: Term) -> Apply:
    """Build what an operation computes of operands: an operator term if it has an operator, else a call."""
    return operator(operation, *operands) if operation in BY_NAME else Apply(operation, operands)


def at_index(x: Term, index: Term) -> Apply:
    """Build `x[index]`; `index` may be a tuple."""
    return Apply(INDEX, (x, index), spelled="index")


def plus(term: Term, by: int) -> Term:
    """Build `term + by`, or `term - by` for a negative number; an integer literal is evaluated."""
    if isinstance(term, Const) and isinstance(term.value, int) and not isinstance(term.value, bool):
        return Const(term.value + by)
    return operator("add" if by > 0 else "subtract", term, Const(abs(by)))


def transposed(term: Term) -> Term:
    """Build `x.T`; `x.T` becomes `x`."""
    if isinstance(term, Apply) and term.spelled == ".T":
        return term.operands[0]
    return Apply("transpose", (term,), spelled=".T")


def axes_of(axes: tuple[str, ...]) -> Term:
    """Build the argument for mesh axes: `'x'`, `('x', 'y')`."""
    names = tuple(map(Const, axes))
    return names[0] if len(names) == 1 else Group(names)


def value_of(term: Term, operators: Container[str] = BY_NAME) -> Any:
    """The value of a term of literals, tuples, lists and these operators. Raises `ValueError` for any other."""
    match term:
        case Const(value=value):
            return value
        case Group(items=items, kind=kind):
            return (list if kind == "list" else tuple)(value_of(item, operators) for item in items)
        case Apply(operation=operation, operands=operands, spelled="operator") if operation in operators:
            return BY_NAME[operation].python(*(value_of(operand, operators) for operand in operands))
        case _:
            raise ValueError(term)


def place_of(call: Apply, parameter: str) -> int | str | None:
    """The position or the name by which a call gives `parameter`; None where it does not."""
    if parameter in dict(call.named):
        return parameter
    names = list(called(call).signature.parameters)[: len(call.operands)]
    return names.index(parameter) if parameter in names else None


def argument(call: Apply, at: int | str) -> Term:
    """The argument of a call at a position or with a name."""
    return call.operands[at] if isinstance(at, int) else dict(call.named)[at]


def with_argument(call: Apply, at: int | str, new: Term) -> Apply:
    """Replace the argument of a call at a position or with a name."""
    if isinstance(at, int):
        return replace(call, operands=(*call.operands[:at], new, *call.operands[at + 1 :]))
    return replace(call, named=tuple((name, new if name == at else old) for name, old in call.named))
