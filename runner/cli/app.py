"""The command line in; an exit status out. Hydra runs what `config/compose.py` composes; a sweep it composes itself."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.config.compose import (
    Configuration,
    InvalidConfiguration,
    Origin,
    composed,
    origin_of,
    refuse_too_much,
    register,
    resolved,
)
from runner.config.folders import conf_folder
from runner.link.process import Worker

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.experiment.showing import Show
    from runner.record.model import Record, Status

log = logging.getLogger("runner")


def main(arguments: Sequence[str], task: Task | None = None) -> int:
    """Run the command line `arguments`: compose the configuration and do the `task` with it, which is to run it.

    Returns 0 when every check passed, 1 when one failed, 2 for invalid input, 3 when a program could not be run.
    """
    # A log that cannot be written is no reason for a traceback: the files beside it cannot be written either.
    logging.raiseExceptions = False
    known, overrides = _arguments(arguments)
    if _asks_for_listing(known, overrides):
        from runner.show import report

        report.listing(_folders(known, overrides))
        return 0
    if known.config_dir and not Path(known.config_dir).is_dir():
        print(f"command line: --config-dir {known.config_dir}\n  there is no such folder", file=sys.stderr)
        return 2
    command = Command(task or run_one, runs=not known.asks)
    try:
        return _run(command, list(arguments), known, overrides)
    finally:
        command.close()


@dataclass(frozen=True)
class Job:
    """One job of Hydra: its configuration, whose values may not resolve yet, and its folder.

    - `many`: whether it is one of a sweep's.
    """

    config: DictConfig
    origin: Origin
    folder: Path
    many: bool

    def resolved(self) -> Configuration:
        """The resolved configuration. Raises `InvalidConfiguration`."""
        return resolved(self.config, self.origin)


Task: TypeAlias = "Callable[[Job, Worker], Status]"
"""What is done with a job; returns its status, and never raises."""


class Command:
    """One command line: what is done with each of its jobs, and how they ended.

    Hydra calls it with the configuration of a job, here or, with another launcher, in a process of its own.
    """

    def __init__(self, task: Task, *, runs: bool = True) -> None:
        self._task = task
        # It loads what it needs from others while the configuration is being composed.
        self._worker = Worker() if runs else None
        self.statuses: list[Status] = []
        """How the jobs ended that were done in this process."""
        self.raised: Exception | None = None
        """What a job raised in this process: what it found could not be told."""
        self.points: tuple[str, ...] | None = None
        """The overrides of the points of a sweep, where the whole of it cannot be composed with all of them."""

    def __call__(self, config: DictConfig) -> Status:
        """Do the job that Hydra has now."""
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        settings = HydraConfig.get()
        many = settings.mode == RunMode.MULTIRUN
        job = Job(config, origin_of(settings), Path(settings.runtime.output_dir), many)
        worker, self._worker = self._worker or Worker(), None
        try:
            status = self._task(job, worker)
        except Exception as error:
            # Hydra would write words of its own before it raises what a job raised.
            self.raised = error
            status = "error"
        finally:
            worker.close()
        self.statuses.append(status)
        return status

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs of it: no worker, which belongs to this one."""
        return {**self.__dict__, "_worker": None}

    def close(self) -> None:
        """End the worker that no job has taken."""
        if self._worker is not None:
            self._worker.close()

    def finish_sweep(self, folder: Path, points: int, *, whole: bool = True) -> None:
        """Show the table of all points of a sweep, read from disk, since a launcher may have run them anywhere.

        Of one that is not `whole` the table has the points that left a record.
        """
        from runner.record import record
        from runner.show import report
        from runner.show.console import say

        found: dict[int, Record] = {}
        for point in range(points):
            try:
                found[point] = record.read(folder / str(point))
            except (FileNotFoundError, NotADirectoryError):
                if whole:
                    found[point] = lost = record.begun(None, ())
                    lost.status, lost.error = "error", "no record: the job died"
        self.statuses = [point.status for point in found.values()]
        if found:
            report.sweep(found, folder)
        if len(found) < points:
            say(f"{points - len(found)} of {points} points were not run")
        _leave_story(found, folder)


