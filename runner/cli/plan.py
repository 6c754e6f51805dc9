"""`python -m runner plan +experiment=NAME`: an experiment whose layouts are `auto` in; the layouts, and why, out.

The plan is searched on the graph, without compiling. Its best candidates are then compiled, verified and ranked by the
compiled programs. The best one is written as an experiment into the run folder, ready to run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli import single
from runner.cli.jobs import Job
from runner.config import schema
from runner.config.compose import Configuration
from runner.invocation import invocation
from runner.link.workers import Workers
from runner.record import files
from runner.record.folders import PLAN
from runner.show.console import print_table
from runner.show.plan import amount, differing
from runner.show.table import Table
from runner.untyped import is_mapping
from runner.words import bytes_text, listed

if TYPE_CHECKING:
    from runner.flow.layouts import Planning
    from runner.flow.planning import Lowered, Tried
    from runner.layout import Spec
    from runner.record.model import Status

EXPERIMENT = Path("conf/experiment/plan.yaml")
"""The file in the run folder with the experiment that has the layouts."""

COMPARE = "--compare"
"""The flag to compare two plans instead of making one."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if the plan passes, 1 if one of its checks failed, 2 for bad input.

    3 if something could not be compiled or run. `--compare A B` compares two plans, given as folders or files.
    """
    if COMPARE in arguments:
        return _compare([argument for argument in arguments if argument != COMPARE])
    return single.main("plan", arguments, _plan, "a plan is of")


def _compare(plans: Sequence[str]) -> int:
    from runner.show import plan as shown

    if len(plans) != 2:
        print(f"command line: {COMPARE}\n  it takes two run folders, or two plan.json files", file=sys.stderr)
        return 2
    try:
        shown.show_difference(*map(Path, plans))
    except shown.UnreadablePlan as error:
        print(f"command line: {COMPARE}\n  {error}", file=sys.stderr)
        return 2
    return 0


def _plan(configuration: Configuration, job: Job, workers: Workers) -> Status:
    from runner import codec
    from runner.flow import layouts
    from runner.flow import planning as flow

    folder, overrides = job.folder, list(job.provenance.overrides)
    planning = layouts.planned(configuration.plain, folder, lambda: configuration.sources, workers)
    _show_plan(planning)
    if planning.request.candidates and (reason := flow.too_large(planning)) is not None:
        print(reason)
        planning = replace(planning, request=replace(planning.request, candidates=0))
    ranked = flow.ranked(planning, folder, lambda: configuration.sources, overrides, workers)
    for lowered in ranked.lowered:
        _show_lowered(lowered)
    if ranked.lowered:
        planning = ranked.planning
        _show_plan(planning)
    compiled = {"tried": codec.plain(ranked.tried), "lowered": codec.plain(ranked.lowered)}
    layouts.leave(folder, planning, **compiled)
    # A handwritten layout is in a file already, and may not divide the work at all.
    own = [candidate for candidate in ranked.tried if candidate.by_hand is None]
    best = own[0].candidate if own else planning.plan.best
    (folder / EXPERIMENT).parent.mkdir(parents=True, exist_ok=True)
    definition = layouts.anywhere(layouts.filled(planning, best), lambda: configuration.sources)
    files.write_text(folder / EXPERIMENT, text(definition, planning))
    if ranked.tried:
        _show_tried(planning, ranked.tried)
        if ranked.tried[0].by_hand is not None:
            print(f"\nas compiled, {ranked.tried[0].by_hand} is better than the plan")
    if ranked.least_memory is not None:
        print(
            f"\nno compiled layout fits the limit of {bytes_text(round(planning.request.memory or 0))}: "
            f"the smallest needs {bytes_text(ranked.least_memory)}"
        )
    print(f"\n{folder / PLAN}")
    print(f"{invocation()} --config-dir {folder / EXPERIMENT.parts[0]} +experiment={EXPERIMENT.stem}")
    if not own:
        return "passed"
    status = own[0].programs[0].status
    return "failed" if status == "passed" and ranked.least_memory is not None else status


def _show_lowered(lowered: Lowered) -> None:
    print(
        f"as compiled, a device needs {bytes_text(lowered.needed)}; the plan's model has "
        f"{bytes_text(round(lowered.planned))}"
        f", so the plan was made again with a limit of {bytes_text(round(lowered.limit))} in the model\n"
    )


def text(definition: Mapping[str, Any], planning: Planning) -> str:
    """Return the file of an experiment: every key that was given a value."""
    import yaml

    defaults = schema.whole({})
    given = {
        key: value
        for key, value in definition.items()
        if value != defaults.get(key) and not (key in _NESTED and not _changed(value, defaults[key]))
    }
    nested: dict[str, Mapping[str, Any]] = {key: given[key] for key in _NESTED if key in given}
    given |= {key: _changed(value, defaults[key]) for key, value in nested.items()}
    given["arrays"] = {name: schema.given(array) for name, array in given["arrays"].items()}
    plan = planning.plan
    head = [
        "# @package _global_",
        f"# The layouts were found by python -m runner plan, for the least {plan.least}: {_optimality(planning)}.",
    ]
    body = yaml.dump(given, Dumper=_dumper(), sort_keys=False, width=120, allow_unicode=True)
    return "\n".join(head) + "\n" + body


_NESTED = ("mesh", "target", "hardware", "expect", "test", "grad", "sweep")
"""The keys whose subkeys have defaults."""


def _changed(value: Mapping[str, Any] | None, defaults: Any) -> dict[str, Any]:
    """Return the part of a mapping that differs from the defaults."""
    changes: dict[str, Any] = {}
    for name, part in (value or {}).items():
        default = defaults.get(name)
        if is_mapping(part) and is_mapping(default):
            if inner := _changed(part, default):
                changes[name] = inner
        elif part != default:
            changes[name] = part
    return changes


def _dumper() -> type[Any]:
    """Return a YAML dumper that writes lists on one line, as people write specs."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes lists on one line."""

    def sequence(dumper: Any, data: Any) -> Any:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, sequence)
    Dumper.add_representer(tuple, sequence)
    return Dumper


