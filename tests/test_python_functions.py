"""Files that import Python functions: trees, specs by patterns, both sections; and the messages for mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.app.flow import run as flow
from runner.base.faults import InvalidExperiment, key_text
from runner.base.layout import Spec
from runner.experiment import extent
from runner.experiment.config.sources import Sources
from runner.experiment.imported import KEY, read_imported
from runner.experiment.reader import read
from runner.link.workers import Workers
from runner.reports.record.model import Record
from runner.reports.show import exchange
from runner.worker import imported as calling
from runner.worker import own_files, types
from runner.worker.functions import tracing
from tests import harness

MODEL = """
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

BATCH = 4


def init(key, features):
    up, down = jax.random.split(key)
    return {"mlp": [{"up": jax.random.normal(up, (features, 8))}, {"down": jax.random.normal(down, (8, features))}]}


def specs():
    return {"mlp": [{"up": P(None, "model")}, {"down": P("model")}]}


def fewer_specs():
    return {"mlp": [P()]}


def no_specs():
    return {"mlp": "model"}


def loss(params, x):
    first, second = params["mlp"]
    hidden = jnp.tanh(x @ first["up"])
    return jnp.mean((hidden @ second["down"] - x) ** 2)


def layer(h, w):
    with jax.named_scope("mlp"):
        hidden = checkpoint_name(jax.nn.gelu(h @ w["up"]), "hidden")
        out = hidden @ w["down"]
    return h + out


def scanned(params, x):
    @jax.checkpoint
    def body(h, w):
        return jax.jit(layer)(h, w), None

    h, _ = jax.lax.scan(body, x, params)
    with jax.named_scope("head"):
        return jnp.mean(h**2)


def step(params, x):
    grads = jax.grad(lambda params: scanned(params, x))(params)
    return jax.tree.map(lambda p, g: p - g, params, grads)


def shifted(h, w, step):
    return {"h": jnp.tanh(h @ w["up"]) + step, "norm": jnp.sum(h**2)}


def moved(state, w):
    return {"m": state["m"] * 0.9 + w["up"], "n": state["n"] + 1.0}


def zeros(features):
    return {"m": jnp.zeros((features, features)), "n": jnp.zeros(())}


def rotated(block, w):
    return jax.lax.ppermute(block, "data", [(0, 1), (1, 0)]) @ w["up"]


def stacked(key, features):
    up, down = jax.random.normal(key, (2, 2, features, features))
    return {"up": up / features, "down": down}


def loss_of_shard(params, x):
    first, second = params["mlp"]
    hidden = jnp.tanh(x @ first["up"])
    out = jax.lax.psum(hidden @ second["down"], "model")
    return jax.lax.pmean(jnp.mean((out - x) ** 2), "data")


def scaled(x):
    return x * 2.0


def named(x):
    result = x * 2.0
    of = result + 1.0
    return x, result, of + of * x.sum()


def loss_of_one(x, w):
    score = jnp.tanh(x) @ jnp.exp(w) + 1
    return jnp.mean(score**2) + jnp.max(score)


LEFT, RIGHT = jnp.full((4, 4), 0.5), jnp.full((4, 4), 2.0)


def to_left(x):
    return x @ LEFT


def to_right(x):
    return x @ RIGHT


def halves(x):
    return {"low": x[:4], "high": x[4:]}


@jax.jit
def inner(x):
    return jnp.cos(x)


def outer(x):
    return inner(x) + 1


@functools.partial(jax.jit, donate_argnames="params")
def stepped(params, x):
    return jax.tree.map(lambda w: w * (1 + x.sum()), params)


def raises(x):
    raise ValueError("not mine")


def interrupts(x):
    raise KeyboardInterrupt


def gives_nothing(x):
    return None


def raises_in_a_tree():
    raise SystemExit(2)
