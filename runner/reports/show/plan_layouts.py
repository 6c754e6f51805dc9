"""Shows the layouts of a plan, and how two plans differ, on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runner.base.grouping import by_key
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.printable import printable
from runner.base.words import bytes_text, listed, time_text
from runner.experiment import remat
from runner.experiment.patterns import folded
from runner.programs.planning.costs import costs_the_same
from runner.reports.record import plan_file
from runner.reports.show.console import print_table
from runner.reports.show.table import Table

_LINES = 12
"""The most differing costs of lines that are shown, the largest difference first."""


_TOTALS = {"sends": "sent", "holds": "held", "needs": "needed"}
"""What a device does with bytes, and the keys of these totals in a plan."""

EXCEEDS = "no layout that was tried fits the limit in the model; these need the least memory"
"""The sentence on a plan that exceeds its memory limit."""


ROUNDS = ("limit in the model", "needed by the model", "as compiled", "candidate")
"""The columns of the table of plans within a memory limit."""


def round_cells(plan: Mapping[str, Any], limit: float | None) -> tuple[str, str, str, str]:
    """Return the row of a plan within a memory limit, from the record."""
    needed = plan.get("needed")
    compiled = "–" if needed is None else amount(needed, "bytes")
    if limit is not None and (needed or 0) > limit:
        compiled += " (over the limit)"
    own = "none" if plan.get("limit") is None else amount(plan["limit"], "bytes")
    planned = amount(plan["planned"], "bytes") + (" (the least)" if plan.get("exceeds") else "")
    candidate = plan.get("candidate")
    return own, planned, compiled, candidate or "arrays and outputs alone exceed the limit"


CHOICES = ("saved for the backward pass", "cost", "needs", "flops computed again")
"""The columns of the table of choices of what checkpoints save."""


def choice_cells(choice: Mapping[str, Any], least: str) -> tuple[str, str, str, str]:
    """Return the row of a choice of what checkpoints save, from the record."""
    over = " (over the limit)" if choice.get("exceeds") else ""
    needed = amount(choice["needed"], "bytes") + over
    return remat.words(choice["saved"]), amount(choice["cost"], least), needed, f"{choice['recomputed']:.3g}"


@dataclass(frozen=True)
class SavedPlan:
    """A plan: the quantity that it minimises, its layouts by key, its costs in total and per line.

    - `totals`: the bytes that a device sends, holds and needs, by these words; `axes`: the bytes of each kind of
      collective over each set of mesh axes.
    - `front`: the costs of each plan on the front, by quantity; `front_layouts`: its layouts; of all but the first,
      only those that differ.
    - `labels`: the paths of the leaves of trees, by their keys; `plain`: the whole file; `mesh`: its mesh in words.
    - `exceeds`: whether it needs more memory than its limit.
    """

    name: str
    least: str
    layouts: Mapping[str, str]
    cost: float
    totals: Mapping[str, float]
    lines: Mapping[tuple[str, str], float]
    axes: Mapping[tuple[str, str], float]
    front: Sequence[Mapping[str, float]]
    front_layouts: Sequence[str]
    parallelism: Sequence[str]
    labels: Mapping[str, str]
    plain: Mapping[str, Any]
    mesh: str
    exceeds: bool


class LineCosts(NamedTuple):
    """What a part of a line costs in each of two plans; 0 if one has no such part."""

    line: str
    what: str
    a: float
    b: float


def read(path: Path) -> SavedPlan:
    """Read the plan of a run folder, or its file. Raises `UnreadablePlan`."""
    whole = plan_file.read(path)
    plan, labels = whole["plan"], whole.get("labels", {})
    best, front = plan["best"], plan.get("front") or ()
    return SavedPlan(
        name=str(path),
        least=plan["least"],
        layouts=layout_texts(best),
        cost=best["cost"],
        totals={word: best[key] for word, key in _TOTALS.items() if key in best},
        lines={(line["line"], line["what"]): line["cost"] for line in plan["lines"]},
        axes={(total["kind"], listed(total["axes"])): total["bytes"] for total in plan.get("axes", ())},
        front=[point["costs"] for point in front],
        front_layouts=differing([layout_texts(point) for point in front], labels),
        parallelism=plan.get("parallelism", ()),
        labels=labels,
        plain=whole,
        mesh=mesh_text(whole),
        exceeds=plan.get("memory") is not None and best["needed"] > plan["memory"],
    )


def mesh_text(whole: Mapping[str, Any]) -> str:
    """Return the mesh of a plan file: `data=2 × model=4`; empty if an older version wrote it."""
    return " × ".join(f"{axis}={size}" for axis, size in whole.get("mesh", {}).items())


def layout_texts(candidate: Mapping[str, Any]) -> dict[str, str]:
    """Return the layouts of a candidate in YAML syntax, by key."""
    return {key: spec_text(spec) for key, spec in candidate["layouts"].items()}


def spec_text(entries: Any) -> str:
    """Return a layout in YAML syntax from the lists of JSON."""
    return Spec([() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in entries]).yaml()


def show_layouts(path: Path) -> None:
    """Print the layouts that a run planned."""
    plan = read(path)
    planned = [f"{', '.join(names)}: {spec}" for spec, names in grouped(plan.layouts, plan.labels)]
    if (saved := plan.plain["plan"]["best"].get("saved")) is not None:
        planned.append(f"saved for the backward pass: {remat.words(saved)}")
    least = f"the least {plan.least} ({amount(plan.cost, plan.least)})"
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
    return [
        (key, a.layouts.get(key, "–"), b.layouts.get(key, "–"))
        for key in dict.fromkeys((*a.layouts, *b.layouts))
        if a.layouts.get(key) != b.layouts.get(key)
    ]


def costs_apart(a: SavedPlan, b: SavedPlan) -> list[LineCosts]:
    """Return the lines with differing costs, the largest difference first; none of plans with different objectives."""
    if a.least != b.least:
        return []
    costs = [
        LineCosts(line, what, a.lines.get((line, what), 0.0), b.lines.get((line, what), 0.0))
        for line, what in dict.fromkeys((*a.lines, *b.lines))
    ]
    return sorted(
        (cost for cost in costs if not _is_negligible(a, b, cost.b - cost.a)), key=lambda each: -abs(each.b - each.a)
    )


def dearer(a: SavedPlan, b: SavedPlan, names: tuple[str, str], difference: float) -> str:
    """Say which of two plans costs more by a difference, in words with these names."""
    if _is_negligible(a, b, difference):
        return "both cost the same"
    return f"{names[difference > 0]} costs {amount(abs(difference), a.least)} more"


def _is_negligible(a: SavedPlan, b: SavedPlan, difference: float) -> bool:
    return costs_the_same(difference, 0.0, of=max(a.cost, b.cost))


def _difference(a: SavedPlan, b: SavedPlan) -> Iterator[str]:
    names = a.name, b.name
    if a.mesh != b.mesh:
        yield f"the mesh is {a.mesh or 'not known'} in {a.name}, {b.mesh or 'not known'} in {b.name}"
    if a.least != b.least:
        yield f"costs are not compared: {a.name} has the least {a.least}, {b.name} the least {b.least}"
    else:
        costs = f"{amount(a.cost, a.least)}, {amount(b.cost, b.least)}"
        yield f"{dearer(a, b, names, b.cost - a.cost)} by the model: {costs}"
        apart = costs_apart(a, b)
        for line in apart[:_LINES]:
            yield f"  '{line.line}', {line.what}: {dearer(a, b, names, line.b - line.a)}"
        if len(apart) > _LINES:
            yield f"  and {len(apart) - _LINES} more"
    sent, held = ([amount(plan.totals[word], "bytes") for plan in (a, b)] for word in ("sends", "holds"))
    yield f"a device sends {sent[0]} in {a.name}, {sent[1]} in {b.name}"
    yield f"a device holds {held[0]} of arrays and outputs in {a.name}, {held[1]} in {b.name}"
    for plan, other in ((a, b), (b, a)):
        for sentence in plan.parallelism:
            if sentence not in other.parallelism:
                yield f"only {plan.name}: {sentence}"


def amount(value: float | None, least: str) -> str:
    """Return a number in the unit of the objective."""
    if value is None:
        return "–"
    return time_text(value) if least == "time" else bytes_text(round(value))


def short(key: str, labels: Mapping[str, str]) -> str:
    """Return the name of an array, line or output from the key of its layout; of a leaf its path."""
    return labels.get(key) or key.partition(".")[2].removesuffix(".spec") or key


def differing(candidates: Sequence[Mapping[str, str]], labels: Mapping[str, str]) -> list[str]:
    """Return the layouts of each candidate as text: of the first all of them, of the others those that differ."""
    texts: list[str] = []
    for layouts in candidates:
        shown = layouts
        if texts:
            shown = {key: spec for key, spec in layouts.items() if candidates[0].get(key) != spec}
        texts.append(" ".join(_named(shown, labels)) or "the same")
    return texts


def _named(layouts: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[str]:
    """Yield `name=layout`, with one pattern for the leaves of trees that have the same layout."""
    names: dict[tuple[str, str], list[str]] = {}
    for key, spec in layouts.items():
        name = short(key, labels)
        names.setdefault(("" if "/" in name else name, spec), []).append(name)
    for (_, spec), alike in names.items():
        yield from (f"{name}={spec}" for name in folded(alike))
