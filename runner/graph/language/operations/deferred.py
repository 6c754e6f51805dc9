"""NumPy and the counterparts' modules, which rows name functions of; each is imported at the first call.

Reading an experiment calls none of them, and to import NumPy would take a fifth of the time in which a user is told of
a mistake.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = [
    "algebra", "arithmetic", "collectives", "indexing", "np", "promotion", "reductions",
    "shaping", "threefry", "windows",
]  # fmt: skip


class Deferred:
    """An expression that has not been evaluated; so are its attributes, and the results of calling it."""

    def __init__(self, evaluate: Callable[[], Any]) -> None:
        """`evaluate` returns the expression's value."""
        self._evaluate = evaluate

    def __getattr__(self, name: str) -> Deferred:
        if name.startswith("__"):
            # Python asks for these itself, as in `copy`.
            raise AttributeError(name)
        return Deferred(lambda: getattr(evaluated(self), name))

    def __call__(self, *operands: object) -> Deferred:
        return Deferred(lambda: evaluated(self)(*map(evaluated, operands)))


def evaluated(value: Any) -> Any:
    """Return the value of an expression; any other value is its own."""
    return vars(value)["_evaluate"]() if isinstance(value, Deferred) else value


def defined(lines: str, arguments: str) -> Deferred:
    """The counterpart by the definition `lines` of an operation with these arguments."""
    module = "runner.graph.language.counterparts.defined"
    return Deferred(lambda: importlib.import_module(module).counterpart(lines, arguments))


if TYPE_CHECKING:
    import numpy as np

    from runner.graph.language.counterparts import (
        algebra,
        arithmetic,
        collectives,
        indexing,
        promotion,
        reductions,
        shaping,
        threefry,
        windows,
    )
else:

    def __getattr__(name: str) -> Deferred:
        if name not in __all__:
            raise AttributeError(name)
        return Deferred(
            lambda: importlib.import_module("numpy" if name == "np" else f"runner.graph.language.counterparts.{name}")
        )
