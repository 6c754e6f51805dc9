"""A section as data: inputs, equations, outputs.

An equation applies one operation to operands and numbers its results; a nested expression is equations whose results no
line names, in the order in which Python evaluates its parts. What stands inside of an equation (the body of a repeat, a
call, the branches of a choice, a function that combines two values) is a graph of its own, which may read the values
around it: no two values of a section have one number.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from runner.graph.source import Call, Checkpoint, Line, Source
from runner.graph.term import NOTHING, Apply, Const, Group, Slice, Spelled, Term


@dataclass(frozen=True)
class Value:
    """A value of a section, by its number; `name` is what its line calls it, "" where no line does."""

    number: int
    name: str = ""


@dataclass(frozen=True)
class Ref:
    """A value that is read; `source` is where its name or what gives it stands there."""

    number: int
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Size:
    """A number that has a name wherever an expression stands: a dim, or `inf`."""

    name: str


@dataclass(frozen=True)
class Function:
    """A function as an operand: what combines two values."""

    body: Graph


Operand: TypeAlias = "Ref | Const | Size | Group[Operand] | Slice[Operand] | Function"

NAME, INDEX = "name", "index"
"""The operations of what calls none: a line that is a name, a literal or a tuple; a subscript."""


@dataclass(frozen=True)
class Repeat:
    """A repeat of `steps` steps.

    - `line`: of which it is the line; the inputs of its body are what is carried, then the slices, then the index.
    - `carried`: how many of the operands, and of the results, are carried; of the other operands a step takes slices,
      the other results are stacked.
    - `starts`: where what it begins with is written, for each operand.
    - `unroll`: whether a step is one of Python's numbers; `checkpoint`: what is kept of one; None: everything.
    """

    line: Line
    steps: int
    carried: int
    starts: tuple[Source, ...]
    unroll: bool
    checkpoint: Checkpoint | None = None

    def end(self, carried: Value) -> str:
        """The path of what a carried input of the body has at the end of a step."""
        return f"{self.line.path}/{carried.name}"

    def result(self, value: Value) -> str:
        """The path of one of the results."""
        # Its own name has no dot, whatever its repeat is called.
        return f"{self.line.path}.{value.name.rpartition('.')[2]}"

    def scans(self, body: Graph) -> bool:
        """Whether its steps take slices, or are stacked."""
        return len(self.starts) > self.carried or len(body.outputs) > self.carried


@dataclass(frozen=True)
class Called:
    """A call of a function of the experiment's own; the operands are those of its body's inputs.

    `taken` is where the lines stand that say what it gives.
    """

    call: Call
    taken: tuple[Source, ...]


@dataclass(frozen=True)
class Choice:
    """A call of `cond` or `switch`: the operand is what it hangs on, `bodies` are the branches in JAX's order.

    - `calls`: the calls that the branches are; `given`: for each the values that it is called with; None: its lines
      read those around them.
    - `taken`: where the lines stand that take the values of one of them.
    """

    call: Call
    calls: tuple[Call, ...]
    given: tuple[tuple[Ref, ...] | None, ...]
    taken: tuple[Source, ...]


@dataclass(frozen=True)
class Equation:
    """One operation.

    - `operation`: the name of its row, or `NAME`, `INDEX`, `repeat`, `cond`, `switch`, the name of a function.
    - `operands`: by position; `named`: by name.
    - `results`: what it gives: one value but for repeats, calls and choices, of which each result is one.
    - `form`, `bodies`: what it is besides a call of a row, and the graphs inside of it.
    """

    operation: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    source: Source
    named: tuple[tuple[str, Operand], ...] = ()
    spelled: Spelled = "call"
    form: Repeat | Called | Choice | None = None
    bodies: tuple[Graph, ...] = ()

    @property
    def arguments(self) -> tuple[Operand, ...]:
        """All operands, those by position first."""
        return (*self.operands, *(operand for _, operand in self.named))

    @property
    def flat(self) -> list[Operand]:
        """All operands, lists and tuples taken apart: as repairs and programs number them."""
        return flat(self.arguments)

    def argument(self, name: str | None, signature: inspect.Signature) -> Operand | None:
        """The operand that a call gives the parameter `name` of its operation, if it gives it one."""
        given = dict(zip(signature.parameters, self.operands, strict=False)) | dict(self.named)
        return None if name is None else given.get(name)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The numbers of what it reads, as often as it reads them, in its bodies too."""
        inside = (number for body in self.bodies for number in body.captured)
        given = self.form.given if isinstance(self.form, Choice) else ()
        read = (*self.arguments, *(operand for operands in given for operand in operands or ()))
        return (*(number for operand in read for number in read_by(operand)), *inside)


