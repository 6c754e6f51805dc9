"""Losses, caches, dispatch, control, filters and optimizers, half of them on Explicit meshes, with references."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, ints, normal, uniform

mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
row = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Explicit,))
N = 4
ring = AbstractMesh((N,), ("a",), axis_types=(AxisType.Auto,))
grid = AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def rmsprop(w, v, m, g, rate=0.01):
    """RMSProp with momentum, after clipping each row's norm; everything: [rows, D]."""
    norm = jnp.sqrt(jnp.sum(g * g, axis=1, keepdims=True))
    g = g / jnp.maximum(1.0, norm / 2.0)
    v = 0.95 * v + 0.05 * g * g
    m = 0.8 * m + g / jnp.sqrt(v + 1e-4)
    return w - rate * m, v, m


def rmsprop_reference(w, v, m, g, rate=0.01):
    n = jnp.linalg.norm(g, axis=-1)[:, None]
    g = jnp.where(n > 2, g * 2 / n, g)
    v = v + (g**2 - v) / 20
    m = m * 0.8 + g * lax.rsqrt(v + 1e-4)
    return w - m * rate, v, m


def blockwise_loss(x, w, labels):
    """Cross-entropy over a vocabulary in blocks, with a running maximum; x: [n, D], w: [D, V]."""
    top = jnp.full(labels.shape, -jnp.inf)
    total = jnp.zeros(labels.shape)
    picked = jnp.zeros(labels.shape)
    size = w.shape[1] // 3
    for block in range(3):
        first = block * size
        logits = x @ w[:, first : first + size]
        new = jnp.maximum(top, logits.max(-1))
        total = total * jnp.exp(top - new) + jnp.exp(logits - new[:, None]).sum(-1)
        top = new
        inside = (labels >= first) & (labels < first + size)
        local = jnp.clip(labels - first, 0, size - 1)
        picked = picked + jnp.where(inside, jnp.take_along_axis(logits, local[:, None], -1)[:, 0], 0.0)
    return jnp.mean(jnp.log(total) + top - picked)


def blockwise_reference(x, w, labels):
    logp = jax.nn.log_softmax(x @ w)
    return -jnp.sum(logp * jax.nn.one_hot(labels, w.shape[1])) / len(labels)


def cached_step(q, k, v, keys, values, length):
    """One step of decoding with a cache; q, k, v: [batch, heads, d], keys, values: [batch, time, heads, d]."""
    keys = lax.dynamic_update_slice(keys, k[:, None], (0, length, 0, 0))
    values = lax.dynamic_update_slice(values, v[:, None], (0, length, 0, 0))
    scores = jnp.einsum("bhd,bthd->bht", q, keys) / jnp.sqrt(q.shape[-1])
    live = jnp.arange(keys.shape[1]) <= length
    weights = jax.nn.softmax(jnp.where(live, scores, -1e9), axis=-1)
    return jnp.einsum("bht,bthd->bhd", weights, values), keys, values


def cached_reference(q, k, v, keys, values, length):
    now = (jnp.arange(keys.shape[1]) == length)[None, :, None, None]
    keys, values = jnp.where(now, k[:, None], keys), jnp.where(now, v[:, None], values)
    s = jnp.exp((q[:, None] * keys).sum(-1) * q.shape[-1] ** -0.5)
    s = s * (jnp.arange(keys.shape[1]) <= length)[None, :, None]
    return (s[..., None] * values).sum(1) / s.sum(1)[..., None], keys, values


def offset_rotary(x, start):
    """Rotary positions that begin at an offset; x: [batch, time, heads, d]."""
    half = x.shape[-1] // 2
    rates = 100.0 ** (-jnp.arange(half) / half)
    angles = (start + jnp.arange(x.shape[1]))[:, None] * rates
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def offset_reference(x, start):
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    t = jnp.arange(x.shape[1]) + start
    z = z * jnp.exp(1j * t[:, None, None] * 100.0 ** (-jnp.arange(half) / half))
    return jnp.concatenate([z.real, z.imag], -1)


