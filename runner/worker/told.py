"""A module with the origins of Shardy's shardings in; of its operations, in their order, what they say, out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.layout import Mesh, Spec
from runner.worker import shardy
from runner.worker.modules import Walk

_KEPT = frozenset({"constant", "return", "call"})
"""What the plan has no entry for: it computes nothing."""

_OF_NUMBERS = frozenset({"reduce", "scatter", "reduce_window", "sort", "all_reduce", "reduce_scatter"})


def computes(operation: Any) -> bool:
    """Whether an operation computes something, rather than only handing a value on."""
    dialect, _, name = operation.name.partition(".")
    return dialect != "sdy" and name not in _KEPT


def has_plan(operation: Any, mesh: Mesh) -> bool:
    """Whether what an operation has in its regions is planned.

    What a reduction does to two numbers is none of the program's operations; nor has a device's code a plan.
    """
    if operation.name == "sdy.manual_computation":
        return bool(automatic(operation, mesh))
    return operation.name.partition(".")[2] not in _OF_NUMBERS


def automatic(operation: Any, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a `shard_map` leaves to the compiler: over these there is a plan of a device's code."""
    manual = str(operation.attributes["manual_axes"])
    return tuple(axis for axis in mesh.axes if f'"{axis}"' not in manual)


class Told(Walk):
    """The origins of the results' shardings, of the operations that compute, in their order; and the constraints.

    - `constraints`: the name stacks and the layouts of constraints, by Shardy's names for them.
    - `constrained`: by the place of a value (the number of its operation and of the result, or -1 and that of an
      argument of the program), the constraints on it.
    """

    def __init__(self, module: Any, mesh: Mesh) -> None:
        super().__init__(module)
        self._mesh = mesh
        self.order: list[tuple[str, tuple[Mapping[str, str], ...]]] = []
        self.constraints: dict[str, tuple[str, Spec | None]] = {}
        self.constrained: dict[tuple[int, int], list[str]] = {}
        self._where: dict[Any, tuple[int, int]] = {}
        self._last: list[Any] = []

    def enter(self, function: Any) -> None:
        for at, argument in enumerate(function.regions[0].blocks[0].arguments):
            self._where[argument] = (-1, at)

    def argument(self, owner: Any, argument: Any, at: int) -> None:
        given = self.bindings.get(argument)
        if owner.name != "stablehlo.while" and given in self._where:
            self._where[argument] = self._where[given]
        else:
            self._where.pop(argument, None)

    def returned(self, owner: Any) -> None:
        for result, value in zip(owner.results, self._last, strict=False):
            if value in self._where:
                self._where[result] = self._where[value]

    def operation(self, operation: Any) -> bool:
        attributes = operation.attributes
        if operation.name.endswith(".return"):
            self._last = list(operation.operands)
        if "sdy.sharding_origin_name" in attributes:
            name = str(attributes["sdy.sharding_origin_name"]).strip('"')
            given = shardy.one(str(attributes["sharding"])) if "sharding" in attributes else None
            self.constraints[name] = self.stack(operation), given
            where = self._where.get(operation.operands[0])
            if where is not None:
                self.constrained.setdefault(where, []).append(name)
                self._where[operation.results[0]] = where
        if computes(operation):
            for at, result in enumerate(operation.results):
                self._where[result] = (len(self.order), at)
            self.order.append((operation.name, shardy.origins(operation)))
        return has_plan(operation, self._mesh)
