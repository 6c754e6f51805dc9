"""An expression and JAX values in; the JAX value out. The values are abstract: tracers without devices or data."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from runner.experiment import Experiment, Loop, Node, Statement, located
from runner.faults import InvalidExperiment, Key
from runner.language.operations import OPERATIONS
from runner.language.syntax import Expression, SyntaxFault
from runner.worker.versions import sharding_type_error

REFUSALS = (
    TypeError, ValueError, IndexError, KeyError, NotImplementedError, ArithmeticError, sharding_type_error(),
)  # fmt: skip
"""What JAX raises when it does not accept operands. Anything else is a bug, and is not caught."""

BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip


@cache
def function(dotted: str) -> Callable[..., Any]:
    """The JAX function that a row of the table names."""
    head, *rest = dotted.split(".")
    found: Any = {"jax": jax, "jnp": jnp}[head]
    for part in rest:
        found = getattr(found, part)
    return found


@dataclass
class Walker:
    """Evaluates statements on JAX values, node by node, so that a refusal has a place in the YAML."""

    experiment: Experiment
    values: dict[str, Any]
    on_value: Callable[[str, Any], None] = lambda _path, _value: None
    """Called with each named value as it is made."""
    under_vmap: bool = False
    """Whether the values are mapped by `jax.vmap`, which knows no varying axes and raises more kinds of error."""
    _expression: Expression = field(init=False)
    _path: str = field(init=False, default="")

    def run(self, statements: tuple[Statement, ...], key: Key, path: str = "") -> None:
        """Evaluate `statements`, which stand at `key`; raise `InvalidExperiment` at the first refusal."""
        for statement in statements:
            here = (*key, statement.name)
            if isinstance(statement, Node):
                self.values[statement.name] = self.evaluate(statement.expression, here, f"{path}{statement.name}")
                self.on_value(f"{path}{statement.name}", self.values[statement.name])
            else:
                self._repeat(statement, here, f"{path}{statement.name}")

    def _repeat(self, loop: Loop, key: Key, path: str) -> None:
        first = tuple(
            self.evaluate(expression, (*key, "carry", name), f"{path}/carry/{name}") for name, expression in loop.carry
        )
        outer = self.values

        def body(step: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            self.values = {**outer, loop.index: step}
            self.values.update(zip((name for name, _ in loop.carry), carry, strict=True))
            self.run(loop.body, (*key, "body"), f"{path}/body/")
            last = tuple(
                self.carried(f"{path}/{name}", self.values[name], start)
                for (name, _), start in zip(loop.carry, carry, strict=True)
            )
            self.values = outer
            return last

        carry = first
        if loop.unroll:
            for step in range(loop.steps):
                carry = body(step, carry)
        elif loop.steps:
            try:
                carry = jax.lax.fori_loop(0, loop.steps, body, first)
            except REFUSALS as error:
                self.values = outer
                raise InvalidExperiment(located(key, "", SyntaxFault(_first_lines(error), 0, 0))) from None
        for (name, _), value in zip(loop.carry, carry, strict=True):
            outer[f"{loop.name}.{name}"] = value
            self.on_value(f"{path}.{name}", value)

    def carried(self, path: str, value: Any, start: Any) -> Any:
        """What a loop carries on, given the value at the end of its body and the one at its start."""
        return value

    def evaluate(self, expression: Expression, key: Key, path: str) -> Any:
        """The value of one expression, which stands at `key`."""
        outer = getattr(self, "_expression", expression), self._path
        self._expression, self._path = expression, path
        try:
            return self.settle(path, self.value(expression.tree))
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, expression.text, fault)) from None
        finally:
            self._expression, self._path = outer

    def settle(self, path: str, value: Any) -> Any:
        """The value that a statement ends with."""
        return value

    def apply(self, node: ast.expr, call: Callable[..., Any], operands: list[Any]) -> Any:
        """`call(*operands)`, which `node` stands for; a refusal becomes a fault at `node`."""
        try:
            return call(*operands)
        except (*REFUSALS, AssertionError) as error:
            if isinstance(error, AssertionError) and not self.under_vmap:
                raise
            raise self._expression.fault(_refusal(error, operands), node) from None

    def value(self, node: ast.expr) -> Any:
        """The value of one node of an expression."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.values[name] if name in self.values else self.experiment.dims[name]
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if f"{loop}.{carried}" in self.values:
                return self.values[f"{loop}.{carried}"]
            case ast.Attribute(value=value):
                return self.apply(node, lambda x: x.T, [self.value(value)])
            case ast.BinOp(left=left, op=op, right=right):
                return self.apply(node, BINARY[type(op)], [self.value(left), self.value(right)])
            case ast.UnaryOp(op=op, operand=operand):
                return self.apply(node, UNARY[type(op)], [self.value(operand)])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.apply(node, BINARY[type(op)], [self.value(left), self.value(right)])
            case ast.Tuple(elts=elements):
                return tuple(self.value(element) for element in elements)
            case ast.List(elts=elements):
                return [self.value(element) for element in elements]
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.value(part) for part in (lower, upper, step)))
            case ast.Subscript(value=value, slice=index):
                where = self.value(index)
                return self.apply(node, lambda x: x[where], [self.value(value)])
            case ast.Call():
                return self._call(node)
        raise AssertionError(ast.dump(node))  # `runner/language/syntax.py` lets nothing else through

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        operation = OPERATIONS[node.func.id]
        keywords = {str(k.arg): self.value(k.value) for k in node.keywords}
        if operation.name == "ppermute" and "shift" in keywords:
            keywords["perm"] = self._permutation(node, keywords.pop("shift"))
        if self.under_vmap and operation.name == "pcast":
            return self.value(node.args[0])
        if self.under_vmap:
            keywords.pop("to", None)
        call = function(operation.jax)
        shapes = [len(a.elts) if isinstance(a, ast.List | ast.Tuple) else None for a in node.args]
        kinds = [type(a) for a in node.args]
        flat: list[Any] = []
        for argument in node.args:
            elements = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            flat += [self.value(element) for element in elements]

        def packed(*operands: Any, **more: Any) -> Any:
            rest = iter(operands)
            arguments = [
                next(rest) if n is None else (list if kind is ast.List else tuple)(next(rest) for _ in range(n))
                for n, kind in zip(shapes, kinds, strict=True)
            ]
            return call(*arguments, **keywords, **more)

        return self.apply(node, packed, flat)

    def _permutation(self, node: ast.Call, shift: Any) -> list[tuple[int, int]]:
        bound = OPERATIONS["ppermute"].signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
        if "perm" in bound.arguments or not isinstance(shift, int):
            raise self._expression.fault("ppermute takes perm=[(source, destination), …] or shift=, an integer", node)
        size = self.experiment.mesh.axis_size(ast.literal_eval(bound.arguments["axis_name"]))
        return [(j, (j + shift) % size) for j in range(size)]


def _first_lines(error: BaseException) -> str:
    """The first sentence or two of a JAX message."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:
        text = " ".join(line for line in lines[:4] if line)
    return text if len(text) < 400 else text[:397] + "…"


def _refusal(error: BaseException, operands: list[Any]) -> str:
    shapes = ", ".join(f"{operand.dtype}{list(operand.shape)}" for operand in operands if hasattr(operand, "shape"))
    return f"JAX refuses it: {_first_lines(error)}" + (f"; the operands are {shapes}" if shapes else "")
