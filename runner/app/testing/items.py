"""Makes the pytest items of an experiment's file: per target one for the sections, one per program and check."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import pytest

from runner.app.flow import verification
from runner.app.testing.session import UPDATES, Collected, Run, Session
from runner.base.faults import InvalidExperiment
from runner.base.words import shown
from runner.checks import registry
from runner.experiment import data, expect, topology
from runner.experiment.config import files
from runner.experiment.config.compose import Configuration, InvalidConfiguration, compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.imported import outline
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read, tested
from runner.reports.record import differences, golden
from runner.reports.record.golden import Pinned, Place
from runner.reports.record.model import ProgramRecord, Record
from runner.reports.record.readable import lines_of, names_of
from runner.reports.record.verdicts import Verdict
from runner.reports.show.status import FAULTS

_GOLDEN = "golden"


Nodes: TypeAlias = Sequence[pytest.Item | pytest.Collector]
Answer = TypeVar("Answer")
Made = TypeVar("Made", bound="pytest.Item | pytest.Collector")


def made(kind: type[Made], parent: pytest.Collector, **arguments: Any) -> Made:
    """Create an item or a collector under its parent, typed: pytest's `from_parent` accepts any keyword."""
    return cast("Any", kind).from_parent(parent, **arguments)


class _Failure(Exception):
    """A failed check. Its message is shown without a traceback."""


