"""Words the outcome of a record in one line: what failed first, then how many programs passed.

The terminal, the page, a notebook and `repr` all take it from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runner.link.events import Devices
from runner.reports.record import outcome
from runner.reports.record.model import Record
from runner.reports.show.status import FAULTS


class Fault(NamedTuple):
    """Something apart from the programs that did not pass.

    - `name`: the check, or `the run`; `phrase`: what it did, `failed`; `reason`: the first of its reasons.
    """

    status: str
    name: str
    phrase: str
    reason: str


def faults(record: Record) -> list[Fault]:
    """Return what did not pass apart from the programs: the end of a run that ended early, then checks of the file."""
    ended: list[Fault] = []
    if record.error and record.programs:
        ended.append(Fault(record.status, "the run", "ended early", record.error))
    return ended + [
        Fault(check.status, name, FAULTS[check.status], next(iter(check.lines()), outcome.NO_REASON))
        for name, check in record.checks.named()
        if check.status in FAULTS
    ]


def passed(record: Record) -> int:
    """Return the number of programs that passed."""
    return sum(program.status == "passed" for program in record.programs.values())


def only_compiled(record: Record) -> bool:
    """Return whether the programs were compiled for absent hardware, and their values were verified nowhere."""
    return record.target is not None and bool(record.target.topology) and record.verification is None


def line(record: Record, after: str = ": ") -> str:
    """Return the outcome: `failed: sections failed, 2 of 2 programs passed`; `after` follows the status."""
    parts = ", ".join(_parts(record))
    return f"{record.status}{after}{parts}" if parts else record.status


def _parts(record: Record) -> Iterator[str]:
    for fault in faults(record):
        yield f"{fault.name} {fault.phrase}"
    if record.programs:
        done = "compiled, values not run" if only_compiled(record) else "passed"
        yield f"{passed(record)} of {len(record.programs)} programs {done}"
    if known := sum(program.status == "known" for program in record.programs.values()):
        yield f"{known} {'is' if known == 1 else 'are'} wrong as expect.wrong says"


def devices(target: Devices) -> str:
    """Return the devices of a run in words: `4 simulated cpu devices`, `8 TPU v5 lite devices`."""
    simulated = "simulated " if target.platform == "cpu" else ""
    return f"{target.devices} {simulated}{target.kind or target.platform} device{'s' if target.devices != 1 else ''}"
