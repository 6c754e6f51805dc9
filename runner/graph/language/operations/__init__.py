"""Has the row of every operation: its arguments, JAX function, NumPy counterpart, and further properties.

To add an operation, add a row to the file of its kind. A row's NumPy counterpart is the oracle: it takes the same
arguments by the same names, computes floats in float64, and never uses JAX. `tests/test_operations.py` compares every
row with JAX. `row.py` defines the fields of a row, and has properties of arguments by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

from runner.graph.language.operations import (
    arrays,
    collectives,
    elementwise,
    keys,
    linear,
    prelude,
    reductions,
    updates,
)
from runner.graph.language.operations.row import (
    COMPUTATIONS,
    DIAGONAL,
    DIMENSIONS,
    DTYPES,
    FROM_ZERO,
    PADDINGS,
    Decides,
    Does,
    Limit,
    Operation,
    OverAxes,
)
from runner.graph.language.operations.updates import OUTSIDE

__all__ = [
    "COMMUNICATING",
    "COMPUTATIONS",
    "CONSTANTS",
    "DIAGONAL",
    "DIMENSIONS",
    "DTYPES",
    "FROM_ZERO",
    "METHODS",
    "NO_OPERATION",
    "OPERATIONS",
    "OUTSIDE",
    "PADDINGS",
    "Decides",
    "Does",
    "Limit",
    "Operation",
    "OverAxes",
    "combination",
    "row_of",
]

_FILES = (elementwise, reductions, linear, arrays, updates, prelude, collectives, keys)

OPERATIONS: dict[str, Operation] = {}
for _row in (named for file in _FILES for row in file.ROWS for named in row.named()):
    assert _row.name not in OPERATIONS, _row.name
    OPERATIONS[_row.name] = _row

NO_OPERATION = Operation("", "", "", tuple)
"""The row of what is no operation, which has no properties."""


def row_of(name: str) -> Operation:
    """The row of an operation; `NO_OPERATION` for any other name, as of a subscript."""
    return OPERATIONS.get(name, NO_OPERATION)


COMMUNICATING = {primitive: row.name for row in reversed(OPERATIONS.values()) for primitive in row.over.primitives}
"""The functions of `jax.lax` over mesh axes by their primitives, of several the first: `psum` for `psum_invariant`."""

CONSTANTS = {"inf": math.inf}
"""The named numbers of every expression; `inf` is `jnp.inf`."""


METHODS = tuple(row.method for row in updates.ROWS if row.method is not None)
"""The methods of `x.at[index]`."""

_Part = TypeVar("_Part")


def combination(name: str, operands: Iterable[_Part], named: Iterable[tuple[str, _Part]]) -> _Part | None:
    """The operand of a call that is a function of two values, as in a reduction; None where there is none."""
    row = row_of(name)
    if row.function is None or not row.combines:
        return None
    return (dict(zip(row.signature.parameters, operands, strict=False)) | dict(named)).get(row.function)
