"""The resolved configuration in; one frozen, validated `Experiment` out. Nothing after this checks user input.

What only JAX can know (shapes and dtypes of the nodes) is checked by `runner/worker/types.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from runner import dtypes
from runner.experiment import expect, topology
from runner.experiment.model import (
    GRADIENTS,
    PLATFORMS,
    PRECISIONS,
    Array,
    Experiment,
    Gradient,
    Statement,
    Target,
    lines,
    results,
)
from runner.experiment.plain import (
    IDENTIFIER,
    check_name,
    choices,
    counted,
    parsed,
    read_dims,
    read_size,
    read_verify_dims,
    rectangular,
    yaml_hint,
)
from runner.experiment.program import Program
from runner.experiment.statements import read_statements
from runner.faults import Key, invalid, nearest
from runner.language.check import SECTIONS, Scope, Section, missing_axis
from runner.layout import Layout, Mesh, Spec

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


_AS_THEY_ARE = ("seed", "precision", "check_vma", "trace", "profile", "timeout")
"""The keys whose values need no reading."""


_NOTHING: dict[str, Any] = {
    "name": None, "summary": "", "source": "", "mesh": {}, "target": {}, "dims": {}, "verify_dims": {},
    "arrays": {}, "graph": {}, "per_device": {}, "constraints": {}, "outputs": {}, "grad": {}, "expect": {},
    "test": {}, "program": "all",
}  # fmt: skip
"""A key that the command line deletes (`~graph`) is as good as empty."""


def read(config: Mapping[str, Any]) -> Experiment:
    """Validate a resolved configuration.

    Raises `InvalidExperiment` with the first fault, in the order in which a reader meets the keys.
    """
    config = {**_NOTHING, **{key: value for key, value in config.items() if value is not None}}
    name = config["name"]
    if not name:
        raise invalid(("name",), "the experiment has no name")
    if not _FILE_NAME.match(name):
        raise invalid(("name",), f"{name!r} cannot name a folder; use letters, digits, '_', '-', '.'")
    mesh = _mesh(config["mesh"])
    dims = read_dims(config["dims"])
    verify_dims = read_verify_dims(config["verify_dims"], dims)
    arrays = tuple(_array(array, config["arrays"][array], mesh, dims) for array in config["arrays"])
    _distinct_names(config, arrays, dims)
    values = {array.name for array in arrays}
    sections: dict[Section, tuple[Statement, ...]] = {}
    for section in SECTIONS:
        scope = Scope(section, mesh, set(values), dims)
        sections[section] = read_statements(config[section], (section,), scope, dims)
    if not sections["graph"] and not sections["per_device"]:
        raise invalid((), "there is nothing to run: the experiment needs a graph, a per_device, or both")
    outputs = _specs(config["outputs"], "outputs", mesh)
    grad = _gradient(config["grad"], arrays, outputs, sections)
    _check_outputs(outputs, sections, grad)
    outputs |= _undeclared(grad, arrays, outputs)
    constraints = _specs(config["constraints"], "constraints", mesh)
    for constrained in constraints:
        _known_result(constrained, "constraints", sections["graph"], values, "graph")
    programs, chosen = _programs(config["program"], sections)
    target = _target(config["target"], mesh, programs)
    # One device with the work of all says nothing of hardware that has them all.
    left_out = tuple(program for program in programs if target.topology and not chosen and not program.on_mesh)
    programs = tuple(program for program in programs if program not in left_out)
    expectable = _expectable(sections, grad, outputs, mesh, dims)
    experiment = Experiment(
        name=name,
        summary=config["summary"],
        source=config["source"],
        mesh=mesh,
        target=target,
        dims=dims,
        verify_dims=verify_dims,
        arrays=arrays,
        graph=sections["graph"],
        # A user who asks for one program of the graph may sweep layouts that per_device was not written for.
        per_device=sections["per_device"] if any(p.section == "per_device" for p in programs) else (),
        constraints=constraints,
        outputs=outputs,
        values=_values(config["expect"].get("values") or {}, outputs),
        programs=programs,
        left_out=left_out,
        chosen=chosen,
        grad=grad,
        tested=tested(config),
        approximate=_approximate(config["expect"].get("sections") or {}, outputs, sections),
        weak=_weak(config["expect"].get("weak"), outputs),
        expected=expect.read(config["expect"], programs, target.platform, expectable),
        wrong=expect.known_wrong(config["expect"], programs, target.platform, expectable),
        **{key: config[key] for key in _AS_THEY_ARE if key in config},
    )
    if experiment.precision not in PRECISIONS:
        raise invalid(("precision",), f"no precision '{experiment.precision}'; there are {', '.join(PRECISIONS)}")
    if experiment.seed < 0:
        raise invalid(("seed",), "the seed must not be negative")
    if not experiment.timeout > 0:
        raise invalid(("timeout",), "the timeout is a number of seconds above 0")
    if experiment.trace and not sections["per_device"]:
        raise invalid(("trace",), "trace=true needs a per_device")
    if experiment.trace and not experiment.per_device:
        message = f"trace=true shows per_device, which program={experiment.programs[0]} does not run"
        raise invalid(("trace",), message + choices(p for p in Program if p.section == "per_device"))
    return experiment


def _mesh(config: Mapping[str, Any]) -> Mesh:
    axes, shape = config.get("axes"), config.get("shape")
    if axes is None or shape is None:
        raise invalid(("mesh",), "there is no mesh; name one (mesh=x2_y2) or give mesh.axes and mesh.shape")
    for i, axis in enumerate(axes):
        if not isinstance(axis, str) or not IDENTIFIER.match(axis):
            raise invalid(("mesh", "axes", i), f"{axis!r} is not an axis name{yaml_hint(axis)}")
        if axis in axes[:i]:
            raise invalid(("mesh", "axes", i), f"the mesh axis '{axis}' stands twice")
    if not axes:
        raise invalid(("mesh", "axes"), "the mesh has no axes")
    for i, size in enumerate(shape):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise invalid(("mesh", "shape", i), f"{size!r} is not the size of an axis; it is an integer of at least 1")
    if len(axes) != len(shape):
        raise invalid(("mesh", "shape"), f"{counted(shape, 'size')} for {counted(axes, 'axis', 'axes')}")
    return Mesh(tuple(axes), tuple(shape))


def _array(name: str, config: Mapping[str, Any], mesh: Mesh, dims: Mapping[str, int]) -> Array:
    key = ("arrays", name)
    if config.get("shape") is None:
        raise invalid(key, f"the array '{name}' has no shape")
    shape = tuple(read_size(entry, (*key, "shape", i), dims) for i, entry in enumerate(config["shape"]))
    for i, size in enumerate(shape):
        if size < 1:
            raise invalid((*key, "shape", i), f"dimension {i} of '{name}' has size {size}; a size is at least 1")
    if config["dtype"] not in dtypes.NAMES:
        hint = nearest(config["dtype"], dtypes.NAMES)
        raise invalid(
            (*key, "dtype"), f"no dtype '{config['dtype']}'{hint or '; for example float32, bfloat16, int32'}"
        )
    letters = tuple(entry if isinstance(entry, str) else None for entry in config["shape"])
    spec = _spec(config["spec"], (*key, "spec"), mesh)
    fits(spec, shape, letters, mesh, (*key, "spec"), name)
    init = config["init"]
    if isinstance(init, str):
        # NumPy makes it: `canonical` would give `normal` the arguments of JAX's.
        init = parsed(init, (*key, "init"))
    return Array(name, Layout(mesh, shape, spec), letters, config["dtype"], init)


def _spec(value: object, key: Key, mesh: Mesh) -> Spec:
    if not isinstance(value, list):
        raise invalid(key, f"{value!r} is not a PartitionSpec; it is a list such as [x, null]")
    entries: list[tuple[str, ...]] = []
    for i, entry in enumerate(value):
        axes = [] if entry is None else entry if isinstance(entry, list) else [entry]
        for axis in axes:
            if not isinstance(axis, str):
                message = f"{axis!r} is not a mesh axis, null, or a list of axes{yaml_hint(axis)}"
                raise invalid((*key, i), message)
            if axis not in mesh.axes:
                raise invalid((*key, i), missing_axis(axis, mesh) + nearest(axis, mesh.axes))
            if axis in axes[: axes.index(axis)] or any(axis in earlier for earlier in entries) or axes.count(axis) > 1:
                raise invalid(
                    (*key, i), f"the mesh axis '{axis}' is used twice; each axis shards one dimension at most"
                )
        entries.append(tuple(axes))
    return Spec(entries)


def fits(spec: Spec, shape: tuple[int, ...], dims: tuple[str | None, ...], mesh: Mesh, key: Key, name: str) -> None:
    """Raise `InvalidExperiment` unless `spec` can lay out an array of `shape`."""
    if len(spec) > len(shape):
        raise invalid(key, f"the spec has {counted(spec, 'entry', 'entries')}, but '{name}' has rank {len(shape)}")
    for i, axes in enumerate(spec):
        parts = mesh.axis_size(axes)
        if shape[i] % parts:
            letter = f" ({dims[i]})" if i < len(dims) and dims[i] else ""
            over = " × ".join(f"{axis}={mesh.sizes[axis]}" for axis in axes)
            raise invalid((*key, i), f"dimension {i}{letter} of '{name}' has size {shape[i]}, "
                                     f"which {over} does not divide")  # fmt: skip


def _specs(config: Mapping[str, Any], section: str, mesh: Mesh) -> dict[str, Spec]:
    return {name: _spec([] if value is None else value, (section, name), mesh) for name, value in config.items()}


def _distinct_names(config: Mapping[str, Any], arrays: tuple[Array, ...], dims: Mapping[str, int]) -> None:
    for array in arrays:
        check_name(array.name, ("arrays", array.name))
        if array.name in dims:
            raise invalid(("arrays", array.name), f"'{array.name}' is a dim already; a name means one thing")
    taken = {array.name: "an array" for array in arrays} | dict.fromkeys(dims, "a dim")
    for section in SECTIONS:
        for name in config[section]:
            check_name(name, (section, name))
            if name in taken:
                raise invalid((section, name), f"'{name}' is {taken[name]} already; a name means one thing")


def _known_result(name: str, section: str, statements: tuple[Statement, ...], arrays: set[str], where: str) -> None:
    known = results(statements) | arrays
    if name not in known:
        raise invalid((section, name), f"{where} computes no '{name}'{nearest(name, known)}")


def _check_outputs(
    outputs: Mapping[str, Spec], sections: Mapping[Section, tuple[Statement, ...]], grad: Gradient | None
) -> None:
    if not outputs:
        raise invalid(("outputs",), "the experiment has no outputs; map the names of its results to PartitionSpecs")
    for name in outputs:
        if grad and name.startswith(f"{GRADIENTS}."):
            if name not in grad.names:
                raise invalid(("outputs", name), f"grad.wrt has no '{name.removeprefix(f'{GRADIENTS}.')}'"
                                                 f"{nearest(name, grad.names) or choices(grad.names)}")  # fmt: skip
            continue
        for section, statements in sections.items():
            if statements:
                _known_result(name, "outputs", statements, set(), section)


DIFFERENCES = 1000
"""Of how many elements, at most, the oracle takes central differences one by one."""


def _gradient(
    config: Mapping[str, Any],
    arrays: tuple[Array, ...],
    outputs: Mapping[str, Spec],
    sections: Mapping[Section, tuple[Statement, ...]],
) -> Gradient | None:
    of, wrt = config.get("of"), config.get("wrt") or []
    wrt = wrt if isinstance(wrt, list) else [wrt]
    if of is None and not wrt:
        return None
    if of is None:
        raise invalid(("grad",), "grad.of is missing: the scalar output that is differentiated")
    if not wrt:
        raise invalid(("grad",), "grad.wrt is missing: the arrays with respect to which the gradient is taken")
    if of not in outputs:
        known = any(of in results(statements) for statements in sections.values())
        hint = "; give it a PartitionSpec there: []" if known else nearest(of, outputs)
        raise invalid(("grad", "of"), f"'{of}' is not among the outputs{hint}")
    named = {array.name: array for array in arrays}
    for i, name in enumerate(wrt):
        key = ("grad", "wrt", i) if isinstance(config["wrt"], list) else ("grad", "wrt")
        if not isinstance(name, str) or name not in named:
            raise invalid(key, f"there is no array {name!r}{nearest(str(name), named) or choices(tuple(named))}")
        if name in wrt[:i]:
            raise invalid(key, f"'{name}' stands twice")
        if dtypes.dtype(named[name].dtype).kind != "float":
            raise invalid(key, f"'{name}' is {named[name].dtype}; a gradient is with respect to an array of floats")
    for section, statements in sections.items():
        if any(statement.name == GRADIENTS for statement in statements):
            raise invalid((section, GRADIENTS), f"the gradients are called {GRADIENTS}.…; choose another name")
    elements = sum(math.prod(named[name].shape) for name in wrt)
    if not sections["graph"] and elements > DIFFERENCES:
        raise invalid(
            ("grad", "wrt"),
            f"without a graph the gradient's oracle is a central difference for every element, and {elements} are more "
            f"than {DIFFERENCES}: add a graph, or make the arrays smaller",
        )
    return Gradient(of, tuple(wrt))


def _undeclared(grad: Gradient | None, arrays: tuple[Array, ...], outputs: Mapping[str, Spec]) -> dict[str, Spec]:
    """The PartitionSpecs of the gradients that `outputs` does not name: each lies as its array does."""
    if grad is None:
        return {}
    specs = {f"{GRADIENTS}.{array.name}": array.layout.spec for array in arrays}
    return {name: specs[name] for name in grad.names if name not in outputs}


def _programs(name: str, sections: Mapping[Section, tuple[Statement, ...]]) -> tuple[tuple[Program, ...], bool]:
    there = tuple(program for program in Program if sections[program.section])
    if name == "all":
        return there, False
    if name not in tuple(Program):
        raise invalid(("program",), f"no program '{name}'{nearest(name, Program) or choices(('all', *Program))}")
    program = Program(name)
    if program not in there:
        raise invalid(
            ("program",),
            f"program '{program}' is written from {program.section}, which this experiment does not have"
            f"{choices(there)}",
        )
    return (program,), True


def _target(config: Mapping[str, Any], mesh: Mesh, programs: tuple[Program, ...]) -> Target:
    platform, devices = config.get("platform") or "cpu", config.get("devices")
    if platform not in PLATFORMS:
        raise invalid(
            ("target", "platform"), f"no platform '{platform}'{nearest(platform, PLATFORMS) or choices(PLATFORMS)}"
        )
    absent = None if config.get("topology") is None else topology.parse(config["topology"], platform)
    platform = absent.platform if absent else platform
    if devices is not None and absent:
        raise invalid(("target", "devices"), f"{absent.name} has its own {absent.devices} devices")
    if devices is not None and platform != "cpu":
        raise invalid(
            ("target", "devices"), f"only CPU devices can be simulated; {platform} has the devices that are here"
        )
    if devices is not None and devices < mesh.size:
        raise invalid(("mesh", "shape"), f"the mesh {mesh} needs {mesh.size} devices, but target.devices is {devices}")
    if absent and mesh.size != absent.devices and any(program.on_mesh for program in programs):
        # libtpu refuses to compile for a part of some slices, such as 8x8 of v5e:16x16.
        each = ", two on each chip" if absent.devices_per_chip == 2 else ""
        fits = ",".join(map(str, absent.mesh_shape(len(mesh.axes))))
        raise invalid(
            ("mesh", "shape"),
            f"the mesh {mesh} has {mesh.size} device{'s' if mesh.size > 1 else ''}, but {absent.name} has "
            f"{absent.devices}{each}; a mesh takes all of them: mesh.shape=[{fits}]",
        )
    return Target(platform, devices or mesh.size, absent)


def tested(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The targets for which `pytest` runs what a configuration describes. Raises `InvalidExperiment`."""
    targets = (config.get("test") or {}).get("targets", ["cpu"])
    if not targets:
        raise invalid(("test", "targets"), "there is no target to test; the default is [cpu]")
    for i, target in enumerate(targets):
        if not isinstance(target, str):
            raise invalid(("test", "targets", i), f"{target!r} is not the name of a target{yaml_hint(target)}")
        if target in targets[:i]:
            raise invalid(("test", "targets", i), f"the target '{target}' stands twice")
    return tuple(targets)


