"""What `derived` chooses by: bytes, or the estimated time on hardware; and layouts for the whole graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.base.faults import InvalidExperiment
from runner.checks.kinds import derivation
from runner.experiment.config.compose import Configuration, InvalidConfiguration, compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.programs.types import InferredTypes
from runner.worker.types import infer
from tests import harness

PRODUCT = """
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [8192, 8192], dtype: bfloat16, spec: [null, x]}
  B: {shape: [8192, 8192], dtype: bfloat16, spec: []}
graph: {C: A @ B}
outputs: {C: []}
"""
"""A gather of `A` sends the fewest bytes, but then each device computes the whole product."""

V5P: dict[str, Any] = yaml.safe_load((conf_folder() / "hardware" / "v5p.yaml").read_text("utf-8").replace("e+", "e"))


def _types(experiment: Experiment) -> InferredTypes:
    with harness.configured(experiment):
        return infer(replace(experiment, programs=(Program.DERIVED,), chosen=True))


def _derived(text: str, **changes: Any) -> tuple[dict[str, Any], list[str], int]:
    """Return the derived lines, their notes, and the bytes that a device sends."""
    types = _types(harness.experiment(text, **changes))
    assert types.derivation is not None, types.unsupported
    return types.derivation.per_device, types.derivation.notes, types.derivation.sent_bytes


def _v5p(**changes: Any) -> dict[str, Any]:
    numbers = {key: float(value) for key, value in V5P["flops"].items()}
    torus = {**V5P["torus"], "bandwidth": 9e10, "latency": 1e-6}
    return {**V5P, "flops": numbers, "memory": {"bytes": 9.6e10, "bandwidth": 2.8e12}, "torus": torus,
            "network": None, **changes}  # fmt: skip


def test_bytes_are_the_default_and_gather_an_operand() -> None:
    lines, notes, sent = _derived(PRODUCT)
    assert lines == {"C": "all_gather(A, 'x', axis=1, tiled=True, to='invarying') @ B"}
    assert notes == []
    assert sent == 3 * 8192 * 2048 * 2


def test_time_sends_more_bytes_where_the_product_would_take_longer_and_says_so() -> None:
    lines, notes, sent = _derived(PRODUCT, derive={"cost": "time", "hardware": _v5p()})
    product = "all_to_all(A, 'x', 0, 1, tiled=True) @ B"
    assert lines == {"C": f"all_gather({product}, 'x', axis=0, tiled=True, to='invarying')"}
    assert sent == (3 / 4 + 3) * 8192 * 2048 * 2
    assert notes == [
        "'C' takes the least time, not the fewest bytes: 1.34 ms with 126 MB and 275 Gflop on each device; "
        "with 101 MB and 1.1 Tflop it would be 2.95 ms",
        "the layouts are chosen for the whole graph: 1.34 ms, line by line 1.72 ms",
        "chosen by the estimated time on TPU v5p, here 1.34 ms",
    ]


def test_a_dot_general_sends_what_the_product_sends() -> None:
    general = PRODUCT.replace("A @ B", "'dot_general(A, B, (((1,), (0,)), ((), ())))'")
    assert general != PRODUCT
    assert _derived(general)[2] == _derived(PRODUCT)[2]


def test_the_time_of_a_permutation_is_that_of_its_pairs() -> None:
    text = """
