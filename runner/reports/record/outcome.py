"""Finds the outcome of each program of a record, as part of its run, and the reason."""

from __future__ import annotations

from collections.abc import Iterator

from runner.reports.record.model import STATUSES, Record, Status
from runner.reports.record.record import of_checks, worst
from runner.reports.record.verdicts import Checks, FileChecks, ValueVerdict, Verdict

NO_REASON = "no reason was recorded"
"""The message for a part that did not pass if the record gives no reason."""


def of_run(record: Record) -> tuple[Status, str | None]:
    """Return the status and reason of a run apart from its programs: a fault in the file, or how the run ended.

    No program is better than its run: if `graph` and `per_device` differ, either of the two may be the intended one.
    """
    programs: list[Status] = [program.status for program in record.programs.values()]
    own = worst([of_checks(record.checks), *([record.status] if record.error else [])])
    if _rank(record.status) > _rank(worst([own, *programs])):
        # The cause is not one of the programs.
        own = record.status
    if own == "passed":
        return own, record.error or record.refused
    reasons = [*([record.error] if record.error else []), *_findings(record.checks)]
    return own, "\n".join(reasons) or NO_REASON


def of_program(record: Record, name: str) -> tuple[Status, str | None]:
    """Return the worse status of a program and its run, and all reasons; None if both passed."""
    program = record.programs[name]
    run, of_the_run = of_run(record)
    status = worst([run, program.status])
    if status == "passed":
        return status, None
    why = [
        *([program.error] if program.error else []),
        *_findings(program.checks),
        *([of_the_run] if of_the_run else []),
    ]
    return status, "\n".join(why) or NO_REASON


def _rank(status: Status) -> int:
    return list(STATUSES).index(status)


def _findings(checks: Checks | FileChecks) -> Iterator[str]:
    """Yield `NAME STATUS: REASON` for each check that did not pass."""
    for name, check in checks.named():
        if check.status not in ("passed", "not_run"):
            yield f"{name} {check.status}: {_reason(check)}"


def _reason(check: Verdict) -> str:
    """Return the first reason of a check: its own, or that of the first output with the check's status."""
    outputs = check.outputs if isinstance(check, ValueVerdict) else {}
    of_outputs = (f"{name}: {output.reason}" for name, output in outputs.items() if output.reason)
    off = (
        f"{name} differs at {output.wrong} of {output.of} elements"
        for name, output in (check.compared.items() if isinstance(check, ValueVerdict) else ())
        if output.wrong
    )
    return next(filter(None, [check.reason, *check.diagnosis[:1], *check.details[:1], *off, *of_outputs]), NO_REASON)
