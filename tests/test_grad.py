"""Gradients in every program, sharded by layouts, against an oracle without sharding."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.base.layout import Spec
from runner.checks import oracles
from runner.checks.kinds import gradient
from runner.checks.reference import Gradients
from runner.checks.reference.gradient import nudged
from runner.experiment import data
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Gradient
from runner.experiment.program import Program
from runner.experiment.results import DIFFERENCES
from runner.graph.language.operations import OPERATIONS
from runner.link.target import ProgramRun
from runner.programs.writers import WRITERS
from runner.reports.record import record
from runner.worker import gradient as gradients
from runner.worker.gradient import unsharded
from runner.worker.walk import function
from tests import harness
from tests.command import run_command
from tests.compiled import collectives_in
from tests.evidence import as_json
from tests.here import loaded

PROGRAMS = ["auto", "constraint", "explicit", "derived", "shard_map", "vmap"]

LEAST_SQUARES = """
dims: {B: 8, D: 4, F: 6}
arrays:
  x: {shape: [B, D], spec: %s}
  w: {shape: [D, F], spec: %s}
  t: {shape: [B, F], spec: %s}
graph:
  r: x @ w - t
  loss: 0.5 * sum(r ** 2)
per_device:
%s
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
"""

LAYOUTS = {
    # name: the specs of x, w, t, and what each device computes
    "data parallel": ("[x]", "[]", "[x]", "  loss: psum(0.5 * sum((x @ w - t) ** 2), 'x')"),
    "data parallel over both axes": (
        "[[x, y]]", "[]", "[[x, y]]", "  loss: psum(0.5 * sum((x @ w - t) ** 2), ('x', 'y'))",
    ),
    "fully sharded": (
        "[x]", "[x]", "[x]",
        "  whole: all_gather(w, 'x', axis=0, tiled=True)\n  loss: psum(0.5 * sum((x @ whole - t) ** 2), 'x')",
    ),
    "columns": ("[]", "[null, y]", "[null, y]", "  loss: psum(0.5 * sum((x @ w - t) ** 2), 'y')"),
    "contracting": (
        "[y, x]", "[x]", "[y]", "  p: psum(x @ w, 'x')\n  loss: psum(0.5 * sum((p - t) ** 2), 'y')",
    ),
    "contracting, scattered": (
        "[null, x]", "[x]", "[x]",
        "  p: psum_scatter(x @ w, 'x', scatter_dimension=0, tiled=True)\n  loss: psum(0.5 * sum((p - t) ** 2), 'x')",
    ),
    "no collective": ("[]", "[]", "[]", "  loss: 0.5 * sum((x @ w - t) ** 2)"),
}  # fmt: skip


def least_squares(layout, folder, **changes):
    return harness.run(LEAST_SQUARES % LAYOUTS[layout], folder, **changes)


def by_hand(outcome, folder):
    """Return the derivative of 0.5 * sum((x @ w - t) ** 2)."""
    arrays = {name: a.astype(np.float64) for name, a in data.make(outcome.experiment, folder).items()}
    return arrays["x"].T @ (arrays["x"] @ arrays["w"] - arrays["t"])


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_program_computes_the_analytical_gradient(layout, tmp_path):
    outcome = least_squares(layout, tmp_path)
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []
    for program in PROGRAMS:
        np.testing.assert_allclose(outcome.value(program, "grad.w"), by_hand(outcome, tmp_path), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["data parallel", "fully sharded", "contracting"])
def test_the_gradient_is_right_without_check_vma(layout, tmp_path):
    # Differentiated inside shard_map, psum's transpose would be a psum, and the gradient a multiple.
    outcome = least_squares(layout, tmp_path, check_vma=False, program="shard_map")
    assert outcome.failures() == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_from_differentiation_are_not_attributed_to_the_compiler(layout, check_vma, tmp_path):
    outcome = least_squares(layout, tmp_path, check_vma=check_vma, program="shard_map")
    module = collectives_in((tmp_path / "hlo_shard_map.txt").read_text(), outcome.experiment)
    assert module.unknown == []
    assert [entry for entry in module.entries if entry.inserted] == []
    lowered = (tmp_path / "stablehlo_shard_map.txt").read_text()
    assert bool(module.entries) == bool(re.search(r"stablehlo\.(all_|reduce_scatter|collective_)", lowered))
    if not check_vma:
        # w's cotangents are summed over the axes over which w is replicated, in no line of the program.
        assert any(entry.gradient for entry in module.entries)


@pytest.mark.sample(2)
@pytest.mark.parametrize("spec", [["x"], ["y", "x"], [None, ["y", "x"]], []])
def test_a_gradient_has_the_layout_in_outputs(spec, tmp_path):
    # [x] of a replicated w: the optimizer of ZeRO, whose gradient is reduce-scattered.
    text = (LEAST_SQUARES % LAYOUTS["data parallel"]).replace("shape: [D, F]", "shape: [D, 8]")
    outcome = harness.run(text.replace("F: 6", "F: 8"), tmp_path, outputs={"grad.w": spec, "loss": []})
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []
    expected = outcome.runs["shard_map"].outputs["grad.w"]
    assert list(outcome.experiment.outputs) == ["grad.w", "loss"]
    assert {held.ranges for held in expected.held} == {
        held.ranges for held in outcome.runs["explicit"].outputs["grad.w"].held
    }


def test_a_gradient_that_outputs_do_not_name_has_its_arrays_layout():
    experiment = harness.experiment(LEAST_SQUARES % LAYOUTS["contracting"])
    assert experiment.outputs == {"loss": (), "grad.w": (("x",), ())}
    assert experiment.results == {"loss": ()}


@pytest.mark.in_turn
def test_a_constraint_on_an_array_does_not_change_its_gradients_layout(tmp_path):
    text = LEAST_SQUARES % LAYOUTS["contracting"]
    outcome = harness.run(text, tmp_path, constraints={"w": [None, "y"], "r": ["y"]})
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []


def test_one_array_needs_no_list():
    text = (LEAST_SQUARES % LAYOUTS["contracting"]).replace("wrt: [w]", "wrt: w")
    assert harness.experiment(text).grad == Gradient("loss", ("w",))


NETWORK = """
dims: {B: 8, D: 4, F: 8}
arrays:
  x:  {shape: [B, D], spec: [x, null]}
  w1: {shape: [D, F], spec: [null, y], dtype: DTYPE}
  b1: {shape: [F],    spec: [y], dtype: DTYPE}
  w2: {shape: [F, D], spec: [y, null], dtype: DTYPE}
  n:  {shape: [B], dtype: int32, init: "integers(0, 4)", spec: [x]}
