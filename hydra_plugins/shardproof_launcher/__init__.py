"""Hydra's basic launcher, except that one worker process serves all points, and points overlap.

Hydra imports this for every command, so that imports that only a sweep needs are made when there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

if TYPE_CHECKING:
    from runner.app.cli.sweep import RunningSweep


class ShardproofLauncher(BasicLauncher):
    """Launches points here; if a job asks for something that only Hydra's own launcher does, it uses that one."""

    _running: RunningSweep | None = None
    """The runner of the points, made once, since another sweeper launches a few points at a time."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the points."""
        from runner.app.cli import launching
        from runner.app.cli.jobs import CommandLine
        from runner.experiment.config import trust

        config, command = self.config, self.task_function
        assert config is not None
        assert isinstance(command, CommandLine)
        if asks_for_more(config):
            # Hydra would act on a point's configuration before the runner has checked it.
            assert self.hydra_context is not None
            for overrides in job_overrides:
                trust.of_point(self.hydra_context.config_loader, config, overrides)
            return super().launch(job_overrides, initial_job_idx)
        assert self.hydra_context is not None
        setup_globals()
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        sweep = launching.opened(command, config, job_overrides, initial_job_idx)
        listener = self._tell if config.hydra.callbacks else None
        self._running = self._running or launching.runner(command, self.hydra_context.config_loader, config, listener)
        self._running.run(job_overrides, initial_job_idx)
        return [
            JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value=sweep.returned(number))
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]

    def _tell(self, number: int, overrides: Sequence[str], folder: Path) -> None:
        """Call the callbacks as Hydra does after a job."""
        assert self.hydra_context is not None
        assert self.config is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with read_write(config.hydra.runtime), open_dict(config):
            config.hydra.job.id = number
            config.hydra.job.num = number
            config.hydra.runtime.output_dir = str(folder.resolve())
        done = JobReturn(overrides=list(overrides), hydra_cfg=config, status=JobStatus.COMPLETED)
        self.hydra_context.callbacks.on_job_end(config=config, job_return=done)


def asks_for_more(config: DictConfig) -> bool:
    """Return whether a job needs a feature that only Hydra's own way of running a job has."""
    hydra = cast("dict[str, Any]", OmegaConf.to_container(config.hydra, resolve=False))
    job: dict[str, Any] = hydra["job"]
    ours = hydra["job_logging"] == _job_logging() and hydra["sweep"]["subdir"] == _NUMBERED
    callbacks: dict[str, dict[str, Any]] = hydra.get("callbacks") or {}
    foreign = any(callback.get("_target_") != _TRACKING for callback in callbacks.values())
    return bool(job.get("chdir") or job.get("env_set") or foreign) or not ours


@cache
def _job_logging() -> object:
    """Return the default logging of jobs, which `runner.app.cli.sweep` implements; Hydra does any other."""
    from runner.experiment.config.folders import conf_folder

    return OmegaConf.to_container(OmegaConf.load(conf_folder() / "hydra" / "job_logging" / "file.yaml"))


_TRACKING = "runner.app.cli.tracking.Tracking"
"""A callback that only needs the records of ended jobs."""

_NUMBERED = "${hydra.job.num}"
"""The folder of a point, from `conf/config.yaml`."""
