"""Makes a short table of estimates, and notes on what it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from runner.base import executions
from runner.base.grouping import by_key
from runner.base.words import bytes_text, flops_text, share_text, time_text
from runner.compiled.estimate.model import CollectiveTime, Estimate, LineTime, named
from runner.reports.show.table import Table, Texts

HEAD = (
    "program", "at least", "computes", "communicates", "hidden", "flops/byte", "roof", "MFU at most", "most of it",
)  # fmt: skip

_MOST = 3
"""The most sentences about what an estimate omits."""


def head(estimates: Mapping[str, Estimate]) -> list[str]:
    """Return the lines above the table: the hardware and the target."""
    first = next(iter(estimates.values()))
    return [f"estimate: the least time of a run on {where(first)}; hidden: communication during computation"]


def where(estimate: Estimate) -> str:
    """Return the hardware and the target, such as `TPU v5e, compiled for v5e:4x4`."""
    of = f", compiled for {estimate.compiled_for}" if estimate.compiled_for else ""
    return f"{estimate.hardware}{of}"


def rows(estimates: Mapping[str, Estimate]) -> list[tuple[str, ...]]:
    """Return one row for each program, the fastest first."""
    return [
        (
            program,
            time_text(estimate.seconds),
            *(time_text(part or None) for part in (estimate.compute, estimate.communication, estimate.hidden)),
            "–" if estimate.intensity is None else f"{estimate.intensity:.3g}",
            estimate.roof or "–",
            "–" if estimate.mfu is None else share_text(estimate.mfu),
            estimate.bottleneck or "–",
        )
        for program, estimate in sorted(estimates.items(), key=lambda item: item[1].seconds)
    ]


def compared(estimates: Mapping[str, Estimate]) -> Texts:
    """Return the table of the programs; what takes longest stands under its row, and leaves the figures together."""
    shown = rows(estimates)
    return Table(HEAD[:-1], [row[:-1] for row in shown], beneath=[f"{HEAD[-1]}: {row[-1]}" for row in shown])


def beneath(estimates: Mapping[str, Estimate], *, complete: bool) -> list[str]:
    """Return notes: programs that exceed the memory, what the estimates omit, and if `complete` each line's time."""
    lines = [f"{program} does not fit into the memory" for program, entry in estimates.items() if entry.fits is False]
    sentences = by_key((sentence, program) for program, estimate in estimates.items() for sentence in estimate.unknown)
    shown = list(sentences.items())[: None if complete else _MOST]
    for sentence, programs in shown:
        lines.append(sentence if len(programs) == len(estimates) else f"{', '.join(programs)}: {sentence}")
    if len(shown) < len(sentences):
        lines.append(f"{len(sentences) - len(shown)} more sentences are in result.json")
    if complete:
        for program, estimate in estimates.items():
            lines += [f"{program}: {_line(line)}" for line in estimate.lines if line.seconds]
            lines += [f"{program}: {_collective(entry)}" for entry in estimate.collectives if entry.seconds]
    return lines


def _line(line: LineTime) -> str:
    did = f"{flops_text(line.flops)} and {bytes_text(round(line.bytes))}"
    return f"{named(line.nodes)}: {time_text(line.seconds)}, {did}, bound by {line.bound}"


def _collective(entry: CollectiveTime) -> str:
    of = f" of {', '.join(entry.nodes)}" if entry.nodes else ""
    times = "" if entry.count in (None, 0, 1) else f" {executions.text(entry.count)} times"
    return f"{entry.kind}{of}: {time_text(entry.seconds)}{times} over {entry.over}, bound by {entry.bound}"
