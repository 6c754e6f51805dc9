"""Composes command-line arguments by Hydra and runs their jobs. Hydra runs what `experiment/config/compose.py`
composes.

A single job is composed and run here, since Hydra's own command composes twice. Sweeps, and questions to Hydra such as
`--cfg`, are left to Hydra's command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.cli import resume
from runner.app.cli.answers import answered
from runner.app.cli.arguments import folders, parsed
from runner.app.cli.jobs import CommandLine, Job, Task, require_plain, run_one
from runner.app.cli.point import logged
from runner.app.cli.signals import Ended
from runner.experiment.config import direct
from runner.experiment.config.compose import InvalidConfiguration, beforehand, composed, refuse_too_much, register
from runner.experiment.config.folders import conf_folder
from runner.reports.record import manifest

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.link.process import Worker


def run(arguments: Sequence[str], task: Task | None, worker: Worker | None) -> int:
    """Compose the configuration of the command line and run `task` on it, by default with the `worker`."""
    command = CommandLine(task or run_one, worker)
    status: int | None = None
    try:
        status = answered(_resumed)(command, list(arguments))
        return status
    finally:
        command.close(status)


def _resumed(command: CommandLine, arguments: list[str]) -> int:
    """Return the exit status of a command line that may resume a sweep."""
    options, overrides = parsed(arguments)
    resumed = resume.read(overrides)
    if resumed is not None:
        arguments, command.resume = resumed.arguments, resumed.folder
        command.distrust = None if resumed.trusted else resume.distrusted(resumed.folder)
        options, overrides = parsed(arguments)
    command.arguments = arguments
    return _run(command, arguments, options, overrides)


def _run(command: CommandLine, arguments: list[str], options: argparse.Namespace, overrides: list[str]) -> int:
    try:
        if options.asks or options.others or not _run_once(command, options, overrides):
            _run_by_hydra(command, arguments, options, overrides)
    except RecursionError:
        message = f"{_chosen(overrides)}\n  its defaults list includes the experiment itself"
        raise InvalidConfiguration(message) from None
    if command.lent is not None:
        return command.lent
    if command.raised is not None:
        raise command.raised
    from runner.reports.record import record

    return record.exit_status(record.worst(command.statuses))


def _chosen(overrides: Sequence[str]) -> str:
    """Return the override that chooses the experiment."""
    return next((f"command line: {o}" for o in overrides if o.lstrip("+").startswith("experiment=")), "command line")


def _claim(folder: Path) -> None:
    """Make a folder the run folder of this process alone. Raises `InvalidConfiguration` if it is not empty."""
    try:
        manifest.begin(folder, "run")
    except manifest.Occupied as occupied:
        raise InvalidConfiguration(f"command line: hydra.run.dir\n  {occupied}") from None


def _run_once(command: CommandLine, options: argparse.Namespace, overrides: list[str]) -> bool:
    """Run a single job, composed once: Hydra's own command composes twice. Returns whether it was a single job.

    Raises `InvalidConfiguration`.
    """
    searched = any(override.startswith("hydra.searchpath=") for override in overrides)
    if any("hydra.mode" in override for override in overrides) or (searched and options.config_dir):
        return False
    folder = Path(options.config_dir) if options.config_dir else None
    refuse_too_much(overrides, [conf_folder()] if folder is None else [conf_folder(), folder])
    if (whole := direct.chosen(overrides, folder)) is not None:
        _run_directly(command, whole)
        return True
    with composed(overrides, folder) as config:
        try:
            return _done(command, config)
        except (InvalidConfiguration, OSError):
            raise
        except Exception as error:
            raise _refused(error, options, overrides) from error


def _run_directly(command: CommandLine, whole: direct.Composition) -> None:
    """Run the single job of a configuration that Hydra need not compose, with the same files and the same log."""
    folder = Path(os.path.abspath(whole.folder))
    _claim(whole.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with logged(folder):
        whole.leave(folder / ".hydra")
        command.run(Job(whole.checked, whole.sources, folder, many=False))


def _done(command: CommandLine, config: DictConfig) -> bool:
    """Run the single job of a configuration. Returns whether it was a single job."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import run_job
    from hydra.types import HydraContext, RunMode
    from omegaconf import OmegaConf

    if config.hydra.mode == RunMode.MULTIRUN:
        return False
    config.hydra.mode = RunMode.RUN
    callbacks = Callbacks(config)
    if OmegaConf.select(config, "target.cluster", throw_on_resolution_failure=False):
        from runner.app.cli import cluster

        if not cluster.joined(command, config):
            return True
    require_plain(config.hydra.output_subdir)
    folder = Path(config.hydra.run.dir)
    _claim(folder)
    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=callbacks)
    callbacks.on_run_start(config=config, config_name="config")
    done = run_job(command, config, "hydra.run.dir", None, context)
    callbacks.on_run_end(config=config, config_name="config", job_return=done)
    manifest.end(folder)
    # Hydra's own error, raised as Hydra would.
    _ = done.return_value
    return True


