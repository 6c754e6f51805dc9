"""A helper that a function calls twice, so that only its callers tell its operations apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def halved(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) / 2


def called_twice(x: jax.Array) -> jax.Array:
    q = halved(x @ x)
    k = halved(q @ x)
    return q @ k
