"""A @ B on a mesh of three axes, with B the identity: the rows of the result are those of A in another order."""

import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
rows = NamedSharding(mesh, P(("data", "fsdp"), "tensor"))
A = jax.device_put(np.arange(8, dtype=np.float32).reshape(4, 2), rows)
B = jax.device_put(np.eye(2, dtype=np.float32), NamedSharding(mesh, P("tensor", "fsdp")))

got = np.asarray(jax.jit(lambda A, B: A @ B, out_shardings=rows)(A, B))
wanted = np.asarray(A) @ np.asarray(B)
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot\n{got}\nwanted\n{wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
