"""`runner.check` of functions from scripts: their closures, arguments and results; what is refused."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import linecache
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from runner.app import api
from runner.app.called import pickling
from runner.link.workers import Workers
from runner.worker.versions import is_own
from tests.user_functions.modules import Module

MESH = {"data": 2, "model": 2}
X = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
W = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
GLOBAL: list[Any] = []


WORKERS = Workers()
"""One process computes all checks of this file, as it does where one test follows another."""


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def check(folder: Path, function: Any, *operands: Any, **more: Any) -> api.Record:
    """Do what `runner.check` does, without printing; it starts no process for each."""
    return api.checked(function, operands, folder, WORKERS, **{"mesh": MESH, **more})


def message(folder: Path, function: Any, *operands: Any, **more: Any) -> str:
    """Return the error message of a call, without its place and the quoted line."""
    record = check(folder, function, *operands, **more)
    assert record.status == "invalid", record
    assert record.error is not None
    return record.error.split("\n")[1].strip()


class Pair(NamedTuple):
    w: Any
    key: Any


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0


def local_classes() -> tuple[Any, Any]:
    """Return a pytree of classes that no module exports by name, as in a script; and a function that takes it."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        w: Any
        n: int = dataclasses.field(metadata={"static": True}, default=2)

    @jax.tree_util.register_pytree_node_class
    class State:
        def __init__(self, layer: Any) -> None:
            self.layer = layer

        def tree_flatten(self) -> tuple[Any, Any]:
            return (self.layer,), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    def apply(state: Any, x: Any) -> Any:
        return State(Layer(x @ state.layer.w * state.layer.n, 3)), {"sum": x.sum(), "count": 3, "none": None}

    return State(Layer(W)), apply


@pytest.mark.in_turn
def test_closures_and_arguments_reach_the_worker(tmp_path: Path) -> None:
    state, apply = local_classes()
    scale, mask = 3.0, jax.random.key(1)

    def mixed(pair: Pair, x: Any, config: Any, nothing: Any, flag: bool, names: Any, factor: float) -> Any:
        assert nothing is None
        assert flag is True
        assert names.dtype.kind == "U"
        noise = jax.random.normal(pair.key, x.shape) + jax.random.normal(mask, x.shape)
        return Pair(x @ pair.w * config.scale * scale, x + noise * factor)

    pair = Pair(W, jax.random.key(0))
    constants = (Config(), None, True, np.array(["text"]), 0.5)
    specs = (P(), P("data"), *(None for _ in constants))
    record = check(tmp_path / "mixed", mixed, pair, X, *constants, in_specs=specs)
    assert (record.status, set(record.arrays)) == ("passed", {"pair_w", "pair_key", "x", "constant"})
    record = check(tmp_path / "classes", apply, state, X, in_specs=(P(None, "model"), P("data")))
    assert (record.status, set(record.arrays)) == ("passed", {"state_layer_w", "x"}), record.error
    assert record.collectives == {"all-reduce": 1}
    static = functools.partial(jax.jit(lambda x, n, y: x * n + y, static_argnums=1), y=1)
    assert check(tmp_path / "static", static, X, 3, in_specs=P("data")).status == "passed"


def test_a_scripts_pytree_class_with_a_registering_base_works(tmp_path: Path) -> None:
    class Layer(Module):
        w: Any
        b: Any

        def __call__(self, x: Any) -> Any:
            return x @ self.w + self.b

    record = check(tmp_path, lambda layer, x: layer(x), Layer(W, W[0]), X, in_specs=(P(), P("data")))
    assert (record.status, set(record.arrays)) == ("passed", {"layer_w", "layer_b", "x"}), record.error


@pytest.mark.parametrize("activation", [jax.nn.silu, jnp.tanh, lambda x: x * 2], ids=["jitted", "jnp", "own"])
def test_a_function_that_a_pytree_keeps_is_the_same_for_its_specs(activation: Any, tmp_path: Path) -> None:
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["activation"])
    @dataclasses.dataclass
    class Layer:
        w: Any
        activation: Any

    def step(layer: Any, x: Any) -> Any:
        return Layer(layer.activation(x @ layer.w), layer.activation)

    record = check(tmp_path, step, Layer(W, activation), X, in_specs=(P(), P("data")), out_specs=P("data"))
    assert record.status == "passed", record.error


