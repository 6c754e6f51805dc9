"""A worker process, which is started early, receives jobs and sends events. This imports little, to start quickly."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from runner.link import lifeline, scratch

if TYPE_CHECKING:
    from runner.link.events import WorkerEvent

Hear: TypeAlias = "Callable[[WorkerEvent | Exception | None], None]"
"""Receives what a process sends: an event, an error in one, or its end."""

ISOLATED = (sys.executable, "-P", str(Path(__file__).with_name("isolated.py")))
"""Runs a module of this package, the next argument, where nothing is imported from the current folder."""

COMMAND = (*ISOLATED, "runner.worker")

CLUSTER = "cluster"
"""The membership of a process that has to ask the cluster for its number."""

ANNOUNCED = "announced"
"""The key of a line that is not a job: the definition of an experiment whose job is likely to come."""

_LAST_WORDS = 2000
"""The number of characters of the worker's standard error that are kept with an error."""

_GLANCE = 0.2
"""Seconds between two checks whether a process has ended, where the system does not tell."""

PARTING = 5.0
"""Seconds between the end of a worker's output and the end of the worker."""


class Process(Protocol):
    """A process whose standard streams are pipes: as much of `subprocess.Popen` as a worker needs."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def kill(self) -> None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Launch(NamedTuple):
    """A started process: whether it is a `copy` of this one, or a new one and the `reason`, if a copy was asked for."""

    process: Process
    copy: bool = False
    reason: str | None = None


Start: TypeAlias = "Callable[[Sequence[str], IO[bytes], Mapping[str, str]], Launch]"
"""Starts a command with this standard error and environment."""


def spawned(
    command: Sequence[str], stderr: IO[bytes], environment: Mapping[str, str], reason: str | None = None
) -> Launch:
    """Start a command in a new process, for this `reason` if a copy was asked for."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**environment},
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    return Launch(process, reason=reason)


