"""Compiles a program's function for its operands, real or abstract, and runs the compiler's analyses."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.base.lazy import dataclass
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.nodes import Origins, backward
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.sharding.propagation import AskedCollective, Planned, Reshard
from runner.link.events import Compilation, Keeping, Memory, Ranges, RunTimes, Timing
from runner.reports.record.writing import write_text
from runner.worker import calls, cost, deadlocks, lowered, phases, propagation, ready
from runner.worker.stderr import CapturedStderr
from runner.worker.walk import REFUSALS, refusal


class Unsupported(Exception):
    """A step that cannot be done with a program; the message says why."""


@dataclass(frozen=True)
class CompiledModule:
    """A compiled program. `results` has the shape and dtype of every output.

    `seconds` is the time of lowering and compiling. `stderr` is the compiler's output on standard error; None if it
    cannot be read back. `lowered` is the lowered program, `text` the compiled module; `unreadable` is why that could
    not be printed, None if it could. `plan` is Shardy's, if it was asked for. `shared` is whether it was compiled for
    an earlier job.
    """

    executable: Any
    results: tuple[Any, ...]
    seconds: float
    stderr: str | None
    lowered: Any
    text: str
    unreadable: str | None = None
    plan: Planned | None = None
    shared: bool = False

    def leave(self, program: Program, folder: Path) -> None:
        """Write the StableHLO and the compiled module to `folder`."""
        write_text(folder / f"stablehlo_{program}.txt", self.lowered.as_text())
        write_text(folder / f"hlo_{program}.txt", self.text)

    def memory(self) -> Memory | None:
        """Bytes per device; None if the backend does not report them."""
        return _memory(self.executable)

    def reported(
        self, experiment: Experiment, program: Program, folder: Path, place_s: float | None, run_s: RunTimes | None
    ) -> Compilation:
        """What the compilation reported, beside the times to place the operands and to run the program.

        The whole plan of a shared compilation is written to `folder`, since it has the names of this experiment.
        """
        planning = planned(experiment, program, folder) if self.shared else None
        return Compilation(
            memory=self.memory(),
            cost=cost.of(self.executable, self.text),
            timing=Timing(place_s=place_s, compile_s=self.seconds, run_s=run_s, shared=self.shared),
            plan=self.plan if planning is None else planning(self.lowered)(),
            lowered=asked(experiment, program, self),
        )


def keeping(experiment: Experiment, program: Program, module: ModuleType, devices: list[Any] | None = None) -> Keeping:
    """The memory and cost of a program without rematerialisation, which is compiled to compare them, and not run.

    `devices` are those of an absent topology.
    """
    prepared = ready.abstract(experiment, program, module, devices)
    executable = prepared.function.lower(*prepared.operands).compile()
    return Keeping(memory=_memory(executable), cost=cost.of(executable, _text(executable)[0]))


def _memory(executable: Any) -> Memory | None:
    (platform,) = {device.platform for out in executable.output_shardings for device in out.device_set} or {""}
    return cost.memory(executable, platform)


def compile_program(
    program: Program,
    function: Any,
    operands: Any,
    *,
    of_user: bool = False,
    options: Mapping[str, int] = types.MappingProxyType({}),
    planning: Planning | None = None,
) -> CompiledModule:
    """Lower and compile a program.

    - `of_user`: whether it calls functions of the user's own; `options`: of XLA.
    - `planning`: reads Shardy's plan meanwhile, since Python has little to do while XLA compiles.

    Raises `Deadlock` for a collective of these that not all devices may reach.
    """
    phases.tell(f"{program} was compiled", "XLA is compiling")
    captured = CapturedStderr()
    start = time.perf_counter()
    module = _lower(program, function, operands, of_user=of_user)
    seconds = time.perf_counter() - start
    read_plan = None if planning is None else planning(module)
    with ThreadPoolExecutor(1) as beside:
        reading = None if read_plan is None else beside.submit(read_plan)
        start = time.perf_counter()
        executable = module.compile(compiler_options=dict(options) or None)
        seconds += time.perf_counter() - start
    heard = captured.text()
    text, unreadable = _text(executable)
    plan = None if reading is None else reading.result()
    return CompiledModule(executable, tuple(module.out_info), seconds, heard, module, text, unreadable, plan)


Planning = Callable[[Any], Callable[[], Planned]]
"""Runs Shardy's passes on a lowered program, and returns a function that reads its plan, from any thread."""


def planned(experiment: Experiment, program: Program, folder: Path) -> Planning | None:
    """Reads Shardy's plan of a program, and writes it to `folder`; None for a program on one device."""
    if not program.on_mesh:
        return None

    def planning(lowered: Any) -> Callable[[], Planned]:
        modules = propagation.Propagated.of(lowered)
        return lambda: propagation.of_program(experiment, program, modules, folder)

    return planning


def reshards(
    experiment: Experiment, program: Program, compiled: CompiledModule, mesh: Any, *, run: bool
) -> dict[str, Reshard]:
    """For each involuntary rematerialization a sequence of reshards that avoids it; `mesh` is JAX's."""
    if compiled.stderr is None or not program.on_mesh or "full rematerialization" not in compiled.stderr.lower():
        return {}
    # Imported here, since few programs need it.
    from runner.worker import resharding

    return resharding.ways(experiment, Origins(experiment, program.lines), compiled.stderr, mesh, run=run)


def asked(experiment: Experiment, program: Program, compiled: CompiledModule) -> list[AskedCollective] | None:
    """The explicit collectives of a program, read from its lowered module; None without a mesh."""
    if not program.on_mesh:
        return None
    origins = Origins(experiment, program.lines)

    def where(metadata: Metadata) -> tuple[str | None, bool]:
        lines = origins.of(metadata)
        return (lines[0].node, lines[0].gradient) if lines else (None, backward(metadata.op_name))

    return lowered.asked(compiled.lowered.compiler_ir("stablehlo"), experiment.mesh, where)


def _text(executable: Any) -> tuple[str, str | None]:
    """The compiled module's text; if it cannot be printed, an empty text and the backend's error."""
    try:
        return executable.as_text() or "", None
    except calls.JaxRuntimeError as error:
        # The backend still provides its memory, its cost, and the program itself.
        return "", str(error).strip().split("\n")[0]


def _lower(program: Program, function: Any, operands: Any, *, of_user: bool) -> Any:
    if not program.typed:
        return _traced(function, operands, of_user=of_user).lower()
    try:
        return _traced(function, operands, of_user=of_user).lower()
    except REFUSALS as error:
        # The types refuse an operation that JAX builds from others only now.
        raise Unsupported(refusal(error, [])) from error


def _traced(function: Any, operands: Any, *, of_user: bool) -> Any:
    traced = function.trace(*operands)
    if of_user:
        deadlocks.require_none(traced.jaxpr.jaxpr)
    return traced


def ranges(index: tuple[slice, ...], shape: tuple[int, ...]) -> Ranges:
    """The half-open range per dimension of an index of slices."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
