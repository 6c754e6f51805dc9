"""A backward pass written by hand in one section is compared with the gradient that the other section reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.worker import gradient
from tests import harness

PROGRAMS = ["auto", "constraint", "explicit", "derived", "shard_map", "vmap"]

LEAST_SQUARES = """
mesh: {axes: [d], shape: [4]}
arrays:
  x: {shape: [8, 4], spec: [d]}
  w: {shape: [4]}
graph:
  loss: mean((x @ w) ** 2)
  g: grad.w
per_device:
  loss: pmean(mean((x @ w) ** 2), 'd')
  g: 2 * pmean(mean((x @ w)[:, None] * x, axis=0), 'd')
grad: {of: loss, wrt: [w]}
outputs: {loss: [], g: []}
"""

OF_THE_GRAPH = """
mesh: {axes: [d], shape: [4]}
arrays:
  x: {shape: [8, 4], spec: [d]}
  w: {shape: [4]}
graph:
  loss: mean((x @ w) ** 2)
  g: 2 * mean((x @ w)[:, None] * x, axis=0)
per_device:
  loss: pmean(mean((x @ w) ** 2), 'd')
  g: grad.w
grad: {of: loss, wrt: [w]}
outputs: {loss: [], g: []}
"""

TENSOR_PARALLEL_MLP = """
mesh: {axes: [data, model], shape: [2, 2]}
dims: {B: 4, D: 6, F: 8}
arrays:
  x: {shape: [B, D], spec: [data]}
  t: {shape: [B, D], spec: [data]}
  w1: {shape: [D, F], spec: [null, model], init: "normal(0, 0.4)"}
  w2: {shape: [F, D], spec: [model], init: "normal(0, 0.4)"}
graph:
  h: tanh(x @ w1)
  y: h @ w2
  loss: sum((y - t) ** 2)
  g1: grad.w1
  g2: grad.w2
  gx: grad.x
per_device:
  h: tanh(x @ w1)
  y: psum(h @ w2, 'model')
  loss: psum(sum((y - t) ** 2), 'data')
  dy: 2 * (y - t)
  dz: (dy @ w2.T) * (1 - h ** 2)
  g2: psum(h.T @ dy, 'data')
  g1: psum(x.T @ dz, 'data')
  gx: psum(dz @ w1.T, 'model')
grad: {of: loss, wrt: [w1, w2, x]}
outputs: {loss: [], g1: [null, model], g2: [model], gx: [data]}
"""

IN_A_REPEAT = """
mesh: {axes: [d], shape: [4]}
dims: {B: 8, D: 4, S: 3}
functions:
  step(w, g): w - 0.1 * g
arrays:
  x: {shape: [B, D], spec: [d]}
  w: {shape: [D]}
graph:
  loss: mean((x @ w) ** 2)
  down:
    repeat: S
    carry: {v: w}
    body:
      v: step(v, grad.w)
  new: down.v
per_device:
  loss: pmean(mean((x @ w) ** 2), 'd')
  g: 2 * pmean(mean((x @ w)[:, None] * x, axis=0), 'd')
  down:
    repeat: S
    carry: {v: w}
    body:
      v: step(v, g)
  new: down.v
grad: {of: loss, wrt: [w]}
outputs: {loss: [], new: []}
"""

EACH_ITS_OWN = """
mesh: {axes: [d], shape: [4]}
arrays:
  x: {shape: [8, 4], spec: [d]}
  w: {shape: [4]}
  b: {shape: [], init: "0.5"}
  s: {shape: [], init: "1.5"}
graph:
  y: s * (x @ w) + b
  loss: mean(y ** 2)
  gw: grad.w
  gb: 2 * mean(y)
per_device:
  y: s * (x @ w) + b
  loss: pmean(mean(y ** 2), 'd')
  gw: 2 * s * pmean(mean(y[:, None] * x, axis=0), 'd')
  gb: grad.b
