"""Derivation of whole experiments: the derived lines, and their values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.app.cli.derive import text
from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh, Spec
from runner.checks import oracles
from runner.checks.context import Context
from runner.checks.kinds import derivation
from runner.experiment import data, expect
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.sections import read_section
from runner.experiment.traced import TracedLines, TracedTerm
from runner.experiment.traced_graphs import lines_of
from runner.experiment.written import of
from runner.graph.inlining import of_equations
from runner.graph.language.check import VisibleNames
from runner.graph.language.syntax import parse
from runner.graph.model import Graph
from runner.graph.sharding import moves
from runner.programs.derivation.section import section, with_lines
from runner.programs.derivation.sharing import inlined
from runner.programs.types import InferredTypes
from runner.reports.record.verdicts import Judged, NotRun
from runner.worker import propagation
from runner.worker.types import infer
from tests import harness
from tests.command import ROOT

SHIPPED = {
    path.stem: harness.loaded(path.read_text(encoding="utf-8"))
    for path in (ROOT / "conf" / "experiment").glob("*.yaml")
}
GRAPHS = sorted(name for name, config in SHIPPED.items() if "graph" in config and not expect.refusal(config))
"""The experiments with a graph that do not expect a refusal."""

MODELS = harness.loaded((ROOT / "tests" / "models.yaml").read_text(encoding="utf-8"))
"""Programs as their users would write them."""

MLP = """
arrays:
  x: {shape: [8, 4], spec: [x, null]}
  w1: {shape: [4, 16], spec: [x, y]}
  w2: {shape: [16, 4], spec: [y, x]}
graph:
  hidden: gelu(x @ w1)
  out: hidden @ w2
outputs: {out: [x, null]}
"""


def _types(experiment: Experiment) -> InferredTypes:
    with harness.configured(experiment):
        return infer(replace(experiment, programs=(Program.DERIVED,), chosen=True))


def _lines(text: str, **changes: object) -> dict[str, object]:
    """Return the derived lines of an experiment."""
    types = _types(harness.experiment(text, **changes))
    assert not types.unsupported
    assert types.derivation is not None
    return types.derivation.per_device


def _pasted(experiment: Experiment, lines: Mapping[str, object]) -> Graph:
    """Return the graph that a file with these lines as its `per_device` has."""
    scope = VisibleNames("per_device", experiment.mesh, {array.name for array in experiment.arrays}, experiment.dims)
    if experiment.grad is not None:
        scope.loops["grad"] = experiment.grad.wrt
    written = of(lines, ("per_device",), "per_device", shared=False)
    return read_section(written, scope, experiment.dims, {}, [array.name for array in experiment.given])


# `make experiments` runs what is derived of the largest too.
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.whole) if name.startswith(("llama_", "mamba_")) else name for name in GRAPHS],
)
def test_every_shipped_graph_is_derived_and_right(name: str, tmp_path: Path) -> None:
    experiment, _ = harness.shipped(name, tmp_path)
    types = _types(experiment)
    assert types.derived is not None, types.unsupported
    arrays = data.make(experiment, tmp_path)
    context = Context(experiment, arrays, types.outputs, types.floats, None, None)
    assert types.derivation is not None
    assert derivation.check(context, types.derived, types.floats["derived"]) == Judged(status="passed")
    crossed = TracedLines.of(json.loads(json.dumps(TracedLines((), lines_of(types.derived.per_device), ()).json())))
    derived = with_lines(experiment, crossed.lines, check_vma=types.derivation.check_vma)
    assert section(derived.per_device) == types.derivation.per_device
    assert derived.per_device == _pasted(experiment, types.derivation.per_device)


def _checked(experiment: Experiment, folder: Path) -> Judged | NotRun | str:
    """Return the interpreter's verdict on an experiment's derived lines, or why there are none."""
    types = _types(experiment)
    if types.derived is None or types.derivation is None:
        return types.unsupported[Program.DERIVED]
    context = Context(experiment, data.make(experiment, folder), types.outputs, types.floats, None, None)
    assert types.derivation.check_vma
    return derivation.check(context, types.derived, types.floats["derived"])


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_derived_and_right(name: str, tmp_path: Path) -> None:
    assert _checked(harness.experiment(MODELS[name]), tmp_path) == Judged(status="passed")


@pytest.mark.whole
@pytest.mark.parametrize("name", MODELS)
def test_the_derived_lines_of_a_model_run_and_are_right(name: str, tmp_path: Path) -> None:
    outcome = harness.run(MODELS[name], tmp_path, program="derived")
    assert outcome.failures() == []
    assert set(outcome.runs) == {Program.DERIVED}


def test_a_wrongly_derived_line_is_noticed(tmp_path: Path) -> None:
    experiment = harness.experiment(MLP)
    types = _types(experiment)
    assert types.derived is not None
    wrong = harness.experiment(MLP + "per_device: {hidden: x, out: 2 * x}\n", program="shard_map")
    context = Context(experiment, data.make(experiment, tmp_path), types.outputs, types.floats, None, None)
    lines = wrong.per_device
    derived = replace(wrong, per_device=of_equations(lines.inputs, lines.equations[1:]))
    verdict = derivation.check(context, derived, {})
    assert verdict == Judged(status="failed", reason="derived computes something else than graph in out")


def test_collectives_are_written_where_the_plan_puts_them() -> None:
    assert _lines(MLP) == {
        "hidden": "gelu(x @ all_gather(w1, 'x', axis=0, tiled=True))",
        "out": "psum(hidden @ all_gather(w2, 'x', axis=1, tiled=True), 'y')",
    }


def test_a_sum_with_a_sharded_result_is_a_psum_scatter() -> None:
    lines = _lines(MLP.replace("out: [x, null]", "out: [x, y]").replace("[y, x]", "[y, null]"))
    assert lines["out"] == "psum_scatter(hidden @ w2, 'y', scatter_dimension=1, tiled=True)"


def test_only_a_maximum_that_the_gradient_runs_through_is_gathered() -> None:
    lines = _lines("""
