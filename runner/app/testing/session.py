"""Reads the options of a pytest session: the folders of experiments, the golden files and the runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner.base.lazy import dataclass
from runner.experiment.config.folders import conf_folder, is_there, options_of

if TYPE_CHECKING:
    from runner.experiment.config.compose import Configuration
    from runner.link.scratch import Folder
    from runner.link.workers import Workers
    from runner.reports.record.model import Record

UPDATES = "shardproof"
"""The property of a report that names rewritten goldens. Only reports are sent between processes."""


@dataclass
class Run:
    """One experiment, run for one target."""

    record: Record
    own: Folder

    @property
    def folder(self) -> Path:
        """The run folder, which is kept if an item fails."""
        return self.own.path


@dataclass(frozen=True)
class Collected:
    """A collected experiment file.

    - `folder`: the config folder that it belongs to; `pinned`: the targets and programs that have goldens.
    """

    path: Path
    folder: Path
    pinned: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


class Session:
    """The experiments of one pytest session: their folders, their files and their runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._typed = any(str(word).startswith("--experiments") for word in config.invocation_params.args)
        # Paths in a project's configuration are relative to the project, those on the command line to the current
        # folder.
        base = config.invocation_params.dir if self._typed else config.rootpath
        named = [_config_folder(Path(base, name)) for name in config.getoption("experiments") or ()]
        by_argument = [folder for path in self._arguments() for folder in _by_argument(path)]
        self.folders = list(dict.fromkeys(path.resolve() for path in (*named, *by_argument, conf_folder())))
        """The config folders whose `experiment/` is collected."""
        self.files: dict[Path, Collected] = {}
        """The collected experiments, by their golden files."""
        self.collected: set[Path] = set()
        """Every collected file, also those that are only bases of others."""
        self._runs: dict[tuple[Path, str], Run] = {}
        self._workers: Workers | None = None
        self.turn = threading.Lock()
        """Held by the thread of a test that uses the workers, which take one job after the other."""
        self._add_arguments([folder / "experiment" for folder in named])
        self._check_targets()

    def _arguments(self) -> list[Path]:
        """The paths that pytest collects."""
        here = self._config.invocation_params.dir
        return [Path(here, str(argument).split("::")[0]).resolve() for argument in self._config.args]

    def _add_arguments(self, folders: Sequence[Path]) -> None:
        """Add the folders of `--experiments` to the paths that pytest collects.

        Those of a project's configuration are collected where nothing is named.
        """
        config = self._config
        names = config.args_source is pytest.Config.ArgsSource.ARGS
        if self._typed and not names:
            config.args[:] = map(str, folders)
        elif self._typed or not names:
            reached = self._arguments()
            config.args += [str(f) for f in folders if not any(f.resolve().is_relative_to(path) for path in reached)]

    def _check_targets(self) -> None:
        if not self.targets:
            return
        from runner.base.faults import nearest

        there = options_of((conf_folder(), *self.folders), "target")
        for target in self.targets:
            if target not in there:
                hint = nearest(target, there) or f"; there are {', '.join(there)}"
                raise pytest.UsageError(f"--targets: no target '{target}'{hint}")

    @cached_property
    def targets(self) -> tuple[str, ...] | None:
        """The targets given on the command line; None where each experiment uses its own."""
        option = self._config.getoption("targets")
        return None if option is None else tuple(dict.fromkeys(name.strip() for name in option.split(",")))

    def golden_file(self, folder: Path, name: str) -> Path:
        """The golden file of the experiment `name` in a config folder."""
        from runner.reports.record import golden

        chosen = self._config.getini("shardproof_goldens")
        return (self._config.rootpath / chosen if chosen else golden.folder(folder)) / f"{name}.json"

    def run(self, file: Path, target: str, composed: Configuration) -> Run:
        """Run an experiment for a target with its configuration; later calls return the same run."""
        key = file, target
        if key not in self._runs:
            from runner.app.flow import run
            from runner.link import scratch

            own = scratch.Folder(file.stem)
            record = run.run(composed.plain, own.path, composed.sources, self.workers())
            self._runs[key] = Run(record, own)
        return self._runs[key]

    def workers(self) -> Workers:
        """The workers of the session, which run one experiment after the other."""
        if self._workers is None:
            from runner.link.process import Worker
            from runner.link.workers import Workers

            self._workers = Workers(Worker())
        return self._workers

    def reaches(self, place: Path) -> bool:
        """Whether a command-line argument lies in a folder, or contains it."""
        return any(path.is_relative_to(place) or place.is_relative_to(path) for path in self._arguments())

    def misplaced(self) -> list[str]:
        """The messages for experiments that an argument names, or whose folder it names, outside any `experiment/`."""
        from runner.base.invocation import invocation
        from runner.base.words import shown

        files = [file for path in self._arguments() for file in (path.glob("*.yaml") if path.is_dir() else [path])]
        return [
            f"{shown(file)} is not in a folder called experiment, so it is not collected: move it to "
            f"{shown(file.parent / 'experiment' / file.name)}, or run it with {invocation()} {shown(file)}"
            for file in sorted(files)
            if is_there(file) and _is_ours(file) and not any(folder.name == "experiment" for folder in file.parents)
        ]

    def close(self) -> None:
        """Stop the workers, and remove the run folders of passed items."""
        if self._workers is not None:
            self._workers.close()
        for run in self._runs.values():
            run.own.remove()


def _config_folder(path: Path) -> Path:
    """The config folder that `--experiments` names; it may also name the folder `experiment` in it."""
    if (path / "experiment").is_dir():
        return path
    if path.name == "experiment" and path.is_dir():
        return path.parent
    what = "has no folder 'experiment'" if path.is_dir() else "is not a folder"
    raise pytest.UsageError(f"--experiments: {path} {what}; it takes a folder that holds experiment/NAME.yaml")


_KEY = re.compile(r"^(\w+):", re.MULTILINE)


def _by_argument(path: Path) -> list[Path]:
    """The config folder that contains the path of a command-line argument; None where it contains no experiments."""
    folders = [folder for folder in (path, *path.parents) if folder.name == "experiment" and folder.is_dir()]
    if not folders or not (path.is_dir() or path.suffix == ".yaml"):
        return []
    files = [path] if path.is_file() else path.rglob("*.yaml")
    return [folders[0].parent] if any(_is_ours(file) for file in files if is_there(file)) else []


def _is_ours(file: Path) -> bool:
    """Whether most keys of a YAML file are an experiment's, so that a misspelt one is reported and not passed over."""
    from runner.experiment.config import shape

    if file.suffix != ".yaml":
        return False
    keys = set(_KEY.findall(file.read_text(encoding="utf-8", errors="replace"))) - {"defaults"}
    own = keys & shape.root().keys.keys()
    return not own.isdisjoint({"arrays", "graph", "per_device"}) and 2 * len(own) > len(keys)
