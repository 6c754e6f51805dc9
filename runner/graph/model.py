"""A section as data: inputs, equations, outputs.

An equation applies one operation to operands and numbers its results. A nested expression becomes several equations, in
Python's order of evaluation, whose results are unnamed. The body of a repeat or a call, the branches of a choice and a
function that combines two values are graphs of their own, which may read values of the enclosing graph: numbers are
unique in a section.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.graph.source import Checkpoint, FunctionCall, Line, Source
from runner.graph.term import NOTHING, Apply, Const, Group, Part, Slice, Spelled, Term


@dataclass(frozen=True)
class Value:
    """A value of a section, with its number; `name` is the name of its line, "" for a part of an expression."""

    number: int
    name: str = ""


@dataclass(frozen=True)
class Ref:
    """An operand that reads a value; `source` is the place of the name or the part of the expression that is read."""

    number: int
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Size:
    """An operand that is a named number: a dim, or `inf`."""

    name: str


@dataclass(frozen=True)
class CombiningFunction:
    """An operand that is a function which combines two values."""

    body: Graph


Operand: TypeAlias = "Ref | Const | Size | Group[Operand] | Slice[Operand] | CombiningFunction"

NAME, INDEX = "name", "index"
"""The operations of equations without a call: a line that is a name, a literal or a tuple; a subscript."""


ASSUMED_STEPS = 10
"""The number of steps for which the costs of a `while` are counted where layouts are chosen; its own is not known."""


@dataclass(frozen=True)
class Region:
    """A `shard_map` inside a graph: its body is what each device computes, with collectives.

    - `manual`: the mesh axes along which it divides the devices; inside of another region, these are further ones. Over
      axes that no region has a value is whole, and the compiler shards it.
    - `in_specs`, `out_specs`: how each operand is sharded over them on the way in, and how each result is joined on
      the way out.
    - `check_vma`: whether JAX tracks the axes over which values may vary.
    """

    manual: tuple[str, ...]
    in_specs: tuple[Spec, ...]
    out_specs: tuple[Spec, ...]
    check_vma: bool = True


@dataclass(frozen=True)
class LoopForm:
    """How a loop runs, by the names in it: a repeat or `scan`, a `while`, or a `shard_map` inside a function.

    - `steps`: None for a `while`, which takes a step as long as the carried value `going` is true.
    - `index`: the name of the step's number; a `while` and a `region` have none.
    - `stack`: the names of the stacked results, each with its name in the body.
    - `unroll`: whether the step's number is a Python integer; `checkpoint`: what a step keeps for the backward pass;
      None: everything.
    """

    steps: int | None
    index: str = "i"
    stack: Mapping[str, str] = field(default_factory=dict[str, str])
    going: str = ""
    region: Region | None = None
    unroll: bool = False
    checkpoint: Checkpoint | None = None

    @property
    def counted(self) -> int:
        """The number of steps for which its costs are counted."""
        return ASSUMED_STEPS if self.steps is None else self.steps

    @property
    def counter(self) -> str:
        """The name of the step's number, "" where there is none."""
        return "" if self.steps is None or self.region is not None else self.index


@dataclass(frozen=True)
class Repeat:
    """A repeat of `steps` steps. The inputs of its body are the carries, then the slices, then the index of the step.

    With a `region` it is a `shard_map`: the inputs of its body are the shards of its operands, and it has no index.
    Without a number of steps it is a `while`: it takes a step as long as the carry at the position `going` is true. It
    has no slices, stacks nothing, and has no index.

    - `line`: the line of the repeat.
    - `carried`: the number of operands, and of results, that are carried; a step takes slices of the other operands,
      and the other results are stacked.
    - `starts`: for each operand, the place where it is written.
    - `unroll`: whether the index is a Python integer; `checkpoint`: what a step keeps for the backward pass; None:
      everything.
    - `sized_by`: the values from which its number of steps was computed.
    """

    line: Line
    steps: int | None
    carried: int
    starts: tuple[Source, ...]
    unroll: bool
    checkpoint: Checkpoint | None = None
    region: Region | None = None
    going: int | None = None
    sized_by: tuple[int, ...] = ()

    @property
    def indexed(self) -> bool:
        """Whether the last input of its body is the index of the step."""
        return self.region is None and self.going is None

    @property
    def counted(self) -> int:
        """The number of steps for which its costs are counted."""
        return ASSUMED_STEPS if self.steps is None else self.steps

    def end(self, carried: Value) -> str:
        """The path of a carried value at the end of a step: `ring/acc`."""
        return f"{self.line.path}/{carried.name}"

    def result(self, value: Value) -> str:
        """The path of a result of the repeat: `ring.acc`."""
        # The name of a result may be prefixed by the name of the repeat.
        return f"{self.line.path}.{value.name.rpartition('.')[2]}"

    def scans(self, body: Graph) -> bool:
        """Whether its steps take slices or stack results."""
        return len(self.starts) > self.carried or len(body.outputs) > self.carried