graph:
  hidden: relu(x @ astype(w1, 'float32') + b1)
  logits: hidden @ astype(w2, 'float32')
  loss: -mean(take_along_axis(log_softmax(logits), n[:, None], axis=1))
per_device:
  hidden: relu(x @ astype(w1, 'float32') + b1)
  logits: psum(hidden @ astype(w2, 'float32'), 'y')
  loss: -pmean(mean(take_along_axis(log_softmax(logits), n[:, None], axis=1)), 'x')
outputs: {logits: [x], loss: []}
grad: {of: loss, wrt: [w2, b1, w1]}
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_network_with_a_cross_entropy(dtype, tmp_path):
    outcome = harness.run(NETWORK.replace("DTYPE", dtype), tmp_path)
    assert {"auto", "constraint", "shard_map", "vmap"} <= set(outcome.runs)
    assert outcome.failures() == []
    assert list(outcome.experiment.outputs) == ["logits", "loss", "grad.w2", "grad.b1", "grad.w1"]
    assert outcome.runs["shard_map"].outputs["grad.w1"].dtype == dtype


LOOP = """
arrays:
  h: {shape: [4, 8], spec: [x]}
  w: {shape: [8, 8], init: "normal(0, 0.3)", spec: [null, y]}
graph:
  layers:
    repeat: 3
    carry: {a: h}
    body:
      a: tanh(a @ w)
    unroll: UNROLL
  loss: sum(layers.a ** 2)
per_device:
  layers:
    repeat: 3
    carry: {a: h}
    body:
      a: psum(zeros((2, 8)) + dynamic_update_slice(pcast(zeros((2, 8)), ('x', 'y'), to='varying'),
         tanh(a @ w), (0, axis_index('y') * 4)), 'y')
    unroll: UNROLL
  loss: psum(sum(layers.a ** 2), 'x')
outputs: {loss: []}
grad: {of: loss, wrt: [w, h]}
"""


@pytest.mark.in_turn
def test_gradients_through_an_unrolled_loop_pass_in_every_program(tmp_path):
    outcome = harness.run(LOOP.replace("UNROLL", "true"), tmp_path)
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("program", ["auto", "constraint", "shard_map", "vmap"])
def test_through_a_fori_loop(program, tmp_path):
    # Without `explicit`: JAX 0.12 cannot lower its transpose, and the program is omitted.
    outcome = harness.run(LOOP.replace("UNROLL", "false"), tmp_path, program=program)
    assert list(outcome.runs) == [program]
    assert outcome.failures() == []


