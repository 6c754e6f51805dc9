"""`python -m runner.derive +experiment=NAME`: an experiment with a graph in; its `per_device`, to be pasted, out.

Nothing is compiled or run: the lines are those of the program `derived`.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli import app
from runner.experiment.model import DERIVED
from runner.experiment.reader import read
from runner.faults import Fault, InvalidExperiment, invalid
from runner.link.process import Worker
from runner.link.target import listen

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.sources import Sources


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 where there are lines, 2 for bad input or what cannot be written, 3 for a bug."""
    if any(argument in ("-m", "--multirun") for argument in arguments):
        print("command line: --multirun\n  the lines are those of one experiment: name one point", file=sys.stderr)
        return 2
    return app.main(arguments, _task)


def _task(config: DictConfig) -> str:
    """One job of Hydra. Returns its status; never raises."""
    from omegaconf.errors import OmegaConfBaseException

    from runner.config import composition

    job = app.job(config)
    worker = app.started()
    try:
        status = _derive({**job.plain(), "program": DERIVED}, job.folder, job.sources, worker)
    except OmegaConfBaseException as error:
        print(composition.in_task(error, job.sources()), file=sys.stderr)
        status = "invalid"
    except InvalidExperiment as error:
        print(job.sources().report(error.fault), file=sys.stderr)
        status = "invalid"
    except Exception as error:
        traceback.print_exc()
        print(f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        status = "error"
    finally:
        worker.close()
    app.ended(status)
    return status


def _derive(config: dict[str, Any], folder: Path, sources: Callable[[], Sources], worker: Worker) -> str:
    experiment = read(config)
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        job = {
            "config": config,
            "folder": str(folder.resolve()),
            "data": str(folder.resolve()),
            "arrays": left_here,
            "programs": [],
        }
        for event in listen(worker, job, experiment.timeout):
            match event["event"]:
                case "invalid":
                    raise InvalidExperiment(Fault.from_json(event["fault"]))
                case "died":
                    raise RuntimeError(event["error"])
                case "types":
                    reason = event["unsupported"].get(DERIVED)
                    if reason:
                        raise invalid(("program",), f"the graph cannot be written for one device: {reason}")
                    print(text(event["derivation"]))
                    return "passed"
                case _:
                    continue
    raise RuntimeError("the worker ended before it told the types")


def text(derivation: Mapping[str, Any]) -> str:
    """The section as the YAML has it, and as comments what there is to say of it."""
    import yaml

    from runner.show.pictures import bytes_text

    parts: dict[str, Any] = {} if derivation["check_vma"] else {"check_vma": False}
    parts["per_device"] = derivation["per_device"]
    lines = yaml.safe_dump(parts, sort_keys=False, width=10_000, allow_unicode=True).rstrip("\n").split("\n")
    notes = [f"each device sends {bytes_text(derivation['sent_bytes'])} on a ring", *derivation["notes"]]
    if "missing" in derivation["plan"]:
        notes.append(f"without a plan: {derivation['plan']['missing']}")
    return "\n".join([*lines, *(f"# {note}" for note in notes)])
