"""A function with a `shard_map` of its own: it is read as a region, and NumPy runs that on all devices."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import runner
from runner.app import api
from runner.app.flow import refused_edits
from runner.base.layout import Mesh, Spec
from runner.checks.diagnosis import search
from runner.checks.reference.interpreter import interpret
from runner.experiment import value_names
from runner.experiment.model import Experiment
from runner.graph.term import Name
from runner.worker.jaxpr import jaxprs
from runner.worker.versions import abstract_mesh
from tests import harness, traced

MESH = Mesh(("x", "y"), (2, 2))
over = partial(jax.shard_map, mesh=abstract_mesh(MESH))


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@partial(over, in_specs=(P("x"), P("x", "y"), P("y", "x")), out_specs=P())
def fsdp(x: Any, up: Any, down: Any) -> Any:
    up = lax.all_gather(up, "x", axis=0, tiled=True)
    down = lax.all_gather(down, "x", axis=1, tiled=True)
    out = lax.psum(jnp.tanh(x @ up) @ down, "y")
    return lax.pmean(jnp.mean(out**2), "x")


def whole(x: Any, up: Any, down: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ up) @ down) ** 2)


@partial(over, in_specs=P("x"), out_specs=P("x"))
def ring(q: Any, k: Any, v: Any) -> Any:
    n = lax.axis_size("x")

    def step(carry: Any, _: Any) -> Any:
        top, below, out, k, v = carry
        scores = q @ k.T
        higher = jnp.maximum(top, scores.max(-1))
        weights, faded = jnp.exp(scores - higher[:, None]), jnp.exp(top - higher)
        below, out = below * faded + weights.sum(-1), out * faded[:, None] + weights @ v
        k, v = (lax.ppermute(each, "x", [(i, (i + 1) % n) for i in range(n)]) for each in (k, v))
        return (higher, below, out, k, v), None

    zeros = lax.pcast(jnp.zeros(len(q)), "x", to="varying")
    (_, below, out, _, _), _ = lax.scan(step, (zeros - jnp.inf, zeros, jnp.zeros_like(q), k, v), None, length=n)
    return out / below[:, None]


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T) @ v


@jax.jit
@partial(over, in_specs=(P("x"), P()), out_specs=P())
def pipeline(w: Any, xs: Any) -> Any:
    n, i, count = lax.axis_size("x"), lax.axis_index("x"), len(xs)

    def step(carry: Any, t: Any) -> Any:
        state, outs = carry
        out = jnp.tanh(jnp.where(i == 0, xs[jnp.minimum(t, count - 1)], state) @ w[0])
        outs = jnp.where((i == n - 1) & (t >= n - 1), outs.at[jnp.clip(t - n + 1, 0, count - 1)].set(out), outs)
        return (lax.ppermute(out, "x", [(j, (j + 1) % n) for j in range(n)]), outs), None

    first = lax.pcast((jnp.zeros_like(xs[0]), jnp.zeros_like(xs)), "x", to="varying")
    (_, outs), _ = lax.scan(step, first, jnp.arange(count + n - 1))
    return lax.psum(jnp.where(i == n - 1, outs, 0), "x")


def layers(w: Any, xs: Any) -> Any:
    return jnp.tanh(jnp.tanh(xs @ w[0]) @ w[1])


@partial(over, in_specs=(P("x"), P("x")), out_specs=P("x"))
def experts(x: Any, w: Any) -> Any:
    sent = lax.all_to_all(x.reshape(lax.axis_size("x"), -1, x.shape[-1]), "x", 0, 0)
    back = lax.all_to_all(jnp.einsum("etd,df->etf", sent, w[0]), "x", 0, 0)
    return back.reshape(len(x), -1)


def by_expert(x: Any, w: Any) -> Any:
    return jnp.einsum("netd,edf->netf", x.reshape(2, 2, -1, x.shape[-1]), w).reshape(len(x), -1)


@partial(over, in_specs=P("x", "y"), out_specs=(P(), P("x"), P(("x", "y"))), check_vma=False)
def reduced(x: Any) -> Any:
    scattered = lax.psum_scatter(x, "y", scatter_dimension=0, tiled=True)
    return lax.pmax(x.max(), ("x", "y")), lax.pmin(x.min(axis=1), "y"), scattered


def unsharded(x: Any) -> Any:
    return x.max(), x.min(axis=1), x[:, :2] + x[:, 2:]


def in_loop(x: Any, ws: Any) -> Any:
    product = over(lambda x, w: lax.psum(x @ w, "x"), in_specs=(P(None, "x"), P("x")), out_specs=P())
    return lax.scan(lambda h, w: (jnp.tanh(product(h, w)), None), x, ws)[0]


def loop(x: Any, ws: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def squared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradients of the sum of what a function gives, squared."""
    return jax.grad(lambda *operands: (function(*operands) ** 2).sum(), (0, 1, 2))


