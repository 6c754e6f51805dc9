"""Simulations, inference, decoding, graphs, images and optimizers, half of them on Explicit meshes, with references."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, ints, normal, uniform

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
line = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
N = 4
ring = AbstractMesh((N,), ("x",), axis_types=(AxisType.Auto,))
grid = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
D = 8


def sinkhorn(cost, a, b, rounds=3):
    """Entropic transport between two histograms; the rows of the costs are sharded."""
    k = jnp.exp(-cost / 0.5)
    u = jnp.ones_like(a)
    v = jnp.ones_like(b)
    for _ in range(rounds):
        u = a / jnp.dot(k, v, out_sharding=P("x"))
        v = b / jnp.dot(k.T, u, out_sharding=P(None))
    plan = u[:, None] * k * v[None, :]
    return plan, jnp.sum(plan * cost)


def sinkhorn_reference(cost, a, b, rounds=3):
    k = jnp.exp(-2 * cost)
    u, v = jnp.ones_like(a), jnp.ones_like(b)
    for _ in range(rounds):
        u = a / (k @ v)
        v = b / (u @ k)
    plan = jnp.diag(u) @ k @ jnp.diag(v)
    return plan, (plan * cost).sum()


class Gaussian(NamedTuple):
    mean: Any
    cov: Any


def kalman(state, ys, f, h, q, r):
    """A Kalman filter for each of a batch of series; ys: [batch, time, 2]."""

    def step(s, y):
        m = s.mean @ f.T
        p = f @ s.cov @ f.T + q
        innovation = y - m @ h.T
        total = h @ p @ h.T + r
        gain = jnp.linalg.solve(total, h @ p).swapaxes(-1, -2)
        m = m + jnp.einsum("bij,bj->bi", gain, innovation)
        p = p - gain @ h @ p
        return Gaussian(m, p), m

    last, means = lax.scan(step, state, ys.swapaxes(0, 1))
    return last, means.swapaxes(0, 1)


def kalman_reference(state, ys, f, h, q, r):
    def single(m, p, ys):
        means = []
        for t in range(ys.shape[0]):
            m, p = f @ m, f @ p @ f.T + q
            g = p @ h.T @ jnp.linalg.inv(h @ p @ h.T + r)
            m = m + g @ (ys[t] - h @ m)
            p = (jnp.eye(p.shape[0]) - g @ h) @ p
            means.append(m)
        return Gaussian(m, p), jnp.stack(means)

    return jax.vmap(single)(state.mean, state.cov, ys)


def pencil_fft(x):
    """A transform over both dimensions of rows that are sharded; x: [rows / N, columns]."""
    y = jnp.fft.fft(x, axis=1)
    y = lax.all_to_all(y, "x", split_axis=1, concat_axis=0, tiled=True)
    y = jnp.fft.fft(y, axis=0)
    return lax.all_to_all(y, "x", split_axis=0, concat_axis=1, tiled=True)


def pencil_fft_reference(x):
    return jnp.fft.fft2(x)


def life(cells):
    """A generation of Conway's game on a torus over a grid of devices; cells: [rows / 2, columns / 2]."""
    down = [(0, 1), (1, 0)]

    def padded(c, axis, name):
        first, last = lax.slice_in_dim(c, 0, 1, axis=axis), lax.slice_in_dim(c, c.shape[axis] - 1, None, axis=axis)
        before = lax.ppermute(last, name, down)
        after = lax.ppermute(first, name, down)
        return jnp.concatenate([before, c, after], axis=axis)

    p = padded(padded(cells, 0, "x"), 1, "y")
    r, c = cells.shape
    near = sum(p[i : i + r, j : j + c] for i in range(3) for j in range(3)) - cells
    return jnp.where((near == 3) | ((cells == 1) & (near == 2)), 1, 0)


def life_reference(cells):
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    near = sum(jnp.roll(cells, s, (0, 1)) for s in shifts)
    return ((near == 3) | (cells * near == 2)).astype(cells.dtype)


def histogram(x, weights):
    """Weighted counts in ten bins of samples that are sharded, and their distribution."""
    index = jnp.clip(jnp.floor((x + 2.5) / 0.5).astype(jnp.int32), 0, 9)
    counts = lax.psum(jnp.zeros(10).at[index].add(weights), "x")
    density = counts / lax.psum(weights.sum(), "x")
    return counts, jnp.cumsum(density)


def histogram_reference(x, weights):
    index = jnp.clip(jnp.floor(2 * x + 5), 0, 9).astype(jnp.int32)
    counts = (index[:, None] == jnp.arange(10)).astype(x.dtype).T @ weights
    return counts, jnp.cumsum(counts) / weights.sum()


def paged_decode(q, k_pages, v_pages, table, lengths):
    """Attention of one token over pages of a cache; q: [batch, heads, d], pages: [pages, page, heads, d]."""
    k = k_pages.at[table].get(out_sharding=P("x", None, None, "y", None))
    v = v_pages.at[table].get(out_sharding=P("x", None, None, "y", None))
    b, n, page, h, d = k.shape
    k = k.reshape(b, n * page, h, d)
    v = v.reshape(b, n * page, h, d)
    s = jnp.einsum("bhd,bthd->bht", q, k) / d**0.5
    live = jnp.arange(n * page)[None, None, :] < lengths[:, None, None]
    p = jax.nn.softmax(jnp.where(live, s, -1e9), axis=-1)
    return jnp.einsum("bht,bthd->bhd", p, v)


