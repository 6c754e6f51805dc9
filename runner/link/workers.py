"""Keeps worker processes from job to job, and passes on the events of each job.

A process serves all jobs of its kind, which is determined by the platform of its JAX. It is replaced if it dies, hangs
or grows too large. After a crash, which costs only the step that was running, a new process continues with the rest of
the job, and then with the waiting jobs. A crash in a part that the job can do without costs only that part.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from runner.base.lazy import dataclass
from runner.link import process
from runner.link.process import ANNOUNCED, Launch, Worker
from runner.link.steps import Spare, Step
from runner.link.together import Together

if TYPE_CHECKING:
    from runner.link.events import Done, Event

GROWTH = 1 << 30
"""The bytes by which a process may grow after its first job before it is replaced."""

_AHEAD = 16_384
"""A job of at most this many characters is sent while this process does something else: it fits into a pipe."""


_STARTING = "JAX was starting"
"""The phase of a process before its first event."""


class WorkerEnded(RuntimeError):
    """The worker ended before it sent what it was asked for; the message says how."""


@dataclass
class _Ticket:
    """A job and its remaining steps; `sent` is whether the process that serves it has it."""

    job: dict[str, Any]
    timeout: float
    tell: Callable[[str], None]
    """Receives the words for a line of progress on what takes time."""
    left: list[Step] = field(init=False)
    sent: bool = False
    first: bool = True
    without: dict[Spare, str] = field(default_factory=dict["Spare", str])
    """The parts that the job does without, with how each ended a process."""

    def __post_init__(self) -> None:
        self.left = [Step.from_json(step) for step in self.job["steps"]]

    def text(self) -> str:
        """The job with the remaining steps."""
        return json.dumps({**self.job, "steps": [step.to_json() for step in self.left], "without": self.without})

    def lost(self, running: Step | None, error: str) -> Event:
        """The event of a process that ended, in a step or elsewhere; the steps that are still possible remain."""
        from runner.link.events import Died, Finished

        if running is None:
            return Died(error=error)
        self.left[:] = [step for step in self.left if step.left_by(running)]
        return Finished(step=running, error=error)


@dataclass
class _Queue:
    """One process, or several that work together, and its queue of jobs, of which it does the first."""

    worker: Worker | Together | None
    kind: str | None = None
    processes: int = 1
    waiting: deque[_Ticket] = field(default_factory=deque[_Ticket])
    resident: int | None = None
    """The bytes of memory that the process used after its first job."""
    grown: bool = False

    def end(self) -> None:
        """End the process; a new one replaces it, which has received nothing yet."""
        if self.worker is not None:
            self.worker.close()
        self.leave()

    def leave(self) -> None:
        """Let a new process take the place of this one, which ends."""
        self.worker, self.resident, self.grown = None, None, False
        for ticket in self.waiting:
            ticket.sent = False

    def note(self, done: Done) -> None:
        """Record what the process reports after a job."""
        if done.resident is not None:
            self.resident = self.resident or done.resident
            self.grown = done.resident - self.resident > GROWTH


class Workers:
    """At most `count` processes for each kind of job; `first` is one that was started earlier."""

    def __init__(
        self,
        first: Worker | None = None,
        count: int = 1,
        start: Callable[[], Worker] = Worker,
        start_together: Callable[[int], Together] = Together,
        of_cluster: bool = False,
    ) -> None:
        self._start = start
        self._start_together = start_together
        self.of_cluster = of_cluster
        """Whether the processes that do a job together are those of a cluster."""
        self.count = count
        """The largest number of processes for each kind of job."""
        self._lines = [_Queue(first)] if first is not None else []
        self._dismissed: list[Worker] = []
        """The processes that were told to end, and are waited for last."""
        self._aside: Workers | None = None
        self.started = len(self._lines)
        """The number of processes that were started."""
        self.distrust: str | None = None
        """The message for an experiment that imports Python, where it may not."""
        self.launch: Launch | None = None
        """How the process of the latest job was started; None before one, or for several together."""

    def submit(
        self,
        job: dict[str, Any],
        kind: str,
        timeout: float,
        processes: int = 1,
        *,
        at_once: bool = False,
        tell: Callable[[str], None] = lambda shown: None,
    ) -> Generator[Event, None, None]:
        """Submit a job; return its events, which must be read job by job, in the order of `submit`.

        A process that sends nothing for `timeout` seconds is ended. A program that ends its process yields a `finished`
        event with an `error`. The last event is `log`, with the worker's output. `processes` is the number of processes
        that do the job together. A job with `at_once` may be read before the waiting ones: an idle process does it, or
        a new one. `tell` receives, for a line of progress, what a process does that takes time.
        """
        line, ticket = self._line(kind, processes, at_once=at_once), _Ticket(job, timeout, tell)
        line.waiting.append(ticket)
        self._send(line)
        return self._events(line, ticket)

    def announce(self, definition: Mapping[str, Any]) -> None:
        """Tell an idle new process the experiment whose job is likely to come.

        It reads the experiment while this process still imports modules, and imports JAX if the experiment is valid.
        """
        idle = next((line for line in self._lines if line.kind is None and line.processes == 1), None)
        if idle is None or not isinstance(idle.worker, Worker):
            return
        try:
            text = json.dumps({ANNOUNCED: definition})
        except (TypeError, ValueError):
            # YAML has values that JSON cannot express; no valid experiment has them.
            return
        if len(text) <= _AHEAD:
            idle.worker.announce(text)

    def dismiss(self) -> None:
        """End the processes without waiting; `close` waits for their ends, which take the system some time."""
        for line in self._lines:
            if isinstance(line.worker, Worker):
                line.worker.dismiss()
                self._dismissed.append(line.worker)
                line.leave()

    def close(self) -> None:
        """End all processes."""
        for line in self._lines:
            line.end()
        for worker in self._dismissed:
            worker.close()
        self._lines.clear()
        self._dismissed.clear()
        if self._aside is not None:
            self._aside.close()
            self._aside = None

    def aside(self, kind: str) -> Workers:
        """Workers for jobs of that kind that need not wait for others: these, or new ones, which end when these do."""
        busy = any(line.waiting for line in self._lines if line.kind in (None, kind))
        # Those that were needed once have what they compiled.
        if self._aside is None and not self.of_cluster and not busy:
            return self
        if self._aside is None:
            self._aside = Workers(start=self._start)
        return self._aside

    def _line(self, kind: str, processes: int, *, at_once: bool) -> _Queue:
        """The queue of that kind with the fewest jobs; a new one while all are busy and there may be more.

        With `at_once` it is a new one if all are busy, whatever the limit.
        """
        if processes > 1:
            self._end_others(kind)
        ours = [line for line in self._lines if line.kind in (None, kind) and line.processes == processes]
        line = min(ours, key=lambda line: len(line.waiting), default=None)
        if line is None or (line.waiting and (at_once or len(ours) < self.count)):
            line = _Queue(None, processes=processes)
            self._lines.append(line)
        line.kind = kind
        return line

    def _end_others(self, kind: str) -> None:
        """End idle queues of another kind whose processes work together, since each is several processes."""
        for line in self._lines:
            if line.processes > 1 and line.kind != kind and not line.waiting:
                line.end()

    def _send(self, line: _Queue) -> None:
        """Send the process its current job and the next one, so that it need not wait for that."""
        if line.grown and not any(ticket.sent for ticket in line.waiting):
            line.end()
        for ticket in list(line.waiting)[:2]:
            if ticket.sent:
                continue
            text = ticket.text()
            if ticket is not line.waiting[0] and (len(text) > _AHEAD or line.grown):
                return
            if line.worker is None:
                line.worker = self._start() if line.processes == 1 else self._start_together(line.processes)
                self.started += line.processes
            line.worker.submit(text)
            ticket.sent = True

    def _events(self, line: _Queue, ticket: _Ticket) -> Generator[Event, None, None]:
        # They have many classes, which are created when a process has its job.
        from runner.link.events import Log

        assert line.waiting[0] is ticket, "jobs are heard in the order in which they were handed over"
        over = False
        try:
            while not over:
                self._send(line)
                worker = line.worker
                assert worker is not None
                self.launch = worker.launch if isinstance(worker, Worker) else None
                end = yield from _of_one(line, worker, ticket)
                words = "" if end.reported else worker.last_words()
                yield Log(text=worker.log())
                if end.gone:
                    line.end()
                over = end.how is None
                if end.how is not None and end.spare is not None:
                    ticket.without[end.spare] = end.how
                elif end.how is not None:
                    yield ticket.lost(end.running, end.how + (f"; its last output:\n{words}" if words else ""))
                    over = end.running is None or not ticket.left
        finally:
            if not over:
                # Nobody reads its events any more, and they do not belong to the next job.
                line.end()
            line.waiting.popleft()
        self._send(line)


@dataclass(frozen=True)
class _End:
    """How a process came to the end of a job.

    - `how`: as text; None if the job was done.
    - `running`: the step during which it ended; `spare`: the part, if the job can do without it.
    - `gone`: whether it cannot do another job; `reported`: whether it reported the reason itself.
    """

    how: str | None = None
    running: Step | None = None
    gone: bool = True
    reported: bool = False
    spare: Spare | None = None


def _of_one(line: _Queue, worker: Worker | Together, ticket: _Ticket) -> Generator[Event, None, _End]:
    """Yield the events of one process in a job, and remove finished steps from those that remain."""
    from runner.link import events

    running: Step | None = None
    done = False
    phase: str | None = None
    spare: Spare | None = None
    doing, since = _STARTING, time.monotonic()
    while True:
        try:
            event = worker.next(process.PARTING if done else since + ticket.timeout - time.monotonic())
        except TimeoutError:
            worker.kill()
            how = f"no result after the timeout of {ticket.timeout:g} s, while {doing}"
            return _End() if done else _End(how, running)
        if isinstance(event, events.Phase):
            # Not a result, so the time limit is not reset.
            phase, doing, spare = event.doing, event.doing, event.spare
            ticket.tell(event.shown)
            continue
        since = time.monotonic()
        if event is not None:
            phase = spare = None
        match event:
            case None:
                how = worker.ended()
                if running is None and phase is not None and spare is None:
                    how = f"{how}, while {phase}"
                return _End() if done else _End(how, running, spare=spare)
            case events.Done():
                line.note(event)
                return _End(gone=False)
            case events.Died():
                return _End(event.error, running, reported=True)
            case events.Called():
                raise AssertionError("a process gives its name before its first job")
            case events.Started():
                running, doing = event.step, f"{event.step} was being done"
            case events.Finished():
                ticket.left.remove(event.step)
                running = None
            case events.Types():
                ticket.left[:] = [step for step in ticket.left if step.supported(event.unsupported)]
            case _:
                pass
        if ticket.first or not isinstance(event, events.Types):
            yield event
        ticket.first &= not isinstance(event, events.Types)
        ended = isinstance(event, events.Invalid | events.FunctionsRead | events.ValuesTyped)
        done = ended or (isinstance(event, events.Finished | events.Types) and not ticket.left)
