"""`explicit`: sharding in types, with `out_sharding=` and `reshard` where the types ask for it."""

from __future__ import annotations

from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import global_view
from runner.programs.types import Types


def write(experiment: Experiment, folder: Path, types: Types) -> str:
    """The source of the program; `types.repairs` is what the types ask for."""
    return global_view.write(experiment, folder, Program.EXPLICIT, repairs=types.repairs)