def split_group_norm(x, scale, bias, groups=2):
    """Group norm of images whose rows are on devices; x: [batch, H / N, W, C]."""
    b, h, w, c = x.shape
    y = x.reshape(b, h, w, groups, c // groups)
    mean = lax.pmean(y.mean((1, 2, 4), keepdims=True), "a")
    var = lax.pmean(((y - mean) ** 2).mean((1, 2, 4), keepdims=True), "a")
    y = (y - mean) / jnp.sqrt(var + 1e-5)
    return y.reshape(x.shape) * scale + bias


def group_norm_reference(x, scale, bias, groups=2):
    parts = jnp.split(x, groups, axis=-1)
    out = [(p - p.mean((1, 2, 3), keepdims=True)) / jnp.sqrt(p.var((1, 2, 3), keepdims=True) + 1e-5) for p in parts]
    return jnp.concatenate(out, -1) * scale + bias


def dispatched(x, gate, w, capacity=3):
    """Tokens to the likeliest of the experts, one on each device, of limited capacity; x: [n / N, D], w: [1, D, D]."""
    probs = jax.nn.softmax(x @ gate, axis=-1)
    chosen = jnp.argmax(probs, axis=-1)
    hot = jax.nn.one_hot(chosen, N)
    place = (jnp.cumsum(hot, axis=0) - hot) * hot
    fits = hot * (place < capacity)
    slots = fits[..., None] * jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity)[:, None]
    sent = jnp.einsum("nec,nd->ecd", slots, x)
    arrived = lax.all_to_all(sent, "a", split_axis=0, concat_axis=1, tiled=True)
    done = jax.nn.relu(arrived @ w)
    back = lax.all_to_all(done, "a", split_axis=1, concat_axis=0, tiled=True)
    weight = (probs * fits).sum(-1)
    return jnp.einsum("nec,ecd->nd", slots, back) * weight[:, None]


def dispatched_reference(x, gate, w, capacity=3):
    out = []
    for block in jnp.split(x, N):
        p = jax.nn.softmax(block @ gate)
        best = p.argmax(-1)
        earlier = jnp.tril(best[:, None] == best[None, :], -1).sum(1)
        y = jax.nn.relu(jnp.einsum("nd,nde->ne", block, w[best]))
        out.append(jnp.where(earlier < capacity, p.max(-1), 0.0)[:, None] * y)
    return jnp.concatenate(out)


def top_p(logits, p=0.7):
    """The probabilities of the likeliest tokens up to a mass of p; logits: [batch, V]."""
    probs = jax.nn.softmax(logits, axis=-1)
    order = jnp.argsort(-probs, axis=-1)
    ordered = jnp.take_along_axis(probs, order, axis=-1)
    before = jnp.cumsum(ordered, axis=-1) - ordered
    rank = jnp.argsort(order, axis=-1)
    kept = jnp.take_along_axis(before < p, rank, axis=-1)
    probs = jnp.where(kept, probs, 0.0)
    return probs / probs.sum(-1, keepdims=True)


def top_p_reference(logits, p=0.7):
    q = jnp.exp(logits) / jnp.exp(logits).sum(1, keepdims=True)
    larger = (q[:, None, :] > q[:, :, None]) * q[:, None, :]
    q = q * (larger.sum(-1) < p)
    return q / q.sum(1, keepdims=True)


def advantages(rewards, values, dones, gamma=0.95, lam=0.9):
    """Generalised advantages; rewards, dones: [batch, T], values: [batch, T + 1]."""
    live = 1.0 - dones
    deltas = rewards + gamma * values[:, 1:] * live - values[:, :-1]

    def back(carry, step):
        delta, going = step
        carry = delta + gamma * lam * going * carry
        return carry, carry

    _, out = lax.scan(back, jnp.zeros_like(values[:, 0]), (deltas.T, live.T), reverse=True)
    return out.T, out.T + values[:, :-1]


