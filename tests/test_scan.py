"""Scans, constraints in repeats and rematerialisation: what they become, their values, and the refusals."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from runner.base import executions
from runner.checks.reference import interpret
from runner.experiment.forms import BY_NAMES, POLICIES
from runner.experiment.model import Checkpoint, Experiment
from runner.graph.language.lines import expressions, lines, repeat
from runner.programs.types import InferredTypes, Repairs
from runner.programs.writers import WRITERS
from tests.command import ROOT
from tests.harness import experiment, refusal, run, types

GOOD = """\
mesh: {axes: [x, y], shape: [2, 2]}
dims: {L: 3, B: 4, D: 4}
arrays:
  h: {shape: [B, D], spec: [x, null]}
  w: {shape: [L, D, D], spec: [null, null, y], init: "normal(0, 0.5)"}
functions:
  whole(w): {graph: w, per_device: "all_gather(w, 'y', axis=1, tiled=True, to='invarying')"}
  layer(h, w):
    checkpoint: dots_saveable
    a: checkpoint_name(h @ whole(w), 'product')
    result: tanh(a) + h
  deep(h, w, n):
    many: n - 1
    inner:
      repeat: many + 1
      over: {each: w}
      carry: {u: tanh(h)}
      body:
        kept: layer(u, each)
        u: kept * (i + 1)
      stack: {all: kept}
      checkpoint: {save_only_these_names: [product]}
    result: inner.u + sum(inner.all, axis=0)
both:
  n: L
  layers:
    repeat: n
    over: {v: w}
    carry: {g: 'layer(h, w[0])'}
    body:
      g: layer(g, v)
    stack: {gs: g}
  y: deep(layers.g, w, 3)
  loss: {graph: mean(y ** 2), per_device: "pmean(mean(y ** 2), 'x')"}
constraints: {layers.g: [x, null], y_inner.y_kept: [x, null]}
outputs: {loss: [], y: [x, null], layers.gs: [null, x, null]}
grad: {of: loss, wrt: [w]}
"""
GRAD = "grad: {of: loss, wrt: [w]}\n"


def changed(old: str, new: str, text: str = GOOD) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def expected(h: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the layers' final and intermediate values, computed without the runner."""
    steps = []
    g = np.tanh(h @ w[0]) + h
    for each in w:
        g = np.tanh(g @ each) + g
        steps.append(g)
    u, kept = np.tanh(g), []
    for i, each in enumerate(w):
        kept.append(np.tanh(u @ each) + u)
        u = kept[-1] * (i + 1)
    return u + sum(kept), np.stack(steps)


@pytest.mark.parametrize("section", ["graph", "per_device"])
def test_a_scan_computes_what_numpy_does(section: str) -> None:
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(4, 4)), rng.normal(size=(3, 4, 4))
    values = interpret(experiment(GOOD), section, {"h": h, "w": w}).values  # type: ignore[arg-type]
    y, steps = expected(h, w)
    rows = y.shape[0] if section == "graph" else 2
    np.testing.assert_allclose(values["y"][0], y[:rows], rtol=1e-12)
    np.testing.assert_allclose(values["layers.gs"][0], steps[:, :rows], rtol=1e-12)


@pytest.mark.sample(2)
@pytest.mark.parametrize("unrolled", [False, True])
def test_a_scan_runs_in_every_program(unrolled: bool, tmp_path: Path) -> None:
    text = changed("    stack: {gs: g}\n", "    stack: {gs: g}\n    unroll: true\n") if unrolled else GOOD
    outcome = run(changed(GRAD, "", text), tmp_path)
    assert outcome.failures() == []
    assert set(outcome.runs) == {"auto", "constraint", "explicit", "derived", "shard_map", "vmap"}
    source = outcome.sources["constraint"]
    assert source.count("jax.lax.scan(") == (1 if unrolled else 2)
    # The result, and the final value of each step.
    assert source.count('constraint(g, NamedSharding(mesh, P("x", None)))') == 1
    assert "layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)" in source
    # Without a gradient nothing is recomputed.
    assert not any(compiled.keeping_all for compiled in outcome.record.compiled.values())


