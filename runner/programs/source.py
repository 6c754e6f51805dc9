"""Writes the parts that all programs share: header, data and printing.

A program is a module with these functions, which its own `main` calls and the runner calls:

- `inputs()`: the arrays, whole, in NumPy.
- `make_mesh(devices=None)` and `shardings(mesh)`: the mesh and one sharding per array (not in `vmap`).
- `program(mesh)`: the jitted function from arrays to a tuple of outputs.

For an absent topology, `runner/programs/absent_hardware.py` has the replacement of the data. Where devices belong to
several JAX processes, each runs the same program and creates the shards of its own devices.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner.base import dtypes
from runner.experiment import data
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Array, Experiment
from runner.experiment.program import Program
from runner.graph.language import python_source
from runner.programs import within
from runner.programs.spelling import main_of, ordered, sharding, tuple_of
from runner.version import __version__

CONFIGURATION = 'jax.config.update("jax_cpu_collectives_implementation", "gloo")'
"""The line by which CPU devices of several processes can communicate."""

_PLACE = '''def place(arrays, shardings):
    """The arrays on the mesh; each process makes of them what its own devices have."""
    return tuple(
        jax.make_array_from_callback(array.shape, sharding, lambda index, array=array: array[index])
        for array, sharding in zip(arrays, shardings, strict=True)
    )'''
"""A program's replacement for `jax.device_put`, which would send whole arrays between processes to compare them."""

_ADDRESS = "localhost:8476"
"""The address at which the processes meet if a program is run by hand."""


def use_of_processes(experiment: Experiment, file: str) -> str:
    """The command that runs a program's file by hand, for its docstring."""
    if experiment.target.cluster:
        count = experiment.target.processes
        return f"It runs alone, in {count} processes that a cluster starts at once:\nsrun -n {count} python {file}"
    last = experiment.target.processes - 1
    numbered = f"python {file} {{}}"
    between = ", …, " if last > 1 else " and "
    return f"It runs alone, in {last + 1} processes at once:\n{numbered.format(0)}{between}{numbered.format(last)}"


def collectives_library(experiment: Experiment) -> str | None:
    """The import with which a program gets its process number if there is no cluster manager."""
    return "sys" if experiment.target.processes > 1 and not experiment.target.cluster else None


def main_of_processes(experiment: Experiment, shown: Sequence[str], first: Sequence[str] = ()) -> str:
    """Write `place`, and the function that runs the program in one process.

    `shown` are the lines that print the outputs' shards of the process; `first` are those before the program runs.
    """
    count = experiment.target.processes
    # By default JAX's coordinator listens on every interface.
    here = [
        f'address = "{_ADDRESS}"',
        "jax.distributed.initialize(",
        f"    address, num_processes={count}, process_id=int(sys.argv[1]), coordinator_bind_address=address",
        ")",
    ]
    lines = [
        *first,
        *(["jax.distributed.initialize()"] if experiment.target.cluster else here),
        "mesh = make_mesh()",
        "arrays = place(inputs(), shardings(mesh))",
        *shown,
    ]
    return f"{_PLACE}\n\n\n{main_of(lines)}"


def header(experiment: Experiment, program: str, names: Identifiers, body: str, *, mesh: bool) -> str:
    """Write the docstring, the imports, JAX's configuration and the dims, as far as `body` reads them."""
    title = in_docstring(textwrap.fill(f"{experiment.name}: {experiment.summary}".rstrip(": "), 110))
    lines = [
        f'"""{title}',
        "",
        f"Program {program}, written by shardproof {__version__}. {_use(experiment, program, mesh=mesh)}",
        '"""',
        "",
        *_imports(experiment, body, mesh=mesh),
        "",
    ]
    if experiment.target.topology:
        lines += experiment.target.topology.configuration
    elif experiment.target.platform == "cpu":
        devices = experiment.target.devices_each if experiment.on_mesh else 1
        lines += [
            'jax.config.update("jax_platforms", "cpu")',
            f'jax.config.update("jax_num_cpu_devices", {devices})',
        ]
        if mesh and experiment.target.processes > 1:
            lines.append(CONFIGURATION)
    if experiment.x64:
        lines.append('jax.config.update("jax_enable_x64", True)')
    if experiment.precision != "default":
        lines.append(f'jax.config.update("jax_default_matmul_precision", "{experiment.precision}")')
    if _read(body).intersection(experiment.imports.names):
        lines += ["", *experiment.imports.preamble]
    sizes = dims(experiment, names, body)
    return "\n".join([*lines, "", sizes] if sizes else lines).rstrip()


def in_docstring(text: str) -> str:
    """Escape a user's text so that a docstring contains exactly that text."""
    return "\n".join("".join(map(_escaped, line)) for line in text.split("\n")).replace('"""', r"\"\"\"")


def _escaped(character: str) -> str:
    return character if character in "'\"" else repr(character)[1:-1]