def advantages_reference(rewards, values, dones, gamma=0.95, lam=0.9):
    last, out = 0.0, []
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] - values[:, t] + jnp.where(dones[:, t] > 0, 0.0, gamma * values[:, t + 1])
        last = delta + jnp.where(dones[:, t] > 0, 0.0, gamma * lam * last)
        out.append(last)
    adv = jnp.stack(out[::-1], axis=1)
    return adv, adv + values[:, :-1]


def ppo_loss(logits, actions, old, adv, values, returns, clip=0.2):
    """The clipped loss of PPO with a value loss and an entropy; logits: [batch, A]."""
    logp = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logp, actions[:, None], axis=1)[:, 0]
    ratio = jnp.exp(chosen - old)
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    policy = -jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - clip, 1 + clip) * adv).mean()
    entropy = -(jnp.exp(logp) * logp).sum(-1).mean()
    return policy + 0.5 * ((values - returns) ** 2).mean() - 0.01 * entropy


def ppo_reference(logits, actions, old, adv, values, returns, clip=0.2):
    p = jax.nn.softmax(logits)
    r = (p * jax.nn.one_hot(actions, p.shape[1])).sum(1) / jnp.exp(old)
    a = (adv - jnp.mean(adv)) / (jnp.sqrt(jnp.mean((adv - adv.mean()) ** 2)) + 1e-6)
    bound = jnp.where(a > 0, (1 + clip) * a, (1 - clip) * a)
    gain = jnp.where(r * a < bound, r * a, bound)
    error = jnp.mean(jnp.square(returns - values)) / 2
    return error - gain.mean() + 0.01 * jnp.mean(jnp.sum(p * jnp.log(p), 1))


def causal_conv(x, w):
    """A causal convolution of sequences that are cut; x: [T / N, C], w: [3, C, K]."""
    tail = lax.ppermute(x[-2:], "a", [(i, (i + 1) % N) for i in range(N)])
    tail = jnp.where(lax.axis_index("a") == 0, 0.0, tail)
    padded = jnp.concatenate([tail, x])
    t = x.shape[0]
    return sum(padded[k : k + t] @ w[k] for k in range(3))


def causal_reference(x, w):
    padded = jnp.pad(x, ((2, 0), (0, 0)))
    return jnp.einsum("tkc,kcd->td", jnp.stack([padded[i : i + len(x)] for i in range(3)], 1), w)


def slab_fft(x):
    """A spectral derivative along the second axis and a filter along the first, by a transpose between devices."""
    own = jnp.fft.fft(x, axis=1)
    k = jnp.fft.fftfreq(x.shape[1]) * x.shape[1]
    own = own * 1j * k
    turned = lax.all_to_all(own, "a", split_axis=1, concat_axis=0, tiled=True)
    turned = jnp.fft.fft(turned, axis=0)
    keep = jnp.abs(jnp.fft.fftfreq(turned.shape[0])) < 0.3
    turned = jnp.fft.ifft(jnp.where(keep[:, None], turned, 0), axis=0)
    own = lax.all_to_all(turned, "a", split_axis=0, concat_axis=1, tiled=True)
    return jnp.fft.ifft(own, axis=1).real


def slab_reference(x):
    m, n = x.shape
    z = jnp.fft.fft2(x)
    z = z * (1j * jnp.fft.fftfreq(n) * n) * (jnp.abs(jnp.fft.fftfreq(m)) < 0.3)[:, None]
    return jnp.fft.ifft2(z).real


def looked_up(table, ids, weights):
    """The weighted sums of rows of a table that is cut by rows; ids: [bags, k]."""
    size = table.shape[0]
    first = lax.axis_index("a") * size
    local = ids - first
    mine = (local >= 0) & (local < size)
    rows = table[jnp.clip(local, 0, size - 1)]
    rows = jnp.where(mine[..., None], rows, 0.0) * weights[..., None]
    return lax.psum(rows.sum(1), "a") / weights.sum(1, keepdims=True)


def looked_up_reference(table, ids, weights):
    w = weights / weights.sum(-1)[:, None]
    return jnp.einsum("bk,bkd->bd", w, table[ids])