def _optimality(planning: Planning) -> str:
    """Say how good the plan is known to be, by its model."""
    plan = planning.plan
    if plan.proved:
        return "by the model no other plan is better"
    best = amount(plan.bound, plan.least)
    return f"by the model no plan costs less than {best}; this one costs {amount(plan.best.cost, plan.least)}"


def _show_plan(planning: Planning) -> None:
    plan, least, labels = planning.plan, planning.plan.least, planning.labels
    rows: list[tuple[str, str, str, str]] = []
    for alternative in plan.alternatives:
        more = f" +{amount(alternative.more, least)}" if alternative.more else ""
        following = "" if alternative.next is None else alternative.next.yaml() + more
        rows.append(
            (labels.get(alternative.key, alternative.key), alternative.spec.yaml(), following, alternative.since)
        )
    print_table(Table(("key", "layout", "next best", "since"), rows))
    cost = amount(plan.best.cost, least)
    print(
        f"\nleast {least}: {cost}; a device sends {bytes_text(round(plan.best.sent))}, holds "
        f"{bytes_text(round(plan.best.held))} of arrays and outputs, and needs {bytes_text(round(plan.best.needed))}"
    )
    print(f"{_optimality(planning)} ({plan.solver}, {plan.variables} variables)")
    if plan.memory is not None:
        more = plan.best.cost - plan.unlimited
        costs = f"costs {amount(more, least)}" if more > 1e-6 * plan.unlimited else "costs nothing"
        print(f"the limit of {bytes_text(round(plan.memory))} {costs}")
        if plan.best.needed > plan.memory:
            print("no layout that was tried fits the limit in the model; these need the least memory")
    for axes in plan.axes:
        print(f"  {axes.kind} over {listed(axes.axes)}: {bytes_text(round(axes.bytes))} in {axes.count}")
    for sentence in plan.parallelism:
        print(f"  {sentence}")
    for note in plan.unknown:
        print(f"  not known: {note}" if "does not say" in note else f"  {note}")
    print()
    _show_shapes(planning)
    _show_front(planning)


def _show_shapes(planning: Planning) -> None:
    """Print the mesh shapes, the best first, if the shape was planned."""
    if not planning.shapes:
        return
    least, rows = planning.plan.least, list[tuple[str, str, str, str]]()
    for mesh in planning.shapes:
        sent, held = (amount(value, "bytes") for value in (mesh.sent, mesh.held))
        rows.append((list_text(mesh.shape), mesh.error or amount(mesh.cost, least), sent, held))
    print_table(Table(("mesh.shape", least, "sent", "held"), rows))
    print()


def _show_front(planning: Planning) -> None:
    """Print the Pareto front: the plans that no other plan beats in every minimised quantity."""
    plan = planning.plan
    if not plan.front:
        return
    kinds = (plan.least, *planning.request.beside)
    layouts = differing([_texts(candidate.layouts) for candidate in plan.front], planning.labels)
    rows = [
        (*(amount(candidate.costs[kind], kind) for kind in kinds), text)
        for candidate, text in zip(plan.front, layouts, strict=True)
    ]
    print_table(Table((*kinds, "layouts"), rows))
    print()


def list_text(shape: Sequence[int]) -> str:
    """Return a list as text: `[4, 2]`."""
    return f"[{', '.join(map(str, shape))}]"


def _texts(layouts: Mapping[str, Spec]) -> dict[str, str]:
    """Return layouts in YAML syntax."""
    return {key: spec.yaml() for key, spec in layouts.items()}


def _show_tried(planning: Planning, tried: Sequence[Tried]) -> None:
    from runner.flow.planning import exceeds
    from runner.show.table import status_cell

    least = planning.plan.least
    layouts = differing([_texts(each.candidate.layouts) for each in tried], planning.labels)
    rows = [
        (
            *(("", "", "") if number else (each.by_hand or each.folder, text, amount(each.candidate.cost, least))),
            program.program,
            status_cell(program.status),
            bytes_text(program.bytes_sent) if program.bytes_sent is not None else "–",
            amount(program.seconds, "time"),
            amount(program.memory_bytes, "bytes") + (" (over the limit)" if exceeds(program, planning.request) else ""),
        )
        for each, text in zip(tried, layouts, strict=True)
        for number, program in enumerate(each.programs)
    ]
    head = ("candidate", "layouts", "planned", "program", "status", "sent", "estimate", "memory")
    print_table(Table(head, rows))
