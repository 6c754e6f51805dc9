"""`trace`: the program `shard_map` or `derived`, returning every value on every device."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from runner.base.layout import Spec, Typed
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Experiment
from runner.experiment.value_names import NamedCode
from runner.programs import shard_map, source, spelling
from runner.programs.lines import Lines
from runner.programs.shard_map import options


def write(of: Experiment, traced: NamedCode, folder: Path, kept: Mapping[str, Typed]) -> str:
    """Write the source of the program that traces `of`.

    `kept` are the types of the values that it returns, by their names in the code. Gradients that lines read are
    computed as in `shard_map`, and passed to the lines like arrays.
    """
    experiment = traced.experiment
    names = Identifiers(experiment)
    read = [names.add(array.name) for array in experiment.given[len(experiment.arrays) :]]
    parameters = ", ".join([source.parameters(experiment, names), *read])
    lines = Lines(experiment, names).section(experiment.per_device)
    in_specs = spelling.tuple_of([str(experiment.block(a.layout).spec) for a in experiment.given])
    values = [_value(names[name], typed) for name, typed in kept.items()]
    body = "\n".join(
        [
            f"def {names.function}({parameters}):",
            f"    {source.blocks_comment(experiment, experiment.given, names)}",
            source.indent(lines, 4),
            source.indent(_filled("values = ", values), 4),
            "    return tuple(jnp.asarray(value)[None] for value in values)",
            "",
            "# The first dimension of every result counts the devices.",
            f"sharded = {spelling.SHARD_MAP}(",
            f"    {names.function},",
            "    mesh=mesh,",
            f"    in_specs={in_specs},",
            f"    out_specs={Spec((experiment.manual.axes,))},",
            *options(experiment),
            ")",
            *_with_gradients(experiment, of),
            *_everywhere(experiment),
        ]
    )
    before = _gradients(of) if experiment.reads_gradients else ""
    shown = {value.node: value.name for value in traced.values}
    return source.module(
        source.header(experiment, "trace", names, f"{before}\n{body}", mesh=True),
        source.inputs(experiment, names, folder),
        source.mesh_functions(experiment, experiment.traced),
        *([f"def gradients(mesh):\n{source.indent(before, 4)}"] if before else []),
        "def program(mesh):\n" + source.indent(body, 4),
        _main(experiment, [f'"{shown.get(name, name)}"' for name in kept]),
    )


def _gradients(of: Experiment) -> str:
    """Write the lines of `shard_map` that need no gradient; the gradients are among the results."""
    forward = of.forward
    return shard_map.code(forward, Identifiers(forward), {})


def _with_gradients(experiment: Experiment, of: Experiment) -> list[str]:
    """Write the function of all lines, with the gradients that some of them read as parameters."""
    if not experiment.reads_gradients:
        return []
    given = list(of.forward.outputs)
    places = [given.index(array.name) for array in experiment.given[len(experiment.arrays) :]]
    return [
        "lines, differentiated = sharded, gradients(mesh)",
        "",
        "def sharded(*arrays):",
        "    results = differentiated(*arrays)",
        f"    return lines(*arrays, *(results[at] for at in {places}))",
        "",
    ]


def _everywhere(experiment: Experiment) -> list[str]:
    """The lines after the `shard_map`, whose results have leading dimensions for the manual axes."""
    if not experiment.automatic:
        return ["return jax.jit(sharded)"]
    mesh = experiment.mesh
    block_of = [mesh.axis_index(position, experiment.manual.axes) for position in range(mesh.size)]
    return [
        "# Devices that differ along the automatic axes have one block.",
        f"block_of = np.array({block_of})",
        f"rows = NamedSharding(mesh, {Spec((mesh.axes,))})",
        "return jax.jit(lambda *arrays: tuple(value[block_of] for value in sharded(*arrays)), out_shardings=rows)",
    ]


def _value(identifier: str, typed: Typed) -> str:
    return f"jax.random.key_data({identifier})" if typed.dtype.startswith("key<") else identifier


def _filled(start: str, items: list[str]) -> str:
    """A tuple, wrapped over lines."""
    line = start + spelling.tuple_of(items)
    if len(line) <= 100:
        return line
    inside = textwrap.fill(", ".join(items) + ",", 100, break_long_words=False, break_on_hyphens=False)
    return f"{start}(\n{source.indent(inside, 4)}\n)"


_AXES = 'axes = ", ".join(mesh.axis_names) + ("," if len(mesh.axis_names) == 1 else "")'


def _main(experiment: Experiment, shown: list[str]) -> str:
    """Write `main`, which prints every value on every device."""
    names = _filled("names = ", shown).split("\n")
    if experiment.target.processes > 1:
        return source.main_of_processes(
            experiment,
            [
                _AXES,
                "place_of = {device: place for place, device in np.ndenumerate(mesh.devices)}",
                "for name, value in zip(names, program(mesh)(*arrays), strict=True):",
                '    print(f"{name}:")',
                "    for shard in value.addressable_shards:",
                "        on = shard.device.platform.upper()",
                "        place_on = place_of[shard.device]",
                '        print(f"On {on}_{shard.device.id} at mesh coordinates ({axes}) = {place_on}:")',
                "        print(np.asarray(shard.data)[0])",
                "    print()",
            ],
            names,
        )
    return spelling.main_of(
        [
            *names,
            "mesh = make_mesh()",
            "arrays = jax.device_put(inputs(), shardings(mesh))",
            _AXES,
            "for name, value in zip(names, program(mesh)(*arrays), strict=True):",
            '    print(f"{name}:")',
            "    for (place, device), held in zip(np.ndenumerate(mesh.devices), np.asarray(value), strict=True):",
            "        on = device.platform.upper()",
            '        print(f"On {on}_{device.id} at mesh coordinates ({axes}) = {place}:")',
            "        print(held)",
            "    print()",
        ]
    )