SOFTMAX = """
arrays:
  x: {shape: [4, 4], spec: [x]}
  w: {shape: [4, 8], spec: [null, y]}
graph:
  logits: x @ w
  loss: sum(logsumexp(logits, axis=1)) + sum(stop_gradient(logits) * logits)
per_device:
  logits: x @ w
  largest: pmax(stop_gradient(max(logits, axis=1)), 'y')
  total: psum(sum(exp(logits - largest[:, None]), axis=1), 'y')
  loss: psum(sum(log(total) + largest) + psum(sum(stop_gradient(logits) * logits), 'y'), 'x')
outputs: {loss: []}
grad: {of: loss, wrt: [w, x]}
"""


@pytest.mark.parametrize(
    "line",
    [
        "dynamic_slice(A, (J[3], 0), (2, 2))",
        "dynamic_slice(A, slice_sizes=(2, 2), start_indices=[argmax(A[:, 0]), J[1]])",
        "dynamic_update_slice(A, A[:2, :2] * 2, (1, J[3]))",
    ],
)
def test_the_float64_oracle_supports_32_bit_indices_and_numbers(line, tmp_path):
    text = """
    arrays:
      A: {shape: [8, 4]}
      J: {shape: [8], dtype: int32, init: "integers(0, 3)"}
    outputs: {out: []}
    grad: {of: out, wrt: [A]}
    """
    outcome = harness.run(text, tmp_path, graph={"out": f"sum({line})"}, program="auto")
    assert outcome.failures() == []


def test_integers_of_the_float64_oracle_wrap_as_in_the_programs(tmp_path):
    text = """
    arrays:
      A: {shape: [4]}
      J: {shape: [4], dtype: int32, init: 1073741824}
    graph: {out: "sum(A * (sum(J) + 3))"}
    outputs: {out: []}
    grad: {of: out, wrt: [A]}
    """
    outcome = harness.run(text, tmp_path, program="auto")
    assert outcome.failures() == []
    np.testing.assert_array_equal(outcome.value("auto", "grad.A"), np.full(4, 3.0))


@pytest.mark.parametrize(
    ("line", "gradient"),
    [
        ("J / 3", lambda j: j / 3),
        ("10000.0 ** (-J / 7)", lambda j: 10000.0 ** (-j / 7)),
        ("sin(J)", np.sin),
        ("astype(J, 'float32') / 3", lambda j: j / 3),
    ],
)
def test_a_float_of_integers_is_float64_in_the_oracle(line, gradient):
    text = f"""
    arrays:
      A: {{shape: [8]}}
      J: {{shape: [8], dtype: int32, init: "integers(1, 9)"}}
    graph: {{out: "sum(A * ({line}))"}}
    outputs: {{out: []}}
    grad: {{of: out, wrt: [A]}}
    """
    _, arrays, (of_a,), _ = differentiated(text)
    np.testing.assert_allclose(of_a, gradient(arrays["J"].astype(np.float64)), rtol=1e-14)


def test_random_numbers_of_the_oracle_are_those_of_the_program_and_then_float64():
    text = """
    arrays: {A: {shape: [8]}}
    graph: {out: "sum(A * (uniform(key(0), (8,)) / 3))"}
    outputs: {out: []}
    grad: {of: out, wrt: [A]}
    """
    _, _, (of_a,), _ = differentiated(text)
    drawn = np.asarray(jax.random.uniform(jax.random.key(0), (8,)), np.float64)
    np.testing.assert_allclose(of_a, drawn / 3, rtol=1e-14)


@pytest.mark.parametrize(
    ("more", "heads", "batch"),
    [
        ({}, 4, (3,)),
        ({"is_causal": True}, 2, (3,)),
        ({"scale": 0.5, "mask": True}, 4, (3,)),
        ({"bias": True, "is_causal": True}, 1, (3,)),
        ({"is_causal": True}, 2, ()),
    ],
)
def test_the_oracles_attention_is_that_of_the_reference(more, heads, batch):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(*batch, 5, h, 8)) for h in (4, heads, heads))
    if "mask" in more:
        # The first query attends to nothing.
        more = more | {"mask": (rng.uniform(size=(3, 4, 5, 5)) < 0.7) & (np.arange(5) > 0)[:, None]}
    if "bias" in more:
        more = more | {"bias": rng.normal(size=(1, 4, 5, 5))}
    with jax.enable_x64(True):
        oracles_own = gradients._attention(*map(jax.numpy.asarray, (query, key, value)), **more)
    np.testing.assert_allclose(oracles_own, OPERATIONS["dot_product_attention"].numpy(query, key, value, **more), 1e-12)


