"""Case 3 with `jit`, written by hand, the yardstick of `case3_check.py`: run, compared, printed."""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)


def product(a, b):
    return a @ b


mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
A = np.arange(16, dtype=np.float32).reshape(4, 4)
B = np.arange(16, 32, dtype=np.float32).reshape(4, 4)
specs = (P(None, "x"), P("x", None))
program = jax.jit(product, out_shardings=NamedSharding(mesh, P(None, None)))
C = program(*(jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip((A, B), specs, strict=True)))
np.testing.assert_allclose(np.asarray(C), A @ B, rtol=1e-6)
print(np.asarray(C))
