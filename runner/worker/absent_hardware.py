"""Compiles the programs of an experiment for an absent topology, and describes its devices.

Arrays are shapes with shardings, and nothing runs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType

from runner.base.faults import invalid
from runner.experiment import topology
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import Devices, OutputTold, Ran, Ranges
from runner.worker import calls, ready
from runner.worker.compilation import compile_program, planned, ranges, reshards
from runner.worker.specs import spec_of

_SPLIT = "topology-aware, physical axes split"


class AbsentDevices:
    """The devices of a topology, and the experiment with their order in its mesh.

    Raises `InvalidExperiment` for a topology that the compiler does not know.
    """

    def __init__(self, experiment: Experiment) -> None:
        wanted = experiment.target.topology
        assert wanted is not None
        if wanted.platform == "tpu":
            os.environ.update(topology.LIBTPU_ENVIRONMENT)
            calls.configure("jax_platforms", "cpu")
        try:
            self.devices: list[Any] = (
                list(calls.devices("cpu"))
                if wanted.platform == "cpu"
                else cast("Any", topologies).get_topology_desc(**wanted.arguments).devices
            )
        except (RuntimeError, ValueError, NotImplementedError) as error:
            message = str(error).strip().split("\n")[0].rstrip(".")
            needs = "there is no topology {} to compile for"
            if wanted.platform == "gpu":
                needs = "compiling for {} needs one GPU of that kind here"
            raise invalid(topology.KEY, f"{needs.format(wanted.name)}: {message}") from None
        if len(self.devices) != wanted.devices:
            raise RuntimeError(f"{wanted.name} has {len(self.devices)} devices, not {wanted.devices}")
        self._order, self._reason = _order(experiment, self.devices)
        split = self._order == _SPLIT
        self.experiment = replace(experiment, target=replace(experiment.target, split_axes=split))

    def describe(self) -> Devices:
        """Describe the target for the record."""
        wanted = self.experiment.target.topology
        assert wanted is not None
        return Devices(
            platform=wanted.platform,
            devices=wanted.devices,
            kind=self.devices[0].device_kind,
            topology=wanted.name,
            device_order=self._order,
            device_order_reason=self._reason,
        )

    def compile_only(self, experiment: Experiment, program: Program, module: ModuleType, folder: Path) -> Ran:
        """Compile one program of `experiment`; write its HLO to `folder`.

        Returns the same as `execute`, as far as it is known without running.
        """
        coordinates = None
        wanted = experiment.target.topology
        assert wanted is not None
        prepared = ready.abstract(experiment, program, module, self.devices)
        mesh, operands = prepared.mesh, prepared.operands
        if program.on_mesh and wanted.platform == "tpu":
            coordinates = [_place(device, len(wanted.shape)) for device in mesh.devices.flat]
        with prepared.within():
            of_user, options = bool(experiment.imports.functions), wanted.compiler_options
            planning = planned(experiment, program, folder)
            compiled = compile_program(
                program, prepared.function, operands, of_user=of_user, options=options, planning=planning
            )
        compiled.leave(program, folder)
        outputs = zip(experiment.outputs, compiled.results, compiled.executable.output_shardings, strict=True)
        return Ran(
            only_compiled=True,
            device_ids=ready.device_ids(experiment, mesh),
            coordinates=coordinates,
            outputs={
                name: OutputTold(
                    dtype=str(result.dtype),
                    spec=None if not program.on_mesh else spec_of(sharding),
                    places=None if not program.on_mesh else _places(sharding, result.shape),
                )
                for name, result, sharding in outputs
            },
            operands={} if not program.on_mesh else {
                array.name: _places(operand.sharding, operand.shape)
                for array, operand in zip(experiment.arrays, operands, strict=True)
            },
            reshards=reshards(experiment, program, compiled, mesh, run=False),
            stderr=compiled.stderr,
            unreadable=compiled.unreadable,
            compilation=compiled.reported(experiment, program, folder, None, None),
        )  # fmt: skip


def _order(experiment: Experiment, devices: list[Any]) -> tuple[str | None, str | None]:
    """The order of the devices in the mesh, and the reason where it is not `jax.make_mesh`'s topology-aware one."""
    mesh, wanted = experiment.mesh, experiment.target.topology
    assert wanted is not None
    if not experiment.on_mesh:
        return None, f"{experiment.programs[0]} has no mesh"
    if mesh.devices is not None:
        return "as mesh.devices says", None
    if wanted.platform != "tpu":
        return "row-major", f"JAX takes {wanted.platform.upper()}s in the order of their ids"
    across = wanted.over_network(mesh.shape) if wanted.slices > 1 else None
    if across is not None:
        within = [size // parts for size, parts in zip(mesh.shape, across, strict=True)]
        try:
            mesh_utils.create_hybrid_device_mesh(within, across, devices)
        except NotImplementedError:
            return (
                _SPLIT,
                f"JAX cannot build the axes of the mesh {mesh} from whole axes of a slice of {wanted.of_slice}",
            )
        return "topology-aware", None
    try:
        calls.make_mesh(mesh.shape, mesh.axes, axis_types=(AxisType.Auto,) * len(mesh.axes), devices=devices)
    except NotImplementedError:
        return _SPLIT, f"jax.make_mesh cannot build the axes of the mesh {mesh} from whole axes of {wanted.name}"
    return "topology-aware", None


def _place(device: Any, dimensions: int) -> list[int]:
    """The place of a TPU device: its slice, its chip's coordinates in the torus, its core on the chip."""
    return [getattr(device, "slice_index", 0), *device.coords[:dimensions], device.core_on_chip]


def _places(sharding: Any, shape: tuple[int, ...]) -> list[tuple[int, Ranges]]:
    """Each device's id and the index range that it holds, in the order of the ids."""
    held = sharding.devices_indices_map(shape).items()
    return sorted((device.id, ranges(index, shape)) for device, index in held)
