"""The bytes that a device sends under `derived`, against the best known program by hand for each graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.derived_bytes import MORE, sent_by
from runner.checks.kinds import derivation
from runner.experiment.program import Program
from runner.worker.types import infer
from tests import harness
from tests.command import ROOT

GRAPHS: dict[str, dict[str, Any]] = harness.loaded((ROOT / "tests" / "derived_bytes.yaml").read_text("utf-8"))

SLACK = 1.05


@pytest.mark.in_turn
@pytest.mark.parametrize("name", GRAPHS)
def test_a_device_sends_no_more_than_by_hand(name: str, tmp_path: Path) -> None:
    graph = dict(GRAPHS[name])
    best = eval(str(graph.pop("best")), {})
    experiment = replace(harness.experiment(graph), programs=(Program.DERIVED,))
    with harness.configured(experiment):
        types = infer(experiment)
        assert types.derived is not None, types.unsupported
        sent, collectives = sent_by(experiment, Program.DERIVED, types, tmp_path)
    context = harness.consulted(experiment, tmp_path)
    verdict = derivation.check(context, types.derived, types.floats[Program.DERIVED])
    assert verdict.status == "passed", verdict.reason
    assert sent <= best * SLACK, collectives


def test_no_shipped_program_sends_less_as_compiled_except_those_that_are_explained() -> None:
    """Of the programs with the same layouts of outputs; `auto` is no counterpart where it ignores constraints."""
    less: set[str] = set()
    compared = 0
    for path in sorted((ROOT / "tests" / "goldens").glob("*.json")):
        experiment = yaml.safe_load((ROOT / "conf" / "experiment" / f"{path.stem}.yaml").read_text("utf-8"))
        for targets in json.loads(path.read_text("utf-8")).values():
            for programs in (programs for programs in targets.values() if "derived" in programs):
                sent = {name: compiled_bytes(program) for name, program in programs.items()}
                names = ["constraint", "shard_map", *([] if experiment.get("constraints") else ["auto"])]
                others = [
                    other
                    for name in names
                    if (other := sent.get(name)) is not None
                    and laid_out(programs[name]) == laid_out(programs["derived"])
                ]
                mine = sent["derived"]
                assert mine is not None, path.stem
                compared += bool(others)
                less |= {path.stem for other in others if other < mine}
    assert compared > 150
    assert less == {"expert_parallel_moe", "vocab_parallel_cross_entropy"} <= MORE.keys()


def compiled_bytes(program: dict[str, Any]) -> int | None:
    """Return what a device sends at most, by a golden; None if that is unknown for a collective."""
    total = 0
    for each in program["collectives"]:
        if each["bytes_sent"] is None:
            return None
        most = each["count"] if isinstance(each["count"], int) else each["count"]["max"]
        total += each["bytes_sent"] * most * each.get("times", 1)
    return total


def laid_out(program: dict[str, Any]) -> dict[str, Any]:
    return {name: output["spec"] for name, output in program["outputs"].items()}
