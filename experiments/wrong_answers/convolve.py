"""jnp.convolve(v, v, mode="same") of a vector that is sharded over one of two mesh axes: twice too large."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
v = jax.device_put(np.array([1, 2, 3, 4], np.float32), NamedSharding(mesh, P("x")))

got = np.asarray(jax.jit(lambda v: jnp.convolve(v, v, mode="same"))(v))
wanted = np.convolve(np.asarray(v), np.asarray(v), mode="same")
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
