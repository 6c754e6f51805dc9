"""Functions of JAX as people write them in models, optimizers and solvers, with the shapes of their operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Functions: TypeAlias = "dict[str, tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]]"
"""Functions by name, with the shapes of their operands; `("i", 5, 8)` is five integers below 8."""


def trying(functions: Functions) -> Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Register functions with the shapes of their operands among others."""

    def function(*shapes: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(each: Callable[..., Any]) -> Callable[..., Any]:
            functions[each.__name__] = each, shapes
            return each

        return register

    return function


FUNCTIONS: Functions = {}
function = trying(FUNCTIONS)


# Sequences, graphs and densities.


@function((2, 6, 4), (4, 4), (4, 3), (4, 3), (4, 3))
def selective_state_space(x, to_step, a, to_b, to_c):
    step = jax.nn.softplus(x @ to_step)
    decay = jnp.exp(-step[..., None] * jnp.exp(a / 2))
    given = (step * x)[..., None] * (x @ to_b)[:, :, None, :]

    def combine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, state = jax.lax.associative_scan(combine, (decay, given), axis=1)
    return jnp.einsum("btdn,btn->btd", state, x @ to_c) * jax.nn.silu(x)


@function((5, 2, 4), (5, 2, 4), (4,), (4,))
def rwkv_mixing(keys, values, decay, bonus):
    def step(carry, given):
        (top, below, most), (key, value) = carry, given
        now = jnp.maximum(most, bonus + key)
        kept, new = jnp.exp(most - now), jnp.exp(bonus + key - now)
        out = (kept * top + new * value) / (kept * below + new)
        now = jnp.maximum(most - jnp.exp(decay), key)
        kept, new = jnp.exp(most - jnp.exp(decay) - now), jnp.exp(key - now)
        return (kept * top + new * value, kept * below + new, now), out

    zeros = jnp.zeros(keys.shape[1:])
    return jax.lax.scan(step, (zeros, zeros, zeros - 1e30), (keys, values))[1]


@function((3, 5, 2), (4, 4), (2, 4))
def kalman_filter(observed, move, look):
    move = jnp.eye(4) + 0.1 * move

    def step(carry, measured):
        mean, spread = move @ carry[0], move @ carry[1] @ move.T + 0.1 * jnp.eye(4)
        gain = jnp.linalg.solve(look @ spread @ look.T + 0.2 * jnp.eye(2), look @ spread).T
        mean = mean + gain @ (measured - look @ mean)
        return (mean, spread - gain @ look @ spread), mean

    return jax.vmap(lambda each: jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), each)[1])(observed)


@function((6, 4), ("i", 9, 6), ("i", 9, 6), (4, 3))
def message_passing(nodes, senders, receivers, w):
    messages = jax.nn.relu(nodes[senders] @ w)
    summed = jax.ops.segment_sum(messages, receivers, 6)
    count = jax.ops.segment_sum(jnp.ones(9), receivers, 6)
    most = jax.ops.segment_max(messages, receivers, 6)
    return summed / jnp.maximum(count, 1)[:, None] + jnp.where(jnp.isfinite(most), most, 0)


@function((6, 4), (4, 4), (2, 2))
def gradient_of_a_normalizing_flow(x, w, scale):
    def loss(w, scale):
        a, b = jnp.split(x @ (w + 3 * jnp.eye(4)), 2, -1)
        log = jnp.tanh(a @ scale)
        z = jnp.concatenate([a, b * jnp.exp(log)], -1)
        return jnp.mean(jnp.sum(z**2, -1) / 2 - log.sum(-1)) - jnp.linalg.slogdet(w + 3 * jnp.eye(4))[1]

    return jax.grad(loss, (0, 1))(w, scale)


@function((2, 4, 4, 3), (3, 3, 3, 4), (3, 3, 4, 4), (3, 3, 11, 2))
def u_net_block(x, into, down, out):
    def convolved(x, w, strides=(1, 1)):
        return jax.lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    h = jax.nn.silu(convolved(x, into))
    low = convolved(h, down, (2, 2))
    near = jax.image.resize(low, h.shape, "nearest")
    return convolved(jnp.concatenate([near, h, x], -1), out)


# Attention.


@function((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8))
def grouped_query_attention(q, k, v):
    b, s, h, d = q.shape
    groups = k.shape[2]
    q = q.reshape(b, s, groups, h // groups, d)
    scores = jnp.einsum("bqghd,bkgd->bghqk", q, k) * d**-0.5
    probs = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bghqk,bkgd->bqghd", probs, v).reshape(b, s, h, d)


@function((2, 8, 2, 4), (2, 8, 2, 4), (2, 8, 2, 4))
def sliding_window_attention(q, k, v):
    position = jnp.arange(q.shape[1])
    distance = position[:, None] - position[None, :]
    mask = (distance >= 0) & (distance < 3)
    return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None])


