"""`constraint`: `jit` with `with_sharding_constraint` on the experiment's constraints and outputs."""

from __future__ import annotations

from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import global_view
from runner.programs.types import InferredTypes


def write(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write the program's source."""
    return global_view.write(
        experiment,
        folder,
        Program.CONSTRAINT,
        constraints=experiment.constrained,
        outputs={
            name: spec
            for name, spec in experiment.outputs.items()
            if name not in experiment.probed and experiment.promises(Program.CONSTRAINT, name)
        },
    )
