"""Compares the collectives that are asked for, planned or compiled with what `expect` says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.base import executions
from runner.base.executions import Count, InBranch, Range
from runner.base.lazy import dataclass
from runner.base.words import bytes_text
from runner.compiled.evidence import words
from runner.compiled.evidence.model import Collective
from runner.experiment.expect import Expectations
from runner.experiment.forms import KINDS
from runner.experiment.program import Program
from runner.graph.sharding.propagation import AskedCollective, PlannedCollective
from runner.reports.record.model import CompiledProgram
from runner.reports.record.verdicts import Judged, NotRun, Verdict

OF = ("compiled", "lowered", "planned")
"""What an expectation can be about, by the prefix of its key; without a prefix, the compiled module."""


@dataclass(frozen=True, kw_only=True)
class CountsVerdict(Judged):
    """An expectation of collectives: how often each kind was `found` to run."""

    found: dict[str, int | Range] | None = None


@dataclass(frozen=True, kw_only=True)
class LimitVerdict(Judged):
    """An expectation of bytes: how many were `found`, and how many are `allowed`."""

    found: int | None = None
    allowed: int | None = None


@dataclass(frozen=True)
class _Communicated:
    """A collective: its kind, how often it runs, the bytes that a device sends for it, its name and its description."""

    kind: str
    count: Count
    branches: Sequence[InBranch]
    sent: int | None
    name: str
    text: str
    why: str | None = None
    alone: bool = False
    """Whether all its axes have size 1, so that it moves nothing and is not counted."""


@dataclass(frozen=True)
class _Listed:
    """Collectives, the words for a missing one (`no psum was compiled`), and why the list may be incomplete."""

    collectives: Sequence[_Communicated]
    participle: str
    unknown: Sequence[str] = ()


def counts(expected: Expectations, program: Program, compiled: CompiledProgram, of: str, *, none: bool) -> Verdict:
    """Check that there are as many collectives of each kind as expected; with `none`, that there are none."""
    wanted: Mapping[str, int | Range] = {} if none else getattr(expected, _name(of, "collectives"))
    listed = _listed(program, compiled, of)
    if isinstance(listed, Verdict):
        return _as(CountsVerdict, listed)
    counted = [collective for collective in listed.collectives if not collective.alone]
    unknown = [collective for collective in counted if collective.count is None]
    if unknown:
        names = ", ".join(collective.name for collective in unknown)
        reason = f"expected {_kinds(wanted)}; how often these run is not known: {names}"
        return CountsVerdict(status="failed", reason=reason)
    number = executions.by_kind((collective.kind, collective.count, collective.branches) for collective in counted)
    wrong = [kind for kind in KINDS if not _within(number.get(kind, 0), wanted.get(kind, 0))]
    if not wrong:
        return CountsVerdict(status="passed", found=number)
    shown = [
        text for collective in counted if collective.kind in wrong for text in (collective.text, collective.why) if text
    ]
    shown += [
        f"{collective.text}: it moves nothing, and does not count"
        for collective in listed.collectives
        if collective.alone
    ]
    missing = [f"no {kind} was {listed.participle}" for kind in wrong if not number.get(kind)]
    return CountsVerdict(
        status="failed",
        reason=f"expected {_kinds(wanted)}, found {_kinds(number)}",
        details=[*missing, *shown, *listed.unknown],
        found=number,
    )


def _within(number: int | Range, wanted: int | Range) -> bool:
    """Whether the number of executions is as expected in every branch."""
    (least, most), (low, high) = executions.ends(number), executions.ends(wanted)
    return low <= least and most <= high


def sent(expected: Expectations, program: Program, compiled: CompiledProgram, of: str) -> Verdict:
    """Check that a device sends no more bytes than expected."""
    limit = getattr(expected, _name(of, "max_bytes_per_device"))
    listed = _listed(program, compiled, of)
    if isinstance(listed, Verdict):
        return _as(LimitVerdict, listed)
    there = [collective for collective in listed.collectives if not collective.alone]
    for unknown, why in (
        (
            [collective for collective in there if collective.count is None],
            "these run an unknown number of times",
        ),
        ([collective for collective in there if collective.sent is None], "how much these send is not known"),
    ):
        if unknown:
            reason = f"the bytes sent cannot be added up: {why}"
            return LimitVerdict(status="failed", reason=reason, details=[_amount(collective) for collective in unknown])
    whole = executions.total((collective.count, collective.branches, collective.sent) for collective in there)
    total = executions.most(whole) or 0
    if total <= limit:
        return LimitVerdict(status="passed", found=total, allowed=limit)
    largest = sorted(there, key=lambda collective: -(executions.most(collective.count) or 0) * (collective.sent or 0))
    sends = "can send, where branches decide," if isinstance(whole, Range) else "sends"
    return LimitVerdict(
        status="failed",
        reason=f"each device {sends} {total} bytes for collectives, on a ring ({bytes_text(total)}), more than {limit}",
        details=[text for collective in largest[:4] for text in (_amount(collective), collective.why) if text],
        found=total,
        allowed=limit,
    )


def _amount(collective: _Communicated) -> str:
    return f"{words.often(collective.count)} × {collective.name}: a device sends {bytes_text(collective.sent)}"


def _name(of: str, name: str) -> str:
    return name if of == "compiled" else f"{of}_{name}"


def _as(kind: type[CountsVerdict] | type[LimitVerdict], verdict: Judged | NotRun) -> Verdict:
    """The same verdict as an instance of `kind`, where there is nothing to compare."""
    if isinstance(verdict, NotRun):
        return verdict
    return kind(status=verdict.status, reason=verdict.reason, details=verdict.details)


def _kinds(number: Mapping[str, int | Range]) -> str:
    parts = [f"{executions.text(number[kind])} {kind}" for kind in KINDS if number.get(kind)]
    return ", ".join(parts) or "no collectives"


def _entry(
    collective: Collective | AskedCollective | PlannedCollective, name: str, text: str, why: str | None = None
) -> _Communicated:
    sent, alone = collective.bytes_sent, collective.alone
    return _Communicated(collective.kind, collective.count, collective.branches, sent, name, text, why, alone)


def _listed(program: Program, compiled: CompiledProgram, of: str) -> _Listed | Judged | NotRun:
    """The collectives to compare, or a verdict if they are unknown. An expectation that cannot be checked fails."""
    if of == "compiled":
        if compiled.collectives is None:
            unread = compiled.collectives_unknown or ["the backend does not report the collectives"]
            return Judged(status="failed", reason=unread[0], details=unread[1:])
        listed = [
            _entry(
                collective,
                words.collective(collective),
                words.described(collective),
                collective.why and f"  why: {words.because(collective.why)}",
            )
            for collective in compiled.collectives
        ]
        return _Listed(listed, of, compiled.collectives_unknown)
    if of == "lowered" and program.whole:
        return NotRun(reason=f"{program} is written over whole arrays, and calls no collective")
    if compiled.lowered is None:
        return Judged(status="failed", reason="the program's own collectives are not known")
    asked = [
        _entry(collective, words.asked(collective), words.asked_at_length(collective))
        for collective in compiled.lowered
    ]
    if of == "lowered":
        return _Listed(asked, "asked for")
    plan = compiled.plan
    if plan is None or plan.collectives is None:
        missing = "there is no plan" if plan is None else plan.missing
        return Judged(status="failed", reason=missing)
    planned = [
        _entry(collective, words.planned(collective), words.planned_at_length(collective))
        for collective in plan.collectives
    ]
    return _Listed([*planned, *asked], of)