class ExperimentFile(pytest.File):
    """The collector of one experiment; `folder` is its config folder."""

    def __init__(self, *, folder: Path, state: Session, **more: Any) -> None:
        super().__init__(**more)
        self.folder = folder
        self.state = state
        self.experiment = self.path.resolve().relative_to(folder / "experiment").with_suffix("").as_posix()
        self._collected = Collected(self.path, folder)
        self.composed: dict[str, Configuration] = {}
        """The configuration for each target."""
        self.missing: dict[str, str | None] = {}
        """Why this machine cannot compile for a target; None where it can."""
        self._small: dict[str, int] = {}

    @cached_property
    def golden(self) -> Path:
        """The golden file of the experiment."""
        return self.state.golden_file(self.folder, self.experiment)

    def dims(self, target: str) -> dict[str, int]:
        """The file's `verify_dims`, for targets that run the programs; else no dims."""
        return self._small if target == "cpu" else {}

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        self.state.collected.add(self.path.resolve())
        self._refuse_ambiguity()
        first = self._compose()
        if first is not None and self._asked(first, expect.refusal) is not None:
            yield from self._refused(first)
            return
        experiment = None if first is None else self._outlined(first)
        if first is None or experiment is None:
            return
        self.state.files[self.golden] = self._collected
        self._small = dict(experiment.verify_dims)
        for target in self.state.targets or experiment.tested:
            self.composed[target] = composed = self._for(target, first)
            experiment = self._outlined(composed)
            if experiment is None:
                return
            absent = experiment.target.topology
            self.missing[target] = topology.missing(absent) if absent else None
            parent = self._parent(target)
            inside: list[pytest.Item | pytest.Collector] = []
            if experiment.graph and experiment.per_device:
                inside.append(made(SectionsItem, parent, name="sections", file=self, target=target))
            inside += [
                made(
                    _Program,
                    parent,
                    name=str(name),
                    file=self,
                    target=target,
                    checks=(*(kind.name for kind in registry.applying(experiment, name)), _GOLDEN),
                )
                for name in experiment.programs
            ]
            self._collected.pinned.update((target, name) for name in experiment.programs)
            yield from _under(parent, inside)

    def _refused(self, first: Configuration) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield one item per target for an experiment that must be refused."""
        self.state.files[self.golden] = self._collected
        for target in self.state.targets or self._asked(first, tested) or ():
            self.composed[target] = self._for(target, first)
            # If the compiler is not installed, the refusal says so; other faults are only known where it is.
            self.missing[target] = None
            parent = self._parent(target)
            yield from _under(parent, [made(RefusalItem, parent, name="invalid", file=self, target=target)])

    def _parent(self, target: str) -> ExperimentFile | _Target:
        """The collector for a target's items: the file itself for simulated CPUs."""
        return self if target == "cpu" else made(_Target, self, name=target)

    def _refuse_ambiguity(self) -> None:
        own = conf_folder().resolve()
        if self.folder != own and (own / "experiment" / f"{self.experiment}.yaml").is_file():
            raise self.CollectError(
                f"{shown(self.path)}\n  shardproof has an experiment '{self.experiment}', which hides this one; "
                "give the file another name"
            )
        other = self.state.files.get(self.golden)
        if other is not None and other.path != self.path:
            raise self.CollectError(
                f"{shown(self.path)}\n  {shown(other.path)} has its goldens in the same file, {shown(self.golden)}; "
                "give one of the two another name"
            )

    def _compose(self, *overrides: str) -> Configuration | None:
        """Compose the configuration; None where the file is only a base of others. Raises `CollectError`."""
        try:
            composed = compose(self.experiment, self.folder, overrides)
            # A base usually has no name, since each experiment over it has one.
            return None if composed.sources.place(("name",)) is None and self._is_base() else composed
        except InvalidConfiguration as error:
            if self._is_base():
                return None
            raise self.CollectError(str(error)) from None

    def _asked(self, composed: Configuration, question: Callable[[Mapping[str, Any]], Answer]) -> Answer | None:
        """Read a configuration; None where it is invalid and the file is only a base of others.

        Raises `CollectError`.
        """
        try:
            return question(composed.plain)
        except InvalidExperiment as error:
            if self._is_base():
                return None
            raise self.CollectError(composed.sources.report(error.fault)) from None

    def _outlined(self, composed: Configuration) -> Experiment | None:
        """Read as much of the experiment as is possible without a worker, an invalid `init` too. As `_asked`."""

        def outlined(config: Mapping[str, Any]) -> Experiment:
            experiment = read(outline(config))
            data.folder(experiment, composed.sources)
            return experiment

        return self._asked(composed, outlined)

    def _for(self, target: str, first: Configuration) -> Configuration:
        """The configuration as it is run for a target."""
        overrides = verification.overrides(self.dims(target))
        # They may be expressions of the dims that they replace.
        overrides += ["~verify_dims"] if overrides else []
        if target != "cpu" or first.plain["target"]["platform"] != "cpu":
            overrides.append(f"target={target}")
        return (self._compose(*overrides) or first) if overrides else first

    def _is_base(self) -> bool:
        """Whether the defaults list of another experiment in the folder names this file."""
        mine, home = self.path.resolve(), self.folder / "experiment"
        others = [file.relative_to(home).with_suffix("").as_posix() for file in home.rglob("*.yaml")]
        return any(
            mine in {layer.file.resolve() for layer in files.layers([self.folder], {"experiment": name})}
            for name in others
            if name != self.experiment
        )


class _Target(pytest.Collector):
    """The collector of an experiment's items for a target other than simulated CPU devices."""

    inside: Nodes = ()

    def collect(self) -> Nodes:
        return self.inside


def _under(parent: ExperimentFile | _Target, inside: Nodes) -> Nodes:
    """What a file collects for a target: its items, or the collector that has them."""
    if not isinstance(parent, _Target):
        return inside
    parent.inside = inside
    return [parent]


class _Program(pytest.Collector):
    """The collector of one program's items."""

    def __init__(self, *, file: ExperimentFile, target: str, checks: Sequence[str], **more: Any) -> None:
        super().__init__(**more)
        self.file, self.target, self._checks = file, target, checks

    def collect(self) -> Iterator[pytest.Item]:
        for check in self._checks:
            kind = GoldenItem if check == _GOLDEN else CheckItem
            yield made(kind, self, name=check, program=self)


