"""A function whose values its source spells in different ways."""

import jax
import jax.numpy as jnp


def forward(params, x):
    hidden = jax.nn.gelu(x @ params["up"])
    for _ in range(2):
        hidden = hidden - jnp.mean(hidden, axis=-1, keepdims=True)
    q, k = jnp.split(
        hidden @ params["down"],
        2,
        axis=1,
    )
    return jnp.sum(jnp.tanh(q) * k)
