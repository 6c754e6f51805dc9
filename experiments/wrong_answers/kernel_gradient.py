"""The gradient of a convolution's kernel, images sharded over space by one of two mesh axes: twice too large."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

mesh = jax.make_mesh((2, 2), ("space", "model"), axis_types=(AxisType.Auto,) * 2)
kernel = np.ones((1, 1, 3), np.float32)
images = np.array([[[1, 2, 3, 4]]], np.float32)


@jax.jit
@jax.grad
def gradient(kernel, images):
    return jnp.sum(jax.lax.conv(images, kernel, (1,), "SAME") ** 2)


shardings = (NamedSharding(mesh, P()), NamedSharding(mesh, P(None, None, "space")))
got = np.asarray(gradient(*jax.device_put((kernel, images), shardings)))
wanted = np.asarray(gradient(kernel, images))  # on one device
wrong = not np.allclose(got, wanted)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
