"""The pytest fixture `sharded`: a function in; the record of its checks, compared with a golden on request, out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from runner.api import Explained, Record
    from runner.link.scratch import Folder
    from runner.testing.session import Session


@dataclass
class Sharded:
    """The fixture's value: `sharded(function, operands, mesh=…, in_specs=…)` takes the arguments of `runner.check`.

    A failed check fails the test with the report. With `golden=True`, the collectives, bytes and layouts must equal
    those in `goldens/MODULE/TEST.json`; where there is no such file, it is written and the test fails once.
    """

    _request: pytest.FixtureRequest
    _session: Session
    _folders: list[Folder] = field(default_factory=list["Folder"])

    def __call__(
        self, function: Callable[..., Any], operands: Sequence[Any], *, golden: bool = False, **arguments: Any
    ) -> Record:
        from runner import api
        from runner.link import scratch

        own = scratch.Folder(self._node.name)
        self._folders.append(own)
        record = api.checked(function, operands, folder=own.path / "run", workers=self._session.workers(), **arguments)
        if record.status != "passed":
            pytest.fail(str(record), pytrace=False)
        if golden:
            self._hold(record)
        return record

    def explain(self, step: Any, *arguments: Any, golden: bool = True, **options: Any) -> Explained:
        """Explain a step as `runner.explain` does with these arguments, and hold it to a golden.

        The golden is the saved report `goldens/MODULE/TEST.step.json`, one for each series of JAX and each platform;
        where there is none, it is written and the test fails once. An expectation that is not met fails the test.
        """
        from runner import explaining

        try:
            report = explaining.explain(step, *arguments, **options)
        except AssertionError as error:
            pytest.fail(str(error), pytrace=False)
        if golden:
            self._hold_to_report(report)
        return report

    def _hold_to_report(self, report: Explained) -> None:
        """Compare an explanation with its golden; fail the test where they differ."""
        from runner import explaining
        from runner.config.sources import shown
        from runner.explanation.modules import UnreadableModule
        from runner.record import golden as goldens

        series = goldens.series(report.versions["jax"]).replace(" ", "-") if "jax" in report.versions else "any"
        file = self._file().with_suffix(f".{series}.{report.platform or 'any'}.json")
        update = self._request.config.getoption("update_golden")
        changes: list[str] = []
        try:
            before = explaining.explain(file) if file.is_file() else None
        except UnreadableModule as error:
            pytest.fail(str(error), pytrace=False)
        if before is not None:
            changes = explaining.compare(before, report)
        if before is None or (changes and update):
            file.parent.mkdir(parents=True, exist_ok=True)
            report.save(file)
        if before is None and not update:
            message = f"there was no golden of the step, so it was written: look at {shown(file)} and commit it"
            pytest.fail(message, pytrace=False)
        if changes and not update:
            again = f"pytest {self._node.nodeid} --update-golden"
            lines = [f"the step is not what {shown(file)} has:", *(f"  {change}" for change in changes)]
            pytest.fail("\n".join([*lines, f"if that is intended: {again}"]), pytrace=False)

    @property
    def _node(self) -> pytest.Item:
        return cast("pytest.Item", cast("Any", self._request).node)

    def _hold(self, record: Record) -> None:
        """Compare each program of a record with its golden; fail the test where they differ."""
        from runner.config.sources import shown
        from runner.record import differences
        from runner.record import golden as goldens
        from runner.record.readable import lines_of, names_of

        file, config = self._file(), self._request.config
        assert record.environment.jax is not None
        version, names = goldens.series(record.environment.jax), names_of(record)
        for name, program in record.compiled.items():
            place = (version, "cpu", name)
            try:
                before = goldens.entry(goldens.read(file), place)
            except goldens.InvalidGolden as error:
                pytest.fail(str(error), pytrace=False)
            now = goldens.pinned(program, names=names.get(lines_of(name, names)))
            changes = [] if before is None else differences.of_program(name, before, now)
            if before is None or (changes and config.getoption("update_golden")):
                goldens.pin(file, place, now)
            if before is None and not config.getoption("update_golden"):
                message = f"there was no golden of {name}, so it was written: look at {shown(file)} and commit it"
                pytest.fail(message, pytrace=False)
            if changes and not config.getoption("update_golden"):
                update = f"pytest {self._node.nodeid} --update-golden"
                lines = [f"{name} is not what {shown(file)} pins:", *(f"  {change}" for change in changes)]
                pytest.fail("\n".join([*lines, f"if that is intended: {update}"]), pytrace=False)

    def _file(self) -> Path:
        test = re.sub(r"[^\w.-]+", "_", self._node.name).strip("_")
        path = self._node.path
        chosen = self._request.config.getini("shardproof_goldens")
        folder = self._request.config.rootpath / chosen if chosen else path.parent / "goldens"
        return folder / path.stem / f"{test}.json"

    def close(self) -> None:
        """Remove the run folders."""
        for folder in self._folders:
            folder.remove()


@pytest.fixture
def sharded(request: pytest.FixtureRequest) -> Iterator[Sharded]:
    """Check a JAX function under a sharding, as `runner.check` does; a failed check fails the test."""
    hooks: Any = request.config.pluginmanager.get_plugin("shardproof-session")
    checked = Sharded(request, hooks.session)
    yield checked
    checked.close()
