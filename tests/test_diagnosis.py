"""The diagnosis of a wrong per-device program: each common mistake gets its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.app.flow import refused_edits
from runner.base.layout import Typed
from runner.checks import oracles
from runner.checks.context import Context
from runner.checks.diagnosis import search
from runner.checks.edits import changed_parts, missing
from runner.checks.edits.section import Edits
from runner.checks.kinds import sections
from runner.checks.reference import interpret
from runner.checks.reference.rerun import Rerun
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.graph.language.lines import expressions
from runner.graph.term import Term
from runner.link.workers import Workers
from tests.harness import experiment
from tests.here import Here

TEXT = """
arrays:
  A: {shape: [8, 8], spec: [null, x]}
  B: {shape: [8, 8], spec: [x, null]}
  R: {shape: [8, 8], spec: [x, null]}
  Q: {shape: [8, 8], spec: [null, [x, y]]}
  bias: {shape: [8], spec: []}
  Z: {shape: [8, 8], dtype: complex64, spec: [x, null]}
mesh: {axes: [x, y], shape: [4, 2]}
outputs: {C: []}
"""


def context(graph: str, per_device: dict[str, Any], text: str = TEXT, dtype: str = "float32", **keys: Any) -> Context:
    given = experiment(text, graph={"C": graph}, per_device=per_device, **keys)
    arrays = data.make(given, Path())
    shape = np.shape(interpret(given, "graph", arrays).values["C"][0])
    return oracles.consult(given, arrays, {"C": Typed(shape, dtype)}, {})


def agree(given: Context) -> bool:
    return sections.check(given).status == "passed"


RING = {
    "repeat": "axis_size('x') - 1",
    "carry": {"part": "R", "total": "R"},
    "body": {"part": "ppermute(part, 'x', shift=1)", "total": "total + part"},
}
RIGHT = {
    "A @ B": {"C": "psum(A @ B, 'x')"},
    "A @ B + bias": {"partial": "A @ B", "total": "psum(partial, 'x')", "C": "total + bias"},
    "sum(R, axis=0)": {"C": "psum(sum(R, axis=0), 'x')"},
    "mean(R, axis=0)": {"C": "pmean(mean(R, axis=0), 'x')"},
    "R @ R": {"R_full": "all_gather(R, 'x', tiled=True)", "C": "R_full @ R_full"},
    "R[0:2] + R[2:4] + R[4:6] + R[6:8]": {"ring": RING, "C": "ring.total"},
    "max(Q)": {"C": "pmax(max(Q), ('x', 'y'))"},
}


@pytest.mark.parametrize("graph", RIGHT)
def test_a_right_program_has_no_diagnosis(graph: str) -> None:
    given = context(graph, RIGHT[graph])
    assert agree(given)
    assert search.Trial(given).factors == {}


GATHERED = "all_gather(moved, 'x', tiled=True)"

MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a psum left out": (
        "A @ B", {"C": "A @ B"},
        "a psum over 'x' is left out: with per_device.C: psum(A @ B, 'x')",
    ),
    "a pmax left out of a softmax, where a psum would do": (
        "broadcast_to(softmax(R, axis=0)[:1], (2, 8))",
        {
            "most": "max(R, axis=0, keepdims=True)",
            "weights": "exp(R - most)",
            "total": "psum(sum(weights, axis=0, keepdims=True), 'x')",
            "first": "where(axis_index('x') == 0, (weights / total)[:1], 0)",
            "C": "broadcast_to(psum(first, 'x'), (2, 8))",
        },
        "a pmax over 'x' is left out: with per_device.most: pmax(max(R, axis=0, keepdims=True), 'x')",
    ),
    "a pmean left out": (
        "mean(R ** 2, axis=0)", {"C": "mean(R ** 2, axis=0)"},
        "a pmean over 'x' is left out: with per_device.C: pmean(mean(R ** 2, axis=0), 'x')",
    ),
    "a psum left out, by name": (
        "A @ B", {"partial": "A @ B", "C": "partial"},
        "a psum over 'x' is left out: with per_device.C: psum(partial, 'x')",
    ),
    "a psum left out inside an expression": (
        "tanh(A @ B)", {"C": "tanh(A @ B)"},
        "a psum over 'x' is left out: with per_device.C: tanh(psum(A @ B, 'x'))",
    ),
    "a psum of a nansum left out inside an expression": (
        "tanh(nansum(R, axis=0))", {"C": "tanh(nansum(R, axis=0))"},
        "a psum over 'x' is left out: with per_device.C: tanh(psum(nansum(R, axis=0), 'x'))",
    ),
    "a psum of a sum left out": (
        "R - sum(R, axis=0)", {"total": "sum(R, axis=0)", "C": "all_gather(R, 'x', tiled=True) - total"},
        "a psum over 'x' is left out: with per_device.total: psum(sum(R, axis=0), 'x')",
    ),
    "a psum over two axes left out": (
        "sum(Q, axis=1)", {"C": "sum(Q, axis=1)"},
        "a psum over 'x' and 'y' is left out: with per_device.C: psum(sum(Q, axis=1), ('x', 'y'))",
    ),
    "a pmax left out": (
        "max(R)", {"C": "max(R)"},
        "a pmax over 'x' is left out: with per_device.C: pmax(max(R), 'x')",
    ),
    "a bias before the psum": (
        "A @ B + bias", {"C": "psum(A @ B + bias, 'x')"},
        "per_device.C: bias is added before the psum over 'x', so that it counts 4 times; added after it,",
    ),
    "a bias before the psum, on the left, by name": (
        "bias + A @ B", {"partial": "bias + A @ B", "C": "psum(partial, 'x')"},
        "per_device.C: bias is added before the psum over 'x', so that it counts 4 times; added after it,",
    ),
    "the wrong axis": (
        "A @ B", {"C": "psum(A @ B, 'y')"},
        "per_device.C: psum(A @ B, 'y') runs over the wrong axis: over 'x' instead of 'y'",
    ),
    "the wrong axis, by keyword": (
        "A @ B", {"C": "psum(A @ B, axis_name='y')"},
        "per_device.C: psum(A @ B, axis_name='y') runs over the wrong axis: over 'x' instead of 'y'",
    ),
    "one axis of two": (
        "sum(Q, axis=1)", {"C": "psum(sum(Q, axis=1), 'x')"},
        "per_device.C: psum(sum(Q, axis=1), 'x') runs over the wrong axis: over 'x' and 'y' instead of 'x'",
    ),
    "one psum too many": (
        "A @ B", {"total": "psum(A @ B, 'x')", "C": "psum(total, 'y')"},
        "per_device.C: psum(total, 'y') is one psum too many: without it,",
    ),
    "a pmean for a psum": (
        "A @ B", {"C": "pmean(A @ B, 'x')"},
        "per_device.C: pmean(A @ B, 'x') is a pmean where a psum is meant: with psum",
    ),
    "a psum for a pmean": (
        "mean(R, axis=0)", {"C": "psum(mean(R, axis=0), 'x')"},
        "per_device.C: psum(mean(R, axis=0), 'x') is a psum where a pmean is meant: with pmean",
    ),
    "a shift the wrong way": (
        "concatenate([R[6:], R[:6]])", {"moved": "ppermute(R, 'x', shift=-1)", "C": GATHERED},
        "per_device.moved: ppermute(R, 'x', shift=-1) shifts the wrong way: with the opposite shift",
    ),
    "a shift by the wrong number": (
        "concatenate([R[4:], R[:4]])", {"moved": "ppermute(R, 'x', shift=1)", "C": GATHERED},
        "per_device.moved: ppermute(R, 'x', shift=1) shifts by the wrong number: with shift=2",
    ),
    "pairs the wrong way": (
        "concatenate([R[6:], R[:6]])",
        {"moved": "ppermute(R, 'x', perm=[[1, 0], [2, 1], [3, 2], [0, 3]])", "C": GATHERED},
        "sends the wrong way: with source and destination of every pair swapped",
    ),
    "a gather along the wrong dimension": (
        "A", {"C": "all_gather(A, 'x', axis=0, tiled=True)"},
        "per_device.C: all_gather(A, 'x', axis=0, tiled=True) works on the wrong dimension: with axis=1",
    ),
    "a gather without its dimension": (
        "A", {"C": "all_gather(A, 'x', tiled=True)"},
        "per_device.C: all_gather(A, 'x', tiled=True) works on the wrong dimension: with axis=1",
    ),
    "inside a loop's body": (
        "tanh(A @ B) @ B[:8] * 0 + tanh(A @ B)",
        {"r": {"repeat": 1, "carry": {"a": "zeros((8, 8))"}, "body": {"a": "tanh(A @ B)"}, "unroll": True}, "C": "r.a"},
        "a psum over 'x' is left out: with per_device.r.a: tanh(psum(A @ B, 'x'))",
    ),
}  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    graph, per_device, sentence = MISTAKES[mistake]
    given = context(graph, per_device)
    assert not agree(given)
    assert search.diagnose(given)[0].endswith(f"{sentence} it equals the graph")


@pytest.mark.parametrize(
    ("line", "factor"),
    [
        ("psum(A @ B, 'x') * 3", "3× the reference on every element of every device"),
        ("psum(A @ B, 'x') * 4", "4× the reference on every element of every device: summed once too often over x?"),
        (
            "psum(A @ B, 'x') / 2",
            "0.5× the reference on every element of every device: a mean over y where a sum is me",
        ),
        ("-psum(A @ B, 'x')", "-1× the reference on every element of every device"),
    ],
)
def test_a_constant_factor_is_reported(line: str, factor: str) -> None:
    assert search.diagnose(context("A @ B", {"C": line}))[-1].startswith(f"C is {factor}")


def test_a_value_with_scattered_errors_has_no_factor() -> None:
    assert search.diagnose(context("A @ B", {"C": "psum(A @ B, 'x') + sin(axis_index('x'))"})) == [
        "per_device.C: sin(axis_index('x')) in psum(A @ B, 'x') + sin(axis_index('x')) is one term too many: "
        "without it, it equals the graph"
    ]


def test_a_mistake_that_no_single_edit_mends_is_not_found() -> None:
    given = context("A @ B", {"half": "tanh(A) @ sin(B)", "C": "psum(half, 'y')"})
    assert search.diagnose(given) == [
        "no single edit of per_device was found that makes it equal the graph",
        "C begins to differ from the reference on devices 0-7",
    ]


@pytest.mark.parametrize("value", [".nan", ".inf", "0"])
def test_values_without_any_factor_raise_nothing(value: str) -> None:
    text = TEXT.replace("R: {shape: [8, 8]", f"R: {{shape: [8, 8], init: {value}")
    given = context("sum(R, axis=0)", {"C": "psum(sum(R, axis=0), 'x') * 2"}, text)
    assert search.Trial(given).factors == {}


def test_complex_values_are_diagnosed() -> None:
    messages = search.diagnose(context("sum(Z, axis=0)", {"C": "sum(Z, axis=0)"}, dtype="complex64"))
    assert messages[0].startswith("a psum over 'x' is left out")


def test_an_axis_of_size_1_is_not_accused() -> None:
    mesh = {"axes": ["x", "y"], "shape": [4, 1]}
    edits = Edits(context("A @ B", {"C": "psum(A, 'x') @ B"}, mesh=mesh).experiment, "per_device")
    meanings = [edit.mend for edit in (*changed_parts.changing(edits), *missing.inserting(edits))]
    assert [meaning for meaning in meanings if "'x'" in meaning]
    assert not [meaning for meaning in meanings if "'y'" in meaning]


def test_the_search_ends_in_time_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rerun, "changed", lambda *_: pytest.fail("an edit was tried"))
    given = context("A @ B", {"C": "psum(A @ B, 'x') + 1"})
    given.experiment = given.experiment.at(diagnose=0)
    assert search.diagnose(given) == [
        "no single edit of per_device was found within 0 s that makes it equal the graph",
        "C begins to differ from the reference on devices 0-7",
    ]


def test_a_diagnosis_leaves_the_experiment_unchanged() -> None:
    given = context("R[0:2]", {"r": RING, "C": "psum(r.total + 1, 'y')"})

    def terms() -> list[Term]:
        return [expression.term for _, expression in expressions(given.experiment.computed("per_device"))]

    before = terms()
    search.diagnose(given)
    assert terms() == before


# Proposed edits are valid.


LATER = {
    "graph": {"scale": "sum(R)", "C": "A @ B * scale"},
    "per_device": {"C": "psum(A @ B, 'x')", "scale": "psum(sum(R), 'x')", "D": "C"},
}


def consulted(graph: dict[str, Any], per_device: dict[str, Any], **keys: Any) -> Context:
    """Return the oracles of an experiment of one output `C`."""
    keys = {"graph": graph, "per_device": per_device, **keys}
    given = experiment(TEXT, **keys)
    arrays = data.make(given, Path())
    shape = np.shape(interpret(given, "graph", arrays).values["C"][0])
    return oracles.consult(given, arrays, {"C": Typed(shape, "float32")}, {})


@pytest.mark.in_turn
def test_later_names_are_not_proposed() -> None:
    given = consulted(**LATER)
    message = search.diagnose(given, lambda _: None)[0]
    assert "* scale it equals" not in message
    assert search.diagnose(given)[0] == message


def test_edits_that_the_reader_refuses_are_not_proposed() -> None:
    """`half` is a line of the graph alone; the missing scale can be written with the available lines."""
    given = consulted({"half": "sum(R)", "C": "A @ B * half"}, {"C": "psum(A @ B, 'x')"})
    message = search.diagnose(given, lambda _: None)[0]
    assert message == "no single edit of per_device was found that makes it equal the graph"


def test_edits_that_jax_refuses_are_not_proposed() -> None:
    given = consulted({"C": "A @ B"}, {"C": "psum(A @ B, 'x') * 3"})
    asked: list[Any] = []

    def refused(revised: Experiment) -> str | None:
        asked.append(revised.definition["per_device"]["C"])
        return "no such type" if len(asked) == 1 else None

    first = search.diagnose(given, lambda _: None)[0]
    (second, *_) = search.diagnose(given, refused)
    assert asked[0] == "psum(A @ B, 'x')"
    assert "3 in psum(A @ B, 'x') * 3 is one scale too many" in first
    assert second != first


def test_a_worker_checks_the_types_of_an_edited_file(tmp_path: Path) -> None:
    keys = {"graph": {"C": "A @ B"}, "per_device": {"C": "psum(A @ B, 'x')"}}
    workers = Workers(start=Here)
    given = experiment(TEXT, **keys)
    refused = refused_edits.refusals(given, workers, tmp_path)
    assert refused(given) is None
    carried = {"repeat": 2, "carry": {"n": "axis_index('x')"}, "body": {"n": "n * 0.5"}}
    untyped = given.at(per_device={"r": carried, "C": "psum(A @ B, 'x') * r.n"})
    assert refused(untyped) is not None


FUNCTION: dict[str, Any] = {
    "functions": {"product(u, v)": {"partial": "u @ v", "result": "partial"}},
    "graph": {"C": "(A @ B) * (A @ R)"},
    "per_device": {"first": "product(A, B)", "C": "first * product(A, R)"},
}


def test_a_line_of_a_function_that_is_called_twice_is_one_edit() -> None:
    given = consulted(**FUNCTION)
    messages = search.diagnose(given, lambda _: None)
    assert messages[0] == (
        "a psum over 'x' is left out: with functions.product(u, v).result: psum(partial, 'x') it equals the graph"
    )
    edits = Edits(given.experiment, "per_device")
    assert [site.named for site in edits.sites].count("functions.product(u, v).partial") == 1


def test_an_edit_beside_a_call_is_written_as_the_file_has_the_call() -> None:
    keys: dict[str, Any] = {
        "functions": {"double(u)": "u + u"},
        "graph": {"C": "(A + A) @ B"},
        "per_device": {"C": "double(A) @ B"},
    }
    given = consulted(**keys)
    edits = Edits(given.experiment, "per_device")
    proposals = {(edit.key, edit.text) for edit in missing.inserting(edits)}
    assert (("per_device", "C"), "psum(double(A) @ B, 'x')") in proposals
    assert search.diagnose(given, lambda _: None)[0].startswith("a psum over 'x' is left out")


def test_an_edit_of_a_functions_argument_is_written_with_the_call_around_it() -> None:
    """`A @ B` is a line of its own, whose text in the file is the call with all its arguments."""
    keys: dict[str, Any] = {
        "functions": {"double(u)": "u + u"},
        "graph": {"C": "(A @ B) * 2 + 1"},
        "per_device": {"C": "double(A @ B) + 1"},
    }
    given = consulted(**keys)
    proposals = {(edit.key, edit.text) for edit in missing.inserting(Edits(given.experiment, "per_device"))}
    assert (("per_device", "C"), "double(psum(A @ B, 'x')) + 1") in proposals
    assert search.diagnose(given, lambda _: None)[0] == (
        "a psum over 'x' is left out: with per_device.C_double_u: psum(A @ B, 'x') it equals the graph"
    )


def test_axes_given_by_name_stay_named() -> None:
    edits = Edits(context("A @ B", {"C": "psum(A @ B, axis_name='x')"}).experiment, "per_device")
    proposals = {(edit.kind, edit.text) for edit in changed_parts.changing(edits)}
    assert ("axis", "psum(A @ B, axis_name='y')") in proposals
    assert ("kind", "pmean(A @ B, axis_name='x')") in proposals


def test_a_collective_whose_operand_is_given_by_name_is_edited_too() -> None:
    edits = Edits(context("A @ B", {"C": "psum(x=A @ B, axis_name='x')"}).experiment, "per_device")
    proposals = {(edit.kind, edit.text) for edit in (*changed_parts.changing(edits), *missing.inserting(edits))}
    assert ("axis", "psum(x=A @ B, axis_name='y')") in proposals