@function((2, 6, 2, 4), (2, 6, 2, 4), (2, 6, 2, 4))
def alibi_attention(q, k, v):
    slopes = 2.0 ** -(8.0 * jnp.arange(1, q.shape[2] + 1) / q.shape[2])
    distance = jnp.arange(6)[None, :] - jnp.arange(6)[:, None]
    bias = slopes[:, None, None] * jnp.minimum(distance, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2 + bias
    scores = jnp.where(distance <= 0, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


@function((8, 4), (8, 4), (8, 4))
def flash_attention_by_blocks(q, k, v):
    """The online softmax over blocks of keys."""

    def block(carry, kv):
        acc, m, total = carry
        k, v = kv
        s = q @ k.T / 2
        m_new = jnp.maximum(m, s.max(-1))
        p = jnp.exp(s - m_new[:, None])
        scale = jnp.exp(m - m_new)
        return (acc * scale[:, None] + p @ v, m_new, total * scale + p.sum(-1)), None

    init = jnp.zeros_like(q), jnp.full((8,), -jnp.inf), jnp.zeros((8,))
    (acc, _, total), _ = jax.lax.scan(block, init, (k.reshape(4, 2, 4), v.reshape(4, 2, 4)))
    return acc / total[:, None]


@function((2, 5, 2, 8))
def rotary_by_complex_numbers(x):
    frequencies = 1.0 / (10000.0 ** (jnp.arange(0, 8, 2) / 8))
    angles = jnp.outer(jnp.arange(5), frequencies)
    turned = jax.lax.complex(x[..., ::2], x[..., 1::2]) * jnp.exp(1j * angles)[:, None, :]
    return jnp.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


@function((2, 1, 2, 4), (2, 8, 2, 4), (2, 8, 2, 4), ("i", 1, 7))
def kv_cache_step(x, keys, values, at):
    at = at[0]
    keys = jax.lax.dynamic_update_slice(keys, x, (0, at, 0, 0))
    values = jax.lax.dynamic_update_slice_in_dim(values, x * 2, at, axis=1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", x, keys)
    scores = jnp.where(jnp.arange(8) <= at, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values), keys, values


# Normalisation, convolution, recurrence.


@function((4, 8, 8), (8,), (8,))
def layer_norm_with_gradient(x, scale, bias):
    def loss(x, scale, bias):
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True) - jnp.square(mean)
        return jnp.sum(jnp.tanh((x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias))

    return jax.grad(loss, argnums=(0, 1, 2))(x, scale, bias)


@function((2, 4, 4, 8), (8,))
def group_norm(x, scale):
    groups = x.reshape(2, 4, 4, 4, 2)
    mean, var = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
    return ((groups - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape) * scale


@function((8, 3, 3, 4), (4,), (4,), (4,), (4,))
def batch_norm_train(x, scale, bias, mean, var):
    axes = (0, 1, 2)
    m = jnp.mean(x, axes)
    v = jnp.maximum(0.0, jnp.mean(jax.lax.square(x), axes) - jax.lax.square(m))
    state = 0.9 * mean + 0.1 * m, 0.9 * jnp.abs(var) + 0.1 * v
    return (x - m) * (jax.lax.rsqrt(v + 1e-5) * scale) + bias, state


@function((2, 8, 8, 3), (3, 3, 3, 4), (2, 2, 4, 4), (4, 5), ("i", 2, 5))
def cnn_step(x, w1, w2, w3, labels):
    """Two convolutions with pooling and a step of gradient descent."""

    def loss(weights):
        w1, w2, w3 = weights
        h = jax.lax.conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = jax.lax.reduce_window(jax.nn.relu(h), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jax.lax.conv_general_dilated(h, w2, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        logits = jax.nn.relu(h).mean((1, 2)) @ w3
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 5) * jax.nn.log_softmax(logits), -1))

    value, grads = jax.value_and_grad(loss)((w1, w2, w3))
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, (w1, w2, w3), grads)


@function((2, 6, 6, 4), (3, 3, 1, 8))
def depthwise_convolution(x, w):
    def apply(w):
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
        )

    return apply(w), jax.grad(lambda w: (apply(w) ** 2).sum())(w)


@function((2, 3, 10), (4, 3, 3))
def dilated_convolution_in_time(x, w):
    def apply(x):
        return jax.lax.conv_general_dilated(
            x, w, (2,), [(4, 0)], rhs_dilation=(2,), dimension_numbers=("NCH", "OIH", "NCH")
        )

    return apply(x), jax.grad(lambda x: jnp.sin(apply(x)).sum())(x)


@function((1, 4, 4, 3), (3, 3, 2, 3))
def transposed_convolution(x, w):
    return jax.lax.conv_transpose(
        x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), transpose_kernel=True
    )


@function((2, 6, 6, 2))
def overlapping_max_pool_gradient(x):
    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    return jax.grad(lambda x: (pool(x) * jnp.cos(pool(x))).sum())(x)


