"""Prints a plan on the terminal: its figures first, then each layout with the next best and the reason, abbreviated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from runner.base.grouping import by_key
from runner.base.layout import Spec
from runner.base.words import bytes_text, listed
from runner.experiment import remat
from runner.experiment.open_layouts import PlanRequest
from runner.experiment.patterns import folded
from runner.programs.planning.costs import costs_more
from runner.programs.planning.plan import NOT_EXAMINED, Alternative, LayoutPlan
from runner.reports.show import table
from runner.reports.show.console import PLAIN, room, say, show_lines, tell
from runner.reports.show.plan_layouts import EXCEEDS, amount, differing, layout_texts, short
from runner.reports.show.table import Table, Texts


def optimality(plan: LayoutPlan) -> str:
    """Say how good a plan is known to be, by its model."""
    if plan.proved:
        return "by the model no other plan is better"
    best = amount(plan.bound, plan.least)
    if plan.unfinished:
        return (
            f"this is no plan: the search ended at {amount(plan.best.cost, plan.least)}, and by the model the best one "
            f"may cost {best}; give it more time (plan.seconds) or fewer open layouts"
        )
    return f"by the model no plan costs less than {best}; this one costs {amount(plan.best.cost, plan.least)}"


def show(
    plan: LayoutPlan, labels: Mapping[str, str], request: PlanRequest, spelled: Callable[[Spec], str] = Spec.yaml
) -> None:
    """Print a plan, its layouts in YAML syntax or spelled otherwise."""
    for line in figures(plan, request):
        tell(line)
    print()
    show_table(layouts(plan, labels, spelled))
    if any(alternative.since == NOT_EXAMINED for alternative in plan.alternatives):
        say(NOT_EXAMINED)
    print()
    if plan.front:
        kinds = (plan.least, *request.beside)
        texts = differing([layout_texts(candidate.layouts, spelled) for candidate in plan.front], labels)
        rows = [
            (*(amount(candidate.costs[kind], kind) for kind in kinds), text)
            for candidate, text in zip(plan.front, texts, strict=True)
        ]
        show_table(Table((*kinds, "layouts"), rows))
        print()


def gains_nothing(least: str, compiled: float | None, simplest: float | None) -> str:
    """Say that a plan is no better, as compiled, than replicating what was open; the measures are those of a device."""
    mine, theirs = amount(compiled, least), amount(simplest, least)
    return (
        f"as compiled the plan gains nothing: {_OF_DEVICE[least]} {mine}, and {theirs} with all that is auto "
        "replicated and no layout of a line; take that, unless the plan's arrays have to be smaller"
    )


def exceeds_model(
    least: str, compiled: float, planned: float, simplest: float | None = None, computing: float = 1.0
) -> str:
    """Say that a plan costs more, as compiled, than by the model.

    `simplest`: the smaller measure with all that was open replicated; `computing`: how much more is computed then.
    """
    sentence = f"as compiled {_OF_DEVICE[least]} {amount(compiled, least)}, and {amount(planned, least)} by the model"
    if simplest is None:
        return sentence
    more = (
        f"{amount(simplest, least)} with all that is auto replicated, where it computes {computing:.1f} times as much"
    )
    return f"{sentence}; {more}"


_OF_DEVICE = {"bytes": "a device sends", "time": "a step takes", "memory": "a device needs"}


def refuses(refused: str, accepted: str) -> str:
    """Say that JAX does not accept the layouts that are best by the model, and which ones it accepts."""
    return (
        f"JAX's types refuse the layouts of {refused}, which the model found: the code has to state layouts for them "
        f"(see below); the layouts to take are those of {accepted}, which JAX accepts as the code is"
    )


def show_table(shown: Texts) -> None:
    """Print a table within the terminal, or within 100 columns."""
    show_lines(table.lines(shown, room() or PLAIN))


def figures(plan: LayoutPlan, request: PlanRequest) -> Iterator[str]:
    """Yield what a plan costs, how good it is known to be, what is sent over which axes, and what it is called."""
    cost = amount(plan.best.cost, plan.least)
    yield (
        f"least {plan.least}: {cost}; a device sends {bytes_text(round(plan.best.sent))}, holds "
        f"{bytes_text(round(plan.best.held))} of arrays and outputs, and needs {bytes_text(round(plan.best.needed))}"
    )
    yield f"{optimality(plan)} ({plan.solver}, {plan.variables} variables)"
    if plan.best.saved is not None:
        yield (f"saved for the backward pass: {remat.words(plan.best.saved)} (policy={remat.policy(plan.best.saved)})")
    if plan.memory is not None:
        more = plan.best.cost - plan.unlimited
        costs = f"costs {amount(more, plan.least)}" if costs_more(plan.best.cost, plan.unlimited) else "costs nothing"
        limit = bytes_text(round(request.memory or plan.memory))
        model = f" ({bytes_text(round(plan.memory))} in the model)" if plan.memory != request.memory else ""
        yield f"the limit of {limit}{model} {costs}"
        if plan.exceeds:
            yield EXCEEDS
    for axes in plan.axes:
        yield f"  {axes.kind} over {listed(axes.axes)}: {bytes_text(round(axes.bytes))} in {axes.count}"
    for sentence in plan.parallelism:
        yield f"  {sentence}"
    for note in plan.unknown:
        yield f"  not known: {note}" if "does not say" in note else f"  {note}"


def layouts(plan: LayoutPlan, labels: Mapping[str, str], spelled: Callable[[Spec], str] = Spec.yaml) -> Table[str]:
    """Return the table of layouts: arrays, lines and outputs with the same layout, next best and reason in one row."""
    groups = by_key(
        ((each.key.partition(".")[0], *_cells(each, plan, spelled)), short(each.key, labels))
        for each in plan.alternatives
    )
    rows = [
        (f"{_SECTIONS.get(section, '')}{', '.join(_numbered(folded(names))).lstrip('/')}", layout, following, since)
        for (section, layout, following, since), names in groups.items()
    ]
    return Table(("of", "layout", "next best", "since"), rows)


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """Yield names, operations that differ by their numbers as one: `dot_general.{1,3}`."""
    numbers: dict[tuple[str, bool], list[str]] = {}
    for name in names:
        head, _, number = name.rpartition(".")
        numbered = bool(head) and number.isdecimal()
        numbers.setdefault((head if numbered else name, numbered), []).append(number)
    for (head, numbered), own in numbers.items():
        yield head if not numbered else f"{head}.{own[0]}" if len(own) == 1 else f"{head}.{{{','.join(own)}}}"


_SECTIONS = {"outputs": "output ", "constraints": "line "}
"""What stands before names that are not of arrays."""


def _cells(each: Alternative, plan: LayoutPlan, spelled: Callable[[Spec], str]) -> tuple[str, str, str]:
    more = f" +{amount(each.more, plan.least)}" if each.more else ""
    following = "" if each.next is None else spelled(each.next) + more
    return spelled(each.spec), following, "" if each.since == NOT_EXAMINED else each.since


def list_text(shape: Sequence[int]) -> str:
    """Return a list as text: `[4, 2]`."""
    return f"[{', '.join(map(str, shape))}]"
