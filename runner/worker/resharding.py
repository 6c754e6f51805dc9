"""Finds verified reshards that avoid the involuntary rematerializations that the compiler warns of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from runner.base import dtypes, executions, layout
from runner.base.layout import Spec
from runner.compiled.evidence import compiler_warnings, hlo
from runner.compiled.evidence.collectives import read
from runner.compiled.evidence.nodes import Origins
from runner.experiment.model import Experiment
from runner.graph.sharding import moves, ring
from runner.graph.sharding.propagation import Reshard
from runner.worker import calls, processes
from runner.worker.specs import partition
from runner.worker.stderr import CapturedStderr

_TRIES = 6
"""How many ways are tried for one warning; each is a program of a few lines that is compiled."""


def ways(experiment: Experiment, origins: Origins, stderr: str | None, mesh: Any, *, run: bool) -> dict[str, Reshard]:
    """Return, by the text of each rematerialization warning, the two layouts, and steps between them that avoid it.

    `mesh` is JAX's. The steps are compiled and, with `run`, executed; those that do not help are omitted.
    """
    by_text: dict[str, Reshard] = {}
    # The layers of a model give a warning each, about equal moves.
    ways_of: dict[Reshard, Reshard] = {}
    if stderr is None or "full rematerialization" not in stderr.lower():
        return by_text
    for warning in compiler_warnings.read(stderr, origins):
        change = compiler_warnings.change(warning.text, experiment.mesh)
        if change is None:
            continue
        if change not in ways_of:
            ways_of[change] = _way(experiment, mesh, change, origins, run=run)
        by_text[warning.text] = ways_of[change]
    return by_text


def _way(experiment: Experiment, mesh: Any, change: Reshard, origins: Origins, *, run: bool) -> Reshard:
    """The change with the first steps between its layouts that avoid the rematerialization, if any do."""
    for through in _paths(experiment.mesh, change):
        sent = _tried(experiment, mesh, change, through, origins, run=run)
        if sent is not None:
            return replace(change, through=through, bytes_sent=sent, ran=run)
    return change


def _paths(mesh: layout.Mesh, change: Reshard) -> Iterator[tuple[Spec, ...]]:
    """Candidate intermediate layouts: the cheapest path first, then each single nearby layout.

    There are none for blocks that the compiler pads.
    """
    rank, width = len(change.shape), dtypes.dtype(change.dtype).itemsize
    before, after = (moves.plain(mesh, spec, rank) for spec in (change.before, change.after))
    entries = (pair for spec in (before, after) for pair in zip(change.shape, spec, strict=True))
    if any(size % mesh.axis_size(axes) for size, axes in entries):
        return
    steps = moves.moves(mesh, change.shape, width, before, after)
    planned = [tuple(step.after for step in steps[:-1])]
    if planned[0]:
        yield planned[0]
    near = sorted(
        {step.after for step in moves.steps(mesh, change.shape, width, before, after)} - {before, after},
        key=lambda spec: (moves.sent(mesh, change.shape, width, before, spec), str(spec)),
    )
    for spec in near[:_TRIES]:
        if (spec,) not in planned:
            yield (spec,)


def _tried(
    experiment: Experiment,
    mesh: Any,
    change: Reshard,
    through: tuple[Spec, ...],
    origins: Origins,
    *,
    run: bool,
) -> int | None:
    """The bytes that a device sends for these steps; None where the compiler warns again or the values differ."""
    # Explicit sharding is compiled too, since the warning does not come from the types.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    before, *rest = (NamedSharding(mesh, partition(spec)) for spec in (change.before, *through, change.after))

    def steps(value: Any) -> Any:
        for sharding in rest:
            value = calls.with_sharding_constraint(value, sharding)
        return value

    kind = dtypes.dtype(change.dtype).numpy
    captured = CapturedStderr()
    compiled = calls.jit(steps).lower(jax.ShapeDtypeStruct(change.shape, kind, sharding=before)).compile()
    stderr = captured.text()
    if stderr is None or "full rematerialization" in stderr.lower():
        return None
    if run:
        values = np.arange(np.prod(change.shape)).reshape(change.shape).astype(kind)
        moved = compiled(processes.put(values, before))
        wrong = not all(np.array_equal(shard.data, values[shard.index]) for shard in moved.addressable_shards)
        if processes.agreed(wrong):
            return None
    module = hlo.read(compiled.as_text())
    communication = read(module, origins, experiment.mesh)
    return None if communication.missing else executions.most(ring.total(communication.entries))
