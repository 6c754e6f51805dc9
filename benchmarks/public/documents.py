"""Functions of JAX itself, of its documentation, and of repositories of models for it, most on Explicit meshes."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.public.subject import Auto, Call, Explicit, mesh, normal, public

HEADS = tuple(normal(seed, 2, 8, 4, 8) for seed in range(3))
BY_HEADS = P("data", None, "model", None)


@public("jax", "nn.dot_product_attention, Explicit")
def _(_: Path) -> Call:
    def attention(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    return Call(attention, HEADS, (BY_HEADS,) * 3, mesh(Explicit), setting=True)


@public("jax", "nn.dot_product_attention with a window")
def _(_: Path) -> Call:
    def attention(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, local_window_size=(2, 0))

    return Call(attention, HEADS, (BY_HEADS,) * 3)


@public("jax", "nn.standardize, Explicit")
def _(_: Path) -> Call:
    return Call(jax.nn.standardize, (normal(0, 8, 16),), (P("data", None),), mesh(Explicit), setting=True)


@public("jax", "scipy.signal.convolve")
def _(_: Path) -> Call:
    return Call(jax.scipy.signal.convolve, (normal(0, 16), normal(1, 5)), (P("data"), P()))


@public("jax", "image.resize, cubic")
def _(_: Path) -> Call:
    def resized(x):
        return jax.image.resize(x, (4, 12, 12), "cubic")

    return Call(resized, (normal(0, 4, 8, 8),), (P("data"),))


@public("jax", "example_libraries.optimizers.adam")
def _(_: Path) -> Call:
    from jax.example_libraries import optimizers

    init, update, params = optimizers.adam(1e-2)
    return Call(lambda w, g: params(update(3, g, init(w))), (normal(0, 8, 16), normal(1, 8, 16)), (P("data"),) * 2)


def _section(sources: Path, document: str, first: str, last: str) -> dict[str, Any]:
    """What the cells of a page of JAX's documentation define, from the cell with `first` to that with `last`."""
    text = (sources / "jax" / document).read_text("utf-8")
    cells = re.findall(r"```\{code-cell\}\n(.*?)```", text, re.DOTALL)
    begin, end = (next(n for n, cell in enumerate(cells) if part in cell) for part in (first, last))
    defined: dict[str, Any] = {"__name__": "document", "jax": jax, "jnp": jnp, "P": P, "lax": jax.lax}
    exec("from functools import partial\nfrom jax.sharding import NamedSharding, Mesh\n", defined)
    for cell in cells[begin : end + 1]:
        exec(compile(cell, document, "exec"), defined)
    return defined


@public("jax", "docs: shard_map, matmul_allgather")
def _(sources: Path) -> Call:
    return _product(sources, "matmul_allgather", P("i", None))


@public("jax", "docs: shard_map, matmul_allgather_overlapped")
def _(sources: Path) -> Call:
    return _product(sources, "matmul_allgather_overlapped", P("i", None))


@public("jax", "docs: shard_map, matmul_allgather_overlapped_bidi")
def _(sources: Path) -> Call:
    return _product(sources, "matmul_allgather_overlapped_bidi", P("i", None))


@public("jax", "docs: shard_map, matmul_psumscatter_overlapped")
def _(sources: Path) -> Call:
    return _product(sources, "matmul_psumscatter_overlapped", P(None, "i"))


def _product(sources: Path, name: str, left: P) -> Call:
    lines = mesh(Auto, i=4)
    with jax.set_mesh(lines):
        defined = _section(sources, "docs/notebooks/shard_map.md", "def device_put", f"def {name}(")
    operands = (normal(0, 8, 8), normal(1, 8, 4))
    return Call(defined[name], operands, (left, P("i", None)), lines, setting=True, reference=lambda a, b: a @ b)


def _module(sources: Path, path: str) -> ModuleType:
    """A module of a repository, under the name of its file."""
    file = sources / path
    if not file.is_file():
        raise FileNotFoundError(f"no {path} among the sources")
    name = file.stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@public("jax", "docs: the training cookbook, model_apply, Explicit")
