"""The rows of random keys and draws; `split` is `jnp.split`, not `jax.random.split`."""

from __future__ import annotations

from runner.graph.language.operations.deferred import threefry
from runner.graph.language.operations.row import Operation

ROWS = (
    Operation("key", "seed", "jax.random.key", threefry.key),
    Operation("PRNGKey", "seed", "jax.random.PRNGKey", threefry.PRNGKey),
    Operation("key_data", "keys", "jax.random.key_data", threefry.key_data),
    Operation("wrap_key_data", "key_bits_array", "jax.random.wrap_key_data", threefry.wrap_key_data),
    Operation("fold_in", "key, data", "jax.random.fold_in", threefry.fold_in),
    Operation("split_key", "key, num=2", "jax.random.split", threefry.split),
    Operation("bits", "key, shape=(), dtype='uint32'", "jax.random.bits", threefry.bits),
    Operation("uniform", "key, shape=(), dtype='float32', minval=0.0, maxval=1.0", "jax.random.uniform",
        threefry.uniform),
    Operation("normal", "key, shape=(), dtype='float32'", "jax.random.normal", threefry.normal),
    Operation("gumbel", "key, shape=(), dtype='float32'", "jax.random.gumbel", threefry.gumbel),
    Operation("categorical", "key, logits, axis=-1, shape=None", "jax.random.categorical", threefry.categorical,
        decides="draw", dtype_of=("logits",)),
    Operation("bernoulli", "key, p=0.5, shape=None", "jax.random.bernoulli", threefry.bernoulli, decides="threshold",
        dtype_of=("p",)),
    Operation("randint", "key, shape, minval, maxval, dtype='int32'", "jax.random.randint", threefry.randint),
    Operation("rademacher", "key, shape=(), dtype='int32'", "jax.random.rademacher", threefry.rademacher),
    Operation("laplace", "key, shape=(), dtype='float32'", "jax.random.laplace", threefry.laplace),
    Operation("truncated_normal", "key, lower, upper, shape=None, dtype='float32'", "jax.random.truncated_normal",
        threefry.truncated_normal),
    Operation("choice", "key, a, shape=(), replace=True, p=None, axis=0", "jax.random.choice", threefry.choice,
        decides="draw", dtype_of=("p",), default_int=True),
    Operation("permutation", "key, x, axis=0", "jax.random.permutation", threefry.permutation),
)  # fmt: skip
