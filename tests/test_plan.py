"""Layouts that are `auto`: the plan agrees with theory and with compiled programs; it is refused if there is none."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import runner
from runner.app.flow.filled_layouts import Planning, filled
from runner.app.flow.planning import Compiled, Ranked, Tried, most_flops, ranked
from runner.base.faults import InvalidExperiment, key_text
from runner.base.layout import Mesh, Spec
from runner.base.words import bytes_text
from runner.compiled.estimate.prices import Bytes
from runner.experiment import open_layouts
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.programs.planning import clock
from runner.programs.planning.elimination import TooLarge, eliminated, least_of_each
from runner.programs.planning.limited import Limited, limited
from runner.programs.planning.lower_bound import Messages
from runner.programs.planning.mixed_integer import programmed
from runner.programs.planning.network import Network, Table, greedy
from runner.programs.planning.plan import Candidate, LayoutPlan, NoPlan, Wanted, plan
from runner.programs.planning.reading import layable
from runner.programs.planning.reduction import reduced
from runner.programs.planning.solving import Solver
from runner.programs.planning.spaces import Space, split_axes
from runner.programs.planning.tables import Tables
from runner.reports.show.plan_layouts import differing
from runner.reports.show.plan_table import optimality
from runner.worker.derive import value_types
from tests.command import ROOT, run_command
from tests.server import Done, command

V5P = yaml.safe_load((ROOT / "conf" / "hardware" / "v5p.yaml").read_text(encoding="utf-8"))

GPU, TPU = {"target": {"platform": "gpu"}}, {"target": {"platform": "tpu"}}
"""Targets whose compilers reduce-scatter sums; that for TPUs does so only with larger ones. XLA for CPUs all-reduces
them."""


def experiment(
    mesh: Mapping[str, int],
    dims: Mapping[str, int],
    arrays: Mapping[str, tuple[Sequence[str], Any]],
    graph: Mapping[str, Any],
    outputs: Mapping[str, Any],
    **keys: Any,
) -> dict[str, Any]:
    """Return an experiment's configuration: arrays with shapes and specs."""
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
    return read({**open_layouts.without(config), "program": "auto"})


def planned(config: Mapping[str, Any]) -> LayoutPlan:
    """Return the plan of a configuration, with the types from JAX in this process."""
    request = open_layouts.read_plan(config)
    free = tuple(key_text(key) for key in open_layouts.keys(config))
    whole = read_graph(config)
    return plan(
        whole,
        value_types(whole.alone("graph")),
        Wanted(request.least, free, request.memory, request.seconds, request.beside),
    )


def layouts(best_plan: LayoutPlan) -> dict[str, Any]:
    return {key.split(".")[1]: spec.json() for key, spec in best_plan.best.layouts.items()}


def mlp(batch: int, mesh: Mapping[str, int], *, x: Any = "auto", loss: bool = False, **keys: Any) -> dict[str, Any]:
    """Return two matrix products with an operation in between; with a `loss`, its gradient."""
    graph = {"h": "gelu(x @ w1)", "y": "h @ w2"} | ({"loss": "mean(y ** 2)"} if loss else {})
    arrays = {"x": (["B", "D"], x), "w1": (["D", "F"], "auto"), "w2": (["F", "D"], "auto")}
    outputs = {"loss": []} if loss else {"y": []}
    grad = {"grad": {"of": "loss", "wrt": ["w1", "w2"]}} if loss else {}
    return experiment(mesh, {"B": batch, "D": 8, "F": 64}, arrays, graph, outputs, **grad, **keys)


# Known results.


def test_the_weights_for_a_small_batch_are_sharded_by_columns_then_rows() -> None:
    # Megatron-LM, Shoeybi et al., 2019, section 3. Three rows cannot be sharded over four devices.
    best_plan = planned(mlp(3, {"model": 4}, x=[]))
    assert layouts(best_plan) == {"w1": [None, "model"], "w2": ["model", None]}
    assert [(each.kind, each.axes, each.count) for each in best_plan.axes] == [("all-reduce", ("model",), 1)]
    assert best_plan.best.sent == 2 * 3 / 4 * (3 * 8 * 4)
    assert best_plan.proved


