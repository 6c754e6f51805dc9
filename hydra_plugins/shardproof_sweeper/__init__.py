"""Hydra's basic sweeper, except that a point that cannot be composed is recorded and the others still run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydra_plugins.shardproof_launcher import ShardproofLauncher, asks_for_more
from runner.cli import enumerated, resume, sweeping
from runner.cli.app import Command
from runner.cli.sweep import clear, passed, refused, same_files
from runner.config import sweep as limits
from runner.config import trust
from runner.config.points import REFUSALS, Composer
from runner.record.model import Record


class ShardproofSweeper(BasicSweeper):
    """Sweeps over the product of the choices, and of what stands for them in a word; a table of all points ends it."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Put a launcher that is not ours behind one that sorts out the points that cannot be composed."""
        assert isinstance(task_function, Command)
        # The folder may name the experiment, which can differ from point to point: it is settled once for all of them.
        folder = str(config.hydra.sweep.dir)
        with open_dict(config):
            config.hydra.sweep.dir = folder
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")
        self._command = task_function
        if task_function.points is not None:
            with open_dict(config):
                config.hydra.overrides.task = list(task_function.points)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher is not None
        if not isinstance(self.launcher, ShardproofLauncher) or asks_for_more(config):
            self.launcher = _Sorting(self.launcher, hydra_context, config, task_function)

    def split_arguments(self, overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:  # type: ignore[override]
        """The overrides of every point, in batches."""
        assert self.hydra_context is not None
        assert self.config is not None
        limit = limits.most(overrides, OmegaConf.select(self.config, limits.MOST))
        limits.require_few(overrides, limit)
        (points,) = super().split_arguments(overrides, None)
        expanded = enumerated.expanded(points, Composer(self.hydra_context.config_loader, self.config), limit)
        self._command.symmetric = len(expanded) != len(points)
        sweeping.opened(self._command, self.config, expanded)
        # What is refused before this leaves no folder, and without one there is no sweep to finish.
        try:
            resume.leave(Path(self.config.hydra.sweep.dir), self._command.arguments)
        except BaseException:
            self._command.sweep = None
            raise
        return list(self.split_overrides_to_chunks(expanded, max_batch_size))

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Nothing: the launcher composes each point, and records those that it cannot."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run all points, then show the table."""
        assert self.config is not None
        try:
            results = super().sweep(arguments)
        except (KeyboardInterrupt, OSError):
            if self._command.sweep is not None:
                self._command.sweep.finish(whole=False)
            raise
        assert self._command.sweep is not None
        self._command.sweep.finish()
        return results


class _Sorting(Launcher):
    """Hands the points that compose to the user's launcher, in runs, so that each keeps its number."""

    def __init__(self, launcher: Launcher, context: HydraContext, config: DictConfig, command: Command) -> None:
        self._command = command
        self._launcher = launcher
        self._loader = context.config_loader
        self._config = config

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Nothing: the launcher behind this one is set up already."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch the good points and record the bad ones."""
        results: list[JobReturn] = []
        good: list[Sequence[str]] = []
        sweeping.opened(self._command, self._config, job_overrides, initial_job_idx)
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
        """Whether a point of a sweep that is resumed has passed before; of one that has not nothing is left."""
        folder = Path(self._config.hydra.sweep.dir) / str(number)
        before = passed(folder, overrides)
        if before is None or not self._same_files(before, number, overrides):
            clear(folder)
            return False
        assert self._command.sweep is not None
        self._command.sweep.found.keep(number, before, overrides)
        return True

    def _same_files(self, before: Record, number: int, overrides: Sequence[str]) -> bool:
        try:
            return same_files(before, Composer(self._loader, self._config).point(overrides, number))
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
        refused(folder, overrides, error, sweeping.folders(self._loader))
