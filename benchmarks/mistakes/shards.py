"""Code of devices for `shard_map` on Auto and Explicit meshes, with references and mistakes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

N = 4
auto = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
explicit = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
RIGHT = [(i, (i + 1) % N) for i in range(N)]
LEFT = [(i, (i - 1) % N) for i in range(N)]


def row_parallel_bias(x, w, b):
    y = lax.psum(x @ w, "i")
    return jax.nn.relu(y + b)


def column_row(x, up, down):
    h = jnp.tanh(x @ up)
    y = lax.psum(h @ down, "tp")
    return x + y


def column_row_reference(x, up, down):
    return x + jnp.tanh(x @ up) @ down


def zero_step(w, x, y):
    whole = lax.all_gather(w, "i", axis=0, tiled=True)
    error = x @ whole - y
    grad = x.T @ error
    own = lax.psum_scatter(grad, "i", scatter_dimension=0, tiled=True)
    return w - 0.01 * own


def zero_step_reference(w, x, y):
    return w - 0.01 * x.T @ (x @ w - y)


def halo_average(u):
    from_left = lax.ppermute(u[-1:], "i", RIGHT)
    from_right = lax.ppermute(u[:1], "i", LEFT)
    padded = jnp.concatenate([from_left, u, from_right])
    return 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]


def halo_average_reference(u):
    return 0.25 * jnp.roll(u, 1, 0) + 0.5 * u + 0.25 * jnp.roll(u, -1, 0)


def both_ways(x):
    """An all-gather by two rings; x: [rows, columns]."""
    me, rows = lax.axis_index("i"), x.shape[0]
    out = jnp.zeros((rows * N, x.shape[1]))
    out = lax.dynamic_update_slice(out, x, (me * rows, 0))
    forward, backward = x, x
    for step in range(1, N // 2 + 1):
        forward = lax.ppermute(forward, "i", RIGHT)
        backward = lax.ppermute(backward, "i", LEFT)
        out = lax.dynamic_update_slice(out, forward, ((me - step) % N * rows, 0))
        out = lax.dynamic_update_slice(out, backward, ((me + step) % N * rows, 0))
    return out


def sharded_softmax(x):
    top = lax.pmax(x.max(-1, keepdims=True), "i")
    e = jnp.exp(x - top)
    return e / lax.psum(e.sum(-1, keepdims=True), "i")


def batch_norm(x, g):
    mean = lax.pmean(x.mean(0), "dp")
    square = lax.pmean((x * x).mean(0), "dp")
    var = square - mean**2
    return (x - mean) * lax.rsqrt(var + 1e-3) * g


def batch_norm_reference(x, g):
    c = x - x.mean(0)
    return c / jnp.sqrt((c * c).mean(0) + 1e-3) * g


def doubling_scan(x):
    """An inclusive prefix sum over devices by doubling; x: [1, columns] on a device."""
    me = lax.axis_index("i")
    total = x
    for by in (1, 2):
        came = lax.ppermute(total, "i", [(k, k + by) for k in range(N - by)])
        total = total + jnp.where(me >= by, came, 0.0)
    return total


def ring_scatter(x):
    """A reduce-scatter by a ring; x: [N, columns] on a device."""
    me = lax.axis_index("i")
    part = lax.dynamic_index_in_dim(x, (me - 1) % N, 0)
    for step in range(2, N + 1):
        part = lax.ppermute(part, "i", RIGHT)
        part = part + lax.dynamic_index_in_dim(x, (me - step) % N, 0)
    return part


def ring_scatter_reference(x):
    return x.reshape(N, N, -1).sum(0)


def dispatch(x, w):
    """Rows go to the expert of their block, and back; x: [N * rows, columns] on a device."""
    there = lax.all_to_all(x, "i", split_axis=0, concat_axis=0, tiled=True)
    done = jax.nn.relu(there @ w[0])
    return lax.all_to_all(done, "i", split_axis=0, concat_axis=0, tiled=True)


def dispatch_reference(x, w):
    blocks = x.reshape(N, N, -1, x.shape[1])
    return jax.nn.relu(jnp.einsum("derc,ecf->derf", blocks, w)).reshape(x.shape[0], -1)


def nearest(x, centers):
    """The index of the nearest center of all devices; centers: [own, columns]."""
    distance = ((x[:, None] - centers) ** 2).sum(-1)
    closest = lax.pmin(distance.min(1), "i")
    number = lax.axis_index("i") * centers.shape[0] + distance.argmin(1)
    mine = distance.min(1) == closest
    return lax.psum(jnp.where(mine, number, 0), "i")


def nearest_reference(x, centers):
    return ((x[:, None] - centers) ** 2).sum(-1).argmin(1)


def merged_top(x):
    """The three largest elements of each row of columns that are split."""
    own = lax.top_k(x, 3)[0]
    all_of_them = lax.all_gather(own, "i", axis=1, tiled=True)
    return lax.top_k(all_of_them, 3)[0]


def counted(ids, weights):
    """A histogram whose bins are split; ids and weights are whole."""
    first = lax.axis_index("i") * 3
    bins = first + jnp.arange(3)
    hits = ids[None, :] == bins[:, None]
    return jnp.sum(jnp.where(hits, weights, 0.0), axis=1)


def counted_reference(ids, weights):
    return jnp.zeros(3 * N).at[ids].add(weights)


def gossip(x):
    left = lax.ppermute(x, "i", RIGHT)
    right = lax.ppermute(x, "i", LEFT)
    return 0.5 * x + 0.3 * left + 0.2 * right


def gossip_reference(x):
    return 0.5 * x + 0.3 * jnp.roll(x, 4, 0) + 0.2 * jnp.roll(x, -4, 0)


def chunked_state(q, k, v):
    """Causal linear attention over a split sequence."""
    me = lax.axis_index("i")
    own = k.T @ v
    states = lax.all_gather(own, "i")
    before = jnp.sum(jnp.where((jnp.arange(N) < me)[:, None, None], states, 0.0), axis=0)
    inside = jnp.tril(q @ k.T) @ v
    return q @ before + inside


def chunked_state_reference(q, k, v):
    return jnp.tril(q @ k.T) @ v


def accumulated(w, x, y):
    """A data-parallel gradient over two microbatches."""
    rows = x.shape[0] // 2
    total = jnp.zeros_like(w)
    for part in range(2):
        own = slice(part * rows, (part + 1) * rows)
        error = x[own] @ w - y[own]
        total = total + x[own].T @ error / rows
    return lax.pmean(total / 2, "i")


def accumulated_reference(w, x, y):
    return x.T @ (x @ w - y) / x.shape[0]


S, E = P("i"), P("dp", None)

CASES = (
    Case(row_parallel_bias, (normal(0, 6, 8), normal(1, 8, 5), normal(2, 5)), auto, (P(None, "i"), S, P()), P(),
         lambda x, w, b: jax.nn.relu(x @ w + b), (
        ("jax.nn.relu(y + b)", "jax.nn.relu(y) + b"),
        ("y = lax.psum(x @ w, \"i\")", "y = lax.psum(x @ w + b, \"i\") - b"),
    )),
    Case(column_row, (normal(0, 8, 6), normal(1, 6, 8), normal(2, 8, 6)), explicit,
         (E, P(None, "tp"), P("tp", None)), E, column_row_reference, (
        ("y = lax.psum(h @ down, \"tp\")", "y = h @ down"),
        ("return x + y", "return x - y"),
    ), check_vma=False),
    Case(zero_step, (normal(0, 8, 3), normal(1, 12, 8), normal(2, 12, 3)), auto, (S, S, S), S, zero_step_reference, (
        ("grad = x.T @ error", "grad = x.T @ error / N"),
        ("return w - 0.01 * own", "return w + 0.01 * own"),
    )),
    Case(halo_average, (normal(0, 16, 3),), auto, (S,), S, halo_average_reference, (
        ("lax.ppermute(u[-1:], \"i\", RIGHT)", "lax.ppermute(u[-1:], \"i\", LEFT)"),
        ("jnp.concatenate([from_left, u, from_right])", "jnp.concatenate([from_right, u, from_left])"),
        ("0.5 * padded[1:-1]", "0.25 * padded[1:-1]"),
    )),
    Case(both_ways, (normal(0, 8, 3),), auto, (S,), P(None), lambda x: x, (
        ("forward, ((me - step) % N", "forward, ((me + step) % N"),
        ("backward = lax.ppermute(backward, \"i\", LEFT)", "backward = lax.ppermute(backward, \"i\", RIGHT)"),
    ), check_vma=False),
    Case(sharded_softmax, (normal(0, 5, 12),), auto, (P(None, "i"),), P(None, "i"),
         lambda x: jax.nn.softmax(x, axis=-1), (
        ("lax.psum(e.sum(-1, keepdims=True), \"i\")", "e.sum(-1, keepdims=True)"),
        ("top = lax.pmax(x.max(-1, keepdims=True), \"i\")", "top = x.max(-1, keepdims=True)"),
    )),
    Case(batch_norm, (normal(0, 8, 6), normal(1, 6)), explicit, (P("dp", "tp"), P("tp")), P("dp", "tp"),
         batch_norm_reference, (
        ("square = lax.pmean((x * x).mean(0), \"dp\")", "square = lax.pmean(x.mean(0) ** 2, \"dp\")"),
        ("var = square - mean**2", "var = square - mean"),
    )),
    Case(doubling_scan, (normal(0, 4, 3),), auto, (S,), S, lambda x: jnp.cumsum(x, axis=0), (
        ("for by in (1, 2):", "for by in (1,):"),
        ("total = total + jnp.where", "total = x + jnp.where"),
    )),
    Case(ring_scatter, (normal(0, 16, 3),), auto, (S,), S, ring_scatter_reference, (
        ("(me - step) % N, 0)", "(me + step) % N, 0)"),
        ("for step in range(2, N + 1):", "for step in range(2, N):"),
        ("part = lax.dynamic_index_in_dim(x, (me - 1) % N, 0)", "part = lax.dynamic_index_in_dim(x, me, 0)"),
    )),
    Case(dispatch, (normal(0, 32, 3), normal(1, N, 3, 5)), auto, (S, S), S, dispatch_reference, (
        ("return lax.all_to_all(done, \"i\", split_axis=0, concat_axis=0, tiled=True)", "return done"),
        ("jax.nn.relu(there @ w[0])", "jax.nn.relu(x @ w[0])"),
    )),
    Case(nearest, (normal(0, 6, 3), normal(1, 8, 3)), auto, (P(), S), P(), nearest_reference, (
        ("lax.axis_index(\"i\") * centers.shape[0] + distance.argmin(1)", "distance.argmin(1)"),
        ("closest = lax.pmin(distance.min(1), \"i\")", "closest = distance.min(1)"),
    ), check_vma=False),
    Case(merged_top, (normal(0, 5, 16),), auto, (P(None, "i"),), P(None), lambda x: lax.top_k(x, 3)[0], (
        ("own = lax.top_k(x, 3)[0]", "own = x[:, :3]"),
        ("return lax.top_k(all_of_them, 3)[0]", "return all_of_them[:, :3]"),
    ), check_vma=False),
    Case(counted, (jax.random.randint(jax.random.key(3), (20,), 0, 12), normal(0, 20)), auto, (P(), P()), S,
         counted_reference, (
        ("bins = first + jnp.arange(3)", "bins = jnp.arange(3)"),
        ("jnp.where(hits, weights, 0.0)", "jnp.where(hits, 1.0, 0.0)"),
    ), check_vma=False),
    Case(gossip, (normal(0, 16, 3),), auto, (S,), S, gossip_reference, (
        ("right = lax.ppermute(x, \"i\", LEFT)", "right = lax.ppermute(left, \"i\", LEFT)"),
        ("0.3 * left + 0.2 * right", "0.2 * left + 0.3 * right"),
    )),
    Case(chunked_state, tuple(normal(seed, 16, 3) for seed in range(3)), auto, (S, S, S), S,
         chunked_state_reference, (
        ("(jnp.arange(N) < me)", "(jnp.arange(N) <= me)"),
        ("inside = jnp.tril(q @ k.T) @ v", "inside = q @ k.T @ v"),
    )),
    Case(accumulated, (normal(0, 6, 2), normal(1, 16, 6), normal(2, 16, 2)), auto, (P(), S, S), P(),
         accumulated_reference, (
        ("return lax.pmean(total / 2, \"i\")", "return lax.pmean(total, \"i\")"),
        ("total = total + x[own].T @ error / rows", "total = x[own].T @ error / rows"),
    )),
)  # fmt: skip
