"""Reads the mesh, the arrays and the PartitionSpecs of a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.base.faults import Fault, InvalidExperiment, Key, invalid, nearest
from runner.base.layout import Layout, Mesh, Spec
from runner.base.untyped import leaves
from runner.experiment.config import schema
from runner.experiment.config.specs import axes as spec_axes
from runner.experiment.forms import AXIS_TYPES, DEVICE, as_written, check, choices, yaml_hint
from runner.experiment.model import Array, Experiment
from runner.experiment.plain import counted, parsed, read_size, rectangular, size_text
from runner.experiment.rules import Logical, Specs
from runner.graph.language.check import missing_axis

_AXES = 32
"""The most axes of a mesh: arrays of devices have no more dimensions."""


def read_mesh(experiment: Mapping[str, Any]) -> Mesh:
    """Read the key `mesh` of an experiment's mapping. Raises `InvalidExperiment`."""
    config = experiment["mesh"]
    axes, shape = config["axes"], config["shape"]
    if axes is None and shape is None:
        used = spec_axes(experiment)
        sizes = "4" if len(used) < 2 else ", ".join("2" for _ in used)
        mesh = f"{{axes: [{', '.join(used) or 'x'}], shape: [{sizes}]}}"
        raise invalid(("mesh",), f"there is no mesh; write mesh: {mesh}, or choose one: mesh=x4")
    if axes is None or shape is None:
        present, missing = ("shape", "axes") if axes is None else ("axes", "shape")
        message = f"there is mesh.{present} without mesh.{missing}; write both: {{axes: [x, y], shape: [2, 4]}}"
        raise invalid(("mesh", present), message)
    check(axes, ("mesh", "axes"))
    if len(axes) > _AXES:
        raise invalid(("mesh", "axes"), f"a mesh of {len(axes)} axes; JAX makes one of at most {_AXES}")
    for i, axis in enumerate(axes):
        if axis in axes[:i]:
            raise invalid(("mesh", "axes", i), f"the mesh axis '{axis}' appears twice")
    check(shape, ("mesh", "shape"))
    if len(axes) != len(shape):
        raise invalid(
            ("mesh", "shape"), f"{counted(shape, 'size')} for {counted(axes, 'axis', 'axes')}; each axis has one"
        )
    devices = _read_devices(config.get("devices"), tuple(shape))
    return Mesh(tuple(axes), tuple(shape), devices, auto=_read_types(config.get("types"), axes))


def _read_types(types: Any, axes: list[str]) -> tuple[str, ...]:
    """The axes that are not of type Explicit."""
    key = ("mesh", "types")
    if types is None:
        return ()
    for i, kind in enumerate(types):
        if str(kind).lower() == "manual":
            message = (
                f"programs over whole arrays have no manual axes; per_device has, with manual: [{axes[i % len(axes)]}]"
            )
            raise invalid((*key, i), message)
        if str(kind).lower() not in AXIS_TYPES:
            raise invalid(
                (*key, i), f"{kind!r} is not a type of an axis{nearest(str(kind), AXIS_TYPES)}{choices(AXIS_TYPES)}"
            )
    if len(types) != len(axes):
        raise invalid(key, f"{counted(types, 'type')} for {counted(axes, 'axis', 'axes')}")
    auto = tuple(axis for axis, kind in zip(axes, types, strict=True) if str(kind).lower() == "auto")
    if len(auto) == len(axes):
        message = (
            "no axis is explicit, as in the programs auto and constraint: make one explicit, or leave out mesh.types"
        )
        raise invalid(key, message)
    return auto


