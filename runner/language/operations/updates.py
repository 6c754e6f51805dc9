"""The rows of `x.at[index]`: what reads or updates an array by index, and what becomes of an index out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runner.language.counterparts import updates
from runner.language.operations.arguments import AT
from runner.language.operations.row import Operation, array

OUTSIDE = ("fill", "drop", "clip")
"""What the argument `mode` may be. What JAX is promised and does not hold has no value, so no promise can be made."""

_promises = "indices_are_sorted=False, unique_indices=False, mode=None"


def _by_index(method: str, numpy: Callable[..., Any], arguments: str) -> Operation:
    name = f"{AT}{method}"
    return array(name, arguments, numpy, f"x.at[index].{method}", method=method, out_sharding=True)


def _update(method: str) -> Operation:
    return _by_index(method, updates.updated(method), f"x, index, values, /, *, {_promises}")


ROWS = (
    *map(_update, ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max")),
    _by_index("get", updates.get, f"x, index, /, *, {_promises}, fill_value=None"),
)
