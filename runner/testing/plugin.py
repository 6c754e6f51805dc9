"""The pytest plugin: experiments are collected as tests, wherever their folder is named. Imports no JAX.

A folder is named by an argument (`pytest conf/experiment`) or by `--experiments my_conf`. Every experiment is run once
per target, by the first of its items; see `runner/testing/items.py`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runner.config.folders import conf_folder, experiments, is_there

if TYPE_CHECKING:
    from runner.link.scratch import Folder
    from runner.link.workers import Workers
    from runner.record.model import Record
    from runner.testing.items import ExperimentFile


TOLD = "shardproof"
"""The property of a report that says what was pinned anew. Reports cross from process to process; nothing else does."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, and where the goldens lie."""
    group = parser.getgroup("shardproof", "experiments in JAX sharding")
    group.addoption(
        "--experiments",
        action="append",
        default=[],
        metavar="DIR",
        help="collect the experiments of this config folder (DIR/experiment/*.yaml); can be given several times",
    )
    group.addoption("--update-golden", action="store_true", help="rewrite the goldens, and print what changed in them")
    group.addoption(
        "--targets",
        metavar="A,B",
        help="run every experiment for these targets, instead of those that it names in test.targets",
    )
    parser.addini("shardproof_goldens", "the folder of the goldens, relative to the root folder")


def pytest_configure(config: pytest.Config) -> None:
    """Start to listen to the session."""
    config.pluginmanager.register(Session(config), "shardproof-session")


@dataclass
class Run:
    """One experiment, run for one target."""

    record: Record
    own: Folder

    @property
    def folder(self) -> Path:
        """The run folder; where some item fails it is kept."""
        return self.own.path


