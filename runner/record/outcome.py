"""A record in; how each of its programs ended, as part of its run, and why, out."""

from __future__ import annotations

from collections.abc import Iterator

from runner.record.model import STATUSES, Record, Status
from runner.record.record import of_checks, worst
from runner.record.verdicts import Checks, FileChecks, ValueVerdict, Verdict

NO_REASON = "no reason was recorded"
"""The message of what did not pass where the record does not say why."""


def of_run(record: Record) -> tuple[Status, str | None]:
    """How a run ended apart from its programs, and why: what is wrong with the file, or what ended the run.

    A program is no better than that: where `graph` and `per_device` differ, nobody knows which of the two is meant.
    """
    programs: list[Status] = [program.status for program in record.programs.values()]
    own = worst([of_checks(record.checks), *([record.status] if record.error else [])])
    if _rank(record.status) > _rank(worst([own, *programs])):
        # Whatever made it so, it is none of the programs.
        own = record.status
    if own == "passed":
        return own, record.error or record.refused
    reasons = [*([record.error] if record.error else []), *_findings(record.checks)]
    return own, "\n".join(reasons) or NO_REASON


def of_program(record: Record, name: str) -> tuple[Status, str | None]:
    """The worse of how a program and its run ended, with all that is to be said of it; None where both passed."""
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
    """The name, the status and the first reason of each check that has something to say."""
    for name, check in checks.named():
        if check.status not in ("passed", "not_run"):
            yield f"{name} {check.status}: {_reason(check)}"


def _reason(check: Verdict) -> str:
    """The first of the reasons of a check: its own, or that of the first output that is as bad."""
    outputs = check.outputs if isinstance(check, ValueVerdict) else {}
    of_outputs = (f"{name}: {output.reason}" for name, output in outputs.items() if output.reason)
    off = (
        f"{name} differs at {output.wrong} of {output.of} elements"
        for name, output in (check.compared.items() if isinstance(check, ValueVerdict) else ())
        if output.wrong
    )
    return next(filter(None, [check.reason, *check.diagnosis[:1], *check.details[:1], *off, *of_outputs]), NO_REASON)