"""

TREE: dict[str, Any] = {
    "mesh": {"axes": ["data", "model"], "shape": [2, 2]},
    "imports": {"mine": "python_model.py"},
    "arrays": {"params": {"tree": "mine.init(key(0), 4)"}, "x": {"shape": [8, 4], "spec": ["data"]}},
    "graph": {"loss": "mine.loss(params, x)"},
    "outputs": {"loss": []},
    "program": "auto",
}

LINE: dict[str, Any] = TREE | {"arrays": {"x": {"shape": [8, 4], "spec": ["data"]}}, "outputs": {"y": []}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    (folder / "python_model.py").write_text(MODEL, encoding="utf-8")
    (folder / "python_broken.py").write_text("import python_that_is_not_there\n", encoding="utf-8")
    (folder / "python_interrupts.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    return folder


def traced(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    return tracing.traced(harness.config(config), folder, folder)


def ran(folder: Path, config: dict[str, Any], into: Path) -> Record:
    config = config | {"imports": {"mine": str(folder / "python_model.py")}}
    record = flow.run(harness.config(config), into, Sources(), workers=Workers(harness.Telling()))
    assert record.status == "passed", (record.error, record.programs)
    return record


# Valid files.


def specs_of(definition: dict[str, Any]) -> dict[str, Any]:
    return {name: array["spec"] for name, array in definition["arrays"].items()}


UP, DOWN = "params_mlp_0_up", "params_mlp_1_down"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "layouts",
    [
        {"specs": {"params/**/up": [None, "model"], "params/mlp/*/down": ["model"]}},
        {"specs": {"params": {"**": {"up": [None, "model"]}, "mlp/1/{down,other}": ["model"]}}},
        {"specs": {"params/**/up": [None, "model"], "**": ["model"]}},
        {"arrays": {**TREE["arrays"], "params": {"tree": "mine.init(key(0), 4)", "specs": "mine.specs()"}}},
    ],
)
def test_leaves_get_layouts_from_patterns_or_a_tree_of_specs(layouts: dict[str, Any], folder: Path) -> None:
    specs = specs_of(traced(folder, TREE | layouts))
    assert (specs[UP], specs[DOWN]) == ([None, "model"], ["model"])


def test_arrays_that_functions_capture_have_names_of_their_own(folder: Path) -> None:
    lines = {"y": "mine.to_left(x)", "z": "mine.to_right(y)"}
    arrays = traced(folder, LINE | {"graph": lines, "outputs": {"z": []}})["arrays"]
    captured = [re.findall(r"'(.*)'", array["init"])[0] for name, array in arrays.items() if name != "x"]
    assert sorted(np.load(file)[0, 0] for file in captured) == [0.5, 2.0]


def test_an_arrays_own_spec_precedes_patterns(folder: Path) -> None:
    assert specs_of(traced(folder, TREE | {"specs": {"**": ["model"]}}))["x"] == ["data"]


# Repeats.


LAYERS: dict[str, Any] = TREE | {
    "arrays": {
        "params": {"tree": "mine.stacked(key(0), 4)"},
        "state": {"tree": "mine.zeros(4)"},
        "x": {"shape": [8, 4], "spec": ["data"]},
    },
    "graph": {
        "first": "mine.scaled(x)",
        "layers": {
            "repeat": 2,
            "over": {"w": "params"},
            "carry": {"h": "first", "s": "state"},
            "body": {
                "new": "mine.shifted(h, w, i)",
                "h": "new_h * 1.5",
                "s": "mine.moved(s, w)",
            },
            "stack": {"every": "new", "hs": "h"},
            "unroll": False,
        },
        "last": "layers.s",
        "total": "mine.scaled(last_m) + sum(layers.hs)",
    },
    "outputs": {"layers.h": ["data"], "total": [], "last": []},
    "program": ["auto", "constraint", "derived"],
}


@pytest.mark.in_turn
def test_functions_are_called_in_repeats_with_trees_that_are_carried_and_sliced(folder: Path, tmp_path: Path) -> None:
    ran(folder, LAYERS | {"constraints": {"layers.new_h": ["data", "model"]}}, tmp_path)
    text = (tmp_path / "program_auto.py").read_text(encoding="utf-8")
    assert "mine.moved({'m': s_m, 'n': s_n}, {'down': w_down, 'up': w_up})".replace("'", '"') in text


OWN: dict[str, Any] = LAYERS | {
    "functions": {
        "grown(w, s, x, n=1)": {
            "y": "mine.shifted(x * 2, w, n)",
            "loop": {"repeat": 2, "over": {"v": "w"}, "carry": {"s": "s"}, "body": {"s": "mine.moved(s, v)"}},
            "last": "loop.s",
            "norm": {"graph": "y_norm", "per_device": "psum(y_norm, 'data')"},
            "result": "(last, norm / n)",
        },
        "twice(params, x)": {
            "s, norm": "grown(params, state, mine.scaled(x), n=2)",
            "result": "(s, norm + mine.scaled(norm))",
        },
    },
    "both": {"new, total": "twice(params, x)"},
    "graph": {"choice": "cond(total > 0, lambda: mine.scaled(total), lambda: total)"},
    "per_device": {"choice": "mine.scaled(total)"},
    "outputs": {"new": [], "total": [], "choice": []},
    "program": "all",
}


@pytest.mark.in_turn
def test_functions_of_the_experiment_call_python_with_trees_and_static_arguments(folder: Path, tmp_path: Path) -> None:
    record = ran(folder, OWN, tmp_path)
    assert {"auto", "derived", "shard_map"} <= record.programs.keys()
    text = (tmp_path / "program_auto.py").read_text(encoding="utf-8")
    assert 'return jax.tree.leaves(mine.shifted(x * 2, {"down": w_down, "up": w_up}, 2))' in text


def test_a_call_reads_a_gradient_and_a_line_that_reads_one(folder: Path, tmp_path: Path) -> None:
    config = {
        "mesh": {"axes": ["data"], "shape": [2]},
        "arrays": {"x": {"shape": [4, 4], "spec": ["data", None]}, "w": {"shape": [4, 4], "spec": []}},
        "graph": {
            "value": "mine.loss_of_one(x, w)",
            "moved": "w - grad.w * 0.1",
            "out": "mine.scaled(moved)",
            "step": "mine.scaled(grad.w) + grad.w",
        },
        "outputs": {"value": [], "out": [], "step": []},
        "grad": {"of": "value", "wrt": ["w"]},
        "program": ["auto", "explicit"],
    }
    record = ran(folder, config, tmp_path)
    assert [*record.compiled] == ["auto", "explicit"]


def test_a_call_that_nothing_reads_has_one_warning(folder: Path) -> None:
    config = LINE | {"graph": {"y": "mine.scaled(x)", "u": "mine.loss_of_one(x, x[0])"}}
    assert extent.unread(read(traced(folder, config))) == ["nothing reads 'u' of graph: the compiler removes it"]


@pytest.mark.in_turn
def test_device_code_is_called_in_repeats_of_repeats(folder: Path, tmp_path: Path) -> None:
    inner = {
        "repeat": 2,
        "carry": {"b": "h"},
        "body": {"b": "mine.rotated(b, w)"},
        "unroll": False,
    }
    config = LAYERS | {
        "graph": {"h": "mine.scaled(x) @ (params_up[0] @ params_up[0] @ params_up[1] @ params_up[1])"},
        "per_device": {
            "start": "mine.scaled(x)",
            "rings": {
                "repeat": 2,
                "over": {"w": "params"},
                "carry": {"h": "start"},
                "body": {"ring": inner, "h": "ring.b"},
                "unroll": False,
            },
            "h": "rings.h",
        },
        "outputs": {"h": ["data"]},
        "program": "all",
    }
    record = ran(folder, config | {"trace": True}, tmp_path)
    assert record.compiled["shard_map"].collectives
    line = 'return jax.lax.ppermute(block, "data", [(0, 1), (1, 0)]) @ w["up"]'
    assert record.trace
    place = at(line).partition(" ")[0]
    permutes = [exchange.titled(node) for node in record.trace.nodes if node.collective]
    assert len(permutes) == 4
    assert all(title.startswith(f"{place} return jax.lax.ppermute") for title, _ in permutes)
    assert all("ppermute(" in expression for _, expression in permutes)


# Constraints of values inside of a function.

SCANNED: dict[str, Any] = TREE | {
    "arrays": {"params": {"tree": "mine.stacked(key(0), 4)"}, "x": {"shape": [8, 4], "spec": ["data"]}},
    "graph": {"whole": "mine.scanned(params, x)"},
    "outputs": {"whole": []},
}


def constraints_of(folder: Path, constraints: dict[str, Any], **more: Any) -> dict[str, Spec]:
    return dict(read(traced(folder, SCANNED | {"constraints": constraints} | more)).constraints)


@pytest.mark.parametrize(
    ("constraints", "lines"),
    [
        ({"whole/mlp/hidden": ["data", "model"]}, {"whole_scan.whole_hidden_2": Spec.of(["data", "model"])}),
        ({"whole/**/hidden": ["data"]}, {"whole_scan.whole_hidden_2": Spec.of(["data"])}),
        ({"whole": {"mlp": {"{hidden,other}": ["data"]}}}, {"whole_scan.whole_hidden_2": Spec.of(["data"])}),
        ({"whole/mlp/hidden": [], "**/hidden": ["data"]}, {"whole_scan.whole_hidden_2": Spec()}),
        ({"whole/mlp": [None, "model"]}, {"whole_scan.whole_mlp": Spec.of([None, "model"])}),
        ({"whole/head": []}, {"whole_head": Spec()}),
        (
            {"params/*": [None, "model"], "params_up": []},
            {"params_up": Spec(), "params_down": Spec.of([None, "model"])},
        ),
    ],
)  # fmt: skip
def test_a_path_names_a_value_inside_by_scopes_and_checkpoint_names_or_a_leaf(
    constraints: dict[str, Any], lines: dict[str, Spec], folder: Path
) -> None:
    assert constraints_of(folder, constraints) == lines


def test_a_name_of_a_differentiated_function_is_that_of_its_forward_pass(folder: Path) -> None:
    graph, outputs = {"new": "mine.step(params, x)"}, {"new": []}
    constraints = constraints_of(folder, {"new/**/hidden": ["data"], "new/up": ["model"]}, graph=graph, outputs=outputs)
    assert sorted(constraints.values()) == sorted([Spec.of(["data"]), Spec.of(["model"])])
    assert "new_up" in constraints


@pytest.mark.in_turn
def test_constraints_inside_a_function_apply_to_the_programs_and_derived(folder: Path, tmp_path: Path) -> None:
    config = SCANNED | {
        "constraints": {"whole/**/hidden": ["data", "model"]},
        "grad": {"of": "whole", "wrt": ["params"]},
        "program": ["auto", "constraint", "derived"],
    }
    record = ran(folder, config, tmp_path)
    line = '@constraining({"mlp/hidden": NamedSharding(mesh, P("data", "model"))})'
    assert line in (tmp_path / "program_constraint.py").read_text(encoding="utf-8")
    over = {name: {axis for each in record.compiled[name].collectives or () for axis in each.axes or ()}
            for name in ("auto", "constraint", "derived")}  # fmt: skip
    assert over == {"auto": {"data"}, "constraint": {"data", "model"}, "derived": {"data", "model"}}
    done = subprocess.run([sys.executable, tmp_path / "program_constraint.py"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_device_code_is_compared_with_the_function_of_whole_arrays(folder: Path, tmp_path: Path) -> None:
    config = TREE | {
        "specs": {"params/**/up": [None, "model"], "params/**/down": ["model"]},
        "per_device": {"loss": "mine.loss_of_shard(params, x)"},
        "program": ["auto", "shard_map"],
    }
    record = ran(folder, config, tmp_path)
    assert record.checks.sections is not None
    assert record.checks.sections.status == "passed"
    assert {*record.compiled} == {"auto", "shard_map"}


def test_a_line_of_both_sections_is_traced_for_each(folder: Path, tmp_path: Path) -> None:
    config = LINE | {
        "graph": {"y": "sum(z)"},
        "per_device": {"y": "psum(sum(z), 'data')"},
        "both": {"z": "mine.scaled(x)"},
        "program": ["auto", "shard_map"],
    }
    record = ran(folder, config, tmp_path)
    assert "mine.scaled(x)" in (tmp_path / "program_shard_map.py").read_text("utf-8")
    assert record.checks.sections is not None
    assert record.checks.sections.status == "passed"


def test_variables_and_results_may_have_the_names_of_a_functions_keys(folder: Path) -> None:
    definition = traced(folder, LINE | {"graph": {"y": "mine.named(x)"}, "outputs": {"y": ["data"]}})
    assert {*read(definition).outputs} == {"y_0", "y_1", "y_2"}


def test_a_returned_tree_has_a_line_for_each_leaf(folder: Path) -> None:
    definition = traced(folder, LINE | {"graph": {"y": "mine.halves(x)"}, "outputs": {"y": ["data"]}})
    assert {*definition["outputs"]} == {"y_low", "y_high"}
    assert read(definition).outputs["y_low"].yaml() == "[data]"


# Invalid files.


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("whole/mlp/hiden", "no value inside a call matches 'whole/mlp/hiden', and no leaf of a result; "
                            "did you mean 'whole/mlp/hidden'?"),
        ("whole/dot_general.9", "no value inside a call matches 'whole/dot_general.9', and no leaf of a result; there "
                                "are params/down, params/up, whole/head, whole/mlp and whole/mlp/hidden"),
        ("other/**", "no value inside a call matches 'other/**', and no leaf of a result; there are params/down, "
                     "params/up, whole/head, whole/mlp and whole/mlp/hidden"),
    ],
)  # fmt: skip
def test_an_unmatched_path_is_refused_with_the_existing_ones(pattern: str, message: str, folder: Path) -> None:
    assert fault(folder, SCANNED | {"constraints": {pattern: []}}) == (f"constraints.{pattern}", message)


def test_a_leaf_that_is_laid_out_as_an_output_is_refused_with_its_place(folder: Path) -> None:
    message = (
        "an output is a whole result: write outputs: {new: []}, and the layouts of its leaves as specs: {'new/*': …}"
    )
    assert fault(folder, SCANNED | {"outputs": {"new/*": []}}) == ("outputs.new/*", message)


def test_a_member_of_a_dict_as_an_attribute_is_refused_with_its_index(folder: Path) -> None:
    _, message = fault(folder, SCANNED | {"graph": {"whole": "mine.scaled(params.up)"}})
    assert message == (
        "tracing mine.scaled: AttributeError: 'dict' object has no attribute 'up'\n"
        "a member of a dict is ['up'], not .up"
    )


def test_a_constraint_inside_fits_the_value(folder: Path) -> None:
    config = SCANNED | {"constraints": {"whole/**/hidden": ["data", None, "model"]}}
    with pytest.raises(InvalidExperiment) as refused:
        types.infer(read(traced(folder, config)))
    assert refused.value.fault.key[:2] == ("constraints", "whole/**/hidden")


def fault(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(InvalidExperiment) as refused:
        read(traced(folder, config))
    return key_text(refused.value.fault.key), refused.value.fault.message


def at(text: str) -> str:
    """Return the place of a line in the model's file, and the line."""
    (number,) = [i for i, line in enumerate(MODEL.splitlines(), 1) if line.strip() == text]
    return f"python_model.py:{number} {text}"


