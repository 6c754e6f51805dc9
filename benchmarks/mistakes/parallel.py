"""Parts of large models, sharded by hand and by the compiler, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
auto = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
N = 4
row = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
square = AbstractMesh((2, 2), ("r", "c"), axis_types=(AxisType.Auto,) * 2)
D = 8
UP = [(i + 1, i) for i in range(N - 1)]
DOWN = [(i, i + 1) for i in range(N - 1)]


def dispatched(x, router, w1, w2):
    """Experts with a capacity of four tokens of each device; x: [tokens, D], w1, w2: an expert on a device."""
    probs = jax.nn.softmax(x @ router, axis=-1)
    expert = jnp.argmax(probs, axis=-1)
    hot = jax.nn.one_hot(expert, N)
    place = jnp.cumsum(hot, axis=0) * hot - 1.0
    slots = jax.nn.one_hot(place.astype(int), 4) * hot[..., None]
    sent = jnp.einsum("tec,td->ecd", slots, x)
    arrived = lax.all_to_all(sent, "i", split_axis=0, concat_axis=1, tiled=True)
    h = jax.nn.relu(arrived[0] @ w1[0])
    done = (h @ w2[0])[None]
    back = lax.all_to_all(done, "i", split_axis=1, concat_axis=0, tiled=True)
    gate = jnp.max(probs, axis=-1)
    return jnp.einsum("tec,ecd->td", slots, back) * gate[:, None]


def dispatched_reference(x, router, w1, w2):
    def group(x):
        e = jnp.exp(x @ router)
        p = e / e.sum(1, keepdims=True)
        best = p.argmax(1)
        same = best[:, None] == best[None]
        earlier = jnp.tril(same, -1).sum(1)
        out = jnp.stack([jax.nn.relu(x @ a) @ b for a, b in zip(w1, w2, strict=True)], axis=1)
        own = jnp.take_along_axis(out, best[:, None, None], axis=1)[:, 0]
        return jnp.where((earlier < 4)[:, None], own, 0) * p.max(1)[:, None]

    return jax.vmap(group)(x.reshape(N, -1, D)).reshape(x.shape)


def looked_up(ids, table, w):
    """Embeddings whose words are sharded, and the logits of a tied head; table: [words, D] on a device."""
    words = table.shape[0]
    local = ids - lax.axis_index("i") * words
    mine = (local >= 0) & (local < words)
    rows = jnp.where(mine[:, None], table[jnp.clip(local, 0, words - 1)], 0.0)
    x = lax.psum(rows, "i") * D**0.5
    h = jnp.tanh(x @ w)
    return h @ table.T


def looked_up_reference(ids, table, w):
    x = jnp.take(table, ids, axis=0) * jnp.sqrt(D)
    return jnp.tanh(x @ w) @ table.T


def sharded_state(w, m, x, y):
    """A step with momentum whose state is sharded; w: [D, 4], m: [D / N, 4] and rows of x, y on a device."""
    error = x @ w - y
    grad = x.T @ error / x.shape[0]
    own = lax.psum_scatter(grad, "i", scatter_dimension=0, tiled=True) / N
    rows = m.shape[0]
    part = lax.dynamic_slice_in_dim(w, lax.axis_index("i") * rows, rows, axis=0)
    m = 0.9 * m + own + 0.01 * part
    part = part - 0.1 * m
    return lax.all_gather(part, "i", axis=0, tiled=True), m


def sharded_state_reference(w, m, x, y):
    g = x.T @ (x @ w - y) / len(x) + 0.01 * w
    m = 0.9 * m + g
    return w - 0.1 * m, m


def convolved(x, kernel, bias):
    """A 3 × 3 convolution with zeros around; x: [rows, columns] on a device, rows are sharded."""
    above = lax.ppermute(x[-1:], "i", DOWN)
    below = lax.ppermute(x[:1], "i", UP)
    tall = jnp.concatenate([above, x, below], axis=0)
    wide = jnp.pad(tall, ((0, 0), (1, 1)))
    rows, columns = x.shape
    out = jnp.zeros_like(x)
    for a in range(3):
        for b in range(3):
            out = out + kernel[a, b] * wide[a : a + rows, b : b + columns]
    return jax.nn.relu(out + bias)


def convolved_reference(x, kernel, bias):
    out = lax.conv_general_dilated(x[None, None], kernel[None, None], (1, 1), "SAME")
    return jax.nn.relu(out[0, 0] + bias)


def tensor_block(x, g, up, down):
    """A block with rows of x on each device between the layers; up and down are sharded by the hidden units."""
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    normed = (x - mean) * lax.rsqrt(var + 1e-5) * g
    whole = lax.all_gather(normed, "i", axis=0, tiled=True)
    h = jax.nn.gelu(whole @ up)
    y = lax.psum_scatter(h @ down, "i", scatter_dimension=0, tiled=True)
    return x + y


def tensor_block_reference(x, g, up, down):
    centred = x - x.mean(1, keepdims=True)
    normed = centred / jnp.sqrt(x.var(1, keepdims=True) + 1e-5) * g
    return x + jax.nn.gelu(normed @ up) @ down


def smoothed(h, table, labels):
    """Cross entropy over sharded words, with label smoothing and a penalty of the partition function."""
    logits = h @ table.T
    words = table.shape[0]
    top = lax.pmax(lax.stop_gradient(logits).max(-1, keepdims=True), "i")
    total = lax.psum(jnp.exp(logits - top).sum(-1, keepdims=True), "i")
    lse = (jnp.log(total) + top)[:, 0]
    local = labels - lax.axis_index("i") * words
    here = jax.nn.one_hot(local, words)
    target = lax.psum((logits * here).sum(-1), "i")
    mean = lax.psum(logits.sum(-1), "i") / (N * words)
    loss = lse - 0.9 * target - 0.1 * mean
    return (loss + 0.01 * lse**2).mean()


def smoothed_reference(h, table, labels):
    logits = h @ table.T
    logp = jax.nn.log_softmax(logits)
    even = -logp.mean(1)
    hard = -jnp.take_along_axis(logp, labels[:, None], axis=1)[:, 0]
    z = jax.nn.logsumexp(logits, axis=1)
    return jnp.mean(0.9 * hard + 0.1 * even + 0.01 * z * z)


def normalised(x, running_mean, running_var, g):
    """Batch normalisation with running statistics; x: [rows, D] on a device."""
    count = lax.psum(x.shape[0], "i")
    mean = lax.psum(x.sum(0), "i") / count
    var = lax.psum(((x - mean) ** 2).sum(0), "i") / count
    y = (x - mean) / jnp.sqrt(var + 1e-3) * g
    new_mean = 0.9 * running_mean + 0.1 * mean
    new_var = 0.9 * running_var + 0.1 * var * count / (count - 1)
    return y, new_mean, new_var


def normalised_reference(x, running_mean, running_var, g):
    mean, var = jnp.mean(x, axis=0), jnp.var(x, axis=0)
    y = g * (x - mean) * lax.rsqrt(var + 1e-3)
    return y, 0.9 * running_mean + 0.1 * mean, 0.9 * running_var + 0.1 * jnp.var(x, axis=0, ddof=1)


def grouped_heads(q, k, v):
    """Attention with heads on the devices and two key heads; q: [rows, 8, 4], k, v: [rows, 4, 4] on a device."""
    rows = q.shape[0]
    q = lax.all_to_all(q, "i", split_axis=1, concat_axis=0, tiled=True)
    k = lax.all_to_all(k, "i", split_axis=1, concat_axis=0, tiled=True)
    v = lax.all_to_all(v, "i", split_axis=1, concat_axis=0, tiled=True)
    k, v = jnp.repeat(k, 2, axis=1), jnp.repeat(v, 2, axis=1)
    scores = jnp.einsum("qhd,khd->hqk", q, k) / 2.0
    at = jnp.arange(rows * N)
    scores = jnp.where(at[:, None] >= at, scores, -1e30)
    out = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, axis=-1), v)
    return lax.all_to_all(out, "i", split_axis=0, concat_axis=1, tiled=True)


def grouped_heads_reference(q, k, v):
    grouped = q.reshape(len(q), 4, 2, 4)
    scores = jnp.einsum("qgrd,kgd->grqk", grouped, k) / 2
    scores = jnp.where(jnp.tril(jnp.ones((len(q), len(q)), bool)), scores, -jnp.inf)
    e = jnp.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return jnp.einsum("grqk,kgd->qgrd", p, v).reshape(q.shape)


def gumbel(h, table, key):
    """A word for each row by Gumbel's trick; the words are sharded and each device has noise of its own."""
    me = lax.axis_index("i")
    logits = h @ table.T
    noise = jax.random.gumbel(jax.random.fold_in(key, me), logits.shape)
    scored = logits / 0.7 + noise
    best = scored.max(-1)
    word = scored.argmax(-1) + me * table.shape[0]
    top = lax.pmax(best, "i")
    return lax.pmin(jnp.where(best == top, word, N * table.shape[0]), "i"), top


