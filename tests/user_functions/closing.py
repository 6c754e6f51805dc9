"""A function of a module that closes over the module's sharded array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4])
TABLE = jax.device_put(jnp.ones((4, 4)), NamedSharding(MESH, P("a", "b")))


@jax.shard_map(mesh=MESH, in_specs=P("a", "b"), out_specs=P("a", "b"))
def mapped(x: Any) -> Any:
    return x + TABLE