def contrastive(u, v, temperature=0.2):
    """The contrastive loss of pairs of which each device has some; u, v: [n / N, D]."""
    u = u / jnp.linalg.norm(u, axis=-1, keepdims=True)
    v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
    others = lax.all_gather(v, "a", axis=0, tiled=True)
    logits = u @ others.T / temperature
    labels = lax.axis_index("a") * u.shape[0] + jnp.arange(u.shape[0])
    right = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    loss = jax.nn.logsumexp(logits, axis=1) - right
    return lax.pmean(loss.mean(), "a")


def contrastive_reference(u, v, temperature=0.2):
    norms = jnp.sqrt((u**2).sum(1))[:, None] * jnp.sqrt((v**2).sum(1))[None]
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(u @ v.T / norms / temperature)))


def mixture_density(x, w, y):
    """The negative log-likelihood of a mixture whose parameters a layer gives; x: [n, D], w: [D, 3 K]."""
    logits, mean, scale = jnp.split(x @ w, 3, axis=1)
    scale = jax.nn.softplus(scale) + 1e-3
    logs = -0.5 * ((y[:, None] - mean) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)
    return -jnp.mean(jax.nn.logsumexp(jax.nn.log_softmax(logits) + logs, axis=1))


def mixture_reference(x, w, y):
    h = (x @ w).reshape(len(x), 3, -1)
    p, m, s = jax.nn.softmax(h[:, 0]), h[:, 1], jnp.log1p(jnp.exp(h[:, 2])) + 1e-3
    density = jnp.exp(-((y[:, None] - m) ** 2) / (2 * s * s)) / (s * jnp.sqrt(2 * jnp.pi))
    return -jnp.log((p * density).sum(1)).mean()


def averaged(params, average, step):
    """A moving average of parameters that warms up, and the unbiased one; trees."""
    decay = jnp.minimum(0.9, (1 + step) / (10 + step))
    average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
    return average, jax.tree.map(lambda a: a / (1 - decay ** (step + 1)), average)


def averaged_reference(params, average, step):
    d = jnp.where((1 + step) / (10 + step) > 0.9, 0.9, (1 + step) / (10 + step))
    new = {name: average[name] + (params[name] - average[name]) * (1 - d) for name in params}
    return new, {name: value / (1 - d * d**step) for name, value in new.items()}


def lion(w, m, g, rate=0.1):
    """A step of Lion whose weights are sharded and whose gradients are partial sums; g: [D, K] on each device."""
    g = lax.psum_scatter(g, "a", scatter_dimension=0, tiled=True) / N
    update = jnp.tanh(20.0 * (0.9 * m + 0.1 * g))
    m = 0.99 * m + 0.01 * g
    return w - rate * (update + 0.05 * w), m


def lion_reference(w, m, g, rate=0.1):
    g = g.reshape(N, *w.shape).mean(0)
    update = jnp.tanh(18 * m + 2 * g)
    return w * (1 - 0.05 * rate) - rate * update, m + 0.01 * (g - m)


def viterbi(emissions, transitions):
    """The score of the best path and the last state on it; emissions: [batch, T, S]."""

    def step(score, e):
        every = score[:, :, None] + transitions[None]
        return every.max(axis=1) + e, every.argmax(axis=1)

    score, back = lax.scan(step, emissions[:, 0], emissions[:, 1:].transpose(1, 0, 2))
    return score.max(-1), score.argmax(-1), back


def viterbi_reference(emissions, transitions):
    def single(e):
        score, back = e[0], []
        for t in range(1, len(e)):
            every = transitions.T + score[None, :]
            back.append(every.argmax(1))
            score = e[t] + every.max(1)
        return score.max(), score.argmax(), jnp.stack(back)

    best, last, back = jax.vmap(single)(emissions)
    return best, last, back.transpose(1, 0, 2)


def low_rank(x, w, a, b, alpha=8.0):
    """A linear layer with an adapter of low rank, tensor-parallel; x: [n, D / N], w: [D / N, K], a: [D / N, r]."""
    y = lax.psum(x @ w, "a")
    low = lax.psum(x @ a, "a")
    return y + low @ b * (alpha / a.shape[1])


