"""Makes the sweep of the points that Hydra's sweeper launches, and its runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.app.cli.jobs import CommandLine, require_plain
from runner.app.cli.options import NAMES, read
from runner.app.cli.sweep import Listener, RunningSweep, SweepOptions
from runner.app.cli.sweeping import Sweeping
from runner.experiment.config.points import Composer
from runner.reports.record import measures

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig


def opened(command: CommandLine, config: DictConfig, points: Sequence[Sequence[str]], first: int = 0) -> Sweeping:
    """Return the sweep of these points. Raises `InvalidConfiguration`."""
    if command.sweep is None:
        keys = dict.fromkeys(key for overrides in points for key in measures.overridden(overrides))
        settings = {name: config.get(name) for name in NAMES}
        report = config.get("report") is True
        command.sweep = Sweeping(Path(config.hydra.sweep.dir), read(settings, keys), command.statuses, report=report)
    command.sweep.expect(points, first)
    return command.sweep


def runner(command: CommandLine, loader: ConfigLoader, config: DictConfig, listener: Listener | None) -> RunningSweep:
    """Return the runner of the sweep that a command has `opened`; it calls `listener` after each point."""
    assert command.sweep is not None
    opened = command.sweep
    require_plain(config.hydra.output_subdir)
    plan = SweepOptions(
        folder=opened.folder,
        folders=tuple(folders(loader)),
        settings=config.hydra.output_subdir,
        resume=command.resume is not None,
        symmetric=command.symmetric,
        sort=opened.options.measure,
    )
    return RunningSweep(
        plan, Composer(loader, config), command.workers(opened.options.workers), opened.results, listener
    )


def folders(loader: ConfigLoader) -> list[Path]:
    """Return the config folders on Hydra's search path."""
    paths = [entry.path.removeprefix("file://") for entry in loader.get_search_path().get_path() if entry.path]
    return [Path(path) for path in paths if "://" not in path and Path(path).is_dir()]
