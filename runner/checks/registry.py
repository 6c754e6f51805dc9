"""Lists the kinds of checks that the files of `kinds/` declare, in the order of a report."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from runner.checks import kinds as folder
from runner.checks.kind import CheckKind, Needs
from runner.experiment.model import Experiment
from runner.experiment.program import Program


@functools.cache
def kinds() -> tuple[CheckKind, ...]:
    """All kinds of checks, as their files declare them."""
    names = sorted(f"{folder.__name__}.{file.name}" for file in pkgutil.iter_modules(folder.__path__))
    declared = [kind for name in names for kind in importlib.import_module(name).KINDS]
    return tuple(sorted(declared, key=lambda kind: kind.order))


def applying(experiment: Experiment, program: Program) -> tuple[CheckKind, ...]:
    """The checks that apply to one program of an experiment."""
    return tuple(kind for kind in _of_programs() if kind.applies(experiment, program))


def of_mutants(experiment: Experiment, program: Program) -> tuple[CheckKind, ...]:
    """The checks that can notice a mutant in the values of one program, whether or not the experiment runs that one."""
    return tuple(kind for kind in _of_programs() if kind.of_mutants and kind.applies(experiment, program))


def _of_programs() -> tuple[CheckKind, ...]:
    """The checks that look at a program, not at the file alone."""
    return tuple(kind for kind in kinds() if kind.needs is not Needs.FILE)


def of_values() -> frozenset[str]:
    """The names of the checks that need the experiment's values, here or at `verify_dims`."""
    return frozenset(kind.name for kind in kinds() if kind.needs.values)


def table() -> str:
    """The rows of `docs/language.md` that say what each check says."""
    return "".join(f"| `{kind.name}` | {kind.says} |\n" for kind in kinds() if kind.says)
