"""Reads the resolved configuration into one frozen, validated `Experiment`. Nothing after this checks user input.

What only JAX can know (shapes and dtypes of the nodes) is checked by `runner/worker/types.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runner.base.faults import InvalidExperiment, invalid, nearest
from runner.base.layout import Mesh, Spec
from runner.base.untyped import is_list
from runner.experiment import divergence, expect, extent, hardware, open_layouts, remat, topology
from runner.experiment.arrays import check_blocks, read_array, read_manual, read_mesh, read_specs
from runner.experiment.config import schema
from runner.experiment.config.folders import misnamed
from runner.experiment.forms import PLATFORMS, as_written, check, choices
from runner.experiment.functions import read_functions
from runner.experiment.imported import KEY, constrained, frames, read_imported
from runner.experiment.model import GRADIENTS, Array, Experiment, Gradient, Target
from runner.experiment.plain import (
    check_name,
    check_required,
    check_text,
    read_dims,
    read_show,
    read_size,
    read_verify_dims,
)
from runner.experiment.program import Program
from runner.experiment.remat import check_names
from runner.experiment.results import (
    by_hand,
    check_constraints,
    check_gradients,
    check_inside,
    check_outputs,
    gradient_names,
    read_approximate,
    read_gradient,
    read_values,
    read_weak,
    results,
    undeclared,
)
from runner.experiment.rules import Specs, read_rules
from runner.experiment.sections import check_functions, lengths, read_section
from runner.experiment.written import BOTH, all_names, of_section, spread, targets
from runner.graph.inlining import inlined, of_equations, with_inputs
from runner.graph.language.check import VisibleNames
from runner.graph.language.lines import every_line, paths
from runner.graph.model import Graph
from runner.graph.source import SECTIONS, Section

_SIMULATED = 4096
"""The largest number of simulated CPU devices: JAX creates these in seconds; ten thousand take half a minute."""


def read(config: Mapping[str, Any]) -> Experiment:
    """Validate a resolved configuration.

    Raises `InvalidExperiment` with the first fault, in the order of the keys.
    """
    # What a worker adds has no text of a file.
    check_text({key: value for key, value in config.items() if key != KEY})
    named = config.get("program", "all")
    config = schema.whole(config) | {"program": named}
    config |= {key: spread(config[key], (key,)) for key in ("arrays", "constraints", "outputs")}
    open_layouts.refuse(config)
    for key in ("remat", "best", "workers"):
        if config[key] is not None:
            check(config[key], (key,))
    written_config, config = config, remat.resolved(config)
    name = config["name"]
    if name is None:
        message = "no experiment is chosen: write its name or file first, such as case3_allreduce, or give name=…"
        raise invalid(("name",), message)
    if not name:
        raise invalid(("name",), "the name is empty; write name: mine, or leave the key out: the file's name is taken")
    if message := misnamed(name):
        raise invalid(("name",), message)
    mesh = read_mesh(config)
    dims = read_dims(config["dims"])
    check_required(config["require"], dims, mesh)
    verify_dims = read_verify_dims(config["verify_dims"], dims)
    specs = Specs(mesh, read_rules(config["rules"], mesh))
    arrays = tuple(read_array(array, config["arrays"][array], specs, dims) for array in config["arrays"])
    taken = _distinct_names(config, arrays, dims)
    imports = read_imported(config)
    functions = read_functions(config["functions"], taken, [array.name for array in arrays]) | imports.defined
    automatic = read_manual(config["manual"], mesh)
    manual = mesh.without(automatic)
    counts = {section: extent.check_functions(functions, section) for section in SECTIONS}
    values = {array.name for array in arrays}
    check_functions(functions, VisibleNames("per_device", manual, values), dims)
    drawn: dict[Section, Graph] = {}
    sections: dict[Section, Graph] = {}
    gradients = gradient_names(config["grad"])
    for section in SECTIONS:
        mesh_of_section = manual if section == "per_device" else mesh
        scope = VisibleNames(section, mesh_of_section, set(values), dims, loops=gradients)
        scope.lengths = lengths(arrays, section, mesh_of_section)
        written = of_section(config, section)
        extent.check_calls(written, section, counts[section])
        given = (*(array.name for array in arrays), *(f"{GRADIENTS}.{name}" for name in gradients.get(GRADIENTS, ())))
        drawn[section] = read_section(written, scope, dims, functions, given)
        sections[section] = inlined(drawn[section])
        extent.check_repeats(sections[section], section)
        check_names(drawn[section])
    needed = values.union(*(section.needed for section in drawn.values()))
    for section in SECTIONS:
        drawn[section], sections[section] = (with_inputs(of[section], needed) for of in (drawn, sections))
    remat.require_read(written_config, sections.values())
    if not sections["graph"] and not sections["per_device"]:
        raise invalid((), "there is nothing to run: the experiment needs a graph, a per_device, or both")
    outputs = read_specs(config["outputs"], "outputs", specs)
    grad = read_gradient(config["grad"], arrays, outputs, sections)
    generated = {str(line) for section in SECTIONS for line in frames(drawn[section], imports)}
    check_outputs(outputs, sections, grad, generated)
    check_gradients(grad, sections)
    implied = undeclared(grad, arrays, outputs)
    outputs |= implied
    constraints = read_specs(config["constraints"], "constraints", specs)
    patterns = {pattern for function in imports.functions.values() for pattern in function.constraints.values()}
    by_pattern = {pattern: constraints.pop(pattern) for pattern in patterns}
    known = {name for _, name in paths(sections["graph"])} | values
    check_constraints(constraints, known, sections["per_device"] if automatic else None, mesh, automatic, generated)
    for section in SECTIONS:
        check_inside(("constraints",), constraints, drawn[section], imports)
        check_inside(("outputs",), outputs, drawn[section], imports)
    patterned = constrained(drawn["graph"], imports)
    constraints |= {line: by_pattern[pattern] for line, pattern in patterned.items()}
    programs, chosen = _programs(named, sections)
    target = _target(config["target"], mesh, programs)
    if config["profile"] and target.processes > 1:
        count = "one" if target.processes == 2 else target.processes - 1
        message = f"a profile covers one process, and would lack the devices of the other {count}"
        raise invalid(("profile",), message)
    # A program on one device, which does all the work there, is no evidence about hardware with many.
    left_out = tuple(program for program in programs if target.topology and not chosen and not program.on_mesh)
    programs = tuple(program for program in programs if program not in left_out)
    expectable = _expectable(sections, grad, outputs, specs, dims, generated)
    experiment = Experiment(
        name=name,
        mesh=mesh,
        target=target,
        dims=dims,
        verify_dims=verify_dims,
        arrays=arrays,
        graph=drawn["graph"],
        # A user who asks for one program of the graph may sweep layouts that per_device was not written for.
        per_device=(
            drawn["per_device"]
            if any(p.section == "per_device" for p in programs)
            else of_equations(drawn["per_device"].inputs, ())
        ),
        sections=tuple(name for name, lines in sections.items() if lines),
        constraints=constraints,
        patterned=patterned,
        outputs=outputs,
        values=read_values(config["expect"]["values"] or {}, outputs),
        programs=programs,
        left_out=left_out,
        chosen=chosen,
        grad=grad,
        implied=frozenset(implied),
        tested=tested(config),
        approximate=read_approximate(config["expect"]["sections"] or {}, outputs, sections),
        weak=read_weak(config["expect"]["weak"], outputs),
        expected=expect.read(config["expect"], programs, target.platform, expectable),
        show=read_show(config["show"], (*(array.name for array in arrays), *outputs)),
        hardware=_hardware(config["hardware"], mesh, target, programs),
        derive=_derive(config, mesh, target),
        wrong=expect.known_wrong(config["expect"], programs, target.platform, expectable),
        logical=specs.logical,
        # No program sees blocks.
        automatic=automatic if sections["per_device"] else (),
        by_hand=by_hand(sections, frozenset(implied)),
        imports=imports,
        definition=config,
        reader=read,
        **as_written(Experiment, config),
    )
    for expected in experiment.expected.values():
        check_inside(("expect", "layouts"), expected.layouts, drawn["graph"], imports)
    check_blocks(experiment)
    open_layouts.read_plan(config)
    if experiment.trace and sections["per_device"] and not experiment.per_device:
        message = f"trace=true shows per_device, which program={experiment.programs[0]} does not run"
        raise invalid(("trace",), message + choices(p for p in Program if p.section == "per_device"))
    divergence.check(experiment)
    return experiment


def _distinct_names(config: Mapping[str, Any], arrays: tuple[Array, ...], dims: Mapping[str, int]) -> dict[str, str]:
    """What each defined name refers to, as text for messages."""
    for array in arrays:
        check_name(array.name, ("arrays", array.name))
        if array.name in dims:
            raise invalid(("arrays", array.name), f"'{array.name}' is a dim already; a name means one thing")
    taken = {array.name: "an array" for array in arrays} | dict.fromkeys(dims, "a dim")
    shared = {name for name, _ in all_names(config[BOTH], (BOTH,))}
    lines = dict.fromkeys(shared, "a line")
    for section in (BOTH, *SECTIONS):
        for written in config[section]:
            for name in targets(written, (section, written)):
                what = "a line of both" if section != BOTH and name in shared else taken.get(name)
                if what is not None:
                    raise invalid((section, written), f"'{name}' is {what} already; a name means one thing")
                lines[name] = "a line"
    return taken | lines


def _programs(named: object, sections: Mapping[Section, Graph]) -> tuple[tuple[Program, ...], bool]:
    """The programs to run, and whether they were chosen: `all`, one, or a list of them, in the order of `all`."""
    there = tuple(program for program in Program if sections[program.section])
    if named == "all":
        return there, False
    if named is None or named == []:
        raise invalid(("program",), f"no program is named{choices(('all', *Program))}")
    chosen = [_program(name, there) for name in (named if is_list(named) else [named])]
    return tuple(program for program in there if program in chosen), True


_PROGRAMS_OF_JAX = {
    "jit": "; jit with sharded inputs is program=auto",
    "pjit": "; jit with sharded inputs is program=auto",
    "pmap": "; the body of one device, in per_device, is program=shard_map",
}


def _program(name: object, there: Sequence[Program]) -> Program:
    if not isinstance(name, str):
        raise invalid(("program",), f"{name!r} is not a program{choices(('all', *Program))}")
    if name not in tuple(Program):
        meant = _PROGRAMS_OF_JAX.get(str(name)) or nearest(name, Program)
        raise invalid(("program",), f"no program '{name}'{meant or choices(('all', *Program))}")
    program = Program(name)
    if program not in there:
        raise invalid(
            ("program",),
            f"program '{program}' is written from {program.section}, which this experiment does not have"
            f"{choices(there)}",
        )
    return program


def _hardware(
    config: Mapping[str, Any], mesh: Mesh, target: Target, programs: tuple[Program, ...]
) -> hardware.Hardware | None:
    """The hardware for which time is estimated; only programs on the whole mesh have an estimate."""
    if not any(program.on_mesh for program in programs):
        return None
    return _hardware_there(config, mesh, target)


def _derive(config: Mapping[str, Any], mesh: Mesh, target: Target) -> hardware.Derive:
    """What `derived` chooses by."""
    given = config["derive"]
    for name in ("cost", "hardware"):
        check(given[name], ("derive", name))
    if given["cost"] == "bytes":
        return hardware.Derive()
    if given["hardware"] is None and config["hardware"]["name"] is None:
        message = "a cost in time needs hardware: name it (derive.hardware=v5p or hardware=v5p), or leave cost: bytes"
        raise invalid(("derive", "cost"), message)
    if given["hardware"] is None:
        return hardware.Derive("time", _hardware_there(config["hardware"], mesh, target))
    if isinstance(given["hardware"], str):
        name = given["hardware"]
        message = f"'{name}' is a name: its numbers are read from hardware/{name}.yaml with the experiment"
        raise invalid(("derive", "hardware"), message)
    numbers = schema.completed(given["hardware"], schema.HardwareConfig)
    try:
        return hardware.Derive("time", _hardware_there(numbers, mesh, target))
    except InvalidExperiment as error:
        # The fault is in the numbers of the file that `derive` names.
        raise invalid(("derive", "hardware"), error.fault.message) from None


def _hardware_there(config: Mapping[str, Any], mesh: Mesh, target: Target) -> hardware.Hardware | None:
    """The hardware with the slices and the shape of the target's topology, if it has one."""
    absent = target.topology
    if absent is None or absent.platform != "tpu":
        return hardware.read(config, mesh, None)
    if config["slices"] not in (1, absent.slices):
        message = f"{config['slices']} slices, but the target has {absent.slices}; leave it out"
        raise invalid(("hardware", "slices"), message)
    of_target = {"slices": absent.slices} if config["name"] is not None else {}
    return hardware.read({**config, **of_target}, mesh, absent.shape)