def paged_decode_reference(q, k_pages, v_pages, table, lengths):
    out = []
    for b in range(q.shape[0]):
        k = jnp.concatenate([k_pages[i] for i in table[b]])
        v = jnp.concatenate([v_pages[i] for i in table[b]])
        s = jnp.einsum("hd,thd->ht", q[b], k) * q.shape[-1] ** -0.5
        s = jnp.where(jnp.arange(k.shape[0]) < lengths[b], s, -jnp.inf)
        out.append(jnp.einsum("ht,thd->hd", jax.nn.softmax(s, -1), v))
    return jnp.stack(out)


def bucket(distance, buckets=8, most=16):
    """T5's bucket of a distance: half of them exact, the others logarithmic."""
    exact = buckets // 2
    distance = jnp.maximum(distance, 0)
    far = exact + jnp.log(jnp.maximum(distance, 1) / exact) / np.log(most / exact) * (buckets - exact)
    return jnp.where(distance < exact, distance, jnp.minimum(far.astype(jnp.int32), buckets - 1))


def biased_attention(q, k, v, table):
    """Attention with relative biases that are looked up; q, k, v: [batch, T, heads, d], table: [buckets, heads]."""
    t = q.shape[1]
    distance = jnp.arange(t)[:, None] - jnp.arange(t)[None, :]
    bias = jnp.moveaxis(table[bucket(distance)], -1, 0)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias[None]
    s = jnp.where(distance >= 0, s, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


def biased_attention_reference(q, k, v, table):
    t = q.shape[1]
    number = np.zeros((t, t), np.int32)
    for i in range(t):
        for j in range(i + 1):
            far = 4 if i == j else 4 + int(np.log((i - j) / 4) / np.log(4) * 4)
            number[i, j] = i - j if i - j < 4 else min(far, 7)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.einsum("qkh->hqk", table[number])
    p = jax.nn.softmax(jnp.where(np.tril(np.ones((t, t), bool)), s, -jnp.inf), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def schedule_free(params, z, grads, step, rate=0.1, beta=0.9):
    """Schedule-free SGD on a tree of parameters; gives the iterates, their average and where to evaluate next."""
    weight = 1 / (step + 1)
    z = jax.tree.map(lambda z, g: z - rate * g, z, grads)
    x = jax.tree.map(lambda x, z: (1 - weight) * x + weight * z, params, z)
    y = jax.tree.map(lambda x, z: beta * x + (1 - beta) * z, x, z)
    return x, z, y


def schedule_free_reference(params, z, grads, step, rate=0.1, beta=0.9):
    new_x, new_z, new_y = {}, {}, {}
    for name, x in params.items():
        new_z[name] = z[name] - grads[name] * rate
        new_x[name] = x + (new_z[name] - x) / (1 + step)
        new_y[name] = new_z[name] + beta * (new_x[name] - new_z[name])
    return new_x, new_z, new_y


def v_trace(log_rhos, rewards, values, last, gamma=0.9):
    """The targets of V-trace; [batch, time]."""
    rhos = jnp.minimum(1.0, jnp.exp(log_rhos))
    following = jnp.concatenate([values[:, 1:], last[:, None]], axis=1)
    deltas = rhos * (rewards + gamma * following - values)

    def back(acc, step):
        delta, c = step
        acc = delta + gamma * c * acc
        return acc, acc

    _, out = lax.scan(back, jnp.zeros_like(last), (deltas.T, rhos.T), reverse=True)
    return values + out.T


def v_trace_reference(log_rhos, rewards, values, last, gamma=0.9):
    rho = jnp.minimum(jnp.exp(log_rhos), 1)
    v = jnp.concatenate([values, last[:, None]], 1)
    acc, out = jnp.zeros_like(last), []
    for t in range(rewards.shape[1] - 1, -1, -1):
        acc = rho[:, t] * (rewards[:, t] + gamma * (v[:, t + 1] + acc) - v[:, t])
        out.append(v[:, t] + acc)
    return jnp.stack(out[::-1], 1)


def preference_loss(policy, frozen, chosen, rejected, beta=0.3):
    """Direct preference optimisation of a bag of words; policy, frozen: [D, vocab], chosen, rejected: [pairs, T]."""

    def log_likelihood(w, tokens):
        logits = jax.nn.one_hot(tokens[:, :-1], w.shape[0], out_sharding=P("x", None, None)) @ w  # type: ignore[call-arg]
        logp = jax.nn.log_softmax(logits, axis=-1)
        picked = jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1)[..., 0]
        return picked.sum(-1)

    better = log_likelihood(policy, chosen) - log_likelihood(frozen, chosen)
    worse = log_likelihood(policy, rejected) - log_likelihood(frozen, rejected)
    margin = beta * (better - worse)
    return -jnp.mean(jax.nn.log_sigmoid(margin)), jnp.mean(margin > 0)


def preference_loss_reference(policy, frozen, chosen, rejected, beta=0.3):
    def log_likelihood(w, tokens):
        p = jax.nn.softmax(w, axis=-1)
        return jnp.log(p[tokens[:, :-1], tokens[:, 1:]]).sum(1)

    ratio = [log_likelihood(policy, t) - log_likelihood(frozen, t) for t in (chosen, rejected)]
    margin = beta * (ratio[0] - ratio[1])
    return jnp.mean(jnp.log1p(jnp.exp(-margin))), (margin > 0).mean()


def quantised(x, book, commitment=0.25):
    """Vector quantisation with straight-through gradients; x: [n / N, D]; the loss and the book's gradient."""

    def loss(book):
        distance = jnp.sum(x**2, 1, keepdims=True) - 2 * x @ book.T + jnp.sum(book**2, 1)
        index = jnp.argmin(distance, axis=1)
        code = book[index]
        fit = jnp.mean((lax.stop_gradient(x) - code) ** 2)
        commit = jnp.mean((x - lax.stop_gradient(code)) ** 2)
        return fit + commitment * commit

    value, grad = jax.value_and_grad(loss)(lax.pcast(book, "x", to="varying"))
    return lax.pmean(value, "x"), lax.pmean(grad, "x")


def quantised_reference(x, book, commitment=0.25):
    index = jnp.argmin(jnp.linalg.norm(x[:, None] - book, axis=-1), 1)
    hot = (index[:, None] == jnp.arange(book.shape[0])).astype(x.dtype)
    error = hot @ book - x
    return (1 + commitment) * jnp.mean(error**2), 2 * hot.T @ error / error.size


def crf(emissions, transitions, tags):
    """The negative log-likelihood of tags in a linear chain; emissions: [batch, T, K]."""
    steps = jnp.arange(tags.shape[1])
    unary = jnp.take_along_axis(emissions, tags[..., None], axis=2)[..., 0].sum(1)
    pairs = transitions.at[tags[:, :-1], tags[:, 1:]].get(out_sharding=P("x", None)).sum(1)

    def forward(alpha, t):
        alpha = jax.nn.logsumexp(alpha[:, :, None] + transitions, axis=1) + emissions[:, t]
        return alpha, None

    alpha, _ = lax.scan(forward, emissions[:, 0], steps[1:])
    return jax.nn.logsumexp(alpha, axis=-1) - unary - pairs


def crf_reference(emissions, transitions, tags):
    def single(e, y):
        score = sum(e[t, y[t]] for t in range(len(y))) + sum(transitions[y[t], y[t + 1]] for t in range(len(y) - 1))
        alpha = jnp.exp(e[0])
        for t in range(1, e.shape[0]):
            alpha = (alpha @ jnp.exp(transitions)) * jnp.exp(e[t])
        return jnp.log(alpha.sum()) - score

    return jax.vmap(single)(emissions, tags)


def odd_even_sort(x):
    """Sorts blocks along the devices by odd-even transposition; x: [n / N]."""
    me = lax.axis_index("x")
    x = jnp.sort(x)
    n = x.shape[0]
    for phase in range(N):
        first = range(phase % 2, N - 1, 2)
        pairs = [(i, i + 1) for i in first] + [(i + 1, i) for i in first]
        other = lax.ppermute(x, "x", pairs)
        both = jnp.sort(jnp.concatenate([x, other]))
        left = (me % 2) == (phase % 2)
        paired = jnp.isin(me, jnp.array([i for pair in pairs for i in pair]))
        x = jnp.where(paired, jnp.where(left, both[:n], both[n:]), x)
    return x


def odd_even_sort_reference(x):
    return jnp.sort(x)


def summa(a, b):
    """A product on a grid of devices by broadcasts of panels; a: [M / 2, K / 2], b: [K / 2, N / 2]."""
    row, column = lax.axis_index("x"), lax.axis_index("y")
    acc = jnp.zeros((a.shape[0], b.shape[1]))
    for k in range(2):
        panel_a = lax.psum(jnp.where(column == k, a, 0), "y")
        panel_b = lax.psum(jnp.where(row == k, b, 0), "x")
        acc = acc + panel_a @ panel_b
    return acc


def summa_reference(a, b):
    return a @ b


def compressed_mean(grads):
    """The mean of gradients in eight bits with a shared scale, and what is lost; grads: [N, n] by rows."""
    g = grads[0]
    scale = lax.pmax(jnp.max(jnp.abs(g)), "x") / 127.0
    small = jnp.round(g / scale).astype(jnp.int8)
    total = lax.psum(small.astype(jnp.int32), "x")
    mean = total * scale / N
    lost = g - small * scale
    return mean, lost[None]


def compressed_mean_reference(grads):
    scale = jnp.abs(grads).max() / 127
    near = jnp.round(grads / scale) * scale
    return near.mean(0), grads - near


def spectral(w, u, rounds=2):
    """A layer's weights over their largest singular value, by power iteration; w: [out, in]."""
    v = jnp.dot(w.T, u, out_sharding=P(None))
    for _ in range(rounds):
        v = jnp.dot(w.T, u, out_sharding=P(None))
        v = v / (jnp.linalg.norm(v) + 1e-6)
        u = jnp.dot(w, v, out_sharding=P("x"))
        u = u / (jnp.linalg.norm(u) + 1e-6)
    sigma = jnp.sum(u * jnp.dot(w, v, out_sharding=P("x")))
    return w / sigma, u


def spectral_reference(w, u, rounds=2):
    v = u @ w
    for _ in range(rounds):
        v = u @ w
        v = v / (jnp.sqrt(v @ v) + 1e-6)
        u = w @ v
        u = u / (jnp.sqrt(u @ u) + 1e-6)
    return w / (u @ w @ v), u


def patches(images, kernel, position, cls):
    """The tokens of a vision transformer; images: [batch, 8, 8, 3], kernel: [4 * 4 * 3, D]."""
    b, h, w, c = images.shape
    split = P("x", None, None, None, None, None)
    x = images.reshape(b, h // 4, 4, w // 4, 4, c, out_sharding=split)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 16 * c, out_sharding=P("x", None, None))
    x = jnp.einsum("bnp,pd->bnd", x, kernel)
    first = jnp.broadcast_to(cls, (b, 1, cls.shape[-1]), out_sharding=P("x", None, None))
    x = jnp.concatenate([first, x], axis=1)
    return x + position


def patches_reference(images, kernel, position, cls):
    b = images.shape[0]
    filters = kernel.reshape(4, 4, 3, -1)
    y = lax.conv_general_dilated(images, filters, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jnp.concatenate([jnp.tile(cls[None, None], (b, 1, 1)), y.reshape(b, 4, -1)], 1)
    return y + position[None]


def delta_rule(q, k, v, beta):
    """The delta rule of a fast-weight memory, one head a device; q, k, v: [T, 1, d], beta: [T, 1]."""
    q, k, v, beta = q[:, 0], k[:, 0], v[:, 0], beta[:, 0]
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)

    def step(memory, inputs):
        q, k, v, b = inputs
        old = memory @ k
        memory = memory + b * jnp.outer(v - old, k)
        return memory, memory @ q

    start = lax.pcast(jnp.zeros((v.shape[-1], k.shape[-1])), "x", to="varying")
    memory, out = lax.scan(step, start, (q, k, v, jax.nn.sigmoid(beta)))
    return out[:, None], memory[None]


def delta_rule_reference(q, k, v, beta):
    k = k / jnp.sqrt((k**2).sum(-1, keepdims=True))
    b = 1 / (1 + jnp.exp(-beta))
    memory = jnp.zeros((q.shape[1], v.shape[2], k.shape[2]))
    out = []
    for t in range(q.shape[0]):
        wrong = v[t] - jnp.einsum("hvk,hk->hv", memory, k[t])
        memory = memory + jnp.einsum("h,hv,hk->hvk", b[t], wrong, k[t])
        out.append(jnp.einsum("hvk,hk->hv", memory, q[t]))
    return jnp.stack(out), memory


def gaussian_process(x, y, new, noise=0.1):
    """The mean and variance that a Gaussian process predicts; the new points are sharded."""

    def kernel(a, b):
        d = jnp.sum((a[:, None] - b[None, :]) ** 2, axis=-1)
        return jnp.exp(-0.5 * d)

    chol = jnp.linalg.cholesky(kernel(x, x) + noise * jnp.eye(x.shape[0]))
    alpha = jax.scipy.linalg.cho_solve((chol, True), y)
    cross = kernel(new, x)
    half = jax.scipy.linalg.solve_triangular(chol, cross.T, lower=True)
    return cross @ alpha, 1.0 - jnp.sum(half**2, axis=0)


def gaussian_process_reference(x, y, new, noise=0.1):
    def kernel(a, b):
        return jnp.exp(-((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T) / 2)

    k = kernel(x, x) + noise * jnp.eye(len(x))
    c = kernel(new, x)
    return c @ jnp.linalg.solve(k, y), 1 - jnp.diagonal(c @ jnp.linalg.solve(k, c.T))


def butterfly(x):
    """A sum over all devices by exchanges with partners whose number differs in one bit, and the norm of it."""
    bit = 1
    while bit < N:
        x = x + lax.ppermute(x, "x", [(i, i ^ bit) for i in range(N)])
        bit *= 2
    return x / jnp.sqrt(jnp.sum(x**2) + 1e-6)


def butterfly_reference(x):
    total = x.reshape(N, -1).sum(0)
    return jnp.tile(total / jnp.sqrt((total**2).sum() + 1e-6), N)


def token_loss(logits, labels):
    """Cross-entropy with label smoothing and a penalty on the normaliser; a label of -1 is padding."""
    mask = labels >= 0
    z = jax.nn.logsumexp(logits, axis=-1)
    hot = jax.nn.one_hot(jnp.where(mask, labels, 0), logits.shape[-1], out_sharding=P("x", None, None))  # type: ignore[call-arg]
    soft = 0.9 * hot + 0.1 / logits.shape[-1]
    loss = z - jnp.sum(soft * logits, axis=-1) + 1e-2 * z**2
    total = jnp.sum(jnp.where(mask, loss, 0.0))
    return total / jnp.maximum(mask.sum(), 1)


def token_loss_reference(logits, labels):
    v = logits.shape[-1]
    logp = jax.nn.log_softmax(logits, -1)
    z = jnp.log(jnp.exp(logits).sum(-1))
    picked = jnp.take_along_axis(logp, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    each = -(0.9 * picked + 0.1 * logp.sum(-1) / v) + 0.01 * z * z
    keep = (labels != -1).astype(logits.dtype)
    return (each * keep).sum() / keep.sum()


def resampled(particles, log_weights, u):
    """Systematic resampling of particles for each series of a batch; particles: [batch, n], u: [batch]."""
    n = particles.shape[1]
    w = jax.nn.softmax(log_weights, axis=1)
    edges = jnp.cumsum(w, axis=1)
    points = (jnp.arange(n) + u[:, None]) / n
    index = jnp.sum(points[:, :, None] > edges[:, None, :], axis=2)
    size = 1.0 / jnp.sum(w**2, axis=1)
    return jnp.take_along_axis(particles, jnp.minimum(index, n - 1), axis=1), size


def resampled_reference(particles, log_weights, u):
    def single(p, lw, u):
        w = jnp.exp(lw) / jnp.exp(lw).sum()
        index = jnp.searchsorted(jnp.cumsum(w), (jnp.arange(len(p)) + u) / len(p))
        return p[jnp.clip(index, 0, len(p) - 1)], 1 / (w @ w)

    return jax.vmap(single)(particles, log_weights, u)


def newton_step(w, x, y, damping=0.1):
    """A step of Newton's method for logistic regression, by products with the Hessian; x: [n / N, D]."""

    def loss(w):
        z = x @ w
        return jnp.sum(jnp.logaddexp(0.0, z) - y * z) / x.shape[0]

    def hvp(v):
        return lax.pmean(jax.jvp(jax.grad(loss), (w,), (v,))[1], "x") + damping * v

    w = lax.pcast(w, "x", to="varying")
    g = lax.pmean(jax.grad(loss)(w), "x")
    hessian = jnp.stack([hvp(row) for row in lax.pcast(jnp.eye(w.shape[0]), "x", to="varying")])
    return lax.pmean(w, "x") - jnp.linalg.solve(lax.pmean(hessian, "x"), g)


def newton_step_reference(w, x, y, damping=0.1):
    p = 1 / (1 + jnp.exp(-x @ w))
    g = x.T @ (p - y) / len(y)
    h = (x.T * (p * (1 - p))) @ x / len(y) + damping * jnp.eye(len(w))
    return w - jnp.linalg.inv(h) @ g


def forces(x, m):
    """The forces between bodies, which travel round a ring of devices; x: [bodies / N, 3], m: [bodies / N]."""

    def step(carry, _):
        total, ox, om = carry
        d = ox[None, :, :] - x[:, None, :]
        r2 = jnp.sum(d * d, axis=-1) + 0.1
        total = total + jnp.sum(om[None, :, None] * d * (r2**-1.5)[..., None], axis=1)
        perm = [(i, (i + 1) % N) for i in range(N)]
        ox, om = lax.ppermute((ox, om), "x", perm)
        return (total, ox, om), None

    (total, _, _), _ = lax.scan(step, (jnp.zeros_like(x), x, m), None, length=N)
    return m[:, None] * total


def forces_reference(x, m):
    d = x[None] - x[:, None]
    r = jnp.sqrt((d**2).sum(-1) + 0.1)
    return jnp.einsum("i,j,ijk->ik", m, m, d / r[..., None] ** 3)


def graph_attention(nodes, edges, w, a, heads=2):
    """A layer of graph attention whose edges are sharded; nodes: [n, D], edges: [e / N, 2]."""
    n = nodes.shape[0]
    h = (nodes @ w).reshape(n, heads, -1)
    src, dst = edges[:, 0], edges[:, 1]
    e = jax.nn.leaky_relu(jnp.sum(jnp.concatenate([h[src], h[dst]], -1) * a, -1), 0.2)
    top = lax.pmax(jax.ops.segment_max(e, dst, n), "x")
    p = jnp.exp(e - top[dst])
    total = lax.psum(jax.ops.segment_sum(p, dst, n), "x")
    out = lax.psum(jax.ops.segment_sum(p[..., None] * h[src], dst, n), "x")
    return (out / (total[..., None] + 1e-9)).reshape(n, -1)


def graph_attention_reference(nodes, edges, w, a, heads=2):
    n = nodes.shape[0]
    h = (nodes @ w).reshape(n, heads, -1)
    d = h.shape[-1]
    left, right = (h * a[:, :d]).sum(-1), (h * a[:, d:]).sum(-1)
    score = left[None] + right[:, None]
    p = jnp.exp(jnp.where(score > 0, score, 0.2 * score))
    count = jnp.zeros((n, n)).at[edges[:, 1], edges[:, 0]].add(1.0)[..., None]
    p = count * p
    return jnp.einsum("ijh,jhd->ihd", p / (p.sum(1, keepdims=True) + 1e-9), h).reshape(n, -1)


def embedding_bag(table, ids, offsets, weights):
    """The weighted mean of rows of a table for each bag; the features are sharded; ids: [bags, most]."""
    rows = table.at[ids].get(out_sharding=P(None, None, "x"))
    live = jnp.arange(ids.shape[1])[None, :] < offsets[:, None]
    w = jnp.where(live, weights, 0.0)
    total = jnp.sum(rows * w[:, :, None], axis=1)
    return total / jnp.maximum(w.sum(axis=1), 1e-6)[:, None]


def embedding_bag_reference(table, ids, offsets, weights):
    out = []
    for bag in range(ids.shape[0]):
        w = weights[bag] * (jnp.arange(ids.shape[1]) < offsets[bag])
        out.append(w @ table[ids[bag]] / jnp.maximum(w.sum(), 1e-6))
    return jnp.stack(out)


def field(p, y):
    return jnp.tanh(y @ p["w"] + p["b"]) - 0.1 * y


@jax.jit
def runge_kutta(p, y, dt=0.25, steps=2):
    """Steps of the classical Runge-Kutta method for a learned field; the states are sharded."""
    for _ in range(2):
        k1 = field(p, y)
        k2 = field(p, y + 0.5 * dt * k1)
        k3 = field(p, y + 0.5 * dt * k2)
        k4 = field(p, y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def runge_kutta_reference(p, y, dt=0.25, steps=2):
    def f(y):
        return jnp.tanh(jnp.einsum("bi,ij->bj", y, p["w"]) + p["b"]) - y / 10

    for _ in range(2):
        a = f(y) * dt
        b = f(y + a / 2) * dt
        c = f(y + b / 2) * dt
        d = f(y + c) * dt
        y = y + a / 6 + b / 3 + c / 3 + d / 6
    return y


def verified(draft, target, tokens, u):
    """How many tokens of a draft are kept, and the distribution to sample from instead; both: [batch, T, V]."""
    p = jnp.take_along_axis(jax.nn.softmax(target, -1), tokens[..., None], axis=-1)[..., 0]
    q = jnp.take_along_axis(jax.nn.softmax(draft, -1), tokens[..., None], axis=-1)[..., 0]
    kept = u < jnp.minimum(1.0, p / q)
    count = jnp.sum(jnp.cumprod(kept.astype(jnp.int32), axis=1), axis=1)
    rest = jnp.maximum(jax.nn.softmax(target, -1) - jax.nn.softmax(draft, -1), 0.0)
    return count, rest / jnp.sum(rest, axis=-1, keepdims=True)


def verified_reference(draft, target, tokens, u):
    p, q = jax.nn.softmax(target), jax.nn.softmax(draft)
    hot = tokens[..., None] == jnp.arange(p.shape[-1])
    lost = u >= (p * hot).sum(-1) / (q * hot).sum(-1)
    count = jnp.where(lost.any(1), jnp.argmax(lost, 1), u.shape[1])
    rest = jax.nn.relu(p - q)
    return count.astype(jnp.int32), rest / rest.sum(-1, keepdims=True)


def upsampled(x, kernel, bias):
    """A convolution to four times the channels, whose pixels are shuffled; x: [batch, H, W, C]."""
    y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
    b, h, w, c = y.shape
    y = y.reshape(b, h, w, 2, 2, c // 4)
    y = y.transpose(0, 1, 3, 2, 4, 5)
    return jax.nn.gelu(y.reshape(b, 2 * h, 2 * w, c // 4, out_sharding=P("x", None, None, None)))


def upsampled_reference(x, kernel, bias):
    b, h, w, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = sum(padded[:, i : i + h, j : j + w] @ kernel[i, j] for i in range(3) for j in range(3)) + bias
    y = y.reshape(b, h, w, 2, 2, -1)
    rows = [jnp.stack([y[:, :, :, i, 0], y[:, :, :, i, 1]], axis=3).reshape(b, h, 2 * w, -1) for i in range(2)]
    return jax.nn.gelu(jnp.stack(rows, axis=2).reshape(b, 2 * h, 2 * w, -1))


@partial(jax.jit, static_argnames="top")
def beam_step(scores, logits, top=3):
    """The best continuations of the beams of a batch; scores: [batch, beams], logits: [batch, beams, vocab]."""
    total = scores[:, :, None] + jax.nn.log_softmax(logits, axis=-1)
    b, k, v = total.shape
    best, at = lax.top_k(total.reshape(b, k * v), top)
    return best, at // v, at % v


def beam_step_reference(scores, logits, top=3):
    def single(s, x):
        total = (s[:, None] + x - jnp.log(jnp.exp(x).sum(-1, keepdims=True))).reshape(-1)
        order = jnp.argsort(-total)[:top]
        return total[order], order // x.shape[-1], jnp.mod(order, x.shape[-1])

    return jax.vmap(single)(scores, logits)


def sequence_parallel(x, gain, up, down):
    """A block whose tokens are sharded outside of the products; x: [T / N, D], up: [D, F / N], down: [F / N, D]."""
    z = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * gain
    whole = lax.all_gather(z, "x", axis=0, tiled=True)
    h = jax.nn.silu(whole @ up)
    return x + lax.psum_scatter(h @ down, "x", scatter_dimension=0, tiled=True)


def sequence_parallel_reference(x, gain, up, down):
    z = gain * x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    h = z @ up
    return x + (h / (1 + jnp.exp(-h))) @ down


def mean_discrepancy(x, y):
    """The squared maximum mean discrepancy of two samples that are sharded; x, y: [n / N, D]."""
    all_x = lax.all_gather(x, "x", tiled=True)
    all_y = lax.all_gather(y, "x", tiled=True)

    def kernel(a, b):
        d2 = jnp.sum(a * a, 1)[:, None] + jnp.sum(b * b, 1)[None, :] - 2 * a @ b.T
        return jnp.exp(-d2 / 8.0)

    n = all_x.shape[0]
    rows = lax.axis_index("x") * x.shape[0] + jnp.arange(x.shape[0])
    off = (rows[:, None] != jnp.arange(n)).astype(x.dtype)
    xx = lax.psum(jnp.sum(off * kernel(x, all_x)), "x") / (n * (n - 1))
    yy = lax.psum(jnp.sum(off * kernel(y, all_y)), "x") / (n * (n - 1))
    xy = lax.pmean(jnp.mean(kernel(x, all_y)), "x")
    return xx + yy - 2 * xy


def mean_discrepancy_reference(x, y):
    def kernel(a, b):
        return jnp.exp(-((a[:, None] - b) ** 2).sum(-1) / 8)

    n = len(x)
    inner = (kernel(x, x).sum() + kernel(y, y).sum() - 2 * n) / n / (n - 1)
    return inner - 2 * kernel(x, y).mean()


def total_variation(image, noisy, rate=0.1):
    """A gradient step that smooths an image whose rows are sharded over devices, with halos on both sides."""
    below = lax.ppermute(image[:1], "x", [(i + 1, i) for i in range(N - 1)])
    above = lax.ppermute(image[-1:], "x", [(i, i + 1) for i in range(N - 1)])
    me = lax.axis_index("x")
    above = jnp.where(me == 0, image[:1], above)
    below = jnp.where(me == N - 1, image[-1:], below)
    tall = jnp.concatenate([above, image, below])
    wide = jnp.pad(image, ((0, 0), (1, 1)), mode="edge")
    laplacian = tall[:-2] + tall[2:] + wide[:, :-2] + wide[:, 2:] - 4 * image
    return image + rate * (2.0 * laplacian - (image - noisy))


def total_variation_reference(image, noisy, rate=0.1):
    p = jnp.pad(image, 1, mode="edge")
    lap = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * image
    return image - rate * (image - noisy) + 2 * rate * lap


def least_squares(a, b):
    """A least-squares fit by a tall QR: each device its block, then the stacked triangles; a: [rows / N, D]."""
    q1, r1 = jnp.linalg.qr(a)
    stack = lax.all_gather(r1, "x", tiled=True)
    q2, r = jnp.linalg.qr(stack)
    part = lax.dynamic_slice_in_dim(q2, lax.axis_index("x") * a.shape[1], a.shape[1])
    q = q1 @ part
    return jax.scipy.linalg.solve_triangular(r, lax.psum(q.T @ b, "x"))


def least_squares_reference(a, b):
    return jnp.linalg.solve(a.T @ a, a.T @ b)


ROWS, X, R = P("x", None), P("x"), P()
TREE = {"w": P("x", "y"), "b": P("y")}
FIELD = {"w": P(None, None), "b": P(None)}


def tree(seed):
    return {"w": normal(seed, 4, 4), "b": normal(seed + 1, 4)}


HISTOGRAMS = (uniform(1, 8), uniform(2, 6))
START = Gaussian(normal(0, 4, 3), np.stack([np.eye(3, dtype=np.float32)] * 4))
PAGES = P(None, None, "y", None)
HEADS = P("x", None, "y", None)

CASES = (
    Case(sinkhorn, (uniform(0, 8, 6), *(h / h.sum() for h in HISTOGRAMS)), mesh, (ROWS, X, P(None)), None,
         sinkhorn_reference, (("jnp.dot(k.T, u,", "jnp.dot(k.T, a,"),), jitted=True, setting=True),
    Case(kalman, (START, normal(1, 4, 5, 2), normal(2, 3, 3) / 2, normal(3, 2, 3), np.eye(3, dtype=np.float32) * 0.1,
                  np.eye(2, dtype=np.float32) * 0.3), mesh,
         (Gaussian(ROWS, P("x", None, None)), P("x", None, None), P(), P(), P(), P()), None, kalman_reference, (
        ("p = f @ s.cov @ f.T + q", "p = f.T @ s.cov @ f + q"),
    ), jitted=True, setting=True),
    Case(pencil_fft, (normal(0, 8, 8),), ring, (X,), X, pencil_fft_reference, (
        ("y = jnp.fft.fft(y, axis=0)", "y = jnp.fft.ifft(y, axis=0)"),)),
    Case(life, (ints(0, 2, 8, 6),), grid, (P("x", "y"),), P("x", "y"), life_reference, (
        ("((cells == 1) & (near == 2))", "((cells == 1) & (near == 4))"),)),
    Case(histogram, (normal(0, 32), uniform(1, 32)), ring, (X, X), R, histogram_reference, (
        ("/ 0.5).astype", "/ 0.4).astype"),)),
    Case(paged_decode, (normal(0, 4, 2, 4), normal(1, 10, 2, 2, 4), normal(2, 10, 2, 2, 4), ints(3, 10, 4, 3),
                        np.array([3, 6, 1, 4], np.int32)), mesh,
         (P("x", "y", None), PAGES, PAGES, ROWS, X), None, paged_decode_reference, (
        ("< lengths[:, None, None]", "<= lengths[:, None, None]"),), jitted=True, setting=True),
    Case(biased_attention, (normal(0, 2, 12, 2, 4), normal(1, 2, 12, 2, 4), normal(2, 2, 12, 2, 4), normal(3, 8, 2)),
         mesh, (HEADS, HEADS, HEADS, P(None, "y")), None, biased_attention_reference, (
        ("np.log(most / exact)", "np.log(most)"),), jitted=True, setting=True, within=(bucket,)),
    Case(schedule_free, (tree(0), tree(2), tree(4), np.float32(3)), mesh, (TREE, TREE, TREE, R), None,
         schedule_free_reference, (
        ("x = jax.tree.map(lambda x, z: (1 - weight) * x + weight * z, params, z)",
         "x = jax.tree.map(lambda x, z: weight * x + (1 - weight) * z, params, z)"),), jitted=True, setting=True),
    Case(v_trace, (normal(0, 4, 6) / 3, normal(1, 4, 6), normal(2, 4, 6), normal(3, 4)), mesh,
         (ROWS, ROWS, ROWS, X), None, v_trace_reference, (
        ("deltas = rhos * (rewards + gamma * following - values)", "deltas = rewards + gamma * following - values"),
    ), jitted=True, setting=True),
    Case(preference_loss, (normal(0, 6, 6), normal(1, 6, 6), ints(2, 6, 4, 5), ints(3, 6, 4, 5)), mesh,
         (R, R, ROWS, ROWS), None, preference_loss_reference, (
        ("picked = jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1)",
         "picked = jnp.take_along_axis(logp, tokens[:, :-1, None], axis=-1)"),), jitted=True, setting=True),
    Case(quantised, (normal(0, 16, 4), normal(1, 6, 4)), ring, (X, R), (R, R), quantised_reference, (
        ("- 2 * x @ book.T", "- x @ book.T"),)),
    Case(crf, (normal(0, 4, 5, 3), normal(1, 3, 3), ints(2, 3, 4, 5)), mesh, (P("x", None, None), R, ROWS), None,
         crf_reference, (("axis=1) + emissions[:, t]", "axis=2) + emissions[:, t]"),), jitted=True, setting=True),
    Case(odd_even_sort, (normal(0, 12),), ring, (X,), X, odd_even_sort_reference, (
        ("left = (me % 2) == (phase % 2)", "left = (me % 2) == 0"),)),
    Case(summa, (normal(0, 6, 8), normal(1, 8, 4)), grid, (P("x", "y"), P("x", "y")), P("x", "y"), summa_reference, (
        ('panel_b = lax.psum(jnp.where(row == k, b, 0), "x")', 'panel_b = lax.psum(jnp.where(column == k, b, 0), "x")'),
    )),
    Case(compressed_mean, (normal(0, N, 10),), ring, (X,), (R, X), compressed_mean_reference, (
        ("lost = g - small * scale", "lost = g - small"),)),
    Case(spectral, (normal(0, 8, 6), normal(1, 8)), line, (ROWS, X), None, spectral_reference, (
        ("v = v / (jnp.linalg.norm(v) + 1e-6)", "v = v / (jnp.linalg.norm(u) + 1e-6)"),), jitted=True, setting=True),
    Case(patches, (normal(0, 4, 8, 8, 3), normal(1, 48, D), normal(2, 5, D), normal(3, D)), mesh,
         (P("x", None, None, None), R, R, R), None, patches_reference, (
        ("x.transpose(0, 1, 3, 2, 4, 5)", "x.transpose(0, 1, 3, 4, 2, 5)"),), jitted=True, setting=True),
    Case(delta_rule, (normal(0, 5, N, 3), normal(1, 5, N, 3), normal(2, 5, N, 3), normal(3, 5, N)), ring,
         (P(None, "x"),) * 4, (P(None, "x"), X), delta_rule_reference, (
        ("memory = memory + b * jnp.outer(v - old, k)", "memory = memory + b * jnp.outer(v, k) - old[:, None]"),)),
    Case(gaussian_process, (normal(0, 6, 2), normal(1, 6), normal(2, 8, 2)), line, (R, R, ROWS), None,
         gaussian_process_reference, (
        ("half = jax.scipy.linalg.solve_triangular(chol, cross.T, lower=True)",
         "half = jax.scipy.linalg.solve_triangular(chol, cross.T, lower=True, trans=1)"),), jitted=True),
    Case(butterfly, (normal(0, 12),), ring, (X,), X, butterfly_reference, (("bit = 1", "bit = 2"),)),
    Case(token_loss, (normal(0, 4, 3, 6), ints(1, 7, 4, 3) - 1), mesh, (P("x", None, None), ROWS), None,
         token_loss_reference, (
        ("soft = 0.9 * hot + 0.1 / logits.shape[-1]", "soft = 0.9 * hot + 0.1 / logits.shape[0]"),
    ), jitted=True, setting=True),
    Case(resampled, (normal(0, 4, 6), normal(1, 4, 6), uniform(2, 4)), mesh, (ROWS, ROWS, X), None,
         resampled_reference,
         (("points = (jnp.arange(n) + u[:, None]) / n", "points = jnp.arange(n) / n + u[:, None]"),),
         jitted=True, setting=True),
    Case(newton_step, (normal(0, 4), normal(1, 12, 4), ints(2, 2, 12).astype(np.float32)), ring, (R, X, X), R,
         newton_step_reference, (("+ damping * v", "+ damping"),)),
    Case(forces, (normal(0, 8, 3), uniform(1, 8)), ring, (X, X), X, forces_reference, (
        ('ox, om = lax.ppermute((ox, om), "x", perm)', 'ox = lax.ppermute(ox, "x", perm)'),)),
    Case(graph_attention, (normal(0, 5, 4), ints(1, 5, 16, 2), normal(2, 4, 6), normal(3, 2, 6)), ring,
         (R, X, R, R), R, graph_attention_reference, (
        ("p = jnp.exp(e - top[dst])", "p = jnp.exp(e - top[src])"),)),
    Case(embedding_bag, (normal(0, 9, D), ints(1, 9, 4, 3), np.array([2, 3, 1, 3], np.int32), uniform(2, 4, 3)), line,
         (P(None, "x"), R, R, R), None, embedding_bag_reference, (
        ("jnp.maximum(w.sum(axis=1), 1e-6)", "jnp.maximum(weights.sum(axis=1), 1e-6)"),), jitted=True, setting=True),
    Case(runge_kutta, ({"w": normal(0, 4, 4), "b": normal(1, 4)}, normal(2, 8, 4)), line, (FIELD, ROWS), None,
         runge_kutta_reference, (("k4 = field(p, y + dt * k3)", "k4 = field(p, y + 0.5 * dt * k3)"),), jitted=True),
    Case(verified, (normal(0, 4, 5, 6), normal(1, 4, 5, 6), ints(2, 6, 4, 5), uniform(3, 4, 5)), mesh,
         (P("x", None, None), P("x", None, None), ROWS, ROWS), None, verified_reference, (
        ("jnp.minimum(1.0, p / q)", "jnp.minimum(1.0, q / p)"),), jitted=True, setting=True),
    Case(upsampled, (normal(0, 4, 4, 3, 2), normal(1, 3, 3, 2, 8) / 3, normal(2, 8)), mesh,
         (P("x", None, None, None), R, R), None, upsampled_reference, (
        ("y = y.transpose(0, 1, 3, 2, 4, 5)", "y = y.transpose(0, 1, 4, 2, 3, 5)"),), jitted=True, setting=True),
    Case(beam_step, (normal(0, 4, 3), normal(1, 4, 3, 5)), ring, (X, X), None, beam_step_reference, (
        ("at // v, at % v", "at // k, at % v"),), jitted=True),
    Case(sequence_parallel, (normal(0, 8, 4), normal(1, 4), normal(2, 4, 8), normal(3, 8, 4)), ring,
         (X, R, P(None, "x"), X), X, sequence_parallel_reference, (
        ("return x + lax.psum_scatter(", "return z + lax.psum_scatter("),)),
    Case(mean_discrepancy, (normal(0, 8, 3), normal(1, 8, 3) + 1), ring, (X, X), R, mean_discrepancy_reference, (
        ('rows = lax.axis_index("x") * x.shape[0] + jnp.arange(x.shape[0])', "rows = jnp.arange(x.shape[0])"),)),
    Case(total_variation, (normal(0, 8, 5), normal(1, 8, 5)), ring, (X, X), X, total_variation_reference, (
        ('below = lax.ppermute(image[:1], "x"', 'below = lax.ppermute(image[-1:], "x"'),)),
    Case(least_squares, (normal(0, 24, 3), normal(1, 24)), ring, (X, X), R, least_squares_reference, (
        ("* a.shape[1], a.shape[1])", "* a.shape[0], a.shape[1])"),), check_vma=False),
)  # fmt: skip
