"""Mixers, position encodings, objectives, optimizers, solvers, routing and sorting, half of them on Explicit meshes."""

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
grid = AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def weighted_keys(k, v, decay, bonus):
    """RWKV's mean of values by decaying exponentials of keys, with a running maximum; k, v: [batch, time, C]."""

    def step(carry, now):
        num, den, top = carry
        key, value = now
        new = jnp.maximum(top, key + bonus)
        old, fresh = jnp.exp(top - new), jnp.exp(key + bonus - new)
        out = (old * num + fresh * value) / (old * den + fresh)
        new = jnp.maximum(top - decay, key)
        old, fresh = jnp.exp(top - decay - new), jnp.exp(key - new)
        return (old * num + fresh * value, old * den + fresh, new), out

    start = (jnp.zeros_like(k[:, 0]), jnp.zeros_like(k[:, 0]), jnp.full_like(k[:, 0], -1e30))
    _, out = lax.scan(step, start, (k.swapaxes(0, 1), v.swapaxes(0, 1)))
    return out.swapaxes(0, 1)


def weighted_keys_reference(k, v, decay, bonus):
    t = k.shape[1]
    ahead = jnp.arange(t)[:, None] - jnp.arange(t)[None, :] - 1
    past = jnp.where(ahead[..., None] >= 0, -ahead[..., None] * decay, bonus)
    weight = jnp.exp(k[:, None] + past) * (ahead >= -1)[..., None]
    return (weight * v[:, None]).sum(2) / weight.sum(2)


def diagonal_space(u, rate, freq, c, skip):
    """S4D: a diagonal state space as a long convolution by FFT; u: [batch, time, H], rate, freq, c: [H, S]."""
    t = u.shape[1]
    dt = 0.1
    a = -jnp.exp(rate) + 1j * freq
    powers = jnp.exp(a[..., None] * dt * jnp.arange(t))
    kernel = 2.0 * jnp.einsum("hs,hst->ht", c * (jnp.exp(a * dt) - 1.0) / a, powers).real
    wide = jnp.fft.rfft(u, 2 * t, axis=1) * jnp.fft.rfft(kernel.T, 2 * t, axis=0)[None]
    return jnp.fft.irfft(wide, 2 * t, axis=1)[:, :t] + u * skip


def diagonal_space_reference(u, rate, freq, c, skip):
    a = -jnp.exp(rate) + 1j * freq
    x, out = jnp.zeros((u.shape[0], *rate.shape), jnp.complex64), []
    for at in range(u.shape[1]):
        x = x * jnp.exp(a * 0.1) + (jnp.exp(a * 0.1) - 1.0) / a * u[:, at, :, None]
        out.append(2.0 * (x * c).sum(-1).real + skip * u[:, at])
    return jnp.stack(out, 1)


