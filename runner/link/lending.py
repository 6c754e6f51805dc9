"""Runs the jobs that process 0 sends, in a process of the cluster that does not own the run, and sends back events."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from runner.base.codec import Misfit
from runner.base.lazy import dataclass
from runner.link import scratch, together, wire
from runner.link.cluster import Member, Unmet, introduced
from runner.link.events import Done, Finished, WorkerEvent, encoded
from runner.link.process import Worker
from runner.link.wire import Bid, Wire

DataFolder = Callable[[Mapping[str, Any]], Path]
"""The folder in which `load` looks on this machine, for a configuration."""


def lend(member: Member, config: Mapping[str, Any], timeout: float, folder: Path, data_folder: DataFolder) -> int:
    """Serve the requests of process 0 until it ends the run; return the exit status of all processes.

    `folder` may have the key of the run. Raises `Unmet` if process 0 cannot be reached within `timeout` seconds, or
    disconnects before it has ended the run.
    """
    try:
        connection = _reached(member, timeout, folder)
    except BaseException:
        member.worker.close()
        raise
    lent = _Lent(member, connection, data_folder)
    try:
        connection.send(introduced(member, config))
        while (message := connection.receive()) is not None:
            bid = wire.bid(message)
            if bid.status is not None:
                return bid.status
            lent.do(bid)
    except Misfit as misfit:
        raise Unmet(f"process 0 sent {member.name} a request that cannot be read: {misfit}") from None
    finally:
        # First of all: later events of the worker must not be reported.
        connection.close()
        lent.close()
    raise Unmet(f"{member.name} has lost process 0: its command ended, or its machine cannot be reached")


def _reached(member: Member, timeout: float, folder: Path) -> Wire:
    """The connection to process 0. Raises `Unmet`."""
    path, deadline = wire.file(folder, member.address), time.monotonic() + timeout
    fixed = bool(os.environ.get(wire.VARIABLE))
    try:
        return wire.reached(member.address, lambda: wire.read(path), deadline, timeout, same=fixed)
    except wire.Unusable as error:
        raise Unmet(str(error)) from None
    except AuthenticationError:
        which = wire.VARIABLE if fixed else f"key in {path}"
        raise Unmet(f"{member.name} and the process at {member.address} do not have the same {which}") from None
    except wire.Absent as error:
        raise Unmet(f"{member.name} has no key of the run: {error}") from None
    except OSError as error:
        why = error.strerror or error
        raise Unmet(f"{member.name} cannot reach process 0 at {member.address} within {timeout:g} s: {why}") from None


@dataclass
class _Lent:
    """The worker of this process, and the folders of its jobs."""

    member: Member
    wire: Wire
    data_folder: DataFolder
    worker: Worker = field(init=False)
    jobs: deque[scratch.Folder] = field(default_factory=deque[scratch.Folder])
    unreadable: str | None = None
    """An event of the worker that could not be read, after which the worker was ended."""

    def __post_init__(self) -> None:
        self._took(self.member.worker)

    def do(self, bid: Bid) -> None:
        match bid.do:
            case "job":
                assert bid.job is not None
                self._submit(bid.job)
            case "kill":
                self.worker.kill()
            case _:
                self.worker.close()
                self._clear()
                worker = self.member.restarted()
                self._took(worker)
                worker.listen()

    def _took(self, worker: Worker) -> None:
        self.worker = worker
        worker.listened_to_by(lambda event: self._tell(worker, event))

    def _submit(self, job: dict[str, Any]) -> None:
        here = scratch.Folder()
        self.jobs.append(here)
        data = self.data_folder(job["definition"])
        self.worker.submit(json.dumps({**job, "folder": str(here.path), "arrays": str(here.path), "data": str(data)}))

    def _tell(self, worker: Worker, event: WorkerEvent | Exception | None) -> None:
        """Send process 0 an event of the worker, preceded by the values that it left."""
        if event is None:
            how = self.unreadable or worker.ended("").strip()
            self.wire.send({"how": how, "words": worker.last_words(), "log": worker.log()})
        elif isinstance(event, Exception):
            self.unreadable = f"sent a message that cannot be read: {event}"
            worker.kill()
        elif isinstance(event, Done):
            self.jobs.popleft().remove()
            self.wire.send({"event": encoded(event), "log": worker.log()})
        else:
            if isinstance(event, Finished):
                self._send_values()
            self.wire.send({"event": encoded(event)})

    def _send_values(self) -> None:
        for file in sorted(together.folder(self.jobs[0].path, self.member.number).glob("*.bin")):
            self.wire.send({"file": file.name}, file)
            file.unlink()

    def _clear(self) -> None:
        while self.jobs:
            self.jobs.popleft().remove()

    def close(self) -> None:
        """End the worker, and remove its files."""
        self.worker.close()
        self._clear()
