"""Sends the points of a sweep that compose to the user's launcher, and records the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner.app.cli import launching
from runner.app.cli.jobs import CommandLine
from runner.app.cli.sweep import clear, passed, refused, same_files
from runner.experiment.config import trust
from runner.experiment.config.points import REFUSALS, Composer
from runner.reports.record.model import Record


class Sorting(Launcher):
    """Hands consecutive points that compose to the user's launcher together, so that each keeps its number."""

    def __init__(self, launcher: Launcher, context: HydraContext, config: DictConfig, command: CommandLine) -> None:
        self._command = command
        self._launcher = launcher
        self._loader = context.config_loader
        self._config = config
        self._composer = Composer(context.config_loader, config)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Do nothing: the launcher behind this one is set up already."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch the good points and record the bad ones."""
        results: list[JobReturn] = []
        good: list[Sequence[str]] = []
        launching.opened(self._command, self._config, job_overrides, initial_job_idx)
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            if self._command.resume is not None and self._keep(number, overrides):
                results += self._flush(good, number)
                continue
            error = self._refusal(overrides)
            if error is None:
                good.append(overrides)
                continue
            results += self._flush(good, number)
            self._record(number, overrides, error)
        return [*results, *self._flush(good, initial_job_idx + len(job_overrides))]

    def _keep(self, number: int, overrides: Sequence[str]) -> bool:
        """Return whether a point of a resumed sweep passed before; otherwise delete its files."""
        folder = Path(self._config.hydra.sweep.dir) / str(number)
        before = passed(folder, overrides)
        if before is None or not self._same_files(before, number, overrides):
            clear(folder)
            return False
        assert self._command.sweep is not None
        self._command.sweep.results.keep(number, before, overrides)
        return True

    def _same_files(self, before: Record, number: int, overrides: Sequence[str]) -> bool:
        try:
            return same_files(before, self._composer.point(overrides, number))
        except REFUSALS:
            return False

    def _refusal(self, overrides: Sequence[str]) -> Exception | None:
        try:
            trust.of_point(self._loader, self._config, overrides)
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            return error
        return None

    def _flush(self, good: list[Sequence[str]], end: int) -> Sequence[JobReturn]:
        if not good:
            return []
        points, first = list(good), end - len(good)
        good.clear()
        return self._launcher.launch(points, initial_job_idx=first)

    def _record(self, number: int, overrides: Sequence[str], error: Exception) -> None:
        folder = Path(self._config.hydra.sweep.dir) / str(number)
        refused(folder, overrides, error, launching.folders(self._loader))
