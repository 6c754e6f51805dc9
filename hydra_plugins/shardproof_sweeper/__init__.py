"""Hydra's basic sweeper, except that a point that cannot be composed is recorded and the others still run.

Hydra imports this for every command, so that imports that only a sweep needs are made when there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.shardproof_launcher import ShardproofLauncher, asks_for_more

if TYPE_CHECKING:
    from runner.app.cli.jobs import CommandLine


class ShardproofSweeper(BasicSweeper):
    """Sweeps over the product of the choices, with words such as `all` expanded; ends with a table of all points."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Wrap a launcher other than the runner's in one that records the points that cannot be composed."""
        from runner.app.cli.jobs import CommandLine

        assert isinstance(task_function, CommandLine)
        # The folder's name may contain the experiment, which can differ between points: resolve it once for all.
        folder = str(config.hydra.sweep.dir)
        with open_dict(config):
            config.hydra.sweep.dir = folder
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")
        self._command: CommandLine = task_function
        if task_function.points is not None:
            with open_dict(config):
                config.hydra.overrides.task = list(task_function.points)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher is not None
        if not isinstance(self.launcher, ShardproofLauncher) or asks_for_more(config):
            from hydra_plugins.shardproof_sweeper._sorting import Sorting

            self.launcher = Sorting(self.launcher, hydra_context, config, task_function)

    def split_arguments(self, overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:  # type: ignore[override]
        """Return the overrides of every point, in batches."""
        from runner.app.cli import enumerated, launching, resume
        from runner.experiment.config import sweep_size as limits
        from runner.experiment.config.points import Composer

        assert self.hydra_context is not None
        assert self.config is not None
        limit = limits.most(overrides, OmegaConf.select(self.config, limits.MOST))
        limits.require_few(overrides, limit)
        (points,) = super().split_arguments(overrides, None)
        composer = Composer(self.hydra_context.config_loader, self.config)
        expanded = enumerated.expanded(points, composer, limit, self._command.workers)
        self._command.symmetric = len(expanded) != len(points)
        launching.opened(self._command, self.config, expanded)
        # A sweep that was refused earlier has no folder, and nothing to finish.
        try:
            resume.leave(Path(self.config.hydra.sweep.dir), self._command.arguments)
        except BaseException:
            self._command.sweep = None
            raise
        return list(self.split_overrides_to_chunks(expanded, max_batch_size))

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Do nothing: the launcher composes each point, and records those that it cannot."""

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
