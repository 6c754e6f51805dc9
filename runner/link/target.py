"""Runs a job on the workers, and has its events and outputs: the parent's side, without JAX.

The worker is a separate process. A crash, an abort inside the compiler or a hang ends it; the program that it was
running is recorded with the worker's last output, and a new worker continues with the remaining programs
(`link/workers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from runner.base import dtypes
from runner.base.faults import InvalidExperiment
from runner.base.layout import Parts, Spec
from runner.base.lazy import dataclass
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link import handover, scratch
from runner.link.events import (
    Died,
    Event,
    GradientFile,
    Invalid,
    Ran,
    Ranges,
    Traced,
    Types,
    ValuesTyped,
)
from runner.link.jobs import job, kind
from runner.link.together import folder as folder_of
from runner.link.workers import WorkerEnded, Workers


@dataclass(frozen=True)
class ShardPlace:
    """The part of an output that one device has: its row-major position in the mesh, its id, and the index range."""

    position: int
    device: int
    ranges: Ranges


@dataclass(frozen=True)
class DeviceShard(ShardPlace):
    """What one device holds of an output, where the program ran.

    `copy` numbers the distinct values: two devices with the same range and the same `copy` agree bit by bit.
    """

    copy: int
    value: np.ndarray


@dataclass(frozen=True)
class Output:
    """One output of one program. `spec` is the compiler's or the program's; None where it has no PartitionSpec.

    A program that was only compiled has no values; the compiler reports where they would be.
    """

    dtype: str
    shape: tuple[int, ...]
    spec: Spec | None
    held: tuple[DeviceShard, ...]
    compiled: tuple[ShardPlace, ...] = ()

    @property
    def places(self) -> tuple[ShardPlace, ...]:
        """The parts and their devices, whether the program ran or not."""
        return self.held or self.compiled

    @cached_property
    def parts(self) -> dict[Ranges, np.ndarray]:
        """Each index range that is held, with the value of the first device that holds it."""
        parts: dict[Ranges, np.ndarray] = {}
        for part in self.held:
            parts.setdefault(part.ranges, part.value)
        return parts

    def block(self, ranges: Ranges) -> np.ndarray:
        """The values in `ranges` of the whole array, from the first devices that hold them; not to be written to."""
        if ranges in self.parts:
            return self.parts[ranges]
        for held, value in self.parts.items():
            if all(a <= c and d <= b for (a, b), (c, d) in zip(held, ranges, strict=True)):
                # With the ellipsis a scalar stays an array.
                return value[(..., *(slice(c - a, d - a) for (a, _), (c, d) in zip(held, ranges, strict=True)))]
        array = np.zeros(self.shape, dtypes.dtype(self.dtype).numpy)
        for held, value in reversed(self.parts.items()):
            array[tuple(slice(a, b) for a, b in held)] = value
        return array[(..., *(slice(a, b) for a, b in ranges))]

    def whole(self) -> np.ndarray:
        """The whole array, from the first devices that hold each part; not to be written to."""
        return self.block(tuple((0, size) for size in self.shape))


@dataclass
class ProgramRun:
    """The result of one program: its outputs and the worker's event, or the error that ended it."""

    program: Program
    error: str | None = None
    outputs: dict[str, Output] = field(default_factory=dict[str, Output])
    event: Ran | None = None

    @property
    def ran(self) -> Ran:
        """The worker's event of a program that ended without an error."""
        assert self.event is not None
        return self.event


_Awaited = TypeVar("_Awaited")


GradientArrays: TypeAlias = tuple[Arrays, list[Arrays], str | None, list[Arrays]]
"""JAX's gradients of the unsharded graph and draws of their rounding errors, or why there are none; then the same by
the rules of the user's functions: the gradient, and its draws."""


def types_of(workers: Workers, experiment: Experiment, folder: Path, data_folder: Path) -> Types:
    """JAX's types of an experiment; no program is compiled.

    Raises `InvalidExperiment` if JAX refuses them, and `WorkerEnded` if the worker ended before it sent them.
    """
    return types_and_gradients_of(workers, experiment, folder, data_folder)[0]


def types_and_gradients_of(
    workers: Workers,
    experiment: Experiment,
    folder: Path,
    data_folder: Path,
    *,
    gradient: bool = False,
    at_once: bool = False,
) -> tuple[Types, GradientArrays | None]:
    """JAX's types of an experiment, and the gradients of its unsharded graph, if there are any.

    For absent hardware the gradients are computed only if `gradient` is set. With `at_once` the job does not wait for
    those of other experiments. Raises as `types_of` does.
    """
    with scratch.Folder() as own:
        left_here = str(own.path)
        request = {**job(experiment, folder, data_folder, left_here), "gradient": gradient}
        processes = experiment.target.processes
        events = workers.submit(request, kind(experiment), experiment.timeout, processes, at_once=at_once)
        types = awaited(events, Types, "the types")
        gradients = types.gradient
        return types, None if gradients is None else read_gradients(experiment, gradients, Path(left_here))


