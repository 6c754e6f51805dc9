"""Training steps, losses, experts and pipelines in `shard_map`, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

N = 4
auto = AbstractMesh((N,), ("d",), axis_types=(AxisType.Auto,))
V, D = 16, 6


def vocab_loss(h, table, labels):
    me = lax.axis_index("d")
    rows = table.shape[0]
    logits = h @ table.T
    top = lax.pmax(lax.stop_gradient(logits.max(-1)), "d")
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "d")
    local = labels - me * rows
    mine = (local >= 0) & (local < rows)
    picked = jnp.take_along_axis(logits, jnp.clip(local, 0, rows - 1)[:, None], axis=1)[:, 0]
    target = lax.psum(jnp.where(mine, picked, 0.0), "d")
    return jnp.mean(jnp.log(total) + top - target)


def loss_reference(h, table, labels):
    logp = jax.nn.log_softmax(h @ table.T)
    return -jnp.mean(jnp.take_along_axis(logp, labels[:, None], axis=1))


def embedding(table, ids):
    me = lax.axis_index("d")
    local = ids - me * table.shape[0]
    there = (local >= 0) & (local < table.shape[0])
    rows = table[jnp.where(there, local, 0)]
    return lax.psum(jnp.where(there[:, None], rows, 0.0), "d")


def data_parallel_step(w, x, y):
    def loss(w):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    value, grad = jax.value_and_grad(loss)(w)
    grad = lax.pmean(grad, "d")
    value = lax.pmean(value, "d")
    return w - 0.1 * grad, value


def step_reference(w, x, y):
    value, grad = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
    return w - 0.1 * grad, value


def fsdp_step(w, m, x, y):
    def loss(w):
        whole = lax.all_gather(w, "d", axis=0, tiled=True)
        return jnp.sum((x @ whole - y) ** 2)

    grad = jax.grad(loss)(w) / N
    m = 0.9 * m + grad
    return w - 0.01 * m, m


def fsdp_reference(w, m, x, y):
    grad = jax.grad(lambda w: jnp.sum((x @ w - y) ** 2) / N)(w)
    m = 0.9 * m + grad
    return w - 0.01 * m, m


def adam_sharded(w, m, v, g):
    g = lax.psum_scatter(g, "d", scatter_dimension=0, tiled=True) / N
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g**2
    step = m / (jnp.sqrt(v) + 1e-3)
    w = w - 0.1 * step
    return lax.all_gather(w, "d", axis=0, tiled=True), m, v


def adam_reference(w, m, v, g):
    g = g.reshape(N, -1, *g.shape[1:]).mean(0)
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g**2
    return w - 0.1 * m / (jnp.sqrt(v) + 1e-3), m, v


def clipped(grads):
    norm = jnp.sqrt(lax.psum(jnp.sum(grads**2), "d"))
    return grads * jnp.minimum(1.0, 1.0 / norm)


def clipped_reference(grads):
    return grads * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.sum(grads**2)))


def experts(x, gate, w1, w2):
    me = lax.axis_index("d")
    choice = jnp.argmax(x @ gate, axis=-1)
    sent = jax.nn.one_hot(choice, N, dtype=x.dtype)
    slots = jnp.einsum("te,td->etd", sent, x)
    there = lax.all_to_all(slots, "d", split_axis=0, concat_axis=0)
    hidden = jax.nn.relu(there @ w1[0])
    out = hidden @ w2[0]
    back = lax.all_to_all(out, "d", split_axis=0, concat_axis=0)
    del me
    return jnp.einsum("te,etd->td", sent, back)


def experts_reference(x, gate, w1, w2):
    sent = jax.nn.one_hot(jnp.argmax(x @ gate, axis=-1), N, dtype=x.dtype)
    hidden = jax.nn.relu(jnp.einsum("te,td,edf->etf", sent, x, w1))
    return jnp.einsum("te,etf,efd->td", sent, hidden, w2)


def mlp(x, w1, b1, w2, b2):
    h = jax.nn.gelu(x @ w1 + b1)
    y = lax.psum(h @ w2, "d")
    return y + b2


def mlp_reference(x, w1, b1, w2, b2):
    return jax.nn.gelu(x @ w1 + b1) @ w2 + b2


def layer_norm(x, g):
    size = x.shape[-1] * N
    mean = lax.psum(x.sum(-1, keepdims=True), "d") / size
    centered = x - mean
    var = lax.psum((centered**2).sum(-1, keepdims=True), "d") / size
    return centered * lax.rsqrt(var + 1e-5) * g


def norm_reference(x, g):
    c = x - x.mean(-1, keepdims=True)
    return c * lax.rsqrt((c**2).mean(-1, keepdims=True) + 1e-5) * g


def pipeline(w, xs):
    me = lax.axis_index("d")
    count = xs.shape[0]
    state = jnp.zeros_like(xs[0])
    outs = jnp.zeros_like(xs)
    for t in range(count + N - 1):
        state = jnp.where(me == 0, xs[min(t, count - 1)], state)
        state = jnp.tanh(state @ w[0])
        if t >= N - 1:
            outs = outs.at[t - (N - 1)].set(state)
        state = lax.ppermute(state, "d", [(i, (i + 1) % N) for i in range(N)])
    return lax.psum(jnp.where(me == N - 1, outs, 0.0), "d")


def pipeline_reference(w, xs):
    for i in range(N):
        xs = jnp.tanh(xs @ w[i])
    return xs


def pipeline_scan(w, xs):
    me = lax.axis_index("d")
    count = xs.shape[0]

    def tick(state, t):
        fed = jnp.where(me == 0, xs[jnp.minimum(t, count - 1)], state)
        out = jnp.tanh(fed @ w[0])
        return lax.ppermute(out, "d", [(i, (i + 1) % N) for i in range(N)]), out

    _, outs = lax.scan(tick, jnp.zeros_like(xs[0]), jnp.arange(count + N - 1))
    return lax.psum(jnp.where(me == N - 1, outs[N - 1 :], 0.0), "d")


W = normal(3, V, D)
LABELS = jax.random.randint(jax.random.key(0), (8,), 0, V)
STEP = (normal(0, 6, 3), normal(1, 8, 6), normal(2, 8, 3))
PIPE = (normal(0, N, D, D) / 2, normal(1, 5, 2, D))
F = P("d")

CASES = (
    Case(vocab_loss, (normal(0, 8, D), W, LABELS), auto, (P(), F, P()), P(), loss_reference, (
        ("local = labels - me * rows", "local = labels"),
        ("(local < rows)", "(local <= rows)"),
        ("top = lax.pmax(lax.stop_gradient(logits.max(-1)), \"d\")", "top = lax.stop_gradient(logits.max(-1))"),
        ("jnp.log(total) + top - target", "jnp.log(total) - target"),
    ), check_vma=False),
    Case(embedding, (W, LABELS), auto, (F, P()), P(), lambda table, ids: table[ids], (
        ("me * table.shape[0]", "me * table.shape[1]"),
        ("lax.psum(jnp.where(there[:, None], rows, 0.0), \"d\")", "lax.psum(rows, \"d\")"),
    )),
    Case(data_parallel_step, STEP, auto, (P(), F, F), (P(), P()), step_reference, (
        ("grad = lax.pmean(grad, \"d\")", "grad = lax.psum(grad, \"d\")"),
        ("return w - 0.1 * grad, value", "return w + 0.1 * grad, value"),
        ("value = lax.pmean(value, \"d\")", "value = lax.psum(value, \"d\")"),
    ), check_vma=False),
    Case(fsdp_step, (normal(0, 8, 3), normal(1, 8, 3), normal(2, 12, 8), normal(3, 12, 3)), auto, (F, F, F, F),
         (F, F), fsdp_reference, (
        ("grad = jax.grad(loss)(w) / N", "grad = jax.grad(loss)(w)"),
        ("m = 0.9 * m + grad", "m = 0.9 * m - grad"),
        ("return w - 0.01 * m, m", "return w - 0.01 * grad, m"),
    ), check_vma=False),
    Case(adam_sharded, (normal(0, 8, 3), normal(1, 8, 3), normal(2, 8, 3) ** 2, normal(3, 32, 3)), auto,
         (F, F, F, F), (P(), F, F), adam_reference, (
        ("scatter_dimension=0, tiled=True) / N", "scatter_dimension=0, tiled=True)"),
        ("v = 0.99 * v + 0.01 * g**2", "v = 0.99 * v + 0.01 * g"),
        ("w = w - 0.1 * step", "w = w - 0.1 * m"),
    ), check_vma=False),
    Case(clipped, (normal(0, 16, 3),), auto, (F,), F, clipped_reference, (
        ("norm = jnp.sqrt(lax.psum(jnp.sum(grads**2), \"d\"))", "norm = lax.psum(jnp.sqrt(jnp.sum(grads**2)), \"d\")"),
        ("1.0 / norm)", "norm)"),
    )),
    Case(experts, (normal(0, 8, D), normal(1, D, N), normal(2, N, D, 8), normal(3, N, 8, D)), auto,
         (F, P(), F, F), F, experts_reference, (
        ("back = lax.all_to_all(out, \"d\", split_axis=0, concat_axis=0)", "back = out"),
        ("return jnp.einsum(\"te,etd->td\", sent, back)", "return jnp.einsum(\"te,etd->td\", sent, slots)"),
    )),
    Case(mlp, (normal(0, 5, D), normal(1, D, 8), normal(2, 8), normal(3, 8, D), normal(4, D)), auto,
         (P(), P(None, "d"), F, F, P()), P(), mlp_reference, (
        ("y = lax.psum(h @ w2, \"d\")", "y = lax.psum(h @ w2 + b2, \"d\")"),
        ("return y + b2", "return y"),
    ), check_vma=False),
    Case(layer_norm, (normal(0, 5, 16), normal(1, 16)), auto, (P(None, "d"), F), P(None, "d"), norm_reference, (
        ("size = x.shape[-1] * N", "size = x.shape[-1]"),
        ("return centered * lax.rsqrt", "return x * lax.rsqrt"),
    )),
    Case(pipeline, PIPE, auto, (F, P()), P(), pipeline_reference, (
        ("outs.at[t - (N - 1)].set(state)", "outs.at[t - (N - 2)].set(state)"),
        ("jnp.where(me == N - 1, outs, 0.0)", "jnp.where(me == 0, outs, 0.0)"),
        ("[(i, (i + 1) % N) for i in range(N)]", "[((i + 1) % N, i) for i in range(N)]"),
    ), check_vma=False),
    Case(pipeline_scan, PIPE, auto, (F, P()), P(), pipeline_reference, (
        ("jnp.where(me == 0, xs", "jnp.where(me == 1, xs"),
        ("outs[N - 1 :]", "outs[: -N + 1]"),
    ), check_vma=False),
)  # fmt: skip
