"""Makes the table of a sweep, and names the best point by each measure with its lead."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.base import executions
from runner.base.executions import Range
from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.base.words import accuracy_text, shown
from runner.reports.record import measures
from runner.reports.record.measures import MEASURES, OLDER, Best, Row
from runner.reports.record.model import STATUSES
from runner.reports.show.console import print_report, say, tell
from runner.reports.show.table import StatusCell, Table, status_cell

_ALIKE = 4
"""The most equally good points that are named."""

_NOTES = 8
"""The most messages below the table."""

_UNASKED = ("bytes_sent", "memory_bytes", "estimate_s", "run_s")
"""The measures with a column whatever the rows are sorted by; the files have all."""


@dataclass(frozen=True)
class TableView:
    """Which rows of a sweep the table shows, and in which order; `where` has been applied to the rows already."""

    sort: str | None = None
    best: int | None = None
    left_out: int = 0


def measure_text(name: str, value: float | None) -> str:
    """Return a value of a measure with its unit, or a number of collectives."""
    if value is None:
        return "–"
    return MEASURES[name].text(value) if name in MEASURES else measures.number_text(value)


def table(rows: Sequence[Row], sort: str | None = None) -> tuple[Table[StatusCell], list[str]]:
    """Return the table and its notes: the keys that vary, then measures; programs that cost the same share a row.

    A status with a message has the number of its note, and messages that differ in sizes alone share a note. Points
    that no program reached have no figures: the notes name them.
    """
    keys = list(rows[0].keys) if rows else []
    experiments = len({row.experiment for row in rows}) > 1
    head = ["point", *(["experiment"] if experiments else []), *keys, "program", "status", "collectives"]
    # Estimates exist only for named hardware.
    asked = [name for name in MEASURES if name in _UNASKED or name == OLDER.get(sort or "", sort)]
    measured = [name for name in asked if name != "estimate_s" or any(row.measures.get(name) for row in rows)]
    on = {row.hardware for row in rows if row.hardware}
    heads = {name: measure.heading for name, measure in MEASURES.items()}
    if len(on) == 1:
        heads["estimate_s"] += f" on {next(iter(on))}"
    # As in the table of a run, it is shown where an error exceeds the measured rounding.
    accurate = any(row.accuracy is not None and 1 < row.accuracy < math.inf for row in rows)
    head += (["accuracy"] if accurate else []) + [heads[name] for name in measured]
    notes = by_key((without_sizes(brief(row.error)), row) for row in rows if row.error is not None)

    def alike(row: Row) -> tuple[object, ...]:
        counts = None if row.collectives is None else tuple(row.collectives.items())
        message = row.error and without_sizes(brief(row.error))
        sizes = (row.measures.get(name) for name in measured if name not in _TIMES)
        return row.point, row.status, counts, row.accuracy, row.bytes_sent_min, message, *sizes

    groups = by_key((alike(row), row) for row in rows if row.program is not None or row.error is None)
    lines: list[list[StatusCell]] = []
    for group in groups.values():
        row = group[0]
        note = f" [{1 + list(notes).index(without_sizes(brief(row.error)))}]" if row.error else ""
        named = ", ".join(each.program for each in group if each.program) or "–"
        point = str(row.point) if row.same_as is None else f"{row.point} as {row.same_as}"
        texts = [point, *([row.experiment or "–"] if experiments else []), *(row.keys[key] for key in keys)]
        cells = [*map(StatusCell, (*texts, named))]
        cells.append(status_cell(row.status, f"{row.status}{note}"))
        cells.append(StatusCell(collectives_text(row.collectives)))
        cells += [StatusCell(accuracy_text(row.accuracy))] if accurate else []
        cells += [StatusCell(_measured(group, name, named=len(on) > 1)) for name in measured]
        lines.append(cells)
    sentences = [f"[{number}] {_note(of)}" for number, of in enumerate(notes.values(), start=1)]
    more = [f"{len(sentences) - _NOTES} more messages are in results.csv"] if len(sentences) > _NOTES else []
    return Table(head, lines, grouping=("program", "status")), [*sentences[:_NOTES], *more]


_TIMES = ("compile_s", "run_s")
"""The measures that are never the same for two programs."""


def _note(rows: Sequence[Row]) -> str:
    """The message that rows have in common, after the points none of whose programs was reached, by their statuses."""
    points = by_key((row.status, row.point) for row in rows if row.program is None)
    kept = [f"{status}: point{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}" for status, of in points.items()]
    sizes = f"; the sizes are those of point {rows[0].point}" if len({brief(row.error) for row in rows}) > 1 else ""
    return ": ".join([*([", ".join(kept)] if kept else []), f"{brief(rows[0].error)}{sizes}"])


def without_sizes(message: str) -> str:
    """Return what messages have in common that differ in sizes alone."""
    return re.sub(r"\d+", "", re.sub(r"[(\[][^()\[\]]*[)\]]", "", message))


def _measured(group: Sequence[Row], name: str, *, named: bool) -> str:
    """Return a measure of rows, which differ in times alone; an estimate is `named` after its hardware."""
    row = group[0]
    values = [value for each in group if (value := each.measures.get(name)) is not None]
    texts = list(dict.fromkeys(measure_text(name, value) for value in (min(values), max(values)))) if values else ["–"]
    text = " to ".join([*(each.removesuffix(" ms") for each in texts[:-1]), texts[-1]])
    if name == "estimate_s" and named and row.hardware:
        text += f" on {row.hardware}"
    return f"at most {text}" if name == "bytes_sent" and row.bytes_sent_min is not None else text


def collectives_text(counts: Mapping[str, int | Range] | None) -> str:
    """Return counts as text: `all-gather, 2 all-reduce, 0 to 1 all-to-all`."""
    if counts is None:
        return "–"
    return ", ".join(times_text(count, kind) for kind, count in sorted(counts.items())) or "none"


def times_text(count: int | Range, kind: str) -> str:
    """Return how often a kind of collective runs: `all-gather`, `0 to 1 all-gather`."""
    return kind if count == 1 else f"{executions.short(count)} {kind}"


def brief(message: str | None) -> str:
    """Return the beginning of a message on one line."""
    place, *rest = ((message or "").splitlines() or [""])[:2]
    return ": ".join([re.sub(r"  +", " ", place.strip().removesuffix(":")), *(line.strip() for line in rest)])


def show(all_rows: Sequence[Row], statuses: Sequence[str], folder: Path, view: TableView) -> None:
    """Print the table of a sweep, the best by each measure, and how its points ended."""
    rows = measures.ordered(all_rows, view.sort) if view.sort else list(all_rows)
    shortened = rows[: view.best]
    say()
    figures, notes = table(shortened, view.sort)
    if figures.rows:
        print_report(figures)
        say()
    sentences = [*notes, *_left_out(len(rows) - len(shortened), view.left_out)]
    beneath = [*sentences, *([""] if sentences else []), *lines(all_rows), *memory(shortened)]
    for line in beneath:
        tell(line)
    counts = Counter(statuses)
    counted = ", ".join(f"{counts[each]} {each}" for each in STATUSES if counts[each])
    say(f"{len(statuses)} point{'s' if len(statuses) != 1 else ''}: {counted}; {shown(folder)}")


def memory(rows: Sequence[Row]) -> list[str]:
    """Say what the memory of the rows is."""
    known = any(row.measures.get("memory_bytes") is not None for row in rows)
    return ["memory is arguments + outputs + temporaries - aliased"] if known else []


def _left_out(by_best: int, by_where: int) -> list[str]:
    sentences = [f"{_counted(by_best, 'more row')} not shown"] if by_best else []
    return [*sentences, *([f"{_counted(by_where, 'row')} left out by where="] if by_where else [])]


def _counted(count: int, what: str) -> str:
    return f"{count} {what} is" if count == 1 else f"{count} {what}s are"


def lines(rows: Sequence[Row]) -> list[str]:
    """Say what the estimates are for, and the best by each measure with its lead."""
    ranked = [name for name in MEASURES if name != "compile_s"]
    several = len({row.program for row in rows if row.program}) > 1
    answers = [_line(best, several) for name in ranked if (best := measures.best(rows, name))]
    estimates = [f"estimate: the least time of a run on {each}" for each in measures.estimated(rows)]
    best_of = ["the best by each measure, of the points that passed:", *(f"  {line}" for line in answers)]
    return [*estimates, *(best_of if answers else [])]


def _line(best: Best, several: bool) -> str:
    """Name the best points by a measure; their programs if the sweep has `several`."""
    points = by_key((row.point, row) for row in best.rows)
    named = "; ".join(_point(rows, several) for rows in list(points.values())[:_ALIKE])
    more = len(points) - _ALIKE
    named += f"; and {more} more, all alike" if more > 0 else ""
    sentence = f"{measures.worded(best.measure, best.rows)} {measure_text(best.measure, best.value)}: {named}"
    between = best.next is not None and best.of(best.next) != best.of(best.worst)
    compared = [f"the next {_times(best, best.next)}"] if best.next and between else []
    return f"{sentence}; {', '.join([*compared, f'the most {_times(best, best.worst)}'])}"


def _times(best: Best, row: Row) -> str:
    value = measure_text(best.measure, best.of(row))
    if not best.value:
        return value
    more = best.of(row) / best.value - 1
    return f"{value}, {f'{more:.2%} more' if more < 0.005 else f'{1 + more:.3g} times that'}"


def _point(rows: Sequence[Row], several: bool) -> str:
    """Name the rows of one point, with their programs if there are `several`."""
    keys = rows[0].overrides()
    programs = ", ".join(row.program for row in rows if row.program and several)
    return " ".join(filter(None, [f"point {rows[0].point}", programs, keys and f"({keys})"]))
