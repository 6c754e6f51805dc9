"""Whole models, train steps and parts of them as projects have them, half on Explicit meshes with bare specs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, ints, normal, uniform

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
N = 4
line = AbstractMesh((N,), ("x",), axis_types=(AxisType.Auto,))
grid = AbstractMesh((2, 2), ("row", "col"), axis_types=(AxisType.Auto,) * 2)


def layer_norm(x, gain, bias):
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * gain + bias


def attend(p, x, heads=2):
    t, d = x.shape[1:]
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / np.sqrt(d // heads)
    past = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    return jnp.einsum("bthk,hkd->btd", mixed, p["o"], out_sharding=P("data", None, None))


def language_model(params, tokens):
    """The mean loss of two layers that predict the next token; tokens: [batch, T]."""
    x = params["table"].at[tokens].get(out_sharding=P("data", None, None))
    x = x + params["places"][: tokens.shape[1]]
    for p in params["layers"]:
        x = x + attend(p, layer_norm(x, p["g1"], p["b1"]))
        hidden = jax.nn.gelu(layer_norm(x, p["g2"], p["b2"]) @ p["up"])
        x = x + jnp.einsum("btf,fd->btd", hidden, p["down"], out_sharding=P("data", None, None))
    logits = jnp.einsum("btd,vd->btv", x, params["table"])
    scores = jax.nn.log_softmax(logits[:, :-1], axis=-1)
    hits = jnp.sum(scores * jax.nn.one_hot(tokens[:, 1:], scores.shape[-1]), axis=-1)
    return -hits.mean()


def language_model_reference(params, tokens):
    def norm(z, g, b):
        return g * (z - z.mean(-1, keepdims=True)) * lax.rsqrt(z.var(-1, keepdims=True) + 1e-5) + b

    x = params["table"][tokens] + params["places"]
    causal = np.tri(tokens.shape[1], dtype=np.float32)
    for p in params["layers"]:
        h = norm(x, p["g1"], p["b1"])
        for head in range(2):
            q, k, v = h @ p["q"][:, head], h @ p["k"][:, head], h @ p["v"][:, head]
            e = jnp.exp(q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5) * causal
            x = x + e @ v / e.sum(-1, keepdims=True) @ p["o"][head]
        x = x + jax.nn.gelu(norm(x, p["g2"], p["b2"]) @ p["up"]) @ p["down"]
    p = jax.nn.softmax(x @ params["table"].T)
    chosen = jnp.take_along_axis(p[:, :-1], tokens[:, 1:, None], 2)
    return -jnp.log(chosen).mean()


def classify(params, images):
    """Patches, an encoder layer without a mask, and the class token's logits; images: [batch, H, W]."""
    b, height, width = images.shape
    pieces = images.reshape(b, height // 2, 2, width // 2, 2, out_sharding=P("data", None, None, None, None))
    x = jnp.reshape(pieces.swapaxes(2, 3), (b, -1, 4), out_sharding=P("data", None, None)) @ params["patch"]
    first = jnp.broadcast_to(params["token"], (b, 1, x.shape[-1]), out_sharding=P("data", None, None))
    x = jnp.concatenate([first, x], axis=1) + params["places"]
    q, k, v = x @ params["q"], x @ params["k"], x @ params["v"]
    share = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(q.shape[-1]), axis=-1)
    x = x + jnp.einsum("bts,bsd->btd", share, v)
    return x[:, 0] @ params["head"]


def vision_step(params, velocity, images, labels, rate=0.1, momentum=0.9):
    """A step of SGD with momentum and label smoothing for a small vision transformer."""

    def loss(p):
        scores = jax.nn.log_softmax(classify(p, images), axis=-1)
        target = 0.9 * jax.nn.one_hot(labels, scores.shape[-1]) + 0.1 / scores.shape[-1]
        return -jnp.mean(jnp.sum(target * scores, axis=-1))

    value, grads = jax.value_and_grad(loss)(params)
    velocity = jax.tree.map(lambda u, g: momentum * u + g, velocity, grads)
    params = jax.tree.map(lambda p, u: p - rate * u, params, velocity)
    return params, velocity, value


def vision_step_reference(params, velocity, images, labels, rate=0.1, momentum=0.9):
    def loss(p):
        rows = []
        for i in range(0, images.shape[1], 2):
            for j in range(0, images.shape[2], 2):
                rows.append(images[:, i : i + 2, j : j + 2].reshape(-1, 4) @ p["patch"])
        token = jnp.tile(p["token"][None], (len(images), 1))
        x = jnp.stack([token, *rows], 1) + p["places"]
        e = jnp.exp(x @ p["q"] @ (x @ p["k"]).swapaxes(1, 2) * p["q"].shape[1] ** -0.5)
        x = x + e / e.sum(-1, keepdims=True) @ (x @ p["v"])
        logp = jax.nn.log_softmax(x[:, 0] @ p["head"])
        hit = jnp.take_along_axis(logp, labels[:, None], 1)[:, 0]
        return -(0.9 * hit + 0.1 * logp.mean(1)).mean()

    value, grads = jax.value_and_grad(loss)(params)
    out = {}, {}
    for name, p in params.items():
        out[1][name] = grads[name] + velocity[name] * momentum
        out[0][name] = p - out[1][name] * rate
    return *out, value


def diffusion_step(params, average, clean, noise, level, rate=0.1, decay=0.99):
    """A step of a denoiser of vectors: a cosine schedule, the noise as target, and an average of the weights."""
    signal, sigma = jnp.cos(level * jnp.pi / 2), jnp.sin(level * jnp.pi / 2)
    mixed = signal[:, None] * clean + sigma[:, None] * noise

    def loss(p):
        features = jnp.concatenate([mixed, level[:, None]], axis=-1)
        hidden = jax.nn.silu(features @ p["inner"] + p["bias"])
        guess = jnp.einsum("bf,fd->bd", hidden, p["outer"], out_sharding=P("data", None))
        return jnp.mean(jnp.square(guess - noise))

    value, grads = jax.value_and_grad(loss)(params)
    params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
    average = jax.tree.map(lambda a, p: decay * a + (1.0 - decay) * p, average, params)
    return params, average, value


