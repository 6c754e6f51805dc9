"""One training step of a Llama block in plain JAX, the counterpart of `llama_block_adamw` in YAML.

`python -m benchmarks.llama_block` runs it. It equals the program `shard_map` of
`conf/experiment/llama_block_adamw.yaml`, without the oracle, the checks and the other programs;
`tests/test_llama_block.py` compares the two.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

# Batch, sequence, width, query heads, heads of keys and values, width of a head, hidden width; steps taken so far.
B, S, D, Q, K, H, F = 4, 8, 16, 4, 2, 4, 32
STEPS = 9

BATCH = P("data", None, None)
SHAPES = {
    "ga": (D,),
    "gf": (D,),
    "wq": (D, Q, H),
    "wk": (D, K, H),
    "wv": (D, K, H),
    "wo": (Q, H, D),
    "w1": (D, F),
    "w3": (D, F),
    "w2": (F, D),
}
SPECS = {
    "ga": P("data"),
    "gf": P("data"),
    "wq": P("data", "model", None),
    "wk": P("data", "model", None),
    "wv": P("data", "model", None),
    "wo": P("model", None, "data"),
    "w1": P("data", "model"),
    "w3": P("data", "model"),
    "w2": P("model", "data"),
}


def rmsnorm(x, g):
    g = jax.lax.all_gather(g, "data", tiled=True)
    return (x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * g).astype(jnp.bfloat16)


def rope(x):
    angle = jnp.arange(S)[:, None, None] * 10000.0 ** (-jnp.arange(H // 2) / (H // 2))
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)]
    return jnp.concatenate(turned, axis=-1).astype(jnp.bfloat16)


def weight(w, axis):
    return jax.lax.all_gather(w.astype(jnp.bfloat16), "data", axis=axis, tiled=True)


def summed(y):
    return jax.lax.psum(y.astype(jnp.float32), "model")


def block(p, x, t):
    h = rmsnorm(x, p["ga"])
    q = rope(jnp.einsum("bsd,dqh->bsqh", h, weight(p["wq"], 0)))
    k = rope(jnp.einsum("bsd,dkh->bskh", h, weight(p["wk"], 0)))
    v = jnp.einsum("bsd,dkh->bskh", h, weight(p["wv"], 0))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    y = x + summed(jnp.einsum("bsqh,qhd->bsd", attended, weight(p["wo"], 2)))
    n = rmsnorm(y, p["gf"])
    gate = jax.nn.silu(n @ weight(p["w1"], 0)) * (n @ weight(p["w3"], 0))
    z = y + summed(gate @ weight(p["w2"], 1))
    return jax.lax.pmean(jnp.mean((z - t) ** 2), "data")


def adamw(w, g, m, v, scale, decay):
    m = 0.9 * m + 0.1 * scale * g
    v = 0.95 * v + 0.05 * (scale * g) ** 2
    step = m / (1 - 0.9 ** (STEPS + 1)) / (jnp.sqrt(v / (1 - 0.95 ** (STEPS + 1))) + 1e-8)
    return w - 3e-4 * (step + decay * w), m, v


def update(p, m, v, grads):
    gains = sum(jnp.sum(grads[name] ** 2) for name in ("ga", "gf"))
    others = sum(jnp.sum(grads[name] ** 2) for name in SPECS if name not in ("ga", "gf"))
    norm = jnp.sqrt(jax.lax.psum(gains, "data") + jax.lax.psum(others, ("data", "model")))
    scale = jnp.minimum(1.0, 1.0 / norm)
    new_p, new_m, new_v = {}, {}, {}
    for name in SPECS:
        decay = 0.0 if name in ("ga", "gf") else 0.1
        new_p[name], new_m[name], new_v[name] = adamw(p[name], grads[name], m[name], v[name], scale, decay)
    return norm, new_p, new_m, new_v


def make_mesh():
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def program(mesh):
    forward = jax.shard_map(block, mesh=mesh, in_specs=(SPECS, BATCH, BATCH), out_specs=P())
    optimizer = jax.shard_map(
        update, mesh=mesh, in_specs=(SPECS, SPECS, SPECS, SPECS), out_specs=(P(), SPECS, SPECS, SPECS)
    )

    @jax.jit
    def step(p, m, v, x, t):
        loss, grads = jax.value_and_grad(forward)(p, x, t)
        return loss, *optimizer(p, m, v, grads)

    return step


def placed(mesh, arrays, specs):
    return jax.device_put(arrays, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


def main():
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    rng = np.random.default_rng(0)
    mesh = make_mesh()
    p = {name: rng.normal(0, 0.25, shape).astype(np.float32) for name, shape in SHAPES.items()}
    p |= {name: rng.uniform(0.5, 1.5, SHAPES[name]).astype(np.float32) for name in ("ga", "gf")}
    m = {name: rng.normal(0, 0.01, shape).astype(np.float32) for name, shape in SHAPES.items()}
    v = {name: rng.uniform(0.0005, 0.001, shape).astype(np.float32) for name, shape in SHAPES.items()}
    x, t = rng.normal(0, 1, (2, B, S, D)).astype(np.float32)
    state = [placed(mesh, arrays, SPECS) for arrays in (p, m, v)]
    loss, norm, *_ = program(mesh)(*state, *placed(mesh, (x, t), (BATCH, BATCH)))
    print(f"loss {loss}, norm of the gradients {norm}")


if __name__ == "__main__":
    main()