def branching(x: Any) -> Any:
    def body(x: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(1), lax.axis_index("x"))
        return lax.cond(lax.axis_index("x") == 0, lambda x: 2 * x, lambda x: x - 1, x) + 0 * jax.random.normal(key)

    return over(body, in_specs=P("x"), out_specs=P("x"))(x)


@partial(over, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})
def batch(x: Any, w: Any) -> Any:
    hidden = lax.with_sharding_constraint(jnp.tanh(x @ w), P(None, "y"))
    return lax.pmean(jnp.mean(hidden @ w.T, 0), "x") * (lax.axis_size("x") / 2)


def batched(x: Any, w: Any) -> Any:
    return jnp.mean(jnp.tanh(x @ w) @ w.T, 0)


def nested(x: Any, w: Any) -> Any:
    def device(x: Any, w: Any) -> Any:
        product = jax.shard_map(
            lambda x, w: lax.psum(x @ w, "y") + lax.pcast(lax.axis_index("x"), (), to="varying"),
            in_specs=(P(None, "y"), P("y")),
            out_specs=P(),
            axis_names={"y"},
        )
        hidden = lax.scan(lambda h, w: (jnp.tanh(product(h, w)), None), x, w)[0]
        return lax.psum(hidden, "x")

    return over(device, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})(x, w)


@partial(over, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})
def checkpointed(x: Any, w: Any) -> Any:
    inner = jax.checkpoint(lambda x, w: lax.psum(jnp.tanh(x @ w), "y"))
    product = jax.shard_map(inner, in_specs=(P(None, "y"), P("y")), out_specs=P(), axis_names={"y"})
    return lax.psum(product(x, w), "x")


def plain(x: Any, w: Any) -> Any:
    halves = jnp.tanh(x[:, :2] @ w[:2]) + jnp.tanh(x[:, 2:] @ w[2:])
    return halves.reshape(2, -1, w.shape[1]).sum(0)


def unnested(x: Any, w: Any) -> Any:
    rows = jnp.arange(len(x))[:, None] // (len(x) // 2)
    hidden = lax.scan(lambda h, w: (jnp.tanh(h @ w + rows), None), x, w)[0]
    return hidden.reshape(2, -1, *hidden.shape[1:]).sum(0)


@partial(over, in_specs=(None, {"a": P(("y", "x")), "b": P(None, "x")}), out_specs=(P(("y", "x")), {"c": P()}))
def trees(x: Any, tree: Any) -> Any:
    total = lax.psum(lax.psum(tree["a"].sum(), "y") * tree["b"].sum(), "x")
    return tree["a"] * (lax.axis_index(("y", "x")) + 1), {"c": x + total}


