"""The reasons of collectives: what they are, the evidence for them, and that they are not invented."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.why import collectives
from runner.base.layout import Layout, Mesh, Spec
from runner.compiled.evidence import compiler_warnings, hlo_sharding
from runner.compiled.evidence.model import Collective
from runner.compiled.evidence.nodes import Origins
from runner.compiled.why import least
from runner.compiled.why.reasons import explained
from runner.experiment.program import Program
from runner.reports.record.model import Record
from runner.reports.show import collectives as shown
from runner.reports.show.page.run import page
from runner.worker import propagation, resharding
from tests import harness
from tests.command import ROOT, run_command
from tests.conftest import LARGE
from tests.evidence import collective

MLP = """
dims: {B: 8, D: 4, F: 16}
arrays:
  x: {shape: [B, D], spec: [x, null]}
  w1: {shape: [D, F], spec: [x, y]}
  w2: {shape: [F, D], spec: [y, null]}
graph:
  hidden: tanh(x @ w1)
  out: hidden @ w2
  loss: mean(out ** 2)
outputs: {out: [x, null], loss: []}
grad: {of: loss, wrt: [w1, w2]}
program: constraint
"""


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> harness.Outcome:
    return harness.run(MLP, tmp_path_factory.mktemp("mlp"))


def listed(record: Record, program: str = "constraint") -> list[Collective]:
    entries = record.compiled[program].collectives
    assert entries is not None
    return entries


def reason(entries: list[Collective], kind: str, node: str) -> Any:
    """Return the reason of the only collective of a kind in a line."""
    (which,) = [each for each in entries if each.kind == kind and each.nodes == [node] and not each.gradient]
    return which.why


def test_a_sum_over_a_sharded_dimension_names_it_and_the_specs(mlp: harness.Outcome) -> None:
    why = reason(listed(mlp.record), "all-reduce", "out")
    assert (why.by, why.operation, why.line, why.planned) == ("operation", "dot_general", "out", True)
    assert why.dims == ["F"]
    assert why.keys == ["arrays.w1.spec", "arrays.w2.spec"]
    assert why.text == "the product in out sums over F, which arrays.w1.spec and arrays.w2.spec shard over y"


def test_a_gather_names_what_else_the_axis_shards(mlp: harness.Outcome) -> None:
    why = reason(listed(mlp.record), "all-gather", "hidden")
    assert why.dims == ["D"]
    assert why.keys == ["arrays.w1.spec"]
    assert why.text.startswith(
        "the product in hidden needs all of D of w1, which arrays.w1.spec shards over x; x shards B"
    )


def test_every_collective_has_a_reason_or_says_that_it_has_none(mlp: harness.Outcome) -> None:
    for each in listed(mlp.record):
        assert each.why is not None
        assert each.why.by is not None or each.why.text.startswith("not explained: ")


def again(mlp: harness.Outcome, *which: Collective, **changes: Any) -> list[Any]:
    """Return the reasons of collectives with the program's plan changed in this way."""
    plan = mlp.record.compiled["constraint"].plan
    assert plan is not None
    explanations = explained(mlp.experiment, Program.CONSTRAINT, which, replace(plan, **changes))
    return [each.why for each in explanations]


def test_a_collective_without_a_need_is_not_explained(mlp: harness.Outcome) -> None:
    stray = collective("all-gather", "loss", axes=["y"], inserted=True, between={"from": ["loss"], "to": ["loss"]})
    (why,) = again(mlp, stray, collectives=[], operations=[])
    assert why.by is None
    assert why.text.startswith("not explained: Shardy plans nothing in loss")
    nowhere = collective("all-gather", None, axes=["y"], inserted=True, between={"from": [], "to": []})
    (why,) = again(mlp, nowhere)
    assert why.text == "not explained: it comes from no line of the experiment"


def test_a_gather_for_which_nothing_is_planned_says_who_reads_all_of_what(mlp: harness.Outcome) -> None:
    stray = collective("all-gather", "H", axes=["y"], inserted=True, between={"from": ["H"], "to": ["loss"]})
    (why,) = again(mlp, stray, collectives=[], operations=[])
    assert why.text == (
        "loss reads all of H, for which Shardy plans nothing: XLA computes it in parts over y and gathers them"
    )


