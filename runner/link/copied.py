"""Starts a worker as a copy of this process where that is safe; else as a new process.

A script that calls `runner.check` has imported JAX, which takes longer than a small check. A copy of the process has
the imported modules. It is as separate as a new process: its memory, devices and crashes are its own.

A copy has only the thread that made it, so a lock that another thread held would stay locked forever. JAX starts
threads with its devices. So a process is copied only while it has neither devices nor other threads.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import IO

from runner.link import jax_internals, lifeline
from runner.link.process import COMMAND, Launch, Worker, spawned

_log = logging.getLogger("runner")

_LOOK = 0.005
"""Seconds between two checks whether a process has ended."""


def worker() -> Worker:
    """A worker of this process's own run: a copy of this process, or else a new process."""
    return Worker(start=started)


def started(command: Sequence[str], stderr: IO[bytes], environment: Mapping[str, str]) -> Launch:
    """Start `command`, a worker's, in a copy of this process, or else in a new one."""
    reason = unsafe()
    if reason is None:
        copy = _Copy(command[len(COMMAND) - 1 :], stderr, environment)
        if _threads() == 1:
            _log.info("the worker is a copy of this process, which has imported JAX")
            return Launch(copy, copy=True)
        copy.kill()
        copy.wait()
        copy.close()
        reason = "a library has started threads"
    _log.info("the worker is a new process, since %s", reason)
    return spawned(command, stderr, environment, reason)


def unsafe() -> str | None:
    """The reason why this process cannot be copied, as far as it shows without doing so; None if there is none."""
    if sys.platform != "linux":
        return "only Linux copies a process that has loaded libraries"
    if "jax" not in sys.modules:
        return "JAX is not imported"
    if threading.active_count() > 1 or threading.current_thread() is not threading.main_thread():
        return "this process has several threads"
    if jax_internals.has_devices():
        return "JAX has devices here"
    return None


def _threads() -> int:
    """The number of the system's threads in this process.

    Libraries that stop their threads for a fork, as NumPy's does, have none just after one.
    """
    return len(os.listdir("/proc/self/task"))


class _Copy:
    """A copy of this process that runs a module as `python -m` does; as much of `subprocess.Popen` as is needed."""

    def __init__(self, arguments: Sequence[str], stderr: IO[bytes], environment: Mapping[str, str]) -> None:
        """`arguments` are those of `python -m`: the module's name, and its own arguments."""
        there_in, here_in = os.pipe()
        here_out, there_out = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of other threads, with which the copy is not used.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _run(arguments, (there_in, there_out, stderr.fileno()), (here_in, here_out), environment)
        os.close(there_in)
        os.close(there_out)
        self.stdin: IO[str] = os.fdopen(here_in, "w", encoding="utf-8", errors="replace")
        self.stdout: IO[str] = os.fdopen(here_out, "r", encoding="utf-8", errors="replace")
        self._code: int | None = None

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if timeout is None:
            self._reap(0)
        deadline = time.monotonic() + (timeout or 0.0)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a copy of this process", timeout or 0.0)
            time.sleep(_LOOK)
        return code

    def close(self) -> None:
        """Close the pipes of a copy that is not used."""
        self.stdin.close()
        self.stdout.close()

    def poll(self) -> int | None:
        """The exit status; None if it still runs."""
        self._reap(os.WNOHANG)
        return self._code

    def _reap(self, options: int) -> None:
        if self._code is not None:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # The caller's own code has waited for it, or ignores the ends of its children: the status is lost.
            self._code = 0
        else:
            self._code = os.waitstatus_to_exitcode(status) if pid else None


def _run(
    arguments: Sequence[str], streams: tuple[int, int, int], others: Sequence[int], environment: Mapping[str, str]
) -> None:
    """Run a module in the copy with these standard streams, and end it; `others` are descriptors of the original."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        for here, stream in enumerate(streams):
            os.dup2(stream, here)
        for descriptor in (*streams[:2], *others):
            os.close(descriptor)
        # What the original has written to its own and not yet flushed is the original's to flush.
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        logging.root.handlers.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        sys.argv = [arguments[0], lifeline.guard(arguments[1]), *arguments[2:]]
        # A new thread has none of the JAX contexts that the caller is in: meshes, devices, traces.
        thread = threading.Thread(target=_run_module, args=(arguments[0],))
        thread.start()
        thread.join()
    finally:
        os._exit(1)


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__")
    os._exit(0)