def axial_rotary(x, width=3):
    """Rotary positions of images: half of the dimensions turn by rows, half by columns; x: [batch, time, heads, d]."""
    t, d = x.shape[1], x.shape[-1]
    rows, columns = jnp.arange(t) // width, jnp.arange(t) % width
    rates = 50.0 ** (-jnp.arange(d // 4) / (d // 4))
    angles = jnp.concatenate([rows[:, None] * rates, columns[:, None] * rates], axis=-1)[None, :, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = jnp.stack(
        [even * jnp.cos(angles) - odd * jnp.sin(angles), even * jnp.sin(angles) + odd * jnp.cos(angles)], -1
    )
    return turned.reshape(x.shape)


def axial_rotary_reference(x, width=3):
    d = x.shape[-1]
    z = x[..., 0::2] + 1j * x[..., 1::2]
    rates = 50.0 ** (-np.arange(d // 4) * 4 / d)
    out = []
    for at in range(x.shape[1]):
        turn = np.concatenate([at // width * rates, at % width * rates])
        out.append(z[:, at] * np.exp(1j * turn).astype(np.complex64))
    z = jnp.stack(out, 1)
    return jnp.stack([z.real, z.imag], -1).reshape(x.shape)


def relative_attention(q, k, v, r, content, place):
    """Transformer-XL attention with relative positions and the shift trick; q, k, v: [batch, time, heads, d]."""
    b, t, h, d = q.shape
    ac = jnp.einsum("bqhd,bkhd->bhqk", q + content, k)
    bd = jnp.einsum("bqhd,rhd->bhqr", q + place, r)
    bd = jnp.pad(bd, ((0, 0), (0, 0), (0, 0), (1, 0)))
    bd = lax.reshape(bd, (b, h, t + 1, t), out_sharding=P("data", "model", None, None))[:, :, 1:]
    scores = (ac + bd) / jnp.sqrt(d)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def relative_attention_reference(q, k, v, r, content, place):
    t, d = q.shape[1], q.shape[-1]
    s = jnp.einsum("bqhd,bkhd->bqkh", q + content, k)
    back = np.clip(t - 1 - np.arange(t)[:, None] + np.arange(t)[None, :], 0, t - 1)
    s = s + jnp.einsum("bqhd,qkhd->bqkh", q + place, r[back])
    e = jnp.exp(s * d**-0.5) * np.tri(t, dtype=np.float32)[None, :, :, None]
    return jnp.einsum("bqkh,bkhd->bqhd", e / e.sum(2, keepdims=True), v)


def mixer(x, t1, t2, c1, c2):
    """An MLP-Mixer block: tokens are mixed on whole sequences, channels on split ones; x: [batch, time, C]."""
    y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    y = reshard(y, P("data", None, "model"))
    y = jnp.einsum("btc,ts->bsc", y, t1)
    y = jnp.einsum("bsc,st->btc", jax.nn.gelu(y), t2)
    x = x + reshard(y, P("data", "model", None))
    y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(y @ c1) @ c2


def mixer_reference(x, t1, t2, c1, c2):
    def norm(v):
        v = v - v.mean(2)[..., None]
        return v / jnp.sqrt((v**2).mean(2)[..., None] + 1e-5)

    x = x + (jax.nn.gelu(norm(x).transpose(0, 2, 1) @ t1) @ t2).transpose(0, 2, 1)
    return x + jax.nn.gelu(norm(x) @ c1) @ c2


def linear_attention(q, k, v):
    """Causal linear attention with the feature map elu + 1; q, k, v: [batch, time, heads, d]."""
    q, k = jax.nn.elu(q) + 1.0, jax.nn.elu(k) + 1.0
    state = jnp.cumsum(jnp.einsum("bthd,bthe->bthde", k, v), axis=1)
    total = jnp.cumsum(k, axis=1)
    out = jnp.einsum("bthd,bthde->bthe", q, state)
    return out / (jnp.einsum("bthd,bthd->bth", q, total)[..., None] + 1e-6)


def linear_attention_reference(q, k, v):
    q, k = (jnp.where(z > 0, z + 1.0, jnp.exp(z)) for z in (q, k))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * np.tri(q.shape[1], dtype=np.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", s / (s.sum(-1, keepdims=True) + 1e-6), v)


def codebook(x, codes, counts, sums):
    """VQ-VAE: nearest codes, a commitment loss, and moving averages of the codebook; x: [n, D], codes: [K, D]."""
    square = jnp.sum(x**2, axis=1, keepdims=True) - 2.0 * x @ codes.T + jnp.sum(codes**2, axis=1)
    chosen = jax.nn.one_hot(jnp.argmin(square, axis=1), codes.shape[0])
    taken = chosen @ codes
    loss = 0.25 * jnp.mean((x - taken) ** 2)
    counts = 0.9 * counts + 0.1 * chosen.sum(0)
    sums = 0.9 * sums + 0.1 * jnp.matmul(chosen.T, x, out_sharding=P(None, None))
    return taken, loss, sums / (counts[:, None] + 1e-3), counts


def codebook_reference(x, codes, counts, sums):
    near = jnp.argmin(((x[:, None] - codes) ** 2).sum(-1), 1)
    taken = codes[near]
    counts, total = jnp.asarray(counts * 0.9), jnp.asarray(sums * 0.9)
    for code in range(codes.shape[0]):
        here = (near == code).astype(x.dtype)
        counts = counts.at[code].add(0.1 * here.sum())
        total = total.at[code].add(0.1 * here @ x)
    return taken, ((x - taken) ** 2).sum() / x.size / 4, total / (counts + 1e-3)[:, None], counts


def pair_loss(a, b, temperature):
    """NT-Xent: each view against all others but itself; a, b: [batch, D]."""
    z = jnp.concatenate([a, b])
    z = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
    others = reshard(z, P(None, None))
    sim = z @ others.T / temperature
    n = a.shape[0]
    sim = jnp.where(jnp.eye(2 * n, dtype=bool), -1e9, sim)
    positive = jnp.sum(z * jnp.roll(others, n, axis=0), axis=-1) / temperature
    return jnp.mean(jax.nn.logsumexp(sim, axis=-1) - positive)


def pair_loss_reference(a, b, temperature):
    a, b = (v * lax.rsqrt((v * v).sum(1, keepdims=True)) for v in (a, b))
    ab, aa, bb = (jnp.exp(u @ v.T / temperature) for u, v in ((a, b), (a, a), (b, b)))
    hit = jnp.log(jnp.diagonal(ab))
    rows = jnp.log(ab.sum(1) + aa.sum(1) - jnp.diagonal(aa)) + jnp.log(ab.sum(0) + bb.sum(1) - jnp.diagonal(bb))
    return (rows - 2 * hit).mean() / 2


def group_policy(logits, old, reference, tokens, rewards, live):
    """GRPO: rewards normalised within groups, clipped ratios and the k3 estimate of KL."""
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    advantage = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)
    ratio = jnp.exp(logp - old)
    gain = jnp.minimum(ratio * advantage[..., None], jnp.clip(ratio, 0.8, 1.2) * advantage[..., None])
    kl = jnp.exp(reference - logp) - (reference - logp) - 1.0
    per_token = (gain - 0.04 * kl) * live
    return -jnp.mean(per_token.sum(-1) / live.sum(-1))


def group_policy_reference(logits, old, reference, tokens, rewards, live):
    p = jax.nn.softmax(logits)
    logp = jnp.log((p * jax.nn.one_hot(tokens, logits.shape[-1])).sum(-1))
    a = rewards - rewards.mean(1)[:, None]
    a = (a / (jnp.sqrt((a * a).mean(1))[:, None] + 1e-4))[..., None]
    r = jnp.exp(logp) / jnp.exp(old)
    clipped = jnp.where(a > 0, jnp.minimum(r, 1.2), jnp.maximum(r, 0.8)) * a
    d = reference - logp
    return -((clipped - (jnp.expm1(d) - d) * 0.04) * live / live.sum(-1, keepdims=True)).sum(-1).mean()


def rendered(density, colour, depths):
    """Volume rendering along rays; density, depths: [rays, samples], colour: [rays, samples, 3]."""
    gaps = jnp.diff(depths, axis=-1, append=depths[:, -1:] + 1.0)
    alpha = 1.0 - jnp.exp(-jax.nn.relu(density) * gaps)
    clear = jnp.cumprod(1.0 - alpha, axis=-1)
    clear = jnp.concatenate([jnp.ones_like(clear[:, :1]), clear[:, :-1]], axis=-1)
    weights = clear * alpha
    image = jnp.sum(weights[..., None] * jax.nn.sigmoid(colour), axis=1)
    return image + (1.0 - weights.sum(-1, keepdims=True)), jnp.sum(weights * depths, axis=-1)


def rendered_reference(density, colour, depths):
    light, image, depth = jnp.ones(density.shape[0]), 0.0, 0.0
    for s in range(density.shape[1]):
        gap = depths[:, s + 1] - depths[:, s] if s + 1 < density.shape[1] else 1.0
        through = jnp.exp(-jnp.maximum(density[:, s], 0) * gap)
        share = light * (1 - through)
        image = image + share[:, None] / (1 + jnp.exp(-colour[:, s]))
        depth, light = depth + share * depths[:, s], light * through
    return image + light[:, None], depth


def muon(w, m, g, rate=0.1):
    """Muon: Nesterov momentum, made orthogonal by Newton-Schulz steps; everything: [layers, rows, columns]."""
    m = 0.95 * m + g
    u = g + 0.95 * m
    x = u / (jnp.linalg.norm(u, axis=(1, 2), keepdims=True) + 1e-7)
    for _ in range(3):
        a = x @ x.swapaxes(1, 2)
        b = -4.775 * a + 2.0315 * a @ a
        x = 3.4445 * x + b @ x
    scale = max(1.0, w.shape[1] / w.shape[2]) ** 0.5
    return w * (1.0 - 0.01 * rate) - rate * scale * x, m


def muon_reference(w, m, g, rate=0.1):
    m = g + m * 0.95
    u = m * 0.95 + g
    left, s, right = jnp.linalg.svd(u, full_matrices=False)
    s = s / (jnp.sqrt((s**2).sum(1, keepdims=True)) + 1e-7)
    for _ in range(3):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    step = jnp.einsum("lri,li,lic->lrc", left, s, right) * np.sqrt(max(1, w.shape[1] / w.shape[2]))
    return w - rate * (step + 0.01 * w), m


def self_distilled(student, teacher, center):
    """DINO's loss over two views with a moving centre; student, teacher: [views, batch, K]."""
    target = lax.stop_gradient(jax.nn.softmax((teacher - center) / 0.4, axis=-1))
    logp = jax.nn.log_softmax(student / 0.9, axis=-1)
    loss = 0.0
    for i in range(2):
        for j in range(2):
            if i != j:
                loss = loss - jnp.mean(jnp.sum(target[i] * logp[j], axis=-1))
    return loss / 2, 0.9 * center + 0.1 * teacher.mean((0, 1))


def self_distilled_reference(student, teacher, center):
    t, s = jnp.exp((teacher - center) / 0.4), jnp.exp(student / 0.9)
    t, s = t / t.sum(2)[..., None], s / s.sum(2)[..., None]
    cross = t[0] * jnp.log(s[1]) + t[1] * jnp.log(s[0])
    return -cross.sum() / (2 * student.shape[1]), center + (teacher.sum((0, 1)) / teacher[..., 0].size - center) / 10


def redundancy(a, b):
    """Barlow Twins: the cross-correlation of standardized views should be the identity; the batch is split."""
    n = a.shape[0]
    a = (a - a.mean(0)) / (a.std(0) + 1e-5)
    b = (b - b.mean(0)) / (b.std(0) + 1e-5)
    c = jnp.einsum("ni,nj->ij", a, b, out_sharding=P(None, None)) / n
    on = jnp.sum((jnp.diagonal(c) - 1.0) ** 2)
    off = jnp.sum(c**2) - jnp.sum(jnp.diagonal(c) ** 2)
    return on + 0.05 * off


def redundancy_reference(a, b):
    a, b = ((v - v.mean(0)) / (jnp.sqrt(v.var(0)) + 1e-5) for v in (a, b))
    c = a.T @ b / len(a)
    eye = jnp.eye(len(c))
    return ((c - eye) ** 2 * (eye + 0.05 * (1 - eye))).sum()


def striped(q, k, v):
    """Striped attention: device i has tokens i, i + N, …, so that causal masks are balanced; q, k, v: [n / N, D]."""
    me, n = lax.axis_index("x"), q.shape[0]
    right = [(i, (i + 1) % N) for i in range(N)]

    def step(s, carry):
        top, total, out, k, v = carry
        owner = (me - s) % N
        rows, columns = jnp.arange(n) * N + me, jnp.arange(n) * N + owner
        scores = jnp.where(rows[:, None] >= columns, q @ k.T / jnp.sqrt(q.shape[1]), -1e30)
        new = jnp.maximum(top, scores.max(1))
        shrink = jnp.exp(top - new)
        p = jnp.exp(scores - new[:, None]) * (scores > -1e29)
        total = total * shrink + p.sum(1)
        out = out * shrink[:, None] + p @ v
        return new, total, out, lax.ppermute(k, "x", right), lax.ppermute(v, "x", right)

    start = (jnp.full(n, -1e30), jnp.zeros(n), jnp.zeros_like(q), k, v)
    _, total, out, _, _ = lax.fori_loop(0, N, step, start)
    return out / total[:, None]


def striped_reference(q, k, v):
    n = q.shape[0] // N
    order = np.arange(q.shape[0]).reshape(N, n).T.reshape(-1)
    q, k, v = q[order], k[order], v[order]
    e = jnp.exp(q @ k.T / np.sqrt(q.shape[1])) * np.tri(len(q), dtype=np.float32)
    return (e / e.sum(1, keepdims=True) @ v)[np.argsort(order)]


def microbatched(w, x):
    """A pipeline of one layer a device over microbatches, as a scan; w: [1, D, D], x: [M, b, D]."""
    me, m = lax.axis_index("x"), x.shape[0]

    def tick(carry, t):
        arrived, done = carry
        given = jnp.where(me == 0, x[jnp.clip(t, 0, m - 1)], arrived)
        out = jnp.tanh(given @ w[0])
        at = t - (N - 1)
        kept = lax.dynamic_update_slice(done, out[None], (jnp.clip(at, 0, m - 1), 0, 0))
        done = jnp.where((me == N - 1) & (at >= 0), kept, done)
        return (lax.ppermute(out, "x", [(i, (i + 1) % N) for i in range(N)]), done), None

    (_, done), _ = lax.scan(tick, (jnp.zeros_like(x[0]), jnp.zeros_like(x)), jnp.arange(m + N - 1))
    return lax.psum(jnp.where(me == N - 1, done, 0.0), "x")


def microbatched_reference(w, x):
    for layer in w:
        x = jnp.tanh(x @ layer)
    return x


def cholesky_qr(a):
    """CholeskyQR2 of a tall matrix split by rows; a: [n / N, k]."""
    r = jnp.eye(a.shape[1])
    q = a
    for _ in range(2):
        gram = lax.psum(q.T @ q, "x")
        low = jnp.linalg.cholesky(gram)
        q = jax.scipy.linalg.solve_triangular(low, q.T, lower=True).T
        r = low.T @ r
    return q, r


def cholesky_qr_reference(a):
    q, r = jnp.linalg.qr(a)
    sign = jnp.sign(jnp.diagonal(r))
    return q * sign, r * sign[:, None]


def four_step(x):
    """The four-step FFT of a vector that devices have in rows of a matrix; x: [rows / N, columns]."""
    rows, columns = x.shape[0] * N, x.shape[1]
    x = lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
    x = jnp.fft.fft(x, axis=0)
    mine = lax.axis_index("x") * (columns // N) + jnp.arange(columns // N)
    x = x * jnp.exp(-2j * jnp.pi * jnp.arange(rows)[:, None] * mine / (rows * columns))
    x = lax.all_to_all(x, "x", split_axis=0, concat_axis=1, tiled=True)
    return jnp.fft.fft(x, axis=1)


def four_step_reference(x):
    return jnp.fft.fft(x.reshape(-1)).reshape(x.shape[1], x.shape[0]).T


def lattice(f):
    """A step of the lattice Boltzmann equation on a line: collisions, then streams with halos; f: [3, n / N]."""
    rho = f.sum(0)
    u = (f[1] - f[2]) / rho
    equal = jnp.stack(
        [2 / 3 * rho * (1 - 1.5 * u**2), rho / 6 * (1 + 3 * u + 3 * u**2), rho / 6 * (1 - 3 * u + 3 * u**2)]
    )
    f = f - (f - equal) / 0.8
    from_left = lax.ppermute(f[1, -1:], "x", [(i, (i + 1) % N) for i in range(N)])
    from_right = lax.ppermute(f[2, :1], "x", [(i, (i - 1) % N) for i in range(N)])
    right = jnp.concatenate([from_left, f[1, :-1]])
    left = jnp.concatenate([f[2, 1:], from_right])
    return jnp.stack([f[0], right, left])


def lattice_reference(f):
    c, w = jnp.array([0.0, 1.0, -1.0]), jnp.array([2 / 3, 1 / 6, 1 / 6])
    rho = f.sum(0)
    u = (c[:, None] * f).sum(0) / rho
    cu = c[:, None] * u
    equal = w[:, None] * rho * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * u**2)
    f = f + 1.25 * (equal - f)
    return jnp.stack([f[0], jnp.roll(f[1], 1), jnp.roll(f[2], -1)])


def expert_choice(x, gate, w1, w2, capacity=3):
    """Experts, one on each device, choose their tokens; x: [n, D] on all, w1: [1, D, F], w2: [1, F, D]."""
    scores = jax.nn.softmax(x @ gate, axis=-1)
    mine = lax.dynamic_index_in_dim(scores, lax.axis_index("x"), 1, keepdims=False)
    weight, chosen = lax.top_k(mine, capacity)
    done = jax.nn.silu(x[chosen] @ w1[0]) @ w2[0]
    out = jnp.zeros_like(x).at[chosen].add(weight[:, None] * done)
    return lax.psum(out, "x")


def expert_choice_reference(x, gate, w1, w2, capacity=3):
    p = jax.nn.softmax(x @ gate)
    out = jnp.zeros_like(x)
    for e in range(N):
        h = x @ w1[e]
        rank = (p[:, e][None, :] > p[:, e][:, None]).sum(1)
        out = out + ((h / (1 + jnp.exp(-h))) @ w2[e]) * (p[:, e] * (rank < capacity))[:, None]
    return out


def outer_step(w, m, x, y, rate=0.1):
    """DiLoCo: three inner steps on each device, then a Nesterov step with their mean change; x, y: [3, n / N, …]."""

    def inner(w, batch):
        xs, ys = batch
        grad = jax.grad(lambda w: jnp.mean((xs @ w - ys) ** 2))(w)
        return w - rate * grad, None

    local, _ = lax.scan(inner, w, (x, y))
    delta = lax.pmean(w - local, "x")
    m = 0.9 * m + delta
    return w - 0.7 * (delta + 0.9 * m), m


def outer_step_reference(w, m, x, y, rate=0.1):
    n = x.shape[1] // N
    locals_ = []
    for device in range(N):
        v = w
        for s in range(x.shape[0]):
            xs, ys = x[s, device * n : device * n + n], y[s, device * n : device * n + n]
            v = v - rate * 2 / ys.size * xs.T @ (xs @ v - ys)
        locals_.append(v)
    delta = w - sum(locals_) / N
    m = m * 0.9 + delta
    return w - 0.7 * delta - 0.63 * m, m


def power_compressed(g, error, q):
    """PowerSGD of rank 2 with error feedback; g, error: [1, rows, columns] on each device, q: [columns, 2]."""
    m = g[0] + error[0]
    p = lax.pmean(m @ q, "x")
    first = p[:, 0] / jnp.linalg.norm(p[:, 0])
    second = p[:, 1] - (first @ p[:, 1]) * first
    p = jnp.stack([first, second / jnp.linalg.norm(second)], axis=1)
    q = lax.pmean(m.T @ p, "x")
    approx = p @ q.T
    return approx, (m - approx)[None], q


def power_compressed_reference(g, error, q):
    m = (g + error).mean(0)
    p, r = jnp.linalg.qr(m @ q)
    p = p * jnp.sign(jnp.diagonal(r))
    approx = p @ (p.T @ m)
    return approx, g + error - approx, m.T @ p


def page_rank(links, rank, damping=0.85):
    """A step of PageRank with dangling pages; links: [n, n / N] from the device's pages, rank: [n / N]."""
    n = links.shape[0]
    out = links.sum(0)
    share = jnp.where(out > 0, rank / jnp.maximum(out, 1.0), 0.0)
    dangling = lax.psum(jnp.sum(jnp.where(out > 0, 0.0, rank)), "x")
    flow = lax.psum_scatter(links @ share, "x", tiled=True)
    return (1.0 - damping) / n + damping * (flow + dangling / n)


def page_rank_reference(links, rank, damping=0.85):
    n = len(rank)
    out = links.sum(0, keepdims=True)
    matrix = jnp.where(out > 0, links / jnp.where(out > 0, out, 1), 1 / n)
    return (damping * matrix + (1 - damping) / n) @ rank


def lanczos(a, start, steps=3):
    """Lanczos' coefficients of a symmetric matrix split by rows; a: [n / N, n], start: [n / N]."""
    v = start / jnp.sqrt(lax.psum(jnp.vdot(start, start), "x"))
    last, beta = jnp.zeros_like(v), 0.0
    alphas, betas = [], []
    for _ in range(steps):
        u = a @ lax.all_gather(v, "x", tiled=True)
        alpha = lax.psum(jnp.vdot(u, v), "x")
        u = u - alpha * v - beta * last
        beta = jnp.sqrt(lax.psum(jnp.vdot(u, u), "x"))
        last, v = v, u / beta
        alphas.append(alpha)
        betas.append(beta)
    return jnp.stack(alphas), jnp.stack(betas)


def lanczos_reference(a, start, steps=3):
    basis = [start / jnp.linalg.norm(start)]
    alphas, betas = [], []
    for s in range(steps):
        u = a @ basis[s]
        alphas.append(basis[s] @ u)
        for b in basis:
            u = u - (b @ u) * b
        betas.append(jnp.linalg.norm(u))
        basis.append(u / betas[-1])
    return jnp.stack(alphas), jnp.stack(betas)


def running_logsum(x):
    """The cumulative logsumexp along a split sequence; x: [n / N, D]."""
    mine = lax.cumlogsumexp(x, axis=0)
    every = lax.all_gather(mine[-1], "x")
    before = jnp.where(jnp.arange(N)[:, None] < lax.axis_index("x"), every, -jnp.inf)
    top = jnp.maximum(before.max(0), -1e30)
    carried = jnp.log(jnp.exp(before - top).sum(0)) + top
    return jnp.logaddexp(mine, carried)


def running_logsum_reference(x):
    top = x.max(0)
    return jnp.log(jnp.cumsum(jnp.exp(x - top), 0)) + top


def hybrid_step(w1, w2, x, y, rate=0.05):
    """An MLP with a hidden dimension over `tp` and a batch over `dp`, its gradients by hand."""
    h = x @ w1
    a = jax.nn.relu(h)
    out = lax.psum(a @ w2, "tp")
    count = lax.psum(x.shape[0], "dp")
    err = 2.0 * (out - y) / count
    loss = lax.psum(jnp.sum((out - y) ** 2), "dp") / count
    g2 = lax.psum(a.T @ err, "dp")
    back = (err @ w2.T) * (h > 0)
    g1 = lax.psum(x.T @ back, "dp")
    norm = jnp.sqrt(lax.psum(jnp.sum(g1**2) + jnp.sum(g2**2), "tp"))
    scale = jnp.minimum(1.0, 0.5 / norm)
    return w1 - rate * scale * g1, w2 - rate * scale * g2, loss


def hybrid_step_reference(w1, w2, x, y, rate=0.05):
    def loss(ws):
        return jnp.mean(jnp.sum((jnp.maximum(x @ ws[0], 0) @ ws[1] - y) ** 2, axis=1))

    value, (g1, g2) = jax.value_and_grad(loss)((w1, w2))
    norm = jnp.linalg.norm(jnp.concatenate([g1.reshape(-1), g2.reshape(-1)]))
    shrink = rate * jnp.where(norm > 0.5, 0.5 / norm, 1.0)
    return w1 - shrink * g1, w2 - shrink * g2, value


def weighted_bound(logits, prior, x, eps):
    """IWAE: the bound of importance samples that are split over devices; eps: [K / N, n, Z], x: [n, Z]."""
    mean, logs = jnp.split(logits, 2, axis=-1)
    z = mean + jnp.exp(logs) * eps
    logq = jnp.sum(-0.5 * eps**2 - logs, axis=-1)
    logp = jnp.sum(-0.5 * (z - prior) ** 2 - 0.5 * (x - jnp.tanh(z)) ** 2, axis=-1)
    ratio = logp - logq
    top = lax.pmax(ratio.max(0), "x")
    total = lax.psum(jnp.exp(ratio - top).sum(0), "x")
    return jnp.mean(jnp.log(total) + top - jnp.log(N * eps.shape[0]))


def weighted_bound_reference(logits, prior, x, eps):
    d = logits.shape[-1] // 2
    z = logits[:, :d] + jnp.exp(logits[:, d:]) * eps
    w = -((z - prior) ** 2 + (x - jnp.tanh(z)) ** 2 - eps**2).sum(-1) / 2 + logits[:, d:].sum(-1)
    return (jax.nn.logsumexp(w, axis=0) - jnp.log(eps.shape[0])).mean()


def merged_moments(x, live):
    """The mean and variance of live rows on devices, by Chan's formula; x: [n / N, D], live: [n / N]."""
    count = live.sum()
    mean = (x * live[:, None]).sum(0) / count
    spread = ((x - mean) ** 2 * live[:, None]).sum(0)
    counts, means, spreads = (lax.all_gather(v, "x") for v in (count, mean, spread))
    total = counts.sum()
    whole = (counts[:, None] * means).sum(0) / total
    spread = spreads.sum(0) + (counts[:, None] * (means - whole) ** 2).sum(0)
    return whole, spread / (total - 1.0)


def merged_moments_reference(x, live):
    n = live.sum()
    mean = live @ x / n
    return mean, (live @ x**2 - n * mean**2) / (n - 1)


def convolved_graph(x, senders, receivers, w):
    """A graph convolution whose edges are split over devices, nodes on all; x: [n, D], senders, receivers: [e / N]."""
    n = x.shape[0]
    ones = jnp.ones_like(senders, x.dtype)
    into = lax.psum(jax.ops.segment_sum(ones, receivers, n), "x") + 1.0
    outof = lax.psum(jax.ops.segment_sum(ones, senders, n), "x") + 1.0
    h = (x @ w) / jnp.sqrt(outof)[:, None]
    mixed = lax.psum(jax.ops.segment_sum(h[senders], receivers, n), "x") + h
    return jax.nn.relu(mixed / jnp.sqrt(into)[:, None])


def convolved_graph_reference(x, senders, receivers, w):
    n = x.shape[0]
    adjacent = jnp.zeros((n, n)).at[receivers, senders].add(1.0) + jnp.eye(n)
    adjacent = adjacent / jnp.sqrt(adjacent.sum(1, keepdims=True) * adjacent.sum(0, keepdims=True))
    return jnp.maximum(adjacent @ x @ w, 0)


def sequence_to_heads(x, wq, wk, wv, wo):
    """Attention on whole sequences of a device's heads, between two all-to-alls; x: [batch, time / N, D]."""
    b, t, _ = x.shape
    heads = wq.shape[1] // 4

    def split(y):
        y = lax.all_to_all(y.reshape(b, t, N, heads // N, 4), "x", split_axis=2, concat_axis=1, tiled=True)
        return y.reshape(b, N * t, heads // N, 4)

    q, k, v = split(x @ wq), split(x @ wk), split(x @ wv)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
    scores = jnp.where(jnp.tri(N * t, dtype=bool), scores, -1e9)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    out = lax.all_to_all(out, "x", split_axis=1, concat_axis=2, tiled=True)
    return out.reshape(b, t, -1) @ wo


def sequence_to_heads_reference(x, wq, wk, wv, wo):
    b, t, _ = x.shape
    q, k, v = ((x @ w).reshape(b, t, -1, 4).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
    s = jnp.exp(q @ k.transpose(0, 1, 3, 2) / 2) * np.tri(t, dtype=np.float32)
    return (s / s.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(b, t, -1) @ wo


def accumulated_shards(w, x, y, rate=0.1):
    """FSDP: gradients of microbatches are summed, then each device takes its part of the mean; w: [D / N, O]."""
    whole = lax.all_gather(w, "x", tiled=True)

    def microbatch(total, batch):
        xs, ys = batch
        loss, grad = jax.value_and_grad(lambda v: jnp.mean((jnp.tanh(xs @ v) - ys) ** 2))(whole)
        return (total[0] + loss, total[1] + grad), None

    (loss, grad), _ = lax.scan(microbatch, (0.0, jnp.zeros_like(whole)), (x, y))
    count = x.shape[0]
    grad = lax.psum_scatter(grad, "x", tiled=True) / (N * count)
    return w - rate * grad, lax.pmean(loss, "x") / count


def accumulated_shards_reference(w, x, y, rate=0.1):
    def loss(w):
        return ((jnp.tanh(jnp.einsum("mbd,do->mbo", x, w)) - y) ** 2).mean()

    value, grad = jax.value_and_grad(loss)(w)
    return w - rate * grad, value


def threshold(x, share=0.25, rounds=12):
    """The value that a share of all elements is above, by bisection; x: [n / N]."""
    low, high = lax.pmin(x.min(), "x"), lax.pmax(x.max(), "x")
    wanted = share * N * x.size

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2.0
        above = lax.psum(jnp.sum(x > middle), "x")
        return jnp.where(above > wanted, middle, low), jnp.where(above > wanted, high, middle)

    low, high = lax.fori_loop(0, rounds, halve, (low, high))
    return jnp.where(x > high, x, 0.0), high


def threshold_reference(x, share=0.25, rounds=12):
    low, high = x.min(), x.max()
    for _ in range(rounds):
        middle = low + (high - low) / 2
        more = (x > middle).sum() > share * x.size
        low, high = jnp.where(more, middle, low), jnp.where(more, high, middle)
    return x * (x > high), high


R, ROWS, CUBE = P(), P("data", None), P("data", None, None)
HEADS, X, ROW = P("data", None, "model", None), P("x"), P(None, "x")


def typed(function, operands, in_specs, reference, *mistakes):
    """A function with bare specs, called within `jax.set_mesh`."""
    return Case(function, operands, mesh, in_specs, None, reference, mistakes, jitted=True, setting=True)


def mapped(function, operands, in_specs, out_specs, reference, *mistakes, over=line):
    """A device's code."""
    return Case(function, operands, over, in_specs, out_specs, reference, mistakes, check_vma=False)


CASES = (
    typed(
        weighted_keys,
        (normal(0, 4, 5, 4), normal(1, 4, 5, 4), uniform(2, 4), normal(3, 4)),
        (P("data", None, "model"), P("data", None, "model"), P("model"), P("model")),
        weighted_keys_reference,
        ("old * den + fresh, new), out", "old * den + fresh, top), out"),
        ("jnp.exp(top - decay - new), jnp.exp(key - new)", "jnp.exp(top - new), jnp.exp(key - new)"),
        ("out = (old * num + fresh * value) / (old * den + fresh)", "out = num / (den + 1e-6)"),
    ),
    typed(
        diagonal_space,
        (normal(0, 4, 6, 4), normal(1, 4, 2), normal(2, 4, 2), normal(3, 4, 2), normal(4, 4)),
        (CUBE, R, R, R, R),
        diagonal_space_reference,
        ("jnp.fft.rfft(u, 2 * t, axis=1) *", "jnp.fft.rfft(u[:, ::-1], 2 * t, axis=1) *"),
        ("c * (jnp.exp(a * dt) - 1.0) / a, powers", "c * jnp.exp(a * dt) / a, powers"),
    ),
    typed(
        axial_rotary,
        (normal(0, 4, 6, 2, 8),),
        (HEADS,),
        axial_rotary_reference,
        ("jnp.arange(t) // width, jnp.arange(t) % width", "jnp.arange(t) % width, jnp.arange(t) // width"),
        ("(-jnp.arange(d // 4) / (d // 4))", "(-jnp.arange(d // 4) / (d // 2))"),
    ),
    typed(
        relative_attention,
        (
            normal(0, 4, 4, 2, 6),
            normal(1, 4, 4, 2, 6),
            normal(2, 4, 4, 2, 6),
            normal(3, 4, 2, 6),
            normal(4, 2, 6),
            normal(5, 2, 6),
        ),
        (HEADS, HEADS, HEADS, P(None, "model", None), P("model", None), P("model", None)),
        relative_attention_reference,
        ('"bqhd,rhd->bhqr", q + place, r', '"bqhd,rhd->bhqr", q + content, r'),
        ("scores = (ac + bd) / jnp.sqrt(d)", "scores = (ac + bd) / jnp.sqrt(h)"),
    ),
    typed(
        mixer,
        (normal(0, 4, 4, 6), normal(1, 4, 8), normal(2, 8, 4), normal(3, 6, 8), normal(4, 8, 6)),
        (P("data", "model", None), R, R, R, R),
        mixer_reference,
        ("return x + jax.nn.gelu(y @ c1) @ c2", "return y + jax.nn.gelu(y @ c1) @ c2"),
        ('x = x + reshard(y, P("data", "model", None))', 'x = reshard(y, P("data", "model", None))'),
    ),
    typed(
        linear_attention,
        (normal(0, 4, 5, 2, 4), normal(1, 4, 5, 2, 4), normal(2, 4, 5, 2, 4)),
        (HEADS, HEADS, HEADS),
        linear_attention_reference,
        ("q, k = jax.nn.elu(q) + 1.0, jax.nn.elu(k) + 1.0", "q, k = jax.nn.elu(q) + 1.0, jax.nn.elu(k)"),
        ("total = jnp.cumsum(k, axis=1)", "total = jnp.cumsum(q, axis=1)"),
    ),
    typed(
        codebook,
        (normal(0, 8, 4), normal(1, 3, 4), uniform(2, 3), normal(3, 3, 4)),
        (ROWS, R, R, R),
        codebook_reference,
        ("- 2.0 * x @ codes.T", "- x @ codes.T"),
        ("jnp.argmin(square, axis=1)", "jnp.argmax(square, axis=1)"),
        ("sums = 0.9 * sums + 0.1 * jnp", "sums = 0.9 * sums + jnp"),
    ),
    typed(
        pair_loss,
        (normal(0, 4, 5), normal(1, 4, 5), np.float32(0.5)),
        (ROWS, ROWS, R),
        pair_loss_reference,
        ("jnp.where(jnp.eye(2 * n, dtype=bool), -1e9, sim)", "jnp.where(jnp.eye(2 * n, dtype=bool), 0.0, sim)"),
        ("jnp.roll(others, n, axis=0), axis=-1)", "jnp.roll(others, 1, axis=0), axis=-1)"),
    ),
    typed(
        group_policy,
        (
            normal(0, 4, 3, 5, 6),
            -uniform(1, 4, 3, 5),
            -uniform(2, 4, 3, 5),
            ints(3, 6, 4, 3, 5),
            normal(4, 4, 3),
            np.repeat(np.tri(3, 5, 2, dtype=np.float32)[None], 4, 0),
        ),
        (P("data"),) * 6,
        group_policy_reference,
        ("kl = jnp.exp(reference - logp) - (reference", "kl = jnp.exp(logp - reference) - (reference"),
        ("rewards.mean(1, keepdims=True)", "rewards.mean(0, keepdims=True)"),
        ("jnp.mean(per_token.sum(-1) / live.sum(-1))", "jnp.mean(per_token.mean(-1))"),
    ),
    typed(
        rendered,
        (normal(0, 4, 5), normal(1, 4, 5, 3), np.sort(uniform(2, 4, 5), 1)),
        (ROWS, CUBE, ROWS),
        rendered_reference,
        ("jnp.concatenate([jnp.ones_like(clear[:, :1]), clear[:, :-1]], axis=-1)", "clear"),
        ("return image + (1.0 - weights.sum(-1, keepdims=True)),", "return image + weights.sum(-1, keepdims=True),"),
    ),
    typed(
        muon,
        (normal(0, 2, 4, 3), normal(1, 2, 4, 3), normal(2, 2, 4, 3)),
        (CUBE, CUBE, CUBE),
        muon_reference,
        ("u = g + 0.95 * m", "u = m"),
        ("max(1.0, w.shape[1] / w.shape[2])", "max(1.0, w.shape[2] / w.shape[1])"),
        ("keepdims=True) + 1e-7)", "keepdims=True) ** 2 + 1e-7)"),
    ),
    typed(
        self_distilled,
        (normal(0, 2, 4, 5), normal(1, 2, 4, 5), normal(2, 5)),
        (P(None, "data", None), P(None, "data", None), R),
        self_distilled_reference,
        ("jax.nn.softmax((teacher - center) / 0.4, axis=-1)", "jax.nn.softmax(teacher / 0.4 - center, axis=-1)"),
        ("return loss / 2, 0.9", "return loss, 0.9"),
    ),
    typed(
        redundancy,
        (normal(0, 8, 3), normal(1, 8, 3)),
        (ROWS, ROWS),
        redundancy_reference,
        ("off = jnp.sum(c**2) - jnp.sum(jnp.diagonal(c) ** 2)", "off = jnp.sum(c**2)"),
        ("b = (b - b.mean(0)) / (b.std(0) + 1e-5)", "b = (b - b.mean(0)) / (a.std(0) + 1e-5)"),
    ),
    mapped(
        striped,
        (normal(0, 12, 4), normal(1, 12, 4), normal(2, 12, 4)),
        (X, X, X),
        X,
        striped_reference,
        ("owner = (me - s) % N", "owner = (me + s) % N"),
        ("jnp.arange(n) * N + me, jnp.arange(n) * N + owner", "jnp.arange(n) + me * n, jnp.arange(n) + owner * n"),
        ('lax.ppermute(v, "x", right)', "v"),
    ),
    mapped(
        microbatched,
        (normal(0, 4, 3, 3), normal(1, 5, 2, 3)),
        (X, R),
        R,
        microbatched_reference,
        ("jnp.arange(m + N - 1)", "jnp.arange(m + N - 2)"),
        ("at = t - (N - 1)", "at = t - N"),
        ("return lax.psum(jnp.where(me == N - 1, done, 0.0)", "return lax.psum(jnp.where(me == 0, done, 0.0)"),
    ),
    mapped(
        cholesky_qr,
        (normal(0, 12, 3),),
        X,
        (X, R),
        cholesky_qr_reference,
        ('gram = lax.psum(q.T @ q, "x")', "gram = q.T @ q"),
        ("r = low.T @ r", "r = low @ r"),
    ),
    mapped(
        four_step,
        (normal(0, 8, 4).astype(np.complex64) + 1j * normal(1, 8, 4),),
        X,
        X,
        four_step_reference,
        ("jnp.exp(-2j * jnp.pi", "jnp.exp(2j * jnp.pi"),
        ('mine = lax.axis_index("x") * (columns // N) + jnp', 'mine = lax.axis_index("x") * columns + jnp'),
    ),
    mapped(
        lattice,
        (uniform(0, 3, 12),),
        ROW,
        ROW,
        lattice_reference,
        ('lax.ppermute(f[2, :1], "x", [(i, (i - 1) % N)', 'lax.ppermute(f[2, :1], "x", [(i, (i + 1) % N)'),
        ("f = f - (f - equal) / 0.8", "f = f - (f - equal) * 0.8"),
    ),
    mapped(
        expert_choice,
        (normal(0, 6, 4), normal(1, 4, 4), normal(2, 4, 4, 5), normal(3, 4, 5, 4)),
        (R, R, X, X),
        R,
        expert_choice_reference,
        ("scores = jax.nn.softmax(x @ gate, axis=-1)", "scores = jax.nn.softmax(x @ gate, axis=0)"),
        (".add(weight[:, None] * done)", ".add(done)"),
    ),
    mapped(
        outer_step,
        (normal(0, 3, 2), normal(1, 3, 2), normal(2, 3, 8, 3), normal(3, 3, 8, 2)),
        (R, R, P(None, "x"), P(None, "x")),
        R,
        outer_step_reference,
        ('delta = lax.pmean(w - local, "x")', 'delta = lax.psum(w - local, "x")'),
        ('delta = lax.pmean(w - local, "x")', 'delta = lax.pmean(local - w, "x")'),
        ("return w - 0.7 * (delta + 0.9 * m), m", "return w - 0.7 * m, m"),
    ),
    mapped(
        power_compressed,
        (normal(0, 4, 5, 4), normal(1, 4, 5, 4), normal(2, 4, 2)),
        (X, X, R),
        (R, X, R),
        power_compressed_reference,
        ("m = g[0] + error[0]", "m = g[0]"),
        ('q = lax.pmean(m.T @ p, "x")', "q = m.T @ p"),
        ("return approx, (m - approx)[None], q", "return approx, (g[0] - approx)[None], q"),
    ),
    mapped(
        page_rank,
        (
            np.random.default_rng(0).integers(0, 2, (8, 8)).astype(np.float32) * (np.arange(8) != 5),
            np.full(8, 0.125, np.float32) + 0.01 * np.arange(-3.5, 4, dtype=np.float32),
        ),
        (ROW, X),
        X,
        page_rank_reference,
        ("out = links.sum(0)", "out = links.sum(1)[: rank.shape[0]]"),
        (
            'dangling = lax.psum(jnp.sum(jnp.where(out > 0, 0.0, rank)), "x")',
            "dangling = jnp.sum(jnp.where(out > 0, 0.0, rank))",
        ),
    ),
    mapped(
        lanczos,
        ((lambda a: a + a.T)(normal(0, 8, 8)), normal(1, 8)),
        (X, X),
        R,
        lanczos_reference,
        ("u = u - alpha * v - beta * last", "u = u - alpha * v"),
        ("last, v = v, u / beta", "last, v = u, u / beta"),
    ),
    mapped(
        running_logsum,
        (normal(0, 12, 3),),
        X,
        X,
        running_logsum_reference,
        ('< lax.axis_index("x"), every', '<= lax.axis_index("x"), every'),
        ("carried = jnp.log(jnp.exp(before - top).sum(0)) + top", "carried = jnp.log(jnp.exp(before - top).sum(0))"),
    ),
    mapped(
        hybrid_step,
        (normal(0, 3, 4), normal(1, 4, 2), normal(2, 8, 3), normal(3, 8, 2)),
        (P(None, "tp"), P("tp"), P("dp"), P("dp")),
        (P(None, "tp"), P("tp"), R),
        hybrid_step_reference,
        ('g2 = lax.psum(a.T @ err, "dp")', 'g2 = lax.psum(a.T @ err, "tp")'),
        ('count = lax.psum(x.shape[0], "dp")', "count = x.shape[0]"),
        ('jnp.sqrt(lax.psum(jnp.sum(g1**2) + jnp.sum(g2**2), "tp"))', "jnp.sqrt(jnp.sum(g1**2) + jnp.sum(g2**2))"),
        over=grid,
    ),
    mapped(
        weighted_bound,
        (normal(0, 3, 4), normal(1, 2), normal(2, 3, 2), normal(3, 8, 3, 2)),
        (R, R, R, X),
        R,
        weighted_bound_reference,
        ("jnp.log(total) + top - jnp.log(N * eps.shape[0])", "jnp.log(total) + top - jnp.log(eps.shape[0])"),
        ("jnp.sum(-0.5 * eps**2 - logs, axis=-1)", "jnp.sum(-0.5 * eps**2 + logs, axis=-1)"),
        ('top = lax.pmax(ratio.max(0), "x")', "top = ratio.max(0)"),
    ),
    mapped(
        merged_moments,
        (normal(0, 16, 3) + 2, (np.arange(16) % 5 != 2).astype(np.float32)),
        (X, X),
        R,
        merged_moments_reference,
        ("whole = (counts[:, None] * means).sum(0) / total", "whole = means.mean(0)"),
        ("return whole, spread / (total - 1.0)", "return whole, spread / (x.shape[0] * N - 1.0)"),
    ),
    mapped(
        convolved_graph,
        (normal(0, 5, 3), ints(1, 5, 12), ints(2, 5, 12), normal(3, 3, 4)),
        (R, X, X, R),
        R,
        convolved_graph_reference,
        ("jax.ops.segment_sum(h[senders], receivers, n)", "jax.ops.segment_sum(h[receivers], senders, n)"),
        (
            'into = lax.psum(jax.ops.segment_sum(ones, receivers, n), "x")',
            "into = jax.ops.segment_sum(ones, receivers, n)",
        ),
    ),
    mapped(
        sequence_to_heads,
        (normal(0, 2, 8, 6), normal(1, 6, 16), normal(2, 6, 16), normal(3, 6, 16), normal(4, 16, 6)),
        (P(None, "x"), R, R, R, R),
        P(None, "x"),
        sequence_to_heads_reference,
        ("y.reshape(b, t, N, heads // N, 4)", "y.reshape(b, t, heads // N, N, 4).swapaxes(2, 3)[..., ::-1]"),
        (
            "q, k, v = split(x @ wq), split(x @ wk), split(x @ wv)",
            "q, k, v = split(x @ wq), split(x @ wk), split(x @ wk)",
        ),
    ),
    mapped(
        accumulated_shards,
        (normal(0, 8, 3), normal(1, 3, 8, 8), normal(2, 3, 8, 3)),
        (X, P(None, "x"), P(None, "x")),
        (X, R),
        accumulated_shards_reference,
        ("tiled=True) / (N * count)", "tiled=True) / count"),
        ('return w - rate * grad, lax.pmean(loss, "x") / count', 'return w - rate * grad, lax.pmean(loss, "x")'),
        ("(total[0] + loss, total[1] + grad), None", "(total[0] + loss, grad), None"),
    ),
    mapped(
        threshold,
        (normal(0, 16),),
        X,
        (X, R),
        threshold_reference,
        ("wanted = share * N * x.size", "wanted = share * x.size"),
        ('above = lax.psum(jnp.sum(x > middle), "x")', 'above = lax.pmean(jnp.sum(x > middle), "x")'),
        ("jnp.where(above > wanted, high, middle)", "jnp.where(above > wanted, middle, high)"),
    ),
)