arrays: {a: {shape: [8, 4], spec: [x, null]}}
graph: {peak: max(a), loss: sum(a * a) / peak, size: max(abs(a)), steepest: max(abs(grad.a))}
grad: {of: loss, wrt: [a]}
outputs: {loss: [], size: [], steepest: []}
""")
    assert lines["peak"] == "max(all_gather(max(a), 'x', axis=0, to='invarying'), axis=0)"
    assert lines["size"] == "pmax(stop_gradient(max(abs(a))), 'x')"
    assert lines["steepest"] == "pmax(max(abs(grad.a)), 'x')"


def test_an_operation_with_inner_sums_is_written_in_parts() -> None:
    arrays = "arrays: {x: {shape: [4, 8], spec: [null, [x, y]]}}\n"
    assert _lines(arrays + "graph: {out: softmax(2 * x)}\noutputs: {out: [null, [x, y]]}") == {
        "out_of": "2 * x",
        "out_max": "pmax(stop_gradient(max(out_of, axis=-1, keepdims=True)), ('x', 'y'))",
        "out_exp": "exp(out_of - out_max)",
        "out": "out_exp / psum(sum(out_exp, axis=-1, keepdims=True), ('x', 'y'))",
    }


def test_a_lookup_in_a_sharded_table_is_masked() -> None:
    assert _lines(
        "arrays:\n"
        "  table: {shape: [8, 4], spec: [x, null]}\n"
        "  ids: {shape: [3], dtype: int32, init: 'integers(0, 8)', spec: []}\n"
        "graph: {out: 'table[ids]'}\noutputs: {out: []}"
    ) == {
        "out_local": "ids - axis_index('x') * 4",
        "out": "psum(where(((out_local >= 0) & (out_local < 4))[:, None], table[clip(out_local, 0, 3)], 0), 'x')",
    }


def test_what_reaches_over_the_edge_of_a_block_gets_it_from_the_neighbour() -> None:
    lines = _lines("arrays: {v: {shape: [8], spec: [x]}}\ngraph: {out: 'roll(v, 1)'}\noutputs: {out: [x]}")
    assert lines == {"out": "concatenate([ppermute(v[-1:], 'x', shift=1), v[:-1]], axis=0)"}


def test_what_is_padded_and_sliced_exchanges_edges() -> None:
    arrays = "arrays: {u: {shape: [8, 4], spec: [x]}}\n"
    assert _lines(arrays + "graph: {p: 'pad(u, ((1, 1), (0, 0)))', out: 'p[:-2] + p[2:]'}\noutputs: {out: [x]}") == {
        "p_before": "ppermute(u[-1:], 'x', perm=((0, 1),))",
        "p_after": "ppermute(u[:1], 'x', perm=((1, 0),))",
        "p": "concatenate([p_before, u, p_after], axis=0)",
        "out": "p[:-2] + p[2:]",
    }


def test_a_convolution_over_sharded_space_exchanges_edges() -> None:
    assert _lines(
        "arrays: {u: {shape: [2, 3, 8], spec: [null, null, x]}, k: {shape: [4, 3, 3], spec: [y]}}\n"
        "graph: {out: \"conv(u, k, (1,), 'SAME')\"}\noutputs: {out: [null, y, x]}"
    ) == {
        "out_before": "ppermute(u[:, :, -1:], 'x', perm=((0, 1),))",
        "out_after": "ppermute(u[:, :, :1], 'x', perm=((1, 0),))",
        "out": "conv(concatenate([out_before, u, out_after], axis=2), k, (1,), [(0, 0)])",
    }


def test_a_slice_of_a_sharded_dimension_is_scattered() -> None:
    lines = _lines("arrays: {v: {shape: [16], spec: [x]}}\ngraph: {out: 'v[2:6]'}\noutputs: {out: [x]}")
    assert lines == {
        "out_at": "arange(4) + 2 - axis_index('x') * 8",
        "out": "psum_scatter(where((out_at >= 0) & (out_at < 8), take(v, clip(out_at, 0, 7), axis=0), 0), 'x', "
        "scatter_dimension=0, tiled=True)",
    }


LOOKED_UP_IN_ROWS = """
mesh: {axes: [data, model], shape: [2, 2]}
arrays:
  a: {shape: [8, 4], spec: [data]}
  b: {shape: [8], dtype: int32, init: "integers(0, 4)", spec: [data]}
  c: {shape: [8], spec: [data]}