def test_a_scripts_class_is_in_the_registry_of_the_module_of_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "KINDS = set()\nclass Base:\n    def __init_subclass__(cls):\n        KINDS.add(cls)\n"
    (tmp_path / "kinds_of_layers.py").write_text(
        f"{text}def made(kind):\n    assert kind in KINDS\n    return kind()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kinds = importlib.import_module("kinds_of_layers")

    class Layer(kinds.Base):
        def __call__(self, x: Any) -> Any:
            return x @ W

    record = check(tmp_path / "run", lambda x: kinds.made(Layer)(x), X, in_specs=P("data"))
    assert record.status == "passed", record.error
    monkeypatch.delitem(sys.modules, "kinds_of_layers")


@pytest.mark.in_turn
def test_what_a_function_changes_in_its_operands_is_a_result(tmp_path: Path) -> None:
    @jax.tree_util.register_pytree_with_keys_class
    class Counter:
        def __init__(self, w: Any, count: Any) -> None:
            self.w, self.count = w, count

        def tree_flatten_with_keys(self) -> tuple[Any, Any]:
            return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in ("w", "count")], None

        def tree_flatten(self) -> tuple[Any, Any]:
            return (self.w, self.count), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    def step(model: Any, x: Any) -> Any:
        loss = (x @ model.w).sum()
        model.w, model.count = model.w - 0.1 * x.T @ x, model.count + 1
        return loss

    model = Counter(W, np.int32(3))
    record = check(tmp_path / "step", step, model, X, in_specs=(P(), P("data")), out_specs=P())
    assert record.status == "passed", record.error
    assert set(record.compiled["auto"].outputs) == {"result_0", "result_1_model_w", "result_1_model_count"}

    def reference(model: Any, x: Any) -> Any:
        loss = step(model, x)
        model.count = model.count + 1
        return loss

    record = check(tmp_path / "wrong", step, model, X, in_specs=(P(), P("data")), reference=reference)
    value = record.compiled["auto"].checks.value
    assert value is not None
    assert (record.status, value.status) == ("failed", "failed")

    def whole(model: Any, x: Any) -> Any:
        return (x @ model.w).sum()

    refused = message(tmp_path / "whole", step, model, X, in_specs=(P(), P("data")), reference=whole)
    assert "it changes model, and its reference changes none: the new values are results" in refused

    def functional(model: Any, x: Any) -> Any:
        return whole(model, x), {"model": Counter(model.w - 0.1 * x.T @ x, model.count + 1)}

    record = check(tmp_path / "pair", step, model, X, in_specs=(P(), P("data")), reference=functional)
    assert record.status == "passed", record.error
    held = P(), {"model": P("data")}
    record = check(tmp_path / "held", step, Counter(W, W[0]), X, in_specs=(P(), P("data")), out_specs=held)
    specs = {name: str(output.spec) for name, output in record.compiled["auto"].outputs.items()}
    assert specs == {"result_0": "P()", "result_1_model_w": "P('data', None)", "result_1_model_count": "P('data')"}
    # The function itself leaves the model as it is where a reference does not.
    record = check(tmp_path / "kept", lambda model, x: (x @ model.w).sum(), model, X, in_specs=(P(), P("data")))
    assert set(record.compiled["auto"].outputs) == {"result"}


