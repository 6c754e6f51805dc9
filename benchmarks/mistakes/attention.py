"""Attention over sharded sequences and heads in `shard_map`, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

N = 4
auto = AbstractMesh((N,), ("sp",), axis_types=(AxisType.Auto,))
BLOCK, D = 4, 8
RING = [(i, (i + 1) % N) for i in range(N)]


def attention(q, k, v):
    scores = q @ k.T / jnp.sqrt(q.shape[-1])
    mask = jnp.arange(q.shape[0])[:, None] >= jnp.arange(k.shape[0])[None, :]
    return jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1) @ v


def ring_attention(q, k, v):
    me = lax.axis_index("sp")
    top = jnp.full((BLOCK, 1), -1e30)
    total = jnp.zeros((BLOCK, 1))
    out = jnp.zeros((BLOCK, D))
    rows = me * BLOCK + jnp.arange(BLOCK)
    for step in range(N):
        owner = (me - step) % N
        columns = owner * BLOCK + jnp.arange(BLOCK)
        scores = q @ k.T / jnp.sqrt(D)
        scores = jnp.where(rows[:, None] >= columns[None, :], scores, -1e30)
        highest = jnp.maximum(top, scores.max(-1, keepdims=True))
        p = jnp.exp(scores - highest)
        fix = jnp.exp(top - highest)
        total = total * fix + p.sum(-1, keepdims=True)
        out = out * fix + p @ v
        top = highest
        k, v = lax.ppermute(k, "sp", RING), lax.ppermute(v, "sp", RING)
    return out / total


def split_keys(q, k, v):
    scores = q @ k.T / jnp.sqrt(D)
    top = lax.pmax(scores.max(-1, keepdims=True), "sp")
    p = jnp.exp(scores - top)
    total = lax.psum(p.sum(-1, keepdims=True), "sp")
    return lax.psum(p @ v, "sp") / total


def split_reference(q, k, v):
    return jax.nn.softmax(q @ k.T / jnp.sqrt(D), axis=-1) @ v


def ulysses(q, k, v):
    def heads(x):
        return lax.all_to_all(x, "sp", split_axis=1, concat_axis=0, tiled=True)

    def tokens(x):
        return lax.all_to_all(x, "sp", split_axis=0, concat_axis=1, tiled=True)

    q, k, v = heads(q), heads(k), heads(v)
    scores = jnp.einsum("qhd,khd->hqk", q, k) * D**-0.5
    p = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("hqk,khd->qhd", p, v)
    return tokens(out)


def ulysses_reference(q, k, v):
    scores = jnp.einsum("qhd,khd->hqk", q, k) * D**-0.5
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, axis=-1), v)


def head_parallel(x, wq, wk, wv, wo):
    q, k, v = x @ wq[0], x @ wk[0], x @ wv[0]
    p = jax.nn.softmax(q @ k.T * D**-0.5, axis=-1)
    y = (p @ v) @ wo[0]
    y = lax.psum(y, "sp")
    return x + y


def head_reference(x, wq, wk, wv, wo):
    q, k, v = (jnp.einsum("sm,hmd->hsd", x, w) for w in (wq, wk, wv))
    p = jax.nn.softmax(jnp.einsum("hsd,htd->hst", q, k) * D**-0.5, axis=-1)
    return x + jnp.einsum("hst,htd,hdm->sm", p, v, wo)


def window(q, k, v):
    me = lax.axis_index("sp")
    before_k = lax.ppermute(k, "sp", [(i, i + 1) for i in range(N - 1)])
    before_v = lax.ppermute(v, "sp", [(i, i + 1) for i in range(N - 1)])
    keys = jnp.concatenate([before_k, k])
    values = jnp.concatenate([before_v, v])
    rows = me * BLOCK + jnp.arange(BLOCK)
    columns = (me - 1) * BLOCK + jnp.arange(2 * BLOCK)
    near = (rows[:, None] >= columns) & (rows[:, None] - columns < BLOCK) & (columns >= 0)
    p = jax.nn.softmax(jnp.where(near, q @ keys.T * D**-0.5, -1e30), axis=-1)
    return p @ values


def window_reference(q, k, v):
    at = jnp.arange(q.shape[0])
    near = (at[:, None] >= at) & (at[:, None] - at < BLOCK)
    return jax.nn.softmax(jnp.where(near, q @ k.T * D**-0.5, -1e30), axis=-1) @ v


QKV = tuple(normal(seed, N * BLOCK, D) for seed in range(3))
HEADS = tuple(normal(seed, N * BLOCK, 4, D) for seed in range(3))
WEIGHTS = (*(normal(seed, 4, 6, D) for seed in range(3)), normal(4, 4, D, 6))
S = P("sp")

CASES = (
    Case(ring_attention, QKV, auto, (S, S, S), S, attention, (
        ("owner = (me - step) % N", "owner = (me + step) % N"),
        ("rows = me * BLOCK + jnp.arange(BLOCK)", "rows = jnp.arange(BLOCK)"),
        ("total = total * fix +", "total = total +"),
        ("fix = jnp.exp(top - highest)", "fix = jnp.exp(highest - top)"),
        ("rows[:, None] >= columns", "rows[:, None] > columns"),
        ("columns = owner * BLOCK", "columns = me * BLOCK"),
    ), check_vma=False),
    Case(split_keys, QKV, auto, (P(), S, S), P(), split_reference, (
        ("top = lax.pmax(scores.max(-1, keepdims=True), \"sp\")", "top = scores.max(-1, keepdims=True)"),
        ("total = lax.psum(p.sum(-1, keepdims=True), \"sp\")", "total = p.sum(-1, keepdims=True)"),
        ("return lax.psum(p @ v, \"sp\") / total", "return lax.pmean(p @ v, \"sp\") / total"),
    ), check_vma=False),
    Case(ulysses, HEADS, auto, (S, S, S), S, ulysses_reference, (
        ("jnp.einsum(\"qhd,khd->hqk\", q, k)", "jnp.einsum(\"qhd,khd->hkq\", q, k)"),
        ("* D**-0.5", "* D**0.5"),
        ("\"hqk,khd->qhd\", p, v", "\"hqk,khd->qhd\", p, k"),
    )),
    Case(head_parallel, (normal(9, 5, 6), *WEIGHTS), auto, (P(), S, S, S, S), P(), head_reference, (
        ("y = lax.psum(y, \"sp\")", "y = lax.pmean(y, \"sp\")"),
        ("return x + y", "return x + lax.psum(y, \"sp\")"),
        ("x @ wq[0], x @ wk[0],", "x @ wq[0], x @ wq[0],"),
    ), check_vma=False),
    Case(window, QKV, auto, (S, S, S), S, window_reference, (
        ("columns = (me - 1) * BLOCK", "columns = me * BLOCK"),
        ("- columns < BLOCK)", "- columns <= BLOCK)"),
        ("values = jnp.concatenate([before_v, v])", "values = jnp.concatenate([v, before_v])"),
    )),
)  # fmt: skip
