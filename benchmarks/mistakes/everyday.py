"""Blocks, losses, optimizers, caches and collectives that a JAX engineer writes every day, half on Explicit meshes."""

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


def rms(x, gain):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * gain


def decoder_block(x, wqkv, wo, w1, w2, g1, g2):
    """A pre-norm decoder block with heads over `model`; x: [batch, T, D], wqkv: [3, D, H, K], wo: [H, K, D]."""
    h = rms(x, g1)
    q, k, v = jnp.einsum("btd,sdhk->sbthk", h, wqkv)
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / jnp.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, v)
    x = x + jnp.einsum("bqhk,hkd->bqd", mixed, wo, out_sharding=P("data", None, None))
    up = jax.nn.silu(jnp.einsum("btd,df->btf", rms(x, g2), w1))
    return x + jnp.einsum("btf,fd->btd", up, w2, out_sharding=P("data", None, None))


def decoder_block_reference(x, wqkv, wo, w1, w2, g1, g2):
    def norm(z, g):
        return g * z / jnp.sqrt((z**2).mean(2)[..., None] + 1e-6)

    h, out = norm(x, g1), x
    for head in range(wo.shape[0]):
        q, k, v = (h @ w[:, head] for w in wqkv)
        e = jnp.exp(q @ k.transpose(0, 2, 1) * q.shape[2] ** -0.5) * np.tri(x.shape[1], dtype=np.float32)
        out = out + (e / e.sum(2)[..., None]) @ v @ wo[head]
    z = norm(out, g2) @ w1
    return out + (z / (1 + jnp.exp(-z))) @ w2


def tied_loss(tokens, live, table, w):
    """The next token's loss of a model whose output layer is its embedding; tokens: [batch, T], table: [V, D]."""
    x = table.at[tokens].get(out_sharding=P("data", None, None))
    h = jnp.tanh(x @ w)
    logits = jnp.einsum("btd,vd->btv", h, table)
    logits, targets, weight = logits[:, :-1], tokens[:, 1:], live[:, 1:]
    top = lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    logz = jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1)) + top[..., 0]
    hit = jnp.sum(logits * jax.nn.one_hot(targets, table.shape[0]), axis=-1)
    return jnp.sum((logz - hit) * weight) / jnp.maximum(weight.sum(), 1.0)


def tied_loss_reference(tokens, live, table, w):
    p = jax.nn.softmax(jnp.tanh(table[tokens] @ w) @ table.T)
    total = count = 0.0
    for t in range(tokens.shape[1] - 1):
        chosen = jnp.take_along_axis(p[:, t], tokens[:, t + 1, None], 1)[:, 0]
        total = total - (jnp.log(chosen) * live[:, t + 1]).sum()
        count = count + live[:, t + 1].sum()
    return total / count


def adamw(params, m, v, grads, step, rate=0.01, b1=0.9, b2=0.99):
    """AdamW with decoupled decay of the weights over a tree of parameters; step counts from 0."""
    t = step + 1
    m = jax.tree.map(lambda a, g: b1 * a + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda a, g: b2 * a + (1 - b2) * g * g, v, grads)

    def update(p, a, s):
        direction = (a / (1 - b1**t)) / (jnp.sqrt(s / (1 - b2**t)) + 1e-3)
        return p - rate * (direction + 0.1 * p)

    return jax.tree.map(update, params, m, v), m, v


def adamw_reference(params, m, v, grads, step, rate=0.01, b1=0.9, b2=0.99):
    out = {}, {}, {}
    for name in params:
        p, g = params[name], grads[name]
        a, s = m[name] + (1 - b1) * (g - m[name]), v[name] + (1 - b2) * (g**2 - v[name])
        up = a / (1 - b1 ** (1 + step)) / (1e-3 + (s / (1 - b2 ** (1 + step))) ** 0.5)
        out[0][name], out[1][name], out[2][name] = p * (1 - 0.1 * rate) - rate * up, a, s
    return out


def switch_layer(x, router, w1, w2, capacity=3):
    """A mixture with one expert a token and a capacity, dispatched by one-hot matrices; x: [batch, T, D]."""
    probs = jax.nn.softmax(jnp.einsum("btd,de->bte", x, router), axis=-1)
    choice = jax.nn.one_hot(jnp.argmax(probs, axis=-1), router.shape[1])
    place = jnp.cumsum(choice, axis=1) * choice - 1.0
    kept = choice * (place < capacity)
    slot = jax.nn.one_hot(place.astype(jnp.int32), capacity) * kept[..., None]
    taken = jnp.einsum("btec,btd->becd", slot, x)
    hidden = jax.nn.relu(jnp.einsum("becd,edf->becf", taken, w1))
    done = jnp.einsum("becf,efd->becd", hidden, w2, out_sharding=P("data", None, None, None))
    gate = jnp.sum(probs * choice, axis=-1)
    out = jnp.einsum("btec,becd->btd", slot, done, out_sharding=P("data", None, None))
    balance = router.shape[1] * jnp.sum(choice.mean((0, 1)) * probs.mean((0, 1)))
    return out * gate[..., None], balance


