"""A jaxpr and the paths of values inside of it in; the same with a mark on these values out.

A mark is a `checkpoint_name` of ours. What a program constrains by its path is found by the same code
(`runner/programs/within.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from runner.programs import within
from runner.worker import calls

_MARK = "to be constrained: "


def marked(closed: Any, wanted: Callable[[str], bool]) -> Any:
    """A closed jaxpr with a mark on every value whose path is wanted. `wanted` is asked for all paths that there are.

    Of a scope the path is `layers/attention`, of a value with a `checkpoint_name` it has that behind the scope's.
    """

    def put(path: str) -> Callable[[Any], Any] | None:
        return (lambda value: calls.checkpoint_name(value, f"{_MARK}{path}")) if wanted(path) else None

    return closed.replace(jaxpr=_within()(closed.jaxpr, "", put))


def unmarked(name: str) -> str | None:
    """The path that a mark of this name stands for; None where it is none."""
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None


@cache
def _within() -> Callable[..., Any]:
    space: dict[str, Any] = {"jax": jax}
    imports = (f"import {module}" for module in within.MODULES)
    exec("\n".join([*imports, *within.IMPORTS, within.SOURCE]), space)  # the lines that a program has
    return space["within"]
