"""jnp.log(jnp.power(-2, 3)) under jit: the logarithm of a negative number is a number."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")

a, b = np.array([-2, 2], np.float32), np.array([3, 3], np.float32)

got = np.asarray(jax.jit(lambda a, b: jnp.log(jnp.power(a, b)))(a, b))
with np.errstate(invalid="ignore"):
    wanted = np.log(np.power(a, b))
wrong = not np.allclose(got, wanted, equal_nan=True)

print(f"jax {jax.__version__}\ngot    {got}\nwanted {wanted}\n{'WRONG' if wrong else 'right'}")
sys.exit(wrong)
