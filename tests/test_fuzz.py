"""The fuzzer: cases are determined by their numbers, failures are found and shrunk to the essential lines."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import derived
from benchmarks.fuzz import cases
from benchmarks.fuzz.child import answer
from benchmarks.fuzz.search import Child, Search, finding
from benchmarks.fuzz.shrink import shrink
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.graph.language import operations
from runner.programs.derivation.reductions import reduced
from runner.programs.derivation.registry import Way
from runner.programs.derivation.ruling import WAYS
from runner.programs.writers import WRITERS
from tests.samples import SAMPLES


class Here(Child):
    """A child that is this process, where a bug can be planted."""

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        verdict = answer(request, lambda event, **more: fields.update(more))
        return fields | verdict


FOUR_LINES = {
    "name": "planted",
    "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
    "arrays": {
        "A": {"shape": [8, 4], "dtype": "float32", "init": "normal", "spec": ["x", "y"]},
        "B": {"shape": [4, 8], "dtype": "float32", "init": "normal", "spec": ["y", None]},
    },
    "graph": {"m": "A @ B", "squashed": "tanh(m * 2)", "total": "sum(squashed, axis=0)", "other": "sort(A)"},
    "constraints": {"m": ["x", None]},
    "outputs": {"total": ["y"], "other": [None, "x"]},
}


def searched(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the log's entries for the four lines, and the shrunk experiment."""
    child = Here()
    search = Search(folder, child=child)
    verdict = child.ask({"config": FOUR_LINES}, 60) | {"config": cases.complete(FOUR_LINES), "operations": []}
    search.take(0, verdict, 0.0)
    smallest = yaml.safe_load((folder / "experiment" / "finding_0.yaml").read_text(encoding="utf-8"))
    return search.records()[0], smallest


@pytest.mark.in_turn
def test_a_case_is_a_function_of_its_seed_and_number() -> None:
    assert [cases.case(3, i) for i in range(4)] == [cases.case(3, i) for i in range(4)]
    assert cases.case(3, 0) != cases.case(4, 0)


@pytest.mark.in_turn
def test_cases_are_experiments_of_all_kinds() -> None:
    drawn = [cases.case(0, number) for number in range(50)]
    experiments = [read(config) for config, _ in drawn]
    assert len({operation for _, made in drawn for operation in made} & SAMPLES.keys()) > 60
    assert {len(experiment.mesh.axes) for experiment in experiments} == {1, 2, 3}
    assert any(experiment.per_device for experiment in experiments)
    assert any(experiment.constraints for experiment in experiments)
    assert any(experiment.grad for experiment in experiments)
    assert len({array.dtype for experiment in experiments for array in experiment.arrays}) > 6


@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(2))
def test_a_case_runs_in_all_its_programs(number: int) -> None:
    verdict = answer({"seed": 12, "number": number}, lambda *_, **__: None)
    assert verdict["status"] in ("passed", "weak"), verdict["found"]
    assert {"auto", "constraint"} <= verdict["ran"].keys()


@pytest.mark.in_turn
def test_a_bug_in_an_operation_is_found_and_shrunk_to_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(operations.OPERATIONS["tanh"], counterpart=lambda x: x / (1 + abs(x)))
    monkeypatch.setitem(operations.OPERATIONS, "tanh", row)
    record, smallest = searched(tmp_path)
    assert (record["kind"], record["programs"]) == ("value", ["auto", "constraint", "explicit", "derived"])
    assert not record["compiler"]
    (line,) = smallest["graph"].values()
    assert line.startswith("tanh(")
    assert "constraints" not in smallest


