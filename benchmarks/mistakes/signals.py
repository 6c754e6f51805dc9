"""Filters, samplers, recurrences and scores, half of them on Explicit meshes, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
N = 4
ring = AbstractMesh((N,), ("r",), axis_types=(AxisType.Auto,))
UP = [(i, (i + 1) % N) for i in range(N)]
D = 8


def cosine_schedule(w, x, y):
    """A step whose rate follows a cosine, with decoupled decay of weights."""

    def loss(w):
        return 0.5 * jnp.mean(jnp.sum((jnp.tanh(x @ w) - y) ** 2, axis=-1))

    value, g = jax.value_and_grad(loss)(w)
    rate = 0.01 + 0.5 * 0.09 * (1.0 + jnp.cos(jnp.pi * 30.0 / 100.0))
    return w - rate * (g + 0.1 * w), value


def cosine_schedule_reference(w, x, y):
    p = jnp.tanh(x @ w)
    g = x.T @ ((p - y) * (1 - p * p)) / x.shape[0]
    rate = 0.055 + 0.045 * jnp.cos(0.3 * jnp.pi)
    return (1 - 0.1 * rate) * w - rate * g, ((p - y) ** 2).sum() / (2 * x.shape[0])


def triplet(anchors, near, far, w):
    """Distances of embeddings of unit length, with a margin."""
    a, p, n = (t / jnp.linalg.norm(t, axis=-1, keepdims=True) for t in (anchors @ w, near @ w, far @ w))
    closer = jnp.sum((a - p) ** 2, axis=-1)
    farther = jnp.sum((a - n) ** 2, axis=-1)
    return jnp.mean(jax.nn.relu(closer - farther + 0.5))


def triplet_reference(anchors, near, far, w):
    def unit(t):
        return t @ w / jnp.sqrt(((t @ w) ** 2).sum(1))[:, None]

    a, p, n = unit(anchors), unit(near), unit(far)
    return jnp.maximum(0.5 + 2 * (a * n).sum(1) - 2 * (a * p).sum(1), 0).mean()


def squeeze_excite(x, w1, w2):
    """Channels that are weighed by what they are on average; x: [batch, height, width, channels]."""
    pooled = x.mean(axis=(1, 2))
    gate = jax.nn.sigmoid(jax.nn.relu(pooled @ w1) @ w2)
    return x * gate[:, None, None, :]


def squeeze_excite_reference(x, w1, w2):
    h = jnp.maximum(jnp.einsum("bhwc,cd->bd", x, w1) / (x.shape[1] * x.shape[2]), 0)
    return jnp.einsum("bhwc,bc->bhwc", x, 1 / (1 + jnp.exp(-h @ w2)))


def differences(x, w):
    """What a first and a second difference along time give; x: [batch, time, D]."""
    first = x[:, 1:] - x[:, :-1]
    second = first[:, 1:] - first[:, :-1]
    both = jnp.concatenate([first[:, 1:], second], axis=-1)
    return jnp.tanh(both @ w).sum(axis=1)


def differences_reference(x, w):
    a, b, c = x[:, :-2], x[:, 1:-1], x[:, 2:]
    return jnp.tanh((c - b) @ w[:D] + (c - 2 * b + a) @ w[D:]).sum(1)


def mixture(x, means, logits):
    """The log-likelihood of a mixture of normal distributions; x: [batch, D], means: [parts, D]."""
    far = jnp.sum((x[:, None] - means) ** 2, axis=-1)
    each = -0.5 * far - 0.5 * D * jnp.log(2.0 * jnp.pi)
    return jnp.mean(jax.nn.logsumexp(each + jax.nn.log_softmax(logits), axis=1))


def mixture_reference(x, means, logits):
    share = jnp.exp(logits) / jnp.exp(logits).sum()
    far = (x * x).sum(1)[:, None] - 2 * x @ means.T + (means * means).sum(1)
    return jnp.log((jnp.exp(-far / 2) * share).sum(1) / (2 * jnp.pi) ** (D / 2)).mean()


def covariance(x):
    """The covariance of columns; the rows are split: [rows, D] on a device."""
    count = lax.psum(x.shape[0], "r")
    mean = lax.psum(x.sum(0), "r") / count
    c = x - mean
    return lax.psum(c.T @ c, "r") / (count - 1)


def covariance_reference(x):
    return (x.T @ x - x.shape[0] * jnp.outer(x.mean(0), x.mean(0))) / (x.shape[0] - 1)


def sharded_scan(a, b):
    """The states of h = a h + b from left to right; the times are split: [times, D] on a device."""

    def step(h, ab):
        h = ab[0] * h + ab[1]
        return h, h

    _, local = lax.scan(step, jnp.zeros(b.shape[1]), (a, b))
    decay = jnp.cumprod(a, axis=0)
    lasts, decays = lax.all_gather(local[-1], "r"), lax.all_gather(decay[-1], "r")
    me, before = lax.axis_index("r"), jnp.zeros(b.shape[1])
    for device in range(N - 1):
        before = jnp.where(device < me, decays[device] * before + lasts[device], before)
    return local + decay * before


def sharded_scan_reference(a, b):
    h, out = jnp.zeros(b.shape[1]), []
    for i in range(a.shape[0]):
        h = a[i] * h + b[i]
        out.append(h)
    return jnp.stack(out)


def ring_average(x, w):
    """An average of each device with its two neighbours, times weights that are split by columns."""
    left = lax.ppermute(x, "r", UP)
    right = lax.ppermute(x, "r", [(j, i) for i, j in UP])
    smooth = 0.5 * x + 0.25 * (left + right)
    return jnp.tanh(smooth) @ lax.all_gather(w, "r", axis=1, tiled=True)


def ring_average_reference(x, w):
    rows = x.shape[0] // N
    return jnp.tanh(x / 2 + (jnp.roll(x, rows, 0) + jnp.roll(x, -rows, 0)) / 4) @ w


def rejected(logits, drawn, given):
    """The share of tokens that a model accepts of a draft, and their loss; tokens are split: [tokens, words]."""
    logp = jax.nn.log_softmax(logits, axis=-1)
    own = jnp.take_along_axis(logp, drawn[:, None], axis=-1)[:, 0]
    ratio = jnp.minimum(jnp.exp(own - given), 1.0)
    return lax.pmean(ratio.mean(), "r"), -lax.psum(own.sum(), "r")


def rejected_reference(logits, drawn, given):
    p = jnp.exp(logits) / jnp.exp(logits).sum(1, keepdims=True)
    q = p[jnp.arange(p.shape[0]), drawn]
    return jnp.where(q < jnp.exp(given), q / jnp.exp(given), 1).mean(), -jnp.log(q).sum()


def split_gates(x, wi, wg, wo):
    """A gated block whose hidden units are split over devices; x is whole."""
    hidden = jax.nn.silu(x @ wg) * (x @ wi)
    out = lax.psum(hidden @ wo, "r")
    return x + out * lax.rsqrt(jnp.mean(out**2, axis=-1, keepdims=True) + 1e-6)


def split_gates_reference(x, wi, wg, wo):
    z = x @ wg
    y = (z / (1 + jnp.exp(-z)) * (x @ wi)) @ wo
    return y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-6) + x


B, WHOLE, R = P("data", None), P(None, None), P("r")
TOKENS = jax.random.randint(jax.random.key(3), (16,), 0, 6)

CASES = (
    Case(cosine_schedule, (normal(0, D, 4) / 2, normal(1, 8, D), normal(2, 8, 4)), mesh, (WHOLE, B, B), None,
         cosine_schedule_reference, (
        ("(1.0 + jnp.cos(", "(1.0 - jnp.cos("),
        ("rate * (g + 0.1 * w)", "rate * g + 0.1 * w"),
    ), jitted=True, setting=True),
    Case(triplet, (*(normal(seed, 8, D) for seed in range(3)), normal(3, D, 6)), mesh, (B, B, B, WHOLE), None,
         triplet_reference, (
        ("closer - farther + 0.5", "farther - closer + 0.5"),
        ("farther = jnp.sum((a - n) ** 2", "farther = jnp.sum((p - n) ** 2"),
    ), jitted=True, setting=True),
    Case(squeeze_excite, (normal(0, 4, 2, 3, D), normal(1, D, 4), normal(2, 4, D)), mesh,
         (P("data", None, None, None), WHOLE, WHOLE), None, squeeze_excite_reference, (
        ("x.mean(axis=(1, 2))", "x.max(axis=(1, 2))"),
        ("jax.nn.sigmoid(jax.nn.relu(pooled @ w1) @ w2)", "jax.nn.sigmoid(pooled @ w1 @ w2)"),
    ), jitted=True, setting=True),
    Case(differences, (normal(0, 4, 6, D), normal(1, 2 * D, 5)), mesh, (P("data", None, None), WHOLE), None,
         differences_reference, (
        ("[first[:, 1:], second]", "[first[:, :-1], second]"),
        ("second = first[:, 1:] - first[:, :-1]", "second = first[:, 1:] + first[:, :-1]"),
    ), jitted=True, setting=True),
    Case(mixture, (normal(0, 8, D), normal(1, 3, D), normal(2, 3)), mesh, (B, WHOLE, P(None)), None,
         mixture_reference, (
        ("+ jax.nn.log_softmax(logits)", "+ logits"),
        ("- 0.5 * D * jnp.log", "- 0.5 * jnp.log"),
    ), jitted=True, setting=True),
    Case(covariance, (normal(0, 12, 3) + 1,), ring, (R,), P(), covariance_reference, (
        ("c = x - mean", "c = x - x.mean(0)"),
        ("/ (count - 1)", "/ count"),
    ), check_vma=False),
    Case(sharded_scan, (abs(normal(0, 12, 3)) / 2, normal(1, 12, 3)), ring, (R, R), R, sharded_scan_reference, (
        ("device < me, decays", "device <= me, decays"),
        ("return local + decay * before", "return local + before"),
    ), check_vma=False),
    Case(ring_average, (normal(0, 8, 6), normal(1, 6, 4)), ring, (R, P(None, "r")), R, ring_average_reference, (
        ("right = lax.ppermute(x, \"r\", [(j, i) for i, j in UP])", "right = lax.ppermute(x, \"r\", UP)"),
        ("0.5 * x + 0.25 * (left + right)", "0.5 * x + 0.25 * left + right"),
    ), check_vma=False),
    Case(rejected, (normal(0, 16, 6), TOKENS, -abs(normal(1, 16)) - 1), ring, (R, R, R), P(), rejected_reference, (
        ("jnp.exp(own - given)", "jnp.exp(given - own)"),
        ("-lax.psum(own.sum(), \"r\")", "-lax.pmean(own.sum(), \"r\")"),
    ), check_vma=False),
    Case(split_gates, (normal(0, 6, D), normal(1, D, 8), normal(2, D, 8), normal(3, 8, D)), ring,
         (P(), P(None, "r"), P(None, "r"), R), P(), split_gates_reference, (
        ("jax.nn.silu(x @ wg) * (x @ wi)", "jax.nn.silu(x @ wg) + (x @ wi)"),
        ("return x + out * lax.rsqrt(", "return out + out * lax.rsqrt("),
    ), check_vma=False),
)  # fmt: skip
