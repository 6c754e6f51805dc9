"""`vmap`: the per-device code under nested `vmap` with axis names, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.base.layout import Layout
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Array, Experiment
from runner.experiment.program import Program
from runner.programs import absent_hardware, source, spelling
from runner.programs.lines import Lines
from runner.programs.types import InferredTypes


def vmap(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write the source of the program, which maps over the manual axes; dimensions on other axes stay whole."""
    experiment = experiment.inside
    names = Identifiers(experiment)
    mapped = names.reserve("mapped") if experiment.grad else "mapped"
    lines = Lines(experiment, names, under_vmap=True)
    first = experiment.forward if experiment.grad else experiment
    computed = lines.section(first.per_device)
    passed = [names.add(name) for name in _passed(experiment)]
    axes = [_block_axes(array.layout) for array in experiment.arrays]
    end = _end(experiment, names, mapped, lines, passed)
    body = "\n".join(
        [
            *([lines.definitions] if lines.definitions else []),
            f"def per_device({source.parameters(experiment, names)}):",
            f"    {source.blocks_comment(experiment, experiment.arrays, names)}",
            source.indent(computed, 4),
            f"    return {source.returned(first, names, passed=passed)}",
            "",
            *_nest(experiment, "per_device", mapped, axes),
            *end,
        ]
    )
    header = source.header(experiment, Program.VMAP, names, body, mesh=False)
    program = "def program():\n" + source.indent(body, 4)
    if experiment.target.topology:
        return source.module(
            header,
            absent_hardware.devices(experiment),
            absent_hardware.blocks(experiment),
            _split(experiment, names),
            program,
            absent_hardware.main(experiment, Program.VMAP),
        )
    return source.module(
        header,
        source.inputs(experiment, names, folder),
        _split(experiment, names),
        program,
        _join(experiment, names, types),
        _main(experiment),
    )


def _passed(experiment: Experiment) -> list[str]:
    """The values, outputs apart, that lines with gradients read from the lines before them."""
    return [name for name in experiment.passed("per_device") if name not in experiment.results]


def _nest(experiment: Experiment, function: str, mapped: str, axes: Sequence[tuple[str, ...]]) -> list[str]:
    """Nest one vmap per mesh axis, the last axis innermost, so that the blocks' leading dimensions are the mesh.

    `axes` are, for each operand, the mesh axes among its leading dimensions.
    """
    lines = [f"{mapped} = {function}"]
    for axis in reversed(experiment.mesh.axes):
        in_axes = [0 if axis in over else None for over in axes]
        lines.append(
            f'{mapped} = jax.vmap({mapped}, in_axes={tuple(in_axes)!r}, axis_name="{axis}", '
            f"axis_size={experiment.mesh.sizes[axis]})"
        )
    return lines


def _end(experiment: Experiment, names: Identifiers, mapped: str, lines: Lines, passed: Sequence[str]) -> list[str]:
    """The lines after the vmaps: the function from the devices' blocks to the outputs' blocks."""
    if experiment.grad is None:
        return [f"return jax.jit({mapped})"]
    forward, results = names.reserve("forward"), source.returned(experiment.forward, names, passed=passed)
    first = ", ".join("0" for _ in experiment.mesh.axes)
    laid_out: dict[str, str] = {}
    for name, array in zip(experiment.grad.names, experiment.grad.wrt, strict=True):
        own = experiment.array(array).layout
        promised = Layout(experiment.mesh, own.shape, experiment.outputs[name])
        block = _every_device(names.add(name), own, promised)
        if block != names[name]:
            laid_out[name] = block
    after, update = "", list[str]()
    if experiment.reads_gradients:
        update, after = _after(experiment, names, lines)
    return [
        *update,
        "",
        f"def {forward}({source.parameters(experiment, names)}):",
        f"    {results} = {mapped}({source.parameters(experiment, names)})",
        # Every device has a copy of the scalar; the copies depend on the blocks of all devices.
        f"    return {names[experiment.grad.of]}[{first}], {results}",
        "",
        source.with_gradients(experiment, names, forward, laid_out, passed=passed, after=after),
        "",
        f"return {names.function}",
    ]


def _after(experiment: Experiment, names: Identifiers, lines: Lines) -> tuple[list[str], str]:
    """Write the lines that read gradients as a function mapped over the devices, and the call of it."""
    later = experiment.after("per_device")
    given = [array for array in experiment.given if array.name in later.needed]
    passed = experiment.passed("per_device")
    computed = lines.section(later, after=True)
    results = [name for name in experiment.results if name not in experiment.forward.results]
    update, mapped = names.reserve("update"), names.reserve("mapped_update")
    operands = ", ".join(names[name] for name in (*(array.name for array in given), *passed))
    everywhere = experiment.mesh.axes
    gradients = experiment.grad.names if experiment.grad else ()
    axes = [everywhere if array.name in gradients else _block_axes(array.layout) for array in given]
    left = spelling.tuple_of([names[name] for name in results])
    function = [
        "",
        f"def {update}({operands}):",
        f"    {source.blocks_comment(experiment, given, names)}",
        source.indent(computed, 4),
        f"    return {left}",
        "",
        *_nest(experiment, update, mapped, [*axes, *(everywhere for _ in passed)]),
    ]
    return function, f"{left} = {mapped}({operands})"


