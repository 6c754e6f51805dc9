"""A resolved configuration and a run folder in; the record of the run, and the files beside it, out.

This is the flow of the house: the experiment is read, the worker gets its job, and while it imports JAX and compiles,
the oracles compute. What follows from both is `runner/run/findings.py`, imported once the worker is busy.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment import data, topology
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.faults import Fault, InvalidExperiment
from runner.link import steps
from runner.link.process import Worker
from runner.link.target import listen
from runner.record import record
from runner.record.record import Record
from runner.run import dimensions, verification

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
    try:
        _run(config, folder, sources, worker, found)
    except InvalidExperiment as error:
        found.update(status="invalid", error=sources().report(error.fault))
    finally:
        worker.close()
    found["environment"] = found["environment"] or record.environment()
    record.write(found, folder)
    return found


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
    arrays = data.make(experiment, data_folder) if experiment.target.topology is None else None
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        job = {
            "config": dict(config),
            "folder": str(folder.resolve()),
            "data": str(data_folder.resolve()),
            "arrays": left_here,
            "programs": [*_steps(experiment), *_tracing(experiment)],
        }
        events = listen(worker, job, experiment.timeout)
        from runner.run.findings import Findings

        found["environment"] = record.environment()
        findings = Findings(experiment, arrays, found)
        named = dimensions.names(config, experiment)
        _log.info("%s: %s", experiment.name, ", ".join(job["programs"]))
        for event in events:
            match event["event"]:
                case "invalid":
                    raise InvalidExperiment(findings.explained(Fault.from_json(event["fault"])))
                case "types":
                    findings.consult_oracles(event, Path(left_here))
                case "finished":
                    _log.info("%s %s", event["program"], event.get("error") or event.get("unsupported") or "finished")
                    findings.add(event, Path(left_here))
                case "died":
                    found.update(status="error", error=event["error"])
                case "log" if event["text"].strip():
                    with open(folder / "worker.log", "a", encoding="utf-8") as log:
                        log.write(event["text"])
    findings.conclude(folder, named)


def _steps(experiment: Experiment) -> list[str]:
    """The programs, each followed by the taking of its profile where one is asked for and the program runs."""
    if not experiment.profile or experiment.target.topology is not None:
        return list(experiment.programs)
    return [step for program in experiment.programs for step in (program, steps.profile_of(program))]


def _tracing(experiment: Experiment) -> tuple[str, ...]:
    """The program that takes the trace, where one is asked for and the real program runs."""
    runs = "shard_map" in experiment.programs and experiment.target.topology is None
    return ("trace",) if experiment.trace and runs else ()