mesh: {axes: [x], shape: [4]}
arrays: {a: {shape: [8, 4], spec: [x]}}
graph: {out: "roll(a, 2, axis=0)"}
outputs: {out: [x]}
"""
    lines, notes, _ = _derived(text, derive={"cost": "time", "hardware": _v5p()})
    assert "ppermute" in str(lines)
    assert notes[-1] == "chosen by the estimated time on TPU v5p, here 2.00 µs"


def test_faster_links_than_products_make_time_choose_as_bytes_do() -> None:
    slow = _v5p(flops={"bfloat16": 4.59e17})
    lines, notes, _ = _derived(PRODUCT, derive={"cost": "time", "hardware": slow})
    assert lines == _derived(PRODUCT)[0]
    assert [note.partition(",")[0] for note in notes] == ["chosen by the estimated time on TPU v5p"]


def test_the_hardware_of_the_experiment_is_that_of_the_time() -> None:
    mine = _derived(PRODUCT, derive={"cost": "time", "hardware": _v5p()})
    assert _derived(PRODUCT, derive={"cost": "time"}, hardware=_v5p()) == mine


def test_what_hardware_does_not_say_is_named() -> None:
    linked = {"name": "mine", "switch": {"devices": 8, "bandwidth": 1e11}}
    _, notes, _ = _derived(PRODUCT, derive={"cost": "time", "hardware": linked})
    assert "taken as free: mine does not say how fast it multiplies bfloat16" in notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"derive": {"cost": "time"}},
            "derive.cost: a cost in time needs hardware: name it (derive.hardware=v5p or hardware=v5p), "
            "or leave cost: bytes",
        ),
        ({"derive": {"cost": "flops"}}, "derive.cost: derived has no cost 'flops'; there are bytes, time"),
        (
            {"derive": {"cost": "time", "hardware": {"name": "mine"}}},
            "derive.hardware: mine has no numbers; to choose a file write hardware=v5e, or "
            "hardware: v5e in the experiment",
        ),
        (
            {"derive": {"cost": "time", "hardware": 3}},
            "derive.hardware: 3 is not the name of hardware; write one, such as v5p",
        ),
    ],
)
def test_a_cost_that_is_none_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment) as error:
        harness.experiment(PRODUCT, **changes)
    assert str(error.value) == message


def _composed(tmp_path: Path, *overrides: str) -> Configuration:
    return compose("case3_allreduce", tmp_path, overrides)


def test_hardware_is_named_by_its_file(tmp_path: Path) -> None:
    config = _composed(tmp_path, "derive.cost=time", "derive.hardware=v5p")
    hardware = read(config.plain).derive.hardware
    assert hardware is not None
    assert hardware.name == "TPU v5p"
    assert hardware.memory_bandwidth == 2.8e12
    with pytest.raises(InvalidConfiguration, match="no hardware 'v5x'; did you mean 'v5p'"):
        _composed(tmp_path, "derive.hardware=v5x")


def test_layouts_are_chosen_for_the_whole_graph_where_a_device_then_sends_less(tmp_path: Path) -> None:
    """Moments by blocks take two sums, and the next line the same again; one exchange serves all of them."""
    text = """
mesh: {axes: [i, j], shape: [4, 2]}
arrays: {x: {shape: [192, 64], spec: [i, j]}}
graph:
  blocks: reshape(x, (192, 2, 32))
  mean: mean(blocks, axis=1, keepdims=True)
  std: mean((blocks - mean) ** 2, axis=1, keepdims=True) ** 0.5
  out: reshape((blocks - mean) / std, (192, 64))
outputs: {out: [i, j]}
"""
    experiment = harness.experiment(text)
    types = _types(experiment)
    assert types.derivation is not None
    assert types.derived is not None
    assert types.derivation.notes == [
        "the layouts are chosen for the whole graph: a device sends 6.1 kB, line by line 12.3 kB"
    ]
    assert types.derivation.sent_bytes == 6144
    context = harness.consulted(experiment, tmp_path)
    assert derivation.check(context, types.derived, types.floats[Program.DERIVED]).status == "passed"


@pytest.mark.in_turn
def test_gradients_count_in_the_choice_of_an_exchange(tmp_path: Path) -> None:
    """Attention over a sharded sequence: an exchange to heads sends a quarter of a gather, forward and backward."""
    text = """
mesh: {axes: [seq], shape: [4]}
arrays:
  q: {shape: [16, 4, 8], spec: [seq]}
  k: {shape: [16, 4, 8], spec: [seq]}
  v: {shape: [16, 4, 8], spec: [seq]}
graph:
  weights: softmax(einsum('qhd,khd->hqk', q, k), axis=-1)
  out: einsum('hqk,khd->qhd', weights, v)
  loss: mean(out ** 2)
outputs: {out: [seq], loss: []}
grad: {of: loss, wrt: [q, k, v]}
"""
    experiment = harness.experiment(text)
    types = _types(experiment)
    assert types.derivation is not None
    assert types.derived is not None
    assert types.derivation.notes[-1].startswith("the layouts are chosen for the whole graph: a device sends ")
    assert "all_to_all" in str(types.derivation.per_device)
    context = harness.consulted(experiment, tmp_path)
    assert derivation.check(context, types.derived, types.floats[Program.DERIVED]).status == "passed"
