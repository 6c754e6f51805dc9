"""Recommends a layout of a sweep with the reason, and names the best by each measure with its lead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.reports.record import measures
from runner.reports.record.folders import natural
from runner.reports.record.measures import Row
from runner.reports.show.page.markup import Inside, Markup, Part, table, tag
from runner.reports.show.page.measured import MeasuredSweep, either, text, title
from runner.reports.show.table import Table

_ALIKE = 3
"""The most equally good points that are named."""

_SIZES = 60
"""The most sizes with a row."""


def part(sweep: MeasuredSweep) -> Part:
    """Return the section: the recommended layout and why; then the best by each measure and its lead.

    If sizes were swept, there is one answer per size, since a size is not a choice.
    """
    experiments = list(dict.fromkeys(name for row in sweep.rows if (name := row.experiment) is not None))
    if len(experiments) > 1:
        names = f"The runs are of several experiments, {listed(experiments)}: no layout is the answer for all."
        return Part("answer", "Answer", tag("p", names))
    sizes = sweep.sizes
    groups = by_key((tuple(row.keys[key] for key in sizes), row) for row in sweep.candidates or sweep.rows)
    best_of = {size: _best(sweep, groups[size]) for size in sorted(groups, key=lambda size: [natural(n) for n in size])}
    if not any(best_of.values()):
        return Part("answer", "Answer", tag("p", _without_best(sweep, groups.values())))
    left = " vmap, which has one device, is left out." if len(sweep.candidates) < len(sweep.passed) else ""
    if len(groups) > 1:
        lead = f"For each size of {', '.join(sizes)} the best by each measure, of the points that passed every check."
        shown: Inside = _by_size(sweep, sizes, best_of)
    else:
        lead = "The best by each measure, of the points that passed every check."
        shown = tag("div", [_card(sweep, best) for best in best_of[next(iter(groups))].values()], class_="answers")
    take = _take(sweep, {size: groups[size] for size in best_of})
    return Part("answer", "Answer", [take, tag("p", lead + left, class_="lead"), shown])


def _without_best(sweep: MeasuredSweep, groups: Iterable[Sequence[Row]]) -> str:
    """Return why no point is better than another."""
    if not sweep.passed:
        return "Nothing passed."
    if all(len({sweep.choice(row) for row in rows}) == 1 for rows in groups):
        return f"Only one layout passed{' at each size' if sweep.sizes else ''}, so there is nothing to choose."
    return "The points that passed are equal in every measure."


def _take(sweep: MeasuredSweep, groups: Mapping[tuple[str, ...], Sequence[Row]]) -> Markup | None:
    """Return the recommendation: the choice within memory that costs least by the first available measure."""
    measure = next((name for name in _FIRST if name in sweep.ranked), None)
    if measure is None:
        return None
    by_choice: dict[tuple[str, ...], list[tuple[tuple[str, ...], _Choice]]] = {}
    large: list[str] = []
    for size, rows in groups.items():
        chosen = _chosen_of(sweep, rows, measure)
        if chosen is not None:
            by_choice.setdefault((sweep.choice(chosen.row), *chosen.programs), []).append((size, chosen))
        elif any(not _fits(sweep, row) for row in rows):
            large.append(_sized(sweep, size))
    items = [_taken(sweep, measure, taken, everywhere=len(by_choice) == 1) for taken in by_choice.values()]
    if large:
        at = f" at {'; '.join(large)}" if sweep.sizes else ""
        items.append([tag("p", f"Nothing that passed fits into the memory{at}.")])
    if not items:
        return None
    if len(items) == 1:
        return tag("div", items[0], class_="callout take")
    title = tag("p", f"Which layout to take depends on {', '.join(sweep.sizes)}:", class_="title")
    return tag(
        "div", title, tag("ul", [tag("li", item) for item in items[:_SIZES]], class_="plain"), class_="callout take"
    )


_FIRST = ("estimate_s", "run_s", "bytes_sent", "memory_bytes")
"""The measures that choose a layout: the first that the sweep has decides, the others break ties."""


@dataclass(frozen=True)
class _Choice:
    """A choice: its row, and the programs with the same cost there.

    - `alike`: how many other choices are equally good; `next`: the best of the rest; `worst`: the last.
    """

    row: Row
    programs: Sequence[str]
    alike: int
    next: Row | None
    worst: Row


def _chosen_of(sweep: MeasuredSweep, rows: Sequence[Row], measure: str) -> _Choice | None:
    """Return the choice with the least cost; ties go to the other measures in order, then to the first."""
    order = [measure, *(name for name in _FIRST if name != measure and name in sweep.ranked)]

    def cost(row: Row) -> tuple[float, ...]:
        return tuple(row.cost(name) for name in order)

    known = [
        row
        for row in rows
        if row.status in measures.ANSWERS and row.measures.get(measure) is not None and _fits(sweep, row)
    ]
    if not known:
        return None
    ordered = sorted(known, key=cost)
    first = ordered[0]
    same = [row for row in ordered if cost(row) == cost(first) and sweep.choice(row) == sweep.choice(first)]
    tied = [row for row in ordered if row.measures.get(measure) == first.measures.get(measure)]
    others = ordered[len(tied) :]
    programs = list(dict.fromkeys(row.program for row in same if row.program))
    alike = len({sweep.choice(row) for row in tied}) - 1
    return _Choice(first, programs, alike, others[0] if others else None, ordered[-1])


def _fits(sweep: MeasuredSweep, row: Row) -> bool:
    """Return whether the row is not known to exceed the memory of the hardware."""
    program = sweep.compiled(row)
    return not (program and program.estimate and program.estimate.fits is False)


def _sized(sweep: MeasuredSweep, size: Sequence[str]) -> str:
    """Return sizes as on the command line; a run without one of them has that of its file."""
    keyed = zip(sweep.sizes, size, strict=True)
    return " ".join(f"{key}={value}" if value else f"{key} of the file" for key, value in keyed)


def _taken(
    sweep: MeasuredSweep, measure: str, taken: Sequence[tuple[tuple[str, ...], _Choice]], *, everywhere: bool
) -> list[Inside]:
    """Describe one choice for all sizes at which it is the best; `everywhere` if these are all sizes."""
    size, chosen = taken[-1]
    row = chosen.row
    choice, way = sweep.choice(row), sweep.link(row)
    offered = {row.program for row in sweep.candidates}
    program = "any program" if len(chosen.programs) == len(offered) > 1 else f"program {either(chosen.programs)}"
    named: Inside = tag("code", choice) if choice else program
    at = "; ".join(_sized(sweep, size) for size, _ in taken)
    title = tag(
        "p",
        "Take this layout: " if everywhere and choice else "Take " if everywhere else f"At {at}: ",
        tag("a", named, href=way) if way else named,
        f", with {program}" if choice else None,
        f", at every size of {', '.join(sweep.sizes)}" if everywhere and len(taken) > 1 else None,
        class_="title",
    )
    return [title, tag("p", _since(sweep, measure, size if len(taken) > 1 else (), chosen))]


def _since(sweep: MeasuredSweep, measure: str, size: Sequence[str], chosen: _Choice) -> str:
    """Return the reason: the measure, the lead, and the other costs; `size` is the size of the figures if several."""

    def value(row: Row, name: str = measure) -> str:
        return text(name, row.measures.get(name))

    row = chosen.row
    lead = f"At {_sized(sweep, size)}" if size else "With it"
    where = next(iter(measures.estimated([row])), "")
    where += "," if "," in where else ""
    what = {
        "estimate_s": f"a run on {where} takes at least",
        "run_s": "a run takes",
        "bytes_sent": "a device sends",
        "memory_bytes": "the memory that a device needs is",
    }[measure]
    sentence = f"{lead} {what} {value(row)}"
    if chosen.next is not None:
        sentence += f"; with the next best layout {value(chosen.next)}"
        sentence += f", with the worst {value(chosen.worst)}" if value(chosen.worst) != value(chosen.next) else ""
    sentence += "."
    if chosen.alike:
        several = f"{chosen.alike} other layouts are" if chosen.alike > 1 else "Another layout is"
        sentence += f" {several} equally good by this measure, and no better by another."
    costs = [
        words
        for name, words in (
            ("bytes_sent", f"sends {value(row, 'bytes_sent')}"),
            ("memory_bytes", f"needs {value(row, 'memory_bytes')} of memory"),
        )
        if name != measure and row.measures.get(name) is not None
    ]
    if costs:
        program = sweep.compiled(row)
        fits = program is not None and program.estimate is not None and program.estimate.fits
        sentence += f" A device {' and '.join(costs)}" + (f", which {row.hardware} has" if fits else "") + "."
    numbers = {sweep.devices(other) for other in sweep.candidates} - {None, sweep.devices(row)}
    if numbers and sweep.devices(row) is not None:
        others = listed([str(number) for number in sorted(filter(None, numbers))], "or")
        sentence += f" It has {sweep.devices(row)} devices, other points have {others}."
    return sentence


def _best(sweep: MeasuredSweep, rows: Sequence[Row]) -> dict[str, measures.Best]:
    return {name: best for name in sweep.ranked if (best := measures.best(list(rows), name))}


def _by_size(
    sweep: MeasuredSweep, sizes: Sequence[str], best_of: Mapping[tuple[str, ...], Mapping[str, measures.Best]]
) -> Markup:
    """Return a table with a row for each size and a column for each measure."""
    names = [name for name in sweep.ranked if any(name in of for of in best_of.values())]

    def cell(of: Mapping[str, measures.Best], name: str) -> Inside:
        best = of.get(name)
        if best is None:
            return tag("span", "nothing to choose", class_="told")
        first, others = best.rows[0], len(best.rows) - 1
        words = " ".join(filter(None, [first.program, first.overrides(sizes)])) or sweep.name(first)
        way = sweep.link(first)
        more = f", and {others} alike" if others else ""
        most = f"the most {text(name, best.of(best.worst))}"
        return [
            tag("b", text(name, best.value)), tag("br"), tag("a", words, href=way) if way else words, more, tag("br"),
            tag("span", most, class_="told"),
        ]  # fmt: skip

    rows = [
        [
            _sized(sweep, size),
            *(cell(of, name) for name in names),
        ]
        for size, of in list(best_of.items())[:_SIZES]
    ]
    left = len(best_of) - len(rows)
    caption = "The best for each size" + (f"; {left} more sizes are in the table of every point" if left else "")
    return table(caption, Table(("size", *map(title, names)), rows), kind="small")


def _card(sweep: MeasuredSweep, best: measures.Best) -> Markup:
    points = by_key((row.point, row) for row in best.rows)
    items = [tag("li", link(sweep, rows)) for rows in list(points.values())[:_ALIKE]]
    if len(points) > _ALIKE:
        more = len(points) - _ALIKE
        items.append(tag("li", f"and {more} more point{'' if more == 1 else 's'}, all alike"))
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


def link(sweep: MeasuredSweep, rows: Sequence[Row]) -> Inside:
    """Return a link to a point, named after the point with one or several of its programs."""
    way = sweep.link(rows[0])
    name = sweep.name(rows[0], [row.program for row in rows if row.program])
    return name if way is None else tag("a", name, href=way)