def test_every_operation_that_jax_computes_in_float32_is_float64_in_the_oracle():
    walker = gradients._WideFloats(harness.experiment(LEAST_SQUARES % LAYOUTS["no collective"]), {})
    narrow = [row for row in OPERATIONS.values() if row.in_float32]
    assert narrow
    assert [row.name for row in narrow if walker.function_of(row) is function(row.jax)] == []


@pytest.mark.in_turn
def test_differences_hold_stop_gradient_values_fixed(tmp_path):
    outcome = harness.run(SOFTMAX, tmp_path)
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []
    verdict = outcome.checks["shard_map"].gradient
    assert verdict.oracle["per_device"].endswith("confirmed by directional central differences of the SPMD interpreter")


RING = """
arrays:
  a: {shape: [8, 4], spec: [x]}
  b: {shape: [4, 4], spec: []}
per_device:
  ring:
    repeat: axis_size('x') - 1
    carry: {moving: a, total: a @ b}
    body:
      moving: ppermute(moving, 'x', shift=1)
      total: total * tanh(moving @ b)
  loss: psum(sum(ring.total), 'x')
outputs: {loss: []}
grad: {of: loss, wrt: [a, b]}
"""


@pytest.mark.in_turn
def test_without_a_graph_differences_of_every_element_are_the_oracle(tmp_path):
    outcome = harness.run(RING, tmp_path, mesh={"axes": ["x"], "shape": [4]})
    assert list(outcome.runs) == ["shard_map", "vmap"]
    assert outcome.failures() == []
    verdict = outcome.checks["shard_map"].gradient
    assert verdict.oracle == {"per_device": "central differences of the SPMD interpreter's scalar, element by element"}


def test_the_record_names_the_oracle_and_its_confirmation(tmp_path):
    verdict = least_squares("data parallel", tmp_path, program="shard_map").checks["shard_map"].gradient
    by_jax = "float64 gradient of the unsharded graph by JAX on one device"
    assert verdict.oracle == {
        "graph": f"{by_jax}, confirmed by directional central differences of the NumPy reference",
        "per_device": f"{by_jax}, confirmed by directional central differences of the SPMD interpreter",
    }
    assert verdict.directions == 3
    assert verdict.apart["graph"]["grad.w"] < 0.01


# Mistakes are found.


def planted(monkeypatch, program, old, new):
    """Plant a mistake in the writer of a program."""
    right = WRITERS[program]

    def write(*arguments):
        text = right(*arguments)
        assert old in text
        return text.replace(old, new)

    monkeypatch.setitem(WRITERS, program, write)


@pytest.mark.in_turn
def test_a_gradient_inside_of_shard_map_without_check_vma_is_caught(tmp_path, monkeypatch):
    right = WRITERS[Program.SHARD_MAP]

    def write(experiment, folder, types):
        text = right(experiment, folder, types)
        function = """    def inside(x, w, t):
        (grad, (loss,)) = jax.grad(forward, argnums=1, has_aux=True)(x, w, t)
        return loss, grad

    return jax.jit(jax.shard_map(
        inside, mesh=mesh, in_specs=(P("x"), P("x"), P("x")), out_specs=(P(), P("x")), check_vma=False
    ))
"""
        return re.sub(r"    sharded = jax.shard_map\(.*?(?=\n\ndef main)", function, text, flags=re.DOTALL)

    monkeypatch.setitem(WRITERS, "shard_map", write)
    outcome = least_squares("fully sharded", tmp_path, check_vma=False, program="shard_map")
    outputs = outcome.checks["shard_map"].value.outputs
    assert outputs["loss"].status == "passed"
    assert (outputs["grad.w"].status, outputs["grad.w"].wrong) == ("failed", 48)


@pytest.mark.in_turn
def test_shares_of_a_gradient_that_a_narrow_dtype_loses_are_rounding(tmp_path):
    text = """
    arrays:
      A: {shape: [12, 24], dtype: float8_e4m3fn}
    graph: {loss: logsumexp(A)}
    per_device: {loss: logsumexp(A)}
    outputs: {loss: []}
    grad: {of: loss, wrt: [A]}
    """
    mesh = {"axes": ["x"], "shape": [8]}
    outcome = harness.run(text, tmp_path, mesh=mesh, check_vma=False, verify="rounding")
    assert outcome.failures() == []
    # An eighth of 1 divided by the sum of 288 exponentials rounds to zero in float8_e4m3fn.
    assert not outcome.value("shard_map", "grad.A").any()
    verdict = outcome.checks["shard_map"].value.outputs["grad.A"]
    assert verdict.status == "weak"
    assert verdict.whole["slope"].least < -1


