"""Functions as people write them for explicit meshes: bare specs, `out_sharding=`, decorators with an abstract mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, reshard
from jax.sharding import PartitionSpec as P

MESH = AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)


def doubled(x: Any) -> Any:
    return x * 2


def resharded(x: Any) -> Any:
    return reshard(x * 2, P(None, "b"))


def indexed(x: Any) -> Any:
    rows = jnp.argmax(x, axis=1)
    return x[rows]


def taken(x: Any) -> Any:
    columns = jnp.argmax(x, axis=1)
    return jnp.take(x, columns, axis=1)


def picked(x: Any) -> Any:
    return jnp.take_along_axis(x, jnp.argmax(x, axis=0)[:, None], axis=1)


def stacked(x: Any) -> Any:
    return jnp.stack([x.sum(0), jax.sharding.reshard(x.max(0), P("a"))])


def indexed_to(x: Any) -> Any:
    rows = jnp.argmax(x, axis=1)
    return x.at[rows].get(out_sharding=P("a", "b"))


def gram(x: Any) -> Any:
    return x.T @ x


def inner(x: Any) -> Any:
    return jnp.inner(x, x)


def repeated(x: Any) -> Any:
    return jnp.repeat(x, jnp.arange(8), axis=1, total_repeat_length=8)


def gram_to(x: Any) -> Any:
    return jnp.matmul(x.T, x, out_sharding=P("b", None))


def stated(x: Any) -> Any:
    h = jnp.einsum("ij,kj->ik", x, x, out_sharding=P(None, "b"))
    return jnp.tanh(h) @ x.T


def looked_up(x: Any) -> Any:
    return x.at[jnp.arange(4)].get(out_sharding=P(None, None))


def dotted(x: Any) -> Any:
    return x.reshape(-1, 4).T.dot(x.reshape(-1, 4))


def patches(x: Any) -> Any:
    return x.reshape(2, 4, 4, 2).swapaxes(1, 2).reshape(2, 16, 2)


def updated(x: Any) -> Any:
    return x.at[jnp.array([1, 2])].set(0.0)


def scanned(x: Any) -> Any:
    return jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(8), x * 2)


def branched(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: jax.sharding.reshard(x, P("b", "a")), x)


def uncombined(x: Any) -> Any:
    return jax.shard_map(lambda x: x * 2, in_specs=P("a", "b"), out_specs=P(None, "b"))(x)


def summed_over_no_axis(x: Any) -> Any:
    return jax.shard_map(lambda x: jax.lax.psum(x, "c"), in_specs=P("a", "b"), out_specs=P("a", "b"))(x)


def laid_out_alike(x: Any) -> Any:
    tree = {"left": reshard(x, P(None, "a")), "right": reshard(x, P("a", None))}
    return tree["left"] @ tree["right"]


def on_no_axis(x: Any) -> Any:
    return jnp.dot(x, x.T, out_sharding=P(None, "data"))


def in_thirds(x: Any) -> Any:
    return reshard(x[:, :6], P(None, ("a", "b")))


def twice_on_one_axis(x: Any) -> Any:
    return reshard(x, P("a", "a"))


def of_more_dimensions(x: Any) -> Any:
    return reshard(x, P("a", None, "b"))


def unfitting(x: Any) -> Any:
    given, rows = x, x[:6]
    return given.T @ rows


def carried(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, c: c + x, jax.reshard(x, P(None, None)))


def added(x: Any) -> Any:
    return x + x.T


def joined(x: Any) -> Any:
    return jnp.concatenate([x, x.T])


def asserted(x: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, P("a", "b")) + 1


def asserted_otherwise(x: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, P("b", "a")) + 1


def created(x: Any) -> Any:
    return x + jnp.ones((8, 8), out_sharding=P("a", "b"))


def looped(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (c * 0.5 + 1, c.sum()), x, length=3)


@jax.jit
def inner_jit(x: Any) -> Any:
    return jax.jit(doubled, out_shardings=P(None, "b"))(x)


@functools.partial(jax.shard_map, in_specs=P("a", "b"), out_specs=P("a", "b"))
def mapped(x: Any) -> Any:
    return x - jax.lax.pmean(x, "a")


@functools.partial(jax.shard_map, in_specs=P("b", "a"), out_specs=P("b", "a"))
def mapped_otherwise(x: Any) -> Any:
    return x * 2


@functools.partial(jax.shard_map, mesh=MESH, in_specs=P("a", "b"), out_specs=P("a", "b"))
def decorated(x: Any) -> Any:
    return jax.checkpoint(jnp.sin)(x) + jax.lax.psum(x, "b")


@functools.partial(jax.jit, donate_argnums=0, static_argnames="scale")
def step(x: Any, scale: float = 2.0) -> Any:
    return x * scale, x.sum()


def wrapped(x: Any) -> Any:
    return 2 * decorated(x)


@functools.cache
def frequencies(size: int) -> Any:
    return jnp.exp(-jnp.arange(size) / size)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["apply"])
@dataclass
class State:
    w: Any
    apply: Callable[[Any], Any]


def applied(state: State) -> Any:
    return state.apply(state.w)


class Table:
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def cosines(self, size: int) -> dict[str, Any]:
        return {"cosines": jnp.cos(jnp.arange(size))}


TABLE = Table()


def rotated(x: Any) -> Any:
    return x * frequencies(x.shape[-1]) + TABLE.cosines(x.shape[-1])["cosines"]
