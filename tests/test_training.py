"""Gradients in lines: the lines that read them, in every program, and their oracle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from runner.checks import oracles
from runner.experiment import data
from runner.graph.language.lines import every_line
from runner.worker.gradient import unsharded
from tests import harness

GOOD = """\
mesh: {axes: [x, y], shape: [2, 2]}
dims: {B: 8, D: 4, F: 8}
arrays:
  a: {shape: [B, D], spec: [x, null]}
  t: {shape: [B, D], spec: [x, null]}
  w1: {shape: [D, F], init: "normal(0, 0.3)", spec: [null, y]}
  w2: {shape: [F, D], init: "normal(0, 0.3)", spec: [y, null]}
  m0: {shape: [D, F], init: "normal(0, 0.03)", spec: [null, y]}
both:
  rows: B
  y: {graph: tanh(a @ w1) @ w2, per_device: "psum(tanh(a @ w1) @ w2, 'y')"}
  loss: {graph: mean((y - t) ** 2), per_device: "pmean(mean((y - t) ** 2), 'x')"}
  m: 0.9 * m0 + grad.w1
  new1: w1 - 0.1 * m
  square: {graph: sum(grad.w2 ** 2), per_device: "psum(sum(grad.w2 ** 2), 'y')"}
  new2: w2 - 0.1 * grad.w2 / sqrt(1 + square) * rows
  told: {graph: mean(y) * square, per_device: "pmean(mean(y), 'x') * square"}
outputs: {loss: [], new1: [null, y], m: [null, y], new2: [y, null], told: []}
grad: {of: loss, wrt: [w1, w2]}
"""

PROGRAMS = {"auto", "constraint", "explicit", "derived", "shard_map", "vmap"}


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


@pytest.mark.sample(2)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_step_of_training_in_every_program(tmp_path: Path, check_vma: bool) -> None:
    outcome = harness.run(GOOD, tmp_path, check_vma=check_vma)
    assert outcome.failures() == []
    assert set(outcome.runs) == PROGRAMS
    made = data.make(outcome.experiment, tmp_path)
    for program in PROGRAMS:
        step = made["w1"] - 0.1 * (0.9 * made["m0"] + outcome.value(program, "grad.w1"))
        np.testing.assert_allclose(outcome.value(program, "new1"), step, rtol=1e-5, atol=1e-6)


SPLIT = """\
arrays:
  a: {shape: [8, 4], spec: [x]}
  w: {shape: [4, 4]}
functions:
  base(v): {t: v + 1, result: t * 2}
  step(w, g, s):
    scaled: base(s)
    kept: {repeat: 2, carry: {c: tanh(w)}, body: {c: base(c)}}
    result: kept.c - scaled * base(g)
both:
  h: tanh(a @ base(w))
  loss: {graph: mean(h ** 2), per_device: "pmean(mean(h ** 2), 'x')"}
  new: step(w, grad.w, loss)
outputs: {loss: [], new: []}
grad: {of: loss, wrt: [w]}
"""


@pytest.mark.in_turn
def test_a_function_may_have_lines_on_both_sides_of_a_gradient(tmp_path: Path) -> None:
    outcome = harness.run(SPLIT, tmp_path)
    assert outcome.failures() == []
    assert set(outcome.runs) == PROGRAMS
    w = data.make(outcome.experiment, tmp_path)["w"]
    for program in PROGRAMS:
        loss, gradient = outcome.value(program, "loss"), outcome.value(program, "grad.w")
        carried = ((np.tanh(w) + 1) * 2 + 1) * 2
        step = carried - (loss + 1) * 2 * (gradient + 1) * 2
        np.testing.assert_allclose(outcome.value(program, "new"), step, rtol=1e-5, atol=1e-5)
    # Lines on only one side of the gradient remain a function.
    assert "h_base = base(w)" in outcome.sources["shard_map"]
    assert "def step(" not in outcome.sources["shard_map"]


@pytest.mark.in_turn
def test_a_gradient_is_read_in_its_outputs_layout(tmp_path: Path) -> None:
    """The moments and the update are sharded over all devices, and the weight's shards are gathered."""
    text = GOOD.replace(
        'm0: {shape: [D, F], init: "normal(0, 0.03)", spec: [null, y]}',
        'm0: {shape: [D, F], init: "normal(0, 0.03)", spec: [x, y]}',
    )
    text = text.replace("m: [null, y], new2", "m: [x, y], grad.w1: [x, y], new2")
    gathered = "w1 - 0.1 * all_gather(m, 'x', tiled=True, to='invarying')"
    text = text.replace("new1: w1 - 0.1 * m", f'new1: {{graph: w1 - 0.1 * m, per_device: "{gathered}"}}')
    outcome = harness.run(text, tmp_path)
    assert outcome.failures() == []
    assert set(outcome.runs) == PROGRAMS
    assert ("all-gather", "new1") in {(c.kind, c.node) for c in outcome.record.compiled["shard_map"].collectives or ()}