def untreed(x: Any, tree: Any) -> Any:
    a, b = tree["a"].reshape(2, 2, -1), tree["b"].reshape(len(tree["b"]), 2, -1)
    total = (a.sum((0, 2)) * b.sum((0, 2))).sum()
    return tree["a"] * (jnp.arange(len(tree["a"])) // (len(tree["a"]) // 4) + 1), {"c": x + total}


@partial(over, in_specs=P("x"), out_specs=P(None, "x"))
def stacked(x: Any) -> Any:
    return lax.all_to_all(x.reshape(2, 2, -1), "x", split_axis=0, concat_axis=1)


def read(function: Callable[..., Any], *operands: Any) -> tuple[jaxprs.FunctionLines, dict[str, np.ndarray]]:
    given = dict(zip("abc", operands, strict=False))
    return jaxprs.read(function, given, mesh=MESH), given


def held(function: Callable[..., Any], *operands: Any) -> list[np.ndarray]:
    """Return what NumPy has for a function that is read as the lines of a graph."""
    lines, given = read(function, *operands)
    experiment, results = calling(lines, given)
    types = harness.inferred(experiment).outputs
    wanted = jax.tree.leaves(jax.eval_shape(function, *operands))
    assert [types[name].shape for name in results] == [each.shape for each in wanted]
    values = interpret(experiment, "graph", given, keep=results).values
    return [np.asarray(values[name][0]) for name in results]


def calling(lines: jaxprs.FunctionLines, given: dict[str, np.ndarray]) -> tuple[Experiment, list[str]]:
    """Return an experiment whose graph calls a function with these lines, and the names of its outputs."""
    arrays = {name: {"shape": list(v.shape), "spec": []} for name, v in given.items()}
    return traced.experiment(lines.traced(given), "graph", arrays, program="auto")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("function", "plain", "operands"),
    [
        (fsdp, whole, (array(8, 4), array(4, 8), array(8, 4))),
        (jax.grad(fsdp, (0, 1, 2)), jax.grad(whole, (0, 1, 2)), (array(8, 4), array(4, 8), array(8, 4))),
        (ring, attention, (array(8, 4), array(8, 4), array(8, 4))),
        (squared(ring), squared(attention), (array(8, 4), array(8, 4), array(8, 4))),
        (pipeline, layers, (array(2, 4, 4), array(3, 2, 4))),
        (experts, by_expert, (array(16, 4), array(2, 4, 4))),
        (reduced, unsharded, (array(8, 4),)),
        (in_loop, loop, (array(4, 4), array(3, 4, 4))),
        (batch, batched, (array(4, 4), array(4, 8))),
        (jax.grad(lambda *a: (batch(*a) ** 2).sum(), (0, 1)), jax.grad(lambda *a: (batched(*a) ** 2).sum(), (0, 1)),
         (array(4, 4), array(4, 8))),
        (nested, unnested, (array(4, 4), array(3, 4, 4))),
        (jax.grad(lambda *a: (checkpointed(*a) ** 2).sum(), (0, 1)),
         jax.grad(lambda *a: (plain(*a) ** 2).sum(), (0, 1)), (array(4, 4), array(4, 4))),
        (lambda x, a, b: trees(x, {"a": a, "b": b}), lambda x, a, b: untreed(x, {"a": a, "b": b}),
         (array(3), array(8), array(2, 4))),
        (stacked, lambda x: x.reshape(2, 2, 2, -1).transpose(2, 1, 0, 3).reshape(2, 4, -1), (array(8, 4),)),
        (branching, lambda x: jnp.concatenate([2 * x[:2], x[2:] - 1]), (array(4),)),
    ],
    ids=["fsdp", "fsdp-grad", "ring", "ring-grad", "pipeline", "experts", "no-vma", "in-a-loop", "auto-axes",
         "auto-axes-grad", "nested", "nested-grad", "trees", "all-to-all", "branch"],
)  # fmt: skip
def test_numpy_computes_on_all_devices_what_the_function_without_shard_map_does(
    function: Callable[..., Any], plain: Callable[..., Any], operands: tuple[Any, ...]
) -> None:
    for value, wanted in zip(held(function, *operands), jax.tree.leaves(plain(*operands)), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)


def test_lines_of_a_region_have_the_places_of_the_device_code() -> None:
    lines, _ = read(fsdp, array(8, 4), array(4, 8), array(8, 4))
    region = traced.loop(lines.lines)
    assert region.form.region is not None
    assert [spec.json() for spec in region.form.region.in_specs] == [["x"], ["x", "y"], ["y", "x"]]
    assert region.form.region.check_vma is True
    gathered = next(name for name, text in traced.texts(traced.body(region)).items() if text.startswith("all_gather("))
    assert lines.frames[gathered].text == 'up = lax.all_gather(up, "x", axis=0, tiled=True)'


@jax.jit
def kernel(x: Any) -> Any:
    return x @ x.T


def test_an_array_that_a_reference_captures_is_an_operand_of_the_shard_map() -> None:
    table = jnp.ones((2, 2))
    lines = jaxprs.read(
        over(lambda x: 2 * kernel(x), in_specs=P("x"), out_specs=P("x")),
        {"x": array(4, 4)},
        mesh=MESH,
        references={"kernel": lambda _: table + 0},
    )
    region = traced.loop(lines.lines)
    (captured,) = lines.arrays
    assert region.over[captured] == Name(captured)
    assert region.form.region is not None
    assert region.form.region.in_specs[-1] == Spec()


