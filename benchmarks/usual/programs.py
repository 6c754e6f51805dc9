"""Functions as people write them: layers, attention, experts, convolutions, scans, optimizers, losses, quantization."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

f32, bf16, f16 = jnp.float32, jnp.bfloat16, jnp.float16


def ln(x, g):
    m = x.mean(-1, keepdims=True)
    d = x - m
    return d * lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-3) * g


def rms(x, g):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-3) * g


def ln_mlp(x, w, v, b, g):
    return x + jax.nn.gelu(ln(x, g) @ w + b) @ v


def ln_mlp_grad(x, w, v, b, g):
    return jax.grad(lambda w, v: (ln_mlp(x, w, v, b, g) ** 2).mean(), (0, 1))(w, v)


def swiglu(x, w, w2, v):
    return (jax.nn.silu(x @ w) * (x @ w2)) @ v


def geglu_exact(x, w, w2, v):
    return (jax.nn.gelu(x @ w, approximate=False) * (x @ w2)) @ v


def relu2(x, w, v):
    return jnp.square(jax.nn.relu(x @ w)) @ v


def mixer(x, u, w, v):
    y = x + (u @ x.reshape(2, 8, 8)).reshape(16, 8)
    return y + jax.nn.gelu(y @ w) @ v


def mha(q, k, z):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), z)


def causal(q, k, z):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), s, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), z)


def alibi(q, k, z):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    i = jnp.arange(8)
    s = s - 2.0 ** -jnp.arange(1, 5)[:, None, None] * jnp.abs(i[:, None] - i)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), z)


def window(q, k, z):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    i = jnp.arange(8)
    d = i[:, None] - i
    s = jnp.where((d >= 0) & (d < 3), s, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), z)


def sink(q, k, z):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    m = s.max(-1, keepdims=True)
    e = jnp.exp(s - m)
    return jnp.einsum("bhqk,bkhd->bqhd", e / (e.sum(-1, keepdims=True) + jnp.exp(-m)), z)


def qknorm(q, k, z):
    def n(a):
        return a / jnp.sqrt((a * a).sum(-1, keepdims=True) + 1e-3)

    s = 4.0 * jnp.einsum("bqhd,bkhd->bhqk", n(q), n(k))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), z)


def mqa(q, k, z):
    k, z = k[:, :, :1], z[:, :, :1]
    s = jnp.einsum("bqhd,bkgd->bhqk", q, k) * 0.5
    return jnp.einsum("bhqk,bkgd->bqhd", jax.nn.softmax(s), z)


def linear_attention(q, k, z):
    def f(a):
        return jax.nn.elu(a) + 1

    kv = jnp.einsum("bkhd,bkhe->bhde", f(k), z)
    n = jnp.einsum("bqhd,bhd->bqh", f(q), f(k).sum(1))
    return jnp.einsum("bqhd,bhde->bqhe", f(q), kv) / n[..., None]


def attention_grad(q, k, z):
    return jax.grad(lambda q: (causal(q, k, z) ** 2).sum())(q)


def softcapped(q, k, z):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    s = 5.0 * jnp.tanh(s / 5.0)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), z)


def moe_dense(x, u, e):
    p = jax.nn.softmax(x @ u[:, :4])
    return jnp.einsum("te,td,edf->tf", p, x, e)


def moe_top2(x, u, e):
    logits = x @ u[:, :4]
    t, i = lax.top_k(logits, 2)
    p = jax.nn.softmax(t)
    return jnp.einsum("tk,tke,td,edf->tf", p, jax.nn.one_hot(i, 4, dtype=x.dtype), x, e)


def moe_balance(x, u):
    p = jax.nn.softmax(x @ u[:, :4])
    f = jax.nn.one_hot(p.argmax(-1), 4, dtype=x.dtype).mean(0)
    return 4 * (f * p.mean(0)).sum() + 1e-3 * jnp.square(jax.nn.logsumexp(x @ u[:, :4], -1)).mean()


def conv_block(m, c):
    y = lax.conv_general_dilated(m, c, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y).mean((1, 2))


def conv_stride(m, c):
    return lax.conv_general_dilated(m, c, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(m):
    mu = m.mean((0, 1, 2))
    va = ((m - mu) ** 2).mean((0, 1, 2))
    return (m - mu) / jnp.sqrt(va + 1e-3)


def group_norm(m):
    z = m.reshape(4, 64, 2, 2)
    mu = z.mean((1, 3), keepdims=True)
    va = z.var((1, 3), keepdims=True)
    return ((z - mu) * lax.rsqrt(va + 1e-3)).reshape(m.shape)


def avg_pool(m):
    return lax.reduce_window(m, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def depthwise(x, g):
    p = jnp.pad(x, ((2, 0), (0, 0)))
    return sum(p[j : j + 16] * g[j] for j in range(3))


def s4d(x, g):
    a = jnp.exp(-jax.nn.softplus(g))
    return lax.scan(lambda h, v: ((a * h + v), a * h + v), jnp.zeros(8, x.dtype), x)[1]


def selective(x, u):
    d = jax.nn.softplus(x @ u)
    return lax.scan(lambda h, t: (jnp.exp(-t[0]) * h + t[0] * t[1],) * 2, jnp.zeros(8, x.dtype), (d, x))[1]


def gru(x, u, u2):
    def s(h, v):
        z = jax.nn.sigmoid(v @ u + h @ u2)
        n = jnp.tanh(v @ u2 + h @ u)
        h = (1 - z) * n + z * h
        return h, h

    return lax.scan(s, jnp.zeros(8, x.dtype), x)[1]


def lru(x, g):
    a = jnp.exp(-jnp.exp(g) * 0.1)
    return lax.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]),
        (jnp.broadcast_to(a, x.shape), x * jnp.sqrt(1 - a * a)),
    )[1]


def retention(x):
    i = jnp.arange(16)
    d = jnp.where(i[:, None] >= i, 0.9 ** (i[:, None] - i).astype(x.dtype), 0)
    return (d * (x @ x.T)) @ x


def adam(u, u2, p1, p2):
    m = 0.9 * p1 + 0.1 * u2
    v = 0.999 * p2**2 + 0.001 * u2**2
    return u - 1e-2 * (m / (1 - 0.9**3)) / (jnp.sqrt(v / (1 - 0.999**3)) + 1e-3)


def adamw(u, u2, p1, p2):
    m = 0.9 * p1 + 0.1 * u2
    v = 0.99 * p2**2 + 0.01 * u2**2
    return u - 1e-2 * (m / (jnp.sqrt(v) + 1e-3) + 0.1 * u), m, v


def lion(u, u2, p1):
    return u - 1e-2 * (jnp.sign(0.9 * p1 + 0.1 * u2) + 0.1 * u), 0.99 * p1 + 0.01 * u2


def muon(u2):
    a = u2 / (jnp.sqrt((u2 * u2).sum()) + 1e-3)
    for _ in range(4):
        s = a @ a.T
        a = 1.5 * a - 0.5 * s @ a
    return a


def shampoo(u2):
    gram = u2 @ u2.T + 0.5 * jnp.eye(8, dtype=u2.dtype)
    e, q = jnp.linalg.eigh(gram.astype(f32))
    return ((q * e**-0.25) @ q.T) @ u2.astype(f32)


def adagrad(u, u2, p2):
    return u - 1e-1 * u2 * lax.rsqrt(p2**2 + u2**2 + 1e-3)


def momentum(u, u2, p1):
    m = 0.9 * p1 + u2
    return u - 1e-1 * (u2 + 0.9 * m)


def clipped(u, u2):
    n = jnp.sqrt((u2 * u2).sum())
    return u - 0.1 * u2 * jnp.minimum(1.0, 1.0 / (n + 1e-3))


def nll(x, w):
    logits = jax.nn.log_softmax(x @ w)
    return -logits[jnp.arange(16), jnp.arange(16) * 3 % 16].mean()


def smoothed(x, w):
    logits = jax.nn.log_softmax(x @ w)
    h = jax.nn.one_hot(jnp.arange(16) % 16, 16, dtype=x.dtype)
    return -((0.9 * h + 0.1 / 16) * logits).sum(-1).mean()


def z_loss(x, w):
    logits = x @ w
    z = jax.nn.logsumexp(logits, -1)
    return (z - logits[:, 3]).mean() + 1e-2 * (z * z).mean()


def kl(x, y):
    p, q = jax.nn.log_softmax(x), jax.nn.log_softmax(y)
    return (jnp.exp(p) * (p - q)).sum(-1).mean()


def dpo(x, y):
    a = jax.nn.log_softmax(x)[:, 0] - jax.nn.log_softmax(y)[:, 0]
    return -jax.nn.log_sigmoid(0.3 * a).mean()


def ppo(x, y):
    r = jnp.exp(0.2 * (x - y))
    return jnp.minimum(r * y, jnp.clip(r, 0.8, 1.2) * y).mean()


def info_nce(x, y):
    def n(a):
        return a / jnp.sqrt((a * a).sum(-1, keepdims=True) + 1e-3)

    logits = n(x) @ n(y).T / 0.2
    return -(jnp.diag(jax.nn.log_softmax(logits)) + jnp.diag(jax.nn.log_softmax(logits.T))).mean() / 2


def vae(x, y):
    return 0.5 * (jnp.exp(x) + y * y - 1 - x).sum(-1).mean()


def focal(x):
    p = jax.nn.sigmoid(x)
    return -((1 - p) ** 2 * jnp.log(p + 1e-3)).mean()


def nce_grad(x, w):
    return jax.value_and_grad(nll, 1)(x, w)


def scaled_fp16(x, u):
    g = jax.grad(lambda u: 256.0 * ((x.astype(f16) @ u.astype(f16)).astype(f32) ** 2).mean())(u)
    return g / 256.0


def accumulated(x, u):
    g = jax.grad(lambda u, x: ((x @ u) ** 2).mean())
    return lax.scan(lambda a, v: (a + g(u, v) / 4, None), jnp.zeros_like(u), x.reshape(4, 4, 8))[0]


def remat(x, u):
    return jax.grad(lambda u: (jax.checkpoint(lambda h: jnp.tanh(h @ u))(jnp.tanh(x @ u)) ** 2).sum())(u)


def fft_conv(x, y):
    n = jnp.fft.rfft(x.astype(f32), 32, axis=0) * jnp.fft.rfft(y.astype(f32), 32, axis=0)
    return jnp.fft.irfft(n, 32, axis=0)[:16]


def spectrum(x):
    s = jnp.fft.fft2(x.astype(f32))
    return jnp.log1p(jnp.abs(s) ** 2)


def unitary(x, y):
    z = lax.complex(x.astype(f32), y.astype(f32))
    return (z @ z.conj().T) / 8, jnp.abs(z).sum()


def phases(x, y):
    z = jnp.exp(1j * x.astype(f32)) * y
    return z.real.sum(0), (z * z.conj()).real


def int8_product(x, u):
    s, t = jnp.abs(x).max(-1, keepdims=True) / 127, jnp.abs(u).max(0) / 127
    a, b = jnp.round(x / s).astype(jnp.int8), jnp.round(u / t).astype(jnp.int8)
    return lax.dot(a, b, preferred_element_type=jnp.int32).astype(f32) * s * t


def dequantized(x, u):
    s = jnp.abs(u).max() / 7
    return x @ (jnp.clip(jnp.round(u / s), -8, 7) * s)


def ema_norm(x, g):
    return lax.scan(lambda m, v: (0.9 * m + 0.1 * v * v, v * lax.rsqrt(m + 1e-3)), g * g, x)[1]


def fourier_features(x, u):
    a = x @ u
    return jnp.concatenate([jnp.sin(a), jnp.cos(a)], -1) / jnp.sqrt(8.0)


def timestep(g):
    f = jnp.exp(-jnp.log(100.0) * jnp.arange(4) / 4)
    a = g[:, None].astype(f32) * f
    return jnp.concatenate([jnp.cos(a), jnp.sin(a)], -1)


def ddim(x, y):
    a, b = 0.7, 0.8
    e = jnp.tanh(y)
    return jnp.sqrt(b) * (x - jnp.sqrt(1 - a) * e) / jnp.sqrt(a) + jnp.sqrt(1 - b) * e


def lora(x, u, u2):
    return x @ u + 0.5 * (x @ u2[:, :2]) @ u2[:2]


def rope_half(q):
    i = jnp.arange(8)[:, None, None]
    a = i * 0.5 ** jnp.arange(2)
    c, s = jnp.cos(a).astype(q.dtype), jnp.sin(a).astype(q.dtype)
    return jnp.concatenate([q[..., :2] * c - q[..., 2:] * s, q[..., 2:] * c + q[..., :2] * s], -1)


def by_hand(f, i, o):
    return jax.shard_map(
        f,
        mesh=jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2),
        in_specs=i,
        out_specs=o,
    )


def tp_mlp(x, w, v):
    return by_hand(
        lambda x, w, v: lax.psum(jax.nn.gelu(x @ w) @ v, "model"), (P("data"), P(None, "model"), P("model")), P("data")
    )(x, w, v)


def ref_mlp(x, w, v):
    return jax.nn.gelu(x @ w) @ v


def tp_loss(x, y):
    return by_hand(
        lambda x, y: lax.pmean(lax.pmean(((x - y) ** 2).mean(), "data"), "model"),
        (P("data", "model"), P("data", "model")),
        P(),
    )(x, y)


def ref_loss(x, y):
    return ((x - y) ** 2).mean()


def tp_norm(x):
    return by_hand(
        lambda x: x / jnp.sqrt(lax.psum((x * x).sum(), ("data", "model")) + 1e-3),
        (P("data", "model"),),
        P("data", "model"),
    )(x)


def ref_norm(x):
    return x / jnp.sqrt((x * x).sum() + 1e-3)


def tp_softmax(x):
    def f(x):
        m = lax.pmax(lax.stop_gradient(x.max(-1, keepdims=True)), "model")
        e = jnp.exp(x - m)
        return e / lax.psum(e.sum(-1, keepdims=True), "model")

    return by_hand(f, (P("data", "model"),), P("data", "model"))(x)


def ref_softmax(x):
    return jax.nn.softmax(x)