@function((2, 7, 7, 2))
def derivatives_of_pooling(x):
    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    product = jax.lax.reduce_window(x, 1.0, jax.lax.mul, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    return jax.jvp(pool, (x,), (jnp.cos(x),))[1], product


@function((2, 5, 3), (3, 16), (4, 16), (16,))
def lstm(x, wi, wh, b):
    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ wi + h @ wh + b, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((2, 4)), jnp.zeros((2, 4))
    (h, _), ys = jax.lax.scan(cell, start, jnp.swapaxes(x, 0, 1))
    return h, jnp.swapaxes(ys, 0, 1)


@function((5, 3), (3, 12), (4, 12))
def gru_gradient(x, wi, wh):
    def loss(wi, wh):
        def cell(h, x):
            r, z, n = jnp.split(x @ wi, 3)
            hr, hz, hn = jnp.split(h @ wh, 3)
            n = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
            z = jax.nn.sigmoid(z + hz)
            return (1 - z) * n + z * h, None

        return jnp.sum(jax.lax.scan(cell, jnp.zeros(4), x)[0] ** 2)

    return jax.grad(loss, argnums=(0, 1))(wi, wh)


@function((6, 4), (4, 8), (4,), (8, 4), (8, 3), (8, 3))
def mamba_by_associative_scan(x, w_in, delta, w_out, wb, wc):
    u = jax.nn.silu(x @ w_in)
    dt = jax.nn.softplus(u @ jnp.ones((8, 8)) * 0.1)
    a = jnp.exp(-dt[..., None] * jnp.arange(1.0, 4.0))
    b = (dt * u)[..., None] * (u @ wb)[:, None, :]

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, h = jax.lax.associative_scan(combine, (a, b))
    return (h * (u @ wc)[:, None, :]).sum(-1) @ w_out + delta


# Mixtures of experts.


@function((12, 8), (8, 4), (4, 8, 8))
def experts_with_capacity(x, router, experts):
    """Top-2 routing into slots of limited capacity."""
    capacity = 5
    probs = jax.nn.softmax(x @ router)
    gate, chosen = jax.lax.top_k(probs, 2)
    gate = gate / gate.sum(-1, keepdims=True)
    onehot = jax.nn.one_hot(chosen, 4, dtype=jnp.int32)
    flat = onehot.transpose(1, 0, 2).reshape(-1, 4)
    position = (jnp.cumsum(flat, axis=0) * flat - 1).reshape(2, 12, 4).transpose(1, 0, 2)
    keep = (position >= 0) & (position < capacity)
    slot = jax.nn.one_hot(position, capacity) * keep[..., None]
    dispatch = slot.sum(1)
    combine = (slot * gate[:, :, None, None]).sum(1)
    h = jnp.einsum("tec,td->ecd", dispatch, x)
    h = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", h, experts))
    load = probs.mean(0) * (onehot[:, 0].astype(jnp.float32)).mean(0)
    return jnp.einsum("tec,ecf->tf", combine, h), 4 * load.sum()


@function((10, 4), ("i", 10, 3), (3, 4, 5))
def experts_by_sorting(x, expert, w):
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=3)
    y = jax.lax.ragged_dot(x[order], w, sizes)
    return jnp.zeros_like(y).at[order].set(y)


@function((10, 4), ("i", 10, 3), (3, 4, 5))
def gradient_of_experts(x, expert, w):
    sizes = jnp.bincount(expert, length=3)
    return jax.grad(lambda x, w: jnp.sin(jax.lax.ragged_dot(x, w, sizes)).sum(), argnums=(0, 1))(x, w)


# Generation, sampling, diffusion.


@function((4, 3), (3, 8), (8, 3))
def diffusion_loss(x, w1, w2):
    key = jax.random.key(0)
    k1, k2 = jax.random.split(key)
    betas = jnp.linspace(1e-4, 0.02, 10)
    alphas = jnp.cumprod(1.0 - betas)
    t = jax.random.randint(k1, (4,), 0, 10)
    noise = jax.random.normal(k2, x.shape)
    noisy = jnp.sqrt(alphas[t])[:, None] * x + jnp.sqrt(1 - alphas[t])[:, None] * noise
    return jnp.mean((jnp.tanh(noisy @ w1) @ w2 - noise) ** 2)


@function((4, 3))
def ddim_sampler(x):
    alphas = jnp.cumprod(1 - jnp.linspace(0.01, 0.2, 5))

    def step(i, x):
        t = 4 - i
        eps = jnp.tanh(x)
        x0 = (x - jnp.sqrt(1 - alphas[t]) * eps) / jnp.sqrt(alphas[t])
        before = jnp.where(t > 0, alphas[jnp.maximum(t - 1, 0)], 1.0)
        return jnp.sqrt(before) * x0 + jnp.sqrt(1 - before) * eps

    return jax.lax.fori_loop(0, 5, step, x)


@function((4, 6), (6, 8), (4, 6))
def vae(x, w, decoder):
    mean, logvar = jnp.split(x @ w, 2, axis=-1)
    z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(jax.random.key(1), mean.shape)
    kl = -0.5 * jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), axis=-1)
    logits = z @ decoder
    nll = jnp.sum(jnp.logaddexp(0.0, logits) - x * logits, -1)
    return (nll + kl).mean()


@function((3, 12), ("i", 3, 12))
def beam_search_step(logits, tokens):
    logp = jax.nn.log_softmax(logits) + tokens[:, None] * 0.01
    scores, flat = jax.lax.top_k(logp.reshape(-1), 3)
    beams, words = jnp.divmod(flat, 12)
    return scores, beams, words, jnp.take(tokens, beams)


@function((4, 9))
def nucleus_sampling(logits):
    order = jnp.argsort(-logits, axis=-1)
    probs = jnp.take_along_axis(jax.nn.softmax(logits), order, axis=-1)
    keep = jnp.cumsum(probs, -1) - probs < 0.8
    cut = jnp.where(keep, jnp.log(probs), -jnp.inf)
    drawn = jax.random.categorical(jax.random.key(3), cut)
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0]


@function((4, 8))
def dropout_with_split_keys(x):
    keys = jax.random.split(jax.random.key(7), 3)
    for key in keys:
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)
    return x


