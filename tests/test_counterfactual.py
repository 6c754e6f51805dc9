"""What reasons name is taken away, and the collectives go: the share of reasons that are true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.counterfactual import FALSE, TRUE, UNEXPLAINED, UNTRIED, Trial, trials, verdicts
from tests.command import ROOT

NAMES = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))

LEAST = 0.97
"""The share of the reasons that were tried which have to be true."""

SAMPLE = ("case3_allreduce", "case4b_allgather_a", "tensor_parallel_mlp", "data_parallel")


def _tried(name: str, folder: Path) -> list[Trial]:
    return list(trials(name, folder))


@pytest.mark.parametrize("name", SAMPLE)
def test_without_what_its_reason_names_a_collective_is_gone(name: str, tmp_path: Path) -> None:
    found = _tried(name, tmp_path)
    assert any(trial.verdict == TRUE for trial in found)
    assert [str(trial) for trial in found if trial.verdict not in (TRUE, UNTRIED)] == []


def test_a_reason_that_names_another_spec_is_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is true of A is told of B: the check has to notice."""
    monkeypatch.setattr("runner.experiment.model.Experiment.key_of_layout", lambda *_: "arrays.B.spec")
    found = _tried("case4b_allgather_a", tmp_path)
    assert any(trial.verdict == FALSE for trial in found)


@pytest.mark.whole
def test_the_reasons_of_all_experiments_are_true() -> None:
    found = list(verdicts(NAMES))
    counts = Counter(verdict for verdict, _ in found)
    false = [line for verdict, line in found if verdict == FALSE]
    share = counts[TRUE] / (counts[TRUE] + counts[FALSE])
    assert share >= LEAST, (counts, false)
    assert counts[UNEXPLAINED] <= 0.02 * counts.total(), counts