def test_origins_are_known_after_a_reduction_too(tmp_path: Path) -> None:
    """The body of a reduction is not an operation of the plan; neither module counts it."""
    text = """
arrays: {A: {shape: [8, 4], spec: [x]}, B: {shape: [4, 4]}}
graph: {s: "sum(A, axis=1)", t: A @ B, u: t * 2}
outputs: {s: [x], u: [x, y]}
"""
    plan = harness.run(text, tmp_path, program="constraint").runs["constraint"].ran.compilation.plan
    assert plan is not None
    product = next(operation for operation in plan.operations if operation.name == "dot_general")
    assert product.results[0].origins["y"] == ["outputs.u"]


def test_a_reason_names_the_planned_alternative_and_its_bytes(mlp: harness.Outcome) -> None:
    other = collective("all-gather", "out", axes=["y"], inserted=True, between={"from": ["w2"], "to": ["out"]})
    (why,) = again(mlp, other)
    assert why.planned is False
    assert why.instead == ["1 × all-reduce of out over y: a device sends 64 B"]
    assert why.instead_sent == 64
    planned = "Shardy had planned an all-reduce of out over y, for which a device would have sent 64 B"
    assert why.text.endswith(f"; {planned}")


def test_the_need_of_another_value_is_no_reason(mlp: harness.Outcome) -> None:
    other = collective("all-gather", "hidden", axes=["x"], inserted=True, between={"from": ["x"], "to": ["hidden"]})
    (why,) = again(mlp, other)
    assert why.planned is False


def test_without_a_plan_a_sentence_says_so_and_nothing_else_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "runner.worker.propagation.propagated", lambda *_: "Shardy's passes cannot be run from Python here"
    )
    record = harness.run(MLP, tmp_path, grad=None).record
    assert record.status == "passed"
    texts = {each.why.text for each in listed(record) if each.why}
    assert texts == {"not explained: Shardy's plan is not known: Shardy's passes cannot be run from Python here"}


PER_DEVICE = """
arrays:
  x: {shape: [8, 4], spec: [x, null]}
  w: {shape: [4, 4], spec: []}
per_device:
  y: tanh(x @ w)
  loss: psum(sum(y ** 2), 'x')
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
program: shard_map
"""


@pytest.mark.in_turn
def test_collectives_of_the_program_and_of_differentiation_have_reasons(tmp_path: Path) -> None:
    entries = listed(harness.run(PER_DEVICE, tmp_path).record, "shard_map")
    reasons = {(each.why.by, each.why.text) for each in entries if each.why}
    merged = {by for by, _ in reasons}
    assert "program" in merged
    assert any("per_device.loss asks for it: psum(sum(y ** 2), 'x')" in text for _, text in reasons)


@pytest.mark.in_turn
def test_the_plan_repeats_no_reason_that_a_program_gives(tmp_path: Path) -> None:
    output = run_command("case3_allreduce", "program=derived", "explain=full", f"hydra.run.dir={tmp_path}/a").stdout
    assert output.count("the product in C sums over J, which arrays.A.spec and arrays.B.spec shard over x") == 1
    assert "\n      all-reduce over x, a device sends 64 B\n" in output


@pytest.mark.in_turn
def test_the_terminal_explains_where_it_is_asked_to_and_a_failure_always(tmp_path: Path) -> None:
    outcome = run_command("+experiment=case3_allreduce", "program=auto", "explain=full", f"hydra.run.dir={tmp_path}/a")
    line = (
        "auto: all-reduce of C over x: the product in C sums over J, which arrays.A.spec and arrays.B.spec shard over x"
    )
    assert f"{line}; Shardy plans it too\n" in outcome.stdout
    assert "arrays.A.spec: conf/experiment/case3_allreduce.yaml:" in outcome.stdout
    silent = run_command("+experiment=case3_allreduce", "program=auto", f"hydra.run.dir={tmp_path}/b")
    assert "sums over" not in silent.stdout
    overrides = ("+experiment=case3_allreduce", "program=auto", "expect.collectives=null", "expect.no_collectives=true")
    ran = run_command(*overrides, f"hydra.run.dir={tmp_path}/c")
    assert ran.returncode == 1
    assert "    why: the product in C sums over J, which arrays.A.spec and arrays.B.spec shard over x" in ran.stdout


