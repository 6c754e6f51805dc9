"""Finds the collectives that a traced program requests, and how often each runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.graph.language.operations import OPERATIONS
from runner.graph.sharding import ring
from runner.worker.versions import bodies

KINDS = {
    primitive: row.over.collective
    for row in OPERATIONS.values()
    if row.over is not None and row.over.collective not in (None, ring.RAGGED)
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
        kind = KINDS.get(equation.primitive.name)
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