THREE = {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(
    ("mesh", "spec", "kinds"),
    [
        ({"a": 4}, ["a", None], ["reduce-scatter"]),
        ({"a": 8}, ["a", None], ["all-reduce"]),
        ({"a": 2, "b": 4}, [["a", "b"], None], ["all-reduce"]),
        ({"a": 2, "b": 4}, ["b", None], ["reduce-scatter", "all-reduce"]),
        (THREE, [["b", "c"], None], ["reduce-scatter", "all-reduce"]),
        (THREE, ["b", "c"], ["all-reduce"]),
    ],
)
def test_a_tpu_scatters_a_sum_along_one_dimension_and_over_a_whole_slice_only_if_that_is_a_ring(
    mesh: dict[str, int], spec: list[Any], kinds: list[str]
) -> None:
    """As libtpu compiles them for v5p 2x2x1 and 2x2x2, with JAX 0.10.2 and 0.12."""
    arrays = {"x": (["B", "D"], [list(mesh), None]), "y": (["B", "F"], [list(mesh), None])}
    graph, dims = {"w": "einsum('bd,bf->df', x, y)"}, {"B": 262144, "D": 1024, "F": 1024}
    keys = {"hardware": V5P, "plan": {"least": "bytes"}}
    best_plan = planned(experiment(mesh, dims, arrays, graph, {"w": spec}, **keys))
    assert [each.kind for each in best_plan.axes] == kinds


def test_a_memory_limit_shards_the_weights_of_a_divisible_batch_too() -> None:
    by_rows = {"outputs": {"y": ["model", None]}}
    whole = planned(mlp(8, {"model": 4}, x=[]) | by_rows)
    assert whole.best.held > 3000
    best_plan = planned(mlp(8, {"model": 4}, x=[], plan={"memory": 2000}) | by_rows)
    assert layouts(best_plan) == {"w1": [None, "model"], "w2": ["model", None]}
    assert best_plan.best.held == 8 * 8 * 4 + 8 * 8 * 4 / 4 + 2 * (8 * 64 * 4) / 4 <= 2000


def test_values_in_between_need_memory() -> None:
    """Of h a device has a quarter, with gelu(h) in its place; the backward pass reads both, and the tanh inside.

    As compiled by JAX 0.10.2 the inference needs 11,264 bytes: the arrays, h, and y before and after its sum.
    """
    inference, training = planned(mlp(64, {"model": 4})), planned(mlp(1024, {"model": 4}, loss=True))
    assert inference.best.needed == 11264 == inference.best.held + 64 * 64 * 4 / 4 + 64 * 8 * 4
    assert training.best.needed > training.best.held + 3 * (1024 * 64 * 4 / 4)


def test_a_memory_limit_holds_for_values_in_between() -> None:
    free = mlp(8, {"model": 4}, x=[]) | {"outputs": {"y": ["model", None]}}
    whole = planned(free)
    limited = planned(free | {"plan": {"memory": whole.best.held}})
    assert limited.best.needed <= whole.best.held < whole.best.needed
    assert limited.best.cost > limited.unlimited == pytest.approx(whole.best.cost)


def scanned(weights: Any, **keys: Any) -> dict[str, Any]:
    """Return eight products of a carry with slices of stacked weights, and their gradient."""
    layers = {
        "repeat": "L", "over": {"w": "ws"}, "carry": {"h": "x"}, "body": {"h": "tanh(h @ w) * h"}, **keys
    }  # fmt: skip
    arrays = {"x": (["B", "D"], ["model"]), "ws": (["L", "D", "D"], weights)}
    graph = {"layers": layers, "loss": "mean(layers.h ** 2)"}
    dims, grad = {"L": 8, "B": 1024, "D": 32}, {"of": "loss", "wrt": ["ws"]}
    return experiment({"model": 4}, dims, arrays, graph, {"loss": []}, grad=grad)


def test_a_repeat_keeps_its_carries_for_the_backward_pass_and_recomputes_what_checkpoint_drops() -> None:
    kept, dropped = (planned(scanned([], **keys)).best for keys in ({}, {"checkpoint": True}))
    value = 1024 * 32 * 4 / 4
    assert kept.held == dropped.held
    assert kept.needed >= kept.held + 2 * 8 * value
    assert dropped.held + 8 * value <= dropped.needed <= dropped.held + 12 * value


@pytest.mark.parametrize("steps", [1, 2])
def test_a_constrained_line_that_only_a_repeat_and_an_output_read_is_planned(steps: int) -> None:
    loop = {"repeat": steps, "carry": {"c": "start"}, "body": {"c": "tanh(c)"}, "unroll": True}
    graph = {"start": "x * 2", "loop": loop, "end": "loop.c + 1"}
    config = experiment(
        {"model": 4}, {"B": 5, "D": 8}, {"x": (["B", "D"], "auto")}, graph, {"start": "auto", "end": "auto"},
        constraints={"start": "auto"},
    )  # fmt: skip
    best = planned(config).best
    assert best.held <= best.needed < 4 * 5 * 8 * 4


@pytest.mark.parametrize(("kind", "shape", "to"), [("int8", [8, 4], "float32"), ("float32", [4], "int8")])
def test_a_bitcast_to_another_width_is_planned_by_the_dimensions_that_stay(kind: str, shape: Any, to: str) -> None:
    array = {"shape": shape, "dtype": kind, "spec": "auto", "init": "integers(0, 4)" if kind == "int8" else "normal"}
    config = experiment({"model": 4}, {}, {}, {"b": f"bitcast_convert_type(A, '{to}')"}, {"b": "auto"})
    assert planned({**config, "arrays": {"A": array}}).best.sent == 0


def test_an_array_whose_slices_are_laid_out_otherwise_is_copied_as_a_whole() -> None:
    """Each device has two of the eight weights, and the loop reads all."""
    whole, by_layers = (planned(scanned(weights, checkpoint=True)).best for weights in ([], ["model"]))
    weights = 8 * 32 * 32 * 4
    assert by_layers.held == whole.held - 2 * weights * 3 / 4
    assert by_layers.needed - by_layers.held >= whole.needed - whole.held + weights


def test_a_sum_over_devices_needs_memory_before_and_after_it() -> None:
    """The sum, and the output that replaces it, have the output's memory. JAX 0.10.2 compiles it to as many bytes."""
    arrays = {"x": (["B", "D"], [None, "model"]), "w": (["D", "F"], ["model", None])}
    dims = {"B": 64, "D": 32, "F": 16}
    graph = {"h": "x @ w", "y": "tanh(h)"}
    best = planned(experiment({"model": 4}, dims, arrays, graph, {"y": []}, plan={"least": "bytes"})).best
    assert best.needed == 10752 == best.held + 64 * 16 * 4


def test_a_block_of_a_transposed_array_needs_no_copy_of_the_whole() -> None:
    """A device reads its own columns of x alone: 8,448 bytes of arrays and outputs, and these columns."""
    arrays = {"x": (["B", "D"], []), "w": (["D", "F"], [])}
    graph, specs = {"g": "x.T @ x", "y": "g @ w"}, {"constraints": {"g": ["model", None]}}
    config = experiment({"model": 4}, {"B": 128, "D": 16, "F": 4}, arrays, graph, {"y": ["model", None]}, **specs)
    best = planned(config | {"plan": {"least": "bytes"}}).best
    assert best.needed < best.held + 128 * 16 * 4


def test_products_of_half_precision_are_computed_in_float32_on_cpus() -> None:
    arrays = {"x": (["B", "D"], ["model", None]), "w": (["D", "F"], [])}
    config = experiment({"model": 4}, {"B": 64, "D": 32, "F": 16}, arrays, {"y": "x @ w"}, {"y": ["model", None]})
    for array in config["arrays"].values():
        array["dtype"] = "bfloat16"
    best = planned(config | {"plan": {"least": "bytes"}}).best
    assert best.needed == best.held + 4 * (64 * 32 / 4 + 32 * 16)


@pytest.mark.parametrize(("keys", "logits"), [({"hardware": V5P}, 1), ({}, 3)])
def test_a_cotangent_without_a_product_is_not_in_memory_on_tpus(keys: dict[str, Any], logits: int) -> None:
    """libtpu computes that of logits inside of the products that read it; CPUs keep exponentials and it."""
    arrays = {"x": (["B", "D"], ["model", None]), "w": (["D", "V"], [])}
    graph = {"l": "x @ w", "n": "logsumexp(l, axis=-1)", "loss": "mean(n)"}
    config = experiment({"model": 4}, {"B": 4096, "D": 8, "V": 64}, arrays, graph, {"loss": []}, **keys)
    config |= {"grad": {"of": "loss", "wrt": ["w"]}, "plan": {"least": "bytes"}}
    best = planned(config).best
    assert best.needed - best.held == pytest.approx(logits * 4096 * 64 * 4 / 4, rel=0.1)


def test_a_product_is_computed_in_the_layout_of_its_line() -> None:
    """As compiled by JAX 0.10.2: x is gathered, where y by rows and an all-to-all would send a quarter."""
    arrays = {"x": (["B", "D"], ["model", None]), "w": (["D", "F"], [])}
    config = experiment({"model": 4}, {"B": 16, "D": 8, "F": 8}, arrays, {"y": "x @ w"}, {"y": [None, "model"]})
    assert planned(config).best.sent == 16 * 8 * 4 * 3 // 4


@pytest.mark.parametrize("batch", [64, 96, 160, 256])
def test_the_batch_decides_between_data_and_tensor_parallelism(batch: int) -> None:
    """A row of y costs as much as its share of the weights' gradients if B = 2F.

    No mixture of the two is better in between: an all-to-all of h with the gradient of a weight sends more if F >= 4D.
    """
    best_plan = planned(mlp(batch, {"model": 4}, loss=True))
    width, hidden, share = 8, 64, 2 * 3 / 4 * 4
    tensor, data = share * batch * width, share * 2 * width * hidden
    loss = share
    if batch < 2 * hidden:
        assert layouts(best_plan) == {"x": [None, None], "w1": [None, "model"], "w2": ["model", None]}
        assert best_plan.best.sent == pytest.approx(tensor)
    else:
        assert layouts(best_plan)["x"] == ["model", None]
        assert best_plan.best.sent == pytest.approx(data + loss)
    assert best_plan.best.sent == pytest.approx(min(tensor, data + loss))


def test_with_a_large_batch_weights_are_sharded_since_that_sends_no_more() -> None:
    # ZeRO stage 3: an all-gather and a reduce-scatter send as much as an all-reduce.
    best_plan = planned(mlp(1024, {"data": 4}, loss=True) | GPU)
    assert layouts(best_plan)["x"] == ["data", None]
    assert sorted(each.kind for each in best_plan.axes) == ["all-gather", "all-reduce", "reduce-scatter"]
    assert best_plan.best.held == (1024 * 8 * 4 + 2 * 2 * 8 * 64 * 4) / 4 + 4


@pytest.mark.parametrize(
    ("machine", "width", "sharded"),
    [
        ({}, 8, False),
        ({}, 128, False),
        (GPU, 8, True),
        (TPU, 8, False),
        (TPU, 128, True),
        ({"hardware": V5P}, 128, True),
    ],
)
def test_weights_are_replicated_for_a_compiler_without_reduce_scatter(
    machine: dict[str, Any], width: int, sharded: bool
) -> None:
    """XLA for CPUs writes an all-reduce and a slice, so that sharded weights would send half as much again.

    So does that for TPUs for sums of fewer than 16 tiles, as benchmarks/planning.py measures.
    """
    keys = {"plan": {"least": "bytes"}, "dims": {"B": 1024, "D": width, "F": max(width, 64)}}
    best_plan = planned(mlp(1024, {"data": 4}, x=["data", None], loss=True) | machine | keys)
    weights = 2 * width * max(width, 64) * 4
    assert best_plan.best.sent == pytest.approx(2 * 3 / 4 * (weights + 4))
    assert best_plan.best.held == (1024 * width * 4) / 4 + 4 + 2 * weights / (4 if sharded else 1)


def attention(**keys: Any) -> dict[str, Any]:
    # Sequence and batch cannot be sharded over four devices; the heads can.
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


def test_attention_is_sharded_over_heads() -> None:
    best_plan = planned(attention())
    heads = [None, "model", None]
    assert layouts(best_plan) == {"wq": heads, "wk": heads, "wv": heads, "wo": ["model", None, None]}
    assert [(each.kind, each.axes, each.count) for each in best_plan.axes] == [("all-reduce", ("model",), 1)]


def test_the_least_time_for_a_small_batch_shards_the_weights() -> None:
    """Reading all weights for a token takes longer than sending its partial sum."""
    sizes = {"dims": {"B": 8, "D": 4096, "F": 16384}, "hardware": V5P}
    small = mlp(8, {"model": 4}, x=[]) | sizes
    best_plan = planned(small)
    assert best_plan.least == "time"
    assert layouts(best_plan) == {"w1": [None, "model"], "w2": ["model", None]}
    # Each device reads a quarter of the two float32 weights at 2.8e12 B/s; the all-reduce of y takes some microseconds.
    reading = 2 * (4096 * 16384 * 4 / 4) / 2.8e12
    assert reading < best_plan.best.cost < reading * 1.5


def test_the_smaller_of_weights_and_activations_is_gathered() -> None:
    """With everything sharded, tensor parallelism sends 2BD and FSDP 2DF: How to Scale Your Model.

    They are equal if the batch is as large as the hidden dimension; a tenth below and above, the better one is found.
    """
    hidden, width = 40, 8
    for batch, sent in ((36, 2 * 36 * width * 3), (44, 2 * width * hidden * 3)):
        arrays = {"x": (["B", "D"], ["model", None]), "w1": (["D", "F"], "auto"), "w2": (["F", "D"], "auto")}
        graph = {"h": "gelu(x @ w1)", "y": "h @ w2"}
        sizes = {"B": batch, "D": width, "F": hidden}
        held = 2 * batch * width + 2 * width * hidden
        config = experiment({"model": 4}, sizes, arrays, graph, {"y": ["model", None]}, plan={"memory": held})
        best_plan = planned(config | GPU)
        assert best_plan.best.sent == pytest.approx(sent)
        (first, *_) = best_plan.parallelism
        assert first.startswith("tensor parallelism (Megatron)" if batch < hidden else "data parallelism")
        assert any(sentence.startswith("FSDP (ZeRO-3)") for sentence in best_plan.parallelism) == (batch > hidden)


def test_a_small_batch_on_many_devices_shards_weights_by_rows_and_columns() -> None:
    # Pope et al., 2022, section 3.2.2: weights that are sharded both ways reduce the traffic of activations.
    x = [None, "a"]
    arrays = {"x": (["B", "D"], x), "w1": (["D", "F"], "auto"), "w2": (["F", "D"], "auto")}
    graph = {"h": "gelu(x @ w1)", "y": "h @ w2"}
    config = experiment({"a": 4, "b": 16}, {"B": 2, "D": 64, "F": 256}, arrays, graph, {"y": x})
    # Arrays and outputs, and on each device h in its parts over b, as a partial sum and as what is read.
    held = 2 * 64 * 256 * 4 / 64 + 2 * 2 * 64 * 4 / 4
    best_plan = planned(config | {"plan": {"memory": held + 2 * (2 * 256 * 4 / 16)}})
    assert layouts(best_plan) == {"w1": ["a", "b"], "w2": ["b", "a"]}
    # Partial sums of h are reduced over a, and those of y over b; weights are not sent.
    sums = 2 * 3 / 4 * (2 * 256 * 4 / 16) + 2 * 15 / 16 * (2 * 64 * 4 / 4)
    assert best_plan.best.sent == pytest.approx(sums)
    assert any(sentence.startswith("2-D weight-stationary: 'w1' and 'w2'") for sentence in best_plan.parallelism)


def test_between_blocks_the_sequence_is_sharded() -> None:
    # Korthikanti et al., 2022: an all-gather and a reduce-scatter instead of an all-reduce.
    weights = {"w1": (["D", "F"], "auto"), "w2": (["F", "D"], "auto")}
    norm = "{0} * rsqrt(mean({0} ** 2, axis=-1, keepdims=True) + 1e-5)"
    lies = [None, "model", None]
    graph = {"n": norm.format("x"), "h": "gelu(n @ w1)", "y": "x + h @ w2", "m": norm.format("y")}
    sizes = {"B": 1, "S": 16, "D": 8, "F": 64}
    config = experiment({"model": 4}, sizes, {"x": (["B", "S", "D"], lies), **weights}, graph, {"m": lies})
    best_plan = planned(config | GPU | {"plan": {"memory": (2 * 16 * 8 * 4 + 2 * 8 * 64 * 4) / 4}})
    assert layouts(best_plan) == {"w1": [None, "model"], "w2": ["model", None]}
    assert best_plan.best.constraints["y"].json() == lies
    assert [(each.kind, each.bytes) for each in best_plan.axes] == [
        ("all-gather", 3 / 4 * (16 * 8 * 4)),
        ("reduce-scatter", 3 / 4 * (16 * 8 * 4)),
    ]
    between = "over model 'y' and 'm' sharded along dimension 1 between products, as in sequence parallelism"
    assert between in best_plan.parallelism


@pytest.mark.parametrize("backward", [False, True])
def test_a_vocabulary_is_sharded_for_the_loss(backward: bool) -> None:
    """For each row a maximum and a sum are sent instead of the logits or the weights; their gradient needs no more."""
    arrays = {"x": (["B", "D"], []), "w": (["D", "V"], "auto")}
    graph = {"logits": "x @ w", "loss": "mean(logsumexp(logits, axis=-1))"}
    grad = {"grad": {"of": "loss", "wrt": ["w"]}} if backward else {}
    best_plan = planned(experiment({"model": 4}, {"B": 3, "D": 8, "V": 64}, arrays, graph, {"loss": []}, **grad))
    assert layouts(best_plan) == {"w": [None, "model"]}
    assert best_plan.best.sent == 2 * (2 * 3 / 4 * (3 * 4))
    assert "vocabulary sharded over model: dimension V of w" in best_plan.parallelism


@pytest.mark.parametrize(
    ("line", "vocabulary"),
    [
        ("take(w, ids, axis=0)", True),
        ("w[ids]", True),
        ("w[3]", False),
        ("take_along_axis(x, picks, axis=-1)", True),
        ("x[:, ids]", True),
        ("softmax(x, axis=-1)", True),
        ("softmax(x, axis=0)", False),
        ("sum(x, axis=-1)", False),
        ("var(x, axis=-1)", False),
    ],
)
def test_a_vocabulary_is_what_is_looked_up_or_normalised(line: str, vocabulary: bool) -> None:
    arrays = {"x": (["B", "V"], [None, "model"]), "v": (["D", "D"], "auto"), "w": (["V", "D"], ["model", None])}
    config = experiment({"model": 4}, {"B": 3, "D": 8, "V": 64}, arrays, {"h": "x @ w @ v", "y": line}, {"h": []})
    config["arrays"]["ids"] = {"shape": ["B"], "dtype": "int32", "init": "arange", "spec": []}
    config["arrays"]["picks"] = {"shape": ["B", 1], "dtype": "int32", "init": "arange", "spec": []}
    config["outputs"]["y"] = [None, "model"] if "softmax" in line else []
    assert any("vocabulary sharded" in each for each in planned(config).parallelism) == vocabulary


def test_experts_are_sharded_and_tokens_are_sent_to_them() -> None:
    # Lepikhin et al., 2020, GShard: one all-to-all to the experts and one back.
    arrays = {
        "x": (["E", "C", "D"], [None, "model", None]),
        "w1": (["E", "D", "F"], "auto"),
        "w2": (["E", "F", "D"], "auto"),
    }
    graph = {"h": "gelu(einsum('ecd,edf->ecf', x, w1))", "y": "einsum('ecf,efd->ecd', h, w2)"}
    config = experiment({"model": 4}, {"E": 4, "C": 8, "D": 8, "F": 64}, arrays, graph, {"y": [None, "model", None]})
    best_plan = planned(config | {"plan": {"memory": (2 * 4 * 8 * 8 * 4 + 2 * 4 * 8 * 64 * 4) / 4}})
    assert layouts(best_plan) == {"w1": ["model", None, None], "w2": ["model", None, None]}
    assert [(each.kind, each.bytes, each.count) for each in best_plan.axes] == [
        ("all-to-all", 2 * 3 / 4 * (4 * 8 * 8 * 4) / 4, 2)
    ]
    assert best_plan.parallelism == ("expert parallelism over model: dimension E of w1 and w2",)


# Exact plans.


def network(rng: np.random.Generator, variables: int, choices: int, edges: int) -> Network:
    alone = tuple(rng.random(choices) for _ in range(variables))
    every = list(itertools.combinations(range(variables), 2))
    taken = rng.choice(len(every), size=min(edges, len(every)), replace=False)
    return Network(alone, {every[i]: Table(rng.random((choices, choices))) for i in taken})


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(2, 4), st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_elimination_finds_the_exhaustive_optimum(seed: int, variables: int, choices: int, edges: int) -> None:
    small = network(np.random.default_rng(seed), variables, choices, edges)
    every = list(itertools.product(range(choices), repeat=variables))
    least = min(map(small.cost, every))
    solution = eliminated(small)
    assert small.cost(solution.choice) == pytest.approx(least)
    assert solution.cost == pytest.approx(least)
    each = least_of_each(small, range(variables))
    for variable, number in itertools.product(range(variables), range(choices)):
        with_it = min(small.cost(choice) for choice in every if choice[variable] == number)
        assert each[variable][number] == pytest.approx(with_it)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(2, 4), st.integers(1, 10), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_messages_bound_the_optimum_and_each_choice(
    seed: int, variables: int, choices: int, edges: int, sweeps: int
) -> None:
    small = network(np.random.default_rng(seed), variables, choices, edges)
    least = eliminated(small).cost
    passed = Messages(small.pairs, [choices] * variables).passed(small, sweeps, np.inf)
    assert passed.bound <= least * (1 + 1e-9)
    assert passed.cost == pytest.approx(small.cost(passed.choice))
    assert passed.cost >= least * (1 - 1e-9)
    exact = least_of_each(small, range(variables))
    for variable, lower in enumerate(passed.lower):
        assert (lower <= exact[variable] * (1 + 1e-9)).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(2, 4), st.integers(1, 9), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_reduced_network_has_the_same_best_choice(
    seed: int, variables: int, choices: int, edges: int, first_stays: bool
) -> None:
    small = network(np.random.default_rng(seed), variables, choices, edges)
    less = reduced(small, {0} if first_stays else ())
    assert (0 in less.kept) or not first_stays
    best, exact = eliminated(less.network), eliminated(small)
    assert small.cost(less.whole(best.choice)) == pytest.approx(exact.cost)
    assert best.cost == pytest.approx(exact.cost)
    assert less.part(less.whole(best.choice)) == best.choice
    every = least_of_each(less.network, range(len(less.kept)))
    bounds, least = less.lower([every[at] for at in range(len(less.kept))]), least_of_each(small, range(variables))
    for variable, lower in enumerate(bounds):
        assert (lower <= least[variable] * (1 + 1e-9)).all()
        assert lower.min() == pytest.approx(exact.cost)


def test_messages_of_a_reduced_network_prove_no_less() -> None:
    """What was passed to a removed variable's neighbours is passed between these."""
    rng = np.random.default_rng(0)
    chain = {(at, at + 1): Table(rng.random((6, 6))) for at in range(11)}
    whole = Network(tuple(rng.random(6) for _ in range(12)), chain | {(0, 11): Table(rng.random((6, 6)))})
    messages = Messages(whole.pairs, [6] * 12)
    before = messages.passed(whole, 3, np.inf).bound
    less = reduced(whole, {0, 4, 8})
    assert less.kept == (0, 4, 8)
    after = messages.reduced(less).passed(less.network, 2, np.inf).bound
    assert before <= after * (1 + 1e-9)
    assert after <= eliminated(whole).cost * (1 + 1e-9)


def grid(rng: np.random.Generator, side: int, choices: int) -> Network:
    """Return a network without small tables: each variable shares costs with its neighbours in a square."""
    numbers = np.arange(side * side).reshape(side, side)
    across = zip(numbers[:, :-1].flat, numbers[:, 1:].flat, strict=True)
    edges = [*across, *zip(numbers[:-1].flat, numbers[1:].flat, strict=True)]
    alone = tuple(rng.random(choices) for _ in numbers.flat)
    return Network(alone, {(int(a), int(b)): Table(rng.random((choices, choices))) for a, b in edges})


@pytest.mark.parametrize("seed", range(3))
def test_a_network_too_large_to_eliminate_is_solved_by_pruning(seed: int) -> None:
    # A grid of six by six variables: the largest table of an elimination has millions of entries.
    wide = grid(np.random.default_rng(seed), 6, 8)
    sizes = [8] * 36
    with pytest.raises(TooLarge):
        eliminated(grid(np.random.default_rng(seed), 9, 8))
    solution = Solver(wide.pairs, sizes).solved(wide, clock.now() + 30)
    exact = eliminated(wide)
    assert solution.bound <= exact.cost * (1 + 1e-9) <= solution.cost * (1 + 2e-9)
    assert solution.proved
    assert solution.cost == pytest.approx(exact.cost)


@pytest.mark.in_turn
def test_when_time_is_up_there_is_a_choice_and_a_bound() -> None:
    wide = grid(np.random.default_rng(0), 30, 30)
    began = clock.now()
    solution = Solver(wide.pairs, [30] * 900).solved(wide, began + 1.0)
    assert clock.now() - began < 20
    assert solution.cost == pytest.approx(wide.cost(solution.choice))
    assert 0 < solution.bound < solution.cost
    assert not solution.proved


@pytest.mark.parametrize(("bound", "unfinished"), [(0.02, True), (0.2, False)])
def test_a_plan_that_is_far_from_its_bound_is_called_none(bound: float, unfinished: bool) -> None:
    best_plan = planned(mlp(3, {"model": 4}, x=[]))
    early = replace(best_plan, proved=False, bound=bound * best_plan.best.cost)
    assert early.unfinished == unfinished
    assert ("this is no plan: the search ended at 144 B" in optimality(early)) == unfinished
    assert optimality(early).endswith("; give it more time (plan.seconds) or fewer open layouts") == unfinished
    assert not replace(best_plan, bound=0.0).unfinished


def test_the_time_limit_counts_work_from_the_start_with_tables_and_runners_up(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ends = clock.now(), list[float]()

    def search(*arguments: Any) -> Limited:
        ends.append(arguments[-1])
        return limited(*arguments)

    monkeypatch.setattr("runner.programs.planning.plan.limited", search)
    planned(mlp(8, {"model": 4}, x=[]) | {"plan": {"seconds": 1000}})
    assert ends == [pytest.approx(began + 900.0)]


def test_before_any_message_a_search_has_the_plan_in_which_axes_are_split_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that ends early is not left with a choice made variable by variable."""
    monkeypatch.setattr("runner.programs.planning.solving._QUICK", 1_000)
    whole = read_graph(mlp(8, {"a": 2, "b": 2, "c": 2}, x=[]))
    graph = layable(whole, value_types(whole.alone("graph")), ("arrays.w1.spec", "arrays.w2.spec"))
    wide = Tables(whole.mesh, graph, Bytes()).network
    solver = Solver(wide.pairs, [len(costs) for costs in wide.alone], range(len(wide.alone)))
    first, best = solver.solved(wide, clock.now() - 1), eliminated(wide)
    assert best.cost == pytest.approx(first.cost)
    assert first.cost < wide.cost(greedy(wide)) / 5


@pytest.mark.in_turn
def test_a_search_that_ends_early_finds_the_same_plan_however_slow_the_machine_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of a busy machine runs ahead of the work; the search does not read it."""
    wide = network(np.random.default_rng(1), 300, 30, 900)
    first = Solver(wide.pairs, [30] * 300).solved(wide, clock.now() + 0.5)
    late = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(late))
    again = Solver(wide.pairs, [30] * 300).solved(wide, clock.now() + 0.5)
    assert not first.proved
    assert (again.choice, again.bound) == (first.choice, first.bound)


@pytest.mark.parametrize("seed", range(4))
def test_the_mixed_integer_program_finds_the_same_and_bounds_it(seed: int) -> None:
    small = network(np.random.default_rng(seed), 6, 3, 9)
    (choice, bound), exact = programmed(small, 60.0), eliminated(small)
    assert choice is not None
    assert small.cost(choice) == pytest.approx(exact.cost)
    assert bound <= exact.cost * (1 + 1e-9)


def test_a_runner_up_has_the_exact_cost_of_another_choice() -> None:
    wide = grid(np.random.default_rng(5), 6, 8)
    solver = Solver(wide.pairs, [8] * 36, {0, 17})
    best = solver.solved(wide, clock.now() + 30).choice
    beside = solver.beside(wide, best)
    exact = least_of_each(wide, {0, 17})
    for variable in (0, 17):
        finite = np.isfinite(beside.least[variable])
        assert finite.sum() > 1
        assert (beside.least[variable][finite] >= exact[variable][finite] * (1 - 1e-9)).all()
        second = int(np.where(np.arange(8) == best[variable], np.inf, beside.least[variable]).argmin())
        choice = beside.choice(variable, second)
        assert choice[variable] == second
        assert wide.cost(choice) == pytest.approx(beside.least[variable][second])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "graph",
    [
        {"y": "x @ w"},
        {"y": "tanh(x) @ w"},
        {"s": "sum(x, axis=0)", "y": "x @ w + s[0]"},
        {"g": "x.T @ x", "y": "x @ g @ w"},
    ],
)
def test_the_plan_costs_as_much_as_the_best_of_all_layouts(graph: dict[str, str]) -> None:
    """Over all layouts of the arrays, with the best intermediate layouts: none is below the plan, and one equals it."""
    arrays = {"x": (["M", "K"], "auto"), "w": (["K", "N"], "auto")}
    config = experiment({"a": 2, "b": 2}, {"M": 8, "K": 4, "N": 16}, arrays, graph, {"y": ["a", "b"]})
    best_plan = planned(config)
    whole = read_graph(config)
    types = value_types(whole.alone("graph"))
    choices = [spec for spec in _specs(2) if spec is not None]
    costs: dict[tuple[str, str], float] = {}
    for x, w in itertools.product(choices, repeat=2):
        fixed = whole.at(layouts={"arrays.x.spec": x, "arrays.w.spec": w})
        tables = Tables(fixed.mesh, layable(fixed, types, ()), Bytes())
        costs[str(x), str(w)] = eliminated(tables.network).cost
    mine = tuple(str(spec.json()) for spec in best_plan.best.layouts.values())
    assert min(costs.values()) == pytest.approx(best_plan.best.cost, abs=1e-3)
    assert costs[mine[0], mine[1]] == pytest.approx(best_plan.best.cost, abs=1e-3)


