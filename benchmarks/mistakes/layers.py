"""Layers and steps that call helpers and lambdas, half of them on Explicit meshes, with references and mistakes."""

# `jax.numpy.repeat` and `.at[].get` of JAX 0.10, which the type checker sees, have no `out_sharding`.
# pyright: reportCallIssue=false
from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
N = 4
auto = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
RIGHT = [(i, (i + 1) % N) for i in range(N)]
D = 8


def visible(rows, columns, width):
    return (columns <= rows) & (rows - columns < width)


def scaled(x, size):
    return x / jnp.sqrt(size)


def sliding_window(q, k, v):
    at = jnp.arange(q.shape[1])
    scores = scaled(jnp.einsum("btd,bsd->bts", q, k), D)
    scores = jnp.where(visible(at[:, None], at[None, :], 3), scores, -1e30)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores, axis=-1), v)


def sliding_window_reference(q, k, v):
    scores = q @ k.swapaxes(1, 2) * D**-0.5
    ones = jnp.ones(scores.shape[1:], bool)
    p = jnp.where(jnp.tril(ones) & ~jnp.tril(ones, -3), jnp.exp(scores), 0)
    return p / p.sum(-1, keepdims=True) @ v


def decoder(ids, table, positions, w):
    x = table.at[ids].get(out_sharding=P("data", None, None))
    x = x + positions[1 : ids.shape[1] + 1]
    h = jax.nn.relu(x @ w)
    return jnp.einsum("btd,vd->btv", h, table, out_sharding=P("data", None, "model"))


def decoder_reference(ids, table, positions, w):
    x = jax.nn.one_hot(ids, table.shape[0]) @ table + positions[1:7]
    return jnp.maximum(x @ w, 0) @ table.T


def two_experts(x, gate, w):
    weights = jax.nn.softmax(x @ gate, axis=-1)

    def of_device(x, weights, w):
        me = lax.axis_index("model")
        own = lax.dynamic_slice_in_dim(weights, me, 1, axis=1)
        return lax.psum(own * jnp.tanh(x @ w[0]), "model")

    specs = (P("data", None), P("data", None), P("model", None, None))
    return jax.shard_map(of_device, in_specs=specs, out_specs=P("data", None), check_vma=False)(x, weights, w)


def two_experts_reference(x, gate, w):
    weights = jax.nn.softmax(x @ gate, axis=-1)
    return sum(weights[:, e : e + 1] * jnp.tanh(x @ w[e]) for e in range(2))


def momentum_step(w, m, x, y):
    loss = lambda w: 0.5 * ((x @ w - y) ** 2).sum(-1).mean()  # noqa: E731
    grad = jax.grad(loss)(w)
    m = 0.9 * m + grad
    return w - 0.1 * (grad + 0.9 * m), m


def momentum_step_reference(w, m, x, y):
    grad = x.T @ (x @ w - y) / x.shape[0]
    m = 0.9 * m + grad
    return w - 0.1 * (grad + 0.9 * m), m


def gated_units(xs, wz, wn, un):
    def step(h, x):
        z = jax.nn.sigmoid(x @ wz)
        n = jnp.tanh(x @ wn + (z * h) @ un)
        h = (1 - z) * n + z * h
        return h, h

    first = reshard(jnp.zeros(xs.shape[1:]), P("data", None))
    return lax.scan(step, first, xs)[1]


def gated_units_reference(xs, wz, wn, un):
    h, hs = jnp.zeros(xs.shape[1:]), []
    for x in xs:
        z = 1 / (1 + jnp.exp(-(x @ wz)))
        h = z * h + (1 - z) * jnp.tanh(x @ wn + (z * h) @ un)
        hs.append(h)
    return jnp.stack(hs)


def noisy_layer(x, w, key):
    noise, mask = jax.random.split(jax.random.fold_in(key, 1))
    h = jnp.dot(x, w, preferred_element_type=jnp.float32)
    h = h + 0.1 * jax.random.normal(noise, h.shape)
    return jnp.where(jax.random.bernoulli(mask, 0.5, h.shape), h / 0.5, 0)


def noisy_layer_reference(x, w, key):
    noise, mask = jax.random.split(jax.random.fold_in(key, 1))
    h = x @ w + 0.1 * jax.random.normal(noise, (8, 12))
    return h * jax.random.bernoulli(mask, 0.5, (8, 12)) * 2