@pytest.mark.in_turn
def test_without_a_graph_the_gradient_comes_from_differences(tmp_path: Path) -> None:
    text = GOOD.replace("dims: {B: 8, D: 4, F: 8}", "dims: {B: 4, D: 2, F: 4}")
    given = {**harness.config(text), "graph": {}}
    both = given.pop("both")
    given["per_device"] = {name: line["per_device"] if isinstance(line, dict) else line for name, line in both.items()}
    outcome = harness.run(given, tmp_path)
    assert outcome.failures() == []
    assert set(outcome.runs) == {"shard_map", "vmap"}


@pytest.mark.in_turn
def test_in_bfloat16_with_masters_in_float32(tmp_path: Path) -> None:
    text = changed(
        "y: {graph: tanh(a @ w1) @ w2, per_device: \"psum(tanh(a @ w1) @ w2, 'y')\"}",
        """\
b1, b2, ba: (astype(w1, 'bfloat16'), astype(w2, 'bfloat16'), astype(a, 'bfloat16'))
  z: tanh(ba @ b1) @ b2
  y: {graph: "astype(z, 'float32')", per_device: "psum(astype(z, 'float32'), 'y')"}""",
    )
    outcome = harness.run(text, tmp_path)
    assert outcome.failures() == []


@pytest.mark.in_turn
def test_a_mistake_in_a_line_that_reads_a_gradient_is_noticed(tmp_path: Path) -> None:
    text = changed("sum(grad.w2 ** 2), 'y')", "sum(grad.w2 ** 2) * 1.001, 'y')")
    outcome = harness.run(text, tmp_path)
    (failure,) = outcome.failures()
    assert failure.startswith("sections: ")
    assert "told" in failure


@pytest.mark.in_turn
def test_the_lines_are_given_the_gradient_that_was_confirmed(tmp_path: Path) -> None:
    experiment = harness.experiment(GOOD)
    arrays = data.make(experiment, tmp_path)
    types = harness.types(GOOD)
    context = oracles.consult(experiment, arrays, types.outputs, types.floats)
    assert context.graph is not None
    assert set(context.graph.values) == {"loss"}
    with harness.configured(experiment):
        exact, draws = unsharded(experiment, arrays, types.floats["graph"])
    named: list[dict[str, np.ndarray]] = [{"w1": w1, "w2": w2} for w1, w2 in (exact, *draws)]
    oracles.consult_gradients(context, named[0], named[1:])
    assert not context.gradients.faults
    (held,) = context.graph.values["m"]
    np.testing.assert_array_equal(held, 0.9 * arrays["m0"].astype(np.float64) + exact[0])
    # Rounding of the gradient propagates to the lines that read it.
    assert context.rounding("graph", "new2").error > 0.1 * context.rounding("graph", "grad.w2").error
    wrong = dict(named[0], w2=named[0]["w2"] * 1.01)
    context = oracles.consult(experiment, arrays, types.outputs, types.floats)
    oracles.consult_gradients(context, wrong, named[1:])
    assert [fault.split(":")[0] for fault in context.gradients.faults] == [
        "differences of the NumPy reference do not confirm the oracle's grad.w2"
    ]


