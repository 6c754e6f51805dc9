"""Makes a program ready to be compiled: its function, and operands that lie on devices or are types alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import jax

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.worker import calls, processes


@dataclass(frozen=True)
class ReadyProgram:
    """A program's jitted function and its operands.

    - `mesh`: JAX's, None for a program on one device; `absent`: the first device, if they are not here.
    """

    function: Any
    operands: Any
    mesh: Any = None
    absent: Any = None

    def within(self) -> AbstractContextManager[Any]:
        """The context that tells JAX the devices of a program without operands: they may not be the local ones."""
        if self.operands or self.absent is None:
            return nullcontext()
        return calls.set_mesh(self.mesh) if self.mesh is not None else calls.default_device(self.absent)


def placed(experiment: Experiment, program: Program, module: ModuleType) -> ReadyProgram:
    """A program with its arrays, which are placed on the devices here."""
    if not program.on_mesh:
        device = processes.on_one_device(experiment.target.platform)
        return ReadyProgram(module.program(), calls.device_put(module.split(*module.inputs()), device))
    mesh = module.make_mesh()
    return ReadyProgram(module.program(mesh), processes.placed(module, mesh), mesh)


def abstract(
    experiment: Experiment, program: Program, module: ModuleType, devices: list[Any] | None = None
) -> ReadyProgram:
    """A program with the types and layouts of its arrays; `devices`: those of an absent topology."""
    if devices is not None and not program.on_mesh:
        return ReadyProgram(module.program(), module.abstract_inputs(devices[0]), absent=devices[0])
    if devices is not None:
        mesh = module.make_mesh(devices)
        return ReadyProgram(module.program(mesh), module.abstract_inputs(mesh), mesh, devices[0])
    if not program.on_mesh:
        return placed(experiment, program, module)
    mesh = module.make_mesh()
    operands = [
        jax.ShapeDtypeStruct(array.shape, dtypes.dtype(array.dtype).numpy, sharding=sharding)
        for array, sharding in zip(experiment.arrays, module.shardings(mesh), strict=True)
    ]
    return ReadyProgram(module.program(mesh), operands, mesh)


def device_ids(experiment: Experiment, mesh: Any) -> list[int]:
    """The numbers of the devices in the order of the mesh; of a program on one device the positions in the mesh."""
    return [*range(experiment.mesh.size)] if mesh is None else [*map(processes.number_of, mesh.devices.flat)]
