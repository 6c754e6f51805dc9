"""A command line in; the result of `python -m runner` or `pytest`, in a forked process, out.

Python, Hydra, pytest, the runner and JAX are imported once. A worker starts only when a job comes, since most bad input
is refused before: the first worker of a command is a fork that has imported JAX; the command's own process has not.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, Any, ClassVar, cast

import pytest

ROOT = Path(__file__).parent.parent

TIMED = "computed seconds"
"""The property of a test's report with the computing time of its command line."""

SELDOM = 3600.0
"""Seconds between lines of progress in tests: a loaded machine then has none in the output that tests compare."""


@dataclass(frozen=True)
class Done:
    """The result of a command line: its exit status, its output, its duration.

    - `cpu`: its computing seconds, including those of child processes that it waited for.
    - `jax`: whether it imported JAX.
    - `forked`: whether its worker was a fork that had imported JAX.

    A status below 0 is the signal that ended it.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    cpu: float
    jax: bool
    forked: bool = False


def command(folder: Path, *arguments: str, module: str = "runner", limit: float = 120.0, **environment: str) -> Done:
    """Run a command line from `folder`, with `environment` variables added; it is killed after `limit` s.

    - `module`: `runner`, the runner with a subcommand (`runner derive`), or `pytest`.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    words = (*module.split(), *arguments)
    asked = {"folder": str(folder), "arguments": words, "limit": limit, "environment": environment}
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        _server.cache_clear()
        raise AssertionError(f"the server ended with status {server.wait()}")
    return Done(**json.loads(answer))


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    """Close the server's input, which ends it, and wait for it."""
    assert server.stdin is not None
    assert server.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        server.stdin.close()
    server.wait()
    server.stdout.close()


def _serve() -> None:
    from runner.link import process

    process.Worker = _Late  # pyright: ignore[reportAttributeAccessIssue]

    # The imports of every command line.
    for name in _OF_COMMANDS:
        importlib.import_module(name)
    from runner.experiment.config.compose import compose
    from runner.experiment.config.folders import conf_folder

    # The first composition of a process loads Hydra's plugins and prepares its parsers.
    compose("case3_allreduce", conf_folder(), ["mesh.shape=[4,1]"])
    assert "jax" not in sys.modules
    loaded = set(sys.modules)
    for name in _OF_WORKERS:
        importlib.import_module(name)
    from runner.reports.show import progress
    from tests import quick

    progress.PIPED = SELDOM
    if os.environ.keys() >= quick.ENVIRONMENT.keys():
        quick.compile_quickly()

    # If a command's own process imports JAX, it does so again, which the tests detect.
    _WORKERS_OWN.update({name: sys.modules.pop(name) for name in set(sys.modules) - loaded if name.startswith(_HIDDEN)})
    # Garbage collections then skip the existing objects, which stay shared between the processes.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(asdict(_done(**asked))), flush=True)


_OF_COMMANDS = (
    "hydra._internal.logging_config",
    "hydra.main",
    "omegaconf._impl",
    "runner.checks.known",
    "runner.app.cli.command",
    "runner.app.cli.composing",
    "runner.app.cli.sweeping",
    "runner.experiment.config.config_errors",
    "runner.experiment.config.trust",
    "runner.app.flow.drawing",
    "runner.app.flow.findings",
    "runner.app.flow.recording",
    "runner.app.flow.run",
    "runner.reports.show.collectives",
    "runner.reports.show.remarks",
    "runner.reports.show.modes",
    "runner.reports.show.report",
    "runner.app.testing.items",
)
"""The modules that most command lines import."""

_OF_WORKERS = (
    "jax.experimental.multihost_utils",
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
    "runner.worker.__main__",
    "runner.worker.derive",
    "runner.worker.job",
)
"""The modules that most workers import."""

_HIDDEN = ("jax", "runner.worker")
_WORKERS_OWN: dict[str, ModuleType] = {}
"""The modules that only a worker imports."""


class _Late:
    """A worker that starts when its job comes, or when it learns which of several workers it is."""

    def __init__(self, membership: Sequence[str] = ()) -> None:
        self._membership = membership
        self._worker: Any = None

    def announce(self, announcement: str) -> None:
        """Do nothing: the forked process has imported JAX already."""

    def dismiss(self) -> None:
        """End it, if it was started."""
        if self._worker is not None:
            self._worker.dismiss()

    def submit(self, job: dict[str, Any]) -> None:
        """Start it if necessary, and hand it the job."""
        if self._worker is None:
            self._worker = _WORKER() if _Spare.waiting is None else _WORKER(start=_Spare.taken)
        self._worker.submit(job)

    def listen(self) -> None:
        """Start it, and wait for its first message."""
        self._worker = _WORKER(membership=self._membership)
        self._worker.listen()

    def close(self) -> None:
        """End it, if it was started."""
        if self._worker is not None:
            self._worker.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