def gumbel_reference(h, table, key):
    each = [jax.random.gumbel(jax.random.fold_in(key, i), (h.shape[0], table.shape[0] // N)) for i in range(N)]
    scored = h @ table.T / 0.7 + jnp.concatenate(each, axis=1)
    return scored.argmax(1), scored.max(1)


def merged(q, k, v):
    """Attention over keys that are sharded, by the logarithms of sums; q: whole, k, v: [rows, D] on a device."""
    scores = q @ k.T * D**-0.5
    own = jax.nn.logsumexp(scores, axis=-1)
    out = jax.nn.softmax(scores, axis=-1) @ v
    every = lax.all_gather(own, "i")
    weight = jnp.exp(own - jax.nn.logsumexp(every, axis=0))
    return lax.psum(weight[:, None] * out, "i")


def merged_reference(q, k, v):
    e = jnp.exp(q @ k.T / jnp.sqrt(D))
    return e @ v / e.sum(1, keepdims=True)


def sloped(x, wq, wk, wv):
    """Attention with a penalty of the distance; x: [batch, T, D], two heads."""
    batch, length, _ = x.shape
    q, k, v = (jnp.reshape(x @ w, (batch, length, 2, D // 2)) for w in (wq, wk, wv))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(D // 2)
    slopes = 2.0 ** (-4.0 * (jnp.arange(2) + 1))
    at = jnp.arange(length)
    scores = scores - slopes[:, None, None] * (at[:, None] - at)
    scores = jnp.where(at[:, None] >= at, scores, -1e30)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return jnp.reshape(out, (batch, length, D))


def sloped_reference(x, wq, wk, wv):
    def head(q, k, v, slope):
        length = q.shape[0]
        far = jnp.arange(length)[None] - jnp.arange(length)[:, None]
        s = jnp.exp(q @ k.T / 2 + slope * far) * (far <= 0)
        return s @ v / s.sum(1, keepdims=True)

    heads = []
    for h, slope in enumerate((1 / 16, 1 / 256)):
        q, k, v = (x @ w[:, h * 4 : h * 4 + 4] for w in (wq, wk, wv))
        heads.append(jax.vmap(head, (0, 0, 0, None))(q, k, v, slope))
    return jnp.concatenate(heads, axis=-1)


def clipped_policy(logits, old, actions, values, rewards, done):
    """The clipped objective with generalised advantages; all: [T, batch], logits: [T, batch, actions]."""

    def back(carry, now):
        adv, following = carry
        reward, value, end = now
        delta = reward + 0.95 * following * (1.0 - end) - value
        adv = delta + 0.95 * 0.9 * (1.0 - end) * adv
        return (adv, value), adv

    zero = jnp.zeros_like(rewards[0])
    _, adv = lax.scan(back, (zero, zero), (rewards, values, done), reverse=True)
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(logp - old)
    limited = jnp.clip(ratio, 0.8, 1.2)
    return -jnp.minimum(ratio * adv, limited * adv).mean()


def clipped_policy_reference(logits, old, actions, values, rewards, done):
    steps = rewards.shape[0]
    following, adv, every = jnp.zeros_like(rewards[0]), jnp.zeros_like(rewards[0]), []
    for t in reversed(range(steps)):
        live = 1 - done[t]
        adv = rewards[t] + 0.95 * live * following - values[t] + 0.855 * live * adv
        following = values[t]
        every.append(adv)
    a = jnp.stack(every[::-1])
    p = jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True)
    own = (p * (actions[..., None] == jnp.arange(logits.shape[-1]))).sum(-1)
    r = own / jnp.exp(old)
    return -jnp.mean(jnp.where(a > 0, jnp.minimum(r, 1.2), jnp.maximum(r, 0.8)) * a)


def denoised(x, noise, level, w1, w2):
    """The loss of a model that predicts noise; level: [batch], the share of the signal."""
    a = jnp.sqrt(level)[:, None]
    b = jnp.sqrt(1.0 - level)[:, None]
    noisy = a * x + b * noise
    h = jax.nn.silu(noisy @ w1)
    predicted = h @ w2
    weight = level / (1.0 - level)
    return jnp.mean(weight * jnp.mean((predicted - noise) ** 2, axis=-1))


def denoised_reference(x, noise, level, w1, w2):
    noisy = jnp.sqrt(level[:, None]) * x + jnp.sqrt(1 - level[:, None]) * noise
    h = noisy @ w1
    error = (h / (1 + jnp.exp(-h))) @ w2 - noise
    return (level / (1 - level) * (error * error).sum(1)).sum() / error.size


def cached(x, keys, values, at, wq, wk, wv):
    """A step of decoding with a cache; x: [batch, D], keys, values: [batch, T, D]."""
    q, k, v = x @ wq, x @ wk, x @ wv
    keys = lax.dynamic_update_slice_in_dim(keys, k[:, None], at, axis=1)
    values = lax.dynamic_update_slice_in_dim(values, v[:, None], at, axis=1)
    scores = jnp.einsum("bd,btd->bt", q, keys) * D**-0.5
    scores = jnp.where(jnp.arange(keys.shape[1]) <= at, scores, -1e30)
    out = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores, axis=-1), values)
    return out, keys, values


def cached_reference(x, keys, values, at, wq, wk, wv):
    hot = (jnp.arange(keys.shape[1]) == at)[None, :, None]
    keys = jnp.where(hot, (x @ wk)[:, None], keys)
    values = jnp.where(hot, (x @ wv)[:, None], values)
    s = (keys * (x @ wq)[:, None]).sum(-1) / jnp.sqrt(D)
    e = jnp.exp(s) * (jnp.arange(keys.shape[1]) < at + 1)
    return jnp.einsum("bt,btd->bd", e / e.sum(1, keepdims=True), values), keys, values


def factored(w, rows, columns, x, y):
    """A step whose second moments are factored; w: [D, 4]."""
    grad = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    square = grad**2 + 1e-6
    rows = 0.9 * rows + 0.1 * square.mean(axis=1)
    columns = 0.9 * columns + 0.1 * square.mean(axis=0)
    second = rows[:, None] * columns / rows.mean()
    update = grad / jnp.sqrt(second)
    update = update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(update**2)))
    return w - 0.05 * update, rows, columns


def factored_reference(w, rows, columns, x, y):
    g = 2 * x.T @ (x @ w - y) / y.size
    s = g * g + 1e-6
    r, c = 0.9 * rows + 0.1 * s.sum(1) / s.shape[1], 0.9 * columns + 0.1 * s.sum(0) / s.shape[0]
    u = g * jnp.sqrt(r.mean()) / jnp.sqrt(jnp.outer(r, c))
    size = jnp.sqrt((u * u).mean())
    return w - 0.05 * jnp.where(size > 1, u / size, u), r, c


X, B, WHOLE = P("i"), P("data", None), P(None, None)
IDS = (normal(9, 12) * 100).astype("int32") % 16
ACTIONS = (normal(8, 6, 4) * 100).astype("int32") % 3

CASES = (
    Case(dispatched, (normal(0, 32, D), normal(1, D, N), normal(2, N, D, 6), normal(3, N, 6, D)), row,
         (X, P(), X, X), X, dispatched_reference, (
        ("jnp.cumsum(hot, axis=0)", "jnp.cumsum(hot, axis=1)"),
        ("gate = jnp.max(probs, axis=-1)", "gate = jnp.max(x @ router, axis=-1)"),
    )),
    Case(looked_up, (IDS, normal(0, 16, D), normal(1, D, D)), row, (P(), X, P()), P(None, "i"), looked_up_reference, (
        ("ids - lax.axis_index(\"i\") * words", "ids - lax.axis_index(\"i\") - words"),
        ("x = lax.psum(rows, \"i\") * D**0.5", "x = lax.psum(rows, \"i\") / D**0.5"),
    )),
    Case(sharded_state, (normal(0, D, 4), normal(1, D, 4), normal(2, 16, D), normal(3, 16, 4)), row,
         (P(), X, X, X), (P(), X), sharded_state_reference, (
        ("scatter_dimension=0, tiled=True) / N", "scatter_dimension=0, tiled=True)"),
        ("own + 0.01 * part", "own + 0.01 * m"),
    ), check_vma=False),
    Case(convolved, (normal(0, 16, 6), normal(1, 3, 3), normal(2, 6)), row, (X, P(), P()), X, convolved_reference, (
        ("kernel[a, b]", "kernel[b, a]"),
        ("below = lax.ppermute(x[:1], \"i\", UP)", "below = lax.ppermute(x[:1], \"i\", DOWN)"),
    )),
    Case(tensor_block, (normal(0, 8, D), normal(1, D), normal(2, D, 16) / 3, normal(3, 16, D) / 4), row,
         (X, P(), P(None, "i"), X), X, tensor_block_reference, (
        ("whole = lax.all_gather(normed,", "whole = lax.all_gather(x,"),
        ("jax.nn.gelu(whole @ up)", "jax.nn.gelu(whole @ up, approximate=False)"),
    )),
    Case(smoothed, (normal(0, 12, D), normal(1, 16, D), IDS), row, (P(), X, P()), P(), smoothed_reference, (
        ("0.01 * lse**2", "0.01 * lse"),
        ("/ (N * words)", "/ words"),
    )),
    Case(normalised, (normal(0, 16, D), normal(1, D), normal(2, D) ** 2, normal(3, D)), row,
         (X, P(), P(), P()), (X, P(), P()), normalised_reference, (
        ("0.9 * running_mean + 0.1 * mean", "0.1 * running_mean + 0.9 * mean"),
        ("var * count / (count - 1)", "var * (count - 1) / count"),
    )),
    Case(grouped_heads, (normal(0, 12, 8, 4), normal(1, 12, 4, 4), normal(2, 12, 4, 4)), row, (X, X, X), X,
         grouped_heads_reference, (
        ("at = jnp.arange(rows * N)", "at = jnp.arange(rows * N) // 2"),
        ("k, v = jnp.repeat(k, 2, axis=1), jnp.repeat(v, 2, axis=1)",
         "k, v = jnp.repeat(v, 2, axis=1), jnp.repeat(v, 2, axis=1)"),
    )),
    Case(gumbel, (normal(0, 12, D), normal(1, 16, D), jax.random.key(3)), row, (P(), X, P()), (P(), P()),
         gumbel_reference, (
        ("jax.random.fold_in(key, me)", "jax.random.fold_in(key, 0)"),
        ("logits / 0.7 + noise", "(logits + noise) / 0.7"),
    )),
    Case(merged, (normal(0, 6, D), normal(1, 16, D), normal(2, 16, D)), row, (P(), X, X), P(), merged_reference, (
        ("jax.nn.logsumexp(every, axis=0)", "every.max(axis=0)"),
        ("weight[:, None] * out", "out"),
    )),
    Case(sloped, (normal(0, 4, 6, D), normal(1, D, D) / 2, normal(2, D, D) / 2, normal(3, D, D)), mesh,
         (P("data", None, None), P(None, None), P(None, None), P(None, None)), None, sloped_reference, (
        ("(jnp.arange(2) + 1)", "jnp.arange(2)"),
        ("scores - slopes[:, None, None]", "scores + slopes[:, None, None]"),
    ), jitted=True, setting=True),
    Case(clipped_policy, (normal(0, 6, 4, 3), normal(1, 6, 4) / 4 - 1, ACTIONS, normal(2, 6, 4), normal(3, 6, 4),
         (normal(4, 6, 4) > 0.8).astype("float32")), auto,
         (P(None, "data"), P(None, "data"), P(None, "data"), P(None, "data"), P(None, "data"), P(None, "data")), None,
         clipped_policy_reference, (
        ("0.95 * 0.9 * (1.0 - end) * adv", "0.95 * (1.0 - end) * adv"),
        ("jnp.exp(logp - old)", "jnp.exp(old - logp)"),
    ), jitted=True),
    Case(denoised, (normal(0, 8, D), normal(1, 8, D), abs(normal(2, 8)) % 0.8 + 0.1, normal(3, D, 6), normal(4, 6, D)),
         mesh, (B, B, P("data"), P(None, "model"), P("model", None)), None, denoised_reference, (
        ("b = jnp.sqrt(1.0 - level)[:, None]", "b = (1.0 - level)[:, None]"),
        ("(predicted - noise) ** 2", "(predicted - x) ** 2"),
    ), jitted=True),
    Case(cached, (normal(0, 4, D), normal(1, 4, 6, D), normal(2, 4, 6, D), 3, normal(3, D, D) / 2, normal(4, D, D) / 2,
         normal(5, D, D)), auto, (P("data"), P("data"), P("data"), P(), P(), P(), P()), None, cached_reference, (
        ("k[:, None], at, axis=1)", "k[:, None], at - 1, axis=1)"),
        ("<= at, scores", "< at, scores"),
    ), jitted=True),
    Case(factored, (normal(0, D, 4), normal(1, D) ** 2, normal(2, 4) ** 2, normal(3, 16, D), normal(4, 16, 4)), auto,
         (P("model"), P("model"), P(), P("data"), P("data")), None, factored_reference, (
        ("/ rows.mean()", "/ columns.mean()"),
        ("update = grad / jnp.sqrt(second)", "update = grad / second"),
    ), jitted=True),
)  # fmt: skip
