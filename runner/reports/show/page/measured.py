"""Makes the rows of a sweep's page of the records of one or several sweeps, with links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from runner.base.lazy import dataclass
from runner.base.words import bytes_text, flops_text, time_text
from runner.experiment.forms import KINDS
from runner.experiment.program import Program
from runner.reports.record import measures
from runner.reports.record.measures import ANSWERS, MEASURES, Row
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.show.sweep import brief, times_text


@dataclass(frozen=True)
class MeasuredPoint:
    """A point: its name, its record, its overrides, and the link target.

    - `same_as`: the index of the equivalent point that was run, whose record it shares.
    """

    name: str
    record: Record
    overrides: Sequence[str]
    link: str | None
    same_as: int | None = None


@dataclass(frozen=True)
class MeasuredSweep:
    """The points by number, one row for each program of each point, and the varying keys."""

    points: Mapping[int, MeasuredPoint]
    rows: Sequence[Row]

    @property
    def keys(self) -> list[str]:
        """The swept keys, as on the command line."""
        return list(self.rows[0].keys) if self.rows else []

    @property
    def passed(self) -> list[Row]:
        """The rows that passed."""
        return [row for row in self.rows if row.status in ANSWERS and row.program is not None]

    @property
    def candidates(self) -> list[Row]:
        """The rows that can be recommended: without `vmap`, which runs on one device and has no layout."""
        return measures.candidates(self.passed)

    @cached_property
    def measures(self) -> list[str]:
        """The measures that at least one row has."""
        return [name for name in MEASURES if any(row.measures.get(name) is not None for row in self.rows)]

    @property
    def ranked(self) -> list[str]:
        """The measures that rank layouts: no compile times, and no run times of simulated devices."""
        own = ("compile_s", "run_s") if self.simulated else ("compile_s",)
        return [name for name in self.measures if name not in own]

    @property
    def simulated(self) -> bool:
        """Whether some devices were simulated, whose times are those of this machine's processor."""
        return any(t.platform == "cpu" for point in self.points.values() if (t := point.record.target))

    @property
    def sizes(self) -> list[str]:
        """The swept keys that are sizes, not choices."""
        return [key for key in self.keys if key.startswith("dims.")]

    @property
    def programs(self) -> list[str]:
        """The programs in the order of their first row."""
        return list(dict.fromkeys(row.program for row in self.rows if row.program is not None))

    def name(self, row: Row, programs: Sequence[str] = ()) -> str:
        """Return a distinguishing name of a row: the point, its program or several, the overrides."""
        program = either(programs) if programs else row.program
        return ", ".join(filter(None, [f"point {self.points[row.point].name}", program, row.overrides()]))

    def choice(self, row: Row) -> str:
        """Return the swept values of a row without the sizes, as on the command line."""
        experiments = len({other.experiment for other in self.rows}) > 1
        named = [f"experiment={row.experiment}"] if experiments else []
        return " ".join(filter(None, [*named, row.overrides(self.sizes)]))

    def devices(self, row: Row) -> int | None:
        """Return the number of devices of a row's mesh if it is known."""
        mesh = self.points[row.point].record.mesh
        return None if mesh is None else math.prod(mesh.shape)

    def compiled(self, row: Row) -> CompiledProgram | None:
        """Return the program of a row if it was compiled."""
        return self.points[row.point].record.compiled.get(row.program or "")

    def lacking(self, row: Row, measure: str) -> str:
        """Say why a row has no value of a measure."""
        if row.status not in ANSWERS and row.error:
            return brief(row.error)
        if MEASURES[measure].per_device and row.program and not Program(row.program).on_mesh:
            return "it runs on one device"
        program, target = self.compiled(row), self.points[row.point].record.target
        if program is None:
            return "it was not compiled"
        if measure == "bytes_sent":
            return next(iter(program.collectives_unknown), "the collectives of the compiled module are not known")
        if measure == "estimate_s":
            return "no hardware is named"
        if measure == "run_s":
            return f"it was compiled for {target.topology}, not run" if target and target.topology else "it was not run"
        return "the backend does not report it"

    def link(self, row: Row) -> str | None:
        """Return the link to the row's point."""
        return self.points[row.point].link


def gather(points: Sequence[MeasuredPoint]) -> MeasuredSweep:
    """Collect the rows of all points of all sweeps; the keys are those that vary among them."""
    numbered = dict(enumerate(points))
    every = (measures.rows(k, point.record, point.overrides, point.same_as) for k, point in numbered.items())
    return MeasuredSweep(numbered, measures.varying([row for rows in every for row in rows]))


def either(names: Sequence[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def title(measure: str) -> str:
    """Return the name of a measure in words."""
    return MEASURES[measure].words


def text(measure: str, value: float | None) -> str:
    """Return a value of a measure with its unit."""
    if value is None:
        return "–"
    if MEASURES[measure].unit == "seconds":
        return time_text(value)
    return bytes_text(round(value)) if MEASURES[measure].unit == "bytes" else flops_text(value)


def moved(row: Row) -> str:
    """Return the collectives of a row: `all-gather, 2 all-reduce`."""
    if row.collectives is None:
        return "–" if row.measures.get("compile_s") is None else "not known"
    kinds = [kind for kind in KINDS if row.collectives.get(kind)]
    return ", ".join(times_text(row.collectives[kind], kind) for kind in kinds) or "none"


def flat(sweep: MeasuredSweep) -> dict[str, Any]:
    """Return the rows as plain lists, with the names of their columns."""
    columns = [
        "point",
        "experiment",
        *sweep.keys,
        "program",
        "status",
        *KINDS,
        *MEASURES,
        "hardware",
        "compiled_for",
        "error",
    ]
    return {
        "columns": columns,
        "rows": [
            [
                sweep.points[row.point].name, row.experiment, *row.keys.values(), row.program, row.status,
                *(row.value(kind) for kind in KINDS),
                *(row.measures.get(name) for name in MEASURES), row.hardware, row.compiled_for, row.error,
            ]
            for row in sweep.rows
        ],
    }  # fmt: skip
