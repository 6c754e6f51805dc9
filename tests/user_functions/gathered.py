"""Functions whose values are gathered: for a stated layout, for an undivided slice, for the batch of a `top_k`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def looked_up_whole(table: Any, ids: Any) -> Any:
    return table.at[ids].get(out_sharding=P(None, None)) * 2.0


def looked_up_divided(table: Any, ids: Any) -> Any:
    return table.at[ids].get(out_sharding=P("a", None)) * 2.0


def constrained_whole(x: Any) -> Any:
    h = jnp.sin(x)
    h = jax.lax.with_sharding_constraint(h, P(None, "b"))
    return h * 2.0


def constrained_divided(x: Any) -> Any:
    h = jnp.sin(x)
    h = jax.lax.with_sharding_constraint(h, P("a", "b"))
    return h * 2.0


def weights_gathered(x: Any, w: Any) -> Any:
    full = jax.sharding.reshard(w, P(None, None))
    return x @ full


def dispatched(x: Any, w: Any) -> Any:
    """As a layer of experts exchanges its inputs and outputs, by one helper."""
    inputs = jnp.einsum("gd,de->ge", x, w)
    there = exchanged(inputs, P(None, "a"))
    back = exchanged(jnp.tanh(there), P("a", None))
    return back * inputs


def exchanged(x: Any, spec: Any) -> Any:
    return jax.sharding.reshard(x, spec)


def padded(x: Any) -> Any:
    rows = jnp.pad(x, ((0, -x.shape[0] % 4), (0, 0)))
    rows = jax.lax.with_sharding_constraint(rows, P(("a", "b")))
    return jnp.sin(rows)[: x.shape[0]]


def stepped(up: Any, down: Any, momentum: Any, x: Any) -> Any:
    def loss(up: Any) -> Any:
        return jnp.mean(jnp.matmul(jnp.tanh(x @ up), down, out_sharding=P("a", None)) ** 2)

    return momentum + jax.grad(loss)(up)


def largest(x: Any) -> Any:
    return jax.lax.top_k(x, 3)


def across(sums: Any, scores: Any, logits: Any, labels: Any, joined: Any, parts: Any) -> Any:
    """Everything goes along the dimension that is sharded."""
    return (
        jnp.cumsum(sums, 0),
        jnp.argmax(scores, 0),
        jax.nn.log_softmax(logits, 0),
        jnp.take_along_axis(labels, jnp.zeros((1, 8), int), 0),
        joined.T.reshape(-1),
        parts.reshape(2, 4, 8),
    )


def within(sums: Any, scores: Any, logits: Any, labels: Any, joined: Any, parts: Any) -> Any:
    """The same along the other dimension."""
    return (
        jnp.cumsum(sums, 1),
        jnp.argmax(scores, 1),
        jax.nn.log_softmax(logits, 1),
        jnp.take_along_axis(labels, jnp.zeros((8, 1), int), 1),
        joined.reshape(-1),
        parts.reshape(8, 4, 2),
    )