def switch_layer_reference(x, router, w1, w2, capacity=3):
    p = jax.nn.softmax(x @ router)
    near = jnp.argmax(p, -1)
    rows, experts = [], router.shape[1]
    for b in range(x.shape[0]):
        count, outs = jnp.zeros(experts), []
        for t in range(x.shape[1]):
            e = near[b, t]
            y = jnp.maximum(x[b, t] @ w1[e], 0) @ w2[e] * p[b, t, e]
            outs.append(jnp.where(count[e] < capacity, y, 0 * y))
            count = count.at[e].add(1)
        rows.append(jnp.stack(outs))
    share = jnp.stack([(near == e).mean() for e in range(experts)])
    return jnp.stack(rows), (share * p.reshape(-1, experts).mean(0)).sum() * experts


def decode_step(x, keys, values, wq, wk, wv, pos):
    """A step of decoding: the new key and value go into the cache, then attention over it; keys: [batch, S, H, K]."""
    q, k, v = (jnp.einsum("bd,dhk->bhk", x, w) for w in (wq, wk, wv))
    keys = lax.dynamic_update_slice(keys, k[:, None], (0, pos, 0, 0))
    values = lax.dynamic_update_slice(values, v[:, None], (0, pos, 0, 0))
    scores = jnp.einsum("bhk,bshk->bhs", q, keys) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.arange(keys.shape[1]) <= pos, scores, -1e9)
    return jnp.einsum("bhs,bshk->bhk", jax.nn.softmax(scores, axis=-1), values), keys, values


def decode_step_reference(x, keys, values, wq, wk, wv, pos):
    q, k, v = jnp.tensordot(x, wq, 1), jnp.tensordot(x, wk, 1), jnp.tensordot(x, wv, 1)
    at = (jnp.arange(keys.shape[1]) == pos)[:, None, None]
    keys, values = jnp.where(at, k[:, None], keys), jnp.where(at, v[:, None], values)
    e = jnp.exp((q[:, None] * keys).sum(3) / np.sqrt(q.shape[2])) * (jnp.arange(keys.shape[1]) < pos + 1)[:, None]
    return (e[..., None] * values).sum(1) / e.sum(1)[..., None], keys, values


def distillation(student, teacher, labels, temperature=2.0, share=0.7):
    """Distillation: the divergence of tempered distributions and the loss of labels; student: [batch, classes]."""
    target = jax.nn.softmax(teacher / temperature, axis=-1)
    logp = jax.nn.log_softmax(student / temperature, axis=-1)
    soft = jnp.sum(target * (jnp.log(target) - logp), axis=-1) * temperature**2
    hard = -jnp.sum(jax.nn.one_hot(labels, student.shape[-1]) * jax.nn.log_softmax(student), axis=-1)
    return jnp.mean(share * soft + (1.0 - share) * hard)


def distillation_reference(student, teacher, labels, temperature=2.0, share=0.7):
    p, q = jnp.exp(teacher / temperature), jnp.exp(student / temperature)
    p, q = p / p.sum(1)[:, None], q / q.sum(1)[:, None]
    soft = (p * jnp.log(p / q)).sum(1) * temperature * temperature
    hard = jax.nn.logsumexp(student, 1) - student[jnp.arange(len(labels)), labels]
    return (soft * share).mean() + (hard * (1 - share)).mean()


def batch_norm(x, scale, bias, mean, var):
    """Batch normalization in training with its moving averages; x: [batch, H, W, C]."""
    n = x.shape[0] * x.shape[1] * x.shape[2]
    mu = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(x - mu), axis=(0, 1, 2))
    y = (x - mu) * lax.rsqrt(variance + 1e-5) * scale + bias
    mean = 0.9 * mean + 0.1 * mu
    var = 0.9 * var + 0.1 * variance * n / (n - 1)
    return y, mean, var


def batch_norm_reference(x, scale, bias, mean, var):
    flat = x.reshape(-1, x.shape[-1])
    y = (flat - flat.mean(0)) / jnp.sqrt(flat.var(0) + 1e-5) * scale + bias
    return y.reshape(x.shape), mean + 0.1 * (flat.mean(0) - mean), var + 0.1 * (flat.var(0, ddof=1) - var)


def grouped_rotary(x, wq, wk, wv, positions):
    """Attention with rotary positions and two queries for a key; x: [batch, T, D], wq: [D, H, K], wk: [D, H / 2, K]."""
    q = jnp.einsum("btd,dhk->bthk", x, wq)
    k, v = jnp.einsum("btd,dhk->bthk", x, wk), jnp.einsum("btd,dhk->bthk", x, wv)
    half = q.shape[-1] // 2
    angle = positions[:, :, None] * 100.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[:, :, None], jnp.cos(angle)[:, :, None]

    def turn(z):
        a, b = z[..., :half], z[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    q, k = turn(q), turn(k)
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(z, group, axis=2, out_sharding=P("data", None, "model", None)) for z in (k, v))
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / jnp.sqrt(2 * half)
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores, axis=-1), v)


