"""Outputs of which a run proves nothing, though no check failed: those without elements, those that none compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from runner.checks.context import Context
from runner.checks.kinds.pinned import PinnedVerdict
from runner.reports.record.model import ProgramRecord
from runner.reports.record.verdicts import AgreementVerdict, Checks, OutputVerdict, ValueVerdict


def warnings(context: Context, programs: Mapping[str, ProgramRecord]) -> Iterator[str]:
    """Yield a warning for each such output of the programs that ran."""
    ran = [program.checks for program in programs.values() if isinstance(program.checks.value, ValueVerdict)]
    for name, (shape, _) in context.outputs.items():
        if not math.prod(shape):
            yield f"output '{name}' has no elements (its shape is {list(shape)}): there is nothing to compare"
        elif ran and not any(_compares(checks, name) for checks in ran):
            reasons = dict.fromkeys(reason for checks in ran if (reason := _verdict(checks, name).reason))
            yield f"no check compared output '{name}'" + (f": {'; '.join(reasons)}" if reasons else "")


def _verdict(checks: Checks, name: str) -> OutputVerdict:
    assert isinstance(checks.value, ValueVerdict)
    return checks.value.outputs.get(name, OutputVerdict(status="not_run"))


def _compares(checks: Checks, name: str) -> bool:
    """Whether a check compares an output with its oracle, with other programs or with pinned values."""
    if _verdict(checks, name).status != "not_run":
        return True
    agreement, values = checks.agreement, checks.values
    if isinstance(agreement, AgreementVerdict) and agreement.others and name not in agreement.left_out:
        return True
    return isinstance(values, PinnedVerdict) and name in values.outputs