@pytest.mark.in_turn
def test_a_gradient_off_by_a_thousandth_in_one_program_is_caught(tmp_path, monkeypatch):
    planted(monkeypatch, "auto", "return (loss, grad_w)", "return (loss, grad_w * 1.001)")
    outcome = least_squares("data parallel", tmp_path)
    assert outcome.checks["auto"].value.status == "failed"
    assert outcome.checks["auto"].agreement.status == "failed"
    assert outcome.checks["shard_map"].value.status == "passed"
    assert outcome.checks["shard_map"].agreement.status != "failed"


@pytest.mark.in_turn
def test_a_per_device_with_another_gradient_is_distinguished_from_a_fault_of_jax(tmp_path):
    # At w = 0 the two losses agree; as functions of w they do not.
    text = (LEAST_SQUARES % LAYOUTS["data parallel"]).replace("w: {shape: [D, F]", "w: {shape: [D, F], init: zeros")
    wrong = {"loss": "psum(0.5 * sum((x @ w * 2 - t) ** 2), 'x')"}
    outcome = harness.run(text, tmp_path, per_device=wrong)
    for program in ("shard_map", "vmap"):
        output = outcome.checks[program].value.outputs["grad.w"]
        assert (output.oracle, output.status) == ("per_device", "passed")
    assert outcome.failures() == ["sections: the derivative of per_device's scalar differs from graph's: grad.w"]
    verdict = outcome.checks["shard_map"].gradient
    assert verdict.oracle["per_device"].startswith("central differences of the SPMD interpreter's scalar")
    assert verdict.note == "the derivative of per_device's scalar differs from graph's in grad.w"


@functools.cache
def differentiated(text):
    """Return an experiment without loaded data, its arrays, and JAX's value of its gradient."""
    experiment = harness.experiment(text)
    arrays = data.make(experiment, Path())
    with harness.configured(experiment):
        return experiment, arrays, *unsharded(experiment, arrays, {})


def consulted(text, edit=lambda gradients: gradients):
    """Return the oracles of an experiment, with JAX's gradient edited."""
    experiment, arrays, exact, draws = differentiated(text)
    context = oracles.consult(experiment, arrays, {}, {})
    assert experiment.grad is not None
    named = [dict(zip(experiment.grad.wrt, each, strict=True)) for each in (edit(exact), *draws)]
    oracles.consult_gradients(context, named[0], named[1:])
    return context.gradients


def test_differences_reject_a_gradient_with_one_wrong_element():
    def edit(gradients):
        changed = gradients[0].copy()
        changed[2, 3] += 1e-4 * np.abs(changed).max()
        return [changed]

    text = LEAST_SQUARES % LAYOUTS["data parallel"]
    assert consulted(text).faults == []
    assert consulted(text, edit).faults == [
        "differences of the NumPy reference do not confirm the oracle's grad.w: the scalar has a kink at these values, "
        "or JAX's gradient of the graph or the reference is wrong"
    ]


@pytest.mark.parametrize("order", ["rows", "columns", "both"])
def test_differences_reject_a_gradient_with_permuted_elements(order):
    # In a direction with equal components, the order of the elements would make no difference.
    def edit(gradients):
        axis = {"rows": 0, "columns": 1, "both": (0, 1)}[order]
        return [np.flip(gradients[0], axis)]

    [fault] = consulted(LEAST_SQUARES % LAYOUTS["data parallel"], edit).faults
    assert "do not confirm the oracle's grad.w:" in fault


@pytest.mark.in_turn
def test_errors_that_cancel_in_one_direction_are_seen_in_another():
    def off_in(i, j):
        def edit(gradients):
            wrong = gradients[0].copy()
            wrong.flat[i] += 1e-3 * np.abs(wrong).max()
            wrong.flat[j] -= 1e-3 * np.abs(wrong).max()
            return [wrong]

        return edit

    text = LEAST_SQUARES % LAYOUTS["data parallel"]
    pairs = list(itertools.combinations(range(0, 24, 4), 2))
    caught = [pair for pair in pairs if consulted(text, off_in(*pair)).faults]
    # Each of three directions sees every second one.
    assert len(caught) >= 0.8 * len(pairs)


