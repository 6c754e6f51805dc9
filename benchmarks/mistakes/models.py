"""Parts of models of several kinds, half of them on Explicit meshes that are set, with references and mistakes."""

# `.at[].get` of JAX 0.10, which the type checker sees, has no `out_sharding`.
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
auto = AbstractMesh((N,), ("r",), axis_types=(AxisType.Auto,))
UP = [(i, (i + 1) % N) for i in range(N)]
D = 8


def latent_attention(x, down, wk, wv, wq):
    """Attention on keys and values that are made of a latent; x: [batch, time, D]."""
    latent = x @ down
    k, v, q = latent @ wk, latent @ wv, x @ wq
    s = jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(k.shape[-1])
    far = jnp.abs(jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])) > 2
    w = jax.nn.softmax(jnp.where(far, -1e30, s), axis=-1)
    return jnp.einsum("bqk,bkd->bqd", w, v)


def latent_attention_reference(x, down, wk, wv, wq):
    k, v, q = x @ down @ wk, x @ down @ wv, x @ wq
    e = jnp.exp(q @ jnp.swapaxes(k, 1, 2) * k.shape[-1] ** -0.5)
    band = jnp.tril(jnp.triu(jnp.ones(e.shape[1:]), -2), 2)
    return (e * band / (e * band).sum(-1, keepdims=True)) @ v


def layer_scale_block(x, g, b, w1, w2, scale):
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    h = (x - mean) / jnp.sqrt(var + 1e-5) * g + b
    h = jax.nn.gelu(h @ w1)
    h = jnp.matmul(h, w2, out_sharding=P("data", None))
    return x + scale * h


def layer_scale_block_reference(x, g, b, w1, w2, scale):
    c = x - x.mean(-1, keepdims=True)
    n = c * lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    return jax.nn.gelu((n * g + b) @ w1) @ w2 * scale + x


def focal_loss(x, w, labels):
    logits = x @ w
    p = jax.nn.softmax(logits, axis=-1)
    hot = labels[:, None] == jnp.arange(w.shape[1])
    own = jnp.sum(jnp.where(hot, p, 0.0), axis=-1)
    return -jnp.mean((1.0 - own) ** 2 * jnp.log(own))


def focal_loss_reference(x, w, labels):
    z = x @ w
    logp = (z - jax.nn.logsumexp(z, axis=1, keepdims=True))[jnp.arange(labels.shape[0]), labels]
    return jnp.mean(-logp * jnp.square(1 - jnp.exp(logp)))


def nesterov(w, m, x, y):
    def loss(w):
        return jnp.sum((x @ w - y) ** 2) / x.shape[0]

    g = jax.grad(loss)(w) + 0.01 * w
    m = 0.9 * m + g
    return w - 0.05 * (g + 0.9 * m), m


def nesterov_reference(w, m, x, y):
    g = 2 * x.T @ (x @ w - y) / x.shape[0] + w * 0.01
    v = g + 0.9 * m
    return w - 0.05 * g - 0.045 * v, v


def long_short_memory(xs, w, u):
    """xs: [time, batch, D]; the four gates are side by side."""

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], u.shape[0]), out_sharding=P("data", None))
    return lax.scan(step, (zero, zero), xs)[1]


def long_short_memory_reference(xs, w, u):
    h = c = jnp.zeros((xs.shape[1], u.shape[0]))
    size, out = u.shape[0], []
    for x in xs:
        z = x @ w + h @ u
        i, f, g, o = (z[:, at * size : (at + 1) * size] for at in range(4))
        c = c / (1 + jnp.exp(-f - 1)) + jnp.tanh(g) / (1 + jnp.exp(-i))
        h = jnp.tanh(c) / (1 + jnp.exp(-o))
        out.append(h)
    return jnp.stack(out)


