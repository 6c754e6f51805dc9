"""Several JAX processes that do one job together; their events are merged into those of a single worker.

Each has a part of the devices and holds their values. If one of them ends, all are ended, since the others would wait
for it in the next collective.
"""

from __future__ import annotations

import queue
import re
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from runner.link import process
from runner.link.process import Hear, Worker

if TYPE_CHECKING:
    from runner.link.events import Finished, Ran, ShardEntry, WorkerEvent
    from runner.link.steps import Step


class MemberWorker(Protocol):
    """One of several processes that do their jobs together, on this machine or another one; see `Worker`."""

    def listened_to_by(self, hear: Hear) -> None:
        """Pass its events to `hear`."""
        ...

    def submit(self, job: str) -> None:
        """Send it a job."""
        ...

    def ended(self, name: str) -> str:
        """Return how it ended, as text; it sends nothing more."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...

    def log(self) -> str:
        """Its output in the finished job."""
        ...

    def last_words(self) -> str:
        """The end of its output in this job."""
        ...


Starter: TypeAlias = Callable[[int], MemberWorker]
"""Starts the process with that number."""

PATIENCE = 20.0
"""Seconds that the other processes have, after one reports an error, to report it too or to end."""

_CONNECTED = re.compile(r"^\[Gloo\] Rank \d+ is connected to .*\n?", re.MULTILINE)
"""The text that Gloo writes whenever processes connect."""


def _here(count: int) -> Starter:
    """Start them on this machine."""
    address = f"127.0.0.1:{_free_port()}"
    return lambda number: Worker(membership=(str(number), str(count), address))


class Together:
    """Several processes, started before their job is known."""

    def __init__(self, count: int, start: Starter | None = None) -> None:
        """`start` starts them; by default on this machine."""
        start = start or _here(count)
        self._heard: queue.Queue[tuple[int, WorkerEvent | Exception | None]] = queue.Queue()
        self._events: list[deque[WorkerEvent]] = [deque() for _ in range(count)]
        self._announced: Step | None = None
        self._how: str | None = None
        """How the first process to end ended, as text."""
        self._first: int | None = None
        """The number of that process."""
        self._members: list[MemberWorker] = []
        try:
            for number in range(count):
                self._members.append(start(number))
        except BaseException:
            self.close()
            raise
        for number, member in enumerate(self._members):
            member.listened_to_by(self._listener(number))

    def _listener(self, number: int) -> Hear:
        return lambda event: self._heard.put((number, event))

    def submit(self, job: str) -> None:
        """Send all of them a job, a line of JSON."""
        for member in self._members:
            member.submit(job)

    def next(self, timeout: float) -> WorkerEvent | None:
        """The next event that all have sent, or None if there is none any more because one of them has ended.

        Raises `TimeoutError` if none of them sends anything for `timeout` seconds, and `Misfit`.
        """
        from runner.link.events import Died, Phase

        while self._how is None:
            event = self._agreed()
            if event is not None:
                return event
            failed = self._failed()
            try:
                number, received = self._heard.get(timeout=PATIENCE if failed else process.bounded(timeout))
            except queue.Empty:
                if failed is None:
                    raise TimeoutError from None
                # The other processes wait for it, in a collective.
                self._how = f"{self._name(failed[0])} reported an error that the others did not: {failed[1]}"
                break
            if isinstance(received, Exception):
                raise received
            if received is None:
                self._first, self._how = number, self._members[number].ended(self._name(number))
                break
            if isinstance(received, Phase):
                return received
            if isinstance(received, Died):
                return replace(received, error=f"{self._name(number)}: {received.error}")
            self._events[number].append(received)
        self.kill()
        return None

    def _agreed(self) -> WorkerEvent | None:
        """The next event, if all processes have sent enough to know it."""
        from runner.link.events import Done, Finished, Started

        for events in self._events:
            if events and isinstance(events[0], Started):
                started = events.popleft()
                assert isinstance(started, Started)
                if started.step != self._announced:
                    self._announced = started.step
                    return started
        if not all(self._events):
            return None
        first, *rest = (events.popleft() for events in self._events)
        assert all(type(event) is type(first) for event in rest), "they do the same, in the same order"
        self._announced = None
        if isinstance(first, Finished):
            return self._put_together([first, *(event for event in rest if isinstance(event, Finished))])
        if isinstance(first, Done):
            resident = [done.resident for done in (first, *rest) if isinstance(done, Done)]
            known = [size for size in resident if size is not None]
            return replace(first, resident=sum(known) if len(known) == len(resident) else None)
        return first

    def _put_together(self, parts: list[Finished]) -> Finished:
        assert all(part.step == parts[0].step for part in parts)
        errors = [(number, part.error) for number, part in enumerate(parts) if part.error is not None]
        if not errors:
            return put_together(parts)
        number, error = errors[0]
        alike = len(errors) == len(parts) and len({error for _, error in errors}) == 1
        return replace(parts[0], result=None, error=error if alike else f"{self._name(number)}: {error}")

    def _failed(self) -> tuple[int, str] | None:
        """A process that has reported an error while another has not reached that step."""
        from runner.link.events import Finished

        for number, events in enumerate(self._events):
            if events and isinstance(events[0], Finished) and events[0].error is not None:
                return number, events[0].error
        return None

    def _name(self, number: int) -> str:
        return name(number, len(self._members))

    def ended(self) -> str:
        """Return how the first process to end ended, as text."""
        return self._how or f"the {len(self._members)} processes were ended"

    def kill(self) -> None:
        """End all of them at once; their output can still be read."""
        # The others would report the first one's end, through which they are connected.
        for member in reversed(self._members):
            member.kill()

    def close(self) -> None:
        """End those that still run, and release their resources."""
        self.kill()
        for member in self._members:
            member.close()

    def log(self) -> str:
        """Their output in the finished job, one after the other."""
        return self._of_each([member.log() for member in self._members])

    def last_words(self) -> str:
        """The last output in this job of the process that ended first; of every process if none ended by itself."""
        if self._first is not None:
            return _CONNECTED.sub("", self._members[self._first].last_words()).strip()
        return self._of_each([member.last_words() for member in self._members]).strip()

    def _of_each(self, texts: Sequence[str]) -> str:
        messages = {number: _CONNECTED.sub("", text) for number, text in enumerate(texts)}
        return "".join(f"{self._name(number)}:\n{text}" for number, text in messages.items() if text.strip())


def name(number: int, count: int) -> str:
    """Return the name of one of several processes, for messages."""
    return f"process {number} of {count}"


def _free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def folder(arrays: Path, number: int) -> Path:
    """The folder of a process's values; the first one uses `arrays` itself."""
    return arrays / f"process_{number}" if number else arrays