@function((3, 4))
def noise_for_each_row(x):
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    return jax.vmap(lambda key, row: row + jax.random.normal(key, row.shape))(keys, x)


# Losses.


@function((7, 5), ("i", 7, 5), (5, 5))
def crf_forward(emissions, tags, transitions):
    def step(alpha, emission):
        return jax.nn.logsumexp(alpha[:, None] + transitions + emission[None, :], axis=0), None

    alpha, _ = jax.lax.scan(step, emissions[0], emissions[1:])
    score = emissions[jnp.arange(7), tags].sum() + transitions[tags[:-1], tags[1:]].sum()
    return jax.nn.logsumexp(alpha) - score


@function((6, 4), ("i", 3, 3))
def ctc_forward(logits, labels):
    logp = jax.nn.log_softmax(logits)
    extended = jnp.zeros(7, jnp.int32).at[1::2].set(labels + 1)
    same = jnp.concatenate([jnp.ones(2, bool), extended[2:] == extended[:-2]])
    start = jnp.full(7, -1e30).at[0].set(logp[0, 0]).at[1].set(logp[0, extended[1]])

    def step(alpha, logp):
        advanced = jnp.concatenate([jnp.array([-1e30]), alpha[:-1]])
        skipped = jnp.where(same, -1e30, jnp.concatenate([jnp.full(2, -1e30), alpha[:-2]]))
        return jax.nn.logsumexp(jnp.stack([alpha, advanced, skipped]), axis=0) + logp[extended], None

    alpha, _ = jax.lax.scan(step, start, logp[1:])
    return -jnp.logaddexp(alpha[-1], alpha[-2])


@function((6, 8), (6, 8))
def contrastive_loss(a, b):
    a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
    b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
    logits = a @ b.T * jnp.exp(2.0)
    n = jnp.arange(6)
    return -(jax.nn.log_softmax(logits)[n, n] + jax.nn.log_softmax(logits.T)[n, n]).mean() / 2


@function((4, 6, 9), ("i", 4, 6, 9))
def masked_token_loss(logits, labels):
    mask = labels != 0
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).squeeze(-1)
    hits = (jnp.argmax(logits, -1) == labels) & mask
    return -jnp.where(mask, logp, 0).sum() / mask.sum(), hits.sum() / mask.sum()


@function((5, 4), (5, 4))
def sinkhorn(x, y):
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)

    def step(_, fg):
        f, g = fg
        f = -0.5 * jax.nn.logsumexp((g[None] - cost) / 0.5, axis=1)
        g = -0.5 * jax.nn.logsumexp((f[:, None] - cost) / 0.5, axis=0)
        return f, g

    f, g = jax.lax.fori_loop(0, 8, step, (jnp.zeros(5), jnp.zeros(5)))
    return (jnp.exp((f[:, None] + g[None] - cost) / 0.5) * cost).sum()


# Reinforcement learning.


@function((6, 3), (7, 3), ("i", 6, 3, 2))
def generalized_advantages(rewards, values, done):
    def step(gae, inputs):
        reward, value, following, done = inputs
        delta = reward + 0.99 * following * (1 - done) - value
        gae = delta + 0.99 * 0.95 * (1 - done) * gae
        return gae, gae

    _, advantages = jax.lax.scan(step, jnp.zeros(3), (rewards, values[:-1], values[1:], done), reverse=True)
    return advantages, advantages + values[:-1]


@function((8, 4), ("i", 8, 4), (8,), (8,), (8,))
def ppo_loss(logits, actions, old, advantages, values):
    def loss(logits):
        logp = jax.nn.log_softmax(logits)
        taken = jnp.take_along_axis(logp, actions[:, None], 1)[:, 0]
        ratio = jnp.exp(taken - old)
        a = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = -jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a).mean()
        entropy = -(jnp.exp(logp) * logp).sum(-1).mean()
        return policy + 0.5 * jnp.square(values).mean() - 0.01 * entropy

    return jax.value_and_grad(loss)(logits)


@function((5, 4), (4, 3), ("i", 5, 3), (5,))
def q_learning(states, w, actions, rewards):
    q = states @ w
    target = rewards + 0.9 * jax.lax.stop_gradient(jnp.max(jnp.roll(q, -1, 0), axis=1))
    error = q[jnp.arange(5), actions] - target
    return jnp.where(jnp.abs(error) < 1, 0.5 * error**2, jnp.abs(error) - 0.5).mean()


# Optimizers.


@function((4, 6), (4, 6), (4, 6), (4, 6))
def adamw(p, g, m, v):
    norm = jnp.sqrt(jnp.sum(g**2))
    g = jnp.where(norm < 1.0, g, g / norm)
    m = 0.9 * m + 0.1 * g
    v = 0.999 * jnp.abs(v) + 0.001 * g**2
    step = jnp.int32(3)
    mhat, vhat = m / (1 - 0.9**step), v / (1 - 0.999**step)
    return p - 1e-2 * (mhat / (jnp.sqrt(vhat) + 1e-8) + 0.01 * p), m, v, step + 1


@function((4, 6), (4, 6), (4, 6))
def lion(p, g, m):
    return p - 0.01 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * p), 0.99 * m + 0.01 * g


