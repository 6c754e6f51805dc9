"""`python -m runner mutate +experiment=NAME` prints the mistakes that an experiment's checks would notice.

Each mutant is the experiment with one typical mistake, and every check is tried on it. The result says how much a green
run of the file proves. Nothing is compiled: the mutants are interpreted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.cli import single
from runner.app.cli.answers import answered
from runner.app.cli.jobs import Job
from runner.app.flow import functions, verification
from runner.base import codec
from runner.base.faults import invalid
from runner.experiment import data, topology
from runner.experiment.config.compose import Configuration
from runner.experiment.imported import TREES
from runner.experiment.reader import read
from runner.link.target import types_and_gradients_of
from runner.link.workers import Workers
from runner.reports.record import writing

if TYPE_CHECKING:
    from runner.checks.context import Context
    from runner.checks.diagnosis.mutants import Mutant
    from runner.experiment.config.sources import Sources
    from runner.experiment.model import Experiment
    from runner.reports.record.model import Status

FILE = "mutants.json"
"""The file in the run folder with the mutants, for other programs to read."""


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if every mutant is noticed, refused or equivalent, 1 if one survives.

    2 for bad input, 3 if something could not be interpreted.
    """
    return single.main("mutate", arguments, _mutate, "mutants are made of")


def _mutate(configuration: Configuration, job: Job, workers: Workers) -> Status:
    from runner.checks.diagnosis.mutants import broken, mutants

    folder = job.folder
    config = functions.traced(configuration.plain, folder / TREES, configuration.sources, workers)
    experiment = read(config)
    overrides = list(job.sources.overrides)
    if experiment.target.topology is not None:
        topology.require(experiment.target.topology)
        smaller = verification.smaller(experiment)
        if isinstance(smaller, str):
            raise invalid(("target",), f"NumPy cannot interpret it at these sizes: {smaller}")
        overrides += verification.overrides(experiment.verify_dims)
        experiment = smaller
    context = consulted(experiment, folder, configuration.sources, workers, overrides)
    tried = mutants(context)
    _report(tried, broken(context.experiment), experiment.name)
    writing.write_text(folder / FILE, json.dumps([_plain(mutant) for mutant in tried], indent=1) + "\n")
    print(f"\n{folder / FILE}")
    return "failed" if any(mutant.outcome == "survived" for mutant in tried) else "passed"


def consulted(
    experiment: Experiment, folder: Path, sources: Sources, workers: Workers, overrides: Sequence[str]
) -> Context:
    """Return the oracles of an experiment, without running its programs. Raises `InvalidExperiment`."""
    from runner.checks import oracles
    from runner.checks.kinds import pinned

    data_folder = data.folder(experiment, sources)
    arrays = data.make(experiment, data_folder)
    types, gradients = types_and_gradients_of(workers, experiment, folder, data_folder)
    released = pinned.released(experiment.values, overrides)
    context = oracles.consult(experiment, arrays, types.outputs, types.floats, released)
    for reason in dict.fromkeys(released.values()):
        print(f"values is not checked: {reason}")
    if experiment.reads_gradients and gradients is not None:
        oracles.consult_gradients(context, *gradients)
        if not context.experiment.reads_gradients:
            print("the lines that read gradients are left as they are, since there is no oracle of the gradients")
    return context


def _plain(mutant: Mutant) -> dict[str, Any]:
    edit = mutant.edit
    return {
        "line": edit.line,
        **({} if edit.frame is None else {"frame": codec.plain(edit.frame)}),
        "kind": edit.kind,
        "before": edit.before,
        "after": edit.after,
        "outcome": mutant.outcome,
        "noticed": list(mutant.noticed),
        "reason": mutant.refused or mutant.equivalent,
    }


def _report(mutants: Sequence[Mutant], section: str, name: str) -> None:
    from runner.checks import registry
    from runner.reports.show import report

    order = ("noticed", "refused", "equivalent", "survived")
    rows = [
        (mutant.outcome, " ".join(mutant.noticed), f"{mutant.edit.place}: {mutant.edit.before} → {mutant.edit.after}")
        for mutant in sorted(mutants, key=lambda mutant: order.index(mutant.outcome))
    ]
    report.mutants(rows)
    equivalent = [mutant for mutant in mutants if mutant.outcome == "equivalent"]
    if equivalent:
        print("\nequivalent, since")
        for mutant in equivalent:
            print(f"  {mutant.edit.place}: {mutant.edit.before} → {mutant.edit.after}: {mutant.equivalent}")
    counts = Counter(mutant.outcome for mutant in mutants)
    by = {kind.name: sum(kind.name in mutant.noticed for mutant in mutants) for kind in registry.kinds()}
    noticed = ", ".join(f"{check} {count}" for check, count in by.items() if count)
    outcomes = [f"{counts['noticed']} noticed" + (f" ({noticed})" if noticed else "")]
    outcomes += [f"{counts[outcome]} {outcome}" for outcome in order[1:]]
    print(f"\n{len(mutants)} mutants of {name}'s {section}: {', '.join(outcomes)}")
    if counts["survived"] and section == "graph":
        print("without per_device, the graph is compared only with the numbers of expect.values")