@pytest.mark.parametrize(("sign", "element"), [(1, 0), (-1, 0), (1, 23), (-1, 23), (1, 10)])
@pytest.mark.parametrize(("times", "confirmed"), [(0.3, True), (3, False)])
def test_differences_confirm_to_a_millionth_of_the_terms(times, confirmed, sign, element):
    def edit(gradients):
        changed = gradients[0].copy()
        changed.flat[element] += sign * times * 1e-6 * np.abs(changed).sum()
        return [changed]

    consultation = consulted(LEAST_SQUARES % LAYOUTS["data parallel"], edit)
    assert (consultation.faults == []) == confirmed
    assert consultation.apart["graph"]["grad.w"] == pytest.approx(times, rel=0.1)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("wrong", "names"), [((0,), "grad.w"), ((1,), "grad.x"), ((2,), "grad.t"), ((0, 2), "grad.w and grad.t")]
)
def test_every_gradient_is_compared_with_differences(wrong, names):
    def edit(gradients):
        return [g * (1.001 if i in wrong else 1) for i, g in enumerate(gradients)]

    text = (LEAST_SQUARES % LAYOUTS["data parallel"]).replace("wrt: [w]", "wrt: [w, x, t]")
    assert consulted(text).faults == []
    [fault] = consulted(text, edit).faults
    assert f"do not confirm the oracle's {names}:" in fault


def test_differences_reject_nan():
    def edit(gradients):
        changed = gradients[0].copy()
        changed[1, 1] = np.nan
        return [changed]

    assert len(consulted(LEAST_SQUARES % LAYOUTS["data parallel"], edit).faults) == 1


def test_rounding_is_measured_upwards_and_downwards(tmp_path):
    text = """
arrays:
  w: {shape: [64], init: "uniform(1, 2)"}
  z: {shape: [4], init: zeros}
  n: {shape: [8], dtype: int32, init: "arange(8)"}
graph: {loss: sum(w) + sum(z) + sum(n)}
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
"""
    given = harness.experiment(text)
    arrays = data.make(given, tmp_path)
    moved = nudged(given, arrays)
    off = (moved["w"].astype(np.float64) - arrays["w"]) / arrays["w"]
    assert (off > 0).any()
    assert (off < 0).any()
    assert 0 < np.abs(off).max() <= np.finfo(np.float32).eps
    np.testing.assert_array_equal(moved["z"], arrays["z"])
    np.testing.assert_array_equal(moved["n"], arrays["n"])


NARROW = """
arrays:
  x: {shape: [64, 16], init: "uniform(0.2, 0.9)"}
  w: {shape: [16], init: "uniform(0.9, 0.98)"}
graph:
  y: astype(x, 'bfloat16') * astype(w, 'bfloat16')
  loss: sum(astype(y, 'float32') ** 2) + sum(arcsin(w))
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
"""


def drawn(text):
    """Return the rounded values of an experiment's one gradient, draw by draw; the last is float64's."""
    experiment = harness.experiment(text)
    floats = harness.types(text).floats["graph"]
    with harness.configured(experiment):
        _, draws = unsharded(experiment, data.make(experiment, Path()), floats)
    return [each[0] for each in draws]


def test_draws_of_a_narrowed_value_differ():
    first, *others = drawn(NARROW)[: gradients.DRAWS]
    assert len(others) == gradients.DRAWS - 1
    for other in others:
        assert np.abs(other - first).max() > 0.3 * np.abs(first).max()


def test_draws_at_undefined_gradients_are_discarded():
    text = NARROW.replace("uniform(0.9, 0.98)", "uniform(0.998, 0.9999)")
    assert all(np.isfinite(each).all() for each in drawn(text))


def test_at_a_kink_there_is_nothing_to_confirm():
    text = """
arrays: {w: {shape: [4], init: zeros}}
graph: {loss: sum(relu(w))}
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
"""
    [fault] = consulted(text).faults
    assert "the scalar has a kink at these values" in fault


def test_near_a_kink_a_smaller_step_confirms():
    text = """
arrays: {w: {shape: [4], init: [1.0, -1.0, 4.e-7, -4.e-7]}}
graph: {loss: sum(relu(w) * 2)}
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
"""
    assert consulted(text).faults == []


def test_a_gradient_that_cancels_is_confirmed():
    text = """
arrays: {a: {shape: [4, 12], dtype: bfloat16, init: "uniform(0.1, 0.9)"}}
graph: {h: standardize(a), loss: sum(h * 0.7)}
outputs: {loss: []}
grad: {of: loss, wrt: [a]}
"""
    assert consulted(text).faults == []


@pytest.mark.in_turn
def test_a_gradient_that_is_zero(tmp_path):
    text = (LEAST_SQUARES % LAYOUTS["data parallel"]).replace("wrt: [w]", "wrt: [w, unused]")
    text = text.replace("arrays:\n", "arrays:\n  unused: {shape: [4, 4], spec: [y, x]}\n")
    outcome = harness.run(text, tmp_path)
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []
    assert not outcome.value("shard_map", "grad.unused").any()


def verdict_of(program, **oracles):
    """Return the check's message on a program, by these oracles."""
    context: Any = SimpleNamespace(gradients=Gradients(**oracles), experiment=SimpleNamespace(rules=()))
    return gradient.check(context, ProgramRun(Program(program)))


