"""The files of this folder that check something in; the kinds of checks, in the order of a report, out."""

from __future__ import annotations

from runner.checks import (
    agreement,
    derivation,
    expectations,
    gradient,
    layout,
    pinned,
    refused,
    replicas,
    sections,
    value,
)
from runner.checks.kind import FileKind, Kind, Needs
from runner.experiment.model import Experiment
from runner.experiment.program import Program

FILES = (sections, refused, value, layout, replicas, agreement, gradient, pinned, derivation, expectations)
"""The files, in the order in which a report has what they check."""


def of_files() -> tuple[FileKind, ...]:
    """What is checked of an experiment's file, whatever its programs do."""
    return tuple(kind for file in FILES for kind in file.KINDS if isinstance(kind, FileKind))


def of_programs() -> tuple[Kind, ...]:
    """What is checked of each program: its results, then what `expect` says of the compiled module."""
    return tuple(kind for file in FILES for kind in file.KINDS if isinstance(kind, Kind))


def applying(experiment: Experiment, program: Program) -> tuple[Kind, ...]:
    """What is checked of one program of an experiment."""
    return tuple(kind for kind in of_programs() if kind.applies(experiment, program))


def of_mutants() -> tuple[Kind | FileKind, ...]:
    """Those that may notice a mutant without a compiler."""
    return tuple(kind for kind in (*of_files(), *of_programs()) if kind.of_mutants)


def of_others() -> frozenset[str]:
    """The names of those of one program that need the others too."""
    return frozenset(kind.name for kind in of_programs() if kind.needs is Needs.OTHERS)


def of_values() -> frozenset[str]:
    """The names of those that need the experiment's values, here or at `verify_dims`."""
    return frozenset(kind.name for kind in of_programs() if kind.needs.values)
