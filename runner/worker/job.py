"""A job in: the definition of an experiment, and the folders. Events out: the types, then each program's result.

The events, in order: `invalid`, or `types`, then for each step `started` and `finished`, which holds its results, an
`error`, or why JAX does not support it after all; at the end `done`. A program's profile is a separate step after it,
so that the results are reported before the profiler can fail.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jaxlib.version

from runner.base.faults import InvalidExperiment, invalid
from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.experiment import data, value_names
from runner.experiment.imported import skeleton
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.experiment.traced import TracedLines
from runner.experiment.traced_graphs import lines_of
from runner.link import events, handover
from runner.link.events import (
    Devices,
    Finished,
    FunctionsRead,
    GradientFile,
    Invalid,
    Parted,
    Profiled,
    Ran,
    Started,
    Traced,
    ValuesTyped,
    WorkerEvent,
)
from runner.link.steps import Step, StepWork
from runner.programs.types import Floats, InferredTypes
from runner.programs.writers import WRITERS
from runner.reports.record.writing import write_text
from runner.worker import calls, gradient, own_files, phases, processes, ready, warm
from runner.worker.compilation import Unsupported, keeping
from runner.worker.deadlocks import Deadlock
from runner.worker.execute import Execution, execute
from runner.worker.functions.result_layouts import layouts
from runner.worker.refusing import raised, text_of
from runner.worker.setting import unset
from runner.worker.types import infer

if TYPE_CHECKING:
    from runner.worker.absent_hardware import AbsentDevices
    from runner.worker.trace import TraceProgram

Emit = Callable[[WorkerEvent], None]


def run(job: dict[str, Any], emit: Emit) -> None:
    """Run one job, independent of earlier ones in this process; the last event is `done`.

    `job` holds the experiment's `definition`, `folder` (for the programs), `data` (where `load` looks), `arrays` (where
    outputs are left for the parent) and `steps` (a profile follows its program); `gradient`, if the gradients' oracle
    is needed even for absent hardware; `values`, if only the types of all values of the graph are needed; `trace`, if
    imported functions are to be traced, and whether the `values` of trees are needed or only their `shapes`;
    `wide_gradient`, if the gradients are needed as twins compute them;
    `apart`, the patterns of `constraints` that give each value that they match a key of its own;
    `without`, the parts that ended an earlier process of the job, with how.
    """
    phases.report_to(emit, job.get("without", {}))
    with own_files.of_a_job():
        if job.get("trace"):
            emit(_traced(job))
        else:
            _run(job, emit)
    emit(warm.done())


def _traced(job: dict[str, Any]) -> FunctionsRead | Invalid:
    """Trace the functions that an experiment imports."""
    # Only few experiments import any.
    from runner.worker.functions import tracing

    definition = job["definition"]
    try:
        warm.prepare(read(skeleton(definition)))
        folders, values = (Path(job["data"]), Path(job["folder"])), job["trace"] == "values"
        return FunctionsRead(definition=tracing.traced(definition, *folders, values=values, apart=job["apart"]))
    except InvalidExperiment as error:
        return Invalid(fault=error.fault)


def _value_types(experiment: Experiment) -> ValuesTyped:
    """Infer the types of all values of the graph."""
    # It traces the graph, which few jobs need.
    from runner.worker.derive import value_types

    types = value_types(experiment.alone("graph"))
    tuples = [at for at, each in types.items() if each is not None and not isinstance(each, Typed)]
    values: dict[int, list[Typed] | None] = {}
    for at, each in types.items():
        values[at] = None if each is None else [each] if isinstance(each, Typed) else [*each]
    return ValuesTyped(values=values, tuples=tuples)


def _run(job: dict[str, Any], emit: Emit) -> None:
    experiment = read(job["definition"])
    folder, arrays = processes.folders(Path(job["folder"]), Path(job["arrays"]))
    data_folder = Path(job["data"])
    phases.tell("JAX was starting its devices")
    warm.prepare(experiment)
    phases.tell("JAX was inferring the types")
    try:
        # Derived lines depend on the order of the devices in the mesh, as all programs do.
        absent = _absent(experiment)
        experiment = experiment if absent is None else absent.experiment
        steps = [Step.from_json(entry) for entry in job["steps"]]
        types = infer(experiment, derives=any(step.program is Program.DERIVED for step in steps))
    except InvalidExperiment as error:
        emit(Invalid(fault=error.fault))
        return
    if job.get("values"):
        emit(_value_types(experiment))
        return
    steps = [step for step in steps if step.supported(types.unsupported)]
    programs = [step.program for step in steps if step.work is StepWork.RUN]
    twins = [step.program for step in steps if step.work in (StepWork.TWIN, StepWork.PARTING)]
    phases.tell("the programs were written")
    written = _Written({program.value: reason for program, reason in types.unwritten.items()})
    traced = any(step.work is StepWork.TRACE for step in steps)
    trace = _trace_of(experiment, types, data_folder, written) if traced else None
    for program in programs:
        if program.value not in written.failed:
            written.add(program.value, lambda program=program: _sources(experiment, program, data_folder, types))
    for program in twins:
        written.add(_twin(program), lambda program=program: _twin_source(experiment, program, data_folder, types))
    for name, source in written.sources.items():
        write_text(folder / _file(name), source)
    own_files.forget()
    # Every module is imported before a backend exists: each sets the number of simulated devices.
    modules = {name: _load(folder / _file(name)) for name in written.sources}
    try:
        target = absent.describe() if absent else _devices_here(experiment, [*programs, *twins])
    except InvalidExperiment as error:
        emit(Invalid(fault=error.fault))
        return
    event = _types_event(types, target)
    if experiment.grad and not twins and (absent is None or job.get("gradient")) and processes.ours.first:
        phases.tell("JAX was differentiating the graph")
        event.gradient = _oracle(experiment, data_folder, arrays, types.floats["graph"])
    if job.get("wide_gradient"):
        event.gradient = _wide_gradient(experiment, data_folder, arrays)
    emit(event)
    doing = _Doing(
        experiment, types.derived, absent, trace, modules, folder, arrays, written.failed, profiled=_profiled(steps)
    )
    for step in steps:
        emit(Started(step=step))
        emit(doing.done(step))


@dataclass
class _Written:
    """The sources of the programs and the trace, by name; and what the runner raised while it wrote the others."""

    failed: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str, write: Callable[[], Mapping[str, str]]) -> None:
        """Write the sources of a program; whatever that raises costs this program alone."""
        try:
            self.sources |= write()
        except Exception as error:
            self.failed[name] = raised(f"writing {name}", error)


def _sources(experiment: Experiment, program: Program, data_folder: Path, types: InferredTypes) -> dict[str, str]:
    """The sources of a program and of those that show the layouts of its intermediate values, by name."""
    own = experiment.alone(program.section)
    sources = {program.value: WRITERS[program](own, data_folder, types)}
    probing = own.probing(program)
    if probing is not None:
        sources[_probe(program)] = WRITERS[program](probing, data_folder, types)
    kept = (types.derived or own if program is Program.DERIVED else own).keeping(program)
    if kept is not None:
        keeping_types = replace(types, derived=kept) if program is Program.DERIVED else types
        sources[_keeping(program)] = WRITERS[program](kept, data_folder, keeping_types)
    return sources


def _twin(program: Program) -> str:
    return f"twin_{program}"


def _source_name(step: Step) -> str:
    """The name of the source that a step runs."""
    match step.work:
        case StepWork.TRACE:
            return StepWork.TRACE
        case StepWork.TWIN | StepWork.PARTING:
            return _twin(step.program)
        case StepWork.RUN | StepWork.PROFILE:
            return step.program


def _file(name: str) -> str:
    """The file of a source by its name."""
    return f"{name}.py" if name.startswith("twin_") else f"program_{name}.py"


def _twin_source(experiment: Experiment, program: Program, data_folder: Path, types: InferredTypes) -> dict[str, str]:
    """The source of a program's twin, by its name."""
    # Few runs need any.
    from runner.worker import twin

    source = WRITERS[program](experiment.alone(program.section), data_folder, types)
    return {_twin(program): twin.source(source, experiment, program)}