@pytest.mark.in_turn
def test_a_bug_in_a_writer_is_found_and_shrunk_to_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = WRITERS[Program.CONSTRAINT]
    monkeypatch.setitem(WRITERS, Program.CONSTRAINT, lambda *given: write(*given).replace("jnp.sum(", "jnp.max("))
    record, smallest = searched(tmp_path)
    assert (record["kind"], record["programs"], record["compiler"]) == ("value", ["constraint"], True)
    (line,) = smallest["graph"].values()
    assert line.startswith("sum(")
    alone = (tmp_path / "finding_0.py").read_text(encoding="utf-8")
    assert "jnp.max(" in alone
    assert "WANTED = {" in alone


@pytest.mark.in_turn
def test_a_bug_in_a_check_is_distinguished_from_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.checks.kinds.layout.check", lambda *_: 1 / 0)
    verdict = answer({"config": FOUR_LINES}, lambda *_, **__: None)
    bug = finding(verdict)
    assert bug is not None
    assert bug.kind == "bug"
    assert "ZeroDivisionError" in bug.mark


ONCE_WRONG = {
    "a segment reduction of floats": "segment_prod(F, I[:, 0], num_segments=4)",
    "a truth value that hangs on rounding": "gelu(flip(F)) <= gelu(flip(F))",
    "arrays of different shapes": "array_equal(F * 1.1, F[:2] * 1.1)",
    "what is beyond the dtype": "cosh(mean(I) * 100 * ones((16,)) + 0.1 * F[0, 0]) * (arange(16) < 1)",
    "attention of matrices": "dot_product_attention(F, F, F)",
    "a dimension of size 1 that an ellipsis broadcasts": "einsum('...i,...i->...', F[:1], F)",
    "one that a label sums": "einsum('bi,bj->ij', F[:1], F)",
    "eigenvectors of what is not finite": "eigh(F[:, :4] / (F[0, 0] - F[0, 0]))[1]",
    "singular values of which some are not": "svd(stack([F, F / (F[0, 0] - F[0, 0])]))[1]",
    "frequencies of no samples": "F[:1, :1] * rfftfreq(0, 0.5) + sum(fftfreq(0))",
    "rows that there are not": "lu_pivots_to_permutation(astype(abs(F[0, :4]) * 9, 'int32'), 8)",
    "the next float of two dtypes": "nextafter(astype(F, 'bfloat16'), F) - F",
    "complex numbers that SciPy does not take": "expit(F + 2j) + logit(F + 2j)",
}
"""Lines that once crashed the run, or were judged wrong, by a description."""


@pytest.mark.in_turn
@pytest.mark.parametrize("description", ONCE_WRONG)
def test_earlier_findings_are_right_now(description: str) -> None:
    arrays = {
        "F": {"shape": [4, 8], "dtype": "float32", "init": "normal", "spec": ["x", "y"]},
        "I": {"shape": [4, 8], "dtype": "int32", "init": "integers(0, 4)", "spec": ["x"]},
    }
    given = {
        **FOUR_LINES,
        "constraints": {},
        "arrays": arrays,
        "graph": {"out": ONCE_WRONG[description]},
        "outputs": {"out": []},
    }
    assert finding(answer({"config": given}, lambda *_, **__: None)) is None


def test_shrinking_leaves_what_the_failure_needs() -> None:
    smallest = shrink(FOUR_LINES, {}, lambda config: {} if "sort(" in str(config["graph"]) else None)
    assert smallest["graph"] == {"other": "sort(A)"}
    assert smallest["mesh"] == {"axes": ["y"], "shape": [2]} or smallest["mesh"] == {"axes": ["x"], "shape": [2]}
    assert smallest["arrays"] == {"A": {"shape": [1, 1], "dtype": "float32", "init": "ones", "spec": []}}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("program", "kind"),
    [("import os; input(); os.abort()", "crash"), ("import time; input(); time.sleep(60)", "hang")],
    ids=["crash", "hang"],
)
def test_the_end_of_the_child_is_a_finding(program: str, kind: str) -> None:
    child = Child([sys.executable, "-c", program])
    end = finding(child.ask({}, 3.0))
    child.close()
    assert end is not None
    assert end.kind == kind


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked: list[int] = []

    class Passing(Child):
        def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
            asked.append(request["number"])
            return {"status": "passed", "found": [], "operations": ["tanh"]}

    for seconds in (1e-9, 1e-9, 1e-9):
        Search(tmp_path, child=Passing()).run(seconds)
    assert asked == [0, 1, 2]
    assert Search(tmp_path, child=Passing()).summary().startswith("3 cases")


