"""Blocks of models, pipelines, losses and optimizers, half of them on Explicit meshes, with references and mistakes."""

# `jax.numpy.repeat` and `.at[].get` of JAX 0.10, which the type checker sees, have no `out_sharding`.
# pyright: reportCallIssue=false
from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.mistakes.case import Case, normal

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
N = 4
auto = AbstractMesh((N,), ("i",), axis_types=(AxisType.Auto,))
NEXT = [(i, (i + 1) % N) for i in range(N)]
D, T, V = 8, 6, 12


def root_mean_square(x):
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5)


def capped_attention(x, wq, wk, wv, wo):
    """Attention with a cap on its scores and normalized queries; x: [batch, time, D]."""
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, w) for w in (wq, wk, wv))
    q = q / root_mean_square(q)
    k = k / root_mean_square(k)
    scores = jnp.einsum("bthk,bshk->bhts", q, k) * wq.shape[-1] ** -0.5
    scores = 5.0 * jnp.tanh(scores / 5.0)
    mask = jnp.tril(jnp.ones((T, T), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    return x + jnp.einsum("bthk,hkd->btd", mixed, wo, out_sharding=P("data", None, None))


def capped_attention_reference(x, wq, wk, wv, wo):
    out = x
    for head in range(wq.shape[1]):
        q, k, v = x @ wq[:, head], x @ wk[:, head], x @ wv[:, head]
        q, k = q / jnp.sqrt((q**2).mean(-1)[..., None] + 1e-5), k / jnp.sqrt((k**2).mean(-1)[..., None] + 1e-5)
        s = 5 * jnp.tanh(q @ jnp.swapaxes(k, 1, 2) / jnp.sqrt(q.shape[-1]) / 5)
        e = jnp.where(jnp.arange(T)[:, None] >= jnp.arange(T), jnp.exp(s), 0)
        out = out + e / e.sum(-1, keepdims=True) @ v @ wo[head]
    return out


def swiglu(x, gain, gate, up, down):
    normed = x / root_mean_square(x)
    normed = normed * (1.0 + gain)
    g = jax.nn.silu(normed @ gate)
    h = g * (normed @ up)
    y = jnp.matmul(h, down, out_sharding=P("data", None))
    return x + y


def swiglu_reference(x, gain, gate, up, down):
    n = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * (gain + 1)
    a = n @ gate
    return x + (a * jax.nn.sigmoid(a) * (n @ up)) @ down


def masked_loss(table, out, tokens):
    """The loss of the next token, where 0 is padding; tokens: [batch, T + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = table.at[inputs].get(out_sharding=P("data", None, None))
    logits = x @ out
    logp = jax.nn.log_softmax(logits, axis=-1)
    picked = jnp.sum(jnp.where(targets[..., None] == jnp.arange(V), logp, 0.0), axis=-1)
    real = (targets != 0).astype(jnp.float32)
    return -jnp.sum(picked * real) / jnp.sum(real)


def masked_loss_reference(table, out, tokens):
    total, count = 0.0, 0
    for at in range(T):
        logits = table[tokens[:, at]] @ out
        nll = jax.nn.logsumexp(logits, axis=1) - logits[jnp.arange(tokens.shape[0]), tokens[:, at + 1]]
        real = tokens[:, at + 1] > 0
        total, count = total + jnp.where(real, nll, 0).sum(), count + real.sum()
    return total / count


def lion(w, m, x, y):
    def loss(w):
        return jnp.mean((jax.nn.relu(x @ w) - y) ** 2)

    g = jax.grad(loss)(w)
    direction = jnp.tanh(50.0 * (0.9 * m + 0.1 * g))
    m = 0.99 * m + 0.01 * g
    w = w - 0.02 * (direction + 0.1 * w)
    return w, m


def lion_reference(w, m, x, y):
    a = x @ w
    g = x.T @ (2 * (jnp.maximum(a, 0) - y) * (a > 0)) / y.size
    return w - 0.02 * jnp.tanh(50 * (0.9 * m + 0.1 * g)) - 0.002 * w, m * 0.99 + g * 0.01


def selective_scan(u, delta, a, b, c):
    """A diagonal state-space layer; u, delta: [T, batch]; a: [D]; b, c: [T, D]."""

    def step(state, at):
        u, delta, b, c = at
        decay = jnp.exp(delta[:, None] * a)
        state = decay * state + (delta * u)[:, None] * b
        return state, (state * c).sum(-1)

    start = jnp.zeros((u.shape[1], a.shape[0]), out_sharding=P("data", None))
    return lax.scan(step, start, (u, delta, b, c))[1]


def selective_scan_reference(u, delta, a, b, c):
    rows = []
    for t in range(T):
        row = 0.0
        for s in range(t + 1):
            decay = jnp.exp(a * delta[s + 1 : t + 1].sum(0)[:, None])
            row = row + (decay * b[s] * c[t]).sum(-1) * delta[s] * u[s]
        rows.append(row)
    return jnp.stack(rows)


def balanced_router(x, router, experts):
    logits = x @ router
    probs = jax.nn.softmax(logits, axis=-1)
    chosen = jnp.argmax(probs, axis=-1)
    picked = (chosen[:, None] == jnp.arange(4)).astype(x.dtype)
    weight = (probs * picked).sum(-1, keepdims=True)
    outs = jnp.einsum("td,edf->tef", x, experts)
    y = (outs * picked[..., None]).sum(1) * weight
    load, share = picked.mean(0), probs.mean(0)
    return y, 4 * jnp.sum(load * share)


def balanced_router_reference(x, router, experts):
    z = x @ router
    p = jnp.exp(z) / jnp.exp(z).sum(-1, keepdims=True)
    best = p.max(-1)
    which = (p == best[:, None]).astype(jnp.float32)
    y = jnp.einsum("te,td,edf->tf", which, x, experts) * best[:, None]
    return y, 4 * (which.sum(0) / x.shape[0]) @ (p.sum(0) / x.shape[0])


def tied_layers(x, w1, w2):
    """Two layers of FSDP, by a `shard_map` within the mesh that is set."""

    def of_device(x, w1, w2):
        first = lax.all_gather(w1, "data", axis=0, tiled=True)
        h = jnp.tanh(x @ first)
        second = lax.all_gather(w2, "data", axis=1, tiled=True)
        partial = h @ second
        return lax.psum(partial, "model")

    specs = (P("data", None), P("data", "model"), P("model", "data"))
    return jax.shard_map(of_device, in_specs=specs, out_specs=P("data", None), check_vma=False)(x, w1, w2)


def tied_layers_reference(x, w1, w2):
    return jnp.tanh(x @ w1) @ w2


def online_ring(q, k, v):
    """Attention whose keys travel, without a mask."""
    top = jnp.full((q.shape[0], 1), -1e30)
    total, out = jnp.zeros((q.shape[0], 1)), jnp.zeros(q.shape)
    for _ in range(N):
        scores = q @ k.T / jnp.sqrt(q.shape[-1])
        new = jnp.maximum(top, scores.max(-1, keepdims=True))
        weights = jnp.exp(scores - new)
        rescale = jnp.exp(top - new)
        total = rescale * total + weights.sum(-1, keepdims=True)
        out = rescale * out + weights @ v
        top = new
        k = lax.ppermute(k, "i", NEXT)
        v = lax.ppermute(v, "i", NEXT)
    return out / total


def online_ring_reference(q, k, v):
    return jax.nn.softmax(q @ k.T * q.shape[-1] ** -0.5, axis=-1) @ v


def staged(x, w):
    """A pipeline of N stages over N microbatches; x: [N, rows, D], whole; w: [1, D, D] on a device."""
    me = lax.axis_index("i")
    outs, held = jnp.zeros_like(x), jnp.zeros_like(x[0])
    for step in range(2 * N - 1):
        entering = x[min(step, N - 1)]
        inside = jnp.where(me == 0, entering, held)
        done = jnp.tanh(inside @ w[0])
        finished = step - (N - 1)
        if finished >= 0:
            outs = outs.at[finished].set(done)
        held = lax.ppermute(done, "i", NEXT)
    return lax.psum(jnp.where(me == N - 1, outs, 0.0), "i")


def staged_reference(x, w):
    for stage in range(N):
        x = jnp.tanh(x @ w[stage])
    return x


def sent_tokens(x, gates, w):
    """Tokens in slots of experts, one expert on each device; x: [N, slots, D] on a device."""
    arrived = lax.all_to_all(x, "i", split_axis=0, concat_axis=1, tiled=True)
    done = jax.nn.gelu(arrived[0] @ w[0])
    back = lax.all_to_all(done[None], "i", split_axis=1, concat_axis=0, tiled=True)
    return (back * gates[..., None]).sum(0)


def sent_tokens_reference(x, gates, w):
    done = jax.nn.gelu(jnp.einsum("desk,ekf->desf", x.reshape(N, N, -1, D), w))
    return (done * gates.reshape(N, N, -1)[..., None]).sum(1).reshape(-1, w.shape[-1])


def clipped_gradient(w, x, y):
    """A mean gradient over devices whose weights are split, clipped to a norm of 1."""
    error = lax.psum(x @ w, "i") - y
    grad = x.T @ error / y.shape[0]
    square = lax.psum(jnp.sum(grad**2), "i")
    scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(square))
    return w - 0.5 * scale * grad


def clipped_gradient_reference(w, x, y):
    g = x.T @ (x @ w - y) / x.shape[0]
    norm = jnp.linalg.norm(g)
    return w - 0.5 * jnp.where(norm > 1, g / norm, g)


def split_scan(a, x):
    """A linear recurrence along a split sequence, by the products and states of devices; a, x: [rows, D]."""

    def step(carry, at):
        decay, state = carry
        return (decay * at[0], at[0] * state + at[1]), (decay * at[0], at[0] * state + at[1])

    _, (decays, states) = lax.scan(step, (jnp.ones_like(a[0]), jnp.zeros_like(x[0])), (a, x))
    last = lax.all_gather((decays[-1], states[-1]), "i")
    before = jnp.zeros_like(x[0])
    for device in range(N - 1):
        through = last[0][device] * before + last[1][device]
        before = jnp.where(device < lax.axis_index("i"), through, before)
    return decays * before + states


def split_scan_reference(a, x):
    rows, state = [], 0.0
    for at in range(x.shape[0]):
        state = a[at] * state + x[at]
        rows.append(state)
    return jnp.stack(rows)


def convolved(x, kernel):
    """A convolution along a split dimension, by halos; x: [batch, rows, channels]."""
    above = lax.ppermute(x[:, -1:], "i", [(i, i + 1) for i in range(N - 1)])
    below = lax.ppermute(x[:, :1], "i", [(i + 1, i) for i in range(N - 1)])
    tall = jnp.concatenate([above, x, below], axis=1)
    y = lax.conv_general_dilated(tall, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return jax.nn.relu(y)


def convolved_reference(x, kernel):
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return jnp.maximum(sum(padded[:, at : at + x.shape[1]] @ kernel[at] for at in range(3)), 0)


def rotated_keys(x, wk, angles):
    """Keys with rotary positions, over a split sequence; x: [rows, D]; angles: [D // 2]."""
    me, rows = lax.axis_index("i"), x.shape[0]
    positions = me * rows + jnp.arange(rows)
    turns = positions[:, None] * angles
    k = x @ wk
    even, odd = k[:, ::2], k[:, 1::2]
    first = even * jnp.cos(turns) - odd * jnp.sin(turns)
    second = even * jnp.sin(turns) + odd * jnp.cos(turns)
    return jnp.stack([first, second], axis=-1).reshape(k.shape)


def rotated_keys_reference(x, wk, angles):
    k = (x @ wk).reshape(x.shape[0], -1, 2)
    z = lax.complex(k[..., 0], k[..., 1]) * jnp.exp(1j * jnp.arange(x.shape[0])[:, None] * angles)
    return jnp.stack([z.real, z.imag], -1).reshape(x.shape[0], -1)


def pooled_stats(x, mask):
    """Mean and variance of rows that count, over devices; mask: [rows] of 0 and 1."""
    count = lax.psum(mask.sum(), "i")
    mean = lax.psum((x * mask[:, None]).sum(0), "i") / count
    centered = (x - mean) * mask[:, None]
    var = lax.psum((centered**2).sum(0), "i") / (count - 1)
    return mean, var


def pooled_stats_reference(x, mask):
    m = mask[:, None]
    mean = (x * m).sum(0) / m.sum()
    return mean, (m * (x - mean) ** 2).sum(0) / (m.sum() - 1)


B, B3, S = P("data", None), P("data", None, None), P("i")
WHOLE = P(None, None)
TOKENS = jax.random.randint(jax.random.key(1), (4, T + 1), 0, V).at[0, 4:].set(0)
QKV = tuple(normal(seed, 12, D) for seed in range(3))
MASK = (normal(1, 16) > -0.5).astype("float32")
HEADS = tuple(normal(seed, D, 2, 4) / 2 for seed in range(1, 4))
SCAN = (normal(0, T, 4), abs(normal(1, T, 4)), -abs(normal(2, D)), normal(3, T, D), normal(4, T, D))

CASES = (
    Case(capped_attention, (normal(0, 4, T, D), *HEADS, normal(4, 2, 4, D)), mesh,
         (B3, P(None, "model", None), P(None, "model", None), P(None, "model", None), P("model", None, None)), None,
         capped_attention_reference, (
        ("k = k / root_mean_square(k)", "k = k / root_mean_square(q)"),
        ("5.0 * jnp.tanh(scores / 5.0)", "5.0 * jnp.tanh(scores)"),
        ("mask = jnp.tril(jnp.ones((T, T), bool))", "mask = jnp.triu(jnp.ones((T, T), bool))"),
        ("-1e9), axis=-1)", "-1e9), axis=-2)"),
    ), jitted=True, setting=True),
    Case(swiglu, (normal(0, 8, D), normal(1, D), normal(2, D, 12), normal(3, D, 12), normal(4, 12, D)), mesh,
         (B, P(None), P(None, "model"), P(None, "model"), P("model", None)), None, swiglu_reference, (
        ("normed = normed * (1.0 + gain)", "normed = normed * gain"),
        ("g = jax.nn.silu(normed @ gate)", "g = jax.nn.silu(x @ gate)"),
        ("return x + y", "return normed + y"),
    ), jitted=True, setting=True),
    Case(masked_loss, (normal(0, V, D), normal(1, D, V), TOKENS), mesh, (WHOLE, WHOLE, B), None,
         masked_loss_reference, (
        ("tokens[:, :-1], tokens[:, 1:]", "tokens[:, :-1], tokens[:, :-1]"),
        ("/ jnp.sum(real)", "/ targets.size"),
        ("real = (targets != 0)", "real = (inputs != 0)"),
    ), jitted=True, setting=True),
    Case(lion, (normal(0, D, 4), normal(1, D, 4) / 9, normal(2, 8, D), normal(3, 8, 4)), mesh,
         (WHOLE, WHOLE, B, B), None, lion_reference, (
        ("(0.9 * m + 0.1 * g))", "(0.1 * m + 0.9 * g))"),
        ("m = 0.99 * m + 0.01 * g", "m = 0.99 * m + 0.01 * direction"),
        ("(direction + 0.1 * w)", "(direction - 0.1 * w)"),
    ), jitted=True, setting=True),
    Case(selective_scan, SCAN, mesh, (P(None, "data"), P(None, "data"), P(None), WHOLE, WHOLE), None,
         selective_scan_reference, (
        ("state = decay * state + (delta * u)[:, None] * b", "state = decay * state + u[:, None] * b"),
        ("return state, (state * c).sum(-1)", "return state, (state * b).sum(-1)"),
        ("jnp.exp(delta[:, None] * a)", "jnp.exp(a)"),
    ), jitted=True, setting=True),
    Case(balanced_router, (normal(0, 8, D), normal(1, D, 4), normal(2, 4, D, 6)), mesh,
         (B, WHOLE, P(None, None, "model")), None, balanced_router_reference, (
        ("load, share = picked.mean(0), probs.mean(0)", "load, share = picked.mean(0), logits.mean(0)"),
        ("weight = (probs * picked).sum(-1, keepdims=True)", "weight = probs.sum(-1, keepdims=True)"),
        ("4 * jnp.sum(load * share)", "jnp.sum(load * share)"),
    ), jitted=True, setting=True),
    Case(tied_layers, (normal(0, 8, 4), normal(1, 4, 8), normal(2, 8, 4)), mesh,
         (B, P("data", "model"), P("model", "data")), None, tied_layers_reference, (
        ("lax.all_gather(w2, \"data\", axis=1", "lax.all_gather(w2, \"model\", axis=1"),
        ("h = jnp.tanh(x @ first)", "h = x @ first"),
    ), jitted=True, setting=True),
    Case(online_ring, QKV, auto, (S, S, S), S, online_ring_reference, (
        ("out = rescale * out +", "out = out +"),
        ("top = new", "top = top"),
        ("v = lax.ppermute(v, \"i\", NEXT)", "v = lax.ppermute(k, \"i\", NEXT)"),
    ), check_vma=False),
    Case(staged, (normal(0, N, 3, D), normal(1, N, D, D)), auto, (P(), S), P(), staged_reference, (
        ("jnp.where(me == 0, entering, held)", "jnp.where(me == 1, entering, held)"),
        ("finished = step - (N - 1)", "finished = step - N"),
        ("jnp.where(me == N - 1, outs, 0.0)", "jnp.where(me == 0, outs, 0.0)"),
    ), check_vma=False),
    Case(sent_tokens, (normal(0, N * N, 3, D), normal(1, N * N, 3), normal(2, N, D, 5)), auto, (S, S, S), S,
         sent_tokens_reference, (
        ("done = jax.nn.gelu(arrived[0] @ w[0])", "done = jax.nn.relu(arrived[0] @ w[0])"),
        ("return (back * gates[..., None]).sum(0)", "return back.sum(0)"),
    )),
    Case(clipped_gradient, (normal(0, 8, 3), normal(1, 6, 8), normal(2, 6, 3)), auto, (S, P(None, "i"), P()), S,
         clipped_gradient_reference, (
        ("square = lax.psum(jnp.sum(grad**2), \"i\")", "square = jnp.sum(grad**2)"),
        ("jnp.minimum(1.0, 1.0 / jnp.sqrt(square))", "jnp.minimum(1.0, 1.0 / square)"),
        ("lax.psum(x @ w, \"i\") - y", "lax.psum(x @ w - y, \"i\")"),
    )),
    Case(split_scan, (abs(normal(0, 12, 3)) / 2, normal(1, 12, 3)), auto, (S, S), S, split_scan_reference, (
        ("device < lax.axis_index(\"i\")", "device <= lax.axis_index(\"i\")"),
        ("return decays * before + states", "return before + states"),
    ), check_vma=False),
    Case(convolved, (normal(0, 2, 12, 3), normal(1, 3, 3, 4)), auto, (P(None, "i"), P()), P(None, "i"),
         convolved_reference, (
        ("[(i + 1, i) for i in range(N - 1)]", "[((i + 1) % N, i) for i in range(N)]"),
        ("lax.ppermute(x[:, -1:]", "lax.ppermute(x[:, :1]"),
    )),
    Case(rotated_keys, (normal(0, 12, D), normal(1, D, D), normal(2, D // 2)), auto, (S, P(), P()), S,
         rotated_keys_reference, (
        ("positions = me * rows + jnp.arange(rows)", "positions = me + jnp.arange(rows)"),
        ("k[:, ::2], k[:, 1::2]", "k[:, 1::2], k[:, ::2]"),
    )),
    Case(pooled_stats, (normal(0, 16, 3), MASK), auto, (S, S), P(), pooled_stats_reference, (
        ("count = lax.psum(mask.sum(), \"i\")", "count = mask.sum()"),
        ("/ (count - 1)", "/ count"),
    ), check_vma=False),
)  # fmt: skip
