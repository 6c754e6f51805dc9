"""Marks values inside a jaxpr by their paths.

A mark is a `checkpoint_name` with a prefix. Programs find the values that they constrain by the same code
(`runner/programs/within.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import jax

from runner.base.layout import Spec
from runner.programs import within
from runner.worker import calls
from runner.worker.versions import stated_spec

_MARK = "to be constrained: "


def marked(closed: Any, wanted: Callable[[str], bool]) -> Any:
    """A closed jaxpr with a mark on each value whose path is wanted; `wanted` is called with every path.

    A scope has a path such as `layers/attention`; the path of a `checkpoint_name` is that of its scope and then the
    name.
    """

    def put(path: str) -> Callable[[Any], Any] | None:
        return (lambda value: calls.checkpoint_name(value, f"{_MARK}{path}")) if wanted(path) else None

    return closed.replace(jaxpr=_within()(closed.jaxpr, "", put))


def stated(closed: Any) -> dict[str, Spec]:
    """The layouts that a function's own code states of values, by the paths of primitives' results: `reshape.1`.

    Those of a backward pass are left out: JAX takes them from the types of what is differentiated.
    """
    layouts: dict[str, Spec] = {}
    _state(closed.jaxpr, layouts, Counter(), backward=False)
    return layouts


def _state(jaxpr: Any, layouts: dict[str, Spec], counts: Counter[str], *, backward: bool) -> None:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("shard_map", "pallas_call"):
            continue
        counts[name] += 1
        behind = backward or "transpose(" in str(equation.source_info.name_stack)
        spec = None if behind else stated_spec(equation)
        if spec is not None and all(entry is None or isinstance(entry, str | tuple) for entry in spec):
            layouts[f"{name}.{counts[name]}"] = Spec.of(spec).padded(equation.outvars[0].aval.ndim)
        for part in equation.params.values():
            parts = cast("tuple[Any, ...]", part) if isinstance(part, tuple) else (part,)
            for inner in parts:
                inside = getattr(inner, "jaxpr", inner)
                if hasattr(inside, "eqns"):
                    _state(inside, layouts, counts, backward=behind)


def unmarked(name: str) -> str | None:
    """The path in the name of a mark; None for other names."""
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None


@cache
def _within() -> Callable[..., Any]:
    space: dict[str, Any] = {"jax": jax}
    imports = (f"import {module}" for module in within.MODULES)
    exec("\n".join([*imports, *within.IMPORTS, within.SOURCE]), space)  # the source in programs
    return space["within"]
