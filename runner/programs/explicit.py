"""`explicit`: sharding in types, with `out_sharding=` and `reshard` where the types ask for it."""

from __future__ import annotations

from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import global_view
from runner.programs.types import InferredTypes


def write(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write the program's source, with `types.repairs`: what JAX's sharding types require.

    On Auto axes of the mesh, layouts are constraints for the compiler.
    """
    # Reshards have already laid out the explicit axes.
    auto = experiment.mesh.auto
    # A constraint without an automatic axis would replicate along these axes.
    constraints = {path: spec.over(auto) for path, spec in experiment.constrained.items()} if auto else {}
    return global_view.write(experiment, folder, Program.EXPLICIT, constraints=constraints, repairs=types.repairs)
