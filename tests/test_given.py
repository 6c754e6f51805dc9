"""Functions, operands, names, trees, exceptions and imports of every kind end in a verdict or in one message.

A session tries a few of each; `make faults` tries them all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.app import api
from runner.experiment.config.compose import InvalidConfiguration, compose
from runner.experiment.config.folders import conf_folder
from runner.link.workers import Workers
from tests.server import command

X = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
WORKERS = Workers()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def check(folder: Path | None, function: Any, *operands: Any, **more: Any) -> api.Record:
    given: dict[str, Any] = {"mesh": {"x": 2}, "in_specs": P("x"), **more}
    record = api.checked(function, operands, folder, WORKERS, **given)
    messages = f"{record.error} {[getattr(program, 'error', None) for program in record.programs.values()]}"
    assert "Traceback" not in messages
    assert "bug in shardproof" not in messages
    assert "/runner/worker/" not in messages, messages
    return record


def called(name: object) -> Any:
    """Return a function, or an object that can be called, of some name."""

    class Doubling:
        def __call__(self, x: Any) -> Any:
            return 2 * x

    function: Any = Doubling()
    function.__name__ = name
    return function


NAMES = (
    "_loss", "__call__", "main", "inputs", "program", "mesh", "np", "P", "jax", "función", "x" * 300, 3, None, "",
    "a b", "called", "result", "make_mesh", "shardings", "function", "operands", "in_specs", "lambda", "class", "os",
    "sys", "__import__", "jnp", "NamedSharding", "AxisType", "sum", "psum", "pi", "step", "carry", "self", "True",
    "devices", "rng", "split", "join", "per_device", "../x", "\0", "None", "print", "range", "Path", "nullcontext",
)  # fmt: skip


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
def test_a_function_may_have_any_name(name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = check(None, called(name), X)
    assert record.status == "passed", str(record)
    assert record.folder.resolve().parents[1] == tmp_path / "outputs"


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["jax", "np", "P", "mesh", "main", "x", "result", "called", "é", "数", "self_", "sum"])
def test_an_argument_may_have_any_name(name: str, tmp_path: Path) -> None:
    function = eval(f"lambda {name}, other: {name} * other")
    assert check(tmp_path / "out", function, X, X).status == "passed"


class Doubled:
    def __call__(self, x: Any) -> Any:
        return 2 * x


@pytest.mark.parametrize(("function", "name"), [(partial(partial(jnp.sum), axis=0), "sum"), (Doubled(), "Doubled")])
def test_a_partial_and_an_object_have_names(
    function: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = check(None, function, X)
    assert (record.status, record.folder.parent.name) == ("passed", name)


KEYS = ("a/b", "é", "p.q", "x y", "", "*", "a" * 300, "\0", "{", "[0]", "'", '"', "\\", "$x", "{{", "None", "x,y", "\n")


@pytest.mark.sample(6)
@pytest.mark.parametrize("keys", [KEYS, *([key] for key in KEYS)], ids=lambda keys: repr(keys)[:12])
def test_a_tree_may_have_any_keys(keys: tuple[str, ...], tmp_path: Path) -> None:
    tree = dict.fromkeys(keys, X)
    record = check(tmp_path / "out", lambda tree: {key: 2 * leaf for key, leaf in tree.items()}, tree, in_specs=P())
    assert record.status == "passed", str(record)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raising(error: BaseException) -> Any:
    def function(x: Any) -> Any:
        raise error

    return function


def skipping(x: Any) -> Any:
    pytest.skip("not today")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raising(Mute()), "Mute: its __str__ raises ValueError"),
        (raising(BaseException("base")), "BaseException: base"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(StopIteration()), "StopIteration"),
        (raising(RecursionError("deep")), "RecursionError: deep"),
        (raising(MemoryError()), "MemoryError"),
        (skipping, "Skipped: not today"),
        (lambda x: os.abort() if x is None else 1 / 0, "ZeroDivisionError: division by zero"),
    ],
    ids=range(10),
)
def test_what_a_function_raises_is_said(function: Any, says: str, tmp_path: Path) -> None:
    record = check(tmp_path / "out", function, X)
    assert record.status == "invalid"
    assert f": {says}" in str(record.error)


async def awaited(x: Any) -> Any:
    return x


class Lying:
    """A value that has the shape and the dtype of an array."""

    shape, dtype = (4, 4), np.dtype("float32")


NO_ARRAY = "gives no array, but values of type "
NO_DTYPE = "a dtype that JAX does not have: convert it, by .astype"
RESULTS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "text": (lambda x: "text", X, f"{NO_ARRAY}str"),
    "generator": (lambda x: (part for part in [x]), X, f"{NO_ARRAY}generator"),
    "set": (lambda x: {1, 2}, X, f"{NO_ARRAY}set"),
    "coroutine": (awaited, X, f"{NO_ARRAY}coroutine"),
    "none": (lambda x: None, X, f"{NO_ARRAY}NoneType"),
    "texts in a tree": (lambda x: {"a": "text", "b": [None, b"1"]}, X, f"{NO_ARRAY}str, NoneType and bytes"),
    "float0": (lambda x: np.zeros(3, jax.dtypes.float0), X, "no array of an experiment has that dtype"),
    "float0 of integers": (
        lambda x: jax.grad(lambda i: jax.numpy.sum(x), allow_int=True)(jax.numpy.arange(4)),
        X,
        "it has a gradient of integers (float0), and no array of an experiment has that dtype",
    ),
    "big-endian": (lambda x: 2 * x, X.astype(">f4"), f"float32 with its bytes in reverse, {NO_DTYPE}"),
    "longdouble": (lambda x: 2 * x, X.astype(np.longdouble), f"an array of {np.dtype(np.longdouble).name}, {NO_DTYPE}"),
    "structured": (lambda x: x, np.zeros(4, [("a", "f4")]), NO_DTYPE),
    "no array": (lambda x: x, Lying(), "it has the type Lying, which is no array of JAX or NumPy"),
    "masked array": (
        lambda x: x,
        np.ma.masked_array(X, X > 3),
        "it has the type MaskedArray, which is no array of JAX",
    ),
    "axes": (lambda x: 2 * x, X, "a mesh of 60 axes; JAX makes one of at most 32"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_or_an_operand_that_is_no_array_is_one_message(name: str, tmp_path: Path) -> None:
    function, operand, says = RESULTS[name]
    more = {"mesh": {f"a{i}": 1 for i in range(60)}, "in_specs": P("a0")} if name == "axes" else {}
    record = check(tmp_path / "out", function, operand, **more)
    assert record.status == "invalid"
    assert says in str(record.error)


def nested(levels: int, tree: Any = X) -> Any:
    """Return a tree with an array under so many lists."""
    for _ in range(levels):
        tree = [tree]
    return tree


@pytest.mark.parametrize("levels", [101, 5000])
def test_a_tree_of_too_many_levels_is_refused(levels: int, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="the operand tree is a tree of more than 100 levels, for which no program can"
    ):
        check(tmp_path / "out", lambda tree: X, nested(levels))


def test_a_result_of_too_many_levels_is_refused(tmp_path: Path) -> None:
    record = check(tmp_path / "out", lambda x: nested(200, x), X)
    assert "gives a tree of more than 100 levels, for which no program can be written" in str(record.error)


def test_a_tree_of_a_hundred_levels_is_checked(tmp_path: Path) -> None:
    tree = nested(100)
    assert check(tmp_path / "out", lambda tree: jax.tree.leaves(tree)[0] * 2, tree).status == "passed"


def test_the_path_of_a_deep_leaf_is_shortened_in_a_message(tmp_path: Path) -> None:
    tree: Any = X
    specs: Any = P("q")
    for _ in range(80):
        tree, specs = {"layers": tree}, {"layers": specs}
    record = check(tmp_path / "out", lambda tree: X, tree, in_specs=(specs,))
    where, says = str(record.error).split("\n")
    assert where.startswith("in_specs[0]['layers']['layers']")
    assert where.endswith("['layers']['layers']")
    assert "…" in where
    assert len(where) < 130
    assert says == "  mesh axis 'q' does not exist; the mesh has x"


def ringed(over: Any, pairs: list[tuple[int, int]] | None = None) -> Any:
    """Return a function that communicates over these mesh axes."""

    def on_device(x: Any) -> Any:
        return jax.lax.psum(x, over) if pairs is None else jax.lax.ppermute(x, over, pairs)

    return jax.shard_map(on_device, in_specs=P("x"), out_specs=P() if pairs is None else P("x"))


RINGS = {
    "a device that is not there": (ringed("x", [(0, 7), (1, 0)]), "there is no device 7: the 2 along x are 0 to 1"),
    "two senders": (ringed("x", [(0, 1), (1, 1)]), "ppermute sends to device 1 twice"),
    "two receivers": (ringed("x", [(0, 0), (0, 1)]), "ppermute sends from device 0 twice"),
    "an axis twice": (ringed(("x", "x")), "psum is over 'x' and 'x': name 'x' once"),
}


@pytest.mark.parametrize("name", RINGS)
def test_a_collective_that_addresses_nobody_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    function, says = RINGS[name]
    record = check(tmp_path / "out", function, X)
    assert record.status == "invalid"
    assert "test_given.py:" in str(record.error)
    assert says in str(record.error)


def test_the_plan_of_many_leaves_grows_with_them(tmp_path: Path) -> None:
    tree = {f"k{i}": X for i in range(60)}
    operands = tree, np.float32(3)
    specs = P("x"), P()
    record = check(
        tmp_path / "out", lambda tree, by: jax.tree.map(lambda x: x * by + 1, tree), *operands, in_specs=specs
    )
    assert record.status == "passed", str(record)
    (plan,) = (tmp_path / "out").glob("plan_*.json")
    operations = json.loads(plan.read_text())["operations"]
    shards = {tuple(value["origins"]["x"]) for each in operations for value in each["results"] if value.get("origins")}
    assert max(map(len, shards)) == 1
    assert len({line.expression for line in record.lines["graph"]}) > 60
    assert max(len(line.expression or "") for line in record.lines["graph"]) < 100


def test_numpys_integers_are_sizes_of_a_mesh(tmp_path: Path) -> None:
    assert check(tmp_path / "out", lambda x: 2 * x, X, mesh={"x": np.int64(2)}).status == "passed"


def test_a_folder_is_a_path_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder is 3; give the path of a folder"):
        check(3, abs, X)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileExistsError, match="is a file, or below one; name a folder that is empty"):
            check(folder, abs, X)
        with pytest.raises(FileExistsError, match="is a file, or below one; name a folder that is empty"):
            runner.run("case3_allreduce", folder=folder)


MODULE = "def twice(x):\n    return 2 * x\n\nclass inner:\n    twice = staticmethod(twice)\n"
NEITHER = "is neither FILE.py, FILE.py:NAME, nor a module by its name: my_models.mlp:loss"
KIND = "is neither a file, such as my_models/llama.py, nor a module"
OWN = "is what programs call something of their own; choose another name"
IMPORTS = {
    "{m: null}": KIND, "{m: 3}": KIND, "{m: [m.py]}": KIND, "{m: {a: m.py}}": KIND, "{m: true}": KIND,
    "{m: 'm.py:'}": NEITHER, "{m: ''}": NEITHER, "{m: '.'}": NEITHER, "{m: '..m'}": NEITHER, "{m: 'm.py:f:g'}": NEITHER,
    "{m: /dev/zero}": NEITHER, "{m: 'm.py:1'}": NEITHER, "{m: 'm .py:f'}": "no file", "{m: 'm-n.py'}": "no file",
    "{jax: m.py}": OWN, "{np: m.py}": OWN, "{P: m.py}": OWN, "{main: m.py}": OWN, "{mesh: m.py}": OWN,
    "{inputs: m.py}": OWN, "{m: m.py:absent}": "has no 'absent'", "{m: absent.py}": "there is no file",
    "{class: m.py}": "is a keyword", "{'a b': m.py}": "is not a name", "{m: absent}": "No module named 'absent'",
}  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("imports", IMPORTS)
def test_an_import_that_names_nothing_is_one_message(imports: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "e.yaml").write_text(
        "# @package _global_\nname: e\nmesh: {axes: [x], shape: [2]}\narrays: {A: {shape: [4], spec: [x]}}\n"
        f"imports: {imports}\ngraph: {{C: m.twice(A)}}\noutputs: {{C: [x]}}\nprogram: auto\n"
    )
    done = command(tmp_path, "e.yaml", "hydra.run.dir=out")
    assert done.returncode == 2, done.stdout + done.stderr
    where, says = done.stderr.rstrip().split("\n")[:2]
    assert where.startswith("e.yaml:5:")
    assert IMPORTS[imports] in says


@pytest.mark.parametrize("imports", ["{m: m.py, jnp: jax.numpy, np: numpy}", "{m: 'm.py:inner'}"])
def test_an_import_by_the_names_that_programs_have_is_one(imports: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "e.yaml").write_text(
        "# @package _global_\nname: e\nmesh: {axes: [x], shape: [2]}\narrays: {A: {shape: [4], spec: [x]}}\n"
        f"imports: {imports}\ngraph: {{C: m.twice(A)}}\noutputs: {{C: [x]}}\nprogram: auto\n"
    )
    assert command(tmp_path, "e.yaml", "hydra.run.dir=out").returncode == 0


def test_a_pattern_that_an_earlier_one_shadows_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import jax.numpy as jnp\n\ndef make():\n    return {'u': {'w': jnp.ones((4, 2))}}\n"
    )
    (tmp_path / "e.yaml").write_text(
        "# @package _global_\nname: e\nmesh: {axes: [x], shape: [2]}\nimports: {m: m.py}\n"
        "arrays: {p: {tree: m.make()}}\nspecs: {'p/**': [], p/u/w: [x]}\ngraph: {C: \"p['u']['w'] * 2\"}\n"
        "outputs: {C: []}\nprogram: auto\n"
    )
    done = command(tmp_path, "e.yaml", "hydra.run.dir=out")
    assert "'p/**' stands before 'p/u/w' and gives all its leaves their specs" in done.stderr, done.stderr


@pytest.mark.parametrize("value", [7, 0, "maybe", [True], "full"])
def test_a_flag_is_true_or_false(value: object) -> None:
    with pytest.raises(InvalidConfiguration, match="'trace' is true or false, not"):
        compose("case3_allreduce", conf_folder(), [f"trace={value}"])


@pytest.mark.parametrize("value", [7, "brief", ["full"]])
def test_an_explanation_is_a_flag_or_full(value: object) -> None:
    with pytest.raises(InvalidConfiguration, match="'explain' is true, false or full, not"):
        compose("case3_allreduce", conf_folder(), [f"explain={value}"])
    assert compose("case3_allreduce", conf_folder(), ["explain=full"]).plain["explain"] == "full"


def test_many_outputs_that_prove_little_are_one_warning(tmp_path: Path) -> None:
    record = check(tmp_path / "out", lambda x: [x * 0 + number for number in range(1, 9)], X, out_specs=P("x"))
    assert [each for each in record.warnings if "proves little" in each] == [
        "the references of 'result_0', 'result_1', 'result_2' and 5 other outputs have one value everywhere, which "
        "proves little"
    ]
