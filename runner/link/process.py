"""A worker process: started early, given jobs, listened to. Imports next to nothing, so that it is soon started."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from runner.link.events import Said

COMMAND = (sys.executable, "-m", "runner.worker")

_LAST_WORDS = 2000
"""How many characters of the worker's standard error are kept with an error."""

PARTING = 5.0
"""Seconds between the end of a worker's output and the end of the worker."""


class Worker:
    """One worker process, started before its job is known, so that it loads its modules while the input is read."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._events: queue.Queue[Said | Exception | None] = queue.Queue()
        self._strays: list[str] = []
        self._listener: threading.Thread | None = None

    def submit(self, job: str) -> None:
        """Hand the worker a job, a line of JSON; it does one after the other."""
        assert self._process.stdin is not None
        if self._listener is None:
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
        try:
            self._process.stdin.write(job + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It died before its job came; `next` reports how.
            return

    def _listen(self) -> None:
        # Imported while the worker has other things to do.
        from runner.codec import Misfit
        from runner.link.events import heard

        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = heard(line)
            except Misfit as misfit:
                event = misfit
            if event is None:
                self._strays.append(line)
            else:
                self._events.put(event)
        self._events.put(None)

    def next(self, timeout: float) -> Said | None:
        """The next event, or None when there is none any more. Raises `TimeoutError` after `timeout` seconds.

        Raises `Misfit` for an event that is not as it should be.
        """
        try:
            event = self._events.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(event, Exception):
            raise event
        return event

    def end(self) -> int:
        """Wait for the end of a process that has no more to say, and return its exit code."""
        try:
            return self._process.wait(timeout=PARTING)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End the process at once; its log can still be read."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, if it still runs, and let go of everything that belongs to it."""
        self.kill()
        if self._listener is not None:
            self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    # What was still to be written to it is of no use any more.
                    continue

    def log(self, start: int = 0, end: int | None = None) -> str:
        """What the process wrote to standard error between two places, and on standard output what is no event."""
        strays, self._strays = "".join(self._strays), []
        return os.pread(self._stderr.fileno(), self._size(end) - start, start).decode(errors="replace") + strays

    def last_words(self, start: int = 0) -> str:
        """The end of the log that begins at a place."""
        text = os.pread(self._stderr.fileno(), self._size(None) - start, start).decode(errors="replace")
        return (text + "".join(self._strays)).strip()[-_LAST_WORDS:]

    def _size(self, end: int | None) -> int:
        return os.fstat(self._stderr.fileno()).st_size if end is None else end