def test_an_assertion_of_jax_is_a_refusal_with_a_place() -> None:
    line = "conv_transpose(A, reshape(B, (2, 4, 4)), (2,), 'SAME')"
    given = {**FOUR_LINES, "constraints": {}, "graph": {"other": line}, "outputs": {"other": []}}
    verdict = answer({"config": given}, lambda *_, **__: None)
    assert verdict["status"] == "invalid"
    assert "graph.other" in verdict["error"]


def test_an_unsupported_feature_of_a_backend_is_no_finding() -> None:
    given = {**FOUR_LINES, "graph": {"other": "eigvalsh(astype(A[:4], 'bfloat16'))"}, "outputs": {"other": []}}
    verdict = answer({"config": given}, lambda *_, **__: None)
    assert {kind for kind, _, _ in verdict["found"]} <= {"refused"}
    assert finding(verdict) is None


def test_a_graph_on_which_shardys_passes_fail_is_derived_without_its_plan() -> None:
    # JAX 0.12: the pass that writes collectives makes a permute between shards of different sizes.
    given = {
        "name": "planned",
        "mesh": {"axes": ["x", "y", "z"], "shape": [3, 2, 4]},
        "arrays": {
            "A": {"shape": [12, 24], "dtype": "float32", "init": "normal", "spec": []},
            "B": {"shape": [12, 24], "dtype": "float32", "init": "normal", "spec": [None, "z"]},
        },
        "graph": {"n": "fft(A)", "out": "dstack([B, n])"},
        "constraints": {"n": [["z", "x"]]},
        "outputs": {"out": [None, "y"]},
    }
    verdict = derived.judged(cases.complete(given))
    assert (verdict["status"], verdict["why"]) == ("right", None)


@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(6))
def test_a_random_graph_is_derived_and_right(number: int) -> None:
    config = derived.drawn(2, number)
    assert 3 <= len(config["graph"]) <= 8
    verdict = derived.judged(config)
    assert (verdict["status"], verdict["why"]) == ("right", None)
    assert verdict["sent"] >= 0


@pytest.mark.in_turn
def test_a_graph_that_is_derived_wrongly_is_found_and_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "sum", (Way(partial(reduced, kind="max")),))
    monkeypatch.setattr(derived, "drawn", lambda *_: cases.complete(FOUR_LINES))
    folder = derived.Folder(tmp_path, 0)
    folder.run(range(1))
    (record,) = folder.records()
    assert record["status"] == "wrong"
    smallest = yaml.safe_load((tmp_path / "experiment" / "wrong_0.yaml").read_text(encoding="utf-8"))
    (line,) = smallest["graph"].values()
    assert line.startswith("sum(")
    monkeypatch.setattr(derived, "drawn", lambda *_: pytest.fail("it has been judged"))
    folder.run(range(1))


def test_a_program_that_ignores_constraints_is_counted_on_its_own(tmp_path: Path) -> None:
    case = {"status": "passed", "seconds": 1.0, "operations": ["add"], "ran": {}, "refused": [], "weak": []}
    sent = {"derived": 8, "constraint": 8, "auto": 4}
    records = [
        {**case, "case": 0, "sent": sent, "ignoring": ["auto"], "not_supported": {}},
        {**case, "case": 1, "sent": sent, "ignoring": [], "not_supported": {}},
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    summary = Search(tmp_path, 0).summary()
    assert "sends in 1 of 2 (50.0 %); a program that ignores constraints sends less in 1 of 1" in summary
    assert "case 1: 8 B, 4 B in auto" in summary