def _read_devices(value: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The numbers of the devices in a mesh of that shape, row-major."""
    key = ("mesh", "devices")
    if value is None:
        return None
    numbered = rectangular(value, key)
    if numbered not in ((math.prod(shape),), shape):
        raise invalid(key, f"{size_text(numbered)} devices, but the mesh has {size_text(shape)}")
    positions: dict[int, int] = {}
    for i, number in enumerate(leaves(value)):
        check(number, key, DEVICE)
        if number in positions:
            raise invalid(key, f"device {number} appears twice in the mesh, at {positions[number]} and at {i}")
        positions[number] = i
    return tuple(positions)


def read_manual(axes: Any, mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes that `per_device` leaves to the compiler, given those over which it is manual; none by default."""
    if axes is None:
        return ()
    for i, axis in enumerate(axes):
        key = ("manual", i)
        if axis not in mesh.axes:
            raise invalid(key, missing_axis(axis, mesh) + (yaml_hint(axis) or nearest(str(axis), mesh.axes)))
        if axis in axes[:i]:
            raise invalid(key, f"the mesh axis '{axis}' appears twice")
    if not axes:
        message = "per_device is manual over at least one mesh axis; the mesh has " + ", ".join(mesh.axes)
        raise invalid(("manual",), message)
    return tuple(axis for axis in mesh.axes if axis not in axes)


def check_blocks(experiment: Experiment) -> None:
    """Raise `InvalidExperiment` if a device's shard would not be part of the block that `per_device` sees."""
    if not experiment.automatic or not experiment.per_device:
        return
    sizes = experiment.mesh.sizes
    inside = set(experiment.constrained_inside) & set(experiment.constrained)
    specs: list[tuple[Key, Spec]] = [
        *((("arrays", array.name, "spec"), array.layout.spec) for array in experiment.arrays),
        *((("constraints", name), spec) for name, spec in experiment.constraints.items() if name in inside),
        *((("outputs", name), spec) for name, spec in experiment.outputs.items()),
    ]
    for key, spec in specs:
        for i, axes in enumerate(spec):
            split = [axis for axis in axes if sizes[axis] > 1]
            manual = [axis for axis in split if axis not in experiment.automatic]
            if split[: len(manual)] != manual:
                rest = [axis for axis in axes if axis not in manual]
                first = next(axis for axis in split if axis in experiment.automatic)
                raise invalid(
                    (*key, i),
                    f"dimension {i} is sharded over '{first}', which is automatic, before '{manual[-1]}', over which "
                    f"per_device is manual: a block of shard_map is in one piece, so manual axes come first: "
                    f"[{', '.join([*manual, *rest])}]",
                )


_RANK = 64
"""The largest number of dimensions of a NumPy array."""


def read_array(name: str, config: Mapping[str, Any], specs: Specs, dims: Mapping[str, int]) -> Array:
    key, config = ("arrays", name), {**schema.ARRAY, **schema.given(config)}
    if config["shape"] is None:
        raise invalid(key, f"the array '{name}' has no shape")
    if config["specs"] is not None:
        message = f"'specs' is a call that gives the specs of a tree's leaves; '{name}' is an array, which has a 'spec'"
        raise invalid((*key, "specs"), message)
    if (rank := len(config["shape"])) > _RANK:
        message = f"'{name}' has {rank} dimensions, and NumPy, which computes the reference, has at most {_RANK}"
        raise invalid((*key, "shape"), message)
    shape = tuple(read_size(entry, (*key, "shape", i), dims) for i, entry in enumerate(config["shape"]))
    for i, size in enumerate(shape):
        if size < 1:
            raise invalid((*key, "shape", i), f"dimension {i} of '{name}' has size {size}; a size is at least 1")
    written = as_written(Array, config, key)
    letters = tuple(entry if isinstance(entry, str) else None for entry in config["shape"])
    of_spec = (*key, "spec")
    spec = specs.read(config["spec"], of_spec)
    fits(spec, shape, letters, specs.mesh, of_spec, name, specs.logical.get(of_spec))
    init = config["init"]
    if isinstance(init, str):
        # NumPy's spelling: `canonical` would give `normal` JAX's arguments.
        init = parsed(init, (*key, "init"))
    return Array(name, Layout(specs.mesh, shape, spec), letters, init=init, **written)


def fits(
    spec: Spec,
    shape: tuple[int, ...],
    dims: tuple[str | None, ...],
    mesh: Mesh,
    key: Key,
    name: str,
    logical: Logical | None = None,
) -> None:
    """Raise `InvalidExperiment` unless `spec`, which may be `logical`, can lay out an array of `shape`."""
    if len(spec) > len(shape):
        raise invalid(key, f"the spec has {counted(spec, 'entry', 'entries')}, but '{name}' has rank {len(shape)}")
    for i, axes in enumerate(spec):
        parts = mesh.axis_size(axes)
        if shape[i] % parts:
            letter = f" ({dims[i]})" if i < len(dims) and dims[i] else ""
            over = " × ".join(f"{axis}={mesh.sizes[axis]}" for axis in axes)
            rule = logical.rules[i] if logical else None
            message = f"dimension {i}{letter} of '{name}' has size {shape[i]}, which {over} does not divide"
            also = (("by the rule", rule.key),) if rule else ()
            raise InvalidExperiment(Fault((*key, i), message, also=also))


def read_specs(config: Mapping[str, Any], section: str, specs: Specs) -> dict[str, Spec]:
    return {name: specs.read([] if value is None else value, (section, name)) for name, value in config.items()}
