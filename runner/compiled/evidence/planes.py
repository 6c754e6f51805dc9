"""Reads from a profiler's recording what each device executed, and when.

`jax.profiler` writes planes (the host, each device) of lines (threads, streams) of events. This reads the events that
execute instructions of a compiled module:

- CPU: events of the host's threads with a stat `hlo_op`. An instruction may return before its work is done, which
  continues in other threads; the event `end: NAME`, which has the same number, marks its completion.
- GPU: all events on the lines of the streams; `hlo_op` and `hlo_module` say what launched them, if XLA reports it.
- TPU: the line `XLA Ops`, whose events are named by the text of their instructions (`%fusion.1 = f32[8] fusion(...)`).

The profiler gives an execution a `run_id` on CPU only. Elsewhere a run is an event of the line `XLA Modules`, or else
the annotation that the worker puts around it.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from runner.base.lazy import dataclass
from runner.compiled.evidence import xspace
from runner.compiled.evidence.trace_events import TraceLine, TracePlane
from runner.link import handover
from runner.link.events import Profiled, RunTimes

ANNOTATION = "run"
"""The annotation that the worker puts around each profiled run."""

_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d+)\Z")
_END = "end: "
_NOWHERE = -1


RecordedPlane: TypeAlias = xspace.Plane | TracePlane
"""A plane of a profiler's file, or of the trace that it writes for viewers."""

PlaneLine: TypeAlias = xspace.Line | TraceLine
"""A line of a plane."""


class Event(NamedTuple):
    """One execution of one instruction, in nanoseconds: on its line from `start` to `end`, complete at `done`.

    `run` is -1 if its run is unknown; `instruction` is empty if the launching instruction is unknown; `name` then says
    what was executed. `program` tells modules of one name apart, if the profiler does.
    """

    line: int
    device: int
    run: int
    start: int
    end: int
    done: int
    name: str
    instruction: str
    module: str
    program: str = ""


_NUMBERS = 6
"""The number of fields of an event that are numbers; the others are texts."""


