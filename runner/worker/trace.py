"""Runs an experiment's tracing program, and returns every device's values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from runner.base.faults import InvalidExperiment
from runner.base.layout import Typed
from runner.base.lazy import dataclass
from runner.experiment import value_names
from runner.experiment.value_names import NamedCode
from runner.link import handover
from runner.link.events import Traced
from runner.programs import trace
from runner.worker import processes, support
from runner.worker.types import per_device


@dataclass(frozen=True)
class TraceProgram:
    """The source of the tracing program and the names of its results; or the reason why there is none."""

    source: str = ""
    names: tuple[str, ...] = ()
    refused: str | None = None

    def take(self, module: ModuleType, arrays: Path) -> Traced:
        """Run the program; write the values to `arrays`, stacked over the devices in the order of the mesh."""
        mesh = module.make_mesh()
        function, operands = module.program(mesh), processes.placed(module, mesh)
        processes.wait()
        values = function(*operands)
        position_of = {device: position for position, device in enumerate(mesh.devices.flat)}
        rows = sorted(position_of[device] for device in mesh.local_devices)
        handover.leave(arrays / "trace.bin", [_stacked(value, position_of) for value in values])
        return Traced(
            device_ids=[processes.number_of(device) for device in mesh.devices.flat],
            values={
                name: Typed(value.shape[1:], str(value.dtype)) for name, value in zip(self.names, values, strict=True)
            },
            rows=[rows],
        )


def _stacked(value: Any, position_of: Mapping[Any, int]) -> np.ndarray:
    """The local devices' blocks of a value, in the order of the mesh."""
    shards = sorted(value.addressable_shards, key=lambda shard: position_of[shard.device])
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def prepare(traced: NamedCode, folder: Path) -> TraceProgram:
    """Write the tracing program; `folder` is where `load` looks."""
    experiment = traced.of
    if (reason := support.not_here(experiment)) is not None:
        return TraceProgram(refused=reason)
    try:
        types, _ = per_device(traced.experiment, {})
    except InvalidExperiment as error:
        return TraceProgram(refused=str(error))
    types |= {array.name: Typed(array.layout.shard_shape, array.dtype) for array in experiment.given}
    # Tuples have no type of their own, and no value that could be stacked.
    wanted = [name for value in traced.values for name in (value.before, value.node) if name in types]
    kept = {str(name): types[str(name)] for name in dict.fromkeys(wanted)}
    elements = experiment.mesh.size * sum(math.prod(typed.shape) for typed in kept.values())
    if elements > value_names.ELEMENTS:
        return TraceProgram(refused=value_names.too_large(elements))
    return TraceProgram(trace.write(experiment, traced, folder, kept), tuple(kept))