def grouped_rotary_reference(x, wq, wk, wv, positions):
    def turned(z):
        n = z.shape[-1] // 2
        w = (z[..., :n] + 1j * z[..., n:]) * jnp.exp(1j * positions[..., None] * 100.0 ** (-np.arange(n) / n))
        return jnp.concatenate([w.real, w.imag], -1)

    heads = []
    for h in range(wq.shape[1]):
        q, k, v = turned(x @ wq[:, h]), turned(x @ wk[:, h // 2]), x @ wv[:, h // 2]
        e = jnp.exp(jnp.einsum("bqk,bsk->bqs", q, k) * q.shape[2] ** -0.5)
        heads.append(e @ v / e.sum(2)[..., None])
    return jnp.stack(heads, 2)


def patches(images, w, place, size=2):
    """Embeds square patches of images and adds their positions; images: [batch, H, W, C]."""
    b, h, width, c = images.shape
    x = jnp.reshape(images, (b, h // size, size, width // size, size, c), out_sharding=P("data"))
    x = x.transpose(0, 1, 3, 2, 4, 5)
    x = jnp.reshape(x, (b, -1, size * size * c), out_sharding=P("data"))
    x = jnp.einsum("bpi,id->bpd", x, w) + place
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def patches_reference(images, w, place, size=2):
    kernel = w.reshape(size, size, images.shape[-1], -1)
    x = lax.conv_general_dilated(images, kernel, (size, size), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = x.reshape(x.shape[0], -1, x.shape[-1]) + place
    x = x - x.mean(2)[..., None]
    return x / jnp.sqrt((x**2).mean(2)[..., None] + 1e-5)


def smoothed(u, rate):
    """A diffusion step whose rows are split: borders come from neighbours in a `shard_map` of the mesh in context."""

    def step(u, rate):
        n = lax.axis_size("data")
        above = lax.ppermute(u[-1:], "data", [(i, (i + 1) % n) for i in range(n)])
        below = lax.ppermute(u[:1], "data", [(i, (i - 1) % n) for i in range(n)])
        whole = jnp.concatenate([above, u, below])
        return u + rate * (whole[2:] + whole[:-2] - 2.0 * u)

    u = jax.shard_map(step, in_specs=(P("data", "model"), P()), out_specs=P("data", "model"))(u, rate)
    return u / jnp.sqrt(jnp.mean(u**2))


def smoothed_reference(u, rate):
    v = u * (1 - 2 * rate) + rate * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0))
    return v * lax.rsqrt((v * v).sum() / v.size)


def linear_step(w, b, x, y, rate=0.1):
    """A step of linear regression with a penalty; x: [batch, D] is split over both axes, w: [D, O] over `model`."""

    def loss(w, b):
        out = jnp.matmul(x, w, out_sharding=P("data", None)) + b
        return jnp.mean(jnp.sum((out - y) ** 2, axis=-1)) + 0.05 * jnp.sum(w**2)

    value, (dw, db) = jax.value_and_grad(loss, argnums=(0, 1))(w, b)
    norm = jnp.sqrt(jnp.sum(dw**2) + jnp.sum(db**2))
    scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    return w - rate * scale * dw, b - rate * scale * db, value


def linear_step_reference(w, b, x, y, rate=0.1):
    err = x @ w + b - y
    dw, db = 2 * x.T @ err / len(x) + 0.1 * w, 2 * err.mean(0)
    norm = jnp.linalg.norm(jnp.concatenate([dw.ravel(), db]))
    dw, db = (jnp.where(norm > 1, g / norm, g) for g in (dw, db))
    return w - rate * dw, b - rate * db, (err**2).sum() / len(x) + 0.05 * (w * w).sum()


def gated_recurrence(x, wa, wx, lam):
    """A gated linear recurrence (Griffin's) by an associative scan over time; x: [batch, T, D]."""
    r = jax.nn.sigmoid(jnp.einsum("btd,de->bte", x, wa, out_sharding=P("data", None, "model")))
    gate = jax.nn.sigmoid(jnp.einsum("btd,de->bte", x, wx, out_sharding=P("data", None, "model")))
    a = jnp.exp(-2.0 * jax.nn.softplus(lam) * r)
    u = jnp.sqrt(1.0 - a**2) * gate * reshard(x, P("data", None, "model"))

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (a, u), axis=1)[1]


def gated_recurrence_reference(x, wa, wx, lam):
    h, out = 0.0, []
    for t in range(x.shape[1]):
        r, i = (1 / (1 + jnp.exp(-x[:, t] @ w)) for w in (wa, wx))
        a = (1 + jnp.exp(lam)) ** (-2 * r)
        h = a * h + jnp.sqrt(1 - a * a) * i * x[:, t]
        out.append(h)
    return jnp.stack(out, 1)


def ring_causal(q, k, v):
    """Causal ring attention, unrolled, with a running maximum; q, k, v: [T / N, D]."""
    me, n = lax.axis_index("x"), q.shape[0]
    around = [(i, (i + 1) % N) for i in range(N)]
    rows = me * n + jnp.arange(n)
    top, total, out = jnp.full((n, 1), -1e30), jnp.zeros((n, 1)), jnp.zeros_like(q)
    for step in range(N):
        source = (me - step) % N
        columns = source * n + jnp.arange(n)
        scores = q @ k.T / jnp.sqrt(q.shape[-1])
        scores = jnp.where(rows[:, None] >= columns[None, :], scores, -1e30)
        new = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
        weight, fix = jnp.exp(scores - new), jnp.exp(top - new)
        total = total * fix + weight.sum(axis=-1, keepdims=True)
        out = out * fix + weight @ v
        top = new
        k, v = lax.ppermute(k, "x", around), lax.ppermute(v, "x", around)
    return out / total


def ring_causal_reference(q, k, v):
    e = jnp.exp(q @ k.T / np.sqrt(q.shape[1])) * np.tri(len(q), dtype=np.float32)
    return e @ v / e.sum(1, keepdims=True)


def expert_exchange(x, gate, w, capacity=4):
    """Experts, one a device: tokens go to them in slots and come back, weighted; x: [T / N, D], w: [1, D, D]."""
    d = x.shape[1]
    probs = jax.nn.softmax(x @ gate, axis=-1)
    expert, weight = jnp.argmax(probs, axis=-1), jnp.max(probs, axis=-1)
    hot = jax.nn.one_hot(expert, N, dtype=jnp.int32)
    place = jnp.sum((jnp.cumsum(hot, axis=0) - hot) * hot, axis=-1)
    sent = jnp.zeros((N, capacity, d)).at[expert, place].set(x, mode="drop")
    got = lax.all_to_all(sent, "x", split_axis=0, concat_axis=0, tiled=True)
    done = jax.nn.gelu(got @ w[0])
    back = lax.all_to_all(done, "x", split_axis=0, concat_axis=0, tiled=True)
    return weight[:, None] * back[expert, place]


def expert_exchange_reference(x, gate, w, capacity=4):
    p = jax.nn.softmax(x @ gate)
    best = p.argmax(1)
    return jnp.stack([p[t, best[t]] * jax.nn.gelu(x[t] @ w[best[t]]) for t in range(len(x))])


def staged(w, b, x):
    """A pipeline of one layer a device, unrolled over microbatches; w: [1, D, D], b: [1, D], x: [M, n, D]."""
    me, count = lax.axis_index("x"), x.shape[0]
    state, out = jnp.zeros_like(x[0]), jnp.zeros_like(x)
    for tick in range(count + N - 1):
        state = jnp.where(me == 0, x[min(tick, count - 1)], state)
        state = jnp.tanh(state @ w[0] + b[0])
        if tick >= N - 1:
            out = out.at[tick - N + 1].set(jnp.where(me == N - 1, state, 0.0))
        state = lax.ppermute(state, "x", [(i, (i + 1) % N) for i in range(N)])
    return lax.psum(out, "x")


def staged_reference(w, b, x):
    for stage in range(len(w)):
        x = jnp.tanh(x @ w[stage] + b[stage])
    return x


def zero_step(w1, w2, x, y, rate=0.1):
    """FSDP: weights are gathered for a step, gradients scattered as means; w1: [D / N, F], w2: [F / N, O]."""

    def loss(whole):
        a, b = whole
        return jnp.mean((jax.nn.relu(x @ a) @ b - y) ** 2)

    whole = jax.tree.map(lambda w: lax.all_gather(w, "x", axis=0, tiled=True), (w1, w2))
    value, grads = jax.value_and_grad(loss)(whole)
    grads = jax.tree.map(lambda g: lax.psum_scatter(g, "x", scatter_dimension=0, tiled=True) / N, grads)
    w1, w2 = jax.tree.map(lambda w, g: w - rate * g, (w1, w2), grads)
    return w1, w2, lax.pmean(value, "x")


def zero_step_reference(w1, w2, x, y, rate=0.1):
    h = jnp.maximum(x @ w1, 0)
    err = 2 * (h @ w2 - y) / y.size
    d1 = x.T @ (err @ w2.T * (h > 0))
    return w1 - rate * d1, w2 - rate * h.T @ err, ((h @ w2 - y) ** 2).mean()


def vocab_loss_split(h, w, labels, smoothing=0.1):
    """Cross-entropy with smoothed labels over a vocabulary that is split; h: [n, D] on all, w: [D, V / N]."""
    logits = h @ w
    size = logits.shape[-1]
    top = lax.pmax(lax.stop_gradient(logits).max(axis=-1), "x")
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(axis=-1), "x")
    logz = jnp.log(total) + top
    local = labels - lax.axis_index("x") * size
    mine = (local >= 0) & (local < size)
    picked = jnp.take_along_axis(logits, jnp.clip(local, 0, size - 1)[:, None], axis=-1)[:, 0]
    hit = lax.psum(jnp.where(mine, picked, 0.0), "x")
    mean = lax.psum(logits.sum(axis=-1), "x") / (size * N)
    return jnp.mean(logz - (1.0 - smoothing) * hit - smoothing * mean)


def vocab_loss_split_reference(h, w, labels, smoothing=0.1):
    logp = jax.nn.log_softmax(h @ w)
    target = (1 - smoothing) * jax.nn.one_hot(labels, w.shape[1]) + smoothing / w.shape[1]
    return -(target * logp).sum() / len(h)


@jax.custom_vjp
def enter(x):
    return x


def enter_forward(x):
    return x, None


def enter_backward(_, g):
    return (lax.psum(g, "x"),)


enter.defvjp(enter_forward, enter_backward)


@jax.custom_vjp
def leave(x):
    return lax.psum(x, "x")


def leave_forward(x):
    return lax.psum(x, "x"), None


def leave_backward(_, g):
    return (g,)


leave.defvjp(leave_forward, leave_backward)


def megatron_mlp(x, w1, b1, w2, b2):
    """A tensor-parallel MLP and the gradient of its loss, with Megatron's f and g; w1: [D, F / N], w2: [F / N, D]."""

    def loss(x, w1):
        hidden = jax.nn.gelu(enter(x) @ w1 + b1)
        y = leave(hidden @ w2) + b2
        return jnp.sum(y**2) / 2

    return jax.grad(loss, argnums=(0, 1))(x, w1)


def megatron_mlp_reference(x, w1, b1, w2, b2):
    return jax.grad(lambda x, w: ((jax.nn.gelu(x @ w + b1) @ w2 + b2) ** 2).sum() * 0.5, (0, 1))(x, w1)


def split_layer_norm(x, scale, bias):
    """Layer normalization of features that are split over devices; x: [n, D / N], scale, bias: [D / N]."""
    width = x.shape[-1] * N
    mean = lax.psum(x.sum(axis=-1, keepdims=True), "x") / width
    var = lax.psum(jnp.sum((x - mean) ** 2, axis=-1, keepdims=True), "x") / width
    return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias


def split_layer_norm_reference(x, scale, bias):
    z = x - x.mean(1)[:, None]
    return z * lax.rsqrt(x.var(1)[:, None] + 1e-5) * scale + bias


def summa(a, b):
    """SUMMA on a square of devices: panels of a along rows and of b along columns; a: [m/2, k/2], b: [k/2, n/2]."""
    out = jnp.zeros((a.shape[0], b.shape[1]))
    row, col = lax.axis_index("row"), lax.axis_index("col")
    for step in range(2):
        left = lax.psum(jnp.where(col == step, a, 0.0), "col")
        right = lax.psum(jnp.where(row == step, b, 0.0), "row")
        out = out + left @ right
    return out


def summa_reference(a, b):
    return (a[:, :, None] * b[None]).sum(1)


def best_of_all(scores, k=3):
    """The k best of scores that are split, with their places in the whole; scores: [batch, V / N]."""
    value, place = lax.top_k(scores, k)
    place = place + lax.axis_index("x") * scores.shape[-1]
    values = lax.all_gather(value, "x", axis=1, tiled=True)
    places = lax.all_gather(place, "x", axis=1, tiled=True)
    best, at = lax.top_k(values, k)
    return jax.nn.softmax(best, axis=-1), jnp.take_along_axis(places, at, axis=1)


def best_of_all_reference(scores, k=3):
    order = jnp.argsort(-scores, axis=1)[:, :k]
    e = jnp.exp(jnp.take_along_axis(scores, order, 1))
    return e / e.sum(1, keepdims=True), order


def averaged_adam(w, m, v, x, y, t, rate=0.05):
    """Data-parallel Adam on a logistic loss; w, m, v: [D] on all, x: [n / N, D], y: [n / N]."""

    def loss(w):
        logit = x @ w
        return jnp.mean(jax.nn.softplus(logit) - y * logit)

    value, grad = jax.value_and_grad(loss)(w)
    grad, value = lax.pmean(grad, "x"), lax.pmean(value, "x")
    m = 0.9 * m + 0.1 * grad
    v = 0.99 * v + 0.01 * grad**2
    hat = m / (1 - 0.9**t)
    w = w - rate * hat / (jnp.sqrt(v / (1 - 0.99**t)) + 1e-4)
    return w, m, v, value


def averaged_adam_reference(w, m, v, x, y, t, rate=0.05):
    p = 1 / (1 + jnp.exp(-x @ w))
    g = x.T @ (p - y) / len(y)
    m, v = m + 0.1 * (g - m), v + 0.01 * (g * g - v)
    step = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.99**t)) + 1e-4)
    return w - rate * step, m, v, -(y * jnp.log(p) + (1 - y) * jnp.log(1 - p)).mean()


