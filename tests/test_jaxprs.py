"""JAX functions as people write them, read as lines: the lines compute what the functions do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.extend.core import Primitive
from jax.interpreters import mlir

from runner.base.layout import Layout, Mesh, Spec
from runner.checks.reference.arithmetic import Arithmetic
from runner.checks.reference.interpreter import interpret
from runner.worker import calls
from runner.worker.jaxpr import jaxprs
from runner.worker.versions import abstract_mesh
from tests import harness, here, traced, written
from tests.traced import loop, texts

FUNCTIONS: written.Functions = {}
function = written.trying(FUNCTIONS)


def operands(shapes: tuple[tuple[Any, ...], ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, shape[-1], shape[1:-1]).astype(np.int32)
        if shape[0] == "i"
        else rng.normal(size=shape).astype(np.float32)
        for name, shape in zip("abcdefghijk", shapes, strict=False)
    }


@function((4, 8), (8, 16), (16, 8))
def mlp(x, w1, w2):
    h = jax.nn.gelu(x @ w1)
    return h @ w2


@function((4, 8))
def softmax(x):
    return jax.nn.softmax(x, axis=-1)


@function((2, 4, 2, 8), (2, 4, 2, 8), (2, 4, 2, 8))
def attention(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8.0)
    mask = jnp.tril(jnp.ones((4, 4), bool))
    s = jnp.where(mask, s, -1e30)
    p = jax.nn.softmax(s)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@function((8, 8), ("i", 5, 8))
def take(w, i):
    return jnp.take(w, i, axis=0)


@function((8, 8), ("i", 5, 8))
def index(w, i):
    return w[i, 1:3]


@function((8, 8), ("i", 8, 8))
def index2(w, i):
    return w[jnp.arange(8), i]


@function((8, 8), ("i", 5, 8), (5, 8))
def scatter_add(w, i, u):
    return w.at[i].add(u)


@function((8, 8), ("i", 5, 8), (5,))
def scatter_set(w, i, u):
    return w.at[i, 0].set(u)


@function((6, 8))
def along(x):
    return jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1)


@function((6, 8))
def sorting(x):
    return jnp.sort(x, axis=0), jnp.argsort(x, axis=1), jax.lax.top_k(x, 3)


@function((4, 8), (3, 8, 8))
def scan_layers(x, ws):
    def layer(h, w):
        h = jnp.tanh(h @ w)
        return h, h.sum()

    return jax.lax.scan(layer, x, ws)


@function((4, 8), (3, 8, 8))
def scan_rev(x, ws):
    return jax.lax.scan(lambda h, w: (h @ w, h.mean(0)), x, ws, reverse=True)


@function((4, 8), (3, 8, 8))
def scan_grad(x, ws):
    def loss(ws):
        h, _ = jax.lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, ws)
        return (h**2).sum()

    return jax.value_and_grad(loss)(ws)


@function((4, 8))
def fori(x):
    return jax.lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x)


@function((4, 8))
def cond(x):
    return jax.lax.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x)


@function((4, 8))
def switch(x):
    return jax.lax.switch(jnp.int32(jnp.abs(x[0, 0]) * 3), [lambda a: a * 2, lambda a: a - 1, jnp.sin], x)


@function((2, 8, 8, 3), (3, 3, 3, 4))
def conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@function((2, 8, 8, 3))
def maxpool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@function((2, 8, 8, 3))
def avgpool(x):
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")


@function((4, 8))
def layernorm(x):
    m = x.mean(-1, keepdims=True)
    v = x.var(-1, keepdims=True)
    return (x - m) * jax.lax.rsqrt(v + 1e-6)


@function((4, 8), (8,))
def grads(x, w):
    return jax.grad(lambda w: jnp.log(jax.nn.sigmoid(x @ w)).sum())(w)


@function((8, 8))
def chol(x):
    a = x @ x.T + 8 * jnp.eye(8)
    return jnp.linalg.cholesky(a), jnp.linalg.solve(a, x), jnp.linalg.inv(a)


@function((6, 4))
def qr(x):
    return jnp.linalg.qr(x)


@function((6, 6))
def eigh(x):
    return jnp.linalg.eigvalsh(x + x.T)


@function((8, 8))
def fft(x):
    return jnp.abs(jnp.fft.fft(x)), jnp.fft.irfft(jnp.fft.rfft(x))


@function((4, 8))
def dropout(x):
    k = jax.random.fold_in(jax.random.key(0), 1)
    keep = jax.random.bernoulli(k, 0.5, x.shape)
    return jnp.where(keep, x / 0.5, 0)


@function((4, 8))
def noise(x):
    return x + jax.random.normal(jax.random.key(3), x.shape)


@function((4, 8))
def noise_of_keys(x):
    keys = jax.random.split(jax.random.key(3), 4)
    uniform = jax.vmap(lambda key, row: jax.random.uniform(key, row.shape, minval=-2.0))(keys, x)
    return x + jax.vmap(lambda key: jax.random.normal(key, (8,)))(keys), uniform


@function((4, 8))
def noise_old(x):
    return x + jax.random.uniform(jax.random.PRNGKey(3), x.shape)


@function(("i", 4, 10))
def onehot(i):
    return jax.nn.one_hot(i, 10) @ jnp.ones((10, 3))


@function((4, 10), ("i", 4, 10))
def xent(logits, labels):
    logp = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logp, labels[:, None], axis=1).mean()


@function((4, 8))
def cums(x):
    return jnp.cumsum(x, 1), jnp.cumprod(x, 0), jax.lax.cummax(x, axis=1), jnp.cumsum(x[::-1], 0)[::-1]


@function((4, 8))
def padslice(x):
    return (
        jnp.pad(x, ((1, 2), (0, 0)))[1:5, ::2],
        jnp.roll(x, 3, 1),
        jnp.concatenate([x, x[:, :2]], 1),
        jnp.flip(x, 0),
        jnp.split(x, 2, 1),
        jnp.tile(x, (2, 1)),
        jnp.repeat(x, 2, axis=0),
    )


@function((8, 8))
def dyn(x):
    i = jnp.argmax(x[0])
    return jax.lax.dynamic_slice(x, (i, 0), (2, 8)), jax.lax.dynamic_update_slice(x, x[:1] * 0, (i, 0))


@function((4, 8))
def ints(x):
    i = (x * 10).astype(jnp.int32)
    return i // 3, i % 3, i & 3, i | 1, ~i, i >> 1, jnp.sign(i), jax.lax.div(i, 3), jax.lax.rem(i, 3)


@function((4, 8))
def rope(x):
    pos = jnp.arange(4)
    freq = 1 / 10000 ** (jnp.arange(0, 8, 2) / 8)
    a = pos[:, None] * freq
    x1, x2 = x[:, ::2], x[:, 1::2]
    return jnp.stack([x1 * jnp.cos(a) - x2 * jnp.sin(a), x1 * jnp.sin(a) + x2 * jnp.cos(a)], -1).reshape(4, 8)


@function((16, 8), (8, 4), (4, 8, 16))
def moe(x, wr, we):
    p = jax.nn.softmax(x @ wr)
    g, i = jax.lax.top_k(p, 2)
    oh = jax.nn.one_hot(i, 4)
    y = jnp.einsum("td,edf->tef", x, we)
    return jnp.einsum("tke,tef,tk->tf", oh, y, g)


@function((4, 8))
def vmapped(x):
    return jax.vmap(lambda r: jnp.dot(r, r) + r[0])(x)


@function(
    (8,),
)
def hess(x):
    return jax.hessian(lambda x: (jnp.sin(x) * x).sum())(x)


@function(
    (8,),
)
def jac(x):
    return jax.jacfwd(lambda x: jnp.cumsum(x) ** 2)(x)


@function((4, 8))
def bf16(x):
    return (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)).astype(jnp.float32)


@function((2, 8, 8, 3))
def maxpool_grad(x):
    return jax.grad(
        lambda x: (jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2).sum()
    )(x)


@function((2, 8, 8, 3), (3, 3, 3, 4))
def conv_grad(x, w):
    return jax.grad(
        lambda w: (
            jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2
        ).sum(),
    )(w)


@function((4, 8))
def whiles(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))


@function((4, 8))
def until(x):
    return jax.lax.while_loop(lambda x: (x**2).sum() > 1, lambda x: x / 2, x)


@function((6,), ("i", 6, 5))
def swapped_while(x, n):
    def step(c):
        a, b, i = c
        return b, a + 1, i + 1

    return jax.lax.while_loop(lambda c: (c[0].sum() < 9) & (c[2] < n.sum()), step, (x, 2 * x, 0))


@function((4, 3))
def whiles_mapped(x):
    def halved(row):
        return jax.lax.while_loop(lambda c: (c[0] ** 2).sum() > 0.5, lambda c: (c[0] / 2, c[1] + 1), (row, 0))

    return jax.vmap(halved)(x)


@function((4, 3))
def while_of_scans(x):
    def step(c):
        y, _ = c
        z, _ = jax.lax.scan(lambda z, r: (z * 0.5 + r.mean(), None), y, x)
        return z, jnp.abs(z - y).max()

    return jax.lax.while_loop(lambda c: c[1] > 1e-3, step, (jnp.zeros(3), jnp.inf))[0]


@function((4, 3))
def scan_of_whiles(x):
    def row(carry, r):
        halved = jax.lax.while_loop(lambda r: jnp.abs(r).max() > 0.3, lambda r: r / 2, r)
        return carry + halved, halved

    return jax.lax.scan(row, jnp.zeros(3), x)


@function((4,), ("i", 4, 3))
def traced_bounds(x, n):
    return jax.lax.fori_loop(n[0], n[0] + 5, lambda i, s: s + i * x, jnp.zeros(4))


@function((3,))
def poisson(x):
    return jax.random.poisson(jax.random.key(1), jnp.abs(x) * 4 + 1)


@function((4, 8))
def clipnorm(x):
    n = jnp.sqrt((x**2).sum())
    return x * jnp.minimum(1.0, 1.0 / (n + 1e-6))


@function((8, 4), ("i", 8, 4))
def segsum(x, i):
    return jax.ops.segment_sum(x, i, 4)


@function((5,), (5,))
def interp(x, y):
    return jnp.interp(jnp.linspace(0, 1, 7), jnp.sort(x), y)


@function((4, 8))
def logsumexp(x):
    return (
        jax.nn.logsumexp(x, axis=0),
        jnp.median(x),
        jnp.percentile(x, 30),
        jnp.std(x),
        jnp.prod(x, axis=1),
        jnp.linalg.norm(x),
    )


@function((8, 8))
def tri(x):
    return jax.scipy.linalg.solve_triangular(jnp.tril(x) + 8 * jnp.eye(8), x, lower=True)


@function((4, 8))
def gumbel(x):
    return (
        jax.random.categorical(jax.random.key(1), x),
        jax.random.permutation(jax.random.key(2), 8),
        jax.random.randint(jax.random.key(3), (4,), 0, 9),
    )


@function((4, 8))
def truncn(x):
    return x * jax.random.truncated_normal(jax.random.key(1), -2.0, 2.0, x.shape)


@function((4, 4))
def svd(x):
    return jnp.linalg.svd(x, compute_uv=False), jnp.linalg.det(x), jnp.linalg.slogdet(x)


@function((4, 4))
def of_lu(x: Any) -> Any:
    x = x + 4 * jnp.eye(4)
    both = jax.scipy.linalg.lu_factor(x)
    gradient = jax.grad(lambda x: jnp.linalg.det(x) / 100 + jnp.linalg.slogdet(x)[1])(x)
    return gradient, jax.scipy.linalg.lu_solve(both, x[0]), jax.scipy.linalg.lu(x[:, :3])


@function((5, 3))
def of_reflectors(x: Any) -> Any:
    x = x + jnp.eye(5, 3)
    reflectors, factors = jnp.linalg.qr(x, mode="raw")
    a = reflectors.mT
    ends = [jax.lax.linalg.ormqr(a, factors, x, transpose=transpose) for transpose in (False, True)]
    ends += [jax.lax.linalg.ormqr(a, factors, x.T, left=False, transpose=transpose) for transpose in (False, True)]
    return reflectors, factors, jax.lax.linalg.householder_product(a, factors), ends


@function((6,))
def of_signs(x: Any) -> Any:
    return jnp.signbit(x), jnp.copysign(x, -x[::-1])


@function((4, 8), (8,))
def as_given(x, b):
    return x, {"sum": x + b}


@function((4, 8))
def of_bits(x: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    fewer = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    halves = jax.lax.bitcast_convert_type(x, jnp.bfloat16)
    again = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.uint8), jnp.float32)
    return bits >> 23, fewer, halves[..., 1], again, jnp.frexp(x), jnp.ldexp(x, 3), jax.lax.clz(bits)


@function((4, 8))
def of_next_floats(x: Any) -> Any:
    half = x.astype(jnp.bfloat16)
    return (jnp.nextafter(x, jnp.inf) - x) * 1e6, jnp.nextafter(half, jnp.zeros_like(half)) - half


@function((4, 8))
def of_special_functions(x: Any) -> Any:
    a = jnp.abs(x) + 1
    special = jax.scipy.special
    return special.gammainc(a, a + x), special.gammaincc(a, a), special.zeta(a + 1, a), special.polygamma(2, a)


@function((8, 8), ("i", 5, 8))
def of_rare_kinds(x: Any, i: Any) -> Any:
    scattered = x.at[i].subtract(x[:5])
    four_bits = (x * 2).astype(jnp.int4) + 1
    grouped = jax.lax.reshape(x, (64,), dimensions=(1, 0))
    return scattered, jax.lax.approx_max_k(x, 2), jax.lax.approx_min_k(x, 2), four_bits.astype(jnp.int32), grouped


own_primitive = Primitive("own_primitive")
own_primitive.def_impl(lambda x, *, by: by * x)
own_primitive.def_abstract_eval(lambda x, *, by: x)
mlir.register_lowering(own_primitive, mlir.lower_fun(own_primitive.impl, multiple_results=False))


@function((4, 3))
def primitive_of_a_library(x: Any) -> Any:
    return own_primitive.bind(x, by=3.0) + 1


KEY = jax.random.key(7)


@function((4, 8))
def captured_key(x):
    return x + jax.random.normal(jax.random.fold_in(KEY, 2), x.shape)


@function((6,))
def draws_by_rejection(x: Any) -> Any:
    keys = jax.random.split(KEY, 3)
    mapped = jax.vmap(lambda key, x: jax.random.loggamma(key, jnp.exp(x), (2,)))(keys, x[:3])
    return jax.random.dirichlet(keys[0], jnp.exp(x)), mapped


@function((5,))
def derivatives_of_draws(x: Any) -> Any:
    return jax.grad(lambda x: (jax.random.gamma(KEY, jnp.exp(x)) ** 2).sum())(x), jax.grad(
        lambda a: jax.scipy.special.gammainc(a, jnp.ones_like(a)).sum()
    )(jnp.exp(x))


@function((4, 2))
def clipped(x: Any) -> Any:
    return x.clip(0, 0.5), jnp.clip(x, -0.25, jnp.abs(x) / 2), x.clip(min=0), x.clip(max=0.1)


@function((4, 3))
def draws_of_several_outcomes(x: Any) -> Any:
    return jax.random.multinomial(KEY, 5.0, jax.nn.softmax(x))


@function((4, 2))
def keys_at_other_places(x: Any) -> Any:
    keys = jax.random.split(KEY, (2, 4)).T
    keys = keys.at[1, 0].set(KEY).reshape(8)
    keys = jnp.where(x.reshape(8) > 0, keys[jnp.argsort(x.reshape(8))], jnp.broadcast_to(KEY, (8,)))
    keys = jax.lax.dynamic_slice_in_dim(jnp.concatenate([keys, keys[:2]]), (x[0, 0] > 0).astype(int), 8)
    return jax.vmap(lambda key: jax.random.uniform(key, (2,)))(jnp.roll(keys, 1)), keys == KEY


@function((3,))
def complex_draws(x: Any) -> Any:
    z = jax.random.normal(jax.random.clone(KEY), x.shape, jnp.complex64)
    return x * z.real, z.imag


@function(
    (32, 16), (2, 16, 16), (2, 16, 8), (2, 16, 8), (2, 16, 16), (2, 16, 32), (2, 16, 32), (2, 32, 16), (2, 16), (2, 16),
    ("i", 2, 9, 32),
)  # fmt: skip
def llama(e, wq, wk, wv, wo, w1, w2, w3, g1, g2, tokens):
    """Two scanned layers with rematerialisation, grouped heads, rotary positions; the loss and all gradients."""

    def rms(x, g):
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * g

    def rope(x):
        positions = jnp.arange(x.shape[1])
        frequencies = 1 / 10000 ** (jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
        angles = positions[:, None] * frequencies
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        x1, x2 = jnp.split(x, 2, -1)
        return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)

    @jax.checkpoint
    def layer(h, weights):
        wq, wk, wv, wo, w1, w2, w3, g1, g2 = weights
        (b, s, d), heads = h.shape, 2
        x = rms(h, g1)
        q = rope((x @ wq).reshape(b, s, heads, -1))
        k = jnp.repeat(rope((x @ wk).reshape(b, s, 1, -1)), heads, 2)
        v = jnp.repeat((x @ wv).reshape(b, s, 1, -1), heads, 2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(d // heads)
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e30)
        h = h + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(b, s, d) @ wo
        x = rms(h, g2)
        return h + (jax.nn.silu(x @ w1) * (x @ w2)) @ w3, None

    def loss(e, *weights):
        h, _ = jax.lax.scan(layer, e[tokens[:, :-1]], weights)
        logp = jax.nn.log_softmax(h @ e.T)
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()

    weights = [0.1 * w for w in (wq, wk, wv, wo, w1, w2, w3)]
    return jax.value_and_grad(loss, argnums=tuple(range(10)))(0.1 * e, *weights, g1, g2)


def held(read: jaxprs.FunctionLines, given: dict[str, np.ndarray], called: Callable[..., Any]) -> None:
    """Compare lines on whole arrays, and their types, with JAX."""
    arrays = {**given, **read.arrays}
    declared = {a: {"shape": list(v.shape), "dtype": str(v.dtype), "spec": []} for a, v in arrays.items()}
    experiment, results = traced.experiment(read.traced(given), "graph", declared, program="auto")
    inferred = harness.inferred(experiment)
    types, floats = inferred.outputs, inferred.floats["graph"]
    values = interpret(experiment, "graph", arrays, keep=results, arithmetic=Arithmetic(floats)).values
    with here.configurable():
        wanted = jax.tree.leaves(jax.jit(called)(*map(jnp.asarray, given.values())))
    assert len(wanted) == len(results)
    for result, want in zip(results, wanted, strict=True):
        assert (types[result].shape, types[result].dtype) == (want.shape, str(want.dtype)), result
        exact = np.asarray(want, float)
        most = np.abs(exact[np.isfinite(exact)]).max(initial=1.0)
        np.testing.assert_allclose(np.asarray(values[result][0], float), exact, rtol=8e-3, atol=2e-4 * most)


@function((2, 3, 4))
def draws_with_arrays_of_keys(x):
    keys = jax.random.split(jax.random.key(7), (2, 3))
    more = jax.vmap(jax.vmap(jax.random.fold_in))(keys, jnp.arange(6).reshape(2, 3))
    halves = jax.vmap(jax.vmap(jax.random.split))(keys)
    noise = jax.vmap(jax.vmap(lambda key: jax.random.normal(key, (4,))))(more)
    return x + noise, jax.vmap(jax.vmap(lambda pair: jax.random.bits(pair[1], (2,))))(halves)


@function((4, 3))
def numbers_of_narrow_dtypes(x):
    chosen = jnp.where(x > 0, jnp.int8(100), jnp.int8(-3)) * jnp.int8(2)
    taken = jax.lax.cond(x[0, 0] > 0, lambda: jnp.int8(-3), lambda: jnp.int8(100)) * jnp.int8(2)
    down = jax.lax.scan(lambda count, row: (count - jnp.int8(100), count), jnp.int8(-1), x)
    more = jnp.where(x > 0, np.uint8(255), np.uint8(9)) + np.uint8(1)
    return chosen, taken, down, more, jnp.full((3,), -1, "int8") * jnp.int8(100)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sample(4)
def test_the_lines_compute_what_the_function_does(name: str) -> None:
    called, shapes = FUNCTIONS[name]
    given = operands(shapes)
    held(jaxprs.read(called, given), given, called)


@pytest.mark.parametrize("name", written.FUNCTIONS)
@pytest.mark.sample(5)
def test_the_lines_compute_what_people_write(name: str) -> None:
    called, shapes = written.FUNCTIONS[name]
    given = operands(shapes)
    held(jaxprs.read(called, given), given, called)


MESH = Mesh(("x", "y"), (2, 2))


def of_device(called: Callable[..., Any], given: dict[str, Any], specs: Sequence[Any], **more: Any) -> Any:
    """Return the lines of a device's code, for arrays with these specs."""
    laid = {
        name: Layout(MESH, each.shape, Spec.of(spec)) for (name, each), spec in zip(given.items(), specs, strict=True)
    }
    blocks = {name: jax.ShapeDtypeStruct(each.shard_shape, given[name].dtype) for name, each in laid.items()}
    varying = {name: frozenset(each.spec.axes) for name, each in laid.items()}
    return jaxprs.read(called, blocks, mesh=MESH, manual=MESH.axes, varying=varying, **more)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", written.DEVICES)
