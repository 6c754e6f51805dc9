"""Takes an experiment; returns the worker's job, and the kind of process that can do it.

It does not need the classes of the worker's events (`events.py`), which are created while the worker imports JAX.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.experiment.model import Experiment
from runner.link.steps import Step


def job(
    experiment: Experiment, folder: Path, data_folder: Path, left_here: str, steps: Iterable[Step] = ()
) -> dict[str, Any]:
    """The worker's job for an experiment.

    Programs are written into `folder`, `load` looks in `data_folder`, and values are left in `left_here`.
    """
    return {
        "definition": dict(experiment.definition),
        "folder": str(folder.resolve()),
        "data": str(data_folder.resolve()),
        "arrays": left_here,
        "steps": [step.to_json() for step in steps],
    }


def kind(experiment: Experiment) -> str:
    """The kind of process for an experiment's jobs: JAX has one platform per process, and libtpu one environment.

    Processes that were connected cannot be connected again with other devices: some exit on state that is left."""
    target = experiment.target
    if target.topology is not None and target.platform != "cpu":
        return f"{target.topology.platform} that is not here"
    return target.platform if target.processes == 1 else f"{target.devices_each} devices of {target.platform}"