@pytest.mark.in_turn
def test_an_override_is_the_place_of_what_it_sets(tmp_path: Path) -> None:
    override = "arrays.B.spec=[x,null]"
    ran = run_command(
        "+experiment=case3_allreduce", "program=auto", "explain=full", override, f"hydra.run.dir={tmp_path}/a"
    )
    assert f"arrays.B.spec: command line: {override}\n" in ran.stdout


# All experiments.

NAMES = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))


UNEXPLAINED = {("circular_pipeline", "auto", "pipeline.taken")} if jax.__version_info__ >= (0, 12) else set()
"""The experiment, program and line of collectives without a reason.

XLA of jax 0.12 fuses the shift of the stages into the two lines that read it, so the collective belongs to these,
although neither needs one.
"""


@pytest.mark.sample(24)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.whole) if name in LARGE else name for name in NAMES]
)
def test_shipped_experiments_are_explained(name: str, tmp_path: Path) -> None:
    for program, each in collectives(name, tmp_path):
        assert each.why is not None
        if (name, str(program), each.node) in UNEXPLAINED:
            assert each.why.text.startswith("not explained: ")
        else:
            assert each.why.by is not None, (program, each.why.text)


# The form of a reason.

BATCHED = """
dims: {B: 8, D: 4, F: 16}
arrays:
  x: {shape: [B, D], spec: [x, null]}
  y: {shape: [B, F], spec: [x, null]}
  w: {shape: [D, F], spec: [null, y]}
graph:
  out: tanh(x @ w)
  loss: mean((out - y) ** 2)
outputs: {loss: []}
program: auto
"""


def test_exactly_the_keys_that_shard_the_needed_value_are_named(tmp_path: Path) -> None:
    """x and y both shard B over x, and either would be enough; w shards F over y, and has no B."""
    entries = listed(harness.run(BATCHED, tmp_path).record, "auto")
    keys = {(tuple(each.axes or ()), tuple(each.why.keys)) for each in entries if each.why and each.nodes == ["loss"]}
    assert keys <= {
        (("x",), ("arrays.x.spec", "arrays.y.spec")),
        (("y",), ("arrays.w.spec",)),
        (("x", "y"), ("arrays.x.spec", "arrays.y.spec", "arrays.w.spec")),
    }
    assert keys


def test_a_collective_of_other_bytes_is_another_one(mlp: harness.Outcome) -> None:
    (planned,) = [
        each for each in listed(mlp.record) if each.kind == "all-reduce" and each.nodes == ["out"] and not each.gradient
    ]
    assert planned.why is not None
    assert planned.why.planned
    assert planned.bytes_in is not None
    (why,) = again(mlp, replace(planned, bytes_in=3 * planned.bytes_in, bytes_out=3 * planned.bytes_in))
    assert not why.planned
    assert "; Shardy had planned an all-reduce of out over y" in why.text


def test_a_compiled_collective_is_not_named_as_planned_instead(mlp: harness.Outcome) -> None:
    (planned,) = [
        each for each in listed(mlp.record) if each.kind == "all-reduce" and each.nodes == ["out"] and not each.gradient
    ]
    other = collective("all-gather", "out", axes=["y"], inserted=True, between={"from": ["w2"], "to": ["out"]})
    why, _ = again(mlp, other, planned)
    assert why.instead == []


def test_an_unplanned_part_of_a_merged_sum_is_reported(mlp: harness.Outcome) -> None:
    merged = next(each for each in listed(mlp.record) if each.parts)
    assert merged.bytes_in == sum(part.bytes or 0 for part in merged.parts)
    more = replace(merged.parts[0], bytes=12, nodes=["hidden"], gradient=False)
    (why,) = again(mlp, replace(merged, parts=[*merged.parts, more]))
    assert why.text.endswith("; 12 B of hidden is no sum that Shardy plans")
    assert not why.planned


CHECKPOINTED = """
mesh: {axes: [x], shape: [4]}
arrays:
  x: {shape: [8, 8], spec: [x]}
  w: {shape: [2, 8, 8], spec: [null, x]}
per_device:
  l:
    repeat: 2
    over: {v: w}
    carry: {h: x}
    body: {full: "all_gather(v, 'x', tiled=True)", h: tanh(h @ full)}
    checkpoint: true
  loss: pmean(mean(l.h ** 2), 'x')
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
program: shard_map
"""


