"""A node of an expression in; the operation that it stands for out: Python's operators by the operations they are."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.language.operations import OPERATIONS, Operation


@dataclass(frozen=True)
class Operator:
    """One of Python's operators: on arrays the operation `name`, on Python's own numbers `python`."""

    symbol: str
    name: str
    python: Callable[..., Any]

    @property
    def operation(self) -> Operation:
        """The row of the operation that it is on arrays."""
        return OPERATIONS[self.name]

    def numpy(self, *values: Any) -> Any:
        """Its counterpart. The program that JAX traces computes Python's own numbers as Python does."""
        on_arrays = any(isinstance(value, np.ndarray | np.generic) for value in values)
        return self.operation.numpy(*values) if on_arrays else self.python(*values)


OPERATORS: dict[type[ast.AST], Operator] = {
    ast.Add: Operator("+", "add", operator.add),
    ast.Sub: Operator("-", "subtract", operator.sub),
    ast.Mult: Operator("*", "multiply", operator.mul),
    ast.Div: Operator("/", "divide", operator.truediv),
    ast.FloorDiv: Operator("//", "floor_divide", operator.floordiv),
    ast.Mod: Operator("%", "remainder", operator.mod),
    ast.Pow: Operator("**", "power", operator.pow),
    ast.MatMult: Operator("@", "matmul", operator.matmul),
    ast.BitAnd: Operator("&", "bitwise_and", operator.and_),
    ast.BitOr: Operator("|", "bitwise_or", operator.or_),
    ast.BitXor: Operator("^", "bitwise_xor", operator.xor),
    ast.LShift: Operator("<<", "left_shift", operator.lshift),
    ast.RShift: Operator(">>", "right_shift", operator.rshift),
    ast.USub: Operator("-", "negative", operator.neg),
    ast.UAdd: Operator("+", "positive", operator.pos),
    ast.Invert: Operator("~", "invert", operator.invert),
    ast.Eq: Operator("==", "equal", operator.eq),
    ast.NotEq: Operator("!=", "not_equal", operator.ne),
    ast.Lt: Operator("<", "less", operator.lt),
    ast.LtE: Operator("<=", "less_equal", operator.le),
    ast.Gt: Operator(">", "greater", operator.gt),
    ast.GtE: Operator(">=", "greater_equal", operator.ge),
}
"""The operators of the language."""


def operator_of(node: ast.expr) -> Operator | None:
    """The operator of a node, if it has one."""
    match node:
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.Compare(ops=[op]):
            return OPERATORS[type(op)]
    return None


def called(node: ast.expr) -> Operation | None:
    """The operation that a node calls, by its name or by an operator, if it calls one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return OPERATIONS[node.func.id]
    found = operator_of(node)
    return None if found is None else found.operation
