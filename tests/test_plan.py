"""Layouts that are `auto`: the plan is what theory says, and what is compiled; what cannot be planned is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.experiment import auto
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.faults import InvalidExperiment, key_text
from runner.planning.network import Network, eliminated, least_of_each, pruned, relaxed
from runner.planning.plan import NoPlan, Plan, Wanted, plan
from runner.planning.prices import Bytes
from runner.planning.reading import layable
from runner.planning.tables import Tables
from runner.worker.derive import value_types
from tests.command import ROOT, run_command
from tests.server import Done, command

V5P = yaml.safe_load((ROOT / "conf" / "hardware" / "v5p.yaml").read_text(encoding="utf-8"))


def experiment(
    mesh: Mapping[str, int],
    dims: Mapping[str, int],
    arrays: Mapping[str, tuple[Sequence[str], Any]],
    graph: Mapping[str, Any],
    outputs: Mapping[str, Any],
    **keys: Any,
) -> dict[str, Any]:
    """An experiment's configuration: arrays by their shapes and specs."""
    return {
        "name": "planned",
        "mesh": {"axes": list(mesh), "shape": list(mesh.values())},
        "dims": dict(dims),
        "arrays": {name: {"shape": list(shape), "spec": spec} for name, (shape, spec) in arrays.items()},
        "graph": dict(graph),
        "outputs": dict(outputs),
        **keys,
    }


def read_graph(config: Mapping[str, Any]) -> Experiment:
    return read({**auto.without(config), "program": "auto"})


def planned(config: Mapping[str, Any]) -> Plan:
    """The plan of a configuration, by the types that JAX gives its values in this process."""
    request = auto.read_plan(config)
    free = tuple(key_text(key) for key in auto.keys(config))
    whole = read_graph(config)
    return plan(whole, value_types(whole.alone("graph")), Wanted(request.least, free, request.memory))


def layouts(found: Plan) -> dict[str, Any]:
    return {key.split(".")[1]: spec.json() for key, spec in found.best.layouts.items()}


def mlp(batch: int, mesh: Mapping[str, int], *, x: Any = "auto", loss: bool = False, **keys: Any) -> dict[str, Any]:
    """Two matrix products with something in between; with a `loss`, its gradient."""
    graph = {"h": "gelu(x @ w1)", "y": "h @ w2"} | ({"loss": "mean(y ** 2)"} if loss else {})
    arrays = {"x": (["B", "D"], x), "w1": (["D", "F"], "auto"), "w2": (["F", "D"], "auto")}
    outputs = {"loss": []} if loss else {"y": []}
    grad = {"grad": {"of": "loss", "wrt": ["w1", "w2"]}} if loss else {}
    return experiment(mesh, {"B": batch, "D": 8, "F": 64}, arrays, graph, outputs, **grad, **keys)


# What theory says.


def test_the_weights_of_a_small_batch_are_split_by_columns_and_then_by_rows() -> None:
    # Megatron-LM, Shoeybi et al., 2019, section 3. Three rows are not divided over four devices.
    found = planned(mlp(3, {"model": 4}, x=[]))
    assert layouts(found) == {"w1": [None, "model"], "w2": ["model", None]}
    assert [(each.kind, each.axes, each.count) for each in found.axes] == [("all-reduce", ("model",), 1)]
    assert found.best.sent == 2 * 3 / 4 * (3 * 8 * 4)
    assert found.proved


def test_a_memory_limit_makes_the_same_of_a_batch_that_could_be_divided() -> None:
    whole = planned(mlp(8, {"model": 4}, x=[]))
    assert whole.best.held > 3000
    found = planned(mlp(8, {"model": 4}, x=[], plan={"memory": 2000}))
    assert layouts(found) == {"w1": [None, "model"], "w2": ["model", None]}
    assert found.best.held == 2 * (8 * 8 * 4) + 2 * (8 * 64 * 4) / 4 <= 2000


@pytest.mark.parametrize("batch", [64, 96, 160, 256])
def test_of_data_and_tensor_parallelism_the_batch_decides(batch: int) -> None:
    """A row of y against its share of the weights' gradients: the two send as much where B = 2F.

    Between them stands no mixture: one of h's all-to-alls and a weight's gradient sends more where F >= 4D.
    """
    found = planned(mlp(batch, {"model": 4}, loss=True))
    width, hidden, share = 8, 64, 2 * 3 / 4 * 4
    tensor, data = share * batch * width, share * 2 * width * hidden
    loss = share
    if batch < 2 * hidden:
        assert layouts(found) == {"x": [None, None], "w1": [None, "model"], "w2": ["model", None]}
        assert found.best.sent == pytest.approx(tensor)
    else:
        assert layouts(found)["x"] == ["model", None]
        assert found.best.sent == pytest.approx(data + loss)
    assert found.best.sent == pytest.approx(min(tensor, data + loss))


