"""Shows the layouts of a plan, and how two plans differ, on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runner.base.grouping import by_key
from runner.base.layout import Spec
from runner.base.printable import printable
from runner.base.words import bytes_text, flops_text, time_text
from runner.experiment import remat
from runner.experiment.patterns import folded
from runner.programs.planning.costs import costs_the_same
from runner.reports.record import plan_file
from runner.reports.record.plan_file import Choice, Round, SavedPlan
from runner.reports.show.console import print_table
from runner.reports.show.table import StatusCell, Table, status_cell

_LINES = 12
"""The most differing costs of lines that are shown, the largest difference first."""


EXCEEDS = "no layout that was tried fits the limit in the model; these need the least memory"
"""The sentence on a plan that exceeds its memory limit."""


ROUNDS = ("limit in the model", "needed by the model", "as compiled", "candidate")
"""The columns of the table of plans within a memory limit."""


def round_cells(plan: Round, limit: float | None) -> tuple[str, str, str, str]:
    """Return the row of a plan within a memory limit."""
    compiled = amount(plan.needed, "bytes")
    if limit is not None and (plan.needed or 0) > limit:
        compiled += " (over the limit)"
    own = "none" if plan.limit is None else amount(plan.limit, "bytes")
    planned = amount(plan.planned, "bytes") + (" (the least)" if plan.exceeds else "")
    return own, planned, compiled, plan.candidate or "arrays and outputs alone exceed the limit"


CHOICES = ("saved for the backward pass", "cost", "needs", "computes again")
"""The columns of the table of choices of what checkpoints save."""


def choice_cells(choice: Choice, least: str) -> tuple[str, str, str, str]:
    """Return the row of a choice of what checkpoints save."""
    needed = amount(choice.needed, "bytes") + (" (over the limit)" if choice.exceeds else "")
    return remat.words(choice.saved), amount(choice.cost, least), needed, flops_text(choice.recomputed)


class LineCosts(NamedTuple):
    """What a part of a line costs in each of two plans; 0 if one has no such part."""

    line: str
    what: str
    a: float
    b: float


def layout_texts(layouts: Mapping[str, Spec], spelled: Callable[[Spec], str] = Spec.yaml) -> dict[str, str]:
    """Return layouts in YAML syntax, or spelled otherwise, by key."""
    return {key: spelled(spec) for key, spec in layouts.items()}


def front_texts(plan: SavedPlan) -> list[str]:
    """Return the layouts of each plan on the front; of all but the first, only those that differ."""
    return differing([layout_texts(point.layouts) for point in plan.file.plan.front], plan.file.labels)


def show_layouts(path: Path) -> None:
    """Print the layouts that a run planned."""
    file = plan_file.read(path).file
    plan, best = file.plan, file.plan.best
    planned = [f"{', '.join(names)}: {spec}" for spec, names in grouped(layout_texts(best.layouts), file.labels)]
    if best.saved is not None:
        planned.append(f"saved for the backward pass: {remat.words(best.saved)}")
    least = f"the least {plan.least} ({amount(best.cost, plan.least)})"
    print(printable(f"\nlayouts planned, for {least}: {'; '.join(planned)}"))
    if plan.exceeds:
        print(EXCEEDS)
    for sentence in plan.parallelism:
        print(printable(f"  {sentence}"))


def grouped(layouts: Mapping[str, str], labels: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each layout once, with the names of the arrays, lines and outputs that have it."""
    names = by_key((spec, short(key, labels)) for key, spec in layouts.items())
    return list(names.items())


def show_difference(a: SavedPlan, b: SavedPlan) -> None:
    """Print which layouts of two plans differ, and which lines cost more."""
    if rows := layouts_apart(a, b):
        print_table(Table(("layout", a.name, b.name), rows))
    else:
        print("all layouts are the same")
    print()
    for line in _difference(a, b):
        print(printable(line))


def layouts_apart(a: SavedPlan, b: SavedPlan) -> list[tuple[str, str, str]]:
    """Return the key and both layouts of each array, line and output whose layouts differ; `–` where there is none."""
    first, second = (layout_texts(plan.file.plan.best.layouts) for plan in (a, b))
    return [
        (key, first.get(key, "–"), second.get(key, "–"))
        for key in dict.fromkeys((*first, *second))
        if first.get(key) != second.get(key)
    ]


