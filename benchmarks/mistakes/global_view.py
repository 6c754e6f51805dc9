"""Functions on Explicit meshes that `set_mesh` sets, with bare specs, with references and mistakes."""

# `jax.nn.one_hot` of JAX 0.10, which the type checker sees, has no `out_sharding`.
# pyright: reportCallIssue=false
from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
D = 8


def fsdp_linear(x, w, b):
    w = reshard(w, P(None, None))
    h = x @ w + b
    return jax.nn.gelu(h) / 2


def fsdp_linear_reference(x, w, b):
    return jax.nn.gelu(x @ w + b) / 2


def two_layers(x, up, down):
    h = jax.nn.silu(x @ up)
    y = jnp.einsum("bf,fd->bd", h, down, out_sharding=P("data", None))
    return x + 0.5 * y


def two_layers_reference(x, up, down):
    a = x @ up
    return x + (a * jax.nn.sigmoid(a)) @ down / 2


def grouped_attention(q, k, v):
    """q: [batch, time, heads, D]; k, v: with half of the heads."""
    k = jnp.repeat(k, 2, axis=2, out_sharding=HEADS)
    v = jnp.repeat(v, 2, axis=2, out_sharding=HEADS)
    s = jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5
    at = jnp.arange(q.shape[1])
    s = jnp.where(at[:, None] >= at, s, -1e30)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(s), v)


def grouped_attention_reference(q, k, v):
    outs = []
    for head in range(q.shape[2]):
        s = q[:, :, head] @ k[:, :, head // 2].swapaxes(1, 2) / jnp.sqrt(D)
        p = jnp.exp(jnp.where(jnp.tril(jnp.ones(s.shape[1:], bool)), s, -jnp.inf))
        outs.append(p / p.sum(-1, keepdims=True) @ v[:, :, head // 2])
    return jnp.stack(outs, 2)


def rms(x, g):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * g


def rms_block(x, g, w1, w2):
    h = rms(x, g)
    gate, up = jnp.split(h @ w1, 2, axis=-1)
    out = (jax.nn.silu(gate) * up) @ w2
    return x + out


def rms_block_reference(x, g, w1, w2):
    n = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * g
    a, b = n @ w1[:, : w1.shape[1] // 2], n @ w1[:, w1.shape[1] // 2 :]
    return x + (a / (1 + jnp.exp(-a)) * b) @ w2


def adamw(w, m, v, g, step):
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    mhat = m / (1 - 0.9**step)
    vhat = v / (1 - 0.99**step)
    update = mhat / (jnp.sqrt(vhat) + 1e-3) + 0.01 * w
    return w - 0.05 * update, m, v


def adamw_reference(w, m, v, g, step):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    mhat, vhat = m / (1 - jnp.power(0.9, step)), v / (1 - jnp.power(0.99, step))
    return w - 0.05 * (mhat / (1e-3 + vhat**0.5) + 0.01 * w), m, v


def contrastive(images, texts):
    a = images / jnp.linalg.norm(images, axis=-1, keepdims=True)
    b = texts / jnp.linalg.norm(texts, axis=-1, keepdims=True)
    b = reshard(b, P(None, None))
    logits = 5.0 * a @ b.T
    rows = jax.nn.logsumexp(logits, axis=1)
    columns = jax.nn.logsumexp(logits, axis=0)
    same = jnp.sum(a * reshard(b, P("data", None)), axis=1) * 5.0
    return (rows.mean() + columns.mean()) / 2 - same.mean()


def contrastive_reference(images, texts):
    a = images / jnp.sqrt((images**2).sum(-1, keepdims=True))
    b = texts / jnp.sqrt((texts**2).sum(-1, keepdims=True))
    logits = 5.0 * a @ b.T
    own = jnp.diagonal(logits)
    rows = jnp.log(jnp.exp(logits).sum(1)) - own
    columns = jnp.log(jnp.exp(logits).sum(0)) - own
    return (rows + columns).mean() / 2


def smoothed_loss(x, w, labels):
    logp = jax.nn.log_softmax(x @ w, axis=-1)
    hard = -jnp.sum(jax.nn.one_hot(labels, w.shape[1], out_sharding=P("data", None)) * logp, axis=-1)
    even = -logp.mean(-1)
    return jnp.mean(0.9 * hard + 0.1 * even)


def smoothed_loss_reference(x, w, labels):
    z = x @ w
    logp = z - jnp.log(jnp.exp(z).sum(-1, keepdims=True))
    target = 0.9 * (labels[:, None] == jnp.arange(w.shape[1])) + 0.1 / w.shape[1]
    return -(target * logp).sum(-1).mean()


def distance_bias(q, k, v):
    s = jnp.einsum("btd,bsd->bts", q, k) / D**0.5
    at = jnp.arange(q.shape[1])
    apart = at[:, None] - at[None, :]
    s = jnp.where(apart >= 0, s - 0.25 * apart, -1e30)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(s, axis=-1), v)


def distance_bias_reference(q, k, v):
    s = q @ k.swapaxes(1, 2) * D**-0.5
    t = s.shape[1]
    bias = jnp.stack([jnp.where(jnp.arange(t) <= i, -0.25 * (i - jnp.arange(t)), -jnp.inf) for i in range(t)])
    p = jnp.exp(s + bias)
    return p @ v / p.sum(-1, keepdims=True)


def depthwise(x, kernel):
    """A causal convolution over time; x: [batch, time, channels]."""
    padded = jnp.pad(x, ((0, 0), (2, 0), (0, 0)))
    out = padded[:, 2:] * kernel[0]
    out = out + padded[:, 1:-1] * kernel[1]
    out = out + padded[:, :-2] * kernel[2]
    return jnp.tanh(out)


def depthwise_reference(x, kernel):
    first = jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], 1)
    second = jnp.concatenate([jnp.zeros_like(x[:, :2]), x[:, :-2]], 1)
    return jnp.tanh(kernel[0] * x + kernel[1] * first + kernel[2] * second)


def moving_state(x, decay):
    def step(state, now):
        state = decay * state + (1 - decay) * now
        return state, state * now

    _, out = lax.scan(step, jnp.zeros_like(x[0]), x)
    return out


def moving_state_reference(x, decay):
    state, outs = 0 * x[0], []
    for now in x:
        state = now + decay * (state - now)
        outs.append(now * state)
    return jnp.stack(outs)


def advantages(rewards, values):
    """Generalized advantage estimates; both arguments: [time, batch]."""
    following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
    deltas = rewards + 0.9 * following - values

    def back(carry, delta):
        carry = delta + 0.9 * 0.8 * carry
        return carry, carry

    return lax.scan(back, jnp.zeros_like(deltas[0]), deltas, reverse=True)[1]


def advantages_reference(rewards, values):
    t = rewards.shape[0]
    outs = []
    for i in range(t):
        total = 0 * rewards[0]
        for j in range(i, t):
            after = values[j + 1] if j + 1 < t else 0
            total = total + (0.9 * 0.8) ** (j - i) * (rewards[j] + 0.9 * after - values[j])
        outs.append(total)
    return jnp.stack(outs)


def scaled(x, by):
    return x * by


def shift_scale(x, g, b):
    mean = x.mean(-1, keepdims=True)
    spread = jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    y = scaled((x - mean) / spread, 1 + g)
    return y + b


def shift_scale_reference(x, g, b):
    c = x - x.mean(-1, keepdims=True)
    return c * lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5) * (g + 1) + b


