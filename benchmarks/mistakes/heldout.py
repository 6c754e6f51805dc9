"""Attention, rings, pipelines, layers and optimizers that were kept back while the rules were written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
N = 4
ring = AbstractMesh((N,), ("x",), axis_types=(AxisType.Auto,))
grid = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
D = 8
X, R = P("x"), P()


def gqa(x, wq, wk, wv, wo):
    """Grouped-query attention, explicit; x: [B, T, D]."""
    b, t, _ = x.shape
    q = jnp.einsum("btd,dhk->bthk", x, wq, out_sharding=P("data", None, "model", None))
    k = jnp.einsum("btd,dhk->bthk", x, wk, out_sharding=P("data", None, "model", None))
    v = jnp.einsum("btd,dhk->bthk", x, wv, out_sharding=P("data", None, "model", None))
    q = q.reshape(b, t, 2, 2, -1)
    s = jnp.einsum("bqhgk,bthk->bhgqt", q, k) / jnp.sqrt(q.shape[-1])
    pos = jnp.arange(t)
    s = jnp.where(pos[:, None] >= pos[None, :], s, -1e30)
    a = jax.nn.softmax(s, axis=-1)
    o = jnp.einsum("bhgqt,bthk->bqhgk", a, v)
    o = o.reshape(b, t, 4, -1)
    return jnp.einsum("bthk,hkd->btd", o, wo, out_sharding=P("data", None, None))


def gqa_reference(x, wq, wk, wv, wo):
    q = jnp.einsum("btd,dhk->bhtk", x, wq)
    k = jnp.repeat(jnp.einsum("btd,dhk->bhtk", x, wk), 2, axis=1)
    v = jnp.repeat(jnp.einsum("btd,dhk->bhtk", x, wv), 2, axis=1)
    s = q @ jnp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    return jnp.einsum("bhtk,hkd->btd", jax.nn.softmax(s) @ v, wo)


def allgather_matmul(x, w):
    """x: [rows/N, D] on each device, w: [D, cols/N]; a ring of x."""
    i = lax.axis_index("x")
    rows = x.shape[0]
    out = lax.pcast(jnp.zeros((rows * N, w.shape[1]), x.dtype), "x", to="varying")

    def step(k, carry):
        out, x = carry
        src = (i - k) % N
        out = lax.dynamic_update_slice(out, x @ w, (src * rows, 0))
        x = lax.ppermute(x, "x", [(j, (j + 1) % N) for j in range(N)])
        return out, x

    out, _ = lax.fori_loop(0, N, step, (out, x))
    return out


def allgather_matmul_reference(x, w):
    return x @ w


def fsdp_step(w1, w2, m1, m2, x, y):
    """A momentum step; weights are sharded by rows."""

    def loss(w1, w2):
        f1 = lax.all_gather(w1, "x", axis=0, tiled=True)
        f2 = lax.all_gather(w2, "x", axis=0, tiled=True)
        h = jax.nn.silu(x @ f1)
        err = h @ f2 - y
        return 0.5 * jnp.mean(jnp.sum(err**2, axis=-1))

    g1, g2 = jax.grad(loss, argnums=(0, 1))(w1, w2)
    g1 = g1 / N
    g2 = g2 / N
    m1 = 0.9 * m1 + g1
    m2 = 0.9 * m2 + g2
    return w1 - 0.1 * m1, w2 - 0.1 * m2, m1, m2


def fsdp_step_reference(w1, w2, m1, m2, x, y):
    def loss(w1, w2):
        err = jax.nn.silu(x @ w1) @ w2 - y
        return 0.5 * jnp.mean(jnp.sum(err * err, axis=1))

    g1, g2 = jax.grad(loss, argnums=(0, 1))(w1, w2)
    n1, n2 = m1 * 0.9 + g1, m2 * 0.9 + g2
    return w1 - 0.1 * n1, w2 - 0.1 * n2, n1, n2


def halo_conv(x, w):
    """x: [T/N, D], w: [3, D, D]; a causal convolution."""
    last = lax.ppermute(x[-2:], "x", [(j, j + 1) for j in range(N - 1)])
    full = jnp.concatenate([last, x], axis=0)
    t = x.shape[0]
    y = sum(full[k : k + t] @ w[k] for k in range(3))
    return jax.nn.relu(y) + x


def halo_conv_reference(x, w):
    padded = jnp.pad(x, ((2, 0), (0, 0)))
    y = sum(padded[k : k + x.shape[0]] @ w[k] for k in range(3))
    return jnp.maximum(y, 0) + x


def flash_decode(q, k, v):
    """q: [H, K], k, v: [T/N, H, K]; combines with logsumexp."""
    s = jnp.einsum("hk,thk->ht", q, k) * q.shape[-1] ** -0.5
    m = s.max(-1)
    p = jnp.exp(s - m[:, None])
    l = p.sum(-1)  # noqa: E741
    o = jnp.einsum("ht,thk->hk", p, v)
    top = lax.pmax(m, "x")
    scale = jnp.exp(m - top)
    num = lax.psum(o * scale[:, None], "x")
    den = lax.psum(l * scale, "x")
    return num / den[:, None]


def flash_decode_reference(q, k, v):
    s = jnp.einsum("hk,thk->ht", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("ht,thk->hk", jax.nn.softmax(s, -1), v)


def pipeline(x, w):
    """GPipe; x: [M, B, D] microbatches on all, w: [1, D, D] a stage."""
    i = lax.axis_index("x")
    m = x.shape[0]
    w = w[0]
    state = lax.pcast(jnp.zeros(x.shape[1:]), "x", to="varying")
    outs = lax.pcast(jnp.zeros(x.shape), "x", to="varying")

    def tick(carry, t):
        state, outs = carry
        inp = x[jnp.minimum(t, m - 1)]
        state = jnp.where(i == 0, inp, state)
        y = jnp.tanh(state @ w)
        slot = t - (N - 1)
        done = (i == N - 1) & (slot >= 0)
        outs = jnp.where(done, outs.at[jnp.maximum(slot, 0)].set(y), outs)
        state = lax.ppermute(y, "x", [(j, (j + 1) % N) for j in range(N)])
        return (state, outs), None

    (_, outs), _ = lax.scan(tick, (state, outs), jnp.arange(m + N - 1))
    return lax.psum(jnp.where(i == N - 1, outs, 0.0), "x")


def pipeline_reference(x, w):
    for k in range(N):
        x = jnp.tanh(x @ w[k])
    return x


def batchnorm_block(x, scale, shift, w):
    """Explicit; x: [B, D] over data."""
    mu = jnp.mean(x, axis=0)
    var = jnp.mean((x - mu) ** 2, axis=0)
    z = (x - mu) / jnp.sqrt(var + 1e-3)
    z = z * scale + shift
    h = jax.nn.relu(z)
    out = jnp.dot(h, w, out_sharding=P("data", None))
    return x + out, mu


def batchnorm_block_reference(x, scale, shift, w):
    z = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3) * scale + shift
    return x + jax.nn.relu(z) @ w, x.mean(0)


def lora(x, w, a, b):
    """Explicit; tensor parallel with a low-rank update."""
    base = jnp.dot(x, w, out_sharding=P("data", "model"))
    low = jnp.dot(x, a, out_sharding=P("data", None))
    delta = jnp.dot(low, b, out_sharding=P("data", "model"))
    y = base + (16.0 / a.shape[1]) * delta
    g = jax.nn.gelu(y)
    norm = jnp.sqrt(jnp.sum(g * g, axis=-1, keepdims=True) + 1e-6)
    return g / norm


def lora_reference(x, w, a, b):
    g = jax.nn.gelu(x @ (w + 16.0 / a.shape[1] * (a @ b)))
    return g * lax.rsqrt((g**2).sum(1, keepdims=True) + 1e-6)


def contrastive(u, v, t):
    """CLIP's loss over devices; u, v: [B/N, D]."""
    u = u / jnp.linalg.norm(u, axis=-1, keepdims=True)
    v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
    every = lax.all_gather(v, "x", tiled=True)
    logits = u @ every.T * jnp.exp(t)
    i = lax.axis_index("x")
    labels = i * u.shape[0] + jnp.arange(u.shape[0])
    lse = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return lax.pmean(jnp.mean(lse - picked), "x")


