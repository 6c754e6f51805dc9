"""A worker that is this process: the tool's own flow, without starting another process.

JAX's number of devices and its platform are those of this process, which reads them once: a program's header cannot
change them here. All other JAX settings of the header hold until the job is done.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax

from runner.link.events import WorkerEvent, encoded, heard
from runner.link.process import Worker
from runner.worker import calls, shared, warm
from runner.worker import job as jobs
from tests import quick

_OF_THE_PROCESS = ("jax_platforms", "jax_num_cpu_devices")
OPTIMIZED = True
"""Whether LLVM optimizes what is compiled; `conftest.py` says which sessions leave it out."""


@contextlib.contextmanager
def configurable() -> Iterator[None]:
    """Let programs and the worker configure JAX as they do in their own process; undo it afterwards."""
    genuine = jax.config.update
    # A planted compiler must be called even if the program was compiled before.
    shared.forget()
    before: dict[str, Any] = {}
    bytecode = sys.dont_write_bytecode

    def update(name: str, value: Any) -> None:
        if name not in (*_OF_THE_PROCESS, quick.UNOPTIMIZED):
            before.setdefault(name, jax.config.values[name])
            genuine(name, value)

    try:
        with (
            mock.patch.object(jax.config, "update", update),
            mock.patch.object(calls, "configure", update),
            mock.patch.object(warm, "simulate"),
        ):
            genuine(quick.UNOPTIMIZED, not OPTIMIZED)
            yield
    finally:
        genuine(quick.UNOPTIMIZED, False)
        sys.dont_write_bytecode = bytecode
        for name, value in before.items():
            genuine(name, value)


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[ModuleType]:
    """Import a program's module as the worker does, with the JAX configuration of its header."""
    with configurable():
        yield jobs._load(path)


class Here(Worker):
    """Runs its job as soon as it is submitted; its events pass through the same lines that a process would write.

    Exceptions of the worker itself, which would end its process, are raised by `submit`.
    """

    def __init__(self) -> None:
        self._heard: deque[str] = deque()

    def submit(self, job: str) -> None:
        with configurable():
            jobs.run(json.loads(job), self.emit)

    def emit(self, event: WorkerEvent) -> None:
        """Receive an event of the worker."""
        self._heard.append(encoded(event))

    def next(self, timeout: float) -> WorkerEvent | None:
        return heard(self._heard.popleft()) if self._heard else None

    def ended(self, name: str = "the process") -> str:
        return f"{name} ended with status 0"

    def dismiss(self) -> None:
        """Do nothing: there is no process."""

    def kill(self) -> None:
        """Do nothing: there is no process."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def log(self) -> str:
        return ""

    def last_words(self) -> str:
        return ""