def _every_device(identifier: str, own: Layout, promised: Layout) -> str:
    """A gradient, which has its array's blocks, as each device's block under the gradient's own spec."""
    text = identifier
    if own.spec != promised.spec:
        text += _merged(own) + _blocked(promised)[0]
    if promised.replicated_over:
        mesh = promised.mesh
        places = tuple(mesh.axes.index(axis) for axis in promised.replicated_over)
        shape = (*mesh.shape, *promised.shard_shape)
        text = f"jnp.broadcast_to(jnp.expand_dims({text}, {places!r}), {shape!r})"
    return text


def _block_axes(layout: Layout) -> tuple[str, ...]:
    """The mesh axes that shard the array, in the order of the mesh."""
    return tuple(axis for axis in layout.mesh.axes if axis not in layout.replicated_over)


def _split(experiment: Experiment, names: Identifiers) -> str:
    lines = [
        f"def split({source.parameters(experiment, names)}):",
        '    """Each array as the blocks of the devices: first the mesh axes that shard it, then the block."""',
    ]
    for array in experiment.arrays:
        line = _split_line(array, names[array.name])
        if line:
            lines.append("    " + line)
    arrays = [names[array.name] for array in experiment.arrays]
    lines.append(f"    return {spelling.tuple_of(arrays) if arrays else '()'}")
    return "\n".join(lines)


def _split_line(array: Array, identifier: str) -> str:
    calls, axes = _blocked(array.layout)
    return f"{identifier} = {identifier}{calls}  # [{', '.join(axes)}, block]" if axes else ""


def _blocked(layout: Layout) -> tuple[str, tuple[str, ...]]:
    """The calls that split a whole array into blocks, and the mesh axes of the blocks' leading dimensions."""
    axes = _block_axes(layout)
    if not axes:
        return "", ()
    # Dimension d of size n, sharded over (a, b), becomes (a, b, n / (a·b)).
    split: list[int] = []
    place: dict[str, int] = {}
    kept: list[int] = []
    for sharded_over, size in zip(layout.spec, layout.shard_shape, strict=True):
        for axis in sharded_over:
            place[axis] = len(split)
            split.append(layout.mesh.sizes[axis])
        kept.append(len(split))
        split.append(size)
    order = [*(place[axis] for axis in axes), *kept]
    moved = "" if order == sorted(order) else f".transpose({', '.join(map(str, order))})"
    return f".reshape({', '.join(map(str, split))}){moved}", axes


def _join(experiment: Experiment, names: Identifiers, types: InferredTypes) -> str:
    identifiers = [names[name] for name in experiment.outputs]
    lines = [
        f"def join({', '.join(identifiers)}):",
        '    """The whole outputs, from the block of every device."""',
    ]
    for name, identifier in zip(experiment.outputs, identifiers, strict=True):
        lines.append(
            "    "
            + _join_line(identifier, Layout(experiment.mesh, types.outputs[name].shape, experiment.outputs[name]))
        )
    lines.append(f"    return {spelling.tuple_of(identifiers)}")
    return "\n".join(lines)


def _join_line(identifier: str, layout: Layout) -> str:
    replicated = layout.replicated_over
    line = f"{identifier} = {identifier}"
    if replicated:
        line += f"[{', '.join('0' if axis in replicated else ':' for axis in layout.mesh.axes)}]"
    return line + _merged(layout) + (f"  # the same on all of {', '.join(replicated)}" if replicated else "")


def _merged(layout: Layout) -> str:
    """The calls that merge blocks (axes…, dimensions…) into one array: each dimension takes its axes in front of it."""
    used, calls = _block_axes(layout), ""
    order: list[int] = []
    for dimension, sharded_over in enumerate(layout.spec):
        order += [*(used.index(axis) for axis in sharded_over), len(used) + dimension]
    if order != sorted(order):
        calls += f".transpose({', '.join(map(str, order))})"
    if used:
        calls += f".reshape({', '.join(map(str, layout.shape))})"
    return calls


def _main(experiment: Experiment) -> str:
    return spelling.main_of(
        [
            "outputs = join(*program()(*split(*inputs())))",
            f"for name, output in zip({tuple(experiment.outputs)!r}, outputs, strict=True):",
            '    print(f"{name}  {output.dtype}{list(output.shape)}")',
            "    print(np.asarray(output))",
        ]
    )
