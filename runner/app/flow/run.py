"""Takes a resolved configuration and a run folder; returns the record of the run, and writes the files beside it.

The experiment is read, a worker gets its job, and while it imports JAX and compiles, the oracles are computed.
`runner/app/flow/findings.py` has what follows from both; it is imported once the worker is busy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.app.flow import clock, functions
from runner.base.faults import InvalidExperiment, invalid
from runner.base.invocation import invocation
from runner.base.lazy import dataclass
from runner.base.printable import printable
from runner.base.words import of_system
from runner.experiment import data, definition, expect, memory, open_layouts, topology
from runner.experiment.config import schema
from runner.experiment.config.folders import added
from runner.experiment.data import Arrays
from runner.experiment.imported import SMALLER_TREES, TREES, imports
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.link import scratch
from runner.link.jobs import job, kind
from runner.link.process import Worker
from runner.link.steps import Step, StepWork
from runner.link.workers import WorkerEnded, Workers
from runner.reports.show.progress import Progress

if TYPE_CHECKING:
    from runner.app.flow.findings import Findings
    from runner.experiment.config.sources import Sources
    from runner.link.events import Event
    from runner.reports.record.model import Git, Record, Status


_log = logging.getLogger("runner")


def run(
    config: Mapping[str, Any], folder: Path, sources: Sources, workers: Workers | None = None, *, last: bool = False
) -> Record:
    """Run one experiment and write its run folder.

    `sources` is read only to locate a fault in a file; `workers` are kept for later runs unless this is their `last`.
    Mistakes of users and programs do not raise: they are in the record.
    """
    return examine(config, folder, sources, workers, last=last)[0]


def examine(
    config: Mapping[str, Any], folder: Path, sources: Sources, workers: Workers | None = None, *, last: bool = False
) -> tuple[Record, Findings | None]:
    """Like `run`, and also return the findings, which have every value whole.

    None if the run ended early. For hardware that is not here the findings are those of the compiled programs.
    """
    used = workers or Workers(Worker())
    try:
        progress, last = Progress(str(config.get("name"))), last or workers is None
        running = Running(config, folder, sources, used, progress, last=last)
        running.begin()
        return running.finish()
    finally:
        if workers is None:
            used.close()


@dataclass(frozen=True)
class _Job:
    """A job that a worker has.

    - `folder`: of the run; `data_folder`: where `load` looks; `left_here`: where the worker leaves values.
    - `events`: the worker's events, as they come.
    - `open`: the line of progress, and the folder of the values, until the job is done.
    """

    experiment: Experiment
    folder: Path
    data_folder: Path
    left_here: Path
    arrays: Arrays | None
    steps: tuple[Step, ...]
    events: Generator[Event, None, None]
    open: ExitStack


_Ending: TypeAlias = "InvalidExperiment | WorkerEnded | clock.TimedOut | MemoryError"
_ENDINGS = (InvalidExperiment, WorkerEnded, clock.TimedOut, MemoryError)
"""The exceptions that end a run early, and are in its record."""


@dataclass
class Running:
    """A run: `begin` gives a worker its job; `finish` collects the results and writes the folder.

    Between the two this process may do something else. Runs that share workers finish in the order in which they begin.
    `git` returns the commit of the user's folder; `last` says that the workers get no further job.
    """

    config: Mapping[str, Any]
    folder: Path
    sources: Sources
    workers: Workers
    progress: Progress
    git: Callable[[], Git | None] | None = None
    last: bool = False
    _refusal: str | None = field(default=None, init=False)
    """The message with which the experiment is expected to be refused, if it is."""
    _smaller: Experiment | str | None = field(default=None, init=False)
    """The smaller experiment that verifies one for hardware that is not here, or why there is none."""
    _job: _Job | None = field(default=None, init=False)
    _ending: _Ending | None = field(default=None, init=False)
    """The exception that ended it before a worker had the job."""

    @property
    def held(self) -> int:
        """The bytes of the arrays that it keeps until it is finished."""
        return sum(array.nbytes for array in (self._job.arrays or {}).values()) if self._job else 0

    def begin(self) -> None:
        """Read the experiment and give a worker its job, if the input is valid."""
        try:
            self._refusal = expect.refusal(self.config)
            if open_layouts.is_open(self.config):
                self.config = self._planned()
            experiment = read(self._traced(self.config))
            self._require_possible(experiment)
            self._job = self._handed_over(experiment, self.folder)
        except _ENDINGS as error:
            self._ending = error.with_traceback(None)

    def finish(self) -> tuple[Record, Findings | None]:
        """Write the folder; return the record of the run and its findings."""
        if self.last and self._job is None:
            self.workers.dismiss()
        # The module has many classes: they are created while the worker imports JAX.
        from runner.reports.record import readable
        from runner.reports.record import record as records

        record = records.started(self.config.get("name"), self.sources.overrides, self.config.get("summary") or "")
        record.environment.git = (self.git or records.git)()
        findings = None
        # Its arrays are released before the record is written.
        job, self._job = self._job, None
        if job is not None:
            try:
                findings = self._heard(job, record)
                self._verify(job.experiment, record)
                readable.name_collectives(record)
            except _ENDINGS as error:
                self._ending, findings = error.with_traceback(None), None
            del job
        if self.last:
            self.workers.dismiss()
        if self._ending is not None:
            record.status, record.error = _outcome(self._ending, self.sources)
        if (launch := self.workers.launch) is not None:
            record.environment.worker = "copy" if launch.copy else "new"
            record.environment.worker_reason = launch.reason
        record.config_folders = added(self.sources.folders)
        record.config_hash = records.config_hash(self.config, functions.beside(self.config, self.sources))
        if self._refusal is not None:
            _hold_to_refusal(self._refusal, self._ending, record)
        records.write(record, self.folder)
        # An invalid experiment may have anything there.
        if self.config.get("report") is True:
            _leave_page(record, self.folder)
        return record, findings

    def _planned(self) -> Mapping[str, Any]:
        """The configuration with the layouts of the best plan, which is left in the folder."""
        # Few experiments leave layouts open.
        from runner.app.flow import filled_layouts

        with self.progress:
            self.progress.tell("planning the layouts")
            planning = filled_layouts.planned(self.config, self.folder, self.sources, self.workers)
        filled_layouts.leave(self.folder, planning)
        return filled_layouts.expecting(planning, filled_layouts.filled(planning, planning.plan.best))

    def _traced(self, config: Mapping[str, Any], trees: str = TREES) -> Mapping[str, Any]:
        """The configuration with what it imports read; most import nothing."""
        if not imports(config):
            return config
        with self.progress:
            self.progress.tell("tracing the functions")
            tell = self.progress.tell_part
            return functions.traced(config, self.folder / trees, self.sources, self.workers, _findings, tell=tell)

    def _elsewhere(self, *, dims: Mapping[str, int], **keys: Any) -> Experiment:
        """The experiment at other sizes, at which its functions are traced again."""
        whole = schema.whole(self.config)
        return read(self._traced({**definition.at(whole, dims), **keys}, SMALLER_TREES))

    def close(self) -> None:
        """Release a run that will not be finished."""
        if self._job is not None:
            self._job.open.close()

    def _require_possible(self, experiment: Experiment) -> None:
        """Raise `InvalidExperiment` for what this process cannot do; prepare for hardware that is not here."""
        if experiment.target.cluster and not self.workers.of_cluster:
            raise invalid(
                ("target", "cluster"),
                "a cluster runs one experiment, whose command it starts once for each process: "
                f"srun -n 2 {invocation()} NAME target.cluster=true; target.processes=2 starts two on this machine",
            )
        if experiment.target.topology is not None:
            from runner.app.flow import verification

            topology.require(experiment.target.topology)
            self._smaller = verification.smaller(experiment, self._elsewhere if imports(self.config) else experiment.at)

    def _handed_over(self, experiment: Experiment, folder: Path, *, at_once: bool = False) -> _Job:
        """Give a worker the job of an experiment: its programs are compiled and, where devices are here, run.

        With `at_once` the job does not wait for those of other runs.
        """
        data_folder = data.folder(experiment, self.sources)
        # At the sizes for which hardware is not here, data may be too large for this machine.
        arrays = None
        steps = tuple(_steps(experiment))
        with ExitStack() as stack:
            stack.enter_context(self.progress)
            left_here = str(stack.enter_context(scratch.Folder()).path)
            if experiment.target.topology is None:
                memory.check(experiment)
                with self._part(experiment, "making the arrays"):
                    arrays = data.make(experiment, data_folder)
            self.progress.tell("inferring the types")
            task = job(experiment, folder, data_folder, left_here, steps)
            processes = experiment.target.processes
            tell = self.progress.tell_part
            events = self.workers.submit(
                task, kind(experiment), experiment.timeout, processes, at_once=at_once, tell=tell
            )
            return _Job(experiment, folder, data_folder, Path(left_here), arrays, steps, events, stack.pop_all())

    def _heard(self, job: _Job, record: Record) -> Findings:
        """Collect the results of a job into `record`."""
        from runner.app.flow import dimensions, recording, refused_edits, untyped_output
        from runner.app.flow.recording import modes
        from runner.app.flow.reruns import Reruns
        from runner.link.events import Died, Finished, FunctionsRead, Invalid, Log, Started, Types, ValuesTyped

        experiment, arrays = job.experiment, job.arrays
        with job.open, closing(job.events) as events:
            refused = refused_edits.refusals(experiment, self.workers, job.data_folder)
            reruns = Reruns(experiment, self.workers, job.folder, job.data_folder)
            findings = _findings()(experiment, arrays, record, refused, reruns)
            fitting = dimensions.fitting(experiment)
            _log.info("%s: %s", experiment.name, "; ".join(map(str, job.steps)))
            for event in events:
                match event:
                    case Invalid():
                        raise InvalidExperiment(untyped_output.explained(experiment, arrays, event.fault, refused))
                    case Types():
                        with self._part(experiment, "the reference"):
                            findings.consult_oracles(event, job.left_here)
                    case Finished():
                        _log.info("%s: %s", event.step, event.error or event.unsupported or "finished")
                        with self._part(experiment, f"comparing the results of {event.step}"):
                            findings.add(event, job.left_here)
                    case FunctionsRead() | ValuesTyped():
                        raise AssertionError("the job is to run an experiment whose functions are read")
                    case Died():
                        record.status, record.error = "error", event.error
                    case Log():
                        if event.text.strip():
                            with open(job.folder / "worker.log", "a", encoding="utf-8") as log:
                                log.write(printable(event.text))
                    case Started():
                        number = job.steps.index(event.step) + 1
                        done = (number - 1) / len(job.steps)
                        self.progress.tell(f"{event.step} ({number} of {len(job.steps)})", done)
            with self._part(experiment, "judging the run"):
                findings.conclude(job.folder, fitting)
        if not experiment.chosen:
            record.modes = modes(record.programs, job.folder)
        record.explain = experiment.explain
        record.show = experiment.show if isinstance(experiment.show, str) else list(experiment.show)
        if experiment.logical:
            record.logical = recording.logical(experiment, self.sources)
        record.places = self.sources.places(recording.keys(record.compiled.values()))
        return findings

    def _verify(self, experiment: Experiment, record: Record) -> None:
        """Add to the record for absent hardware the checks that do not need it."""
        absent, smaller = experiment.target.topology, self._smaller
        if absent is None or smaller is None:
            return
        from runner.app.flow import sections, verification
        from runner.reports.record import record as records

        if experiment.profile:
            record.warnings.append(
                f"there is no profile: nothing runs on {absent.name}, {topology.absence(absent.of_slice)}"
            )
        if isinstance(smaller, str):
            verification.not_run(record, smaller)
            with self.progress:
                held = sections.hold(experiment, record, self.sources, self.workers, partial(self._part, experiment))
            record.checks = record.checks.but(sections=held)
            record.status = records.worst([record.status, records.of_checks(record.checks)])
            if experiment.trace:
                record.warnings.append(f"there is no trace: {absent.not_here}; {smaller}")
            return
        verified = records.started(smaller.name, verification.overrides(experiment.verify_dims), smaller.summary)
        folder = self.folder / verification.FOLDER
        folder.mkdir()
        try:
            self._heard(self._handed_over(smaller, folder, at_once=True), verified)
        except InvalidExperiment as error:
            raise verification.located(error, experiment) from None
        verification.adopt(record, verified, experiment.verify_dims)

    @contextmanager
    def _part(self, experiment: Experiment, what: str) -> Generator[None]:
        """Show progress on a part of a run, and limit its time to the experiment's `timeout`."""
        self.progress.tell(what)
        with clock.limit(experiment.timeout, what):
            yield


