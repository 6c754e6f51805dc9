"""`expect.wrong`: the verdicts on one program in; out the same, with what is known to be wrong told from what is not.

It is as strict as pytest's `xfail(strict=True)`: what is known to be wrong, and is right, fails.
"""

from __future__ import annotations

from runner.checks import registry
from runner.checks.context import Context
from runner.experiment.program import Program
from runner.record.verdicts import Checks


def judge(context: Context, program: Program, checks: Checks) -> Checks:
    """The checks of a program: `known` where only outputs failed that are known to be wrong.

    Whether an output is right after all its `value` says: copies may agree, and pinned corners be right, by chance.
    """
    wrong = context.known_wrong(program)
    if not wrong:
        return checks
    excused = {
        kind.name: kind.excused(context, verdict, wrong)
        for kind in registry.kinds()
        if kind.excused is not None and (verdict := checks.get(kind.name)) is not None and verdict.status != "not_run"
    }
    return checks.but(**excused)
