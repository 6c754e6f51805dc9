"""The bytes that a device sends: the formulas against simulated rings, and against the programs' collectives."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base import executions
from runner.graph.sharding import ring
from runner.link.events import Cost
from runner.worker import versions
from runner.worker.cost import with_loops
from tests import harness


def played(kind: str, devices: int, chunks: list[list[int]]) -> int:
    """Return the most bytes that a device sends on a ring, step by step.

    `chunks` are the sizes of each device's initial data: in a reduction, a part of the sum for each device.
    """
    sent = [0] * devices
    if kind in ("reduce-scatter", "all-reduce"):
        for step in range(devices - 1):
            for device in range(devices):
                sent[device] += chunks[device][(device - step) % devices]
    if kind == "all-reduce":
        for step in range(devices - 1):
            for device in range(devices):
                sent[device] += chunks[device][(device + 1 - step) % devices]
    if kind == "all-gather":
        for step in range(devices - 1):
            for device in range(devices):
                sent[device] += chunks[(device - step) % devices][0]
    if kind == "all-to-all":
        for device in range(devices):
            sent[device] += sum(size for other, size in enumerate(chunks[device]) if other != device)
    return max(sent)


@given(
    st.sampled_from(["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]), st.integers(1, 9), st.integers(1, 50)
)
def test_a_simulated_ring_sends_as_much(kind: str, devices: int, size: int) -> None:
    parts = 1 if kind == "all-gather" else devices
    chunks = [[size] * parts for _ in range(devices)]
    held = size * parts
    after = {"all-gather": held * devices, "reduce-scatter": size}.get(kind, held)
    assert ring.sent(kind, devices, held, after) == played(kind, devices, chunks)


def test_a_permutation_sends_what_it_holds_and_one_device_sends_nothing() -> None:
    assert ring.sent("collective-permute", 2, 64, 64) == 64
    assert ring.sent("collective-permute", 1, 64, 64) == 0
    assert ring.sent("all-reduce", 1, 64, 64) == 0


def test_unknown_sizes_give_unknown_bytes() -> None:
    assert ring.sent("all-gather", 4, 16, None) is None
    assert ring.sent("ragged-all-to-all", 4, 16, 16) is None
    assert executions.total([(1, (), 4), (3, (), None)]) is None
    assert executions.total([(1, (), 4), (None, (), 4)]) is None
    assert executions.total([(1, (), 4), (3, (), 5)]) == 19


# The steps of loops.


def scanned(length: int) -> tuple[Cost, str]:
    def layers(w: jax.Array) -> jax.Array:
        def inner(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return carry @ w, None

        def outer(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(inner, carry, None, length=3)[0], None

        return jax.lax.scan(outer, w, None, length=length)[0]

    compiled = jax.jit(layers).lower(jax.ShapeDtypeStruct((16, 16), jnp.float32)).compile()
    analysis = compiled.cost_analysis()
    assert analysis is not None
    return Cost(flops=analysis["flops"], bytes_accessed=analysis["bytes accessed"]), str(compiled.as_text())


PRODUCT = 2 * 16**3


def test_a_scan_of_layers_counts_each_of_them() -> None:
    cost, text = scanned(5)
    totals = with_loops(cost, text)
    assert totals.flops == cost.flops
    assert cost.flops is not None
    assert cost.flops < 2 * PRODUCT
    assert totals.total_flops == pytest.approx(15 * PRODUCT, rel=0.01)
    assert totals.total_bytes_accessed is not None
    # Each of the products reads two arrays and writes one.
    assert totals.total_bytes_accessed > 15 * 3 * 16 * 16 * 4


def test_without_loops_the_cost_is_the_compilers() -> None:
    cost = Cost(flops=8.0, bytes_accessed=16.0)
    totals = with_loops(cost, "ENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n")
    assert (totals.total_flops, totals.total_bytes_accessed, totals.total_unknown) == (8.0, 16.0, None)


def test_a_loop_of_unknown_length_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: c.sum() < 100.0, lambda c: c @ c, x)

    compiled = jax.jit(until).lower(jax.ShapeDtypeStruct((16, 16), jnp.float32)).compile()
    totals = with_loops(Cost(flops=1.0), str(compiled.as_text()))
    assert totals.total_flops is None
    assert totals.total_unknown is not None
    assert totals.total_unknown.startswith("how often the loop while")
    monkeypatch.setattr("runner.worker.cost.module_cost", lambda _: "XLA's cost analysis cannot be asked")
    assert with_loops(*scanned(5)).total_unknown == "XLA's cost analysis cannot be asked"


def test_no_part_of_a_module_is_analysed_as_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    analysed: list[str] = []
    monkeypatch.setattr("runner.worker.cost.module_cost", lambda text: analysed.append(text) or {})
    cost, text = scanned(5)
    assert "is_scheduled=true" in text
    with_loops(cost, text)
    # XLA's parser aborts the process for an invalid order of instructions.
    assert analysed
    assert not [part for part in analysed if "is_scheduled" in part]


def test_a_missing_cost_analysis_gives_a_sentence() -> None:
    reason = versions.module_cost("no module")
    assert isinstance(reason, str)
    assert reason.startswith("XLA's cost analysis is not available for a part of a module here: ")


# Requested, planned and compiled collectives.

RING = """
arrays:
  A: {shape: [8, 4], spec: [x, null]}
  B: {shape: [4, 8], spec: [null, x]}