def test_with_a_large_batch_weights_are_held_in_parts_since_that_sends_no_more() -> None:
    # ZeRO stage 3: a gather and a reduce-scatter send what an all-reduce does.
    found = planned(mlp(1024, {"data": 4}, loss=True))
    assert layouts(found)["x"] == ["data", None]
    assert sorted(each.kind for each in found.axes) == ["all-gather", "all-reduce", "reduce-scatter"]
    assert found.best.held == (1024 * 8 * 4 + 2 * 2 * 8 * 64 * 4) / 4 + 4


def attention(**keys: Any) -> dict[str, Any]:
    # Sequence and batch are not divided over four devices; the heads are.
    weights = {name: (["D", "H", "K"], "auto") for name in ("wq", "wk", "wv")}
    arrays = {"x": (["B", "S", "D"], []), **weights, "wo": (["H", "K", "D"], "auto")}
    graph = {
        "q": "einsum('bsd,dhk->bshk', x, wq)",
        "k": "einsum('bsd,dhk->bshk', x, wk)",
        "v": "einsum('bsd,dhk->bshk', x, wv)",
        "p": "softmax(einsum('bqhk,bshk->bhqs', q, k), axis=-1)",
        "o": "einsum('bhqs,bshk->bqhk', p, v)",
        "y": "einsum('bqhk,hkd->bqd', o, wo)",
    }
    return experiment({"model": 4}, {"B": 1, "S": 6, "D": 32, "H": 4, "K": 8}, arrays, graph, {"y": []}, **keys)


def test_attention_is_divided_by_heads() -> None:
    found = planned(attention())
    heads = [None, "model", None]
    assert layouts(found) == {"wq": heads, "wk": heads, "wv": heads, "wo": ["model", None, None]}
    assert [(each.kind, each.axes, each.count) for each in found.axes] == [("all-reduce", ("model",), 1)]


def test_the_least_time_reads_a_part_of_the_weights_where_the_batch_is_small() -> None:
    """A token is multiplied by weights that take longer to read than its sum takes to be sent."""
    sizes = {"dims": {"B": 8, "D": 4096, "F": 16384}, "hardware": V5P}
    small = mlp(8, {"model": 4}, x=[]) | sizes
    found = planned(small)
    assert found.least == "time"
    assert layouts(found) == {"w1": [None, "model"], "w2": ["model", None]}
    # Two products of float32 weights, a quarter each, through 2.8e12 B/s; an all-reduce of y of some microseconds.
    reading = 2 * (4096 * 16384 * 4 / 4) / 2.8e12
    assert reading < found.best.cost < reading * 1.5


# What is exact.


def network(rng: np.random.Generator, variables: int, choices: int, edges: int) -> Network:
    alone = tuple(rng.random(choices) for _ in range(variables))
    every = list(itertools.combinations(range(variables), 2))
    taken = rng.choice(len(every), size=min(edges, len(every)), replace=False)
    return Network(alone, {every[i]: rng.random((choices, choices)) for i in taken})


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(2, 4), st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_elimination_finds_what_trying_everything_finds(seed: int, variables: int, choices: int, edges: int) -> None:
    small = network(np.random.default_rng(seed), variables, choices, edges)
    every = list(itertools.product(range(choices), repeat=variables))
    least = min(map(small.cost, every))
    found = eliminated(small)
    assert small.cost(found.choice) == pytest.approx(least)
    assert found.bound == pytest.approx(least)
    each = least_of_each(small, range(variables))
    for variable, number in itertools.product(range(variables), range(choices)):
        with_it = min(small.cost(choice) for choice in every if choice[variable] == number)
        assert each[variable][number] == pytest.approx(with_it)
    smaller, kept = pruned(small)
    choice = tuple(int(kept[at][number]) for at, number in enumerate(eliminated(smaller).choice))
    assert small.cost(choice) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(4))
def test_the_mixed_integer_program_finds_the_same_and_bounds_it(seed: int) -> None:
    small = network(np.random.default_rng(seed), 6, 3, 9)
    found, exact = relaxed(small), eliminated(small)
    assert found.cost == pytest.approx(exact.cost)
    assert found.bound <= exact.cost * (1 + 1e-9)
    assert found.proved


