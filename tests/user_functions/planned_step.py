"""A training step, as a user writes it, whose layouts are planned."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

LAYOUT = ("NHWC", "HWIO", "NHWC")


def shapes(width=64, hidden=256):
    return {
        "up": jax.ShapeDtypeStruct((width, hidden), jnp.float32),
        "down": jax.ShapeDtypeStruct((hidden, width), jnp.float32),
    }


def loss(params, x):
    h = jax.nn.gelu(x @ params["up"])
    y = h @ params["down"]
    return jnp.mean(y**2)


def step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value


def convolved(kernels, x):
    def loss(kernels):
        y = x
        for kernel in kernels:
            y = jax.nn.relu(jax.lax.conv_general_dilated(y, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT))
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(kernels)
    return [kernel - 0.1 * gradient for kernel, gradient in zip(kernels, gradients, strict=True)], value


def gradients(params, x):
    return jax.grad(loss)(params, x)


def mapped(params, x):
    return jnp.mean(jax.vmap(lambda row: row @ params["up"])(x) ** 2)


def stated(params, x, spec):
    # JAX accepts it on Explicit axes alone.
    h = jnp.einsum("bd,df->bf", x, params["up"], out_sharding=spec)
    return jnp.tanh(h) @ params["down"]


def constrained(params, x, spec):
    # JAX accepts it on Auto axes alone.
    h = jax.lax.with_sharding_constraint(x @ params["up"], spec)
    return jnp.tanh(h) @ params["down"]


def looked_up(params, x, spec):
    # Likewise.
    rows = params["up"].at[jnp.argmax(x, axis=1)].get(out_sharding=spec)
    return jnp.tanh(rows) @ params["down"]


def carried(params, x):
    # Each step gives rows over the data, whatever the first one begins with.
    def step(h, _):
        wide = jnp.matmul(h, params["up"], out_sharding=P("data", None))
        return jnp.matmul(wide, params["down"], out_sharding=P("data", None)), None

    return jax.lax.scan(step, x, length=2)[0]


def contrasted(params, x):
    # Scores of all pairs of rows: a softmax over rows is in the loss, and no product of its forward pass reads it.
    def loss(params):
        scores = (x @ params["up"]) @ (x @ params["down"].T).T
        return jnp.mean(jax.nn.logsumexp(scores, axis=1)) + jnp.mean(jax.nn.logsumexp(scores, axis=0))

    return jax.grad(loss)(params)
