"""Reads the origins of Shardy's shardings of each operation's results, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.nodes import STATING
from runner.worker import shardy
from runner.worker.modules import Walk

_KEPT = frozenset({"constant", "return", "call"})
"""The operations without an entry in the plan, since they compute nothing."""

_OF_NUMBERS = frozenset({"reduce", "scatter", "reduce_window", "sort", "all_reduce", "reduce_scatter"})


def computes(operation: Any) -> bool:
    """Whether an operation computes something, rather than passing a value on."""
    dialect, _, name = operation.name.partition(".")
    return dialect != "sdy" and name not in _KEPT


def has_plan(operation: Any, mesh: Mesh) -> bool:
    """Whether the operations in the regions of an operation are planned.

    The scalar function of a reduction is not, nor is fully manual per-device code.
    """
    if operation.name == "sdy.manual_computation":
        return bool(automatic(operation, mesh))
    return operation.name.partition(".")[2] not in _OF_NUMBERS


def automatic(operation: Any, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a `shard_map` leaves to the compiler, over which its per-device code is planned."""
    manual = str(operation.attributes["manual_axes"])
    return tuple(axis for axis in mesh.axes if f'"{axis}"' not in manual)


OperationPlace: TypeAlias = tuple[str, str, int]
"""An operation's name stack, its name, and its number among those with both; for an argument `"", "", number`."""


class Places(Walk):
    """The places of a module's operations, which two modules that Shardy makes from one have in common.

    Operations that passes copy or fold have no place: their counts differ between the two modules.
    """

    def __init__(self, module: Any, mesh: Mesh) -> None:
        super().__init__(module)
        self._mesh = mesh
        self.counts: Counter[tuple[str, str]] = Counter()

    def place(self, operation: Any, stack: str) -> OperationPlace:
        """The place of an operation with this name stack; it differs at each visit."""
        self.counts[stack, operation.name] += 1
        return stack, operation.name, self.counts[stack, operation.name]

    def operation(self, operation: Any) -> bool:
        if computes(operation):
            self.place(operation, self.stack(operation))
        return has_plan(operation, self._mesh)


@dataclass(frozen=True)
class Constraint:
    """A layout in a module: the metadata of the operation that sets it, and the layout, if it can be read."""

    metadata: Metadata
    spec: Spec | None

    @property
    def stack(self) -> str:
        """The name stack of the operation."""
        return self.metadata.op_name

    @property
    def asked(self) -> bool:
        """Whether the program asks for it; with sharding types every operation states its result's layout."""
        return self.stack.rpartition("/")[2] in STATING


class ShardingOrigins(Places):
    """The origins of the shardings of results, by the operations' places, and the constraints.

    - `constraints`: by Shardy's names for them.
    - `constrained`: the names of the constraints on a result, by its operation's place and its number.
    - `typed`: the axes over which types lay out results: Explicit ones.
    """

    def __init__(self, module: Any, mesh: Mesh) -> None:
        super().__init__(module, mesh)
        self.origins: dict[OperationPlace, tuple[Mapping[str, str], ...]] = {}
        self.constraints: dict[str, Constraint] = {}
        self.constrained: dict[tuple[OperationPlace, int], list[str]] = {}
        self.typed: set[str] = set()
        self._asked: set[tuple[str, Spec]] = set()
        self._where: dict[Any, tuple[OperationPlace, int]] = {}
        self._last: list[Any] = []

    def asks(self, stack: str, layout: Spec) -> bool:
        """Whether the program asks for this layout at this stack; later reshards may have the same stack."""
        return (stack, layout) in self._asked

    def enter(self, function: Any) -> None:
        for at, argument in enumerate(function.regions[0].blocks[0].arguments):
            self._where[argument] = ("", "", at), 0

    def argument(self, owner: Any, argument: Any, at: int) -> None:
        bound = self.bindings.get(argument)
        if owner.name != "stablehlo.while" and bound in self._where:
            self._where[argument] = self._where[bound]
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
        if operation.name == "sdy.data_flow_edge" and operation.operands[0] in self._where:
            # The result of a loop or a call, through which Shardy propagates.
            self._where[operation.results[0]] = self._where[operation.operands[0]]
        if "sdy.sharding_origin_name" in attributes:
            name = str(attributes["sdy.sharding_origin_name"]).strip('"')
            layout = shardy.read_spec(str(attributes["sharding"])) if "sharding" in attributes else None
            self.constraints[name] = constraint = Constraint(self.metadata(operation), layout)
            if constraint.asked and layout is not None:
                self._asked.add((constraint.stack, layout))
            elif layout is not None:
                self.typed.update(layout.axes)
            # A `shard_map` without arrays has an origin name as well.
            where = self._where.get(operation.operands[0]) if operation.name == "sdy.sharding_constraint" else None
            if where is not None:
                self.constrained.setdefault(where, []).append(name)
                self._where[operation.results[0]] = where
        if computes(operation):
            place = self.place(operation, self.stack(operation))
            for at, result in enumerate(operation.results):
                self._where[result] = place, at
            self.origins[place] = shardy.origins(operation)
        return has_plan(operation, self._mesh)