def doubled(mesh: Mesh) -> Callable[..., Any]:
    return jax.shard_map(lambda x: 2 * x, mesh=abstract_mesh(mesh), in_specs=P("x"), out_specs=P("x"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (doubled(Mesh(("x",), (4,))), "its shard_map is over the mesh x=4, and the experiment has the mesh x=2 × y=2"),
        (
            jax.grad(lambda x: nested(x, array(3, 4, 4)).sum()),
            "a spec of its shard_map, P('x'), has 'x', over which the",
        ),
        (doubled(Mesh(("y", "x"), (2, 2))), "over the mesh y=2 × x=2, and the experiment has the mesh x=2 × y=2"),
    ],
)
def test_a_shard_map_that_cannot_be_read_is_one_message(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(jaxprs.CannotRead, match=r"^test_own_shard_map\.py:") as refused:
        read(function, array(4, 4))
    assert message in str(refused.value)


def gradients(x: Any, up: Any, down: Any) -> Any:
    return jax.grad(fsdp, (1, 2))(x, up, down)


def check(folder: Path, function: Any, *operands: Any, **more: Any) -> runner.Record:
    """Do what `runner.check` does, without printing; it starts no process for each."""
    return api.checked(function, operands, folder, harness.WORKERS, mesh={"x": 2, "y": 2}, **more)


@pytest.mark.in_turn
def test_collectives_are_those_of_the_lines_inside_and_the_verdict_says_what_it_proves(tmp_path: Path) -> None:
    operands, specs = (array(8, 4), array(4, 8), array(8, 4)), (P("x"), P("x", "y"), P("y", "x"))
    record = check(tmp_path, gradients, *operands, in_specs=specs)
    assert record.status == "passed", record.error
    program = record.compiled["auto"]
    assert record.collectives["reduce-scatter"] == 2
    reasons = [each.why.text for each in program.collectives or [] if each.why is not None]
    assert len(reasons) == len(program.collectives or [])
    assert all("test_own_shard_map.py:" in reason for reason in reasons)
    assert any("in the backward pass test_own_shard_map.py:" in reason for reason in reasons)
    assert not program.collectives_unknown
    assert program.checks.value is not None
    note = program.checks.value.note
    assert note is not None
    assert "whether its collectives are right is not checked" in note
    assert "reference=" in note


@pytest.mark.in_turn
def test_a_nested_shard_map_has_the_lines_of_the_function_where_it_has_a_reference_and_a_trace(tmp_path: Path) -> None:
    operands, specs = (array(4, 4), array(3, 4, 4)), (P("x"), P())
    record = check(tmp_path, nested, *operands, in_specs=specs, reference=unnested, trace=True)
    assert record.status == "passed", record.error
    reasons = [each.why.text for each in record.compiled["auto"].collectives or [] if each.why is not None]
    assert [each.partition(" asks")[0] for each in reasons] == [
        f"test_own_shard_map.py:{line}"
        for line in (_line_of('lambda x, w: lax.psum(x @ w, "y")'), _line_of("return lax.psum(hidden,"))
    ]
    trace = record.trace
    assert trace is not None
    assert (trace.taken_from, trace.first_difference, trace.same_outputs) == ("auto", None, None)
    assert all(node.agrees for node in trace.nodes)
    (x,) = (node for node in trace.nodes if node.name.endswith("scan_2[1].result_shard_map_2.x_3"))
    assert x.expression.startswith("h by P(None, 'y')  # test_own_shard_map.py:")
    assert x.shape == [2, 2]
    sums = [node.collective.axes for node in trace.nodes if node.collective is not None]
    assert sums == [["y"]] * 3 + [["x"]]


def _line_of(text: str) -> int:
    return next(at for at, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_a_trace_takes_a_loop_inside_whole_if_it_has_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = (array(8, 4),) * 3
    lines, given = read(ring, *operands)
    experiment, results = calling(lines, given)
    monkeypatch.setattr(value_names, "VALUES", 12)
    named = value_names.inside(experiment)
    assert named.whole == (("result_0_shard_map.result_0_scan", "with them the trace would have more than 12 values"),)
    values = interpret(named.experiment, "per_device", given).values
    (result,) = (values[named.results[name]] for name in results)
    np.testing.assert_allclose(result[0], attention(*operands), rtol=2e-5, atol=2e-6)


@pytest.mark.in_turn
def test_an_edit_that_mends_but_that_jax_refuses_is_said_to_need_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_edits, "refusals", lambda *_: lambda _revised: "the carry may differ")
    record = check(tmp_path, doubled(MESH), array(4), in_specs=P("x"), reference=lambda x: x * 4)
    value = record.compiled["auto"].checks.value
    assert record.status == "failed"
    assert value is not None
    assert any("so more must change: the carry may differ" in each for each in value.diagnosis), value.diagnosis


@pytest.mark.in_turn
def test_explicit_axes_and_a_reference(tmp_path: Path) -> None:
    mesh = jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:4]
    )
    total = jax.shard_map(lambda x: lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    record = runner.check(
        total, (array(4),), mesh=mesh, in_specs=(P("x"),), folder=tmp_path, quiet=True, reference=jnp.sum
    )
    assert (record.status, record.collectives) == ("passed", {"all-reduce": 1}), record.error
    value = record.compiled["explicit"].checks.value
    assert value is not None
    assert value.note is None


def test_a_shard_map_without_a_mesh_runs_on_axes_of_each_type(tmp_path: Path) -> None:
    total = jax.shard_map(lambda x: lax.psum(x.sum(), "x"), in_specs=P("x"), out_specs=P())
    record = check(tmp_path, total, array(4), in_specs=P("x"), reference=jnp.sum, program=["auto", "explicit"])
    assert (record.status, record.warnings) == ("passed", []), record.error
    assert set(record.compiled) == {"auto", "explicit"}


def test_a_shard_map_over_the_mesh_of_the_context_is_called_within_it(tmp_path: Path) -> None:
    def total(x: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        return jax.shard_map(lambda x: lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    record = check(tmp_path, total, array(4), in_specs=P("x"), reference=jnp.sum)
    assert record.status == "passed", record.error


def test_a_reference_that_numpy_computes_is_refused_as_a_reference(tmp_path: Path) -> None:
    record = check(tmp_path, jnp.sum, array(4), reference=lambda x: np.asarray(x).sum())
    assert "tracing the reference of sum at test_own_shard_map.py:" in str(record.error)
    assert "NumPy takes no traced arrays: write jnp for np in it" in str(record.error)


def test_a_module_may_have_a_mesh_with_explicit_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_a_mesh.py").write_text(
        "from dataclasses import dataclass\nfrom functools import partial\n\nimport jax\nfrom jax import P, lax\n\n"
        "axes = (jax.sharding.AxisType.Explicit,) * 2\n"
        "mesh = jax.sharding.AbstractMesh((2, 2), ('x', 'y'), axis_types=axes)\n\n\n"
        "@partial(jax.tree_util.register_dataclass, data_fields=['w'], meta_fields=[])\n@dataclass\n"
        "class Weights:\n    w: jax.Array\n\n\n"
        "@partial(jax.shard_map, mesh=mesh, in_specs=(P(), P('x')), out_specs=P())\n"
        "def total(weights, x):\n    return lax.psum((x @ weights.w).sum(), 'x')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("of_a_mesh")
    operands = module.Weights(array(3)), array(4, 3)
    record = check(tmp_path / "run", module.total, *operands, in_specs=(P(), P("x")))
    assert (record.status, record.collectives) == ("passed", {"all-reduce": 1}), record.error


def test_copies_that_jax_does_not_know_to_be_equal_are_one_message(tmp_path: Path) -> None:
    record = check(tmp_path, over(lambda x: x.sum(), in_specs=P("x"), out_specs=P()), array(4), in_specs=P("x"))
    assert record.status == "invalid"
    assert record.error is not None
    assert "out_specs is P() which implies that" in record.error
    assert "it was inferred to be possibly varying over {x}" in record.error


def test_copies_that_differ_are_found_where_nobody_else_looks(tmp_path: Path) -> None:
    forgotten = over(lambda x: x.sum(), in_specs=P("x"), out_specs=P(), check_vma=False)
    record = check(tmp_path, forgotten, array(4), in_specs=P("x"))
    assert record.status == "invalid"
    assert record.error is not None
    assert "the out_specs of the shard_map, P(), promise the same value on every device along 'x'" in record.error
    assert "test_own_shard_map.py:" in record.error
    assert "Traceback" not in record.error


@partial(over, in_specs=P("x"), out_specs=P("x"))
def local_mask(x: Any) -> Any:
    rows = jnp.arange(len(x))
    return jnp.where(rows[:, None] > 1, x, 0)


@partial(over, in_specs=(P("x"), P("y")), out_specs=P(), check_vma=False)
def forgotten(x: Any, w: Any) -> Any:
    out = x.sum(0) @ w
    return lax.psum(out, "x")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("function", "reference", "operands", "specs", "mend"),
    [
        (local_mask, lambda x: jnp.where(jnp.arange(len(x))[:, None] > 1, x, 0), (array(8, 4),), (P("x"),),
         "the term axis_index('x') * 4 is left out in test_own_shard_map.py:{} rows = jnp.arange(len(x))"),
        (forgotten, lambda x, w: (x.sum(0) @ w.reshape(2, 4, 3)).sum(0), (array(8, 4), array(8, 3)), (P("x"), P("y")),
         "over 'x' and 'y'"),
    ],
)  # fmt: skip
def test_a_mistake_inside_is_named_by_its_line_where_there_is_a_reference(
    tmp_path: Path,
    function: Any,
    reference: Any,
    operands: Any,
    specs: Any,
    mend: str,
) -> None:
    record = check(tmp_path, function, *operands, in_specs=specs, reference=reference)
    assert record.status == "failed", record.error
    value = record.compiled["auto"].checks.value
    assert value is not None
    blamed, comparison, *_ = value.diagnosis
    assert "in NumPy too, the function with its shard_map" in blamed
    assert "the function equals its reference" in comparison
    assert mend.partition("{}")[0] in comparison


@pytest.mark.in_turn
def test_grad_of_a_line_that_has_a_shard_map_is_confirmed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import jax\nimport jax.numpy as jnp\nfrom jax import lax\nfrom jax.sharding import AbstractMesh, AxisType\n"
        "mesh = AbstractMesh((2, 2), ('x', 'y'), axis_types=(AxisType.Auto,) * 2)\n"
        "mlp = jax.shard_map(lambda x, w: lax.psum(jnp.tanh(x) @ w, 'y'), mesh=mesh,\n"
        "                    in_specs=(jax.P('x', 'y'), jax.P('y')), out_specs=jax.P('x'))\n"
    )
    normal = {"init": "normal(0, 1)", "dtype": "float32"}
    record = runner.run(
        {
            "name": "mine",
            "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
            "imports": {"mine": str(tmp_path / "mine.py")},
            "arrays": {
                "x": {"shape": [8, 4], "spec": ["x", "y"], **normal},
                "w": {"shape": [4, 4], "spec": ["y"], **normal},
            },
            "graph": {"loss": "mean(mine.mlp(2 * x, w) ** 2)"},
            "outputs": {"loss": []},
            "grad": {"of": "loss", "wrt": ["w"]},
            "program": "auto",
        },
        folder=tmp_path / "run",
    )
    assert record.status == "passed", record.error


def test_a_function_that_numpy_does_not_evaluate_as_it_was_read_is_said_to_be_unsearched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any) -> Any:
        raise ValueError("shapes (8,) and (2,)")

    monkeypatch.setattr(search, "Trial", refusing)
    operands, specs = (array(8, 4), array(8, 3)), (P("x"), P("y"))
    reference = lambda x, w: (x.sum(0) @ w.reshape(2, 4, 3)).sum(0)  # noqa: E731
    record = check(tmp_path, forgotten, *operands, in_specs=specs, reference=reference, program="auto")
    value = record.compiled["auto"].checks.value
    assert value is not None
    assert value.diagnosis[0].startswith("auto differs from the reference: ")
    (warning,) = [warning for warning in record.warnings if "was looked for" in warning]
    assert warning.endswith("NumPy does not evaluate it as it was read (ValueError: shapes (8,) and (2,))")
