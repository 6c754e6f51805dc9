"""Layers, models, optimizers and losses of public libraries."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.public.subject import Call, normal, public

B = P("data")
X, BATCH = normal(0, 8, 16), normal(1, 4, 8, 16)
LABELS = jax.random.randint(jax.random.key(0), (8,), 0, 16)


def _columns(tree):
    """Matrices by columns over `model`, all else whole."""
    return jax.tree.map(lambda leaf: P(None, "model") if getattr(leaf, "ndim", 0) == 2 else P(), tree)


def _whole(tree):
    return jax.tree.map(lambda _: P(), tree)


def _nnx(module, x) -> Call:
    from flax import nnx

    graph, state = nnx.split(module)
    return Call(lambda state, x: nnx.merge(graph, state)(x), (state, x), (_columns(state), B))


@public("flax", "nnx.Linear")
def _(_: Path) -> Call:
    from flax import nnx

    return _nnx(nnx.Linear(16, 32, rngs=nnx.Rngs(0)), X)


@public("flax", "nnx.MultiHeadAttention")
def _(_: Path) -> Call:
    from flax import nnx

    attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0))
    return _nnx(attention, BATCH)


@public("flax", "nnx.Conv")
def _(_: Path) -> Call:
    from flax import nnx

    return _nnx(nnx.Conv(16, 8, kernel_size=(3,), rngs=nnx.Rngs(0)), BATCH)


@public("flax", "nnx.GroupNorm")
def _(_: Path) -> Call:
    from flax import nnx

    return _nnx(nnx.GroupNorm(16, num_groups=4, rngs=nnx.Rngs(0)), BATCH)


def _linen(module, *operands) -> Call:
    params = module.init(jax.random.key(0), *operands)
    return Call(module.apply, (params, *operands), (_columns(params), *(B for _ in operands)))


@public("flax", "linen.MultiHeadDotProductAttention")
def _(_: Path) -> Call:
    from flax import linen

    return _linen(linen.MultiHeadDotProductAttention(num_heads=4), BATCH)


@public("flax", "linen.RNN of LSTMCell")
def _(_: Path) -> Call:
    from flax import linen

    return _linen(linen.RNN(linen.LSTMCell(8)), BATCH)


@public("flax", "linen.WeightNorm")
def _(_: Path) -> Call:
    from flax import linen

    return _linen(linen.WeightNorm(linen.Dense(8)), X)


def _equinox(module, x) -> Call:
    import equinox as eqx

    arrays, static = eqx.partition(module, eqx.is_array)
    return Call(lambda arrays, x: jax.vmap(eqx.combine(arrays, static))(x), (arrays, x), (_whole(arrays), B))


@public("equinox", "nn.MLP")
def _(_: Path) -> Call:
    import equinox as eqx

    return _equinox(eqx.nn.MLP(16, 4, 32, 2, key=jax.random.key(0)), X)


@public("equinox", "nn.MultiheadAttention")
def _(_: Path) -> Call:
    import equinox as eqx

    attention = eqx.nn.MultiheadAttention(4, 16, key=jax.random.key(0))
    arrays, static = eqx.partition(attention, eqx.is_array)

    def attend(arrays, x):
        return jax.vmap(lambda x: eqx.combine(arrays, static)(x, x, x))(x)

    return Call(attend, (arrays, BATCH), (_columns(arrays), B))


@public("equinox", "nn.Conv2d")
def _(_: Path) -> Call:
    import equinox as eqx

    return _equinox(eqx.nn.Conv2d(3, 4, 3, key=jax.random.key(0)), normal(0, 4, 3, 8, 8))


@public("equinox", "nn.RotaryPositionalEmbedding")
def _(_: Path) -> Call:
    import equinox as eqx

    return _equinox(eqx.nn.RotaryPositionalEmbedding(16), BATCH)


PARAMS = {"w": normal(0, 16, 8), "b": normal(1, 8)}
GRADS = {"w": normal(2, 16, 8), "b": normal(3, 8)}


def _optax(optimizer) -> Call:
    state = optimizer.init(PARAMS)
    specs = {"w": P(None, "model"), "b": P("model")}
    shapes = {(16, 8): specs["w"], (8,): specs["b"]}
    laid = jax.tree.map(lambda leaf: shapes.get(jnp.shape(leaf), P()), state)
    return Call(optimizer.update, (GRADS, state, PARAMS), (specs, laid, specs))


@public("optax", "adamw")
def _(_: Path) -> Call:
    import optax

    return _optax(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))


@public("optax", "adafactor")
def _(_: Path) -> Call:
    import optax

    return _optax(optax.adafactor(1e-3, min_dim_size_to_factor=8))


@public("optax", "contrib.muon")
def _(_: Path) -> Call:
    import optax

    return _optax(optax.contrib.muon(1e-3))


@public("optax", "contrib.schedule_free_adamw")
def _(_: Path) -> Call:
    import optax

    return _optax(optax.contrib.schedule_free_adamw(1e-3))


@public("optax", "contrib.prodigy")
def _(_: Path) -> Call:
    import optax

    return _optax(optax.contrib.prodigy())


@public("optax", "softmax_cross_entropy_with_integer_labels")
def _(_: Path) -> Call:
    import optax

    return Call(optax.softmax_cross_entropy_with_integer_labels, (X, LABELS), (P("data", "model"), B))


@public("optax", "ctc_loss")
def _(_: Path) -> Call:
    import optax

    labels = jax.random.randint(jax.random.key(0), (4, 3), 1, 16)
    return Call(optax.ctc_loss, (BATCH, jnp.zeros((4, 8)), labels, jnp.zeros((4, 3))), (B, B, B, B))


@public("haiku", "MultiHeadAttention")
def _(_: Path) -> Call:
    import haiku as hk

    function = hk.without_apply_rng(hk.transform(
        lambda x: hk.MultiHeadAttention(4, 4, w_init=hk.initializers.VarianceScaling(1.0))(x, x, x)
    ))  # fmt: skip
    params = function.init(jax.random.key(0), BATCH)
    return Call(function.apply, (params, BATCH), (_columns(params), B))


@public("haiku", "LSTM by dynamic_unroll")
def _(_: Path) -> Call:
    import haiku as hk

    def unrolled(x):
        cell = hk.LSTM(8)
        return hk.dynamic_unroll(cell, x, cell.initial_state(x.shape[1]))[0]

    function = hk.without_apply_rng(hk.transform(unrolled))
    params = function.init(jax.random.key(0), BATCH)
    return Call(function.apply, (params, BATCH), (_columns(params), P(None, "data")))


@public("penzai", "nn.Affine, gelu and RMSLayerNorm")
def _(_: Path) -> Call:
    from penzai import pz

    layer, values = pz.unbind_params(
        pz.nn.Sequential([
            pz.nn.Affine.from_config("up", jax.random.key(0), {"in": 16}, {"in": 16}),
            pz.nn.Elementwise(jax.nn.gelu),
            pz.nn.RMSLayerNorm.from_config("norm", jax.random.key(1), {"in": 16}),
        ]),
        freeze=True,
    )  # fmt: skip

    def apply(values, x):
        return pz.bind_variables(layer, values)(pz.nx.wrap(x, "b", "in")).unwrap("b", "in")

    return Call(apply, (values, X), (_whole(values), B))


@public("penzai", "nn.LayerNorm and ApplyRoPE")
def _(_: Path) -> Call:
    from penzai import pz

    norm = pz.nn.LayerNorm.from_config("norm", jax.random.key(0), {"in": 16})
    layer, values = pz.unbind_params(norm, freeze=True)
    rotated = pz.nn.ApplyRoPE("in", 10_000.0, positions_input_name="positions")

    def apply(values, x):
        normed = pz.bind_variables(layer, values)(pz.nx.wrap(x, "b", "s", "in"))
        return rotated(normed, positions=pz.nx.arange("s", 8)).unwrap("b", "s", "in")

    return Call(apply, (values, BATCH), (_whole(values), B))


@public("haliax", "nn.Linear and softmax")
def _(_: Path) -> Call:
    import haliax as hax

    batch, features, out = hax.Axis("batch", 8), hax.Axis("features", 16), hax.Axis("out", 8)
    layer = hax.nn.Linear.init(features, out, key=jax.random.key(0))

    def apply(layer, x):
        return hax.nn.softmax(layer(hax.named(x, (batch, features))), axis=out).array

    return Call(apply, (layer, X), (_columns(layer), B))


@public("haliax", "nn.LayerNorm, rolled along a named axis")
def _(_: Path) -> Call:
    import haliax as hax

    batch, features = hax.Axis("batch", 8), hax.Axis("features", 16)
    layer = hax.nn.LayerNorm.init(features)

    def apply(layer, x):
        return hax.roll(layer(hax.named(x, (batch, features))), 2, features).array

    return Call(apply, (layer, X), (_whole(layer), P("data", "model")))


@public("haliax", "nn.cross_entropy_loss")
def _(_: Path) -> Call:
    import haliax as hax

    batch, classes = hax.Axis("batch", 8), hax.Axis("classes", 16)

    def loss(logits, labels):
        targets = hax.nn.one_hot(hax.named(labels, batch), classes)
        return hax.nn.cross_entropy_loss(hax.named(logits, (batch, classes)), classes, targets).array

    return Call(loss, (X, LABELS), (P("data", "model"), B))


@public("jraph", "GraphConvolution")
def _(_: Path) -> Call:
    import jraph

    graph = _graph(jraph)
    layer = jraph.GraphConvolution(lambda nodes: nodes * 2.0, add_self_edges=True, symmetric_normalization=True)
    return Call(layer, (graph,), (_whole(graph)._replace(nodes=P(None, "model")),))


@public("jraph", "GraphNetwork")
def _(_: Path) -> Call:
    import jraph

    graph = _graph(jraph)
    layer = jraph.GraphNetwork(
        update_edge_fn=lambda edges, sent, received, _: jnp.tanh(edges + sent[:, :3] * received[:, :3]),
        update_node_fn=lambda nodes, sent, received, _: jax.nn.relu(
            nodes + jnp.concatenate([sent, received[:, :1]], 1)
        ),
    )
    return Call(layer, (graph,), (_whole(graph)._replace(edges=P("data")),))


def _graph(jraph):
    nodes, edges = normal(0, 6, 4), normal(1, 8, 3)
    senders, receivers = jnp.array([0, 1, 2, 3, 4, 5, 0, 2]), jnp.array([1, 2, 3, 4, 5, 0, 3, 5])
    return jraph.GraphsTuple(nodes, edges, receivers, senders, None, jnp.array([6]), jnp.array([8]))


@public("rlax", "vtrace")
def _(_: Path) -> Call:
    import rlax

    now, following, rewards, discounts, ratios = (normal(seed, 6) for seed in range(5))
    operands = (now, following, rewards, jnp.abs(discounts) / 4, jnp.exp(ratios))
    return Call(rlax.vtrace, operands, (P(),) * 5)


@public("rlax", "categorical_l2_project")
def _(_: Path) -> Call:
    import rlax

    support = jnp.linspace(-2.0, 2.0, 9)
    project = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))
    return Call(project, (normal(0, 8, 9), jax.nn.softmax(normal(1, 8, 9)), support), (B, B, P()))


def _searched(policy, **options) -> Call:
    import mctx

    def step(params, key, action, embedding):
        after = jnp.tanh(embedding @ params + action[:, None])
        output = mctx.RecurrentFnOutput(
            reward=after[:, 0], discount=jnp.full(after.shape[:1], 0.9), prior_logits=after[:, :3], value=after[:, 1]
        )
        return output, after

    def searched(params, key, x):
        root = mctx.RootFnOutput(prior_logits=x[:, :3], value=x[:, 0], embedding=x)
        return policy(params, key, root, step, num_simulations=3, **options).action_weights

    return Call(searched, (normal(0, 4, 4), jax.random.PRNGKey(0), normal(1, 4, 4)), (P(), P(), B))


@public("mctx", "gumbel_muzero_policy")
def _(_: Path) -> Call:
    import mctx

    return _searched(mctx.gumbel_muzero_policy)


@public("mctx", "muzero_policy")
def _(_: Path) -> Call:
    import mctx

    return _searched(mctx.muzero_policy, dirichlet_fraction=0.0)
