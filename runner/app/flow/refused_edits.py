"""Answers, for a diagnosis, whether JAX's types refuse an experiment with an edited line."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from runner.app.flow.reruns import HERE
from runner.base.faults import InvalidExperiment
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link import scratch
from runner.link.jobs import kind
from runner.link.target import types_of
from runner.link.workers import WorkerEnded, Workers

if TYPE_CHECKING:
    from runner.checks.diagnosis.search import Refused


def refusals(experiment: Experiment, workers: Workers, data_folder: Path) -> Refused:
    """A function that returns what JAX's types refuse of a revised experiment; `load` looks in `data_folder`.

    Types are the same on all devices, so simulated devices in one process are enough.
    """

    def reason_of(revised: Experiment) -> str | None:
        program = Program.SHARD_MAP if revised.per_device else Program.AUTO
        asked = revised.at(target={**revised.definition["target"], **HERE}, program=[str(program)], expect={})
        try:
            with scratch.Folder() as own:
                types = types_of(workers.aside(kind(asked)), asked, own.path, data_folder)
        except InvalidExperiment as error:
            return error.fault.message
        except WorkerEnded as error:
            return str(error)
        return types.unsupported.get(program)

    # What the unedited file cannot have here, such as a collective of other hardware, is not the edit's fault.
    before = functools.cache(lambda: reason_of(experiment))

    def refused(revised: Experiment) -> str | None:
        reason = reason_of(revised)
        return None if reason is None or reason == before() else reason

    return refused
