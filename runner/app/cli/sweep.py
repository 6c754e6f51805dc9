"""Runs the points of a sweep, several at a time, and collects their records and the rows of its table."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from runner.app.cli.point import LOG, Point, logged
from runner.app.flow import functions
from runner.base.faults import Fault
from runner.base.lazy import dataclass
from runner.experiment import enumeration
from runner.experiment.config import config_errors
from runner.experiment.config.compose import InvalidConfiguration
from runner.experiment.config.folders import added
from runner.experiment.config.points import REFUSALS, Composed, Composer
from runner.experiment.imported import imports
from runner.link.workers import Workers
from runner.reports.record import manifest, measures
from runner.reports.record import record as records
from runner.reports.record.measures import Row
from runner.reports.record.writing import write_text
from runner.reports.show import report
from runner.reports.show import sweep as shown
from runner.reports.show.progress import Quiet, SweepProgress

if TYPE_CHECKING:
    from runner.reports.record.model import Git, Record, Status

log = logging.getLogger("runner")

_EVERY = 5.0
"""Seconds between two writes of the flat files while a sweep runs."""

_LARGE = 1 << 28
"""Points whose arrays have at least this many bytes are not in memory at the same time."""

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


Listener: TypeAlias = "Callable[[int, Sequence[str], Path], None]"
"""Called after a point was run: its number, its overrides, its folder."""


@dataclass
class Results:
    """The results of a sweep so far."""

    rows: dict[int, list[Row]] = field(default_factory=dict[int, "list[Row]"])
    statuses: dict[int, Status] = field(default_factory=dict[int, "Status"])
    waiting: dict[int, tuple[int, Sequence[str]]] = field(default_factory=dict[int, "tuple[int, Sequence[str]]"])
    """For each point that equals another one: the other one, and the point's overrides."""
    kept: set[int] = field(default_factory=set[int])
    """In a resumed sweep, the points that earlier commands ran."""

    def add(self, number: int, record: Record, overrides: Sequence[str]) -> None:
        """Add the record of a point, and of the points that are equivalent to it."""
        self.rows[number] = measures.rows(number, record, overrides)
        self.statuses[number] = record.status
        for other, (same, its_overrides) in self.waiting.items():
            if same == number:
                self._copy(other, same, its_overrides)

    def keep(self, number: int, before: Record, overrides: Sequence[str]) -> None:
        """Add the record of a point that an earlier command ran."""
        self.add(number, before, overrides)
        self.kept.add(number)

    def stand_for(self, number: int, same: int, overrides: Sequence[str]) -> None:
        """Add a point that is equivalent to the point `same`, which may not have been run yet."""
        self.waiting[number] = same, overrides
        if same in self.rows:
            self._copy(number, same, overrides)

    def _copy(self, number: int, same: int, overrides: Sequence[str]) -> None:
        keys = measures.overridden(overrides)
        self.rows[number] = [replace(row, point=number, keys=keys, same_as=same) for row in self.rows[same]]
        self.statuses[number] = self.statuses[same]

    def all_rows(self) -> list[Row]:
        """Return the rows of all points, in their order, with the keys that vary."""
        return measures.varying([row for number in sorted(self.rows) for row in self.rows[number]])

    def leave(self, folder: Path) -> None:
        """Write the flat files."""
        measures.leave(self.all_rows(), folder)


@dataclass(frozen=True)
class SweepOptions:
    """How to run the points of a sweep.

    - `folder`: of the sweep; `folders`: the config folders; `settings`: the name of Hydra's folder in a point's folder.
    - `resume`: whether to keep passed points; `symmetric`: whether to run equivalent points only once.
    - `sort`: the measure whose best value the progress line shows.
    """

    folder: Path
    folders: tuple[Path, ...]
    settings: str | None
    resume: bool = False
    symmetric: bool = False
    sort: str = "bytes_sent"


@dataclass
class _Running:
    """A point that has begun."""

    number: int
    point: Point
    overrides: Sequence[str]


