"""dynamic_update_slice of one element past the end of a sharded vector: the update is lost instead of clamped."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
v = jax.device_put(np.zeros(4, np.float32), NamedSharding(mesh, P("x")))

got = np.asarray(jax.jit(lambda v, i: jax.lax.dynamic_update_slice(v, jnp.ones(1), (i,)))(v, 9))
wanted = np.array([0, 0, 0, 1], np.float32)  # the start is clamped to 4 - 1
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
