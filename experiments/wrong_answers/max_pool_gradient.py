"""The gradient of a max-pool whose windows overlap, along a dimension sharded over two devices: wrong on the first."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
v = jax.device_put(np.array([3, 2, 4, 1], np.float32), NamedSharding(mesh, P("x")))


@jax.jit
@jax.grad
def gradient(v):
    return jnp.sum(jax.lax.reduce_window(v, -jnp.inf, jax.lax.max, (2,), (1,), "VALID"))


got = np.asarray(gradient(v))
wanted = np.array([1, 0, 2, 0], np.float32)  # 3 is the largest of one window, 4 of two
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