def _trace_of(
    experiment: Experiment, types: InferredTypes, data_folder: Path, written: _Written
) -> TraceProgram | None:
    """The tracing program, whose source is added to `written` unless it is refused; None if that failed."""
    prepared: list[TraceProgram] = []

    def write() -> dict[str, str]:
        prepared.append(_prepare_trace(experiment, types, data_folder))
        return {} if prepared[0].refused is not None else {StepWork.TRACE: prepared[0].source}

    written.add(StepWork.TRACE, write)
    return prepared[0] if prepared else None


def _probe(program: Program) -> str:
    return f"{program}_layouts"


def _keeping(program: Program) -> str:
    return f"{program}_keeping_all"


def _types_event(types: InferredTypes, target: Devices) -> events.Types:
    """The event with the types."""
    return events.Types(
        unsupported={program.value: reason for program, reason in types.unsupported.items()},
        unwritten={program.value: reason for program, reason in types.unwritten.items()},
        outputs=types.outputs,
        nodes=types.nodes,
        floats=dict(types.floats),
        target=target,
        jax=jax.__version__,
        jaxlib=jaxlib.version.__version__,
        derived=None if types.derived is None else TracedLines((), lines_of(types.derived.per_device), ()),
        derivation=types.derivation,
        advice=[_of_gathered(*gathered) for gathered in types.repairs.gathered.items()],
    )