@function((4, 6), (4, 6), (4,), (6,))
def adafactor(p, g, rows, cols):
    squared = g**2 + 1e-30
    rows = 0.9 * jnp.abs(rows) + 0.1 * squared.mean(1)
    cols = 0.9 * jnp.abs(cols) + 0.1 * squared.mean(0)
    update = g * jax.lax.rsqrt(rows / rows.mean())[:, None] * jax.lax.rsqrt(cols)[None]
    update = update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(update**2)))
    return p - 0.1 * update * jnp.maximum(jnp.sqrt(jnp.mean(p**2)), 1e-3), rows, cols


@function((4, 6), (4, 6))
def muon(p, m):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m / (jnp.linalg.norm(m) + 1e-7)

    def step(_, x):
        gram = x @ x.T
        return a * x + (b * gram + c * gram @ gram) @ x

    return p - 0.02 * jax.lax.fori_loop(0, 3, step, x)


@function((4, 4), (4, 4))
def shampoo(g, left):
    left = left @ left.T + g @ g.T + 0.1 * jnp.eye(4)
    values, vectors = jnp.linalg.eigh(left)
    return (vectors * values**-0.25) @ vectors.T @ g


@function((4,))
def schedule(x):
    step = jnp.sum(jnp.abs(x) * 10).astype(jnp.int32)
    warm = step / 10
    decay = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip((step - 10) / 90, 0, 1)))
    return x * jnp.where(step < 10, warm, decay), jax.lax.select(step > 5, x, -x)


@function((3, 4), (4, 5), (8, 3))
def accumulated_gradients(w1, w2, x):
    def loss(weights, x):
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

    def step(acc, x):
        return jax.tree.map(jnp.add, acc, jax.grad(loss)((w1, w2), x)), None

    zeros = jax.tree.map(jnp.zeros_like, (w1, w2))
    total, _ = jax.lax.scan(step, zeros, x.reshape(4, 2, 3))
    return jax.tree.map(lambda g: g / 4, total)


# Numerics.


@function((12, 3))
def k_means(x):
    def step(_, centers):
        near = jnp.argmin(((x[:, None] - centers[None]) ** 2).sum(-1), axis=1)
        counts = jax.ops.segment_sum(jnp.ones(12), near, 3)
        sums = jax.ops.segment_sum(x, near, 3)
        return jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centers)

    return jax.lax.fori_loop(0, 4, step, x[:3])


@function((4,))
def newton_until_it_converges(x):
    target = jnp.abs(x) + 1

    def going(state):
        i, _, error = state
        return (i < 20) & (error > 1e-4)

    def step(state):
        i, r, _ = state
        following = 0.5 * (r + target / r)
        return i + 1, following, jnp.max(jnp.abs(following - r))

    return jax.lax.while_loop(going, step, (0, target, jnp.inf))[1]


@function((4, 4))
def power_iteration(x):
    a = x @ x.T

    def step(state):
        i, v = state
        v = a @ v
        return i + 1, v / jnp.linalg.norm(v)

    _, v = jax.lax.while_loop(lambda state: state[0] < 6, step, (0, jnp.ones(4) / 2))
    return v @ a @ v


@function((16,), (5,))
def fft_convolution(x, kernel):
    n = 32
    return jnp.fft.irfft(jnp.fft.rfft(x, n) * jnp.fft.rfft(kernel, n), n)[:16]


@function((6, 6))
def spectral_poisson(f):
    k = jnp.fft.fftfreq(6) * 2 * jnp.pi
    k2 = k[:, None] ** 2 + k[None, :] ** 2
    return jnp.fft.ifft2(jnp.where(k2 == 0, 0, -jnp.fft.fft2(f) / jnp.where(k2 == 0, 1, k2))).real


@function((4, 4), (4,))
def gradient_of_solve(a, b):
    a = a + 4 * jnp.eye(4)
    return jax.grad(lambda a, b: jnp.linalg.solve(a, b).sum(), argnums=(0, 1))(a, b)


@function((3, 4, 4), (3, 4))
def solve_each(a, b):
    return jax.vmap(jnp.linalg.solve)(a + 4 * jnp.eye(4), b)


@function((4, 4), (3, 4))
def solve_rows(a, b):
    a = a + 4 * jnp.eye(4)
    return jax.vmap(lambda b: jnp.linalg.solve(a, b))(b), jnp.linalg.solve(a.T, b.T)


@function((4, 4))
def gaussian_log_likelihood(x):
    def nll(x):
        cov = x @ x.T + jnp.eye(4)
        chol = jnp.linalg.cholesky(cov)
        z = jax.scipy.linalg.solve_triangular(chol, jnp.arange(4.0), lower=True)
        return 0.5 * z @ z + jnp.log(jnp.diagonal(chol)).sum()

    return jax.value_and_grad(nll)(x)


@function((4, 4), (4,))
def cholesky_solve(x, b):
    factor = jax.scipy.linalg.cho_factor(x @ x.T + jnp.eye(4))
    return jax.scipy.linalg.cho_solve(factor, b)


@function((4, 4))
def log_determinant(x):
    return jax.grad(lambda x: jnp.linalg.slogdet(x + 4 * jnp.eye(4))[1])(x)


@function((4, 4), (4,))
def conjugate_gradients(x, b):
    return jax.scipy.sparse.linalg.cg(x @ x.T + jnp.eye(4), b, maxiter=2)[0]


@function((8, 8))
def heat_by_rolling(u):
    def step(u, _):
        around = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
        return u + 0.1 * (around - 4 * u), u.mean()

    return jax.lax.scan(step, u, None, length=4)