def sharded_norm(x, g):
    total = lambda t: lax.psum(t.sum(-1, keepdims=True), "i")  # noqa: E731
    width = N * x.shape[-1]
    mean = total(x) / width
    var = total((x - mean) ** 2) / width
    return (x - mean) * lax.rsqrt(var + 1e-5) * g


def sharded_norm_reference(x, g):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * g


def decode_step(q, k, v, new_k, new_v, at):
    rows = k.shape[0]
    here = lax.axis_index("i") * rows + jnp.arange(rows)
    k = jnp.where((here == at)[:, None], new_k, k)
    v = jnp.where((here == at)[:, None], new_v, v)
    scores = jnp.where(here <= at, k @ q, -1e30)
    p = jnp.exp(scores - lax.pmax(scores.max(), "i"))
    return lax.psum(p @ v, "i") / lax.psum(p.sum(), "i")


def decode_step_reference(q, k, v, new_k, new_v, at):
    k, v = jnp.asarray(k).at[at].set(new_k), jnp.asarray(v).at[at].set(new_v)
    return jax.nn.softmax(jnp.where(jnp.arange(k.shape[0]) <= at, k @ q, -jnp.inf)) @ v


def turned_product(x, w):
    columns = lax.all_to_all(x, "i", split_axis=1, concat_axis=0, tiled=True)
    whole = lax.all_gather(w, "i", axis=0, tiled=True)
    return columns.T @ whole


def turned_product_reference(x, w):
    return jnp.einsum("rc,rd->cd", x, w)


def from_left(x, count):
    return lax.ppermute(x[-count:], "i", RIGHT)


def causal_filter(x, taps):
    me = lax.axis_index("i")
    before = jnp.where(me == 0, 0.0, from_left(x, 2))
    padded = jnp.concatenate([before, x])
    return padded[2:] * taps[0] + padded[1:-1] * taps[1] + padded[:-2] * taps[2]


def causal_filter_reference(x, taps):
    return sum(taps[n] * jnp.pad(x, ((n, 0), (0, 0)))[: x.shape[0]] for n in range(3))


def ring_of_maxima(x):
    def step(state, _):
        best, moving = state
        moving = lax.ppermute(moving, "i", RIGHT)
        return (jnp.maximum(best, moving), moving), None

    (best, _), _ = lax.scan(step, (x, x), None, length=N - 1)
    return best - x


def ring_of_maxima_reference(x):
    parts = x.reshape(N, -1, x.shape[-1])
    return (parts.max(0) - parts).reshape(x.shape)


def averaged_step(w, x, y):
    error = x @ w - y
    grad = lax.psum(x.T @ error, "i")
    count = lax.psum(x.shape[0], "i")
    norm = jnp.sqrt((grad**2).sum())
    return w - 0.1 * grad / count * jnp.minimum(1.0, 400.0 / norm)


def averaged_step_reference(w, x, y):
    grad = x.T @ (x @ w - y)
    return w - 0.1 * grad / x.shape[0] * jnp.minimum(1.0, 400.0 / jnp.linalg.norm(grad))


B, S = P("data", None), P("i")
BT = P("data", None, None)
IDS = jax.random.randint(jax.random.key(2), (4, 6), 0, 12)

