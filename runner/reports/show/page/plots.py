"""Makes the data of the charts of a sweep, which a page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.base.lazy import dataclass
from runner.reports.record.measures import Row
from runner.reports.show.page.measured import MeasuredSweep
from runner.reports.show.page.scale import Scale, of_sizes, scale

_COSTS = ("estimate_s", "run_s", "bytes_sent")
"""The measures to draw against memory; the first one that ranks layouts is taken."""

_ACROSS = 40
"""The most values of a key of a heat map."""

_SHOWN = ("explain", "show", "trace")
"""The keys that change what is shown of a run, and nothing that it computes."""


@dataclass(frozen=True)
class MeasureGrid:
    """A measure by two keys, `down` and `across`: the least over all rows with these values."""

    measure: str
    down: str
    across: str


@dataclass(frozen=True)
class Against:
    """One measure against another, each with its scale; the rows that have both, with their values."""

    x: str
    y: str
    rows: Sequence[tuple[Row, float, float]]
    scales: tuple[Scale, Scale]


@dataclass(frozen=True)
class Growth:
    """Every measure by a numeric key: one line for the rows that agree in the program and the `others`.

    - `sizes`: the number of each value of the key; `scale`: the scale of these numbers.
    """

    key: str
    others: Sequence[str]
    sizes: Mapping[str, float]
    scale: Scale


def layouts(sweep: MeasuredSweep) -> MeasureGrid | None:
    """Return bytes sent by two keys: layouts first, then meshes, then the keys with the most values.

    None if fewer than two keys vary, or the rows are of several experiments, whose bytes compare nothing.
    """
    if len({row.experiment for row in sweep.rows}) > 1:
        return None
    values = {key: len({row.keys[key] for row in sweep.rows}) for key in sweep.keys}
    usable = [key for key, count in values.items() if 1 < count <= _ACROSS and key not in _SHOWN]

    def rank(key: str) -> tuple[int, int]:
        layout = key.endswith(".spec") or key.startswith(("outputs.", "constraints."))
        return (0 if layout else 1 if key.split(".")[0] == "mesh" else 2), -values[key]

    keys = sorted(usable, key=rank)[:2]
    if len(keys) < 2 or "bytes_sent" not in sweep.measures:
        return None
    return MeasureGrid("bytes_sent", keys[0], keys[1])


def against(sweep: MeasuredSweep) -> Against | None:
    """Return a time, or the bytes sent if no time ranks layouts, against memory.

    None for fewer than two points, and for several experiments.
    """
    cost = next((name for name in _COSTS if name in sweep.ranked), None)
    if cost is None or len({row.experiment for row in sweep.rows}) > 1:
        return None
    rows = [
        (row, x, y)
        for row in sweep.candidates
        if (x := row.measures.get(cost)) is not None and (y := row.measures.get("memory_bytes")) is not None
    ]
    if len(rows) < 2:
        return None
    scales = scale([x for _, x, _ in rows]), scale([y for _, _, y in rows])
    return Against(cost, "memory_bytes", rows, scales)


def growths(sweep: MeasuredSweep) -> list[Growth]:
    """Return one chart for each key with three or more numbers."""
    charts: list[Growth] = []
    for key in sweep.keys:
        sizes = {row.keys[key]: size for row in sweep.passed if (size := _size(row.keys[key])) is not None}
        if len(set(sizes.values())) >= 3:
            others = [name for name in sweep.keys if name != key]
            charts.append(Growth(key, others, sizes, of_sizes(sorted(set(sizes.values())))))
    return charts


def _size(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
