"""Case 3 written by hand, the yardstick of `overhead.py`: jit of shard_map, checked with NumPy."""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
A = np.arange(16, dtype=np.float32).reshape(4, 4)
B = np.arange(16, 32, dtype=np.float32).reshape(4, 4)


def allreduce(a, b):
    return jax.lax.psum(a @ b, "x")


specs = (P(None, "x"), P("x", None))
program = jax.jit(jax.shard_map(allreduce, mesh=mesh, in_specs=specs, out_specs=P(None, None)))
C = program(*(jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip((A, B), specs, strict=True)))
np.testing.assert_allclose(np.asarray(C), A @ B, rtol=1e-6)
print(np.asarray(C))