def _specs(rank: int) -> list[list[Any]]:
    """Return every layout over the axes a and b, in their order."""
    specs: list[list[Any]] = []
    for places in itertools.product((None, *range(rank)), repeat=2):
        spec: list[Any] = []
        for d in range(rank):
            axes = [axis for axis, at in zip("ab", places, strict=True) if at == d]
            spec.append(None if not axes else axes[0] if len(axes) == 1 else axes)
        specs.append(spec)
    return specs


def test_a_repeat_ends_as_it_begins_and_costs_as_often_as_it_runs() -> None:
    graph = {"ring": {"repeat": 5, "carry": {"h": "x"}, "body": {"h": "tanh(h @ w) @ v"}}, "y": "ring.h"}
    arrays = {"x": (["B", "D"], []), "w": (["D", "F"], "auto"), "v": (["F", "D"], "auto")}
    best_plan = planned(experiment({"model": 4}, {"B": 3, "D": 8, "F": 64}, arrays, graph, {"y": []}))
    assert layouts(best_plan) == {"w": [None, "model"], "v": ["model", None]}
    (reduced,) = best_plan.axes
    assert (reduced.kind, reduced.count) == ("all-reduce", 5)
    assert best_plan.best.sent == 5 * 2 * 3 / 4 * (3 * 8 * 4)


