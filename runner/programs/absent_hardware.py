"""Writes the parts of programs for an absent topology, which compile without running.

Such a program is a module with `topology()` (the devices to compile for), `make_mesh(devices=None)`, `program(mesh)`,
and, in place of data, `abstract_inputs(mesh)`: the shape, dtype and sharding of each array. `vmap` has no mesh; its
`abstract_inputs(device)` are the blocks on one of the devices.
"""

from __future__ import annotations

from pathlib import Path

from runner.base import dtypes
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Array, Experiment
from runner.experiment.program import Program
from runner.programs.spelling import main_of, ordered, sharding, tuple_of


def inputs(experiment: Experiment, names: Identifiers, folder: Path) -> str:
    """Write `abstract_inputs`: each array's shape, dtype and sharding."""
    rows = [_struct(array, f", sharding={sharding(array.layout.spec)}") for array in experiment.arrays]
    return "\n".join(
        [
            "def abstract_inputs(mesh):",
            '    """The shape, dtype and sharding of each array; no data is made."""',
            *_returned(rows),
        ]
    )


def blocks(experiment: Experiment) -> str:
    """Write `abstract_inputs` of the program `vmap`."""
    rows = [_struct(array, "") for array in experiment.arrays]
    return "\n".join(
        [
            "def abstract_inputs(device):",
            '    """The shape and dtype of the blocks of each array, all on one device; no data is made."""',
            *(line.replace("return (", "arrays = (") for line in _returned(rows)),
            "    here = jax.sharding.SingleDeviceSharding(device)",
            "    return tuple(block.update(sharding=here) for block in jax.eval_shape(split, *arrays))",
        ]
    )


def _struct(array: Array, placed: str) -> str:
    return f"jax.ShapeDtypeStruct({array.shape!r}, {dtypes.dtype(array.dtype).source}{placed})"


def _returned(rows: list[str]) -> list[str]:
    if len(rows) < 2:
        return [f"    return {tuple_of(rows) if rows else '()'}"]
    return ["    return (", *(f"        {row}," for row in rows), "    )"]


def mesh_functions(experiment: Experiment, program: Program) -> str:
    """Write `topology` and `make_mesh`."""
    mesh, there = experiment.mesh, experiment.target.topology
    assert there is not None
    axis_types = tuple_of([f"AxisType.{axis_type}" for axis_type in program.axis_types(mesh)])
    rest = f"{mesh.axes!r}, axis_types={axis_types}"
    made = [f"    return jax.make_mesh({mesh.shape!r}, {rest}, devices=devices or topology())"]
    if mesh.devices is not None:
        made = ordered(mesh, "devices or topology()", axis_types)
    elif there.slices > 1:
        across = there.over_network(mesh.shape)
        assert across is not None
        within = tuple(size // parts for size, parts in zip(mesh.shape, across, strict=True))
        split = ", allow_split_physical_axes=True" if experiment.target.split_axes else ""
        made = [
            "    # The mesh within a slice, and that of the slices, which the data-centre network links.",
            f"    ordered = mesh_utils.create_hybrid_device_mesh({within!r}, {across!r}, devices or topology(){split})",
            f"    return jax.sharding.Mesh(ordered, {rest})",
        ]
    elif experiment.target.split_axes:
        arguments = f"{mesh.shape!r}, devices or topology(), allow_split_physical_axes=True"
        made = [
            f"    ordered = mesh_utils.create_device_mesh({arguments})",
            f"    return jax.sharding.Mesh(ordered, {rest})",
        ]
    return "\n".join([devices(experiment), "", "", "def make_mesh(devices=None):", *made])


def devices(experiment: Experiment) -> str:
    """Write `topology`."""
    assert experiment.target.topology is not None
    wanted = experiment.target.topology
    arguments = ", ".join(f"{name}={value!r}" for name, value in wanted.arguments.items())
    made = "jax.devices()" if wanted.platform == "cpu" else f"topologies.get_topology_desc({arguments}).devices"
    return "\n".join(
        [
            "def topology():",
            '    """The devices to compile for; they need not be here."""',
            f"    return {made}",
        ]
    )


def main(experiment: Experiment, program: Program) -> str:
    """Write `main`, which compiles the program and prints the compiler's memory and cost analysis."""
    assert experiment.target.topology is not None
    options = experiment.target.topology.compiler_options
    compiling = f"compile(compiler_options={options!r})" if options else "compile()"
    lines = ["device = topology()[0]", f"compiled = program().lower(*abstract_inputs(device)).{compiling}"]
    if program.on_mesh:
        lines = ["mesh = make_mesh()", f"compiled = program(mesh).lower(*abstract_inputs(mesh)).{compiling}"]
    if not experiment.arrays:
        # Without arguments, the devices to compile for are not determined.
        lines[1:] = [
            f"with jax.{'set_mesh(mesh)' if program.on_mesh else 'default_device(device)'}:",
            f"    {lines[1]}",
        ]
    lines += [
        "cost = compiled.cost_analysis()",
        "print(compiled.memory_analysis())",
        'print({name: cost[name] for name in ("flops", "bytes accessed", "optimal_seconds") if name in cost})',
    ]
    return main_of(lines)