def put_together(parts: Sequence[Finished]) -> Finished:
    """Merge the results of several processes in a step: the first one's result, with the values of all devices.

    The values stay in the file of each process. Everything else is taken from the first process, which may be the only
    one to have it.
    """
    from runner.link.events import Ran, Traced

    first, *rest = (part.result for part in parts)
    if isinstance(first, Ran):
        rans = [first, *(ran for ran in rest if isinstance(ran, Ran))]
        return replace(parts[0], result=_of_rans(rans) if len(rans) == len(parts) else first)
    if isinstance(first, Traced):
        traces = [first, *(trace for trace in rest if isinstance(trace, Traced))]
        assert len(traces) == len(parts)
        return replace(parts[0], result=replace(first, rows=[rows for trace in traces for rows in trace.rows]))
    return parts[0]


def _devices_of(ran: Ran) -> list[int]:
    """The devices whose values one process sent."""
    shards_held = [held for shards in ran.operands.values() for held in shards]
    shards_held += [(device, where) for output in ran.outputs.values() for device, where, _ in output.shards]
    return sorted({device for device, _ in shards_held})


def _of_rans(rans: Sequence[Ran]) -> Ran:
    first, before = rans[0], 0
    shards: dict[str, list[ShardEntry]] = {name: [] for name in first.outputs}
    for ran in rans:
        for name, output in ran.outputs.items():
            shards[name] += [(device, where, before + entry) for device, where, entry in output.shards]
        # Every entry of a file is at least one device's.
        entries = [entry for output in ran.outputs.values() for _, _, entry in output.shards]
        before += max(entries, default=-1) + 1
    return replace(
        first,
        processes=[_devices_of(ran) for ran in rans],
        operands={name: sorted(held for ran in rans for held in ran.operands[name]) for name in first.operands},
        outputs={
            name: replace(output, shards=sorted(shards[name], key=lambda shard: shard[0]))
            for name, output in first.outputs.items()
        },
    )