grad: {of: loss, wrt: [w, b, s]}
outputs: {loss: [], gw: [], gb: []}
"""

WITHOUT_CHECK_VMA = f"check_vma: false{OF_THE_GRAPH}"

BY_HAND = {
    "of per_device": (LEAST_SQUARES, ["loss", "g", "grad.w"], ["loss", "g"]),
    "of the graph": (OF_THE_GRAPH, ["loss", "g"], ["loss", "g", "grad.w"]),
    "of the graph, without check_vma": (WITHOUT_CHECK_VMA, ["loss", "g"], ["loss", "g", "grad.w"]),
    "of a tensor-parallel MLP": (
        TENSOR_PARALLEL_MLP,
        ["loss", "g1", "g2", "gx", "grad.w1", "grad.w2", "grad.x"],
        ["loss", "g1", "g2", "gx"],
    ),
    "in a function in a repeat": (IN_A_REPEAT, ["loss", "new", "grad.w"], ["loss", "new"]),
    "of each section one": (
        EACH_ITS_OWN, ["loss", "gw", "gb", "grad.w", "grad.s"], ["loss", "gw", "gb", "grad.b", "grad.s"],
    ),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", BY_HAND)
def test_a_handwritten_gradient_is_compared_with_jaxs(name: str, tmp_path: Path) -> None:
    text, of_graph, of_per_device = BY_HAND[name]
    outcome = harness.run(text, tmp_path, trace=True)
    assert outcome.failures() == []
    assert list(outcome.runs) == PROGRAMS
    for program, run in outcome.runs.items():
        # JAX's own backward pass is not computed beside the one written by hand.
        own = of_per_device if program in ("shard_map", "vmap") else of_graph
        assert sorted(run.outputs) == sorted(own), program
        assert (outcome.checks[program].gradient is not None) == any(output.startswith("grad.") for output in own)
    trace = outcome.record.trace
    assert trace is not None
    assert trace.same_outputs is not None


@pytest.mark.in_turn
def test_every_program_computes_a_gradient_that_outputs_name(tmp_path: Path) -> None:
    outcome = harness.run(LEAST_SQUARES.replace("g: []", "g: [], grad.w: []"), tmp_path)
    assert outcome.failures() == []
    for program in PROGRAMS:
        np.testing.assert_allclose(outcome.value(program, "grad.w"), outcome.value(program, "g"), rtol=1e-5)


MISTAKES = {
    "a factor": (LEAST_SQUARES, "g: 2 * pmean", "g: 3 * pmean"),
    "a sum for a mean": (LEAST_SQUARES, "g: 2 * pmean", "g: 2 * psum"),
    "of the graph": (OF_THE_GRAPH, "g: 2 * mean", "g: 3 * mean"),
    "a psum left out": (TENSOR_PARALLEL_MLP, "psum(dz @ w1.T, 'model')", "psum(dz @ w1.T, 'model') / 2"),
    "a derivative": (TENSOR_PARALLEL_MLP, "1 - h ** 2", "1 - h"),
    "in a repeat": (IN_A_REPEAT, "g: 2 * pmean", "g: 2.001 * pmean"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_handwritten_gradient_fails_in_sections(name: str, tmp_path: Path) -> None:
    text, right, wrong = MISTAKES[name]
    assert right in text
    outcome = harness.run(text.replace(right, wrong), tmp_path, program=["auto", "shard_map"])
    assert outcome.sections is not None
    assert outcome.sections.status == "failed"


@pytest.mark.in_turn
def test_an_edit_that_mends_a_handwritten_gradient_is_found(tmp_path: Path) -> None:
    outcome = harness.run(LEAST_SQUARES.replace("g: 2 * pmean", "g: 2 * psum"), tmp_path)
    assert outcome.sections is not None
    assert any("pmean" in sentence and "per_device.g" in sentence for sentence in outcome.sections.diagnosis)


@pytest.mark.in_turn
def test_without_an_oracle_of_the_gradient_the_rest_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsharded(*_: Any) -> Any:
        raise ValueError("none today")

    monkeypatch.setattr(gradient, "unsharded", unsharded)
    outcome = harness.run(LEAST_SQUARES, tmp_path)
    assert all(failure.endswith("could not be computed: ValueError: none today") for failure in outcome.failures())
    assert outcome.checks["shard_map"].value.outputs["loss"].status == "passed"
    assert outcome.checks["shard_map"].value.outputs["g"].status == "not_run"


@pytest.mark.in_turn
def test_a_pinned_gradient_applies_to_the_programs_that_compute_it(tmp_path: Path) -> None:
    outcome = harness.run(LEAST_SQUARES, tmp_path, expect={"values": {"grad.w": [9, 9, 9, 9]}})
    assert outcome.checks["auto"].values.status == "failed"
    assert outcome.checks["shard_map"].values.status == "not_run"


def test_a_section_that_reads_a_missing_gradient_is_refused() -> None:
    with pytest.raises(InvalidExperiment, match=r"there is no gradient of 'v'"):
        harness.experiment(LEAST_SQUARES.replace("g: grad.w", "g: grad.v"))