@pytest.mark.sample(3)
def test_the_lines_of_a_device_compute_what_its_code_does(name: str, check_vma: bool) -> None:
    called, shapes, specs, out = written.DEVICES[name]
    given = operands(shapes)
    read = of_device(called, given, specs, check_vma=check_vma)
    outs = jax.tree.leaves(out, is_leaf=lambda each: isinstance(each, jax.P))
    arrays = {a: {"shape": list(v.shape), "dtype": str(v.dtype), "spec": Spec.of(spec).json()}
              for (a, v), spec in zip(given.items(), specs, strict=True)}  # fmt: skip
    specs_out = [Spec.of(spec).json() for spec in outs]
    experiment, results = traced.experiment(
        read.traced(given), "per_device", arrays, specs_out, check_vma=check_vma, program="shard_map"
    )
    values = interpret(experiment, "per_device", given, keep=results).values
    types = harness.inferred(experiment).outputs
    mesh = calls.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    mapped = jax.shard_map(called, mesh=mesh, in_specs=specs, out_specs=out, check_vma=check_vma)
    with here.configurable():
        wanted = jax.tree.leaves(jax.jit(mapped)(*map(jnp.asarray, given.values())))
    devices = [*mesh.devices.flat]
    for result, want in zip(results, wanted, strict=True):
        assert (types[result].shape, types[result].dtype) == (want.shape, str(want.dtype)), result
        for shard in want.addressable_shards:
            np.testing.assert_allclose(
                values[result][devices.index(shard.device)], shard.data, rtol=8e-3, atol=2e-4, err_msg=result
            )


