"""Makes the table for two keys of a sweep whose cells are coloured by a measure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.base.grouping import by_key
from runner.reports.record.measures import ANSWERS, Row
from runner.reports.show.colours import ink, ramp
from runner.reports.show.page.markup import Inside, Markup, scrolling, tag
from runner.reports.show.page.measured import MeasuredSweep, text, title
from runner.reports.show.page.plots import MeasureGrid
from runner.reports.show.status import look
from runner.reports.show.sweep import without_sizes

_PROGRAMS = 3
"""The most programs that get a table each; with more, one table shows the least of all programs."""


def maps(sweep: MeasuredSweep, plot: MeasureGrid) -> list[Markup]:
    """Return the tables, one per program if there are few programs; none if no row has the measure."""
    measure, keys = plot.measure, (plot.down, plot.across)
    programs = list(dict.fromkeys(row.program or "" for row in sweep.candidates))
    groups = [[program] for program in programs] if len(programs) <= _PROGRAMS else [programs]
    least: dict[tuple[str, ...], float] = {}
    for row in sweep.candidates:
        if (value := row.measures.get(measure)) is not None:
            place = (*(row.keys[key] for key in keys), row.program or "" if len(groups) > 1 else "")
            least[place] = min(value, least.get(place, value))
    known = list(least.values())
    if not known:
        return []
    left = [key for key in sweep.keys if key not in keys]
    drawn = [_map(sweep, measure, keys, group, known, left) for group in groups]
    return [tag("div", drawn, class_="heats"), _legend(measure, min(known), max(known))]


def _map(
    sweep: MeasuredSweep,
    measure: str,
    keys: tuple[str, str],
    programs: Sequence[str],
    known: Sequence[float],
    left: Sequence[str],
) -> Markup:
    down, across = keys
    rows = [row for row in sweep.rows if row.program is None or row.program in programs]
    heads = [list(dict.fromkeys(row.keys[key] for row in sweep.rows)) for key in keys]
    places = by_key(((row.keys[down], row.keys[across]), row) for row in rows)
    over = [*left, *(["program"] if len(programs) > 1 else [])]
    least = f", the least over {', '.join(over)}" if over else ""
    what = programs[0] if len(programs) == 1 else "all programs"
    label = f"{title(measure)} of {what} by {down} and {across}"
    caption = [tag("b", what), f": {title(measure)} per device{least}" if "bytes" in measure else f": {title(measure)}"]
    corner = tag("td", tag("span", f"{down} ↓"), " ", tag("span", f"{across} →"), class_="corner")
    head = [corner, *(tag("th", name or "–", scope="col") for name in heads[1])]
    body = [
        tag(
            "tr",
            tag("th", row or "–", scope="row"),
            [_cell(sweep, measure, places.get((row, column), []), known) for column in heads[1]],
        )
        for row in heads[0]
    ]
    table = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body), class_="heat")
    cells = (places.get((row, column), []) for row in heads[0] for column in heads[1])
    return tag("div", scrolling(table, label), _empty(sweep, measure, list(cells)))


_REASONS = 5
"""The most reasons for empty cells that stand below a map; the title of each cell has its own."""


def _empty(sweep: MeasuredSweep, measure: str, cells: Sequence[Sequence[Row]]) -> list[Markup]:
    """Say why cells have no value, the most frequent reason first; reasons that differ in sizes alone are one."""
    empty = [_why(sweep, measure, cell) for cell in cells if not _answers(measure, cell)]
    reasons = by_key((without_sizes(why), why) for why in empty)
    several = [
        f"{len(alike)} cell{'s' if len(alike) > 1 else ''} without a value: {alike[0]}"
        for alike in sorted(reasons.values(), key=len, reverse=True)
    ]
    if len(several) > _REASONS:
        several[_REASONS:] = [f"{len(several) - _REASONS} more reasons are in the titles of their cells"]
    return [tag("p", text, class_="told") for text in several]


def _answers(measure: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a cell that passed, and whose measure is known."""
    return [row for row in rows if row.status in ANSWERS and row.measures.get(measure) is not None]


def _why(sweep: MeasuredSweep, measure: str, rows: Sequence[Row]) -> str:
    """Return why nothing in a cell passed, or why its measure is not known."""
    return sweep.lacking(rows[0], measure) if rows else "not in the sweep"


def _cell(sweep: MeasuredSweep, measure: str, rows: Sequence[Row], known: Sequence[float]) -> Markup:
    answers = _answers(measure, rows)
    if not answers:
        return _without(sweep, measure, rows)
    best = min(answers, key=lambda row: row.cost(measure))
    value = best.cost(measure)
    paint = ramp(_place(value, known))
    shown: Inside = text(measure, value)
    if (link := sweep.link(best)) is not None:
        shown = tag("a", shown, href=link, title=sweep.name(best))
    number = str(best.point)
    return tag("td", shown, style=f"background:{paint};color:{ink(paint)}", data_p=f"{number}.{best.program}")


def _without(sweep: MeasuredSweep, measure: str, rows: Sequence[Row]) -> Markup:
    """Return a cell in which nothing passed, or whose measure is unknown."""
    if not rows:
        return tag("td", "", class_="none", title=_why(sweep, measure, rows))
    row = rows[0]
    status = row.status if all(other.status not in ANSWERS for other in rows) else "not known"
    why = f"{sweep.name(row)}: {_why(sweep, measure, rows)}"
    shown: Inside = [tag("span", look(status).mark, aria_hidden="true"), " ", status]
    if (link := sweep.link(row)) is not None:
        shown = tag("a", shown, href=link)
    return tag("td", shown, class_="none", title=why)


def _place(value: float, known: Sequence[float]) -> float:
    """Return where a value lies between the extremes (0 to 1), on a square-root scale that separates small values."""
    low, high = min(known), max(known)
    return math.sqrt((value - low) / (high - low)) if high > low else 0.0


def _legend(measure: str, low: float, high: float) -> Markup:
    if low == high:
        return tag("p", "Every value is ", text(measure, low), class_="told")
    colours = ",".join(ramp(k / 8) for k in range(9))
    bar = tag("span", class_="ramp", style=f"background:linear-gradient(90deg,{colours})", aria_hidden="true")
    return tag("p", text(measure, low), " ", bar, " ", text(measure, high), class_="told")
