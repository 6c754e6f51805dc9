"""The model of a device's memory has what JAX keeps, and what the compiler of the target does not fuse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from runner.programs.planning.memory import KEPT
from tests.test_plan import experiment, planned

STEPS = 4
"""The steps of the loop."""


def stacked(name: str) -> int:
    """Return how many values of an operation JAX stacks in a scan for the backward pass."""

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, w: (getattr(jax.nn, name)(h * w), None), x, weights)[0])

    traced = jax.make_jaxpr(jax.grad(loss))(jnp.ones((STEPS, 2, 8)), jnp.ones((2, 8)))
    forward = next(equation for equation in traced.eqns if equation.primitive.name == "scan")
    return sum(each.aval.shape == (STEPS, 2, 8) for each in forward.outvars) - 1


@pytest.mark.parametrize("name", sorted(KEPT))
def test_a_loop_keeps_what_jax_stacks(name: str) -> None:
    """JAX 0.12 keeps one value of `tanh`, and so four of `gelu`."""
    fewer = 1 if name in ("gelu", "tanh") else 0
    assert stacked(name) in (KEPT[name], KEPT[name] - fewer)


def between(platform: str, body: str, *, steps: int, **loop: Any) -> float:
    """Return the bytes that a plan needs beside arrays and outputs, in those of the value between two products."""
    layers = {"repeat": "L", "over": {"a": "w1", "b": "w2"}, "carry": {"h": "x"}, "body": {"h": body}, **loop}
    arrays = {"x": (["B", "D"], ["m"]), "w1": (["L", "D", "F"], []), "w2": (["L", "F", "D"], [])}
    graph, dims = {"layers": layers, "loss": "mean(layers.h ** 2)"}, {"L": steps, "B": 4096, "D": 8, "F": 1024}
    grad, target = {"of": "loss", "wrt": ["w1", "w2"]}, {"platform": platform}
    keys = {"outputs": {"loss": []}, "grad": grad, "target": target, "constraints": {"layers.h": "auto"}}
    best = planned(experiment({"m": 4}, dims, arrays, graph, **keys)).best
    return (best.needed - best.held) / (4096 * 1024 * 4 / 4)


def test_a_loop_without_a_checkpoint_keeps_all_values_of_gelu() -> None:
    """Five of gelu, and its result, which a product reads; of the backward pass one cotangent."""
    assert between("tpu", "h + gelu(h @ a) @ b", steps=8) == pytest.approx(6 * 8 + 1, rel=0.02)


def test_a_tpu_computes_what_a_product_reads_inside_of_it() -> None:
    """Of a step only the first product's result is computed again and written, and its cotangent."""
    assert between("tpu", "h + gelu(h @ a) @ b", steps=8, checkpoint=True) == pytest.approx(2, rel=0.1)
    assert between("cpu", "h + gelu(h @ a) @ b", steps=8, checkpoint=True) >= 3


def test_a_loop_keeps_each_operand_of_an_elementwise_product() -> None:
    """Both factors, three values of silu, of which the operand is the first product's result, and the product."""
    body = "h + (silu(h @ a) * (h @ a)) @ b"
    assert between("tpu", body, steps=8) == pytest.approx(6 * 8 + 1, rel=0.05)


@pytest.mark.parametrize("reader", ["sum(layers.all ** 2)", "x"])
def test_what_a_loop_stacks_is_in_memory_if_it_is_read(reader: str) -> None:
    layers = {"repeat": "L", "over": {"a": "w"}, "carry": {"h": "x"}, "body": {"h": "h @ a"}, "stack": {"all": "h"}}
    arrays = {"x": (["B", "D"], []), "w": (["L", "D", "D"], [])}
    graph, dims = {"layers": layers, "y": reader}, {"L": 16, "B": 1024, "D": 64}
    best = planned(experiment({"m": 4}, dims, arrays, graph, {"y": []}, constraints={"layers.h": "auto"})).best
    stack = 16 * 1024 * 64 * 4 / 4
    assert (best.needed - best.held >= stack) == (reader != "x")
