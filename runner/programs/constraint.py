"""`constraint`: `jit` with `with_sharding_constraint` on the experiment's constraints and outputs."""

from __future__ import annotations

from pathlib import Path

from runner.experiment import Experiment
from runner.programs import global_view
from runner.programs.source import Names, Types, sharding


def write(experiment: Experiment, folder: Path, types: Types) -> str:
    """The source of the program."""
    names = Names(experiment)
    specs = {**experiment.outputs, **experiment.constraints}
    after = {
        name: f"{{0}} = jax.lax.with_sharding_constraint({{0}}, {sharding(spec).replace('{', '{{')})"
        for name, spec in specs.items()
    }
    return global_view.write(experiment, names, folder, "constraint", axis_type="Auto", after=after)
