"""A job in: the resolved configuration and the folders. Events out: the types, then each program's result.

The events, in order: `invalid` (and nothing after it), or `types`, then for each program `started` and `finished`,
which holds its results, an `error`, or why JAX has it `unsupported` after all. A program's profile is a step of its own
after it, so that whatever the profiler does, the results have been told.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jaxlib.version

from runner.experiment import data
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.faults import InvalidExperiment, invalid
from runner.link import handover, steps
from runner.link.events import (
    Devices,
    Event,
    Finished,
    Gradients,
    Invalid,
    Profiled,
    Started,
    Types,
)
from runner.programs import WRITERS
from runner.programs.source import Floats
from runner.record.files import write_text
from runner.worker import gradient
from runner.worker.compilation import NotLowered
from runner.worker.execute import Execution, execute
from runner.worker.layouts import layouts
from runner.worker.types import infer

if TYPE_CHECKING:
    from runner.worker.absent import Absent
    from runner.worker.trace import Trace

Emit = Callable[[Event], None]


def run(job: dict[str, Any], emit: Emit) -> None:
    """Run one job.

    `job` holds `config` (the resolved configuration), `folder` (for the programs), `data` (where `load` looks),
    `arrays` (where outputs are left for the parent) and `programs` (which of the experiment's to run; `trace` among
    them is the one that takes the trace, and each may be followed by the step that takes its profile).
    """
    experiment = read(job["config"])
    folder, arrays = Path(job["folder"]), Path(job["arrays"])
    jax.config.update("jax_enable_x64", experiment.x64)
    try:
        types = infer(experiment)
        absent = _absent(experiment)
    except InvalidExperiment as error:
        emit(Invalid(fault=error.fault))
        return
    if absent is not None:
        experiment = absent.experiment
    asked = [step for step in job["programs"] if (steps.profiled(step) or step) not in types.unsupported]
    programs = [step for step in asked if steps.profiled(step) is None]
    sources = {
        program: WRITERS[program](experiment, Path(job["data"]), types) for program in programs if program in WRITERS
    }
    trace = _prepare_trace(experiment, Path(job["data"])) if "trace" in programs else None
    if trace is not None and trace.refused is None:
        sources["trace"] = trace.source
    for program in programs:
        probing = experiment.probing(program) if program in WRITERS else None
        if probing is not None:
            sources[f"{program}_layouts"] = WRITERS[program](probing, Path(job["data"]), types)
    for program, source in sources.items():
        write_text(folder / f"program_{program}.py", source)
    # Every module is imported before a backend exists: each sets the number of simulated devices.
    modules = {program: _load(folder / f"program_{program}.py") for program in sources}
    try:
        target = absent.describe() if absent else _devices_here(experiment, programs)
    except InvalidExperiment as error:
        emit(Invalid(fault=error.fault))
        return
    differentiated = experiment.grad is not None and absent is None
    emit(
        Types(
            unsupported=dict(types.unsupported),
            outputs={name: (typed.shape, typed.dtype) for name, typed in types.outputs.items()},
            nodes={
                section: {name: (typed.shape, typed.dtype) for name, typed in nodes.items()}
                for section, nodes in types.nodes.items()
            },
            floats=dict(types.floats),
            target=target,
            jax=jax.__version__,
            jaxlib=jaxlib.version.__version__,
            gradient=_oracle(experiment, Path(job["data"]), arrays, types.floats["graph"]) if differentiated else None,
        )
    )
    executions: dict[str, Execution] = {}
    for program in asked:
        emit(Started(program=program))
        profiled = steps.profiled(program)
        try:
            if profiled is not None and profiled not in executions:
                finished = Finished(program=program, error=f"program {profiled} did not run")
            elif profiled is not None:
                # What it holds of the devices' memory goes before the next program runs.
                finished = Finished(program=program, found=_profile(profiled, executions.pop(profiled), folder, arrays))
            elif trace is not None and program == "trace":
                taken = None if trace.refused else trace.take(modules[program], arrays)
                finished = Finished(program=program, found=taken, unsupported=trace.refused)
            else:
                if absent is not None:
                    found = absent.compile_only(program, modules[program], folder)
                else:
                    execution = execute(experiment, program, modules[program], folder, arrays)
                    found = execution.found
                    if steps.profile_of(program) in asked:
                        executions[program] = execution
                    del execution
                if f"{program}_layouts" in modules:
                    devices = absent.devices if absent else None
                    probed = layouts(experiment, program, modules[f"{program}_layouts"], devices)
                    found = replace(found, layouts=probed)
                finished = Finished(program=program, found=found)
        except NotLowered as refused:
            finished = Finished(program=program, unsupported=str(refused))
        except Exception as error:  # JAX, XLA and the backend raise what they like; it is all recorded
            traceback.print_exc()
            finished = Finished(program=program, error=_error_text(error, folder / f"program_{program}.py"))
        emit(finished)


def _absent(experiment: Experiment) -> Absent | None:
    if experiment.target.topology is None:
        return None
    from runner.worker.absent import Absent

    return Absent(experiment)


def _prepare_trace(experiment: Experiment, data: Path) -> Trace:
    # Few runs take a trace: the others need not wait for the import.
    from runner.worker.trace import prepare

    return prepare(experiment, data)


def _profile(program: str, execution: Execution, folder: Path, arrays: Path) -> Profiled:
    from runner.worker import profile

    run_s = execution.found.timing.run_s
    assert run_s is not None
    return profile.take(program, execution.run, run_s.median, folder, arrays)


def _oracle(experiment: Experiment, folder: Path, arrays: Path, floats: Floats) -> Gradients:
    """The file in `arrays` with the unsharded graph's gradients and what rounding does to them, draw by draw.

    Nothing without a graph.
    """
    if not experiment.graph:
        return Gradients()
    try:
        gradients, draws = gradient.unsharded(experiment, data.make(experiment, folder), floats)
    except Exception as error:  # as for a program: whatever JAX raises is recorded
        traceback.print_exc()
        return Gradients(error=f"{type(error).__name__}: {error}")
    handover.leave(arrays / "gradients.bin", [*gradients, *(each for draw in draws for each in draw)])
    return Gradients(file="gradients.bin", draws=len(draws))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


def _devices_here(experiment: Experiment, programs: list[str]) -> Devices:
    """The target as the record has it. Raises `InvalidExperiment` where it has too few devices."""
    needed = experiment.mesh.size if any(program != "vmap" for program in programs) else 1
    platform = experiment.target.platform
    try:
        devices = jax.devices(platform)
    except RuntimeError:
        devices = []
    here = len(devices)
    if here < needed:
        hint = "; program=vmap needs one" if experiment.per_device and here else ""
        hint = hint or "; target=cpu simulates as many as the mesh needs"
        raise invalid(
            ("mesh", "shape"),
            f"the mesh {experiment.mesh} needs {needed} device{'s' if needed > 1 else ''}, "
            f"but target {platform} has {here} here{hint}",
        )
    device = devices[0]
    kind = device.device_kind
    return Devices(platform=device.platform, devices=experiment.mesh.size, kind=kind, topology=None)


def _error_text(error: Exception, path: Path) -> str:
    """The message of an error, after the line of the program from which it came."""
    text = str(error).strip() or type(error).__name__
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == os.fspath(path)]
    where = f"{path.name}:{lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {text}"
