"""What `auto`, `constraint` and `explicit` share: a jitted function over whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.experiment import Experiment
from runner.programs import source
from runner.programs.source import Lines, Names, Repairs


def write(
    experiment: Experiment,
    names: Names,
    folder: Path,
    program: str,
    *,
    axis_type: str,
    after: Mapping[str, str] | None = None,
    repairs: Repairs | None = None,
) -> str:
    """The source of a program in the global view.

    `after` maps a name to the line that follows its definition, `repairs` is what explicit sharding asks for.
    """
    after = after or {}
    lines = Lines(experiment, names, repairs).section(experiment.graph, after)
    on_arrays = [after[a.name].format(names[a.name]) for a in experiment.arrays if a.name in after]
    body = "\n".join([*on_arrays, lines, f"return {source.returned(experiment, names)}"])
    function = "\n".join(
        [
            "def program(mesh):",
            "    @jax.jit",
            f"    def {names.function}({source.parameters(experiment, names)}):",
            source.indent(body, 8),
            "",
            f"    return {names.function}",
        ]
    )
    return source.module(
        source.header(experiment, program, names, body, mesh=True),
        source.inputs(experiment, names, folder),
        source.mesh_functions(experiment, axis_type),
        function,
        source.main(experiment),
    )