CASES = (
    Case(sliding_window, tuple(normal(seed, 4, 6, D) for seed in range(3)), mesh, (BT, BT, BT), None,
         sliding_window_reference, (
        ("(rows - columns < width)", "(rows - columns <= width)"),
        ("return x / jnp.sqrt(size)", "return x / size"),
    ), jitted=True, setting=True, within=(visible, scaled)),
    Case(decoder, (IDS, normal(1, 12, D), normal(2, 9, D), normal(3, D, D)), mesh,
         (P("data", None), P(None, None), P(None, None), P(None, None)), None, decoder_reference, (
        ("positions[1 : ids.shape[1] + 1]", "positions[: ids.shape[1]]"),
        ("jax.nn.relu(x @ w)", "jax.nn.relu(x @ w.T)"),
    ), jitted=True, setting=True),
    Case(two_experts, (normal(0, 8, D), normal(1, D, 2), normal(2, 2, D, 6)), mesh,
         (B, P(None, None), P("model", None, None)), None, two_experts_reference, (
        ("return lax.psum(own * jnp.tanh(x @ w[0]), \"model\")", "return own * jnp.tanh(x @ w[0])"),
        ("lax.dynamic_slice_in_dim(weights, me, 1, axis=1)", "lax.dynamic_slice_in_dim(weights, 0, 1, axis=1)"),
    ), jitted=True, setting=True),
    Case(momentum_step, (normal(0, D, 4), normal(1, D, 4), normal(2, 8, D), normal(3, 8, 4)), mesh,
         (P(None, None), P(None, None), B, B), None, momentum_step_reference, (
        ("0.5 * ((x @ w - y) ** 2).sum(-1).mean()", "0.5 * ((x @ w - y) ** 2).mean(-1).mean()"),
        ("w - 0.1 * (grad + 0.9 * m), m", "w - 0.1 * (grad + m), m"),
    ), jitted=True, setting=True),
    Case(gated_units, (normal(0, 5, 8, D), *(normal(seed, D, D) / 2 for seed in range(1, 4))), mesh,
         (P(None, "data", None), P(None, None), P(None, None), P(None, None)), None, gated_units_reference, (
        ("h = (1 - z) * n + z * h", "h = z * n + (1 - z) * h"),
        ("jnp.tanh(x @ wn + (z * h) @ un)", "jnp.tanh(x @ wn + h @ un)"),
    ), jitted=True, setting=True),
    Case(noisy_layer, (normal(0, 8, D), normal(1, D, 12), jax.random.key(4)), mesh,
         (B, P(None, "model"), P()), None, noisy_layer_reference, (
        ("jax.random.bernoulli(mask, 0.5, h.shape)", "jax.random.bernoulli(key, 0.5, h.shape)"),
        ("preferred_element_type=jnp.float32", "preferred_element_type=jnp.bfloat16"),
    ), jitted=True, setting=True),
    Case(sharded_norm, (normal(0, 6, 12), normal(1, 12)), auto, (P(None, "i"), S), P(None, "i"),
         sharded_norm_reference, (
        ("lax.psum(t.sum(-1, keepdims=True), \"i\")", "lax.pmean(t.sum(-1, keepdims=True), \"i\")"),
        ("width = N * x.shape[-1]", "width = x.shape[-1]"),
    )),
    Case(decode_step, (normal(0, D), normal(1, 12, D), normal(2, 12, 5), normal(3, D), normal(4, 5), 7), auto,
         (P(), S, S, P(), P(), P()), P(), decode_step_reference, (
        ("jnp.where(here <= at, k @ q, -1e30)", "jnp.where(here < at, k @ q, -1e30)"),
        ("lax.axis_index(\"i\") * rows + jnp.arange(rows)", "jnp.arange(rows)"),
    ), check_vma=False),
    Case(turned_product, (normal(0, 16, 16), normal(1, 16, 5)), auto, (S, S), S, turned_product_reference, (
        ("columns = lax.all_to_all(x, \"i\", split_axis=1, concat_axis=0, tiled=True)", "columns = x.T"),
        ("return columns.T @ whole", "return lax.psum(columns.T @ whole, \"i\")"),
    ), check_vma=False),
    Case(causal_filter, (normal(0, 16, 3), normal(1, 3)), auto, (S, P()), S, causal_filter_reference, (
        ("lax.ppermute(x[-count:], \"i\", RIGHT)", "lax.ppermute(x[:count], \"i\", RIGHT)"),
        ("padded[1:-1] * taps[1] + padded[:-2] * taps[2]", "padded[:-2] * taps[1] + padded[1:-1] * taps[2]"),
    ), within=(from_left,)),
    Case(ring_of_maxima, (normal(0, 16, 3),), auto, (S,), S, ring_of_maxima_reference, (
        ("return (jnp.maximum(best, moving), moving), None", "return (jnp.maximum(best, moving), best), None"),
        ("length=N - 1", "length=N - 2"),
    )),
    Case(averaged_step, (normal(0, 6, 2), normal(1, 16, 6), normal(2, 16, 2)), auto, (P(), S, S), P(),
         averaged_step_reference, (
        ("grad = lax.psum(x.T @ error, \"i\")", "grad = lax.psum(lax.psum(x.T @ error, \"i\"), \"i\")"),
        ("count = lax.psum(x.shape[0], \"i\")", "count = x.shape[0]"),
    ), check_vma=False),
)  # fmt: skip
