"""`agreement`: the programs against each other."""

from __future__ import annotations

import numpy as np

from runner.checks.compare import difference
from runner.checks.context import Check, Context
from runner.target import ProgramRun


def check(context: Context, run: ProgramRun, others: list[ProgramRun]) -> Check:
    """Compare a program's whole outputs with those of every other program that ran."""
    if not others:
        return {"status": "not_run", "reason": "no other program ran"}
    found: Check = {"status": "passed", "max_abs_error": 0.0, "with": [other.program for other in others]}
    apart = []
    for name, output in run.outputs.items():
        mine = output.whole()
        for other in others:
            theirs = other.outputs[name].whole().astype(np.complex128 if mine.dtype.kind == "c" else mine.dtype)
            if output.dtype != other.outputs[name].dtype:
                apart.append(f"{name} is {output.dtype}, but {other.outputs[name].dtype} in {other.program}")
                continue
            measured = difference(mine, theirs, output.dtype, context.tolerance(name).doubled())
            found["max_abs_error"] = max(found["max_abs_error"], measured.max_abs)
            if measured.wrong:
                apart.append(f"{name} differs from {other.program} at {measured.wrong} of {measured.size} elements")
    if apart:
        found.update(status="failed", reason="; ".join(apart))
    return found
