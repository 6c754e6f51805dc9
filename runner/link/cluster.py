"""Decides the role of a command of a cluster: it owns the run, or lends its devices.

Each command has its own worker. Process 0 owns the run: it reads, judges, writes and shows, and makes the workers of
the others do the job with its own, as if they were processes of its machine (`link/together.py`). The commands
communicate over connections of their own (`link/wire.py`), so that the end of one is noticed at once, independently of
JAX. They meet at the address of JAX's future coordinator, which all know and can reach before it exists.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from runner.base.codec import Misfit, build
from runner.base.faults import InvalidExperiment
from runner.base.lazy import dataclass
from runner.base.words import of_system
from runner.link import process, together, wire
from runner.link.events import Called, Died, Done, Invalid, WorkerEvent, heard
from runner.link.process import CLUSTER, Hear, Worker
from runner.link.together import Together
from runner.link.wire import Arrivals, End, Introduction, Values, Wire, WorkerLine
from runner.version import __version__


class Unmet(Exception):
    """The processes of a cluster could not meet; the message says which are missing."""

    status = 3


class Unlike(Exception):
    """A process of the cluster has another input; the message names the process and the difference."""

    status = 2


@dataclass(kw_only=True)
class Member(Called):
    """This process of the cluster, and its worker, which has no job yet."""

    worker: Worker

    @property
    def name(self) -> str:
        """This process, for messages."""
        return together.name(self.number, self.count)

    def restarted(self) -> Worker:
        """The same member with a new worker in place of one that ended."""
        local = map(str, self.local or ())
        return Worker(membership=(str(self.number), str(self.count), self.address, *local))


def called(timeout: float) -> Member:
    """Find out which process of a cluster this one is.

    Raises `InvalidExperiment` if there is no cluster, and `Unmet` if JAX cannot tell within `timeout` seconds.
    """
    worker = Worker(membership=(CLUSTER,))
    try:
        worker.listen()
        match worker.next(timeout):
            case Called() as answer:
                return Member(**vars(answer), worker=worker)
            case Invalid() as refused:
                raise InvalidExperiment(refused.fault)
            case Died() as died:
                raise Unmet(died.error)
            case other:
                assert other is None, "it has no job"
                raise Unmet(f"{worker.ended()}, before it knew of a cluster; its last output:\n{worker.last_words()}")
    except TimeoutError:
        worker.close()
        raise Unmet(f"the cluster did not say within {timeout:g} s which of its processes this is") from None
    except BaseException:
        worker.close()
        raise


def introduced(member: Member, config: Mapping[str, Any]) -> dict[str, Any]:
    """The introduction that a process sends to process 0."""
    versions = {"shardproof": __version__, "jax": member.jax}
    return {"number": member.number, "count": member.count, "versions": versions, "config": dict(config)}


class Owner:
    """Process 0, and its connections to the others."""

    def __init__(self, member: Member, config: Mapping[str, Any], timeout: float, folder: Path) -> None:
        """Wait for the other processes; `folder` may have the key of the run.

        Raises `Unmet` if one does not come within `timeout` seconds, and `Unlike` if its input differs.
        """
        self._member = member
        self._wires: dict[int, Wire] = {}
        self._remotes: dict[int, Remote] = {}
        self._fresh = True
        try:
            self._meet(config, timeout, wire.file(folder, member.address))
        except (Unlike, Unmet) as error:
            self.end(error.status)
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _meet(self, config: Mapping[str, Any], timeout: float, path: Path) -> None:
        member, deadline = self._member, time.monotonic() + timeout
        unlike: dict[int, str] = {}
        try:
            with wire.left(path) as secret, _heard_at(member) as servers:
                arrivals = Arrivals(servers, secret, timeout)
                try:
                    while len(self._wires) < member.count - 1:
                        came = arrivals.next(deadline)
                        if came is None:
                            raise Unmet(self._missing(timeout, arrivals.strangers))
                        unlike |= self._admit(*came, introduced(member, config))
                finally:
                    arrivals.close()
        except wire.Unusable as error:
            raise Unmet(str(error)) from None
        except OSError as error:
            raise Unmet(f"{member.name} cannot leave a key for the others: {of_system(error, path)}") from None
        if unlike:
            number = min(unlike)
            name = together.name(number, member.count)
            raise Unlike(f"{name} was started with another input: {unlike[number]}")

    def _admit(self, connection: Wire, message: dict[str, Any], due: Any) -> dict[int, str]:
        """Accept a process of the run; record, by its number, its introduction and how its input differs."""
        try:
            number = build(Introduction, message).number
        except Misfit:
            number = 0
        if number not in range(1, self._member.count) or number in self._wires:
            connection.close()
            return {}
        self._wires[number] = connection
        difference = _difference(due, message)
        return {} if difference is None else {number: difference}

    def _missing(self, timeout: float, strangers: int) -> str:
        missing = [str(number) for number in range(1, self._member.count) if number not in self._wires]
        which = f"process {missing[0]}" if len(missing) == 1 else f"processes {', '.join(missing[:8])}"
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        rejected = f"; {strangers} who connected did not have the key of the run" if strangers else ""
        late = f"{which}{more} of {self._member.count} did not connect to {self._member.address}"
        return f"{late} within {timeout:g} s{rejected}"

    def together(self, count: int) -> Together:
        """The workers of all processes, to be driven like one."""
        assert count == self._member.count
        fresh, self._fresh = self._fresh, False

        def started(number: int) -> together.MemberWorker:
            if number == 0:
                return self._member.worker if fresh else self._member.restarted()
            before = self._remotes.get(number)
            remote = Remote(number, self._wires[number], before)
            self._remotes[number] = remote
            return remote

        return Together(count, started)

    def end(self, status: int) -> None:
        """End the other processes, with the exit status that all have."""
        for connection in self._wires.values():
            connection.send({"do": "end", "status": status})
        for connection in self._wires.values():
            connection.part(process.PARTING)

    def close(self) -> None:
        """Close the connections; a process that was not told to end notices that this one is gone."""
        for connection in self._wires.values():
            connection.close()
        self._member.worker.close()


@contextmanager
def _heard_at(member: Member) -> Generator[list[socket.socket]]:
    """Listen at the address where the processes meet. Raises `Unmet`."""
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(wire.listening(member.address))
        except OSError as error:
            unknown = isinstance(error, socket.gaierror) or error.errno is None
            why = error.strerror if unknown else os.strerror(error.errno or 0)
            raise Unmet(
                f"{member.name} cannot listen at {member.address}, where JAX's coordinator is to be: {why}; "
                "the environment variable JAX_COORDINATOR_PORT names another port, in all processes"
            ) from None
        yield servers


def _difference(due: Any, offered: Any, path: str = "") -> str | None:
    """The first key whose value differs between two processes."""
    if isinstance(due, dict) and isinstance(offered, dict):
        expected, actual = cast("dict[str, Any]", due), cast("dict[str, Any]", offered)
        for key in [*expected, *(key for key in actual if key not in expected)]:
            if not path and key == "number":
                continue
            below = f"{path}.{key}" if path else str(key)
            if key not in expected or key not in actual:
                differs = "not there, process 0 has one" if key in expected else "there, process 0 has none"
                return f"{below.removeprefix('config.')} is {differs}"
            difference = _difference(expected[key], actual[key], below)
            if difference is not None:
                return difference
        return None
    return None if due == offered else f"{path.removeprefix('config.')} is {offered!r}, that of process 0 is {due!r}"


class Remote:
    """The worker of another process of the cluster: process 0 sends its jobs and receives its events."""

    def __init__(self, number: int, connection: Wire, before: Remote | None) -> None:
        """`before` is the worker that it replaces; None for the first one."""
        self._number = number
        self._wire = connection
        self._hear: Hear | None = None
        self._folders: deque[Path] = deque()
        """The folders for the values of its jobs."""
        self._logs: deque[str] = deque()
        self._how: str | None = None
        self._words = ""
        self._lost = before is not None and before.lost
        self._over = threading.Event()
        self._killed = False
        if before is not None:
            connection.send({"do": "start"})

    @property
    def lost(self) -> bool:
        """Whether its process no longer answers."""
        return self._lost or not self._over.is_set()

    def listened_to_by(self, hear: Hear) -> None:
        """Pass its events to `hear`, until it ends."""
        self._hear = hear
        threading.Thread(target=self._listen, args=(hear,), daemon=True).start()

    def submit(self, job: str) -> None:
        """Send it a job."""
        task = json.loads(job)
        self._folders.append(together.folder(Path(task["arrays"]), self._number))
        self._wire.send({"do": "job", "job": task})

    def _listen(self, hear: Hear) -> None:
        while not self._lost:
            message = self._wire.receive()
            if message is None:
                self._lost = True
                break
            try:
                answer = wire.answer(message)
                if isinstance(answer, End):
                    self._how, self._words = answer.how, answer.words
                    self._logs.append(answer.log)
                    break
                if not self._folders:
                    raise Misfit("it has no job")
                if isinstance(answer, Values):
                    self._keep(answer, hear)
                else:
                    hear(self._event(answer))
            except Misfit as misfit:
                self._lost, self._how = True, f"sent a message that cannot be read: {misfit}"
        self._over.set()
        hear(None)

    def _keep(self, values: Values, hear: Hear) -> None:
        """Write an incoming file of values, if a job waits for it."""
        into = None
        try:
            if not self._killed:
                self._folders[0].mkdir(exist_ok=True)
                into = self._folders[0] / values.file
            self._wire.read(values.bytes, into)
        except OSError as error:
            hear(error)

    def _event(self, answer: WorkerLine) -> WorkerEvent:
        """The event that its worker sent. Raises `Misfit`."""
        event = heard(answer.event)
        if event is None:
            raise Misfit("it is not an event")
        if isinstance(event, Done):
            self._logs.append(answer.log)
            self._folders.popleft()
        return event

    def ended(self, name: str) -> str:
        """Return how it ended, as text."""
        if self._how is None:
            return f"{name} is gone: its command ended, or its machine cannot be reached"
        return f"{name} {self._how}"

    def kill(self) -> None:
        """End it at once, and wait for its last messages."""
        if not self._killed:
            self._killed = True
            self._wire.send({"do": "kill"})
        if self._hear is not None:
            self._over.wait(process.PARTING)

    def close(self) -> None:
        """End it, if it still runs; the connection stays."""
        self.kill()

    def log(self) -> str:
        """What it wrote in the finished job, or in the job in which it ended."""
        return self._logs.popleft() if self._logs else ""

    def last_words(self) -> str:
        """The end of what it wrote in this job."""
        return self._words