def _findings() -> type[Findings]:
    """The class of the results, with what most runs need of them; it is imported while the worker is busy."""
    from runner.app.flow.findings import Findings

    return Findings


def _outcome(ending: _Ending, sources: Sources) -> tuple[Status, str]:
    """The status of a run that ended early, and its message."""
    match ending:
        case InvalidExperiment():
            return "invalid", sources.report(ending.fault)
        case MemoryError():
            return "error", f"out of memory: {ending or 'the system gave no more'}"
        case _:
            return "error", str(ending)


def _leave_page(record: Record, folder: Path) -> None:
    """Write the page of the run; if that fails the record says so, and is otherwise unchanged."""
    from runner.reports.record import record as records
    from runner.reports.show.page import run as page

    try:
        page.write(records.read(folder), folder)
    except OSError as error:
        record.warnings.append(f"there is no page: {of_system(error, folder)}")
        records.write(record, folder)


def _hold_to_refusal(expected: str, ending: _Ending | None, record: Record) -> None:
    """Judge an experiment that is expected to be refused: then a refusal passes."""
    from runner.checks.kinds import refused
    from runner.reports.record import record as records
    from runner.reports.record.verdicts import FileChecks

    fault = ending.fault if isinstance(ending, InvalidExperiment) else None
    error = next((error for error in (record.error, *(ran.error for ran in record.programs.values())) if error), None)
    verdict = refused.check(expected, fault, error)
    before = record.status if fault is None else "passed"
    record.status = records.worst([before, records.of_checks(FileChecks(invalid=verdict))])
    record.error = record.error if fault is None else None
    record.checks = record.checks.but(invalid=verdict)


def _steps(experiment: Experiment) -> Iterator[Step]:
    """The programs, each followed by its profile if one is asked for; then the trace.

    There are no profiles or traces where nothing runs, and no trace where nothing runs on the mesh.
    """
    runs = experiment.target.topology is None
    for program in experiment.programs:
        yield Step(program)
        if experiment.profile and runs:
            yield Step(program, StepWork.PROFILE)
    if experiment.trace and runs and experiment.on_mesh:
        yield Step(experiment.traced, StepWork.TRACE)