def owned_rows(table, ids, weight):
    """Looks words up in a table whose rows are split, and averages them with weights; ids, weight: [batch, L]."""
    rows = table.shape[0]
    local = ids - lax.axis_index("x") * rows
    mine = (local >= 0) & (local < rows)
    taken = table[jnp.where(mine, local, 0)] * mine[..., None]
    words = lax.psum(taken, "x")
    return jnp.sum(words * weight[..., None], axis=1) / jnp.sum(weight, axis=1, keepdims=True)


def owned_rows_reference(table, ids, weight):
    hot = jax.nn.one_hot(ids, len(table)) * weight[..., None]
    return hot.sum(1) @ table / weight.sum(1)[:, None]


def heat(u, rate=0.1, steps=2):
    """The heat equation on a square of devices with zero borders; u: [m/2, n/2]."""
    forward, backward = [(0, 1)], [(1, 0)]
    for _ in range(steps):
        up = lax.ppermute(u[-1:], "row", forward)
        down = lax.ppermute(u[:1], "row", backward)
        west = lax.ppermute(u[:, -1:], "col", forward)
        east = lax.ppermute(u[:, :1], "col", backward)
        tall = jnp.concatenate([up, u, down], axis=0)
        wide = jnp.concatenate([west, u, east], axis=1)
        u = u + rate * (tall[:-2] + tall[2:] + wide[:, :-2] + wide[:, 2:] - 4.0 * u)
    return u


