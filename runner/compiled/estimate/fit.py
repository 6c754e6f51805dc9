"""Fits the numbers of a `conf/hardware` file to measured times of collectives, copies and products.

The columns are those of nccl-tests: `algbw` is size over time, and `busbw` the bandwidth of each link, whatever the
number of devices. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from runner.base.lazy import dataclass
from runner.graph.sharding import ring
from runner.link.measures import MeasuredRun

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Fitted:
    """The fitted model of one of the measured devices; bandwidths in bytes per second, `latency` in seconds.

    - `bandwidth`, `latency`: of the links; null of a single device, which has nobody to communicate with.
    """

    device: str
    devices: int
    flops: dict[str, float]
    memory_bandwidth: float
    bandwidth: float | None
    latency: float | None
    dispatch: float


def fit(measures: Sequence[MeasuredRun]) -> Fitted:
    """Fit bandwidths to the largest sizes and the latency to the smallest, each the median over kinds of collectives.

    The dispatch time, that of an empty program, is subtracted, since no estimate includes it.
    """
    first = measures[0]
    (dispatch,) = (measured.seconds for measured in measures if measured.kind == "dispatch")
    collectives = [measured for measured in measures if measured.kind in KINDS]
    sizes = [measured.bytes for measured in collectives]
    largest, smallest = max(sizes, default=0), min(sizes, default=0)
    rates = [busbw(_started(measured, dispatch)) for measured in collectives if measured.bytes > largest / 2]
    waits = [
        max(0.0, measured.seconds - dispatch) / (2 if measured.kind == "all-reduce" else 1)
        for measured in collectives
        if measured.bytes < 2 * smallest
    ]
    (copy,) = (algbw(_started(measured, dispatch)) for measured in measures if measured.kind == "copy")
    return Fitted(
        device=first.device,
        devices=first.devices,
        flops={
            measured.dtype: algbw(_started(measured, dispatch)) for measured in measures if measured.kind == "product"
        },
        memory_bandwidth=copy,
        bandwidth=statistics.median(rates) if collectives else None,
        latency=statistics.median(waits) if collectives else None,
        dispatch=dispatch,
    )


def _started(measured: MeasuredRun, dispatch: float) -> MeasuredRun:
    """A measurement without the dispatch time, but at least half of the measured time."""
    return replace(measured, seconds=max(measured.seconds - dispatch, measured.seconds / 2))


def algbw(measured: MeasuredRun) -> float:
    """The bytes per second of a measurement."""
    return measured.bytes / measured.seconds


def busbw(measured: MeasuredRun) -> float:
    """The bytes per second over each link."""
    return algbw(measured) * ring.bus_factor(measured.kind, measured.devices)


def document(fitted: Fitted, name: str, when: str, versions: str) -> str:
    """The text of the `conf/hardware` file."""
    flops = ", ".join(f"{dtype}: {rate:.2e}" for dtype, rate in fitted.flops.items())
    lines = [
        f"# {fitted.devices} × {fitted.device}, measured {when} ({versions}) by python -m runner measure {name}.",
        f"# Each time is without the {fitted.dispatch * 1e6:.0f} µs that an empty program takes.",
        f"name: {name}",
        f"flops: {{{flops}}}",
        f"memory: {{bandwidth: {fitted.memory_bandwidth:.2e}}}",
    ]
    if fitted.bandwidth is None or fitted.latency is None:
        lines.append("# One device has no links that could be measured.")
    else:
        lines += [
            "# Collectives: bandwidth at the largest size, latency that of the smallest.",
            f"switch: {{devices: {fitted.devices}, bandwidth: {fitted.bandwidth:.2e}, latency: {fitted.latency:.2e}}}",
        ]
    return "\n".join(lines) + "\n"