def test_a_spec_of_none_is_the_arrays_own_sharding(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    w = jax.device_put(W, NamedSharding(mesh, P(None, "model")))
    tree = {"w": w, "b": W[0]}
    record = check(tmp_path, lambda x, tree: x @ tree["w"] + tree["b"], X, tree, mesh=mesh, in_specs=(P("data"), None))
    assert record.status == "passed", record.error
    assert {name: str(array.spec) for name, array in record.arrays.items()} == {
        "x": "P('data', None)",
        "tree_w": "P(None, 'model')",
        "tree_b": "P(None)",
    }


def test_the_callers_meshes_devices_and_shardings_are_recreated(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    x = jax.device_put(X, NamedSharding(mesh, P("data", "model")))

    @functools.partial(jax.jit, in_shardings=NamedSharding(mesh, P("data")))
    def jitted(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ W, P("data", "model")).sum()

    record = check(tmp_path / "array", jnp.sum, x, mesh=None)
    assert (record.status, record.collectives) == ("passed", {"all-reduce": 2})
    assert str(record.arrays["a"].spec) == "P('data', 'model')"
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        record = check(tmp_path / "context", jitted, X, mesh=None, in_specs=P("data"))
    assert record.status == "passed", record.error
    shape = jax.ShapeDtypeStruct((8, 4), np.float32)
    assert check(tmp_path / "shape", jnp.cos, shape, mesh=mesh, in_specs=[P("data")]).status == "passed"


def test_a_jitted_functions_in_shardings_are_its_specs_and_mesh(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))
    # A name that StableHLO puts in quotes.
    jitted = jax.jit(
        lambda x, n, d: (x @ d["w"] * n + d["b"]).sum(),
        in_shardings=(rows, {"w": columns, "b": None}),
        static_argnums=1,
    )
    record = check(tmp_path / "jitted", jitted, X, 3, {"w": W, "b": W[0]}, mesh=None)
    assert (record.status, record.collectives) == ("passed", {"all-reduce": 2})
    specs = {name: str(array.spec) for name, array in record.arrays.items()}
    assert specs == {"x": "P('data', None)", "d_w": "P(None, 'model')", "d_b": "P(None)"}
    whole = check(tmp_path / "given", jax.jit(jnp.cos, in_shardings=rows), X, in_specs=P(None, "model"))
    assert str(whole.arrays["x"].spec) == "P(None, 'model')"
    assert "in_shardings is the wrong length" in message(
        tmp_path / "misfit", jax.jit(jnp.add, in_shardings=(rows,)), X, X
    )


def test_one_process_traces_and_runs_all_checks(tmp_path: Path) -> None:
    workers = Workers()
    for number in range(3):
        arguments: dict[str, Any] = {"mesh": MESH, "in_specs": P("data")}
        record = api.checked(jnp.cos if number else jnp.matmul, (X,), tmp_path / str(number), workers, **arguments)
        assert record.status == ("passed" if number else "invalid")
    assert workers.started == 1
    workers.close()


def test_a_plain_tuple_is_no_spec(tmp_path: Path) -> None:
    assert message(tmp_path, jnp.cos, X, in_specs=(("data", None),)) == (
        "a spec is a PartitionSpec, not ('data', None): write P('data', None)"
    )


@pytest.mark.parametrize("operands", [X, {"x": X}, Pair(X, X), "text"])
def test_operands_are_a_tuple(tmp_path: Path, operands: Any) -> None:
    with pytest.raises(ValueError, match=r"^the operands are a tuple, runner.check\(.*, \(x, w\)\), not an? \w+$"):
        api.check(jnp.cos, operands, mesh=MESH, in_specs=P("data"), folder=tmp_path)


def test_a_function_with_an_experiments_name_does_not_hide_it(tmp_path: Path) -> None:
    def layer(x: Any) -> Any:
        return jnp.cos(x)

    assert set(check(tmp_path, layer, X, in_specs=P("data")).arrays) == {"x"}


@pytest.mark.in_turn
def test_hardware_is_a_file_of_its_group_or_numbers(tmp_path: Path) -> None:
    def loss(x: Any, w: Any) -> Any:
        return (x @ w).sum()

    more = {"in_specs": (P("data"), P(None, "model"))}
    estimate = check(tmp_path / "a", loss, X, W, hardware="h100", **more).compiled["auto"].estimate
    assert estimate is not None
    assert estimate.seconds
    # Without links the time of a collective is unknown.
    known = check(tmp_path / "b", loss, X, W, hardware={"name": "mine", "flops": {"float32": 1e12}}, **more)
    assert known.status == "passed", known
    estimate = known.compiled["auto"].estimate
    assert estimate is not None
    assert [collective.seconds for collective in estimate.collectives] == [None, None]
    assert "h101" in message(tmp_path / "c", loss, X, W, hardware="h101", **more)


def test_a_function_that_changes_between_calls_is_refused(tmp_path: Path) -> None:
    def counts(x: Any) -> Any:
        GLOBAL.append(1)
        return x * len(GLOBAL)

    def draws(x: Any) -> Any:
        return x + np.random.default_rng().normal(size=x.shape).astype(np.float32)

    for function in (counts, draws):
        assert message(tmp_path / function.__name__, function, X, in_specs=P()) == (
            f"{function.__name__} returns different values when it is called again: it depends on state that "
            "changes, such as a global, the time or NumPy's generator; pass that as an argument"
        )


@pytest.mark.in_turn
def test_a_function_jitted_with_partition_specs_is_on_the_mesh_of_the_context(tmp_path: Path) -> None:
    jitted = functools.partial(jax.jit, in_shardings=({"w": P(None, "model")}, P("data")), out_shardings=P("data"))

    def product(p: Any, x: Any) -> Any:
        return x @ p["w"]

    with jax.sharding.use_abstract_mesh(AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        record = check(tmp_path / "context", jitted(product), {"w": W}, X, mesh=None)
        assert record.status == "passed", record
        assert record.mesh is not None
        assert (record.mesh.axes, record.mesh.shape) == (["data", "model"], [2, 2])
        assert record.collectives == {"all-gather": 1}, "out_shardings gather the columns"
    given = check(tmp_path / "given", jitted(product), {"w": W}, X)
    assert (given.status, given.collectives) == ("passed", record.collectives)
    inner = jax.jit(jnp.cos, in_shardings=P("data"))
    assert check(tmp_path / "inside", lambda x: inner(x) + 1, X, in_specs=P("data")).status == "passed"
    wrong = message(tmp_path / "axis", jax.jit(jnp.cos, in_shardings=P("rows")), X)
    assert wrong == "mesh axis 'rows' does not exist; the mesh has data, model"


def test_jaxs_own_lines_are_not_the_users_wherever_jax_is_installed(tmp_path: Path) -> None:
    def product(x: Any) -> Any:
        return x @ x[:1]

    assert message(tmp_path / "product", product, X, in_specs=P()).startswith("tracing product at test_called.py:")
    for folder in ("/home/me/.local/lib/python3.11/site-packages", "/usr/lib/python3/dist-packages"):
        assert not is_own(f"{folder}/jax/_src/numpy/tensor_contractions.py")
    assert is_own("/home/me/model/block.py")


def test_a_librarys_wrapper_is_no_caller_of_the_users_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    text = "import jax\ndef jitted(f):\n    compiled = jax.jit(f)\n    return lambda *operands: compiled(*operands)\n"
    (library / "wrappers_of_a_library.py").write_text(text)
    monkeypatch.syspath_prepend(library)
    wrappers = importlib.import_module("wrappers_of_a_library")

    def total(x: Any, y: Any) -> Any:
        return jax.lax.psum(x.sum(), "data"), jax.tree.map(lambda own: own - jax.lax.psum(own[:1], "data"), (x, y))

    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    mapped = jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=(P(), P("data")))
    record = check(tmp_path / "run", wrappers.jitted(mapped), X, X, mesh=mesh, in_specs=P("data"))
    assert record.status == "passed", record.error
    assert record.compiled["auto"].collectives
    assert not [each.of for each in record.compiled["auto"].collectives if "wrappers" in (each.of or "")]
    monkeypatch.delitem(sys.modules, "wrappers_of_a_library")


def test_an_exception_of_a_function_is_reported_with_its_line(tmp_path: Path) -> None:
    def leaves(x: Any) -> Any:
        raise SystemExit(3)

    error = message(tmp_path / "exit", leaves, X, in_specs=P())
    assert error.startswith("tracing leaves at test_called.py:")
    assert error.endswith(" raise SystemExit(3): SystemExit: 3")
    error = message(tmp_path / "few", lambda x, y: x, X, in_specs=P())
    assert error.endswith("missing 1 required positional argument: 'y'")


@pytest.mark.in_turn
def test_a_function_that_ends_the_process_is_named(tmp_path: Path) -> None:
    def leaves(x: Any) -> Any:
        os._exit(3)

    record = check(tmp_path, leaves, X, in_specs=P())
    assert record.error == "the process ended with status 3, while leaves was traced"


def test_a_reference_replaces_the_function(tmp_path: Path) -> None:
    def cosine(x: Any) -> Any:
        return jnp.cos(x)

    assert message(tmp_path / "shape", cosine, X, in_specs=P("data"), reference=lambda x: jnp.cos(x).sum()) == (
        "cosine gives float32[8, 4], and its reference float32[]"
    )
    record = check(tmp_path / "value", cosine, X, in_specs=P("data"), reference=jnp.sin, program=["auto", "derived"])
    value = record.compiled["auto"].checks.value
    assert value is not None
    stands, mends = value.diagnosis
    assert stands == "in NumPy too, the function differs from its reference"
    assert mends.endswith("jnp.cos(x) is where sin is meant: with sin(x) the function equals its reference")


def doubled_and_summed(x: jax.Array) -> dict[str, jax.Array]:
    return {"doubled": 2 * x, "total": x.sum()}


@pytest.mark.parametrize(
    ("expect", "status", "message"),
    [
        ({"weak": "result/*", "layouts": {"result/doubled": ["data"]}}, "passed", ""),
        ({"values": {"result/total": -1.0}}, "failed", "result/total[] is "),
        ({"wrong": {"auto": ["result/total"]}}, "failed", "(result/total: '<"),
        ({"weak": ["result/totals"]}, "invalid", "no output matches 'result/totals'; did you mean 'result/total'?"),
    ],
)
def test_an_expectation_names_outputs_by_their_paths(
    tmp_path: Path, expect: dict[str, Any], status: str, message: str
) -> None:
    record = check(tmp_path, doubled_and_summed, X, in_specs=P("data"), expect=expect)
    assert record.status == status, record
    assert message in str(record)


def doubled_on_the_host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: 2 * np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.in_turn
@pytest.mark.parametrize("out_specs", [None, P(), P("data")])
def test_the_result_of_a_callback_is_compared_where_it_is(tmp_path: Path, out_specs: Any) -> None:
    more: dict[str, Any] = {"out_specs": out_specs, "program": ["auto", "constraint"]}
    right = check(tmp_path / "right", doubled_on_the_host, X, in_specs=P("data"), reference=lambda x: x + x, **more)
    assert right.status == "passed", right
    # The compiler leaves it to one device where nothing asks for more; JAX 0.11 says of it that all devices have it.
    left_to_one = out_specs is None and jax.__version_info__[:2] != (0, 11)
    assert right.pictures is not None
    shards = [picture.shards for picture in right.pictures.arrays if "auto" in picture.programs]
    alone = [[0]] in [[list(shard.devices) for shard in each] for each in shards]
    assert alone is left_to_one
    wrong = check(tmp_path / "wrong", doubled_on_the_host, X, in_specs=P("data"), reference=lambda x: 3 * x, **more)
    assert wrong.status == "failed"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mesh": None, "in_specs": (P(), P())}, "no operand lies on a mesh, and none is given"),
        ({"mesh": {"data": "two"}}, r"\{'data': 'two'\} is not a mesh; give names with sizes"),
        ({"in_specs": (P(),)}, "in_specs has 1 spec, and the function is called with 2 operands; give one for each"),
        ({"constraints": {"result": object}}, "<class 'object'> cannot be written to an experiment's file"),
        ({"in_specs": 3}, "in_specs is 3; give a PartitionSpec, or a tree of them, for each operand"),
    ],
)
def test_an_invalid_call_raises(tmp_path: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        check(tmp_path, jnp.matmul, X, W, **arguments)


def test_a_python_number_has_no_spec(tmp_path: Path) -> None:
    record = check(tmp_path / "sharded", jnp.multiply, X, 3.0, in_specs=(P("data"), P("data")), program="auto")
    assert record.status == "invalid"
    assert record.error is not None
    assert "the operand there is the Python number 3.0, which is passed unchanged; give None" in record.error
    assert (
        check(tmp_path / "whole", jnp.multiply, X, 3.0, in_specs=(P("data"), None), program="auto").status == "passed"
    )


def test_code_that_is_pickled_by_value_keeps_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """cloudpickle 3.1.3 puts `<dynamic-code>` in the place of the file; some of before do not."""
    makers = importlib.import_module("cloudpickle").CloudPickler.dispatch_table
    of_code = makers[CodeType]
    monkeypatch.setitem(makers, CodeType, lambda code: of_code(code.replace(co_filename="<dynamic-code>")))
    pickles, *_ = pickling.pickled(lambda x: x + 1)
    assert pickle.loads(pickles).__code__.co_filename == __file__


def test_a_collective_of_a_notebooks_cell_has_the_text_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, text = "/absent/12.py", "def summed(x):\n    return x.sum(axis=0)\n"
    monkeypatch.setitem(linecache.cache, cell, (len(text), None, text.splitlines(keepends=True), cell))
    labels = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if file == cell else None)
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=labels))
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, cell, "exec"), space)
    record = check(tmp_path / "cell", space["summed"], X, in_specs=P("data"), program="auto")
    (collective,) = record.compiled["auto"].collectives or []
    assert collective.of == "cell_3.py:2 return x.sum(axis=0)"


