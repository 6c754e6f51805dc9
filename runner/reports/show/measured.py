"""Says what devices did in a profile, and makes the rows of measured collectives."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from runner.base.grouping import by_key
from runner.base.words import time_text
from runner.compiled.evidence.model import Profile, ProfiledCollective, ProfiledDevice
from runner.compiled.explanation.model import Explanation, PlacedCollective

COLLECTIVES = ("collective", "line", "over", "a run", "exposed", "at least", "reached", "busbw", "skew")
DEVICES = ("device", "a run", "computes", "exposed", "hidden", "idle", "between runs")

_UNEVEN = 0.1
"""The share by which one device computes longer than another before a sentence says so."""


def head(profile: Profile) -> list[str]:
    """What a device does in a run, by the median over the devices; which devices compute longest and shortest."""
    devices = profile.by_device
    if not devices:
        return ["measured: the profile does not tell the runs apart"]
    runs = f"{profile.runs} run{'s' if profile.runs != 1 else ''}"
    there = f"{len(devices)} device{'s' if len(devices) != 1 else ''}"
    parts = [
        f"computes {_median(devices, lambda d: d.computing)}",
        f"communicates {_median(devices, lambda d: d.exposed)} more",
        f"hides {_median(devices, lambda d: d.hidden)} of communication behind computation",
        f"is idle {_median(devices, lambda d: d.idle)}",
    ]
    whole = _median(devices, lambda d: d.seconds)
    sentences = [f"measured: {runs} on {there}, {whole} a run: a device {', '.join(parts[:-1])} and {parts[-1]}"]
    gaps = [device.between for device in devices if device.between is not None]
    if gaps:
        sentences.append(
            f"between two runs {time_text(statistics.median(gaps))} pass in which a device does nothing of it"
        )
    longest, shortest = max(devices, key=lambda d: d.computing), min(devices, key=lambda d: d.computing)
    if longest.computing > (1 + _UNEVEN) * shortest.computing:
        sentences.append(
            f"device {longest.device} computes longest, {time_text(longest.computing)}; device {shortest.device} "
            f"shortest, {time_text(shortest.computing)}"
        )
    return sentences


def _median(devices: Sequence[ProfiledDevice], of: Callable[[ProfiledDevice], float]) -> str:
    return time_text(statistics.median(map(of, devices))) if any(map(of, devices)) else "0 s"


def devices(profile: Profile) -> list[tuple[str, ...]]:
    """The rows under `DEVICES`."""
    return [
        (
            str(device.device),
            *map(time_text, (device.seconds, device.computing, device.exposed, device.hidden, device.idle)),
            time_text(device.between),
        )
        for device in profile.by_device
    ]


def collectives(
    explanation: Explanation, named: Callable[[PlacedCollective], tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """The rows under `COLLECTIVES`, those with the most time first; alike ones share a row.

    - `named`: the first three cells of a collective, by which it is alike to others.
    """
    profile = explanation.profile
    if profile is None:
        return []
    measured = {entry.instruction: entry for entry in profile.collectives if entry.seconds is not None}
    least = explanation.estimate.collectives if explanation.estimate is not None else []
    expected = {entry.instruction: entry.seconds for entry in least}
    grouped = by_key((named(entry), entry) for entry in explanation.moving if entry.instruction in measured)
    rows = [
        (seconds, (*names, *_cells(entries, [measured[e.instruction] for e in entries], expected)))
        for names, entries in grouped.items()
        for seconds in [sum(_run(measured[entry.instruction]) for entry in entries)]
    ]
    return [row for _, row in sorted(rows, key=lambda row: -row[0])]


def _run(entry: ProfiledCollective) -> float:
    return (entry.seconds.median or 0.0) if entry.seconds is not None else 0.0


def _cells(
    entries: Sequence[PlacedCollective], times: Sequence[ProfiledCollective], expected: dict[str, float | None]
) -> tuple[str, ...]:
    """The measured cells of alike collectives."""
    exposed = sum((time.exposed.median or 0.0) for time in times if time.exposed is not None)
    least = [expected.get(entry.instruction) for entry in entries]
    known = [seconds for seconds in least if seconds is not None]
    # What the devices wait for each other is no matter of the links.
    moving = sum((time.shortest_s or 0.0) * (time.executions or 0) for time in times)
    sent = sum((entry.bytes_sent or 0) * (time.executions or 0) for entry, time in zip(entries, times, strict=True))
    skews = [time.skew_s for time in times if time.skew_s is not None]
    return (
        time_text(sum(map(_run, times))),
        time_text(exposed) if exposed else "0 s",
        time_text(sum(known)) if len(known) == len(least) else "–",
        f"{min(sum(known) / moving, 9.99):.0%}" if len(known) == len(least) and moving else "–",
        f"{sent / moving / 1e9:.3g} GB/s" if sent and moving else "–",
        time_text(max(skews)) if skews else "–",
    )