class _Check(pytest.Item):
    """An item that reads one check from the experiment's run."""

    def __init__(self, *, file: ExperimentFile, target: str, **more: Any) -> None:
        cast("Any", super()).__init__(**more)
        self.file, self.target = file, target

    def judge(self, verdict: Verdict | None, of: str) -> None:
        """Turn a verdict into pytest's outcome: pass, fail, skip or xfail. `of` is what the verdict is about."""
        if verdict is None:
            raise _Failure(f"the record has no check '{self.name}' of {of}")
        if verdict.status == "not_run":
            if error := self.ran.record.error:
                raise _Failure(f"{of}: {self.name} was not run, since the run ended: {error}")
            pytest.skip(verdict.reason or "it was not run")
        if verdict.status == "known":
            # An output that is right after all has the status failed: this is strict.
            pytest.xfail("; ".join([FAULTS["known"], *verdict.lines()]))
        if verdict.status != "passed":
            fault = FAULTS.get(verdict.status, verdict.status)
            raise _Failure("\n".join([f"{of}: {self.name} {fault}", *_indented(verdict.lines())]))

    @property
    def ran(self) -> Run:
        """The run that this item reads; the first item to ask runs it."""
        return self.file.state.run(self.file.path, self.target, self.file.composed[self.target])

    def record(self) -> Record:
        """The record of the run. Skips the test where this machine cannot compile for the target."""
        missing = self.file.missing[self.target]
        if missing:
            pytest.skip(missing)
        return self.ran.record

    def command(self) -> str:
        """The command that reproduces the run."""
        own = self.file.folder == conf_folder().resolve()
        where = [] if own else ["--config-dir", shown(self.file.folder)]
        overrides = self.file.composed[self.target].sources.overrides
        return shlex.join(["python", "-m", "runner", *where, *overrides, *self.chosen()])

    def chosen(self) -> list[str]:
        """The override of that command that selects this item's program."""
        return []

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message of a failure, without a traceback: the verdict, the run folder and how to reproduce it."""
        if not isinstance(excinfo.value, _Failure):
            return super().repr_failure(excinfo, style)
        self.ran.own.keep()
        return f"{excinfo.value}\nrun folder: {self.ran.folder}\nto run it: {self.command()}"

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, and the heading of a failure."""
        target = [] if self.target == "cpu" else [self.target]
        return self.path, None, " ".join([self.file.experiment, *target, *self.where_in_run(), self.name])

    def where_in_run(self) -> list[str]:
        """The part of the run that this item tests, for the heading of a failure."""
        return []


class RefusalItem(_Check):
    """Tests that an experiment whose `expect` says so is refused."""

    def runtest(self) -> None:
        record = self.record()
        self.judge(record.checks.get(self.name), self.file.experiment)


class SectionsItem(_Check):
    """Tests that `graph` and `per_device` agree, independently of any program."""

    def runtest(self) -> None:
        record = self.record()
        verdict = record.checks.sections
        if verdict is None and record.error:
            raise _Failure(record.error)
        self.judge(verdict, self.file.experiment)