def heat_reference(u, rate=0.1, steps=2):
    for _ in range(steps):
        p = jnp.pad(u, 1)
        u = (1 - 4 * rate) * u + rate * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2])
    return u


def running_total(x, restart):
    """Sums along a sequence that is split, and each element's share of the whole; x: [n / N, D]."""
    local = jnp.cumsum(x, axis=0)
    totals = lax.all_gather(local[-1], "x")
    before = jnp.arange(N) < lax.axis_index("x")
    carried = jnp.sum(jnp.where(before[:, None], totals, 0.0), axis=0)
    whole = totals.sum(axis=0)
    return restart + local + carried, x / whole


def running_total_reference(x, restart):
    return jnp.tril(jnp.ones((len(x), len(x)))) @ x + restart, x / x.sum(0)


def focal(logits, labels, alpha=0.25, gamma=2.0):
    """The focal loss of a detector, normalized by its positives; logits, labels: [batch, anchors]."""
    logits = lax.with_sharding_constraint(logits, P("row", None))
    p = jax.nn.sigmoid(logits)
    cross = jnp.maximum(logits, 0.0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    hit = p * labels + (1.0 - p) * (1.0 - labels)
    share = alpha * labels + (1.0 - alpha) * (1.0 - labels)
    return jnp.sum(share * (1.0 - hit) ** gamma * cross) / jnp.maximum(labels.sum(), 1.0)


def focal_reference(logits, labels, alpha=0.25, gamma=2.0):
    p = 1 / (1 + jnp.exp(-logits))
    yes, no = -alpha * (1 - p) ** gamma * jnp.log(p), -(1 - alpha) * p**gamma * jnp.log(1 - p)
    return jnp.where(labels > 0, yes, no).sum() / labels.sum()


def kalman(observed, a, c, q, r):
    """A Kalman filter over time for a batch of series; observed: [batch, T, M], a: [S, S], c: [M, S]."""

    def step(carry, y):
        mean, cov = carry
        mean, cov = mean @ a.T, a @ cov @ a.T + q
        gain = cov @ c.T @ jnp.linalg.inv(c @ cov @ c.T + r)
        mean = mean + (y - mean @ c.T) @ gain.T
        cov = (jnp.eye(a.shape[0]) - gain @ c) @ cov
        return (mean, cov), mean

    start = jnp.zeros((observed.shape[0], a.shape[0])), jnp.eye(a.shape[0])
    (_, cov), means = lax.scan(step, start, observed.swapaxes(0, 1))
    return means.swapaxes(0, 1), cov


def kalman_reference(observed, a, c, q, r):
    p, out = jnp.eye(len(a)), []
    m = jnp.zeros((len(a), observed.shape[0]))
    for t in range(observed.shape[1]):
        m, p = a @ m, a @ p @ a.T + q
        k = jnp.linalg.solve(c @ p @ c.T + r, c @ p).T
        m, p = m + k @ (observed[:, t].T - c @ m), p - k @ c @ p
        out.append(m.T)
    return jnp.stack(out, 1), p


R, X, ROWS, CUBE = P(), P("x"), P("data", None), P("data", None, None)
SPLIT = P(None, None, "model", None)


def typed(function, operands, in_specs, reference, *mistakes, within=()):
    """A function with bare specs, called within `jax.set_mesh`."""
    return Case(function, operands, mesh, in_specs, None, reference, mistakes, jitted=True, setting=True, within=within)


def mapped(function, operands, in_specs, out_specs, reference, *mistakes, over=line, within=()):
    """A device's code."""
    return Case(function, operands, over, in_specs, out_specs, reference, mistakes, check_vma=False, within=within)


def tree(seed):
    return {"w": normal(seed, 4, 6), "b": normal(seed + 1, 6)}


TREE = {"w": P("data", "model"), "b": P("model")}
SQUARE = {"w": uniform(60, 4, 6), "b": uniform(61, 6)}
LIVE = (np.arange(6) < np.array([6, 4, 5, 3])[:, None]).astype(np.float32)

CASES = (
    typed(
        decoder_block,
        (normal(0, 4, 4, 6), normal(1, 3, 6, 2, 4) / 2, normal(2, 2, 4, 6) / 2, normal(3, 6, 8) / 2,
         normal(4, 8, 6) / 2, uniform(5, 6), uniform(6, 6)),
        (CUBE, P(None, None, "model", None), P("model", None, None), P(None, "model"), P("model", None), R, R),
        decoder_block_reference,
        ("/ jnp.sqrt(q.shape[-1])", "/ jnp.sqrt(h.shape[-1])"),
        ("jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))", "jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool), -1)"),
        ("rms(x, g2), w1", "rms(x, g1), w1"),
    ),
    typed(
        tied_loss,
        (ints(0, 8, 4, 6), LIVE, normal(1, 8, 4), normal(2, 4, 4)),
        (ROWS, ROWS, P(None, None), P(None, "model")),
        tied_loss_reference,
        ("tokens[:, 1:], live[:, 1:]", "tokens[:, :-1], live[:, 1:]"),
        ("axis=-1)) + top[..., 0]", "axis=-1))"),
        ("tokens[:, 1:], live[:, 1:]", "tokens[:, 1:], live[:, :-1]"),
    ),
    typed(
        adamw,
        (tree(0), tree(2), SQUARE, tree(4), np.int32(3)),
        (TREE, TREE, TREE, TREE, R),
        adamw_reference,
        ("(a / (1 - b1**t))", "(a / (1 - b1**step))"),
        ("b2 * a + (1 - b2) * g * g", "b2 * a + (1 - b2) * g"),
        ("return p - rate * (direction + 0.1 * p)", "return p - rate * direction + 0.1 * p"),
    ),
    typed(
        switch_layer,
        (normal(0, 4, 6, 4), normal(1, 4, 2), normal(2, 2, 4, 6), normal(3, 2, 6, 4)),
        (CUBE, P(None, None), P(None, None, "model"), P(None, "model", None)),
        switch_layer_reference,
        ("(place < capacity)", "(place < capacity - 1)"),
        ("jnp.cumsum(choice, axis=1) * choice - 1.0", "jnp.cumsum(choice, axis=1) * choice"),
        ("jnp.sum(probs * choice, axis=-1)", "jnp.sum(probs, axis=-1)"),
    ),
    typed(
        decode_step,
        (normal(0, 4, 5), normal(1, 4, 6, 2, 3), normal(2, 4, 6, 2, 3), normal(3, 5, 2, 3), normal(4, 5, 2, 3),
         normal(5, 5, 2, 3), np.int32(3)),
        (ROWS, P("data", None, "model", None), P("data", None, "model", None), P(None, "model", None),
         P(None, "model", None), P(None, "model", None), R),
        decode_step_reference,
        ("<= pos, scores", "< pos, scores"),
        ("(values, v[:, None], (0, pos, 0, 0))", "(values, v[:, None], (0, pos - 1, 0, 0))"),
    ),
    typed(
        distillation,
        (normal(0, 8, 5), normal(1, 8, 5), ints(2, 5, 8)),
        (ROWS, ROWS, P("data")),
        distillation_reference,
        ("axis=-1) * temperature**2", "axis=-1)"),
        ("jax.nn.log_softmax(student / temperature, axis=-1)", "jax.nn.log_softmax(student, axis=-1)"),
        ("jnp.mean(share * soft + (1.0 - share) * hard)", "jnp.mean((1.0 - share) * soft + share * hard)"),
    ),
    typed(
        batch_norm,
        (normal(0, 4, 3, 2, 4), normal(1, 4), normal(2, 4), normal(3, 4), uniform(4, 4)),
        (P("data", None, None, "model"), P("model"), P("model"), P("model"), P("model")),
        batch_norm_reference,
        ("mean = 0.9 * mean + 0.1 * mu", "mean = 0.1 * mean + 0.9 * mu"),
        ("lax.rsqrt(variance + 1e-5)", "lax.rsqrt(var + 1e-5)"),
    ),
    typed(
        grouped_rotary,
        (normal(0, 4, 3, 5), normal(1, 5, 4, 4), normal(2, 5, 2, 4), normal(3, 5, 2, 4),
         np.tile(np.arange(3, dtype=np.float32), (4, 1))),
        (CUBE, P(None, "model", None), P(None, "model", None), P(None, "model", None), ROWS),
        grouped_rotary_reference,
        ("b * cos + a * sin]", "b * cos - a * sin]"),
        ("q, k = turn(q), turn(k)", "q, k = turn(q), k"),
        ("/ jnp.sqrt(2 * half)", "/ jnp.sqrt(half)"),
    ),
    typed(
        patches,
        (normal(0, 4, 4, 6, 2), normal(1, 8, 4), normal(2, 6, 4)),
        (P("data", None, None, None), P(None, "model"), P(None, "model")),
        patches_reference,
        ("x.transpose(0, 1, 3, 2, 4, 5)", "x.transpose(0, 1, 3, 4, 2, 5)"),
        ("jnp.sqrt(x.var(axis=-1, keepdims=True)", "jnp.sqrt(x.var(axis=1, keepdims=True)"),
    ),
    typed(
        smoothed,
        (normal(0, 8, 4), np.float32(0.2)),
        (P("data", "model"), R),
        smoothed_reference,
        ("above = lax.ppermute(u[-1:]", "above = lax.ppermute(u[:1]"),
        ("whole[:-2] - 2.0 * u", "whole[:-2] - u"),
    ),
    typed(
        linear_step,
        (normal(0, 4, 2), normal(1, 2), normal(2, 8, 4), normal(3, 8, 2)),
        (P("model", None), R, P("data", "model"), ROWS),
        linear_step_reference,
        ("jnp.minimum(1.0, 1.0 / (norm", "jnp.maximum(1.0, 1.0 / (norm"),
        ("jnp.sqrt(jnp.sum(dw**2) + jnp.sum(db**2))", "jnp.sqrt(jnp.sum(dw**2))"),
        ("jnp.mean(jnp.sum((out - y) ** 2, axis=-1))", "jnp.mean(jnp.mean((out - y) ** 2, axis=-1))"),
    ),
    typed(
        gated_recurrence,
        (normal(0, 4, 5, 4), normal(1, 4, 4), normal(2, 4, 4), normal(3, 4)),
        (CUBE, P(None, "model"), P(None, "model"), P("model")),
        gated_recurrence_reference,
        ("right[0] * left[1] + right[1]", "left[0] * left[1] + right[1]"),
        ("jnp.sqrt(1.0 - a**2)", "jnp.sqrt(1.0 - a)"),
    ),
    mapped(
        ring_causal,
        (normal(0, 8, 4), normal(1, 8, 4), normal(2, 8, 4)),
        (X, X, X),
        X,
        ring_causal_reference,
        ("source = (me - step) % N", "source = (me + step) % N"),
        ("out = out * fix + weight @ v", "out = out + weight @ v"),
        ("rows = me * n + jnp.arange(n)", "rows = jnp.arange(n)"),
    ),
    mapped(
        expert_exchange,
        (normal(0, 16, 4), normal(1, 4, 4), normal(2, 4, 4, 4)),
        (X, R, X),
        X,
        expert_exchange_reference,
        ("jnp.cumsum(hot, axis=0) - hot)", "jnp.cumsum(hot, axis=0))"),
        ("return weight[:, None] * back[expert, place]", "return back[expert, place]"),
        ("return weight[:, None] * back[expert, place]", "return weight[:, None] * back[place, expert]"),
    ),
    mapped(
        staged,
        (normal(0, 4, 3, 3), normal(1, 4, 3), normal(2, 3, 2, 3)),
        (X, X, R),
        R,
        staged_reference,
        ("[(i, (i + 1) % N)", "[(i, (i - 1) % N)"),
        ("jnp.where(me == N - 1, state, 0.0)", "state"),
    ),
    mapped(
        zero_step,
        (normal(0, 4, 8), normal(1, 8, 2), normal(2, 8, 4), normal(3, 8, 2)),
        (X, X, X, X),
        (X, X, R),
        zero_step_reference,
        ("tiled=True) / N, grads", "tiled=True), grads"),
        ('lax.pmean(value, "x")', 'lax.psum(value, "x")'),
        ("w - rate * g, (w1", "w + rate * g, (w1"),
    ),
    mapped(
        vocab_loss_split,
        (normal(0, 6, 4), normal(1, 4, 12), ints(2, 12, 6)),
        (R, P(None, "x"), R),
        R,
        vocab_loss_split_reference,
        ("(size * N)", "size"),
        ('labels - lax.axis_index("x") * size', "labels"),
        ("logz = jnp.log(total) + top", "logz = jnp.log(total) - top"),
    ),
    mapped(
        megatron_mlp,
        (normal(0, 3, 4), normal(1, 4, 8), normal(2, 8), normal(3, 8, 4), normal(4, 4)),
        (R, P(None, "x"), X, X, R),
        (R, P(None, "x")),
        megatron_mlp_reference,
        ('return (lax.psum(g, "x"),)', 'return (lax.pmean(g, "x"),)'),
        ("y = leave(hidden @ w2) + b2", "y = leave(hidden @ w2 + b2)"),
        within=(enter_backward,),
    ),
    mapped(
        split_layer_norm,
        (normal(0, 3, 8), normal(1, 8), normal(2, 8)),
        (P(None, "x"), X, X),
        P(None, "x"),
        split_layer_norm_reference,
        ("width = x.shape[-1] * N", "width = x.shape[-1]"),
        ('var = lax.psum(jnp.sum((x - mean) ** 2, axis=-1, keepdims=True), "x")',
         "var = jnp.sum((x - mean) ** 2, axis=-1, keepdims=True)"),
    ),
    mapped(
        summa,
        (normal(0, 4, 6), normal(1, 6, 8)),
        (P("row", "col"), P("row", "col")),
        P("row", "col"),
        summa_reference,
        ("jnp.where(row == step, b, 0.0)", "jnp.where(col == step, b, 0.0)"),
        ("out = out + left @ right", "out = left @ right"),
        over=grid,
    ),
    mapped(
        best_of_all,
        (normal(0, 3, 20),),
        P(None, "x"),
        (R, R),
        best_of_all_reference,
        ('lax.axis_index("x") * scores.shape[-1]', 'lax.axis_index("x") * k'),
        ("jnp.take_along_axis(places, at, axis=1)", "at"),
    ),
    mapped(
        averaged_adam,
        (normal(0, 4), normal(1, 4), uniform(2, 4), normal(3, 12, 4), ints(4, 2, 12).astype(np.float32), np.float32(3)),
        (R, R, R, X, X, R),
        (R, R, R, R),
        averaged_adam_reference,
        ('grad, value = lax.pmean(grad, "x")', 'grad, value = lax.psum(grad, "x")'),
        ("hat = m / (1 - 0.9**t)", "hat = m"),
        ("jax.nn.softplus(logit) - y * logit", "jax.nn.softplus(-logit) - y * logit"),
    ),
    mapped(
        owned_rows,
        (normal(0, 12, 4), ints(1, 12, 3, 5), uniform(2, 3, 5)),
        (X, R, R),
        R,
        owned_rows_reference,
        ("(local >= 0) & (local < rows)", "(local >= 0) & (local <= rows)"),
        ("jnp.sum(weight, axis=1, keepdims=True)", "weight.shape[1]"),
    ),
    mapped(
        heat,
        (normal(0, 6, 8),),
        P("row", "col"),
        P("row", "col"),
        heat_reference,
        ('west = lax.ppermute(u[:, -1:], "col", forward)', 'west = lax.ppermute(u[:, -1:], "row", forward)'),
        ('east = lax.ppermute(u[:, :1], "col", backward)', 'east = lax.ppermute(u[:, :1], "col", forward)'),
        over=grid,
    ),
    mapped(
        running_total,
        (normal(0, 12, 3), normal(1, 3)),
        (X, R),
        (X, X),
        running_total_reference,
        ("whole = totals.sum(axis=0)", "whole = local[-1]"),
        ('before = jnp.arange(N) < lax', 'before = jnp.arange(N) > lax'),
    ),
    Case(
        focal, (normal(0, 4, 6), ints(1, 2, 4, 6).astype(np.float32)), grid, (P("row", "col"), P("row", "col")), None,
        focal_reference,
        (
            ("hit = p * labels + (1.0 - p) * (1.0 - labels)", "hit = p * (1.0 - labels) + (1.0 - p) * labels"),
            ("(1.0 - hit) ** gamma", "1.0 - hit ** gamma"),
        ),
        jitted=True,
    ),
    Case(
        kalman, (normal(0, 4, 5, 2), normal(1, 3, 3) / 2, normal(2, 2, 3), 0.3 * np.eye(3, dtype=np.float32),
                 0.5 * np.eye(2, dtype=np.float32)),
        grid, (P("row", None, None), R, R, R, R), None, kalman_reference,
        (
            ("a @ cov @ a.T + q", "a.T @ cov @ a + q"),
            ("cov = (jnp.eye(a.shape[0]) - gain @ c) @ cov", "cov = (jnp.eye(a.shape[0]) - gain @ c) @ q"),
        ),
        jitted=True,
    ),
)  # fmt: skip
