"""An experiment as YAML text in; the result of the tool's own flow, in this process and on its devices, out."""

from __future__ import annotations

import atexit
import contextlib
import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import pytest
import yaml
from omegaconf import OmegaConf

from runner.app.flow import run as flow
from runner.app.flow import verification
from runner.base.faults import InvalidExperiment
from runner.checks import oracles
from runner.checks.context import Context
from runner.experiment import data
from runner.experiment.config import direct, schema
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.schema import ExperimentConfig
from runner.experiment.config.sources import Layer, Sources
from runner.experiment.imported import imports
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.link import events
from runner.link.target import ProgramRun
from runner.link.workers import Workers
from runner.programs.types import InferredTypes
from runner.reports.record.model import Record
from runner.reports.record.verdicts import SectionsVerdict, ValueVerdict, Verdict
from runner.worker.functions import tracing
from runner.worker.gradient import unsharded
from runner.worker.types import infer
from tests.here import Here

Text: TypeAlias = str | Mapping[str, Any]
"""An experiment as YAML text or as its data."""


class Telling(Here):
    """A worker that keeps the types that it infers."""

    types: events.Types | None = None

    def emit(self, event: events.WorkerEvent) -> None:
        super().emit(event)
        if isinstance(event, events.Types):
            self.types = event


@dataclass
class Outcome:
    """The result of one experiment's programs: the record, the types, the sources, and the runs with every value whole.

    `sections` is the verdict on the two oracles, if there are two.
    """

    experiment: Experiment
    record: Record
    types: events.Types
    sources: dict[str, str]
    runs: dict[str, ProgramRun]

    @property
    def checks(self) -> dict[str, Any]:
        """The verdicts on each program."""
        return {name: program.checks for name, program in self.record.programs.items()}

    @property
    def sections(self) -> SectionsVerdict | None:
        held = self.record.checks.sections
        return held if isinstance(held, SectionsVerdict) else None

    def failures(self) -> list[str]:
        """Every check that failed, as text."""
        failed = [f"{check}: {_why(verdict)}" for check, verdict in self.record.checks.named() if _failed(verdict)]
        return failed + [
            f"{program} {check}: {_why(verdict)}"
            for program, checks in self.checks.items()
            for check, verdict in checks.named()
            if _failed(verdict)
        ]

    def value(self, program: str, name: str) -> Any:
        """Return a whole output."""
        return self.runs[program].outputs[name].whole()


def _failed(verdict: Verdict) -> bool:
    return verdict.status == "failed"


def _why(verdict: Verdict) -> str:
    if not isinstance(verdict, ValueVerdict):
        return verdict.reason or ""
    wrong = {
        name: output.reason or f"{output.wrong}/{output.of} by {output.max_abs_error:g}"
        for name, output in verdict.compared.items()
        if output.status == "failed"
    }
    return str(wrong)


def experiment(text: Text, **changes: Any) -> Experiment:
    """Return the experiment that a YAML text describes; its name and its mesh (2 by 2) may be left out."""
    return read(config(text, **changes))


def refusal(reading: Callable[[str], object], text: str, file: Path) -> str:
    """Return the message, with its place, with which `reading` refuses a file with that text."""
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidExperiment) as error:
        reading(text)
    return Sources((Layer(file),)).report(error.value.fault)


def loaded(text: str) -> Any:
    """Return the data of a YAML text; libyaml takes a tenth of the time of PyYAML's own parser."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def config(text: Text, **changes: Any) -> dict[str, Any]:
    """Return the resolved configuration of such an experiment."""
    given = {**(loaded(text) if isinstance(text, str) else text), **changes}
    config = {"name": "test", "mesh": {"axes": ["x", "y"], "shape": [2, 2]}} | given
    # OmegaConf takes 12 ms for this, and gives the same (`test_direct.py`).
    if (whole := direct.completed(config)) is not None:
        return copy.deepcopy(whole)
    plain = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(ExperimentConfig), config), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@contextlib.contextmanager
def configured(experiment: Experiment):
    """Configure JAX as a program's header does."""
    precision = None if experiment.precision == "default" else experiment.precision
    with jax.enable_x64(experiment.x64), jax.default_matmul_precision(precision):
        yield


def types(text: Text, **changes: Any) -> InferredTypes:
    """Return the types from JAX's abstract evaluation."""
    return inferred(experiment(text, **changes))


def inferred(checked: Experiment) -> InferredTypes:
    """Return the types from JAX's abstract evaluation of an experiment."""
    with configured(checked):
        return infer(checked)


def run(text: Text, folder: Path, **changes: Any) -> Outcome:
    """Run every program that an experiment supports; none may end early."""
    given = config(text, **changes)
    worker = Telling()
    record, findings = flow.examine(given, folder, Sources(), workers=Workers(worker))
    errors = [record.error, *(f"{name}: {program.error}" for name, program in record.programs.items() if program.error)]
    assert not any(errors), "\n".join(filter(None, errors))
    assert findings is not None
    assert worker.types is not None
    runs: dict[str, ProgramRun] = {run.program: run for run in findings.runs}
    sources = {name: (folder / f"program_{name}.py").read_text(encoding="utf-8") for name in runs}
    return Outcome(read(given), record, worker.types, sources, runs)


WORKERS = Workers()
"""One process other than this, for tests that plant mistakes in this one alone or profile: it imports JAX once."""
atexit.register(WORKERS.close)


_TREES = tempfile.TemporaryDirectory()
"""The folder for the leaves of trees."""
atexit.register(_TREES.cleanup)


def shipped(name: str, folder: Path) -> tuple[Experiment, Mapping[str, str]]:
    """Return an experiment by name, at its `verify_dims` if it has any, and the reason why its goldens do not apply."""
    config: Mapping[str, Any] = compose(name, folder).plain
    if imports(config):
        config = tracing.traced(schema.completed(config), conf_folder() / "experiment", Path(_TREES.name) / name)
    full_size = read(config)
    if not full_size.verify_dims:
        return full_size, {}
    smaller = verification.smaller(full_size)
    assert not isinstance(smaller, str), smaller
    return smaller, dict.fromkeys(smaller.values, "it runs at verify_dims")


def consulted(checked: Experiment, folder: Path, released: Mapping[str, str] | None = None) -> Context:
    """Return the oracles of an experiment; `load` looks in `folder`."""
    arrays = data.make(checked, folder)
    with configured(checked):
        types = infer(checked)
        gradients, draws = unsharded(checked, arrays, types.floats["graph"]) if checked.reads_gradients else ([], [])
    context = oracles.consult(checked, arrays, types.outputs, types.floats, released or {})
    if checked.reads_gradients:
        assert checked.grad is not None
        by_name = [dict(zip(checked.grad.wrt, each, strict=True)) for each in (gradients, *draws)]
        oracles.consult_gradients(context, by_name[0], by_name[1:])
    return context
