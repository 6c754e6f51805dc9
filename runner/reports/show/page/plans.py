"""Makes the page of the difference of two plans: layouts, cost of each line, totals, fronts, parallelism."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from runner.base.words import listed
from runner.reports.record.plan_file import SavedPlan
from runner.reports.show.page.chart import swatch
from runner.reports.show.page.headline import item
from runner.reports.show.page.markup import Inside, Markup, Part, document, table, tag
from runner.reports.show.page.plan_section import fronts
from runner.reports.show.plan_layouts import amount, costs_apart, dearer, front_texts, layouts_apart, short
from runner.reports.show.table import Table

_NAMES = "A", "B"
"""What the two plans are called on the page; their paths may be long."""

_STYLES = "first", "second"
"""The classes of their bars in the style sheet."""

_LINES = 30
"""The most lines whose costs are drawn, those with the largest differences."""

_WIDEST = 14.0
"""The width of the bar of the largest cost, in rem."""

_LARGEST = 2_000_000
"""The most characters of the plans that are embedded in the page."""


def page(a: SavedPlan, b: SavedPlan) -> str:
    """Return the page, which needs no other file."""
    parts = [_layouts(a, b), _lines(a, b), _totals(a, b), _front(a, b), _parallelism(a, b)]
    title = f"{a.name} and {b.name}: two plans"
    foot = "Made by shardproof from the plan.json of two runs."
    return document(title, _head(a, b), [part for part in parts if part], _data(a, b), foot)


def _data(a: SavedPlan, b: SavedPlan) -> object:
    """Return the plans to embed in the page; None if they would make it too large."""
    plans = {name: plan.plain for name, plan in zip(_NAMES, (a, b), strict=True)}
    return plans if len(json.dumps(plans)) <= _LARGEST else None


def _head(a: SavedPlan, b: SavedPlan) -> list[Inside]:
    names = [
        tag("li", swatch(k), f"{_NAMES[k]}: {plan.name}{f', mesh {mesh}' if (mesh := plan.file.mesh_text) else ''}")
        for k, plan in enumerate((a, b))
    ]
    first, second = a.file.plan, b.file.plan
    if first.least == second.least:
        costs = _each(amount(plan.best.cost, plan.least) for plan in (first, second))
        difference = dearer(a, b, _NAMES, second.best.cost - first.best.cost)
        cost = item(f"least {first.least}, by the model", difference, costs)
    else:
        cost = item("by the model", "not compared", f"A has the least {first.least}, B the least {second.least}")
    totals = [
        item(f"a device {word}{of}", _range(amount(p.best.totals[word], "bytes") for p in (first, second)), "")
        for word, of in (("sends", ""), ("holds", " of arrays and outputs"))
    ]
    return [
        tag("p", "Shardproof plans", class_="over"),
        tag("h1", "Two plans"),
        tag("ul", names, class_="legend"),
        tag("dl", [cost, *totals], class_="numbers"),
    ]


def _range(values: Iterable[str]) -> str:
    """Return both values, A's first; one if they are equal."""
    return " – ".join(dict.fromkeys(values))


def _each(values: Iterable[str]) -> str:
    a, b = values
    return f"{a} in both" if a == b else f"A {a}, B {b}"


def _layouts(a: SavedPlan, b: SavedPlan) -> Part:
    rows = [(short(key, {**a.file.labels, **b.file.labels}), *specs) for key, *specs in layouts_apart(a, b)]
    count = len({*a.file.plan.best.layouts, *b.file.plan.best.layouts})
    if not rows:
        meshes = {plan.file.mesh_text for plan in (a, b)}
        lead = f"All {count} layouts are the same{', on different meshes' if len(meshes) > 1 else ''}."
        return Part("layouts", "Layouts", tag("p", lead, class_="lead"))
    lead = f"{len(rows)} of {count} layouts differ." if len(rows) < count else "All layouts differ."
    return Part(
        "layouts",
        "Layouts",
        [tag("p", lead, class_="lead"), table("Layouts that differ", Table(("of", *_NAMES), rows))],
    )


