"""The rows of a sweep in; what is best by each measure, and by how much, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.record import measures
from runner.record.folders import natural
from runner.record.measures import Row
from runner.show.page.frame import Part
from runner.show.page.markup import Inside, Markup, table, tag
from runner.show.page.measured import Sweep, text, title
from runner.show.table import Table

_ALIKE = 3
"""So many points that are alike best are named."""

_SIZES = 60
"""So many sizes have a row."""


def part(sweep: Sweep) -> Part:
    """By each measure the best, and by how much; where sizes were swept for each of them, since they are no choice."""
    sizes = [key for key in sweep.keys if key.startswith("dims.")]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in sweep.rows:
        groups.setdefault(tuple(row.keys[key] for key in sizes), []).append(row)
    best_of = {size: _best(sweep, groups[size]) for size in sorted(groups, key=lambda size: [natural(n) for n in size])}
    if not any(best_of.values()):
        sentence = "Nothing passed." if not sweep.passed else "No measure tells the points that passed apart."
        return Part("answer", "Answer", tag("p", sentence))
    if len(groups) > 1:
        lead = f"For each size of {', '.join(sizes)} and by each measure the least, of what passed every check."
        shown: Inside = _by_size(sweep, sizes, best_of)
    else:
        lead = "By each measure the least, of what passed every check."
        shown = tag("div", [_card(sweep, best) for best in best_of[next(iter(groups))].values()], class_="answers")
    return Part("answer", "Answer", [tag("p", lead, class_="lead"), shown])


def _best(sweep: Sweep, rows: Sequence[Row]) -> dict[str, measures.Best]:
    return {name: best for name in sweep.measures if (best := measures.best(list(rows), name))}


def _by_size(
    sweep: Sweep, sizes: Sequence[str], best_of: Mapping[tuple[str, ...], Mapping[str, measures.Best]]
) -> Markup:
    """A row for each size, a column for each measure."""
    names = [name for name in sweep.measures if any(name in of for of in best_of.values())]

    def cell(of: Mapping[str, measures.Best], name: str) -> Inside:
        best = of.get(name)
        if best is None:
            return tag("span", "nothing to choose", class_="told")
        first, others = best.rows[0], len(best.rows) - 1
        words = " ".join([*([first.program] if first.program else []), *_chosen(first, sizes)]) or sweep.name(first)
        way = sweep.link(first)
        more = f", and {others} alike" if others else ""
        most = f"the most {text(name, best.of(best.worst))}"
        return [
            tag("b", text(name, best.value)), tag("br"), tag("a", words, href=way) if way else words, more, tag("br"),
            tag("span", most, class_="told"),
        ]  # fmt: skip

    rows = [
        [
            " ".join(f"{key}={value}" for key, value in zip(sizes, size, strict=True)),
            *(cell(of, name) for name in names),
        ]
        for size, of in list(best_of.items())[:_SIZES]
    ]
    left = len(best_of) - len(rows)
    caption = "The best for each size" + (f"; {left} more sizes are in the table of every point" if left else "")
    return table(caption, Table(("size", *map(title, names)), rows), kind="small")


def _chosen(row: Row, sizes: Sequence[str]) -> list[str]:
    """What was chosen, of what was swept: all but the sizes."""
    return [f"{key}={value}" for key, value in row.keys.items() if value and key not in sizes]


def _card(sweep: Sweep, best: measures.Best) -> Markup:
    named = [link(sweep, row) for row in best.rows[:_ALIKE]]
    more = len(best.rows) - _ALIKE
    items = [tag("li", name) for name in named]
    if more > 0:
        items.append(tag("li", f"and {more} more, all alike"))
    compared = [f"the next has {text(best.measure, best.of(best.next))}"] if best.next not in (None, best.worst) else []
    times = f", {_factor(best.of(best.worst) / best.value)} times that" if best.value else ""
    compared.append(f"the most {text(best.measure, best.of(best.worst))}{times}")
    return tag(
        "div",
        tag("h3", title(best.measure)),
        tag("p", text(best.measure, best.value), class_="big"),
        tag("ul", items, class_="plain"),
        tag("p", "; ".join(compared), class_="told"),
    )


def _factor(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def link(sweep: Sweep, row: Row) -> Inside:
    """The name of a row, which leads to its point."""
    way = sweep.link(row)
    return sweep.name(row) if way is None else tag("a", sweep.name(row), href=way)