graph:
  lp: a - log(reshape(sum(exp(a), axis=1), (8, 1)))
  i: reshape(b, (8, 1, 1))
  t: lp.at[reshape(arange(8), (8, 1)), reshape(i[:, :, 0], (8, 1))].get(mode='fill', fill_value=inf - inf)
  r: exp(squeeze(t, 1) - c)
  y: sum(r, axis=0) / 8.0 - 0.01 * sum(sum(exp(lp) * lp, axis=1), axis=0)
outputs: {y: []}
"""


def test_a_plan_made_with_another_rule_of_an_operation_is_left_out() -> None:
    assert harness.types(LOOKED_UP_IN_ROWS, program="derived").derived is not None


def test_every_second_element_is_read_without_communication() -> None:
    lines = _lines("arrays: {v: {shape: [16], spec: [x]}}\ngraph: {out: 'v[1:16:2]'}\noutputs: {out: [x]}")
    assert lines == {"out": "v[1::2]"}


def test_top_k_chooses_among_the_largest_of_each_block() -> None:
    lines = _lines("arrays: {v: {shape: [16], spec: [x]}}\ngraph: {out: 'top_k(v, 2)[0]'}\noutputs: {out: []}")
    assert lines == {
        "out_mine": "top_k(v, 2)",
        "out_values": "all_gather(out_mine[0], 'x', axis=0, tiled=True, to='invarying')",
        "out": "top_k(out_values, 2)[0]",
    }


def test_parts_of_an_array_keep_their_sharding() -> None:
    lines = _lines(
        "arrays: {q: {shape: [4, 12], spec: [x]}}\n"
        "graph: {parts: 'split(q, 3, axis=1)', out: 'parts[0] * parts[2]'}\noutputs: {out: [x]}"
    )
    assert lines == {"parts": "split(q, 3, axis=1)", "out": "parts[0] * parts[2]"}


def test_a_segment_sum_with_a_sharded_result_is_a_psum_scatter() -> None:
    lines = _lines(
        "arrays:\n  m: {shape: [8, 2], spec: [x]}\n"
        "  to: {shape: [8], dtype: int32, init: 'integers(0, 4)', spec: [x]}\n"
        "  h: {shape: [4, 2], spec: [x]}\n"
        "graph: {sums: 'segment_sum(m, to, num_segments=4)', out: h + sums}\noutputs: {out: [x]}"
    )
    assert lines == {
        "sums": "psum_scatter(segment_sum(m, to, num_segments=4), 'x', scatter_dimension=0, tiled=True)",
        "out": "h + sums",
    }


def test_an_existing_mean_is_reused() -> None:
    arrays, outputs = "arrays: {a: {shape: [8, 4], spec: [x]}}\n", "outputs: {out: []}"
    of_all = _lines(f"{arrays}graph: {{m: mean(a), out: var(a) + m}}\n{outputs}")
    assert of_all["out"] == "pmean(mean((a - expand_dims(m, (0, 1))) ** 2), 'x') + m"
    lines = _lines(f"{arrays}graph: {{m: 'mean(a, axis=0)', out: 'var(a, axis=0) + m'}}\n{outputs}")
    assert lines == {
        "m": "pmean(mean(a, axis=0), 'x')",
        "out": "pmean(mean((a - expand_dims(m, 0)) ** 2, axis=0), 'x') + m",
    }


def test_a_loop_that_starts_from_zeros_casts_its_carry_to_varying() -> None:
    types = _types(
        harness.experiment(
            "arrays: {a: {shape: [4, 8], spec: [null, x]}}\n"
            "graph:\n  zero: 'zeros((8,))'\n"
            "  loop: {repeat: 4, index: i, carry: {s: zero}, body: {s: 's + a[i]'}, unroll: false}\n  out: loop.s\n"
            "outputs: {out: [x]}"
        )
    )
    assert types.derivation is not None
    assert types.derivation.check_vma
    assert types.derivation.per_device["loop"]["carry"] == {"s": "pcast(zero, 'x', to='varying')"}


def test_an_axis_of_size_1_is_marked_where_jax_cannot_infer_it() -> None:
    types = _types(
        harness.experiment(
            "arrays: {a: {shape: [4, 8], spec: [y, x]}}\ngraph: {out: sum(a)}\noutputs: {out: []}",
            mesh={"axes": ["x", "y"], "shape": [2, 1]},
        )
    )
    assert types.derivation is not None
    assert types.derivation.check_vma
    assert types.derivation.per_device == {
        "a_same": "all_gather(a, 'y', axis=0, tiled=True, to='invarying')",
        "out": "psum(sum(a_same), 'x')",
    }


def test_an_array_that_a_loop_reads_is_gathered_once() -> None:
    lines = _lines(
        "arrays:\n  x: {shape: [4, 4], spec: []}\n  w: {shape: [4, 4, 4], spec: [x]}\n"
        "graph:\n"
        "  layers: {repeat: 4, carry: {h: x}, body: {h: 'tanh(h @ w[i])'}, unroll: false}\n"
        "  out: layers.h\n"
        "outputs: {out: []}"
    )
    assert lines == {
        "w_gathered": "all_gather(w, 'x', axis=0, tiled=True, to='invarying')",
        "layers": {
            "repeat": 4,
            "index": "i",
            "carry": {"h": "x"},
            "body": {"h": "tanh(h @ w_gathered[i])"},
            "unroll": False,
        },
        "out": "layers.h",
    }


def test_an_output_with_another_constraint_has_both_layouts() -> None:
    lines = _lines(
        "arrays: {a: {shape: [8], spec: [x]}}\ngraph: {out: 2 * a}\nconstraints: {out: [x]}\noutputs: {out: []}"
    )
    assert lines == {"out_inner": "2 * a", "out": "all_gather(out_inner, 'x', axis=0, tiled=True, to='invarying')"}


def test_an_underivable_graph_is_omitted_with_the_reason() -> None:
    grows = (
        "arrays: {a: {shape: [4], spec: [x]}}\n"
        "graph:\n"
        "  loop: {repeat: 2, carry: {b: a}, body: {b: 'concatenate([b, b])'}}\n"
        "  out: loop.b\n"
        "outputs: {out: []}"
    )
    types = _types(harness.experiment(grows))
    assert types.unsupported == {"derived": "the shapes in loop.body.b differ from step to step"}


def test_the_lines_are_derived_without_the_private_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagation, "PLANNED", "builtin.module(sdy-of-another-day)")
    types = _types(harness.experiment(MLP))
    assert types.derivation is not None
    assert str(types.derivation.plan.missing).startswith("Shardy's passes cannot be run from Python here: ")
    assert types.derivation.per_device["hidden"] == "gelu(x @ all_gather(w1, 'x', axis=0, tiled=True))"


def test_the_section_can_be_pasted() -> None:
    types = _types(harness.experiment(MLP))
    assert types.derivation is not None
    section_text = text(types.derivation)
    assert "# each device sends 192 B on a ring\n" in section_text
    pasted = harness.experiment(MLP + section_text, program="shard_map")
    assert types.derived is not None
    assert section(pasted.per_device) == section(types.derived.per_device)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("graph", "spec", "more"),
    [
        ("{out: softmax(a), loss: sum(out * a)}", "[x, y]", "grad: {of: loss, wrt: [a]}"),
        ("{out: 'roll(cumsum(a, axis=0), 3, axis=0)', loss: mean(out)}", "[[y, x], null]", ""),
        ("{out: 'sort(a, axis=0)', loss: logsumexp(out)}", "[null, x]", ""),
        ("{loop: {repeat: 3, carry: {b: a}, body: {b: tanh(b @ b.T) @ b}}, out: loop.b, loss: norm(out)}", "[x]", ""),
        (
            "{o: {repeat: 2, carry: {c: a}, body: {n: {repeat: 2, index: j, carry: {b: c}, body: {b: b + j}}, "
            "c: n.b - sum(n.b)}}, out: o.c, loss: sum(out)}",
            "[x, y]",
            "",
        ),
        ("{o: {repeat: 0, carry: {b: a}, body: {b: b + b.T}}, out: o.b, loss: sum(out)}", "[x, y]", ""),
        ("{out: a * max(a), loss: max(out)}", "[x, y]", "grad: {of: loss, wrt: [a]}"),
    ],
)
def test_the_derived_lines_run_and_are_right(graph: str, spec: str, more: str, tmp_path: Path) -> None:
    text = f"arrays: {{a: {{shape: [8, 8], spec: {spec}}}}}\ngraph: {graph}\noutputs: {{out: {spec}, loss: []}}\n{more}"
    outcome = harness.run(text, tmp_path, program="derived")
    assert outcome.failures() == []
    assert set(outcome.runs) == {Program.DERIVED}


def test_derived_needs_a_graph_if_it_is_named() -> None:
    without = "arrays: {a: {shape: [4], spec: [x]}}\nper_device: {out: a}\noutputs: {out: [x]}"
    with pytest.raises(InvalidExperiment, match="program 'derived' is written from graph"):
        harness.experiment(without, program="derived")


def test_each_move_is_the_cheapest() -> None:
    mesh = Mesh(("x", "y"), (4, 2))

    def kinds(before: tuple[tuple[str, ...], ...], after: tuple[tuple[str, ...], ...]) -> list[str]:
        return [move.kind for move in moves.moves(mesh, (8, 8), 4, Spec(before), Spec(after))]

    assert kinds((("x",), ()), ((), ("x",))) == ["all-to-all"]
    assert kinds((("x", "y"), ()), (("y", "x"), ())) == ["collective-permute"]
    assert kinds((("x",), ("y",)), ((), ("y",))) == ["all-gather"]
    assert kinds(((), ()), (("x",), ("y",))) == ["slice", "slice"]
    assert moves.sent(mesh, (8, 8), 4, Spec((("x",), ())), Spec(((), ()))) == 3 * 64


def test_the_text_of_a_line_does_not_depend_on_the_order_of_a_set() -> None:
    lines = tuple(
        TracedTerm(name, parse(expression).term)
        for name, expression in (
            ("q_exchanged", "all_to_all(q, 'seq', 1, 2, tiled=True)"),
            ("k_exchanged", "all_to_all(k, 'seq', 1, 2, tiled=True)"),
            ("scores", "q_exchanged @ swapaxes(k_exchanged, 2, 3) / 4"),
        )
    )
    for moved in itertools.permutations(["q_exchanged", "k_exchanged"]):
        merged_lines = inlined(lines, moved)
        assert [line.name for line in merged_lines] == ["k_exchanged", "scores"]


def test_lines_whose_terms_cancel_are_compared_with_rounding_error() -> None:
    """A sum of standardized rows is only rounding error, which depends on the order of the partial sums."""
    text = """
mesh: {axes: [data], shape: [3]}
arrays:
  A: {shape: [12, 3], spec: [data]}
graph: {n1: standardize(A), n2: SUM}
outputs: {n2: []}
"""
    experiment = harness.experiment(text.replace("SUM", "sum(n1)"))
    types = _types(experiment)
    assert types.derived is not None
    assert types.derivation is not None
    context = oracles.consult(experiment, data.make(experiment, Path()), types.outputs, types.floats)
    assert derivation.check(context, types.derived, types.floats["derived"]).status == "passed"
    other = _types(harness.experiment(text.replace("SUM", "sum(n1) + 1e-11"))).derived
    assert other is not None
    changed = replace(experiment, per_device=other.per_device)
    assert derivation.check(context, changed, types.floats["derived"]).status == "failed"
