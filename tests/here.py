"""A worker that is this process: the tool's own flow, run without starting another one.

JAX's number of devices and its platform are those of the process, which reads them once: what a program's header says
of them changes nothing here. Everything else that it says of JAX holds, until the job is done.
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

from runner.link.events import Said, heard, said
from runner.link.process import Worker
from runner.worker import calls, shared, warm
from runner.worker import job as jobs

_OF_THE_PROCESS = ("jax_platforms", "jax_num_cpu_devices")
_UNOPTIMIZED = "jax_disable_most_optimizations"

OPTIMIZED = True
"""Whether LLVM optimizes what is compiled. XLA partitions, fuses and schedules in either case, and LLVM's work on that
takes a third of the time; `conftest.py` says which sessions leave it out."""


@contextlib.contextmanager
def configurable() -> Iterator[None]:
    """Let programs and the worker configure JAX as they do in a process of their own; undo it afterwards."""
    genuine = jax.config.update
    # What a test plants in the compiler's place is asked, whatever was compiled before.
    shared.forget()
    before: dict[str, Any] = {}
    bytecode = sys.dont_write_bytecode

    def update(name: str, value: Any) -> None:
        if name not in _OF_THE_PROCESS:
            before.setdefault(name, getattr(jax.config, name))
            genuine(name, value)

    try:
        with (
            mock.patch.object(jax.config, "update", update),
            mock.patch.object(calls, "configure", update),
            mock.patch.object(warm, "simulate"),
        ):
            genuine(_UNOPTIMIZED, not OPTIMIZED)
            yield
    finally:
        genuine(_UNOPTIMIZED, False)
        sys.dont_write_bytecode = bytecode
        for name, value in before.items():
            genuine(name, value)


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[ModuleType]:
    """A program's module, as the worker imports it, while JAX is configured as its header says."""
    with configurable():
        yield jobs._load(path)


class Here(Worker):
    """Runs its job as soon as it is submitted; what it tells crosses as the lines that a process would write.

    What the worker itself raises, which would end its process, is raised by `submit`.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque()

    def submit(self, job: str) -> None:
        with configurable():
            jobs.run(json.loads(job), self.emit)

    def emit(self, event: Said) -> None:
        """Take in what the worker tells."""
        self._lines.append(said(event))

    def next(self, timeout: float) -> Said | None:
        return heard(self._lines.popleft()) if self._lines else None

    def ended(self, name: str = "the process") -> str:
        return f"{name} ended with status 0"

    def kill(self) -> None:
        """There is no process to end."""

    def close(self) -> None:
        """There is nothing to let go of."""

    def log(self) -> str:
        return ""

    def last_words(self) -> str:
        return ""