@pytest.mark.in_turn
def test_recomputed_operations_are_counted(tmp_path: Path) -> None:
    text = changed("checkpoint: dots_saveable", "checkpoint: true")
    outcome = run(changed("      checkpoint: {save_only_these_names: [product]}\n", "", text), tmp_path, program="vmap")
    assert outcome.failures() == []
    mine = outcome.record.compiled["vmap"]
    assert mine.keeping_all is not None
    assert mine.cost is not None
    assert mine.keeping_all.cost is not None
    assert mine.cost.total_flops is not None
    assert mine.keeping_all.cost.total_flops is not None
    # The product [2, 4] @ [4, 4] of each of the six scanned layers, along y the same on both devices, at least.
    assert mine.cost.total_flops - mine.keeping_all.cost.total_flops >= 6 * 2 * (2 * 2 * 4 * 4)


@pytest.mark.in_turn
def test_a_collective_in_a_scan_counts_as_often_as_it_runs(tmp_path: Path) -> None:
    outcome = run(changed(GRAD, ""), tmp_path, program="shard_map")
    assert outcome.failures() == []
    collectives = outcome.record.compiled["shard_map"].collectives or []
    assert executions.by_kind((c.kind, c.count, c.branches) for c in collectives)["all-gather"] == 1 + 3 + 3


@pytest.mark.in_turn
def test_a_mistake_in_the_order_of_slices_is_noticed(tmp_path: Path) -> None:
    """A `per_device` that takes the slices in reverse order differs from the graph."""
    text = changed("over: {v: w}", 'over: {v: {graph: w, per_device: "w[::-1]"}}')
    text = changed("  n: L\n  layers:", "  n: L\n  turned: {graph: w, per_device: 'w[::-1]'}\n  layers:")
    outcome = run(changed("over: {v: w}", "over: {v: turned}", text.replace(GRAD, "")), tmp_path, program="vmap")
    assert any("sections" in failure for failure in outcome.failures())


def written(of: Experiment, program: str) -> str:
    nothing = InferredTypes({}, {}, Repairs(), {})
    return next(write for name, write in WRITERS.items() if name == program)(of, Path(), nothing)


def test_the_index_is_scanned_only_if_it_is_read() -> None:
    source = written(experiment(GOOD), "auto")
    assert 'jnp.arange(3, dtype="int32")' in source
    assert source.count("jnp.arange(") == 1
    assert "(layers_g,), (layers_gs,) = jax.lax.scan(layers, (layers_g_layer,), (w,))" in source


def test_a_repeat_without_carries_stacks_its_results() -> None:
    text = "arrays: {A: {shape: [3, 4]}}\ngraph: {m: {repeat: 3, over: {a: A}, body: {b: a * 2}, stack: {all: b}}}\n"
    stacked = experiment(text + "outputs: {m.all: []}")
    assert "_, (m_all,) = jax.lax.scan(m, (), (A,))" in written(stacked, "auto")
    values = interpret(stacked, "graph", {"A": np.arange(12.0).reshape(3, 4)}).values
    assert (values["m.all"][0] == 2 * np.arange(12.0).reshape(3, 4)).all()


def test_lines_and_constraints_in_repeats_have_paths() -> None:
    graph = experiment(GOOD).computed("graph")
    paths = [line.path for line, _ in expressions(graph)]
    assert "layers/over/v" in paths
    assert "y_inner/over/each" in paths
    assert experiment(GOOD).constrained.keys() >= {"layers/body/g", "layers.g", "y_inner/body/y_kept"}
    layers = next(loop for loop in map(repeat, lines(graph)) if loop is not None and loop.name == "layers")
    assert (layers.form.steps, layers.form.unroll, layers.results) == (3, False, ("g", "gs"))
    assert [graph.producers[number].results[0].name for number in layers.form.sized_by] == ["n"]


def test_the_checkpoint_policies_are_jaxs() -> None:
    """The omitted policies move values to the host, or combine two others; 0.11 has the classes of some beside them."""
    theirs = {name for name, policy in vars(jax.checkpoint_policies).items() if not isinstance(policy, type)}
    left = {"offload_dot_with_no_batch_dims", "save_and_offload_only_these_names", "save_from_both_policies"}
    assert theirs - left == {*POLICIES, *BY_NAMES}


@pytest.mark.parametrize("written_", [True, "dots_saveable", {"save_only_these_names": ["product"]}])
def test_a_checkpoint_is_formatted_as_written(written_: object) -> None:
    from runner.experiment.remat import read_checkpoint

    checkpoint = read_checkpoint(written_, ())
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.written == written_


