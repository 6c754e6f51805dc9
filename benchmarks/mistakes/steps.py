"""Graphs, recurrences, optimizers and masks, half of them on Explicit meshes, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
auto = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
N = 4
row = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
square = AbstractMesh((2, 2), ("r", "c"), axis_types=(AxisType.Auto,) * 2)
D = 8


def best_words(h, table):
    """The three best words of each row and their probabilities among them; the words are sharded."""
    logits = h @ table.T
    values, at = lax.top_k(logits, 3)
    at = at + lax.axis_index("i") * table.shape[0]
    values = lax.all_gather(values, "i", axis=1, tiled=True)
    at = lax.all_gather(at, "i", axis=1, tiled=True)
    best, place = lax.top_k(values, 3)
    words = jnp.take_along_axis(at, place, axis=1)
    return jax.nn.softmax(best, axis=-1), words


def best_words_reference(h, table):
    logits = jnp.einsum("bd,vd->bv", h, table)
    order = jnp.argsort(-logits, axis=1)[:, :3]
    e = jnp.exp(jnp.take_along_axis(logits, order, axis=1))
    return e / e.sum(1, keepdims=True), order


def gathered_weights(x, y, w1, w2):
    """The loss of a network whose weights are gathered for their use, and a step; w1: [D / N, 12] on a device."""

    def loss(w1, w2):
        up = lax.all_gather(w1, "i", axis=0, tiled=True)
        down = lax.all_gather(w2, "i", axis=1, tiled=True)
        error = jnp.tanh(x @ up) @ down - y
        return lax.pmean((error**2).mean(), "i")

    value, (g1, g2) = jax.value_and_grad(loss, argnums=(0, 1))(w1, w2)
    return value, w1 - 0.1 * g1, w2 - 0.2 * g2


def gathered_weights_reference(x, y, w1, w2):
    def loss(w):
        return jnp.mean(jnp.square(y - jnp.tanh(x @ w[0]) @ w[1]))

    g = jax.grad(loss)((w1, w2))
    return loss((w1, w2)), w1 - g[0] / 10, w2 - g[1] / 5


def relaxed(u, f):
    """Two steps of Jacobi with fixed zeros around; u, f: a block of a square on each device."""
    down, up = [(0, 1)], [(1, 0)]
    for _ in range(2):
        north = lax.ppermute(u[-1:], "r", down)
        south = lax.ppermute(u[:1], "r", up)
        west = lax.ppermute(u[:, -1:], "c", down)
        east = lax.ppermute(u[:, :1], "c", up)
        tall = jnp.concatenate([north, u, south], axis=0)
        wide = jnp.concatenate([west, u, east], axis=1)
        u = 0.25 * (tall[:-2] + tall[2:] + wide[:, :-2] + wide[:, 2:] - f)
    return u


def relaxed_reference(u, f):
    for _ in range(2):
        p = jnp.pad(u, 1)
        u = (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - f) / 4
    return u


def transformed(x, g):
    """A filter in the frequencies of the columns of a matrix whose rows are sharded."""
    columns = lax.all_to_all(x, "i", split_axis=1, concat_axis=0, tiled=True)
    rows = columns.shape[0]
    k = jnp.arange(rows)
    angle = 2.0 * jnp.pi * k[:, None] * k / rows
    real, imag = jnp.cos(angle) @ columns, -jnp.sin(angle) @ columns
    power = real**2 + imag**2
    kept = power * g[:, None] / rows
    return lax.all_to_all(kept, "i", split_axis=0, concat_axis=1, tiled=True)


def transformed_reference(x, g):
    f = jnp.fft.fft(x, axis=0)
    return (f * jnp.conj(f)).real * g[:, None] / len(x)


def passed_messages(nodes, senders, receivers, w):
    """A layer of a graph network with the mean of the neighbours; the edges are sharded, the nodes are whole."""
    sent = jnp.tanh(nodes @ w)[senders]
    total = lax.psum(jax.ops.segment_sum(sent, receivers, nodes.shape[0]), "i")
    degree = lax.psum(jax.ops.segment_sum(jnp.ones(receivers.shape), receivers, nodes.shape[0]), "i")
    mean = total / jnp.maximum(degree, 1.0)[:, None]
    return nodes + mean


def passed_messages_reference(nodes, senders, receivers, w):
    hot = jax.nn.one_hot(receivers, len(nodes)).T @ jax.nn.one_hot(senders, len(nodes))
    count = hot.sum(1, keepdims=True)
    return nodes + hot @ jnp.tanh(nodes @ w) / jnp.where(count > 0, count, 1)


def masked_loss(x, w, labels, mask):
    """The mean loss of the words that count, and how many are right; rows are sharded."""
    logp = jax.nn.log_softmax(x @ w, axis=-1)
    picked = jnp.take_along_axis(logp, labels[:, None], axis=1)[:, 0]
    count = lax.psum(mask.sum(), "i")
    loss = -lax.psum((picked * mask).sum(), "i") / count
    hits = (jnp.argmax(logp, axis=-1) == labels) * mask
    return loss, lax.psum(hits.sum(), "i") / count


def masked_loss_reference(x, w, labels, mask):
    logits = x @ w
    lse = jnp.log(jnp.exp(logits).sum(1))
    own = (logits * jax.nn.one_hot(labels, logits.shape[1])).sum(1)
    right = jnp.where(logits.argmax(1) == labels, mask, 0)
    return ((lse - own) * mask).sum() / mask.sum(), right.sum() / mask.sum()


def recurrent(x, wx, wh, h):
    """A recurrent network with the hidden units on the devices; x: [T, batch, D], wh: [hidden / N, hidden]."""
    units = wx.shape[1]
    me = lax.axis_index("i")

    def step(h, now):
        whole = lax.psum(h @ wh, "i")
        own = lax.dynamic_slice_in_dim(whole, me * units, units, axis=1)
        h = jnp.tanh(now @ wx + own)
        return h, h.sum(-1)

    h, sums = lax.scan(step, h, x)
    return h, lax.psum(sums, "i")


def recurrent_reference(x, wx, wh, h):
    out = []
    for now in x:
        h = jnp.tanh(now @ wx + h @ wh)
        out.append(h.sum(1))
    return h, jnp.stack(out)


def mixture(x, wm, ws, wp, y):
    """The negative log likelihood of a mixture of normals; y: [batch]."""
    mean, logs = x @ wm, x @ ws
    weight = jax.nn.log_softmax(x @ wp, axis=-1)
    z = (y[:, None] - mean) * jnp.exp(-logs)
    logp = -0.5 * z**2 - logs - 0.5 * jnp.log(2 * jnp.pi)
    return -jnp.mean(jax.nn.logsumexp(weight + logp, axis=-1))


def mixture_reference(x, wm, ws, wp, y):
    m, s = x @ wm, jnp.exp(x @ ws)
    e = jnp.exp(x @ wp)
    p = e / e.sum(1, keepdims=True)
    d = jnp.exp(-((y[:, None] - m) ** 2) / (2 * s * s)) / (s * np.sqrt(2 * np.pi))
    return -jnp.log((p * d).sum(1)).mean()


def trusted(w, m, v, g):
    """A step of LAMB for a matrix."""
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g**2
    update = (m / 0.1) / (jnp.sqrt(v / 0.01) + 1e-6) + 0.01 * w
    ratio = jnp.linalg.norm(w) / jnp.linalg.norm(update)
    return w - 0.02 * ratio * update, m, v


def trusted_reference(w, m, v, g):
    m, v = m + (g - m) / 10, v + (g * g - v) / 100
    u = 10 * m / (10 * jnp.sqrt(v) + 1e-6) + w / 100
    return w - u * jnp.sqrt((w * w).sum() / (u * u).sum()) / 50, m, v


def images(x, k1, k2, w):
    """Two convolutions and a classifier; x: [batch, height, width, channels]."""
    where = ("NHWC", "HWIO", "NHWC")
    h = lax.conv_general_dilated(x, k1, (1, 1), "SAME", dimension_numbers=where)
    h = jax.nn.relu(h)
    h = lax.conv_general_dilated(h, k2, (2, 2), "SAME", dimension_numbers=where)
    h = jax.nn.relu(h)
    pooled = jnp.mean(h, axis=(1, 2))
    return pooled @ w


def images_reference(x, k1, k2, w):
    def conv(x, k):
        high, wide = x.shape[1:3]
        p = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        parts = [p[:, a : a + high, b : b + wide] @ k[a, b] for a in range(3) for b in range(3)]
        return jnp.stack(parts).sum(0)

    h = jnp.maximum(conv(x, k1), 0)
    h = jnp.maximum(conv(h, k2)[:, 1::2, 1::2], 0)
    return h.reshape(len(x), -1, h.shape[-1]).mean(1) @ w


def crossed(x, memory, lengths, wq, wk, wv):
    """Attention over a memory of which each row has its own length; x: [batch, T, D], memory: [batch, S, D]."""
    q, k, v = x @ wq, memory @ wk, memory @ wv
    scores = jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(1.0 * D)
    there = jnp.arange(memory.shape[1]) < lengths[:, None]
    scores = jnp.where(there[:, None, :], scores, -1e30)
    p = jax.nn.softmax(scores, axis=-1)
    return x + jnp.einsum("bts,bsd->btd", p, v)


def crossed_reference(x, memory, lengths, wq, wk, wv):
    out = []
    for b in range(x.shape[0]):
        keep = (jnp.arange(memory.shape[1]) < lengths[b]).astype(x.dtype)
        e = jnp.exp((x[b] @ wq) @ (memory[b] @ wk).T / np.sqrt(D)) * keep
        out.append(x[b] + e @ (memory[b] @ wv) / e.sum(1, keepdims=True))
    return jnp.stack(out)


def retained(q, k, v, gate):
    """Attention whose weights fall with the distance, normalised in each head; q, k, v: [batch, T, D]."""
    length = q.shape[1]
    at = jnp.arange(length)
    far = at[:, None] - at[None, :]
    decay = jnp.where(far >= 0, 0.9**far, 0.0)
    scores = jnp.einsum("btd,bsd->bts", q, k) * decay
    out = scores @ v
    centred = out - out.mean(-1, keepdims=True)
    normed = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return normed * jax.nn.silu(gate)


def retained_reference(q, k, v, gate):
    def recurrence(q, k, v):
        state, out = jnp.zeros((D, D)), []
        for t in range(q.shape[0]):
            state = 0.9 * state + jnp.outer(k[t], v[t])
            out.append(q[t] @ state)
        return jnp.stack(out)

    o = jax.vmap(recurrence)(q, k, v)
    return (o - o.mean(2, keepdims=True)) / jnp.sqrt(o.var(2, keepdims=True) + 1e-5) * gate / (1 + jnp.exp(-gate))


def orthogonal(w, g, m):
    """A step with momentum whose update is made orthogonal by two iterations; w: [D, D]."""
    m = 0.95 * m + g
    u = g + 0.95 * m
    u = reshard(u / jnp.linalg.norm(u), P(None, None))
    for _ in range(2):
        a = u @ u.T
        b = -4.775 * a + 2.0315 * a @ a
        u = 3.4445 * u + b @ u
    return w - 0.1 * reshard(u, P("data", None)), m


def orthogonal_reference(w, g, m):
    m = g + 0.95 * m
    u = 0.95 * m + g
    u = u / jnp.sqrt((u * u).sum())
    for _ in range(2):
        s = u @ u.T
        u = (3.4445 * jnp.eye(D) - 4.775 * s + 2.0315 * s @ s) @ u
    return w - u / 10, m


X, B, W = P("i"), P("data"), P(None, None)
LABELS = (abs(normal(9, 16)) * 100).astype("int32") % 6
SENDERS, RECEIVERS = ((abs(normal(seed, 24)) * 100).astype("int32") % 10 for seed in (7, 8))
MASK = (normal(6, 16) > -0.5).astype("float32")
LENGTHS = np.array([3, 5, 2, 4], np.int32)

CASES = (
    Case(best_words, (normal(0, 6, D), normal(1, 16, D)), row, (P(), X), (P(), P()), best_words_reference, (
        ("at = at + lax.axis_index(\"i\") * table.shape[0]", "at = at + lax.axis_index(\"i\")"),
        ("jnp.take_along_axis(at, place, axis=1)", "place"),
    ), check_vma=False),
    Case(gathered_weights, (normal(0, 16, D), normal(1, 16, 4), normal(2, D, 12) / 3, normal(3, 12, 4) / 3), row,
         (X, X, X, P(None, "i")), (P(), X, P(None, "i")), gathered_weights_reference, (
        ("lax.pmean((error**2).mean(), \"i\")", "lax.psum((error**2).mean(), \"i\")"),
        ("w2 - 0.2 * g2", "w2 - 0.1 * g2"),
    )),
    Case(relaxed, (normal(0, 8, 8), normal(1, 8, 8)), square, (P("r", "c"), P("r", "c")), P("r", "c"),
         relaxed_reference, (
        ("north = lax.ppermute(u[-1:], \"r\", down)", "north = lax.ppermute(u[-1:], \"c\", down)"),
        ("jnp.concatenate([west, u, east], axis=1)", "jnp.concatenate([east, u, west], axis=1)"),
    )),
    Case(transformed, (normal(0, 8, 12), normal(1, 8)), row, (X, P()), X, transformed_reference, (
        ("angle = 2.0 * jnp.pi * k[:, None]", "angle = jnp.pi * k[:, None]"),
        ("kept = power * g[:, None]", "kept = power * g[k[:, None] // 2]"),
    )),
    Case(passed_messages, (normal(0, 10, D), SENDERS, RECEIVERS, normal(1, D, D)), row, (P(), X, X, P()), P(),
         passed_messages_reference, (
        ("segment_sum(sent, receivers", "segment_sum(sent, senders"),
        ("jnp.tanh(nodes @ w)[senders]", "jnp.tanh(nodes @ w)[receivers]"),
    )),
    Case(masked_loss, (normal(0, 16, D), normal(1, D, 6), LABELS, MASK), row, (X, P(), X, X), (P(), P()),
         masked_loss_reference, (
        ("loss = -lax.psum((picked * mask).sum(), \"i\") / count",
         "loss = -lax.pmean((picked * mask).sum() / mask.sum(), \"i\")"),
        ("jnp.argmax(logp, axis=-1) == labels) * mask", "jnp.argmax(logp, axis=-1) == labels)"),
    )),
    Case(recurrent, (normal(0, 5, 4, D), normal(1, D, 12) / 3, normal(2, 12, 12) / 4, normal(3, 4, 12)), row,
         (P(), P(None, "i"), X, P(None, "i")), (P(None, "i"), P()), recurrent_reference, (
        ("me * units, units, axis=1)", "0, units, axis=1)"),
        ("return h, lax.psum(sums, \"i\")", "return h, lax.pmax(sums, \"i\")"),
    ), check_vma=False),
    Case(mixture, (normal(0, 8, D), normal(1, D, 4), normal(2, D, 4) / 4, normal(3, D, 4), normal(4, 8)), mesh,
         (P("data", None), W, W, W, B), None, mixture_reference, (
        ("jnp.exp(-logs)", "jnp.exp(logs)"),
        ("-0.5 * z**2 - logs", "-0.5 * z**2 + logs"),
    ), jitted=True, setting=True),
    Case(trusted, (normal(0, 8, 6), normal(1, 8, 6), normal(2, 8, 6) ** 2, normal(3, 8, 6)), auto,
         (P("data", "model"),) * 4, None, trusted_reference, (
        ("jnp.linalg.norm(w) / jnp.linalg.norm(update)", "jnp.linalg.norm(update) / jnp.linalg.norm(w)"),
        ("+ 0.01 * w", "+ 0.01 * g"),
    ), jitted=True),
    Case(images, (normal(0, 4, 6, 6, 2), normal(1, 3, 3, 2, 4), normal(2, 3, 3, 4, 4) / 3, normal(3, 4, 6)), auto,
         (B, P(), P(), P(None, "model")), None, images_reference, (
        ("h = lax.conv_general_dilated(h, k2, (2, 2)", "h = lax.conv_general_dilated(h, k2, (1, 1)"),
        ("pooled = jnp.mean(h, axis=(1, 2))", "pooled = jnp.max(h, axis=(1, 2))"),
    ), jitted=True),
    Case(crossed, (normal(0, 4, 3, D), normal(1, 4, 6, D), LENGTHS, normal(2, D, D) / 2, normal(3, D, D) / 2,
         normal(4, D, D)), mesh, (P("data", None, None), P("data", None, None), B, W, W, W), None, crossed_reference, (
        ("k, v = x @ wq, memory @ wk, memory @ wv", "k, v = x @ wq, memory @ wk, memory @ wk"),
        ("< lengths[:, None]", "<= lengths[:, None]"),
    ), jitted=True, setting=True),
    Case(retained, (normal(0, 4, 6, D), normal(1, 4, 6, D), normal(2, 4, 6, D), normal(3, 4, 6, D)), mesh,
         (P("data", None, None),) * 4, None, retained_reference, (
        ("0.9**far", "0.9 * far"),
        ("normed = centred / jnp.sqrt((centred**2)", "normed = out / jnp.sqrt((centred**2)"),
    ), jitted=True, setting=True),
    Case(orthogonal, (normal(0, D, D), normal(1, D, D), normal(2, D, D)), mesh, (P("data", None),) * 3, None,
         orthogonal_reference, (
        ("u = g + 0.95 * m", "u = m"),
        ("2.0315 * a @ a", "2.0315 * a"),
    ), jitted=True, setting=True),
)  # fmt: skip
