"""A job in, events and outputs out: what the parent hears from its workers, without JAX.

The worker is a process of its own. A crash, an abort inside the compiler or a hang ends it; the program that it was
running is recorded with the worker's last words, and a new worker goes on with the programs that are left.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from runner import dtypes
from runner.experiment.program import Program
from runner.faults import InvalidExperiment
from runner.layout import Spec
from runner.link import handover
from runner.link.events import (
    Cost,
    Died,
    Event,
    Finished,
    Invalid,
    Log,
    Memory,
    OutputTold,
    Ran,
    Ranges,
    Started,
    Timing,
    Traced,
    Types,
    ValueLayout,
)
from runner.link.process import Worker
from runner.link.steps import Step
from runner.sharding.plan import AskedCollective, Planned, Reshard


@dataclass(frozen=True)
class Place:
    """Which part of an output one device has: its row-major position in the mesh, its id, the index range."""

    position: int
    device: int
    ranges: Ranges


@dataclass(frozen=True)
class Held(Place):
    """What one device holds of an output, where the program ran.

    `copy` numbers the distinct values: two devices with the same range and the same `copy` agree bit by bit.
    """

    copy: int
    value: np.ndarray


@dataclass(frozen=True)
class Output:
    """One output of one program. `spec` is the compiler's or the program's; None where it has no PartitionSpec.

    A program that was only compiled holds nothing; the compiler tells the places where it would.
    """

    dtype: str
    shape: tuple[int, ...]
    spec: Spec | None
    held: tuple[Held, ...]
    compiled: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the parts lie, whether the program ran or not."""
        return self.held or self.compiled

    @cached_property
    def parts(self) -> dict[Ranges, np.ndarray]:
        """Each index range that is held, with the value of the first device that holds it."""
        parts: dict[Ranges, np.ndarray] = {}
        for part in self.held:
            parts.setdefault(part.ranges, part.value)
        return parts

    def block(self, ranges: Ranges) -> np.ndarray:
        """What lies in `ranges` of the whole array, from the first devices that hold it; not to be written to."""
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
    """What one program did: its outputs and evidence, or the error that ended it."""

    program: Program
    error: str | None = None
    outputs: dict[str, Output] = field(default_factory=dict[str, Output])
    operands: dict[str, list[tuple[int, Ranges]]] = field(default_factory=dict[str, list[tuple[int, Ranges]]])
    device_ids: list[int] = field(default_factory=list[int])
    memory: Memory | None = None
    cost: Cost | None = None
    timing: Timing | None = None
    layouts: dict[str, ValueLayout] | None = None
    plan: Planned | None = None
    coordinates: list[list[int]] | None = None
    lowered: list[AskedCollective] | None = None
    reshards: dict[str, Reshard] = field(default_factory=dict[str, Reshard])
    said: str | None = None
    """What the compiler wrote to standard error; None where nobody could hear it."""
    unreadable: str | None = None
    """Why the compiled module could not be printed; None where it could."""


def job(
    config: Mapping[str, Any], folder: Path, data_folder: Path, left_here: str, steps: Iterable[Step] = ()
) -> dict[str, Any]:
    """What a worker is told to do with a resolved configuration.

    Programs are written into `folder`, `load` looks in `data_folder`, values are left in `left_here`.
    """
    return {
        "config": dict(config),
        "folder": str(folder.resolve()),
        "data": str(data_folder.resolve()),
        "arrays": left_here,
        "steps": [step.to_json() for step in steps],
    }


def types_of(worker: Worker, config: Mapping[str, Any], folder: Path, data_folder: Path, timeout: float) -> Types:
    """What JAX's types say of an experiment, none of whose programs is compiled.

    Raises `InvalidExperiment` for what they refuse, and `RuntimeError` where the worker ended before it told them.
    """
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        for event in listen(worker, job(config, folder, data_folder, left_here), timeout):
            match event:
                case Invalid():
                    raise InvalidExperiment(event.fault)
                case Died():
                    raise RuntimeError(event.error)
                case Types():
                    return event
                case _:
                    continue
    raise RuntimeError("the worker ended before it told the types")


def listen(
    worker: Worker, job: dict[str, Any], timeout: float, start: Callable[[], Worker] = Worker
) -> Iterator[Event]:
    """Hand `worker` the job at once, then yield its events to the end, starting new workers where one dies.

    A program that ends its worker yields a `finished` event with an `error` like any other. The log of each worker is
    yielded when it has ended, as the event `log`.
    """
    worker.submit(job)
    return _events(worker, job, timeout, start)