def _profiled(steps: list[Step]) -> frozenset[Program]:
    return frozenset(step.program for step in steps if step.work is StepWork.PROFILE)


@dataclass
class _Doing:
    """Runs one job's steps; keeps the `executions` of programs until they are `profiled`.

    `derived` is the experiment with the derived lines; `failed` has the programs that could not be written, with why.
    """

    experiment: Experiment
    derived: Experiment | None
    absent: AbsentDevices | None
    trace: TraceProgram | None
    modules: dict[str, ModuleType]
    folder: Path
    arrays: Path
    failed: Mapping[str, str]
    profiled: frozenset[Program]
    executions: dict[Program, Execution] = field(default_factory=dict[Program, Execution])

    def done(self, step: Step) -> Finished:
        """Run a step; return its event `finished`."""
        if not step.program.on_mesh and not processes.ours.first:
            return Finished(step=step)
        name = _source_name(step)
        if name in self.failed:
            return Finished(step=step, error=self.failed[name])
        if step.work is StepWork.PROFILE and step.program not in self.executions:
            return Finished(step=step, error=f"program {step.program} did not run")
        try:
            with self._context(step):
                return Finished(step=step, result=self._result(step))
        except Deadlock as deadlock:
            return Finished(step=step, error=str(deadlock))
        except Unsupported as refused:
            return Finished(step=step, unsupported=str(refused))
        except BaseException as error:  # JAX, XLA, the backend and the user's code may raise anything.
            traceback.print_exc()
            return Finished(step=step, error=_error_text(error, self.folder / _file(name)))

    def _context(self, step: Step) -> AbstractContextManager[Any]:
        """The context in which a program runs: within `jax.set_mesh` where the functions that it calls want that."""
        name = _source_name(step)
        if not self.experiment.imports.within or not step.program.on_mesh or name not in self.modules:
            return nullcontext()
        module = self.modules[name]
        return calls.set_mesh(module.make_mesh() if self.absent is None else module.make_mesh(self.absent.devices))

    def _result(self, step: Step) -> Ran | Traced | Profiled | Parted:
        """Run a step. Raises `Unsupported`."""
        match step.work:
            case StepWork.RUN:
                return self._run(step.program)
            case StepWork.TRACE:
                return self._take_trace()
            case StepWork.PROFILE:
                phases.tell(f"the profile of {step.program} was taken")
                # Release its device memory before the next program runs.
                return _profile(step.program, self.executions.pop(step.program), self.folder, self.arrays)
            case StepWork.TWIN:
                return self._take_twin(step.program)
            case StepWork.PARTING:
                return self._measure(step.program)

    def _run(self, program: Program) -> Ran:
        module = self.modules[program]
        if self.absent is not None:
            ran = self.absent.compile_only(self._written(program), program, module, self.folder)
        else:
            execution = execute(self._written(program), program, module, self.folder, self.arrays)
            ran = execution.result
            if program in self.profiled:
                self.executions[program] = execution
            del execution
        devices, more = self.absent.devices if self.absent else None, dict[str, Any]()
        if (module := self.modules.get(_probe(program))) is not None:
            self._tell_of_another(program, "for the layouts of its values")
            more["layouts"] = layouts(self._written(program), program, module, devices)
        if (module := self.modules.get(_keeping(program))) is not None:
            self._tell_of_another(program, "without rematerialization")
            more["keeping_all"] = keeping(self.experiment, program, module, devices)
        ran.compilation = replace(ran.compilation, **more)
        return ran

    def _tell_of_another(self, program: Program, why: str) -> None:
        phases.tell(f"{program} was compiled once more, {why}", "XLA is compiling once more")

    def _written(self, program: Program) -> Experiment:
        """The experiment that a program was written from: for `derived` that with the derived lines."""
        own = self.experiment.run_by(program)
        return self.derived or own if program is Program.DERIVED else own

    def _take_trace(self) -> Traced:
        assert self.trace is not None
        if self.trace.refused is not None:
            raise Unsupported(self.trace.refused)
        phases.tell("the trace was running")
        return self.trace.take(self.modules[StepWork.TRACE], self.arrays)

    def _take_twin(self, program: Program) -> Ran:
        from runner.worker import twin

        module = self.modules[_twin(program)]
        try:
            return twin.take(self._written(program), program, module, self.arrays)
        except module.CannotWiden as refused:
            raise Unsupported(f"it has {refused}") from None

    def _measure(self, program: Program) -> Parted:
        """Measure the equations of a program beside float64."""
        from runner.worker import parting

        phases.tell(f"the equations of {program} were measured in float64")
        prepared = ready.placed(self._written(program), program, self.modules[_twin(program)])
        return parting.measured(prepared.function, prepared.operands)