@pytest.mark.parametrize(("batch", "sent"), [(4, 2 * 3 / 4 * (4 * 32 * 4)), (16, 0.0)])
def test_a_product_of_whole_operands_is_divided_if_its_result_is_small(batch: int, sent: float) -> None:
    """As XLA compiles it: it gathers w rather than sum a larger y, so that w may as well be whole."""
    arrays = {"x": (["B", "D"], []), "w": (["D", "F"], "auto")}
    config = experiment({"model": 4}, {"B": batch, "D": 8, "F": 32}, arrays, {"y": "x @ w"}, {"y": []})
    best_plan = planned(config)
    assert best_plan.best.sent == sent
    assert layouts(best_plan) == {"w": ["model", None] if sent else [None, None]}


def test_the_gradient_of_a_product_is_computed_in_the_layout_of_its_weight() -> None:
    """As compiled for CPUs by JAX 0.10.2: the cotangent of h is gathered, not the gradient sent all-to-all."""
    arrays = {"x": (["B", "D"], []), "w1": (["D", "F"], ["model", None]), "w2": (["F", "D"], ["model", None])}
    graph = {"h": "x @ w1", "a": "gelu(h)", "y": "a @ w2", "loss": "mean(y ** 2)"}
    layouts = {"h": [None, "model"], "a": [None, "model"], "y": []}
    sizes = {"B": 16, "D": 8, "F": 32}
    keys = {"constraints": layouts, "grad": {"of": "loss", "wrt": ["w1", "w2"]}}
    plan_ = planned(experiment({"model": 4}, sizes, arrays, graph, {"loss": []}, **keys))
    reshard, reduced, gathered = 8 * 32 * 4 // 4 * 3 // 4, 2 * 16 * 8 * 4 * 3 // 4, 16 * 32 * 4 * 3 // 4
    assert plan_.best.sent == reshard + reduced + gathered
    assert {axes.kind: axes.bytes for axes in plan_.axes} == {
        "all-to-all": reshard, "all-reduce": reduced, "all-gather": gathered
    }  # fmt: skip


def test_a_limit_that_no_plan_meets_names_the_least_that_would() -> None:
    with pytest.raises(NoPlan) as error:
        planned(mlp(8, {"model": 4}, x=[], plan={"memory": 1000}))
    assert "arrays and outputs need at least 1536 bytes of a device" in str(error.value)


@pytest.mark.parametrize(
    ("amount", "bytes_"), [(1000, 1000.0), ("90 GiB", 90 * 2.0**30), ("1.5 kB", 1500.0), ("2e9", 2e9), ("3MB", 3e6)]
)
def test_memory_is_bytes_or_has_a_unit(amount: Any, bytes_: float) -> None:
    assert open_layouts.read_plan({"plan": {"memory": amount}}).memory == bytes_


