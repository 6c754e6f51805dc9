"""The rows of `x.at[index]`: reads and updates of an array by index, and their modes for indices out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runner.graph.language.operations.deferred import indexing
from runner.graph.language.operations.row import AT, Operation, array

OUTSIDE = ("fill", "drop", "clip")
"""The values of the argument `mode`. `promise_in_bounds` is left out: a broken promise has no defined result."""

_promises = "indices_are_sorted=False, unique_indices=False, mode=None"


def _by_index(method: str, counterpart: Callable[..., Any], arguments: str) -> Operation:
    name = f"{AT}{method}"
    return array(name, arguments, counterpart, f"x.at[index].{method}", method=method, out_sharding=True)


def _update(method: str) -> Operation:
    return _by_index(method, indexing.updated(method), f"x, index, values, /, *, {_promises}")


ROWS = (
    *map(_update, ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max")),
    _by_index("get", indexing.get, f"x, index, /, *, {_promises}, fill_value=None"),
)  # fmt: skip