@pytest.mark.parametrize(
    "graph",
    [
        {"y": "x @ w"},
        {"y": "tanh(x) @ w"},
        {"s": "sum(x, axis=0)", "y": "x @ w + s[0]"},
        {"g": "x.T @ x", "y": "x @ g @ w"},
    ],
)
def test_the_plan_costs_what_the_best_of_all_layouts_costs(graph: dict[str, str]) -> None:
    """Each layout of the arrays, the values in between as is best: none is below the plan, and one is as low."""
    arrays = {"x": (["M", "K"], "auto"), "w": (["K", "N"], "auto")}
    config = experiment({"a": 2, "b": 2}, {"M": 8, "K": 4, "N": 16}, arrays, graph, {"y": ["a", "b"]})
    found = planned(config)
    whole = read_graph(config)
    types = value_types(whole.alone("graph"))
    choices = [spec for spec in _specs(2) if spec is not None]
    costs: dict[tuple[str, str], float] = {}
    for x, w in itertools.product(choices, repeat=2):
        fixed = whole.at(layouts={"arrays.x.spec": x, "arrays.w.spec": w})
        tables = Tables(fixed.mesh, layable(fixed, types, ()), Bytes())
        costs[str(x), str(w)] = eliminated(tables.network).cost
    mine = tuple(str(spec.json()) for spec in found.best.layouts.values())
    assert min(costs.values()) == pytest.approx(found.best.cost, abs=1e-3)
    assert costs[mine[0], mine[1]] == pytest.approx(found.best.cost, abs=1e-3)


def _specs(rank: int) -> list[list[Any]]:
    """Every layout over the axes a and b, in their order."""
    found: list[list[Any]] = []
    for places in itertools.product((None, *range(rank)), repeat=2):
        spec: list[Any] = []
        for d in range(rank):
            axes = [axis for axis, at in zip("ab", places, strict=True) if at == d]
            spec.append(None if not axes else axes[0] if len(axes) == 1 else axes)
        found.append(spec)
    return found


def test_a_repeat_ends_as_it_begins_and_costs_as_often_as_it_runs() -> None:
    graph = {"ring": {"repeat": 5, "carry": {"h": "x"}, "body": {"h": "tanh(h @ w) @ v"}}, "y": "ring.h"}
    arrays = {"x": (["B", "D"], []), "w": (["D", "F"], "auto"), "v": (["F", "D"], "auto")}
    found = planned(experiment({"model": 4}, {"B": 3, "D": 8, "F": 64}, arrays, graph, {"y": []}))
    assert layouts(found) == {"w": [None, "model"], "v": ["model", None]}
    (reduced,) = found.axes
    assert (reduced.kind, reduced.count) == ("all-reduce", 5)
    assert found.best.sent == 5 * 2 * 3 / 4 * (3 * 8 * 4)


def test_a_limit_that_nothing_meets_says_the_least_that_would() -> None:
    with pytest.raises(NoPlan) as error:
        planned(mlp(8, {"model": 4}, x=[], plan={"memory": 1000}))
    assert "arrays and outputs take 1536 bytes of a device at least" in str(error.value)


@pytest.mark.parametrize(
    ("amount", "bytes_"), [(1000, 1000.0), ("90 GiB", 90 * 2.0**30), ("1.5 kB", 1500.0), ("2e9", 2e9), ("3MB", 3e6)]
)
def test_memory_is_bytes_or_has_a_unit(amount: Any, bytes_: float) -> None:
    assert auto.read_plan({"plan": {"memory": amount}}).memory == bytes_


@pytest.mark.parametrize("amount", ["much", "90 Gibibytes", "-3 GB", "0 MB", True])
def test_and_nothing_else(amount: Any) -> None:
    with pytest.raises(InvalidExperiment) as error:
        auto.read_plan({"plan": {"memory": amount}})
    assert error.value.fault.message.startswith(f"{amount!r} is not an amount of memory")


# The command.


def _command(folder: Path, config: Mapping[str, Any], *arguments: str, module: str = "runner plan") -> Done:
    home = folder / "conf" / "experiment"
    home.mkdir(parents=True, exist_ok=True)
    (home / "mine.yaml").write_text(
        "# @package _global_\n" + yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8"
    )
    given_ = ("--config-dir", str(folder / "conf"), "+experiment=mine", f"hydra.run.dir={folder / 'run'}", *arguments)
    return command(folder, *given_, module=module, limit=600)


