"""`derived`: a `shard_map` whose lines and collectives follow from the graph and the specs."""

from __future__ import annotations

from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs import shard_map
from runner.programs.types import Types


def write(experiment: Experiment, folder: Path, types: Types) -> str:
    """The source of the program; `types.derived` has its lines."""
    assert types.derived is not None
    return shard_map.write(types.derived, folder, types, Program.DERIVED)
