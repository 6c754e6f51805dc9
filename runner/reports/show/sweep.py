"""Makes the table of a sweep, and names the best point by each measure with its lead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.base import executions
from runner.base.executions import Range
from runner.base.words import accuracy_text
from runner.experiment.config.sources import shown
from runner.reports.record import measures
from runner.reports.record.measures import MEASURES, Best, Row
from runner.reports.record.model import STATUSES
from runner.reports.show.console import print_table, say
from runner.reports.show.table import StatusCell, Table, status_cell

_ALIKE = 4
"""The most equally good points that are named."""


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


def table(rows: Sequence[Row]) -> Table[StatusCell]:
    """Return the table: the keys that vary, then the measures."""
    keys = list(rows[0].keys) if rows else []
    experiments = len({row.experiment for row in rows}) > 1
    failed = any(row.error for row in rows)
    head = ["point", *(["experiment"] if experiments else []), *keys, "program", "status", "collectives"]
    # Estimates exist only for named hardware.
    measured = [name for name in MEASURES if name != "estimate_s" or any(row.measures.get(name) for row in rows)]
    on = {row.hardware for row in rows if row.hardware}
    heads = {name: measure.heading for name, measure in MEASURES.items()}
    if len(on) == 1:
        heads["estimate_s"] += f" on {next(iter(on))}"
    # As in the table of a run, it is shown where an error exceeds the measured rounding.
    accurate = any(row.accuracy is not None and 1 < row.accuracy < math.inf for row in rows)
    head += (["accuracy"] if accurate else []) + [heads[name] for name in measured] + (["message"] if failed else [])
    lines: list[list[StatusCell]] = []
    for row in rows:
        texts = [str(row.point), *([row.experiment or "–"] if experiments else [])]
        texts += [row.keys[key] for key in keys]
        cells = [*map(StatusCell, (*texts, row.program or "–"))]
        cells.append(status_cell(row.status))
        equal = "" if row.same_as is None else f" (as point {row.same_as})"
        cells.append(StatusCell(f"{collectives_text(row.collectives)}{equal}"))
        cells += [StatusCell(accuracy_text(row.accuracy))] if accurate else []
        cells += [StatusCell(_measured(row, name, named=len(on) > 1)) for name in measured]
        lines.append([*cells, *([StatusCell(brief(row.error))] if failed else [])])
    return Table(head, lines)


def _measured(row: Row, name: str, *, named: bool) -> str:
    """Return a measure of a row; an estimate is `named` after its hardware if rows differ in that."""
    text = measure_text(name, row.measures.get(name))
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
    return " ".join(line.strip() for line in (message or "").splitlines()[:2])


def show(all_rows: Sequence[Row], statuses: Sequence[str], folder: Path, view: TableView) -> None:
    """Print the table of a sweep, the best by each measure, and how its points ended."""
    rows = measures.ordered(all_rows, view.sort) if view.sort else list(all_rows)
    shortened = rows[: view.best]
    say()
    print_table(table(shortened))
    beneath = [*lines(all_rows), *memory(shortened), *_left_out(len(rows) - len(shortened), view.left_out)]
    say()
    for line in beneath:
        say(line)
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
    answers = [_line(best) for name in MEASURES if (best := measures.best(rows, name))]
    estimates = [f"estimate: the least time of a run on {each}" for each in measures.estimated(rows)]
    best_of = ["the best by each measure, of the points that passed:", *(f"  {line}" for line in answers)]
    return [*estimates, *(best_of if answers else [])]


def _line(best: Best) -> str:
    named = "; ".join(_point(row) for row in best.rows[:_ALIKE])
    more = len(best.rows) - _ALIKE
    named += f"; and {more} more, all alike" if more > 0 else ""
    on = sorted({row.hardware for row in best.rows if row.hardware and best.measure == "estimate_s"})
    what = " on ".join([MEASURES[best.measure].words, *([" or ".join(on)] if on else [])])
    sentence = f"{what} {measure_text(best.measure, best.value)}: {named}"
    between = best.next is not None and best.of(best.next) != best.of(best.worst)
    compared = [f"the next {_times(best, best.next)}"] if best.next and between else []
    return f"{sentence}; {', '.join([*compared, f'the most {_times(best, best.worst)}'])}"


def _times(best: Best, row: Row) -> str:
    value = measure_text(best.measure, best.of(row))
    if not best.value:
        return value
    more = best.of(row) / best.value - 1
    return f"{value}, {f'{more:.2%} more' if more < 0.005 else f'{1 + more:.3g} times that'}"


def _point(row: Row) -> str:
    keys = " ".join(f"{key}={value}" for key, value in row.keys.items() if value)
    parts = [f"point {row.point}", *([row.program] if row.program else []), *([f"({keys})"] if keys else [])]
    return " ".join(parts)
