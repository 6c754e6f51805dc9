"""`shard_map`: each device's code and collectives as the experiment writes them."""

from __future__ import annotations

from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import absent, source, spelling
from runner.programs.lines import Lines
from runner.programs.names import Names
from runner.programs.types import Types


def write(experiment: Experiment, folder: Path, types: Types, program: Program = Program.SHARD_MAP) -> str:
    """The source of the program, by the name of `program`."""
    names = Names(experiment)
    target = absent if experiment.target.topology else source
    forward, sharded = names.function, "sharded"
    if experiment.grad:
        forward, sharded = names.reserve("forward"), names.reserve("sharded")
    lines = Lines(experiment, names)
    computed = lines.section(experiment.per_device)
    in_specs = spelling.tuple_of([str(a.layout.spec) for a in experiment.arrays]) if experiment.arrays else "()"
    out_specs = spelling.tuple_of([str(spec) for spec in experiment.results.values()])
    returned = source.returned(experiment, names)
    end = ["return jax.jit(sharded)"]
    if experiment.grad:
        of = experiment.grad.of
        returned, out_specs = f"{names[of]}, {returned}", f"({experiment.results[of]}, {out_specs})"
        # A gradient that is zero everywhere has no layout of its own.
        laid_out = {
            name: spelling.constrained(names.add(name), experiment.outputs[name]) for name in experiment.grad.names
        }
        end = [source.with_gradients(experiment, names, sharded, laid_out), "", f"return {names.function}"]
    check = [] if experiment.check_vma else ["    check_vma=False,"]
    body = "\n".join(
        [
            *([lines.definitions] if lines.definitions else []),
            f"def {forward}({source.parameters(experiment, names)}):",
            f"    # each device: {source.shapes_comment(experiment.arrays, names, shards=True)}",
            source.indent(computed, 4),
            f"    return {returned}",
            "",
            f"{sharded} = jax.shard_map(",
            f"    {forward},",
            "    mesh=mesh,",
            f"    in_specs={in_specs},",
            f"    out_specs={out_specs},",
            *check,
            ")",
            *([""] if experiment.grad else []),
            *end,
        ]
    )
    return source.module(
        source.header(experiment, program, names, body, mesh=True),
        target.inputs(experiment, names, folder),
        target.mesh_functions(experiment, program),
        "def program(mesh):\n" + source.indent(body, 4),
        target.main(experiment, program),
    )
