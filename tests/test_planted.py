"""A bug planted in the oracle is caught by the programs, and attributed to the oracle."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from runner.app.flow import run
from runner.checks import blame
from runner.experiment.config.schema import ExperimentConfig
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.graph.language import operations
from runner.reports.record.verdicts import ValueVerdict
from tests.command import ROOT
from tests.evidence import compared
from tests.evidence import value as verdict
from tests.harness import WORKERS
from tests.test_checks import context

BLAMED = "JAX computes what graph says; only the SPMD interpreter differs: the interpreter is wrong"


def config(name: str, mesh: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the resolved configuration of a shipped experiment."""
    content = yaml.safe_load((ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    content.pop("defaults")
    merged = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), content, {"mesh": mesh}, changes)
    plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@pytest.mark.parametrize(
    ("operation", "wrong"),
    [
        ("psum", lambda mesh, x, axis_name, **_: [2 * value for value in x]),
        ("psum", lambda mesh, x, axis_name, **_: x),
        ("psum", lambda mesh, x, axis_name, **_: [sum(x)] * len(x)),
    ],
    ids=["doubles", "does nothing", "sums over every axis"],
)
def test_a_bug_in_the_interpreter_is_caught_and_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, wrong: Any
) -> None:
    row = dataclasses.replace(operations.OPERATIONS[operation], counterpart=wrong)
    monkeypatch.setitem(operations.OPERATIONS, operation, row)
    case3 = config("case3_allreduce", {"axes": ["x", "y"], "shape": [2, 2]})
    record: Any = run.run(case3, tmp_path, Sources(), workers=WORKERS)
    assert record.status == "failed"
    assert record.programs["auto"].status == "passed"
    for program in ("shard_map", "vmap"):
        check = record.programs[program].checks.value
        assert (check.status, check.diagnosis) == ("failed", [BLAMED])
    assert record.checks.sections.status == "failed"
    assert record.checks.sections.diagnosis == [BLAMED]


def test_a_bug_in_an_operation_of_both_oracles_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(operations.OPERATIONS["sigmoid"], counterpart=lambda x: x / (1 + abs(x)))
    monkeypatch.setitem(operations.OPERATIONS, "sigmoid", row)
    record: Any = run.run(config("layer", {"axes": ["x"], "shape": [8]}), tmp_path, Sources(), workers=WORKERS)
    assert {result.checks.value.status for result in record.programs.values()} == {"failed"}
    assert {result.checks.values.status for result in record.programs.values()} == {"passed"}
    assert record.checks.sections.status == "passed"
    assert record.programs["shard_map"].checks.value.diagnosis == [
        "all programs differ from both oracles, in float64 too, and so does the graph unsharded on one device: "
        "JAX is wrong in what they share, or the oracle is"
    ]


@pytest.mark.in_turn
def test_rounding_amplified_by_a_quotient_is_distinguished_from_a_mistake(tmp_path: Path) -> None:
    mesh = {"axes": ["i", "j"], "shape": [4, 2]}
    # (x - mean) / std of two nearly equal values: NumPy's own float32 loses 6e-5 of it.
    right: Any = run.run(
        config("distributed_normalize", mesh, program="shard_map"), tmp_path, Sources(), workers=WORKERS
    )
    assert right.programs["shard_map"].checks.value.status == "passed"
    line = {"out": "(x - mean) / std * (1 + 1e-7)"}
    wrong = config("distributed_normalize", mesh, program="shard_map", per_device=line)
    record: Any = run.run(wrong, tmp_path, Sources(), workers=WORKERS)
    assert record.programs["shard_map"].checks.value.status == "passed"
    assert record.checks.sections.status == "failed"


def verdicts(error: float, atol: float = 1e-6, **statuses: Any) -> dict[Program, ValueVerdict]:
    """Return verdicts on outputs of which C is off by `error` if it failed."""
    off = compared(wrong=1, max_abs_error=error, atol=atol, rtol=0.0)
    return {
        Program(program): verdict(outputs={"C": dataclasses.replace(off, status=status), "D": compared()})
        for program, status in statuses.items()
    }


@pytest.mark.parametrize(
    ("statuses", "agree", "wrong", "differ"),
    [
        (
            {"auto": "passed", "constraint": "failed", "explicit": "passed"},
            "auto, explicit and the oracle agree in C, constraint alone",
            "is wrong",
            "differs by little",
        ),
        (
            {"auto": "failed", "constraint": "failed", "explicit": "passed"},
            "explicit and the oracle agree in C, auto and constraint",
            "are wrong",
            "differ by little",
        ),
    ],
)
def test_a_program_that_alone_differs_is_named(statuses: dict[str, Any], agree: str, wrong: str, differ: str) -> None:
    given = context()
    far, near = f"{agree} {wrong}: the compiler", f"{agree} {differ}: its rounding is more than was measured, or"
    assert blame.blame(given, verdicts(1.0, **statuses), Program.CONSTRAINT, alike=True) == far
    assert blame.blame(given, verdicts(math.inf, **statuses), Program.CONSTRAINT, alike=True) == far
    sentence = blame.blame(given, verdicts(5e-6, **statuses), Program.CONSTRAINT, alike=True)
    assert sentence == f"{near} the compiler is wrong"


@pytest.mark.parametrize(
    ("error", "atol", "far"),
    # The root mean square of C is 839, and the square root of float32's eps 3.5e-4.
    [(9e-5, 1e-6, False), (1.1e-4, 1e-6, True), (1.0, 0.2, True), (1.0, 0.3, False), (0.2, 0.04, False)],
)
def test_an_error_beyond_any_order_of_operations_is_the_compilers(error: float, atol: float, far: bool) -> None:
    checks = verdicts(error, atol, auto="passed", constraint="failed")
    sentence = blame.blame(context(), checks, Program.CONSTRAINT, alike=True)
    assert sentence.endswith("wrong: the compiler") == far
