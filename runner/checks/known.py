"""`expect.wrong`: the verdicts on one program in; out the same, with what is known to be wrong told from what is not.

It is as strict as pytest's `xfail(strict=True)`: what is known to be wrong, and is right, fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from runner.checks import value
from runner.checks.context import Context
from runner.experiment.program import Program
from runner.record.verdicts import Checks, OutputVerdict, PinnedVerdict, ReplicasVerdict, ValueOutput, ValueVerdict


def judge(context: Context, program: Program, checks: Checks) -> Checks:
    """The checks of a program: `known` where only outputs failed that are known to be wrong.

    Whether an output is right after all its `value` says: copies may agree, and pinned corners be right, by chance.
    """
    wrong = context.known_wrong(program)
    if not wrong:
        return checks
    if isinstance(checks.replicas, ReplicasVerdict):
        checks = replace(checks, replicas=_excused(checks.replicas, wrong))
    if isinstance(checks.values, PinnedVerdict):
        checks = replace(checks, values=_excused(checks.values, wrong))
    if isinstance(checks.value, ValueVerdict):
        outputs = {name: _of_output(context, name, verdict, wrong) for name, verdict in checks.value.outputs.items()}
        checks = replace(checks, value=value.together(outputs, checks.value.diagnosis))
    return checks


V = TypeVar("V", ReplicasVerdict, PinnedVerdict)


def _excused(verdict: V, wrong: frozenset[str]) -> V:
    """`known` where only outputs failed that are known to be wrong."""
    failed = {name for name, output in verdict.outputs.items() if output.status == "failed"}
    return replace(verdict, status="known") if verdict.status == "failed" and failed <= wrong else verdict


def _of_output(
    context: Context, name: str, verdict: ValueOutput | OutputVerdict, wrong: frozenset[str]
) -> ValueOutput | OutputVerdict:
    if name not in wrong or verdict.status == "not_run":
        return verdict
    if verdict.status == "failed":
        return replace(verdict, status="known")
    reason = (
        f"it is right with jax {context.jax}, but expect.wrong knows it to be wrong: if that is mended, take it out, "
        f"or name the versions that are wrong ({name}: '<{context.jax}')"
    )
    return replace(verdict, status="failed", reason=reason)
