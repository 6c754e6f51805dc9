"""A node of an expression in; the operation that it stands for out: Python's operators by the operations they are."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner import dtypes
from runner.language.operations import OPERATIONS, Operation


@dataclass(frozen=True)
class Operator:
    """One of Python's operators: on arrays the operation `name`, on Python's own numbers `python`.

    `function`: what the module `operator` calls that.
    """

    symbol: str
    name: str
    function: str

    @property
    def operation(self) -> Operation:
        """The row of the operation that it is on arrays."""
        return OPERATIONS[self.name]

    @property
    def python(self) -> Callable[..., Any]:
        """What it is on Python's own numbers."""
        return getattr(operator, self.function)

    def numpy(self, *values: Any) -> Any:
        """Its counterpart. The program that JAX traces computes Python's own numbers as Python does."""
        on_arrays = any(dtypes.is_numeric(value) for value in values)
        return self.operation.numpy(*values) if on_arrays else self.python(*values)


OPERATORS: dict[type[ast.AST], Operator] = {
    ast.Add: Operator("+", "add", "add"),
    ast.Sub: Operator("-", "subtract", "sub"),
    ast.Mult: Operator("*", "multiply", "mul"),
    ast.Div: Operator("/", "divide", "truediv"),
    ast.FloorDiv: Operator("//", "floor_divide", "floordiv"),
    ast.Mod: Operator("%", "remainder", "mod"),
    ast.Pow: Operator("**", "power", "pow"),
    ast.MatMult: Operator("@", "matmul", "matmul"),
    ast.BitAnd: Operator("&", "bitwise_and", "and_"),
    ast.BitOr: Operator("|", "bitwise_or", "or_"),
    ast.BitXor: Operator("^", "bitwise_xor", "xor"),
    ast.LShift: Operator("<<", "left_shift", "lshift"),
    ast.RShift: Operator(">>", "right_shift", "rshift"),
    ast.USub: Operator("-", "negative", "neg"),
    ast.UAdd: Operator("+", "positive", "pos"),
    ast.Invert: Operator("~", "invert", "invert"),
    ast.Eq: Operator("==", "equal", "eq"),
    ast.NotEq: Operator("!=", "not_equal", "ne"),
    ast.Lt: Operator("<", "less", "lt"),
    ast.LtE: Operator("<=", "less_equal", "le"),
    ast.Gt: Operator(">", "greater", "gt"),
    ast.GtE: Operator(">=", "greater_equal", "ge"),
}
"""The operators of the language."""

BY_NAME: dict[str, Operator] = {operator.name: operator for operator in OPERATORS.values()}
"""The same, by the names of the operations that they are."""


def operator_of(node: ast.expr) -> Operator | None:
    """The operator of a node, if it has one."""
    match node:
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.Compare(ops=[op]):
            return OPERATORS[type(op)]
        case _:
            return None


def called(node: ast.expr) -> Operation | None:
    """The operation that a node calls, by its name or by an operator, if it calls one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return OPERATIONS[node.func.id]
    found = operator_of(node)
    return None if found is None else found.operation


COMPARISONS = frozenset(operator.name for kind, operator in OPERATORS.items() if issubclass(kind, ast.cmpop))
"""The operations that `<`, `==`, … are."""


def _written(kind: type[ast.AST], *operands: ast.expr) -> ast.expr:
    node = kind()
    if isinstance(node, ast.cmpop):
        return ast.Compare(operands[0], [node], [operands[1]])
    if isinstance(node, ast.unaryop):
        return ast.UnaryOp(node, operands[0])
    assert isinstance(node, ast.operator)
    return ast.BinOp(operands[0], node, operands[1])


SYNTAX: dict[str, Callable[..., ast.expr]] = {
    operator.name: partial(_written, kind) for kind, operator in OPERATORS.items()
}
"""By the names of the operations that operators are, what makes an expression with one of its operands."""