def _(sources: Path) -> Call:
    cookbook = _module(sources, "jax/docs/the-training-cookbook.py")
    lines = mesh(Explicit, fsdp=4)
    with jax.set_mesh(lines):
        config = cookbook.Config(
            mesh_shape=(4,), seq_length=8, host_batch_size=4, num_layers=1, embed_dim=16, mlp_dim=32, vocab_size=32,
            num_heads=4, head_dim=8, dtype="float32",
        )  # fmt: skip
        params = jax.jit(cookbook.init_param_state)(config)
    tokens = jax.random.randint(jax.random.key(0), (4, 8), 0, 32)
    specs = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding.spec, params)

    def apply(params, tokens):
        return cookbook.model_apply(config, params, tokens)

    return Call(apply, (params, tokens), (specs, P("fsdp")), lines, setting=True)


def _llama(sources: Path):
    root = sources / "jax-llm-examples" / "llama3"
    if not root.is_dir():
        raise FileNotFoundError("no jax-llm-examples/llama3 among the sources")
    sys.path.insert(0, str(root))
    model = importlib.import_module("llama3_jax.model")
    lines = mesh(Explicit, x=2, y=2, z=1)
    config = model.Config(
        embed=16, ffw_size=32, q_heads=4, kv_heads=2, num_layers=1, head_dim=8, vocab_size=32, max_seq_len=16,
        causal=True, use_prefill_attn_kernel=False, use_decode_attn_kernel=False, dtype=jnp.float32, mesh=lines,
        quant_layer=False, quant_cache=False,
    )  # fmt: skip
    return model, config, lines


@public("jax-llm-examples", "llama3: forward, Explicit")
def _(sources: Path) -> Call:
    model, config, lines = _llama(sources)
    with jax.set_mesh(lines):
        weights = model.Weights.init(jax.random.key(0), config)
    tokens = jax.random.randint(jax.random.key(1), (2, 8), 0, 32)

    def forward(tokens, weights):
        return model.forward(tokens, jnp.ones_like(tokens), weights, config)[0]

    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, weights)
    return Call(forward, (tokens, weights), (P("x"), specs), lines, setting=True)


@public("jax-llm-examples", "llama3: ffn_block, Explicit")
def _(sources: Path) -> Call:
    model, config, lines = _llama(sources)
    with jax.set_mesh(lines):
        layer = model.Layer.init(jax.random.key(0), config)

    def block(x, layer):
        return model.ffn_block(x, layer, config)

    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, layer)
    return Call(block, (normal(0, 2, 8, 16), layer), (P("x"), specs), lines, setting=True)


def _attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


@public("ringattention", "ring_attention")
def _(sources: Path) -> Call:
    ring = _module(sources, "ringattention/ringattention/ringattention_jax.py").ring_attention
    lines = mesh(Auto, sp=4)
    blockwise = {
        "causal_block_size": 1, "query_chunk_size": 4, "key_chunk_size": 4, "deterministic": True, "dropout_rng": None,
        "attn_pdrop": 0.0, "policy": None, "dtype": jnp.float32, "precision": None, "prevent_cse": True,
    }  # fmt: skip
    spec = P(None, "sp", None, None)

    def device(q, k, v):
        return ring(q, k, v, None, None, None, "sp", True, blockwise)

    whole = jax.shard_map(device, mesh=lines, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    operands = tuple(normal(seed, 2, 16, 2, 4) for seed in range(3))
    return Call(whole, operands, (spec,) * 3, lines, reference=_attention)


def _seqax(sources: Path, name: str) -> ModuleType:
    root = sources / "seqax"
    if not root.is_dir():
        raise FileNotFoundError("no seqax among the sources")
    sys.path.insert(0, str(root))
    return importlib.import_module(name)


@public("seqax", "shardops.einsum_unreduced and psum_scatter")
def _(sources: Path) -> Call:
    shardops, types = _seqax(sources, "shardlib.shardops"), _seqax(sources, "shardlib.shardtypes")
    lines = mesh(Auto, d=2, t=2)

    @types.scope
    def device(x, w):
        whole = shardops.all_gather("M/d F/t -> M F/t", w)
        hidden = shardops.einsum_unreduced("B/d M, M F/t -> B/d F/t", x, whole)
        partial = shardops.einsum_unreduced("B/d F/t, M F/t -> B/d M", hidden, whole)
        return shardops.psum_scatter("B/d M -> B/d M/t", partial)

    specs = (P("d", None), P("d", "t"))
    whole = jax.shard_map(device, mesh=lines, in_specs=specs, out_specs=P("d", "t"), check_vma=False)
    operands = (normal(0, 4, 8), normal(1, 8, 4))
    return Call(whole, operands, specs, lines, reference=lambda x, w: x @ w @ w.T)
