"""Runs a Hydra job, alone or of a sweep. The command's task decides what is done with it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.app.cli.point import Point
from runner.base.lazy import dataclass
from runner.experiment.config.compose import Configuration, InvalidConfiguration, resolved, sources_of
from runner.experiment.config.sources import Sources
from runner.link.process import Worker
from runner.link.workers import Workers
from runner.reports.record import manifest
from runner.reports.record.folders import PLAN

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.app.cli.sweeping import Sweeping
    from runner.link.cluster import Owner
    from runner.reports.record.model import Status

log = logging.getLogger("runner")


@dataclass(frozen=True)
class Job:
    """One job of a command: its configuration, whose interpolations may not resolve yet, and its folder.

    - `resolved`: returns the resolved configuration. Raises `InvalidConfiguration`.
    - `many`: whether it belongs to a sweep.
    """

    resolved: Callable[[], Configuration]
    sources: Sources
    folder: Path
    many: bool


Task: TypeAlias = "Callable[[Job, Workers], Status]"
"""Runs a job; returns its status, and never raises."""


class CommandLine:
    """One command line: the task of each of its jobs, and their results.

    Hydra calls it with the configuration of a job, in this process or, with another launcher, in a new one.
    """

    def __init__(self, task: Task, worker: Worker | None = None) -> None:
        """`worker` is a worker that was started already."""
        self._task = task
        self._workers = None if worker is None else Workers(worker)
        self._elsewhere = False
        """Whether a launcher started this process, where each job has its own copy of this object."""
        self.statuses: list[Status] = []
        """The statuses of the jobs of this process, or of all points of a sweep."""
        self.raised: Exception | None = None
        """The exception that a job raised in this process: its result could not be reported."""
        self.points: tuple[str, ...] | None = None
        """The overrides of the points of a sweep, if Hydra cannot compose the whole sweep with all of them."""
        self.arguments: list[str] = []
        """The command line."""
        self.resume: Path | None = None
        """The folder of a resumed sweep: only the points that did not pass are run."""
        self.distrust: str | None = None
        """The message for a point that imports Python, where nobody said that it may."""
        self.symmetric = False
        """Whether to run points of a sweep that are equal up to a symmetry of the mesh only once."""
        self.owner: Owner | None = None
        """The other processes of the cluster that started this one, if this is the first process."""
        self.lent: int | None = None
        """The exit status of the run to which this process of a cluster lent its devices."""
        self.sweep: Sweeping | None = None
        """The running sweep; a launcher may get it in several batches."""

    def __call__(self, config: DictConfig) -> Status | float | None:
        """Run Hydra's current job; return its status, or in a sweep the number of its `objective`."""
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        settings = HydraConfig.get()
        many, sources = settings.mode == RunMode.MULTIRUN, sources_of(settings)
        job = Job(lambda: resolved(config, sources), sources, Path(settings.runtime.output_dir), many)
        status = self.run(job)
        if many and config.get("objective") is not None:
            from runner.app.cli.sweeping import objective_of

            return objective_of(job.folder, config.get("objective"))
        return status

    def run(self, job: Job) -> Status:
        """Run a job; return its status."""
        if manifest.read(job.folder) is None:
            # Hydra's own command made the folder after it was checked.
            manifest.mark(job.folder, "point" if job.many else "run")
        try:
            status = self._task(job, self.workers())
        except Exception as error:
            # Hydra would print its own message before it re-raises the exception of a job.
            self.raised = error
            status = "error"
        manifest.end(job.folder)
        self.statuses.append(status)
        return status

    def workers(self, count: int = 1) -> Workers:
        """Return the processes that run the jobs, at most `count` for each kind of job."""
        if self._workers is None:
            self._workers = _workers_of_this_process() if self._elsewhere else Workers(Worker())
        self._workers.count = count
        self._workers.distrust = self.distrust
        return self._workers

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: without workers, which belong to this one."""
        return {**self.__dict__, "_workers": None, "sweep": None, "_elsewhere": True}

    def close(self, status: int | None) -> None:
        """Stop the workers; the exit `status`, if any, also goes to the other processes of a cluster."""
        if self._workers is not None:
            self._workers.close()
        if self.owner is not None and status is not None:
            self.owner.end(status)
        if self.owner is not None:
            self.owner.close()

    def use(self, workers: Workers) -> None:
        """Replace the workers, which have no jobs yet."""
        if self._workers is not None:
            self._workers.close()
        self._workers = workers

    @property
    def runs_experiments(self) -> bool:
        """Whether the task is to run the experiment."""
        return self._task is run_one


@functools.cache
def _workers_of_this_process() -> Workers:
    """Return workers shared by all jobs that a launcher runs in this process. They stop when it ends."""
    return Workers(Worker())


def require_plain(settings: str | None) -> None:
    """Raise `InvalidConfiguration` if Hydra's own folder would not be directly in the run folder."""
    if settings and (settings != Path(settings).name or settings == ".."):
        raise InvalidConfiguration(
            f"command line: hydra.output_subdir\n  {settings!r} is not the name of a folder inside the run folder"
        )


def run_one(job: Job, workers: Workers) -> Status:
    """Run one experiment and show the result. Returns the run's status; never raises."""
    point = Point(job.folder, job.sources, job.resolved, last=not job.many)
    point.begin(workers)
    # While the worker is busy, import what the result needs.
    from runner.reports.show import report

    record = point.finish()
    if record is None:
        return "error"
    # The terminal shows the chosen pictures; the log has everything.
    log.info("%s: %s\n\n%s", record.experiment, record.status, report.story(record, job.folder))
    report.run(record, job.folder, brief=job.many, show=point.show)
    if (job.folder / PLAN).exists():
        from runner.reports.show import plan_layouts

        plan_layouts.show_layouts(job.folder / PLAN)
    return record.status
