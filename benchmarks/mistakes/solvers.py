"""Solvers, filters, losses and layers with bare specs, closures and helpers, half of them on Explicit meshes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
flat = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
N = 4
ring = AbstractMesh((N,), ("x",), axis_types=(AxisType.Auto,))
D = 8


def whitened(x, eps=1e-4):
    """Data without correlations; the rows are sharded; x: [n, D]."""
    n = lax.psum(x.shape[0], "x")
    mean = lax.psum(x.sum(0), "x") / n
    c = x - mean
    cov = lax.psum(c.T @ c, "x") / (n - 1)
    scale = jnp.sqrt(jnp.diagonal(cov) + eps)
    return c / scale, cov / (scale[:, None] * scale[None, :])


def whitened_reference(x, eps=1e-4):
    c = x - x.mean(0)
    v = (c.T @ c) / (x.shape[0] - 1)
    d = 1 / jnp.sqrt(jnp.diagonal(v) + eps)
    return c * d, d[:, None] * v * d


def jacobi(a, b):
    """Three sweeps for a system whose rows are sharded; a: [rows, M], b: [rows]."""
    rows = a.shape[0]
    start = lax.axis_index("x") * rows
    diagonal = jnp.diagonal(lax.dynamic_slice_in_dim(a, start, rows, axis=1))
    x = jnp.zeros_like(b)
    for _ in range(3):
        whole = lax.all_gather(x, "x", tiled=True)
        off = a @ whole - diagonal * x
        x = (b - off) / diagonal
    return x


def jacobi_reference(a, b):
    d = jnp.diagonal(a)
    x = jnp.zeros_like(b)
    for _ in range(3):
        x = x + (b - a @ x) / d
    return x


def exclusive_sum(x):
    """For each row the sum of the rows before it; the rows are sharded."""
    own = jnp.cumsum(x, axis=0)
    totals = lax.all_gather(own[-1], "x")
    me = lax.axis_index("x")
    before = jnp.where(jnp.arange(N)[:, None] < me, totals, 0.0).sum(0)
    return own - x + before


def exclusive_sum_reference(x):
    return jnp.concatenate([jnp.zeros_like(x[:1]), jnp.cumsum(x, 0)[:-1]])


def upwind(u, steps=2):
    """Steps of advection on a ring of cells; u: [cells]."""
    right = [(i, (i + 1) % N) for i in range(N)]

    def step(u, _):
        left = lax.ppermute(u[-1:], "x", right)
        before = jnp.concatenate([left, u[:-1]])
        u = u - 0.3 * (u - before)
        return u, lax.pmax(jnp.abs(u).max(), "x")

    return lax.scan(step, u, None, length=steps)


def upwind_reference(u, steps=2):
    most = []
    for _ in range(steps):
        u = 0.7 * u + 0.3 * jnp.roll(u, 1)
        most.append(jnp.abs(u).max())
    return u, jnp.stack(most)


def vocabulary_loss(h, table, labels):
    """Cross-entropy with a sharded vocabulary; h: [n, D], table: [vocab / N, D]."""
    logits = h @ table.T
    top = lax.pmax(lax.stop_gradient(logits.max(-1)), "x")
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "x")
    local = labels - lax.axis_index("x") * table.shape[0]
    here = (local >= 0) & (local < table.shape[0])
    index = jnp.where(here, local, 0)
    picked = jnp.take_along_axis(logits, index[:, None], axis=1)[:, 0]
    picked = lax.psum(jnp.where(here, picked, 0.0), "x")
    return jnp.mean(jnp.log(total) + top - picked)


def vocabulary_loss_reference(h, table, labels):
    p = jax.nn.softmax(h @ table.T, axis=1)
    return -jnp.log(p[jnp.arange(h.shape[0]), labels]).mean()


def ulysses_heads(q, k, v):
    """Attention over a sharded sequence by exchanging heads; q, k, v: [T / N, heads, d]."""
    q, k, v = (lax.all_to_all(t, "x", split_axis=1, concat_axis=0, tiled=True) for t in (q, k, v))
    s = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    t = q.shape[0]
    s = jnp.where(jnp.arange(t)[:, None] >= jnp.arange(t), s, -1e30)
    o = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(s, axis=-1), v)
    return lax.all_to_all(o, "x", split_axis=0, concat_axis=1, tiled=True)


def ulysses_heads_reference(q, k, v):
    t = q.shape[0]
    out = []
    for h in range(q.shape[1]):
        e = jnp.exp(q[:, h] @ k[:, h].T / np.sqrt(q.shape[2])) * np.tri(t, dtype=np.float32)
        out.append(e @ v[:, h] / e.sum(1, keepdims=True))
    return jnp.stack(out, axis=1)


def ridge(x, y, w):
    """A step of Newton for ridge regression on Explicit meshes; x: [n, D], y: [n]."""
    err = jnp.matmul(x, w) - y
    grad = jnp.matmul(x.T, err, out_sharding=P(None)) / x.shape[0] + 0.1 * w
    hess = jnp.matmul(x.T, x, out_sharding=P(None, None)) / x.shape[0] + 0.1 * jnp.eye(D)
    step = jnp.linalg.solve(hess, grad)
    return w - 0.5 * step


def ridge_reference(x, y, w):
    n = x.shape[0]
    best = jnp.linalg.solve(x.T @ x + 0.1 * n * jnp.eye(D), x.T @ y)
    return (w + best) / 2


def router(x, wg, experts):
    """Tokens through the two likeliest experts, with a loss of balance; x: [n, D], experts: [E, D, D]."""
    probs = jax.nn.softmax(x @ wg, axis=-1)
    gates, chosen = lax.top_k(probs, 2)
    gates = gates / gates.sum(-1, keepdims=True)
    hot = jax.nn.one_hot(chosen, experts.shape[0])
    weight = jnp.sum(gates[..., None] * hot, axis=1)
    every = jnp.einsum("nd,edf->nef", x, experts)
    out = jnp.einsum("ne,nef->nf", weight, jax.nn.relu(every))
    share = hot.sum(1).mean(0)
    return out, experts.shape[0] * jnp.sum(share * probs.mean(0))


def router_reference(x, wg, experts):
    e = jnp.exp(x @ wg)
    p = e / e.sum(1, keepdims=True)
    least = jnp.sort(p, axis=1)[:, -2:-1]
    k = (p >= least) * 1.0
    w = p * k / (p * k).sum(1, keepdims=True)
    out = sum(w[:, i : i + 1] * jnp.maximum(x @ experts[i], 0) for i in range(experts.shape[0]))
    return out, (k.mean(0) * p.mean(0)).sum() * experts.shape[0]


def adam_clipped(params, m, v, g, t):
    """A step of Adam after clipping by the norm of all; everything: [D, D], t: a number."""
    norm = jnp.sqrt(jnp.sum(g**2))
    g = g * jnp.minimum(1.0, 1.5 / norm)
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g**2
    mh = m / (1 - 0.9**t)
    vh = v / (1 - 0.98**t)
    return params - 0.01 * (mh / (jnp.sqrt(vh) + 1e-6) + 0.1 * params), m, v


def adam_clipped_reference(params, m, v, g, t):
    g = g / jnp.maximum(jnp.linalg.norm(g) / 1.5, 1)
    m, v = m + 0.1 * (g - m), v + 0.02 * (g * g - v)
    up = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.98**t)) + 1e-6)
    return params * (1 - 0.001) - 0.01 * up, m, v


def gated_rnn(xs, h, w, u, b):
    """A recurrent layer with a forget gate, along the sequence; xs: [T, batch, D]."""

    def cell(h, x):
        z = x @ w + h @ u + b
        gate, new = jnp.split(z, 2, axis=-1)
        f = jax.nn.sigmoid(gate + 1.0)
        h = f * h + (1 - f) * jnp.tanh(new)
        return h, h

    last, every = lax.scan(cell, h, xs)
    return last, every.mean(0)


def gated_rnn_reference(xs, h, w, u, b):
    total = 0 * h
    for x in xs:
        z = x @ w + h @ u + b
        a, c = z[:, :D], z[:, D:]
        f = 1 / (1 + jnp.exp(-a - 1))
        h = jnp.tanh(c) + f * (h - jnp.tanh(c))
        total = total + h
    return h, total / xs.shape[0]


def rotary_attention(x, wq, wk, wv):
    """Causal attention with turned queries and keys on Explicit meshes; x: [batch, T, D]."""
    t = x.shape[1]
    half = D // 2
    angle = jnp.arange(t)[:, None] * 100.0 ** (-jnp.arange(half) / half)

    def turn(v):
        a, b = v[..., :half], v[..., half:]
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)

    q, k, v = turn(x @ wq), turn(x @ wk), x @ wv
    s = jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(float(D))
    keep = jnp.tril(jnp.ones((t, t), bool))
    s = jnp.where(keep, s, -jnp.inf)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(s), v)


def rotary_attention_reference(x, wq, wk, wv):
    t = x.shape[1]
    z = np.exp(1j * np.arange(t)[:, None] * 100.0 ** (-np.arange(D // 2) / (D // 2))).astype(np.complex64)
    q, k = ((x @ w)[..., : D // 2] + 1j * (x @ w)[..., D // 2 :] for w in (wq, wk))
    s = jnp.real(jnp.einsum("btd,bsd->bts", q * z, jnp.conj(k * z))) / np.sqrt(D)
    e = jnp.exp(s) * np.tri(t, dtype=np.float32)
    return e / e.sum(2, keepdims=True) @ (x @ wv)


def triplet(a, p, n, w):
    """The triplet loss with a margin on projected rows; the batch is sharded; a, p, n: [batch, D]."""
    project = lambda v: jax.nn.standardize(v @ w)  # noqa: E731
    pos = jnp.sum((project(a) - project(p)) ** 2, axis=-1)
    neg = jnp.sum((project(a) - project(n)) ** 2, axis=-1)
    hinge = jax.nn.relu(pos - neg + 5.0)
    return jnp.mean(hinge), jnp.mean(hinge > 0, dtype=jnp.float32)


def triplet_reference(a, p, n, w):
    def proj(v):
        v = v @ w
        return (v - v.mean(1, keepdims=True)) / jnp.sqrt(v.var(1, keepdims=True) + 1e-5)

    d = ((proj(a) - proj(p)) ** 2).sum(1) - ((proj(a) - proj(n)) ** 2).sum(1)
    return jnp.maximum(d + 5, 0).mean(), (d + 5 > 0).astype(a.dtype).mean()


X, R, B, W = P("x"), P(), P("x", None), P(None, None)
LABELS = ((abs(normal(9, 8)) * 100).astype("int32")) % 16
DOMINANT = normal(0, 8, 8) / 4 + 4 * np.eye(8, dtype=np.float32)

CASES = (
    Case(whitened, (normal(0, 12, D),), ring, (X,), (X, R), whitened_reference, (
        ("cov = lax.psum(c.T @ c, \"x\") / (n - 1)", "cov = lax.psum(c.T @ c, \"x\") / n"),
        ("mean = lax.psum(x.sum(0), \"x\") / n", "mean = x.sum(0) / x.shape[0]"),
    ), check_vma=False),
    Case(jacobi, (DOMINANT, normal(1, 8)), ring, (X, X), X, jacobi_reference, (
        ("off = a @ whole - diagonal * x", "off = a @ whole + diagonal * x"),
        ("start = lax.axis_index(\"x\") * rows", "start = lax.axis_index(\"x\")"),
    )),
    Case(exclusive_sum, (normal(0, 8, 3),), ring, (X,), X, exclusive_sum_reference, (
        ("jnp.arange(N)[:, None] < me", "jnp.arange(N)[:, None] <= me"),
        ("totals = lax.all_gather(own[-1], \"x\")", "totals = lax.all_gather(x[-1], \"x\")"),
    )),
    Case(upwind, (normal(0, 12),), ring, (X,), (X, R), upwind_reference, (
        ("right = [(i, (i + 1) % N)", "right = [(i, (i - 1) % N)"),
        ("u = u - 0.3 * (u - before)", "u = u - 0.3 * (before - u)"),
    )),
    Case(vocabulary_loss, (normal(0, 8, D), normal(1, 16, D) / 2, LABELS), ring, (R, X, R), R,
         vocabulary_loss_reference, (
        ("total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), \"x\")",
         "total = jnp.exp(logits - top[:, None]).sum(-1)"),
        ("index = jnp.where(here, local, 0)", "index = jnp.where(here, labels, 0)"),
    ), check_vma=False),
    Case(ulysses_heads, (normal(0, 8, 4, 2), normal(1, 8, 4, 2), normal(2, 8, 4, 2)), ring, (X, X, X), X,
         ulysses_heads_reference, (
        ("jnp.einsum(\"qhd,khd->hqk\", q, k) / np.sqrt(q.shape[-1])", "jnp.einsum(\"qhd,khd->hqk\", q, k)"),
        ("jnp.arange(t)[:, None] >= jnp.arange(t)", "jnp.arange(t)[:, None] > jnp.arange(t)"),
    )),
    Case(ridge, (normal(0, 12, D), normal(1, 12), normal(2, D)), flat, (P("x", None), P("x"), P(None)), None,
         ridge_reference, (
        ("/ x.shape[0] + 0.1 * w", "/ x.shape[0] - 0.1 * w"),
        ("return w - 0.5 * step", "return w - step"),
    ), jitted=True, setting=True),
    Case(router, (normal(0, 8, D), normal(1, D, 4), normal(2, 4, D, D)), flat, (B, W, P(None, None, None)), None,
         router_reference, (
        ("gates = gates / gates.sum(-1, keepdims=True)", "gates = jax.nn.softmax(gates, axis=-1)"),
        ("share = hot.sum(1).mean(0)", "share = hot[:, 0].mean(0)"),
    ), jitted=True, setting=True),
    Case(adam_clipped, (normal(0, D, D), normal(1, D, D), normal(2, D, D) ** 2, normal(3, D, D), np.float32(3.0)), mesh,
         (P("x", "y"), P("x", "y"), P("x", "y"), P("x", "y"), P()), None, adam_clipped_reference, (
        ("v = 0.98 * v + 0.02 * g**2", "v = 0.98 * v + 0.02 * g"),
        ("vh = v / (1 - 0.98**t)", "vh = v / (1 - 0.9**t)"),
    ), jitted=True, setting=True),
    Case(gated_rnn, (normal(0, 4, 4, D), normal(1, 4, D), normal(2, D, 16) / 3, normal(3, D, 16) / 3, normal(4, 16)),
         flat, (P(None, "x", None), B, W, W, P(None)), None, gated_rnn_reference, (
        ("h = f * h + (1 - f) * jnp.tanh(new)", "h = (1 - f) * h + f * jnp.tanh(new)"),
        ("return last, every.mean(0)", "return last, every.sum(0)"),
    ), jitted=True, setting=True),
    Case(rotary_attention, (normal(0, 4, 5, D), normal(1, D, D) / 2, normal(2, D, D) / 2, normal(3, D, D)), flat,
         (P("x", None, None), W, W, W), None, rotary_attention_reference, (
        ("q, k, v = turn(x @ wq), turn(x @ wk), x @ wv", "q, k, v = turn(x @ wq), x @ wk, x @ wv"),
        ("a * jnp.cos(angle) - b * jnp.sin(angle)", "a * jnp.cos(angle) + b * jnp.sin(angle)"),
    ), jitted=True, setting=True),
    Case(triplet, (normal(0, 8, D), normal(1, 8, D), normal(2, 8, D), normal(3, D, D)), mesh, (B, B, B, W), None,
         triplet_reference, (
        ("neg = jnp.sum((project(a) - project(n)) ** 2", "neg = jnp.sum((project(p) - project(n)) ** 2"),
        ("hinge = jax.nn.relu(pos - neg + 5.0)", "hinge = jax.nn.relu(neg - pos + 5.0)"),
    ), jitted=True, setting=True),
)  # fmt: skip
