"""Which lines a diagnosis names: those of which an edit, tried, mends the program, with all that are as likely."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.base.layout import Mesh
from runner.checks.diagnosis import alignment, search
from runner.checks.diagnosis.recognised import Evidence, Recognising
from runner.checks.edits import missing
from runner.checks.edits.applied import ChangedGraphs
from runner.checks.edits.changed_parts import changing, removing
from runner.checks.edits.missing import inserting
from runner.checks.edits.operands import overlooking
from runner.checks.edits.section import Edits, EditSite
from runner.checks.reference import PerDevice, arithmetic
from runner.checks.reference.rerun import Exhausted, Rerun, Work
from runner.experiment.changing import Unlisted
from runner.graph.language.python_source import differentiated, passed_by_rules, passed_on, reading
from runner.graph.language.syntax import parse
from runner.graph.model import walk
from runner.graph.source import Frame, Line
from runner.graph.term import Name
from tests.test_diagnosis import context

TEXT = """
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [8, 16], spec: [x, null]}
  B: {shape: [16, 8], spec: [null, x]}
outputs: {C: [null, x]}
"""
PAIRS = "((0, 1), (1, 2), (2, 3), (3, 0))"


def unrolled(steps: int, offset: str = "-") -> dict[str, Any]:
    """A collective matmul along a ring, of which each step is lines of its own."""
    lines = {"i": "axis_index('x')", "C0": "dynamic_update_slice(zeros((8, 2)), A @ B, (i * 2, 0))"}
    block = "A"
    for step in range(1, steps):
        lines[f"chunk{step}"] = f"ppermute({block}, 'x', {PAIRS})"
        block = f"chunk{step}"
        name = "C" if step == steps - 1 else f"C{step}"
        lines[name] = f"dynamic_update_slice(C{step - 1}, {block} @ B, ((i {offset} {step}) % 4 * 2, 0))"
    return lines


def test_the_step_that_an_unrolled_ring_lacks_is_put_back_and_no_gather_in_its_place() -> None:
    assert search.diagnose(context("A @ B", unrolled(3), TEXT)) == [
        "per_device.C: the steps of this line are one too few: with one more after the last it equals the graph"
    ]


@pytest.mark.in_turn
def test_an_unrolled_ring_that_turns_the_other_way_has_two_lines_either_of_which_may_be_turned() -> None:
    permuted, stored = search.diagnose(context("A @ B", unrolled(4, "+"), TEXT))
    assert permuted.startswith("per_device.chunk1: ")
    assert "sends the wrong way" in permuted
    assert stored == "or per_device.C1: i + 1 should be i - 1: with that it equals the graph"


def test_no_kind_of_edit_takes_the_turn_of_the_others() -> None:
    edit = next(changing(Edits(context("A @ B", unrolled(3), TEXT).experiment, "per_device")))
    likely, other, far = replace(edit, kind="put back"), replace(edit, kind="dimension"), replace(edit, line="far")
    near = search._nearest_first([*[likely] * 80, far, other], {edit.place})  # type: ignore[reportPrivateUsage]
    assert near == [[*[likely] * 32, other, *[likely] * 48], [far]]


def test_a_diagnosis_with_no_time_names_nothing_and_says_where_the_output_differs() -> None:
    given = context("A @ B", unrolled(3), TEXT)
    given.experiment = given.experiment.at(diagnose=0)
    nothing, where = search.diagnose(given)
    assert nothing == "no single edit of per_device was found within 0 s that makes it equal the graph"
    assert where.startswith("C begins to differ from the reference on devices 0-3")


def test_diagnose_is_a_number_of_seconds_that_is_not_negative() -> None:
    with pytest.raises(Exception, match="0 or more"):
        context("A @ B", unrolled(4), TEXT, diagnose=-1)


def edit_of(given: Any, kind: str, after: str) -> Any:
    edits = Edits(given.experiment, "per_device", reference=given.experiment)
    return next(edit for edit in (*changing(edits), *overlooking(edits)) if (edit.kind, edit.after) == (kind, after))


def test_a_changed_graph_shares_the_equations_that_the_edit_leaves() -> None:
    given = context("A @ B", unrolled(4), TEXT)
    graphs = ChangedGraphs(given.experiment, "per_device")
    changed = graphs.of(edit_of(given, "sign", "i + 3"))
    own = [*walk(graphs.graph)]
    others = [equation for equation in walk(changed) if not any(equation is each for each in own)]
    assert {equation.source.line.label for equation in others} == {"C"}
    assert [value.number for value in changed.equations[-1].results] == [
        value.number for value in graphs.graph.equations[-1].results
    ]


def test_two_edits_are_made_together() -> None:
    given = context("A @ B", unrolled(4), TEXT)
    graphs = ChangedGraphs(given.experiment, "per_device")
    lines = {e.source.line.label for e in walk(graphs.graph)}
    changed = graphs.of(edit_of(given, "sign", "i + 3"), edit_of(given, "sign", "i + 2"))
    edited = {e.source.line.label for e in walk(changed) if not any(e is each for each in walk(graphs.graph))}
    assert edited == {"C2", "C"}
    assert edited < lines


def test_an_edit_that_reads_what_comes_later_is_refused() -> None:
    given = context("A @ B", {"first": "A @ B", "C": "all_gather(first, 'x', axis=0, tiled=True)"}, TEXT)
    edits = Edits(given.experiment, "per_device")
    site = next(site for site in edits.sites if site.name == "first")
    later = edits.edit(site, site.term, Name("C"), "value", str, 0.0)
    with pytest.raises(Unlisted):
        ChangedGraphs(given.experiment, "per_device").of(later)


def test_a_rerun_computes_only_what_is_downstream_of_the_edit() -> None:
    given = context("A @ B", unrolled(4), TEXT)
    exact = arithmetic.Arithmetic({}, casts=False)
    rerun = Rerun(given.experiment, "per_device", given.arrays, exact, lambda: given.bounded("per_device"), 10**6)
    graphs, before = ChangedGraphs(given.experiment, "per_device"), rerun.work.done
    last = rerun.changed(graphs.of(edit_of(given, "sign", "i + 3")), ["C"])["C"]
    afterwards = rerun.work.done - before
    rerun.changed(graphs.of(edit_of(given, "sign", "i + 1")), ["C"])
    assert 0 < afterwards < rerun.work.done - before - afterwards < before
    assert not np.array_equal(last[0], rerun.values["C"][0])


def test_removals_leave_out_collectives_updates_and_terms() -> None:
    given = context("A @ B", unrolled(4), TEXT)
    removed = {(edit.line, edit.kind) for edit in removing(Edits(given.experiment, "per_device"))}
    assert {("chunk1", "exchange"), ("C1", "update"), ("C1", "operand"), ("C1", "factor")} <= removed


def kinds(line: str, kind: str, graph: str = "tanh(R) + 2.0 * bias") -> set[str]:
    given = context(graph, {"C": line})
    edits = Edits(given.experiment, "per_device", reference=given.experiment)
    return {edit.after for edit in overlooking(edits) if edit.kind == kind}


@pytest.mark.parametrize(
    ("line", "kind", "after"),
    [
        ("0.25 * R[0] + 0.75 * bias", "exchange", "0.75 * R[0] + 0.25 * bias"),
        ("tanh(R[0]) + bias", "order", "tanh(R[0] + bias)"),
        ("tanh(R[0] + bias)", "order", "tanh(R[0]) + bias"),
        ("tanh(R[0])", "operation", "R[0] * tanh(R[0])"),
        ("R[0:1][0] + bias", "window", "R[1:2]"),
        ("pad(bias, ((1, 1),))[1:9]", "order", "pad(bias, ((2, 0),))"),
        ("0.5 * R[0]", "number", "2.0"),
        ("bias[:4] + tanh(bias[1:5])", "exchange", "bias[1:5] + tanh(bias[:4])"),
        ("bias[:4]", "window", "bias[1:5]"),
        ("bias[:7]", "window", "bias[1:]"),
        ("(R[0] + bias) / 4.0", "order", "R[0] / 4.0 + bias"),
        ("R[0] / 4.0 + bias", "order", "(R[0] + bias) / 4.0"),
        ("R[0] - bias - 2.0", "operation", "R[0] - bias * 2.0"),
        ("R[0] * bias", "operation", "1.0 - bias"),
        ("R[0] * bias", "mask", "bias > 0"),
        ("where(R[0] < bias, R[0], bias)", "edge", "(R[0] >= 0) & (R[0] < bias)"),
        ("(1.0 - bias) * R[0]", "operation", "bias"),
        ("(1.0 - bias) * R[0] + bias", "exchange", "bias * R[0] + (1.0 - bias)"),
        ("squeeze(R[0:1], 0)", "operation", "sum(R, axis=0)"),
        ("exp(R[0] - max(R[0]))", "operation", "R[0]"),
        ("R[0] / sum(R[0])", "operation", "exp(R[0]) / sum(exp(R[0]))"),
        ("R[0] / astype(8, 'float32')", "number", "32"),
        ("maximum(R[0], bias)", "operation", "minimum(R[0], bias)"),
        ("concatenate((bias[1:], bias[:1]))", "window", "concatenate((bias[:1], bias[:-1]))"),
        ("bias - 0.5 * R[0] + 0.25 * bias", "order", "bias - 0.5 * (R[0] + 0.25 * bias)"),
        ("psum(bias, 'x')", "mask", "where(axis_index('x') == 3, bias, 0)"),
        (
            "sum(transpose(reshape(R, (1, 2, 2, 2, 2, 1)), (0, 1, 3, 2, 4, 5)))", "order",
            "transpose(reshape(R, (1, 2, 2, 2, 2, 1)), (0, 1, 2, 3, 4, 5))",
        ),
    ],
)  # fmt: skip
def test_an_oversight_has_an_edit(line: str, kind: str, after: str) -> None:
    assert after in kinds(line, kind)


def test_what_is_taken_off_inside_a_function_is_put_back_around_it() -> None:
    """`log(sum(exp(x - m)))` lacks the `m` that it takes off; `x - m` alone lacks nothing."""
    given = context("log(sum(exp(R)))", {"C": "log(sum(exp(R[0] - bias)))"})
    after = [edit.text for edit in inserting(Edits(given.experiment, "per_device", reference=given.experiment))]
    assert "log(sum(exp(R[0] - bias))) + bias" in after
    alone = context("log(sum(exp(R)))", {"C": "R[0] - bias"})
    after = [edit.text for edit in inserting(Edits(alone.experiment, "per_device", reference=alone.experiment))]
    assert not any("- bias + bias" in str(text) for text in after), after


@pytest.mark.parametrize(
    ("line", "vanishes"),
    [
        ("maximum(bias, max(bias))", True), ("minimum(reshape(max(bias), (1,)), bias)", True), ("bias - bias", True),
        ("maximum(bias, max(R))", False), ("bias - max(bias)", False),
    ],
)  # fmt: skip
def test_an_edit_is_no_mend_that_leaves_a_part_without_an_effect(line: str, vanishes: bool) -> None:
    edits = Edits(context("tanh(R) + 2.0 * bias", {"C": "bias + 0"}).experiment, "per_device")
    (site,) = edits.sites
    assert search._vanishes(edits.edit(site, site.term, parse(line).term, "value", str, 0.0)) is vanishes  # type: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("lines", "after", "graph", "pointless"),
    [
        ({"s": "exp(bias - 2.0 * bias)", "C": "bias * s"}, "exp(bias - bias)", "bias", True),
        ({"s": "2.0 * bias", "C": "s / sum(s * s)"}, "s / sum(s)", "bias / sum(bias)", False),
    ],
)
def test_an_unlikely_edit_may_leave_a_factor_idle_but_not_make_it_one(
    lines: dict[str, Any], after: str, graph: str, pointless: bool
) -> None:
    given = context(graph, lines)
    trial, edits = search.Trial(given), Edits(given.experiment, "per_device")
    site = edits.sites[0 if after.startswith("exp") else 1]
    edit = edits.edit(site, site.term, parse(after).term, "value", str, 5.0)
    assert trial.mends(edit)
    assert (trial.pointless(edit) == float("inf")) is pointless


def test_scaled_arrays_are_alike_in_what_functions_rely_on() -> None:
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.5, 1.5, (4, 4))
    symmetric, ordered, shares = scales + scales.T, np.sort(scales, -1), scales / scales.sum(-1, keepdims=True)
    scaled = [search._alike(value, value * scales) for value in (symmetric, ordered, shares)]  # type: ignore[reportPrivateUsage]
    assert np.array_equal(scaled[0], scaled[0].T)
    assert (np.diff(scaled[1], axis=-1) >= 0).all()
    assert np.allclose(scaled[2].sum(-1), 1.0)
    assert np.array_equal(search._alike(scales, scales * scales.T), scales * scales.T)  # type: ignore[reportPrivateUsage]


def test_the_line_that_takes_the_derivative_of_a_function_is_found(tmp_path: Path) -> None:
    file = tmp_path / "taking.py"
    file.write_text(
        "def first(w):\n    def loss(w):\n        return w\n    return jax.grad(loss)(w)\n"
        "def second(w):\n    def loss(w):\n        return w * w\n    v, g = value_and_grad(loss)(w)\n    return g\n",
        "utf-8",
    )
    taken = [differentiated(Frame(str(file), line, "")) for line in (3, 7, 9)]
    assert [frame and frame.line for frame in taken] == [4, 8, None]


def test_the_statement_that_passes_a_value_on_is_found(tmp_path: Path) -> None:
    file = tmp_path / "passing.py"
    file.write_text("def f(x):\n    out = x + 1\n    back = out\n    return back\n", "utf-8")
    assert passed_on(Frame(str(file), 2, "out = x + 1")) == Frame(str(file), 3, "back = out")
    assert passed_on(Frame(str(file), 4, "return back")) is None


RULES = """
def f(x):
    ring = [(0, 1), (1, 0)]
    same = x

    def step(x):
        return ppermute(copied(x), "d", ring) + same
    return step(x)