def low_rank_reference(x, w, a, b, alpha=8.0):
    return x @ (w + alpha * (a @ b) / b.shape[0])


def reweighted(losses, groups, logits):
    """Weights of groups by their mean losses (group DRO), and the weighted loss; losses, groups: [n / N]."""
    hot = jax.nn.one_hot(groups, logits.shape[0])
    count = lax.psum(hot.sum(0), "a")
    mean = lax.psum(losses @ hot, "a") / jnp.maximum(count, 1.0)
    logits = logits + 0.1 * mean
    weights = jax.nn.softmax(logits)
    return (weights * mean).sum(), logits


def reweighted_reference(losses, groups, logits):
    same = groups[None, :] == jnp.arange(len(logits))[:, None]
    mean = jnp.where(same, losses, 0).sum(1) / jnp.maximum(same.sum(1), 1)
    logits = logits + mean / 10
    w = jnp.exp(logits)
    return (w @ mean) / w.sum(), logits


def windowed(x, w_in, w_out, window=3):
    """Attention within a window, of one head, with a residual; x: [batch, T, D]."""
    q, k, v = jnp.split(x @ w_in, 3, axis=-1)
    scores = jnp.einsum("bqd,bkd->bqk", q, k) * q.shape[-1] ** -0.5
    ahead = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])[None, :]
    near = (ahead >= 0) & (ahead < window)
    weights = jax.nn.softmax(jnp.where(near, scores, -jnp.inf), axis=-1)
    return x + jnp.einsum("bqk,bkd->bqd", weights, v) @ w_out


def windowed_reference(x, w_in, w_out, window=3):
    d = x.shape[-1]
    q, k, v = x @ w_in[:, :d], x @ w_in[:, d : 2 * d], x @ w_in[:, 2 * d :]
    out = []
    for t in range(x.shape[1]):
        first = max(0, t - window + 1)
        p = jax.nn.softmax(jnp.einsum("bd,bkd->bk", q[:, t], k[:, first : t + 1]) / jnp.sqrt(d))
        out.append(jnp.einsum("bk,bkd->bd", p, v[:, first : t + 1]))
    return x + jnp.stack(out, 1) @ w_out


def lstm(xs, h, c, wx, wh, b):
    """An LSTM over a sequence; xs: [T, batch, D], h, c: [batch, K]."""

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ wx + h @ wh + b, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, c), out = lax.scan(step, (h, c), xs)
    return out, c


def lstm_reference(xs, h, c, wx, wh, b):
    k, out = h.shape[1], []
    for x in xs:
        z = jnp.concatenate([x, h], 1) @ jnp.concatenate([wx, wh]) + b
        s = 1 / (1 + jnp.exp(-(z + jnp.concatenate([jnp.zeros(k), jnp.ones(k), jnp.zeros(2 * k)]))))
        c = s[:, k : 2 * k] * c + s[:, :k] * jnp.tanh(z[:, 2 * k : 3 * k])
        h = s[:, 3 * k :] * jnp.tanh(c)
        out.append(h)
    return jnp.stack(out), c


def whitened(x, y):
    """A linear regression by the covariances of centred data that devices share; x: [n / N, D], y: [n / N]."""
    count = lax.psum(x.shape[0], "a")
    mx, my = lax.psum(x.sum(0), "a") / count, lax.psum(y.sum(), "a") / count
    xc, yc = x - mx, y - my
    cov = lax.psum(xc.T @ xc, "a") / (count - 1)
    cross = lax.psum(xc.T @ yc, "a") / (count - 1)
    w = jnp.linalg.solve(cov + 0.01 * jnp.eye(x.shape[1]), cross)
    return w, my - mx @ w


def whitened_reference(x, y):
    c = jnp.cov(jnp.concatenate([x, y[:, None]], 1), rowvar=False)
    d = x.shape[1]
    w = jnp.linalg.inv(c[:d, :d] + 0.01 * jnp.eye(d)) @ c[:d, d]
    return w, y.mean() - x.mean(0) @ w


