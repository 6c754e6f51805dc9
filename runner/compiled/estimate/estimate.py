"""Bounds a program's time by its computation, memory traffic and collectives on given hardware."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from runner.base import dtypes, executions
from runner.base.executions import Range
from runner.base.layout import Mesh
from runner.compiled.estimate.links import GROUPS, Coordinates, Links, TransferTime
from runner.compiled.estimate.model import CollectiveTime, Estimate, LineTime, Roof, bottleneck
from runner.compiled.evidence.model import Collective
from runner.compiled.evidence.narrow import WIDE, NarrowFloats, share
from runner.compiled.evidence.work import IN_BRANCHES, LineWork, ModuleWork
from runner.experiment.hardware import Hardware
from runner.experiment.model import Experiment
from runner.graph.sharding.ring import RAGGED

_PAIRED = ("collective-permute", "send", "recv")
"""Collectives whose groups are pairs of sender and receiver."""


def estimate(
    hardware: Hardware,
    mesh: Mesh,
    work: ModuleWork,
    collectives: Sequence[Collective] | None,
    *,
    coordinates: Sequence[Coordinates] | None = None,
    needed_bytes: int | None = None,
    compiled_for: str | None = None,
    notes: Iterable[str] = (),
    narrow_lines: Mapping[str, NarrowFloats] = MappingProxyType({}),
) -> Estimate:
    """A lower bound on the time of one run on one device, for a program `compiled_for` this hardware or another.

    - `collectives`: None if they could not be read.
    - `coordinates`: the coordinates of the mesh's devices, if known.
    - `needed_bytes`: the memory that a device needs, in bytes.
    - `notes`: what the compiled module does not specify, in words.
    - `narrow_lines`: the lines whose floats have fewer bits in the file than in the module.
    """
    collectives = None if collectives is None else [_as_in_the_file(entry, narrow_lines) for entry in collectives]
    unknown = list(dict.fromkeys((*notes, *work.unknown)))
    lines = [_line(hardware, line, unknown) for line in work.lines]
    links = Links(hardware, mesh, coordinates)
    times = {line.nodes[0]: line.seconds or 0.0 for line in lines if len(line.nodes) == 1}
    taken = [_collective(links, mesh, collective, times, unknown) for collective in collectives or ()]
    if collectives is None:
        unknown.append("its collectives could not be read")
    multiplying = _multiplying(hardware, work)
    flops, size = sum(line.flops for line in lines), sum(line.bytes for line in lines) + work.ahead
    moving = None if hardware.memory_bandwidth is None else size / hardware.memory_bandwidth
    # Prefetches use the memory while lines are computed; the slower of both counts.
    compute = max(sum(line.seconds or 0.0 for line in lines), moving or 0.0)
    communication = sum(collective.seconds or 0.0 for collective in taken)
    hidden = min(sum(collective.hidden for collective in taken), compute)
    seconds = compute + communication - hidden
    return Estimate(
        hardware=hardware.name,
        compiled_for=compiled_for,
        seconds=seconds,
        compute=compute,
        communication=communication,
        hidden=hidden,
        overlapped=max(compute, communication),
        flops=flops,
        bytes=size,
        intensity=flops / size if size else None,
        roof=_roof(multiplying, moving, communication),
        mfu=multiplying / seconds if seconds and multiplying is not None else None,
        bottleneck=bottleneck(lines, taken, seconds),
        fits=None if needed_bytes is None or hardware.memory_bytes is None else needed_bytes <= hardware.memory_bytes,
        lines=lines,
        collectives=taken,
        unknown=list(dict.fromkeys(unknown)),
    )


def compiled_for(experiment: Experiment) -> str:
    """The name of the hardware that the programs were compiled for."""
    target = experiment.target
    if target.platform == "cpu":
        return "simulated CPUs"
    return f"the {target.platform.upper()}s here" if target.topology is None else target.topology.name


def doubts(experiment: Experiment) -> list[str]:
    """Reasons why the times may differ from the hardware's own: the program is compiled for something else."""
    reasons: list[str] = []
    target, hardware = experiment.target, experiment.hardware
    if target.platform == "cpu":
        reasons.append("compiled for CPUs: on this hardware the compiler may fuse, merge and overlap differently")
        kinds = [dtypes.dtype(array.dtype) for array in experiment.arrays]
        if any(kind.kind == "float" and kind.numpy.itemsize < 4 for kind in kinds):
            reasons.append("CPUs multiply and send narrow floats as float32: here they count as in the file")
    generation = None if target.topology is None else target.topology.generation
    if hardware is not None and generation is not None and _short(hardware.name) != _short(generation):
        reasons.append(
            f"compiled for {generation}: for {hardware.name} the compiler may fuse, merge and overlap differently"
        )
    return reasons


