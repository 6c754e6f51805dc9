"""An experiment in; the job that a worker is given with it, and which kind of process can do that, out.

It needs none of the classes of what a worker then tells (`events.py`), which are made while the worker imports JAX.
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
    """What a worker is told to do with an experiment.

    Programs are written into `folder`, `load` looks in `data_folder`, values are left in `left_here`.
    """
    return {
        "definition": dict(experiment.definition),
        "folder": str(folder.resolve()),
        "data": str(data_folder.resolve()),
        "arrays": left_here,
        "steps": [step.to_json() for step in steps],
    }


def kind(experiment: Experiment) -> str:
    """What a process is that does the jobs of an experiment: JAX has one platform in it, libtpu an environment.

    Several processes cannot part and meet again with other devices: what is left of their first meeting ends some.
    """
    target = experiment.target
    if target.topology is not None:
        return f"{target.topology.platform} that is not here"
    return target.platform if target.processes == 1 else f"{target.devices_each} devices of {target.platform}"
