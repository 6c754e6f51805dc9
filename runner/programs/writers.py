"""Finds the writer of each program, which writes one JAX script. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs.types import InferredTypes

Writer = Callable[[Experiment, Path, InferredTypes], str]
"""Takes the experiment, the folder in which `load` looks, and the types; returns the source of the module."""


MODULES = {
    Program.AUTO: "global_view", Program.CONSTRAINT: "global_view", Program.EXPLICIT: "global_view",
    Program.SHARD_MAP: "shard_map", Program.DERIVED: "shard_map", Program.VMAP: "vmap",
}  # fmt: skip
"""The module with each program's writer, which is the function of the program's name."""


def _write(program: Program, experiment: Experiment, data_folder: Path, types: InferredTypes) -> str:
    # Most runs have few programs.
    return getattr(import_module(f"runner.programs.{MODULES[program]}"), program)(experiment, data_folder, types)


WRITERS: dict[Program, Writer] = {program: partial(_write, program) for program in Program}
"""Each program's writer."""