def test_casts_are_only_in_initial_carries() -> None:
    called, shapes, specs, _ = written.DEVICES["pipeline"]
    read = of_device(called, operands(shapes), specs)
    lines = texts(read.lines)
    assert str(lines).count("pcast(") == len(lines["scan"]["carry"]) == 2
    assert "pcast(" not in str(texts(of_device(called, operands(shapes), specs, check_vma=False).lines))


def test_draws_under_vmap_equal_draws_with_one_key() -> None:
    lines = str(texts(jaxprs.read(noise_of_keys, operands(((4, 8),))).lines))
    assert "'drawn': 'uniform(key_2, (8,), minval=-2.0" in lines
    assert "normal(key_3, (8,))" in lines
    assert "bits(" not in lines


def summed(x: Any) -> Any:
    return jax.lax.psum((x**2).sum(), "x")


@pytest.mark.parametrize(
    ("called", "differentiated"),
    [(summed, False), (jax.grad(summed), True), (lambda x: summed(jax.grad(lambda y: (y**3).sum())(x)), False)],
)
def test_a_derivative_of_a_collective_is_noticed(called: Callable[..., Any], differentiated: bool) -> None:
    read = of_device(called, {"x": np.ones((4, 4), np.float32)}, [(("x",), ())])
    assert read.differentiated is differentiated