class CheckItem(_Check):
    """Tests one check of one program."""

    def __init__(self, *, program: _Program, **more: Any) -> None:
        super().__init__(file=program.file, target=program.target, **more)
        self.program = program.name

    def runtest(self) -> None:
        result = self.result()
        sections = self.record().checks.sections
        if self.name == "value" and result.status == "failed" and self._is_as_written(sections, result):
            of = f"{self.program}: it computes what per_device says, but sections failed"
            raise _Failure("\n".join([of, *_indented(sections.lines() if sections else [])]))
        self.judge(result.checks.get(self.name), self.program)

    def _is_as_written(self, sections: Verdict | None, result: ProgramRecord) -> bool:
        """Whether the values are those of the program's section alone, since the two sections differ."""
        value = result.checks.value
        if sections is None or sections.status != "failed" or value is None or value.status != "passed":
            return False
        return Program(self.program).section == "per_device"

    def chosen(self) -> list[str]:
        # The agreement is with the other programs.
        return [] if self.name == "agreement" else [f"program={self.program}"]

    def where_in_run(self) -> list[str]:
        return [self.program]

    def result(self) -> ProgramRecord:
        """The program's entry in the record. Skips where JAX does not support it; raises where it did not run."""
        record = self.record()
        if self.program in record.not_supported:
            self.not_supported(record.not_supported[self.program])
        result = record.programs.get(self.program)
        if result is None:
            raise _Failure(record.error or f"the record has no program {self.program}")
        if result.error:
            raise _Failure(f"{self.program}: {result.error}")
        return result

    def not_supported(self, reason: str) -> None:
        """Skip an unsupported program. Raises where a golden shows that it was supported."""
        if self.pinned() is None:
            pytest.skip(reason)
        raise _Failure(
            f"JAX cannot express {self.program}: {reason}\n  but {self.where} pins it\n"
            f"if that is intended: {self.update()}"
        )

    @property
    def place(self) -> Place:
        """The keys under which the golden file has this program."""
        record = self.ran.record
        version = record.environment.jax
        if version is None:
            raise _Failure(record.error or "the worker did not report its version of JAX")
        return golden.series(version), self.target, self.program

    @property
    def where(self) -> str:
        """Those keys as text."""
        version, target, _ = self.place
        return f"{shown(self.file.golden)} ({version} on {target})"

    def pinned(self) -> Pinned | None:
        """The golden of this program; None where there is none."""
        try:
            return golden.entry(golden.read(self.file.golden), self.place)
        except golden.InvalidGolden as error:
            raise _Failure(str(error)) from None

    def update(self) -> str:
        """The command that updates this program's golden."""
        assert self.parent is not None
        return shlex.join(["pytest", f"{self.parent.nodeid}::{_GOLDEN}", "--update-golden"])


class GoldenItem(CheckItem):
    """Tests that a program's collectives, bytes and layouts equal its golden's."""

    def runtest(self) -> None:
        result = self.result()
        names = names_of(self.ran.record)
        now = golden.pinned(result, self.file.dims(self.target), names.get(lines_of(self.program, names)))
        before = self.pinned()
        changes = [] if before is None else differences.of_program(self.program, before, now)
        if before is not None and not changes:
            return
        update = self.config.getoption("update_golden")
        statuses = {name: verdict.status for name, verdict in result.checks.named()}
        failing = [f"{name} {FAULTS[status]}" for name, status in statuses.items() if status in ("failed", "weak")]
        if failing and (update or before is None):
            raise _Failure(f"{self.program} is not pinned in {self.where} while its {' and '.join(failing)}")
        if update:
            self.pin(now, changes or [f"{self.program} was not pinned before"])
        elif before is None:
            golden.pin(self.file.golden, self.place, now)
            raise _Failure(
                f"there was no golden of {self.program}, so it was written: look at {self.where} and commit it"
            )
        else:
            lines = _indented(changes)
            head, tail = (
                f"{self.program} is not what {self.where} pins:",
                f"if that is intended: {self.update()}",
            )
            raise _Failure("\n".join([head, *lines, tail]))

    def pin(self, now: Pinned | None, changes: Iterable[str]) -> None:
        """Rewrite the golden, and report it to the summary."""
        golden.pin(self.file.golden, self.place, now)
        self.user_properties.append((UPDATES, "\n".join([f"updated: {self.where}", *_indented(changes)])))

    def not_supported(self, reason: str) -> None:
        if self.config.getoption("update_golden") and self.pinned() is not None:
            self.pin(None, [f"{self.program} is not pinned any more: JAX cannot express it"])
        super().not_supported(reason)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {part}" for line in lines for part in line.splitlines()]
