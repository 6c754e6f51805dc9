"""Measures the time of each line and of each collective by what each device executed.

An event's own time is the time from its start until its work is done, minus that of other events inside it: for a loop,
without its steps. So every nanosecond of an instruction is counted once, and time that cannot be attributed to a line
is reported as such.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from runner.base.executions import ends, text
from runner.base.grouping import by_key
from runner.compiled.evidence import planes, timeline
from runner.compiled.evidence.collectives import Collectives
from runner.compiled.evidence.hlo import CALLING, Instruction, Module
from runner.compiled.evidence.model import Collective, Profile, ProfiledCollective, ProfiledNode, Seconds, Unattributed
from runner.compiled.evidence.nodes import Attribution, OperationOrigin, served
from runner.compiled.evidence.planes import Event, Recorded
from runner.compiled.evidence.timeline import Covered, Flight, Timeline, complete, with_runs
from runner.link.events import RunTimes

_FREE = frozenset({"parameter", "constant", "get-tuple-element", "tuple", "bitcast"})
"""Opcodes that take no time in a fusion."""

_NAMED = 5
"""The number of instructions that a sentence names."""


def read(taken: planes.Profile, module: Module, origins: Attribution, collectives: Collectives) -> Profile:
    """The profile of a program that was profiled here, or the reason why there is none."""
    if isinstance(taken, str):
        return Profile(
            folder=None,
            runs=0,
            run_s=None,
            devices=0,
            seconds=None,
            nodes=[],
            collectives=[],
            unattributed=None,
            unknown=[taken],
        )
    return _PlaneReader(taken.recorded, module, origins, collectives).read(taken.folder, taken.runs, taken.run_s)


def of_recorded(
    recorded: Recorded, folder: str, module: Module, origins: Attribution, collectives: Collectives
) -> Profile:
    """The profile of a program that somebody else profiled; the runs are those that the recording has."""
    entry = () if module.entry is None else frozenset(module.entry.instructions)
    events, cut = complete(with_runs(recorded.events, entry), entry)
    left_out = (f"{cut} of the runs began before the recording, or ended after it: left out",) if cut else ()
    recorded = Recorded(tuple(events), (*recorded.unknown, *left_out))
    return _PlaneReader(recorded, module, origins, collectives).read(folder)


class _Times:
    """The time of some events, by device and run."""

    def __init__(self) -> None:
        self.total = 0
        self.by_run: Counter[tuple[int, int]] = Counter()
        self.events: Counter[tuple[str, int, int]] = Counter()

    def add(self, event: Event, nanoseconds: int) -> None:
        self.total += nanoseconds
        self.by_run[event.device, event.run] += nanoseconds
        self.events[event.instruction, event.device, event.run] += 1


class _PlaneReader:
    def __init__(self, recorded: Recorded, module: Module, origins: Attribution, collectives: Collectives) -> None:
        self._events = recorded.events
        self._module = module
        self._origins = origins
        self._collectives = collectives
        self._instructions = module.instructions
        self._executed = sorted({(event.device, event.run) for event in self._events})
        self._runs_numbered = all(run >= 0 for _, run in self._executed)
        self._unknown = list(recorded.unknown)
        around = [name for name, instruction in self._instructions.items() if instruction.opcode in CALLING]
        self._timeline = Timeline(self._events, collectives.carriers, frozenset(around))

    def read(self, folder: str, runs: int | None = None, run_s: RunTimes | None = None) -> Profile:
        """The profile; `runs`: how many there were, None if the recording alone says so."""
        everything, unattributed = _Times(), _Times()
        lines: dict[tuple[frozenset[str], bool], _Times] = defaultdict(_Times)
        order: dict[tuple[frozenset[str], bool], list[str]] = {}
        carried: dict[str, _Times] = defaultdict(_Times)
        unnamed: Counter[str] = Counter()
        foreign: dict[str, None] = {}
        for event, nanoseconds in zip(self._events, own_times(self._events, self._inside()), strict=True):
            everything.add(event, nanoseconds)
            here = not event.module or event.module == self._module.name
            instruction = self._instructions.get(event.instruction) if here else None
            if instruction is None:
                if event.instruction:
                    foreign[event.instruction] = None
            elif event.instruction in self._collectives.carriers:
                carried[self._collectives.carriers[event.instruction]].add(event, nanoseconds)
                continue
            elif origins := self._lines(instruction):
                nodes, gradient = served(origins)
                key = frozenset(nodes), gradient
                order.setdefault(key, nodes)
                lines[key].add(event, nanoseconds)
                continue
            unattributed.add(event, nanoseconds)
            unnamed[event.instruction or event.name] += nanoseconds
        self._doubt(foreign, runs)
        listed = [self._collective(entry, carried) for entry in self._collectives.entries]
        return Profile(
            folder=folder,
            runs=len({run for _, run in self._executed}) if runs is None else runs,
            run_s=run_s,
            devices=len({device for device, _ in self._executed}),
            seconds=self._seconds(everything),
            nodes=[
                ProfiledNode(
                    node=order[key][0] if len(order[key]) == 1 else None,
                    nodes=order[key],
                    gradient=key[1],
                    seconds=self._seconds(times),
                )
                for key, times in sorted(lines.items(), key=lambda item: -item[1].total)
            ],
            collectives=listed,
            unattributed=Unattributed(
                seconds=self._seconds(unattributed), instructions=[name for name, _ in unnamed.most_common()]
            ),
            unknown=list(dict.fromkeys(self._unknown)),
            by_device=self._timeline.devices() if self._runs_numbered else [],
        )

    def _inside(self) -> dict[str, frozenset[str]]:
        """For each loop, branch or call the instructions that execute within it."""
        module = self._module
        within: dict[str, frozenset[str]] = {}

        def of_computation(name: str) -> frozenset[str]:
            if name not in within:
                within[name] = frozenset()
                computation = module.computations.get(name)
                instructions = computation.instructions.values() if computation else ()
                inner = (of_computation(c) for i in instructions if i.opcode in CALLING for _, c in i.called)
                within[name] = frozenset(i.name for i in instructions).union(*inner)
            return within[name]

        calling = [i for i in self._instructions.values() if i.opcode in CALLING]
        return {i.name: frozenset().union(*(of_computation(name) for _, name in i.called)) for i in calling}

    def _lines(self, instruction: Instruction) -> tuple[OperationOrigin, ...]:
        """The lines that an instruction works for; for a fusion, those of all fused instructions."""
        origins: list[OperationOrigin] = []
        if instruction.opcode == "fusion":
            for inner in self._module.inside(instruction):
                if inner.opcode not in _FREE:
                    origins += self._lines(inner)
        return tuple(dict.fromkeys(origins)) or self._origins.of(instruction.metadata)

    def _collective(self, entry: Collective, carried: Mapping[str, _Times]) -> ProfiledCollective:
        name = entry.instruction
        times = carried.get(name)
        executions = None
        if times is None:
            self._unknown.append(f"the trace does not show {name}")
        else:
            executions = self._executions(times)
            if entry.count is not None and executions is not None:
                least, most = ends(entry.count)
                if not least <= executions <= most:
                    self._unknown.append(f"{name} ran {executions} times a run, not {text(entry.count)} times")
            also = self._also(name, entry)
            if also:
                self._unknown.append(f"the time of {name} includes {', '.join(also)}, computed in the same fusion")
        flights = self._timeline.flights.get(name, [])
        spread = timeline.spread(flights) if self._runs_numbered else None
        shortest, skew = spread or (None, None)
        return ProfiledCollective(
            instruction=name,
            node=entry.node,
            nodes=entry.nodes,
            gradient=entry.gradient,
            kind=entry.kind,
            executions=executions,
            seconds=None if times is None else self._seconds(times),
            exposed=self._exposed(flights) if flights else None,
            shortest_s=shortest,
            skew_s=skew,
            bus_bandwidth=entry.bytes_sent / shortest if entry.bytes_sent and shortest else None,
        )

    def _exposed(self, flights: Sequence[Flight]) -> Seconds:
        exposed = _Times()
        for flight in flights:
            exposed.total += flight.exposed
            exposed.by_run[flight.place] += flight.exposed
        return self._seconds(exposed)

    def _executions(self, times: _Times) -> int | None:
        """How often a collective ran in each run on each device; None if that differs or runs cannot be told apart."""
        if not self._runs_numbered:
            return None
        # The start and the done of one execution are two events.
        most: Counter[tuple[int, int]] = Counter()
        for (_, device, run), events in times.events.items():
            most[device, run] = max(most[device, run], events)
        counts = {most[place] for place in self._executed}
        return counts.pop() if len(counts) == 1 else None

    def _also(self, name: str, entry: Collective) -> list[str]:
        """The other lines that are computed in the fusions during which a collective is in progress."""
        carriers = [self._instructions.get(c) for c, carried in self._collectives.carriers.items() if carried == name]
        served = [o.node for i in carriers if i is not None and i.opcode == "fusion" for o in self._lines(i)]
        return [node for node in dict.fromkeys(served) if node not in entry.nodes]

    def _seconds(self, times: _Times) -> Seconds:
        per_run = [times.by_run[place] / 1e9 for place in self._executed]
        numbered = bool(per_run) and self._runs_numbered
        return Seconds(
            median=statistics.median(per_run) if numbered else None,
            min=min(per_run) if numbered else None,
            max=max(per_run) if numbered else None,
            total=times.total / 1e9,
        )

    def _doubt(self, foreign: Iterable[str], expected: int | None) -> None:
        """Record in which ways the trace is not as expected."""
        runs = len({run for _, run in self._executed})
        if not self._events:
            self._unknown.append("the trace shows no instruction")
        elif not self._runs_numbered:
            self._unknown.append("the trace does not tell the runs apart")
        elif expected is not None and runs != expected:
            self._unknown.append(f"the trace shows {runs} of {expected} runs")
        elif len(self._executed) != runs * len({device for device, _ in self._executed}):
            self._unknown.append("the trace does not show every run on every device")
        names = list(foreign)
        if names:
            listed = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
            self._unknown.append(f"the module does not have {listed}")


def own_times(events: Sequence[Event], inside: Mapping[str, frozenset[str]]) -> list[int]:
    """Return the own time of each event in nanoseconds, without the events inside it.

    Inside are the events on the same line during its time, and those of the instructions that `inside` lists for its
    own, on any line of the same device in the same run.
    """
    within: list[list[tuple[int, int]]] = [[] for _ in events]
    _nested(events, within)
    _called(events, inside, within)
    return [
        event.done - event.start - (Covered(parts).within(event.start, event.done) if parts else 0)
        for event, parts in zip(events, within, strict=True)
    ]


def _nested(events: Sequence[Event], within: list[list[tuple[int, int]]]) -> None:
    by_line = by_key((event.line, number) for number, event in enumerate(events))
    for numbers in by_line.values():
        around: list[int] = []
        for number in sorted(numbers, key=lambda number: (events[number].start, -events[number].end)):
            event = events[number]
            while around and events[around[-1]].end <= event.start:
                around.pop()
            if around:
                within[around[-1]].append((event.start, event.end))
            around.append(number)


def _called(events: Sequence[Event], inside: Mapping[str, frozenset[str]], within: list[list[tuple[int, int]]]) -> None:
    executed: dict[tuple[int, int], list[int]] = defaultdict(list)
    calling = [number for number, event in enumerate(events) if inside.get(event.instruction)]
    if not calling:
        return
    for number in sorted(range(len(events)), key=lambda number: events[number].start):
        executed[events[number].device, events[number].run].append(number)
    starts = {place: [events[number].start for number in numbers] for place, numbers in executed.items()}
    for number in calling:
        event = events[number]
        place = event.device, event.run
        first = bisect.bisect_left(starts[place], event.start)
        last = bisect.bisect_left(starts[place], event.done)
        for at in executed[place][first:last]:
            if events[at].instruction in inside[event.instruction]:
                within[number].append((events[at].start, events[at].done))
