"""jnp.fft.ifft(2 * jnp.fft.fft(z)) of a matrix whose columns are sharded: compiled, and refused when it runs."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
z = jax.device_put(np.ones((2, 4), np.complex64), NamedSharding(mesh, P(None, "x")))

print(f"jax {jax.__version__}")
try:
    got = np.asarray(jax.jit(lambda z: jnp.fft.ifft(2 * jnp.fft.fft(z)))(z))
except Exception as error:
    print(f"{type(error).__name__}: {error}\nCRASHED")
    sys.exit(1)
print(got)
sys.exit(not np.allclose(got, 2))