BOTH = {
    "oracle": {"graph": "by JAX", "per_device": "by differences"},
    "apart": {"graph": {"grad.w": 0.5}, "per_device": {"grad.w": 3.0, "grad.x": 1.0, "grad.b": 1.5}},
}


@pytest.mark.parametrize("program", ["shard_map", "vmap"])
def test_a_per_device_programs_verdict_has_both_oracles(program):
    assert as_json(verdict_of(program, **BOTH)) == {
        "status": "passed",
        **BOTH,
        "directions": 3,
        "rtol": 1e-6,
        "note": "the derivative of per_device's scalar differs from graph's in grad.w and grad.b",
    }


@pytest.mark.parametrize("program", ["auto", "constraint", "explicit"])
def test_a_graph_programs_verdict_has_graphs_oracle(program):
    verdict = verdict_of(program, **BOTH)
    assert (verdict.oracle, verdict.apart) == ({"graph": "by JAX"}, {"graph": {"grad.w": 0.5}})
    assert verdict.note is None


def test_every_fault_of_the_oracles_is_reported():
    verdict = verdict_of("auto", faults=["one thing", "another"])
    assert (verdict.status, verdict.reason) == ("failed", "one thing; another")
    assert verdict_of("vmap", apart={"per_device": {"grad.w": 1.0}}).note is None


# Operations that JAX cannot differentiate.


@pytest.mark.in_turn
def test_a_program_whose_gradient_jax_does_not_have_is_left_out(tmp_path):
    text = (
        (LEAST_SQUARES % LAYOUTS["data parallel"])
        .replace("psum(0.5", "pmax(max(w), 'x') + psum(0.5")
        .replace("0.5 * sum(r ** 2)", "0.5 * sum(r ** 2) + max(w)")
    )
    outcome = harness.run(text, tmp_path)
    assert outcome.types.unsupported == {
        "shard_map": "the gradient of 'loss': per_device.loss: pmax(max(w), 'x'): JAX refuses it: Differentiation rule "
        "for 'pmax' not implemented; the operands are float32[]"
    }
    assert outcome.failures() == []
    # The message does not appear for other programs.
    assert harness.types(text, program="vmap").unsupported == {}


def message(text, **changes):
    with pytest.raises(InvalidExperiment) as raised:
        harness.types(text, **changes)
    return str(raised.value)


