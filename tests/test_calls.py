"""`runner.check` of a call beside JAX's own: what it accepts, computes, lays out, aliases and communicates."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from runner.app import api
from runner.app.called.specs import WrongSpecs, spread
from runner.link.workers import Workers
from tests.user_functions import calls, closing

X = (np.arange(64, dtype=np.float32).reshape(8, 8) ** 1.5) / 64
WORKERS = Workers()
_COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def mesh_of(kind: AxisType) -> Any:
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2, devices=jax.devices()[:4])


def check(folder: Path, function: Any, *operands: Any, **more: Any) -> api.Record:
    return api.checked(function, operands, folder, WORKERS, **more)


def compiled_by_jax(function: Any, x: Any) -> Any:
    """What JAX compiles of a call in a process of its own, or the exception with which it refuses it.

    A `shard_map` without a mesh keeps that of its first call, so the module is loaded anew.
    """
    spec = importlib.util.spec_from_file_location(calls.__name__, calls.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded = getattr(module, function.__name__)
    try:
        return jax.jit(loaded, donate_argnums=0 if function is calls.step else ()).lower(x).compile()
    except Exception as error:
        return error


WITHIN = [
    calls.doubled, calls.resharded, calls.gram, calls.gram_to, calls.looked_up, calls.added, calls.asserted,
    calls.asserted_otherwise, calls.created, calls.looped, calls.inner_jit, calls.mapped, calls.mapped_otherwise,
    calls.step,
]  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
@pytest.mark.parametrize("function", WITHIN, ids=lambda function: function.__name__)
def test_a_call_within_set_mesh_is_as_jax_has_it(function: Any, kind: AxisType, tmp_path: Path) -> None:
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("a", "b"))
        compiled: Any = compiled_by_jax(function, x)
        record = check(tmp_path, function, x)
    if isinstance(compiled, Exception):
        assert record.status == "invalid", record
        assert str(compiled).split("\n")[0][:60] in str(record.error)
        return
    assert record.status == "passed", record
    assert [*record.programs] == ["explicit" if kind is AxisType.Explicit else "auto"]
    program = next(iter(record.compiled.values()))
    specs = [getattr(sharding, "spec", P()) for sharding in jax.tree.leaves(compiled.output_shardings)]
    padded = [
        tuple(spec) + (None,) * (out.ndim - len(spec))
        for spec, out in zip(specs, jax.tree.leaves(compiled.out_info), strict=True)
    ]
    assert [tuple(output.spec.json()) for output in program.outputs.values() if output.spec is not None] == padded
    assert record.collectives == dict(Counter(_COLLECTIVE.findall(compiled.as_text())))
    assert program.memory is not None
    assert program.memory.alias_bytes == compiled.memory_analysis().alias_size_in_bytes


@pytest.mark.parametrize("function", [calls.decorated, calls.wrapped], ids=["decorated", "wrapped"])
def test_a_shard_map_on_a_modules_abstract_mesh_runs_with_its_types(function: Any, tmp_path: Path) -> None:
    record = check(tmp_path, function, X, mesh={"a": 2, "b": 2}, in_specs=P("a", "b"))
    assert (record.status, [*record.programs]) == ("passed", ["explicit"]), record
    assert record.collectives == {"all-reduce": 1}


@pytest.mark.in_turn
def test_a_bare_spec_is_of_the_mesh_that_is_given(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Explicit)
    for number, given in enumerate((mesh, mesh.abstract_mesh, {"a": 2, "b": 2})):
        record = check(tmp_path / str(number), calls.resharded, X, mesh=given, in_specs=P("a", "b"), program="explicit")
        assert record.status == "passed", record
    auto = check(tmp_path / "auto", calls.resharded, X, mesh={"a": 2, "b": 2}, in_specs=P("a", "b"))
    assert "cannot contain axis names that are of type Auto" in str(auto.error)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("function", "written"),
    [
        (calls.gram, "write jnp.matmul(x.T, x, out_sharding=P('b', None)), which JAX's types accept"),
        (calls.added, "write jax.reshard(x.T, P('a', 'b')), which JAX's types accept"),
        (calls.joined, "write jax.reshard(x.T, P('a', 'b')), which JAX's types accept"),
        (calls.indexed, "write x.at[rows].get(out_sharding=P('a', 'b')), which JAX's types accept"),
        (calls.taken, "write x.at[:, columns].get(out_sharding=P('a', None)), which JAX's types accept"),
        (calls.picked, "write jax.reshard(x, P('b', None)), which JAX's types accept"),
        (calls.stacked, "write jax.reshard(x.sum(0), P('a')), which JAX's types accept"),
        (calls.dotted, "write x.reshape(-1, 4, out_sharding=P('a', None)), which JAX's types accept"),
        (calls.patches, "write x.reshape(2, 4, 4, 2, out_sharding=P('a', None, 'b', None)), which JAX's types accept"),
        (calls.updated, "write x.at[jnp.array([1, 2])].set(0.0, out_sharding=P('a', 'b')), which JAX's types accept"),
        (
            calls.inner,
            "the call takes no out_sharding; check the function on Auto axes: mesh=jax.make_mesh((2, 2), ('a', 'b'), "
            "axis_types=(jax.sharding.AxisType.Auto,) * 2)",
        ),
        (
            calls.repeated,
            "write jnp.repeat(x, jnp.arange(8), axis=1, total_repeat_length=8, out_sharding=P('a', None)), "
            "which JAX's types accept",
        ),
        (calls.scanned, "reshard what is scanned: jax.reshard(x * 2, P(None, 'b'))"),
        (calls.asserted_otherwise, "write jax.reshard(x, P('b', 'a'))"),
        (calls.branched, "let all branches give one layout: jax.reshard(…, P('a', 'b')) in false_fun"),
        (
            calls.uncombined,
            "name in out_specs each axis along which the values differ, or make them one, as psum and all_gather do",
        ),
        (calls.summed_over_no_axis, "the mesh has no axis 'c'"),
        (
            calls.laid_out_alike,
            "write jnp.matmul(tree['left'], tree['right'], out_sharding=P(None, None)), which JAX's types accept",
        ),
        (calls.on_no_axis, "the mesh has no axis 'data'"),
        (calls.in_thirds, "shard dimension 1 over 'a' alone, or pad dimension 1 from 6 to 8"),
        (calls.twice_on_one_axis, "an axis shards one dimension alone: leave 'a' out of the others of P('a', 'a')"),
        (calls.of_more_dimensions, "the array has rank 2, and P('a', None, 'b') has more entries"),
        (calls.unfitting, "it reads given float32[8, 8] and rows float32[6, 8]"),
        (
            calls.carried,
            "let loop_carry[1] begin in the layout that a step gives it: jax.reshard(…, P('a', 'b'))",
        ),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_refusal_has_the_line_and_what_to_write(function: Any, written: str, tmp_path: Path) -> None:
    record = check(tmp_path, function, X, mesh=mesh_of(AxisType.Explicit), in_specs=P("a", "b"))
    assert record.error is not None
    place, message, remedy = record.error.splitlines()
    assert place == f"runner.check({function.__name__}, …)"
    assert message.startswith(f"  tracing {function.__name__} at calls.py:")
    assert re.search(r"(ShardingType|Value|Type|Assertion|DuplicateSpec)Error(: |$)", message)
    assert remedy == f"  {written}"


def test_a_lookup_as_the_refusal_says_is_accepted(tmp_path: Path) -> None:
    record = check(tmp_path, calls.indexed_to, X, mesh=mesh_of(AxisType.Explicit), in_specs=P("a", "b"))
    assert record.status == "passed", record


def test_auto_on_an_explicit_mesh_is_refused_as_by_jax(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Explicit)

    def named(x: Any) -> Any:
        return jax.sharding.reshard(x * 2, NamedSharding(mesh, P(None, "b")))

    given: dict[str, Any] = {"mesh": mesh, "in_specs": P("a", "b")}
    assert check(tmp_path / "explicit", named, X, **given).status == "passed"
    refused = check(tmp_path / "auto", named, X, **given, program="auto")
    assert refused.status == "invalid", refused
    assert "tracing named at test_calls.py:" in str(refused.error)
    assert "cannot contain axis names that are of type Auto" in str(refused.error)


@pytest.mark.in_turn
def test_a_program_for_which_jax_refuses_a_function_is_refused_by_name_and_left_out_of_all(tmp_path: Path) -> None:
    given: dict[str, Any] = {"mesh": mesh_of(AxisType.Explicit), "in_specs": P("a", "b")}
    both = check(tmp_path / "both", calls.resharded, X, **given, program=["explicit", "auto"])
    assert both.error is not None
    _, message, remedy = both.error.splitlines()
    assert message.startswith("  tracing resharded at calls.py:")
    assert "cannot contain axis names that are of type Auto" in message
    assert "leave programs with Auto axes out, such as 'auto'" in remedy
    every = check(tmp_path / "all", calls.resharded, X, **given, program="all")
    assert (every.status, [*every.programs], [*every.not_supported]) == (
        "passed", ["explicit", "derived"], ["auto", "constraint"],
    )  # fmt: skip
    assert "calls.py:" in every.not_supported["auto"]
    untyped = check(tmp_path / "typed", calls.gram, X, **given, program=["explicit", "auto"])
    assert "write jnp.matmul(x.T, x, out_sharding=P('b', None)), which JAX's types accept" in str(untyped.error)


def test_what_to_write_follows_the_layouts_that_the_function_states(tmp_path: Path) -> None:
    """JAX accepts `out_sharding=` on Explicit axes alone: the function cannot be read without them."""
    record = check(tmp_path, calls.stated, X, mesh=mesh_of(AxisType.Explicit), in_specs=P("a", "b"))
    assert record.error is not None
    assert "ambiguous" in record.error
    assert "write jnp.matmul(jnp.tanh(h), x.T, out_sharding=P(None, 'a')), which JAX's types accept" in record.error


def test_specs_of_a_state_that_holds_a_function_fit_it(tmp_path: Path) -> None:
    """The function is made here, and comes to the worker by value, with the specs and with the operand."""
    state = calls.State(X, lambda x: jnp.tanh(x) * 2)
    specs: Any = jax.tree.map(lambda _: P("a", "b"), state)
    record = check(tmp_path, calls.applied, state, mesh={"a": 2, "b": 2}, in_specs=(specs,), out_specs=P("a", "b"))
    assert record.status == "passed", record


def test_a_gather_before_a_shard_map_has_the_line_that_reads_it(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Auto)
    mapped = jax.shard_map(lambda x, w: jnp.tanh(x @ w), mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))
    record = check(tmp_path, mapped, X, X, mesh=mesh, in_specs=(P("a"), P("b")))
    assert re.search(r"all-gather +w for test_calls\.py:\d+", str(record)), record


def test_a_gather_of_a_scanned_weight_has_the_line_of_the_body_that_asks_for_it(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Explicit)

    def layer(x: Any, w: Any) -> Any:
        whole = jax.reshard(w, P(None, None))
        return jnp.tanh(x @ whole), None

    layers = np.stack([X, X])
    record = check(
        tmp_path, lambda ws, x: jax.lax.scan(layer, x, ws)[0], layers, X, mesh=mesh, in_specs=(P(None, "a"), P("b"))
    )
    assert record.status == "passed", record.error
    (gather,) = record.compiled["explicit"].collectives or []
    lines, first = inspect.getsourcelines(layer)
    assert "reshard" in lines[1]
    assert f"for test_calls.py:{first + 1}" in str(gather.of)


@pytest.mark.parametrize(
    ("function", "instead"),
    [
        (lambda x: np.sin(x), "jnp.sin(x) in place of np.sin(x)"),
        (lambda x: x if x.sum() > 0 else -x, "jnp.where(condition, a, b), or jax.lax.cond"),
        (lambda x: [1.0, 2.0][x.sum().astype(int)] * x, "a static argument, or jnp.take for an index"),
        (lambda x: x[x > 0], "jnp.where(mask, x, 0) keeps all"),
    ],
)
def test_what_jax_cannot_trace_is_answered_with_what_it_can(function: Any, instead: str, tmp_path: Path) -> None:
    record = check(tmp_path, function, X, mesh={"a": 2}, in_specs=P("a"))
    assert instead in str(record.error)


def test_an_argument_of_a_shard_map_that_lies_otherwise_is_named(tmp_path: Path) -> None:
    mapped = jax.shard_map(lambda x, w: x @ w, mesh=calls.MESH, in_specs=(P("a"), P()), out_specs=P("a"))
    record = check(tmp_path, mapped, X, X, mesh={"a": 2, "b": 2}, in_specs=(P("a"), P("b")))
    assert record.error is not None
    assert "reshard w before the call: jax.reshard(w, P(None, None))" in record.error


def test_the_mesh_is_that_of_the_functions_shard_map(tmp_path: Path) -> None:
    mapped = jax.jit(jax.shard_map(lambda p, x: x @ p["w"], mesh=calls.MESH, in_specs=(P(), P("a")), out_specs=P("a")))
    tree = {"w": X}
    record = check(tmp_path / "right", mapped, tree, X, in_specs=(P(), P("a")))
    assert record.status == "passed", record
    assert record.mesh is not None
    assert record.mesh.axes == ["a", "b"]
    otherwise = check(tmp_path / "otherwise", mapped, tree, X, in_specs=(P("b"), P("a")))
    assert "reshard p/w before the call: jax.reshard(…, P(None, None))" in str(otherwise.error)


def test_one_of_several_meshes_is_not_taken(tmp_path: Path) -> None:
    other = jax.make_mesh((4,), ("c",))

    def mapped(x: Any) -> Any:
        once = jax.shard_map(jnp.tanh, mesh=calls.MESH, in_specs=P("a"), out_specs=P("a"))(x)
        return jax.shard_map(jnp.tanh, mesh=other, in_specs=P("c"), out_specs=P("c"))(once)

    with pytest.raises(
        ValueError, match=r"the function uses several meshes, \{'c': 4\} and \{'a': 2, 'b': 2\}; give one"
    ):
        check(tmp_path, mapped, X, in_specs=P("a"))


@pytest.mark.parametrize(("before", "after", "collectives"), [
    (P("a"), P(), {"all-gather": 1}), (P(), P("a"), {}), (P("a"), P(None, "a"), {"all-to-all": 1}),
])  # fmt: skip
def test_out_specs_hold_in_the_default_program(before: P, after: P, collectives: Any, tmp_path: Path) -> None:
    record = check(tmp_path, calls.doubled, X, mesh={"a": 4}, in_specs=before, out_specs=after)
    assert (record.status, record.collectives) == ("passed", collectives)
    assert str(record.compiled["auto"].outputs["result"].spec) == str(P(*after, *(None,) * (2 - len(after))))
    layout = record.compiled["auto"].checks.layout
    assert layout is not None
    assert layout.note is None


@pytest.mark.in_turn
def test_captured_arrays_are_as_the_caller_has_them(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Explicit)
    whole = jnp.arange(8.0)
    sharded = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
    body = jax.shard_map(lambda x: x * whole[:4], mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
    for number, function in enumerate(
        (body, jax.jit(body), lambda x: x + sharded, jax.grad(lambda x: (x * sharded).sum()))
    ):
        record = check(tmp_path / str(number), function, X, mesh=mesh, in_specs=P("a", "b"))
        assert record.status == "passed", record
        assert record.collectives == {}


def test_a_mistake_beside_a_captured_array_is_found(tmp_path: Path) -> None:
    w = jnp.arange(1.0, 13.0).reshape(4, 3)

    def closed(x: Any) -> Any:
        return jnp.tanh(jax.lax.psum(x @ w, "a"))

    mapped = jax.shard_map(closed, mesh=calls.MESH, in_specs=P("a"), out_specs=P("a"), check_vma=False)
    more: dict[str, Any] = {"mesh": {"a": 2, "b": 2}, "in_specs": P("a"), "reference": lambda x: jnp.tanh(x @ w)}
    record = check(tmp_path, mapped, X[:, :4] / 64, **more)
    value = record.compiled["explicit"].checks.value
    assert value is not None
    assert "is one psum too many: without it, the function equals its reference" in "".join(value.diagnosis)


def test_a_shard_map_that_closes_over_a_sharded_array_is_refused_as_by_jax(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Explicit)
    table = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
    closing = jax.shard_map(lambda x: x + table[:4, :4], mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
    record = check(tmp_path, closing, X, mesh=mesh, in_specs=P("a", "b"))
    assert record.status == "invalid", record
    assert "table (float32[8, 8], P('a', 'b')) is captured: pass it as an argument" in str(record.error)


def test_an_array_of_an_imported_module_that_a_shard_map_closes_over_is_named(tmp_path: Path) -> None:
    record = check(tmp_path, closing.mapped, X, mesh=mesh_of(AxisType.Explicit), in_specs=P("a", "b"))
    assert record.status == "invalid", record
    assert "TABLE (float32[4, 4], P('a', 'b')) is captured: pass it as an argument of the shard_map" in str(
        record.error
    )


@pytest.mark.in_turn
def test_what_a_step_is_given_to_keep_and_how_its_state_comes_out(tmp_path: Path) -> None:
    def grown(p: Any, x: Any) -> Any:
        moved = jax.lax.with_sharding_constraint(jnp.ones((8, 8)), P("a"))
        return {"w": p["w"] + moved, "b": p["b"] * x.sum()}, (x @ p["w"]).sum()

    def shrunk(p: Any, x: Any) -> Any:
        return {"w": p["w"] * x.sum(), "b": p["b"][:4]}, x.sum()

    p = {"w": X, "b": X[0]}
    more: dict[str, Any] = {"mesh": {"a": 4}, "in_specs": (P(), P("a"))}
    record = check(tmp_path / "moved", grown, p, X, **more)
    assert record.status == "passed", record
    assert record.warnings == [
        "auto: result/0/w, the next value of p/w, is laid out as P('a', None), not as P(None, None): another step "
        "moves the state, or compiles anew; to keep the layout, give it as out_specs"
    ]
    kept = check(tmp_path / "kept", grown, p, X, expect={"state_layout": "kept"}, **more)
    assert kept.status == "failed"
    held = check(tmp_path / "held", grown, p, X, out_specs=P(), expect={"state_layout": "kept"}, **more)
    assert held.status == "passed", held
    donating = check(tmp_path / "donating", jax.jit(shrunk, donate_argnums=0), p, X, **more)
    assert donating.warnings == [
        "auto: p/b is donated, and the compiler cannot use the memory, 32 B on each device: no result is left that has "
        "its type and layout"
    ]
    assert donating.compiled["auto"].memory is not None
    assert donating.compiled["auto"].memory.alias_bytes == X.nbytes
    gradient = check(tmp_path / "gradient", jax.value_and_grad(lambda p, x: (x @ p["w"] + p["b"]).sum()), p, X, **more)
    assert not [warning for warning in gradient.warnings if "laid out" in warning]


def test_of_equal_donated_memory_that_is_unused_whose_next_value_lies_otherwise(tmp_path: Path) -> None:
    def step(state: Any, x: Any) -> Any:
        whole = jax.lax.with_sharding_constraint(state["b"] - x.sum(), P())
        return {"m": 0.9 * state["m"] + x.sum(), "b": whole}

    state, given = (
        {"m": X, "b": X + 1},
        {"mesh": {"a": 4}, "in_specs": (P("a"), P()), "out_specs": {"m": P("a"), "b": P()}},
    )
    record = check(tmp_path, jax.jit(step, donate_argnums=0), state, X, **given)
    [moved, unused] = record.warnings
    assert moved.startswith("auto: result/b, the next value of state/b, is laid out as")
    assert unused.startswith("auto: state/b is donated, and the compiler cannot use the memory, 64 B on each device")


def test_who_expects_a_state_to_be_kept_has_one_also_of_a_single_array(tmp_path: Path) -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * (x.T @ (x @ w))

    more: dict[str, Any] = {"mesh": {"a": 4}, "in_specs": (P(), P("a")), "out_specs": P("a")}
    assert not check(tmp_path / "unasked", step, X, X, **more).warnings
    record = check(tmp_path / "asked", step, X, X, expect={"state_layout": "kept"}, **more)
    assert record.status == "failed"
    assert "result is P('a', None), and w P(None, None)" in str(record.compiled["auto"].checks)


@pytest.mark.in_turn
def test_a_shard_map_on_devices_here_is_compiled_for_those_of_a_target(tmp_path: Path) -> None:
    mesh = mesh_of(AxisType.Auto)
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "a"), mesh=mesh, in_specs=P("a"), out_specs=P())
    record = check(tmp_path, mapped, X, mesh=mesh, in_specs=P("a"), target="v5e_2x2")
    assert (record.status, record.collectives) == ("passed", {"all-reduce": 1}), record


def test_what_jax_takes_is_taken(tmp_path: Path) -> None:
    def mixed(tree: Any, x: Any, n: Any, *, shift: Any, factor: Any = 1.0) -> Any:
        noise = jax.random.normal(tree["key"], x.shape)
        return {"out": x * n + noise + shift, "empty": tree["empty"], "none": None, "number": n}, tree[
            "scalar"
        ] * factor

    tree = {
        "key": jax.random.key(0), "empty": np.zeros((0, 3), np.float32), "scalar": np.float32(2), "none": None,
        "shape": jax.ShapeDtypeStruct((0,), np.float32),
    }  # fmt: skip
    specs = (
        {"key": P(), "empty": P(), "scalar": None, "none": None, "shape": P()},
        P("a"),
        None,
        {"shift": P(None, "a")},
    )
    kwargs = {"shift": X, "factor": 2.0}
    record = check(tmp_path, mixed, tree, X, 3, kwargs=kwargs, mesh={"a": 4}, in_specs=specs)
    assert record.status == "passed", record
    assert set(record.arrays) == {"tree_key", "tree_scalar", "x", "shift"}
    nothing = "output 'result_0_empty' has no elements (its shape is [0, 3]): there is nothing to compare"
    assert nothing in record.warnings


def test_a_functions_own_caches_may_hold_values_of_a_trace(tmp_path: Path) -> None:
    record = check(
        tmp_path / "run",
        calls.rotated,
        X,
        mesh={"x": 2},
        in_specs=P("x"),
        out_specs=P("x"),
        program=["auto", "derived"],
    )
    assert record.status == "passed"
    assert len(record.programs) == 2


def test_an_unknown_keyword_is_an_argument_too(tmp_path: Path) -> None:
    record = check(tmp_path, calls.doubled, X, mesh={"a": 4}, in_specs=P("a"), expect={"collectivs": 3})
    assert record.error == "expect.collectivs\n  there is no key 'collectivs'; did you mean 'collectives'?"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Module:
    """A module as Flax NNX and Equinox have them: its parts are attributes, and one has no arrays."""

    up: Any
    down: Any
    state: Any = None


def test_the_specs_of_a_modules_attributes_may_be_a_mapping_by_their_names() -> None:
    module = Module(X, {"bias": X})
    mapped = spread({"down": {"bias": P("a")}, "up": P(None, "a")}, module, "in_specs[0]")
    assert mapped == spread(Module(P(None, "a"), {"bias": P("a")}), module, "in_specs[0]") == [P(None, "a"), P("a")]
    with pytest.raises(WrongSpecs, match=r"the operand has no \['side'\]; it has \.up and \.down"):
        spread({"up": P(), "down": P(), "side": P()}, module, "in_specs[0]")
    with pytest.raises(WrongSpecs, match=r"there is no spec for \.down; give one"):
        spread({"up": P()}, module, "in_specs[0]")


TEXT = "a spec is a PartitionSpec, not the text 'a': write P('a')"


@pytest.mark.parametrize(
    ("specs", "place", "message"),
    [
        ((P(), "a"), "in_specs[1]", TEXT),
        ("a", "in_specs", TEXT),
        (({"u": P()}, P()), "in_specs[0]['u']", "the operand has no ['u']; it has ['down'] and ['up']"),
        (({"up": P()}, P()), "in_specs[0]", "there is no spec for ['down']; give one, or one for all of in_specs[0]"),
        (({"up": P(), "down": "a"}, P()), "in_specs[0]['down']", TEXT),
        (({"up": P("c"), "down": P()}, P()), "in_specs[0]['up']", "mesh axis 'c' does not exist; the mesh has a"),
        ((P(), P(None, None, "a")), "in_specs[1]", "the spec has 3 entries, but 'x' has rank 2"),
        ((P(), P("a")), "in_specs[1]", "dimension 0 of 'x' has size 6, which a=4 does not divide"),
    ],
)  # fmt: skip
def test_messages_name_the_callers_argument(specs: Any, place: str, message: str, tmp_path: Path) -> None:
    record = check(tmp_path, lambda p, x: x, {"up": X, "down": X}, X[:6], mesh={"a": 4}, in_specs=specs)
    assert record.status == "invalid"
    assert record.error == f"{place}\n  {message}"