def _run_by_hydra(
    command: CommandLine, arguments: list[str], options: argparse.Namespace, overrides: list[str]
) -> None:
    """Leave a sweep, or a question to Hydra, to Hydra's own command. Raises `InvalidConfiguration`."""
    # Makes Hydra raise errors instead of printing them and exiting with status 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra

    from runner.experiment.config import sweep_size

    register()
    refuse_too_much(overrides, folders(options, overrides))
    # Hydra's own parser accepts no override before a flag.
    arguments = [*(argument for argument in arguments if argument not in overrides), *overrides]
    run = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")(command)
    before = sys.argv
    composed_by_hydra = overrides
    try:
        if options.multirun and (withheld := sweep_size.withheld(overrides)):
            arguments = [argument for argument in arguments if argument not in withheld]
            composed_by_hydra = [override for override in overrides if override not in withheld]
            command.points = tuple(o for o in overrides if not o.startswith(("hydra.", "hydra/")))
        if not options.shell_completion:
            _look_before(options, composed_by_hydra, resumed=command.resume is not None)
        sys.argv = [before[0], *arguments]
        run()
        if command.sweep is not None:
            command.sweep.finish()
    except InvalidConfiguration:
        raise
    except (KeyboardInterrupt, Ended):
        if command.sweep is not None:
            command.sweep.tell_how_to_go_on()
        raise
    except Exception as error:
        raise _refused(error, options, overrides) from error
    finally:
        if command.sweep is not None:
            # After any error: the results so far are needed to resume.
            command.sweep.leave()
        sys.argv = before


_NUMBERED = "${hydra.job.num}"
"""Hydra's name for the folder of a point."""


def _look_before(options: argparse.Namespace, overrides: list[str], *, resumed: bool) -> None:
    """Check what Hydra is about to compose and run; raise `Untrusted`, or what Hydra raises.

    Raises `InvalidConfiguration` if the run folder is not empty, unless a sweep is `resumed` in it.
    """
    folder, home = (Path(path) if path else None for path in (options.config_dir, options.config_path))
    with beforehand(overrides, folder, home, options.config_name) as config:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode
        from omegaconf import OmegaConf

        if options.asks or resumed:
            return
        HydraConfig.instance().set_config(config)
        many = options.multirun or config.hydra.mode == RunMode.MULTIRUN
        sweep: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
        if many and sweep["subdir"] != _NUMBERED:
            message = "the points of a sweep are in folders by their numbers, of which its table is made; leave it out"
            raise InvalidConfiguration(f"command line: hydra.sweep.subdir\n  {message}")
        why = manifest.refusal(Path(config.hydra.sweep.dir if many else config.hydra.run.dir))
        if why is not None:
            raise InvalidConfiguration(f"command line: hydra.{'sweep' if many else 'run'}.dir\n  {why}")


def _refused(error: Exception, options: argparse.Namespace, overrides: list[str]) -> InvalidConfiguration:
    """Convert what Hydra raises for a configuration into one message."""
    # The runner's callbacks have messages of their own; Hydra only says that one raised.
    if isinstance(error.__cause__, InvalidConfiguration):
        return error.__cause__
    from runner.experiment.config import config_errors, quoting

    # In a sweep, the word `all` was not meant for Hydra.
    typed = [override for override in overrides if not (options.multirun and quoting.WORD.match(override))]
    return InvalidConfiguration(config_errors.report(error, folders(options, overrides), typed))
