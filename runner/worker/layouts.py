"""A program that also returns intermediate values in; the layouts that the compiler chose for them out.

The program is compiled, not run. A returned value is not fused away, and its layout comes from the same propagation.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import jax
import numpy as np

from runner import dtypes
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import ValueLayout
from runner.worker import calls
from runner.worker.specs import spec_of


def layouts(
    experiment: Experiment, program: Program, module: ModuleType, devices: list[Any] | None = None
) -> dict[str, ValueLayout]:
    """The layout of each value whose layout `expect` names.

    `devices` are those of an absent topology.
    """
    probing = experiment.probing(program)
    assert probing is not None
    if devices is None:
        mesh = module.make_mesh()
        operands = [
            jax.ShapeDtypeStruct(array.shape, np.dtype(dtypes.dtype(array.dtype).numpy), sharding=sharding)
            for array, sharding in zip(experiment.arrays, module.shardings(mesh), strict=True)
        ]
    else:
        mesh = module.make_mesh(devices)
        operands = module.abstract_inputs(mesh)
    # Without arguments nothing else tells JAX that the devices are not the local ones.
    with calls.set_mesh(mesh) if devices is not None and not operands else contextlib.nullcontext():
        lowered = module.program(mesh).lower(*operands)
        shardings = lowered.compile().output_shardings
    by_name: dict[str, ValueLayout] = {}
    for name, info, sharding in zip(probing.outputs, lowered.out_info, shardings, strict=True):
        if name in experiment.expected[program].layouts:
            by_name[name] = ValueLayout(spec=spec_of(sharding), shape=list(info.shape), text=str(sharding))
    return by_name