@dataclass(frozen=True)
class Recorded:
    """The events of all runs, and sentences about what could not be read."""

    events: tuple[Event, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Capture:
    """A profile of `runs` runs, which took `run_s` seconds each; the trace is in `folder` of the run folder."""

    folder: str
    runs: int
    run_s: RunTimes
    recorded: Recorded


Profile = Capture | str
"""A profile, or the reason why there is none."""


def read(planes: Iterable[RecordedPlane]) -> Recorded:
    """The events of a trace: those of its devices, or those of the host where the host is the device."""
    planes = list(planes)
    annotated = functools.cache(
        lambda: _windows(line for plane in planes if not _on_device(plane) for line in plane.lines)
    )
    events: list[Event] = []
    unknown: list[str] = []
    numbers = itertools.count()
    for plane in filter(_on_device, planes):
        match = _DEVICE.match(plane.name)
        if match:
            events += _of_device(list(plane.lines), int(match.group(1)), annotated, numbers)
        elif any(True for line in plane.lines for _ in line.events):
            unknown.append(f"the events of {plane.name} were not read")
    if not events:
        events, unended = _of_host([line for plane in planes if not _on_device(plane) for line in plane.lines], numbers)
        if unended:
            unknown.append(f"the trace does not say when {unended} of {len(events)} events ended")
    return Recorded(tuple(events), tuple(unknown))


def together(recordings: Sequence[Recorded]) -> Recorded:
    """What several hosts recorded of one program, as one recording; their devices are numbered on."""
    events: list[Event] = []
    lines = devices = 0
    for recorded in recordings:
        events += [e._replace(line=e.line + lines, device=e.device + devices) for e in recorded.events]
        lines = 1 + max((event.line for event in events), default=-1)
        devices = 1 + max((event.device for event in events), default=-1)
    return Recorded(tuple(events), tuple(dict.fromkeys(text for recorded in recordings for text in recorded.unknown)))


def of_program(recorded: Recorded, module: str, program: str) -> Recorded:
    """The events of one program, its runs numbered from 0 on each device.

    What a device executes in these runs without a module, such as copies between buffers, is among them.
    """
    own = {(e.device, e.run) for e in recorded.events if (e.module, e.program) == (module, program)}
    events = [
        event
        for event in recorded.events
        if (event.module, event.program) == (module, program)
        or (not event.module and event.run != _NOWHERE and (event.device, event.run) in own)
    ]
    runs: dict[int, set[int]] = {}
    for event in events:
        runs.setdefault(event.device, set()).add(event.run)
    numbers = {device: {run: at for at, run in enumerate(sorted(there))} for device, there in runs.items()}
    numbered = (e if e.run == _NOWHERE else e._replace(run=numbers[e.device][e.run]) for e in events)
    return Recorded(tuple(numbered), recorded.unknown)


def leave(path: Path, taken: Capture) -> Profiled:
    """Write the events to `path`; return the rest of what `collect` needs."""
    recorded = taken.recorded
    names = list(dict.fromkeys(text for event in recorded.events for text in event[_NUMBERS:]))
    number = {name: i for i, name in enumerate(names)}
    table = [(*event[:_NUMBERS], *(number[text] for text in event[_NUMBERS:])) for event in recorded.events]
    handover.leave(path, [np.array(table, np.int64).reshape(-1, len(Event._fields))])
    return Profiled(
        file=path.name,
        names=names,
        unknown=list(recorded.unknown),
        folder=taken.folder,
        runs=taken.runs,
        run_s=taken.run_s,
    )


def collect(left: Profiled, folder: Path) -> Capture:
    """The profile whose events `leave` wrote to `folder`."""
    (raw,) = handover.collect(folder / left.file)
    names = left.names
    table = raw.view(np.int64).reshape(-1, len(Event._fields)).tolist()
    events = tuple(Event._make([*row[:_NUMBERS], *(names[number] for number in row[_NUMBERS:])]) for row in table)
    return Capture(left.folder, left.runs, left.run_s, Recorded(events, tuple(left.unknown)))


def _on_device(plane: RecordedPlane) -> bool:
    return plane.name.startswith("/device:")


class _Window(NamedTuple):
    start: float
    end: float
    name: str


def _windows(lines: Iterable[PlaneLine]) -> list[_Window]:
    """The annotated runs."""
    windows = [
        _Window(event.start_ns, event.start_ns + event.duration_ns, "")
        for line in lines
        for event in line.events
        if event.name == ANNOTATION
    ]
    return sorted(windows)


def _inside(windows: Sequence[_Window], start: float) -> int:
    """The number of the window in which an event starts, or -1."""
    at = bisect.bisect_right(windows, start, key=lambda window: window.start) - 1
    return at if at >= 0 and start < windows[at].end else _NOWHERE


def _of_device(
    lines: list[PlaneLine], device: int, annotated: Callable[[], Sequence[_Window]], numbers: Iterator[int]
) -> list[Event]:
    modules = sorted(
        _Window(event.start_ns, event.start_ns + event.duration_ns, event.name)
        for line in lines
        if line.name == "XLA Modules"
        for event in line.events
    )
    # Lines that the profiler derives have a stream's events again, grouped.
    streams = [line for line in lines if line.name.startswith("Stream")]
    events: list[Event] = []
    for line in streams or [line for line in lines if line.name == "XLA Ops"]:
        number = next(numbers)
        for event in line.events:
            stats = dict(event.stats)
            start, end = round(event.start_ns), round(event.start_ns + event.duration_ns)
            at = _inside(modules, event.start_ns)
            name, _, program = (modules[at].name if at != _NOWHERE else "").rstrip(")").partition("(")
            module, program = str(stats.get("hlo_module") or name), program or str(stats.get("program_id") or "")
            run = at if modules else _inside(annotated(), event.start_ns)
            instruction = str(stats.get("hlo_op") or "")
            if not instruction and not streams:
                instruction = event.name.partition(" = ")[0].lstrip("%")
            events.append(Event(number, device, run, start, end, end, event.name, instruction, module, program))
    return events


def _of_host(lines: Sequence[PlaneLine], numbers: Iterator[int]) -> tuple[list[Event], int]:
    """The events, and how many of them have no end."""
    executions: list[tuple[Event, object, object]] = []
    ends: dict[object, int] = {}
    for line in lines:
        number = next(numbers)
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats:
                start, end = round(event.start_ns), round(event.start_ns + event.duration_ns)
                device, instruction = int(stats.get("device_ordinal", 0)), str(stats["hlo_op"])
                module = str(stats.get("hlo_module", ""))
                program = str(stats.get("program_id", ""))
                executed = Event(number, device, _NOWHERE, start, end, end, event.name, instruction, module, program)
                executions.append((executed, stats.get("run_id"), stats.get("_p")))
            elif event.name.startswith(_END) and "_c" in stats:
                ends[stats["_c"]] = round(event.start_ns)
    unended = sum(mark not in ends for _, _, mark in executions) if ends else 0
    runs: dict[object, int] = {None: _NOWHERE}
    for _, run, _ in sorted(executions, key=lambda execution: execution[0].start):
        runs.setdefault(run, len(runs) - 1)
    events = [
        event._replace(run=runs[run], done=max(event.end, ends.get(mark, event.end))) for event, run, mark in executions
    ]
    return events, unended
