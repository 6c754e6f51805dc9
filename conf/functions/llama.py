"""A Llama and its training step, for jit and for shard_map; layers are scanned, and recomputed in the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

THETA, EPS = 10_000.0, 1e-5


def init(key, vocab, width, heads, kv_heads, hidden, layers):
    """Random weights, with scales around 1; those of all layers are stacked along their first dimension."""
    size = width // heads
    shapes = {
        "embed": (vocab, width),
        "layers": {
            "attention": {
                "norm": (layers, width),
                "q": (layers, width, heads, size),
                "k": (layers, width, kv_heads, size),
                "v": (layers, width, kv_heads, size),
                "o": (layers, heads, size, width),
            },
            "mlp": {
                "norm": (layers, width),
                "gate": (layers, width, hidden),
                "up": (layers, width, hidden),
                "down": (layers, hidden, width),
            },
        },
        "norm": (width,),
        "unembed": (width, vocab),
    }
    paths, structure = jax.tree.flatten_with_path(shapes, is_leaf=lambda shape: isinstance(shape, tuple))
    ends = np.cumsum([np.prod(shape) for _, shape in paths])
    drawn = jnp.split(jax.random.normal(key, ends[-1:]) * width**-0.5, ends[:-1])

    def weight(path, shape, values):
        return values.reshape(shape) + (path[-1].key == "norm")

    leaves = [weight(path, shape, values) for (path, shape), values in zip(paths, drawn, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def rms_norm(x, scale):
    """Divide by the root mean square over the features, then scale."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPS) * scale


def rope(x):
    """Rotate pairs of features of [batch, sequence, heads, size] by angles that grow with the position."""
    half = x.shape[-1] // 2
    frequency = THETA ** (-jnp.arange(half) / half)
    angle = jnp.arange(x.shape[1])[:, None, None] * frequency
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], axis=-1)


def attention(w, x):
    """Causal attention, in which groups of query heads share their keys and values."""
    h = rms_norm(x, w["norm"])
    q = rope(jnp.einsum("bsd,dhk->bshk", h, w["q"]))
    k = rope(jnp.einsum("bsd,dhk->bshk", h, w["k"]))
    v = jnp.einsum("bsd,dhk->bshk", h, w["v"])
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    scores = jnp.einsum("bsgrk,btgk->bgrst", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    p = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    y = jnp.einsum("bgrst,btgk->bsgrk", p, v)
    return jnp.einsum("bshk,hkd->bsd", y.reshape(*y.shape[:2], -1, y.shape[4]), w["o"])


def mlp(w, x):
    """SwiGLU: one projection gated by the SiLU of another."""
    h = rms_norm(x, w["norm"])
    gate = jnp.einsum("bsd,df->bsf", h, w["gate"])
    up = jnp.einsum("bsd,df->bsf", h, w["up"])
    return jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"])


@jax.checkpoint
def layer(x, w):
    """One layer, as a body of `jax.lax.scan`."""
    x = x + attention(w["attention"], x)
    x = x + mlp(w["mlp"], x)
    return x, None


def logits(params, tokens):
    """The logits of the next token at each position."""
    x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
    return jnp.einsum("bsd,dv->bsv", rms_norm(x, params["norm"]), params["unembed"])


def loss(params, tokens):
    """The mean cross entropy of the next tokens."""
    said = logits(params, tokens)[:, :-1]
    return optax.losses.softmax_cross_entropy_with_integer_labels(said, tokens[:, 1:]).mean()


ADAMW = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)


def moments(params):
    """The state of AdamW before its first step."""
    return OPTIMIZER.init(params)


def step(params, state, tokens):
    """One step of training: the loss, the new weights, the new state of AdamW."""
    value, grads = jax.value_and_grad(loss)(params, tokens)
    updates, state = OPTIMIZER.update(grads, state, params)
    return value, optax.apply_updates(params, updates), state


def gathered(w, dims):
    """Gather each weight along its feature dimension, which FSDP shards over `data`."""
    return {name: jax.lax.all_gather(each, "data", axis=dims[name], tiled=True) for name, each in w.items()}


@jax.checkpoint
def layer_of_shard(x, w):
    """A layer on one device, which has the heads and hidden features of its index along `model`."""
    w_attention = gathered(w["attention"], {"norm": 0, "q": 0, "k": 0, "v": 0, "o": 2})
    x = x + jax.lax.psum(attention(w_attention, x), "model")
    w_mlp = gathered(w["mlp"], {"norm": 0, "gate": 0, "up": 0, "down": 1})
    x = x + jax.lax.psum(mlp(w_mlp, x), "model")
    return x, None


def loss_of_shard(params, tokens):
    """The loss on one device, which has some of the sequences, and the logits of a part of the vocabulary."""
    whole = gathered(
        {name: params[name] for name in ("embed", "norm", "unembed")}, {"embed": 1, "norm": 0, "unembed": 0}
    )
    words = whole["embed"].shape[0]
    first = jax.lax.axis_index("model") * words

    def of_words(values, ids):
        """Return which ids are in this device's part of the vocabulary, and their values; the others' are arbitrary."""
        mine = (ids >= first) & (ids < first + words)
        return mine, values(jnp.where(mine, ids - first, 0))

    mine, rows = of_words(lambda ids: whole["embed"][ids], tokens)
    x = jax.lax.psum(jnp.where(mine[..., None], rows, 0.0), "model")
    x, _ = jax.lax.scan(layer_of_shard, x, params["layers"])
    said = jnp.einsum("bsd,dv->bsv", rms_norm(x, whole["norm"]), whole["unembed"])[:, :-1]
    largest = jax.lax.pmax(jax.lax.stop_gradient(said.max(axis=-1)), "model")
    sums = jax.lax.psum(jnp.exp(said - largest[..., None]).sum(axis=-1), "model")
    mine, label = of_words(lambda ids: jnp.take_along_axis(said, ids[..., None], axis=-1)[..., 0], tokens[:, 1:])
    label = jax.lax.psum(jnp.where(mine, label, 0.0), "model")
    return jax.lax.pmean((jnp.log(sums) + largest - label).mean(), "data")


def step_of_shard(params, state, tokens):
    """The same step on one device, which has its shard of the weights and of the moments."""
    value, grads = jax.value_and_grad(loss_of_shard)(params, tokens)

    def squares(path, g):
        # The scales are replicated along `model`.
        return jax.lax.psum((g**2).sum(), "data" if path[-1].key == "norm" else ("data", "model"))

    norm = jnp.sqrt(sum(jax.tree.leaves(jax.tree_util.tree_map_with_path(squares, grads))))
    grads = jax.tree.map(lambda g: jnp.where(norm < 1.0, g, g / norm), grads)
    clip, adam = state
    updates, adam = ADAMW.update(grads, adam, params)
    return value, optax.apply_updates(params, updates), (clip, adam)
