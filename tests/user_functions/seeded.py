"""Device code as people write it for `shard_map`, each function with one mistake, and the intended computation.

The line of the mistake ends in `# planted`. `NAME_whole` is the intended computation on whole arrays.
"""

import jax
import jax.numpy as jnp
from jax import lax

# Products and sums.


def mlp_whole(x, w1, w2):
    return jnp.tanh(x @ w1) @ w2


def row_parallel(x, w1, w2):
    h = jnp.tanh(x @ w1)
    return h @ w2  # planted: no psum


def mean_of_devices(x, w1, w2):
    h = jnp.tanh(x @ w1)
    y = h @ w2
    return lax.pmean(y, "model")  # planted: pmean for psum


def other_axis(x, w1, w2):
    h = jnp.tanh(x @ w1)
    return lax.psum(h @ w2, "data")  # planted: over data instead of model


def early_sum(x, w1, w2):
    h = lax.psum(jnp.tanh(x @ w1), "model")  # planted: one psum too many
    return lax.psum(h @ w2, "model")


def biased_whole(x, w1, w2, b):
    return jnp.tanh(x @ w1) @ w2 + b


def bias_before_sum(x, w1, w2, b):
    h = jnp.tanh(x @ w1)
    y = h @ w2 + b
    return lax.psum(y, "model")  # planted: the bias counts once per device


def bias_forgotten(x, w1, w2, b):
    h = jnp.tanh(x @ w1)
    return lax.psum(h @ w2, "model")  # planted: no bias


def residual_whole(x, w1, w2):
    return x + jnp.tanh(x @ w1) @ w2


def residual(x, w1, w2):
    h = jnp.tanh(x @ w1)
    out = x + h @ w2
    return lax.psum(out, "model")  # planted: the residual counts once per device


def layers_whole(x, w1, w2, w3):
    h = jnp.tanh(x @ w1)
    h = jnp.tanh(h @ w2)
    return h @ w3


def stale_weight(x, w1, w2, w3):
    h = jnp.tanh(x @ w1)
    h = jnp.tanh(h @ w1)  # planted: the first layer's weight
    return h @ w3


def stale_value(x, w1, w2, w3):
    h = jnp.tanh(x @ w1)
    g = jnp.tanh(h @ w2)  # noqa: F841
    return h @ w3  # planted: h is of the layer before


# Losses and updates.


