"""The text of a compiled module and its experiment in; the collectives that the reader finds in it out."""

from __future__ import annotations

from pathlib import Path

from runner.compiled.evidence import collectives, hlo
from runner.compiled.evidence.collectives import Collectives
from runner.compiled.evidence.nodes import Origins
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from tests import harness

MODULES = Path(__file__).parent / "modules"
"""Modules written by compilers, and some written by hand: see its README."""


def stored(name: str) -> Collectives:
    """Return the contents of a stored module; `gradient_step/constraint.cpu.jax-0.10.2`."""
    path = MODULES / f"{name}.txt"
    return collectives_in(path.read_text(), experiment(path.parent.name), path.name.split(".")[0])


def experiment(folder: str) -> Experiment:
    """Return the experiment that the modules of a folder were compiled from."""
    return harness.experiment((MODULES / folder / "experiment.yaml").read_text())


def collectives_in(text: str, experiment: Experiment, program: str = "shard_map") -> Collectives:
    """Return what the reader finds in a module's text."""
    origins = Origins(experiment, Program(program).section)
    return collectives.read(hlo.read(text), origins, experiment.mesh)
