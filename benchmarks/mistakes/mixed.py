"""Losses, estimators and parts of samplers, half of them on Explicit meshes, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
N = 4
ring = AbstractMesh((N,), ("r",), axis_types=(AxisType.Auto,))
square = AbstractMesh((2, 2), ("r", "c"), axis_types=(AxisType.Auto,) * 2)
D = 8


def group_norm(x, g, b):
    """x: [batch, channels], in two groups of channels."""
    rows, channels = x.shape
    parts = jnp.reshape(x, (rows, 2, channels // 2))
    mean = parts.mean(-1, keepdims=True)
    var = ((parts - mean) ** 2).sum(-1, keepdims=True) / parts.shape[-1]
    normed = jnp.reshape((parts - mean) / jnp.sqrt(var + 1e-5), (rows, channels))
    return normed * g + b


def group_norm_reference(x, g, b):
    halves = []
    for part in (x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]):
        c = part - part.mean(1, keepdims=True)
        halves.append(c * lax.rsqrt((c * c).mean(1, keepdims=True) + 1e-5))
    return jnp.concatenate(halves, axis=1) * g + b


def distillation(x, student, teacher):
    """The divergence of a student from a teacher, at temperature two."""
    logp = jax.nn.log_softmax(x @ student / 2.0, axis=-1)
    logq = jax.nn.log_softmax(x @ teacher / 2.0, axis=-1)
    q = lax.stop_gradient(jnp.exp(logq))
    return 4.0 * jnp.mean(jnp.sum(q * (logq - logp), axis=-1))


def distillation_reference(x, student, teacher):
    a, b = jnp.exp(x @ student / 2), jnp.exp(x @ teacher / 2)
    p, q = a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)
    return 4 * jnp.mean((q * jnp.log(q / p)).sum(1))


def variational(x, wm, ws, noise, decode):
    """The loss of a variational autoencoder; the hidden units are sharded."""
    mean, logvar = x @ wm, x @ ws
    z = mean + jnp.exp(0.5 * logvar) * noise
    back = jnp.matmul(z, decode, out_sharding=P("data", None))
    kept = 0.5 * jnp.sum((back - x) ** 2, axis=-1)
    divergence = -0.5 * jnp.sum(1.0 + logvar - mean**2 - jnp.exp(logvar), axis=-1)
    return jnp.mean(kept + divergence)


def variational_reference(x, wm, ws, noise, decode):
    m, s = x @ wm, jnp.exp(x @ ws / 2)
    r = (m + s * noise) @ decode - x
    kl = (m * m + s * s - 1).sum(1) / 2 - jnp.log(s).sum(1)
    return ((r * r).sum(1) / 2 + kl).mean()


def nucleus(x, w):
    """Probabilities of the likeliest words, up to nine tenths of all; x: [batch, D]."""
    p = jax.nn.softmax(reshard(x @ w, P("data", None)), axis=-1)
    order = jnp.sort(p, axis=-1)[:, ::-1]
    before = jnp.cumsum(order, axis=-1) - order
    least = jnp.min(jnp.where(before < 0.9, order, 1.0), axis=-1, keepdims=True)
    kept = jnp.where(p >= least, p, 0.0)
    return kept / kept.sum(-1, keepdims=True)


def nucleus_reference(x, w):
    e = jnp.exp(x @ w)
    p = e / e.sum(-1, keepdims=True)
    larger = (p[:, None, :] * (p[:, None, :] > p[:, :, None])).sum(-1)
    kept = p * (larger < 0.9)
    return kept / kept.sum(-1, keepdims=True)


def averaged_weights(w, ema, m, v, x, y):
    """A step of Adam, the second one, and a moving average of the weights."""

    def loss(w):
        return jnp.mean((x @ w - y) ** 2)

    g = jax.grad(loss)(w)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    step = (m / (1 - 0.9**2)) / (jnp.sqrt(v / (1 - 0.99**2)) + 1e-4)
    w = w - 0.1 * step
    return w, 0.95 * ema + 0.05 * w, m, v


def averaged_weights_reference(w, ema, m, v, x, y):
    g = 2 * x.T @ (x @ w - y) / y.size
    m = m + (g - m) * 0.1
    v = v + (g**2 - v) * 0.01
    w = w - 0.1 * m / 0.19 / (lax.sqrt(v / 0.0199) + 1e-4)
    return w, ema + (w - ema) / 20, m, v


def clusters(points, centres):
    """A step of k-means; points: [rows, D] on a device, centres: whole."""
    far = jnp.sum((points[:, None] - centres) ** 2, axis=-1)
    hot = jax.nn.one_hot(jnp.argmin(far, axis=1), centres.shape[0])
    total = lax.psum(hot.T @ points, "r")
    count = lax.psum(hot.sum(0), "r")
    return jnp.where(count[:, None] > 0, total / jnp.maximum(count, 1.0)[:, None], centres)


def clusters_reference(points, centres):
    near = ((points * points).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)).argmin(1)
    own = (near[None] == jnp.arange(len(centres))[:, None]).astype(points.dtype)
    count = own.sum(1, keepdims=True)
    return jnp.where(count > 0, own @ points / jnp.where(count > 0, count, 1), centres)


def correlated(x, y):
    """The correlation of each column of x with y; both axes split the rows."""
    axes = ("r", "c")
    x = x - lax.pmean(x.mean(0), axes)
    y = y - lax.pmean(y.mean(0), axes)
    both = lax.psum(x.T @ y, axes)
    own = lax.psum((x * x).sum(0), axes)
    return both / jnp.sqrt(own * lax.psum((y * y).sum(), axes))


def correlated_reference(x, y):
    a, b = x - x.mean(0), y - y.mean()
    return (a * b[:, None]).sum(0) / jnp.sqrt((a**2).sum(0)) / jnp.sqrt((b**2).sum())


def largest(x):
    """The number of the row of the largest element of each column, and the element; x: [rows, D] on a device."""
    rows = x.shape[0]
    best = x.max(0)
    at = x.argmax(0) + lax.axis_index("r") * rows
    top = lax.pmax(best, "r")
    first = jnp.where(best == top, at, N * rows)
    return lax.pmin(first, "r"), top


def largest_reference(x):
    return jnp.argmax(x, axis=0), jnp.sort(x, axis=0)[-1]


def transposed(x, w):
    """The transpose of a matrix whose rows are split, times weights; x: [rows, columns] on a device."""
    part = lax.all_to_all(x, "r", split_axis=1, concat_axis=0, tiled=True)
    turned = part.T
    scale = jnp.abs(turned).max(axis=1, keepdims=True)
    return jnp.tanh(turned / scale) @ w


def transposed_reference(x, w):
    return jnp.tanh(x / jnp.abs(x).max(0)).T @ w


def checkerboard(a, b):
    """A product on a square of devices; a: [rows, inner], b: [inner, columns], a block of each on a device."""
    left = lax.all_gather(a, "c", axis=1, tiled=True)
    top = lax.all_gather(b, "r", axis=0, tiled=True)
    out = left @ top
    largest = lax.pmax(jnp.abs(out).max(), ("r", "c"))
    return out / largest


def checkerboard_reference(a, b):
    out = jnp.einsum("ij,jk->ik", a, b)
    return out / jnp.max(jnp.abs(out))


B, WHOLE, R, ROWS = P("data", None), P(None, None), P("r"), P(("r", "c"))

CASES = (
    Case(group_norm, (normal(0, 4, D), normal(1, D), normal(2, D)), mesh, (B, P(None), P(None)), None,
         group_norm_reference, (
        ("(rows, 2, channels // 2)", "(rows, channels // 2, 2)"),
        ("/ parts.shape[-1]", "/ (parts.shape[-1] - 1)"),
    ), jitted=True, setting=True),
    Case(distillation, (normal(0, 8, D), normal(1, D, 6), normal(2, D, 6)), mesh, (B, WHOLE, WHOLE), None,
         distillation_reference, (
        ("q * (logq - logp)", "q * (logp - logq)"),
        ("x @ teacher / 2.0", "x @ teacher"),
    ), jitted=True, setting=True),
    Case(variational, (normal(0, 8, D), normal(1, D, 4) / 2, normal(2, D, 4) / 4, normal(3, 8, 4), normal(4, 4, D)),
         mesh, (B, P(None, "model"), P(None, "model"), P("data", "model"), P("model", None)), None,
         variational_reference, (
        ("jnp.exp(0.5 * logvar) * noise", "jnp.exp(logvar) * noise"),
        ("1.0 + logvar - mean**2", "1.0 + logvar - mean"),
    ), jitted=True, setting=True),
    Case(nucleus, (normal(0, 8, D), normal(1, D, 12) / 2), mesh, (B, P(None, "model")), None, nucleus_reference, (
        ("[:, ::-1]", ""),
        ("jnp.cumsum(order, axis=-1) - order", "jnp.cumsum(order, axis=-1)"),
    ), jitted=True, setting=True),
    Case(averaged_weights, (normal(0, D, 4), normal(1, D, 4), normal(2, D, 4) / 9, abs(normal(3, D, 4)) / 9,
                            normal(4, 8, D), normal(5, 8, 4)), mesh,
         (WHOLE, WHOLE, WHOLE, WHOLE, B, B), None, averaged_weights_reference, (
        ("0.01 * g * g", "0.01 * g"),
        ("jnp.sqrt(v / (1 - 0.99**2))", "jnp.sqrt(v / (1 - 0.99))"),
    ), jitted=True, setting=True),
    Case(clusters, (normal(0, 12, 3), normal(1, 4, 3)), ring, (R, P()), P(), clusters_reference, (
        ("count = lax.psum(hot.sum(0), \"r\")", "count = lax.psum(hot.sum(0) - 1.0, \"r\")"),
        ("jnp.argmin(far, axis=1)", "jnp.argmax(far, axis=1)"),
    ), check_vma=False),
    Case(correlated, (normal(0, 16, 3) + 1, normal(1, 16) + 2), square, (ROWS, ROWS), P(), correlated_reference, (
        ("y = y - lax.pmean(y.mean(0), axes)", "y = y - y.mean(0)"),
        ("own * lax.psum((y * y).sum(), axes)", "own + lax.psum((y * y).sum(), axes)"),
    ), check_vma=False),
    Case(largest, (normal(0, 12, 5),), ring, (R,), P(), largest_reference, (
        ("x.argmax(0) + lax.axis_index(\"r\") * rows", "x.argmax(0) * rows + lax.axis_index(\"r\")"),
        ("jnp.where(best == top, at, N * rows)", "jnp.where(best == top, at, 0)"),
    ), check_vma=False),
    Case(transposed, (normal(0, 8, 8), normal(1, 8, 3)), ring, (R, P()), R, transposed_reference, (
        ("jnp.abs(turned).max(axis=1, keepdims=True)", "jnp.abs(turned).max(axis=0, keepdims=True)"),
        ("turned = part.T", "turned = x.reshape(-1, part.shape[0])"),
    ), check_vma=False),
    Case(checkerboard, (normal(0, 6, 4), normal(1, 4, 6)), square, (P("r", "c"), P("r", "c")), P("r", "c"),
         checkerboard_reference, (
        ("top = lax.all_gather(b, \"r\", axis=0, tiled=True)",
         "top = lax.all_gather(b, \"r\", axis=0, tiled=True)[::-1]"),
        ("jnp.abs(out).max(), (\"r\", \"c\"))", "out.max(), (\"r\", \"c\"))"),
    ), check_vma=False),
)  # fmt: skip