def _target(config: Mapping[str, Any], mesh: Mesh, programs: tuple[Program, ...]) -> Target:
    platform, devices = config["platform"], config["devices"]
    check(platform, ("target", "platform"))
    slices = config["slices"]
    check(slices, ("target", "slices"))
    if slices > 1 and config["topology"] is None:
        message = f"{slices} is not a number of slices here; only a topology that is not here has several"
        raise invalid(("target", "slices"), message)
    absent = None if config["topology"] is None else topology.parse(config["topology"], platform, slices)
    platform = absent.platform if absent else platform
    if devices is not None and absent:
        raise invalid(("target", "devices"), f"{absent.name} has its own {absent.devices} devices")
    if devices is not None and platform != "cpu":
        raise invalid(
            ("target", "devices"),
            f"only CPU devices can be simulated; for {platform} the devices of this machine are used",
        )
    if devices is not None and devices < mesh.size:
        raise invalid(("mesh", "shape"), f"the mesh {mesh} needs {mesh.size} devices, but target.devices is {devices}")
    if platform == "cpu" and not absent and (needed := devices or mesh.needed) > _SIMULATED:
        key = ("mesh", "shape") if devices is None else ("target", "devices")
        raise invalid(key, f"{needed:,} devices cannot be simulated here: the limit is {_SIMULATED:,}")
    if absent and mesh.size != absent.devices and any(program.on_mesh for program in programs):
        # libtpu refuses to compile for a part of some slices, such as 8x8 of v5e:16x16.
        per_chip = ", two on each chip" if absent.devices_per_chip == 2 else ""
        fits = ",".join(map(str, absent.mesh_shape(len(mesh.axes))))
        raise invalid(
            ("mesh", "shape"),
            f"the mesh {mesh} has {mesh.size} device{'s' if mesh.size > 1 else ''}, but {absent.name} has "
            f"{absent.devices}{per_chip}; a mesh takes all of them: mesh.shape=[{fits}]",
        )
    if absent and mesh.devices is None and absent.over_network(mesh.shape) is None and mesh.size == absent.devices:
        message = f"the first axes of the mesh {mesh} do not divide into {slices} slices"
        raise invalid(("mesh", "shape"), f"{message}; the network between slices is crossed along these")
    there = absent.devices if absent else devices or mesh.needed if platform == "cpu" else None
    if there is not None and mesh.needed > there and mesh.devices is not None:
        raise invalid(("mesh", "devices"), f"there is no device {mesh.needed - 1}; the last one is {there - 1}")
    target = Target(platform, devices or mesh.needed, absent, processes=config["processes"], cluster=config["cluster"])
    _check_processes(target, mesh, programs)
    return target


