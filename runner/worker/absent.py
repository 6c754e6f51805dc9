"""An experiment for a topology in; its devices, and what the compiler makes of each program for them, out.

The devices are not here: arrays are shapes with shardings, and nothing runs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AxisType

from runner import topology
from runner.experiment import Experiment
from runner.faults import invalid
from runner.worker.compilation import compile_program, ranges, spec_of


class Absent:
    """The devices of a topology, and the experiment with the order that they have in its mesh.

    Raises `InvalidExperiment` for a topology that the compiler does not know.
    """

    def __init__(self, experiment: Experiment) -> None:
        wanted = experiment.target.topology
        assert wanted is not None
        if wanted.platform == "tpu":
            os.environ.update(topology.LIBTPU_ENVIRONMENT)
            jax.config.update("jax_platforms", "cpu")
        try:
            self.devices = topologies.get_topology_desc(**wanted.arguments).devices
        except (RuntimeError, ValueError, NotImplementedError) as error:
            message = str(error).strip().split("\n")[0].rstrip(".")
            hint = "; it takes one GPU here, whatever their number there" if wanted.platform == "gpu" else ""
            raise invalid(topology.KEY, f"there is no topology {wanted.name} to compile for{hint}: {message}") from None
        if len(self.devices) != wanted.devices:
            raise RuntimeError(f"{wanted.name} has {len(self.devices)} devices, not {wanted.devices}")
        self._reason = _no_order(experiment, self.devices)
        self.experiment = replace(
            experiment, target=replace(experiment.target, row_major=self._reason is not None and wanted.platform == "tpu")
        )

    def describe(self) -> dict[str, Any]:
        """The target as the record has it."""
        wanted = self.experiment.target.topology
        assert wanted is not None
        return {
            "platform": wanted.platform,
            "devices": wanted.devices,
            "kind": self.devices[0].device_kind,
            "topology": wanted.name,
            "device_order": _order(self.experiment.programs, self._reason),
            "device_order_reason": self._reason,
        }

    def compile_only(self, program: str, module: ModuleType, folder: Path) -> dict[str, Any]:
        """Compile one program; leave its HLO in `folder`. Returns what `execute` returns, as far as it is known."""
        try:
            return self._compile(program, module, folder)
        except jax.errors.JaxRuntimeError as error:
            # Nobody asked for what all devices do to fit on one of them.
            if program != "vmap" or self.experiment.chosen or not str(error).startswith("RESOURCE_EXHAUSTED"):
                raise
            count = self.experiment.mesh.size
            return {"unsupported": f"one device cannot hold what {count} do: {str(error).splitlines()[0]}"}

    def _compile(self, program: str, module: ModuleType, folder: Path) -> dict[str, Any]:
        experiment = self.experiment
        if program == "vmap":
            function, operands = module.program(), module.abstract_inputs(self.devices[0])
            device_ids = list(range(experiment.mesh.size))
        else:
            mesh = module.make_mesh(self.devices)
            function, operands = module.program(mesh), module.abstract_inputs(mesh)
            device_ids = [device.id for device in mesh.devices.flat]
        compiled = compile_program(program, function, operands, folder)
        outputs = zip(experiment.outputs, compiled.results, compiled.executable.output_shardings, strict=True)
        return {
            "device_ids": device_ids,
            "outputs": {
                name: {
                    "dtype": str(result.dtype),
                    "spec": None if program == "vmap" else spec_of(sharding),
                    "places": None if program == "vmap" else _places(sharding, result.shape),
                }
                for name, result, sharding in outputs
            },
            "operands": {} if program == "vmap" else {
                array.name: _places(operand.sharding, operand.shape)
                for array, operand in zip(experiment.arrays, operands, strict=True)
            },
            "memory": compiled.memory(),
            "cost": compiled.cost(),
            "timing": {"place_s": None, "compile_s": compiled.seconds, "run_s": None},
        }  # fmt: skip


def _order(programs: tuple[str, ...], reason: str | None) -> str | None:
    if programs == ("vmap",):
        return None
    return "row-major" if reason else "topology-aware"


def _no_order(experiment: Experiment, devices: list[Any]) -> str | None:
    """Why JAX knows no order of the devices that makes neighbours in the mesh neighbours in the hardware."""
    mesh = experiment.mesh
    if experiment.target.platform == "gpu":
        return "JAX takes GPUs in their own order"
    if experiment.programs == ("vmap",):
        return "vmap has no mesh"
    try:
        jax.make_mesh(mesh.shape, mesh.axes, axis_types=(AxisType.Auto,) * len(mesh.axes), devices=devices)
    except NotImplementedError:
        name = experiment.target.topology.name if experiment.target.topology else ""
        return f"the axes of the mesh {mesh} are not products of the dimensions of {name}"
    return None


def _places(sharding: Any, shape: tuple[int, ...]) -> list[Any]:
    """For each device its id and the index range that it holds, in the order of their ids."""
    held = sharding.devices_indices_map(shape).items()
    return sorted([device.id, ranges(index, shape)] for device, index in held)
