"""Hydra's basic sweeper, except that a point that cannot be composed is recorded and the others still run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner.cli.app import Command, invalid_point


class ShardproofSweeper(BasicSweeper):
    """Sweeps over the product of the choices and ends with a table of all points."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Put the launcher behind one that sorts out the points that cannot be composed."""
        # The folder may name the experiment, which can differ from point to point: it is settled once for all of them.
        folder = str(config.hydra.sweep.dir)
        with open_dict(config):
            config.hydra.sweep.dir = folder
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")
        assert isinstance(task_function, Command)
        self._command = task_function
        if task_function.points is not None:
            with open_dict(config):
                config.hydra.overrides.task = list(task_function.points)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher is not None
        self.launcher = _Sorting(self.launcher, hydra_context, config)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Nothing: the launcher composes each point, and records those that it cannot."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run all points, then show the table."""
        assert self.config is not None
        assert isinstance(self.launcher, _Sorting)
        folder = Path(self.config.hydra.sweep.dir)
        try:
            results = super().sweep(arguments)
        except (KeyboardInterrupt, OSError):
            self._command.finish_sweep(folder, self.launcher.points, whole=False)
            raise
        self._command.finish_sweep(folder, self.launcher.points)
        return results


class _Sorting(Launcher):
    """Hands the points that compose to the user's launcher, in runs, so that each keeps its number."""

    def __init__(self, launcher: Launcher, hydra_context: HydraContext, config: DictConfig) -> None:
        self._launcher = launcher
        self._loader = hydra_context.config_loader
        self._config = config
        self.points = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Nothing: the launcher behind this one is set up already."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch the good points and record the bad ones."""
        results: list[JobReturn] = []
        good: list[Sequence[str]] = []
        self.points = initial_job_idx + len(job_overrides)
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            error = self._refusal(overrides)
            if error is None:
                good.append(overrides)
                continue
            results += self._flush(good, number)
            self._record(number, overrides, error)
        return [*results, *self._flush(good, self.points)]

    def _refusal(self, overrides: Sequence[str]) -> Exception | None:
        try:
            self._loader.load_sweep_config(self._config, list(overrides))
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
        sources = self._loader.get_search_path().get_path()
        folders = [
            Path(entry.path.removeprefix("file://")) for entry in sources if entry.path and "://" not in entry.path[4:]
        ]
        invalid_point(folder, overrides, error, [f for f in folders if f.is_dir()])