@pytest.mark.parametrize("amount", ["much", "90 Gibibytes", "-3 GB", "0 MB", True])
def test_other_amounts_of_memory_are_refused(amount: Any) -> None:
    with pytest.raises(InvalidExperiment) as error:
        open_layouts.read_plan({"plan": {"memory": amount}})
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


def _run_again(folder: Path) -> Any:
    """Run the plan that `_command` left, which must pass, and return its record."""
    home, again = folder / "run" / "conf", folder / "again"
    ran = run_command("--config-dir", str(home), "+experiment=plan", f"hydra.run.dir={again}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads((again / "result.json").read_text(encoding="utf-8"))


@pytest.mark.in_turn
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
    record = _run_again(tmp_path)
    assert record["status"] == "passed"
    assert record["programs"]["auto"]["bytes_sent"] == 144


@pytest.mark.in_turn
def test_the_plan_with_a_gradient_equals_the_compiled_program(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(64, {"model": 4}, loss=True, plan={"candidates": 1}))
    assert done.returncode == 0, done.stdout + done.stderr
    (only,) = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    assert only["candidate"]["sent"] == only["programs"][0]["bytes_sent"]
    # Arrays and outputs are less than a fifth of this.
    needed = min(program["memory_bytes"] for program in only["programs"])
    assert only["candidate"]["needed"] == pytest.approx(needed, rel=0.15)


MODEL = """
import jax
import jax.numpy as jnp


def init(n):
    return {"layer": {"up": jnp.ones((n, 4 * n)) / 7, "down": jnp.ones((4 * n, n)) / 9}, "bias": jnp.ones(n)}


def apply(params, x):
    return jax.nn.gelu(x @ params["layer"]["up"]) @ params["layer"]["down"] + params["bias"]
"""


@pytest.mark.in_turn
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
    _run_again(tmp_path)


NAMED = """
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def init(n):
    return {"up": jnp.ones((n, 4 * n)) / 7, "down": jnp.ones((4 * n, n)) / 9}


def loss(params, x):
    with jax.named_scope("mlp"):
        hidden = checkpoint_name(jnp.tanh(x @ params["up"]), "hidden")
        return jnp.mean((hidden @ params["down"]) ** 2)


def step(params, x):
    value, gradient = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)
"""


STEP = {
    "name": "step",
    "mesh": {"axes": ["model"], "shape": [4]},
    "imports": {"model": "../../model.py"},
    "arrays": {"params": {"tree": "model.init(8)"}, "x": {"shape": [3, 8]}},
    "specs": {"{params,new}/*": "auto"},
    "graph": {"value, new": "model.step(params, x)"},
    "constraints": {"value/mlp/hidden": "auto"},
    "outputs": {"value": []},
    "plan": {"candidates": 0},
    "program": "constraint",
}


def test_a_value_inside_of_a_users_step_and_its_weights_are_laid_out(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(NAMED, encoding="utf-8")
    done = _command(tmp_path, STEP)
    assert done.returncode == 0, done.stdout + done.stderr
    candidate = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["plan"]["best"]
    # Three rows cannot be sharded: weights by columns and by rows, and one all-reduce forward.
    assert candidate["layouts"]["constraints.value/mlp/hidden"] == [None, "model"]
    record = _run_again(tmp_path)
    assert record["programs"]["constraint"]["bytes_sent"] == candidate["sent"]


def test_products_inside_of_a_users_step_are_laid_out_by_their_numbers(tmp_path: Path) -> None:
    """Those of the backward pass too: two forward, two for the weights' gradients, one for that of what is between."""
    (tmp_path / "model.py").write_text(NAMED, encoding="utf-8")
    done = _command(tmp_path, STEP | {"constraints": {"value/dot_general.*": "auto"}})
    assert done.returncode == 0, done.stdout + done.stderr
    candidate = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["plan"]["best"]
    written = yaml.safe_load((tmp_path / "run" / "conf" / "experiment" / "plan.yaml").read_text(encoding="utf-8"))
    assert list(written["constraints"]) == [f"value/dot_general.{number}" for number in (1, 2, 3, 4, 5)]
    hidden, result, *backward = written["constraints"].values()
    assert (hidden, result) == ([None, "model"], [None, None])
    assert all(spec.count("model") == 1 for spec in backward)
    record = _run_again(tmp_path)
    assert record["programs"]["constraint"]["bytes_sent"] == candidate["sent"]
    assert '"dot_general.5": ' in (tmp_path / "again" / "program_constraint.py").read_text(encoding="utf-8")


LARGE = """
import jax.numpy as jnp


def init():
    return {"w": jnp.ones((1 << 20, 1 << 20))}
"""


def test_weights_that_do_not_fit_into_this_machines_memory_are_planned_by_their_shapes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LARGE, encoding="utf-8")
    trees = {"arrays": {"params": {"tree": "model.init()"}, "x": {"shape": [4, 1 << 20]}}}
    graph = {"graph": {"y": "x @ params_w"}, "outputs": {"y": []}, "constraints": {}, "specs": {"params/w": "auto"}}
    done = _command(tmp_path, STEP | trees | graph)
    assert done.returncode == 0, done.stdout + done.stderr
    home = tmp_path / "run" / "conf"
    ran = run_command("--config-dir", str(home), "+experiment=plan", f"hydra.run.dir={tmp_path / 'again'}")
    assert ran.returncode == 2
    assert re.search(
        r"arrays\.params\.tree\n  the values take 4\.4 TB, and \S+ .?B of memory are free; choose smaller dims, or a "
        r"target that is not here, such as target=v5e_4x4\n",
        ran.stderr,
    )


@pytest.mark.parametrize(
    "lookup",
    [
        "x.at[arange(8)[:, None], t].get(mode='fill', fill_value=inf - inf)",
        "take_along_axis(x, t, axis=1)",
        "sum(take(x, t[0], axis=1, mode='clip'), axis=1)",
        "x + broadcast_in_dim(sum(x, axis=1), (8, 4), (0,))",
    ],
)
def test_indices_that_do_not_cross_rows_leave_them_sharded(lookup: str) -> None:
    config = experiment({"data": 4}, {"B": 8, "D": 4}, {"x": (["B", "D"], ["data"])}, {"y": lookup}, {"y": "auto"})
    config["arrays"]["t"] = {"shape": [8, 1], "dtype": "int32", "init": "integers(0, 4)", "spec": "auto"}
    best_plan = planned(config)
    assert best_plan.best.sent == 0
    assert not best_plan.unknown
    assert best_plan.best.layouts["outputs.y"].axes == ("data",)


SINGLE_AXIS = {"model": 1}
REFUSED = {
    "nothing is to be found": (
        mlp(8, {"model": 4}, x=[]) | {"arrays": {"x": {"shape": [2]}}, "graph": {"y": "x"}},
        "there is no layout to plan: write auto in place of a spec, such as arrays.x.spec=auto",
    ),
    "one device": (mlp(8, SINGLE_AXIS), "the mesh model=1 has one device: there is nothing to lay out"),
    "time without hardware": (
        mlp(8, {"model": 4}, plan={"least": "time"}),
        "plan.least=time needs hardware: choose it, hardware=v5p, or write plan.least=bytes",
    ),
    "hardware without a network": (
        mlp(8, {"model": 4}, x=[], hardware={"name": "mine", "flops": {"float32": 1e12}, "slices": 2}),
        "mine has no network between slices: give hardware.network",
    ),
    "too little memory": (
        mlp(8, {"model": 4}, x=[], plan={"memory": "1 kB"}),
        "no layout fits: arrays and outputs need at least 1536 bytes of a device",
    ),
    "blocks that are written by hand": (
        mlp(8, {"model": 4}) | {"per_device": {"y": "x @ w1 @ w2"}},
        "per_device assumes the blocks of one layout, so none can be planned: leave per_device out, or give the layout",
    ),
    "a word that is none": (
        mlp(8, {"model": 4}, x="automatic"),
        "'spec' is a list, not 'automatic'; write [automatic]",
    ),
    "the least of nothing": (
        mlp(8, {"model": 4}, plan={"least": "flops"}),
        "a plan cannot minimize 'flops'; there are bytes, time, memory",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_an_impossible_plan_is_one_message(mistake: str, tmp_path: Path) -> None:
    config, message = REFUSED[mistake]
    done = _command(tmp_path, config)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].strip() == message
    assert "Traceback" not in done.stderr


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "mistake", ["too little memory", "blocks that are written by hand", "hardware without a network"]
)
def test_an_impossible_plan_is_the_error_of_a_run_and_of_a_sweep_in_python(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, message = REFUSED[mistake]
    monkeypatch.chdir(tmp_path)
    record = runner.run({**config, "program": "auto"})
    assert (record.status, (record.error or "").splitlines()[-1].strip()) == ("invalid", message)
    (point,) = runner.sweep({**config, "program": "auto"}, {"plan.seconds": "5"})
    assert point["status"] == "invalid"
    assert message in point["error"]


def test_a_run_finds_the_layouts_that_are_auto_and_says_which(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(3, {"model": 4}, x=[]), "program=auto", module="runner")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "layouts planned, for the least bytes (144 B): w1: [null, model]; w2: [model, null]" in done.stdout
    assert "tensor parallelism (Megatron) over model: w1 by columns, w2 by rows" in done.stdout
    record = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert record["programs"]["auto"]["bytes_sent"] == 144
    written = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
    assert written["plan"]["best"]["layouts"]["arrays.w1.spec"] == [None, "model"]


@pytest.mark.in_turn
def test_a_sweep_plans_each_point(tmp_path: Path) -> None:
    sweep = ("-m", "program=auto", "dims.B=3,1024", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    done = _command(tmp_path, mlp(3, {"model": 4}, loss=True), *sweep, module="runner")
    assert done.returncode == 0, done.stdout + done.stderr
    plans = [json.loads((tmp_path / "sweep" / str(n) / "plan.json").read_text(encoding="utf-8")) for n in (0, 1)]
    assert [plan["plan"]["best"]["layouts"]["arrays.x.spec"] for plan in plans] == [[None, None], ["model", None]]


def test_the_shape_of_the_mesh_is_found_too(tmp_path: Path) -> None:
    """Rows are sharded over data and columns over model; a product with few rows is best sharded by columns only."""
    config = mlp(64, {"data": 1, "model": 1}, x=["data", None], loss=True, plan={"candidates": 1}, program="auto")
    config["mesh"]["shape"] = "auto"
    config["target"] = {"devices": 4}
    done = _command(tmp_path, config)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
    shapes = {tuple(entry["shape"]): entry["cost"] for entry in written["shapes"]}
    # x is sharded only over data, so that the two axes are not interchangeable.
    assert set(shapes) == {(1, 4), (2, 2), (4, 1)}
    for shape, cost in shapes.items():
        shaped = mlp(64, dict(zip(("data", "model"), shape, strict=True)), x=["data", None], loss=True)
        assert planned(shaped).best.cost == pytest.approx(cost)
    best = min(shapes, key=lambda shape: shapes[shape])
    assert written["shapes"][0]["shape"] == list(best)
    experiment_ = yaml.safe_load((tmp_path / "run" / "conf" / "experiment" / "plan.yaml").read_text(encoding="utf-8"))
    assert experiment_["mesh"]["shape"] == list(best)


def test_axes_that_are_alike_are_taken_in_one_order() -> None:
    config = {"mesh": {"axes": ["a", "b"], "shape": "auto"}, "target": {"devices": 8}}
    assert open_layouts.shapes(config, alike=True) == [[4, 2], [8, 1]]
    assert open_layouts.shapes({**config, "rules": [["embed", "a"]]}, alike=True) == [[2, 4], [4, 2], [1, 8], [8, 1]]
    assert len(open_layouts.shapes(config, alike=False)) == 4


def test_several_objectives_give_a_front() -> None:
    config = mlp(8, {"model": 4}, x="auto", plan={"least": ["bytes", "memory"]})
    best_plan = planned(config)
    points = [(candidate.costs["bytes"], candidate.costs["memory"]) for candidate in best_plan.front]
    assert len(points) > 1
    assert points == sorted(points)
    assert [held for _, held in points] == sorted((held for _, held in points), reverse=True)
    assert points[0][0] == pytest.approx(planned(config | {"plan": {"least": "bytes"}}).best.cost)
    assert points[-1][1] == pytest.approx(planned(config | {"plan": {"least": "memory"}}).best.cost)


@pytest.mark.in_turn
def test_handwritten_layouts_are_compared_with_the_plan(tmp_path: Path) -> None:
    config = mlp(64, {"model": 4}, loss=True, plan={"candidates": 1, "competitors": ["megatron.yaml", "data.yaml"]})
    home = tmp_path / "conf" / "experiment"
    home.mkdir(parents=True)
    (home / "megatron.yaml").write_text("arrays: {x: [], w1: [null, model], w2: {spec: [model, null]}}")
    (home / "data.yaml").write_text("arrays: {x: [model], w1: [], w2: []}")
    done = _command(tmp_path, config, "program=auto")
    assert done.returncode == 0, done.stdout + done.stderr
    tried = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    sent = {trial.get("by_hand"): (trial["candidate"]["sent"], trial["programs"][0]["bytes_sent"]) for trial in tried}
    assert set(sent) == {None, "megatron.yaml", "data.yaml"}
    assert all(model == compiled for model, compiled in sent.values())
    assert sent[None] == sent["megatron.yaml"]
    assert sent["data.yaml"][0] > sent["megatron.yaml"][0]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("arrays: {x: [], w1: [null, model]}", "has no layout for arrays.w2.spec, which is auto in the experiment"),
        ("arrays: {y: []}", "hand.yaml: the experiment has no array 'y'"),
        ("arrays: {x: model}", "hand.yaml: arrays.x: 'model' is not a PartitionSpec; write a list such as [x, null]"),
        ("mesh: {}", "hand.yaml is not a file of layouts, which maps names to specs below arrays, constraints"),
    ],
)
def test_a_fault_in_a_competitors_file_is_one_message(written: str, message: str, tmp_path: Path) -> None:
    home = tmp_path / "conf" / "experiment"
    home.mkdir(parents=True)
    (home / "hand.yaml").write_text(written)
    done = _command(tmp_path, mlp(8, {"model": 4}, plan={"competitors": ["hand.yaml"]}))
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.in_turn
def test_a_memory_limit_holds_for_the_compiled_program(tmp_path: Path) -> None:
    """The model's memory is within the limit, but the compiler needs more: a plan that holds less is made."""
    by_rows = {"outputs": {"y": ["model", None]}}
    loose = _command(tmp_path, mlp(8, {"model": 4}, x=[], plan={"candidates": 1}, program="auto") | by_rows)
    assert loose.returncode == 0, loose.stdout + loose.stderr
    (tried,) = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    needed, held = tried["programs"][0]["memory_bytes"], tried["candidate"]["held"]
    assert needed > held
    limit = needed - 1
    config = mlp(8, {"model": 4}, x=[], plan={"candidates": 1, "memory": limit}, program="auto") | by_rows
    done = _command(tmp_path, config, f"hydra.run.dir={tmp_path / 'tight'}")
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "tight" / "plan.json").read_text(encoding="utf-8"))
    assert written["rounds"][0]["needed"] == needed
    assert written["tried"][0]["programs"][0]["memory_bytes"] <= limit
    assert re.search(rf"{re.escape(bytes_text(needed))} \(over the limit\) +candidate_1", done.stdout)