def _arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags that decide what the command does before Hydra is imported, and the overrides."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--config-name", "-cn")
    for flag in ("--help", "-h"):
        parser.add_argument(flag, action="store_true", dest="help")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    known, rest = parser.parse_known_args(list(arguments))
    overrides = [argument for argument in rest if not argument.startswith("-")]
    known.asks = bool(known.help or known.hydra_help or known.cfg or known.info or known.shell_completion)
    # What only Hydra's own command line knows.
    known.others = bool(known.multirun or known.config_path or known.config_name or len(overrides) < len(rest))
    return known, overrides


def _asks_for_listing(known: argparse.Namespace, overrides: list[str]) -> bool:
    return not (known.asks or known.config_name) and all(
        override.startswith("hydra.searchpath=") for override in overrides
    )


def _folders(known: argparse.Namespace, overrides: list[str]) -> list[Path]:
    """The folders that may hold `experiment/`: the user's first."""
    folders = [Path(known.config_dir)] if known.config_dir else []
    for override in overrides:
        if override.startswith("hydra.searchpath="):
            entries = override.split("=", 1)[1].strip("[]").split(",")
            folders += [Path(entry.strip().removeprefix("file://")) for entry in entries if entry.strip()]
    return [*folders, conf_folder()]


def _run(command: Command, arguments: list[str], known: argparse.Namespace, overrides: list[str]) -> int:
    try:
        if known.asks or known.others or not _run_once(command, known, overrides):
            _run_by_hydra(command, arguments, known, overrides)
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)
        return 2
    except RecursionError:
        print(f"{_chosen(overrides)}\n  its defaults lead back to itself", file=sys.stderr)
        return 2
    if command.raised is not None:
        raise command.raised
    from runner.record import record

    return record.exit_status(record.worst(command.statuses))


def _chosen(overrides: Sequence[str]) -> str:
    """The override that chooses the experiment."""
    return next((f"command line: {o}" for o in overrides if o.lstrip("+").startswith("experiment=")), "command line")


def _claim(folder: Path, settings: str | None) -> None:
    """Make a folder the run folder of this process alone; Hydra's own `settings` folder in it says that it is one.

    Raises `InvalidConfiguration` where it is another run's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if settings:
            (folder / settings).mkdir()
        taken = (folder / "result.json").exists()
    except FileExistsError:
        taken = True
    if taken:
        raise InvalidConfiguration(
            f"command line: hydra.run.dir\n  {folder} is the folder of another run, which would be lost: "
            "remove it, or name another one"
        )


def _run_once(command: Command, known: argparse.Namespace, overrides: list[str]) -> bool:
    """Do one job, composed once, where Hydra's own command composes twice. Returns whether it was one job.

    Raises `InvalidConfiguration`.
    """
    searched = any(override.startswith("hydra.searchpath=") for override in overrides)
    if any("hydra.mode" in override for override in overrides) or (searched and known.config_dir):
        return False
    with composed(overrides, Path(known.config_dir) if known.config_dir else None) as config:
        from hydra._internal.callbacks import Callbacks
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.utils import run_job
        from hydra.types import HydraContext, RunMode

        if config.hydra.mode == RunMode.MULTIRUN:
            return False
        config.hydra.mode = RunMode.RUN
        _claim(Path(config.hydra.run.dir), config.hydra.output_subdir)
        callbacks = Callbacks(config)
        context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=callbacks)
        callbacks.on_run_start(config=config, config_name="config")
        done = run_job(command, config, "hydra.run.dir", None, context)
        callbacks.on_run_end(config=config, config_name="config", job_return=done)
        # What Hydra itself raised there, it raises here.
        _ = done.return_value
    return True


def _run_by_hydra(command: Command, arguments: list[str], known: argparse.Namespace, overrides: list[str]) -> None:
    """Leave the command line to Hydra's own: a sweep, or a question. Raises `InvalidConfiguration`."""
    # Hydra then raises what it finds instead of printing it and leaving with status 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra

    from runner.config import composition, sweep

    register()
    refuse_too_much(overrides, _folders(known, overrides))
    # Hydra's own parser takes no override before a flag.
    arguments = [*(argument for argument in arguments if argument not in overrides), *overrides]
    run = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")(command)
    before = sys.argv
    try:
        if known.multirun and (withheld := sweep.withheld(overrides)):
            arguments = [argument for argument in arguments if argument not in withheld]
            command.points = tuple(o for o in overrides if not o.startswith(("hydra.", "hydra/")))
        sys.argv = [before[0], *arguments]
        run()
    except Exception as error:
        raise InvalidConfiguration(composition.report(error, _folders(known, overrides), overrides)) from error
    finally:
        sys.argv = before