@pytest.mark.in_turn
def test_a_recomputed_gather_is_not_a_derivative(tmp_path: Path) -> None:
    entries = listed(harness.run(CHECKPOINTED, tmp_path).record, "shard_map")
    (gather,) = [each for each in entries if each.kind == "all-gather" and each.gradient]
    assert gather.again
    assert gather.why is not None
    assert gather.why.text == (
        "per_device.l.body.full asks for it: all_gather(v, 'x', tiled=True); it is computed again in the backward pass"
    )


@pytest.mark.in_turn
def test_a_gather_over_an_automatic_axis_for_a_gradient_is_backward_and_explained(tmp_path: Path) -> None:
    text = """
mesh: {axes: [x, y], shape: [2, 2]}
arrays:
  a: {shape: [8, 8], spec: [x]}
  w1: {shape: [8, 16], spec: [y]}
  w2: {shape: [16, 8], spec: [y]}
per_device: {h: tanh(a @ w1), out: h @ w2, loss: "pmean(mean(out ** 2), 'x')"}
manual: [x]
outputs: {loss: []}
grad: {of: loss, wrt: [w1, w2]}
program: shard_map
"""
    entries = listed(harness.run(text, tmp_path).record, "shard_map")
    backward = [each for each in entries if each.gradient and each.inserted]
    assert backward
    assert all(each.why and each.why.planned for each in backward), [each.why for each in backward]


@pytest.mark.parametrize(
    ("expression", "arrays"),
    [("top_k(a, 2)[0]", "a: {shape: [8, 8], spec: [null, x]}"),
     ("solve_triangular(a, b, lower=True)", "a: {shape: [4, 4], spec: [x]}, b: {shape: [4, 4], spec: [x]}")],
)  # fmt: skip
def test_an_operation_without_a_rule_of_shardys_needs_the_moved_value(
    expression: str, arrays: str, tmp_path: Path
) -> None:
    text = f'mesh: {{axes: [x], shape: [4]}}\narrays: {{{arrays}}}\ngraph: {{t: "{expression}"}}\n'
    entries = listed(harness.run(text + "outputs: {t: []}\nprogram: auto\n", tmp_path).record, "auto")
    assert entries
    for each in entries:
        assert each.why is not None
        assert each.why.text.startswith(("t needs all of dimension", "the "))
        assert each.why.keys


@pytest.mark.in_turn
def test_a_gradient_that_lines_read_has_its_arrays_layout(tmp_path: Path) -> None:
    text = """
mesh: {axes: [x], shape: [4]}
arrays: {a: {shape: [8, 6]}, w: {shape: [6, 8], spec: [null, x]}}
graph: {loss: "sum(tanh(a @ w) ** 2)", largest: "max(abs(grad.w * 2))"}
grad: {of: loss, wrt: [w]}
outputs: {loss: [], largest: []}
"""
    record = harness.run(text, tmp_path).record
    for program in ("auto", "constraint", "derived"):
        (why,) = [each.why for each in listed(record, program) if each.nodes == ["largest"]]
        assert why is not None
        assert "which arrays.w.spec shards over x" in why.text


TYPED = """
mesh: {axes: [x], shape: [4]}
dims: {B: 8, D: 4}
arrays: {a: {shape: [B, D], spec: [x, null]}, w: {shape: [D, D]}}
graph: {h: tanh(a @ w), loss: sum(h ** 2)}
constraints: {h: [x, null]}
outputs: {loss: []}
program: explicit
"""


def test_a_redundant_constraint_is_named_beside_the_keys_of_the_type(tmp_path: Path) -> None:
    """With explicit types every operation states its result's layout: h has it even without `constraints.h`."""
    (why,) = [each.why for each in listed(harness.run(TYPED, tmp_path).record, "explicit")]
    assert why is not None
    assert why.keys == ["arrays.a.spec", "constraints.h"]


RESHARDED = """
mesh: {axes: [x], shape: [4]}
dims: {B: 8, D: 4}
arrays: {a: {shape: [B, D], spec: [x, null]}, w: {shape: [D, D]}}
graph: {h: tanh(a @ w), loss: sum(h ** 3)}
constraints: {h: [null, x]}
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
program: explicit
"""