class _Spare:
    """A process with everything imported that a worker needs, forked early while there are no threads.

    It has the interface of `subprocess.Popen`.
    """

    waiting: ClassVar[_Spare | None] = None
    """The spare process of this command, until it is taken."""
    used: ClassVar[bool] = False
    """Whether it was taken."""

    def __init__(self) -> None:
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()
        self._ours, asked = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            for ours in (stdin, stdout):
                os.close(ours)
            self._ours.close()
            _be_worker(parent, child_stdin, child_stdout, asked)
        for given in (child_stdin, child_stdout):
            os.close(given)
        asked.close()
        self.stdin = os.fdopen(stdin, "w", encoding="utf-8", errors="replace")
        self.stdout = os.fdopen(stdout, "r", encoding="utf-8", errors="replace")
        self._status: int | None = None

    @classmethod
    def taken(cls, command: Sequence[str], stderr: IO[bytes], environment: Mapping[str, str]) -> Launch:
        """Return this command's spare instead of a new process of `command`.

        Its errors are written to `stderr`, and its temporary folder is that of `environment`.
        """
        spare, cls.waiting = cls.waiting, None
        assert spare is not None
        with spare._ours as ours:
            socket.send_fds(ours, [os.fsencode(environment["TMPDIR"])], [stderr.fileno()])
        _Spare.used = True
        return Launch(spare)

    def poll(self) -> int | None:
        """Return its exit status, below 0 for a signal; None if it still runs."""
        if self._status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status, below 0 for a signal. Raises `subprocess.TimeoutExpired`."""
        if timeout is None and self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        deadline = time.monotonic() + (timeout or 0.0)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the worker", timeout or 0.0)
            time.sleep(0.005)
        return status

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _be_worker(parent: int, stdin: int, stdout: int, asked: socket.socket) -> None:
    """Wait until a worker is needed, then become it. Never returns."""
    from runner.link import lifeline

    try:
        lifeline.die_with(str(parent))
        message, descriptors, _, _ = socket.recv_fds(asked, 4096, 1)
        if not message:
            os._exit(0)
        os.environ["TMPDIR"] = os.fsdecode(message)
        tempfile.tempdir = None
        sys.modules.update(_WORKERS_OWN)
        # As in a separate process: the command's strict warnings do not apply to its worker.
        cast("Any", warnings).filters[:] = _FILTERS
        sys.warnoptions.clear()
        for held, number in ((stdin, 0), (stdout, 1), (descriptors[0], 2)):
            os.dup2(held, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", errors=errors, closefd=False)
            for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
        )
        sys.argv = ["runner.worker", str(parent)]
        from runner.worker import __main__ as worker

        worker.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _done(folder: str, arguments: Sequence[str], limit: float, environment: Mapping[str, str]) -> Done:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        imported, report = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(imported)
            _be(folder, arguments, environment, out, err, report)
        os.close(report)
        status, cpu = _ended(child, limit)
        seconds = time.monotonic() - start
        with os.fdopen(imported, "rb") as pipe:
            words = pipe.read().decode().split()
        out.seek(0)
        err.seek(0)
        return Done(status, out.read().decode(), err.read().decode(), seconds, cpu, "jax" in words, "forked" in words)


def _be(
    folder: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    report: int,
) -> None:
    """Become the process of one command line. Never returns."""
    status = 3
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        os.environ.update(environment)
        if "PYTHONPATH" in environment:
            sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        # JAX and XLA read their variables when they were imported.
        _Spare.waiting = None if any(name.startswith(("JAX_", "XLA_")) for name in environment) else _Spare()
        warnings.simplefilter("error")
        sys.warnoptions.append("error")
        nothing = os.open(os.devnull, os.O_RDONLY)
        for held, number in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(held, number)
        sys.argv = list(arguments)
        module = arguments[0]
        if module == "pytest":
            # pytest would rewrite assertions in modules that are imported already.
            sys.exit(pytest.main(["--assert=plain", *arguments[1:]]))
        runpy.run_module(module, run_name="__main__")
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(report, f"{'jax' if 'jax' in sys.modules else ''} {'forked' if _Spare.used else ''}".encode())
        os._exit(status)


def _ended(child: int, limit: float) -> tuple[int, float]:
    """Return the exit status and the computing time of a process; after the limit it is killed with its children."""

    def late(number: int, frame: FrameType | None) -> None:
        os.killpg(child, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        _, status, used = os.wait4(child, 0)
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    _FILTERS = list(warnings.filters)
    from runner.link.process import Launch
    from runner.link.process import Worker as _WORKER

    _serve()