def _use(experiment: Experiment, program: str, *, mesh: bool) -> str:
    if mesh and experiment.target.processes > 1:
        return use_of_processes(experiment, f"program_{program}.py")
    if experiment.target.topology is None:
        return f"It runs alone: python program_{program}.py"
    return f"It compiles for {experiment.target.topology.name}, alone:\npython program_{program}.py"


def _imports(experiment: Experiment, body: str, *, mesh: bool) -> list[str]:
    absent = experiment.target.topology
    named = {dtypes.dtype(array.dtype).source.split(".")[0] for array in experiment.arrays}
    library = "os" if absent and absent.platform == "tpu" else collectives_library(experiment) if mesh else None
    read = _read(body)
    constrains = within.DECORATOR in read
    libraries = [*([library] if library else []), *(within.MODULES if constrains else ())]
    lines = [*(f"import {module}" for module in sorted(libraries)), *([""] if libraries else []), "import jax"]
    if "jax.ad_checkpoint." in body:
        lines.append("import jax.ad_checkpoint")
    lines += within.IMPORTS if constrains else ()
    if "jnp" in read:
        lines.append("import jax.numpy as jnp")
    if "ml_dtypes" in named:
        lines.append("import ml_dtypes")
    if absent is None or "np" in named or "np" in read or (mesh and experiment.mesh.devices is not None):
        lines.append("import numpy as np")
    if absent:
        ordered = experiment.mesh.devices is None and (experiment.target.split_axes or absent.slices > 1)
        modules = ["mesh_utils"] if mesh and ordered else []
        modules += ["topologies"] if absent.platform != "cpu" else []
        lines += [f"from jax.experimental import {', '.join(modules)}"] if modules else []
    if mesh:
        lines.append("from jax.sharding import AxisType, NamedSharding")
        lines.append("from jax.sharding import PartitionSpec as P")
    return lines


@functools.lru_cache(maxsize=8)
def _read(body: str) -> frozenset[str]:
    """The names that lines of Python read; the lines come as text from several writers."""
    return python_source.names(body)


def dims(experiment: Experiment, names: Identifiers, body: str) -> str:
    """Write one line with the dims that the body reads: `I, J = 4, 4`."""
    read = _read(body)
    used = [dim for dim in experiment.dims if names[dim] in read]
    if not used:
        return ""
    return f"{', '.join(names[d] for d in used)} = {', '.join(str(experiment.dims[d]) for d in used)}"


def inputs(experiment: Experiment, names: Identifiers, folder: Path) -> str:
    """Write `inputs`, which creates the arrays."""
    lines = ["def inputs():", '    """The arrays, whole, in NumPy."""']
    made_by = {array.name: data.source(array, dict(experiment.dims), folder) for array in experiment.arrays}
    if any(source.draws for source in made_by.values()):
        lines.append(f"    rng = np.random.default_rng({experiment.seed})")
    lines += [f"    {names[name]} = {source}" for name, source in made_by.items()]
    lines.append(f"    return {tuple_of([names[a.name] for a in experiment.arrays]) if experiment.arrays else '()'}")
    return "\n".join(lines)


def mesh_functions(experiment: Experiment, program: Program) -> str:
    """Write `make_mesh` and `shardings`."""
    mesh = experiment.mesh
    axis_types = tuple_of([f"AxisType.{axis_type}" for axis_type in program.axis_types(mesh)])
    devices = "" if experiment.target.platform == "cpu" else f' or jax.devices("{experiment.target.platform}")'
    count = f"[:{mesh.size}]" if devices else ""
    argument = f"(devices{devices}){count}" if devices else "devices"
    made = [f"    return jax.make_mesh({mesh.shape!r}, {mesh.axes!r}, axis_types={axis_types}, devices={argument})"]
    if mesh.devices is not None:
        made = ordered(mesh, f"devices{devices or ' or jax.devices()'}", axis_types)
    lines = [
        "def make_mesh(devices=None):",
        *made,
        "",
        "",
        "def shardings(mesh):",
        '    """How each array lies on the mesh."""',
    ]
    entries = [sharding(array.layout.spec) for array in experiment.arrays]
    if len(entries) == 1:
        lines.append(f"    return ({entries[0]},)")
    elif not entries:
        lines.append("    return ()")
    else:
        lines += ["    return (", *(f"        {entry}," for entry in entries), "    )"]
    return "\n".join(lines)