def ring_loss(a, b):
    """A contrastive loss of pairs, of which b travels along the ring; a, b: [rows, D] on a device."""
    rows = a.shape[0]
    own = jnp.sum(a * b, axis=1)
    total = jnp.zeros(rows)
    for _ in range(N):
        total = total + jnp.exp(a @ b.T).sum(1)
        b = lax.ppermute(b, "r", UP)
    return lax.pmean(jnp.mean(jnp.log(total) - own), "r")


def ring_loss_reference(a, b):
    z = a @ b.T
    return jnp.mean(jax.nn.logsumexp(z, axis=1) - jnp.diagonal(z))


def two_halos(u):
    """A smoothing of four neighbours of a field whose rows are split; u: [rows, columns] on a device."""
    above = lax.ppermute(u[-1:], "r", UP)
    below = lax.ppermute(u[:1], "r", [(j, i) for i, j in UP])
    padded = jnp.concatenate([above, u, below])
    vertical = padded[:-2] + padded[2:]
    horizontal = jnp.roll(u, 1, axis=1) + jnp.roll(u, -1, axis=1)
    return u + 0.1 * (vertical + horizontal - 4.0 * u)


def two_halos_reference(u):
    around = sum(jnp.roll(u, by, axis=axis) for by in (1, -1) for axis in (0, 1))
    return u + 0.1 * (around - 4 * u)


def shared_experts(x, gate, shared, w):
    """An expert on each device and one that all have; x: [rows, D], whole."""
    weights = jax.nn.softmax(x @ gate, axis=-1)
    me = lax.axis_index("r")
    mine = lax.dynamic_index_in_dim(weights, me, axis=1)
    routed = lax.psum(mine * jax.nn.silu(x @ w[0]), "r")
    return jnp.tanh(x @ shared) + routed


def shared_experts_reference(x, gate, shared, w):
    z = jnp.exp(x @ gate)
    weights = z / z.sum(-1, keepdims=True)
    outs = jax.nn.silu(jnp.einsum("td,edf->etf", x, w))
    return jnp.tanh(x @ shared) + jnp.einsum("te,etf->tf", weights, outs)


def sharded_adagrad(w, s, x, y):
    """A step whose gradient is scattered over devices; w, s: [own, K] on a device; x, y: a device's rows."""
    whole = lax.all_gather(w, "r", axis=0, tiled=True)
    g = 2 * x.T @ (x @ whole - y) / (x.shape[0] * N)
    g = lax.psum_scatter(g, "r", scatter_dimension=0, tiled=True)
    s = s + g**2
    return w - 0.1 * g / (jnp.sqrt(s) + 1e-3), s


def sharded_adagrad_reference(w, s, x, y):
    g = jax.grad(lambda w: jnp.sum((x @ w - y) ** 2) / x.shape[0])(w)
    s = s + g * g
    return w - 0.1 * g / (s**0.5 + 1e-3), s


def cross_features(x, w, b, deep, out):
    """A cross layer and a deep one, by a gather of both; x: [batch, D]."""
    cross = x * (x @ w)[:, None] + b + x
    hidden = jax.nn.relu(x @ deep)
    both = jnp.concatenate([cross, reshard(hidden, P("data", None))], axis=-1)
    return jax.nn.sigmoid(both @ out)


def cross_features_reference(x, w, b, deep, out):
    cross = x + b + x * jnp.einsum("bd,d->b", x, w)[:, None]
    z = cross @ out[:D] + jnp.maximum(x @ deep, 0) @ out[D:]
    return 1 / (1 + jnp.exp(-z))


B, B3, S, WHOLE = P("data", None), P("data", None, None), P("r"), P(None, None)
LABELS = jax.random.randint(jax.random.key(5), (8,), 0, 6)