def test_the_command_leaves_an_experiment_that_runs_and_sends_what_was_planned(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(3, {"model": 4}, x=[], plan={"candidates": 2}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by the model no other plan is better (variable elimination, " in done.stdout
    written = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
    assert written["plan"]["best"]["layouts"] == {"arrays.w1.spec": [None, "model"], "arrays.w2.spec": ["model", None]}
    assert len(written["tried"]) == 2
    best = written["tried"][0]
    assert best["candidate"]["sent"] == best["programs"][0]["bytes_sent"] == 144
    assert {program["status"] for program in best["programs"]} == {"passed"}
    ran = run_command(
        "--config-dir", str(tmp_path / "run/conf"), "+experiment=plan", f"hydra.run.dir={tmp_path / 'again'}"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = json.loads((tmp_path / "again" / "result.json").read_text(encoding="utf-8"))
    assert record["status"] == "passed"
    assert record["programs"]["auto"]["bytes_sent"] == 144


def test_what_is_planned_with_a_gradient_is_what_is_compiled(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(64, {"model": 4}, loss=True, plan={"candidates": 1}))
    assert done.returncode == 0, done.stdout + done.stderr
    (only,) = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    assert only["candidate"]["sent"] == only["programs"][0]["bytes_sent"]


MODEL = """
import jax
import jax.numpy as jnp


def init(n):
    return {"layer": {"up": jnp.ones((n, 4 * n)) / 7, "down": jnp.ones((4 * n, n)) / 9}, "bias": jnp.ones(n)}


def apply(params, x):
    return jax.nn.gelu(x @ params["layer"]["up"]) @ params["layer"]["down"] + params["bias"]
"""


@pytest.mark.parametrize(
    ("tree", "specs"),
    [({}, {"params/**/{up,down}": "auto"}), ({"spec": "auto"}, {"*/bias": []}), ({}, {"params": {"layer/*": "auto"}})],
)
def test_the_leaves_of_a_tree_are_laid_out_too(tree: Any, specs: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    config = {
        "name": "leaves",
        "mesh": {"axes": ["model"], "shape": [4]},
        "imports": {"model": "../../model.py"},
        "arrays": {"params": {"tree": "model.init(8)", **tree}, "x": {"shape": [3, 8]}},
        "specs": specs,
        "graph": {"y": "model.apply(params, x)"},
        "outputs": {"y": []},
        "plan": {"candidates": 1},
        "program": "auto",
    }
    done = _command(tmp_path, config)
    assert done.returncode == 0, done.stdout + done.stderr
    written = yaml.safe_load((tmp_path / "run" / "conf" / "experiment" / "plan.yaml").read_text(encoding="utf-8"))
    assert written["specs"]["params/layer/up"] == [None, "model"]
    assert written["specs"]["params/layer/down"] == ["model", None]
    assert "auto" not in json.dumps(written["specs"])
    assert written["imports"] == {"model": str(tmp_path / "model.py")}
    ran = run_command(
        "--config-dir", str(tmp_path / "run/conf"), "+experiment=plan", f"hydra.run.dir={tmp_path / 'again'}"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


ONE = {"model": 1}
REFUSED = {
    "nothing is to be found": (
        mlp(8, {"model": 4}, x=[]) | {"arrays": {"x": {"shape": [2]}}, "graph": {"y": "x"}},
        "there is no layout to find: say auto where one is wanted, spec: auto",
    ),
    "one device": (mlp(8, ONE), "the mesh model=1 has one device: there is nothing to lay out"),
    "time without hardware": (
        mlp(8, {"model": 4}, plan={"least": "time"}),
        "the least time is that on hardware: name one (hardware=v5p), or ask for the least bytes",
    ),
    "too little memory": (
        mlp(8, {"model": 4}, x=[], plan={"memory": "1 kB"}),
        "no layouts hold so little: arrays and outputs take 1536 bytes of a device at least",
    ),
    "blocks that are written by hand": (
        mlp(8, {"model": 4}) | {"per_device": {"y": "x @ w1 @ w2"}},
        "per_device computes with the blocks of one layout, so none can be found: leave it out, or say the layout",
    ),
    "a word that is none": (
        mlp(8, {"model": 4}, x="automatic"),
        "'spec' is a list, not 'automatic'; write [automatic]",
    ),
    "the least of nothing": (
        mlp(8, {"model": 4}, plan={"least": "flops"}),
        "a plan has no least 'flops'; there are bytes, time, memory",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_planned_is_one_message(what: str, tmp_path: Path) -> None:
    config, message = REFUSED[what]
    done = _command(tmp_path, config)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].strip() == message
    assert "Traceback" not in done.stderr


def test_a_run_needs_all_layouts_and_says_who_finds_them(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(8, {"model": 4}), module="runner")
    assert done.returncode == 2
    assert "  arrays.x.spec\n" in done.stderr
    message = "no layout yet: python -m runner plan with the same arguments finds it, and writes a file that runs"
    assert message in done.stderr
