"""The pytest plugin: collects experiments as tests from the folders that are named. Imports no JAX.

A folder is named by an argument (`pytest conf/experiment`) or by `--experiments my_conf`. Every experiment is run once
per target, by the first of its items; see `runner/app/testing/items.py`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from runner.app.testing.session import UPDATES, Session
from runner.experiment.config.folders import experiments, is_there


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options, and the setting for the folder of goldens."""
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
    """Register the hooks for this session."""
    config.pluginmanager.register(_Hooks(Session(config)), "shardproof-session")


class _Hooks:
    """Collects experiments, and reports goldens that were rewritten or that no item reads."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._rewritten: list[str] = []
        self._unused: list[str] = []

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a YAML file, if it lies in a folder that was named."""
        if file_path.suffix != ".yaml":
            return None
        path = file_path.resolve()
        folder = next((folder for folder in self.session.folders if path.is_relative_to(folder / "experiment")), None)
        if folder is None:
            return None
        from runner.app.testing.items import ExperimentFile, made

        return made(ExperimentFile, parent, path=file_path, folder=folder, state=self.session)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """List the goldens that no collected item reads."""
        self._unused = [*self._without_item(), *self._without_experiment()] if self.session.files else []
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["shardproof_unused"] = self._unused

    def pytest_sessionfinish(self) -> None:
        """Stop the workers, and remove the run folders of passed items."""
        self.session.close()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the names of rewritten goldens for the summary."""
        if report.when == "call":
            self._rewritten += [str(text) for name, text in report.user_properties if name == UPDATES]

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        """Print which goldens were rewritten, which no item reads, and why named experiments were not collected."""
        if exitstatus in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR):
            for line in self.session.misplaced():
                terminalreporter.write_line(line)
        if self._rewritten or self._unused:
            terminalreporter.section("goldens")
        for line in [*self._rewritten, *self._unused]:
            terminalreporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Read the collection's findings from an xdist worker; each of them collects everything, so one suffices."""
        self._unused = getattr(node, "workeroutput", {}).get("shardproof_unused", self._unused)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Send all items of an experiment to one xdist worker, so that the experiment is run once."""
        ours = any(self.session.reaches(folder / "experiment") for folder in self.session.folders)
        dist = config.getoption("dist")
        if dist not in ("load", "loadgroup", "loadscope") or not ours:
            return None
        # xdist's configuration has no types.
        scheduler: Any = importlib.import_module("xdist.scheduler")
        scheduling: Any = scheduler.LoadScopeScheduling if dist == "loadscope" else scheduler.LoadGroupScheduling

        class OneWorkerPerExperiment(scheduling):
            def _split_scope(self, nodeid: str) -> str:
                file = nodeid.split("::", 1)[0]
                return file if file.endswith(".yaml") else scheduling._split_scope(self, nodeid)

        return OneWorkerPerExperiment(config, log)

    def _without_item(self) -> list[str]:
        """The installed JAX's goldens for targets and programs that their experiments do not have, as messages."""
        from importlib.metadata import version

        from runner.base.words import shown
        from runner.reports.record import golden

        lines: list[str] = []
        current = golden.series(version("jax"))
        for path, file in sorted(self.session.files.items()):
            try:
                content = golden.read(path)
            except golden.InvalidGolden:
                # The items that read this file report it.
                continue
            lines += [
                f"unused: {shown(path)} ({current} on {target}) pins {program}, which {shown(file.path)} does not test"
                for target, programs in sorted(content.get(current, {}).items())
                for program in sorted(programs)
                if (target, program) not in file.pinned
            ]
        return lines

    def _without_experiment(self) -> list[str]:
        """The golden files without an experiment, as messages; only where a whole folder was collected.

        A folder that is not one of experiments has goldens of the fixture `sharded`: `goldens/MODULE/TEST.json`.
        """
        from runner.base.words import shown

        lines: dict[Path, str] = {}
        for folder in {file.folder for file in self.session.files.values()}:
            if not {path.resolve() for path in experiments(folder) if is_there(path)} <= self.session.collected:
                continue
            goldens = self.session.golden_file(folder, "").parent
            # Config folders side by side share one folder of goldens.
            homes = {*(home / "experiment" for home in self.session.folders), *folder.parent.glob("*/experiment")}
            for path in goldens.rglob("*.json"):
                name = path.relative_to(goldens).with_suffix("")
                of_experiments = any((home / name.parent).is_dir() for home in homes)
                if of_experiments and not any((home / f"{name}.yaml").is_file() for home in homes):
                    lines[path] = f"unused: {shown(path)}; there is no experiment {name.as_posix()}"
        return [text for _, text in sorted(lines.items())]