def contrastive_reference(u, v, t):
    u = u / jnp.sqrt((u**2).sum(-1, keepdims=True))
    v = v / jnp.sqrt((v**2).sum(-1, keepdims=True))
    logits = jnp.exp(t) * u @ v.T
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits, axis=1)))


def moe_all_to_all(x, router, up, down):
    """Top-1 with one slot for each token; x: [T/N, D], up: [1, D, F]."""
    t = x.shape[0]
    logits = x @ router
    gate = jax.nn.softmax(logits, axis=-1)
    chosen = jnp.argmax(logits, axis=-1)
    hot = jax.nn.one_hot(chosen, N)
    send = jnp.einsum("te,td->etd", hot, x)
    got = lax.all_to_all(send, "x", split_axis=0, concat_axis=0)
    h = jax.nn.relu(got.reshape(N * t, -1) @ up[0])
    y = (h @ down[0]).reshape(N, t, -1)
    back = lax.all_to_all(y, "x", split_axis=0, concat_axis=0)
    weight = jnp.sum(gate * hot, axis=-1)
    return jnp.sum(back, axis=0) * weight[:, None]


def moe_all_to_all_reference(x, router, up, down):
    g = jax.nn.softmax(x @ router)
    e = jnp.argmax(g, -1)
    y = jnp.einsum("tf,tfd->td", jax.nn.relu(jnp.einsum("td,tdf->tf", x, up[e])), down[e])
    return y * jnp.max(g, -1)[:, None]