def doubled(x: Any) -> Any:
    return jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def kernel(x: Any) -> Any:
    def body(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = 2 * x_ref[...]

    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(body, out_shape=kind, interpret=True, name="doubling")(x)


def mapped(x: Any) -> Any:
    mesh = abstract_mesh(MESH)
    return jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))(x)


def counting(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[0] < 2_000_000, lambda c: (c[0] + 1, c[1] / 2), (0, x))[1]


def of_another_key(x: Any) -> Any:
    return x + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape)


def of_another_default(x: Any) -> Any:
    with jax.default_prng_impl("unsafe_rbg"):
        return x + jax.random.normal(jax.random.PRNGKey(0), x.shape)


def of_the_compiler(x: Any) -> Any:
    return x + jax.lax.rng_uniform(0.0, 1.0, x.shape)


def applied(x: Any) -> Any:
    return x.at[0].apply(jnp.sin)


NAMED = "name a reference for it, or for a jitted function that calls it"
OTHERS = (
    "XLA's compiler draws its numbers, differently for each platform and layout; draw by a key of threefry2x32, JAX's "
    "default, or draw outside and pass the numbers as an argument"
)
REFUSED = {
    doubled: f"a Python callback '<lambda>' cannot be read: {NAMED}",
    kernel: f"a Pallas kernel 'doubling' cannot be read: {NAMED}",
    counting: "a while_loop of 2,000,000 steps, which the oracle would interpret one by one; the limit is 1,000,000: "
    "take fewer, or name a reference for a jitted function that contains it",
    of_another_key: f"a random key of 'rbg': {OTHERS}",
    of_another_default: f"a random key of 'unsafe_rbg': {OTHERS}",
    of_the_compiler: "'rng_uniform' is drawn by XLA's compiler, which the oracle does not repeat: draw outside and "
    "pass the numbers as an argument, or name a reference for a jitted function that draws",
    applied: "'scatter' with a function, as in x.at[index].apply: set its results, x.at[i].set(f(x[i]))",
}


