"""A batched matmul whose batch and contracting dimension are sharded, to a result whose batch is sharded otherwise."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 6)

mesh = jax.make_mesh((2, 3), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
A = jax.device_put(np.arange(36, dtype=np.float32).reshape(6, 3, 2), NamedSharding(mesh, P("x", "y")))
B = jax.device_put(np.ones((6, 3), np.float32), NamedSharding(mesh, P("x", "y")))


@jax.jit
def product(A, B):
    C = jnp.einsum("bkm,bk->bm", A, B)
    return jax.lax.with_sharding_constraint(C, NamedSharding(mesh, P("y", "x")))


got = np.asarray(product(A, B))
wanted = np.einsum("bkm,bk->bm", np.asarray(A), np.asarray(B))
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot\n{got}\nwanted\n{wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
