"""jnp.cumsum and jnp.cumprod of one sharded vector in one jit: the product starts from the sum's zeros."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
v = jax.device_put(np.array([2, 3, 4, 5], np.float32), NamedSharding(mesh, P("x")))

got = np.asarray(jax.jit(lambda v: (jnp.cumsum(v), jnp.cumprod(v)))(v))
wanted = np.stack([np.cumsum(np.asarray(v)), np.cumprod(np.asarray(v))])
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot\n{got}\nwanted\n{wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