@dataclass(frozen=True)
class CalledFunction:
    """A call of one of the experiment's own functions; its operands are the inputs of its body.

    `taken`: the places of the lines that give its results.
    """

    call: FunctionCall
    taken: tuple[Source, ...]


@dataclass(frozen=True)
class Branches:
    """A call of `cond` or `switch`: its operand is the predicate or index, its `bodies` the branches in JAX's order.

    - `calls`: the call that each branch makes; `given`: for each branch, the values that it is called with; None: its
      lines read the enclosing values.
    - `taken`: the places of the lines that select the results of the branch taken; `selecting`: these lines, which read
      the values of all branches.
    """

    call: FunctionCall
    calls: tuple[FunctionCall, ...]
    given: tuple[tuple[Ref, ...] | None, ...]
    taken: tuple[Source, ...]
    selecting: Graph


@dataclass(frozen=True)
class Equation:
    """One operation applied to operands.

    - `operation`: the name of its row, `NAME`, `INDEX`, `repeat`, `cond`, `switch`, or the name of a function.
    - `operands`: those given by position; `named`: those given by name.
    - `results`: one value, except for repeats, calls and choices, which may have several.
    - `form`, `bodies`: for a repeat, a call or a choice, its details and its graphs.
    """

    operation: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    source: Source
    named: tuple[tuple[str, Operand], ...] = ()
    spelled: Spelled = "call"
    form: Repeat | CalledFunction | Branches | None = None
    bodies: tuple[Graph, ...] = ()

    @property
    def arguments(self) -> tuple[Operand, ...]:
        """All operands, those by position first."""
        return (*self.operands, *(operand for _, operand in self.named))

    @property
    def flat(self) -> list[Operand]:
        """All operands, with lists and tuples flattened: as repairs and programs number them."""
        return flat(self.arguments)

    def argument(self, name: str | None, signature: inspect.Signature) -> Operand | None:
        """The operand for the parameter `name` of the operation's `signature`; None where there is none."""
        given = dict(zip(signature.parameters, self.operands, strict=False)) | dict(self.named)
        return None if name is None else given.get(name)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the values that it reads, with repetitions, including those that its bodies capture."""
        inside = (number for body in self.bodies for number in body.captured)
        given = self.form.given if isinstance(self.form, Branches) else ()
        read = (*self.arguments, *(operand for operands in given for operand in operands or ()))
        return (*(number for operand in read for number in read_by(operand)), *inside)


@dataclass(frozen=True)
class Graph:
    """Equations in order, with their inputs; `outputs` are the numbers of the graph's results."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[int, ...] = ()
    names: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """The numbers of the values by the names that lines and repeats give them: `C`, `ring.acc`."""
    without_calls: list[Graph] = field(default_factory=list["Graph"], init=False, repr=False, compare=False)
    """The same without calls (`runner/graph/inlining.py`), once it was made."""

    def __bool__(self) -> bool:
        """Whether it has equations: a section that a file does not have has none."""
        return bool(self.equations)

    def __str__(self) -> str:
        """Print a line for each equation, `%3 C = psum(%2, 'x')`, with the equations of its bodies indented below."""
        return "\n".join(_lines(self, ""))

    @cached_property
    def defines(self) -> frozenset[int]:
        """The numbers of its inputs and of the results of its own equations."""
        given = {value.number for equation in self.equations for value in equation.results}
        return frozenset({*given, *(value.number for value in self.inputs)})

    @cached_property
    def captured(self) -> frozenset[int]:
        """The numbers of the enclosing values that it reads."""
        read = {number for equation in self.equations for number in equation.reads} | set(self.outputs)
        return frozenset(read - self.defines)

    @cached_property
    def needed(self) -> frozenset[str]:
        """The names of the inputs on which its equations depend."""
        read = frozenset(number for equation in self.equations for number in dependencies(equation))
        return frozenset(value.name for value in self.inputs if value.number in read)

    @cached_property
    def producers(self) -> Mapping[int, Equation]:
        """The equation that produces each value, bodies included."""
        return {value.number: equation for equation in walk(self) for value in equation.results}

    @cached_property
    def last(self) -> Mapping[int, int]:
        """For each value that the graph reads or produces, the position of the last equation that does so."""
        last: dict[int, int] = {}
        for position, equation in enumerate(self.equations):
            last.update(dict.fromkeys((*(value.number for value in equation.results), *equation.reads), position))
        return last

    @cached_property
    def released(self) -> tuple[tuple[int, ...], ...]:
        """For each equation, the numbers of the graph's own values that no later equation reads."""
        released: list[list[int]] = [[] for _ in self.equations]
        for number, position in self.last.items():
            if number in self.defines:
                released[position].append(number)
        return tuple(map(tuple, released))


