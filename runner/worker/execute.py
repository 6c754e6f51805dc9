"""Runs one program's module, and returns its outputs on every device and the compiler's analyses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from runner.base.layout import Layout
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link import handover
from runner.link.events import OutputTold, Ran, Ranges, RunTimes, ShardEntry
from runner.worker import calls, phases, processes, ready, shared
from runner.worker.compilation import compile_program, planned, ranges, reshards
from runner.worker.specs import sole_holder, spec_of


@dataclass(frozen=True)
class Execution:
    """The result of a program, and a function that runs it again and blocks."""

    result: Ran
    run: Callable[[], Any]


def execute(experiment: Experiment, program: Program, module: ModuleType, folder: Path, arrays: Path) -> Execution:
    """Compile and run one program; write its HLO to `folder` and its outputs to `arrays`.

    Returns each output's dtype, shape, spec and the devices' index ranges (values are in `arrays/PROGRAM.bin`, one
    entry per distinct shard), the operands' layouts, memory, cost and timing.
    """
    phases.tell(f"the arrays of {program} were placed")
    start = time.perf_counter()
    prepared = ready.placed(experiment, program, module)
    function, operands = prepared.function, prepared.operands
    placed = time.perf_counter()
    of_user = bool(experiment.imports.functions)
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    planning = planned(experiment, program, folder)
    function, compiled = shared.compiled(
        text,
        function,
        operands,
        lambda: compile_program(program, function, operands, of_user=of_user, planning=planning),
    )
    compiled.leave(program, folder)
    if program.on_mesh:
        processes.wait()
    phases.tell(f"{program} was running: it takes longer, or hangs in a collective", "running")
    compiled_at = time.perf_counter()

    given = _Operands(tuple(operands), _donated(experiment, program))
    held: dict[str, list[tuple[int, Ranges]]] = (
        {}
        if not program.on_mesh
        else {
            array.name: [
                (processes.number_of(shard.device), ranges(shard.index, operand.shape))
                for shard in operand.addressable_shards
            ]
            for array, operand in zip(experiment.arrays, operands, strict=True)
        }
    )

    def call(operands: tuple[Any, ...]) -> Any:
        # jit's own call runs the compiled program, and takes layouts that the executable's call refuses: int4's on JAX
        # 0.10.
        return calls.block_until_ready(function(*operands))

    outputs = call(given.fresh())
    first_run = time.perf_counter() - compiled_at
    if program.on_mesh:
        # All processes must repeat it equally often.
        first_run = processes.agreed(first_run)
    phases.tell(f"the results of {program} were read")
    described = leave(experiment, program, outputs, arrays)
    # The runs that follow need the memory.
    del outputs
    result = Ran(
        device_ids=ready.device_ids(experiment, prepared.mesh),
        outputs=described,
        operands=held,
        reshards=reshards(experiment, program, compiled, prepared.mesh, run=True),
        stderr=compiled.stderr,
        unreadable=compiled.unreadable,
        compilation=compiled.reported(experiment, program, folder, placed - start, _repeat(call, given, first_run)),
    )
    return Execution(result, lambda: call(given.fresh()))


@dataclass(frozen=True)
class _Operands:
    """The operands of a program, and which of them it is given to keep."""

    operands: tuple[Any, ...]
    donated: tuple[bool, ...]

    def fresh(self) -> tuple[Any, ...]:
        """The operands, with copies of those whose memory the program takes."""
        pairs = zip(self.operands, self.donated, strict=True)
        return tuple(calls.block_until_ready(operand.copy()) if own else operand for operand, own in pairs)


def _donated(experiment: Experiment, program: Program) -> tuple[bool, ...]:
    """For each operand of a program, whether the program may reuse its memory."""
    return tuple(program.whole and array.name in experiment.imports.donated for array in experiment.arrays)


def _repeat(call: Callable[[tuple[Any, ...]], Any], given: _Operands, first: float) -> RunTimes:
    """Time further blocked runs, in seconds each; a run of over a second is not repeated."""
    repeats = 10 if first < 0.02 else 3 if first < 1.0 else 0
    times: list[float] = []
    for _ in range(repeats):
        operands = given.fresh()
        start = time.perf_counter()
        call(operands)
        times.append(time.perf_counter() - start)
    times = times or [first]
    return RunTimes(median=float(np.median(times)), min=min(times), max=max(times), n=len(times))


def leave(experiment: Experiment, program: Program, outputs: Any, arrays: Path) -> dict[str, OutputTold]:
    """Write the outputs' values for the parent; return their descriptions."""
    shards = _Shards(experiment, blocks=not program.on_mesh)
    described = {name: shards.describe(name, output) for name, output in zip(experiment.outputs, outputs, strict=True)}
    handover.leave(arrays / f"{program}.bin", shards.distinct)
    return described


class _Shards:
    """Collects the devices' shards, each distinct one once."""

    def __init__(self, experiment: Experiment, *, blocks: bool) -> None:
        self._experiment = experiment
        self._blocks = blocks
        self.distinct: list[np.ndarray] = []

    def describe(self, name: str, output: jax.Array) -> OutputTold:
        """Describe one output: dtype, shape, spec, and for each device the index range and the entry of its shard."""
        held: dict[str, list[int]] = {}
        shards: list[ShardEntry]
        if self._blocks:
            # vmap's leading dimensions are the mesh; the experiment determines the ranges of the blocks.
            held_by = self._held(name, np.asarray(output))
            shards = [(position, None, self._store(value, held, "")) for position, value in enumerate(held_by)]
            return OutputTold(dtype=str(output.dtype), spec=None, shards=shards)
        shards = []
        holder = sole_holder(output.sharding)
        for shard in sorted(output.addressable_shards, key=lambda shard: shard.device.id):
            if holder is not None and shard.device != holder:
                continue
            where = ranges(shard.index, output.shape)
            entry = self._store(np.asarray(shard.data), held, str(where))
            shards.append((processes.number_of(shard.device), where, entry))
        spec = spec_of(output.sharding)
        return OutputTold(dtype=str(output.dtype), shape=list(output.shape), spec=spec, shards=shards)

    def _held(self, name: str, whole: np.ndarray) -> Iterator[np.ndarray]:
        """The block of each device in an output of `vmap`, whose leading dimensions are the manual mesh axes."""
        experiment = self._experiment
        mesh, manual = experiment.mesh, experiment.manual
        own = Layout.of_shards(mesh, whole.shape[len(manual.axes) :], experiment.outputs[name].over(manual.axes))
        layout = Layout(mesh, own.shape, experiment.outputs[name])
        for position in range(mesh.size):
            at = tuple(mesh.axis_index(position, axis) for axis in manual.axes)
            yield whole[(*at, *layout.within(position, own))]

    def _store(self, value: np.ndarray, held: dict[str, list[int]], where: str) -> int:
        raw = handover.raw_bytes(value)
        for entry in held.setdefault(where, []):
            if handover.same_bits(self.distinct[entry], raw):
                return entry
        self.distinct.append(raw)
        held[where].append(len(self.distinct) - 1)
        return len(self.distinct) - 1
