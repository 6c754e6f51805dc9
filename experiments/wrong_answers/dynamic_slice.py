"""dynamic_slice of a vector, started past its end, to a result over two devices: each clamps the start for itself."""

import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
sharded = NamedSharding(mesh, P("x"))
v = jax.device_put(np.arange(4, dtype=np.float32), sharded)

got = np.asarray(jax.jit(lambda v, i: jax.lax.dynamic_slice(v, (i,), (2,)), out_shardings=sharded)(v, 3))
wanted = np.array([2, 3], np.float32)  # the start is clamped to 4 - 2
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
