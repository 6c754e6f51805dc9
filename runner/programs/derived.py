"""`derived`: a `shard_map` whose lines and collectives follow from the graph and the specs."""

from __future__ import annotations

from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import shard_map
from runner.programs.types import InferredTypes


def write(experiment: Experiment, folder: Path, types: InferredTypes) -> str:
    """Write the program's source from the lines in `types.derived`."""
    assert types.derived is not None
    return shard_map.write(types.derived, folder, types, Program.DERIVED)
