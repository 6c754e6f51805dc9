"""An experiment and its types in; the source of one JAX script for each program out. The writers import no JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.experiment.model import Experiment
from runner.programs import auto, constraint, derived, explicit, shard_map, vmap
from runner.programs.source import Types

WRITERS: dict[str, Callable[[Experiment, Path, Types], str]] = {
    "auto": auto.write,
    "constraint": constraint.write,
    "explicit": explicit.write,
    "derived": derived.write,
    "shard_map": shard_map.write,
    "vmap": vmap.write,
}
"""Each program's writer: the experiment, the folder in which `load` looks, and the types; the module's source."""