def test_a_limit_that_no_candidate_meets_names_the_least_that_was_compiled(tmp_path: Path) -> None:
    least = planned(mlp(8, {"model": 4}, x=[], plan={"least": "memory"})).best.held
    config = mlp(8, {"model": 4}, x=[], plan={"candidates": 1, "memory": least + 1}, program="auto")
    done = _command(tmp_path, config)
    assert done.returncode == 1, done.stdout + done.stderr
    tried = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    needed = min(program["memory_bytes"] for trial in tried for program in trial["programs"])
    assert f"no compiled layout fits the limit of {bytes_text(round(least + 1))}: " in done.stdout
    assert re.search(rf"the smallest, candidate_\d, needs {re.escape(bytes_text(needed))}", done.stdout)


def test_two_plans_are_compared_in_words(tmp_path: Path) -> None:
    for name, batch in (("small", 64), ("large", 256)):
        config = mlp(batch, {"model": 4}, loss=True, plan={"candidates": 0})
        done = _command(tmp_path, config, f"hydra.run.dir={tmp_path / name}")
        assert done.returncode == 0, done.stdout + done.stderr
    done = command(tmp_path, "--compare", "small", "large/plan.json", module="runner plan")
    assert done.returncode == 0, done.stderr
    assert re.search(r"arrays.x.spec +\[null, null\] +\[model, null\]", done.stdout)
    assert "large/plan.json costs " in done.stdout
    assert "only small: tensor parallelism (Megatron) over model: w1 by columns, w2 by rows" in done.stdout
    assert "only large/plan.json: data parallelism over model: dimension B of x" in done.stdout
    for arguments, message in (
        (("small",), "it takes two run folders, or two plan.json files"),
        (("small", "nowhere"), "nowhere: No such file or directory"),
    ):
        done = command(tmp_path, "--compare", *arguments, module="runner plan")
        assert done.returncode == 2
        assert message in done.stderr


# Bad input, and large input.


@pytest.mark.in_turn
def test_a_graph_of_four_hundred_values_is_planned() -> None:
    arrays: dict[str, Any] = {"x": (["B", "D"], "auto")} | {f"w{n}": (["D", "D"], "auto") for n in range(100)}
    graph: dict[str, Any] = {}
    last = "x"
    for n in range(100):
        graph |= {f"a{n}": f"{last} @ w{n}", f"b{n}": f"gelu(a{n})", f"c{n}": f"b{n} + {last}"}
        last = f"c{n}"
    config = experiment({"a": 2, "b": 2, "c": 2}, {"B": 16, "D": 16}, arrays, graph, {last: []})
    began = time.perf_counter()
    best_plan = planned(config | {"plan": {"seconds": 5}})
    assert time.perf_counter() - began < 60
    assert best_plan.best.cost >= best_plan.bound > 0


