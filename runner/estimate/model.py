"""The estimate of one program, as the record has it. All times are seconds, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from runner.executions import Count
from runner.words import time_text

Bound: TypeAlias = Literal["flops", "memory", "bandwidth", "latency"]
Roof: TypeAlias = Literal["flops", "memory", "links"]


@dataclass(frozen=True, kw_only=True)
class LineTime:
    """What a line computes itself.

    - `flops`, `bytes`: of all executions; `seconds`: the longer of what both take, which `bound` names.
    - `seconds` is null where the hardware does not say what it takes.
    """

    nodes: list[str]
    gradient: bool
    flops: float
    bytes: float
    seconds: float | None
    bound: Bound | None


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """What a collective takes over the links of its mesh axes.

    - `seconds`: of all `count` executions, of a range of the most; null where that is not known.
    - `bound`: what decides, `over` which links.
    - `hidden`: how much of that the schedule hides behind what is computed meanwhile.
    """

    instruction: str
    kind: str
    nodes: list[str]
    axes: list[str] | None
    count: Count
    seconds: float | None
    bound: Bound | None
    over: str | None
    hidden: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A lower bound of the time of one run on the `hardware`, of a program `compiled_for` that or for something else.

    - `compute`, `communication`: what the lines and the collectives take; `seconds`: both, without what is `hidden`.
    - `overlapped`: what the run takes at least if everything that communicates were hidden.
    - `bottleneck`: what takes longest, in words; `unknown`: what is not in it.
    - `fits`: whether the memory that a device needs is there; null where one of both is not known.
    - `flops`, `bytes`: of the products, and through the memory, on one device; `intensity`: their ratio.
    - `roof`: which of multiplying, memory and links takes longest if all else were free; `mfu`: the share of `seconds`
      that multiplying alone takes, at most what a run reaches. Null where the hardware does not say how fast it is.
    """

    hardware: str
    compiled_for: str | None = None
    seconds: float
    compute: float
    communication: float
    hidden: float
    overlapped: float
    bottleneck: str | None
    fits: bool | None
    flops: float | None = None
    bytes: float | None = None
    intensity: float | None = None
    roof: Roof | None = None
    mfu: float | None = None
    lines: list[LineTime]
    collectives: list[CollectiveTime]
    unknown: list[str]


def bottleneck(lines: Sequence[LineTime], collectives: Sequence[CollectiveTime], whole: float) -> str | None:
    """What takes longest: `w2's all-gather over data: 377 µs of 520 µs`."""
    parts = [(line.seconds or 0.0, _named(line.nodes, line.gradient)) for line in lines]
    for collective in collectives:
        over = f" over {', '.join(collective.axes)}" if collective.axes else ""
        of = f" of {_named(collective.nodes, False)}" if collective.nodes else ""
        parts.append(((collective.seconds or 0.0) - collective.hidden, f"the {collective.kind}{of}{over}"))
    longest, what = max(parts, default=(0.0, ""), key=lambda part: part[0])
    return f"{what}: {time_text(longest)} of {time_text(whole)}" if longest else None


def _named(nodes: Sequence[str], gradient: bool) -> str:
    return (", ".join(nodes) or "what belongs to no line") + (" (backward)" if gradient else "")
