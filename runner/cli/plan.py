"""`python -m runner plan +experiment=NAME`: an experiment whose layouts are `auto` in; the layouts, and why, out.

The plan is found from the graph, without compiling; its best candidates are then compiled and verified, and ranked by
that. What comes first is an experiment in the run folder, which runs as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import codec
from runner.cli import single
from runner.cli.jobs import Job
from runner.config import schema
from runner.config.compose import Configuration
from runner.link.workers import Workers
from runner.record import files
from runner.untyped import is_mapping
from runner.words import bytes_text, listed

if TYPE_CHECKING:
    from runner.flow.planning import Planning, Tried
    from runner.record.model import Status

FILE = "plan.json"
"""Where in the run folder the plan is, for other programs to read."""

EXPERIMENT = Path("conf/experiment/plan.yaml")
"""Where in the run folder the experiment is that has the layouts."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 where the plan passes, 1 where a check of it failed, 2 for bad input.

    3 for what could not be compiled or run.
    """
    return single.main("plan", arguments, _plan, "a plan is of")


def _plan(configuration: Configuration, job: Job, workers: Workers) -> Status:
    from runner.flow import planning as flow

    folder, overrides = job.folder, list(job.provenance.overrides)
    planning = flow.planned(configuration.plain, folder, lambda: configuration.sources, workers)
    _show_plan(planning)
    tried = flow.tried(planning, folder, lambda: configuration.sources, overrides, workers)
    best = tried[0]
    files.write_text(folder / FILE, json.dumps(_plain(planning, tried), indent=1) + "\n")
    (folder / EXPERIMENT).parent.mkdir(parents=True, exist_ok=True)
    found = flow.anywhere(flow.filled(planning, best.candidate), lambda: configuration.sources)
    files.write_text(folder / EXPERIMENT, text(found, planning))
    _show_tried(planning, tried)
    print(f"\n{folder / FILE}")
    print(f"python -m runner --config-dir {folder / EXPERIMENT.parts[0]} +experiment={EXPERIMENT.stem}")
    return best.programs[0].status


def text(definition: Mapping[str, Any], planning: Planning) -> str:
    """The file of an experiment: every key that somebody gave a value."""
    import yaml

    defaults = schema.whole({})
    given = {
        key: value
        for key, value in definition.items()
        if value != defaults.get(key) and not (key in _NESTED and not _said(value, defaults[key]))
    }
    nested: dict[str, Mapping[str, Any]] = {key: given[key] for key in _NESTED if key in given}
    given |= {key: _said(value, defaults[key]) for key, value in nested.items()}
    given["arrays"] = {name: schema.said(array) for name, array in given["arrays"].items()}
    plan = planning.plan
    head = [
        "# @package _global_",
        f"# The layouts were found by python -m runner plan, for the least {plan.least}: {_optimality(planning)}.",
    ]
    body = yaml.dump(given, Dumper=_dumper(), sort_keys=False, width=120, allow_unicode=True)
    return "\n".join(head) + "\n" + body


_NESTED = ("mesh", "target", "hardware", "expect", "test", "grad", "sweep")
"""The keys whose own keys have defaults."""


def _said(value: Mapping[str, Any] | None, defaults: Any) -> dict[str, Any]:
    """What of a mapping differs from the defaults."""
    found: dict[str, Any] = {}
    for name, one in (value or {}).items():
        default = defaults.get(name)
        if is_mapping(one) and is_mapping(default):
            if inner := _said(one, default):
                found[name] = inner
        elif one != default:
            found[name] = one
    return found


def _dumper() -> type[Any]:
    """Writes lists in one line, as people write specs."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lists of one line."""

    def sequence(dumper: Any, data: Any) -> Any:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, sequence)
    Dumper.add_representer(tuple, sequence)
    return Dumper


def _optimality(planning: Planning) -> str:
    """What is known of how good the plan is, by its model."""
    from runner.flow.planning import amount

    plan = planning.plan
    if plan.proved:
        return "by the model no other plan is better"
    best = amount(plan.bound, plan.least)
    return f"by the model no plan is below {best}, and this one has {amount(plan.best.cost, plan.least)}"


def _plain(planning: Planning, tried: Sequence[Tried]) -> dict[str, Any]:
    return {"plan": codec.plain(planning.plan), "tried": codec.plain(tried)}


def _show_plan(planning: Planning) -> None:
    from runner.flow.planning import amount
    from runner.show.console import print_table
    from runner.show.table import Table

    plan, least = planning.plan, planning.plan.least
    rows: list[tuple[str, str, str, str]] = []
    for one in plan.alternatives:
        more = f" +{amount(one.more, least)}" if one.more else ""
        following = "" if one.next is None else one.next.yaml() + more
        rows.append((_told(one.key, planning), one.spec.yaml(), following, one.since))
    print_table(Table(("key", "layout", "next best", "since"), rows))
    cost = amount(plan.best.cost, least)
    print(
        f"\nleast {least}: {cost}; a device sends {bytes_text(round(plan.best.sent))}, and holds "
        f"{bytes_text(round(plan.best.held))} of arrays and outputs"
    )
    print(f"{_optimality(planning)} ({plan.solver}, {plan.variables} variables)")
    for axes in plan.axes:
        print(f"  {axes.kind} over {listed(axes.axes)}: {bytes_text(round(axes.bytes))} in {axes.count}")
    for note in plan.unknown:
        print(f"  not known: {note}" if "does not say" in note else f"  {note}")
    print()


def _told(key: str, planning: Planning) -> str:
    """The key of a layout, or the path of a leaf."""
    name = key.partition(".")[2].removesuffix(".spec")
    return planning.experiment.imports.paths.get(name, key)


def _show_tried(planning: Planning, tried: Sequence[Tried]) -> None:
    from runner.flow.planning import amount, exceeds
    from runner.show.console import print_table
    from runner.show.table import Table, status_cell

    least = planning.plan.least
    rows = [
        (
            one.folder,
            " ".join(
                f"{_told(key, planning).removesuffix('.spec').partition('.')[2] or _told(key, planning)}={spec.yaml()}"
                for key, spec in one.candidate.layouts.items()
            ),
            amount(one.candidate.cost, least),
            program.program,
            status_cell(program.status),
            bytes_text(program.bytes_sent) if program.bytes_sent is not None else "–",
            amount(program.seconds, "time"),
            amount(program.memory_bytes, "bytes") + (" (over the limit)" if exceeds(program, planning.request) else ""),
        )
        for one in tried
        for program in one.programs
    ]
    head = ("candidate", "layouts", "planned", "program", "status", "sent", "estimate", "memory")
    print_table(Table(head, rows))