def test_reasons_name_the_line_of_the_users_python(tmp_path: Path) -> None:
    home = tmp_path / "conf" / "experiment"
    home.mkdir(parents=True)
    (home / "model.py").write_text(
        "import jax.numpy as jnp\n\n\ndef init(d):\n"
        "    return {'up': jnp.ones((d, 4 * d)), 'down': jnp.ones((4 * d, d))}\n"
        "\n\ndef loss(params, x):\n    y = jnp.tanh(x @ params['up']) @ params['down']\n    return jnp.mean(y**2)\n"
    )
    config = experiment(
        {"data": 2, "model": 2},
        {"B": 16, "D": 16},
        {"x": (["B", "D"], ["data", None])},
        {"loss": "model.loss(params, x)"},
        {"loss": []},
    )
    config["imports"] = {"model": "model.py"}
    config["arrays"]["params"] = {"tree": "model.init(16)"}
    config |= {"specs": {"params/**": "auto"}, "plan": {"candidates": 0}}
    done = _command(tmp_path, config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data parallelism over data: dimension B of x" in done.stdout
    written = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
    assert "params/up" in written["labels"].values()
    (down,) = (each for each in written["plan"]["alternatives"] if written["labels"][each["key"]] == "params/down")
    assert re.fullmatch(r"'model\.py:9' would cost more: (partial sums of )?matmul", down["since"])
    assert {split["line"].split(" ")[0] for split in written["plan"]["splits"]} <= {"model.py:9", "model.py:10"}


def planning_of(config: Any, graph: Experiment, keys: tuple[Any, ...], types: Any, plan_: LayoutPlan) -> Planning:
    """Return a plan with what it is a plan of."""
    return Planning(
        experiment=graph, graph=graph, definition=open_layouts.without(config), left_open=frozenset(), keys=keys,
        types=types, request=open_layouts.read_plan(config), plan=plan_,
    )  # fmt: skip


def test_a_candidate_is_verified_at_sizes_that_its_layouts_divide() -> None:
    """The columns of w1 and the rows of w2 are in eight parts, so the hidden width is raised from 6 to 8."""
    config = mlp(3, {"a": 2, "b": 4}, x=[], verify_dims={"B": 2, "D": 5, "F": 6})
    best_plan, graph = planned(config), read_graph(config)
    assert layouts(best_plan) == {"w1": [None, ["a", "b"]], "w2": [["a", "b"], None]}
    keys = tuple(open_layouts.keys(config))
    types = value_types(graph.alone("graph"))
    planning = planning_of(config, graph, keys, types, best_plan)
    assert filled(planning, best_plan.best)["verify_dims"] == {"B": 2, "D": 5, "F": 8}


def test_where_the_rows_take_every_axis_the_weights_are_whole() -> None:
    rows = [["a", "b"], None]
    best_plan = planned(mlp(16, {"a": 2, "b": 2}, x=rows) | {"outputs": {"y": rows}})
    assert layouts(best_plan) == {"w1": [None, None], "w2": [None, None]}
    assert best_plan.best.sent == 0


def test_a_candidate_has_the_layouts_that_differ_from_the_first() -> None:
    first = {"arrays.x.spec": "[null]", "outputs.y": "[x]", "arrays.p1.spec": "[x, null]"}
    texts = differing([first, {**first, "arrays.p1.spec": "[null, x]"}, dict(first)], {"arrays.p1.spec": "params/up"})
    assert texts == ["x=[null] y=[x] params/up=[x, null]", "params/up=[null, x]", "the same layouts"]


@pytest.mark.in_turn
def test_five_mesh_axes_are_planned_with_some_that_split_together() -> None:
    axes = {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2}
    layered = mlp(64, axes, x="auto", loss=True)
    best_plan = planned(layered)
    assert best_plan.best.cost <= planned(mlp(64, {"a": 32}, x="auto", loss=True)).best.cost * (1 + 1e-6)


def test_open_shapes_need_a_number_of_devices(tmp_path: Path) -> None:
    config = mlp(8, {"model": 1}, x=[])
    config["mesh"]["shape"] = "auto"
    done = _command(tmp_path, config)
    assert done.returncode == 2
    assert (
        "the number of devices for mesh.shape=auto is not known: set target.devices=8, or choose a target"
        in done.stderr
    )


def test_free_reshards_do_not_go_in_circles() -> None:
    """On hardware without links, collectives take no time."""
    hardware = {"name": "mine", "flops": {"float32": 1e12}}
    best_plan = planned(mlp(16, {"x": 2, "y": 2}, loss=True, plan={"least": "time"}, hardware=hardware))
    assert best_plan.best.cost < 1e-6
    assert all(candidate.cost >= best_plan.bound for candidate in best_plan.others)


def test_a_candidate_whose_verification_takes_too_long_is_compiled_and_not_run(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(32768, {"model": 4}, loss=True), "dims.D=4096", "dims.F=16384")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"the best candidate is compiled and not run: verifying one here takes about \d+ \w+; plan.verify=true",
        done.stdout,
    )
    (tried,) = json.loads((tmp_path / "run" / "plan.json").read_text())["tried"]
    assert {each["program"]: each["bytes_sent"] > 0 for each in tried["programs"]} == {
        "auto": True,
        "constraint": True,
    }
    written = (tmp_path / "run" / "conf" / "experiment" / "plan.yaml").read_text()
    assert "topology" not in written


def test_a_plan_without_verification_compiles_its_candidates_for_the_devices_here(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(64, {"model": 4}, loss=True), "plan.verify=false", "plan.candidates=2")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "run" / "candidate_2" / "result.json").read_text())
    assert record["target"]["topology"] == "cpu:4"
    assert record["programs"]["auto"]["checks"]["value"]["reason"].startswith("compiled for cpu:4, and not run")