@function((10,))
def wave_with_boundaries(u):
    def step(state, _):
        before, now = state
        laplacian = jnp.zeros_like(now).at[1:-1].set(now[2:] - 2 * now[1:-1] + now[:-2])
        return (now, 2 * now - before + 0.1 * laplacian), None

    (_, now), _ = jax.lax.scan(step, (u, u), None, length=3)
    return now


@function((8, 8))
def game_of_life(x):
    alive = (x > 0).astype(jnp.int32)
    count = sum(jnp.roll(alive, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
    return (count == 3) | ((alive == 1) & (count == 2))


@function((3,), (3,))
def runge_kutta(y, k):
    def f(y):
        return jnp.cross(k, y) - 0.1 * y

    def step(y, _):
        k1 = f(y)
        k2 = f(y + 0.05 * k1)
        k3 = f(y + 0.05 * k2)
        k4 = f(y + 0.1 * k3)
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), y

    return jax.lax.scan(step, y, length=5)


# Precision.


@function((4, 8), (8, 6))
def quantized_matmul(x, w):
    sx = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127
    sw = jnp.max(jnp.abs(w), axis=0, keepdims=True) / 127
    qx = jnp.round(x / sx).astype(jnp.int8)
    qw = jnp.round(w / sw).astype(jnp.int8)
    return jax.lax.dot(qx, qw, preferred_element_type=jnp.int32) * sx * sw


@function((4, 8), (8, 8))
def mixed_precision_step(x, w):
    def loss(w):
        h = jnp.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
        return jnp.mean(h**2)

    value, grad = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * grad


@function((3, 5))
def reduced_precision(x):
    return jax.lax.reduce_precision(x, 8, 7), jax.lax.reduce_precision(x, 8, 23)


# Transformations and control flow.


@function((3, 4), (4, 4))
def jvp_and_vjp(x, w):
    def f(x):
        return jnp.tanh(x @ w)

    y, tangent = jax.jvp(f, (x,), (jnp.ones_like(x),))
    _, pull = jax.vjp(f, x)
    return y, tangent, pull(y)[0]


@function((3,), (3,))
def hessian_vector(x, v):
    def f(x):
        return jnp.sum(jnp.sin(x) * jnp.roll(x, 1) ** 2)

    return jax.jvp(jax.grad(f), (x,), (v,))[1], jax.jacrev(jax.grad(f))(x)


@function((5, 3), (3, 2))
def gradient_of_each_example(x, w):
    grads = jax.vmap(jax.grad(lambda w, x: jnp.sum(jax.nn.softplus(x @ w))), (None, 0))(w, x)
    norms = jnp.sqrt((grads**2).sum((1, 2)))
    return (grads / jnp.maximum(1.0, norms)[:, None, None]).mean(0)


@function((4, 8), (8, 16), (16, 8))
def checkpoint_with_a_policy(x, w1, w2):
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    def block(x, w1, w2):
        return x + jax.nn.silu(x @ w1) @ w2

    return jax.grad(lambda w1, w2: block(block(x, w1, w2), w1, w2).sum(), argnums=(0, 1))(w1, w2)


@function((6, 4))
def map_over_rows(x):
    return jax.lax.map(lambda row: jnp.outer(row, row).sum() + row[0], x)


@function((4,))
def nested_conditions(x):
    def deep(x):
        return jax.lax.cond(x[0] > 0, lambda x: x * 2, lambda x: x / 2, x)

    return jax.lax.cond(x.sum() > 0, deep, lambda x: x - 1, x)


@function((4, 3))
def switch_inside_a_scan(x):
    def step(c, row):
        at = (row[0] > 0).astype(jnp.int32) + (row[1] > 0)
        return jax.lax.switch(at, [jnp.add, jnp.subtract, jnp.maximum], c, row), at

    return jax.lax.scan(step, jnp.zeros(3), x)


@function((3, 4), (4,))
def barrier_for_several(x, y):
    x, y = jax.lax.optimization_barrier((jax.device_put(x * 2), y))
    x, y = jax.device_put((x, y))
    return x + y, y - 1


@function((3, 4))
def condition_of_each_row(x):
    return jax.vmap(lambda row: jax.lax.cond(row[0] > 0, jnp.sin, jnp.cos, row))(x)


@function((4, 4))
def where_before_log(x):
    safe = jnp.where(x > 0, x, 1.0)
    return jax.grad(lambda x: jnp.where(x > 0, jnp.log(safe * x), 0.0).sum())(x), jnp.nan_to_num(jnp.log(x))


@jax.custom_vjp
def _clipped(x):
    return x * 2


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (jnp.clip(g * x, -1, 1),))


@jax.custom_jvp
def _safe_sqrt(x):
    return jnp.sqrt(jnp.abs(x))


_safe_sqrt.defjvp(lambda primals, tangents: (_safe_sqrt(*primals), tangents[0] / (2 * _safe_sqrt(*primals) + 1e-3)))


@function((5,))
def custom_derivatives(x):
    return jax.grad(lambda x: (_clipped(x) * _safe_sqrt(x)).sum())(x)


@function((5,))
def straight_through(x):
    def quantize(x):
        return x + jax.lax.stop_gradient(jnp.round(x) - x)

    return jax.value_and_grad(lambda x: (quantize(x) ** 2).sum())(x)


