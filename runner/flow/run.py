"""A resolved configuration and a run folder in; the record of the run, and the files beside it, out.

This is the flow of the house: the experiment is read, a worker gets its job, and while it imports JAX and compiles,
the oracles compute. What follows from both is `runner/flow/findings.py`, imported once the worker is busy.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from runner.config.folders import added
from runner.experiment import data, expect, memory, topology
from runner.experiment.model import Experiment
from runner.experiment.naming import TRACED
from runner.experiment.reader import read
from runner.faults import Fault, InvalidExperiment, invalid
from runner.flow import clock
from runner.link import scratch
from runner.link.events import Died, Finished, Invalid, Log, Started, Types
from runner.link.process import Worker
from runner.link.steps import Step, Work
from runner.link.target import job, kind
from runner.link.workers import Workers
from runner.printable import printable
from runner.show.progress import Progress
from runner.words import of_system

if TYPE_CHECKING:
    from runner.config.sources import Sources
    from runner.flow.findings import Findings
    from runner.record.model import Git, Record


_log = logging.getLogger("runner")

_T = TypeVar("_T")
Parts: TypeAlias = Generator[None, None, _T]
"""Work in parts: between them the worker has its job, and this process may do something else."""


def run(
    config: Mapping[str, Any],
    folder: Path,
    sources: Callable[[], Sources],
    overrides: Sequence[str] = (),
    workers: Workers | None = None,
) -> Record:
    """Run one experiment and write its run folder.

    `sources` is asked only where a place in a file must be named, `overrides` are those of the command line, `workers`
    are kept for whatever else they do. What a user or a program does wrong does not raise: it is in the record.
    """
    return examine(config, folder, sources, overrides, workers)[0]


def examine(
    config: Mapping[str, Any],
    folder: Path,
    sources: Callable[[], Sources],
    overrides: Sequence[str] = (),
    workers: Workers | None = None,
) -> tuple[Record, Findings | None]:
    """Do what `run` does; give also the findings that the record is made of, which have every value whole.

    There are none where the run ended early. Of hardware that is not here they are those of what was compiled for it.
    """
    if workers is not None:
        return Running(config, folder, sources, overrides, workers, Progress(str(config.get("name")))).finished()
    workers = Workers(Worker())
    try:
        return examine(config, folder, sources, overrides, workers)
    finally:
        workers.close()


class Running:
    """A run that has begun: where its input is valid the worker has its job, and this process may do something else.

    Runs that share their workers are finished in the order in which they begin.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        sources: Callable[[], Sources],
        overrides: Sequence[str],
        workers: Workers,
        progress: Progress,
        git: Callable[[], Git | None] | None = None,
    ) -> None:
        self.held = 0
        """The bytes of the arrays that it holds until it is finished."""
        self._sources = sources
        self._overrides = overrides
        self._workers = workers
        self._progress = progress
        self._git = git
        self._found: tuple[Record, Findings | None] | None = None
        self._parts = self._examined(config, folder)
        next(self._parts, None)

    def finished(self) -> tuple[Record, Findings | None]:
        """The record of the run, and its findings; its folder is written."""
        for _ in self._parts:
            # There is one part after the job is handed over.
            continue
        assert self._found is not None
        return self._found

    def close(self) -> None:
        """Let go of a run that will not be finished."""
        self._parts.close()

    def _examined(self, config: Mapping[str, Any], folder: Path) -> Parts[None]:
        begun = functools.cache(lambda: _begun(config, self._overrides))
        expected = fault = findings = None
        try:
            expected = expect.refusal(config)
            findings = yield from self._run(config, folder, begun)
        except InvalidExperiment as error:
            fault = error.fault
            begun().status, begun().error = "invalid", self._sources().report(fault)
        except clock.TimedOut as error:
            begun().status, begun().error = "error", str(error)
        except MemoryError as error:
            begun().status, begun().error = "error", f"out of memory: {error or 'the system gave no more'}"
        from runner.record import record

        found = begun()
        found.config_folders, found.config_hash = added(self._sources().folders), record.config_hash(config)
        if expected is not None:
            _hold_to_refusal(expected, fault, found)
        found.environment.git = found.environment.git or (self._git or record.git)()
        record.write(found, folder)
        # What an invalid experiment says of it may be anything.
        if config.get("report") is True:
            _leave_page(found, folder)
        self._found = found, findings

    def _run(self, config: Mapping[str, Any], folder: Path, begun: Callable[[], Record]) -> Parts[Findings]:
        experiment = read(config)
        if experiment.target.cluster and not self._workers.of_cluster:
            raise invalid(
                ("target", "cluster"),
                "a cluster runs one experiment, whose command it starts once for each process: "
                "srun -n 2 python -m runner +experiment=…; target.processes=2 starts two processes on this machine",
            )
        absent = experiment.target.topology
        if absent is None:
            return (yield from self._do(experiment, config, folder, begun))
        from runner.flow import sections, verification
        from runner.record import record

        topology.require(absent)
        smaller = verification.smaller(config, experiment)
        findings = yield from self._do(experiment, config, folder, begun)
        found = begun()
        if experiment.profile:
            found.warnings.append(f"there is no profile: nothing runs on {absent.name}, which is not here")
        if isinstance(smaller, str):
            verification.not_run(found, smaller)
            with self._progress:
                held = sections.hold(config, experiment, found, self._sources, self._workers, self._part(experiment))
            found.checks = found.checks.but(sections=held)
            found.status = record.worst([found.status, record.of_checks(found.checks)])
            if experiment.trace:
                found.warnings.append(f"there is no trace: {absent.not_here}; {smaller}")
            return findings
        config, reduced = smaller
        verified = _begun(config, verification.overrides(experiment.verify_dims))
        (folder / verification.FOLDER).mkdir()
        try:
            at = folder / verification.FOLDER
            for _ in self._do(reduced, config, at, lambda: verified, at_once=True):
                # There is nothing to do meanwhile.
                continue
        except InvalidExperiment as error:
            raise verification.located(error, experiment) from None
        verification.adopt(found, verified, experiment.verify_dims)
        return findings

    def _part(self, experiment: Experiment) -> Callable[[str], AbstractContextManager[None]]:
        """Under what it gives a part of a run is told, and has as long as the experiment's `timeout`."""

        @contextmanager
        def part(what: str) -> Generator[None]:
            self._progress.tell(what)
            with clock.limit(experiment.timeout, what):
                yield

        return part

    def _do(
        self,
        experiment: Experiment,
        config: Mapping[str, Any],
        folder: Path,
        begun: Callable[[], Record],
        *,
        at_once: bool = False,
    ) -> Parts[Findings]:
        """One job for one target: its programs are compiled and, where its devices are here, run and checked.

        It is done `at_once` where other runs may have handed over their jobs already.
        """
        data_folder = data.folder(experiment, self._sources)
        # At the sizes for which hardware is not here, data may be too large for this machine.
        arrays = None
        steps = list(_steps(experiment))
        part = self._part(experiment)
        with self._progress, scratch.Folder() as own:
            left_here = str(own.path)
            if experiment.target.topology is None:
                memory.check(experiment)
                with part("making the arrays"):
                    arrays = data.make(experiment, data_folder)
                self.held = sum(array.nbytes for array in arrays.values())
            self._progress.tell("the types")
            told = job(config, folder, data_folder, left_here, steps)
            processes = experiment.target.processes
            events = self._workers.submit(told, kind(experiment), experiment.timeout, processes, at_once=at_once)
            yield
            from runner.flow import dimensions, naming, reasons, revising, untyped_output
            from runner.flow.findings import Findings
            from runner.flow.modes import modes
            from runner.record import record

            found = begun()
            found.environment.git = (self._git or record.git)()
            file = revising.file(config, self._workers, data_folder)
            findings = Findings(experiment, arrays, found, file)
            named = dimensions.names(config, experiment)
            _log.info("%s: %s", experiment.name, "; ".join(map(str, steps)))
            for event in events:
                match event:
                    case Invalid():
                        raise InvalidExperiment(untyped_output.explained(experiment, arrays, event.fault, file))
                    case Types():
                        with part("the reference"):
                            findings.consult_oracles(event, Path(left_here))
                    case Finished():
                        _log.info("%s: %s", event.step, event.error or event.unsupported or "finished")
                        with part(f"comparing the results of {event.step}"):
                            findings.add(event, Path(left_here))
                    case Died():
                        found.status, found.error = "error", event.error
                    case Log():
                        if event.text.strip():
                            with open(folder / "worker.log", "a", encoding="utf-8") as log:
                                log.write(printable(event.text))
                    case Started():
                        self._progress.tell(f"{event.step} ({steps.index(event.step) + 1} of {len(steps)})")
            with part("judging the run"):
                findings.conclude(folder, named)
        if not experiment.chosen:
            found.modes = modes(found.programs, folder)
        found.explain = experiment.explain
        found.show = experiment.show if isinstance(experiment.show, str) else list(experiment.show)
        if experiment.logical:
            found.logical = naming.logical(experiment, self._sources())
        found.places = self._sources().places(reasons.keys(found.compiled.values()))
        return findings


