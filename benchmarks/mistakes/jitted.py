"""Functions in the global view, most on Explicit meshes, with bare specs, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
AUTO = {"data": 2, "model": 2}
D = 8


def norm(x, g):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * g


def norm_reference(x, g):
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * g


@jax.jit
def causal(q, k, v):
    scores = jnp.einsum("bqd,bkd->bqk", q, k)
    scores = scores / jnp.sqrt(q.shape[-1])
    at = jnp.arange(q.shape[1])
    scores = jnp.where(at[:, None] >= at[None, :], scores, -1e30)
    p = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bqk,bkd->bqd", p, v)


def causal_reference(q, k, v):
    scores = q @ k.swapaxes(1, 2) * D**-0.5
    mask = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    p = jnp.exp(jnp.where(mask, scores, -jnp.inf))
    return (p / p.sum(-1, keepdims=True)) @ v


@jax.jit
def gated_mlp(x, w1, w3, w2):
    gate = jax.nn.silu(x @ w1)
    up = x @ w3
    h = gate * up
    return x + h @ w2


def gated_reference(x, w1, w3, w2):
    a = x @ w1
    return (a / (1 + jnp.exp(-a)) * (x @ w3)) @ w2 + x


def momentum(w, m, x, y):
    def loss(w):
        return ((x @ w - y) ** 2).mean()

    grad = jax.grad(loss)(w)
    m = 0.9 * m + grad
    w = w - 0.1 * m
    return w, m


def momentum_reference(w, m, x, y):
    grad = 2 * x.T @ (x @ w - y) / y.size
    return w - 0.1 * (0.9 * m + grad), 0.9 * m + grad


def moving_average(x):
    padded = jnp.pad(x, ((0, 0), (2, 0)))
    total = padded[:, 2:] + padded[:, 1:-1] + padded[:, :-2]
    return total / 3


def average_reference(x):
    rows = [jnp.convolve(row, jnp.ones(3) / 3)[: x.shape[1]] for row in x]
    return jnp.stack(rows)


def rotary(x, angle):
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rotary_reference(x, angle):
    half = x.shape[-1] // 2
    z = lax.complex(x[..., :half], x[..., half:]) * jnp.exp(1j * angle)
    return jnp.concatenate([z.real, z.imag], axis=-1)


def cross_entropy(h, w, labels):
    logits = h @ w
    top = logits.max(-1, keepdims=True)
    lse = jnp.log(jnp.exp(logits - top).sum(-1)) + top[:, 0]
    target = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return (lse - target).mean()


def entropy_reference(h, w, labels):
    return -jnp.mean(jax.nn.log_softmax(h @ w)[jnp.arange(labels.size), labels])


def dropout(x, key):
    first, second = jax.random.split(key)
    keep = jax.random.bernoulli(second, 0.75, x.shape)
    del first
    return jnp.where(keep, x / 0.75, 0.0)


def dropout_reference(x, key):
    keep = jax.random.bernoulli(jax.random.split(key)[1], 0.75, x.shape)
    return x * keep / 0.75


def gathered(x, w):
    w = reshard(w, P(None, "model"))
    h = jnp.tanh(x @ w)
    return reshard(h, P("data", None))


def moe(x, gate, w):
    scores = jax.nn.softmax(x @ gate, axis=-1)
    top, which = lax.top_k(scores, 2)
    top = top / top.sum(-1, keepdims=True)
    weights = (jax.nn.one_hot(which, gate.shape[-1]) * top[..., None]).sum(1)
    return jnp.einsum("te,td,edf->tf", weights, x, w)


def moe_reference(x, gate, w):
    logits = x @ gate
    kth = jnp.sort(logits, axis=-1)[:, -2:-1]
    p = jnp.where(logits >= kth, jnp.exp(logits), 0.0)
    p = p / p.sum(-1, keepdims=True)
    return sum(p[:, e : e + 1] * (x @ w[e]) for e in range(w.shape[0]))


QKV = tuple(normal(seed, 4, 6, D) for seed in range(3))
FFN = (normal(0, 8, D), normal(1, D, 12), normal(2, D, 12), normal(3, 12, D))
STEP = (normal(0, D, 4), normal(1, D, 4), normal(2, 8, D), normal(3, 8, 4))
LABELS = jax.random.randint(jax.random.key(0), (8,), 0, 12)
B = P("data")

CASES = (
    Case(norm, (normal(0, 8, D), normal(1, D)), AUTO, (B, P()), None, norm_reference, (
        ("var = ((x - mean) ** 2).mean(-1, keepdims=True)", "var = (x**2).mean(-1, keepdims=True)"),
        ("return (x - mean) *", "return x *"),
        ("lax.rsqrt(var + 1e-5)", "lax.rsqrt(var + 1e-2)"),
    ), jitted=True),
    Case(causal, QKV, AUTO, (B, B, B), None, causal_reference, (
        ("scores = scores / jnp.sqrt(q.shape[-1])", "scores = scores / q.shape[-1]"),
        ("at[:, None] >= at[None, :]", "at[:, None] > at[None, :]"),
        ("at[:, None] >= at[None, :]", "at[:, None] <= at[None, :]"),
        ("\"bqk,bkd->bqd\", p, v", "\"bqk,bkd->bqd\", p, k"),
    ), jitted=True),
    Case(gated_mlp, FFN, mesh, (B, P(None, "model"), P(None, "model"), P("model", None)), None, gated_reference, (
        ("up = x @ w3", "up = x @ w1"),
        ("h = gate * up", "h = gate + up"),
        ("gate = jax.nn.silu(x @ w1)", "gate = jax.nn.relu(x @ w1)"),
    ), jitted=True),
    Case(momentum, STEP, mesh, (P(), P(), B, B), None, momentum_reference, (
        ("w = w - 0.1 * m", "w = w - 0.1 * grad"),
        ("m = 0.9 * m + grad", "m = 0.9 * (m + grad)"),
        ("return ((x @ w - y) ** 2).mean()", "return ((x @ w - y) ** 2).sum()"),
    ), jitted=True),
    Case(moving_average, (normal(0, 4, 12),), mesh, (B,), None, average_reference, (
        ("((0, 0), (2, 0))", "((0, 0), (0, 2))"),
        ("padded[:, :-2]", "padded[:, 2:]"),
        ("return total / 3", "return total / 2"),
    ), jitted=True),
    Case(rotary, (normal(0, 8, 8), normal(1, 4)), mesh, (B, P()), None, rotary_reference, (
        ("a * cos - b * sin", "a * cos + b * sin"),
        ("cos, sin = jnp.cos(angle), jnp.sin(angle)", "cos, sin = jnp.sin(angle), jnp.cos(angle)"),
        ("a * sin + b * cos], axis=-1)", "a * sin + b * sin], axis=-1)"),
    ), jitted=True),
    Case(cross_entropy, (normal(0, 8, D), normal(1, D, 12), LABELS), AUTO, (B, P(None, "model"), B), None,
         entropy_reference, (
        (".sum(-1)) + top[:, 0]", ".sum(-1))"),
        ("return (lse - target).mean()", "return (lse + target).mean()"),
        ("return (lse - target).mean()", "return (lse - target).sum()"),
    ), jitted=True),
    Case(dropout, (normal(0, 8, D), jax.random.PRNGKey(0)), AUTO, (B, P()), None, dropout_reference, (
        ("jax.random.bernoulli(second, 0.75", "jax.random.bernoulli(first, 0.75"),
        ("jnp.where(keep, x / 0.75, 0.0)", "jnp.where(keep, x * 0.75, 0.0)"),
    ), jitted=True),
    Case(gathered, (normal(0, 8, D), normal(1, D, 12)), mesh, (B, P("model", None)), None,
         lambda x, w: jnp.tanh(x @ w), (
        ("h = jnp.tanh(x @ w)", "h = x @ w"),
    ), jitted=True, setting=True),
    Case(moe, (normal(0, 8, D), normal(1, D, 4), normal(2, 4, D, 6)), AUTO, (B, P(), P("model")), None,
         moe_reference, (
        ("top = top / top.sum(-1, keepdims=True)", "top = top / top.max(-1, keepdims=True)"),
        ("* top[..., None]).sum(1)", "* top[..., None]).mean(1)"),
        ("jnp.einsum(\"te,td,edf->tf\", weights, x, w)", "jnp.einsum(\"te,td,edf->tf\", scores, x, w)"),
    ), jitted=True),
)  # fmt: skip
