"""The prelude: operations that are defined by others, each in a line of the language.

`runner/graph/language/definitions.py` says how a definition is read. Its NumPy counterpart, the roundings inside it and
its rule on shards follow from those of the operations that it names. JAX's own formula decides what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from runner.graph.language import notation
from runner.graph.language.operations.deferred import algebra, defined, reductions
from runner.graph.language.operations.linear import convolution
from runner.graph.language.operations.row import Operation, Shapes, array


def definition(name: str, arguments: str, lines: str, jax: str | None = None, **more: Any) -> Operation:
    """A row for an operation that others define."""
    return array(name, arguments, defined(lines, arguments), jax, definition=lines, **more)


def _activation(name: str, lines: str, arguments: str = "x", **more: Any) -> Operation:
    """A row for an elementwise function of `jax.nn`."""
    return definition(name, arguments, lines, f"jax.nn.{name}", elementwise=True, **more)


def _attention(shapes: Shapes, _static: Callable[[str], Any], _result: tuple[int, ...]) -> float | None:
    """Two products: of each query with every key, and of their weights with the values."""
    if not {"query", "key"} <= set(shapes) or len(shapes["key"]) < 3:
        return None
    # A single sequence has no dimension for the batch: the keys are the third dimension from the last.
    return 2 * math.prod(shapes["query"]) * shapes["key"][-3]


def _attention_row(lines: str) -> Operation:
    """The row of attention, whose definition is of operands with at least a dimension for the length."""
    name, arguments = "dot_product_attention", "query, key, value, bias=None, mask=None, *, scale=None, is_causal=False"
    counterpart = algebra.of_matrices_too(defined(lines, arguments))
    return array(
        name, arguments, counterpart, f"jax.nn.{name}",
        definition=lines, wide=2, in_float32=True, multiply_adds=_attention,
    )  # fmt: skip


_along, _axis = "x, axis=-1, where=None", "a, axis=None, *, keepdims=False"
_moments = "a, axis=None, dtype=None, *, ddof=0, keepdims=False, where=None, mean=None, correction=None"
_kept = (
    "kept = given(where, where(where, x, -inf), x); max = max(stop_gradient(kept), axis, keepdims=True, initial=-inf)"
)
_ratio, _logarithm = "exp / sum(exp, axis, keepdims=True)", "shifted - log(sum(exp(shifted), axis, keepdims=True))"
_shift, _squeezed = "shift = where(isfinite(max), max, 0.0)", "given(keepdims, (), axis)"
_nan, _like = "a, axis=None, dtype=None, *, keepdims=False", "dtype=None, shape=None"
_dim = "operand, index, axis=0, keepdims=True"
_norm = "sqrt(sum(x**2, axis, keepdims=keepdims))"

_weighted = "a, axis=None, b=None, keepdims=False, *, where=None"
_logsumexp = (
    "kept = given(where, where(where, a, -inf), a); "
    f"max = max(stop_gradient(real(kept)), axis, keepdims=True, initial=-inf); {_shift}; "
    "terms = given(b, where(b == 0, 0.0, exp(kept - shift) * b), exp(kept - shift)); "
    f"squeeze(log(sum(terms, axis, keepdims=True)) + shift, {_squeezed})"
)

ROWS = (
    # Arithmetic.
    definition("reciprocal", "x, /", "1 / x", elementwise=True),
    definition("divmod", "x1, x2, /", "(floor_divide(x1, x2), remainder(x1, x2))", decides="comparison",
        elementwise=True),
    definition("clamp", "min, x, max", "clip(x, min, max)", "jax.lax.clamp", elementwise=True),
    definition("fmax", "x1, x2", "where((x1 > x2) | (x2 != x2), x1, x2)", elementwise=True),
    definition("fmin", "x1, x2", "where((x1 < x2) | (x2 != x2), x1, x2)", elementwise=True),
    definition("logit", "x", "log(x / (1 - x))", "jax.scipy.special.logit", elementwise=True),
    definition("angle", "z, deg=False", "radians = arctan2(imag(z), real(z)); given(deg, rad2deg(radians), radians)",
        elementwise=True),
    definition("isposinf", "x, /", "x == inf", elementwise=True),
    definition("isneginf", "x, /", "x == -inf", elementwise=True),
    definition("allclose", "a, b, rtol=1e-05, atol=1e-08, equal_nan=False",
        "all(isclose(a, b, rtol, atol, equal_nan))", decides="comparison"),
    # Activations.
    _activation("relu", "maximum(x, 0)"),
    _activation("relu6", "minimum(maximum(x, 0), 6.0)"),
    _activation("sigmoid", "logistic(x)", exponential=True),
    _activation("silu", "x * logistic(x)", also=("swish",), exponential=True),
    _activation("gelu", "given(approximate, "
        "x * 0.5 * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x**3))), 0.5 * x * erfc(-x / 1.4142135623730951))",
        "x, approximate=True", exponential=True),
    _activation("softplus", "logaddexp(x, 0.0)", exponential=True),
    _activation("log_sigmoid", "-softplus(-x)", exponential=True),
    _activation("leaky_relu", "where(x >= 0, x, negative_slope * x)", "x, negative_slope=0.01"),
    _activation("elu", "where(x > 0, x, alpha * expm1(where(x > 0, 0.0, x)))", "x, alpha=1.0", exponential=True),
    _activation("selu", "1.0507009873554805 * elu(x, 1.6732632423543772)", exponential=True),
    _activation("celu", "maximum(x, 0.0) + alpha * expm1(minimum(x, 0.0) / alpha)", "x, alpha=1.0"),
    _activation("hard_tanh", "where(x > 1, 1, where(x < -1, -1, x))"),
    _activation("hard_sigmoid", "relu6(x + 3.0) / 6.0"),
    _activation("hard_silu", "x * hard_sigmoid(x)", also=("hard_swish",)),
    _activation("soft_sign", "x / (abs(x) + 1.0)"),
    _activation("sparse_plus", "where(x <= -1.0, 0.0, where(x >= 1.0, x, square(x + 1.0) / 4.0))"),
    _activation("sparse_sigmoid", "clip((x + 1.0) / 2.0, 0.0, 1.0)"),
    _activation("squareplus", "(x + sqrt(square(x) + b)) / 2.0", "x, b=4"),
    _activation("mish", "x * tanh(softplus(x))", exponential=True),
    # Along dimensions.
    definition("glu", "x, axis=-1", "halves = split(x, 2, axis); halves[0] * logistic(halves[1])", "jax.nn.glu"),
    definition("softmax", _along, f"{_kept}; exp = exp(kept - max); "
        f"given(where, where(where, {_ratio}, 0.0), {_ratio})", "jax.nn.softmax", exponential=True),
    definition("log_softmax", _along, f"{_kept}; shifted = kept - max; "
        f"given(where, where(where, {_logarithm}, -inf), {_logarithm})", "jax.nn.log_softmax", exponential=True),
    definition("standardize", "x, axis=-1, mean=None, variance=None, epsilon=1e-05, where=None",
        "center = given(mean, mean, mean(x, axis, keepdims=True, where=where)); spread = given(variance, variance, "
        "maximum(mean(square(x), axis, keepdims=True, where=where) - square(center), 0.0)); "
        "(x - center) * rsqrt(spread + epsilon)", "jax.nn.standardize"),
    definition("logsumexp", _weighted, _logsumexp, "jax.nn.logsumexp", exponential=True),
    array("logmeanexp", "x, axis=None, where=None, keepdims=False",
        reductions.logmeanexp(defined(_logsumexp, _weighted)), "jax.nn.logmeanexp", exponential=True,
        definition=f"max = max(stop_gradient(x), axis, keepdims=True, initial=-inf); {_shift}; "
        f"squeeze(log(mean(exp(x - shift), axis, keepdims=True)) + shift, {_squeezed})"),
    array("var", _moments, reductions.var, wide=2, on_arrays="method",
        definition="mean = mean(a, axis, keepdims=True); mean((a - mean) ** 2, axis, keepdims=keepdims)"),
    definition("std", _moments, "sqrt(var(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean, "
        "correction=correction))", wide=2, on_arrays="method"),
    definition("ptp", _axis, "max(a, axis, keepdims=keepdims) - min(a, axis, keepdims=keepdims)", on_arrays="method"),
    array("nanmean", _axis, reductions.nanmean,
        definition="nansum(a, axis, keepdims=keepdims) / sum(~isnan(a), axis, keepdims=keepdims)"),
    array("norm", "x, ord=None, axis=None, keepdims=False", algebra.norm, "jnp.linalg.norm", definition=_norm),
    array("vector_norm", "x, /, *, axis=None, keepdims=False, ord=2", algebra.vector_norm, "jnp.linalg.vector_norm",
        definition=_norm),
    definition("nansum", _nan, "sum(where(isnan(a), 0, a), axis, dtype, keepdims=keepdims)", wide=2, reduction="sum"),
    definition("nanprod", _nan, "prod(where(isnan(a), 1, a), axis, dtype, keepdims=keepdims)", wide=2,
        reduction="prod"),
    definition("count_nonzero", "a, axis=None, keepdims=False", "sum(a != 0, axis, keepdims=keepdims)",
        decides="threshold", reduction="sum"),
    definition("median", _axis, "quantile(a, 0.5, axis, keepdims=keepdims)"),
    definition("percentile", "a, q, axis=None, *, method='linear', keepdims=False",
        "quantile(a, q / 100, axis, method=method, keepdims=keepdims)"),
    # Products.
    definition("outer", "a, b", "expand_dims(ravel(a), 1) * ravel(b)"),
    definition("matvec", "x1, x2, /", "squeeze(matmul(x1, expand_dims(x2, -1)), -1)", contraction=notation.matvec),
    definition("vecmat", "x1, x2, /", "squeeze(matmul(expand_dims(conj(x1), -2), x2), -2)",
        contraction=notation.vecmat),
    definition("vdot", "a, b, *, preferred_element_type=None",
        "einsum('k,k->', conj(ravel(a)), ravel(b), preferred_element_type=preferred_element_type)",
        contraction=notation.vdot),
    definition("vecdot", "x1, x2, /, *, axis=-1",
        "einsum('...k,...k->...', conj(moveaxis(x1, axis, -1)), moveaxis(x2, axis, -1))", contraction=notation.vecdot),
    definition("svdvals", "x, /", "svd(x, False)[1]", "jnp.linalg.svdvals", costly=True),
    definition("eigvalsh", "a", "eigh(a)[0]", "jnp.linalg.eigvalsh", costly=True),
    definition("conv", "lhs, rhs, window_strides, padding, *, preferred_element_type=None",
        "conv_general_dilated(lhs, rhs, window_strides, padding, preferred_element_type=preferred_element_type)",
        "jax.lax.conv", wide=1, costly=True, multiply_adds=convolution),
    definition("trace", "a, offset=0, axis1=0, axis2=1, dtype=None",
        "sum(diagonal(a, offset, axis1, axis2), -1, dtype)", on_arrays="method"),
    # A query that may attend to nothing averages over everything: its scores are large and negative, not infinite.
    _attention_row(
        "low = -2.3819763e38; groups = shape(query)[-2] // shape(key)[-2]; "
        "factor = given(scale, scale, shape(query)[-1] ** -0.5); "
        "scores = factor * einsum('...tnh,...snh->...nts', query, repeat(key, groups, -2)); "
        "biased = given(bias, scores + bias, scores); masked = given(mask, where(mask, biased, low), biased); "
        "before = tril(ones((shape(query)[-3], shape(key)[-3]), 'bool')); "
        "causal = given(is_causal, where(before, masked, low), masked); "
        "exp = exp(causal - max(causal, -1, keepdims=True)); "
        "einsum('...nts,...snh->...tnh', exp / sum(exp, -1, keepdims=True), repeat(value, groups, -2))"),
    # Arrays.
    definition("zeros_like", f"a, {_like}", "full_like(a, 0, dtype, shape)"),
    definition("ones_like", f"a, {_like}", "full_like(a, 1, dtype, shape)"),
    definition("empty_like", f"prototype, {_like}", "full_like(prototype, 0, dtype, shape)"),
    definition("identity", "n, dtype=None", "eye(n, dtype=dtype)"),
    definition("logspace", "start, stop, num=50, endpoint=True, base=10.0, dtype=None, axis=0",
        "powers = float_power(base, linspace(start, stop, num, endpoint, axis=axis)); "
        "given(dtype, astype(powers, dtype), powers)"),
    definition("isin", "element, test_elements, *, invert=False",
        "inside = any(expand_dims(element, -1) == ravel(test_elements), -1); given(invert, ~inside, inside)",
        decides="membership"),
    definition("append", "arr, values, axis=None",
        "given(axis, concatenate((arr, values), axis), concatenate((ravel(arr), ravel(values))))"),
    definition("index_in_dim", _dim, "dynamic_index_in_dim(operand, index, axis, keepdims)", "jax.lax.index_in_dim",
        moves="part"),
    definition("dynamic_index_in_dim", _dim,
        f"squeeze(dynamic_slice_in_dim(operand, index, 1, axis), {_squeezed})", "jax.lax.dynamic_index_in_dim",
        moves="part"),
    # Draws.
    definition("exponential", "key, shape=(), dtype='float32'", "-log1p(-uniform(key, shape, dtype))",
        "jax.random.exponential"),
)  # fmt: skip
