"""A resolved configuration and a run folder in; the record of the run, and the files beside it, out.

This is the flow of the house: the experiment is read, the worker gets its job, and while it imports JAX and compiles,
the oracles compute. What follows from both is `runner/flow/findings.py`, imported once the worker is busy.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment import data, expect, memory, topology
from runner.experiment.model import Experiment
from runner.experiment.naming import TRACED
from runner.experiment.reader import read
from runner.faults import Fault, InvalidExperiment
from runner.flow import dimensions, verification
from runner.link.process import Worker
from runner.link.steps import Step, Work
from runner.link.target import listen
from runner.record import record
from runner.record.record import Record

if TYPE_CHECKING:
    from runner.config.sources import Sources


_log = logging.getLogger("runner")


def run(
    config: Mapping[str, Any],
    folder: Path,
    sources: Callable[[], Sources],
    overrides: Sequence[str] = (),
    worker: Worker | None = None,
) -> Record:
    """Run one experiment and write its run folder.

    `sources` is asked only where a place in a file must be named, `overrides` are those of the command line, `worker`
    is one that was started earlier. What a user or a program does wrong does not raise: it is in the record.
    """
    found = _blank(config, overrides)
    worker = worker or Worker()
    expected = fault = None
    try:
        expected = expect.refusal(config)
        _run(config, folder, sources, worker, found)
    except InvalidExperiment as error:
        fault = error.fault
        found.update(status="invalid", error=sources().report(fault))
    except MemoryError as error:
        found.update(status="error", error=f"out of memory: {error or 'the system gave no more'}")
    finally:
        worker.close()
    if expected is not None:
        _hold_to_refusal(expected, fault, found)
    found["environment"] = found["environment"] or record.environment()
    record.write(found, folder)
    return found


def _hold_to_refusal(expected: str, fault: Fault | None, found: Record) -> None:
    """Judge an experiment that has to be refused: to be so is what it promises, and no error."""
    from runner.checks import refused

    verdict = refused.check(expected, fault, found["error"])
    before = found["status"] if fault is None else "passed"
    found.update(
        status=record.worst([before, verdict["status"]]),
        error=found["error"] if fault is None else None,
        checks={**found.get("checks", {}), "invalid": verdict},
    )


def _blank(config: Mapping[str, Any], overrides: Sequence[str]) -> Record:
    return {
        "schema": record.SCHEMA,
        "experiment": config.get("name"),
        "summary": config.get("summary") or "",
        "overrides": list(overrides),
        "status": "passed",
        "error": None,
        "warnings": [],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mesh": None,
        "target": None,
        "arrays": {},
        "programs": {},
        "not_supported": {},
        "environment": None,
    }


def _run(
    config: Mapping[str, Any], folder: Path, sources: Callable[[], Sources], worker: Worker, found: Record
) -> None:
    experiment = read(config)
    absent = experiment.target.topology
    if absent is None:
        _do(experiment, config, folder, sources, worker, found)
        return
    topology.require(absent)
    smaller = verification.smaller(config, experiment)
    _do(experiment, config, folder, sources, worker, found)
    if experiment.profile:
        found["warnings"].append(f"there is no profile: nothing runs on {absent.name}, which is not here")
    if isinstance(smaller, str):
        verification.not_run(found, smaller)
        if experiment.trace:
            found["warnings"].append(f"there is no trace: {absent.not_here}; {smaller}")
        return
    config, reduced = smaller
    verified = _blank(config, [f"dims.{name}={size}" for name, size in experiment.verify_dims.items()])
    (folder / verification.FOLDER).mkdir()
    worker = Worker()
    try:
        _do(reduced, config, folder / verification.FOLDER, sources, worker, verified)
    except InvalidExperiment as error:
        raise verification.located(error, experiment) from None
    finally:
        worker.close()
    verification.adopt(found, verified, experiment.verify_dims)


def _do(
    experiment: Experiment,
    config: Mapping[str, Any],
    folder: Path,
    sources: Callable[[], Sources],
    worker: Worker,
    found: Record,
) -> None:
    """One job for one target: its programs are compiled and, where its devices are here, run and checked."""
    loading = data.loading(experiment)
    data_folder = sources().folder(loading) if loading else Path.cwd()
    data.check(experiment, data_folder)
    # At the sizes for which hardware is not here, data may be too large for this machine.
    arrays = None
    if experiment.target.topology is None:
        memory.check(experiment)
        arrays = data.make(experiment, data_folder)
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        job = {
            "config": dict(config),
            "folder": str(folder.resolve()),
            "data": str(data_folder.resolve()),
            "arrays": left_here,
            "steps": [step.to_json() for step in _steps(experiment)],
        }
        events = listen(worker, job, experiment.timeout)
        from runner.evidence.modes import modes
        from runner.flow.findings import Findings

        found["environment"] = record.environment()
        findings = Findings(experiment, arrays, found)
        named = dimensions.names(config, experiment)
        _log.info("%s: %s", experiment.name, "; ".join(map(str, _steps(experiment))))
        for event in events:
            match event["event"]:
                case "invalid":
                    raise InvalidExperiment(findings.explained(Fault.from_json(event["fault"])))
                case "types":
                    findings.consult_oracles(event, Path(left_here))
                case "finished":
                    step = Step.from_json(event["step"])
                    _log.info("%s: %s", step, event.get("error") or event.get("unsupported") or "finished")
                    findings.add(event, Path(left_here))
                case "died":
                    found.update(status="error", error=event["error"])
                case "log" if event["text"].strip():
                    with open(folder / "worker.log", "a", encoding="utf-8") as log:
                        log.write(event["text"])
    findings.conclude(folder, named)
    if not experiment.chosen:
        found["modes"] = modes(found["programs"], folder)


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