def test_more_devices_than_a_process_compiles_for_have_no_candidate(tmp_path: Path) -> None:
    done = _command(tmp_path, mlp(4096, {"model": 4096}, loss=True), "plan.verify=false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no candidate is compiled: choose smaller dims, or a target that is not here" in done.stdout


# Memory limits.


@dataclass(frozen=True)
class Steps:
    """The bytes that each value of each variable needs at each step: `sizes[variable][value, step]`."""

    sizes: Sequence[np.ndarray[Any, Any]]

    @property
    def least(self) -> float:
        return 0.0

    def priced(self, prices: np.ndarray[Any, Any]) -> dict[tuple[int, ...], Table]:
        return {(at,): Table(sizes @ prices) for at, sizes in enumerate(self.sizes)}

    def profile(self, choice: Sequence[int]) -> np.ndarray[Any, Any]:
        return np.sum([sizes[at] for sizes, at in zip(self.sizes, choice, strict=True)], axis=0)


@pytest.mark.parametrize("seed", range(8))
def test_the_best_choice_within_a_memory_limit_is_found_and_proved(seed: int) -> None:
    """It is that of all choices, also where it lies between those that a price of memory finds."""
    rng = np.random.default_rng(seed)
    whole, sizes = network(rng, 6, 3, 8), [rng.random((3, 4)) for _ in range(6)]
    memory: Any = Steps(sizes)
    every = {choice: memory.profile(choice).max() for choice in itertools.product(range(3), repeat=6)}
    cheapest = min(every, key=whole.cost)
    limit = (every[cheapest] + min(every.values())) / 2
    best = min(whole.cost(choice) for choice, needed in every.items() if needed <= limit)
    solver = Solver(whole.pairs, [3] * 6)
    answer = limited(solver, whole, memory, limit, clock.now() + 60)
    assert every[answer.solution.choice] <= limit
    assert answer.unlimited == pytest.approx(whole.cost(cheapest))
    assert answer.solution.cost == pytest.approx(best)
    assert answer.solution.bound == pytest.approx(best)


def test_where_nothing_is_within_a_memory_limit_the_least_is_taken() -> None:
    rng = np.random.default_rng(0)
    whole, memory = network(rng, 4, 3, 4), Steps([rng.random((3, 2)) + 1 for _ in range(4)])
    least = min(memory.profile(choice).max() for choice in itertools.product(range(3), repeat=4))
    stub: Any = memory
    answer = limited(Solver(whole.pairs, [3] * 4), whole, stub, 0.9 * least, clock.now() + 60)
    assert memory.profile(answer.solution.choice).max() <= 1.2 * least
    assert answer.solution.bound <= answer.solution.cost


@pytest.mark.parametrize("ratio", [0.4, 1.2, 3.0])
def test_the_limit_of_the_model_moves_by_what_the_compiler_needs(
    ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that is less, the plan without a limit is taken, else one that needs less; what is compiled is within it."""
    config = mlp(8, {"model": 4}, x=[]) | {"outputs": {"y": ["model", None]}}
    unlimited = planned(config).best
    limit = round((unlimited.held + unlimited.needed) / 2)
    config |= {"plan": {"memory": limit, "candidates": 1}}
    graph, types = read_graph(config), value_types(read_graph(config).alone("graph"))
    plan_ = planned(config)
    assert plan_.best.needed <= limit < unlimited.needed
    keys = tuple(open_layouts.keys(config))
    planning = planning_of(config, graph, keys, types, plan_)

    def compiled(_planning: Planning, candidate: Candidate, own: Path, *_: Any) -> Tried:
        needed = int(candidate.held + ratio * (candidate.needed - candidate.held))
        return Tried(
            candidate=candidate,
            folder=own.name,
            programs=(Compiled(program="auto", status="passed", bytes_sent=int(candidate.sent), memory_bytes=needed),),
        )

    monkeypatch.setattr("runner.app.flow.planning._tried", compiled)
    none: Any = None
    answer = ranked(planning, tmp_path, none, none)
    (program,) = answer.tried[0].programs
    assert program.memory_bytes is not None
    assert program.memory_bytes <= limit
    if ratio < 1:
        assert [each.limit for each in answer.rounds] == [limit, None]
        assert answer.planning.plan.best.layouts == unlimited.layouts
    assert answer.tried[0].candidate.layouts == answer.planning.plan.best.layouts


@pytest.mark.parametrize(("error", "again"), [("RESOURCE_EXHAUSTED: on HBM", True), ("the compiler aborted", False)])
def test_a_plan_that_does_not_compile_is_made_again_only_if_it_needs_too_much_memory(
    error: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mlp(8, {"model": 4}, x=[]) | {"outputs": {"y": ["model", None]}}
    config |= {"plan": {"memory": round(planned(config).best.needed), "candidates": 1}}
    graph, types = read_graph(config), value_types(read_graph(config).alone("graph"))
    keys, plan_ = tuple(open_layouts.keys(config)), planned(config)
    planning = planning_of(config, graph, keys, types, plan_)

    def compiled(_planning: Planning, candidate: Candidate, own: Path, *_: Any) -> Tried:
        program = Compiled(program="auto", status="passed", bytes_sent=int(candidate.sent), memory_bytes=1000)
        if candidate.layouts == plan_.best.layouts:
            program = Compiled(program="auto", status="error", error=error)
        return Tried(candidate=candidate, folder=own.name, programs=(program,))

    monkeypatch.setattr("runner.app.flow.planning._tried", compiled)
    none: Any = None
    answer = ranked(planning, tmp_path, none, none)
    assert (len(answer.rounds) > 1) == again
    assert (answer.tried[0].programs[0].status == "passed") == again


def _ranked(
    config: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, sent: Mapping[tuple[str, bool], int]
) -> Ranked:
    """Rank a plan of `config`; `sent`: what a device sends as compiled, by program and whether a weight is sharded."""
    graph, types = read_graph(config), value_types(read_graph(config).alone("graph"))
    keys, plan_ = tuple(open_layouts.keys(config)), planned(config)
    planning = planning_of(config, graph, keys, types, plan_)

    def compiled(_planning: Planning, candidate: Candidate, own: Path, *_: Any, programs: Any = (), **__: Any) -> Tried:
        sharded = any(any(spec) for spec in candidate.layouts.values())
        compiled_ = [
            Compiled(program=name, status="passed", bytes_sent=sent[name, sharded], flops=100.0)
            for name in programs or ("auto", "constraint")
        ]
        ordered = sorted(compiled_, key=lambda each: each.bytes_sent or 0)
        return Tried(candidate=candidate, folder=own.name, programs=tuple(ordered))

    monkeypatch.setattr("runner.app.flow.planning._tried", compiled)
    none: Any = None
    return ranked(planning, folder, none, none)


MLP_BYTES = 144
"""What a device sends by the model in `mlp(3, {"model": 4}, x=[])`."""


def test_a_plan_that_compiles_to_more_than_planned_is_written_in_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mlp(3, {"model": 4}, x=[], plan={"candidates": 1})
    sent = {("auto", True): 500, ("constraint", True): 400, ("derived", True): MLP_BYTES}
    answer = _ranked(config, tmp_path, monkeypatch, sent)
    best = answer.tried[0]
    assert (best.programs[0].program, best.programs[0].bytes_sent) == ("derived", MLP_BYTES)
    assert best.written == "as derived, by the lines of one device"
    assert answer.caveat is None


def test_a_plan_that_compiles_to_what_was_planned_is_written_in_one_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mlp(3, {"model": 4}, x=[], plan={"candidates": 1})
    answer = _ranked(config, tmp_path, monkeypatch, {("auto", True): MLP_BYTES, ("constraint", True): 400})
    assert len(answer.tried) == 1


@pytest.mark.parametrize(("replicated", "gains"), [(399, False), (400, False), (401, True)])
def test_a_plan_that_is_no_better_as_compiled_than_replicated_weights_says_so(
    replicated: int, gains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mlp(3, {"model": 4}, x=[], plan={"candidates": 1})
    sent = {("auto", True): 500, ("constraint", True): 400, ("derived", True): 600, ("auto", False): replicated}
    sentence = _ranked(config, tmp_path, monkeypatch, sent).caveat or ""
    if gains:
        assert sentence == f"as compiled a device sends 400 B, and {MLP_BYTES} B by the model"
    else:
        assert f"a device sends 400 B, and {replicated} B with all that is auto replicated" in sentence
        assert sentence.endswith(" and no layout of a line; take that, unless the plan's arrays have to be smaller")


def test_a_plan_that_the_types_refuse_is_not_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = mlp(3, {"model": 4}, x=[], plan={"candidates": 1})
    graph, types = read_graph(config), value_types(read_graph(config).alone("graph"))
    keys, plan_ = tuple(open_layouts.keys(config)), planned(config)
    assert plan_.others

    def compiled(_planning: Planning, candidate: Candidate, own: Path, *_: Any, programs: Any = (), **__: Any) -> Tried:
        sharded = any(any(spec) for spec in candidate.layouts.values())
        program = Compiled(program="explicit", status="invalid" if sharded else "passed", bytes_sent=7)
        return Tried(candidate=candidate, folder=own.name, programs=(program,))

    monkeypatch.setattr("runner.app.flow.planning._tried", compiled)
    none: Any = None
    answer = ranked(planning_of(config, graph, keys, types, plan_), tmp_path, none, none)
    assert not any(any(spec) for spec in answer.tried[0].candidate.layouts.values())
    assert answer.caveat == (
        "JAX's types refuse the layouts of candidate_1, which the model found: the code has to state layouts for them "
        f"(see below); the layouts to take are those of {answer.tried[0].folder}, which JAX accepts as the code is"
    )


def test_a_program_with_which_a_device_computes_more_is_not_the_best() -> None:
    programs = [Compiled(program="auto", status="passed", bytes_sent=100, flops=400.0),
                Compiled(program="constraint", status="passed", bytes_sent=MLP_BYTES, flops=100.0)]  # fmt: skip
    least = {name: most_flops(programs, name) for name in ("bytes", "time")}
    assert [each.program for each in programs if (each.flops or 0) <= least["bytes"]] == ["constraint"]
    assert least["time"] == np.inf


TOWERS = experiment(
    {"x": 2, "y": 4},
    {"B": 64, "D": 64, "F": 16},
    {"p": (["B", "D"], ["x", None]), "q": (["B", "D"], ["x", None]), "w": (["D", "F"], [None, "y"]),
     "v": (["D", "F"], [None, "y"])},
    {"a": "p @ w", "b": "q @ v", "s": "a @ b.T"},
    {"s": ["x", "y"]},
    constraints={"a": ["x", "y"], "b": ["x", "y"]},
    plan={"least": "bytes"},
)  # fmt: skip
"""Scores whose operands are both split over `y` along the features, which are summed."""


def test_scores_of_operands_that_are_split_along_what_is_summed_are_partial_sums() -> None:
    """XLA gathers b over x, and all-reduces 32 × 64 sums over y; JAX 0.10.2 and 0.12 compile it to the same bytes."""
    gathered, summed = 64 * 4 * 4 // 2, 2 * 32 * 64 * 4 * 3 // 4
    assert planned(TOWERS).best.sent == gathered + summed


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        (["x", None], [None, "y"], True),
        ([["x", "y"], None], [None, "x"], True),
        ([["x", "y"], None, None], [None, "x", "y"], True),
        (["x", None], [None, "x"], False),
        (["y", None], [None, ["x", "y"]], False),
        (["x", "y"], ["y", None], False),
        ([["x", "y"], None], ["x", None], False),
    ],
)
def test_the_partitioner_gathers_an_array_between_some_layouts(before: Any, after: Any, whole: bool) -> None:
    """XLA warns of an involuntary full rematerialization between these, as 1,152 pairs that it compiled showed."""
    mesh = Mesh(("x", "y"), (2, 4))
    shape = (64,) * len(before)
    space = Space(mesh, shape, 4, Bytes("bytes"), split_axes(mesh))
    specs = [Spec.of(spec).padded(len(spec)) for spec in (before, after)]
    a, b = (space.index[spec] for spec in specs)
    everything = space.cost[a, space.index[Spec().padded(len(shape))]]
    assert (space.cost[a, b] == everything) == whole
    assert sum(step.cost for step in space.path(a, b)) == pytest.approx(space.cost[a, b])


SKINNY = experiment(
    {"model": 4},
    {"B": 1024, "D": 8, "F": 8},
    {"x": (["B", "D"], "auto"), "w": (["D", "F"], ["model", None])},
    {"h": "relu(x @ w)", "y": "h @ w.T"},
    {"y": ["model", None]},
    program="constraint",
    plan={"candidates": 1},
)
"""A weight that two products read, which XLA gathers for each."""


@pytest.mark.in_turn
def test_the_best_way_of_writing_as_compiled_is_what_the_command_leaves(tmp_path: Path) -> None:
    done = _command(tmp_path, SKINNY)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    assert [each["programs"][0]["bytes_sent"] for each in tried] == [192, 384, 384]
    assert _run_again(tmp_path)["programs"]["derived"]["bytes_sent"] == 192


@pytest.mark.in_turn
def test_a_refusal_under_a_memory_limit_tries_the_arrays_alone_first(tmp_path: Path) -> None:
    arrays = {"x": (["B", "D"], []), "w1": (["D", "F"], "auto"), "w2": (["F", "D"], "auto")}
    dims, lines = {"B": 4, "D": 64, "F": 128}, {"h": "gelu(x @ w1)", "y": "h @ w2", "loss": "mean(y ** 2)"}
    keys: Any = {"program": "constraint", "grad": {"of": "loss", "wrt": ["w1", "w2"]}}
    limit = 36_000
    config = experiment({"model": 4}, dims, arrays, lines, {"loss": []}, **keys, plan={"memory": limit})
    done = _command(tmp_path, config)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_ = json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["tried"]
    assert first["programs"][0]["program"] == "auto"
    assert first["programs"][0]["memory_bytes"] <= limit


def test_a_product_inside_of_a_line_lies_as_the_line() -> None:
    """XLA propagates the layout of z to the product, which it would compute by columns from a gathered h."""
    arrays = {"x": (["B", "D"], [None, "model"]), "w1": (["D", "F"], []), "w2": (["F", "D"], [])}
    lines = {"h": "gelu(x @ w1)", "z": "x + h @ w2", "y": "z * rsqrt(mean(z ** 2, axis=-1, keepdims=True) + 1e-5)"}
    config = experiment(
        {"model": 4}, {"B": 128, "D": 256, "F": 1024}, arrays, lines, {"y": [None, "model"]}, constraints={"h": "auto"}
    )
    best = planned(config).best
    assert best.constraints["z"].json() == ["model", None]
    assert best.sent == 3 * 24_576


def test_a_run_says_that_its_layouts_exceed_the_memory_limit(tmp_path: Path) -> None:
    """The plan's model and the compiled program are both held to the limit."""
    least = planned(mlp(8, {"model": 4}, x=[], plan={"least": "memory"})).best.held
    config = mlp(8, {"model": 4}, x=[], plan={"memory": int(least) + 1}, program="auto")
    done = _command(tmp_path, config, module="runner")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no layout that was tried fits the limit in the model; these need the least memory" in done.stdout
    assert re.search(rf"each device needs \d+ bytes of memory .*, more than {int(least) + 1}", done.stdout)
