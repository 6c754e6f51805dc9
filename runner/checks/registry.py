"""The modules of this package that contain a check, and the kinds of checks in the order of a report."""

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
from runner.checks.kind import CheckKind, Needs
from runner.experiment.model import Experiment
from runner.experiment.program import Program

FILES = (sections, refused, value, layout, replicas, agreement, gradient, pinned, derivation, expectations)
"""The modules, in the order of their checks in a report."""


def kinds() -> tuple[CheckKind, ...]:
    """All kinds of checks."""
    return tuple(kind for file in FILES for kind in file.KINDS)


def applying(experiment: Experiment, program: Program) -> tuple[CheckKind, ...]:
    """The checks that apply to one program of an experiment."""
    return tuple(kind for kind in kinds() if kind.needs is not Needs.FILE and kind.applies(experiment, program))


def of_values() -> frozenset[str]:
    """The names of the checks that need the experiment's values, here or at `verify_dims`."""
    return frozenset(kind.name for kind in kinds() if kind.needs.values)
