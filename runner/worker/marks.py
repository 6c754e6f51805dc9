"""Marks values inside a jaxpr by their paths.

A mark is a `checkpoint_name` with a prefix. Programs find the values that they constrain by the same code
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
    """A closed jaxpr with a mark on each value whose path is wanted; `wanted` is called with every path.

    A scope has a path such as `layers/attention`; the path of a `checkpoint_name` is that of its scope and then the
    name.
    """

    def put(path: str) -> Callable[[Any], Any] | None:
        return (lambda value: calls.checkpoint_name(value, f"{_MARK}{path}")) if wanted(path) else None

    return closed.replace(jaxpr=_within()(closed.jaxpr, "", put))


def unmarked(name: str) -> str | None:
    """The path in the name of a mark; None for other names."""
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None


@cache
def _within() -> Callable[..., Any]:
    space: dict[str, Any] = {"jax": jax}
    imports = (f"import {module}" for module in within.MODULES)
    exec("\n".join([*imports, *within.IMPORTS, within.SOURCE]), space)  # the source in programs
    return space["within"]
