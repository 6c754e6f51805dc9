"""The pytest fixture `sharded` checks a function, and compares its record with a golden on request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from runner.base.lazy import dataclass

if TYPE_CHECKING:
    from runner.app.api import Record
    from runner.app.explaining import Explained
    from runner.app.testing.session import Session
    from runner.link.scratch import Folder


_PLAIN = re.compile(r"[A-Za-z0-9_.]+(?:\[[A-Za-z0-9_.,=+-]+\])?")
"""A test's name by which its golden is called as it is."""

_LONGEST, _DIGITS = 100, 10
"""The most characters of a test's name in that of its golden, and the digits of the hash that then marks it."""


@dataclass
class Sharded:
    """The fixture's value: `sharded(function, operands, mesh=…, in_specs=…)` takes the arguments of `runner.check`.

    A failed check fails the test with the report. With `golden=True`, the collectives, bytes and layouts must equal
    those in `goldens/MODULE/TEST.json` (those of a second such check in a test in `TEST.2.json`); where there is no
    such file, it is written and the test fails once.
    """

    _request: pytest.FixtureRequest
    _session: Session
    _folders: list[Folder] = field(default_factory=list["Folder"])
    _held: int = 0
    """How many checks of the test were compared with goldens."""

    def __call__(
        self, function: Callable[..., Any], operands: Sequence[Any], *, golden: bool = False, **arguments: Any
    ) -> Record:
        from runner.app import api
        from runner.link import scratch

        own = scratch.Folder(self._node.name)
        self._folders.append(own)
        with self._session.turn:
            record = api.checked(function, operands, own.path / "run", self._session.workers(), **arguments)
        if record.status != "passed":
            pytest.fail(str(record), pytrace=False)
        if golden:
            self._hold(record)
        return record

    def explain(self, step: Any, *arguments: Any, golden: bool = True, **options: Any) -> Explained:
        """Explain a step as `runner.explain` does with these arguments, and hold it to a golden.

        The golden is the saved report `goldens/MODULE/TEST.SERIES.PLATFORM.json`;
        where there is none, it is written and the test fails once. An expectation that is not met fails the test.
        """
        from runner.app import explaining

        try:
            report = explaining.explain(step, *arguments, **options)
        except AssertionError as error:
            pytest.fail(str(error), pytrace=False)
        if golden:
            self._hold_to_report(report)
        return report

    def _hold_to_report(self, report: Explained) -> None:
        """Compare an explanation with its golden; fail the test where they differ."""
        from runner.app import explaining
        from runner.compiled.explanation.modules import UnreadableModule
        from runner.reports.record import golden as goldens

        self._held += 1
        series = goldens.series(report.versions["jax"]).replace(" ", "-") if "jax" in report.versions else "any"
        file = self._file().with_suffix(f".{series}.{report.platform or 'any'}.json")
        try:
            before = explaining.explain(file) if file.is_file() else None
        except UnreadableModule as error:
            pytest.fail(str(error), pytrace=False)
        changes = None if before is None else explaining.compare(before, report)

        def write() -> None:
            file.parent.mkdir(parents=True, exist_ok=True)
            report.save(file)

        self._compare("the step", "has", file, changes, write)

    def _compare(
        self, what: str, pins: str, file: Path, changes: list[str] | None, write: Callable[[], object]
    ) -> None:
        """Fail the test if there are `changes` against what a golden pins, or, with None, if there is no golden yet.

        The golden is then written; that of changes only where the session updates goldens.
        """
        from runner.base.words import of_system, shown

        update = self._request.config.getoption("update_golden")
        if changes is None or (changes and update):
            try:
                write()
            except OSError as error:
                pytest.fail(f"the golden cannot be written: {of_system(error, file)}", pytrace=False)
        if changes is None and not update:
            message = f"there was no golden of {what}, so it was written: look at {shown(file)} and commit it"
            pytest.fail(message, pytrace=False)
        if changes and not update:
            again = f"pytest {self._node.nodeid} --update-golden"
            lines = [f"{what} is not what {shown(file)} {pins}:", *(f"  {change}" for change in changes)]
            pytest.fail("\n".join([*lines, f"if that is intended: {again}"]), pytrace=False)

    @property
    def _node(self) -> pytest.Item:
        return cast("pytest.Item", cast("Any", self._request).node)

    def _hold(self, record: Record) -> None:
        """Compare each program of a record with its golden; fail the test where they differ."""
        from runner.reports.record import differences
        from runner.reports.record import golden as goldens
        from runner.reports.record.readable import lines_of, names_of

        self._held += 1
        file = self._file()
        assert record.environment.jax is not None
        version, names = goldens.series(record.environment.jax), names_of(record)
        operands = {record.paths.get(name, name): array.spec for name, array in record.arrays.items() if array.spec}
        for name, program in record.compiled.items():
            place = (version, "cpu", name)
            try:
                before = goldens.entry(goldens.read(file), place)
            except goldens.InvalidGolden as error:
                pytest.fail(str(error), pytrace=False)
            now = goldens.pinned(program, names=names.get(lines_of(name, names)), operands=operands)
            changes = None if before is None else differences.of_program(name, before, now)
            self._compare(name, "pins", file, changes, partial(goldens.pin, file, place, now))

    def _file(self) -> Path:
        """The golden of this test's latest check, which no other test and no other check has."""
        test = self._node.nodeid.partition("::")[2].replace("::", ".")
        if not _PLAIN.fullmatch(test) or len(test) > _LONGEST:
            marked = hashlib.sha256(self._node.nodeid.partition("::")[2].encode("utf-8", "backslashreplace"))
            test = f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', test)[:_LONGEST].strip('_')}-{marked.hexdigest()[:_DIGITS]}"
        name = test if self._held == 1 else f"{test}.{self._held}"
        path, root = self._node.path, self._request.config.rootpath
        chosen = self._request.config.getini("shardproof_goldens")
        if not chosen:
            return path.parent / "goldens" / path.stem / f"{name}.json"
        inside = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        return root / chosen / inside.with_suffix("") / f"{name}.json"

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