# Indexing.


@function((10, 4), ("i", 3, 5, 10))
def embedding_bag(table, ids):
    return table[ids].mean(1), jax.grad(lambda t: jnp.tanh(t[ids]).sum())(table)


@function((5, 6), ("i", 4, 5), ("i", 4, 6), (4,))
def scatters(x, i, j, u):
    return (
        x.at[i, j].set(u),
        x.at[i, j].add(u),
        x.at[i, j].mul(u),
        x.at[i].max(u[:, None]),
        x.at[:, j].min(u[None]),
        x.at[i, j].get(mode="fill", fill_value=0),
        x.at[-1].set(0.0),
        x[::-1, ::2],
    )


@function((3, 5, 4), ("i", 3, 2, 5))
def batched_gather(x, i):
    return jax.vmap(lambda x, i: x[i])(x, i), jax.vmap(lambda x, i: x.at[i].add(1.0))(x, i)


@function((6, 5))
def orders(x):
    values, at = jax.lax.top_k(x, 2)
    return (
        jnp.sort(x, axis=0), values, at, jnp.argmax(x, 0), jnp.argmin(x, 1), jnp.median(x, axis=1),
        jnp.searchsorted(jnp.sort(x[:, 0]), x[0]), jnp.any(x > 1, 0), jnp.all(x > -1, 1), jnp.unique(x > 0, size=2),
    )  # fmt: skip


@function((4, 6))
def scans(x):
    return (
        jax.lax.cumsum(x, axis=1, reverse=True),
        jax.lax.cumprod(x, axis=0, reverse=True),
        jax.lax.cummax(x, axis=1, reverse=True),
        jax.lax.cummin(x, axis=1),
        jax.lax.cumlogsumexp(x, axis=1, reverse=True),
        jnp.diff(x, axis=1),
    )


@function(("i", 6, 50), ("i", 6, 7))
def integers(a, b):
    b = b + 1
    bits = jax.lax.population_count(a - 25)
    return a ^ b, a << 1, jax.lax.shift_right_logical(a, b), a % b, -a // b, bits, a.astype(bool)


@function((2, 3, 4), (2, 4, 5), (4, 3, 2))
def contractions(a, b, c):
    return jnp.einsum("bij,bjk->bik", a, b), jnp.tensordot(a, c, 1), jnp.einsum("bij,jib->b", a, c), jnp.vdot(a, a)


@function((2, 5, 3))
def patches(x):
    return jnp.stack([x[:, i : i + 3] for i in range(3)], 1), jnp.pad(x, ((0, 0), (1, 2), (0, 0)), mode="edge")


_TABLE = np.linspace(0, 1, 8, dtype=np.float32)
_EMPTY = np.zeros((0, 4), np.float32)


@function((8,), (3, 4))
def captured_arrays(x, y):
    @jax.jit
    def inner(x):
        return x * _TABLE

    def step(c, _):
        return c * jnp.asarray(_TABLE) + 1, None

    return inner(x), jax.lax.scan(step, x, None, length=2)[0], jnp.concatenate([jnp.asarray(_EMPTY), y])


# Device code, on a mesh of two by two.

DEVICES: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, ...], ...], tuple[Any, ...], Any]] = {}


def device(*operands: tuple[tuple[Any, ...], jax.P], out: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Try a device's code for arrays of these shapes and specs, whose results have the specs `out`."""

    def register(each: Callable[..., Any]) -> Callable[..., Any]:
        DEVICES[each.__name__] = each, tuple(s for s, _ in operands), tuple(spec for _, spec in operands), out
        return each

    return register


@device(((4, 8), jax.P("x")), ((8, 16), jax.P(None, "y")), ((16, 8), jax.P("y")), out=jax.P("x"))
def tensor_parallel_mlp(x, w1, w2):
    return jax.lax.psum(jax.nn.gelu(x @ w1) @ w2, "y")


@device(((8, 8), jax.P(("x", "y"))), ((8, 8), jax.P("x", "y")), out=(jax.P(("x", "y")), jax.P("x", "y")))
def fsdp_step(x, w):
    """Weights are gathered for the product; their gradient is reduce-scattered."""

    def loss(whole):
        return jnp.sum(jnp.tanh(x @ whole))

    whole = jax.lax.all_gather(jax.lax.all_gather(w, "y", axis=1, tiled=True), "x", axis=0, tiled=True)
    grad = jax.grad(loss)(whole)
    grad = jax.lax.psum_scatter(grad, "x", scatter_dimension=0, tiled=True)
    grad = jax.lax.psum_scatter(grad, "y", scatter_dimension=1, tiled=True)
    return x @ whole, w - 0.1 * grad / 4


@device(*[((8, 4), jax.P("x"))] * 3, out=jax.P("x"))
def ring_attention(q, k, v):
    n = jax.lax.axis_size("x")

    def step(carry, _):
        acc, top, total, k, v = carry
        s = q @ k.T / 2
        m = jnp.maximum(top, s.max(-1))
        p, scale = jnp.exp(s - m[:, None]), jnp.exp(top - m)
        acc, total = acc * scale[:, None] + p @ v, total * scale + p.sum(-1)
        k, v = (jax.lax.ppermute(each, "x", [(i, (i + 1) % n) for i in range(n)]) for each in (k, v))
        return (acc, m, total, k, v), None

    start = jnp.zeros_like(q), jnp.full_like(q[:, 0], -jnp.inf), jnp.zeros_like(q[:, 0])
    (acc, _, total, _, _), _ = jax.lax.scan(step, (*start, k, v), length=n)
    return acc / total[:, None]


@device(((4, 2, 6), jax.P()), ((2, 6, 6), jax.P("x")), out=jax.P("x"))
def pipeline(batches, w):
    """GPipe: the result of a stage is sent to the next one."""
    stage, n = jax.lax.axis_index("x"), jax.lax.axis_size("x")

    def tick(carry, t):
        state, outputs = carry
        fed = jax.lax.dynamic_index_in_dim(batches, jnp.clip(t, 0, 3), keepdims=False)
        h = jnp.tanh(jnp.where(stage == 0, fed, state) @ w[0])
        done = t - (n - 1)
        kept = jax.lax.dynamic_update_index_in_dim(outputs, h, jnp.maximum(done, 0), 0)
        outputs = jnp.where((stage == n - 1) & (done >= 0), kept, outputs)
        return (jax.lax.ppermute(h, "x", [(0, 1)]), outputs), None

    start = jax.lax.pcast((jnp.zeros((2, 6)), jnp.zeros((4, 2, 6))), "x", to="varying")
    (_, outputs), _ = jax.lax.scan(tick, start, jnp.arange(4 + n - 1))
    return outputs[None]


@device(((4, 4, 2, 4), jax.P(None, "x")), out=jax.P(None, "x"))
def ulysses(x):
    """From shards of the sequence to shards of the heads, and back."""
    heads = jax.lax.all_to_all(x, "x", split_axis=2, concat_axis=1, tiled=True)
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads, heads) / 2
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), heads)
    return jax.lax.all_to_all(mixed, "x", split_axis=1, concat_axis=2, tiled=True)