@pytest.mark.in_turn
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_trace_shows_the_lines_that_read_gradients(tmp_path: Path, check_vma: bool) -> None:
    outcome = harness.run(GOOD, tmp_path, check_vma=check_vma, trace=True, program="shard_map")
    assert outcome.failures() == []
    trace = outcome.record.trace
    assert trace is not None
    assert (trace.taken_from, trace.first_difference) == ("shard_map", None)
    nodes = {node.name: node for node in trace.nodes}
    assert {"m", "new1", "square/psum#0/before", "square", "new2", "told"} <= nodes.keys() | {
        node.before.name for node in trace.nodes if node.before
    }
    assert all(node.agrees for node in trace.nodes)
    # Device 1 has the second half of the columns.
    made = data.make(outcome.experiment, tmp_path)
    moved = 0.9 * made["m0"] + outcome.value("shard_map", "grad.w1")
    held = nodes["m"].values
    assert held is not None
    np.testing.assert_allclose(held[1], moved[:, 4:], rtol=1e-5, atol=1e-6)


@pytest.mark.in_turn
def test_a_trace_of_a_graph_alone_shows_the_derived_lines_that_read_gradients(tmp_path: Path) -> None:
    plain = yaml.safe_load(GOOD)
    lines = plain.pop("both").items()
    plain["graph"] = {name: line["graph"] if isinstance(line, dict) else line for name, line in lines}
    outcome = harness.run(plain, tmp_path, trace=True, program="derived")
    assert outcome.failures() == []
    trace = outcome.record.trace
    assert trace is not None
    assert (trace.taken_from, trace.first_difference) == ("derived", None)
    assert all(node.agrees for node in trace.nodes)
    made = data.make(outcome.experiment, tmp_path)
    moved = 0.9 * made["m0"] + outcome.value("derived", "grad.w1")
    held = next(node.values for node in trace.nodes if node.name == "m")
    assert held is not None
    np.testing.assert_allclose(held[1], moved[:, 4:], rtol=1e-5, atol=1e-6)


@pytest.mark.in_turn
def test_where_shard_map_does_not_run_the_interpreter_is_given_the_gradients(tmp_path: Path) -> None:
    outcome = harness.run(GOOD, tmp_path, trace=True, program="vmap")
    assert outcome.failures() == []
    trace = outcome.record.trace
    assert trace is not None
    assert trace.taken_from == "interpreter"
    made = data.make(outcome.experiment, tmp_path)
    moved = 0.9 * made["m0"] + outcome.value("vmap", "grad.w1")
    held = next(node.values for node in trace.nodes if node.name == "m")
    assert held is not None
    np.testing.assert_allclose(held[1], moved[:, 4:], rtol=1e-5, atol=1e-6)


def test_lines_before_and_after_the_gradients() -> None:
    experiment = harness.experiment(GOOD)
    assert [line.name for line in every_line(experiment.before("graph"))] == ["rows", "y", "loss"]
    # Values that depend on no array are recomputed.
    assert [line.name for line in every_line(experiment.after("graph"))] == [
        "rows",
        "m",
        "new1",
        "square",
        "new2",
        "told",
    ]
    assert experiment.passed("graph") == ("y",)
    assert replace(experiment, grad=None).given == experiment.arrays


FAULTS = {
    "no such gradient": (
        ("0.9 * m0 + grad.w1", "0.9 * m0 + grad.w3"),
        "e.yaml:13:6  both.m\n  there is no gradient of 'w3'; grad.wrt names w1, w2\n"
        "    0.9 * m0 + grad.w3\n               ^^^^^^^",
    ),
    "no gradients at all": (
        ("\ngrad: {of: loss, wrt: [w1, w2]}", ""),
        "e.yaml:13:6  both.m\n  there are no gradients: write grad: {of: LOSS, wrt: [w1]}\n"
        "    0.9 * m0 + grad.w1\n               ^^^^^^^",
    ),
    "a scalar that needs its own gradient": (
        ("loss: {graph: mean((y - t) ** 2)", "loss: {graph: mean((y - t) ** 2) + sum(grad.w1)"),
        "e.yaml:12:17  both.loss.graph\n  'loss' is differentiated, and needs its own gradient grad.w1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_invalid_input_is_refused_with_a_message(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old, new), message = FAULTS[name]
    monkeypatch.chdir(tmp_path)
    assert harness.refusal(harness.experiment, changed(old, new), tmp_path / "e.yaml") == message
