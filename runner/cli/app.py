"""The command line in; an exit status out. The only module that imports Hydra (with the sweeper plugin beside it)."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.compose import conf_folder, without_missing
from runner.link.process import Worker

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.sources import Sources
    from runner.record.model import Record, Status

log = logging.getLogger("runner")

_finished: list[Status] = []
"""The status of every run of this process."""

_ready: list[Worker] = []
"""A worker that was started while the configuration was still being composed."""


def main(arguments: Sequence[str], task: Callable[[DictConfig], str] | None = None) -> int:
    """Run the command line `arguments`: compose the configuration and do the `task` with it, which is to run it.

    Returns 0 when every check passed, 1 when one failed, 2 for invalid input, 3 when a program could not be run.
    """
    known, overrides = _arguments(arguments)
    if _asks_for_listing(known, overrides):
        from runner.show import report

        report.listing(_folders(known, overrides))
        return 0
    if not (known.help or known.hydra_help or known.cfg or known.info or known.shell_completion):
        _ready.append(Worker())
    try:
        return _compose_and_run(list(arguments), known, overrides, task or run_one)
    finally:
        while _ready:
            _ready.pop().close()


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
    return known, [argument for argument in rest if not argument.startswith("-")]


def _asks_for_listing(known: argparse.Namespace, overrides: list[str]) -> bool:
    silent = (known.help, known.hydra_help, known.cfg, known.info, known.config_name, known.shell_completion)
    return not any(silent) and all(override.startswith("hydra.searchpath=") for override in overrides)


def _folders(known: argparse.Namespace, overrides: list[str]) -> list[Path]:
    """The folders that may hold `experiment/`: the user's first."""
    folders = [Path(known.config_dir)] if known.config_dir else []
    for override in overrides:
        if override.startswith("hydra.searchpath="):
            entries = override.split("=", 1)[1].strip("[]").split(",")
            folders += [Path(entry.strip().removeprefix("file://")) for entry in entries if entry.strip()]
    return [*folders, conf_folder()]


def _compose_and_run(
    arguments: list[str], known: argparse.Namespace, overrides: list[str], task: Callable[[DictConfig], str]
) -> int:
    # Hydra then raises what it finds instead of printing it and leaving with status 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.config.schema import ExperimentConfig

    ConfigStore.instance().store(name="schema", node=ExperimentConfig)
    if known.config_dir and not Path(known.config_dir).is_dir():
        print(f"command line: --config-dir {known.config_dir}\n  there is no such folder", file=sys.stderr)
        return 2
    _compose_once(known, overrides)
    run = hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")(task)
    before = sys.argv
    sys.argv = [before[0], *arguments]
    try:
        run()
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        from runner.config import composition

        print(composition.report(error, _folders(known, overrides), overrides), file=sys.stderr)
        return 2
    finally:
        sys.argv = before
    from runner.record import record

    return record.exit_status(record.worst(_finished))


def _compose_once(known: argparse.Namespace, overrides: list[str]) -> None:
    """Spare a plain run the first of Hydra's two compositions, a tenth of its time.

    Without `--multirun` Hydra composes the whole configuration only to ask it for `hydra.mode`. Where neither the
    command line nor the experiment's file says anything of Hydra's, the answer is known.
    """
    from hydra._internal.hydra import Hydra
    from hydra.types import RunMode

    if known.multirun or any("hydra.mode" in override or override.startswith("hydra/") for override in overrides):
        return
    names = [override.split("=", 1)[1] for override in overrides if override.lstrip("+").startswith("experiment=")]
    files = [folder / "experiment" / f"{name}.yaml" for name in names for folder in _folders(known, overrides)]
    if any(file.is_file() and "hydra" in file.read_text(encoding="utf-8") for file in files):
        return
    Hydra.get_mode = lambda self, config_name, overrides: RunMode.RUN  # type: ignore[method-assign]


@dataclass(frozen=True)
class Job:
    """One job of Hydra: its resolved configuration, its folder, where its values stand, and what was overridden.

    - `many`: whether it is one of a sweep's.
    """

    config: DictConfig
    folder: Path
    sources: Callable[[], Sources]
    overrides: tuple[str, ...]
    many: bool

    def plain(self) -> dict[str, Any]:
        """The resolved configuration. Raises what OmegaConf raises."""
        from omegaconf import OmegaConf

        return without_missing(OmegaConf.to_container(self.config, resolve=True))


def job(config: DictConfig) -> Job:
    """The job that Hydra does now."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    settings = HydraConfig.get()
    overrides = tuple(settings.overrides.task)

    def sources() -> Sources:
        from runner.config import composition
        from runner.config.sources import Sources

        folders = [Path(s.path) for s in settings.runtime.config_sources if s.schema == "file" and s.path]
        return Sources(composition.layers(folders, dict(settings.runtime.choices)), overrides)

    many = settings.mode == RunMode.MULTIRUN
    return Job(config, Path(settings.runtime.output_dir), sources, overrides, many)


def started() -> Worker:
    """The worker that was started while the configuration was being composed, or one more."""
    return _ready.pop() if _ready else Worker()


def run_one(config: DictConfig) -> Status:
    """Run one experiment and show what was found. Returns the run's status; never raises."""
    from omegaconf.errors import OmegaConfBaseException

    from runner.flow.run import run
    from runner.show import report

    now = job(config)
    try:
        found = run(now.plain(), now.folder, now.sources, now.overrides, started())
    except OmegaConfBaseException as error:
        from runner.config import composition

        found = invalid(now.folder, composition.in_task(error, now.sources()), now.overrides)
    except Exception as error:
        # In a sweep the other points still run; alone the traceback is what we need to mend it.
        traceback.print_exc()
        log.exception("a bug in shardproof")
        found = crashed(now.folder, error, now.overrides)

    log.info("%s: %s", found.experiment, found.status)
    report.run(found, now.folder, brief=now.many)
    ended(found.status)
    return found.status


def ended(status: Status) -> None:
    """Note the status of a job: the worst of them is the command's."""
    _finished.append(status)


def invalid(folder: Path, message: str, overrides: Sequence[str]) -> Record:
    """The record of a point whose configuration could not be composed."""
    return _ended(folder, "invalid", message, overrides)


def crashed(folder: Path, error: Exception, overrides: Sequence[str]) -> Record:
    """The record of a run in which the runner itself failed."""
    message = f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}"
    return _ended(folder, "error", message, overrides)


def _ended(folder: Path, status: Status, message: str, overrides: Sequence[str]) -> Record:
    from runner.record import record

    folder.mkdir(parents=True, exist_ok=True)
    return record.ended(folder, status, message, overrides)


def invalid_point(folder: Path, overrides: Sequence[str], error: Exception, folders: list[Path]) -> Status:
    """Record a point of a sweep that could not be composed; return its status."""
    from runner.config import composition
    from runner.show import report

    found = invalid(folder, composition.report(error, folders, list(overrides)), overrides)
    report.run(found, folder, brief=True)
    return found.status


def finish_sweep(folder: Path, points: int) -> None:
    """Show the table of all points of a sweep, read from disk, since a launcher may have run them anywhere."""
    from runner.record import record
    from runner.show import report

    found = []
    for point in range(points):
        try:
            found.append(record.read(folder / str(point)))
        except FileNotFoundError:
            lost = record.begun(None, ())
            lost.status, lost.error = "error", "no record: the job died"
            found.append(lost)
    _finished[:] = [point.status for point in found]
    report.sweep(found, folder)
