"""A function with a `shard_map` of its own: it is read as a region, and NumPy runs that on all devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from jax import lax
from jax.sharding import PartitionSpec as P

import runner
from runner.checks import diagnosis
from runner.layout import Mesh
from runner.reference.interpreter import interpret
from runner.worker import jaxprs
from runner.worker.versions import abstract_mesh
from tests import harness

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


def read(function: Callable[..., Any], *operands: Any) -> tuple[jaxprs.FunctionLines, dict[str, np.ndarray]]:
    given = dict(zip("abc", operands, strict=False))
    return jaxprs.read(function, given, devices=MESH), given


def held(function: Callable[..., Any], *operands: Any) -> list[np.ndarray]:
    """Return what NumPy has for a function that is read as the lines of a graph."""
    lines, given = read(function, *operands)
    config = {
        "arrays": {name: {"shape": list(v.shape), "spec": []} for name, v in given.items()},
        "graph": dict(lines.lines),
        "outputs": {name: [] for name in lines.results},
    }
    text = yaml.safe_dump(config, sort_keys=False, width=10**6)
    experiment, types = harness.experiment(text, program="auto"), harness.types(text, program="auto").outputs
    wanted = jax.tree.leaves(jax.eval_shape(function, *operands))
    assert [types[name].shape for name in lines.results] == [each.shape for each in wanted]
    values = interpret(experiment, "graph", given, keep=lines.results).values
    return [np.asarray(values[name][0]) for name in lines.results]


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
        (branching, lambda x: jnp.concatenate([2 * x[:2], x[2:] - 1]), (array(4),)),
    ],
    ids=["fsdp", "fsdp-grad", "ring", "ring-grad", "pipeline", "experts", "no-vma", "in-a-loop", "branch"],
)  # fmt: skip
def test_numpy_computes_on_all_devices_what_the_function_without_shard_map_does(
    function: Callable[..., Any], plain: Callable[..., Any], operands: tuple[Any, ...]
) -> None:
    for value, wanted in zip(held(function, *operands), jax.tree.leaves(plain(*operands)), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)


def test_lines_of_a_region_have_the_places_of_the_device_code() -> None:
    lines, _ = read(fsdp, array(8, 4), array(4, 8), array(8, 4))
    (region,) = (line for line in lines.lines.values() if isinstance(line, dict))
    assert region["shard_map"]["in_specs"] == [["x"], ["x", "y"], ["y", "x"]]
    assert region["shard_map"]["check_vma"] is True
    gathered = next(name for name, text in region["body"].items() if text.startswith("all_gather("))
    assert lines.frames[gathered].text == 'up = lax.all_gather(up, "x", axis=0, tiled=True)'


def doubled(mesh: Mesh, **more: Any) -> Callable[..., Any]:
    return jax.shard_map(lambda x: 2 * x, mesh=abstract_mesh(mesh), in_specs=P("x"), out_specs=P("x"), **more)


def nested(x: Any) -> Any:
    inner = jax.shard_map(lambda x: 2 * x, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})
    return over(inner, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (doubled(Mesh(("x",), (4,))), "its shard_map is over the mesh x=4, and the experiment has the mesh x=2 × y=2"),
        (doubled(Mesh(("y", "x"), (2, 2))), "over the mesh y=2 × x=2, and the experiment has the mesh x=2 × y=2"),
        (doubled(MESH, axis_names={"x"}), "leaves 'y' to the compiler (axis_names), which cannot be read"),
        (nested, "leaves 'y' to the compiler (axis_names), which cannot be read"),
    ],
)
def test_a_shard_map_that_cannot_be_read_is_one_message(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(jaxprs.CannotRead, match=r"^test_own_shard_map\.py:") as refused:
        read(function, array(4, 4))
    assert message in str(refused.value)


def gradients(x: Any, up: Any, down: Any) -> Any:
    return jax.grad(fsdp, (1, 2))(x, up, down)


def check(folder: Path, function: Any, *operands: Any, **more: Any) -> runner.Record:
    return runner.check(function, operands, mesh={"x": 2, "y": 2}, folder=folder, quiet=True, **more)


def test_collectives_are_those_of_the_lines_inside_and_the_verdict_says_what_it_proves(tmp_path: Path) -> None:
    operands, specs = (array(8, 4), array(4, 8), array(8, 4)), (P("x"), P("x", "y"), P("y", "x"))
    record = check(tmp_path, gradients, *operands, in_specs=specs)
    assert record.status == "passed", record.error
    program = record.compiled["auto"]
    assert record.collectives["reduce-scatter"] == 2
    reasons = [each.why.text for each in program.collectives or [] if each.why is not None]
    assert len(reasons) == len(program.collectives or [])
    assert all("test_own_shard_map.py:" in reason for reason in reasons)
    assert any("the derivative of test_own_shard_map.py:" in reason for reason in reasons)
    assert not program.collectives_unknown
    assert program.checks.value is not None
    note = program.checks.value.note
    assert note is not None
    assert "not that its collectives are what was meant" in note
    assert "reference=" in note


def test_explicit_axes_and_a_reference(tmp_path: Path) -> None:
    mesh = jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:4]
    )
    total = jax.shard_map(lambda x: lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    record = runner.check(
        total, (array(4),), mesh=mesh, in_specs=(P("x"),), folder=tmp_path, quiet=True, reference=jnp.sum
    )
    assert (record.status, record.collectives) == ("passed", {"all-reduce": 1}), record.error
    value = record.compiled["auto"].checks.value
    assert value is not None
    assert value.note is None


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
    monkeypatch: pytest.MonkeyPatch,
    function: Any,
    reference: Any,
    operands: Any,
    specs: Any,
    mend: str,
) -> None:
    # What is tried does not depend on how busy the machine is.
    monkeypatch.setattr(diagnosis, "LEAST", diagnosis.MOST)
    record = check(tmp_path, function, *operands, in_specs=specs, reference=reference)
    assert record.status == "failed", record.error
    value = record.compiled["auto"].checks.value
    assert value is not None
    who, found, *_ = value.diagnosis
    assert "in NumPy too, the function with its shard_map" in who
    assert "the function equals its reference" in found
    assert mend.partition("{}")[0] in found


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
