"""`python -m runner derive +experiment=NAME` prints the `per_device` of a graph, ready to paste.

Nothing is compiled or run: the lines are those of the program `derived`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.app.cli import single
from runner.app.cli.answers import answered
from runner.app.cli.jobs import Job
from runner.app.flow import functions
from runner.base.faults import invalid
from runner.experiment.config.compose import Configuration
from runner.experiment.imported import TREES
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link.target import types_of
from runner.link.workers import Workers

if TYPE_CHECKING:
    from runner.graph.sharding.propagation import Derivation
    from runner.reports.record.model import Status


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if there are lines, 2 for bad input or an underivable graph, 3 for a bug."""
    return single.main("derive", arguments, _derive, "the lines are those of")


def _derive(configuration: Configuration, job: Job, workers: Workers) -> Status:
    # Read as written first, so that its own `program` is valid too; `at` then reads it again for `derived`.
    config = functions.traced(configuration.plain, job.folder / TREES, configuration.sources, workers, values=False)
    experiment = read(config).at(program=Program.DERIVED.value)
    types = types_of(workers, experiment, job.folder, job.folder)
    if types.derivation is None:
        if Program.DERIVED in types.unwritten:
            raise RuntimeError(types.unwritten[Program.DERIVED])
        reason = types.unsupported[Program.DERIVED]
        raise invalid(("program",), f"no per_device can be derived from the graph: {reason}")
    print(text(types.derivation, manual=experiment.definition["manual"] is not None))
    return "passed"


def text(derivation: Derivation, *, manual: bool = False) -> str:
    """Return the section as YAML, with notes as comments; with `manual`, it is manual over all axes."""
    import yaml

    from runner.base.words import bytes_text

    parts: dict[str, Any] = {"manual": None} if manual else {}
    parts |= {} if derivation.check_vma else {"check_vma": False}
    parts["per_device"] = derivation.per_device
    lines = yaml.safe_dump(parts, sort_keys=False, width=10_000, allow_unicode=True).rstrip("\n").split("\n")
    notes = [f"each device sends {bytes_text(derivation.sent_bytes)} on a ring", *derivation.notes]
    if derivation.plan.missing is not None:
        notes.append(f"without a plan: {derivation.plan.missing}")
    if derivation.plan.unknown is not None:
        notes.append(f"not known of Shardy's plan: {derivation.plan.unknown}")
    planned = ["as Shardy plans the graph:"] if derivation.notation else []
    for line in derivation.notation:
        planned += [f"  {line.text}", *(f"      {collective}" for collective in line.collectives)]
    return "\n".join([*lines, *(f"# {note}" for note in [*notes, *planned])])
