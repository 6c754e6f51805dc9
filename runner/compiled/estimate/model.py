"""The estimate of one program, as in the record. All times are seconds on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from runner.base.executions import Count
from runner.base.lazy import dataclass
from runner.base.words import time_text

Bound: TypeAlias = Literal["flops", "memory", "bandwidth", "latency"]
Roof: TypeAlias = Literal["flops", "memory", "links"]


@dataclass(frozen=True, kw_only=True)
class ComputedLine:
    """The products and the memory traffic of one line on one device, over all executions.

    - `nodes`: the lines; several if one instruction serves them all, none if the module does not say.
    """

    nodes: list[str]
    gradient: bool
    flops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class LineTime(ComputedLine):
    """The computation of one line.

    - `flops`, `bytes`: over all executions.
    - `seconds`: the longer of the times for both, which `bound` names; null where the hardware does not specify it.
    """

    seconds: float | None
    bound: Bound | None


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """The time of a collective over the links of its mesh axes.

    - `seconds`: over all `count` executions, the largest number of a range; null where it is not known.
    - `bound`: whether bandwidth or latency bounds it, `over` which links.
    - `hidden`: the part that the schedule overlaps with computation.
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
    """A lower bound on the time of one run on `hardware`, for a program `compiled_for` this or something else.

    - `compute`, `communication`: the times of all lines and of all collectives; `seconds`: their sum without `hidden`.
    - `overlapped`: a lower bound if all communication were overlapped with computation.
    - `bottleneck`: the longest part, in words; `unknown`: what is not included.
    - `fits`: whether the device has the memory that the program needs; null where either is not known.
    - `flops`, `bytes`: of products, and through the memory, on one device; `intensity`: their ratio.
    - `roof`: the longest of multiplication, memory traffic and communication, each taken alone.
    - `mfu`: the share of `seconds` that multiplication alone takes, an upper bound. Both are null where the hardware
      does not specify its speed.
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
    """The longest part, such as `w2's all-gather over data: 377 µs of 520 µs`; None if nothing takes time."""
    parts = [(line.seconds or 0.0, named(line.nodes, line.gradient)) for line in lines]
    for collective in collectives:
        over = f" over {', '.join(collective.axes)}" if collective.axes else ""
        of = f" of {named(collective.nodes)}" if collective.nodes else ""
        parts.append(((collective.seconds or 0.0) - collective.hidden, f"the {collective.kind}{of}{over}"))
    longest, what = max(parts, default=(0.0, ""), key=lambda part: part[0])
    return f"{what}: {time_text(longest)} of {time_text(whole)}" if longest else None


def named(nodes: Sequence[str], gradient: bool = False) -> str:
    """The lines that something belongs to, in words: `w1, w2 (backward)`."""
    return (", ".join(nodes) or "what belongs to no line") + (" (backward)" if gradient else "")
