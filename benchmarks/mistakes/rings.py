"""Rings, collective matmuls and halos in `shard_map`, each with its reference and mistakes that people make in it."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

N = 4
auto = AbstractMesh((N,), ("x",), axis_types=(AxisType.Auto,))
grid = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
RING = [(i, (i + 1) % N) for i in range(N)]


def gathered_matmul(a, b):
    i = lax.axis_index("x")
    rows = a.shape[0]
    out = lax.pcast(jnp.zeros((rows * N, b.shape[1])), "x", to="varying")
    for step in range(N):
        product = a @ b
        source = (i - step) % N
        out = lax.dynamic_update_slice(out, product, (source * rows, 0))
        a = lax.ppermute(a, "x", RING)
    return out


def scanned_ring(a, b):
    i = lax.axis_index("x")

    def body(step, carry):
        a, out = carry
        source = (i - step) % N
        out = lax.dynamic_update_slice(out, a @ b, (source * a.shape[0], 0))
        return lax.ppermute(a, "x", RING), out

    start = lax.pcast(jnp.zeros((a.shape[0] * N, b.shape[1])), "x", to="varying")
    return lax.fori_loop(0, N, body, (a, start))[1]


def scattered_matmul(a, b):
    i = lax.axis_index("x")
    rows = a.shape[0] // N
    total = lax.pcast(jnp.zeros((rows, b.shape[1])), "x", to="varying")
    for step in range(N):
        total = lax.ppermute(total, "x", RING)
        block = (i - step - 1) % N
        part = lax.dynamic_slice(a, (block * rows, 0), (rows, a.shape[1]))
        total = total + part @ b
    return total


def stencil(u):
    i = lax.axis_index("x")
    left = lax.ppermute(u[-1:], "x", [(k, k + 1) for k in range(N - 1)])
    right = lax.ppermute(u[:1], "x", [(k + 1, k) for k in range(N - 1)])
    left = jnp.where(i == 0, u[:1], left)
    right = jnp.where(i == N - 1, u[-1:], right)
    padded = jnp.concatenate([left, u, right])
    return padded[2:] - 2 * u + padded[:-2]


def stencil_reference(u):
    padded = jnp.concatenate([u[:1], u, u[-1:]])
    return padded[2:] - 2 * u + padded[:-2]


def prefix_sum(x):
    i = lax.axis_index("x")
    own = jnp.cumsum(x, axis=0)
    totals = lax.all_gather(own[-1], "x")
    before = jnp.where(jnp.arange(N)[:, None] < i, totals, 0.0)
    return own + before.sum(0)


def cannon(a, b):
    i, j = lax.axis_index("x"), lax.axis_index("y")
    del i, j
    a = lax.all_gather(a, "y", axis=1, tiled=True)
    b = lax.all_gather(b, "x", axis=0, tiled=True)
    return jnp.tanh(a @ b)


def ring_sum(x):
    total, block = x, x
    for _ in range(N - 1):
        block = lax.ppermute(block, "x", RING)
        total = total + block
    return total / N


def matmul(a, b):
    return a @ b


X = (normal(0, 8, 6), normal(1, 6, 5))

CASES = (
    Case(gathered_matmul, X, auto, (P("x"), P()), P(None), matmul, (
        ("source = (i - step) % N", "source = (i + step) % N"),
        ("a = lax.ppermute(a, \"x\", RING)", "a = lax.ppermute(a, \"x\", [(j, i) for i, j in RING])"),
        ("(source * rows, 0)", "(step * rows, 0)"),
    ), check_vma=False),
    Case(scanned_ring, X, auto, (P("x"), P()), P(None), matmul, (
        ("source = (i - step) % N", "source = (i - step + 1) % N"),
        ("lax.fori_loop(0, N, body", "lax.fori_loop(0, N - 1, body"),
        ("return lax.ppermute(a, \"x\", RING), out", "return a, out"),
    ), check_vma=False),
    Case(scattered_matmul, (normal(0, 8, 12), normal(1, 12, 5)), auto, (P(None, "x"), P("x")), P("x"), matmul, (
        ("block = (i - step - 1) % N", "block = (i - step) % N"),
        ("total = total + part @ b", "total = part @ b"),
    )),
    Case(stencil, (normal(0, 16),), auto, (P("x"),), P("x"), stencil_reference, (
        ("lax.ppermute(u[-1:], \"x\"", "lax.ppermute(u[:1], \"x\""),
        ("[(k + 1, k) for k in range(N - 1)]", "[(k, k + 1) for k in range(N - 1)]"),
        ("right = jnp.where(i == N - 1,", "right = jnp.where(i == 0,"),
    )),
    Case(prefix_sum, (normal(0, 16, 3),), auto, (P("x"),), P("x"), lambda x: jnp.cumsum(x, axis=0), (
        ("[:, None] < i,", "[:, None] <= i,"),
        ("totals = lax.all_gather(own[-1], \"x\")", "totals = lax.all_gather(own[0], \"x\")"),
    )),
    Case(cannon, (normal(0, 8, 8), normal(1, 8, 8)), grid, (P("x", "y"), P("x", "y")), P("x", "y"),
         lambda a, b: jnp.tanh(a @ b), (
        ("a = lax.all_gather(a, \"y\", axis=1", "a = lax.all_gather(a, \"x\", axis=1"),
        ("return jnp.tanh(a @ b)", "return a @ b"),
    ), check_vma=False),
    Case(ring_sum, (normal(0, 8, 3),), auto, (P("x"),), P("x"),
         lambda x: jnp.tile(x.reshape(N, -1, 3).mean(0), (N, 1)), (
        ("return total / N", "return total / (N - 1)"),
        ("total = total + block", "total = total + x"),
    ), check_vma=False),
)  # fmt: skip
