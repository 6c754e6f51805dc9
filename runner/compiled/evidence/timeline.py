"""Finds when each device computes, communicates and waits, from the events of a program's runs."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.compiled.evidence.model import ProfiledDevice
from runner.compiled.evidence.planes import Event

Interval = tuple[int, int]
Place = tuple[int, int]
"""A device, and a run."""


@dataclass(frozen=True)
class Flight:
    """One execution of a collective on one device in one run: from its start to its completion, in nanoseconds.

    - `exposed`: the part during which the device computes nothing.
    """

    place: Place
    number: int
    start: int
    end: int
    exposed: int

    @property
    def duration(self) -> int:
        """The nanoseconds that it takes."""
        return self.end - self.start


class Covered:
    """Some intervals, overlapping or not, as those that they cover together."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals: list[Interval] = []
        for start, end in sorted(intervals):
            if self.intervals and start <= self.intervals[-1][1]:
                start, before = self.intervals.pop()
                end = max(end, before)
            self.intervals.append((start, end))
        self._starts = [start for start, _ in self.intervals]
        self._before = [0, *itertools.accumulate(end - start for start, end in self.intervals)]

    @property
    def length(self) -> int:
        """How much they cover."""
        return self._before[-1]

    def within(self, start: int, end: int) -> int:
        """How much of an interval they cover."""
        return max(0, self._until(end) - self._until(start))

    def _until(self, at: int) -> int:
        number = bisect.bisect_right(self._starts, at)
        if not number:
            return 0
        start, end = self.intervals[number - 1]
        return self._before[number - 1] + min(at, end) - start


class Timeline:
    """The runs of a program on its devices.

    - `carriers`: the instructions during which a collective is in progress, each with the name of the collective.
    - `around`: the instructions that contain others, such as loops: they compute nothing themselves.
    """

    def __init__(self, events: Sequence[Event], carriers: Mapping[str, str], around: Collection[str]) -> None:
        computed: dict[Place, list[Interval]] = defaultdict(list)
        carried: dict[str, dict[Place, dict[str, list[Event]]]] = {}
        self._windows: dict[Place, Interval] = {}
        for event in events:
            place = event.device, event.run
            start, end = self._windows.get(place, (event.start, event.done))
            self._windows[place] = min(start, event.start), max(end, event.done)
            if event.instruction in carriers:
                there = carried.setdefault(carriers[event.instruction], {}).setdefault(place, {})
                there.setdefault(event.instruction, []).append(event)
            elif event.instruction not in around:
                computed[place].append((event.start, event.done))
        self._computing = {place: Covered(computed[place]) for place in self._windows}
        self.flights = {name: list(self._flights(places)) for name, places in carried.items()}

    def _flights(self, places: Mapping[Place, Mapping[str, list[Event]]]) -> Iterable[Flight]:
        for place, by_name in places.items():
            # A start whose completion the profiler does not record, as on GPUs, is in progress while its kernel runs.
            most = max(map(len, by_name.values()))
            rows = [sorted(events, key=lambda event: event.start) for events in by_name.values() if len(events) == most]
            for number, events in enumerate(zip(*rows, strict=True)):
                start, end = min(event.start for event in events), max(event.done for event in events)
                yield Flight(place, number, start, end, end - start - self._computing[place].within(start, end))

    def devices(self) -> list[ProfiledDevice]:
        """What each device does in a run, by the median over the runs."""
        communicating = by_key(
            (flight.place, (flight.start, flight.end)) for flights in self.flights.values() for flight in flights
        )
        rows: dict[int, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        for place, (start, end) in sorted(self._windows.items()):
            computing, moving = self._computing[place], Covered(communicating.get(place, ()))
            busy = Covered([*computing.intervals, *moving.intervals]).length
            exposed = busy - computing.length
            whole = end - start
            rows[place[0]].append((whole, computing.length, exposed, moving.length - exposed, whole - busy))
        return [
            ProfiledDevice(
                device=device,
                seconds=seconds,
                computing=computing,
                exposed=exposed,
                hidden=hidden,
                idle=idle,
                between=self._between(device),
            )
            for device, runs in rows.items()
            for seconds, computing, exposed, hidden, idle in [
                [statistics.median(column) / 1e9 for column in zip(*runs, strict=True)]
            ]
        ]

    def _between(self, device: int) -> float | None:
        """The seconds from the end of a run to the start of the next one, by the median; None of a single run."""
        runs = sorted(window for place, window in self._windows.items() if place[0] == device)
        gaps = [max(0, after[0] - before[1]) / 1e9 for before, after in itertools.pairwise(runs)]
        return statistics.median(gaps) if gaps else None


def spread(flights: Iterable[Flight]) -> tuple[float, float] | None:
    """The shortest time that a device is in a collective, and by how much the longest exceeds it, in seconds.

    Both by the median over the executions in which several devices take part. All devices leave a collective together,
    so that the excess is the time for which the first to arrive waits for the last one, and the shortest time is that
    of the communication itself; clocks of different hosts need not agree. None if no execution has several devices.
    """
    durations = by_key(((flight.place[1], flight.number), flight.duration) for flight in flights)
    several = [times for times in durations.values() if len(times) > 1]
    if not several:
        return None
    return (
        statistics.median(min(times) for times in several) / 1e9,
        statistics.median(max(times) - min(times) for times in several) / 1e9,
    )


def with_runs(events: Sequence[Event], entry: Collection[str]) -> list[Event]:
    """The events with their runs, where the profiler does not tell them apart, or takes several for one.

    - `entry`: the instructions that every run executes once; each may have several events, such as kernels.
    """
    groups = by_key(((event.device, event.run), event) for event in events)
    numbered: list[Event] = []
    following: Counter[int] = Counter()
    for (device, _), group in sorted(groups.items()):
        runs = min(Counter(event.instruction for event in group if event.instruction in entry).values(), default=1)
        numbered += [event._replace(run=run + following[device]) for event, run in _numbered(group, runs)]
        following[device] += runs
    return sorted(numbered, key=lambda event: event.start)


def complete(events: Sequence[Event], entry: Collection[str]) -> tuple[list[Event], int]:
    """The events of the runs that the recording has from beginning to end, numbered again; how many others there are.

    - `entry`: the instructions that every run executes once. A recording may begin or end within a run.
    """
    executed: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for event in events:
        executed[event.run] |= {(event.device, event.instruction)} if event.instruction in entry else set()
    most = max(map(len, executed.values()), default=0)
    whole = {run: at for at, run in enumerate(sorted(run for run, there in executed.items() if len(there) == most))}
    return [event._replace(run=whole[event.run]) for event in events if event.run in whole], len(executed) - len(whole)


def _numbered(events: Sequence[Event], runs: int) -> Iterable[tuple[Event, int]]:
    """Each event with its run: the events of an instruction are divided evenly among the runs."""
    if runs == 1:
        return [(event, 0) for event in events]
    by_name = by_key((event.instruction, event) for event in sorted(events, key=lambda event: event.start))
    starts: dict[int, int] = {}
    divided: list[tuple[Event, int]] = []
    for name, alike in by_name.items():
        if name and len(alike) % runs == 0:
            for number, event in enumerate(alike):
                run = number * runs // len(alike)
                starts[run] = min(starts.get(run, event.start), event.start)
                divided.append((event, run))
    begins = [starts[run] for run in sorted(starts)]
    for name, alike in by_name.items():
        if not name or len(alike) % runs:
            divided += [(event, max(0, bisect.bisect_right(begins, event.start) - 1)) for event in alike]
    return divided