def costs_apart(a: SavedPlan, b: SavedPlan) -> list[LineCosts]:
    """Return the lines with differing costs, the largest difference first; none of plans with different objectives."""
    if a.file.plan.least != b.file.plan.least:
        return []
    first, second = ({(line.line, line.what): line.cost for line in plan.file.plan.lines} for plan in (a, b))
    lines = dict.fromkeys((*first, *second))
    costs = [LineCosts(*line, first.get(line, 0.0), second.get(line, 0.0)) for line in lines]
    return sorted(
        (cost for cost in costs if not _is_negligible(a, b, cost.b - cost.a)), key=lambda each: -abs(each.b - each.a)
    )


def dearer(a: SavedPlan, b: SavedPlan, names: tuple[str, str], difference: float) -> str:
    """Say which of two plans costs more by a difference, in words with these names."""
    if _is_negligible(a, b, difference):
        return "both cost the same"
    return f"{names[difference > 0]} costs {amount(abs(difference), a.file.plan.least)} more"


def _is_negligible(a: SavedPlan, b: SavedPlan, difference: float) -> bool:
    return costs_the_same(difference, 0.0, of=max(plan.file.plan.best.cost for plan in (a, b)))


def _difference(a: SavedPlan, b: SavedPlan) -> Iterator[str]:
    names, first, second = (a.name, b.name), a.file.plan, b.file.plan
    if (meshes := [plan.file.mesh_text for plan in (a, b)])[0] != meshes[1]:
        yield f"the mesh is {meshes[0] or 'not known'} in {a.name}, {meshes[1] or 'not known'} in {b.name}"
    if first.least != second.least:
        yield f"costs are not compared: {a.name} has the least {first.least}, {b.name} the least {second.least}"
    else:
        costs = f"{amount(first.best.cost, first.least)}, {amount(second.best.cost, first.least)}"
        yield f"{dearer(a, b, names, second.best.cost - first.best.cost)} by the model: {costs}"
        apart = costs_apart(a, b)
        for line in apart[:_LINES]:
            yield f"  '{line.line}', {line.what}: {dearer(a, b, names, line.b - line.a)}"
        if len(apart) > _LINES:
            yield f"  and {len(apart) - _LINES} more"
    sent, held = ([amount(plan.best.totals[word], "bytes") for plan in (first, second)] for word in ("sends", "holds"))
    yield f"a device sends {sent[0]} in {a.name}, {sent[1]} in {b.name}"
    yield f"a device holds {held[0]} of arrays and outputs in {a.name}, {held[1]} in {b.name}"
    for plan, other in ((a, b), (b, a)):
        for sentence in plan.file.plan.parallelism:
            if sentence not in other.file.plan.parallelism:
                yield f"only {plan.name}: {sentence}"


def amount(value: float | None, least: str) -> str:
    """Return a number in the unit of the objective."""
    if value is None:
        return "–"
    return time_text(value) if least == "time" else bytes_text(round(value))


def short(key: str, labels: Mapping[str, str]) -> str:
    """Return the name of an array, line or output from the key of its layout; of a leaf its path."""
    return labels.get(key) or key.partition(".")[2].removesuffix(".spec") or key


def differing(
    candidates: Sequence[Mapping[str, str]], labels: Mapping[str, str], lines: int | None = None
) -> list[str]:
    """Return the layouts of each candidate as text: of the first all of them, of the others those that differ.

    `lines`: the most layouts of lines that are shown, the others as a number; None: all.
    """
    texts: list[str] = []
    for layouts in candidates:
        shown = layouts
        if texts:
            shown = {key: spec for key, spec in layouts.items() if candidates[0].get(key) != spec}
        more = [key for key in shown if key.startswith("constraints.")][lines:] if lines is not None else []
        text = (
            " ".join(_named({key: spec for key, spec in shown.items() if key not in more}, labels))
            or "the same layouts"
        )
        texts.append(f"{text} and {len(more)} more line{'s' if len(more) > 1 else ''}" if more else text)
    return texts


def verdict(status: str, verified: bool) -> StatusCell:
    """Return the status of a candidate's program; one whose values were not computed has passed nothing."""
    return status_cell(status, None if verified or status != "passed" else "compiled")


def _named(layouts: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[str]:
    """Yield `name=layout`, with one pattern for the leaves of trees that have the same layout."""
    names: dict[tuple[str, str], list[str]] = {}
    for key, spec in layouts.items():
        name = short(key, labels)
        names.setdefault(("" if "/" in name else name, spec), []).append(name)
    for (_, spec), alike in names.items():
        yield from (f"{name}={spec}" for name in folded(alike))
