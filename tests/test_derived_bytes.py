"""The bytes that a device sends under `derived`, against the best known program by hand for each graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.derived_bytes import sent_by
from runner.checks.kinds import derivation
from runner.experiment.program import Program
from runner.worker.types import infer
from tests import harness
from tests.command import ROOT

GRAPHS: dict[str, dict[str, Any]] = harness.loaded((ROOT / "tests" / "derived_bytes.yaml").read_text("utf-8"))

SLACK = 1.05


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