class RunningSweep:
    """Runs points; `results` collects the records, and may hold points that ran before."""

    def __init__(
        self,
        plan: SweepOptions,
        composer: Composer,
        workers: Workers,
        results: Results,
        listener: Listener | None = None,
    ) -> None:
        self._plan = plan
        self._composer = composer
        self._workers = workers
        self.results = results
        self._listener = listener
        self._git: Callable[[], Git | None] = cache(records.git)
        self._numbers: dict[str, int] = {}
        self._written = time.monotonic()

    def run(self, points: Sequence[Sequence[str]], first: int) -> None:
        """Run the points, the first of which has the number `first`."""
        running: deque[_Running] = deque()
        with SweepProgress(len(points)) as progress:
            try:
                for number, overrides in enumerate(points, start=first):
                    point = self._begin(number, overrides)
                    if point is not None:
                        running.append(point)
                    while running and (len(running) > self._workers.count + 1 or _large(running[-1].point)):
                        self._finish(running.popleft())
                    self._tell(progress, first, len(running))
                while running:
                    self._finish(running.popleft())
                    self._tell(progress, first, len(running))
            finally:
                for left in running:
                    left.point.close()

    def _tell(self, progress: SweepProgress, first: int, running: int) -> None:
        there = [number for number in self.results.statuses if number >= first]
        # The points after these are prepared.
        progress.done, progress.running = len(there), min(running, self._workers.count)
        progress.ready = sum(number in self.results.kept or number in self.results.waiting for number in there)
        progress.failed = sum(self.results.statuses[number] not in measures.DONE for number in there)
        progress.best = self._best()
        if time.monotonic() - self._written > _EVERY:
            self.results.leave(self._plan.folder)
            self._written = time.monotonic()

    def _best(self) -> str:
        answers = [row for rows in self.results.rows.values() for row in rows if row.status in measures.ANSWERS]
        known = [row for row in answers if row.measure(self._plan.sort) is not None]
        best = min(known, key=lambda row: row.measure(self._plan.sort) or 0.0, default=None)
        if best is None:
            return ""
        on = f" on {best.hardware}" if self._plan.sort == "estimate_s" and best.hardware else ""
        return f"{shown.measure_text(self._plan.sort, best.measure(self._plan.sort))}{on} at point {best.point}"

    def _begin(self, number: int, overrides: Sequence[str]) -> _Running | None:
        """Begin a point; None if there is nothing to run."""
        folder = self._plan.folder / str(number)
        try:
            composed = self._composer.point(overrides, number)
        except REFUSALS as error:
            if self._plan.resume:
                clear(folder)
            self.results.add(number, refused(folder, overrides, error, self._plan.folders), overrides)
            return None
        point = Point(folder, composed.sources, composed.resolved)
        if self._plan.resume:
            before = passed(folder, overrides)
            if before is not None and same_files(before, composed):
                self.results.keep(number, before, overrides)
                # Later points may be equivalent to it.
                self._same(number, point)
                return None
            self._require_trust(composed)
            clear(folder)
        same = self._same(number, point)
        if same is not None:
            self.results.stand_for(number, same, overrides)
            return None
        manifest.begin(folder, "point")
        if self._plan.settings is not None:
            leave_settings(composed, number, folder, self._plan.settings)
        with logged(folder):
            point.begin(self._workers, Quiet(""), self._git)
        return _Running(number, point, overrides)

    def _require_trust(self, composed: Composed) -> None:
        """Raise `InvalidConfiguration` for a point that imports Python, where nobody said that it may."""
        if self._workers.distrust is None or composed.configuration is None:
            return
        plain, sources = composed.configuration.plain, composed.configuration.sources
        if imports(plain):
            key = ("imports", next(iter(plain["imports"])))
            raise InvalidConfiguration(sources.report(Fault(key, self._workers.distrust)))

    def _same(self, number: int, point: Point) -> int | None:
        """Return the earlier point that is equal up to a symmetry of the mesh, if there is one."""
        if not self._plan.symmetric:
            return None
        try:
            config = point.configuration.plain
        except InvalidConfiguration:
            return None
        if not alike(config):
            return None
        first = self._numbers.setdefault(enumeration.identity(config), number)
        return None if first == number else first

    def _finish(self, running: _Running) -> None:
        with logged(running.point.folder):
            record = running.point.finish()
            if record is None:
                return
            log.info("%s: %s\n\n%s", record.experiment, record.status, report.story(record, running.point.folder))
        manifest.end(running.point.folder)
        self.results.add(running.number, record, running.overrides)
        if self._listener is not None:
            self._listener(running.number, running.overrides, running.point.folder)


def refused(folder: Path, overrides: Sequence[str], error: Exception, folders: Sequence[Path]) -> Record:
    """Record a point that could not be composed."""
    manifest.begin(folder, "point")
    message = config_errors.report(error, folders, list(overrides))
    record = records.ended(folder, "invalid", message, overrides, added(folders))
    # Hydra opens a log only for jobs that it runs.
    write_text(folder / LOG, report.story(record, folder))
    manifest.end(folder)
    return record


def clear(folder: Path) -> None:
    """Delete the files of a point to run again. Raises `InvalidConfiguration` if a run did not write all of them."""
    if not os.path.lexists(folder):
        return
    if folder.is_dir() and not folder.is_symlink() and not os.listdir(folder):
        return
    others = manifest.delete(folder)
    if others:
        raise InvalidConfiguration(
            f"{folder}\n  this point must run again, but {others[0]} was not written by a run, or has changed since: "
            "move it"
        )


def alike(config: Mapping[str, Any]) -> bool:
    """Return whether all devices of a target are interchangeable, so that its mesh has symmetries."""
    target: Mapping[str, Any] = config.get("target") or {}
    return target.get("platform") == "cpu" and not target.get("topology")


def _large(point: Point) -> bool:
    return point.held > _LARGE


def passed(folder: Path, overrides: Sequence[str]) -> Record | None:
    """Return the record of a passed point with these overrides from a folder; None if it has to be run."""
    try:
        record = records.read(folder)
    except OSError:
        return None
    except records.UnreadableRecord as error:
        print(f"{error}\n  the point is run again", file=sys.stderr)
        return None
    return record if record.status in measures.DONE and record.overrides == list(overrides) else None


def same_files(before: Record, now: Composed) -> bool:
    """Return whether a point's configuration and imported files are unchanged since it was run."""
    if now.configuration is None:
        return False
    configuration = now.configuration
    beside = functions.beside(configuration.plain, configuration.sources)
    return before.config_hash == records.config_hash(configuration.plain, beside)


def leave_settings(point: Composed, number: int, folder: Path, subdir: str) -> None:
    """Write the files that Hydra leaves for a job: the configuration, Hydra's settings, the overrides."""
    into = folder / subdir
    into.mkdir(parents=True, exist_ok=True)
    overrides = list(point.sources.overrides)
    settings = {
        **point.settings,
        "job": {**point.settings["job"], "id": number, "num": number},
        "overrides": {**point.settings["overrides"], "task": overrides},
        "runtime": {**point.settings["runtime"], "output_dir": str(folder.resolve())},
    }
    for name, content in (("config", point.unresolved), ("hydra", {"hydra": settings}), ("overrides", overrides)):
        write_text(into / f"{name}.yaml", yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