class Worker:
    """One worker process, started before its job is known, so that it loads its modules while the input is read."""

    launch: Launch | None = None
    """How it was started; None for one that is no process."""

    def __init__(
        self, command: Sequence[str] = COMMAND, membership: Sequence[str] = (), start: Start = spawned
    ) -> None:
        """`membership` says which of several processes it is; `runner/worker/processes.py` reads it."""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._scratch = scratch.Folder()
        """The folder of the process's temporary files: libtpu leaves its logs there."""
        launch = start(
            [*command, lifeline.owner(), *membership],
            self._stderr,
            {**os.environ, "TMPDIR": str(self._scratch.path)},
        )
        self.launch, self._process = launch, launch.process
        self._end = _end_of(launch.process.pid)
        """A descriptor that can be read when the process has ended, where the system has such."""
        self._events: queue.Queue[WorkerEvent | Exception | None] = queue.Queue()
        self._hear: Hear = self._events.put
        self._strays: list[str] = []
        self._listener: threading.Thread | None = None
        self._begins = 0
        """The position in its standard error at which the output of this job begins."""
        self._done: deque[int] = deque()
        """The positions at which that of each finished job ends."""
        _LIVE.add(self)

    def listened_to_by(self, hear: Hear) -> None:
        """Pass its events to `hear` rather than to `next`, from the next job on."""
        self._hear = hear

    def listen(self) -> None:
        """Read its events, also before it has a job."""
        if self._listener is None:
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()

    def announce(self, announcement: str) -> None:
        """Tell the worker, in a line of JSON, which job is likely to come; it sends no event for it."""
        self._write(announcement)

    def submit(self, job: str) -> None:
        """Send the worker a job, a line of JSON; it does its jobs in order."""
        self.listen()
        self._write(job)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It died before its job came; `next` reports how.
            return

    def _listen(self) -> None:
        # Imported while the worker is busy.
        from runner.base.codec import Misfit
        from runner.link.events import Done, heard

        assert self._process.stdout is not None
        for line in self._lines(self._process.stdout.fileno()):
            try:
                event = heard(line)
            except Misfit as misfit:
                event = misfit
            if event is None:
                self._strays.append(line)
            else:
                if isinstance(event, Done):
                    self._done.append(event.log)
                self._hear(event)
        self._hear(None)

    def _lines(self, stdout: int) -> Iterator[str]:
        """Yield the lines of its output until it has ended: a process that it has forked may hold the pipe longer."""
        os.set_blocking(stdout, False)
        poll = select.poll()
        for descriptor in (stdout, self._end):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        parts: list[bytes] = []
        over = False
        while True:
            if not over:
                ready = {descriptor for descriptor, _ in poll.poll(None if self._end is not None else _GLANCE * 1000)}
                over = self._end in ready if self._end is not None else self._process.poll() is not None
            try:
                read = os.read(stdout, 1 << 16)
            except BlockingIOError:
                if over:
                    break
                continue
            if not read:
                break
            *lines, rest = read.split(b"\n")
            for line in lines:
                yield b"".join([*parts, line]).decode(errors="replace") + "\n"
                parts.clear()
            if rest:
                parts.append(rest)
        if parts:
            yield b"".join(parts).decode(errors="replace")

    def next(self, timeout: float) -> WorkerEvent | None:
        """The next event; None if there are no more. Raises `TimeoutError` after `timeout` seconds.

        Raises `Misfit` for an invalid event.
        """
        try:
            event = self._events.get(timeout=bounded(timeout))
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(event, Exception):
            raise event
        return event

    def ended(self, name: str = "the process") -> str:
        """Wait for the end of a process that sends nothing more, and say how it ended."""
        try:
            code = self._process.wait(timeout=PARTING)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return how_it_ended(code, name)

    def kill(self) -> None:
        """End the process at once, with all that it has started; its log can still be read."""
        self.dismiss()
        self._process.wait()

    def dismiss(self) -> None:
        """End the process without waiting for the system to remove it; its log is no longer needed."""
        if self._process.poll() is None:
            lifeline.kill(self._process.pid)

    def await_end(self, seconds: float) -> None:
        """Wait until the system has ended the process, for at most so many seconds."""
        if self._end is not None:
            # Another thread of this process may close the descriptor.
            with contextlib.suppress(OSError):
                select.select([self._end], [], [], max(0.0, seconds))

    def close(self) -> None:
        """End the process, if it still runs, and release its resources."""
        self.kill()
        if self._listener is not None:
            self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    # Unwritten input is no longer needed.
                    continue
        if self._end is not None:
            os.close(self._end)
            self._end = None
        self._scratch.remove()
        _LIVE.discard(self)

    def log(self) -> str:
        """Its output in the finished job, or in that in which it ended, with the lines on stdout that are no events.

        What it writes from then on belongs to the next job.
        """
        strays, self._strays = "".join(self._strays), []
        ends = self._done.popleft() if self._done else self._size()
        text = os.pread(self._stderr.fileno(), ends - self._begins, self._begins).decode(errors="replace")
        self._begins = ends
        return text + strays

    def last_words(self) -> str:
        """The end of what it wrote in this job."""
        text = os.pread(self._stderr.fileno(), self._size() - self._begins, self._begins).decode(errors="replace")
        return (text + "".join(self._strays)).strip()[-_LAST_WORDS:]

    def _size(self) -> int:
        return os.fstat(self._stderr.fileno()).st_size


_LIVE: set[Worker] = set()
"""The workers of this process that are not closed."""


_GONE = 0.5
"""Seconds in which the system ends processes that were killed, on a busy machine too."""


def abandon(*, at_once: bool = False) -> None:
    """End the workers of a command that ends, and remove all its temporary files, wherever it was interrupted.

    With `at_once` other threads may still run, but make no more of them.
    """
    if at_once:
        scratch.make_no_more()
    for worker in list(_LIVE):
        # Another thread of this process may be waiting for it.
        worker.dismiss()
    deadline = time.monotonic() + _GONE
    for worker in list(_LIVE):
        # What it still writes would be left in a folder that is removed now.
        worker.await_end(deadline - time.monotonic())
    scratch.remove_own()


def _end_of(pid: int) -> int | None:
    """A descriptor that can be read when a child of this process has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def bounded(timeout: float) -> float:
    """A timeout that a queue accepts, in seconds."""
    return min(max(0.0, timeout), threading.TIMEOUT_MAX)


def how_it_ended(code: int, name: str) -> str:
    """Return the exit code of a process as text."""
    if code < 0:
        try:
            number = signal.Signals(-code).name
        except ValueError:
            number = f"signal {-code}"
        return f"{name} was ended by {number}"
    return f"{name} ended with status {code}"
