"""Hydra's basic launcher, except that one worker process serves all points, and one begins while another is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from omegaconf import DictConfig, OmegaConf

from runner.cli import sweeping
from runner.cli.app import Command

if TYPE_CHECKING:
    from runner.cli.sweep import Sweep


class ShardproofLauncher(BasicLauncher):
    """Launches here what Hydra's own launcher does, and in the same way where a job asks for what only that does."""

    _running: Sweep | None = None
    """What runs the points: made once, since another sweeper asks for a few at a time."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the points."""
        config, command = self.config, self.task_function
        assert config is not None
        assert isinstance(command, Command)
        if asks_for_more(config):
            return super().launch(job_overrides, initial_job_idx)
        assert self.hydra_context is not None
        setup_globals()
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        sweep = sweeping.opened(command, config, job_overrides, initial_job_idx)
        self._running = self._running or sweeping.runner(command, self.hydra_context.config_loader, config)
        self._running.run(job_overrides, initial_job_idx)
        return [
            JobReturn(overrides=list(given), status=JobStatus.COMPLETED, _return_value=sweep.returned(number))
            for number, given in enumerate(job_overrides, initial_job_idx)
        ]


def asks_for_more(config: DictConfig) -> bool:
    """Whether a job is to have what only Hydra's own way of running one gives it."""
    hydra = cast("dict[str, Any]", OmegaConf.to_container(config.hydra, resolve=False))
    job: dict[str, Any] = hydra["job"]
    ours = config.hydra.runtime.choices.get("hydra/job_logging") == "file" and hydra["sweep"]["subdir"] == _NUMBERED
    return bool(job.get("chdir") or job.get("env_set") or hydra.get("callbacks")) or not ours


_NUMBERED = "${hydra.job.num}"
"""The folder of a point, as `conf/config.yaml` has it."""
