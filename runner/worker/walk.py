"""An expression and JAX values in; the JAX value out. The values are abstract: tracers without devices or data."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp

from runner.experiment import branches
from runner.experiment.branches import Branch, Choice
from runner.experiment.model import Experiment, Line, Loop, Node, Section, Statement
from runner.experiment.plain import located
from runner.faults import InvalidExperiment
from runner.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, Operation, computation
from runner.language.operators import OPERATORS
from runner.language.syntax import Expression, SyntaxFault
from runner.untyped import is_sequence
from runner.worker import calls, limits
from runner.worker.refusing import first_lines, refusal, unfit, unlike, unlike_branches
from runner.worker.versions import sharding_type_errors

# The table names functions of it, and `import jax` leaves it out.
importlib.import_module("jax.ad_checkpoint")

REFUSALS = (
    TypeError, ValueError, IndexError, KeyError, NotImplementedError, ArithmeticError, *sharding_type_errors(),
)  # fmt: skip
"""What JAX raises when it does not accept operands. Anything else is a bug, and is not caught."""


@cache
def function(dotted: str) -> Callable[..., Any]:
    """The JAX function that a row of the table names."""
    head, *rest = dotted.split(".")
    found: Any = {"jax": jax, "jnp": jnp}[head]
    for part in rest:
        found = getattr(found, part)
    return found


def function_of(operation: Operation) -> Callable[..., Any]:
    """The JAX function of a row; of `x.at[index].add(values)` one of `x`, `index` and `values`."""
    method = operation.method
    if method is None:
        return function(operation.jax)

    def call(x: Any, index: Any, *values: Any, **named: Any) -> Any:
        return getattr(x.at[index], method)(*values, **named)

    return call


@dataclass
class Walker:
    """Evaluates statements on JAX values, node by node, so that a refusal has a place in the YAML."""

    experiment: Experiment
    values: dict[str, Any]
    on_value: Callable[[str, Any], None] = lambda _path, _value: None
    """Called with each named value as it is made."""
    on_part: Callable[[str, ast.expr, Any], None] = lambda _path, _node, _value: None
    """Called with the value of each node of an expression, and the path of the line that it stands in."""
    under_vmap: bool = False
    """Whether the values are mapped by `jax.vmap`, which knows no varying axes and raises more kinds of error."""
    choosing: bool = True
    """Whether `cond` and `switch` are JAX's, or all branches are computed."""
    combining: bool = field(init=False, default=False)
    """Whether JAX is calling a function that combines two values: a refusal there is one of the whole call."""
    _expression: Expression = field(init=False)
    _path: str = field(init=False, default="")

    def run(self, statements: tuple[Statement, ...], section: Section, depth: int = 0) -> None:
        """Evaluate `statements` of a section, which stand in `depth` calls.

        Raises `InvalidExperiment` at the first refusal.
        """
        for statement in branches.parts(statements, depth) if self.choosing else statements:
            if isinstance(statement, Choice):
                self._choose(statement, section)
            elif isinstance(statement, Node):
                self.values[statement.name] = self.evaluate(statement.expression, section, statement.line)
                self.on_value(statement.line.path, self.values[statement.name])
            else:
                self._repeat(statement, section)

    def _choose(self, choice: Choice, section: Section) -> None:
        """A call of `cond` or `switch`, with the lines of each branch inside of it."""
        outer, on = self.values, self.values[choice.on]
        ends: dict[int, tuple[Any, ...]] = {}

        def case(branch: Branch) -> Callable[[], tuple[Any, ...]]:
            def taken() -> tuple[Any, ...]:
                self.values = dict(outer)
                try:
                    self.run(branch.lines, section, choice.depth)
                    found = tuple(self.values[line.name] for line in branch.gives)
                finally:
                    self.values = outer
                first = next(iter(ends.values()), found)
                found = tuple(
                    self.carried(line.line.path, value, start)
                    for line, value, start in zip(branch.gives, found, first, strict=True)
                )
                ends[branch.call.branch or 0] = found
                return found

            return taken

        cases = [case(branch) for branch in choice.branches]
        refused = unfit(choice.call.function, on)
        values: tuple[Any, ...] = ()
        if refused is None:
            try:
                if choice.call.function == "cond":
                    values = calls.cond(on, cases[1], cases[0])
                else:
                    values = calls.switch(on, cases)
            except REFUSALS as error:
                refused = unlike_branches(ends) or f"JAX refuses it: {first_lines(error)}"
        if refused is not None:
            result = choice.results[0]
            key, uses = result.line.written(section)
            fault = result.expression.fault(refused, result.expression.tree)
            raise InvalidExperiment(located(key, result.expression.text, fault, uses))
        for line, value in zip(choice.results, values, strict=True):
            self.on_part(line.line.path, line.expression.tree, value)
            self.values[line.name] = value = self.settle(line.line.path, value)
            self.on_value(line.line.path, value)

    def _repeat(self, loop: Loop, section: Section) -> None:
        key, uses = loop.line.written(section)
        first = tuple(self.evaluate(expression, section, loop.first(name)) for name, expression in loop.carry)
        over = self._over(loop, section)
        outer = self.values
        ends: list[Any] = []

        def body(step: Any, carry: tuple[Any, ...], slices: tuple[Any, ...] = ()) -> tuple[Any, ...]:
            self.values = {**outer, loop.index: step}
            self.values.update(zip(loop.given, (*carry, *slices), strict=True))
            self.run(loop.body, section, len(loop.line.calls))
            stacked.append([self.values[inner] for _, inner in loop.stack])
            last = tuple(
                self.carried(loop.end(name), self.values[name], start)
                for (name, _), start in zip(loop.carry, carry, strict=True)
            )
            self.values = outer
            ends[:] = [jax.typeof(value) for value in last]
            return last

        def scanned(carry: tuple[Any, ...], slices: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
            return body(slices[-1], carry, slices[:-1]), stacked[-1]

        stacked: list[list[Any]] = []
        several: list[Any] = []
        carry: Any = first
        if loop.unroll:
            for step in range(loop.steps):
                carry = body(step, carry, tuple(value[step] for value in over))
            several = [calls.stack(each) for each in zip(*stacked, strict=True)]
        elif loop.steps:
            try:
                if loop.scans:
                    steps = calls.arange(loop.steps, dtype="int32")
                    carry, several = calls.scan(scanned, first, (*over, steps))
                else:
                    carry = calls.fori_loop(0, loop.steps, body, first)
            except REFUSALS as error:
                self.values = outer
                for (name, expression), start, end in zip(loop.carry, first, ends, strict=False):
                    call = "scan" if loop.scans else "fori_loop"
                    message = unlike(name, jax.typeof(start), end, expression.text, call)
                    if message:
                        at = (*key, "carry", name)
                        fault = located(at, expression.text, expression.fault(message), uses)
                        raise InvalidExperiment(fault) from None
                raise InvalidExperiment(located(key, "", SyntaxFault(first_lines(error), 0, 0), uses)) from None
        for name, value in zip(loop.results, (*carry, *several), strict=True):
            outer[f"{loop.name}.{name}"] = value = self.settle(loop.result(name), value)
            self.on_value(loop.result(name), value)

    def _over(self, loop: Loop, section: Section) -> tuple[Any, ...]:
        """What a repeat takes a slice of in each step. Raises `InvalidExperiment` where there are not so many."""
        found: list[Any] = []
        for name, expression in loop.over:
            line = loop.whole(name)
            value = self.evaluate(expression, section, line)
            shape: tuple[int, ...] = getattr(value, "shape", ())
            if not shape or shape[0] != loop.steps:
                has = f"has {shape[0]} slices along its first dimension" if shape else "has no dimension to slice"
                message = f"it {has}; the repeat has {loop.steps} steps"
                key, uses = line.written(section)
                raise InvalidExperiment(located(key, expression.text, expression.fault(message), uses))
            found.append(self.taken_apart(line.path, value))
        return tuple(found)

    def taken_apart(self, path: str, value: Any) -> Any:
        """What a repeat takes slices of along its first dimension, given its value."""
        return value

    def carried(self, path: str, value: Any, start: Any) -> Any:
        """What a loop carries on, given the value at the end of its body and the one at its start."""
        return value

    def evaluate(self, expression: Expression, section: Section, line: Line) -> Any:
        """The value of the expression of a line."""
        outer = getattr(self, "_expression", expression), self._path
        self._expression, self._path = expression, line.path
        try:
            found = self.value(expression.tree)
            if isinstance(found, int):
                # Python's own may be larger than any dtype holds.
                self.apply(expression.tree, jax.typeof, [found])
            elif found is None or isinstance(found, str | slice):
                raise expression.fault(f"{found!r} is no array and no number", expression.tree)
            self._take_apart(expression, found, line)
            return self.settle(line.path, found)
        except SyntaxFault as fault:
            key, uses = line.written(section)
            raise InvalidExperiment(located(key, expression.text, fault, uses)) from None
        finally:
            self._expression, self._path = outer

    def _take_apart(self, expression: Expression, value: Any, line: Line) -> None:
        """Raise `SyntaxFault` where the lines after it have another number of names for its parts than it has."""
        names = 0 if line.origin is None else line.origin.gives
        if not names:
            return
        count: int | None = len(value) if is_sequence(value) else next(iter(getattr(value, "shape", ())), None)
        if count != names:
            gives = "one number" if count is None else f"{count} value{'s' if count != 1 else ''}"
            raise expression.fault(f"it gives {gives}, and {names} names stand before it", expression.tree)

    def settle(self, path: str, value: Any) -> Any:
        """The value that a statement ends with."""
        return value

    def apply(self, node: ast.expr, call: Callable[..., Any], operands: list[Any]) -> Any:
        """`call(*operands)`, which `node` stands for; a refusal becomes a fault at `node`.

        JAX asserts some of what it asks of operands: the ranks of a `conv_transpose`; of an axis with a name it says
        that the name is not bound.
        """
        if self.combining:
            return call(*operands)
        try:
            found = call(*operands)
        except (*REFUSALS, AssertionError, NameError) as error:
            raise self._expression.fault(refusal(error, operands), node) from None
        if (reason := limits.elements(found)) is not None:
            raise self._expression.fault(reason, node)
        return found

    def value(self, node: ast.expr) -> Any:
        """The value of one node of an expression."""
        found = self._value(node)
        if not self.combining:
            self.on_part(self._path, node, found)
        return found

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name in CONSTANTS:
                    return CONSTANTS[name]
                return self.values[name] if name in self.values else self.experiment.dims[name]
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if f"{loop}.{carried}" in self.values:
                return self.values[f"{loop}.{carried}"]
            case ast.Attribute(value=value):
                return self.apply(node, attrgetter("T"), [self.value(value)])
            case ast.BinOp(left=left, op=op, right=right):
                return self.apply(node, OPERATORS[type(op)].python, [self.value(left), self.value(right)])
            case ast.UnaryOp(op=op, operand=operand):
                return self.apply(node, OPERATORS[type(op)].python, [self.value(operand)])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.apply(node, OPERATORS[type(op)].python, [self.value(left), self.value(right)])
            case ast.Tuple(elts=elements):
                return tuple(self.value(element) for element in elements)
            case ast.List(elts=elements):
                return [self.value(element) for element in elements]
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.value(part) for part in (lower, upper, step)))
            case ast.Subscript(value=value, slice=index):
                parts = index.elts if isinstance(index, ast.Tuple) else [index]

                def subscript(x: Any, *parts: Any, **out: Any) -> Any:
                    where = parts if isinstance(index, ast.Tuple) else parts[0]
                    return x.at[where].get(**out) if out else x[where]

                return self.apply(node, subscript, [self.value(value), *map(self.value, parts)])
            case ast.Call():
                return self._call(node)
            case ast.Lambda():
                return self._function(node)
            case _:
                # `runner/language/syntax.py` lets nothing else through.
                raise AssertionError(ast.dump(node))

    def _function(self, node: ast.Lambda) -> Callable[..., Any]:
        """What combines two values, for JAX to call."""
        names = [each.arg for each in node.args.args]

        def combine(*values: Any) -> Any:
            outer = self.values, self.combining
            self.values, self.combining = dict(zip(names, values, strict=True)), True
            try:
                return self.value(node.body)
            finally:
                self.values, self.combining = outer

        return combine

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        operation = OPERATIONS[node.func.id]
        if self.under_vmap and operation.over is not None and operation.over.does == "cast":
            return self.value(node.args[0])
        keywords = {str(k.arg): k.value for k in node.keywords if not (self.under_vmap and k.arg == "to")}
        arguments = [*node.args, *keywords.values()]
        named_function = computation(node)
        flat: list[Any] = []
        for argument in arguments:
            elements = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            flat += [
                function(COMPUTATIONS[ast.literal_eval(element)]) if element is named_function else self.value(element)
                for element in elements
            ]
        call = function_of(operation)

        def packed(*operands: Any, **more: Any) -> Any:
            rest = iter(operands)
            values = [
                (list if isinstance(argument, ast.List) else tuple)(next(rest) for _ in argument.elts)
                if isinstance(argument, ast.List | ast.Tuple)
                else next(rest)
                for argument in arguments
            ]
            positional = values[: len(node.args)]
            named = dict(zip(keywords, values[len(node.args) :], strict=True))
            if (reason := limits.strides(operation, positional, named)) is not None:
                raise self._expression.fault(reason, node)
            if operation.kind == "collective":
                bound = operation.signature.bind(*positional, **named)
                reason = limits.collective(operation, bound.arguments, self.experiment, under_vmap=self.under_vmap)
                if reason:
                    raise self._expression.fault(reason, node)
                if "shift" in named:
                    named = {k: v for k, v in named.items() if k != "shift"} | {"perm": self._permutation(bound)}
            return call(*positional, **named, **more)

        return self.apply(node, packed, flat)

    def _permutation(self, bound: inspect.BoundArguments) -> list[tuple[int, int]]:
        size, shift = self.experiment.mesh.axis_size(bound.arguments["axis_name"]), bound.arguments["shift"]
        return [(j, (j + shift) % size) for j in range(size)]