def _short(name: str) -> str:
    """`v5e` for `TPU v5e`, and `7x` for `tpu7x`."""
    return name.lower().replace("tpu", "").strip()


def _multiplying(hardware: Hardware, work: ModuleWork) -> float | None:
    """The seconds of all multiplications at the hardware's peak; None if a dtype's peak is unknown."""
    total = 0.0
    for line in work.lines:
        for (dtype, precision), flops in line.flops.items():
            peak = hardware.peak(dtype, precision)
            if peak is None:
                return None
            total += flops / peak
    return total


def _roof(multiplying: float | None, moving: float | None, communication: float) -> Roof | None:
    """The longest of the three times; None if one is unknown or all are 0."""
    if multiplying is None or moving is None:
        return None
    roofs: dict[Roof, float] = {"flops": multiplying, "memory": moving, "links": communication}
    longest = max(roofs, key=lambda roof: roofs[roof])
    return longest if roofs[longest] else None


def _line(hardware: Hardware, line: LineWork, unknown: list[str]) -> LineTime:
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
    bounds = [(seconds, bound) for seconds, bound in ((computing, "flops"), (moving, "memory")) if seconds is not None]
    seconds, bound = max(bounds, default=(None, None), key=lambda term: term[0] or 0.0)
    return LineTime(
        nodes=list(line.nodes),
        gradient=line.gradient,
        flops=sum(line.flops.values()),
        bytes=line.bytes,
        seconds=seconds,
        bound=None if not seconds else "flops" if bound == "flops" else "memory",
    )


def _as_in_the_file(collective: Collective, narrow_lines: Mapping[str, NarrowFloats]) -> Collective:
    """A collective with the bytes that the file's floats have."""
    part = share(collective.nodes, narrow_lines)
    if collective.dtype != WIDE or part == 1:
        return collective
    sizes = (None if size is None else int(size * part) for size in (collective.bytes_in, collective.bytes_out))
    bytes_in, bytes_out = sizes
    return replace(collective, bytes_in=bytes_in, bytes_out=bytes_out)


def _collective(
    links: Links, mesh: Mesh, collective: Collective, times: dict[str, float], unknown: list[str]
) -> CollectiveTime:
    taken = _taken(links, mesh, collective)
    if taken is None or taken.seconds == float("inf"):
        unknown.append(f"the time of {collective.instruction} is not known" + (f": {taken.over}" if taken else ""))
        taken = None
    elif collective.kind == RAGGED:
        unknown.append(f"how much {collective.instruction} sends is known only when it runs: its latency is counted")
    elif collective.count is None:
        unknown.append(f"how often {collective.instruction} runs is not known: it counts once")
    elif isinstance(collective.count, Range):
        unknown.append(IN_BRANCHES)
    seconds = (
        None
        if taken is None
        else taken.seconds * (1 if collective.count is None else executions.ends(collective.count)[1])
    )
    meanwhile = sum(times.get(node, 0.0) for node in collective.overlapped or ())
    return CollectiveTime(
        instruction=collective.instruction,
        kind=collective.kind,
        nodes=collective.nodes,
        axes=collective.axes,
        count=collective.count,
        seconds=seconds,
        bound=taken.bound if taken and taken.seconds else None,
        over=taken.over if taken and taken.seconds else None,
        hidden=min(seconds or 0.0, meanwhile),
    )


def _taken(links: Links, mesh: Mesh, collective: Collective) -> TransferTime | None:
    if not links.known or (collective.bytes_in is None and collective.bytes_out is None):
        return None
    bytes_in, bytes_out = (
        collective.bytes_in or collective.bytes_out or 0,
        collective.bytes_out or collective.bytes_in or 0,
    )
    groups = collective.groups
    if collective.kind in _PAIRED:
        if groups is None:
            # Pairs of many devices are not listed; neighbours along an axis are a lower bound.
            groups = [[a, b] for members in mesh.groups(collective.axes or ()) for a, b in itertools.pairwise(members)]
        return links.permute([(pair[0], pair[1]) for pair in groups], bytes_in)
    if groups is None:
        groups = mesh.groups(collective.axes or ())
    times = [links.time(collective.kind, group, bytes_in, bytes_out) for group in groups[:GROUPS]]
    seconds = [time for time in times if time is not None]
    return max(seconds, key=lambda time: time.seconds) if len(seconds) == len(times) and seconds else None
