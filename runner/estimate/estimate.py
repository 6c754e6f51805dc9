"""What a program computes, moves and communicates, and hardware, in; the least time that one run takes there, out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runner import dtypes, executions
from runner.estimate.links import Coordinates, Links, Taken
from runner.estimate.model import CollectiveTime, Estimate, LineTime
from runner.evidence.model import Collective
from runner.evidence.work import IN_BRANCHES, Line, Work
from runner.executions import Range
from runner.experiment.hardware import Hardware
from runner.experiment.model import Experiment
from runner.layout import Mesh
from runner.sharding.ring import RAGGED
from runner.words import time_text

_GROUPS = 64
"""Of so many groups each is looked at; those of more are alike."""

_PAIRED = ("collective-permute", "send", "recv")
"""Collectives whose groups are pairs: who sends, and who gets it."""


def estimate(
    hardware: Hardware,
    mesh: Mesh,
    work: Work,
    collectives: Sequence[Collective] | None,
    *,
    coordinates: Sequence[Coordinates] | None = None,
    needed_bytes: int | None = None,
    said: Iterable[str] = (),
) -> Estimate:
    """The least time of one run on one device.

    `coordinates` are where the devices of the mesh are, where that is known. `needed_bytes` is the memory that a device
    needs. `said` are sentences on what the module does not tell.
    """
    unknown = list(dict.fromkeys((*said, *work.unknown)))
    lines = [_line(hardware, line, unknown) for line in work.lines]
    links = Links(hardware, mesh, coordinates)
    times = {line.nodes[0]: line.seconds or 0.0 for line in lines if len(line.nodes) == 1}
    taken = [_collective(links, mesh, one, times, unknown) for one in collectives or ()]
    if collectives is None:
        unknown.append("what it communicates could not be read")
    compute = sum(line.seconds or 0.0 for line in lines)
    communication = sum(one.seconds or 0.0 for one in taken)
    hidden = min(sum(one.hidden for one in taken), compute)
    return Estimate(
        hardware=hardware.name,
        seconds=compute + communication - hidden,
        compute=compute,
        communication=communication,
        hidden=hidden,
        overlapped=max(compute, communication),
        bottleneck=_bottleneck(lines, taken, compute + communication - hidden),
        fits=None if needed_bytes is None or hardware.memory_bytes is None else needed_bytes <= hardware.memory_bytes,
        lines=lines,
        collectives=taken,
        unknown=list(dict.fromkeys(unknown)),
    )


def doubts(experiment: Experiment) -> list[str]:
    """Why the times are not those of the hardware's own program: another compiler made what is counted."""
    found: list[str] = []
    if experiment.target.topology is None and experiment.target.platform == "cpu":
        found.append("compiled for CPUs: on this hardware the compiler may fuse, merge and overlap otherwise")
        kinds = [dtypes.dtype(array.dtype) for array in experiment.arrays]
        if any(kind.kind == "float" and kind.numpy.itemsize < 4 for kind in kinds):
            found.append("compiled for CPUs, which multiply and send narrow floats as float32")
    return found


def _line(hardware: Hardware, line: Line, unknown: list[str]) -> LineTime:
    computing: float | None = 0.0
    for (dtype, precision), flops in line.flops.items():
        peak = hardware.peak(dtype, precision)
        if peak is None:
            unknown.append(f"{hardware.name} does not say how fast it multiplies {dtype}")
            computing = None
            break
        computing += flops / peak
    moving = None
    if hardware.memory_bandwidth is None:
        unknown.append(f"{hardware.name} does not say how fast its memory is")
    else:
        moving = line.bytes / hardware.memory_bandwidth
    known = [(seconds, bound) for seconds, bound in ((computing, "flops"), (moving, "memory")) if seconds is not None]
    seconds, bound = max(known, default=(None, None), key=lambda one: one[0] or 0.0)
    return LineTime(
        nodes=list(line.nodes),
        gradient=line.gradient,
        flops=sum(line.flops.values()),
        bytes=line.bytes,
        seconds=seconds,
        bound=None if not seconds else "flops" if bound == "flops" else "memory",
    )


def _collective(
    links: Links, mesh: Mesh, one: Collective, times: dict[str, float], unknown: list[str]
) -> CollectiveTime:
    taken = _taken(links, mesh, one)
    if taken is None or taken.seconds == float("inf"):
        unknown.append(f"what {one.instruction} takes is not known" + (f": {taken.over}" if taken else ""))
        taken = None
    elif one.kind == RAGGED:
        unknown.append(f"how much {one.instruction} sends is known when it runs: it takes its latency at least")
    elif one.count is None:
        unknown.append(f"how often {one.instruction} runs is not known: it counts once")
    elif isinstance(one.count, Range):
        unknown.append(IN_BRANCHES)
    seconds = None if taken is None else taken.seconds * (1 if one.count is None else executions.ends(one.count)[1])
    meanwhile = sum(times.get(node, 0.0) for node in one.overlapped or ())
    return CollectiveTime(
        instruction=one.instruction,
        kind=one.kind,
        nodes=one.nodes,
        axes=one.axes,
        count=one.count,
        seconds=seconds,
        bound=taken.bound if taken and taken.seconds else None,
        over=taken.over if taken and taken.seconds else None,
        hidden=min(seconds or 0.0, meanwhile),
    )


def _taken(links: Links, mesh: Mesh, one: Collective) -> Taken | None:
    if one.bytes_in is None and one.bytes_out is None:
        return None
    taken, given = one.bytes_in or one.bytes_out or 0, one.bytes_out or one.bytes_in or 0
    groups = one.groups
    if one.kind in _PAIRED:
        if groups is None:
            # Of many devices no pair is listed; where all send to their neighbours along an axis, one hop is the least.
            members = mesh.groups(one.axes or ())[0]
            groups = [[members[0], members[min(1, len(members) - 1)]]]
        return links.permute([(pair[0], pair[1]) for pair in groups], taken)
    if groups is None:
        groups = mesh.groups(one.axes or ())
    found = [links.time(one.kind, group, taken, given) for group in groups[:_GROUPS]]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.seconds) if len(known) == len(found) and known else None


def _bottleneck(lines: Sequence[LineTime], collectives: Sequence[CollectiveTime], whole: float) -> str | None:
    """What takes longest: `w2's all-gather over data: 377 µs of 520 µs`."""
    parts = [(line.seconds or 0.0, _named(line.nodes, line.gradient)) for line in lines]
    for one in collectives:
        over = f" over {', '.join(one.axes)}" if one.axes else ""
        of = f" of {_named(one.nodes, False)}" if one.nodes else ""
        parts.append(((one.seconds or 0.0) - one.hidden, f"the {one.kind}{of}{over}"))
    longest, what = max(parts, default=(0.0, ""), key=lambda part: part[0])
    return f"{what}: {time_text(longest)} of {time_text(whole)}" if longest else None


def _named(nodes: Sequence[str], gradient: bool) -> str:
    return (", ".join(nodes) or "what belongs to no line") + (" (backward)" if gradient else "")