@pytest.mark.in_turn
def test_a_reshard_in_the_backward_pass_is_the_derivative_of_a_reshard(tmp_path: Path) -> None:
    entries = listed(harness.run(RESHARDED, tmp_path).record, "explicit")
    (why,) = [each.why for each in entries if each.kind == "all-to-all" and each.gradient]
    assert why is not None
    assert why.text == (
        "the derivative of the reshard in h (backward) needs loss split along B instead of D, "
        "which constraints.h shards over x"
    )


OF_A_CALL = """
mesh: {axes: [x], shape: [4]}
arrays: {a: {shape: [8, 4], spec: [x, null]}, b: {shape: [8, 4], spec: [x, null]}}
functions:
  both(a, b):
    half: a / 2
    result: (half + b, half - b)
graph: {"p, q": "both(a, b)"}
outputs: {p: [], q: [x, null]}
program: constraint
"""


def test_a_constraint_on_one_of_several_results_is_attributed_to_it(tmp_path: Path) -> None:
    (why,) = [each.why for each in listed(harness.run(OF_A_CALL, tmp_path).record)]
    assert why is not None
    assert why.text.startswith("outputs.p wants all of ")


REGROUPED = """
mesh: {axes: [x], shape: [2]}
dims: {B: 4, Q: 4, K: 2, D: 6}
arrays:
  q: {shape: [B, Q, D], spec: [null, x, null]}
  k: {shape: [B, K, D], spec: [null, x, null]}
  o: {shape: [Q, D], spec: [x, null]}
graph: {groups: "repeat(k, Q // K, axis=1)", out: "einsum('bqd,qd->bd', q * groups, o)"}
outputs: {out: []}
program: auto
"""


def test_a_key_of_an_array_without_the_dimension_is_named_through_its_own(tmp_path: Path) -> None:
    entries = listed(harness.run(REGROUPED, tmp_path).record, "auto")
    (why,) = [each.why for each in entries if each.kind == "all-reduce"]
    assert why is not None
    assert why.text == (
        "the product in out sums over Q, which arrays.q.spec and arrays.o.spec shard over x "
        "and arrays.k.spec by way of K"
    )
    assert why.dims == ["Q"]


def test_a_gather_instead_of_an_all_to_all_names_both_layouts(tmp_path: Path) -> None:
    text = """
mesh: {axes: [x], shape: [4]}
dims: {M: 8, N: 16}
arrays: {signal: {shape: [M, N], dtype: complex64, init: normal + 1j * normal, spec: [x, null]}}
graph: {spectrum: "fft(fft(signal, axis=1), axis=0)"}
outputs: {spectrum: [null, x]}
program: constraint
"""
    entries = listed(harness.run(text, tmp_path).record)
    moved = [each for each in entries if each.why and each.between and each.between.source == ["spectrum"]]
    # The XLA of JAX 0.12 uses the planned all-to-all.
    keys = {"all-gather": ["arrays.signal.spec", "outputs.spectrum"], "all-to-all": ["arrays.signal.spec"]}
    assert [each.why and each.why.keys for each in moved] == [keys[each.kind] for each in moved]
    assert len(moved) == 1


@pytest.mark.in_turn
def test_a_part_without_a_planned_sum_names_the_sum(tmp_path: Path) -> None:
    """The plan moves the weights' operands; the partitioner gathers the weights, and sums their gradients."""
    entries = [each for program, each in collectives("why_weight_gather", tmp_path) if program is Program.CONSTRAINT]
    (why,) = [each.why for each in entries if "loss" in each.nodes]
    assert why is not None
    assert (
        "the product in hidden (backward) sums over B, which constraints.hidden and arrays.x.spec shard over data"
        in (why.text)
    )
    assert why.text.endswith("4.1 kB of hidden (backward) and 4.1 kB of y (backward) are no sum that Shardy plans")
    assert why.planned is False


@pytest.mark.in_turn
def test_the_layout_of_an_automatic_axis_that_a_devices_lines_ask_for_is_named(tmp_path: Path) -> None:
    entries = [
        each for program, each in collectives("manual_data_auto_model", tmp_path) if program is Program.SHARD_MAP
    ]
    (why,) = [each.why for each in entries if each.inserted]
    assert why is not None
    assert why.keys == ["constraints.hidden", "arrays.w2.spec"]