@pytest.mark.parametrize("called", REFUSED, ids=lambda called: called.__name__)
def test_an_unreadable_primitive_is_reported_with_the_line_and_a_remedy(called: Callable[..., Any]) -> None:
    with pytest.raises(jaxprs.CannotRead) as refused:
        jaxprs.read(called, operands(((4, 3),)))
    assert str(refused.value).startswith("test_jaxprs.py:")
    assert str(refused.value).endswith(f": {REFUSED[called]}")


@pytest.mark.parametrize(("called", "name"), [(kernel, "doubling"), (jax.jit(mapped), "mapped")])
def test_a_reference_replaces_the_called_function(called: Callable[..., Any], name: str) -> None:
    given = operands(((4, 3),))
    read = jaxprs.read(lambda x: called(x + 1) * 3, given, references={name: lambda x: x + x})
    held(read, given, lambda x: (x + 1) * 6)


def test_a_reference_of_a_function_with_rules_of_its_own_leaves_its_derivative_to_them() -> None:
    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return kernel(x)

    twice.defvjp(lambda x: (twice(x), None), lambda _, g: (7 * g,))
    given = operands(((4, 3),))
    read = jaxprs.read(jax.value_and_grad(lambda x: twice(x).sum()), given, references={"twice": lambda x: 2 * x})
    held(read, given, lambda x: (2 * x.sum(), jnp.full_like(x, 7)))


