"""Derived lines in; the section of the YAML that they are out, and back.

Imports nothing that derives: the process that writes the record does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from runner.experiment.model import GRADIENTS, Experiment, Flat, Loop
from runner.experiment.statements import read_statements
from runner.language.check import VisibleNames
from runner.sharding.plan import Derivation


def section(statements: Iterable[Flat]) -> dict[str, Any]:
    """Convert statements to a section of the YAML."""
    lines: dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, Loop):
            counts = {"repeat": statement.steps, "index": statement.index, "unroll": statement.unroll}
            lines[statement.name] = {
                **({"while": statement.going} if statement.going else counts),
                **({"over": {name: whole.text for name, whole in statement.over}} if statement.over else {}),
                **({"carry": {name: first.text for name, first in statement.carry}} if statement.carry else {}),
                "body": section(statement.body),
                **({"stack": dict(statement.stack)} if statement.stack else {}),
                **({"checkpoint": statement.checkpoint.written} if statement.checkpoint else {}),
            }
        else:
            lines[statement.name] = statement.expression.text
    return lines


def with_lines(experiment: Experiment, derivation: Derivation) -> Experiment:
    """The experiment with lines that another process derived."""
    scope = VisibleNames("per_device", experiment.mesh, {array.name for array in experiment.arrays}, experiment.dims)
    if experiment.grad is not None:
        scope.loops[GRADIENTS] = experiment.grad.wrt
    statements = read_statements(derivation.per_device, ("derived",), scope, experiment.dims)
    return replace(experiment, per_device=statements, check_vma=derivation.check_vma, automatic=())
