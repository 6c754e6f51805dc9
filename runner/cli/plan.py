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

from runner import codec
from runner.cli import single
from runner.cli.jobs import Job
from runner.config import schema
from runner.config.compose import Configuration
from runner.config.sources import shown
from runner.invocation import invocation
from runner.link.workers import Workers
from runner.planning.costs import costs_more
from runner.record import files
from runner.record.folders import PLAN
from runner.record.planned import UnreadablePlan
from runner.show.console import print_table
from runner.show.plan import EXCEEDS, ROUNDS, amount, differing, round_cells
from runner.show.table import Table
from runner.untyped import is_mapping
from runner.words import bytes_text, listed, of_system

if TYPE_CHECKING:
    from runner.flow.layouts import Planning
    from runner.flow.limits import Round
    from runner.flow.planning import Compiled, Ranked, Tried
    from runner.layout import Spec
    from runner.record.model import Status

EXPERIMENT = Path("conf/experiment/plan.yaml")
"""The file in the run folder with the experiment that has the layouts."""

COMPARE = "--compare"
"""The flag to compare two plans instead of making one."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if the plan passes, 1 if one of its checks failed, 2 for bad input.

    3 if something could not be compiled, run or written. `--compare A B` compares two plans, given as folders or files;
    `-o FILE` writes a page of their difference.
    """
    if COMPARE in arguments:
        return _compare(arguments)
    return single.main("plan", arguments, _plan, "a plan is of")


def _compare(arguments: Sequence[str]) -> int:
    from runner.cli import report
    from runner.cli.arguments import Parser
    from runner.record.files import write_text
    from runner.show import plan as saved
    from runner.show.page import plans

    command = f"{invocation()} plan"
    about = "Print how two plans differ: layouts, what each line costs, totals, kinds of parallelism."
    parser = Parser(f"{command} {COMPARE} A B -o plans.html", prog=command, description=about, allow_abbrev=False)
    parser.add_argument("plans", metavar="PLAN", type=Path, nargs="*", help="a run folder, or a file plan.json")
    parser.add_argument(COMPARE, action="store_true", help="compare two plans instead of making one")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="also write a page that draws the difference")
    options = parser.parse_intermixed_args(list(arguments))
    if len(options.plans) != 2:
        print(f"command line: {COMPARE}\n  it takes two run folders, or two plan.json files", file=sys.stderr)
        return 2
    try:
        a, b = map(saved.read, options.plans)
        page = report.named(options.output) if options.output else None
    except (UnreadablePlan, report.InvalidReport) as error:
        print(f"command line: {COMPARE}\n  {error}", file=sys.stderr)
        return 2
    saved.show_difference(a, b)
    if page is not None:
        try:
            write_text(page, plans.page(a, b))
        except OSError as error:
            print(of_system(error, options.output), file=sys.stderr)
            return 3
        print(f"\n{shown(options.output)}")
    return 0


def _plan(configuration: Configuration, job: Job, workers: Workers) -> Status:
    from runner.flow import layouts
    from runner.flow import planning as flow

    folder, overrides = job.folder, list(job.provenance.overrides)
    planning = layouts.planned(configuration.plain, folder, lambda: configuration.sources, workers)
    _show_plan(planning)
    if planning.request.candidates and (reason := flow.too_large(planning)) is not None:
        print(reason)
        planning = replace(planning, request=replace(planning.request, candidates=0))
    ranked = flow.ranked(planning, folder, lambda: configuration.sources, overrides, workers)
    if ranked.planning is not planning:
        planning = ranked.planning
        print(f"as compiled, another plan {'is better' if ranked.smallest is None else 'needs less'}:\n")
        _show_plan(planning)
    compiled = {"tried": codec.plain(ranked.tried), "rounds": codec.plain(ranked.rounds)}
    layouts.leave(folder, planning, **compiled)
    # A handwritten layout is in a file already, and may not divide the work at all.
    own = [candidate for candidate in ranked.tried if candidate.by_hand is None]
    best = own[0].candidate if own else planning.plan.best
    (folder / EXPERIMENT).parent.mkdir(parents=True, exist_ok=True)
    definition = layouts.expecting(planning, layouts.filled(planning, best))
    definition = layouts.anywhere(definition, lambda: configuration.sources)
    files.write_text(folder / EXPERIMENT, text(definition, planning, own[0].programs[0] if own else None))
    _show_rounds(planning, ranked.rounds)
    if ranked.tried:
        _show_tried(planning, ranked.tried)
        if ranked.tried[0].by_hand is not None:
            print(f"\nas compiled, {ranked.tried[0].by_hand} is better than the plan")
    if planning.request.memory is not None and (sentence := _of_limit(planning.request.memory, ranked)):
        print(f"\n{sentence}")
    print(f"\n{folder / PLAN}")
    print(f"{invocation()} --config-dir {folder / EXPERIMENT.parts[0]} +experiment={EXPERIMENT.stem}")
    if not own:
        return "failed" if planning.plan.exceeds else "passed"
    status = own[0].programs[0].status
    return "failed" if status == "passed" and ranked.smallest is not None else status


def _show_rounds(planning: Planning, rounds: Sequence[Round]) -> None:
    """Print the plans within the memory limit, in the order in which they were made."""
    if rounds:
        print_table(Table(ROUNDS, [round_cells(codec.plain(each), planning.request.memory) for each in rounds]))
        print()


def _of_limit(memory: float, ranked: Ranked) -> str | None:
    """Return a sentence on a limit that no compiled candidate is within, or that no compiler counts bytes for."""
    if ranked.smallest is not None:
        smallest, needed = ranked.smallest
        name = smallest.by_hand or smallest.folder
        return (
            f"no compiled layout fits the limit of {bytes_text(round(memory))}: the smallest, {name}, needs "
            f"{bytes_text(needed)}"
        )
    programs = [program for each in ranked.tried for program in each.programs if program.status == "passed"]
    if any(program.memory_bytes is not None for program in programs):
        return None
    why = "the compiler reports no memory" if programs else "no program was compiled"
    return f"{why}: the limit of {bytes_text(round(memory))} holds in the model alone"


def text(definition: Mapping[str, Any], planning: Planning, compiled: Compiled | None = None) -> str:
    """Return the file of an experiment: every key that was given a value.

    `compiled`: its program, whose memory the head of the file has if there is a limit.
    """
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
    memory = planning.request.memory
    if memory is not None and compiled is not None and compiled.memory_bytes is not None:
        needed, limit = bytes_text(compiled.memory_bytes), bytes_text(round(memory))
        head.append(f"# As compiled ({compiled.program}) a device needs {needed}; the limit is {limit}.")
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
        costs = f"costs {amount(more, least)}" if costs_more(plan.best.cost, plan.unlimited) else "costs nothing"
        limit = bytes_text(round(planning.request.memory or plan.memory))
        model = f" ({bytes_text(round(plan.memory))} in the model)" if plan.memory != planning.request.memory else ""
        print(f"the limit of {limit}{model} {costs}")
        if plan.exceeds:
            print(EXCEEDS)
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