GOOD = LEAST_SQUARES % LAYOUTS["data parallel"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"grad": {"wrt": ["w"]}}, "grad: grad.of is missing: the scalar output that is differentiated"),
        (
            {"grad": {"of": "loss"}},
            "grad: grad.wrt is missing: the arrays with respect to which the gradient is taken",
        ),
        ({"grad": {"of": "los", "wrt": ["w"]}}, "grad.of: 'los' is not among the outputs; did you mean 'loss'?"),
        (
            {"grad": {"of": "r", "wrt": ["w"]}},
            "grad.of: 'r' is not among the outputs; give it a PartitionSpec there: []",
        ),
        ({"grad": {"of": "loss", "wrt": ["v"]}}, "grad.wrt[0]: there is no array 'v'; there are x, w, t"),
        ({"grad": {"of": "loss", "wrt": [["w"]]}}, "grad.wrt[0]: there is no array ['w']; there are x, w, t"),
        ({"grad": {"of": "loss", "wrt": "v"}}, "grad.wrt: there is no array 'v'; there are x, w, t"),
        ({"grad": {"of": "loss", "wrt": 7}}, "grad.wrt: there is no array 7; there are x, w, t"),
        ({"grad": {"of": "loss", "wrt": ["w", "w"]}}, "grad.wrt[1]: 'w' appears twice"),
        (
            {"outputs": {"loss": [], "grad.x": []}},
            "outputs.grad.x: grad.wrt has no 'x'; did you mean 'grad.w'?",
        ),
        (
            {"outputs": {"loss": [], "grad.w": [None, ["x", "y"]]}},
            "outputs.grad.w[1]: dimension 1 of 'grad.w' has size 6, which x=2 × y=2 does not divide",
        ),
        (
            {"outputs": {"loss": [], "grad.w": [None, None, "x"]}},
            "outputs.grad.w: the spec has 3 entries, but 'grad.w' has rank 2",
        ),
        (
            {"graph": {"loss": "x @ w"}, "per_device": {}},
            "grad.of: 'loss' of graph is float32[8, 6]; a gradient needs a scalar: take its sum",
        ),
        (
            {"graph": {"loss": "argmax(x @ w)"}, "per_device": {}},
            "grad.of: 'loss' of graph is int32; a gradient needs a floating-point scalar",
        ),
        (
            {"graph": {"grad": "x @ w", "loss": "sum(grad)"}, "per_device": {}},
            "graph.grad: the gradients are called grad.…; choose another name",
        ),
        (
            {"graph": {}, "dims": {"B": 8, "D": 40, "F": 26}},
            "grad.wrt: without a graph the gradient's oracle is a central difference for every element, and 1040 are "
            f"more than {DIFFERENCES}: add a graph, or make the arrays smaller",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_grad_gets_a_message(changes, expected):
    assert message(GOOD, **changes) == expected


def test_an_integer_has_no_gradient():
    text = GOOD.replace("w: {", "w: {dtype: int32, init: ones, ")
    assert message(text) == "grad.wrt[0]: 'w' is int32; a gradient is taken with respect to a floating-point array"


# The programs.


@pytest.mark.in_turn
def test_every_program_runs_alone_and_prints_the_gradients(tmp_path):
    outcome = least_squares("contracting", tmp_path)
    for program, text in outcome.sources.items():
        path = tmp_path / f"alone_{program}.py"
        path.write_text(text)
        if program in ("shard_map",):
            done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
            printed = done.stdout
        else:
            with contextlib.redirect_stdout(io.StringIO()) as stream, loaded(path) as module:
                module.main()
            printed = stream.getvalue()
        assert "loss  float32[]" in printed
        assert "grad.w  float32[4, 6]" in printed


def test_the_script_of_shard_map_differentiates_the_whole_function(tmp_path):
    experiment = harness.experiment(LEAST_SQUARES % LAYOUTS["fully sharded"])
    with harness.configured(experiment):
        text = WRITERS[Program.SHARD_MAP](experiment, tmp_path, harness.infer(experiment))
    assert (
        text[text.index("    sharded = ") : text.index("def main")]
        == """    sharded = jax.shard_map(
        forward,
        mesh=mesh,
        in_specs=(P("x", None), P("x", None), P("x", None)),
        out_specs=(P(), (P(),)),
    )

    @jax.jit
    def test(x, w, t):
        grad_w, (loss,) = jax.grad(sharded, argnums=1, has_aux=True)(x, w, t)
        with jax.named_scope("grad.w"):
            grad_w = jax.lax.with_sharding_constraint(grad_w, NamedSharding(mesh, P("x", None)))
        return (loss, grad_w)

    return test


"""
    )


@pytest.mark.in_turn
def test_the_command_records_the_gradients_and_their_oracle(tmp_path):
    result = run_command("+experiment=data_tensor_parallel", f"hydra.run.dir={tmp_path}")
    assert result.returncode == 0, result.stdout + result.stderr
    run_record: Any = record.read(tmp_path)
    assert run_record.warnings == []
    assert list(run_record.programs) == PROGRAMS
    for program in run_record.programs.values():
        assert list(program.outputs) == ["out", "loss", *(f"grad.{name}" for name in ("x", "w1", "b1", "w2", "b2"))]
        assert {check.status for check in program.checks} <= {"passed", "not_run"}
        assert program.checks.gradient.oracle["graph"].startswith("float64 gradient of the unsharded graph")
    assert run_record.programs["shard_map"].outputs["grad.w1"].spec == Spec.of([None, "model"])


@pytest.mark.in_turn
def test_a_bfloat16_gradient_is_not_taken_for_rounding(tmp_path):
    narrow = [f"arrays.{name}.dtype=bfloat16" for name in ("x", "y", "w1", "b1", "w2", "b2")]
    result = run_command("+experiment=tensor_parallel_mlp", *narrow, f"hydra.run.dir={tmp_path}")
    assert result.returncode == 0, result.stdout + result.stderr
    run_record = record.read(tmp_path)
    assert run_record.warnings == []
    assert list(run_record.programs) == PROGRAMS


@pytest.mark.in_turn
def test_names_that_the_script_needs_are_free_for_the_experiment(tmp_path):
    text = """
arrays: {w: {shape: [4, 4], spec: [x, y]}}
graph: {forward: w * w, grad_w: forward + 1, sharded: sum(grad_w)}
per_device: {forward: w * w, grad_w: forward + 1, mapped: sum(grad_w), sharded: "psum(mapped, ('x', 'y'))"}
outputs: {sharded: [], forward: [x, y], grad_w: [x, y]}
grad: {of: sharded, wrt: [w]}
"""
    outcome = harness.run(text, tmp_path)
    assert list(outcome.runs) == PROGRAMS
    assert outcome.failures() == []
    assert Identifiers(outcome.experiment).reserve("forward") == "forward"