CASES = (
    Case(latent_attention, (normal(0, 4, 6, D), normal(1, D, 4), *(normal(seed, 4, D) for seed in (2, 3)),
                            normal(4, D, D)), mesh, (B3, WHOLE, WHOLE, WHOLE, WHOLE), None,
         latent_attention_reference, (
        ("k, v, q = latent @ wk, latent @ wv,", "k, v, q = latent @ wk, latent @ wk,"),
        ("> 2", "> 3"),
    ), jitted=True, setting=True),
    Case(layer_scale_block, (normal(0, 8, D), normal(1, D), normal(2, D), normal(3, D, 12), normal(4, 12, D),
                             normal(5, D)), mesh,
         (B, P(None), P(None), P(None, "model"), P("model", None), P(None)), None, layer_scale_block_reference, (
        ("* g + b", "* (g + b)"),
        ("return x + scale * h", "return scale * (x + h)"),
    ), jitted=True, setting=True),
    Case(focal_loss, (normal(0, 8, D), normal(1, D, 6), LABELS), mesh, (B, WHOLE, P("data")), None,
         focal_loss_reference, (
        ("(1.0 - own) ** 2", "(1.0 - own)"),
        ("* jnp.log(own))", "* jnp.log(p).sum(-1))"),
    ), jitted=True, setting=True),
    Case(nesterov, (normal(0, D, 4), normal(1, D, 4), normal(2, 8, D), normal(3, 8, 4)), mesh,
         (WHOLE, WHOLE, B, B), None, nesterov_reference, (
        ("return w - 0.05 * (g + 0.9 * m), m", "return w - 0.05 * m, m"),
        ("/ x.shape[0]", "/ y.size"),
    ), jitted=True, setting=True),
    Case(long_short_memory, (normal(0, 4, 4, 6), normal(1, 6, 4 * D) / 2, normal(2, D, 4 * D) / 2), mesh,
         (P(None, "data", None), WHOLE, WHOLE), None, long_short_memory_reference, (
        ("i, f, g, o = jnp.split", "f, i, g, o = jnp.split"),
        ("* jnp.tanh(c)", "* c"),
    ), jitted=True, setting=True),
    Case(ring_loss, (normal(0, 8, D) / 2, normal(1, 8, D) / 2), auto, (S, S), P(), ring_loss_reference, (
        ("own = jnp.sum(a * b, axis=1)", "own = jnp.sum(a * b)"),
        ("for _ in range(N):", "for _ in range(N - 1):"),
    ), check_vma=False),
    Case(two_halos, (normal(0, 12, 5),), auto, (S,), S, two_halos_reference, (
        ("jnp.roll(u, 1, axis=1) + jnp.roll(u, -1, axis=1)", "jnp.roll(u, 1, axis=0) + jnp.roll(u, -1, axis=0)"),
        ("- 4.0 * u)", "- 2.0 * u)"),
    )),
    Case(shared_experts, (normal(0, 6, D), normal(1, D, N), normal(2, D, 5), normal(3, N, D, 5)), auto,
         (P(), P(), P(), S), P(), shared_experts_reference, (
        ("return jnp.tanh(x @ shared) + routed", "return lax.psum(jnp.tanh(x @ shared), \"r\") + routed"),
        ("lax.dynamic_index_in_dim(weights, me, axis=1)", "lax.dynamic_index_in_dim(weights, 0, axis=1)"),
    ), check_vma=False),
    Case(sharded_adagrad, (normal(0, 8, 3), abs(normal(1, 8, 3)), normal(2, 12, 8), normal(3, 12, 3)), auto,
         (S, S, S, S), S, sharded_adagrad_reference, (
        ("(x.shape[0] * N)", "x.shape[0]"),
        ("s = s + g**2", "s = s + g"),
    )),
    Case(cross_features, (normal(0, 8, D), normal(1, D), normal(2, D), normal(3, D, 6), normal(4, D + 6, 3)), mesh,
         (B, P(None), P(None), P(None, "model"), WHOLE), None, cross_features_reference, (
        ("+ b + x", "+ b"),
        ("jnp.concatenate([cross, reshard(hidden, P(\"data\", None))]",
         "jnp.concatenate([reshard(hidden, P(\"data\", None)), cross]"),
    ), jitted=True, setting=True),
)  # fmt: skip
