"""`agreement`: compares the outputs of the programs with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runner.base.words import listed
from runner.checks.compare import NOTHING, SAME, Alternatives, Difference, Tolerance, carried, difference
from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs
from runner.checks.reference import magnitude
from runner.experiment.model import Section
from runner.experiment.program import Program
from runner.link.target import Output, ProgramRun, Ranges
from runner.reports.record.verdicts import AgreementVerdict, LeftOut, NotRun


def check(
    context: Context, run: ProgramRun, others: Sequence[ProgramRun], *, alike: bool = True
) -> AgreementVerdict | NotRun:
    """Compare a program's outputs with those of every other program that ran.

    Outputs that are known to be wrong are left out, and those whose `value` failed in the other program alone. `alike`
    is whether `graph` and `per_device` compute the same; if not, only programs of the same section are compared.
    """
    comparable = [peer for peer in others if alike or peer.program.section == run.program.section]
    if not comparable:
        reason = (
            "no other program ran"
            if not others
            else "the other programs are written from the other section, which computes something else"
        )
        return NotRun(reason=reason)
    left_out = _left_out(context, run, comparable)
    apart: list[str] = []
    wrong: dict[str, list[Program]] = {}
    largest, compared = 0.0, False
    for name, output in run.outputs.items():
        if name in context.unruled:
            continue
        for peer in comparable:
            peer_output, known = peer.outputs.get(name), _sections(context, name, run, peer)
            # An output without an oracle has no tolerance.
            if peer_output is None or len(known) < 2 or {run.program, peer.program} & {*left_out.get(name, ())}:
                continue
            if (peer.program, name) in context.failed and (run.program, name) not in context.failed:
                wrong.setdefault(name, []).append(peer.program)
                continue
            compared = True
            if output.dtype != peer_output.dtype:
                apart.append(f"{name} is {output.dtype}, but {peer_output.dtype} in {peer.program}")
                continue
            both = {(run.program, name), (peer.program, name)}
            if both & context.proved and not both & context.failed:
                # Both are right, and the tolerance does not say how far apart.
                continue
            measured = _apart(context, name, output, peer_output, known)
            largest = max(largest, measured.max_abs)
            if measured.wrong:
                apart.append(f"{name} differs from {peer.program} at {measured.wrong} of {measured.size} elements")
    if not compared:
        if wrong:
            return NotRun(reason=f"{_of_programs(wrong)}: the value is wrong there")
        reason = _of_programs(left_out)
        if not reason:
            return NotRun(reason="no oracle computes any of their outputs")
        return LeftOut(reason=f"{reason}: known to be wrong (expect.wrong)", left_out=left_out)
    return AgreementVerdict(
        status="failed" if apart else "passed",
        reason="; ".join(apart) or None,
        max_abs_error=largest,
        others=[peer.program for peer in comparable],
        left_out=left_out,
    )


def _of_programs(outputs: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} of {listed(programs)}" for name, programs in outputs.items())


def _left_out(context: Context, run: ProgramRun, runs: list[ProgramRun]) -> dict[str, list[str]]:
    """For each output, the programs (this one included) for which it is known to be wrong."""
    known = {tried.program.value: context.known_wrong(tried.program) for tried in (run, *runs)}
    wrong = {name: [program for program, outputs in known.items() if name in outputs] for name in run.outputs}
    return {name: programs for name, programs in wrong.items() if programs}


def _sections(context: Context, name: str, *runs: ProgramRun) -> list[Section]:
    """The section whose oracle each program's output is compared with."""
    return [section for run in runs if (section := context.knows(run.program, name)) is not None]


def _apart(context: Context, name: str, output: Output, peer_output: Output, sections: list[Section]) -> Difference:
    """The difference of two programs' outputs; each may be a tolerance from its section's oracle."""
    allowed = sum((context.tolerance(section, name) for section in sections), NOTHING)
    if len(set(sections)) > 1 and name in context.experiment.approximate:
        largest = magnitude(context.oracle(sections[0]).values[name])
        allowed += Tolerance(0.0, context.experiment.approximate[name] * largest)
    total = SAME
    for ranges, part in output.parts.items():
        block = peer_output.block(ranges)
        beside = _beside(context, name, set(sections), ranges, block)
        total = total.joined(difference(part, block, output.dtype, allowed, beside))
    return total


def _beside(
    context: Context, name: str, sections: set[Section], ranges: Ranges, block: np.ndarray
) -> Alternatives | None:
    """The other values that are possible in `ranges`, where the two programs decided differently or one overflowed."""
    at = tuple(slice(start, stop) for start, stop in ranges)
    low = high = block
    overflows = np.zeros(block.shape, bool)
    open_, measured = False, True
    for section in sections:
        rounding = context.rounding(section, name)
        if rounding.low is not None and rounding.high is not None:
            least, most = (context.assembled(section, name, bound)[at] for bound in (rounding.low, rounding.high))
            dtype = context.outputs[name][1]
            low, high, open_ = carried(low, most, least, dtype), carried(high, least, most, dtype), True
        if rounding.overflows is not None:
            overflows, open_ = overflows | context.assembled(section, name, rounding.overflows)[at], True
            measured = measured and rounding.elements > 0
    return Alternatives(np.asarray(low), np.asarray(high), overflows, measured=measured) if open_ else None


KINDS = (
    CheckKind(
        "agreement", AgreementVerdict | LeftOut | NotRun, Needs.OTHERS,
        lambda case: check(case.context, case.run, case.others, alike=case.alike), order=50,
        says="the programs give the same results. If `sections` failed, only programs of the same section are "
        "compared. A program that passed `value` is compared only with others that passed it",
    ),
)  # fmt: skip
