"""`python -m runner.derive +experiment=NAME`: an experiment with a graph in; its `per_device`, to be pasted, out.

Nothing is compiled or run: the lines are those of the program `derived`.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli import app
from runner.config.compose import InvalidConfiguration
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.faults import InvalidExperiment, invalid
from runner.link.events import Died, Invalid, Types
from runner.link.process import Worker
from runner.link.target import listen

if TYPE_CHECKING:
    from runner.record.model import Status
    from runner.sharding.plan import Derivation


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 where there are lines, 2 for bad input or what cannot be written, 3 for a bug."""
    if any(argument in ("-m", "--multirun") for argument in arguments):
        print("command line: --multirun\n  the lines are those of one experiment: name one point", file=sys.stderr)
        return 2
    return app.main(arguments, _task)


def _task(job: app.Job, worker: Worker) -> Status:
    """One job of Hydra. Returns its status; never raises."""
    try:
        return _derive({**job.resolved().plain, "program": Program.DERIVED.value}, job.folder, worker)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
    except InvalidExperiment as error:
        print(job.origin.sources.report(error.fault), file=sys.stderr)
    except Exception as error:
        traceback.print_exc()
        print(f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return "error"
    return "invalid"


def _derive(config: dict[str, Any], folder: Path, worker: Worker) -> Status:
    experiment = read(config)
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        job: dict[str, Any] = {
            "config": config,
            "folder": str(folder.resolve()),
            "data": str(folder.resolve()),
            "arrays": left_here,
            "steps": [],
        }
        for event in listen(worker, job, experiment.timeout):
            match event:
                case Invalid():
                    raise InvalidExperiment(event.fault)
                case Died():
                    raise RuntimeError(event.error)
                case Types():
                    if event.derivation is None:
                        reason = event.unsupported[Program.DERIVED]
                        raise invalid(("program",), f"the graph cannot be written for one device: {reason}")
                    print(text(event.derivation))
                    return "passed"
                case _:
                    continue
    raise RuntimeError("the worker ended before it told the types")


def text(derivation: Derivation) -> str:
    """The section as the YAML has it, and as comments what there is to say of it."""
    import yaml

    from runner.words import bytes_text

    parts: dict[str, Any] = {} if derivation.check_vma else {"check_vma": False}
    parts["per_device"] = derivation.per_device
    lines = yaml.safe_dump(parts, sort_keys=False, width=10_000, allow_unicode=True).rstrip("\n").split("\n")
    notes = [f"each device sends {bytes_text(derivation.sent_bytes)} on a ring", *derivation.notes]
    if derivation.plan.missing is not None:
        notes.append(f"without a plan: {derivation.plan.missing}")
    return "\n".join([*lines, *(f"# {note}" for note in notes)])