def _of_gathered(carry: str, spec: Spec) -> str:
    return (
        f"explicit gathers the carry {carry.replace('/body/', '/').replace('/', '.')} at every step, since it starts "
        f"unsharded: compute its start in a line of its own, and constrain that to {spec.yaml()}"
    )


def _absent(experiment: Experiment) -> AbsentDevices | None:
    if experiment.target.topology is None:
        return None
    from runner.worker.absent_hardware import AbsentDevices

    phases.tell(f"the compiler of {experiment.target.topology.name} was starting")
    return AbsentDevices(experiment)


def _prepare_trace(experiment: Experiment, types: InferredTypes, data: Path) -> TraceProgram:
    # Few runs take a trace: the others need not wait for the import.
    from runner.worker.trace import TraceProgram, prepare

    if experiment.traced is Program.AUTO:
        return prepare(value_names.inside(experiment.written or experiment), data)
    if experiment.traced is not Program.DERIVED:
        return prepare(value_names.named(experiment.alone("per_device")), data)
    if types.derived is None:
        return TraceProgram(refused=f"derived cannot be written: {types.not_derived}")
    return prepare(value_names.named(types.derived), data)


def _profile(program: Program, execution: Execution, folder: Path, arrays: Path) -> Profiled:
    from runner.worker import profile

    run_s = execution.result.compilation.timing.run_s
    assert run_s is not None
    return profile.take(program, execution.run, run_s.median, folder, arrays)


def _oracle(experiment: Experiment, folder: Path, arrays: Path, floats: Floats) -> GradientFile:
    """Write the unsharded graph's gradients and their rounding errors, draw by draw, to a file in `arrays`.

    Empty without a graph.
    """
    if not experiment.graph:
        return GradientFile()
    of_lines, of_rules = list[Any](), list[Any]()
    error = None
    try:
        made = data.make(experiment, folder)
        if experiment.rules:
            gradients, draws = gradient.by_rules(experiment, made, floats)
            of_rules = [gradients, *draws]
        gradients, draws = gradient.unsharded(experiment, made, floats)
        of_lines = [gradients, *draws]
    except Exception as raised:  # As for a program, anything that JAX raises is recorded.
        traceback.print_exc()
        error = f"{type(raised).__name__}: {raised}"
        if not of_rules:
            return GradientFile(error=error)
    # JAX may refuse the derivative of lines that a rule of their own replaces, as that of a while.
    handover.leave(arrays / "gradients.bin", [each for several in (*of_lines, *of_rules) for each in several])
    return GradientFile(file="gradients.bin", of_lines=len(of_lines), of_rules=len(of_rules))


def _wide_gradient(experiment: Experiment, folder: Path, arrays: Path) -> GradientFile:
    """Write the unsharded graph's gradients, as twins compute them, to a file in `arrays`."""
    from runner.worker import twin

    try:
        made = data.make(experiment, folder)
        gradients = gradient.widened(experiment, made, twin.numbers(experiment))
    except Exception as raised:  # As for a program, anything that JAX raises is recorded.
        traceback.print_exc()
        return GradientFile(error=f"{type(raised).__name__}: {raised}")
    handover.leave(arrays / "gradients.bin", gradients)
    return GradientFile(file="gradients.bin", of_lines=1)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # JAX's own modules, some of which are imported later, may leave theirs.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with unset():
            spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def _devices_here(experiment: Experiment, programs: list[Program]) -> Devices:
    """Describe the local target for the record. Raises `InvalidExperiment` where it has too few devices."""
    on_mesh = any(program.on_mesh for program in programs)
    needed = experiment.mesh.needed if on_mesh else 1
    platform = experiment.target.platform
    try:
        devices = calls.devices(platform)
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
    idle = processes.idle(devices, experiment.mesh.devices or range(needed)) if on_mesh else None
    if idle is not None:
        raise invalid(
            ("mesh", "shape"),
            f"the mesh {experiment.mesh} has no device of process {idle}; it takes some of each of the "
            f"{processes.ours.count} processes, which have {here} {platform} devices",
        )
    device = devices[0]
    kind = device.device_kind
    return Devices(
        platform=device.platform, devices=experiment.mesh.size, kind=kind, topology=None, processes=processes.ours.count
    )


_MISSING = re.compile(r"HLO opcode `([\w-]+)` is not supported by XLA:(\w+)")
"""XLA's message for an operation that it compiles for other hardware alone."""


def _error_text(error: BaseException, path: Path) -> str:
    """The message of an error, preceded by the line of the program that raised it."""
    text = text_of(error).strip() or type(error).__name__
    if (missing := _MISSING.search(text)) is not None:
        elsewhere = "compile it for hardware that has one, as with target=v5e_2x2"
        return f"XLA has no {missing[1]} for {missing[2]}s: {elsewhere}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == os.fspath(path)]
    where = f"{path.name}:{lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {text}"
