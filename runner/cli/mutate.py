"""`python -m runner.mutate +experiment=NAME`: an experiment in; which mistakes in it would have been noticed, out.

It is broken in every way that people break one, one edit at a time, and each of its checks is asked whether it notices.
So a user knows what a green run of their file is worth. Nothing is compiled: the mutants are interpreted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli import app
from runner.config.compose import InvalidConfiguration
from runner.experiment import data, topology
from runner.experiment.reader import read
from runner.faults import InvalidExperiment, invalid
from runner.flow import verification
from runner.link.events import Died, Invalid, Types
from runner.link.process import Worker
from runner.link.target import listen
from runner.record import files

if TYPE_CHECKING:
    from runner.checks.context import Context
    from runner.checks.mutants import Mutant
    from runner.config.sources import Sources
    from runner.experiment.model import Experiment
    from runner.record.model import Status

FILE = "mutants.json"
"""Where in the run folder the mutants are, for other programs to read."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 where every mutant is noticed, refused or equivalent, 1 where one survives.

    2 for bad input, 3 for what could not be interpreted.
    """
    if any(argument in ("-m", "--multirun") for argument in arguments):
        print("command line: --multirun\n  mutants are made of one experiment: name one point", file=sys.stderr)
        return 2
    return app.main(arguments, _task)


def _task(job: app.Job, worker: Worker) -> Status:
    """One job of Hydra. Returns its status; never raises."""
    try:
        config = job.resolved()
        return _mutate(config.plain, job.folder, lambda: config.sources, worker)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
    except InvalidExperiment as error:
        print(job.origin.sources.report(error.fault), file=sys.stderr)
    except Exception as error:
        traceback.print_exc()
        print(f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}", file=sys.stderr)
        return "error"
    return "invalid"


def _mutate(config: dict[str, Any], folder: Path, sources: Callable[[], Sources], worker: Worker) -> Status:
    from runner.checks.mutants import broken, mutants

    experiment = read(config)
    overrides: list[str] = []
    if experiment.target.topology is not None:
        topology.require(experiment.target.topology)
        smaller = verification.smaller(config, experiment)
        if isinstance(smaller, str):
            raise invalid(("target",), f"its results cannot be interpreted at sizes for hardware: {smaller}")
        overrides = [f"dims.{name}={size}" for name, size in experiment.verify_dims.items()]
        config, experiment = smaller
    context = consulted(experiment, config, folder, sources, worker, overrides)
    found = mutants(context)
    _report(found, broken(context.experiment), experiment.name)
    files.write_text(folder / FILE, json.dumps([_plain(mutant) for mutant in found], indent=1) + "\n")
    print(f"\n{folder / FILE}")
    return "failed" if any(mutant.outcome == "survived" for mutant in found) else "passed"


def consulted(
    experiment: Experiment,
    config: Mapping[str, Any],
    folder: Path,
    sources: Callable[[], Sources],
    worker: Worker,
    overrides: Sequence[str],
) -> Context:
    """The oracles of an experiment, none of whose programs is run. Raises `InvalidExperiment`."""
    from runner.checks import oracles, pinned

    data_folder = sources().folder(loading) if (loading := data.loading(experiment)) else Path.cwd()
    data.check(experiment, data_folder)
    arrays = data.make(experiment, data_folder)
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        job: dict[str, Any] = {
            "config": dict(config),
            "folder": str(folder.resolve()),
            "data": str(data_folder.resolve()),
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
                    not_pinned = pinned.not_pinned(overrides)
                    return oracles.consult(experiment, arrays, event.outputs, event.floats, not_pinned)
                case _:
                    continue
    raise RuntimeError("the worker ended before it told the types")


def _plain(mutant: Mutant) -> dict[str, Any]:
    edit = mutant.edit
    return {
        "line": edit.line,
        "kind": edit.kind,
        "before": edit.before,
        "after": edit.after,
        "outcome": mutant.outcome,
        "noticed": list(mutant.noticed),
        "reason": mutant.refused or mutant.equivalent,
    }


def _report(found: Sequence[Mutant], section: str, name: str) -> None:
    from runner.checks.mutants import CHECKS
    from runner.show import report

    order = ("noticed", "refused", "equivalent", "survived")
    rows = [
        (mutant.outcome, " ".join(mutant.noticed), f"{mutant.edit.line}: {mutant.edit.before} → {mutant.edit.after}")
        for mutant in sorted(found, key=lambda mutant: order.index(mutant.outcome))
    ]
    report.mutants(rows)
    equivalent = [mutant for mutant in found if mutant.outcome == "equivalent"]
    if equivalent:
        print("\nequivalent, since")
        for mutant in equivalent:
            print(f"  {mutant.edit.line}: {mutant.edit.before} → {mutant.edit.after}: {mutant.equivalent}")
    counts = Counter(mutant.outcome for mutant in found)
    by = {check: sum(check in mutant.noticed for mutant in found) for check in CHECKS}
    noticed = ", ".join(f"{check} {count}" for check, count in by.items() if count)
    told = [f"{counts['noticed']} noticed" + (f" ({noticed})" if noticed else "")]
    told += [f"{counts[outcome]} {outcome}" for outcome in order[1:]]
    print(f"\n{len(found)} mutants of {name}'s {section}: {', '.join(told)}")
    if counts["survived"] and section == "graph":
        print("a graph alone is what is meant: only the numbers that expect.values pins are held against it")
