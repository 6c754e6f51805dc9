"""An experiment's configuration in; what a diagnosis may ask of it with a line edited, out: what JAX's types refuse."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.checks.diagnosis import File
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link import scratch
from runner.link.events import Died, Invalid, Types
from runner.link.target import job, kind
from runner.link.workers import Workers

_HERE = {"platform": "cpu", "topology": None, "slices": 1, "processes": 1, "cluster": False}
"""Types are the same on all devices: simulated ones need no other process, and nobody else."""


def file(config: Mapping[str, Any], workers: Workers, data_folder: Path) -> File:
    """The file of a run, whose arrays `load` finds in `data_folder`."""

    def refused(revised: Mapping[str, Any]) -> str | None:
        program = str(Program.SHARD_MAP)
        asked = {**revised, "target": {**revised["target"], **_HERE}, "program": [program], "expect": {}}
        experiment = read(asked)
        which = kind(experiment)
        with scratch.Folder() as own:
            told = job(asked, own.path, data_folder, str(own.path))
            found: str | None = "the worker told no types"
            for event in workers.aside(which).submit(told, which, experiment.timeout):
                match event:
                    case Types():
                        found = event.unsupported.get(program)
                    case Invalid():
                        found = event.fault.message
                    case Died():
                        found = event.error
                    case _:
                        continue
        return found

    # What the file as it is cannot have here, such as a collective of other hardware, says nothing of an edit.
    before = functools.cache(lambda: refused(config))

    def refused_more(revised: Mapping[str, Any]) -> str | None:
        reason = refused(revised)
        return None if reason is None or reason == before() else reason

    return File(config, refused_more)
