"""Reads the explicit collectives of a program as traced and as lowered, before compilation.

They are the same on every platform. A program in the global view has none; a `shard_map` has those of its lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.compiled.evidence import groups
from runner.compiled.evidence.hlo import Metadata
from runner.graph.language.operations import OPERATIONS
from runner.graph.sharding import ring
from runner.graph.sharding.propagation import AskedCollective
from runner.worker.modules import Walk, bytes_of
from runner.worker.versions import bodies

KINDS = {
    "stablehlo.all_reduce": "all-reduce", "stablehlo.all_gather": "all-gather", "stablehlo.all_to_all": "all-to-all",
    "stablehlo.reduce_scatter": "reduce-scatter", "stablehlo.collective_permute": "collective-permute",
    "stablehlo.collective_broadcast": "collective-broadcast",
}  # fmt: skip
"""The collectives of StableHLO, with XLA's names."""

_AXES = re.compile(r'name = "([^"]+)"')


def asked(module: Any, mesh: Mesh, where: Callable[[Metadata], tuple[str | None, bool]]) -> list[AskedCollective]:
    """The collectives of a StableHLO module; `where` gives an operation's line, and whether it is backward."""
    walk = _Walk(module, mesh, where)
    walk.walk()
    return walk.collectives


class _Walk(Walk):
    def __init__(self, module: Any, mesh: Mesh, where: Callable[[Metadata], tuple[str | None, bool]]) -> None:
        super().__init__(module)
        self._mesh, self._where = mesh, where
        self.collectives: list[AskedCollective] = []

    def operation(self, operation: Any) -> bool:
        kind, attributes, moved = KINDS.get(operation.name), operation.attributes, list(operation.operands)
        if operation.name == "stablehlo.custom_call" and "ragged_all_to_all" in str(attributes["call_target_name"]):
            # StableHLO has no operation for it; the operands after the first are offsets and sizes.
            kind, attributes, moved = ring.RAGGED, attributes["backend_config"], moved[:1]
        if kind is None:
            return True
        line, gradient = self._where(self.metadata(operation))
        axes, devices = self._over(operation, attributes)
        bytes_in = sum(map(bytes_of, moved))
        bytes_out = sum(map(bytes_of, operation.results))
        self.collectives.append(
            AskedCollective(
                kind=kind,
                axes=axes,
                line=line,
                gradient=gradient,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                bytes_sent=None if devices is None else ring.sent(kind, devices, bytes_in, bytes_out),
                count=self.count,
                branches=self.branches,
                alone=devices == 1,
            )
        )
        return False

    def _over(self, operation: Any, attributes: Any) -> tuple[tuple[str, ...] | None, int | None]:
        """The mesh axes of the replica groups, if axes give them, and the number of devices in a group."""
        if operation.name == "stablehlo.collective_permute":
            pairs = _numbers(attributes["source_target_pairs"])
            if pairs is None:
                return None, None
            return groups.axes_between(pairs, self._mesh), 1 + bool((pairs[:, 0] != pairs[:, 1]).any())
        text = str(attributes["replica_groups"])
        who = _numbers(attributes["replica_groups"])
        if who is not None:
            axes = groups.axes_of(who, self._mesh)
            return axes, int(who.shape[1])
        named = _AXES.findall(text)
        if "sub_axis_info" in text or not all(axis in self._mesh.sizes for axis in named):
            return None, None
        return tuple(axis for axis in self._mesh.axes if axis in named), self._mesh.axis_size(named)


def _numbers(attribute: Any) -> np.ndarray | None:
    """The rows of a dense integer attribute, whose text may be raw bytes."""
    return np.array(attribute) if str(attribute).startswith("dense<") else None


OF_PRIMITIVES = {
    primitive: row.over.collective
    for row in OPERATIONS.values()
    if row.over.collective not in (None, ring.RAGGED)
    for primitive in row.over.primitives
}
"""The kind of the collective of each of JAX's primitives whose bytes are known before it runs."""


@dataclass(frozen=True)
class Requested:
    """A collective.

    - `sent`: the bytes that a device sends each time on a ring; `times`: how often it runs.
    - `permutation`: pairs of source and destination along the axes, for a `collective-permute`.
    """

    kind: str
    axes: tuple[str, ...]
    sent: int
    times: int
    permutation: tuple[tuple[int, int], ...] = ()


def requested(jaxpr: Any, mesh: Mesh) -> Iterator[Requested]:
    """Yield the collectives of a jaxpr; those in a `scan` run as often as it has steps, those in a `while` once."""
    for equation, times in _equations(jaxpr, 1):
        kind = OF_PRIMITIVES.get(equation.primitive.name)
        if kind is None:
            continue
        named = equation.params["axes"] if "axes" in equation.params else equation.params["axis_name"]
        axes = tuple(axis for axis in (named if is_sequence(named) else (named,)) if isinstance(axis, str))
        n = mesh.axis_size(axes)
        if n > 1:
            held = sum(math.prod(invar.aval.shape) * invar.aval.dtype.itemsize for invar in equation.invars)
            sent = ring.sent(kind, n, held, n * held)
            assert sent is not None, kind
            pairs = tuple((int(a), int(b)) for a, b in equation.params.get("perm", ()))
            yield Requested(kind, axes, sent, times, pairs)


def _equations(jaxpr: Any, times: int) -> Iterator[tuple[Any, int]]:
    """Yield every equation with the number of its executions."""
    for equation in jaxpr.eqns:
        yield equation, times
        more = times * equation.params.get("length", 1) if equation.primitive.name == "scan" else times
        for _, inner in bodies(equation):
            yield from _equations(inner, more)