graph:
  C: A @ B
per_device:
  out0: zeros((4, 8))
  ring:
    repeat: axis_size('x')
    index: i
    carry: {held: B, out: out0}
    body:
      out: dynamic_update_slice(out, A @ held, (0, ((axis_index('x') - i) % axis_size('x')) * 4))
      held: ppermute(held, 'x', shift=1)
    unroll: false
  C: ring.out
outputs: {C: [x, null]}
check_vma: false
expect:
  lowered: {collectives: {collective-permute: 2, derived: {all-gather: 1}}, max_bytes_per_device: 2 * 64}
  planned: {collectives: {all-gather: 1, shard_map: {collective-permute: 2}}}
"""


@pytest.mark.in_turn
def test_expectations_may_be_about_lowered_and_planned_collectives(tmp_path: Path) -> None:
    record = harness.run(RING, tmp_path).record
    checks = {name: program.checks for name, program in record.programs.items()}
    assert {name: each.lowered_collectives.status for name, each in checks.items() if each.lowered_collectives} == {
        "auto": "not_run", "constraint": "not_run", "explicit": "not_run", "vmap": "not_run",
        "derived": "passed", "shard_map": "passed",
    }  # fmt: skip
    assert {name: each.planned_collectives.status for name, each in checks.items() if each.planned_collectives} == {
        "auto": "passed", "constraint": "passed", "explicit": "passed", "vmap": "not_run",
        "derived": "passed", "shard_map": "passed",
    }  # fmt: skip
    mine = record.compiled["shard_map"]
    assert mine.lowered is not None
    (permute,) = mine.lowered
    assert (permute.line, permute.axes, permute.count, permute.bytes_sent) == ("ring.held", ("x",), 2, 64)
    assert mine.bytes_sent == 128
    assert record.compiled["vmap"].lowered is None
    assert record.compiled["vmap"].plan is None
    assert checks["shard_map"].lowered_max_bytes_per_device is not None
    assert checks["shard_map"].lowered_max_bytes_per_device.status == "passed"


def test_unexpected_lowered_collectives_fail(tmp_path: Path) -> None:
    expected = {"lowered": {"collectives": {"all-gather": 1}, "max_bytes_per_device": 127}}
    checks = harness.run(RING, tmp_path, expect=expected, program="shard_map").record.programs["shard_map"].checks
    assert checks.lowered_collectives is not None
    assert checks.lowered_collectives.reason == "expected 1 all-gather, found 2 collective-permute"
    assert checks.lowered_collectives.details == [
        "no all-gather was asked for",
        "2 × collective-permute of ring.held over x: a device sends 64 B",
    ]
    assert checks.lowered_max_bytes_per_device is not None
    assert checks.lowered_max_bytes_per_device.reason == (
        "each device sends 128 bytes for collectives, on a ring (128 B), more than 127"
    )


def test_without_a_plan_a_planned_expectation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.worker.propagation.propagated", lambda *_: "Shardy cannot be asked")
    expected = {"planned": {"no_collectives": True}}
    checks = harness.run(RING, tmp_path, expect=expected, program="shard_map").record.programs["shard_map"].checks
    assert checks.planned_no_collectives is not None
    assert checks.planned_no_collectives.status == "failed"
    assert checks.planned_no_collectives.reason == "Shardy cannot be asked"