def dropout_mlp(x, w1, w2, seed):
    """Explicit, with a bare constraint; dropout from a key."""
    h = jnp.tanh(jnp.dot(x, w1, out_sharding=P("data", "model")))
    key = jax.random.key(seed)
    u = jax.random.uniform(key, h.shape, out_sharding=P("data", "model"))
    h = jnp.where(u < 0.75, h / 0.75, 0.0)
    y = jnp.dot(h, w2, out_sharding=P("data", None))
    return y - jnp.mean(y, axis=-1, keepdims=True)


def dropout_mlp_reference(x, w1, w2, seed):
    h = jnp.tanh(x @ w1)
    u = jax.random.uniform(jax.random.key(seed), h.shape)
    y = (h * (u < 0.75) / 0.75) @ w2
    return y - y.mean(1, keepdims=True)


def lion(params, m, g):
    """Lion's update on a dict, explicit."""
    new_p, new_m = {}, {}
    for name in params:
        u = jnp.sign(0.9 * m[name] + 0.1 * g[name])
        new_p[name] = params[name] - 0.01 * (u + 0.1 * params[name])
        new_m[name] = 0.99 * m[name] + 0.01 * g[name]
    return new_p, new_m


def lion_reference(params, m, g):
    def updated(p, m, g):
        return p - 0.01 * (jnp.sign(m * 0.9 + g * 0.1) + 0.1 * p), m * 0.99 + g * 0.01

    both = {k: updated(params[k], m[k], g[k]) for k in params}
    return {k: v[0] for k, v in both.items()}, {k: v[1] for k, v in both.items()}


H = P(None, "model", None)
GS = (P("data", None, None), H, H, H, P("model", None, None))
TREE = {"a": P("data", "model"), "b": P("model")}


def tree(s):
    return {"a": normal(s, 4, D), "b": normal(s + 1, D)}


