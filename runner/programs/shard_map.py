"""Writes the programs of one device: `shard_map`, as the experiment has them, and `derived`, from graph and specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.base.layout import Spec
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import absent_hardware, source, spelling
from runner.programs.lines import Lines
from runner.programs.types import InferredTypes


def derived(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write `derived`, a `shard_map` of the lines in `types.derived`."""
    assert types.derived is not None
    return shard_map(types.derived, folder, types, Program.DERIVED)


def shard_map(experiment: Experiment, folder: Path, types: InferredTypes, program: Program = Program.SHARD_MAP) -> str:
    """Write the source of the program, under the name of `program`."""
    names = Identifiers(experiment)
    target = absent_hardware if experiment.target.topology else source
    body = code(experiment, names, types.differing.get(program, {}))
    return source.module(
        source.header(experiment, program, names, body, mesh=True),
        target.inputs(experiment, names, folder),
        target.mesh_functions(experiment, program),
        "def program(mesh):\n" + source.indent(body, 4),
        target.main(experiment, program),
    )


def code(experiment: Experiment, names: Identifiers, differing: Mapping[str, tuple[str, ...]]) -> str:
    """Write what builds and returns the jitted function; `differing`: the values that lines with gradients read."""
    forward, sharded = names.function, "sharded"
    if experiment.grad:
        forward, sharded = names.reserve("forward"), names.reserve("sharded")
    lines = Lines(experiment, names, inside=True)
    first = experiment.forward if experiment.grad else experiment
    computed = lines.section(first.per_device, experiment.constrained_inside)
    passed = [
        (names.add(name), names.reserve(f"{name}_passed".replace(".", "_")), axes) for name, axes in differing.items()
    ]
    manual = experiment.manual.axes
    in_specs = spelling.tuple_of([str(experiment.block(a.layout).spec) for a in experiment.arrays])
    specs = [*(str(spec.over(manual)) for spec in first.results.values()), *(_over(axes) for _, _, axes in passed)]
    out_specs = spelling.tuple_of(specs)
    returned = source.returned(first, names, passed=[_outward(name, axes) for name, _, axes in passed])
    jit = _jit(experiment)
    end = [*jit[:-1], "return jax.jit(sharded, out_shardings=out_shardings)" if jit[1:] else "return jax.jit(sharded)"]
    if experiment.grad:
        of = experiment.grad.of
        returned, out_specs = f"{names[of]}, {returned}", f"({experiment.results[of].over(manual)}, {out_specs})"
        gradients = {names.add(name): experiment.outputs[name] for name in experiment.grad.names}
        # A gradient that is zero everywhere has no layout of its own.
        laid_out = {
            name: spelling.constrained(identifier, spec)
            for name, (identifier, spec) in zip(experiment.grad.names, gradients.items(), strict=True)
            if not experiment.automatic
        }
        after, update = "", list[str]()
        if experiment.reads_gradients:
            update, after = _after(experiment, names, lines, passed)
        end = [
            *update,
            source.with_gradients(
                experiment, names, sharded, laid_out, jit, passed=[held for _, held, _ in passed], after=after
            ),
            "",
            f"return {names.function}",
        ]
    return "\n".join(
        [
            *([lines.definitions] if lines.definitions else []),
            f"def {forward}({source.parameters(experiment, names)}):",
            f"    {source.blocks_comment(experiment, experiment.arrays, names)}",
            source.indent(computed, 4),
            f"    return {returned}",
            "",
            f"{sharded} = {spelling.SHARD_MAP}(",
            f"    {forward},",
            "    mesh=mesh,",
            f"    in_specs={in_specs},",
            f"    out_specs={out_specs},",
            *options(experiment),
            ")",
            *([""] if experiment.grad else []),
            *end,
        ]
    )


def options(experiment: Experiment) -> list[str]:
    """The optional arguments of `jax.shard_map`."""
    axes = [", ".join(map(repr, experiment.manual.axes))] if experiment.automatic else []
    return [
        *(f"    axis_names={{{names}}}," for names in axes),
        *([] if experiment.check_vma else ["    check_vma=False,"]),
    ]


def _jit(experiment: Experiment) -> list[str]:
    """The decorator of the jitted function; `shard_map` cannot express layouts over automatic axes."""
    if not experiment.automatic:
        return ["@jax.jit"]
    return [*spelling.out_shardings(experiment.outputs.values()), "", "@jax.jit(out_shardings=out_shardings)"]


def _over(axes: tuple[str, ...]) -> str:
    """The spec of a value passed across the gradients: a leading dimension counts the devices that may differ."""
    return str(Spec((axes,))) if axes else str(Spec())


def _outward(name: str, axes: tuple[str, ...]) -> str:
    return f"jax.tree.map(lambda value: jnp.asarray(value)[None], {name})" if axes else name


def _after(
    experiment: Experiment, names: Identifiers, lines: Lines, passed: Sequence[tuple[str, str, tuple[str, ...]]]
) -> tuple[list[str], str]:
    """Write the lines that read gradients as a function with a `shard_map` of its own, and the call of it.

    `passed` are the values that they read from the lines before: names, identifiers, and the mesh axes over which they
    may differ.
    """
    later = experiment.after("per_device")
    given = [array for array in experiment.given if array.name in later.needed]
    computed = lines.section(later, experiment.constrained_inside, after=True)
    results = [name for name in experiment.results if name not in experiment.forward.results]
    update, sharded = names.reserve("update"), names.reserve("sharded_update")
    parameters = [*(names[array.name] for array in given), *(name for name, _, _ in passed)]
    arguments = [*(names[array.name] for array in given), *(held for _, held, _ in passed)]
    in_specs = [*(str(experiment.block(array.layout).spec) for array in given), *(_over(axes) for _, _, axes in passed)]
    out_specs = spelling.tuple_of([str(experiment.outputs[name].over(experiment.manual.axes)) for name in results])
    inward = [f"    {name} = jax.tree.map(lambda value: value[0], {name})" for name, _, axes in passed if axes]
    function = [
        f"def {update}({', '.join(parameters)}):",
        f"    {source.blocks_comment(experiment, given, names)}",
        *inward,
        source.indent(computed, 4),
        f"    return {spelling.tuple_of([names[name] for name in results])}",
        "",
        f"{sharded} = {spelling.SHARD_MAP}(",
        f"    {update},",
        "    mesh=mesh,",
        f"    in_specs={spelling.tuple_of(in_specs)},",
        f"    out_specs={out_specs},",
        *options(experiment),
        ")",
        "",
    ]
    left = spelling.tuple_of([names[name] for name in results])
    return function, f"{left} = {sharded}({', '.join(arguments)})"