def loss_whole(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def loss_of_shard(w, x, y):
    error = x @ w - y
    return jnp.mean(error**2)  # planted: no pmean


def loss_summed(w, x, y):
    error = x @ w - y
    loss = jnp.mean(error**2)
    return lax.psum(loss, "data")  # planted: psum for pmean


def loss_by_rows(w, x, y):
    error = x @ w - y
    total = lax.psum(jnp.sum(error**2), "data")
    return total / error.size  # planted: the size of the shard


def sgd_whole(w, x, y):
    g = x.T @ (x @ w - y)
    return w - 0.1 * g


def sgd(w, x, y):
    g = x.T @ (x @ w - y)  # planted: no psum
    return w - 0.1 * g


# Normalization.


def layer_norm_whole(x, scale):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale


def layer_norm_mean(x, scale):
    mean = x.mean(-1, keepdims=True)  # planted: no pmean
    var = lax.pmean(((x - mean) ** 2).mean(-1, keepdims=True), "model")
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale


def layer_norm_variance(x, scale):
    mean = lax.pmean(x.mean(-1, keepdims=True), "model")
    var = ((x - mean) ** 2).mean(-1, keepdims=True)  # planted: no pmean
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale


def softmax_whole(x):
    return jax.nn.softmax(x, axis=-1)


def softmax_maximum(x):
    m = x.max(-1, keepdims=True)  # planted: no pmax
    e = jnp.exp(x - m)
    return e / lax.psum(e.sum(-1, keepdims=True), "model")


def softmax_total(x):
    m = lax.pmax(x.max(-1, keepdims=True), "model")
    e = jnp.exp(x - m)
    total = e.sum(-1, keepdims=True)  # planted: no psum
    return e / total


# Masks and positions.


def causal_whole(q, k):
    scores = q @ k.T
    i = jnp.arange(q.shape[0])
    j = jnp.arange(k.shape[0])
    return jnp.where(i[:, None] >= j[None, :], scores, 0.0)


def causal_by_local_position(q, k):
    scores = q @ k.T
    i = jnp.arange(q.shape[0])  # planted: the rows of the shard
    j = jnp.arange(k.shape[0])
    return jnp.where(i[:, None] >= j[None, :], scores, 0.0)


def causal_by_other_axis(q, k):
    scores = q @ k.T
    i = lax.axis_index("model") * q.shape[0] + jnp.arange(q.shape[0])  # planted: rows lie over data
    j = jnp.arange(k.shape[0])
    return jnp.where(i[:, None] >= j[None, :], scores, 0.0)


def causal_unscaled(q, k):
    scores = q @ k.T
    start = lax.axis_index("data")  # planted: not times the rows of a shard
    i = start + jnp.arange(q.shape[0])
    j = jnp.arange(k.shape[0])
    return jnp.where(i[:, None] >= j[None, :], scores, 0.0)


def causal_edge(q, k):
    scores = q @ k.T
    i = lax.axis_index("data") * q.shape[0] + jnp.arange(q.shape[0])
    j = jnp.arange(k.shape[0])
    mask = i[:, None] > j[None, :]  # planted: > for >=
    return jnp.where(mask, scores, 0.0)


def embedding_whole(table, ids):
    return table[ids]


def embedding_unshifted(table, ids):
    rows = table.shape[0]
    local = ids  # planted: not less the first row of the shard
    mine = (local >= 0) & (local < rows)
    taken = jnp.where(mine[:, None], table[jnp.clip(local, 0, rows - 1)], 0.0)
    return lax.psum(taken, "model")


def embedding_unmasked(table, ids):
    rows = table.shape[0]
    local = ids - lax.axis_index("model") * rows
    taken = table[jnp.clip(local, 0, rows - 1)]  # planted: no mask
    return lax.psum(taken, "model")


def positions_whole(x):
    angle = jnp.arange(x.shape[0])[:, None] * 0.1
    return x * jnp.cos(angle)


def positions(x):
    angle = jnp.arange(x.shape[0])[:, None] * 0.1  # planted: the rows of the shard
    return x * jnp.cos(angle)


def noise_whole(x, seed):
    keys = [jax.random.fold_in(jax.random.key(seed[0]), i) for i in range(2)]
    return x + jnp.concatenate([jax.random.normal(key, (x.shape[0] // 2, x.shape[1])) for key in keys])


def noise(x, seed):
    key = jax.random.key(seed[0])  # planted: not folded
    return x + jax.random.normal(key, x.shape)


# Collectives that move data.


def product_whole(a, b):
    return a @ b


def gathered_on_other_dimension(a, b):
    whole = lax.all_gather(b, "model", axis=1, tiled=True)  # planted: b lies by its rows
    return a @ whole.reshape(a.shape[1], -1)


def gathered_over_other_axis(a, b):
    whole = lax.all_gather(b, "data", axis=0, tiled=True)  # planted: b lies over model
    return a @ whole


def scattered_whole(a, b):
    return a @ b


def scattered(a, b):
    return lax.psum_scatter(a @ b, "model", scatter_dimension=0, tiled=True)  # planted: columns are to lie over model


def turned_whole(x):
    return jnp.tanh(x)


def turned(x):
    y = jnp.tanh(x)
    return lax.all_to_all(y, "model", split_axis=0, concat_axis=1, tiled=True)  # planted: the wrong way round


def ring_whole(a, b):
    return a @ b


def ring_wrong_way(a, b):
    n, rows = lax.axis_size("ring"), b.shape[0]
    me = lax.axis_index("ring")

    def step(i, carry):
        total, block = carry
        at = (me + i) % n * rows
        total = total + lax.dynamic_slice_in_dim(a, at, rows, 1) @ block
        return total, lax.ppermute(block, "ring", [(j, (j + 1) % n) for j in range(n)])  # planted: the other way

    start = lax.pcast(jnp.zeros((a.shape[0], b.shape[1])), ("ring",), to="varying")
    return lax.fori_loop(0, n, step, (start, b))[0]


def ring_short(a, b):
    n, rows = lax.axis_size("ring"), b.shape[0]
    me = lax.axis_index("ring")

    def step(i, carry):
        total, block = carry
        at = (me - i) % n * rows
        total = total + lax.dynamic_slice_in_dim(a, at, rows, 1) @ block
        return total, lax.ppermute(block, "ring", [(j, (j + 1) % n) for j in range(n)])

    start = lax.pcast(jnp.zeros((a.shape[0], b.shape[1])), ("ring",), to="varying")
    return lax.fori_loop(0, n - 1, step, (start, b))[0]  # planted: one step short


def ring_stale(a, b):
    n, rows = lax.axis_size("ring"), b.shape[0]
    me = lax.axis_index("ring")

    def step(i, carry):
        total, block = carry
        at = (me - i) % n * rows
        total = total + lax.dynamic_slice_in_dim(a, at, rows, 1) @ b  # planted: b stays
        return total, lax.ppermute(block, "ring", [(j, (j + 1) % n) for j in range(n)])

    start = lax.pcast(jnp.zeros((a.shape[0], b.shape[1])), ("ring",), to="varying")
    return lax.fori_loop(0, n, step, (start, b))[0]


def cumulative_whole(x):
    return jnp.cumsum(x, axis=0)


def cumulative(x):
    return jnp.cumsum(x, axis=0)  # planted: not what the shards before come to


def differences_whole(x):
    return x - jnp.roll(x, 1, axis=0)


def differences(x):
    n = lax.axis_size("ring")
    last = lax.ppermute(x[-1:], "ring", [((i + 1) % n, i) for i in range(n)])  # planted: the other way
    return x - jnp.concatenate([last, x[:-1]])


# Attention, statistics, halos, steps, losses, experts and pipelines.


def attention_whole(x, wq, wk, wv, wo):
    q, k, v = x @ wq, x @ wk, x @ wv
    s = jax.nn.softmax(q @ k.T / 8**0.5)
    return (s @ v) @ wo


def scale_missing(x, wq, wk, wv, wo):
    k, v = lax.all_gather(x @ wk, "data", tiled=True), lax.all_gather(x @ wv, "data", tiled=True)
    q = x @ wq
    s = jax.nn.softmax(q @ k.T)  # planted: not divided
    return (s @ v) @ wo


def keys_not_gathered(x, wq, wk, wv, wo):
    q = x @ wq
    k = x @ wk  # planted: the keys of other shards
    v = x @ wv
    s = jax.nn.softmax(q @ k.T / 8**0.5)
    return (s @ v) @ wo


def swapped_values(x, wq, wk, wv, wo):
    k = lax.all_gather(x @ wk, "data", tiled=True)
    v = lax.all_gather(x @ wk, "data", tiled=True)  # planted: wk for wv
    s = jax.nn.softmax((x @ wq) @ k.T / 8**0.5)
    return (s @ v) @ wo


def batch_norm_whole(x, g):
    m = x.mean(0)
    v = ((x - m) ** 2).mean(0)
    return (x - m) * lax.rsqrt(v + 1e-5) * g


def batch_norm_sum(x, g):
    m = lax.psum(x.mean(0), "data")  # planted: psum for pmean
    v = lax.pmean(((x - m) ** 2).mean(0), "data")
    return (x - m) * lax.rsqrt(v + 1e-5) * g


def batch_norm_axis(x, g):
    m = lax.pmean(x.mean(0), "data")
    v = lax.pmean(((x - m) ** 2).mean(0), "model")  # planted: over model
    return (x - m) * lax.rsqrt(v + 1e-5) * g


def wrong_block_whole(x, w):
    return x @ w


def wrong_slice(x, w):
    whole = lax.all_gather(x, "data", tiled=True)
    n = x.shape[0]
    mine = lax.dynamic_slice_in_dim(whole, lax.axis_index("model") * n, n)  # planted: the other axis
    return mine @ w


def neighbour_slice(x, w):
    whole = lax.all_gather(x, "data", tiled=True)
    n = x.shape[0]
    mine = lax.dynamic_slice_in_dim(whole, lax.axis_index("data") * n + 1, n)  # planted: one row on
    return mine @ w


def dropout_whole(x, seed):
    key = jax.random.key(seed[0])
    keep = jnp.concatenate([jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (4, 8)) for i in range(2)])
    return jnp.where(keep, x / 0.5, 0.0)


def dropout_key(x, seed):
    key = jax.random.key(seed[0])
    key = jax.random.fold_in(key, lax.axis_index("model"))  # planted: another axis
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0.0)


def dropout_scale(x, seed):
    key = jax.random.fold_in(jax.random.key(seed[0]), lax.axis_index("data"))
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)  # planted: not divided


def stencil_whole(x):
    left = jnp.concatenate([jnp.zeros((1, 8)), x[:-1]])
    right = jnp.concatenate([x[1:], jnp.zeros((1, 8))])
    return x - 0.25 * (left + right)


def stencil_wrap(x):
    n = 4
    left = lax.ppermute(x[-1:], "ring", [(j, (j + 1) % n) for j in range(n)])  # planted: the ends wrap round
    right = lax.ppermute(x[:1], "ring", [(j, j - 1) for j in range(1, n)])
    return x - 0.25 * (jnp.concatenate([left, x[:-1]]) + jnp.concatenate([x[1:], right]))


def stencil_first_row(x):
    n = 4
    left = lax.ppermute(x[:1], "ring", [(j, j + 1) for j in range(n - 1)])  # planted: the first row, not the last
    right = lax.ppermute(x[:1], "ring", [(j, j - 1) for j in range(1, n)])
    return x - 0.25 * (jnp.concatenate([left, x[:-1]]) + jnp.concatenate([x[1:], right]))


def momentum_whole(w, m, x):
    g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    m = 0.9 * m + g
    return w - 0.1 * m


def momentum_summed(w, m, x):
    g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(lax.pcast(w, "data", to="varying"))
    m = 0.9 * m + lax.psum(g, "data")  # planted: psum for pmean
    return w - 0.1 * m


def momentum_stale(w, m, x):
    g = lax.pmean(jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(lax.pcast(w, "data", to="varying")), "data")
    n = 0.9 * m + g  # noqa: F841
    return w - 0.1 * m  # planted: the old momentum


def norm_clip_whole(g):
    n = jnp.sqrt(jnp.sum(g**2))
    return g * jnp.minimum(1.0, 1.0 / n)


def clip_local(g):
    n = jnp.sqrt(lax.psum(jnp.sum(g**2), "model"))  # planted: not over data
    return g * jnp.minimum(1.0, 1.0 / n)


def clip_root_first(g):
    n = lax.psum(jnp.sqrt(jnp.sum(g**2)), ("data", "model"))  # planted: the sum of roots
    return g * jnp.minimum(1.0, 1.0 / n)


def xent_whole(h, w, y):
    logits = h @ w
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0]


def xent_edge(h, w, y):
    logits = h @ w
    n = logits.shape[1]
    top = lax.pmax(logits.max(-1), "model")
    total = jnp.sum(jnp.exp(logits - top[:, None]), -1)
    total = lax.psum(total, "model")
    local = y - lax.axis_index("model") * n
    mine = (local >= 0) & (local <= n)  # planted: <= for <
    label = jnp.where(mine, jnp.take_along_axis(logits, jnp.clip(local, 0, n - 1)[:, None], 1)[:, 0], 0.0)
    return jnp.log(total) + top - lax.psum(label, "model")


def xent_top(h, w, y):
    logits = h @ w
    n = logits.shape[1]
    top = lax.pmax(logits.max(-1), "model")
    total = lax.psum(jnp.sum(jnp.exp(logits - top[:, None]), -1), "model")
    local = y - lax.axis_index("model") * n
    mine = (local >= 0) & (local < n)
    label = jnp.where(mine, jnp.take_along_axis(logits, jnp.clip(local, 0, n - 1)[:, None], 1)[:, 0], 0.0)
    return jnp.log(total) - lax.psum(label, "model")  # planted: the maximum is not added


def moe_whole(x, w, ids):
    return jnp.einsum("td,tdf->tf", x, w[ids])


def moe_expert(x, w, ids):
    n = w.shape[0]
    local = ids - lax.axis_index("data") * n  # planted: experts lie over model
    mine = (local >= 0) & (local < n)
    y = jnp.einsum("td,tdf->tf", x, w[jnp.clip(local, 0, n - 1)])
    return lax.psum(jnp.where(mine[:, None], y, 0.0), "model")


def pipeline_whole(x, w):
    for i in range(4):
        x = jnp.tanh(x @ w[i])
    return x


def pipeline_perm(x, w):
    n, i = 4, lax.axis_index("ring")
    h = lax.pcast(x, "ring", to="varying")
    for _ in range(n):
        y = jnp.tanh(h @ w[0])
        h = lax.ppermute(y, "ring", [(j, (j + 2) % n) for j in range(n)])  # planted: two on
    return lax.psum(jnp.where(i == 0, h, 0.0), "ring")


def pipeline_last(x, w):
    n, i = 4, lax.axis_index("ring")
    h = lax.pcast(x, "ring", to="varying")
    for _ in range(n):
        y = jnp.tanh(h @ w[0])
        h = lax.ppermute(y, "ring", [(j, (j + 1) % n) for j in range(n)])
    return lax.psum(jnp.where(i == n - 1, h, 0.0), "ring")  # planted: the result is on the first


def tree_whole(w1, w2, x, y):
    def loss(p):
        return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2)

    p = {"w1": w1, "w2": w2}
    p = jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))
    return jnp.concatenate([p["w1"], p["w2"]])


def tree_summed(w1, w2, x, y):
    def loss(p):
        return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2)

    p = lax.pcast({"w1": w1, "w2": w2}, "data", to="varying")
    grads = lax.psum(jax.grad(loss)(p), "data")  # planted: psum for pmean, of all leaves
    p = jax.tree.map(lambda w, g: w - 0.1 * g, {"w1": w1, "w2": w2}, grads)
    return jnp.concatenate([p["w1"], p["w2"]])


def pair_whole(a, b):
    return sum((step + 1) * jnp.roll(a * b, 2 * step, 0) for step in range(4))


def pair_wrong_way(a, b):
    def step(i, carry):
        a, b, total = carry
        total = total + (i + 1) * (a * b)
        a, b = lax.ppermute((a, b), "ring", [(j, (j - 1) % 4) for j in range(4)])  # planted: both to the device before
        return a, b, total

    return lax.fori_loop(0, 4, step, (a, b, jnp.zeros_like(a)))[2]