class Session:
    """What one session of pytest knows of experiments: the folders that hold them, the files, the runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._typed = any(str(word).startswith("--experiments") for word in config.invocation_params.args)
        # What a project's configuration says is relative to the project, what is typed to where one stands.
        base = config.invocation_params.dir if self._typed else config.rootpath
        named = [_config_folder(Path(base, name)) for name in config.getoption("experiments") or ()]
        by_argument = [folder for path in self._arguments() for folder in _by_argument(path)]
        self.folders = list(dict.fromkeys(path.resolve() for path in (*named, *by_argument, conf_folder())))
        """The config folders whose `experiment/` is collected."""
        self.files: dict[Path, ExperimentFile] = {}
        """The experiments that were collected, by the file of their goldens."""
        self.seen: set[Path] = set()
        """Every file that was collected, also one that is only a base of others."""
        self._runs: dict[tuple[Path, str], Run] = {}
        self._workers: Workers | None = None
        self._told: list[str] = []
        self._unused: list[str] = []
        self._add_arguments([folder / "experiment" for folder in named])
        self._check_targets()

    def _arguments(self) -> list[Path]:
        """The paths that are to be collected."""
        here = self._config.invocation_params.dir
        return [Path(here, str(argument).split("::")[0]).resolve() for argument in self._config.args]

    def _add_arguments(self, folders: Sequence[Path]) -> None:
        """Collect the folders of `--experiments`: where they are typed alone or beside what else is named.

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
        from runner.faults import nearest

        there = sorted({f.stem for base in (conf_folder(), *self.folders) for f in (base / "target").glob("*.yaml")})
        for target in self.targets:
            if target not in there:
                hint = nearest(target, there) or f"; there are {', '.join(there)}"
                raise pytest.UsageError(f"--targets: no target '{target}'{hint}")

    @cached_property
    def targets(self) -> tuple[str, ...] | None:
        """The targets of the command line; None where each experiment names its own."""
        given = self._config.getoption("targets")
        return None if given is None else tuple(dict.fromkeys(name.strip() for name in given.split(",")))

    def golden_file(self, folder: Path, name: str) -> Path:
        """The file that pins the experiment `name` of a config folder."""
        from runner.record import golden

        chosen = self._config.getini("shardproof_goldens")
        return (self._config.rootpath / chosen if chosen else golden.folder(folder)) / f"{name}.json"

    def run(self, file: ExperimentFile, target: str) -> Run:
        """The run of an experiment for a target: the first call runs it."""
        key = file.path, target
        if key not in self._runs:
            from runner.flow import run
            from runner.link import scratch

            composed = file.composed(target)
            own = scratch.Folder(file.path.stem)
            record = run.run(
                composed.plain, own.path, lambda: composed.sources, composed.sources.overrides, self._kept()
            )
            self._runs[key] = Run(record, own)
        return self._runs[key]

    def _kept(self) -> Workers:
        """The workers that run the experiments of the session, one after the other."""
        if self._workers is None:
            from runner.link.process import Worker
            from runner.link.workers import Workers

            self._workers = Workers(Worker())
        return self._workers

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A YAML file of a folder that was named; any other is not ours."""
        if file_path.suffix != ".yaml":
            return None
        path = file_path.resolve()
        folder = next((folder for folder in self.folders if path.is_relative_to(folder / "experiment")), None)
        if folder is None:
            return None
        from runner.testing.items import ExperimentFile, made

        return made(ExperimentFile, parent, path=file_path, folder=folder, state=self)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Find the goldens that no item reads."""
        self._unused = [*self._without_item(), *self._without_experiment()] if self.files else []
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["shardproof_unused"] = self._unused

    def pytest_sessionfinish(self) -> None:
        """End the workers, and remove the run folders, except where something failed."""
        if self._workers is not None:
            self._workers.close()
        for run in self._runs.values():
            run.own.remove()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what was pinned anew for the summary."""
        if report.when == "call":
            self._told += [str(told) for name, told in report.user_properties if name == TOLD]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say which goldens were rewritten, and which nothing reads."""
        if self._told or self._unused:
            terminalreporter.section("goldens")
        for told in [*self._told, *self._unused]:
            terminalreporter.write_line(told)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """With xdist every worker collects everything: what one of them says of it is what each would."""
        self._unused = getattr(node, "workeroutput", {}).get("shardproof_unused", self._unused)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Where xdist would deal out an experiment's items singly, give them all to one worker: it is run once."""
        places = [folder / "experiment" for folder in self.folders]
        ours = any(p.is_relative_to(place) or place.is_relative_to(p) for p in self._arguments() for place in places)
        dist = config.getoption("dist")
        if dist not in ("load", "loadgroup", "loadscope") or not ours:
            return None
        # It has no types.
        scheduler: Any = importlib.import_module("xdist.scheduler")
        scheduling: Any = scheduler.LoadScopeScheduling if dist == "loadscope" else scheduler.LoadGroupScheduling

        class OneWorkerPerExperiment(scheduling):
            def _split_scope(self, nodeid: str) -> str:
                file = nodeid.split("::", 1)[0]
                return file if file.endswith(".yaml") else scheduling._split_scope(self, nodeid)

        return OneWorkerPerExperiment(config, log)

    def _without_item(self) -> list[str]:
        """The goldens of the installed JAX that belong to no target and program of their experiment, in words."""
        from importlib.metadata import version

        from runner.config.sources import shown
        from runner.record import golden

        found: list[str] = []
        current = golden.series(version("jax"))
        for path, file in sorted(self.files.items()):
            try:
                content = golden.read(path)
            except golden.InvalidGolden:
                # The items that read this file say so.
                continue
            found += [
                f"unused: {shown(path)} ({current} on {target}) pins {program}, which {shown(file.path)} does not test"
                for target, programs in sorted(content.get(current, {}).items())
                for program in sorted(programs)
                if (target, program) not in file.pinned
            ]
        return found

    def _without_experiment(self) -> list[str]:
        """The golden files that belong to no experiment, in words, where a whole folder was collected."""
        from runner.config.sources import shown

        found: dict[Path, str] = {}
        for folder in {file.folder for file in self.files.values()}:
            if not {path.resolve() for path in experiments(folder) if is_there(path)} <= self.seen:
                continue
            goldens = self.golden_file(folder, "").parent
            # Config folders that stand side by side pin in one folder.
            homes = {*(home / "experiment" for home in self.folders), *folder.parent.glob("*/experiment")}
            for path in goldens.rglob("*.json"):
                name = path.relative_to(goldens).with_suffix("")
                if not any((home / f"{name}.yaml").is_file() for home in homes):
                    found[path] = f"unused: {shown(path)}; there is no experiment {name.as_posix()}"
        return [text for _, text in sorted(found.items())]


def _config_folder(path: Path) -> Path:
    """The config folder that `--experiments` names, by itself or by the folder `experiment` in it."""
    if (path / "experiment").is_dir():
        return path
    if path.name == "experiment" and path.is_dir():
        return path.parent
    what = "has no folder 'experiment'" if path.is_dir() else "is not a folder"
    raise pytest.UsageError(f"--experiments: {path} {what}; it takes a folder that holds experiment/NAME.yaml")


_OURS = re.compile(r"^# *@package _global_$.*^(arrays|graph|per_device):", re.MULTILINE | re.DOTALL)
"""What an experiment looks like, among all the YAML files that may lie in a folder called `experiment`."""


def _by_argument(path: Path) -> list[Path]:
    """The config folder to which an argument of the command line leads, if it leads to experiments."""
    folders = [folder for folder in (path, *path.parents) if folder.name == "experiment" and folder.is_dir()]
    if not folders or not (path.is_dir() or path.suffix == ".yaml"):
        return []
    files = [path] if path.is_file() else path.rglob("*.yaml")
    ours = any(_OURS.search(file.read_text(encoding="utf-8", errors="replace")) for file in files if is_there(file))
    return [folders[0].parent] if ours else []