LAYER = {
    "x": {"shape": [8, 4], "spec": ["data"]},
    "w": {"tree": "{'up': mine.stacked(key(0), 4)['up'][0], 'down': mine.stacked(key(0), 4)['down'][0]}"},
}
WITH_SPECS = {"params": {"tree": "mine.init(key(0), 4)", "specs": "mine.fewer_specs()"}, "x": TREE["arrays"]["x"]}


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        (
            LINE | {"imports": {"mine": "python_model.py:nobody"}, "graph": {"y": "mine(x)"}},
            "imports.mine",
            "'python_model.py:nobody': python_model has no 'nobody'",
        ),
        (
            LINE | {"imports": {"mine": "python_broken.py"}, "graph": {"y": "mine.f(x)"}},
            "imports.mine",
            "importing python_broken.py at python_broken.py:1 import python_that_is_not_there: "
            "ModuleNotFoundError: No module named 'python_that_is_not_there'",
        ),
        (
            LINE | {"imports": {"mine": "python_interrupts.py"}, "graph": {"y": "mine.f(x)"}},
            "imports.mine",
            "importing python_interrupts.py at python_interrupts.py:1 raise KeyboardInterrupt: KeyboardInterrupt",
        ),
        (
            LINE | {"imports": {"sin": "python_model.py"}, "graph": {"y": "sin.scaled(x)"}},
            "imports.sin",
            "'sin' is an operation, a dim or an array already; a name means one thing",
        ),
        (
            LINE | {"graph": {"y": "mine.raises(x)"}},
            "graph.y",
            "tracing mine.raises at " + at('raise ValueError("not mine")') + ": ValueError: not mine",
        ),
        (
            LINE | {"graph": {"y": "mine.interrupts(x)"}},
            "graph.y",
            f"tracing mine.interrupts at {at('raise KeyboardInterrupt')}: KeyboardInterrupt",
        ),
        (LINE | {"graph": {"y": "mine.gives_nothing(x)"}}, "graph.y", "mine.gives_nothing(x) gives no array"),
        (
            LINE | {"graph": {"y": "mine.scaled(x, z)"}},
            "graph.y",
            "no 'z'; Python has mine, key, x here",
        ),
        (
            LINE | {"graph": {"y": "sum(mine.halves(x))"}},
            "graph.y",
            "mine.halves(x) gives 2 arrays; give it a line of its own",
        ),
        (
            TREE | {"arrays": {"params": {"tree": "mine.raises_in_a_tree()"}, "x": {"shape": [4]}}},
            "arrays.params.tree",
            f"making the tree at {at('raise SystemExit(2)')}: SystemExit: 2",
        ),
        (
            TREE | {"specs": {"params/**/sideways": ["model"]}},
            "specs",
            "no leaf of a tree matches params/**/sideways; there are params/mlp/0/up, params/mlp/1/down, x, loss",
        ),
        (
            TREE | {"arrays": {**WITH_SPECS, "params": {"tree": "mine.init(key(0), 4)", "specs": "mine.no_specs()"}}},
            "arrays.params.specs",
            "a spec is a PartitionSpec, not 'model'",
        ),
        (
            LINE | {"graph": {"y": "mine.outer(x)"}, "references": {"flash": "mine.scaled"}},
            "references.flash",
            "nothing calls 'flash'; the functions called are inner and mine.outer",
        ),
        (
            LINE | {"graph": {"y": "mine.outer(x)"}, "references": {"inner": "mine"}},
            "references.inner",
            "'mine' is a module; a reference is a function: mine:NAME",
        ),
        (
            LINE | {"graph": {"y": "mine.outer(x)"}, "references": {"inner": "mine.BATCH"}},
            "references.inner",
            "'mine.BATCH' is not a function; a reference must be one",
        ),
        (
            LINE | {"graph": {"y": "mine.layer(x, w)"}, "arrays": LAYER, "constraints": {"mlp": ["data"]}},
            "constraints.mlp",
            "graph computes no 'mlp'; write 'y/mlp'",
        ),
        (
            LINE | {"graph": {"y": "mine.outer(x)"}, "constraints": {"mlp": ["data"]}},
            "constraints.mlp",
            "graph computes no 'mlp'; there are y; a value inside a call is named by jax.named_scope, or "
            "jax.ad_checkpoint.checkpoint_name",
        ),
        (
            LINE | {"graph": {"z": "mine.loss_of_one(x, x[0])"}},
            "outputs.y",
            "graph computes no 'y'; it has z",
        ),
        (
            LINE | {"functions": {"f(a)": "mine.scaled(a)"}, "graph": {"y": "map(f, x)"}},
            "graph.y",
            "'f' calls Python, and is traced with the types of its arguments: where a function is expected, write a "
            "lambda that calls it with lines, such as lambda: f(x); for map, call jax.lax.map in Python",
        ),
        (
            LINE | {"functions": {"f(a)": "mine.scaled(a, z)"}, "graph": {"y": "f(x)"}},
            "functions.f(a)",
            "no 'z'; Python has mine, key, a here",
        ),
        (
            LINE | {"functions": {"f(a)": "mine.scaled(a)"}, "graph": {"y": "f(x, x)"}},
            "graph.y",
            "f(): too many positional arguments; it takes (a)",
        ),
        (
            LINE | {"functions": {"f(a)": "mine.scaled(f(a))"}, "graph": {"y": "f(x)"}},
            "functions.f(a)",
            "no 'f'; Python has mine, key, a here",
        ),
        (
            LINE | {"functions": {"f(a)": "mine.scaled(a) + g(a)", "g(a)": "f(a) * 2"}, "graph": {"y": "f(x)"}},
            "functions.g(a)",
            "'f' calls itself",
        ),
        (
            LINE
            | {
                "functions": {"f": {"of": ["a"], "g": "sin(a)", "result": "g * 2"}},
                "graph": {"y": "f(mine.scaled(x))"},
                "outputs": {"y_g": []},
            },
            "outputs.y_g",
            "'y_g' is a value inside f, which no program can reach; return it there, or name what the call gives: 'y'",
        ),
    ],
)
def test_a_mistake_is_one_message(config: dict[str, Any], key: str, message: str, folder: Path) -> None:
    assert fault(folder, config) == (key, message)


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    config = LINE | {"imports": {"mine": "nobody.py"}, "graph": {"y": "mine.scaled(x)"}}
    assert fault(folder, config) == ("imports.mine", f"there is no file '{folder / 'nobody.py'}'")


