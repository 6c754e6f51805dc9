"""Makes the page of the difference of two plans: layouts, cost of each line, totals, fronts, parallelism."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from runner.reports.show.page.chart import swatch
from runner.reports.show.page.frame import Part, document
from runner.reports.show.page.headline import item
from runner.reports.show.page.markup import Inside, Markup, table, tag
from runner.reports.show.page.plan_section import fronts
from runner.reports.show.plan_layouts import SavedPlan, amount, costs_apart, dearer, layouts_apart, short
from runner.reports.show.shapes import number
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
        tag("li", _key(k), f"{_NAMES[k]}: {plan.name}{f', mesh {plan.mesh}' if plan.mesh else ''}")
        for k, plan in enumerate((a, b))
    ]
    if a.least == b.least:
        costs = _each(amount(plan.cost, plan.least) for plan in (a, b))
        cost = item(f"least {a.least}, by the model", dearer(a, b, _NAMES, b.cost - a.cost), costs)
    else:
        cost = item("by the model", "not compared", f"A has the least {a.least}, B the least {b.least}")
    totals = [
        item(f"a device {word}{of}", _range(amount(plan.totals[word], "bytes") for plan in (a, b)), "")
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


def _key(k: int) -> Markup:
    """Return the colour and mark of a plan: the bar's, and that of its dots."""
    box = swatch(k)
    size = f'width="{number(box.width)}" height="{number(box.height)}"'
    return Markup(f'<svg class="sp swatch" {size} aria-hidden="true">{box.body}</svg>')


def _layouts(a: SavedPlan, b: SavedPlan) -> Part:
    rows = [(short(key, {**a.labels, **b.labels}), *specs) for key, *specs in layouts_apart(a, b)]
    count = len({*a.layouts, *b.layouts})
    if not rows:
        lead = f"All {count} layouts are the same{', on different meshes' if a.mesh != b.mesh else ''}."
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
    most = max(max(costs.a, costs.b) for costs in drawn)
    rows = [
        [
            costs.line,
            costs.what,
            tag("div", [_bar(k, value, most, a.least) for k, value in enumerate((costs.a, costs.b))], class_="pair"),
            _signed(costs.b - costs.a, a.least),
        ]
        for costs in drawn
    ]
    left = f" {len(apart) - len(drawn)} more lines differ by less." if len(drawn) < len(apart) else ""
    lead = f"The largest differences first; a line that is not here costs the same.{left}"
    caption = f"What each line costs: {a.least}"
    shown = Table(("line", "what", "A and B", "B − A"), rows, right=frozenset({3}))
    return Part("lines", "Cost by line", [tag("p", lead, class_="lead"), table(caption, shown)])


def _bar(k: int, value: float, most: float, least: str) -> Markup:
    bar = tag("span", class_=f"bar {_STYLES[k]}", style=f"width:{_WIDEST * value / most:.2f}rem", aria_hidden="true")
    return tag("div", tag("b", _NAMES[k]), " ", bar, amount(value, least))


def _signed(difference: float, least: str) -> str:
    return f"{'+' if difference > 0 else '−'}{amount(abs(difference), least)}" if difference else "0"


def _totals(a: SavedPlan, b: SavedPlan) -> Part:
    rows = [
        [f"a device {word}", *(amount(plan.totals.get(word), "bytes") for plan in (a, b)), _apart(a, b, word)]
        for word in dict.fromkeys((*a.totals, *b.totals))
    ]
    for kind, axes in dict.fromkeys((*a.axes, *b.axes)):
        values = [plan.axes.get((kind, axes), 0.0) for plan in (a, b)]
        each = [amount(value, "bytes") if value else "–" for value in values]
        rows.append([f"{kind} over {axes}", *each, _signed(values[1] - values[0], "bytes")])
    shown = Table(("", *_NAMES, "B − A"), rows, right=frozenset({1, 2, 3}))
    return Part("totals", "Totals", table("Bytes per device, in total and by collective", shown))


def _apart(a: SavedPlan, b: SavedPlan, word: str) -> str:
    values = a.totals.get(word), b.totals.get(word)
    return "–" if values[0] is None or values[1] is None else _signed(values[1] - values[0], "bytes")


def _front(a: SavedPlan, b: SavedPlan) -> Part | None:
    """Return the chart of both fronts, if both plans have one of the same quantities."""
    if not (a.front and b.front) or list(a.front[0]) != list(b.front[0]):
        return None
    figure = fronts("fronts", dict(zip(_NAMES, (a.front, b.front), strict=True)))
    if figure is None:
        return None
    lead = "The line connects the plans that no other plan beats in both measures."
    kinds = list(a.front[0])
    rows = [
        (f"{name}{number}", *(amount(costs[kind], kind) for kind in kinds), layouts)
        for name, plan in zip(_NAMES, (a, b), strict=True)
        for number, (costs, layouts) in enumerate(zip(plan.front, plan.front_layouts, strict=True), 1)
    ]
    right = frozenset(range(1, 1 + len(kinds)))
    shown = table("The plans of both fronts", Table(("plan", *kinds, "layouts"), rows, right=right), kind="small")
    return Part("front", "The fronts", [tag("p", lead, class_="lead"), figure, shown])


def _parallelism(a: SavedPlan, b: SavedPlan) -> Part | None:
    items = list(_kinds(a, b))
    return Part("parallelism", "Parallelism", tag("ul", items)) if items else None


def _kinds(a: SavedPlan, b: SavedPlan) -> Iterator[Markup]:
    for sentence in dict.fromkeys((*a.parallelism, *b.parallelism)):
        of = [name for name, plan in zip(_NAMES, (a, b), strict=True) if sentence in plan.parallelism]
        yield tag("li", tag("b", f"{'both' if len(of) == 2 else f'only {of[0]}'}: "), sentence)
