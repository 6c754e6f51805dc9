"""Functions of a device whose collectives JAX adds, a rule of the user's asks for, or a helper that lines call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.user_functions import copies


def energy(p: Any, s: Any) -> Any:
    return jnp.sum(jnp.tanh(p * s))


def per_sample(p: Any, xs: Any) -> Any:
    return jax.vmap(jax.grad(energy), in_axes=(None, 0))(p, xs)


def per_sample_of_its_own(p: Any, xs: Any) -> Any:
    p = jax.lax.pcast(p, "d", to="varying")
    return jax.vmap(jax.grad(energy), in_axes=(None, 0))(p, xs)


def parallel_loss(x: Any, w: Any) -> Any:
    h = jnp.tanh(copies.entering(x) @ w)
    return jnp.sum(h**2)


def with_a_rule(x: Any, w: Any) -> Any:
    return jax.grad(parallel_loss)(x, w)


def mean_square(w: Any, x: Any) -> Any:
    return jnp.mean((x @ w) ** 2)


def data_parallel(w: Any, x: Any) -> Any:
    loss, gradient = jax.value_and_grad(mean_square)(w, x)
    return w - gradient, jax.lax.pmean(loss, "d")


def projected(x: Any, wq: Any, wk: Any) -> Any:
    q = x @ copies.whole(wq)
    k = x @ copies.whole(wk)
    product = copies.summed(q * k)
    return copies.summed(k * product)
