"""An experiment in; the program that takes its trace, and what every device held of every value, out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from runner.experiment import naming
from runner.experiment.model import Experiment
from runner.faults import InvalidExperiment
from runner.link import handover
from runner.link.events import Traced
from runner.programs import trace
from runner.programs.types import Typed
from runner.worker import calls
from runner.worker.types import per_device


@dataclass(frozen=True)
class Trace:
    """The source of the program and the names of what it returns; or why there is none."""

    source: str = ""
    names: tuple[str, ...] = ()
    refused: str | None = None

    def take(self, module: ModuleType, arrays: Path) -> Traced:
        """Run the program; leave the values in `arrays`, stacked over the devices in the order of the mesh."""
        mesh = module.make_mesh()
        operands = calls.device_put(module.inputs(), module.shardings(mesh))
        values = [np.asarray(value) for value in module.program(mesh)(*operands)]
        handover.leave(arrays / "trace.bin", values)
        return Traced(
            device_ids=[device.id for device in mesh.devices.flat],
            values={name: (str(value.dtype), value.shape) for name, value in zip(self.names, values, strict=True)},
        )


def prepare(experiment: Experiment, folder: Path) -> Trace:
    """Write the program that takes the trace; `folder` is where `load` looks."""
    traced = naming.named(experiment)
    try:
        types, _ = per_device(traced.experiment, {})
    except InvalidExperiment as error:
        return Trace(refused=str(error))
    types |= {array.name: Typed(array.layout.shard_shape, array.dtype) for array in experiment.arrays}
    # Tuples have no type of their own, and no value that could be stacked.
    wanted = [name for value in traced.values for name in (value.before, value.node) if name in types]
    kept = {str(name): types[str(name)] for name in dict.fromkeys(wanted)}
    elements = experiment.mesh.size * sum(math.prod(typed.shape) for typed in kept.values())
    if elements > naming.ELEMENTS:
        return Trace(refused=naming.too_large(elements))
    return Trace(trace.write(traced, folder, kept), tuple(kept))
