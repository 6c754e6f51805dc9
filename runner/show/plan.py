"""A plan from `plan.json` in; its layouts, and how two plans differ, on the terminal out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.invocation import invocation
from runner.layout import Spec
from runner.printable import printable
from runner.record.folders import PLAN
from runner.show.console import print_table
from runner.show.table import Table
from runner.words import bytes_text, time_text

_LINES = 12
"""The most differing costs of lines that are shown, the largest difference first."""


class UnreadablePlan(Exception):
    """There is no plan, or it cannot be read; the message says why."""


@dataclass(frozen=True)
class _Plan:
    """A plan: the quantity that it minimises, its layouts by key, its costs in total and per line.

    `labels`: the paths of the leaves of trees, by their keys.
    """

    name: str
    least: str
    layouts: Mapping[str, str]
    cost: float
    sent: float
    held: float
    lines: Mapping[tuple[str, str], float]
    parallelism: Sequence[str]
    labels: Mapping[str, str]


def read(path: Path) -> _Plan:
    """Read the plan of a run folder, or its file. Raises `UnreadablePlan`."""
    file = path / PLAN if path.is_dir() else path
    try:
        whole: Any = json.loads(file.read_text(encoding="utf-8"))
        plan, labels = whole["plan"], whole.get("labels", {})
        best = plan["best"]
        return _Plan(
            str(path),
            plan["least"],
            {key: spec_text(spec) for key, spec in best["layouts"].items()},
            best["cost"],
            best["sent"],
            best["held"],
            {(line["line"], line["what"]): line["cost"] for line in plan["lines"]},
            plan.get("parallelism", ()),
            labels,
        )
    except OSError as error:
        raise UnreadablePlan(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadablePlan(f"{file} is not a plan, such as {invocation()} plan writes") from None


def spec_text(entries: Any) -> str:
    """Return a layout in YAML syntax from the lists of JSON."""
    return Spec([() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in entries]).yaml()


def show_layouts(path: Path) -> None:
    """Print the layouts that a run planned."""
    plan = read(path)
    keys: dict[str, list[str]] = {}
    for key, spec in plan.layouts.items():
        keys.setdefault(spec, []).append(short(key, plan.labels))
    layouts = "; ".join(f"{', '.join(names)}: {spec}" for spec, names in keys.items())
    print(printable(f"\nlayouts planned, for the least {plan.least} ({amount(plan.cost, plan.least)}): {layouts}"))
    for sentence in plan.parallelism:
        print(printable(f"  {sentence}"))


def show_difference(first: Path, second: Path) -> None:
    """Print which layouts of two plans differ, and which lines cost more. Raises `UnreadablePlan`."""
    a, b = read(first), read(second)
    rows = [
        (key, a.layouts.get(key, "–"), b.layouts.get(key, "–"))
        for key in dict.fromkeys((*a.layouts, *b.layouts))
        if a.layouts.get(key) != b.layouts.get(key)
    ]
    if rows:
        print_table(Table(("layout", a.name, b.name), rows))
    else:
        print("all layouts are the same")
    print()
    for line in _difference(a, b):
        print(printable(line))


def _difference(a: _Plan, b: _Plan) -> Iterator[str]:
    if a.least != b.least:
        yield f"costs are not compared: {a.name} has the least {a.least}, {b.name} the least {b.least}"
    else:
        costs = f"{amount(a.cost, a.least)}, {amount(b.cost, b.least)}"
        yield f"{_more(a, b, b.cost - a.cost, a.least)} by the model: {costs}"
        more = {key: b.lines.get(key, 0.0) - a.lines.get(key, 0.0) for key in dict.fromkeys((*a.lines, *b.lines))}
        looked = sorted(
            (key for key in more if abs(more[key]) > _SAME * max(a.cost, b.cost)), key=lambda k: -abs(more[k])
        )
        for key in looked[:_LINES]:
            line, what = key
            yield f"  '{line}', {what}: {_more(a, b, more[key], a.least)}"
        if len(looked) > _LINES:
            yield f"  and {len(looked) - _LINES} more"
    yield f"a device sends {bytes_text(round(a.sent))} in {a.name}, {bytes_text(round(b.sent))} in {b.name}"
    held = f"{bytes_text(round(a.held))} of arrays and outputs in {a.name}, {bytes_text(round(b.held))} in {b.name}"
    yield f"a device holds {held}"
    for plan, other in ((a, b), (b, a)):
        for sentence in plan.parallelism:
            if sentence not in other.parallelism:
                yield f"only {plan.name}: {sentence}"


_SAME = 1e-6


def _more(a: _Plan, b: _Plan, difference: float, least: str) -> str:
    if abs(difference) <= _SAME * max(a.cost, b.cost):
        return "both cost the same"
    return f"{(b if difference > 0 else a).name} costs {amount(abs(difference), least)} more"


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
        texts.append(" ".join(f"{short(key, labels)}={spec}" for key, spec in shown.items()) or "the same")
    return texts