def diffusion_step_reference(params, average, clean, noise, level, rate=0.1, decay=0.99):
    angle = 0.5 * np.pi * level[:, None]

    def loss(p):
        z = (jnp.cos(angle) * clean + jnp.sin(angle) * noise) @ p["inner"][:-1]
        z = z + level[:, None] * p["inner"][-1] + p["bias"]
        return (((z / (1 + jnp.exp(-z))) @ p["outer"] - noise) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    new = {name: p - rate * grads[name] for name, p in params.items()}
    return new, {name: a + (1 - decay) * (new[name] - a) for name, a in average.items()}, value


def q_learning_step(params, target, now, action, reward, done, later, rate=0.05, discount=0.9):
    """A step of double Q-learning with a Huber loss, and a target network that follows slowly."""

    def values(p, state):
        return jnp.einsum("bf,fa->ba", jax.nn.relu(state @ p["w"]), p["a"], out_sharding=P("data", None))

    best = jax.nn.one_hot(jnp.argmax(values(params, later), axis=-1), 3)
    future = jnp.sum(values(target, later) * best, axis=-1)
    goal = reward + discount * (1.0 - done) * future

    def loss(p):
        taken = jnp.sum(values(p, now) * jax.nn.one_hot(action, 3), axis=-1)
        error = jnp.abs(taken - lax.stop_gradient(goal))
        return jnp.mean(jnp.where(error < 1.0, 0.5 * error**2, error - 0.5))

    value, grads = jax.value_and_grad(loss)(params)
    params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
    target = jax.tree.map(lambda t, p: 0.95 * t + 0.05 * p, target, params)
    return params, target, value


def q_learning_step_reference(params, target, now, action, reward, done, later, rate=0.05, discount=0.9):
    def net(p, s):
        return jnp.maximum(s @ p["w"], 0) @ p["a"]

    rows = jnp.arange(len(now))
    goal = reward + jnp.where(done > 0, 0, discount * net(target, later)[rows, net(params, later).argmax(1)])

    def loss(p):
        e = net(p, now)[rows, action] - goal
        return jnp.where(jnp.abs(e) < 1, e * e / 2, jnp.abs(e) - 0.5).mean()

    value, grads = jax.value_and_grad(loss)(params)
    new = {name: params[name] - rate * grads[name] for name in params}
    return new, {name: target[name] + 0.05 * (new[name] - target[name]) for name in target}, value


def autoencoder_loss(params, x, noise, beta=0.5):
    """The negative evidence bound of a variational autoencoder of binary vectors; x: [batch, D]."""
    hidden = jnp.tanh(x @ params["encode"])
    mean = jnp.einsum("bf,fz->bz", hidden, params["mean"], out_sharding=P("data", None))
    log_var = jnp.einsum("bf,fz->bz", hidden, params["spread"], out_sharding=P("data", None))
    z = mean + jnp.exp(0.5 * log_var) * noise
    inner = jnp.tanh(z @ params["decode"])
    logits = jnp.einsum("bf,fd->bd", inner, params["out"], out_sharding=P("data", None))
    likelihood = jnp.sum(x * jax.nn.log_sigmoid(logits) + (1.0 - x) * jax.nn.log_sigmoid(-logits), axis=-1)
    divergence = 0.5 * jnp.sum(jnp.exp(log_var) + mean**2 - 1.0 - log_var, axis=-1)
    return jnp.mean(beta * divergence - likelihood)


def autoencoder_loss_reference(params, x, noise, beta=0.5):
    h = jnp.tanh(x @ params["encode"])
    mu, s = h @ params["mean"], h @ params["spread"]
    p = 1 / (1 + jnp.exp(-jnp.tanh((mu + noise * jnp.sqrt(jnp.exp(s))) @ params["decode"]) @ params["out"]))
    fit = jnp.log(jnp.where(x > 0, p, 1 - p)).sum()
    return (-fit - beta * ((1 + s - mu * mu - jnp.exp(s)) / 2).sum()) / len(x)


def gru_step(params, state, xs, ys, rate=0.02):
    """A step of AdamW with clipped gradients through a GRU over time; xs: [T, batch, D], ys: [batch, O]."""

    def cell(p, h, x):
        both = jnp.concatenate([x, h], axis=-1)
        reset, update = jnp.split(jax.nn.sigmoid(both @ p["gates"] + p["bias"]), 2, axis=-1)
        fresh = jnp.tanh(jnp.concatenate([x, reset * h], axis=-1) @ p["fresh"])
        return (1.0 - update) * h + update * fresh

    def loss(p):
        h = jnp.zeros((xs.shape[1], p["fresh"].shape[1]), out_sharding=P("data", None))
        h, _ = lax.scan(lambda h, x: (cell(p, h, x), None), h, xs)
        return jnp.mean(jnp.sum((h @ p["out"] - ys) ** 2, axis=-1))

    value, grads = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
    count = state["count"] + 1.0
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, state["second"], grads)

    def moved(p, m, v):
        return p - rate * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-3) + 0.01 * p)

    return jax.tree.map(moved, params, first, second), first, value