def _values(config: Mapping[str, Any], outputs: Mapping[str, Spec]) -> dict[str, Any]:
    for name, value in config.items():
        if name not in outputs:
            raise invalid(("expect", "values", name), f"'{name}' is not an output{nearest(name, outputs)}")
        if 0 in rectangular(value, ("expect", "values", name)):
            raise invalid(("expect", "values", name), f"there is no number that '{name}' could be compared with")
    return dict(config)


def _approximate(
    config: Mapping[str, Any], outputs: Mapping[str, Spec], sections: Mapping[Section, tuple[Statement, ...]]
) -> dict[str, float]:
    for name, share in config.items():
        key = ("expect", "sections", name)
        if name not in outputs:
            raise invalid(key, f"'{name}' is not an output{nearest(name, outputs)}")
        if not (sections["graph"] and sections["per_device"]):
            raise invalid(key, "there are not two sections that could differ")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < math.inf:
            raise invalid(key, f"{share!r} is not a share of the output's root mean square, such as 1e-2")
    return {name: float(share) for name, share in config.items()}


def _weak(config: Any, outputs: Mapping[str, Spec]) -> frozenset[str]:
    names = [] if config is None else config if isinstance(config, list) else [config]
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in outputs:
            key = ("expect", "weak", i) if isinstance(config, list) else ("expect", "weak")
            raise invalid(key, f"{name!r} is not an output{nearest(str(name), outputs)}")
    return frozenset(names)


def _expectable(
    sections: Mapping[Section, tuple[Statement, ...]],
    grad: Gradient | None,
    outputs: Mapping[str, Spec],
    mesh: Mesh,
    dims: Mapping[str, int],
) -> expect.Names:
    gradients = grad.names if grad else ()
    return expect.Names(
        programs=tuple(Program),
        platforms=PLATFORMS,
        lines={program: {*lines(sections[program.section]), *gradients} for program in Program},
        values=results(sections["graph"]),
        outputs=tuple(outputs),
        sections={program: program.section for program in Program if not sections[program.section]},
        spec=lambda value, key: _spec(value, key, mesh),
        size=lambda value, key: read_size(value, key, dims, mesh),
    )
