"""`agreement`: the programs against each other."""

from __future__ import annotations

from runner.checks.compare import SAME, difference
from runner.checks.context import Check, Context
from runner.target import ProgramRun


def check(context: Context, run: ProgramRun, others: list[ProgramRun]) -> Check:
    """Compare a program's outputs with those of every other program that ran."""
    if not others:
        return {"status": "not_run", "reason": "no other program ran"}
    found: Check = {"status": "passed", "max_abs_error": 0.0, "with": [other.program for other in others]}
    apart = []
    for name, output in run.outputs.items():
        allowed = context.tolerance(name).doubled()
        for other in others:
            theirs = other.outputs[name]
            if output.dtype != theirs.dtype:
                apart.append(f"{name} is {output.dtype}, but {theirs.dtype} in {other.program}")
                continue
            measured = SAME
            for ranges, part in output.parts.items():
                measured = measured.joined(difference(part, theirs.block(ranges), output.dtype, allowed))
            found["max_abs_error"] = max(found["max_abs_error"], measured.max_abs)
            if measured.wrong:
                apart.append(f"{name} differs from {other.program} at {measured.wrong} of {measured.size} elements")
    if apart:
        found.update(status="failed", reason="; ".join(apart))
    return found