def test_specs_of_another_structure_are_refused(folder: Path) -> None:
    key, message = fault(folder, TREE | {"arrays": WITH_SPECS})
    assert key == "arrays.params.specs"
    trees = "{'mlp': [*]} for {'mlp': [{'up': *}, {'down': *}]}"
    assert message == f"the specs have another tree structure than their value: {trees}"


def test_a_reference_is_named_by_its_file_too(folder: Path) -> None:
    config = LINE | {"graph": {"y": "mine.outer(x)"}}
    referring = config | {"references": {"inner": "python_model.py:scaled"}}
    as_it_is, referred = (read_imported(traced(folder, each)).functions["mine_outer"] for each in (config, referring))
    assert "cos" in str(as_it_is.lines)
    assert "cos" not in str(referred.lines)


# A worker that does one job after the other.


def test_an_edited_file_is_imported_again(folder: Path) -> None:
    file = folder / "python_edited.py"
    config = LINE | {"imports": {"edited": "python_edited.py"}, "graph": {"y": "edited.f(x)"}}

    def value(text: str) -> tuple[Any, str]:
        file.write_text(text, encoding="utf-8")
        with own_files.of_a_job():
            imports = read_imported(traced(folder, config))
            (frame,) = {str(frame) for frame in imports.functions["edited_f"].frames.values()}
            return calling.called(imports, "edited_f", {"x": 3.0}), frame

    assert value("def f(x):\n    return x * 2\n") == (6.0, "python_edited.py:2 return x * 2")
    assert value("def f(x):\n    return x + 20\n") == (23.0, "python_edited.py:2 return x + 20")