def value_types_of(workers: Workers, experiment: Experiment, folder: Path, data_folder: Path) -> Parts:
    """The types of all values of the graph, by their numbers; None for those that differ between a loop's steps.

    Raises `InvalidExperiment` if JAX refuses them, and `WorkerEnded`.
    """
    request = {**job(experiment, folder, data_folder, str(folder)), "values": True}
    events = workers.submit(request, kind(experiment), experiment.timeout)
    typed = awaited(events, ValuesTyped, "the types of the values")
    tuples = frozenset(typed.tuples)
    return {
        at: None if types is None else tuple(types) if at in tuples else types[0] for at, types in typed.values.items()
    }


def awaited(events: Iterable[Event], kind: type[_Awaited], what: str) -> _Awaited:
    """Return the event of a kind. Raises what `types_of` raises if the worker reports another end, or none."""
    outcome: _Awaited | InvalidExperiment | WorkerEnded = WorkerEnded(f"the worker ended before it reported {what}")
    # All events are read: a worker whose job is left early is ended, and the next job would have to start another.
    for event in events:
        match event:
            case Invalid():
                outcome = InvalidExperiment(event.fault)
            case Died():
                outcome = WorkerEnded(event.error)
            case _ if isinstance(event, kind):
                outcome = event
            case _:
                continue
    if isinstance(outcome, InvalidExperiment | WorkerEnded):
        raise outcome
    return outcome


def read_gradients(experiment: Experiment, event: GradientFile, left_here: Path) -> GradientArrays:
    """The gradients that the worker left in a folder, by the names of the arrays."""
    assert experiment.grad is not None
    if event.file is None:
        return {}, [], event.error, []
    raw = iter(handover.collect(left_here / event.file))
    shapes = {name: experiment.array(name).shape for name in experiment.grad.wrt}
    of_lines, of_rules = (
        [{name: next(raw).view(np.float64).reshape(shape) for name, shape in shapes.items()} for _ in range(count)]
        for count in (event.of_lines, event.of_rules)
    )
    return of_lines[0] if of_lines else {}, of_lines[1:], None, of_rules


BlockRanges = Callable[[str, int], Ranges]
"""The index ranges of the block of the device at a position, in an output of `vmap`, which has no layout of its own."""


def program_run(
    program: Program, ran: Ran, shapes: Mapping[str, tuple[int, ...]], block_ranges: BlockRanges, arrays: Path
) -> ProgramRun:
    """Return the result of a program, with its outputs as the worker left them in the file `arrays`, if it ran.

    `shapes` are the shapes of the whole outputs.
    """
    run = ProgramRun(program, event=ran)
    position_of = {device: position for position, device in enumerate(ran.device_ids)}
    if ran.only_compiled:
        for name, output in ran.outputs.items():
            listed = output.places or [(device, block_ranges(name, p)) for device, p in position_of.items()]
            places = tuple(ShardPlace(position_of[device], device, where) for device, where in listed)
            run.outputs[name] = Output(output.dtype, shapes[name], output.spec, (), places)
        return run
    raw = [
        value
        for process in range(max(1, len(ran.processes)))
        for value in handover.collect(folder_of(arrays, process) / f"{run.program}.bin")
    ]
    for name, output in ran.outputs.items():
        kind = dtypes.dtype(output.dtype).numpy
        values: dict[int, np.ndarray] = {}
        held: list[DeviceShard] = []
        for device, ranges, entry in output.shards:
            position = position_of[device]
            where = block_ranges(name, position) if ranges is None else ranges
            # The values that one process left are distinct.
            copy = entry if not ran.processes else _first_alike(raw, entry, (h.copy for h in held if h.ranges == where))
            if copy not in values:
                values[copy] = raw[copy].view(kind).reshape(tuple(stop - start for start, stop in where))
            held.append(DeviceShard(position, device, where, copy, values[copy]))
        run.outputs[name] = Output(output.dtype, shapes[name], output.spec, tuple(held))
    return run


def _first_alike(raw: Sequence[np.ndarray], entry: int, entries: Iterable[int]) -> int:
    """The first of some entries that is equal to `entry`, bit by bit; by default `entry` itself."""
    return next((known for known in entries if handover.same_bits(raw[known], raw[entry])), entry)


def traced_values(traced: Traced, arrays: Path) -> dict[str, np.ndarray]:
    """The values of a trace: for each name, what each device holds, by position."""
    files = [handover.collect(folder_of(arrays, process) / "trace.bin") for process in range(len(traced.rows))]
    order = np.argsort([position for rows in traced.rows for position in rows])
    values: dict[str, np.ndarray] = {}
    for at, (name, (shape, dtype)) in enumerate(traced.values.items()):
        kind = dtypes.dtype(dtype).numpy
        stacked = [raw[at].view(kind).reshape(len(rows), *shape) for raw, rows in zip(files, traced.rows, strict=True)]
        # A view of the file, if possible.
        values[name] = stacked[0] if len(files) == 1 else np.concatenate(stacked)[order]
    return values
