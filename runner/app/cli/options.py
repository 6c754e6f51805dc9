"""Reads from the configuration of a sweep how to run its points, and what to show of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.base.faults import nearest
from runner.base.lazy import dataclass
from runner.experiment.config.compose import InvalidConfiguration
from runner.experiment.forms import KINDS
from runner.experiment.program import Program
from runner.reports.record import measures
from runner.reports.record.measures import IDENTIFYING, MEASURES, OLDER, Row

NAMES = ("sort", "best", "where", "objective", "workers")
"""The keys of a configuration that concern the sweep and not its points."""


@dataclass(frozen=True)
class Options:
    """The options of a sweep; `docs/sweeps.md` describes each key of that name."""

    sort: str | None = None
    best: int | None = None
    where: str | None = None
    objective: str | None = None
    workers: int = 1

    @property
    def measure(self) -> str:
        """The measure whose best value the progress line shows."""
        objective = (self.objective or "").rpartition(".")[2]
        named = (OLDER.get(name, name) for name in (self.sort or "", objective))
        return next((name for name in named if name in MEASURES), next(iter(MEASURES)))

    def through(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that pass `where`. Raises `InvalidConfiguration`."""
        if self.where is None:
            return list(rows)
        keys = rows[0].keys if rows else ()
        try:
            condition = measures.parse(self.where, (*IDENTIFYING, *KINDS, *MEASURES, *OLDER, *keys))
        except measures.NoCondition as error:
            raise _refused("where", self.where, str(error)) from None
        return [row for row in rows if condition(row)]


def read(config: Mapping[str, Any], keys: Iterable[str]) -> Options:
    """Return the given options of a sweep over these `keys`. Raises `InvalidConfiguration`."""
    settings: dict[str, Any] = {name: config.get(name) for name in NAMES if config.get(name) is not None}
    columns = (*IDENTIFYING, *KINDS, *MEASURES, *OLDER, *keys)
    if (sort := settings.get("sort")) is not None and sort not in columns:
        newer = [name for name in columns if name not in OLDER]
        raise _refused(
            "sort",
            sort,
            f"no column '{sort}'{nearest(str(sort), newer) or _there(MEASURES)}",
        )
    for name in ("best", "workers"):
        if (number := settings.get(name)) is not None and (not isinstance(number, int) or number < 1):
            raise _refused(name, number, "the number must be at least 1")
    if (objective := settings.get("objective")) is not None:
        program, _, measure = str(objective).rpartition(".")
        if measure not in (*MEASURES, *OLDER, *KINDS):
            message = f"no measure '{measure}'{nearest(measure, (*MEASURES, *KINDS)) or _there(MEASURES)}"
            raise _refused("objective", objective, message)
        if program and program not in tuple(Program):
            raise _refused("objective", objective, f"no program '{program}'{nearest(program, Program)}")
    options = Options(**settings)
    if options.where is not None:
        try:
            measures.parse(options.where, columns)
        except measures.NoCondition as error:
            raise _refused("where", options.where, str(error)) from None
    return options


def _there(names: Iterable[str]) -> str:
    return f"; there are {', '.join(names)}"


def _refused(name: str, value: object, message: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"command line: {name}={value}\n  {message}")
