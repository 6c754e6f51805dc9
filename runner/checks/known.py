"""Calls failures that `expect.wrong` expects of a program `known`.

It is as strict as pytest's `xfail(strict=True)`: an output that is expected to be wrong and is right fails.
"""

from __future__ import annotations

from runner.checks import registry
from runner.checks.context import Context
from runner.experiment.program import Program
from runner.reports.record.verdicts import Checks


def judge(context: Context, program: Program, checks: Checks) -> Checks:
    """Return the checks of a program; a check is `known` if it failed only for outputs that are known to be wrong.

    Only the `value` check decides whether such an output is right: copies may agree, and pinned corners be right, by
    chance.
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