def run_one(job: Job, worker: Worker) -> Status:
    """Run one experiment and show what was found. Returns the run's status; never raises."""
    from runner.flow.run import run

    overrides = job.origin.overrides
    show: Show = "auto"
    try:
        config = job.resolved()
        found = run(config.plain, job.folder, lambda: config.sources, overrides, worker)
        # What an invalid experiment says of it may be anything.
        show = show if found.status == "invalid" else config.plain.get("show", show)
    except InvalidConfiguration as error:
        found = invalid(job.folder, str(error), overrides)
    except OSError as error:
        message = f"{error.filename or job.folder}: {error.strerror or error}"
        try:
            found = ended(job.folder, "error", message, overrides)
        except OSError:
            print(message, file=sys.stderr)
            return "error"
    except Exception as error:
        # In a sweep the other points still run; alone the traceback is what we need to mend it.
        traceback.print_exc()
        log.exception("a bug in shardproof")
        found = crashed(job.folder, error, overrides)

    # Not before the worker has its job, for which it waits.
    from runner.show import report

    # The terminal's pictures are a choice; the log has the whole story.
    log.info("%s: %s\n\n%s", found.experiment, found.status, report.story(found, job.folder))
    report.run(found, job.folder, brief=job.many, show=show)
    return found.status


def invalid(folder: Path, message: str, overrides: Sequence[str]) -> Record:
    """The record of a point whose configuration could not be composed."""
    return ended(folder, "invalid", message, overrides)


def crashed(folder: Path, error: Exception, overrides: Sequence[str]) -> Record:
    """The record of a run in which the runner itself failed."""
    message = f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}"
    return ended(folder, "error", message, overrides)


def ended(folder: Path, status: Status, message: str, overrides: Sequence[str]) -> Record:
    """The record of a run that ended with a message before anything was found."""
    from runner.record import record

    folder.mkdir(parents=True, exist_ok=True)
    return record.ended(folder, status, message, overrides)


def invalid_point(folder: Path, overrides: Sequence[str], error: Exception, folders: list[Path]) -> Status:
    """Record a point of a sweep that could not be composed; return its status."""
    from runner.config import composition
    from runner.record.files import write_text
    from runner.show import report

    found = invalid(folder, composition.report(error, folders, list(overrides)), overrides)
    # Hydra opens a log only where it runs a job.
    write_text(folder / LOG, report.story(found, folder))
    report.run(found, folder, brief=True)
    return found.status


LOG = "runner.log"
"""What `conf/hydra/job_logging` calls the log of a run."""


def _leave_story(found: Mapping[int, Record], folder: Path) -> None:
    """Write the log of a whole sweep, and its layouts on one sheet where there are several of one array."""
    from runner.record.files import write_text
    from runner.show import report, sheet

    told = report.sweep_story(found, folder)
    drawn = {number: point.pictures for number, point in found.items() if point.pictures}
    files = sheet.files({number: point.experiment for number, point in found.items()}, drawn)
    if files is not None:
        text, image = files
        write_text(folder / "shardings.txt", text)
        write_text(folder / "shardings.svg", image)
        told += f"\n{text}"
    write_text(folder / LOG, told)
