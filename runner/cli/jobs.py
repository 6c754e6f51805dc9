"""A job of Hydra in, alone or one of a sweep; its status out. What is done with it is the command's task."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.cli.point import Point
from runner.config.compose import Configuration, InvalidConfiguration, Provenance, provenance_of, resolved
from runner.link.process import Worker
from runner.link.workers import Workers
from runner.record import manifest
from runner.record.folders import PLAN

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.cli.sweeping import Sweeping
    from runner.link.cluster import Owner
    from runner.record.model import Status

log = logging.getLogger("runner")


@dataclass(frozen=True)
class Job:
    """One job of Hydra: its configuration, whose values may not resolve yet, and its folder.

    - `many`: whether it is one of a sweep's.
    """

    config: DictConfig
    provenance: Provenance
    folder: Path
    many: bool

    def resolved(self) -> Configuration:
        """The resolved configuration. Raises `InvalidConfiguration`."""
        return resolved(self.config, self.provenance)


Task: TypeAlias = "Callable[[Job, Workers], Status]"
"""What is done with a job; returns its status, and never raises."""


class Command:
    """One command line: what is done with each of its jobs, and how they ended.

    Hydra calls it with the configuration of a job, here or, with another launcher, in a process of its own.
    """

    def __init__(self, task: Task, worker: Worker | None = None) -> None:
        """`worker` is one that was started already."""
        self._task = task
        self._workers = None if worker is None else Workers(worker)
        self._elsewhere = False
        """Whether a launcher started this process, in which each job that follows another has its own copy of this."""
        self.statuses: list[Status] = []
        """How the jobs ended that were done in this process, or all points of a sweep."""
        self.raised: Exception | None = None
        """What a job raised in this process: what it found could not be told."""
        self.points: tuple[str, ...] | None = None
        """The overrides of the points of a sweep, where the whole of it cannot be composed with all of them."""
        self.arguments: list[str] = []
        """The command line."""
        self.resume: Path | None = None
        """The folder of a resumed sweep: only the points that did not pass are run."""
        self.symmetric = False
        """Whether points of a sweep that are one up to a symmetry of the mesh are run once."""
        self.owner: Owner | None = None
        """The other processes of the cluster that started this one, where this is their first."""
        self.lent: int | None = None
        """The exit status of the run to which this process of a cluster lent its devices."""
        self.sweep: Sweeping | None = None
        """The sweep that is run; a launcher may get it in several batches."""

    def __call__(self, config: DictConfig) -> Status | float | None:
        """Do the job that Hydra has now; return its status, or in a sweep the number that is its `objective`."""
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        settings = HydraConfig.get()
        many = settings.mode == RunMode.MULTIRUN
        job = Job(config, provenance_of(settings), Path(settings.runtime.output_dir), many)
        if manifest.read(job.folder) is None:
            # Hydra's own command made the folder, which was looked at before.
            manifest.mark(job.folder, "point" if many else "run")
        try:
            status = self._task(job, self.workers())
        except Exception as error:
            # Hydra would write words of its own before it raises what a job raised.
            self.raised = error
            status = "error"
        manifest.end(job.folder)
        self.statuses.append(status)
        if many and config.get("objective") is not None:
            from runner.cli.sweeping import objective_of

            return objective_of(job.folder, config.get("objective"))
        return status

    def workers(self, count: int = 1) -> Workers:
        """The processes that do the jobs, at most `count` for each kind of job."""
        if self._workers is None:
            self._workers = _workers_of_this_process() if self._elsewhere else Workers(Worker())
        self._workers.count = count
        return self._workers

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs of it: no workers, which belong to this one."""
        return {**self.__dict__, "_workers": None, "sweep": None, "_elsewhere": True}

    def close(self, status: int | None) -> None:
        """End the workers; the other processes of a cluster have the exit `status` of this one, if it has any."""
        if self._workers is not None:
            self._workers.close()
        if self.owner is not None and status is not None:
            self.owner.end(status)
        if self.owner is not None:
            self.owner.close()

    def use(self, workers: Workers) -> None:
        """Have other workers do the jobs; those there are have none yet."""
        if self._workers is not None:
            self._workers.close()
        self._workers = workers

    @property
    def runs_experiments(self) -> bool:
        """Whether what is done with a job is to run it."""
        return self._task is run_one


@functools.cache
def _workers_of_this_process() -> Workers:
    """The workers that all jobs share that a launcher has done in this process. They end when it does."""
    return Workers(Worker())


def require_plain(settings: str | None) -> None:
    """Raise `InvalidConfiguration` where Hydra's own folder would not lie right below the run's."""
    if settings and (settings != Path(settings).name or settings == ".."):
        raise InvalidConfiguration(
            f"command line: hydra.output_subdir\n  {settings!r} is not the name of a folder in that of a run"
        )


def run_one(job: Job, workers: Workers) -> Status:
    """Run one experiment and show what was found. Returns the run's status; never raises."""
    point = Point(job.folder, job.provenance.overrides, job.resolved, job.provenance.folders, last=not job.many)
    point.begin(workers)
    # The worker has its job: what is needed when it has done that is imported meanwhile.
    from runner.show import report

    record = point.finish()
    if record is None:
        return "error"
    # The terminal's pictures are a choice; the log has the whole story.
    log.info("%s: %s\n\n%s", record.experiment, record.status, report.story(record, job.folder))
    report.run(record, job.folder, brief=job.many, show=point.show)
    if (job.folder / PLAN).exists():
        from runner.show import plan

        plan.show_found(job.folder / PLAN)
    return record.status
