"""Finds the first collective of a traced program that devices may never reach together.

Devices that take another branch of a `cond`, or that leave a `while` earlier, do not take part in a collective there,
and the others wait for them for ever. The lines of a file are checked before they are run
(`runner/experiment/divergence.py`); this checks the functions of a user's Python, which are called as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.untyped import is_sequence
from runner.base.words import quoted
from runner.graph.language.operations import OPERATIONS
from runner.worker import versions

_DOES = {
    primitive: row.over.does for row in OPERATIONS.values() if row.communicates for primitive in row.over.primitives
}
"""What each of JAX's primitives that communicate does with the devices' values."""

_ALIKE = ("sum", "mean", "extreme", "gather", "broadcast")
"""What gives all devices along the axes the same value."""


class Deadlock(Exception):
    """Devices may wait for each other for ever; the message says where."""


def require_none(jaxpr: Any) -> None:
    """Raise `Deadlock` for a collective of a traced program that not all of its devices may reach."""
    for equation in jaxpr.eqns:
        inner = [each for _, each in versions.bodies(equation)]
        if equation.primitive.name != "shard_map":
            for each in inner:
                require_none(each)
            continue
        (body,) = inner
        specs = equation.params.get("in_specs")
        if specs is not None:
            _Walk().run(body, [_axes_of(spec) for spec in specs])


class _Walk:
    """Follows a device's code; `waiting` are the axes along which devices may have gone another way, with the place."""

    def __init__(self, waiting: Sequence[tuple[frozenset[str], str]] = ()) -> None:
        self.waiting = waiting

    def run(self, jaxpr: Any, given: Sequence[frozenset[str]]) -> list[frozenset[str]]:
        """Return the axes along which each result may differ, from those of the operands."""
        alike = [frozenset[str]()] * len(jaxpr.constvars)
        return versions.evaluated(jaxpr, given, self._results, lambda _: frozenset[str](), alike)

    def _results(self, equation: Any, operands: list[frozenset[str]]) -> list[frozenset[str]]:
        name, params, count = equation.primitive.name, equation.params, len(equation.outvars)
        if name == "optimization_barrier":
            return operands
        if name == "axis_index":
            return [_named(params)]
        if name in _DOES:
            self._require_reached(equation)
            return [self._communicated(name, params, frozenset[str]().union(*operands))] * count
        if name == "cond":
            return self._branches(equation, operands)
        if name == "while":
            return self._while(equation, operands)
        if name == "scan":
            ((_, body),) = versions.bodies(equation)
            constants, carried = versions.scan_counts(params)
            return self._repeated(body, operands, constants, carried)
        inner = [each for _, each in versions.bodies(equation)]
        if len(inner) == 1 and len(inner[0].invars) == len(operands) and len(inner[0].outvars) == count:
            return self.run(inner[0], operands)
        for each in inner:
            self.run(each, [frozenset[str]().union(*operands)] * len(each.invars))
        return [frozenset[str]().union(*operands)] * count

    def _communicated(self, name: str, params: Mapping[str, Any], inside: frozenset[str]) -> frozenset[str]:
        if _DOES[name] in _ALIKE and params.get("axis_index_groups") is None:
            return inside - _named(params)
        return inside | _named(params)

    def _branches(self, equation: Any, operands: list[frozenset[str]]) -> list[frozenset[str]]:
        on, *given = operands
        walk = self._apart(on, equation, "which branch is taken depends on", "take another branch")
        results = [walk.run(body, given) for _, body in versions.bodies(equation)]
        return [on.union(*each) for each in zip(*results, strict=True)]

    def _while(self, equation: Any, operands: list[frozenset[str]]) -> list[frozenset[str]]:
        inside = dict(versions.bodies(equation))
        at, then = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        carried = len(operands) - at - then
        results = self._repeated(inside["body_jaxpr"], operands[at:], then, carried)
        (on,) = _Walk().run(inside["cond_jaxpr"], [*operands[:at], *results])
        walk = self._apart(on, equation, "whether it goes on depends on", "have left it")
        walk.run(inside["cond_jaxpr"], [*operands[:at], *results])
        walk.run(inside["body_jaxpr"], [*operands[at : at + then], *results])
        return [result | on for result in results]

    def _repeated(
        self, body: Any, operands: list[frozenset[str]], constants: int, carried: int
    ) -> list[frozenset[str]]:
        given = list(operands)
        while True:
            results = self.run(body, given)
            state = slice(constants, constants + carried)
            joined = [a | b for a, b in zip(given[state], results[:carried], strict=True)]
            if joined == given[state]:
                return [*joined, *results[carried:]]
            given[state] = joined

    def _apart(self, on: frozenset[str], equation: Any, what: str, how: str) -> _Walk:
        """The walk of a body that devices may not all run."""
        if not on:
            return self
        place = f"{_place(equation)}{what} a value that may differ along {quoted(sorted(on))}, and devices that {how}"
        return _Walk([*self.waiting, (on, place)])

    def _require_reached(self, equation: Any) -> None:
        for on, place in self.waiting:
            if _named(equation.params) & on or _DOES[equation.primitive.name] == "permute":
                name = next(name for name, row in OPERATIONS.items() if equation.primitive.name in row.over.primitives)
                at = _place(equation).strip(": ")
                raise Deadlock(f"{place} never reach this {name}{f', {at}' if at else ''}; move it before")


def _named(params: Mapping[str, Any]) -> frozenset[str]:
    """The mesh axes of a collective."""
    named = params["axes"] if "axes" in params else params.get("axis_name", ())
    return frozenset(axis for axis in (named if is_sequence(named) else (named,)) if isinstance(axis, str))


def _axes_of(spec: Any) -> frozenset[str]:
    """The mesh axes of a PartitionSpec."""
    return frozenset(axis for entry in spec for axis in (entry if is_sequence(entry) else (entry,)) if axis is not None)


def _place(equation: Any) -> str:
    """The user's line of an equation, `model.py:12: `; empty if JAX does not know it."""
    frame = versions.user_frame(equation.source_info)
    return "" if frame is None else f"{Path(frame.file).name}:{frame.line}: "