@dataclass(frozen=True)
class Graph:
    """Equations, in their order, of inputs; `outputs` are the numbers of what it gives."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[int, ...] = ()
    names: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """What its lines call its values, and the repeats what they give: `C`, `ring.acc`."""

    def __str__(self) -> str:
        """A line for each equation: `%3 C = psum(%2, 'x')`, those of bodies below, indented."""
        return "\n".join(_lines(self, ""))

    @cached_property
    def defines(self) -> frozenset[int]:
        """The numbers of its inputs and of what its own equations give."""
        given = {value.number for equation in self.equations for value in equation.results}
        return frozenset({*given, *(value.number for value in self.inputs)})

    @cached_property
    def captured(self) -> frozenset[int]:
        """The numbers of values around it that it reads."""
        read = {number for equation in self.equations for number in equation.reads} | set(self.outputs)
        return frozenset(read - self.defines)

    @cached_property
    def producers(self) -> Mapping[int, Equation]:
        """The equation that gives each value, of the bodies too."""
        return {value.number: equation for equation in walk(self) for value in equation.results}

    @cached_property
    def last(self) -> Mapping[int, int]:
        """The position of the last equation that reads a value or gives it, for each that it reads or gives."""
        last: dict[int, int] = {}
        for position, equation in enumerate(self.equations):
            last.update(dict.fromkeys((*(value.number for value in equation.results), *equation.reads), position))
        return last

    @cached_property
    def released(self) -> tuple[tuple[int, ...], ...]:
        """After each equation, which of the graph's own values no later one reads."""
        released: list[list[int]] = [[] for _ in self.equations]
        for number, position in self.last.items():
            if number in self.defines:
                released[position].append(number)
        return tuple(map(tuple, released))


def inside(operand: Operand) -> tuple[Operand, ...]:
    """The parts of a tuple, a list or a slice; none of what is no such operand."""
    match operand:
        case Group(items=items):
            return items
        case Slice(lower=lower, upper=upper, step=step):
            return lower, upper, step
        case _:
            return ()


def flat(operands: Iterable[Operand]) -> list[Operand]:
    """Operands with lists and tuples among them taken apart."""
    return [item for operand in operands for item in (operand.items if isinstance(operand, Group) else (operand,))]


def read_by(operand: Operand) -> Iterator[int]:
    """The numbers of the values that an operand reads."""
    match operand:
        case Ref(number=number):
            yield number
        case Function(body=body):
            yield from body.captured
        case _:
            for part in inside(operand):
                yield from read_by(part)


def walk(graph: Graph) -> Iterator[Equation]:
    """Every equation, each before those of its bodies and of the functions among its operands."""
    for equation in graph.equations:
        yield equation
        functions = (operand.body for operand in equation.arguments if isinstance(operand, Function))
        for body in (*equation.bodies, *functions):
            yield from walk(body)


def literal(part: Operand | Term | None) -> Any:
    """What an operand or a term says literally: `'x'`, `('x', 'y')`, `-2`; None for what is no literal."""
    match part:
        case Const(value=value):
            return value
        case Group(items=items, kind=kind):
            values = (literal(item) for item in items)
            return tuple(values) if kind == "tuple" else list(values)
        case Apply(operation="negative", operands=(Const(value=int() | float() as number),)):
            return -number
        case _:
            return None


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    for equation in graph.equations:
        results = ", ".join(f"%{value.number} {value.name}".rstrip() for value in equation.results)
        operands = [*map(_text, equation.operands), *(f"{name}={_text(operand)}" for name, operand in equation.named)]
        yield f"{indent}{results} = {equation.operation}({', '.join(operands)})"
        for body in equation.bodies:
            inputs = ", ".join(f"%{value.number} {value.name}" for value in body.inputs)
            yield f"{indent}  ({inputs}) gives {', '.join(f'%{number}' for number in body.outputs)}:"
            yield from _lines(body, f"{indent}    ")


def _text(operand: Operand) -> str:
    match operand:
        case Ref(number=number):
            return f"%{number}"
        case Const(value=value):
            return "..." if value is ... else repr(value)
        case Size(name=name):
            return name
        case Group(items=items, kind=kind):
            inside = ", ".join(map(_text, items))
            return f"[{inside}]" if kind == "list" else f"({inside}{',' if len(items) == 1 else ''})"
        case Slice(lower=lower, upper=upper, step=step):
            first, last, by = ("" if part == NOTHING else _text(part) for part in (lower, upper, step))
            return f"{first}:{last}" + (f":{by}" if by else "")
        case Function(body=body):
            inputs = ", ".join(f"%{value.number} {value.name}" for value in body.inputs)
            return f"({inputs}) -> {'; '.join(_lines(body, ''))}"