def test_a_permute_never_replaces_a_sum(mlp: harness.Outcome) -> None:
    other = collective("collective-permute", "out", axes=["y"], inserted=True, between={"from": ["w2"], "to": ["out"]})
    (why,) = again(mlp, other)
    assert why.instead == []


# Rematerializations.

MESH = Mesh(("x", "y"), (4, 2))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{devices=[2,1,4]<=[4,2]T(1,0)}", [["y"], [], ["x"]]),
        ("{devices=[1,8,1]<=[8]}", [[], ["x", "y"], []]),
        ("{devices=[1,4,1,2]<=[8] last_tile_dim_replicate}", [[], ["x"], []]),
        ("{devices=[1,8,1]<=[4,2]T(1,0)}", [[], ["y", "x"], []]),
        ("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", [["y"], [], ["x"]]),
        ("{mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]}", [[], ["x", "y"], []]),
        ("{replicated}", [[], [], []]),
        ("{devices=[2,1,4]<=[8]}", None),
        ("{devices=[3,1,1]<=[3]}", None),
        ("{maximal device=0}", None),
    ],
)
def test_a_sharding_of_xlas_is_a_partition_spec(text: str, spec: Any) -> None:
    assert hlo_sharding.spec(text, 3, MESH) == (None if spec is None else Spec.of(spec))


def test_a_sharding_that_jax_makes_is_read_back() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    for entries in ([("y",), ("x",)], [("x", "y"), ()], [("y", "x"), ()], [(), ("y",)]):
        sharding = jax.sharding.NamedSharding(mesh, jax.P(*(axes or None for axes in entries)))
        text = str(sharding._to_xla_hlo_sharding(2))
        parsed = hlo_sharding.spec(text, 2, MESH)
        assert parsed is not None
        mine, theirs = (Layout(MESH, (8, 8), spec) for spec in (parsed, Spec(entries)))
        assert [mine.block(at) for at in range(8)] == [theirs.block(at) for at in range(8)], text


def test_a_warning_without_layouts_says_nothing_of_them() -> None:
    assert compiler_warnings.change("[SPMD] Involuntary full rematerialization.", MESH) is None


def test_a_rematerialization_has_a_verified_way_around(tmp_path: Path) -> None:
    command = ("+experiment=why_rematerialization", "program=constraint", f"hydra.run.dir={tmp_path}/a")
    ran = run_command(*command)
    assert (
        "  float32[16, 16, 16] goes from P('y', None, 'x') to P(None, ('x', 'y'), None); "
        "by way of P('y', 'x', None) a device sends 2.6 kB "
        "(compiled without a warning, and run: the values are the same)\n"
    ) in ran.stdout


