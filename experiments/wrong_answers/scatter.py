"""An update of one row of a vector that becomes sharded: each other device writes a wrong number into its own part."""

import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
sharded = NamedSharding(mesh, P("x"))
v = jax.device_put(np.array([1, 2, 3, 4], np.float32), NamedSharding(mesh, P()))

got = np.asarray(jax.jit(lambda v: jax.lax.with_sharding_constraint(v, sharded).at[1].set(10.0))(v))
wanted = np.array([1, 10, 3, 4], np.float32)
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