def main(experiment: Experiment, program: Program) -> str:
    """Write `main`, which runs the program and prints its outputs."""
    spec = "output.sharding.spec" if program.places else "spec"
    if experiment.target.processes > 1:
        return main_of_processes(
            experiment,
            [
                "outputs = program(mesh)(*arrays)",
                f"for name, output in zip({tuple(experiment.outputs)!r}, outputs, strict=True):",
                *([] if program.places else ['    spec = getattr(output.sharding, "spec", None)']),
                f'    print(f"{{name}}  {{output.dtype}}{{list(output.shape)}}  {{{spec}}}")',
                "    for shard in output.addressable_shards:",
                '        print(f"on {shard.device}, {shard.index}:")',
                "        print(np.asarray(shard.data))",
            ],
        )
    outputs = ["outputs = program(mesh)(*arrays)"]
    if experiment.imports.within:
        outputs = ["with jax.set_mesh(mesh):", "    outputs = program(mesh)(*arrays)"]
    lines = [
        "mesh = make_mesh()",
        "arrays = jax.device_put(inputs(), shardings(mesh))",
        *outputs,
        f"for name, output in zip({tuple(experiment.outputs)!r}, outputs, strict=True):",
        # The compiler leaves an output that depends on no array on one device, so it has no PartitionSpec.
        *([] if program.places else ['    spec = getattr(output.sharding, "spec", None)']),
        f'    print(f"{{name}}  {{output.dtype}}{{list(output.shape)}}  {{{spec}}}")',
        "    print(np.asarray(output))",
    ]
    return main_of(lines)


def returned(
    experiment: Experiment, names: Identifiers, laid_out: Mapping[str, str] | None = None, passed: Iterable[str] = ()
) -> str:
    """Write the tuple of outputs that a program returns; `laid_out` has the expressions of those that are not names.

    The values `passed` to the lines that read gradients come last.
    """
    return tuple_of([*((laid_out or {}).get(name, names[name]) for name in experiment.results), *passed])


def with_gradients(
    experiment: Experiment,
    names: Identifiers,
    forward: str,
    laid_out: Mapping[str, str],
    jit: Iterable[str] = ("@jax.jit",),
    *,
    passed: Sequence[str] = (),
    after: str = "",
) -> str:
    """Write a program's function that also returns gradients.

    `forward` is the function from the arrays to a pair: the scalar, and the tuple of the results that need no gradient
    and of the values `passed` to the lines `after` it. `laid_out` has the expressions that set the layouts of
    gradients.
    """
    assert experiment.grad is not None
    arrays = [array.name for array in experiment.arrays]
    places = [arrays.index(name) for name in experiment.grad.wrt]
    gradients = [names.add(name) for name in experiment.grad.names]
    results = tuple_of([*(names[name] for name in experiment.forward.results), *passed])
    argnums, left = (places[0], gradients[0]) if len(places) == 1 else (tuple(places), tuple_of(gradients))
    operands = parameters(experiment, names)
    lines = [
        *jit,
        f"def {names.function}({operands}):",
        f"    {left}, {results} = jax.grad({forward}, argnums={argnums}, has_aux=True)({operands})",
    ]
    for name, identifier in zip(experiment.grad.names, gradients, strict=True):
        if name in laid_out:
            lines += [f'    with jax.named_scope("{name}"):', f"        {identifier} = {laid_out[name]}"]
    if after:
        lines.append(indent(after, 4))
    own = experiment.forward.outputs
    everything = tuple_of(
        [names[name] if name in own else laid_out.get(name, names[name]) for name in experiment.outputs]
    )
    return "\n".join([*lines, f"    return {everything}"])


def parameters(experiment: Experiment, names: Identifiers) -> str:
    """The parameters of a program's function, one per array."""
    return ", ".join(names[array.name] for array in experiment.arrays)


def indent(text: str, by: int) -> str:
    """Indent a text by `by` spaces; empty lines stay empty."""
    return textwrap.indent(text, " " * by, lambda line: bool(line.strip()))


def blocks_comment(experiment: Experiment, arrays: Iterable[Array], names: Identifiers) -> str:
    """Write the comment with each array's block on one device: `# each device: A[4, 2], B[2, 4]`."""
    blocks = (f"{names[array.name]}{list(experiment.block(array.layout).shard_shape)}" for array in arrays)
    along = f" along {', '.join(experiment.manual.axes)}" if experiment.automatic else ""
    return f"# each device{along}: {', '.join(blocks)}"


_QUOTED = re.compile(
    r"""
    (?:\b[a-zA-Z]++)? (?P<three>'{3}|"{3}) (?:\\.|[^\\])*? (?P=three)
    | "(?:\\.|[^"\\])*"
    | \#[^\n]*
    | \b[a-zA-Z]++'(?:\\.|[^'\\])*'
    | '(?P<inside>(?:\\.|[^'\\])*)'
    """,
    re.DOTALL | re.VERBOSE,
)
"""Quoted strings, in the order in which Python reads them; last those in single quotes without a prefix."""


def module(*parts: str) -> str:
    """Join the parts of a module by two empty lines, with strings in double quotes as formatters write them."""
    return _QUOTED.sub(_doubled, "\n\n\n".join(part for part in parts if part) + "\n")


def _doubled(match: re.Match[str]) -> str:
    inside = match["inside"]
    return match[0] if inside is None or '"' in inside else f'"{inside}"'
