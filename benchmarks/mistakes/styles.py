"""Layers, solvers and steps in many styles: modules of arrays, closures, vmap, scans and own derivatives."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
N = 4
line = AbstractMesh((N,), ("s",), axis_types=(AxisType.Auto,))
grid = AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
D = 8


class Dense(NamedTuple):
    """A layer with weights and a bias."""

    w: Any
    b: Any

    def __call__(self, x):
        return x @ self.w + self.b


class Block(NamedTuple):
    """Two layers after a norm."""

    gain: Any
    up: Dense
    down: Dense

    def __call__(self, x):
        ms = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        h = x * lax.rsqrt(ms + 1e-6) * self.gain
        return x + self.down(jax.nn.gelu(self.up(h)))


def module_block(block, x):
    """A block of a transformer; x: [batch, D]."""
    y = block(x)
    return jnp.tanh(y) * jnp.sqrt(2.0)


def module_block_reference(block, x):
    r = jnp.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
    h = jax.nn.gelu((x / r * block.gain) @ block.up.w + block.up.b)
    return 2**0.5 * jnp.tanh(x + h @ block.down.w + block.down.b)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def copied(x, axis):
    """The identity, of which the gradients are summed."""
    return x


def copied_forward(x, axis):
    return x, None


def copied_backward(axis, _, g):
    return (lax.psum(g, axis),)


copied.defvjp(copied_forward, copied_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def summed(x, axis):
    """The sum over devices, of which the gradients stay."""
    return lax.psum(x, axis)


summed.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, g: (g,))


def tensor_grads(x, w1, w2):
    """The loss and its gradient to the input of a layer whose hidden units are split over `s`."""

    def loss(x):
        h = jax.nn.relu(copied(x, "s") @ w1)
        out: Any = summed(h @ w2, "s")
        return 0.5 * jnp.sum(jnp.square(out))

    value, grad = jax.value_and_grad(loss)(x)
    return value, grad


def tensor_grads_reference(x, w1, w2):
    h = jnp.maximum(x @ w1, 0)
    out = h @ w2
    return (out * out).sum() / 2, ((out @ w2.T) * (h > 0)) @ w1.T


def vmapped_heads(x, wqkv, wo):
    """Heads by vmap, the heads sharded; x: [T, D], wqkv: [heads, D, 3 * d], wo: [heads, d, D]."""

    def head(w, o):
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        scores = q @ k.T * q.shape[-1] ** -0.5
        mask = jnp.tril(jnp.ones(scores.shape, bool))
        p = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
        return (p @ v) @ o

    return lax.psum(jax.vmap(head)(wqkv, wo).sum(0), "s")


def vmapped_heads_reference(x, wqkv, wo):
    q, k, v = (jnp.einsum("td,hde->hte", x, part) for part in (wqkv[..., :2], wqkv[..., 2:4], wqkv[..., 4:]))
    s = jnp.einsum("hte,hse->hts", q, k) / np.sqrt(2)
    t = x.shape[0]
    e = jnp.exp(s) * (np.arange(t)[:, None] >= np.arange(t))
    return jnp.einsum("hts,hse,hed->td", e / e.sum(2, keepdims=True), v, wo)


def conjugate(a, b):
    """Three steps of conjugate gradients on rows of a matrix; a: [rows, M], b: [rows]."""

    def dot(u, v):
        return lax.psum(jnp.vdot(u, v), "s")

    def step(_, state):
        x, r, p, rr = state
        ap = a @ lax.all_gather(p, "s", tiled=True)
        alpha = rr / dot(p, ap)
        x = x + alpha * p
        r = r - alpha * ap
        new = dot(r, r)
        return x, r, r + (new / rr) * p, new

    x = jnp.zeros_like(b)
    x, _, _, rr = lax.fori_loop(0, 3, step, (x, b, b, dot(b, b)))
    return x, jnp.sqrt(rr)


def conjugate_reference(a, b):
    x, r, p = 0 * b, b, b
    for _ in range(3):
        q = a @ p
        alpha = (r @ r) / (p @ q)
        x, s = x + alpha * p, r - alpha * q
        p = s + (s @ s) / (r @ r) * p
        r = s
    return x, jnp.linalg.norm(r)


def scattered_embedding(ids, table, scale):
    """The embeddings of tokens, of which each device has a part; the sequence is scattered; ids: [T]."""
    vocab = table.shape[0]
    lo = lax.axis_index("s") * vocab
    local = ids - lo
    mine = (local >= 0) & (local < vocab)
    rows = jnp.where(mine[:, None], table[jnp.clip(local, 0, vocab - 1)], 0.0)
    return lax.psum_scatter(rows * scale, "s", scatter_dimension=0, tiled=True)


def scattered_embedding_reference(ids, table, scale):
    return table[ids] * scale


def interpolated(left, right, t):
    """Spherical interpolation between the rows of two matrices; left, right: [batch, D], t: [batch]."""
    unit = lambda v: v / jnp.linalg.norm(v, axis=-1, keepdims=True)  # noqa: E731
    cosine = jnp.sum(unit(left) * unit(right), axis=-1)
    omega = jnp.arccos(jnp.clip(cosine, -0.99, 0.99))
    a = jnp.sin((1.0 - t) * omega) / jnp.sin(omega)
    b = jnp.sin(t * omega) / jnp.sin(omega)
    return a[:, None] * left + b[:, None] * right


def interpolated_reference(left, right, t):
    nl, nr = (jnp.sqrt((v * v).sum(1)) for v in (left, right))
    o = jnp.arccos((left * right).sum(1) / (nl * nr))
    return (jnp.sin((1 - t) * o)[:, None] * left + jnp.sin(t * o)[:, None] * right) / jnp.sin(o)[:, None]


def scanned_layers(x, ws, bs):
    """Residual layers in a scan, on Explicit meshes; x: [batch, D], ws: [L, D, D]."""

    def layer(h, wb):
        w, b = wb
        z = jnp.einsum("bd,de->be", h, w, out_sharding=P("dp", None)) + b
        mu = z.mean(axis=-1, keepdims=True)
        var = jnp.mean((z - mu) ** 2, axis=-1, keepdims=True)
        h = h + jax.nn.relu((z - mu) / jnp.sqrt(var + 1e-5))
        return h, jnp.sum(h)

    h, sums = lax.scan(layer, x, (ws, bs))
    return h, sums


def scanned_layers_reference(x, ws, bs):
    sums = []
    for w, b in zip(ws, bs, strict=True):
        z = x @ w + b
        z = (z - z.mean(1, keepdims=True)) / jnp.sqrt(z.var(1, keepdims=True) + 1e-5)
        x = x + jnp.maximum(z, 0)
        sums.append(x.sum())
    return x, jnp.stack(sums)


def sinusoids(x, w):
    """Positions as sines and cosines added to a sequence that is projected; x: [batch, T, D]."""
    length = x.shape[1]
    pos = jnp.arange(length, dtype=jnp.float32)
    freq = jnp.exp(-jnp.log(10000.0) * jnp.arange(0, D, 2) / D)
    angle = pos[:, None] * freq[None, :]
    enc = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    y = (x + enc) @ w
    return jax.nn.softmax(y, axis=-1)


def sinusoids_reference(x, w):
    t = np.arange(x.shape[1])[:, None] / 10000.0 ** (2 * np.arange(D // 2) / D)
    y = (x + np.concatenate([np.sin(t), np.cos(t)], 1).astype(np.float32)) @ w
    e = jnp.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def ring_softmax(q, k, v):
    """Attention in which keys and values go round, with running maxima; q, k, v: [rows, D]."""
    perm = [(i, (i + 1) % N) for i in range(N)]

    def body(carry, _):
        o, m, total, kb, vb = carry
        s = q @ kb.T / jnp.sqrt(1.0 * D)
        new = jnp.maximum(m, s.max(-1))
        p = jnp.exp(s - new[:, None])
        fix = jnp.exp(m - new)
        o = o * fix[:, None] + p @ vb
        total = total * fix + p.sum(-1)
        kb, vb = lax.ppermute((kb, vb), "s", perm)
        return (o, new, total, kb, vb), None

    zero = jnp.zeros_like(q)
    start = (zero, zero[:, 0] - 1e30, zero[:, 0], k, v)
    (o, _, total, _, _), _ = lax.scan(body, start, None, length=N)
    return o / total[:, None]


def ring_softmax_reference(q, k, v):
    return jax.nn.softmax(q @ k.T / np.sqrt(D), axis=1) @ v


def gaussian_mixture(x, means, logvar, logw):
    """Responsibilities and new means of a mixture; the points are sharded; x: [n, D], means: [k, D]."""
    diff = x[:, None, :] - means[None]
    quad = jnp.sum(diff**2 * jnp.exp(-logvar), axis=-1)
    logp = logw - 0.5 * (quad + logvar.sum(-1))
    r = jax.nn.softmax(logp, axis=1)
    total = lax.psum(r.sum(0), "s")
    new = lax.psum(r.T @ x, "s") / total[:, None]
    count = lax.psum(x.shape[0], "s")
    return r, new, total / count


def gaussian_mixture_reference(x, means, logvar, logw):
    v = jnp.exp(logvar)
    dens = jnp.exp(logw) * jnp.exp(-((x[:, None] - means) ** 2 / v).sum(2) / 2) / jnp.sqrt(v.prod(1))
    r = dens / dens.sum(1, keepdims=True)
    n = r.sum(0)
    return r, (r.T @ x) / n[:, None], n / x.shape[0]


def constrained_mlp(x, w1, w2, labels):
    """The loss of a classifier with constraints of sharding; x: [batch, D]."""
    h = jax.nn.silu(x @ w1)
    h = lax.with_sharding_constraint(h, NamedSharding(grid_mesh, P("dp", "tp")))
    logits = h @ w2
    logz = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    nll = logz - picked
    return jnp.mean(nll) + 1e-2 * jnp.mean(logz**2)


def constrained_mlp_reference(x, w1, w2, labels):
    h = x @ w1
    z = (h / (1 + jnp.exp(-h))) @ w2
    p = jnp.exp(z)
    n = jnp.log(p.sum(1))
    hot = jnp.eye(w2.shape[1])[labels]
    return (n - (z * hot).sum(1)).mean() + 0.01 * (n * n).mean()


grid_mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def reversed_scan(rewards, done):
    """Discounted returns until an episode ends; rewards, done: [T, batch], the batch sharded."""

    def back(g, rd):
        r, d = rd
        g = r + 0.9 * g * (1.0 - d)
        return g, g

    _, out = lax.scan(back, jnp.zeros_like(rewards[0]), (rewards, done), reverse=True)
    mean = jnp.mean(out)
    std = jnp.sqrt(jnp.mean((out - mean) ** 2))
    return (out - mean) / (std + 1e-8)


def reversed_scan_reference(rewards, done):
    g, out = 0 * rewards[0], []
    for t in reversed(range(rewards.shape[0])):
        g = rewards[t] + 0.9 * g * (1 - done[t])
        out.insert(0, g)
    out = jnp.stack(out)
    return (out - out.mean()) / (out.std() + 1e-8)


def low_rank(x, w, a, b):
    """A frozen layer with a correction of low rank on Explicit meshes; x: [batch, T, D]."""
    rank = a.shape[-1]
    base = jnp.einsum("btd,de->bte", x, w)
    delta = jnp.einsum("btd,dr,re->bte", x, a, b)
    y = base + (16.0 / rank) * delta
    y = reshard(y, P("dp", None, None))
    return y / jnp.sqrt(jnp.sum(y**2, axis=-1, keepdims=True))


def low_rank_reference(x, w, a, b):
    y = x @ (w + 8.0 * a @ b)
    return y / jnp.linalg.norm(y, axis=2, keepdims=True)


def symmetric(x, w):
    """The loss between views, both ways, and its gradient; the batch is sharded; x: [2, n, D], w: [D, D]."""

    def loss(w):
        u, v = x @ w
        u = u / jnp.linalg.norm(u, axis=1, keepdims=True)
        v = v / jnp.linalg.norm(v, axis=1, keepdims=True)
        every = lax.all_gather(v, "s", tiled=True)
        logits = u @ every.T / 0.5
        n = u.shape[0]
        labels = lax.axis_index("s") * n + jnp.arange(n)
        logp = jax.nn.log_softmax(logits)
        return -jnp.mean(logp[jnp.arange(n), labels])

    value, grad = jax.value_and_grad(loss)(w)
    return lax.pmean(value, "s"), lax.psum(grad, "s") / N


def symmetric_reference(x, w):
    def loss(w):
        u, v = x[0] @ w, x[1] @ w
        u, v = (each / jnp.sqrt((each * each).sum(1, keepdims=True)) for each in (u, v))
        e = jnp.exp(2 * u @ v.T)
        return -jnp.log(jnp.diagonal(e) / e.sum(1)).mean()

    return jax.value_and_grad(loss)(w)


S, R = P("s"), P()
DENSE = lambda seed, m, n: Dense(normal(seed, m, n) / 3, normal(seed + 50, n))  # noqa: E731
BLOCK = Block(normal(20, D), DENSE(21, D, 12), DENSE(22, 12, D))
BLOCK_SPECS = Block(P(None), Dense(P(None, "tp"), P("tp")), Dense(P("tp", None), P(None)))
IDS = ((abs(normal(9, 8)) * 100).astype("int32")) % 16
LABELS = ((abs(normal(8, 8)) * 100).astype("int32")) % 6
SPD = (lambda a: a @ a.T + 4 * np.eye(8, dtype=np.float32))(normal(2, 8, 8))

CASES = (
    Case(module_block, (BLOCK, normal(0, 4, D)), grid_mesh, (BLOCK_SPECS, P("dp")), None, module_block_reference, (
        ("h = x * lax.rsqrt(ms + 1e-6) * self.gain", "h = x * lax.rsqrt(ms + 1e-1) * self.gain"),
        ("return x + self.down(jax.nn.gelu(self.up(h)))", "return h + self.down(jax.nn.gelu(self.up(h)))"),
    ), jitted=True, within=(Block,)),
    Case(tensor_grads, (normal(0, 4, D), normal(1, D, 12) / 3, normal(2, 12, D) / 3), line,
         (R, P(None, "s"), P("s")), (R, R), tensor_grads_reference, (
        ("return (lax.psum(g, axis),)", "return (g,)"),
        ("return 0.5 * jnp.sum(jnp.square(out))", "return jnp.sum(jnp.square(out))"),
    ), check_vma=False, within=(copied_backward,)),
    Case(vmapped_heads, (normal(0, 6, D), normal(1, 8, D, 6) / 2, normal(2, 8, 2, D)), line, (R, S, S), R,
         vmapped_heads_reference, (
        ("scores = q @ k.T * q.shape[-1] ** -0.5", "scores = q @ k.T * q.shape[-1] ** 0.5"),
        ("mask = jnp.tril(jnp.ones(scores.shape, bool))", "mask = jnp.triu(jnp.ones(scores.shape, bool))"),
    )),
    Case(conjugate, (SPD, normal(1, 8)), line, (S, S), (S, R), conjugate_reference, (
        ("return x, r, r + (new / rr) * p, new", "return x, r, r + (rr / new) * p, new"),
        ("return lax.psum(jnp.vdot(u, v), \"s\")", "return lax.pmean(jnp.vdot(u, v), \"s\")"),
    ), check_vma=False),
    Case(scattered_embedding, (IDS, normal(0, 16, D), normal(1, D)), line, (R, S, R), S,
         scattered_embedding_reference, (
        ("local = ids - lo", "local = lo - ids"),
        ("mine = (local >= 0) & (local < vocab)", "mine = (local > 0) & (local < vocab)"),
    )),
    Case(interpolated, (normal(0, 4, D), normal(1, 4, D), np.array([0.2, 0.4, 0.6, 0.9], np.float32)), mesh,
         (P("dp", None), P("dp", None), P("dp")), None, interpolated_reference, (
        ("a = jnp.sin((1.0 - t) * omega)", "a = jnp.sin(t * omega)"),
        ("cosine = jnp.sum(unit(left) * unit(right), axis=-1)", "cosine = jnp.sum(left * right, axis=-1)"),
    ), jitted=True, setting=True),
    Case(scanned_layers, (normal(0, 4, D), normal(1, 3, D, D) / 2, normal(2, 3, D)), mesh,
         (P("dp", None), P(None, None, "tp"), P(None, None)), None, scanned_layers_reference, (
        ("h = h + jax.nn.relu(", "h = z + jax.nn.relu("),
        ("var = jnp.mean((z - mu) ** 2", "var = jnp.mean(z ** 2"),
    ), jitted=True, setting=True),
    Case(sinusoids, (normal(0, 4, 6, D), normal(1, D, 6)), mesh, (P("dp", None, None), P(None, None)), None,
         sinusoids_reference, (
        ("jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)",
         "jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)"),
        ("return jax.nn.softmax(y, axis=-1)", "return jax.nn.softmax(y, axis=1)"),
    ), jitted=True, setting=True),
    Case(ring_softmax, (normal(0, 8, D), normal(1, 8, D), normal(2, 8, D)), line, (S, S, S), S,
         ring_softmax_reference, (
        ("fix = jnp.exp(m - new)", "fix = jnp.exp(new - m)"),
        ("total = total * fix + p.sum(-1)", "total = total + p.sum(-1)"),
    ), check_vma=False),
    Case(gaussian_mixture, (normal(0, 12, D), normal(1, 3, D), normal(2, 3, D) / 4, normal(3, 3)), line,
         (S, R, R, R), (S, R, R), gaussian_mixture_reference, (
        ("diff**2 * jnp.exp(-logvar)", "diff**2 * jnp.exp(logvar)"),
        ("new = lax.psum(r.T @ x, \"s\") / total[:, None]", "new = lax.psum(r.T @ x, \"s\") / r.sum(0)[:, None]"),
    ), check_vma=False),
    Case(constrained_mlp, (normal(0, 8, D), normal(1, D, 12) / 2, normal(2, 12, 6), LABELS), grid_mesh,
         (P("dp"), P(None, "tp"), P("tp"), P("dp")), None, constrained_mlp_reference, (
        ("nll = logz - picked", "nll = picked - logz"),
        ("1e-2 * jnp.mean(logz**2)", "1e-2 * jnp.mean(logz)"),
    ), jitted=True),
    Case(reversed_scan, (normal(0, 6, 4), (normal(1, 6, 4) > 0.7).astype("float32")), mesh,
         (P(None, "dp"), P(None, "dp")), None, reversed_scan_reference, (
        ("g = r + 0.9 * g * (1.0 - d)", "g = r + 0.9 * g * d"),
        ("(rewards, done), reverse=True)", "(rewards, done))"),
    ), jitted=True, setting=True),
    Case(low_rank, (normal(0, 4, 3, D), normal(1, D, D), normal(2, D, 2) / 4, normal(3, 2, D) / 4), mesh,
         (P("dp", None, None), P(None, "tp"), P(None, None), P(None, "tp")), None, low_rank_reference, (
        ("y = base + (16.0 / rank) * delta", "y = base + 16.0 * delta"),
        ("jnp.sqrt(jnp.sum(y**2, axis=-1", "jnp.sqrt(jnp.mean(y**2, axis=-1"),
    ), jitted=True, setting=True),
    Case(symmetric, (normal(0, 2, 8, D), normal(1, D, D)), line, (P(None, "s"), R), (R, R), symmetric_reference, (
        ("labels = lax.axis_index(\"s\") * n + jnp.arange(n)", "labels = jnp.arange(n)"),
        ("logits = u @ every.T / 0.5", "logits = u @ every.T * 0.5"),
    ), check_vma=False),
)  # fmt: skip
