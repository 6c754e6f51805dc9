"""A program's function and its operands, real or abstract, in; the executable and what the compiler says of it out."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import Cost, Memory, Ranges
from runner.record.files import write_text
from runner.sharding.plan import Planned
from runner.worker import calls, plan
from runner.worker.walk import REFUSALS, refusal


class NotLowered(Exception):
    """JAX's sharding types refuse an operation that JAX puts together from others only while it lowers it."""


@dataclass(frozen=True)
class Compiled:
    """`results` has the shape and dtype of every output; `seconds` is what lowering and compiling took.

    `said` is what the compiler wrote to standard error meanwhile; None where it cannot be read back. `lowered` is what
    was compiled. `unreadable` is why the compiled module could not be printed; None where it could.
    """

    executable: Any
    results: tuple[Any, ...]
    seconds: float
    said: str | None
    lowered: Any
    unreadable: str | None = None

    def memory(self) -> Memory | None:
        """Bytes per device, where the backend knows them."""
        stats = self.executable.memory_analysis()
        if stats is None:
            return None
        return Memory(
            argument_bytes=stats.argument_size_in_bytes,
            output_bytes=stats.output_size_in_bytes,
            temp_bytes=stats.temp_size_in_bytes,
            peak_bytes=stats.peak_memory_in_bytes,
        )

    def cost(self) -> Cost | None:
        """The compiler's estimate per device: operations, bytes accessed, seconds, as far as the backend has them."""
        cost = self.executable.cost_analysis()
        if not cost:
            return None
        known = {
            "flops": cost.get("flops"),
            "bytes_accessed": cost.get("bytes accessed"),
            "optimal_seconds": cost.get("optimal_seconds"),
        }
        told = {name: float(value) for name, value in known.items() if value is not None and value >= 0}
        return Cost(**told) if told else None


def compile_program(program: Program, function: Any, operands: Any, folder: Path) -> Compiled:
    """Lower and compile; leave the StableHLO and the compiled module in `folder`."""
    said = _Said()
    start = time.perf_counter()
    lowered = _lower(program, function, operands)
    executable = lowered.compile()
    seconds = time.perf_counter() - start
    heard = said.text()
    write_text(folder / f"stablehlo_{program}.txt", lowered.as_text())
    text, unreadable = _text(executable)
    write_text(folder / f"hlo_{program}.txt", text)
    return Compiled(executable, tuple(lowered.out_info), seconds, heard, lowered, unreadable)


def planned(experiment: Experiment, program: Program, compiled: Compiled, folder: Path) -> Planned | None:
    """What Shardy plans of a program of whole arrays; a device's own code needs no plan."""
    return plan.of_program(experiment, program, compiled.lowered, folder) if program.whole else None


def _text(executable: Any) -> tuple[str, str | None]:
    """The compiled module's text, empty where there is none to be had, and what the backend raised instead of it."""
    try:
        return executable.as_text() or "", None
    except calls.JaxRuntimeError as error:
        # What else the backend knows of the program is there all the same: its memory, its cost, the program itself.
        return "", str(error).strip().split("\n")[0]


class _Said:
    """What is written to file descriptor 2 from now on: XLA's warnings go nowhere else."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._start = os.fstat(2).st_size

    def text(self) -> str | None:
        """What was written since; None where the descriptor is no file that can be read back."""
        sys.stderr.flush()
        try:
            return os.pread(2, os.fstat(2).st_size - self._start, self._start).decode(errors="replace")
        except OSError:
            return None


def _lower(program: Program, function: Any, operands: Any) -> Any:
    if not program.typed:
        return function.lower(*operands)
    try:
        return function.lower(*operands)
    except REFUSALS as error:
        raise NotLowered(refusal(error, [])) from error


def ranges(index: tuple[slice, ...], shape: tuple[int, ...]) -> Ranges:
    """The half-open range per dimension that an index of slices stands for."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