def two_stage(x, w1, w2):
    """A ring all-gather of activations between two layers that are cut by columns and rows; x: [n / N, D]."""
    me = lax.axis_index("a")
    n = x.shape[0]
    out = lax.pcast(jnp.zeros((n * N, w2.shape[1])), "a", to="varying")
    for step in range(N):
        source = (me - step) % N
        part = jax.nn.gelu(x @ w1) @ w2
        out = lax.dynamic_update_slice(out, part, (source * n, 0))
        x = lax.ppermute(x, "a", [(i, (i + 1) % N) for i in range(N)])
    return lax.psum_scatter(out, "a", scatter_dimension=0, tiled=True)


def two_stage_reference(x, w1, w2):
    return jax.nn.gelu(x @ w1) @ w2


def grouped_queries(q, k, v):
    """Causal attention in which heads share keys; q: [batch, T, heads, d], k, v: [batch, T, fewer, d]."""
    share = q.shape[2] // k.shape[2]
    t = q.shape[1]
    q = q.reshape(*q.shape[:2], k.shape[2], share, q.shape[3])
    scores = jnp.einsum("bqhsd,bkhd->bhsqk", q, k) / jnp.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((t, t), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    out = jnp.einsum("bhsqk,bkhd->bqhsd", weights, v)
    return out.reshape(*out.shape[:2], -1, out.shape[-1])


def grouped_queries_reference(q, k, v):
    share = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, share, axis=2), jnp.repeat(v, share, axis=2)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    later = jnp.arange(q.shape[1])[None, :] > jnp.arange(q.shape[1])[:, None]
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s - 1e9 * later), v)


ROWS, A, R = P("a", None), P("a"), P()
CUBE, HEADS = P("a", None, None), P("a", None, "b", None)
TREE = {"w": P("a", "b"), "b": P("b")}


def tree(seed):
    return {"w": normal(seed, 4, 4), "b": normal(seed + 1, 4)}