def test_a_rematerialization_of_padded_blocks_has_no_way_around() -> None:
    """Three rows, padded, on two devices: no PartitionSpec expresses them."""
    experiment = harness.experiment(MLP, mesh={"axes": ["x", "y"], "shape": [2, 3]}, dims={"B": 6, "D": 6, "F": 6})
    text = (
        "W1126 03:11:50.016390   25999 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. "
        "The compiler cannot go from sharding "
        "{devices=[3,1,2]<=[2,3]T(1,0) last_tile_dim_replicate} to {devices=[2,1,3]<=[6] last_tile_dim_replicate} "
        "efficiently for HLO operation %slice = f32[1,12]{1,0} slice(%x)"
    )
    mesh = jax.make_mesh((2, 3), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    (change,) = resharding.ways(experiment, Origins(experiment, "graph"), text, mesh, run=False).values()
    assert (change.before, change.after, change.through) == (Spec.of(["y", None]), Spec.of(["x", None]), None)


def test_a_way_around_equal_rematerializations_is_sought_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = harness.experiment(MLP, mesh={"axes": ["x", "y"], "shape": [2, 2]})
    words = (
        "W1126 03:11:50.016390   25999 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. "
        "The compiler cannot go from sharding {{devices=[2,1,2]<=[4] last_tile_dim_replicate}} to "
        "{{devices=[1,2,2]<=[4] last_tile_dim_replicate}} efficiently for HLO operation %{} = f32[4,8]{{1,0}} add(%x)"
    )
    tried: list[str] = []
    monkeypatch.setattr(resharding, "_tried", lambda *given, **_: tried.append(str(given[3])) or 64)
    text = "\n".join(words.format(f"add.{layer}") for layer in range(5))
    ways = resharding.ways(experiment, Origins(experiment, "graph"), text, None, run=False)
    assert len(ways) == 5
    assert len(tried) == 1
    assert {way.bytes_sent for way in ways.values()} == {64}


# The least.


def test_the_gap_is_to_the_program_that_sends_the_least() -> None:
    programs = {
        "auto": [collective(bytes=90), collective(node="D", bytes=10)],
        "derived": [collective(bytes=50)],
        "constraint": [collective(bytes=50)],
    }
    gaps = least.gaps(programs, {"auto": 100, "derived": 50, "constraint": 50})
    assert gaps == {"auto": least.Gap(program="derived", times=2.0, lines={"C": [90, 50], "D": [10, 0]})}
    assert least.gaps({"auto": [collective(bytes=4)], "derived": []}, {"auto": 4, "derived": 0})["auto"].times is None
    assert least.gaps({}, {}) == {}


# The notation.


def test_the_derivation_is_in_the_scaling_books_notation(tmp_path: Path) -> None:
    derivation = harness.run(MLP, tmp_path, program="derived", grad=None).record.derivation
    assert derivation is not None
    hidden, out, loss = derivation.notation
    assert hidden.text == "hidden[B_x, F_y] = tanh(x[B_x, D] · w1[D_x, F_y])"
    assert [text.split(";")[0] for text in hidden.collectives] == [
        "all-gather of w1 over x: w1[D_x, F_y] → w1[D, F_y], a device sends 64 B"
    ]
    assert out.text == "out[B_x, D] = hidden[B_x, F_y] · w2[F_y, D]"
    assert out.collectives[0].startswith("all-reduce over y, a device sends 64 B: the product in out sums over F")
    assert loss.text == "loss = mean(out[B_x, D] ** 2)"


NOTED = """
mesh: {axes: [x], shape: [4]}
arrays:
  x: {shape: [8, 6], spec: [x]}
  k: {shape: [8, 4], spec: [x]}
  w: {shape: [12, 4], spec: [null, x]}
functions:
  twice(x): {a: x * 2, result: a + x}
graph:
  y: twice(w.T)
  z: einsum('xk,kw->xw', y, w)
  scan: {repeat: 8, over: {v: k}, carry: {h: zeros(4)}, body: {h: h + v}}
  last: scan.h
outputs: {z: [], y: [x], last: []}
program: derived
"""


def test_the_notation_names_the_values_visible_at_each_line(tmp_path: Path) -> None:
    """A parameter names its argument, a text contains no names, and a step has a slice."""
    derivation = harness.run(NOTED, tmp_path).record.derivation
    assert derivation is not None
    notation = {line.text for line in derivation.notation}
    assert {
        "y_a[4_x, 12] = y_x[4_x, 12] * 2",
        "z[4, 4_x] = einsum('xk,kw->xw', y[4_x, 12], w[12, 4_x])",
        "scan: 8 steps, in each of which",
        "scan.h[4] = zeros(4) at first",
        "scan.v[4] = k[8_x, 4][i]",
        "scan.h[4] = h[4] + v[4]",
    } <= notation
    moves = [text for line in derivation.notation for text in line.collectives]
    assert any("y[4_x, 12] → y[4, 12]" in text for text in moves), moves


def test_the_keys_in_reasons_are_shown_with_their_places(mlp: harness.Outcome) -> None:
    # There is no file, but the keys of reasons are printed nevertheless.
    lines = shown.reasons(mlp.record)
    assert any(line.startswith("constraint: all-reduce of out over y: ") for line in lines)


def test_the_pass_that_traces_origins_may_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = propagation.propagated
    crashing = propagation.ORIGINATING
    monkeypatch.setattr(propagation, "propagated", lambda low, how: "it crashed" if how == crashing else own(low, how))
    outcome = harness.run(MLP, tmp_path, grad=None).record
    plans = [result.plan for result in outcome.compiled.values()]
    assert {each and each.unknown for each in plans} == {"the origins of its shardings: it crashed"}
    assert {each.why.by for each in listed(outcome) if each.why} == {"operation"}
    assert "what Shardy plans: the origins of its shardings: it crashed" in page(outcome, tmp_path)