CASES = (
    Case(gqa, (normal(0, 4, 5, D), normal(1, D, 4, 4) / 2, normal(2, D, 2, 4) / 2, normal(3, D, 2, 4),
               normal(4, 4, 4, D)), mesh, GS, None, gqa_reference, (
        ("pos[:, None] >= pos[None, :]", "pos[:, None] > pos[None, :]"),
        ("jnp.sqrt(q.shape[-1])", "jnp.sqrt(q.shape[-2])"),
        ('o = jnp.einsum("bhgqt,bthk->bqhgk", a, v)', 'o = jnp.einsum("bhgqt,bthk->bqhgk", a, k)'),
    ), jitted=True, setting=True),
    Case(allgather_matmul, (normal(0, 8, D), normal(1, D, 12)), ring, (X, P(None, "x")), P(None, "x"),
         allgather_matmul_reference, (
        ("src = (i - k) % N", "src = (i + k) % N"),
        ("(src * rows, 0)", "(src, 0)"),
        ("[(j, (j + 1) % N) for j in range(N)]", "[(j, (j - 1) % N) for j in range(N)]"),
    )),
    Case(fsdp_step, (normal(0, D, 12) / 3, normal(1, 12, 4) / 3, normal(2, D, 12), normal(3, 12, 4), normal(4, 8, D),
                     normal(5, 8, 4)), ring, (X, X, X, X, X, X), (X, X, X, X), fsdp_step_reference, (
        ("g1 = g1 / N", "g1 = g1"),
        ("m2 = 0.9 * m2 + g2", "m2 = 0.9 * m2 + 0.1 * g2"),
        ("return w1 - 0.1 * m1, w2 - 0.1 * m2, m1, m2", "return w1 - 0.1 * g1, w2 - 0.1 * m2, m1, m2"),
    )),
    Case(halo_conv, (normal(0, 12, D), normal(1, 3, D, D) / 3), ring, (X, R), X, halo_conv_reference, (
        ("[(j, j + 1) for j in range(N - 1)]", "[(j, (j + 1) % N) for j in range(N)]"),
        ("x[-2:]", "x[:2]"),
        ("full = jnp.concatenate([last, x], axis=0)", "full = jnp.concatenate([x, last], axis=0)"),
    )),
    Case(flash_decode, (normal(0, 2, 4), normal(1, 12, 2, 4), normal(2, 12, 2, 4)), ring, (R, X, X), R,
         flash_decode_reference, (
        ("scale = jnp.exp(m - top)", "scale = jnp.exp(top - m)"),
        ('den = lax.psum(l * scale, "x")', 'den = lax.psum(l, "x")'),
        ('num = lax.psum(o * scale[:, None], "x")', 'num = lax.pmean(o * scale[:, None], "x")'),
    )),
    Case(pipeline, (normal(0, 3, 2, D), normal(1, N, D, D) / 2), ring, (R, X), R, pipeline_reference, (
        ("slot = t - (N - 1)", "slot = t - N"),
        ("jnp.arange(m + N - 1)", "jnp.arange(m + N - 2)"),
        ("state = jnp.where(i == 0, inp, state)", "state = jnp.where(i == 1, inp, state)"),
    )),
    Case(batchnorm_block, (normal(0, 8, D), normal(1, D), normal(2, D), normal(3, D, D) / 2), mesh,
         (P("data", None), P(), P(), P(None, "model")), None, batchnorm_block_reference, (
        ("var = jnp.mean((x - mu) ** 2, axis=0)", "var = jnp.mean((x - mu) ** 2, axis=1, keepdims=True)"),
        ("z = z * scale + shift", "z = z * shift + scale"),
        ("return x + out, mu", "return z + out, mu"),
    ), jitted=True, setting=True),
    Case(lora, (normal(0, 4, D), normal(1, D, 12) / 3, normal(2, D, 2), normal(3, 2, 12)), mesh,
         (P("data", None), P(None, "model"), P(None, None), P(None, "model")), None, lora_reference, (
        ("(16.0 / a.shape[1])", "(16.0 / a.shape[0])"),
        ("norm = jnp.sqrt(jnp.sum(g * g, axis=-1, keepdims=True) + 1e-6)",
         "norm = jnp.sqrt(jnp.sum(g * g, axis=0, keepdims=True) + 1e-6)"),
        ("return g / norm", "return y / norm"),
    ), jitted=True, setting=True),
    Case(contrastive, (normal(0, 8, D), normal(1, 8, D), np.float32(1.0)), ring, (X, X, R), R, contrastive_reference, (
        ("labels = i * u.shape[0] + jnp.arange(u.shape[0])", "labels = jnp.arange(u.shape[0])"),
        ("lax.pmean(jnp.mean(lse - picked)", "lax.psum(jnp.mean(lse - picked)"),
        ("lse = jax.nn.logsumexp(logits, axis=-1)", "lse = jnp.max(logits, axis=-1)"),
    )),
    Case(moe_all_to_all, (normal(0, 8, D), normal(1, D, N), normal(2, N, D, 6), normal(3, N, 6, D)), ring,
         (X, R, X, X), X, moe_all_to_all_reference, (
        ("weight = jnp.sum(gate * hot, axis=-1)", "weight = jnp.sum(gate, axis=-1)"),
        ("h = jax.nn.relu(got.reshape(N * t, -1) @ up[0])", "h = got.reshape(N * t, -1) @ up[0]"),
        ('back = lax.all_to_all(y, "x", split_axis=0, concat_axis=0)', "back = y"),
    )),
    Case(dropout_mlp, (normal(0, 4, D), normal(1, D, 12) / 2, normal(2, 12, D), np.int32(3)), mesh,
         (P("data", None), P(None, "model"), P("model", None), P()), None, dropout_mlp_reference, (
        ("jnp.where(u < 0.75, h / 0.75, 0.0)", "jnp.where(u < 0.75, h, 0.0)"),
        ("return y - jnp.mean(y, axis=-1, keepdims=True)", "return y - jnp.mean(y, axis=0, keepdims=True)"),
        ("key = jax.random.key(seed)", "key = jax.random.fold_in(jax.random.key(seed), 1)"),
    ), jitted=True, setting=True),
    Case(lion, (tree(0), tree(2), tree(4)), mesh, (TREE, TREE, TREE), None, lion_reference, (
        ("u = jnp.sign(0.9 * m[name] + 0.1 * g[name])", "u = jnp.sign(0.1 * m[name] + 0.9 * g[name])"),
        ("0.01 * (u + 0.1 * params[name])", "0.01 * (u - 0.1 * params[name])"),
        ("new_m[name] = 0.99 * m[name] + 0.01 * g[name]", "new_m[name] = 0.99 * m[name] + 0.01 * u"),
    ), jitted=True, setting=True),
)  # fmt: skip
