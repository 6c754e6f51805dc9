"""A worker process: started early, given one job, listened to. Imports next to nothing, so that it is soon started."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.link.events import Event

COMMAND = (sys.executable, "-m", "runner.worker")

_LAST_WORDS = 2000
"""How many characters of the worker's standard error are kept with an error."""

_PARTING = 5.0
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
        self._events: queue.Queue[Event | Exception | None] = queue.Queue()
        self._strays: list[str] = []
        self._listener: threading.Thread | None = None

    def submit(self, job: dict[str, Any]) -> None:
        """Hand the worker its job."""
        assert self._process.stdin is not None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.close()
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

    def next(self, timeout: float) -> Event | None:
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
            return self._process.wait(timeout=_PARTING)
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

    def log(self) -> str:
        """What the process wrote to standard error, and on standard output what is no event."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace") + "".join(self._strays)

    def last_words(self) -> str:
        """The end of the log."""
        return self.log().strip()[-_LAST_WORDS:]
