"""A collective that not all devices reach is refused, with the line; one that all reach is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from runner.base.layout import Mesh
from runner.worker import deadlocks
from runner.worker.versions import abstract_mesh

MESH = abstract_mesh(Mesh(("x", "y"), (2, 2)))
I = lambda: lax.axis_index("x")  # noqa: E731, E741


def summed(x: Any) -> Any:
    return lax.psum(x, "x")


def doubled(x: Any) -> Any:
    return 2 * x


def halved_until_small(x: Any, largest: Callable[[Any], Any], step: Callable[[Any], Any]) -> Any:
    return lax.while_loop(lambda x: largest(jnp.max(x)) > 1, lambda x: step(x) / 2, x)


HANGING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a branch by the index": (lambda x: lax.cond(I() == 0, summed, doubled, x), "psum"),
    "a branch by the values": (lambda x: lax.cond(x[0, 0] > 0, summed, doubled, x), "psum"),
    "every branch": (lambda x: lax.cond(I() == 0, summed, summed, x), "psum"),
    "inside a jit": (lambda x: lax.cond(I() == 0, jax.jit(summed), doubled, x), "psum"),
    "inside a scan": (
        lambda x: lax.scan(lambda c, _: (lax.cond(I() == 0, summed, doubled, c), None), x, None, 3)[0],
        "psum",
    ),
    "what a loop carries": (
        lambda x: lax.scan(
            lambda c, _: ((c[1], I(), lax.cond(c[0] == 0, summed, doubled, c[2])), None),
            (jnp.array(0), jnp.array(0), x),
            None,
            3,
        )[0][2],
        "psum",
    ),
    "a switch": (lambda x: lax.switch(I(), [doubled, summed], x), "psum"),
    "a permutation along another axis": (
        lambda x: lax.cond(I() == 0, lambda x: lax.ppermute(x, "y", [(0, 1), (1, 0)]), doubled, x),
        "ppermute",
    ),
    "a while that each device leaves by itself": (lambda x: halved_until_small(x, lambda m: m, summed), "psum"),
    "the condition of a while": (
        lambda x: (
            lax.while_loop(lambda c: lax.psum(c[0], "x") + c[1] < 9, lambda c: (c[0], c[1] + 1 + I()), (1, I()))[0] + x
        ),
        "psum",
    ),
    "a gradient": (jax.grad(lambda x: lax.cond(I() == 0, summed, doubled, x).sum()), "psum"),
}
REACHED: dict[str, Callable[[Any], Any]] = {
    "before the branch": lambda x: lax.cond(I() == 0, doubled, lambda x: x, summed(x)),
    "by what all have": lambda x: lax.cond(summed(x)[0, 0] > 0, summed, doubled, x),
    "by the largest": lambda x: lax.cond(lax.pmax(x[0, 0], "x") > 0, summed, doubled, x),
    "along another axis": lambda x: lax.cond(lax.axis_index("y") == 0, summed, doubled, x),
    "by a constant": lambda x: lax.cond(jnp.array(1) > 0, summed, doubled, x),
    "in a while that all leave together": lambda x: halved_until_small(x, lambda m: lax.pmax(m, "x"), summed),
    "in a while without any": lambda x: halved_until_small(x, lambda m: m, doubled),
    "after a barrier": lambda x: lax.cond(lax.optimization_barrier((x, jnp.array(1)))[1] > 0, summed, doubled, x),
    "a loop of a known length": lambda x: lax.fori_loop(0, 3, lambda i, x: summed(x), x),
}


def traced(body: Callable[[Any], Any]) -> Any:
    function = jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.make_jaxpr(jax.jit(function))(jax.ShapeDtypeStruct((4, 2), jnp.float32)).jaxpr


@pytest.mark.parametrize("name", HANGING)
def test_a_collective_that_devices_may_not_reach_together_is_refused(name: str) -> None:
    body, collective = HANGING[name]
    with pytest.raises(
        deadlocks.Deadlock, match=rf"test_deadlocks\.py:\d+: .* may differ along 'x'.* this {collective}, "
    ):
        deadlocks.require_none(traced(body))


@pytest.mark.parametrize("name", REACHED)
def test_a_collective_that_all_devices_reach_is_accepted(name: str) -> None:
    deadlocks.require_none(traced(REACHED[name]))