def dependencies(equation: Equation) -> frozenset[int]:
    """The values that an equation depends on: those that it reads, and of which its number of steps was computed."""
    form = equation.form
    more = form.sized_by if isinstance(form, Repeat) else form.selecting.captured if isinstance(form, Branches) else ()
    return frozenset((*equation.reads, *more))


def inside(operand: Operand) -> tuple[Operand, ...]:
    """The parts of a tuple, a list or a slice; empty for any other operand."""
    match operand:
        case Group(items=items):
            return items
        case Slice(lower=lower, upper=upper, step=step):
            return lower, upper, step
        case _:
            return ()


def kind_of(operand: Operand) -> Literal["", "tuple", "list", "slice"]:
    """What an operand with parts is; "" for any other."""
    match operand:
        case Group(kind=kind):
            return kind
        case Slice():
            return "slice"
        case _:
            return ""


def entries(index: Operand) -> tuple[Operand, ...]:
    """The entries between the brackets of a subscript, dimension by dimension."""
    return inside(index) if kind_of(index) == "tuple" else (index,)


def is_number(operand: Operand) -> bool:
    """Whether an operand is a literal, or a named number, and so the same in each dtype."""
    return isinstance(operand, Const | Size)


def valued(operand: Operand, parts: Iterable[Any]) -> Any:
    """The Python value of a literal, or of a tuple, list or slice with `parts` as the values of its parts."""
    match operand:
        case Const(value=value):
            return value
        case Slice():
            return slice(*parts)
        case _:
            return tuple(parts) if kind_of(operand) == "tuple" else list(parts)


def with_parts(operand: Operand, parts: Sequence[Part]) -> Const | Group[Part] | Slice[Part]:
    """A tuple, list or slice of other parts; a literal as it is."""
    match operand:
        case Group(kind=kind):
            return Group(tuple(parts), kind)
        case Slice():
            lower, upper, step = parts
            return Slice(lower, upper, step)
        case _:
            assert isinstance(operand, Const)
            return operand


def flat(operands: Iterable[Operand]) -> list[Operand]:
    """The operands, with lists and tuples among them flattened by one level."""
    return [part for operand in operands for part in (operand.items if isinstance(operand, Group) else (operand,))]


def read_by(operand: Operand) -> Iterator[int]:
    """Yield the numbers of the values that an operand reads."""
    match operand:
        case Ref(number=number):
            yield number
        case CombiningFunction(body=body):
            yield from body.captured
        case _:
            for part in inside(operand):
                yield from read_by(part)


def walk(graph: Graph) -> Iterator[Equation]:
    """Yield every equation, each before those of its bodies and of the functions among its operands."""
    for equation in graph.equations:
        yield equation
        functions = (operand.body for operand in equation.arguments if isinstance(operand, CombiningFunction))
        for body in (*equation.bodies, *functions):
            yield from walk(body)


def literal(part: Operand | Term | None) -> Any:
    """The Python value of a literal operand or term, such as `'x'`, `('x', 'y')` or `-2`; None for any other."""
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
        case CombiningFunction(body=body):
            inputs = ", ".join(f"%{value.number} {value.name}" for value in body.inputs)
            return f"({inputs}) -> {'; '.join(_lines(body, ''))}"
