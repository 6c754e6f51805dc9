"""An experiment as YAML text in; its programs written, run on simulated CPU devices and checked, in this process."""

import contextlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import yaml
from omegaconf import OmegaConf

from runner.checks import agreement, gradient, layout, oracles, replicas, sections, value
from runner.checks.context import Context
from runner.config.compose import compose
from runner.config.schema import ExperimentConfig
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.flow import verification
from runner.link.target import ProgramRun, program_run
from runner.programs import WRITERS
from runner.programs.types import Types
from runner.record.verdicts import Checks, SectionsVerdict, ValueVerdict, Verdict
from runner.worker.execute import execute
from runner.worker.gradient import unsharded
from runner.worker.types import infer


@dataclass
class Outcome:
    """What the programs of one experiment did: their sources, their runs and the verdicts of the checks.

    `sections` is the verdict on the two oracles, where there are two.
    """

    experiment: Experiment
    types: Types
    sources: dict[str, str]
    runs: dict[str, ProgramRun]
    checks: dict[str, Any]
    sections: SectionsVerdict | None = None

    def failures(self) -> list[str]:
        """Every check that failed, in words."""
        failed = [f"sections: {self.sections.reason}"] if self.sections and self.sections.reason else []
        return failed + [
            f"{program} {check}: {_why(verdict)}"
            for program, checks in self.checks.items()
            for check, verdict in checks.named()
            if verdict.status == "failed"
        ]

    def value(self, program: str, name: str) -> Any:
        """A whole output."""
        return self.runs[program].outputs[name].whole()


def _why(verdict: Verdict) -> str:
    if not isinstance(verdict, ValueVerdict):
        return verdict.reason or ""
    wrong = {
        name: output.reason or f"{output.wrong}/{output.of} by {output.max_abs_error:g}"
        for name, output in verdict.compared.items()
        if output.status == "failed"
    }
    return str(wrong)


def experiment(text: str, **changes: Any) -> Experiment:
    """The experiment that a YAML text describes; its name and its mesh (2 by 2) may be left out."""
    return read(config(text, **changes))


def config(text: str, **changes: Any) -> dict[str, Any]:
    """The resolved configuration of such an experiment."""
    given = yaml.safe_load(text) | changes
    config = {"name": "test", "mesh": {"axes": ["x", "y"], "shape": [2, 2]}} | given
    merged = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), config)
    plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@contextlib.contextmanager
def configured(experiment: Experiment):
    """JAX's configuration as a program's header sets it."""
    precision = None if experiment.precision == "default" else experiment.precision
    with jax.enable_x64(experiment.x64), jax.default_matmul_precision(precision):
        yield


def types(text: str, **changes: Any) -> Types:
    """What JAX's abstract evaluation finds."""
    checked = experiment(text, **changes)
    with configured(checked):
        return infer(checked)


def load(source: str, path: Path) -> Any:
    """Import a program. Its configuration is global and read once: `configured` and `conftest.py` stand for it."""
    path.write_text(re.sub(r"^jax\.config\.update\(.*\)$", "", source, flags=re.MULTILINE))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(text: str | Experiment, folder: Path, **changes: Any) -> Outcome:
    """Run every program that an experiment supports."""
    checked = experiment(text, **changes) if isinstance(text, str) else text
    arrays = data.make(checked, folder)
    with configured(checked):
        types = infer(checked)
        outputs = {name: (typed.shape, typed.dtype) for name, typed in types.outputs.items()}
        context = oracles.consult(checked, arrays, outputs, types.floats)
        if checked.grad:
            consult_gradients(context)
        sources, runs = {}, {}
        for program in checked.programs:
            if program not in types.unsupported:
                sources[program] = WRITERS[program](checked, folder, types)
                runs[program] = _run(context, program, sources[program], folder)
    both = context.graph is not None and context.per_device is not None
    compared = sections.check(context) if both else None
    alike = compared is None or compared.status == "passed"
    checks = {
        program: Checks(
            value=value.check(context, ran),
            layout=layout.check(context, ran),
            replicas=replicas.check(context, ran),
            agreement=agreement.check(context, ran, [r for r in runs.values() if r is not ran], alike=alike),
            gradient=gradient.check(context, ran) if checked.grad else None,
        )
        for program, ran in runs.items()
    }
    return Outcome(checked, types, sources, runs, checks, compared)


def shipped(name: str, folder: Path) -> tuple[Experiment, str | None]:
    """The experiment of that name, at `verify_dims` where it names these, and why its pins then do not bind it."""
    plain = compose(name, folder).plain
    found = read(plain)
    if not found.verify_dims:
        return found, None
    smaller = verification.smaller(plain, found)
    assert not isinstance(smaller, str), smaller
    return smaller[1], "it runs at verify_dims"


def consulted(checked: Experiment, folder: Path, not_pinned: str | None = None) -> Context:
    """The oracles of an experiment; `load` looks in `folder`."""
    with configured(checked):
        types = infer(checked)
    outputs = {name: (typed.shape, typed.dtype) for name, typed in types.outputs.items()}
    return oracles.consult(checked, data.make(checked, folder), outputs, types.floats, not_pinned)


def consult_gradients(context: Context) -> None:
    """Add the oracles of the gradients."""
    checked = context.experiment
    assert checked.grad is not None
    exact, draws = unsharded(checked, context.arrays, context.floats["graph"]) if checked.graph else ([], [])
    named = [dict(zip(checked.grad.wrt, each, strict=False)) for each in (exact, *draws)]
    oracles.consult_gradients(context, named[0], named[1:])


def _run(context: Context, program: Program, source: str, folder: Path) -> ProgramRun:
    module = load(source, folder / f"program_{program}.py")
    found = execute(context.experiment, program, module, folder, folder).found
    shapes = {name: shape for name, (shape, _) in context.outputs.items()}
    return program_run(program, found, shapes, lambda name, at: context.layout(name).ranges(at), folder)
