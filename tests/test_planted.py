"""A bug planted in the oracle is caught by the programs, and named as the oracle's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from runner.checks import blame
from runner.config.schema import ExperimentConfig
from runner.config.sources import Sources
from runner.language import operations
from runner.run import run
from tests.command import ROOT
from tests.test_checks import context

BLAMED = "JAX computes what graph says; only the SPMD interpreter differs: the interpreter is wrong"


def config(name: str, mesh: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The resolved configuration of one of the runner's own experiments."""
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
    row = dataclasses.replace(operations.OPERATIONS[operation], numpy=wrong)
    monkeypatch.setitem(operations.OPERATIONS, operation, row)
    case3 = config("case3_allreduce", {"axes": ["x", "y"], "shape": [2, 2]})
    found = run.run(case3, tmp_path, Sources)
    assert found["status"] == "failed"
    assert found["programs"]["auto"]["status"] == "passed"
    for program in ("shard_map", "vmap"):
        check = found["programs"][program]["checks"]["value"]
        assert (check["status"], check["diagnosis"]) == ("failed", [BLAMED])
    assert found["checks"]["sections"]["status"] == "failed"
    assert found["checks"]["sections"]["diagnosis"] == [BLAMED]


def test_a_bug_in_an_operation_of_both_oracles_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(operations.OPERATIONS["sigmoid"], numpy=lambda x: x / (1 + abs(x)))
    monkeypatch.setitem(operations.OPERATIONS, "sigmoid", row)
    found = run.run(config("layer", {"axes": ["x"], "shape": [8]}), tmp_path, Sources)
    assert {result["checks"]["value"]["status"] for result in found["programs"].values()} == {"failed"}
    assert {result["checks"]["values"]["status"] for result in found["programs"].values()} == {"passed"}
    assert found["checks"]["sections"]["status"] == "passed"
    assert found["programs"]["shard_map"]["checks"]["value"]["diagnosis"] == [
        "all programs differ from both oracles: JAX is wrong in what they share, or the oracle is"
    ]


def test_rounding_that_a_quotient_carries_far_is_told_from_a_mistake(tmp_path: Path) -> None:
    mesh = {"axes": ["i", "j"], "shape": [4, 2]}
    # (x - mean) / std of two nearly equal values: NumPy's own float32 loses 6e-5 of it.
    right = run.run(config("distributed_normalize", mesh, program="shard_map"), tmp_path, Sources)
    assert right["programs"]["shard_map"]["checks"]["value"]["status"] == "passed"
    line = {"out": "(x - mean) / std * (1 + 1e-7)"}
    found = run.run(config("distributed_normalize", mesh, program="shard_map", per_device=line), tmp_path, Sources)
    assert found["programs"]["shard_map"]["checks"]["value"]["status"] == "passed"
    assert found["checks"]["sections"]["status"] == "failed"


def test_a_program_that_stands_alone_is_named() -> None:
    verdicts = {
        program: {"outputs": {"C": {"status": status}, "D": {"status": "passed"}}}
        for program, status in {"auto": "passed", "constraint": "failed", "explicit": "passed"}.items()
    }
    given = context()
    sentence = "auto, explicit and the oracle agree in C, constraint alone is wrong: the compiler"
    assert blame.blame(given, verdicts, "constraint", alike=True) == sentence
    verdicts["auto"]["outputs"]["C"]["status"] = "failed"
    sentence = "explicit and the oracle agree in C, auto and constraint are wrong: the compiler"
    assert blame.blame(given, verdicts, "constraint", alike=True) == sentence
