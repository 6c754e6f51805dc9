"""`python -m runner plan +experiment=NAME` prints the best layouts for those that are `auto`, and why.

The plan is searched on the graph, without compiling. Its best candidates are then compiled, verified and ranked by the
compiled programs. The best one is written as an experiment into the run folder, ready to run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.app.cli import single
from runner.app.cli.answers import answered
from runner.app.cli.jobs import Job
from runner.app.flow import candidates
from runner.base import codec
from runner.base.faults import BadInput
from runner.base.invocation import invocation
from runner.base.words import bytes_text, of_system, shown
from runner.experiment.config.compose import Configuration
from runner.link.workers import Workers
from runner.reports.record import plan_file
from runner.reports.record.folders import PAGE, PLAN, PLANNED
from runner.reports.show import plan_table as showing
from runner.reports.show.console import tell
from runner.reports.show.plan_layouts import CHOICES, ROUNDS, amount, choice_cells, round_cells
from runner.reports.show.table import Table

if TYPE_CHECKING:
    from runner.app.flow.filled_layouts import Planning
    from runner.app.flow.memory_limit import Round
    from runner.app.flow.planning import Ranked
    from runner.reports.record.model import Status

COMPARE = "--compare"
"""The flag to compare two plans instead of making one."""


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if the plan passes, 1 if one of its checks failed, 2 for bad input.

    3 if something could not be compiled, run or written. `--compare A B` compares two plans, given as folders or files;
    `-o FILE` writes a page of their difference.
    """
    if COMPARE in arguments:
        return _compare(arguments)
    return single.main("plan", arguments, _plan, "a plan is of")


def _compare(arguments: Sequence[str]) -> int:
    from runner.app.cli import report
    from runner.app.cli.arguments import Parser
    from runner.reports.record.writing import write_text
    from runner.reports.show import plan_layouts as saved
    from runner.reports.show.page import plans

    command = f"{invocation()} plan"
    about = "Print how two plans differ: layouts, what each line costs, totals, kinds of parallelism."
    parser = Parser(f"{command} {COMPARE} A B -o plans.html", prog=command, description=about, allow_abbrev=False)
    parser.add_argument("plans", metavar="PLAN", type=Path, nargs="*", help="a run folder, or a file plan.json")
    parser.add_argument(COMPARE, action="store_true", help="compare two plans instead of making one")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="also write a page that draws the difference")
    options = parser.parse_intermixed_args(list(arguments))
    try:
        if len(options.plans) != 2:
            raise BadInput("it takes two run folders, or two plan.json files")
        a, b = map(plan_file.read, options.plans)
        page = report.named(options.output) if options.output else None
    except BadInput as error:
        raise BadInput(f"command line: {COMPARE}\n  {error}") from None
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
    from runner.app.flow import plan_run

    folder = job.folder
    plan = plan_run.finished(configuration.plain, folder, configuration.sources, workers, tell=_show_first)
    planning, ranked = plan.planning, plan.ranked
    if (sentence := ranked.caveat) is not None:
        tell(sentence)
        print()
    if planning is not plan.first:
        print(f"as compiled, another plan {'is better' if ranked.smallest is None else 'needs less'}:\n")
        _show_plan(planning)
    _show_rounds(planning, ranked.rounds)
    if ranked.tried:
        candidates.show(planning, ranked.tried)
        if ranked.tried[0].by_hand is not None:
            print(f"\nas compiled, {ranked.tried[0].by_hand} is better than the plan")
    if planning.request.memory is not None and (sentence := _of_limit(planning.request.memory, ranked)):
        print(f"\n{sentence}")
    print(f"\n{shown(folder / PLAN)}")
    if (folder / PAGE).exists():
        print(shown(folder / PAGE))
    print(f"{invocation()} --config-dir {shown(folder / PLANNED.parts[0])} +experiment={PLANNED.stem}")
    return plan.status


def _show_first(planning: Planning, unverified: str | None) -> None:
    _show_plan(planning)
    if unverified is not None:
        tell(unverified)
        print()


def _show_rounds(planning: Planning, rounds: Sequence[Round]) -> None:
    """Print the plans within the memory limit, in the order in which they were made."""
    if rounds:
        recorded = [codec.build(plan_file.Round, codec.plain(each)) for each in rounds]
        showing.show_table(Table(ROUNDS, [round_cells(each, planning.request.memory) for each in recorded]))
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


def _show_plan(planning: Planning) -> None:
    showing.show(planning.plan, planning.labels, planning.request)
    if len(planning.choices) > 1:
        recorded = [codec.build(plan_file.Choice, codec.plain(choice)) for choice in planning.choices]
        rows = [choice_cells(choice, planning.plan.least) for choice in recorded]
        showing.show_table(Table(CHOICES, rows))
        print()
    if not planning.shapes:
        return
    least, rows = planning.plan.least, list[tuple[str, str, str, str]]()
    for mesh in planning.shapes:
        sent, held = (amount(value, "bytes") for value in (mesh.sent, mesh.held))
        rows.append((showing.list_text(mesh.shape), mesh.error or amount(mesh.cost, least), sent, held))
    showing.show_table(Table(("mesh.shape", least, "sent", "held"), rows))
    print()