def row_parallel(x, w):
    @jax.shard_map(in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", None))
    def product(x, w):
        return lax.psum(x @ w, "model")

    return jax.nn.relu(product(x, w)) + 1.0


def row_parallel_reference(x, w):
    return jnp.maximum(x @ w, 0) + 1


def sharded_step(w, x, y):
    @jax.shard_map(in_specs=(P(None, None), P("data", None), P("data", None)), out_specs=P(None, None))
    def gradient(w, x, y):
        error = x @ w - y
        local = x.T @ error / x.shape[0]
        return lax.pmean(local, "data")

    return w - 0.1 * gradient(w, x, y)


def sharded_step_reference(w, x, y):
    return w - 0.1 * x.T @ (x @ w - y) / x.shape[0]


def huber(x, w, y):
    error = x @ w - y
    small = jnp.abs(error) <= 1.0
    loss = jnp.where(small, 0.5 * error**2, jnp.abs(error) - 0.5)
    return loss.sum(-1).mean()


def huber_reference(x, w, y):
    e = x @ w - y
    a = jnp.minimum(jnp.abs(e), 1.0)
    return (0.5 * a * a + jnp.abs(e) - a).sum(1).mean()


B, W = P("data", None), P(None, "model")
BT = P("data", None, None)
HEADS = P("data", None, "model", None)
LABELS = jax.random.randint(jax.random.key(1), (8,), 0, 12)
STATE = (normal(0, D, 4), normal(1, D, 4), normal(2, D, 4) ** 2, normal(3, D, 4))
QKV = tuple(normal(seed, 4, 6, D) for seed in range(3))

CASES = (
    Case(fsdp_linear, (normal(0, 8, D), normal(1, D, 12), normal(2, 12)), mesh, (B, P("data", None), P(None)), None,
         fsdp_linear_reference, (
        ("h = x @ w + b", "h = x @ w - b"),
        ("jax.nn.gelu(h) / 2", "jax.nn.gelu(h)"),
    ), jitted=True, setting=True),
    Case(two_layers, (normal(0, 8, D), normal(1, D, 12), normal(2, 12, D)), mesh, (B, W, P("model", None)), None,
         two_layers_reference, (
        ("jax.nn.silu(x @ up)", "jax.nn.sigmoid(x @ up)"),
        ("x + 0.5 * y", "0.5 * (x + y)"),
    ), jitted=True, setting=True),
    Case(grouped_attention, (normal(0, 4, 6, 4, D), normal(1, 4, 6, 2, D), normal(2, 4, 6, 2, D)), mesh,
         (HEADS, HEADS, HEADS), None, grouped_attention_reference, (
        ("at[:, None] >= at,", "at[:, None] <= at,"),
        ("* D**-0.5", "* D**-1.0"),
    ), jitted=True, setting=True),
    Case(rms_block, (normal(0, 8, D), normal(1, D), normal(2, D, 12), normal(3, 6, D)), mesh,
         (B, P(None), P(None, None), P(None, None)), None, rms_block_reference, (
        ("h = rms(x, g)", "h = x * g"),
        ("(jax.nn.silu(gate) * up)", "(jax.nn.silu(up) * gate)"),
        ("return x + out", "return rms(x, g) + out"),
    ), jitted=True, setting=True),
    Case(adamw, (*STATE, 3.0), mesh, (W, W, W, W, None), None, adamw_reference, (
        ("mhat = m / (1 - 0.9**step)", "mhat = m / (1 + 0.9**step)"),
        ("vhat = v / (1 - 0.99**step)", "vhat = v / (1 - 0.9**step)"),
        ("+ 0.01 * w", "+ 0.01 * m"),
    ), jitted=True, setting=True),
    Case(contrastive, (normal(0, 8, D), normal(1, 8, D)), mesh, (B, B), None, contrastive_reference, (
        ("logits = 5.0 * a @ b.T", "logits = a @ b.T"),
        ("columns = jax.nn.logsumexp(logits, axis=0)", "columns = jax.nn.logsumexp(logits, axis=1)"),
    ), jitted=True, setting=True),
    Case(smoothed_loss, (normal(0, 8, D), normal(1, D, 12), LABELS), mesh, (B, P(None, None), P("data")), None,
         smoothed_loss_reference, (
        ("even = -logp.mean(-1)", "even = -logp.sum(-1)"),
        ("0.9 * hard + 0.1 * even", "0.9 * hard - 0.1 * even"),
    ), jitted=True, setting=True),
    Case(distance_bias, QKV, mesh, (BT, BT, BT), None, distance_bias_reference, (
        ("s - 0.25 * apart", "s + 0.25 * apart"),
        ("/ D**0.5", "/ D"),
    ), jitted=True, setting=True),
    Case(depthwise, (normal(0, 4, 6, D), normal(1, 3, D)), mesh, (BT, P(None, None)), None, depthwise_reference, (
        ("padded[:, 1:-1] * kernel[1]", "padded[:, 1:-1] * kernel[0]"),
        ("((0, 0), (2, 0), (0, 0))", "((0, 0), (1, 1), (0, 0))"),
    ), jitted=True, setting=True),
    Case(moving_state, (normal(0, 5, 8), 0.75), mesh, (P(None, "data"), None), None, moving_state_reference, (
        ("(1 - decay) * now", "decay * now"),
        ("return state, state * now", "return now, state * now"),
    ), jitted=True, setting=True),
    Case(advantages, (normal(0, 5, 8), normal(1, 5, 8)), mesh, (P(None, "data"), P(None, "data")), None,
         advantages_reference, (
        ("jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])",
         "jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])"),
        ("deltas, reverse=True)", "deltas)"),
    ), jitted=True, setting=True),
    Case(shift_scale, (normal(0, 8, D), normal(1, D), normal(2, D)), mesh, (B, P(None), P(None)), None,
         shift_scale_reference, (
        ("scaled((x - mean) / spread, 1 + g)", "scaled((x - mean) / spread, g)"),
        ("jnp.sqrt(((x - mean) ** 2)", "jnp.sqrt((x ** 2)"),
    ), jitted=True, setting=True),
    Case(row_parallel, (normal(0, 8, D), normal(1, D, 6)), mesh, (P("data", "model"), P("model", None)), None,
         row_parallel_reference, (
        ("return lax.psum(x @ w, \"model\")", "return lax.pmean(x @ w, \"model\")"),
        ("+ 1.0", "- 1.0"),
    ), jitted=True, setting=True),
    Case(sharded_step, (normal(0, D, 4), normal(1, 8, D), normal(2, 8, 4)), mesh, (P(None, None), B, B), None,
         sharded_step_reference, (
        ("return lax.pmean(local, \"data\")", "return lax.psum(local, \"data\")"),
        ("error = x @ w - y", "error = x @ w + y"),
    ), jitted=True, setting=True),
    Case(huber, (normal(0, 8, D), normal(1, D, 4), normal(2, 8, 4)), mesh, (B, P(None, None), B), None,
         huber_reference, (
        ("jnp.abs(error) - 0.5)", "jnp.abs(error))"),
        ("loss.sum(-1).mean()", "loss.mean(-1).mean()"),
    ), jitted=True, setting=True),
)  # fmt: skip