CASES = (
    Case(
        rmsprop,
        (normal(0, 8, 4), uniform(1, 8, 4), normal(2, 8, 4), normal(3, 8, 4)),
        mesh,
        (P("a", "b"),) * 4,
        None,
        rmsprop_reference,
        (
            ("g = g / jnp.maximum(1.0, norm / 2.0)", "g = g / jnp.maximum(1.0, norm)"),
            ("m = 0.8 * m + g / jnp.sqrt(v + 1e-4)", "m = 0.8 * m + g / (v + 1e-4)"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        blockwise_loss,
        (normal(0, 8, 4), normal(1, 4, 12), ints(2, 12, 8)),
        mesh,
        (ROWS, R, A),
        None,
        blockwise_reference,
        (
            ("first = block * size", "first = block * (size - 1)"),
            ("jnp.mean(jnp.log(total) + top - picked)", "jnp.mean(jnp.log(total) - picked)"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        cached_step,
        (
            normal(0, 4, 2, 4),
            normal(1, 4, 2, 4),
            normal(2, 4, 2, 4),
            normal(3, 4, 6, 2, 4),
            normal(4, 4, 6, 2, 4),
            np.int32(3),
        ),
        mesh,
        (P("a", "b", None), P("a", "b", None), P("a", "b", None), HEADS, HEADS, R),
        None,
        cached_reference,
        (
            ("<= length", "< length"),
            (
                "values = lax.dynamic_update_slice(values, v[:, None], (0, length, 0, 0))",
                "values = lax.dynamic_update_slice(values, v[:, None], (0, length - 1, 0, 0))",
            ),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        offset_rotary,
        (normal(0, 4, 5, 2, 6), np.int32(7)),
        mesh,
        (HEADS, R),
        None,
        offset_reference,
        (
            ("(start + jnp.arange(x.shape[1]))[:, None]", "jnp.arange(x.shape[1])[:, None]"),
            ("right * cos + left * sin", "right * cos - left * sin"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        split_group_norm,
        (normal(0, 2, 8, 3, 4), normal(1, 4), normal(2, 4)),
        ring,
        (P(None, "a"), R, R),
        P(None, "a"),
        group_norm_reference,
        (
            (
                'var = lax.pmean(((y - mean) ** 2).mean((1, 2, 4), keepdims=True), "a")',
                "var = ((y - mean) ** 2).mean((1, 2, 4), keepdims=True)",
            ),
            ("y = (y - mean) / jnp.sqrt(var + 1e-5)", "y = (y - mean) / (var + 1e-5)"),
        ),
    ),
    Case(
        dispatched,
        (normal(0, 24, 3), normal(1, 3, N), normal(2, N, 3, 3)),
        ring,
        (A, R, A),
        A,
        dispatched_reference,
        (
            ("place = (jnp.cumsum(hot, axis=0) - hot) * hot", "place = jnp.cumsum(hot, axis=0) * hot"),
            ("back = lax.all_to_all(done, ", "back = lax.all_to_all(arrived, "),
        ),
    ),
    Case(
        top_p,
        (normal(0, 4, 8),),
        mesh,
        (ROWS,),
        None,
        top_p_reference,
        (("before = jnp.cumsum(ordered, axis=-1) - ordered", "before = jnp.cumsum(ordered, axis=-1)"),),
        jitted=True,
        setting=True,
    ),
    Case(
        advantages,
        (normal(0, 4, 6), normal(1, 4, 7), (ints(2, 4, 4, 6) == 0).astype(np.float32)),
        mesh,
        (ROWS, ROWS, ROWS),
        None,
        advantages_reference,
        (
            ("gamma * values[:, 1:] * live", "gamma * values[:, 1:]"),
            ("carry = delta + gamma * lam * going * carry", "carry = delta + gamma * going * carry"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        ppo_loss,
        (normal(0, 8, 3), ints(1, 3, 8), -uniform(2, 8), normal(3, 8), normal(4, 8), normal(5, 8)),
        row,
        (ROWS, A, A, A, A, A),
        None,
        ppo_reference,
        (
            ("ratio = jnp.exp(chosen - old)", "ratio = jnp.exp(old - chosen)"),
            ("- 0.01 * entropy", "+ 0.01 * entropy"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        causal_conv,
        (normal(0, 16, 3), normal(1, 3, 3, 2)),
        ring,
        (A, R),
        A,
        causal_reference,
        (
            ("(i, (i + 1) % N)", "((i + 1) % N, i)"),
            ('lax.axis_index("a") == 0', 'lax.axis_index("a") == N - 1'),
        ),
    ),
    Case(
        slab_fft,
        (normal(0, 8, 12),),
        ring,
        (A,),
        A,
        slab_reference,
        (("k = jnp.fft.fftfreq(x.shape[1]) * x.shape[1]", "k = jnp.fft.fftfreq(x.shape[1]) * x.shape[0]"),),
    ),
    Case(
        looked_up,
        (normal(0, 12, 3), ints(1, 12, 5, 2), uniform(2, 5, 2)),
        ring,
        (A, R, R),
        R,
        looked_up_reference,
        (
            ("mine = (local >= 0) & (local < size)", "mine = (local > 0) & (local < size)"),
            ('first = lax.axis_index("a") * size', 'first = lax.axis_index("a") * (size - 1)'),
        ),
    ),
    Case(
        contrastive,
        (normal(0, 8, 4), normal(1, 8, 4)),
        ring,
        (A, A),
        R,
        contrastive_reference,
        (
            ('labels = lax.axis_index("a") * u.shape[0] + jnp.arange(u.shape[0])', "labels = jnp.arange(u.shape[0])"),
            (
                "v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)",
                "v = v / jnp.linalg.norm(u, axis=-1, keepdims=True)",
            ),
        ),
    ),
    Case(
        mixture_density,
        (normal(0, 8, 4), normal(1, 4, 6), normal(2, 8)),
        row,
        (ROWS, R, A),
        None,
        mixture_reference,
        (
            ("- jnp.log(scale) -", "+ jnp.log(scale) -"),
            ("jax.nn.log_softmax(logits) + logs", "logits + logs"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        averaged,
        (tree(0), tree(2), np.float32(4)),
        mesh,
        (TREE, TREE, R),
        None,
        averaged_reference,
        (
            ("decay * a + (1 - decay) * p", "decay * p + (1 - decay) * a"),
            ("decay ** (step + 1)", "decay**step"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        lion,
        (normal(0, 8, 3), normal(1, 8, 3), normal(2, 32, 3)),
        ring,
        (A, A, A),
        A,
        lion_reference,
        (
            ("0.9 * m + 0.1 * g))", "0.9 * m + g))"),
            ("tiled=True) / N", "tiled=True)"),
        ),
    ),
    Case(
        viterbi,
        (normal(0, 4, 5, 3), normal(1, 3, 3)),
        mesh,
        (CUBE, R),
        None,
        viterbi_reference,
        (("score[:, :, None] + transitions[None]", "score[:, None, :] + transitions[None]"),),
        jitted=True,
        setting=True,
    ),
    Case(
        low_rank,
        (normal(0, 6, 12), normal(1, 12, 5), normal(2, 12, 2), normal(3, 2, 5)),
        ring,
        (P(None, "a"), A, A, R),
        R,
        low_rank_reference,
        (
            ('low = lax.psum(x @ a, "a")', "low = x @ a"),
            ("(alpha / a.shape[1])", "(alpha / a.shape[0])"),
        ),
        check_vma=False,
    ),
    Case(
        reweighted,
        (uniform(0, 16), ints(1, 3, 16), normal(2, 3)),
        ring,
        (A, A, R),
        R,
        reweighted_reference,
        (
            ('count = lax.psum(hot.sum(0), "a")', "count = N * hot.sum(0)"),
            ("return (weights * mean).sum(), logits", "return (weights * mean).mean(), logits"),
        ),
        check_vma=False,
    ),
    Case(
        windowed,
        (normal(0, 4, 6, 4), normal(1, 4, 12), normal(2, 4, 4)),
        mesh,
        (CUBE, R, R),
        None,
        windowed_reference,
        (
            ("(ahead < window)", "(ahead <= window)"),
            ('"bqd,bkd->bqk", q, k)', '"bqd,bkd->bqk", k, q)'),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        lstm,
        (normal(0, 4, 4, 3), normal(1, 4, 2), normal(2, 4, 2), normal(3, 3, 8), normal(4, 2, 8), normal(5, 8)),
        row,
        (P(None, "a", None), ROWS, ROWS, R, R, R),
        None,
        lstm_reference,
        (
            ("i, f, g, o = jnp.split", "i, g, f, o = jnp.split"),
            ("jax.nn.sigmoid(f + 1.0)", "jax.nn.sigmoid(f)"),
        ),
        jitted=True,
        setting=True,
    ),
    Case(
        whitened,
        (normal(0, 16, 3), normal(1, 16)),
        ring,
        (A, A),
        R,
        whitened_reference,
        (
            ('cov = lax.psum(xc.T @ xc, "a") / (count - 1)', 'cov = lax.psum(xc.T @ xc, "a") / count'),
            ("return w, my - mx @ w", "return w, my"),
        ),
    ),
    Case(
        two_stage,
        (normal(0, 8, 4), normal(1, 4, 8), normal(2, 8, 3)),
        ring,
        (A, P(None, "a"), A),
        A,
        two_stage_reference,
        (
            ("source = (me - step) % N", "source = (me + step) % N"),
            ("(source * n, 0)", "(source, 0)"),
        ),
    ),
    Case(
        grouped_queries,
        (normal(0, 2, 5, 4, 4), normal(1, 2, 5, 2, 4), normal(2, 2, 5, 2, 4)),
        mesh,
        (HEADS, HEADS, HEADS),
        None,
        grouped_queries_reference,
        (
            ('"bqhsd,bkhd->bhsqk", q, k)', '"bqshd,bkhd->bhsqk", q, k)'),
            ("mask = jnp.tril(jnp.ones((t, t), bool))", "mask = jnp.triu(jnp.ones((t, t), bool))"),
        ),
        jitted=True,
    ),
)