def _leave_page(found: Record, folder: Path) -> None:
    """Write the page of the run; where that fails the record says so, and is worth no less."""
    from runner.record import record
    from runner.show.page import run as page

    try:
        page.write(record.read(folder), folder)
    except OSError as error:
        found.warnings.append(f"there is no page: {of_system(error, folder)}")
        record.write(found, folder)


def _hold_to_refusal(expected: str, fault: Fault | None, found: Record) -> None:
    """Judge an experiment that has to be refused: to be so is what it promises, and no error."""
    from runner.checks import refused
    from runner.record import record
    from runner.record.verdicts import FileChecks

    verdict = refused.check(expected, fault, found.error)
    before = found.status if fault is None else "passed"
    found.status = record.worst([before, record.of_checks(FileChecks(invalid=verdict))])
    found.error = found.error if fault is None else None
    found.checks = found.checks.but(invalid=verdict)


def _begun(config: Mapping[str, Any], overrides: Sequence[str]) -> Record:
    # It has many classes: they are made while the worker imports JAX.
    from runner.record import record

    return record.begun(config.get("name"), overrides, config.get("summary") or "")


def _steps(experiment: Experiment) -> Iterator[Step]:
    """The programs, each followed by the taking of its profile where one is asked for; then that of the trace.

    Neither is taken where nothing runs, nor a trace without the program that it shows.
    """
    runs = experiment.target.topology is None
    for program in experiment.programs:
        yield Step(program)
        if experiment.profile and runs:
            yield Step(program, Work.PROFILE)
    if experiment.trace and runs and TRACED in experiment.programs:
        yield Step(TRACED, Work.TRACE)