STEP: dict[str, Any] = TREE | {
    "specs": {"params/mlp/*/up": [None, "model"], "params/mlp/*/down": ["model"]},
    "graph": {"new": "mine.stepped(params, x)"},
    "outputs": {"new": "mine.specs()"},
}


def test_what_a_line_gives_a_jitted_function_that_donates_it_is_donated(folder: Path, tmp_path: Path) -> None:
    record = ran(folder, STEP, tmp_path / "once")
    memory = record.compiled["auto"].memory
    assert memory is not None
    # Two leaves of 4 × 8 numbers, of which each device has a half.
    assert memory.alias_bytes == 2 * 4 * 8 * 4 // 2
    assert "donate_argnums=(0, 1)" in (tmp_path / "once" / "program_auto.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("call", ["mine.stepped(x=x, params=params)", "mine.stepped(params, x=x)"])
def test_a_keyword_argument_of_a_line_is_donated(call: str, folder: Path) -> None:
    imports = {"imports": {"mine": str(folder / "python_model.py")}, "graph": {"new": call}}
    assert list(traced(folder, STEP | imports)[KEY]["donated"]) == [UP, DOWN]


@pytest.mark.parametrize(
    "reader",
    [
        {"graph": {"new": "mine.stepped(params, x)", "loss": "mine.loss(params, x)"}, "outputs": {"loss": []}},
        {"graph": {"new": "mine.stepped(params, x)", "loss": "mine.loss(new, x)"}, "outputs": {"loss": []},
         "grad": {"of": "loss", "wrt": ["params"]}},
    ],
    ids=["another line", "a gradient"],
)  # fmt: skip
def test_what_something_else_reads_is_not_donated(reader: dict[str, Any], folder: Path) -> None:
    imports = {"imports": {"mine": str(folder / "python_model.py")}}
    assert list(traced(folder, STEP | imports)[KEY]["donated"]) == [UP, DOWN]
    assert traced(folder, STEP | imports | reader)[KEY].get("donated", []) == []
