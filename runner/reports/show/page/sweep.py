"""Makes the page of one or several sweeps: answers, a table, heat maps, charts, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from runner.reports.record import measures, outcome
from runner.reports.record.folders import Command
from runner.reports.record.measures import Row
from runner.reports.show.page import answers, chart, drawing, heat
from runner.reports.show.page.chart import Axis, Dot, Scale, Series, of_sizes, scale
from runner.reports.show.page.markup import Inside, Markup, Number, Part, badge, breakable, document, table, tag
from runner.reports.show.page.measured import MeasuredSweep, flat, moved, text, title
from runner.reports.show.sweep import brief, memory, without_sizes
from runner.reports.show.table import StatusCell, Table

_SERIES = 6
"""The most lines with a colour; the others are grey."""

_LISTED = 24
"""The most points with the same failure that are linked."""


def page(name: str, sweep: MeasuredSweep, notes: Sequence[str] = (), commands: Sequence[Command] = ()) -> str:
    """Return the page; `notes` are remarks on how it was made.

    - `commands`: those of its sweeps; without any, the points are single runs.
    """
    kind = "sweep" if commands else "runs"
    parts: list[Part | None] = [
        answers.part(sweep),
        _heat(sweep),
        _against(sweep),
        _sizes(sweep),
        _failures(sweep),
        _table(sweep),
        _unknown(sweep, notes),
    ]
    foot: list[Inside] = ["Made by shardproof from the records of the points."]
    return document(
        f"{name}: {kind}", _head(name, sweep, commands, kind), [part for part in parts if part], flat(sweep), foot
    )


def _head(name: str, sweep: MeasuredSweep, commands: Sequence[Command], kind: str) -> list[Inside]:
    points = sweep.points
    counts = Counter(point.record.status for point in points.values())
    summaries = {point.record.summary for point in points.values()}
    items = [
        tag("li", badge(status), f" {count}") for status, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    times = sorted(point.record.time for point in points.values())
    facts = [f"{len(points)} point{'' if len(points) == 1 else 's'}, {len(sweep.rows)} rows"]
    if sweep.keys:
        facts.append(("swept: " if commands else "they differ in ") + ", ".join(sweep.keys))
    facts += dict.fromkeys(_where(sweep))
    facts += [f"estimates: the least time of a run on {hardware}" for hardware in measures.estimated(sweep.rows)]
    facts.append(times[0][:19].replace("T", " ") + " UTC" if times else "")
    return [
        tag("p", f"Shardproof {kind}", class_="over"),
        tag("h1", name),
        tag("p", *summaries, class_="summary") if len(summaries) == 1 and all(summaries) else None,
        tag("ul", items, class_="facts"),
        tag("ul", [tag("li", fact) for fact in facts if fact], class_="facts"),
        [
            [
                tag("pre", tag("code", command.start), class_="command"),
                tag("p", "To run missing points and those that failed: ", tag("code", command.resume), class_="told"),
            ]
            for command in commands
        ],
    ]


def _where(sweep: MeasuredSweep) -> Iterator[str]:
    for target in (point.record.target for point in sweep.points.values()):
        if target is not None:
            simulated = "simulated " if target.platform == "cpu" else ""
            here = f"on {simulated}{target.kind or target.platform} devices"
            yield f"compiled for {target.topology}, not run" if target.topology else here


def _heat(sweep: MeasuredSweep) -> Part | None:
    keys = heat.keys(sweep)
    drawn = heat.maps(sweep, keys) if keys else []
    if not drawn:
        return None
    lead = "Lighter is less. A cell links to its point."
    return Part("heat", "Layouts by bytes", [tag("p", lead, class_="lead"), drawn])


def _against(sweep: MeasuredSweep) -> Part | None:
    """Return the chart of time, or of bytes sent if no time ranks layouts, against memory.

    None for fewer than two points, and for several experiments.
    """
    cost = next((name for name in ("estimate_s", "run_s", "bytes_sent") if name in sweep.ranked), None)
    if cost is None or len({row.experiment for row in sweep.rows}) > 1:
        return None
    rows = [
        (row, x, y)
        for row in sweep.candidates
        if (x := row.measures.get(cost)) is not None and (y := row.measures.get("memory_bytes")) is not None
    ]
    if len(rows) < 2:
        return None
    programs = list(dict.fromkeys(row.program or "" for row, _, _ in rows))
    dots = [
        Dot(
            x, y, programs.index(row.program or ""), f"{sweep.name(row)}: {text(cost, x)}, {text('memory_bytes', y)}",
            sweep.link(row), _id(row), sweep.points[row.point].name,
            _long(sweep, row, several=len(programs) > 1),
        )
        for row, x, y in rows
    ]  # fmt: skip
    best = chart.front(dots)
    across, up = scale([x for _, x, _ in rows]), scale([y for _, _, y in rows])
    box = chart.scatter(dots, _axis(cost, across), _axis("memory_bytes", up))
    label = f"{title(cost)} against memory of {len(dots)} programs"
    words = [f"on the front: {dot.name}" for dot in best]
    less = "sends less and needs less memory" if cost == "bytes_sent" else "is both quicker and smaller"
    lead = f"No point that passed {less} than a point on the line. The number beside a dot is its point."
    lead += f" All sizes of {', '.join(sweep.sizes)} are in it." if sweep.sizes else ""
    items = [tag("li", tag("a", dot.name, href=dot.link) if dot.link else dot.name) for dot in best]
    inside: list[Inside] = [tag("p", lead, class_="lead"), _key([(name, k) for k, name in enumerate(programs)])]
    inside.append(drawing.figure(drawing.svg(box, "against", label, words, interactive=True), label, None))
    inside.append(tag("details", tag("summary", f"The front: {len(best)}"), tag("ul", items)))
    return Part("against", f"{'Bytes' if cost == 'bytes_sent' else 'Time'} against memory", inside)


def _long(sweep: MeasuredSweep, row: Row, *, several: bool) -> str:
    """Return the long chart label of a row: its point, the program, and the values of the swept keys."""
    values = " ".join(value for value in row.keys.values() if value)
    return " ".join([sweep.points[row.point].name, *([row.program or ""] if several else []), *filter(None, [values])])


def _id(row: Row) -> str:
    return f"{row.point}.{row.program}"


def _axis(measure: str, scale: Scale) -> Axis:
    return Axis(title(measure), lambda value: text(measure, value) if value else "0", scale)


def _key(named: Sequence[tuple[str, int]], *, line: bool = False) -> Markup | None:
    """Return the legend; None for a single series."""
    if len(named) < 2:
        return None
    return tag("ul", [tag("li", chart.swatch(kind, line=line), name) for name, kind in named], class_="legend")


def _sizes(sweep: MeasuredSweep) -> Part | None:
    """Return charts for each key with three or more numbers and each measure, a line per setting of the other keys."""
    inside: list[Inside] = []
    for key in sweep.keys:
        sizes = {row.keys[key]: size for row in sweep.passed if (size := _size(row.keys[key])) is not None}
        if len(set(sizes.values())) >= 3:
            inside.append(_lines(sweep, key, sizes))
    if not inside:
        return None
    lead = "A line joins points that differ in nothing else."
    return Part("sizes", "By size", [tag("p", lead, class_="lead"), inside])


def _size(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _lines(sweep: MeasuredSweep, key: str, sizes: Mapping[str, float]) -> Inside:
    """Return every measure by a numeric key, with a line for the rows that agree in the program and the other keys."""
    others = [name for name in sweep.keys if name != key]
    across = Axis(key, lambda value: f"{value:g}", of_sizes(sorted(set(sizes.values()))))
    named: dict[tuple[str, ...], list[Row]] = {}
    for row in sweep.passed:
        if row.keys[key] in sizes:
            named.setdefault((row.program or "", *(row.keys[name] for name in others)), []).append(row)
    named = {name: rows for name, rows in named.items() if len({row.keys[key] for row in rows}) > 1}
    varying = [k for k in range(len(others) + 1) if len({name[k] for name in named}) > 1]
    titles = ["program", *others]
    shown = {name: " ".join(_labelled(titles[k], name[k]) for k in varying) or "all" for name in named}
    measure = next((name for name in ("bytes_sent", "run_s", "memory_bytes") if name in sweep.measures), None)
    order = sorted(named, key=lambda name: _total(named[name], measure)) if len(named) > _SERIES else list(named)
    kinds = {name: k for k, name in enumerate(order[:_SERIES])}
    figures: list[Inside] = []
    for column in sweep.measures:
        drawn = [
            Series(shown[name], points, kinds.get(name))
            for name in named
            if (points := _points(named[name], key, sizes, column))
        ]
        if not drawn:
            continue
        up = scale([value for line in drawn for _, value in line.points])
        box = chart.lines(drawn, across, _axis(column, up))
        id = f"line-{key}-{column}".replace(".", "-")
        words = [
            f"{line.name}: " + ", ".join(f"{a:g}: {text(column, b)}" for a, b in line.points)
            for line in drawn[:_SERIES]
        ]
        figures.append(drawing.figure(drawing.svg(box, id, f"{title(column)} by {key}", words), title(column), None))
    grey = len(named) - len(kinds)
    least = f"; the points in colour have the least {title(measure)}" if measure else ""
    note = f"{grey} more in grey{least}" if grey > 0 else None
    return [
        tag("h3", key),
        _key([(shown[name], k) for name, k in kinds.items()], line=True),
        tag("p", note, class_="told") if note else None,
        tag("div", figures, class_="panels"),
    ]


def _labelled(name: str, value: str) -> str:
    return value if name == "program" else f"{name}={value or '–'}"


def _total(rows: Sequence[Row], measure: str | None) -> float:
    return sum(row.measures.get(measure or "") or 0.0 for row in rows)


def _points(rows: Sequence[Row], key: str, sizes: Mapping[str, float], measure: str) -> list[tuple[float, float]]:
    """Return the least value at each size."""
    least: dict[float, float] = {}
    for row in rows:
        value = row.measures.get(measure)
        if value is not None:
            size = sizes[row.keys[key]]
            least[size] = min(value, least.get(size, value))
    return sorted(least.items())


def _failures(sweep: MeasuredSweep) -> Part | None:
    """Return the section of what did not pass, with each reason once, whatever its sizes."""
    reasons: dict[tuple[str, str], list[Row]] = {}
    for row in sweep.rows:
        if row.status not in measures.DONE:
            reasons.setdefault((row.status, without_sizes(row.error or outcome.NO_REASON)), []).append(row)
    if not reasons:
        return None
    inside: list[Inside] = []
    for (status, _), rows in sorted(reasons.items(), key=lambda item: -len(item[1])):
        texts = list(dict.fromkeys(row.error or outcome.NO_REASON for row in rows))
        several = ", whose sizes differ" if len(texts) > 1 else ""
        links = [tag("li", answers.link(sweep, [row])) for row in rows[:_LISTED]]
        if len(rows) > _LISTED:
            links.append(tag("li", f"and {len(rows) - _LISTED} more in the table"))
        listed = tag("details", tag("summary", f"{len(rows)} of {len(sweep.rows)} rows{several}"), tag("ul", links))
        inside.append(tag("div", tag("p", badge(status)), tag("pre", texts[0]), listed, class_=f"callout {status}"))
    return Part("failures", "What did not pass", inside)


def _table(sweep: MeasuredSweep) -> Part:
    experiments = len({row.experiment for row in sweep.rows}) > 1
    names = {row.program for row in sweep.rows}
    alone = next(iter(names)) if len(names) == 1 else None
    head: list[str] = ["point", *(["experiment"] if experiments else []), *map(breakable, sweep.keys)]
    head += [*([] if alone else ["program"]), "status", "collectives"]
    head += [measures.worded(name, sweep.rows) for name in sweep.measures]
    numbers = len(head) - len(sweep.measures)
    rows = [_row(sweep, row, experiments=experiments, programs=not alone) for row in sweep.rows]
    field = tag("input", type="search", id="rows-filter", autocomplete="off", spellcheck="false")
    count = tag("span", f"{len(sweep.rows)} of {len(sweep.rows)} rows", id="rows-count", role="status", class_="told")
    narrowing = tag("p", tag("label", "Show rows with ", field), " ", count, hidden=True)
    shown = Table(head, rows, frozenset(range(numbers, numbers + len(sweep.measures))))
    caption = f"A row for each {f'point, of program {alone}' if alone else 'program of each point'}; per device"
    whole = table(caption, shown, kind="sortable", id="rows", marks=[_id(row) for row in sweep.rows])
    return Part("table", "Every point", [narrowing, whole])


def _row(sweep: MeasuredSweep, row: Row, *, experiments: bool, programs: bool) -> list[StatusCell | Number | Inside]:
    point = sweep.points[row.point]
    name: Inside = point.name if point.link is None else tag("a", point.name, href=point.link)
    if row.same_as is not None:
        name = [name, f" as {sweep.points[row.same_as].name}"]
    measured = {measure: row.measures.get(measure) for measure in sweep.measures}
    return [
        name,
        *([row.experiment or "–"] if experiments else []),
        *(value or _blank("not overridden") for value in row.keys.values()),
        *([row.program or _blank("it ended before any program")] if programs else []),
        _status(row),
        moved(row) if row.collectives is not None else _blank(sweep.lacking(row, "bytes_sent"), moved(row)),
        *(
            Number(text(measure, value), value, sweep.lacking(row, measure) if value is None else None)
            for measure, value in measured.items()
        ),
    ]


def _status(row: Row) -> Inside:
    """Return the status of a row, with its message as the title."""
    return tag("span", badge(row.status), title=brief(row.error)) if row.error else badge(row.status)


def _blank(reason: str, sign: str = "–") -> Markup:
    """Return a cell without a value, with the reason as its title."""
    return tag("span", sign, title=reason)


def _unknown(sweep: MeasuredSweep, notes: Sequence[str]) -> Part | None:
    """Return the section on what the records do not know, and what the page leaves out."""
    lines = list(notes)
    if same := sum(point.same_as is not None for point in sweep.points.values()):
        lines.append(
            f"{same} of the points equal another one up to a symmetry of the mesh, which was run in their place"
        )
    lines += memory(sweep.rows)
    for name in measures.MEASURES:
        lacking = [row for row in sweep.candidates if row.measures.get(name) is None]
        # An estimate is unknown only where hardware was named.
        if lacking and (name != "estimate_s" or name in sweep.measures):
            of = len(sweep.candidates)
            rows = "all rows" if len(lacking) == of else f"{len(lacking)} of {of} rows"
            lines.append(f"{title(name)}: not known for {rows} that passed")
    if sweep.simulated:
        lines.append(
            "times are those of simulated devices on this machine's processor; they say nothing about accelerators"
        )
    return Part("unknown", "Not known", tag("ul", [tag("li", line) for line in lines])) if lines else None