FAULTS = {
    "no such policy": (
        ("dots_saveable", "dots_savable"),
        "e.yaml:9:17  functions.layer(h, w).checkpoint\n  no policy 'dots_savable'; did you mean 'dots_saveable'?",
    ),
    "a policy without its names": (
        ("checkpoint: dots_saveable", "checkpoint: save_only_these_names"),
        "e.yaml:9:17  functions.layer(h, w).checkpoint\n"
        "  'save_only_these_names' takes names: write {save_only_these_names: [NAME]}",
    ),
    "a name that nothing has": (
        ("{save_only_these_names: [product]}", "{save_only_these_names: [produkt]}"),
        "e.yaml:22:43  functions.deep(h, w, n).inner.checkpoint.save_only_these_names\n"
        "  nothing has the name 'produkt'; did you mean 'product'?",
    ),
    "what is stacked is not there": (
        ("stack: {gs: g}", "stack: {gs: f}"),
        "e.yaml:32:17  both.layers.stack.gs\n  the body has no 'f'; there are g, i, v",
    ),
    "stacked under a carried name": (
        ("stack: {gs: g}", "stack: {g: g}"),
        "e.yaml:32:16  both.layers.stack.g\n  'g' is carried already; give the stacked values another name",
    ),
    "a slice that is assigned": (
        ("      g: layer(g, v)", "      v: g\n      g: layer(g, v)"),
        "e.yaml:31:10  both.layers.body.v\n  'v' is a slice in each step; choose another name",
    ),
    "over a name that is not there": (
        ("over: {v: w}", "over: {v: W}"),
        "e.yaml:28:15  both.layers.over.v\n  no array, dim or earlier name 'W'; did you mean 'w'?\n    W\n    ^",
    ),
    "no steps": (
        ("    repeat: n\n", "    repeat: n - 3\n"),
        "e.yaml:27:13  both.layers.repeat\n  the repeat 'layers' has 0 steps; a scan has at least one",
    ),
    "steps of an array": (
        ("    repeat: n\n", "    repeat: h\n"),
        "e.yaml:27:13  both.layers.repeat\n"
        "  no dim 'h'; the number of steps cannot depend on arrays: write it with integers, dims, or lines of these",
    ),
    "neither carried nor stacked": (
        (
            "    carry: {g: 'layer(h, w[0])'}\n    body:\n      g: layer(g, v)\n    stack: {gs: g}\n",
            "    body: {g: v}\n",
        ),
        "e.yaml:26:3  both.layers\n  the repeat 'layers' has no 'carry'",
    ),
    "a constraint of no line": (
        ("constraints: {layers.g:", "constraints: {layers.f:"),
        "e.yaml:35:25  constraints.layers.f\n  graph computes no 'layers.f'; did you mean 'layers.g'?",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_invalid_input_is_refused_with_a_message(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old, new), message = FAULTS[name]
    monkeypatch.chdir(tmp_path)
    assert refusal(experiment, changed(old, new), tmp_path / "e.yaml") == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  n: L\n", "  n: L - 1\n", "  it has 3 slices along its first dimension; the repeat has 2 steps"),
        ("over: {v: w}", "over: {v: sum(w)}", "  it has no dimension to slice; the repeat has 3 steps"),
        ("layers.g: [x, null]", "layers.g: [x, null, y]", "  the spec has 3 entries, but 'layers.g' has rank 2"),
    ],
)
def test_a_refusal_of_jax_names_the_line(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refusal(types, changed(old, new), tmp_path / "e.yaml").splitlines()


ARRAYS = """\
dims: {L: 3, D: 4}
arrays:
  x: {shape: [2, D]}
  weights: {shape: [L, D, D]}
  biases: {shape: [L, D]}
  up: {shape: [L, D, 8]}
  down: {shape: [L, 8, D]}
outputs: {layers.h: []}
"""


@pytest.mark.parametrize("title", ["Scans", "Rematerialisation"])
def test_the_documents_example_is_right(title: str) -> None:
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    example = page.split(f"### {title}\n")[1].split("```yaml\n")[1].split("```")[0]
    assert types(ARRAYS + example).outputs["layers.h"].shape == (2, 4)