def _events(worker: Worker, job: dict[str, Any], timeout: float, start: Callable[[], Worker]) -> Iterator[Event]:
    left = [Step.from_json(step) for step in job["steps"]]
    first = True
    while True:
        try:
            running, ended = yield from _one_worker(worker, timeout, left, first)
            words = worker.last_words()
            yield Log(text=worker.log())
        finally:
            # Also where nobody listens any more.
            worker.close()
        if ended is None:
            return
        error = ended + (f"; its last words:\n{words}" if words else "")
        if running is None:
            yield Died(error=error)
            return
        left[:] = [step for step in left if step.left_by(running)]
        yield Finished(step=running, error=error)
        if not left:
            return
        first = False
        worker = start()
        worker.submit({**job, "steps": [step.to_json() for step in left]})


def _one_worker(
    worker: Worker, timeout: float, left: list[Step], first: bool
) -> Generator[Event, None, tuple[Step | None, str | None]]:
    """Yield one worker's events and take what it finishes out of `left`.

    Returns the step during which it ended, and how it ended: None where its job was done.
    """
    running: Step | None = None
    while True:
        try:
            event = worker.next(timeout)
        except TimeoutError:
            worker.kill()
            return running, f"no result after {timeout:g} s: it hangs, in a collective or in the compiler"
        if event is None:
            return running, _how_it_ended(worker.end())
        match event:
            case Started():
                running = event.step
            case Finished():
                left.remove(event.step)
                running = None
            case Types():
                left[:] = [step for step in left if step.supported(event.unsupported)]
            case _:
                pass
        if first or not isinstance(event, Types):
            yield event
        if isinstance(event, Invalid) or (isinstance(event, Finished | Types) and not left):
            # It has nothing left to do, and takes its time to leave.
            worker.kill()
            return None, None


def _how_it_ended(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the process was ended by {name}"
    return f"the process ended with status {code}"


BlockRanges = Callable[[str, int], Ranges]
"""Where the block of the device at a position belongs in an output of `vmap`, which has no layout of its own."""


def program_run(
    program: Program, ran: Ran, shapes: Mapping[str, tuple[int, ...]], block_ranges: BlockRanges, arrays: Path
) -> ProgramRun:
    """What a program did, with its outputs as the file has them that the worker left in `arrays` if the program ran.

    `shapes` are the whole outputs' shapes.
    """
    run = ProgramRun(
        program,
        operands=ran.operands,
        device_ids=ran.device_ids,
        memory=ran.memory,
        cost=ran.cost,
        timing=ran.timing,
        layouts=ran.layouts,
        plan=ran.plan,
        coordinates=ran.coordinates,
        lowered=ran.lowered,
        reshards=ran.reshards,
        said=ran.said,
        unreadable=ran.unreadable,
    )
    position_of = {device: position for position, device in enumerate(run.device_ids)}
    if ran.only_compiled:
        for name, output in ran.outputs.items():
            listed = output.places or [(device, block_ranges(name, p)) for device, p in position_of.items()]
            places = tuple(Place(position_of[device], device, where) for device, where in listed)
            run.outputs[name] = Output(output.dtype, shapes[name], _spec(output), (), places)
        return run
    raw = handover.collect(arrays / f"{run.program}.bin")
    for name, output in ran.outputs.items():
        kind = dtypes.dtype(output.dtype).numpy
        values: dict[int, np.ndarray] = {}
        held: list[Held] = []
        for device, ranges, copy in output.shards:
            position = position_of[device]
            where = block_ranges(name, position) if ranges is None else ranges
            if copy not in values:
                values[copy] = raw[copy].view(kind).reshape(tuple(stop - start for start, stop in where))
            held.append(Held(position, device, where, copy, values[copy]))
        run.outputs[name] = Output(output.dtype, shapes[name], _spec(output), tuple(held))
    return run


def _spec(output: OutputTold) -> Spec | None:
    return None if output.spec is None else Spec.of(output.spec)


def traced_values(traced: Traced, arrays: Path) -> dict[str, np.ndarray]:
    """The values of a trace: for each name, what each device holds, by position."""
    raw = handover.collect(arrays / "trace.bin")
    return {
        name: value.view(dtypes.dtype(dtype).numpy).reshape(shape)
        for (name, (dtype, shape)), value in zip(traced.values.items(), raw, strict=True)
    }