def _check_processes(target: Target, mesh: Mesh, programs: tuple[Program, ...]) -> None:
    """Refuse a number of processes that does not divide the devices, or that leaves one without any."""
    key, count, devices = ("target", "cluster" if target.cluster else "processes"), target.processes, target.devices
    if target.cluster and target.topology:
        message = f"nothing runs on {target.topology.name}: there is nothing to divide over a cluster's processes"
        raise invalid(key, message)
    if count == 1:
        return
    check(count, ("target", "processes"))
    if target.topology:
        raise invalid(key, f"nothing runs on {target.topology.name}: there is nothing to divide over {count} processes")
    if target.platform != "cpu" and not target.cluster:
        message = (
            f"only simulated devices can be divided over processes; one process has all {target.platform}s here; "
            "target.cluster=true uses those of all processes of a cluster"
        )
        raise invalid(key, message)
    if not any(program.on_mesh for program in programs):
        message = f"program {programs[0]} runs on one device, which {count} processes cannot divide"
        raise invalid(key, message)
    if target.platform != "cpu":
        # The worker finds out which devices each has.
        return
    if devices % count:
        fit = ", ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
        plural = "s" if devices > 1 else ""
        message = f"{devices} device{plural} cannot be divided evenly over {count} processes; over {fit} they can"
        raise invalid(key, message)
    numbers = range(mesh.size) if mesh.devices is None else mesh.devices
    busy = {number // target.devices_each for number in numbers}
    idle = next((process for process in range(count) if process not in busy), None)
    if idle is not None:
        first = idle * target.devices_each
        has = f"device {first}" if target.devices_each == 1 else f"devices {first} to {first + target.devices_each - 1}"
        raise invalid(key, f"process {idle} would have {has}, none of them in the mesh {mesh}")


def tested(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The targets for which `pytest` runs what a configuration describes. Raises `InvalidExperiment`."""
    targets = config["test"]["targets"]
    check(targets, ("test", "targets"))
    for i, target in enumerate(targets):
        if target in targets[:i]:
            raise invalid(("test", "targets", i), f"the target '{target}' appears twice")
    return tuple(targets)


def _expectable(
    sections: Mapping[Section, Graph],
    grad: Gradient | None,
    outputs: Mapping[str, Spec],
    specs: Specs,
    dims: Mapping[str, int],
    generated: Collection[str],
) -> expect.ExpectableKeys:
    gradients = grad.names if grad else ()
    return expect.ExpectableKeys(
        programs=tuple(Program),
        platforms=PLATFORMS,
        lines={program: {*map(str, every_line(sections[program.section])), *gradients} for program in Program},
        values=results(sections["graph"]),
        outputs=tuple(outputs),
        sections={program: program.section for program in Program if not sections[program.section]},
        spec=specs.read,
        size=lambda value, key: read_size(value, key, dims, specs.mesh),
        generated=generated,
    )
