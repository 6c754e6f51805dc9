"""The name of an operation in; its Python operator out."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner import dtypes
from runner.language.operations import OPERATIONS, Operation


@dataclass(frozen=True)
class Operator:
    """A Python operator: the operation `name` on arrays, `python` on Python numbers.

    `function` is its name in the module `operator`.
    """

    symbol: str
    name: str
    function: str

    @property
    def operation(self) -> Operation:
        """The row of the operation on arrays."""
        return OPERATIONS[self.name]

    @property
    def python(self) -> Callable[..., Any]:
        """The function on Python numbers."""
        return getattr(operator, self.function)

    def numpy(self, *values: Any) -> Any:
        """Apply the NumPy counterpart, or, to Python numbers alone, Python's operator, as a traced program does."""
        on_arrays = any(dtypes.is_numeric(value) for value in values)
        return self.operation.numpy(*values) if on_arrays else self.python(*values)


BY_NAME = {
    row.name: row
    for row in (
        Operator("+", "add", "add"),
        Operator("-", "subtract", "sub"),
        Operator("*", "multiply", "mul"),
        Operator("/", "divide", "truediv"),
        Operator("//", "floor_divide", "floordiv"),
        Operator("%", "remainder", "mod"),
        Operator("**", "power", "pow"),
        Operator("@", "matmul", "matmul"),
        Operator("&", "bitwise_and", "and_"),
        Operator("|", "bitwise_or", "or_"),
        Operator("^", "bitwise_xor", "xor"),
        Operator("<<", "left_shift", "lshift"),
        Operator(">>", "right_shift", "rshift"),
        Operator("-", "negative", "neg"),
        Operator("+", "positive", "pos"),
        Operator("~", "invert", "invert"),
        Operator("==", "equal", "eq"),
        Operator("!=", "not_equal", "ne"),
        Operator("<", "less", "lt"),
        Operator("<=", "less_equal", "le"),
        Operator(">", "greater", "gt"),
        Operator(">=", "greater_equal", "ge"),
    )
}
"""The operators of the language, by the names of their operations."""

COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
"""The operations of `<`, `==`, and the other comparisons."""
