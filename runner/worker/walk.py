"""Evaluates a graph on JAX values, which are abstract: tracers without devices or data."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache
from operator import attrgetter
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.experiment.model import Experiment, Section
from runner.experiment.plain import located
from runner.graph.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, Operation
from runner.graph.language.operators import BY_NAME
from runner.graph.language.syntax import SyntaxFault, fault_at
from runner.graph.model import (
    Branches,
    CalledFunction,
    CombiningFunction,
    Equation,
    Graph,
    Operand,
    Ref,
    Region,
    Repeat,
    Size,
    entries,
    flat,
    inside,
    kind_of,
    literal,
    valued,
)
from runner.graph.source import FunctionCall, Source
from runner.graph.term import elements
from runner.worker import calls, support
from runner.worker.refusing import first_lines, refusal, unfit, unlike, unlike_branches
from runner.worker.specs import partition
from runner.worker.versions import abstract_mesh, sharding_type_errors

# The table names functions in it, and `import jax` does not import it.
importlib.import_module("jax.ad_checkpoint")

REFUSALS = (
    TypeError, ValueError, IndexError, KeyError, NotImplementedError, ArithmeticError, *sharding_type_errors(),
)  # fmt: skip
"""The exceptions that JAX raises if it does not accept operands. Others are bugs, and are not caught."""


@cache
def function(dotted: str) -> Callable[..., Any]:
    """The JAX function that a row of the table names."""
    head, *rest = dotted.split(".")
    resolved: Any = {"jax": jax, "jnp": jnp}[head]
    for part in rest:
        resolved = getattr(resolved, part)
    return resolved


def function_of(operation: Operation) -> Callable[..., Any]:
    """The JAX function of a row; for `x.at[index].add(values)`, a function of `x`, `index` and `values`."""
    method = operation.method
    if method is None:
        return function(operation.jax)

    def call(x: Any, index: Any, *values: Any, **named: Any) -> Any:
        return getattr(x.at[index], method)(*values, **named)

    return call


@dataclass
class Walker:
    """Evaluates lines on JAX values, equation by equation, so that a refusal has a place in the YAML."""

    experiment: Experiment
    values: dict[str, Any]
    """The values by name: before a run those that the lines begin with, after it also those that they define."""
    on_value: Callable[[str, Any], None] = lambda _path, _value: None
    """Called with each named value when it is computed."""
    on_part: Callable[[Source, Any], None] = lambda _source, _value: None
    """Called with the value of each equation and of each value that one reads, and the place where it is written."""
    under_vmap: bool = False
    """Whether the values are mapped by `jax.vmap`, which has no varying axes and raises more kinds of errors."""
    combining: bool = field(init=False, default=False)
    """Whether JAX is calling a function that combines two values; a refusal there is one of the whole call."""
    _numbered: dict[int, Any] = field(init=False, default_factory=dict[int, Any])
    _section: Section = field(init=False, default="graph")
    _in_region: bool = field(init=False, default=False)
    """Whether it is inside of a `shard_map` of the graph, whose mesh one inside of it has too."""

    def run(self, graph: Graph, section: Section) -> None:
        """Evaluate a graph whose inputs are among the values. Raises `InvalidExperiment` at the first refusal."""
        self._section = section
        self._numbered = {value.number: self.values[value.name] for value in graph.inputs}
        self._run(graph)
        self.values.update((name, self._numbered[number]) for name, number in graph.names.items())

    def _run(self, graph: Graph) -> None:
        for equation in graph.equations:
            match equation.form:
                case Repeat(region=Region() as region) as repeat:
                    self._region(equation, repeat, region)
                case Repeat(going=int() as going) as repeat:
                    self._while(equation, repeat, going)
                case Repeat() as repeat:
                    self._repeat(equation, repeat)
                case CalledFunction() as called:
                    self._call(equation, called)
                case Branches() as choice:
                    self._choose(equation, choice)
                case None:
                    (result,) = equation.results
                    self._numbered[result.number] = value = self.equation(equation)
                    source = equation.source
                    if source.whole and source.line.first is None and not self.combining:
                        self.on_value(source.line.path, value)

    def _call(self, equation: Equation, called: CalledFunction) -> None:
        """A call of a function of the experiment's own."""
        (body,) = equation.bodies
        values = self.inside(called.call, body, [self.read(operand) for operand in equation.operands])
        for result, value in zip(equation.results, values, strict=True):
            self._numbered[result.number] = value

    def inside(self, call: FunctionCall, body: Graph, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Evaluate the body of a function or a branch, equation by equation."""
        self._numbered.update(zip((value.number for value in body.inputs), arguments, strict=True))
        self._run(body)
        return tuple(self._numbered[output] for output in body.outputs)

    def equation(self, equation: Equation) -> Any:
        """Evaluate an equation; one that a line names is settled as the line requires."""
        source = equation.source
        value = self.computed(equation)
        if not self.combining:
            self.on_part(source, value)
        if not source.whole or self.combining:
            return value
        if isinstance(value, int):
            # Python's number may be larger than any dtype represents.
            self.apply(equation, jax.typeof, [value])
        elif value is None or isinstance(value, str | slice):
            self.refuse(f"{value!r} is neither an array nor a number", source)
        self._take_apart(value, source)
        return self.settle(source.line.path, value)

    def _take_apart(self, value: Any, source: Source) -> None:
        """Raise if a line unpacks a value into a different number of names than it has parts."""
        names = 0 if source.line.origin is None else source.line.origin.parts
        if not names:
            return
        count: int | None = len(value) if is_sequence(value) else next(iter(getattr(value, "shape", ())), None)
        if count != names:
            gives = "one number" if count is None else f"{count} value{'s' if count != 1 else ''}"
            self.refuse(f"it gives {gives} for {names} names", source)

    def refuse(self, message: str, source: Source) -> NoReturn:
        """Raise `InvalidExperiment` with a message about the part of a line at this place."""
        key, uses = source.line.written(self._section)
        raise InvalidExperiment(located(key, source.text, fault_at(message, source), uses)) from None

    def _choose(self, equation: Equation, choice: Branches) -> None:
        """Evaluate a `cond` or `switch` with the lines of each branch."""
        outer, on = self._numbered, self.read(equation.operands[0])
        ends: dict[int, tuple[Any, ...]] = {}

        def case(number: int, call: FunctionCall, body: Graph, operands: tuple[Ref, ...] | None) -> Callable[[], Any]:
            paths = [body.producers[output].source.line.path for output in body.outputs]

            def taken() -> tuple[Any, ...]:
                self._numbered = dict(outer)
                try:
                    values = self.inside(call, body, [outer[ref.number] for ref in operands or ()])
                finally:
                    self._numbered = outer
                first = next(iter(ends.values()), values)
                ends[number] = tuple(
                    self.carried(path, value, start) for path, value, start in zip(paths, values, first, strict=True)
                )
                return ends[number]

            return taken

        branches = zip(choice.calls, equation.bodies, choice.given, strict=True)
        cases = [case(number, *branch) for number, branch in enumerate(branches)]
        refused = unfit(equation.operation, on)
        values: tuple[Any, ...] = ()
        if refused is None:
            try:
                if equation.operation == "cond":
                    values = calls.cond(on, cases[1], cases[0])
                else:
                    values = calls.switch(on, cases)
            except REFUSALS as error:
                refused = unlike_branches(ends) or f"JAX refuses it: {first_lines(error)}"
        if refused is not None:
            self.refuse(refused, choice.taken[0])
        for result, source, value in zip(equation.results, choice.taken, values, strict=True):
            self.on_part(source, value)
            self._numbered[result.number] = settled = self.settle(source.line.path, value)
            self.on_value(source.line.path, settled)

    def _repeat(self, equation: Equation, repeat: Repeat) -> None:
        (graph,) = equation.bodies
        paths = [repeat.end(value) for value in graph.inputs[: repeat.carried]]
        first = tuple(map(self.read, equation.operands[: repeat.carried]))
        over = self._over(equation, repeat)
        scans = repeat.scans(graph)
        outer = self._numbered
        ends: list[Any] = []

        def body(step: Any, carry: tuple[Any, ...], slices: tuple[Any, ...] = ()) -> tuple[Any, ...]:
            numbers = (value.number for value in graph.inputs)
            self._numbered = outer | dict(zip(numbers, (*carry, *slices, step), strict=True))
            self._run(graph)
            last = [self._numbered[output] for output in graph.outputs]
            stacked.append(last[repeat.carried :])
            starts = zip(paths, last[: repeat.carried], carry, strict=True)
            carried = tuple(self.carried(path, value, start) for path, value, start in starts)
            self._numbered = outer
            ends[:] = [jax.typeof(value) for value in carried]
            return carried

        def scanned(carry: tuple[Any, ...], slices: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
            return body(slices[-1], carry, slices[:-1]), stacked[-1]

        stacked: list[list[Any]] = []
        several: list[Any] = []
        carry: Any = first
        assert repeat.steps is not None
        if repeat.unroll:
            for step in range(repeat.steps):
                carry = body(step, carry, tuple(value[step] for value in over))
            several = [calls.stack(each) for each in zip(*stacked, strict=True)]
        elif repeat.steps:
            try:
                if scans:
                    steps = calls.arange(repeat.steps, dtype="int32")
                    carry, several = calls.scan(scanned, first, (*over, steps))
                else:
                    carry = calls.fori_loop(0, repeat.steps, body, first)
            except REFUSALS as error:
                self._numbered = outer
                self._unlike(graph, repeat, first, ends, "scan" if scans else "fori_loop")
                self._refuse_all(repeat, error)
        self._settle_results(equation, repeat, (*carry, *several))

    def _while(self, equation: Equation, repeat: Repeat, going: int) -> None:
        """Evaluate a `while` with the lines of a step."""
        (graph,) = equation.bodies
        paths, outer = [repeat.end(value) for value in graph.inputs], self._numbered
        first, ends = tuple(map(self.read, equation.operands)), list[Any]()
        refused = unfit("while", first[going])
        if refused is not None:
            self.refuse(refused, repeat.starts[going])

        def goes_on(carry: tuple[Any, ...]) -> Any:
            return carry[going]

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            self._numbered = outer | dict(zip((value.number for value in graph.inputs), carry, strict=True))
            self._run(graph)
            last = zip(paths, (self._numbered[output] for output in graph.outputs), carry, strict=True)
            carried = tuple(self.carried(path, value, start) for path, value, start in last)
            self._numbered = outer
            ends[:] = [jax.typeof(value) for value in carried]
            return carried

        try:
            carry = calls.while_loop(goes_on, body, first)
        except REFUSALS as error:
            self._numbered = outer
            self._unlike(graph, repeat, first, ends, "while_loop")
            self._refuse_all(repeat, error)
        self._settle_results(equation, repeat, carry)

    def _region(self, equation: Equation, repeat: Repeat, region: Region) -> None:
        """Evaluate a `shard_map`, line by line inside of JAX's own."""
        (graph,) = equation.bodies
        outer, experiment, nested = self._numbered, self.experiment, self._in_region

        def shard(*blocks: Any) -> tuple[Any, ...]:
            self._numbered = outer | dict(zip((value.number for value in graph.inputs), blocks, strict=True))
            self.experiment, self._in_region = replace(experiment, check_vma=region.check_vma), True
            try:
                self._run(graph)
                return tuple(self._numbered[output] for output in graph.outputs)
            finally:
                self._numbered, self.experiment, self._in_region = outer, experiment, nested

        mapped = calls.shard_map(
            shard,
            mesh=None if nested or self._section == "per_device" else self.devices(experiment.mesh),
            axis_names=set(region.manual),
            in_specs=tuple(map(partition, region.in_specs)),
            out_specs=tuple(map(partition, region.out_specs)),
            check_vma=region.check_vma,
        )
        try:
            values = mapped(*map(self.read, equation.operands))
        except REFUSALS as error:
            self._refuse_all(repeat, error)
        self._settle_results(equation, repeat, values)

    def _settle_results(self, equation: Equation, repeat: Repeat, values: Sequence[Any]) -> None:
        """Give the results of a repeat, a while or a region their values."""
        for result, value in zip(equation.results, values, strict=True):
            path = repeat.result(result)
            self._numbered[result.number] = settled = self.settle(path, value)
            self.on_value(path, settled)

    def _refuse_all(self, repeat: Repeat, error: Exception) -> NoReturn:
        """Raise `InvalidExperiment` at the line of a repeat, a while or a region that JAX refuses as a whole."""
        key, uses = repeat.line.written(self._section)
        raise InvalidExperiment(located(key, "", SyntaxFault(first_lines(error), 0, 0), uses)) from None

    def devices(self, mesh: Mesh) -> Any:
        """Hook: the devices of a `shard_map` inside the graph; none where values are abstract."""
        return abstract_mesh(mesh)

    def _unlike(self, body: Graph, repeat: Repeat, first: Sequence[Any], ends: Sequence[Any], call: str) -> None:
        """Raise if a carry ends the body with another type than it starts with."""
        for value, start, end, source in zip(body.inputs, first, ends, repeat.starts, strict=False):
            message = unlike(value.name, jax.typeof(start), end, source.text, call)
            if message:
                self.refuse(message, Source(source.line, source.text))

    def _over(self, equation: Equation, repeat: Repeat) -> tuple[Any, ...]:
        """The values that a repeat slices in each step. Raises `InvalidExperiment` if they are too short."""
        slices: list[Any] = []
        sliced = zip(equation.operands, repeat.starts, strict=True)
        for operand, source in list(sliced)[repeat.carried :]:
            value = self.read(operand)
            shape: tuple[int, ...] = getattr(value, "shape", ())
            if not shape or shape[0] != repeat.steps:
                has = f"has {shape[0]} slices along its first dimension" if shape else "has no dimension to slice"
                self.refuse(f"it {has}; the repeat has {repeat.steps} steps", Source(source.line, source.text))
            slices.append(self.taken_apart(source.line.path, value))
        return tuple(slices)

    def taken_apart(self, path: str, value: Any) -> Any:
        """Hook: a value that a repeat slices along its first dimension."""
        return value

    def carried(self, path: str, value: Any, start: Any) -> Any:
        """Hook: the value of a carry for the next step, from its values at the end and at the start of the body."""
        return value

    def settle(self, path: str, value: Any) -> Any:
        """Hook: the final value of a line."""
        return value

    def apply(self, equation: Equation, call: Callable[..., Any], operands: list[Any]) -> Any:
        """Evaluate `call(*operands)` for an equation; a refusal becomes a fault at its place.

        JAX asserts some requirements on operands, such as the ranks of a `conv_transpose`; for a mesh axis given by an
        unknown name it reports an unbound name.
        """
        if self.combining:
            return call(*operands)
        try:
            value = call(*operands)
        except (*REFUSALS, AssertionError, NameError) as error:
            self.refuse(refusal(error, operands) + _power_meant(equation), equation.source)
        if (reason := support.elements(value)) is not None:
            self.refuse(reason, equation.source)
        return value

    def read(self, operand: Operand) -> Any:
        """The value of an operand."""
        match operand:
            case Ref(number=number, source=source):
                if source is not None and not self.combining:
                    self.on_part(source, self._numbered[number])
                return self._numbered[number]
            case Size(name=name):
                return CONSTANTS[name] if name in CONSTANTS else self.experiment.dims[name]
            case CombiningFunction(body=body):
                return self._function(body)
            case _:
                return valued(operand, map(self.read, inside(operand)))

    def _function(self, body: Graph) -> Callable[..., Any]:
        """The function that combines two values, as a Python callable."""

        def combine(*values: Any) -> Any:
            outer = self._numbered, self.combining
            numbers = (value.number for value in body.inputs)
            self._numbered, self.combining = self._numbered | dict(zip(numbers, values, strict=True)), True
            try:
                self._run(body)
                return self._numbered[body.outputs[0]]
            finally:
                self._numbered, self.combining = outer

        return combine

    def computed(self, equation: Equation) -> Any:
        """Apply an equation's operation to its operands."""
        match equation.spelled:
            case "name":
                return self.read(equation.operands[0])
            case ".T":
                return self.apply(equation, attrgetter("T"), [self.read(equation.operands[0])])
            case "operator":
                operands = list(map(self.read, equation.operands))
                return self.apply(equation, BY_NAME[equation.operation].python, operands)
            case "index":
                return self._index(equation)
            case "call":
                return self._operation(equation)

    def _index(self, equation: Equation) -> Any:
        x, index = equation.operands

        def subscript(x: Any, *where: Any, **out: Any) -> Any:
            at = where if kind_of(index) == "tuple" else where[0]
            return x.at[at].get(**out) if out else x[at]

        return self.apply(equation, subscript, list(map(self.read, (x, *entries(index)))))

    def _operation(self, equation: Equation) -> Any:
        operation = OPERATIONS[equation.operation]
        if self.under_vmap and operation.casts_axes:
            return self.read(equation.operands[0])
        named = {name: operand for name, operand in equation.named if not (self.under_vmap and name == "to")}
        arguments = [*equation.operands, *named.values()]
        names_function = equation.argument(operation.function, operation.signature)
        values = [
            function(COMPUTATIONS[name].jax)
            if operand is names_function and isinstance(name := literal(operand), str)
            else self.operand(equation, operand)
            for operand in flat(arguments)
        ]
        call = self.function_of(operation)

        def packed(*operands: Any, **more: Any) -> Any:
            rest = iter(operands)
            values = [
                next(rest) if (items := elements(argument)) is None else valued(argument, [next(rest) for _ in items])
                for argument in arguments
            ]
            positional = values[: len(equation.operands)]
            by_name = dict(zip(named, values[len(equation.operands) :], strict=True))
            reason = support.strides(operation, positional, by_name) or support.numbers(operation, positional)
            if reason is not None:
                self.refuse(reason, equation.source)
            if operation.kind == "collective":
                bound = operation.signature.bind(*positional, **by_name)
                reason = support.collective(operation, bound.arguments, self.experiment, under_vmap=self.under_vmap)
                if reason:
                    self.refuse(reason, equation.source)
                if "shift" in by_name:
                    by_name = {k: v for k, v in by_name.items() if k != "shift"} | {"perm": self._permutation(bound)}
            return call(*positional, **by_name, **more)

        return self.apply(equation, packed, values)

    def function_of(self, operation: Operation) -> Callable[..., Any]:
        """Hook: the function that computes an operation."""
        return function_of(operation)

    def operand(self, equation: Equation, operand: Operand) -> Any:
        """The value of an operand of a call."""
        return self.read(operand)

    def _permutation(self, bound: inspect.BoundArguments) -> list[tuple[int, int]]:
        size, shift = self.experiment.mesh.axis_size(bound.arguments["axis_name"]), bound.arguments["shift"]
        return [(j, (j + shift) % size) for j in range(size)]


def _power_meant(equation: Equation) -> str:
    """Return the end of the message for operands that `^` does not take; people write it for a power."""
    source = equation.source
    if (equation.operation, equation.spelled) != ("bitwise_xor", "operator"):
        return ""
    written = source.text.encode()[source.start : source.end].decode()
    return f"; '^' is Python's exclusive or: for a power write {written.replace('^', '**')}"
