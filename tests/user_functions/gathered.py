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


def padded(x: Any) -> Any:
    rows = jnp.pad(x, ((0, -x.shape[0] % 4), (0, 0)))
    rows = jax.lax.with_sharding_constraint(rows, P(("a", "b")))
    return jnp.sin(rows)[: x.shape[0]]


def largest(x: Any) -> Any:
    return jax.lax.top_k(x, 3)