def test_an_argument_that_cannot_be_pickled_raises(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"for the worker process: TypeError: cannot pickle '_thread.lock'"):
        check(tmp_path / "lock", lambda x: (lock, x)[1], X, in_specs=P())
    with pytest.raises(
        ValueError, match=r"^the operands are a tuple, runner.check\(pooled, \(x, w\)\), not a ndarray$"
    ):
        api.check(pooled, cast("Any", X), mesh={"x": 2})
    with pytest.raises(ValueError, match="3 is not a function"):
        check(tmp_path / "none", 3, X, in_specs=P())


# XLA's wrong results on simulated CPU devices, as plain functions.

CONV = np.random.default_rng(0).normal(size=(4, 16, 3)).astype("f")
KERNEL = np.random.default_rng(1).normal(size=(3, 3, 5)).astype("f")
SQUARES = np.random.default_rng(2).normal(size=(16, 32, 64)).astype("f")
MLP = [np.random.default_rng(3).normal(size=shape).astype("f") for shape in ((8, 16), (16, 8), (16, 8))]


def convolved(kernel: Any, x: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


def pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3,), (1,), "SAME")


def squared(function: Any) -> Any:
    return jax.grad(lambda *operands: jnp.sum(function(*operands) ** 2))


WRONG: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "product": (
        lambda a: jnp.einsum("abc,abd->acd", a, a),
        (SQUARES,),
        {"in_specs": (P("x", "y"),), "out_specs": P("y", "x"), "program": "constraint"},
    ),
    "gradient of a convolution": (squared(convolved), (KERNEL, CONV), {"in_specs": (P(), P(None, "x"))}),
    "convolve": (lambda v: jnp.convolve(v, v, mode="same"), (CONV[0, :, 0],), {"in_specs": (P("x"),)}),
    "gradient of a max-pool": (squared(pooled), (CONV[0, :, 0],), {"in_specs": (P("x"),)}),
    "gradient of an MLP": (
        squared(lambda w1, w2, x: jnp.tanh(x @ w1) @ w2),
        tuple(MLP),
        {"in_specs": (P("r", "c"), P("r", "c"), P(("d", "r"))), "mesh": {"d": 2, "r": 2, "c": 2}},
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.sample(2)
def test_a_wrong_result_of_the_compiler_is_caught(tmp_path: Path, name: str) -> None:
    function, operands, more = WRONG[name]
    record = check(tmp_path, function, *operands, **{"mesh": {"x": 2, "y": 4}, **more})
    assert record.status == "failed", record
    assert "the compiler" in str(record)


def test_functions_with_derivatives_of_their_own_reach_the_worker(tmp_path: Path) -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

    @jax.custom_jvp
    def doubled(x: Any) -> Any:
        return 2 * x

    doubled.defjvps(lambda tangent, _, x: 2 * tangent)
    record = check(tmp_path, jax.grad(lambda w: (clipped(doubled(X @ w)) ** 3).sum()), W, in_specs=P(None, "model"))
    assert record.status == "passed", record
