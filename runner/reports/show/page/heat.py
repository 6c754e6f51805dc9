"""Makes the table for two keys of a sweep whose cells are coloured by a measure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from runner.base.grouping import by_key
from runner.reports.record.measures import ANSWERS, Row
from runner.reports.show.colours import ink, ramp
from runner.reports.show.page.markup import Inside, Markup, breakable, scrolling, tag
from runner.reports.show.page.measured import MeasuredSweep, text, title
from runner.reports.show.status import look
from runner.reports.show.sweep import without_sizes

_PROGRAMS = 3
"""The most programs that get a table each; with more, one table shows the least of all programs."""


_BYTES = "bytes_sent"
"""The measure that colours the cells."""

_ACROSS = 40
"""The most values of a key of a map."""

_SHOWN = ("explain", "show", "trace")
"""The keys that change what is shown of a run, and nothing that it computes."""


def keys(sweep: MeasuredSweep) -> tuple[str, str] | None:
    """Return the keys of a map, down and across: layouts first, then meshes, then the keys with the most values.

    It is the first pair whose cells differ: a mesh may decide where layouts do not.

    None if fewer than two keys vary, or the rows are of several experiments, whose bytes compare nothing.
    """
    if len({row.experiment for row in sweep.rows}) > 1:
        return None
    values = {key: len({row.keys[key] for row in sweep.rows}) for key in sweep.keys}
    usable = [key for key, count in values.items() if 1 < count <= _ACROSS and key not in _SHOWN]

    def rank(key: str) -> tuple[int, int]:
        layout = key.endswith(".spec") or key.startswith(("outputs.", "constraints."))
        return (0 if layout else 1 if key.split(".")[0] == "mesh" else 2), -values[key]

    if len(usable) < 2 or _BYTES not in sweep.measures:
        return None
    pairs = [*itertools.combinations(sorted(usable, key=rank), 2)]
    return next((pair for pair in pairs if len({*_least(sweep, pair).values()}) > 1), pairs[0])


def _least(sweep: MeasuredSweep, keys: Sequence[str], *, apart: bool = False) -> dict[tuple[str, ...], float]:
    """The least of the measure over all rows with the values of some keys; `apart`: for each program."""
    least: dict[tuple[str, ...], float] = {}
    for row in sweep.candidates:
        if (value := row.measures.get(_BYTES)) is not None:
            place = (*(row.keys[key] for key in keys), row.program or "" if apart else "")
            least[place] = min(value, least.get(place, value))
    return least


def maps(sweep: MeasuredSweep, keys: tuple[str, str]) -> list[Markup]:
    """Return the tables of the least over all rows with the values of two keys; none if no row has the measure.

    There is one per program if there are few programs.
    """
    programs = list(dict.fromkeys(row.program or "" for row in sweep.candidates))
    groups = [[program] for program in programs] if len(programs) <= _PROGRAMS else [programs]
    known = [*_least(sweep, keys, apart=len(groups) > 1).values()]
    if not known:
        return []
    left = [key for key in sweep.keys if key not in keys]
    drawn = [_map(sweep, keys, group, known, left) for group in groups]
    return [tag("div", drawn, class_="heats"), _legend(min(known), max(known))]


def _map(
    sweep: MeasuredSweep,
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
    label = f"{title(_BYTES)} of {what} by {down} and {across}"
    caption = [tag("b", what), f": {title(_BYTES)} per device{least}"]
    corner = tag("td", tag("span", f"{down} ↓"), " ", tag("span", f"{across} →"), class_="corner")
    head = [corner, *(tag("th", breakable(name or "–"), scope="col") for name in heads[1])]
    body = [
        tag(
            "tr",
            tag("th", row or "–", scope="row"),
            [_cell(sweep, places.get((row, column), []), known) for column in heads[1]],
        )
        for row in heads[0]
    ]
    table = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body), class_="heat")
    cells = (places.get((row, column), []) for row in heads[0] for column in heads[1])
    return tag("div", scrolling(table, label), _empty(sweep, list(cells)))


_REASONS = 5
"""The most reasons for empty cells that stand below a map; the title of each cell has its own."""


def _empty(sweep: MeasuredSweep, cells: Sequence[Sequence[Row]]) -> list[Markup]:
    """Say why cells have no value, the most frequent reason first; reasons that differ in sizes alone are one."""
    empty = [_why(sweep, cell) for cell in cells if not _answers(cell)]
    reasons = by_key((without_sizes(why), why) for why in empty)
    several = [
        f"{len(alike)} cell{'s' if len(alike) > 1 else ''} without a value: {alike[0]}"
        for alike in sorted(reasons.values(), key=len, reverse=True)
    ]
    if len(several) > _REASONS:
        several[_REASONS:] = [f"{len(several) - _REASONS} more reasons are in the titles of their cells"]
    return [tag("p", text, class_="told") for text in several]


def _answers(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a cell that passed, and whose measure is known."""
    return [row for row in rows if row.status in ANSWERS and row.measures.get(_BYTES) is not None]


def _why(sweep: MeasuredSweep, rows: Sequence[Row]) -> str:
    """Return why nothing in a cell passed, or why its measure is not known."""
    return sweep.lacking(rows[0], _BYTES) if rows else "not in the sweep"


def _cell(sweep: MeasuredSweep, rows: Sequence[Row], known: Sequence[float]) -> Markup:
    answers = _answers(rows)
    if not answers:
        return _without(sweep, rows)
    best = min(answers, key=lambda row: row.cost(_BYTES))
    value = best.cost(_BYTES)
    paint = ramp(_place(value, known))
    shown: Inside = text(_BYTES, value)
    if (link := sweep.link(best)) is not None:
        shown = tag("a", shown, href=link, title=sweep.name(best))
    number = str(best.point)
    return tag("td", shown, style=f"background:{paint};color:{ink(paint)}", data_p=f"{number}.{best.program}")


def _without(sweep: MeasuredSweep, rows: Sequence[Row]) -> Markup:
    """Return a cell in which nothing passed, or whose measure is unknown."""
    if not rows:
        return tag("td", "", class_="none", title=_why(sweep, rows))
    row = rows[0]
    status = row.status if all(other.status not in ANSWERS for other in rows) else "not known"
    why = f"{sweep.name(row)}: {_why(sweep, rows)}"
    shown: Inside = [tag("span", look(status).mark, aria_hidden="true"), " ", status]
    if (link := sweep.link(row)) is not None:
        shown = tag("a", shown, href=link)
    return tag("td", shown, class_="none", title=why)


def _place(value: float, known: Sequence[float]) -> float:
    """Return where a value lies between the extremes (0 to 1), on a square-root scale that separates small values."""
    low, high = min(known), max(known)
    return math.sqrt((value - low) / (high - low)) if high > low else 0.0


def _legend(low: float, high: float) -> Markup:
    if low == high:
        return tag("p", "Every value is ", text(_BYTES, low), class_="told")
    colours = ",".join(ramp(k / 8) for k in range(9))
    bar = tag("span", class_="ramp", style=f"background:linear-gradient(90deg,{colours})", aria_hidden="true")
    return tag("p", text(_BYTES, low), " ", bar, " ", text(_BYTES, high), class_="told")
