"""An experiment as YAML text in; its programs written, run on simulated CPU devices and checked, in this process."""

import contextlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import yaml
from omegaconf import OmegaConf

from runner import data
from runner.checks import agreement, gradient, layout, replicas, value
from runner.checks.context import Context
from runner.experiment import Experiment, read
from runner.programs import WRITERS
from runner.programs.source import Types
from runner.reference import Gradients, consult, interpret
from runner.schema import ExperimentConfig
from runner.target import ProgramRun, program_run
from runner.worker.execute import execute
from runner.worker.gradient import unsharded
from runner.worker.types import infer


@dataclass
class Outcome:
    """What the programs of one experiment did: their sources, their runs and the verdicts of the checks."""

    experiment: Experiment
    types: Types
    sources: dict[str, str]
    runs: dict[str, ProgramRun]
    checks: dict[str, dict[str, dict[str, Any]]]

    def failures(self) -> list[str]:
        """Every check that failed, in words."""
        return [
            f"{program} {check}: {_why(verdict)}"
            for program, checks in self.checks.items()
            for check, verdict in checks.items()
            if verdict["status"] == "failed"
        ]

    def value(self, program: str, name: str) -> Any:
        """A whole output."""
        return self.runs[program].outputs[name].whole()


def _why(verdict: Mapping[str, Any]) -> str:
    if "outputs" not in verdict:
        return verdict["reason"]
    wrong = {
        name: {oracle: f"{a['wrong']}/{a['of']} by {a['max_abs_error']:g}" for oracle, a in output["against"].items()}
        for name, output in verdict["outputs"].items()
        if any(a["wrong"] for a in output["against"].values())
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
        context = Context(
            checked,
            arrays,
            {name: (typed.shape, typed.dtype) for name, typed in types.outputs.items()},
            {s: {n: (t.shape, t.dtype) for n, t in nodes.items()} for s, nodes in types.nodes.items()},
            interpret(checked, "graph", arrays) if checked.graph else None,
            interpret(checked, "per_device", arrays) if checked.per_device else None,
        )
        if checked.grad:
            context.gradients = _gradients(context)
        sources, runs = {}, {}
        for program in checked.programs:
            if program not in types.unsupported:
                sources[program] = WRITERS[program](checked, folder, types)
                runs[program] = _run(context, program, sources[program], folder)
    checks = {
        program: {
            "value": value.check(context, ran),
            "layout": layout.check(context, ran),
            "replicas": replicas.check(context, ran),
            "agreement": agreement.check(context, ran, [other for other in runs.values() if other is not ran]),
            **({"gradient": gradient.check(context, ran)} if checked.grad else {}),
        }
        for program, ran in runs.items()
    }
    return Outcome(checked, types, sources, runs, checks)


def _gradients(context: Context) -> Gradients:
    checked, arrays = context.experiment, context.arrays
    assert checked.grad is not None
    oracle, lost = unsharded(checked, arrays) if checked.graph else ([], [])
    by_jax, off = dict(zip(checked.grad.wrt, oracle, strict=False)), dict(zip(checked.grad.wrt, lost, strict=False))
    return consult(checked, arrays, {"graph": context.graph, "per_device": context.per_device}, by_jax, off)


def _run(context: Context, program: str, source: str, folder: Path) -> ProgramRun:
    module = load(source, folder / f"program_{program}.py")
    found = execute(context.experiment, program, module, folder, folder).found
    shapes = {name: shape for name, (shape, _) in context.outputs.items()}
    event = {"event": "finished", "program": program, **found}
    return program_run(event, shapes, lambda name, position: context.layout(name).ranges(position), folder)