def _lines(a: SavedPlan, b: SavedPlan) -> Part | None:
    """Return a pair of bars for each line whose cost differs."""
    apart = costs_apart(a, b)
    if not apart:
        return None
    drawn = apart[:_LINES]
    most, least = max(max(costs.a, costs.b) for costs in drawn), a.file.plan.least
    rows = [
        [
            costs.line,
            costs.what,
            tag("div", [_bar(k, value, most, least) for k, value in enumerate((costs.a, costs.b))], class_="pair"),
            _signed(costs.b - costs.a, least),
        ]
        for costs in drawn
    ]
    left = f" {len(apart) - len(drawn)} more lines differ by less." if len(drawn) < len(apart) else ""
    lead = f"The largest differences first; a line that is not here costs the same.{left}"
    caption = f"What each line costs: {least}"
    shown = Table(("line", "what", "A and B", "B − A"), rows, right=frozenset({3}))
    return Part("lines", "Cost by line", [tag("p", lead, class_="lead"), table(caption, shown)])


def _bar(k: int, value: float, most: float, least: str) -> Markup:
    bar = tag("span", class_=f"bar {_STYLES[k]}", style=f"width:{_WIDEST * value / most:.2f}rem", aria_hidden="true")
    return tag("div", tag("b", _NAMES[k]), " ", bar, amount(value, least))


def _signed(difference: float, least: str) -> str:
    return f"{'+' if difference > 0 else '−'}{amount(abs(difference), least)}" if difference else "0"


def _totals(a: SavedPlan, b: SavedPlan) -> Part:
    first, second = (plan.file.plan.best.totals for plan in (a, b))
    rows = [
        [f"a device {word}", *(amount(of.get(word), "bytes") for of in (first, second)), _apart(first, second, word)]
        for word in dict.fromkeys((*first, *second))
    ]
    sides = [{(of.kind, listed(of.axes)): of.bytes for of in plan.file.plan.axes} for plan in (a, b)]
    for kind, axes in dict.fromkeys((*sides[0], *sides[1])):
        values = [side.get((kind, axes), 0.0) for side in sides]
        each = [amount(value, "bytes") if value else "–" for value in values]
        rows.append([f"{kind} over {axes}", *each, _signed(values[1] - values[0], "bytes")])
    shown = Table(("", *_NAMES, "B − A"), rows, right=frozenset({1, 2, 3}))
    return Part("totals", "Totals", table("Bytes per device, in total and by collective", shown))


def _apart(first: Mapping[str, float], second: Mapping[str, float], word: str) -> str:
    return _signed(second[word] - first[word], "bytes") if word in first and word in second else "–"


def _front(a: SavedPlan, b: SavedPlan) -> Part | None:
    """Return the chart of both fronts, if both plans have one of the same quantities."""
    sides = {name: [point.costs for point in plan.file.plan.front] for name, plan in zip(_NAMES, (a, b), strict=True)}
    first, second = sides.values()
    if not (first and second) or list(first[0]) != list(second[0]):
        return None
    figure = fronts("fronts", sides)
    if figure is None:
        return None
    lead = "The line connects the plans that no other plan beats in both measures."
    kinds = list(first[0])
    rows = [
        (f"{name}{number}", *(amount(costs[kind], kind) for kind in kinds), layouts)
        for name, plan in zip(_NAMES, (a, b), strict=True)
        for number, (costs, layouts) in enumerate(zip(sides[name], front_texts(plan), strict=True), 1)
    ]
    right = frozenset(range(1, 1 + len(kinds)))
    shown = table("The plans of both fronts", Table(("plan", *kinds, "layouts"), rows, right=right), kind="small")
    return Part("front", "The fronts", [tag("p", lead, class_="lead"), figure, shown])


def _parallelism(a: SavedPlan, b: SavedPlan) -> Part | None:
    items = list(_kinds(a, b))
    return Part("parallelism", "Parallelism", tag("ul", items)) if items else None


def _kinds(a: SavedPlan, b: SavedPlan) -> Iterator[Markup]:
    sides = [plan.file.plan.parallelism for plan in (a, b)]
    for sentence in dict.fromkeys((*sides[0], *sides[1])):
        of = [name for name, side in zip(_NAMES, sides, strict=True) if sentence in side]
        yield tag("li", tag("b", f"{'both' if len(of) == 2 else f'only {of[0]}'}: "), sentence)
