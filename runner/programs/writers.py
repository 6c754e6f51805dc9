"""The writer of each program: an experiment and its types in; the source of one JAX script out. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.programs.types import InferredTypes

Writer = Callable[[Experiment, Path, InferredTypes], str]
"""The experiment, the folder in which `load` looks, and the types in; the module's source out."""

WRITERS: dict[Program, Writer] = {program: import_module(f"runner.programs.{program}").write for program in Program}
"""Each program's writer: `write` of the file of its name."""