@device(((8, 6), jax.P("x", "y")), ((8,), jax.P("x")), out=(jax.P(), jax.P("x")))
def vocabulary_parallel_loss(logits, targets):
    n = logits.shape[1]
    first = jax.lax.axis_index("y") * n
    label = (jnp.abs(targets) * 2).astype(jnp.int32)
    top = jax.lax.pmax(jax.lax.stop_gradient(logits.max(-1)), "y")
    total = jax.lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "y")
    mine = (label >= first) & (label < first + n)
    taken = jnp.take_along_axis(logits, jnp.clip(label - first, 0, n - 1)[:, None], 1)[:, 0]
    loss = jnp.log(total) + top - jax.lax.psum(jnp.where(mine, taken, 0.0), "y")
    return jax.lax.pmean(loss.mean(), "x"), loss


@device(((8, 4), jax.P("x", "y")), out=jax.P("x", "y"))
def halo_stencil(u):
    """Rows at the edges come from the neighbours; at the array's ends from the other end."""
    n = jax.lax.axis_size("x")
    above = jax.lax.ppermute(u[-1:], "x", [(i, (i + 1) % n) for i in range(n)])
    below = jax.lax.ppermute(u[:1], "x", [(i, (i - 1) % n) for i in range(n)])
    padded = jnp.concatenate([above, u, below])
    return padded[:-2] + padded[2:] - 2 * u


@device(((8, 4), jax.P(("x", "y"))), ((4, 4), jax.P()), out=jax.P())
def data_parallel_gradient(x, w):
    grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(jax.lax.pcast(w, ("x", "y"), to="varying"))
    return jax.lax.pmean(grad, ("x", "y"))


@device(((8, 3), jax.P("x")), ((3,), jax.P()), out=(jax.P("x"), jax.P()))
def synchronized_batch_norm(x, scale):
    mean = jax.lax.pmean(x.mean(0), "x")
    var = jax.lax.pmean((x**2).mean(0), "x") - mean**2
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale, 0.9 * scale + 0.1 * mean


@device(((8, 4), jax.P(("x", "y"))), ((4, 4, 4), jax.P(("x", "y"))), out=jax.P(("x", "y")))
def expert_parallel(tokens, weights):
    """Each device has an expert, and sends a part of its tokens to each."""
    sent = jax.lax.all_to_all(tokens.reshape(2, 1, 4).repeat(2, 0), ("x", "y"), 0, 0, tiled=True)
    done = jnp.maximum(sent.reshape(4, 4) @ weights[0], 0)
    back = jax.lax.all_to_all(done.reshape(4, 1, 4), ("x", "y"), 0, 0, tiled=True)
    return back.reshape(2, 2, 4).sum(1)


@device(((4, 4), jax.P("x", "y")), ((4, 4), jax.P("x", "y")), out=jax.P("x", "y"))
def cannon(a, b):
    def step(_, carry):
        a, b, c = carry
        c = c + a @ b
        shift = [(0, 1), (1, 0)]
        return jax.lax.ppermute(a, "y", shift), jax.lax.ppermute(b, "x", shift), c

    i, j = jax.lax.axis_index("x"), jax.lax.axis_index("y")
    a = jnp.where(i == 1, jax.lax.ppermute(a, "y", [(0, 1), (1, 0)]), a)
    b = jnp.where(j == 1, jax.lax.ppermute(b, "x", [(0, 1), (1, 0)]), b)
    return jax.lax.fori_loop(0, 2, step, (a, b, jnp.zeros_like(a)))[2]