def gru_step_reference(params, state, xs, ys, rate=0.02):
    def loss(p):
        h = jnp.zeros((xs.shape[1], 4))
        for x in xs:
            r, u = (jax.nn.sigmoid(x @ w[:3] + h @ w[3:] + b) for w, b in (
                (p["gates"][:, :4], p["bias"][:4]), (p["gates"][:, 4:], p["bias"][4:])))  # fmt: skip
            h = h + u * (jnp.tanh(x @ p["fresh"][:3] + (r * h) @ p["fresh"][3:]) - h)
        return ((h @ p["out"] - ys) ** 2).sum(1).mean()

    value, g = jax.value_and_grad(loss)(params)
    flat = jnp.concatenate([each.ravel() for each in jax.tree.leaves(g)])
    size, t = jnp.maximum(jnp.linalg.norm(flat), 1.0), 1 + state["count"]
    new, m = {}, {}
    for name, p in params.items():
        m[name] = state["first"][name] * 0.9 + g[name] / size * 0.1
        v = state["second"][name] + 0.01 * ((g[name] / size) ** 2 - state["second"][name])
        up = m[name] / (1 - 0.9**t) / (1e-3 + (v / (1 - 0.99**t)) ** 0.5)
        new[name] = p * (1 - 0.01 * rate) - rate * up
    return new, m, value


def preference_loss(policy, base, chosen, rejected, beta=0.3):
    """Direct preference optimization of a bag-of-words policy over pairs of answers; chosen: [batch, T]."""

    def log_likelihood(table, answer):
        rows = table.at[answer[:, :-1]].get(out_sharding=P("data", None, None))
        scores = jax.nn.log_softmax(rows, axis=-1)
        picked = jnp.take_along_axis(scores, answer[:, 1:, None], axis=-1)[..., 0]
        return jnp.sum(picked, axis=-1)

    better = log_likelihood(policy, chosen) - log_likelihood(base, chosen)
    worse = log_likelihood(policy, rejected) - log_likelihood(base, rejected)
    margin = beta * (better - worse)
    return -jnp.mean(jax.nn.log_sigmoid(margin)), jnp.mean(margin > 0)


def preference_loss_reference(policy, base, chosen, rejected, beta=0.3):
    def ratio(answer):
        total = 0.0
        for t in range(answer.shape[1] - 1):
            for table, sign in ((policy, 1), (base, -1)):
                e = jnp.exp(table[answer[:, t]])
                total = total + sign * jnp.log(e[jnp.arange(len(e)), answer[:, t + 1]] / e.sum(1))
        return total

    m = beta * (ratio(chosen) - ratio(rejected))
    return jnp.log(1 + jnp.exp(-m)).mean(), jnp.where(m > 0, 1.0, 0.0).mean()


