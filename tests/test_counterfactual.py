"""Removing what a reason names removes the collective: the share of reasons that are true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import counterfactual
from benchmarks.counterfactual import FALSE, TRUE, UNEXPLAINED, UNTRIED, Trial, trials, verdicts
from runner.compiled.evidence.model import Collective
from runner.experiment.program import Program
from tests.command import ROOT

NAMES = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))

LEAST = 0.97
"""The share of tested reasons that must be true."""

SAMPLE = ("case3_allreduce", "case4b_allgather_a", "tensor_parallel_mlp", "data_parallel")


def _tried(name: str, folder: Path) -> list[Trial]:
    return list(trials(name, folder))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", SAMPLE)
def test_a_collective_is_gone_without_the_keys_of_its_reason(name: str, tmp_path: Path) -> None:
    attempts = _tried(name, tmp_path)
    assert any(trial.verdict == TRUE for trial in attempts)
    assert [str(trial) for trial in attempts if trial.verdict not in (TRUE, UNTRIED)] == []


def _saying(monkeypatch: pytest.MonkeyPatch, more: str, *keys: str) -> None:
    """Make every reason name other keys."""
    tell = counterfactual.compiled_collectives

    def misled(*arguments: Any, **named: Any) -> Iterator[tuple[Program, Collective]]:
        for program, entry in tell(*arguments, **named):
            why = entry.why and replace(entry.why, keys=list(keys), text=entry.why.text + more)
            yield program, replace(entry, why=why)

    monkeypatch.setattr(counterfactual, "compiled_collectives", misled)


def test_a_reason_that_names_another_spec_is_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A true reason about A is attributed to B, which has no I: the check has to notice."""
    _saying(monkeypatch, "", "arrays.B.spec")
    attempts = [trial for trial in _tried("case4b_allgather_a", tmp_path) if "all of I" in str(trial)]
    assert attempts
    assert {(trial.verdict, trial.why) for trial in attempts} == {(FALSE, "arrays.B.spec has no I over x")}


@pytest.mark.in_turn
def test_a_key_through_another_dimension_must_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without A's axis the gather of A is gone: B's sharding of K plays no role."""
    _saying(monkeypatch, " and arrays.B.spec by way of K", "arrays.A.spec", "arrays.B.spec")
    attempts = [trial for trial in _tried("case4b_allgather_a", tmp_path) if "all of I" in str(trial)]
    assert attempts
    assert {(trial.verdict, trial.why) for trial in attempts} == {(FALSE, "it goes with the axes in arrays.B.spec too")}


@pytest.mark.whole
def test_the_reasons_of_all_experiments_are_true() -> None:
    results = list(verdicts(NAMES))
    counts = Counter(verdict for verdict, _ in results)
    false = [line for verdict, line in results if verdict == FALSE]
    share = counts[TRUE] / (counts[TRUE] + counts[FALSE])
    print(f"{share:.1%}: {dict(counts)}", *false, sep="\n")
    assert share >= LEAST, (counts, false)
    assert counts[UNEXPLAINED] <= 0.02 * counts.total(), counts