def test_a_check_of_equinox_is_read_as_one_that_passes() -> None:
    def raises(_: Any) -> None:
        raise ValueError

    def checked(x: Any) -> Any:
        # What `equinox.error_if(2 * x, (x > 100).any(), ...)` makes.
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.lax.cond((x > 100).any(), lambda _: jax.pure_callback(raises, kind, 0), lambda x: x, 2 * x)

    raises.__module__ = "equinox._errors"
    given = operands(((4, 3),))
    read = jaxprs.read(checked, given)
    held(read, given, lambda x: 2 * x)
    assert "100" not in str(texts(read.lines))


def test_the_counter_of_a_fori_loop_has_no_line_of_the_users() -> None:
    def summing(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, total: total + i * x, x)

    read = jaxprs.read(summing, operands(((4, 3),)))
    body = traced.body(loop(read.lines))
    counters = [name for name, line in texts(body).items() if line.endswith(" + 1")]
    assert len(counters) == 1
    assert read.frames.keys().isdisjoint(counters)
    assert {*body} - {*counters} - {"i", "total"} <= read.frames.keys()


SUM = jax.jit(lambda x, w: x @ w)
SQUARE = np.ones((3, 3), np.float32)
UNFIT = {
    "fit the operands": (
        lambda x: jax.jit(written._safe_sqrt)(x), {"_safe_sqrt": lambda x, y: x},
        "the reference of '_safe_sqrt' cannot be called with float32[3, 3]: ",
    ),
    "give what is wanted": (
        lambda x: jax.jit(written._safe_sqrt)(x), {"_safe_sqrt": lambda x: x[0]},
        "the reference of '_safe_sqrt' gives float32[3] instead of float32[3, 3]",
    ),
    "be differentiated": (
        jax.grad(lambda x: SUM(x, SQUARE).sum()), {"<lambda>": lambda x, w: x @ w},
        "'<lambda>' is differentiated or mapped here, and its reference is only for the function itself: name a "
        "reference for a jitted function that contains the derivative or the map",
    ),
    "be mapped": (
        jax.vmap(kernel), {"doubling": lambda x: 2 * x},
        "'doubling' is mapped by vmap here, and its reference is only for the function itself: name a reference for a "
        "jitted function that contains the vmap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_an_unfit_reference_is_refused(case: str) -> None:
    called, references, why = UNFIT[case]
    with pytest.raises(jaxprs.CannotRead) as refused:
        jaxprs.read(called, operands(((3, 3),)), references=references)
    assert f": {why}" in str(refused.value)


def test_a_while_with_a_constant_trip_count_has_no_condition_in_its_lines() -> None:
    called, shapes = written.FUNCTIONS["power_iteration"]
    lines = jaxprs.read(called, operands(shapes)).lines
    assert loop(lines).form.steps == 6
    assert "where" not in str(texts(lines))


def test_each_step_of_an_unrolled_loop_is_a_line() -> None:
    def running(x: Any) -> Any:
        total = jnp.zeros(4)
        for row in range(3):
            total = total * 0.5 + x[row]
        return total

    lines = texts(jaxprs.read(running, operands(((3, 4),))).lines).values()
    assert [text.count("0.5") for text in lines if "0.5" in text] == [1, 1, 1], lines


def test_an_unread_value_has_no_line() -> None:
    def called(x: Any) -> Any:
        jnp.linalg.eigh(x)
        return jax.jit(lambda x: (x + 1, jnp.nextafter(x, x)))(x)[0]

    assert list(texts(jaxprs.read(called, operands(((3, 3),))).lines).values()) == ["a + 1.0"]


def test_a_decision_of_constants_is_the_one_that_a_program_takes() -> None:
    def called(x: Any) -> Any:
        # In float64 it is below 7, in float32 it is 7.
        product = jnp.asarray(0.7, "float32") * jnp.asarray(10.0, "float32")
        steps = jnp.floor(product).astype(int)
        return jnp.where(product >= 7.0, x, x * 2) + steps, jnp.floor(x * product)

    lines = texts(jaxprs.read(called, operands(((3,),))).lines)
    assert lines == {
        "product": "0.7 * 10.0",
        "mul": "a * 2.0",
        "add_2": "where(True, a, mul) + astype(7, 'float32')",
        "floor_2": "floor(a * product)",
    }


def test_lines_have_the_names_and_the_places_of_the_users_own() -> None:
    called, shapes = FUNCTIONS["mlp"]
    read = jaxprs.read(called, operands(shapes))
    assert texts(read.lines)["h"] == "a @ b"
    assert read.frames["h"].text == "h = jax.nn.gelu(x @ w1)"


def test_a_named_call_is_an_operation_only_if_it_computes_the_same() -> None:
    def through(a: Any, b: Any) -> Any:
        return jax.grad(lambda b: jnp.linalg.solve(a, b).sum())(b)

    given = operands(((3, 3), (3, 3)))
    forward = jaxprs.read(jnp.linalg.solve, given)
    assert list(texts(forward.lines).values()) == ["solve(a, b)"]
    # The transposed function has the same name and operands of the same shapes, and solves with the transpose.
    assert list(texts(jaxprs.read(through, given).lines).values())[-1].startswith("solve(matrix_transpose(a), ")