def backward(axis, g):
    return (g,)

copied.defvjp(forward, backward)
"""


def test_a_line_reads_what_the_function_around_it_gives_and_the_rule_of_what_it_calls(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text(RULES, "utf-8")
    line = Frame(str(file), 7, 'return ppermute(copied(x), "d", ring) + same')
    given = {each.name: (each.frame.line, bool(each.passed)) for each in reading(line).given}
    assert given == {"ring": (3, False), "same": (4, True)}
    assert [frame.text for frame in passed_by_rules(line)] == ["return (g,)"]
    assert [*passed_by_rules(Frame(str(file), 8, "return step(x)"))] == []


HELPER = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def scaled(x, by):
    return x * by


def helper(x, g):
    return scaled(jnp.tanh(x), x) + 0.5


def forgotten(x, w, v):
    def device(x, w, v):
        partial = x @ w
        total = lax.psum(partial, "d")
        other = lax.psum(x @ v, "d")
        return jnp.tanh(total) * total

    return jax.shard_map(device, in_specs=(P(None, "d"), P("d"), P("d")), out_specs=P())(x, w, v)


def reduced(x, w):
    even = x.sum(-1)
    return 0.25 * even @ w


def averaged(x, y):
    rows = x.shape[0]
    return lax.psum(x.T @ y, "d") / (rows * 1.0)


def dropped(x, key):
    first, second = jax.random.split(key)
    return x * jax.random.bernoulli(first, 0.5, x.shape)


def gated(x, w, v):
    gate = jax.nn.relu(x @ w)
    return gate * (x @ v)


def mixed(x, w):
    scores = jnp.where(jnp.triu(jnp.ones((6, 6), bool)), x @ x.T, -1e9)
    even, odd = w[1::2], w[::2]
    return jax.nn.softmax(scores, axis=-1) @ (even - 2.0 * odd)


def right(x, w):
    scores = jnp.exp(jnp.where(jnp.arange(6)[:, None] >= jnp.arange(6), x @ x.T, -jnp.inf))
    return scores / scores.sum(1, keepdims=True) @ (w[::2] - 2.0 * w[1::2])


RING = [(0, 1), (1, 2), (2, 0)]


def unread(a, b):
    me, block, total = lax.axis_index("d"), b, 0.0
    for step in range(3):
        part = lax.dynamic_slice_in_dim(a, (me - step) % 3 * b.shape[0], b.shape[0], 1)
        total = total + part @ b
        block = lax.ppermute(block, "d", RING)
    return total


def unmoved(q, k, v):
    total = norm = 0.0
    for _ in range(3):
        e = jnp.exp(q @ k.T)
        total, norm = total + e @ v, norm + e.sum(1, keepdims=True)
        k = lax.ppermute(k, "d", RING)
    return total / norm


def doubled(x, y):
    loss = jnp.tanh(x * y).mean() + jnp.square(x).mean()
    return loss + jnp.tanh(y).mean(), 0.5 * (x + y) * 4.0


def stacked(layers, x):
    for p in layers:
        x = x + jnp.tanh(x @ p["up"]) @ p["up"]
    return x


def slope(x, w, axis=0):
    return jax.value_and_grad(lambda x: (jax.nn.softmax(x, axis) @ w).sum())(x)


def flat(layers, x):
    for p in layers:
        x = jnp.tanh(x @ p["up"]) @ p["down"]
    return x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "guilty_functions.py").write_text(HELPER, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "guilty_functions", raising=False)
    return importlib.import_module("guilty_functions")


def named(function: Callable[..., Any], operands: tuple[Any, ...], reference: Callable[..., Any], **keys: Any) -> str:
    record = runner.check(function, operands, reference=reference, show="none", quiet=True, **keys)
    assert record.status == "failed", record.error
    (program,) = record.compiled.values()
    assert program.checks.value is not None
    return "\n".join(program.checks.value.diagnosis)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.in_turn
def test_a_mistake_in_the_call_of_a_helper_names_the_call(module: Any) -> None:
    diagnosed = named(
        module.helper, (normal(0, 8, 4), normal(1, 8, 4)), lambda x, g: jnp.tanh(x) * g + 0.5, mesh={"d": 2},
        in_specs=(P("d"), P("d")),
    )  # fmt: skip
    assert "guilty_functions.py:9 return x * by: x is used where g is meant" in diagnosed
    assert (
        "or its call gives it the wrong value, guilty_functions.py:13 return scaled(jnp.tanh(x), x) + 0.5" in diagnosed
    )


@pytest.mark.in_turn
def test_a_value_that_nothing_reads_is_what_was_meant(module: Any) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        diagnosed = named(
            module.forgotten, (normal(0, 8, 4), normal(1, 4, 3), normal(2, 4, 3)),
            lambda x, w, v: jnp.tanh(x @ w) * (x @ v), in_specs=(P(None, "d"), P("d"), P("d")),
        )  # fmt: skip
    assert "guilty_functions.py:21 return jnp.tanh(total) * total: total is used where other is meant" in diagnosed


def test_a_leaf_in_the_place_of_another_is_exchanged_in_every_layer(module: Any) -> None:
    def reference(layers: Any, x: Any) -> Any:
        for p in layers:
            x = x + jnp.tanh(x @ p["up"]) @ p["down"]
        return x

    layers = [{"up": normal(at, 4, 4), "down": normal(9 - at, 4, 4)} for at in range(3)]
    diagnosed = named(module.stacked, (layers, normal(4, 8, 4)), reference, mesh={"d": 2}, in_specs=(P(), P("d")))
    assert re.search(r"guilty_functions.py:85 .*layers/1/up is used where layers/1/down is meant", diagnosed)


@pytest.mark.in_turn
def test_a_residual_that_every_layer_lacks_is_put_back(module: Any) -> None:
    def reference(layers: Any, x: Any) -> Any:
        for p in layers:
            x = x + jnp.tanh(x @ p["up"]) @ p["down"]
        return x

    layers = [{"up": normal(at, 4, 4), "down": normal(9 - at, 4, 4)} for at in range(3)]
    diagnosed = named(module.flat, (layers, normal(4, 8, 4)), reference, mesh={"d": 2}, in_specs=(P(), P("d")))
    assert re.search(r"the term \S+ is left out in guilty_functions.py:95 ", diagnosed), diagnosed


def test_a_call_that_is_missing_is_of_the_line_that_calls() -> None:
    """`q, k = heads(q), k`: the line of the function that is called is right."""
    called = Frame("/f.py", 3, "return x.T", caller="f.py:7 q, k = heads(q), k")
    site = EditSite(("x",), Name("x"), {}, named=str(called), frame=called)
    says = "f.py:7 q, k = heads(q), k calls its function once too few: with one more call it equals the graph"
    assert missing._one_more(site) == says  # type: ignore[reportPrivateUsage]


@pytest.mark.in_turn
def test_a_line_whose_values_a_derivative_reads_too_works_along_another_axis(module: Any) -> None:
    def reference(x: Any, w: Any) -> Any:
        return module.slope(x, w, axis=1)

    diagnosed = named(module.slope, (normal(0, 4, 4), normal(1, 4, 3)), reference, mesh={"d": 2}, in_specs=(P(), P()))
    assert re.search(r"guilty_functions.py:90 .*along 1 instead of 0", diagnosed)


@pytest.mark.parametrize("refused", [None, "no such type"])
def test_a_number_that_jax_refuses_is_not_proposed(monkeypatch: pytest.MonkeyPatch, refused: str | None) -> None:
    monkeypatch.setattr(search, "_refusal", lambda *_: refused)
    diagnosed = named(
        lambda x: jnp.tanh(x) * 2.5, (normal(0, 8, 4),), lambda x: jnp.tanh(x) * 1.5, mesh={"d": 2}, in_specs=(P("d"),)
    )
    assert ("2.5 is the wrong number: with 1.5" in diagnosed) is (refused is None), diagnosed
    assert "the scale 1.6666666666666667 is left out" not in diagnosed


@pytest.mark.in_turn
def test_two_lines_that_may_be_at_fault_are_both_named(module: Any) -> None:
    diagnosed = named(
        module.reduced, (normal(0, 8, 4), normal(1, 8)), lambda x, w: x @ jnp.full(4, 0.0625) @ w, mesh={"d": 2},
        in_specs=(P("d"), P("d")),
    )  # fmt: skip
    assert "guilty_functions.py:28 return 0.25 * even @ w: " in diagnosed
    assert "guilty_functions.py:27 even = x.sum(-1): x.sum(-1) is where a mean is meant" in diagnosed


@pytest.mark.in_turn
def test_diagnose_is_a_key_of_check_and_ends_the_search(module: Any) -> None:
    diagnosed = named(
        module.helper, (normal(0, 8, 4), normal(1, 8, 4)), lambda x, g: jnp.tanh(x) * g + 0.5, mesh={"d": 2},
        in_specs=(P("d"), P("d")), diagnose=0,
    )  # fmt: skip
    assert "no single edit of the function was found within 0 s" in diagnosed
    assert "guilty_functions" not in diagnosed


@pytest.mark.in_turn
def test_a_number_that_python_computes_is_mended_where_it_is_computed(module: Any) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    function = jax.shard_map(module.averaged, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=P())
    operands = (normal(0, 6, 4), normal(1, 6, 5))
    diagnosed = named(function, operands, lambda x, y: x.T @ y / x.shape[0], mesh=mesh, in_specs=(P("d"), P("d")))
    assert "guilty_functions.py:32 rows = x.shape[0]: rows is the wrong number: with 6 for 3 the function" in diagnosed
    assert "or guilty_functions.py" in diagnosed


@pytest.mark.in_turn
def test_another_of_several_values_is_meant(module: Any) -> None:
    def reference(x: Any, key: Any) -> Any:
        return x * jax.random.bernoulli(jax.random.split(key)[1], 0.5, x.shape)

    diagnosed = named(
        module.dropped, (normal(0, 8, 4), jax.random.PRNGKey(3)), reference, mesh={"d": 2}, in_specs=(P("d"), P())
    )
    assert "guilty_functions.py:38 return x * jax.random.bernoulli" in diagnosed
    assert re.search(r"is used where (value 1 of )?\S.* is meant: with ", diagnosed)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("mended", "line", "says"),
    [
        (("w[1::2], w[::2]", "w[::2], w[1::2]"), 47, "keeps the other half"),
        (("triu", "tril"), 48, "even, odd = w[1::2], w[::2] gives two values in each other's place"),
        (("triu", "tril", "w[1::2], w[::2]", "w[::2], w[1::2]", "axis=-1", "axis=-2"), 49, "along 1 instead of 0"),
    ],
)
def test_a_mistake_in_what_one_line_of_python_says_is_mended_in_all_its_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: tuple[str, ...], line: int, says: str
) -> None:
    text, name = HELPER, f"guilty_{line}"
    for old, new in zip(mended[::2], mended[1::2], strict=True):
        text = text.replace(old, new)
    (tmp_path / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    operands = (normal(0, 6, 4), normal(1, 12, 3))
    diagnosed = named(module.mixed, operands, module.right, mesh={"d": 2}, in_specs=(P("d"), P()))
    assert re.search(rf"{name}\.py:{line} .*{re.escape(says)}", diagnosed), diagnosed
    # What reads two values may as well exchange them.
    assert set(re.findall(rf"{name}\.py:(\d+)", diagnosed)) <= {str(line), "49"}, diagnosed


def held(line: str, *values: Any) -> dict[Line, list[PerDevice]]:
    return {Line(line): [[np.asarray(value) for value in values]]}


def test_a_value_is_recognised_in_blocks_in_any_order_and_as_a_sum_over_devices() -> None:
    whole, mesh = normal(0, 8, 4).astype(np.float64), Mesh(("d",), (2,))
    recognising = Recognising({**held("whole", whole), **held("sum", whole[:4] + whole[4:])}, {}, mesh)
    assert recognising.has([whole[:4], whole[4:]])
    assert recognising.has([whole[::-1].T])
    assert not recognising.has([whole + 1e-3])
    assert recognising.has([np.zeros(3), np.ones(3)]) is None
    parts = [whole[:4] + 0.5, whole[4:] - 0.5]
    assert recognising.has(parts), "the devices' sum"
    assert not recognising.has([parts[0], parts[1] + 0.25])


def test_a_choice_between_two_values_is_not_recognised_and_a_stack_of_them_is() -> None:
    first, second = normal(0, 8, 4), normal(1, 8, 4)
    recognising = Recognising({**held("first", first), **held("second", second)}, {}, Mesh(("d",), (1,)))
    assert recognising.has([np.stack([first, second])])
    assert not recognising.has([np.where(first > second, first, second)])


def test_an_edit_that_loses_a_value_of_the_reference_is_no_mend_of_its_line() -> None:
    x = normal(0, 8)
    recognising = Recognising(held("x", x), held("line", x), Mesh(("d",), (1,)))
    assert recognising.evidence(held("line", x * 0.3), [Line("line")]).lost
    assert not recognising.evidence(held("line", x * 0.3), [Line("other")]).lost
    assert recognising.evidence(held("line", x), [Line("line")]) == Evidence(1, lost=False)


def test_masks_are_not_scaled_when_an_edit_is_tried_on_other_arrays() -> None:
    given = context("A @ B", unrolled(3), TEXT)
    mask = np.tile(np.eye(8, 16, dtype=np.float32), (1, 1))
    values = {"A": mask, "B": normal(1, 16, 8)}
    arrays = search.moved(given.experiment, values, 1, {"A", "B"})
    assert np.array_equal(arrays["A"], mask)
    assert not np.allclose(arrays["B"], values["B"])
    # It is a constant of the function or of its reference.
    assert np.array_equal(search.moved(given.experiment, values, 1, {"A"})["B"], values["B"])


def test_scalars_of_other_sizes_are_other_values() -> None:
    graph = context("A @ B", unrolled(3), TEXT).experiment.computed("graph")
    (equation,) = graph.equations
    number = equation.results[0].number
    tried: list[int] = []

    def parting(value: float) -> object:
        inputs = {each.number: [[np.zeros((3, 2))]] for each in graph.inputs}
        function = {**inputs, number: [[np.float64(value)]]}
        own = alignment.Aligned(graph, function, lambda _: None)
        reference = alignment.Aligned(graph, {7: [[np.float64(2.5)]]}, lambda _: None)
        return alignment.Alignment(own, reference, Mesh(("d",), (1,))).parted(lambda at, _: tried.append(at))

    parting(2.5)
    assert tried == []
    parting(5.0)
    assert tried == [number]


def parting_of(per_device: dict[str, str]) -> set[str]:
    """The lines at which devices part from a graph that divides A by its norm."""
    given = context("A / sqrt(sum(A * A))", per_device, TEXT.replace("[null, x]}", "[x, null]}"))
    exact = arithmetic.Arithmetic({}, casts=False)
    graph, rerun = (
        Rerun(given.experiment, section, given.arrays, exact, lambda of=section: given.bounded(of), 10**6)
        for section in search.SECTIONS
    )

    def mended(number: int, meant: alignment.Meant) -> alignment.Ran | None:
        blocks = meant.values(graph.ran, given.experiment.mesh)
        values, ran = rerun.with_values(number, blocks, ["C"])
        return ran if np.allclose(np.concatenate(values["C"]), graph.values["C"][0]) else None

    own, reference = (alignment.Aligned(each.graph, each.ran, lambda _: None) for each in (rerun, graph))
    parted = alignment.Alignment(own, reference, given.experiment.mesh).parted(mended)
    numbers = set() if parted is None else {*parted.values}
    return {e.source.line.label for e in walk(rerun.graph) if e.results[0].number in numbers}


def test_devices_part_from_a_graph_at_the_first_value_that_a_value_of_the_graph_mends() -> None:
    total = {"total": "psum(sum(A * A), 'x')"}
    assert parting_of({**total, "norm": "sin(total)", "C": "A * norm + 1.0"}) == {"norm", "C"}
    assert parting_of({**total, "norm": "sin(total)", "C": "A / norm"}) == {"norm"}
    assert parting_of({"total": "sum(exp(A))", "norm": "sin(total)", "C": "A / norm"}) == {"total", "norm"}


def test_what_reads_a_value_of_the_graph_may_be_wrong_where_another_mends_it() -> None:
    assert parting_of({"total": "psum(sum(A * A), 'x')", "C": "A / total"}) == {"total", "C"}


@pytest.mark.in_turn
def test_a_function_that_no_edit_mends_is_aligned_with_its_reference(module: Any) -> None:
    diagnosed = named(
        module.gated, (normal(0, 8, 4), normal(1, 4, 3), normal(2, 4, 3)),
        lambda x, w, v: (x @ w) / (1 + jnp.exp(-(x @ w))) * (x @ v), mesh={"d": 2}, in_specs=(P("d"), P(), P()),
    )  # fmt: skip
    assert (
        "but guilty_functions.py:42 gate = jax.nn.relu(x @ w) reads what the reference has and gives what" in diagnosed
    )


def test_a_search_ends_within_an_edit_whose_values_are_large_or_whose_loops_are_long() -> None:
    given = context("A @ B", unrolled(4), TEXT)
    exact, work = arithmetic.Arithmetic({}, casts=False), Work()
    rerun = Rerun(
        given.experiment, "per_device", given.arrays, exact, lambda: given.bounded("per_device"), 10**6, work=work
    )
    work.most = work.done + 3
    graph = ChangedGraphs(given.experiment, "per_device").of(edit_of(given, "sign", "i + 1"))
    with pytest.raises(Exhausted):
        rerun.changed(graph, ["C"])
    assert work.done <= work.most + 4, "no more than an equation on each device"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "operands", "reference", "line"),
    [
        (
            "unread", (normal(0, 6, 6), normal(1, 6, 2)), jnp.matmul,
            "total = total + part @ b reads b as it is before the loop",
        ),
        (
            "unmoved", (normal(0, 6, 3), normal(1, 6, 3), normal(2, 6, 2)),
            lambda q, k, v: jax.nn.softmax(q @ k.T) @ v,
            'k = lax.ppermute(k, "d", RING): v is not permuted from step to step, as k is',
        ),
    ],
)  # fmt: skip
def test_a_ring_of_python_reads_the_block_of_its_step(
    module: Any, name: str, operands: tuple[Any, ...], reference: Callable[..., Any], line: str
) -> None:
    mesh = jax.sharding.AbstractMesh((3,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.sharding.PartitionSpec("d"),) * len(operands)
    function = jax.shard_map(getattr(module, name), mesh=mesh, in_specs=specs, out_specs=specs[0])
    assert line in named(function, operands, reference, mesh={"d": 3}, in_specs=specs)


@pytest.mark.in_turn
def test_the_factor_by_which_a_result_is_off_is_tried_as_a_scale(module: Any) -> None:
    diagnosed = named(
        module.doubled, (normal(0, 8, 2), normal(1, 8, 2)),
        lambda x, y: ((jnp.tanh(x * y) + x**2 + jnp.tanh(y)).mean(), (x + y) * jnp.full(2, 0.37)), mesh={"d": 2},
        in_specs=(jax.sharding.PartitionSpec("d"),) * 2,
    )  # fmt: skip
    assert "0.5 * (x + y) * 4.0" in diagnosed


@pytest.mark.in_turn
def test_a_loop_of_python_that_reads_its_line_several_times_is_not_written_out_step_by_step() -> None:
    def function(x: Any) -> Any:
        for _ in range(40): x = jnp.sin(x) - x * 0.5; x = jnp.cos(x) - x * 0.25  # fmt: skip  # noqa: E701, E702
        return x + 1.0

    def reference(x: Any) -> Any:
        return function(x) - 0.5

    diagnosed = named(function, (normal(0, 8),), reference, mesh={"d": 2}, in_specs=(P("d"),))
    assert "return x + 1.0: 1.0 is the wrong number: with 0.5 the function equals its reference" in diagnosed
