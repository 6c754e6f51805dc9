"""Compiles a program without rematerialisation, to compare memory and cost.

The program is compiled, not run.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import numpy as np

from runner.base import dtypes
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import Keeping
from runner.worker import calls, processes
from runner.worker.compilation import costs


def keeping(experiment: Experiment, program: Program, module: ModuleType, devices: list[Any] | None = None) -> Keeping:
    """The program's memory and cost; `devices` are those of an absent topology."""
    if devices is not None:
        mesh = module.make_mesh(devices) if program.on_mesh else None
        operands = module.abstract_inputs(devices[0] if mesh is None else mesh)
    elif program.on_mesh:
        mesh = module.make_mesh()
        operands = [
            jax.ShapeDtypeStruct(array.shape, np.dtype(dtypes.dtype(array.dtype).numpy), sharding=sharding)
            for array, sharding in zip(experiment.arrays, module.shardings(mesh), strict=True)
        ]
    else:
        mesh = None
        operands = calls.device_put(module.split(*module.inputs()), processes.on_one_device(experiment.target.platform))
    function = module.program() if mesh is None else module.program(mesh)
    memory, cost = costs(function.lower(*operands).compile())
    return Keeping(memory=memory, cost=cost)