def cross_attention(x, memory, live, wq, wkv, wo):
    """Attention of a decoder to an encoder's padded states; x: [batch, T, D], memory: [batch, S, D]."""
    q = jnp.einsum("btd,dhk->bhtk", x, wq)
    k, v = jnp.einsum("bsd,zdhk->zbhsk", memory, wkv)
    scores = jnp.einsum("bhtk,bhsk->bhts", q, k) * wq.shape[-1] ** -0.5
    scores = jnp.where(live[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = jnp.einsum("bhts,bhsk->bthk", weights, v)
    return x + jnp.einsum("bthk,hkd->btd", mixed, wo, out_sharding=P("data", None, None))


def cross_attention_reference(x, memory, live, wq, wkv, wo):
    out = x
    for h in range(wq.shape[1]):
        e = jnp.exp((x @ wq[:, h]) @ (memory @ wkv[0, :, h]).swapaxes(1, 2) / np.sqrt(wq.shape[2])) * live[:, None]
        out = out + e @ (memory @ wkv[1, :, h]) / e.sum(2)[..., None] @ wo[h]
    return out


def top_two(x, router, up, down):
    """A mixture of experts with the two best experts of each token; x: [batch, T, D], up: [E, D, F]."""
    logits = jnp.einsum("btd,de->bte", x, router)
    best = jnp.argmax(logits, axis=-1)
    first = jax.nn.one_hot(best, logits.shape[-1])
    second = jax.nn.one_hot(jnp.argmax(jnp.where(first > 0, -jnp.inf, logits), axis=-1), logits.shape[-1])
    kept = first + second
    gates = jax.nn.softmax(jnp.where(kept > 0, logits, -jnp.inf), axis=-1)
    hidden = jax.nn.silu(jnp.einsum("btd,edf->ebtf", x, up))
    done = jnp.einsum("ebtf,efd->ebtd", hidden, down, out_sharding=P(None, "data", None, None))
    aux = logits.shape[-1] * jnp.sum(jnp.mean(first, axis=(0, 1)) * jnp.mean(jax.nn.softmax(logits), axis=(0, 1)))
    return jnp.einsum("bte,ebtd->btd", gates, done), aux


def top_two_reference(x, router, up, down):
    s = x @ router
    order = jnp.argsort(-s, axis=-1)
    a, b = order[..., 0], order[..., 1]
    e = jnp.exp(s)
    out = 0.0
    for i in range(router.shape[1]):
        z = x @ up[i]
        chosen = (a == i) | (b == i)
        ea, eb = (jnp.take_along_axis(e, o[..., None], -1)[..., 0] for o in (a, b))
        out = out + (chosen * e[..., i] / (ea + eb))[..., None] * ((z / (1 + jnp.exp(-z))) @ down[i])
    share = jnp.stack([(a == i).mean() for i in range(router.shape[1])])
    p = e / e.sum(-1, keepdims=True)
    return out, router.shape[1] * (share * p.mean((0, 1))).sum()


def image_text_loss(images, texts, log_scale):
    """The symmetric loss of pairs of embeddings, which are normalised; images, texts: [batch, D]."""
    u = images / jnp.linalg.norm(images, axis=-1, keepdims=True)
    v = texts / jnp.linalg.norm(texts, axis=-1, keepdims=True)
    logits = jnp.exp(log_scale) * u @ reshard(v, P(None, None)).T
    mine = jnp.sum(u * v, axis=-1) * jnp.exp(log_scale)
    rows = jax.nn.logsumexp(logits, axis=1)
    columns = jax.nn.logsumexp(logits, axis=0)
    return 0.5 * (jnp.mean(rows - mine) + jnp.mean(columns) - jnp.mean(mine))


def image_text_loss_reference(images, texts, log_scale):
    s = images @ texts.T * jnp.exp(log_scale)
    s = s / jnp.sqrt((images**2).sum(1))[:, None] / jnp.sqrt((texts**2).sum(1))[None, :]
    near = (jnp.diag(jax.nn.log_softmax(s, 1)) + jnp.diag(jax.nn.log_softmax(s, 0))) / 2
    return -near.mean()


def rolling_cache(x, keys, values, wq, wk, wv, position):
    """A step of decoding with a cache that goes around; keys, values: [batch, W, K], position: the token's number."""
    window = keys.shape[1]
    q, k, v = x @ wq, x @ wk, x @ wv
    slot = position % window
    keys = keys.at[:, slot].set(k)
    values = values.at[:, slot].set(v)
    written = jnp.arange(window) <= position
    scores = jnp.einsum("bk,bwk->bw", q, keys) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(written, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bw,bwk->bk", weights, values), keys, values


def rolling_cache_reference(x, keys, values, wq, wk, wv, position):
    w = keys.shape[1]
    here = (jnp.arange(w) == position - w * (position // w))[:, None]
    keys, values = jnp.where(here, (x @ wk)[:, None], keys), jnp.where(here, (x @ wv)[:, None], values)
    e = jnp.exp(((x @ wq)[:, None] * keys).sum(2) * wq.shape[1] ** -0.5)
    e = jnp.where(jnp.arange(w) > position, 0, e)
    return (e[..., None] * values).sum(1) / e.sum(1)[:, None], keys, values


def dice_and_cross(logits, labels, smooth=1.0):
    """The loss of a segmentation: half cross-entropy, half one minus the Dice score; logits: [batch, H, W, C]."""
    probs = jax.nn.softmax(logits, axis=-1)
    truth = jax.nn.one_hot(labels, logits.shape[-1])
    overlap = jnp.sum(probs * truth, axis=(1, 2))
    size = jnp.sum(probs, axis=(1, 2)) + jnp.sum(truth, axis=(1, 2))
    dice = (2.0 * overlap + smooth) / (size + smooth)
    cross = -jnp.sum(truth * jax.nn.log_softmax(logits, axis=-1), axis=-1)
    return 0.5 * jnp.mean(cross) + 0.5 * (1.0 - jnp.mean(dice))


def dice_and_cross_reference(logits, labels, smooth=1.0):
    e = jnp.exp(logits)
    p = e / e.sum(3, keepdims=True)
    scores = []
    for c in range(logits.shape[3]):
        t = labels == c
        inter = jnp.where(t, p[..., c], 0).sum((1, 2))
        scores.append((2 * inter + smooth) / (p[..., c].sum((1, 2)) + t.sum((1, 2)) + smooth))
    hit = jnp.take_along_axis(p, labels[..., None], 3)
    return (1 - jnp.stack(scores).mean() - jnp.log(hit).mean()) / 2


def accumulating_step(w, b, x, y, rate=0.1):
    """Data parallelism with gradients summed over microbatches, then averaged; x: [M, n, D] on each device."""

    def loss(p, batch):
        features, wanted = batch
        return jnp.mean((jnp.tanh(features @ p[0] + p[1]) - wanted) ** 2)

    def add(total, batch):
        value, grads = jax.value_and_grad(loss)((w, b), batch)
        return jax.tree.map(jnp.add, total, (value, grads)), None

    start = (jnp.zeros(()), (jnp.zeros_like(w), jnp.zeros_like(b)))
    (value, grads), _ = lax.scan(add, start, (x, y))
    count = x.shape[0]
    value, grads = jax.tree.map(lambda g: lax.pmean(g / count, "x"), (value, grads))
    return w - rate * grads[0], b - rate * grads[1], value


def accumulating_step_reference(w, b, x, y, rate=0.1):
    rows, wanted = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    h = jnp.tanh(rows @ w + b)
    back = 2 * (h - wanted) * (1 - h * h) / wanted.size
    return w - rate * rows.T @ back, b - rate * back.sum(0), ((h - wanted) ** 2).mean()


def tensor_step(w1, w2, x, y, rate=0.1):
    """A step of an MLP whose hidden units are split over devices; w1: [D, F / N], w2: [F / N, O], x on all."""
    hidden = jax.nn.relu(x @ w1)
    out = lax.psum(hidden @ w2, "x")
    error = 2.0 * (out - y) / y.size
    back = (error @ w2.T) * (hidden > 0)
    value = jnp.mean((out - y) ** 2)
    return w1 - rate * x.T @ back, w2 - rate * hidden.T @ error, value


def tensor_step_reference(w1, w2, x, y, rate=0.1):
    def loss(a, b):
        return ((jnp.maximum(x @ a, 0) @ b - y) ** 2).mean()

    g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
    return w1 - rate * g1, w2 - rate * g2, loss(w1, w2)


def gathered_causal(q, k, v):
    """Causal attention of a device's queries to the keys of all devices; q, k, v: [batch, T / N, D]."""
    n = q.shape[1]
    keys = lax.all_gather(k, "x", axis=1, tiled=True)
    values = lax.all_gather(v, "x", axis=1, tiled=True)
    scores = jnp.einsum("btd,bsd->bts", q, keys) / np.sqrt(q.shape[-1])
    mine = lax.axis_index("x") * n + jnp.arange(n)
    past = mine[:, None] >= jnp.arange(n * N)[None, :]
    weights = jax.nn.softmax(jnp.where(past, scores, -1e30), axis=-1)
    return weights @ values


def gathered_causal_reference(q, k, v):
    e = jnp.exp(q @ k.transpose(0, 2, 1) * q.shape[2] ** -0.5) * np.tri(q.shape[1], dtype=np.float32)
    return e @ v / e.sum(-1)[..., None]


def nearest_ring(queries, points):
    """For each query the distance to the nearest point and its number; points go around; queries, points: [n, D]."""
    me, n = lax.axis_index("x"), points.shape[0]
    best, where = jnp.full(queries.shape[0], jnp.inf), jnp.zeros(queries.shape[0], jnp.int32)

    def step(i, carry):
        best, where, block = carry
        owner = (me + i) % N
        distance = jnp.sum((queries[:, None] - block[None]) ** 2, axis=-1)
        near = distance.argmin(axis=1)
        closer = distance.min(axis=1) < best
        where = jnp.where(closer, owner * n + near, where)
        best = jnp.where(closer, distance.min(axis=1), best)
        return best, where, lax.ppermute(block, "x", [(j, (j - 1) % N) for j in range(N)])

    best, where, _ = lax.fori_loop(0, N, step, (best, where, points))
    return jnp.sqrt(best), where


def nearest_ring_reference(queries, points):
    d = jnp.sqrt((queries**2).sum(1)[:, None] - 2 * queries @ points.T + (points**2).sum(1))
    return d.min(1), d.argmin(1).astype(jnp.int32)


def reduced_in_ring(x, w):
    """A product whose sum is scattered in a ring while it is computed; x: [n, D / N], w: [D / N, F]."""
    me, width = lax.axis_index("x"), w.shape[1] // N
    total = jnp.zeros((x.shape[0], width))
    for step in range(N):
        block = (me - step - 1) % N
        part = lax.dynamic_slice_in_dim(w, block * width, width, axis=1)
        total = total + x @ part
        if step < N - 1:
            total = lax.ppermute(total, "x", [(i, (i + 1) % N) for i in range(N)])
    return total


def reduced_in_ring_reference(x, w):
    return x @ w


def max_pool_halo(x):
    """The maximum over a window of three along a sequence that is split; x: [n, C]."""
    me = lax.axis_index("x")
    left = lax.ppermute(x[-1:], "x", [(i, i + 1) for i in range(N - 1)])
    right = lax.ppermute(x[:1], "x", [(i + 1, i) for i in range(N - 1)])
    left = jnp.where(me == 0, -jnp.inf, left)
    right = jnp.where(me == N - 1, -jnp.inf, right)
    padded = jnp.concatenate([left, x, right])
    return jnp.maximum(jnp.maximum(padded[:-2], padded[1:-1]), padded[2:])


def max_pool_halo_reference(x):
    edge = jnp.full((1, x.shape[1]), -jnp.inf)
    y = jnp.concatenate([edge, x, edge])
    return jnp.stack([y[i : i + len(x)] for i in range(3)]).max(0)


def head_exchange(x, wqkv, wo):
    """Attention with heads exchanged for positions and back; x: [T / N, D], wqkv: [3, D, H, K], wo: [H, K, D]."""
    q, k, v = jnp.einsum("td,sdhk->sthk", x, wqkv)

    def heads(z):
        return lax.all_to_all(z, "x", split_axis=1, concat_axis=0, tiled=True)

    q, k, v = heads(q), heads(k), heads(v)
    scores = jnp.einsum("thk,shk->hts", q, k) / np.sqrt(q.shape[-1])
    mixed = jnp.einsum("hts,shk->thk", jax.nn.softmax(scores, axis=-1), v)
    mixed = lax.all_to_all(mixed, "x", split_axis=0, concat_axis=1, tiled=True)
    return x + jnp.einsum("thk,hkd->td", mixed, wo)


def head_exchange_reference(x, wqkv, wo):
    out = x
    for h in range(wo.shape[0]):
        q, k, v = (x @ wqkv[i, :, h] for i in range(3))
        out = out + jax.nn.softmax(q @ k.T * q.shape[1] ** -0.5, 1) @ v @ wo[h]
    return out


def standardised(x, weight):
    """Columns with weighted mean 0 and variance 1, from sums over all devices; x: [n / N, C], weight: [n / N]."""
    total = lax.psum(weight.sum(), "x")
    mean = lax.psum(jnp.sum(weight[:, None] * x, axis=0), "x") / total
    square = lax.psum(jnp.sum(weight[:, None] * x**2, axis=0), "x") / total
    return (x - mean) / jnp.sqrt(square - mean**2 + 1e-6), mean


def standardised_reference(x, weight):
    share = weight / weight.sum()
    mean = share @ x
    return (x - mean) / jnp.sqrt(share @ (x - mean) ** 2 + 1e-6), mean


def block_product(a, b):
    """A product by Cannon's algorithm on a square grid, with blocks skewed first; a, b: a block on each device."""
    row, col = lax.axis_index("row"), lax.axis_index("col")
    other = [(0, 1), (1, 0)]
    a = jnp.where(row == 1, lax.ppermute(a, "col", other), a)
    b = jnp.where(col == 1, lax.ppermute(b, "row", other), b)
    total = a @ b
    a, b = lax.ppermute(a, "col", other), lax.ppermute(b, "row", other)
    return total + a @ b


def block_product_reference(a, b):
    return a @ b


def sharded_rows_step(table, ids, grads, rate=0.5):
    """The update of the rows of a table that is split by rows, with gradients of repeated rows added; ids: [n]."""
    rows = table.shape[0]
    local = ids - lax.axis_index("x") * rows
    mine = (local >= 0) & (local < rows)
    place = jnp.where(mine, local, rows)
    update = jnp.zeros_like(table).at[place].add(grads, mode="drop")
    count = jnp.zeros(rows).at[place].add(1.0, mode="drop")
    return table - rate * update / jnp.maximum(count, 1.0)[:, None]


def sharded_rows_step_reference(table, ids, grads, rate=0.5):
    hot = jax.nn.one_hot(ids, len(table))
    return table - rate * (hot.T @ grads) / jnp.maximum(hot.sum(0), 1)[:, None]


def power_iteration(a, start, steps=4):
    """The largest eigenvalue of a matrix that is split by rows, by iteration; a: [n / N, n], start: [n]."""

    def step(_, v):
        u = lax.all_gather(a @ v, "x", tiled=True)
        return u / jnp.sqrt(jnp.sum(u**2))

    v = lax.fori_loop(0, steps, step, start)
    mine = lax.dynamic_slice_in_dim(v, lax.axis_index("x") * a.shape[0], a.shape[0])
    return lax.psum(mine @ (a @ v), "x"), v


def power_iteration_reference(a, start, steps=4):
    v = start
    for _ in range(steps):
        v = a @ v
        v = v / jnp.linalg.norm(v)
    return v @ a @ v, v


def returns(rewards, values, done, discount=0.9, mixing=0.8):
    """Generalised advantages, normalised, and returns; rewards: [T, batch], values: [T + 1, batch]."""
    alive = 1.0 - done
    deltas = rewards + discount * values[1:] * alive - values[:-1]

    def step(carry, now):
        delta, live = now
        carry = delta + discount * mixing * live * carry
        return carry, carry

    _, advantages = lax.scan(step, jnp.zeros(rewards.shape[1]), (deltas, alive), reverse=True)
    total = advantages + values[:-1]
    return (advantages - advantages.mean()) / (advantages.std() + 1e-6), total


def returns_reference(rewards, values, done, discount=0.9, mixing=0.8):
    rows, a = [], 0.0
    for t in reversed(range(len(rewards))):
        later = jnp.where(done[t] > 0, 0, 1)
        a = rewards[t] - values[t] + discount * later * (values[t + 1] + mixing * a)
        rows.insert(0, a)
    adv = jnp.stack(rows)
    return (adv - adv.mean()) / (1e-6 + jnp.sqrt(((adv - adv.mean()) ** 2).mean())), adv + values[:-1]


R, X, ROWS, CUBE = P(), P("x"), P("data", None), P("data", None, None)


def typed(function, operands, in_specs, reference, *mistakes, within=()):
    """A function with bare specs, called within `jax.set_mesh`."""
    return Case(function, operands, mesh, in_specs, None, reference, mistakes, jitted=True, setting=True, within=within)


def mapped(function, operands, in_specs, out_specs, reference, *mistakes, over=line):
    """A device's code."""
    return Case(function, operands, over, in_specs, out_specs, reference, mistakes, check_vma=False)


def global_view(function, operands, in_specs, reference, *mistakes):
    """A function of whole arrays on Auto axes."""
    return Case(function, operands, grid, in_specs, None, reference, mistakes, jitted=True)


def layer(seed):
    """A layer of `language_model`."""
    return {
        "q": normal(seed, 4, 2, 2), "k": normal(seed + 1, 4, 2, 2), "v": normal(seed + 2, 4, 2, 2),
        "o": normal(seed + 3, 2, 2, 4), "up": normal(seed + 4, 4, 6), "down": normal(seed + 5, 6, 4) / 2,
        "g1": uniform(seed + 6, 4), "b1": normal(seed + 7, 4), "g2": uniform(seed + 8, 4), "b2": normal(seed + 9, 4),
    }  # fmt: skip


HEADS = P(None, "model", None)
LAYER = {
    "q": HEADS, "k": HEADS, "v": HEADS, "o": P("model", None, None), "up": P(None, "model"), "down": P("model", None),
    "g1": R, "b1": R, "g2": R, "b2": R,
}  # fmt: skip
GRU = {"gates": normal(0, 7, 8), "bias": normal(1, 8), "fresh": normal(2, 7, 4), "out": normal(3, 4, 2)}
GRU_SPECS = {"gates": R, "bias": R, "fresh": R, "out": P(None, "model")}
VISION = {
    "patch": normal(0, 4, 4), "token": normal(1, 4), "places": normal(2, 5, 4), "q": normal(3, 4, 4),
    "k": normal(4, 4, 4), "v": normal(5, 4, 4), "head": normal(6, 4, 4),
}  # fmt: skip
VISION_SPECS = dict.fromkeys(VISION, R) | {"head": P(None, "model")}
DENOISER = {"inner": normal(0, 5, 6), "bias": normal(1, 6), "outer": normal(2, 6, 4)}
DENOISER_SPECS = {"inner": P(None, "model"), "bias": P("model"), "outer": P("model", None)}
NETWORK, NETWORK_SPECS = {"w": normal(0, 4, 6), "a": normal(1, 6, 3)}, {"w": P(None, "model"), "a": P("model", None)}
ENDS = np.array([1, 0, 0, 1, 0, 0, 0, 1], np.float32)
LIVE = np.arange(5) < np.array([5, 3, 4, 2])[:, None]

CASES = (
    typed(
        language_model,
        (
            {"table": normal(0, 6, 4), "places": normal(1, 4, 4), "layers": [layer(10), layer(30)]},
            ints(2, 6, 4, 4),
        ),
        ({"table": R, "places": R, "layers": [LAYER, LAYER]}, ROWS),
        language_model_reference,
        ("/ np.sqrt(d // heads)", "/ np.sqrt(d)"),
        ("hidden = jax.nn.gelu(layer_norm(x", "hidden = jax.nn.relu(layer_norm(x"),
        ('x = x + attend(p, layer_norm(x, p["g1"], p["b1"]))', 'x = attend(p, layer_norm(x, p["g1"], p["b1"]))'),
        ("logits[:, :-1], axis=-1)", "logits[:, 1:], axis=-1)"),
        within=(attend, layer_norm),
    ),
    typed(
        vision_step,
        (VISION, {name: value / 4 for name, value in VISION.items()}, normal(7, 4, 4, 4), ints(8, 4, 4)),
        (VISION_SPECS, VISION_SPECS, CUBE, P("data")),
        vision_step_reference,
        ("jnp.reshape(pieces.swapaxes(2, 3)", "jnp.reshape(pieces"),
        ("np.sqrt(q.shape[-1]), axis=-1)", "np.sqrt(q.shape[-1]), axis=1)"),
        ("return x[:, 0]", "return x[:, -1]"),
        ("momentum * u + g, velocity", "momentum * u + (1 - momentum) * g, velocity"),
        within=(classify,),
    ),
    typed(
        diffusion_step,
        (DENOISER, {name: value / 2 for name, value in DENOISER.items()}, normal(3, 8, 4), normal(4, 8, 4),
         uniform(5, 8)),
        (DENOISER_SPECS, DENOISER_SPECS, ROWS, ROWS, P("data")),
        diffusion_step_reference,
        ("signal[:, None] * clean + sigma[:, None] * noise", "sigma[:, None] * clean + signal[:, None] * noise"),
        ("jnp.square(guess - noise)", "jnp.square(guess - clean)"),
        ("decay * a + (1.0 - decay) * p, average, params", "decay * p + (1.0 - decay) * a, average, params"),
    ),
    typed(
        q_learning_step,
        (NETWORK, {name: -value for name, value in NETWORK.items()}, normal(2, 8, 4), ints(3, 3, 8),
         normal(4, 8), ENDS, normal(5, 8, 4)),
        (NETWORK_SPECS, NETWORK_SPECS, ROWS, P("data"), P("data"), P("data"), ROWS),
        q_learning_step_reference,
        ("jnp.argmax(values(params, later), axis=-1)", "jnp.argmax(values(target, later), axis=-1)"),
        ("discount * (1.0 - done) * future", "discount * done * future"),
        ("jnp.where(error < 1.0, 0.5 * error**2, error - 0.5)", "jnp.where(error < 1.0, error**2, error - 0.5)"),
    ),
    typed(
        autoencoder_loss,
        ({"encode": normal(0, 6, 4), "mean": normal(1, 4, 3), "spread": normal(2, 4, 3), "decode": normal(3, 3, 4),
          "out": normal(4, 4, 6)}, ints(5, 2, 8, 6).astype(np.float32), normal(6, 8, 3)),
        ({"encode": P(None, "model"), "mean": P("model", None), "spread": P("model", None),
          "decode": P(None, "model"), "out": P("model", None)}, ROWS, ROWS),
        autoencoder_loss_reference,
        ("jnp.exp(0.5 * log_var) * noise", "jnp.exp(log_var) * noise"),
        ("mean**2 - 1.0 - log_var", "mean**2 - 1.0 + log_var"),
    ),
    typed(
        gru_step,
        (GRU, {"count": np.float32(2), "first": {name: value / 8 for name, value in GRU.items()},
               "second": {name: value**2 / 64 for name, value in GRU.items()}}, normal(4, 3, 4, 3), normal(5, 4, 2)),
        (GRU_SPECS, {"count": R, "first": GRU_SPECS, "second": GRU_SPECS}, P(None, "data", None), ROWS),
        gru_step_reference,
        ("return (1.0 - update) * h + update * fresh", "return update * h + (1.0 - update) * fresh"),
        ("[x, reset * h], axis=-1)", "[x, h], axis=-1)"),
        ("0.99 * v + 0.01 * g**2", "0.99 * v + 0.01 * g"),
    ),
    typed(
        preference_loss,
        (normal(0, 5, 5), normal(1, 5, 5), ints(2, 5, 4, 4), ints(3, 5, 4, 4)),
        (R, R, ROWS, ROWS),
        preference_loss_reference,
        ("log_likelihood(policy, rejected) - log_likelihood(base, rejected)",
         "log_likelihood(policy, rejected) - log_likelihood(base, chosen)"),
        ("return jnp.sum(picked, axis=-1)", "return jnp.mean(picked, axis=-1)"),
    ),
    typed(
        cross_attention,
        (normal(0, 4, 3, 4), normal(1, 4, 5, 4), LIVE, normal(2, 4, 2, 4), normal(3, 2, 4, 2, 4), normal(4, 2, 4, 4)),
        (CUBE, CUBE, ROWS, HEADS, P(None, None, "model", None), P("model", None, None)),
        cross_attention_reference,
        ("wq.shape[-1] ** -0.5", "wq.shape[-2] ** -0.5"),
        ("k, v = jnp.einsum(", "v, k = jnp.einsum("),
        ("weights / weights.sum(axis=-1, keepdims=True)", "weights / weights.sum(axis=-2, keepdims=True)"),
    ),
    typed(
        top_two,
        (normal(0, 4, 3, 4), normal(1, 4, 4), normal(2, 4, 4, 6), normal(3, 4, 6, 4)),
        (CUBE, R, P(None, None, "model"), P(None, "model", None)),
        top_two_reference,
        ("jnp.where(first > 0, -jnp.inf, logits)", "jnp.where(first > 0, 0.0, logits)"),
        ("gates = jax.nn.softmax(jnp.where(kept > 0, logits, -jnp.inf), axis=-1)",
         "gates = jax.nn.softmax(logits, axis=-1) * kept"),
    ),
    typed(
        image_text_loss,
        (normal(0, 8, 4), normal(1, 8, 4), np.float32(0.7)),
        (ROWS, ROWS, R),
        image_text_loss_reference,
        ("jnp.exp(log_scale) * u @", "log_scale * u @"),
        ("columns = jax.nn.logsumexp(logits, axis=0)", "columns = jax.nn.logsumexp(logits, axis=1)"),
    ),
    typed(
        rolling_cache,
        (normal(0, 4, 3), normal(1, 4, 5, 3), normal(2, 4, 5, 3), normal(3, 3, 3), normal(4, 3, 3), normal(5, 3, 3),
         np.int32(3)),
        (ROWS, CUBE, CUBE, R, R, R, R),
        rolling_cache_reference,
        ("keys = keys.at[:, slot].set(k)", "keys = keys.at[:, slot].add(k)"),
        ("jnp.arange(window) <= position", "jnp.arange(window) < position"),
    ),
    typed(
        dice_and_cross,
        (normal(0, 4, 3, 3, 4), ints(1, 4, 4, 3, 3)),
        (P("data", None, None, "model"), CUBE),
        dice_and_cross_reference,
        ("overlap = jnp.sum(probs * truth, axis=(1, 2))", "overlap = jnp.sum(probs * truth, axis=(0, 1, 2))"),
        ("(2.0 * overlap + smooth)", "(overlap + smooth)"),
    ),
    mapped(
        accumulating_step,
        (normal(0, 3, 2), normal(1, 2), normal(2, 3, 8, 3), normal(3, 3, 8, 2)),
        (R, R, P(None, "x"), P(None, "x")),
        (R, R, R),
        accumulating_step_reference,
        ("count = x.shape[0]", "count = x.shape[1]"),
        ('lax.pmean(g / count, "x")', 'lax.psum(g / count, "x")'),
    ),
    mapped(
        tensor_step,
        (normal(0, 3, 8), normal(1, 8, 2), normal(2, 4, 3), normal(3, 4, 2)),
        (P(None, "x"), X, R, R),
        (P(None, "x"), X, R),
        tensor_step_reference,
        ("* (hidden > 0)", "* hidden"),
        ("2.0 * (out - y) / y.size", "2.0 * (out - y) / y.shape[0]"),
        ('out = lax.psum(hidden @ w2, "x")', "out = hidden @ w2"),
    ),
    mapped(
        gathered_causal,
        (normal(0, 2, 8, 3), normal(1, 2, 8, 3), normal(2, 2, 8, 3)),
        (P(None, "x"), P(None, "x"), P(None, "x")),
        P(None, "x"),
        gathered_causal_reference,
        ('mine = lax.axis_index("x") * n + jnp.arange(n)', "mine = jnp.arange(n)"),
        ("values = lax.all_gather(v", "values = lax.all_gather(k"),
    ),
    mapped(
        nearest_ring,
        (normal(0, 8, 3), normal(1, 12, 3)),
        (X, X),
        (X, X),
        nearest_ring_reference,
        ("owner = (me + i) % N", "owner = (me - i) % N"),
        ("best = jnp.where(closer, distance.min(axis=1), best)", "best = distance.min(axis=1)"),
    ),
    mapped(
        reduced_in_ring,
        (normal(0, 3, 8), normal(1, 8, 8)),
        (P(None, "x"), X),
        P(None, "x"),
        reduced_in_ring_reference,
        ("block = (me - step - 1) % N", "block = (me - step) % N"),
        ("total = total + x @ part", "total = x @ part"),
    ),
    mapped(
        max_pool_halo,
        (normal(0, 12, 2) - 1,),
        X,
        X,
        max_pool_halo_reference,
        ('right = lax.ppermute(x[:1], "x"', 'right = lax.ppermute(x[-1:], "x"'),
        ("left = jnp.where(me == 0, -jnp.inf, left)", "left = jnp.where(me == 0, 0.0, left)"),
    ),
    mapped(
        head_exchange,
        (normal(0, 8, 4), normal(1, 3, 4, 4, 2), normal(2, 4, 2, 4)),
        (X, R, R),
        X,
        head_exchange_reference,
        ("q, k, v = heads(q), heads(k), heads(v)", "q, k, v = heads(q), heads(k), heads(k)"),
        ("return x + jnp.einsum", "return jnp.einsum"),
    ),
    mapped(
        standardised,
        (normal(0, 12, 3), uniform(1, 12)),
        (X, X),
        (X, R),
        standardised_reference,
        ('total = lax.psum(weight.sum(), "x")', "total = weight.sum()"),
        ("square - mean**2 + 1e-6", "square - mean + 1e-6"),
    ),
    mapped(
        block_product,
        (normal(0, 4, 6), normal(1, 6, 8)),
        (P("row", "col"), P("row", "col")),
        P("row", "col"),
        block_product_reference,
        ("a = jnp.where(row == 1", "a = jnp.where(col == 1"),
        ('b = jnp.where(col == 1, lax.ppermute(b, "row", other), b)',
         'b = jnp.where(col == 1, lax.ppermute(b, "col", other), b)'),
        over=grid,
    ),
    mapped(
        sharded_rows_step,
        (normal(0, 12, 3), ints(1, 12, 10), normal(2, 10, 3)),
        (X, R, R),
        X,
        sharded_rows_step_reference,
        ("(local >= 0) & (local < rows)", "local < rows"),
        ("at[place].add(grads", "at[place].set(grads"),
    ),
    mapped(
        power_iteration,
        (normal(0, 8, 8) @ normal(0, 8, 8).T, normal(1, 8)),
        (X, R),
        (R, R),
        power_iteration_reference,
        ("u / jnp.sqrt(jnp.sum(u**2))", "u / jnp.sum(u**2)"),
        ('lax.psum(mine @ (a @ v), "x")', "mine @ (a @ v)"),
    ),
    global_view(
        returns,
        (normal(0, 5, 4), normal(1, 6, 4), ints(2, 2, 5, 4).astype(np.float32)),
        (P(None, "row"), P(None, "row"), P(None, "row")),
        returns_reference,
        ("discount * values[1:] * alive - values[:-1]", "discount * values[:-1] * alive - values[1:]"),
        ("discount * mixing * live * carry", "discount * mixing * carry"),
        ("(deltas, alive), reverse=True)", "(deltas, alive))"),
    ),
)  # fmt: skip
