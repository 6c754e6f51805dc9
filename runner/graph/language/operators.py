"""Finds the Python operator of an operation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.graph.language.operations import OPERATIONS, Operation


@dataclass(frozen=True)
class Operator:
    """A Python operator: the operation `name` on arrays, `python` on Python numbers.

    - `function`: its name in the module `operator`.
    - `kind`: of two integers `arithmetic` and `bits` make an integer; `quotient`, `comparison` and `product` do not.
    - `natural`: whether, of two integers, the second must not be negative: else Python gives a fraction, or raises.
    """

    symbol: str
    name: str
    function: str
    kind: Literal["arithmetic", "quotient", "product", "bits", "comparison"]
    natural: bool = False

    @property
    def exact(self) -> bool:
        """Whether its result is an integer if both operands are."""
        return self.kind in ("arithmetic", "bits")

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
        Operator("+", "add", "add", "arithmetic"),
        Operator("-", "subtract", "sub", "arithmetic"),
        Operator("*", "multiply", "mul", "arithmetic"),
        Operator("/", "divide", "truediv", "quotient"),
        Operator("//", "floor_divide", "floordiv", "arithmetic"),
        Operator("%", "remainder", "mod", "arithmetic"),
        Operator("**", "power", "pow", "arithmetic", natural=True),
        Operator("@", "matmul", "matmul", "product"),
        Operator("&", "bitwise_and", "and_", "bits"),
        Operator("|", "bitwise_or", "or_", "bits"),
        Operator("^", "bitwise_xor", "xor", "bits"),
        Operator("<<", "left_shift", "lshift", "bits", natural=True),
        Operator(">>", "right_shift", "rshift", "bits", natural=True),
        Operator("-", "negative", "neg", "arithmetic"),
        Operator("+", "positive", "pos", "arithmetic"),
        Operator("~", "invert", "invert", "bits"),
        Operator("==", "equal", "eq", "comparison"),
        Operator("!=", "not_equal", "ne", "comparison"),
        Operator("<", "less", "lt", "comparison"),
        Operator("<=", "less_equal", "le", "comparison"),
        Operator(">", "greater", "gt", "comparison"),
        Operator(">=", "greater_equal", "ge", "comparison"),
    )
}
"""The operators of the language, by the names of their operations."""

COMPARISONS = frozenset(name for name, each in BY_NAME.items() if each.kind == "comparison")
"""The operations of `<`, `==`, and the other comparisons."""
