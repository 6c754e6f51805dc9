"""Finds the state of a step: the results of a function that are operands, updated.

A result is an operand's next value if it is a tree of the same structure and types, and comes of it by element-wise
operations and updates: new parameters are the parameters plus something; gradients are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runner.worker import calls
from runner.worker.versions import Literal

_KEEPING = (
    "add", "add_any", "sub", "mul", "div", "max", "min", "neg", "select_n", "clamp", "convert_element_type",
    "sharding_constraint", "reshard", "copy", "optimization_barrier", "dynamic_update_slice", "scatter", "scatter-add",
    "name", "mesh_cast", "pvary",
)  # fmt: skip
"""The primitives whose result is the next value of an operand of its shape."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def candidates(
    operands: Mapping[str, tuple[Any, tuple[str, ...]]],
    result: Any,
    alike: Callable[[str, int], bool],
    alone: Sequence[str],
) -> Iterator[tuple[str, int]]:
    """Yield the pairs of an array and the number of the result's leaf that may be its next value.

    - `operands`: the structure and the leaves of each.
    - `result`: its tree, with numbers for leaves.
    - `alike`: whether an array and a leaf of the result have the same type.

    A tree of several arrays may be a state, and a single array if it is among those `alone`.
    """
    parts: list[Any] = [result]
    if isinstance(result, tuple | list | dict):
        parts += result.values() if isinstance(result, dict) else result
    taken: set[int] = set()
    for structure, leaves in operands.values():
        if len(leaves) < 2 and not set(leaves) <= {*alone}:
            continue
        for part in parts:
            numbers: list[int] = calls.tree.leaves(part)
            if calls.tree.structure(part) != structure or not taken.isdisjoint(numbers):
                continue
            pairs = [*zip(leaves, numbers, strict=True)]
            if all(alike(*pair) for pair in pairs):
                taken.update(numbers)
                yield from pairs
                break


def updates(function: Callable[..., Any], structs: Mapping[str, Any]) -> Callable[[str, int], bool]:
    """Return whether a result of a function, by its number, is the next value of an operand, by its name."""
    closed = calls.make_jaxpr(function)(*structs.values())
    names = [*structs]
    reached: dict[int, frozenset[int]] = {}

    def is_next(array: str, number: int) -> bool:
        if number not in reached:
            reached[number] = _origins(closed.jaxpr, number)
        return names.index(array) in reached[number]

    return is_next


def _origins(jaxpr: Any, number: int) -> frozenset[int]:
    """The inputs of a jaxpr of which an output is the next value."""
    producers = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    inputs = {variable: at for at, variable in enumerate(jaxpr.invars)}
    origins: set[int] = set()
    left, known = [jaxpr.outvars[number]], set[Any]()
    while left:
        variable = left.pop()
        if isinstance(variable, Literal) or variable in known:
            continue
        known.add(variable)
        if variable in inputs:
            origins.add(inputs[variable])
        elif variable in producers:
            left += _before(producers[variable], variable)
    return frozenset(origins)


def _before(equation: Any, variable: Any) -> list[Any]:
    """The operands of which a result of an equation may be the next value."""
    name, params = equation.primitive.name, equation.params
    number = equation.outvars.index(variable)
    if name in _KEEPING:
        same = [invar for invar in equation.invars if invar.aval.shape == variable.aval.shape]
        return same[:1] if "scatter" in name or name == "dynamic_update_slice" else same
    if name == "cond":
        bodies, operands = [branch.jaxpr for branch in params["branches"]], equation.invars[1:]
    elif name == "scan" and number < len(equation.outvars):
        bodies, operands = [getattr(params["jaxpr"], "jaxpr", params["jaxpr"])], equation.invars
        if number >= len(bodies[0].outvars) or bodies[0].outvars[number].aval.shape != variable.aval.shape:
            return []
    else:
        body = next((params[key] for key in _BODIES if key in params), None)
        if body is None or name in ("shard_map", "while", "custom_linear_solve"):
            return []
        bodies, operands = [getattr(body, "jaxpr", body)], equation.invars
    given: list[Any] = []
    for body in bodies:
        count = len(body.invars)
        if number >= len(body.outvars) or count > len(operands):
            continue
        own = operands[len(operands) - count :]
        given += [own[at] for at in _origins(body, number)]
    return given
