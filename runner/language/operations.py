"""The table of operations: for each name, its arguments, its JAX function and its NumPy counterpart.

Adding an operation is adding a row. A row's NumPy counterpart is the oracle: it takes the same arguments by the same
names, computes floats in float64, and never sees JAX. `tests/test_operations.py` holds every row against JAX.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from runner.language import activations, algebra, collectives, indexing, reductions, shaping, threefry, windows
from runner.language import counterparts as c

Kind = Literal["array", "collective", "static"]
Decides = Literal["threshold", "equality", "largest", "smallest", "order", "draw"]


@dataclass(frozen=True)
class Operation:
    """One row.

    - `arguments`: the arguments that the language allows, by JAX's names, in JAX's order. What follows an argument of
      JAX's that the language leaves out (`out`, `device`) is keyword-only, so that a call means the same to both.
    - `jax`: the dotted name of the JAX function, as a program spells it (`jnp.sum`, `jax.nn.relu`, `jax.lax.psum`).
    - `numpy`: the counterpart. A `collective` takes the mesh first and lists of per-device values; see
      `runner/language/collectives.py`.
    - `kind`: `array` works anywhere; `collective` only in `per_device`; `static` gives a Python value.
    - `decides`: where a small change of a float may move the result by a step, how: `runner/reference/decisions.py`.
    - `wide`: of floats with at least so many bytes JAX computes it in float32, and rounds once; 0: of none.
    - `draws`: of an operation that draws random numbers, the argument whose dtype says which.
    """

    name: str
    arguments: str
    jax: str
    numpy: Callable[..., Any]
    kind: Kind = "array"
    decides: Decides | None = None
    wide: int = 0
    draws: str | None = None

    @property
    def signature(self) -> inspect.Signature:
        """The arguments, as Python checks them: made when it is asked for, since a run asks for few."""
        return c.signature(self.arguments)


OPERATIONS: dict[str, Operation] = {}

CONSTANTS = {"inf": math.inf}
"""The numbers that have a name in every expression; `inf` is `jnp.inf`."""

COMPUTATIONS = {name: f"jax.lax.{name}" for name in ("add", "mul", "max", "min")}
"""What the argument `computation` may be, and the JAX function that it stands for."""

PADDINGS = ("SAME", "SAME_LOWER", "VALID")
"""What the argument `padding` may be, where it is a string."""

CASTS = {"all_gather": ("varying", "invarying"), "pcast": ("varying",)}
"""What the argument `to` may be: whether JAX is to know the result as the same along an axis."""


def computation(call: ast.Call) -> ast.expr | None:
    """The argument of a call by which the language names a function of JAX's, if it has one."""
    assert isinstance(call.func, ast.Name)
    parameters = list(OPERATIONS[call.func.id].signature.parameters)
    arguments = dict(zip(parameters, call.args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
    return arguments.get("computation")


def _row(name: str, arguments: str, jax: str, numpy: Callable[..., Any], **rest: Any) -> None:
    assert name not in OPERATIONS, name
    OPERATIONS[name] = Operation(name, arguments, jax, numpy, **rest)


def _array(name: str, arguments: str, numpy: Callable[..., Any], jax: str | None = None, **rest: Any) -> None:
    """A row of kind `array`, of `jax.numpy` unless `jax` says otherwise."""

    def counterpart(*values: Any, **named: Any) -> Any:
        # A counterpart may name its arguments as NumPy does; only what stands behind a gap reaches it by JAX's name.
        if named:
            bound = c.signature(arguments).bind(*values, **named)
            values, named = bound.args, bound.kwargs
        return numpy(*values, **named)

    _row(name, arguments, jax or f"jnp.{name}", counterpart, **rest)


def _float(name: str, numpy: Callable[..., Any]) -> None:
    """A function of `jax.numpy` of one array that gives floats."""
    _array(name, "x, /", c.in_floats(numpy))


# Arithmetic.
_array("add", "x, y, /", c.add)
_array("subtract", "x, y, /", c.subtract)
_array("multiply", "x, y, /", c.multiply)
_array("divide", "x1, x2, /", c.divide)
_array("true_divide", "x1, x2, /", c.divide)
_array("floor_divide", "x1, x2, /", c.floor_divide, decides="threshold")
_array("mod", "x1, x2, /", c.remainder, decides="threshold")
_array("remainder", "x1, x2, /", c.remainder, decides="threshold")
_array("fmod", "x1, x2, /", c.fmod, decides="threshold")
_array("divmod", "x1, x2, /", c.divmod_, decides="threshold")
_array("power", "x1, x2, /", c.power)
_array("pow", "x1, x2, /", c.power)
_array("float_power", "x, y, /", c.in_floats(np.power))
_array("square", "x, /", c.square)
_array("reciprocal", "x, /", c.reciprocal)
_array("negative", "x, /", c.negative)
_array("positive", "x, /", c.array)
_array("abs", "x, /", c.promoted(np.abs))
_array("absolute", "x, /", c.promoted(np.abs))
_array("sign", "x, /", c.sign, decides="threshold")
_array("maximum", "x, y, /", c.promoted(c.ieee_maximum))
_array("minimum", "x, y, /", c.promoted(c.ieee_minimum))
_array("fmax", "x1, x2", c.fmax)
_array("fmin", "x1, x2", c.fmin)
_array("clip", "arr, /, min=None, max=None", c.clip)
_array("copysign", "x1, x2, /", c.in_floats(np.copysign))
_array("nan_to_num", "x, *, nan=0.0, posinf=None, neginf=None", c.nan_to_num)
_array("stop_gradient", "x", c.identity, jax="jax.lax.stop_gradient")
_array("optimization_barrier", "operand, /", c.identity, jax="jax.lax.optimization_barrier")

# Rounding.
_array("floor", "x, /", c.promoted(np.floor), decides="threshold")
_array("ceil", "x, /", c.promoted(np.ceil), decides="threshold")
_array("trunc", "x", c.promoted(np.trunc), decides="threshold")
_array("rint", "x, /", c.in_floats(np.rint), decides="threshold")
_array("round", "a, decimals=0", c.round_, decides="threshold")

# Elementary functions.
_float("sqrt", np.sqrt)
_float("cbrt", np.cbrt)
_float("exp", np.exp)
_float("exp2", np.exp2)
_float("expm1", np.expm1)
_float("log", np.log)
_float("log2", np.log2)
_float("log10", np.log10)
_float("log1p", np.log1p)
_float("sin", np.sin)
_float("cos", np.cos)
_float("tan", np.tan)
_float("arcsin", np.arcsin)
_float("arccos", np.arccos)
_float("arctan", np.arctan)
_float("asin", np.arcsin)
_float("acos", np.arccos)
_float("atan", np.arctan)
_float("sinh", np.sinh)
_float("cosh", np.cosh)
_float("tanh", np.tanh)
_float("arcsinh", np.arcsinh)
_float("arccosh", np.arccosh)
_float("arctanh", np.arctanh)
_float("sinc", np.sinc)
_float("deg2rad", np.deg2rad)
_float("rad2deg", np.rad2deg)
_array("arctan2", "x1, x2, /", c.in_floats(np.arctan2))
_array("atan2", "x1, x2, /", c.in_floats(np.arctan2), jax="jnp.arctan2")
_array("hypot", "x1, x2, /", c.in_floats(np.hypot))
_array("logaddexp", "x1, x2, /", c.logaddexp)
_array("logaddexp2", "x1, x2, /", c.in_floats(np.logaddexp2))
_array("rsqrt", "x", c.rsqrt, jax="jax.lax.rsqrt")
_array("erf", "x", c.erf, jax="jax.lax.erf")
_array("erfc", "x", c.erfc, jax="jax.lax.erfc")
_array("erf_inv", "x", c.erf_inv, jax="jax.lax.erf_inv")
_array("lgamma", "x", c.lgamma, jax="jax.lax.lgamma")
_array("digamma", "x", c.digamma, jax="jax.lax.digamma")
_array("logistic", "x", c.logistic, jax="jax.lax.logistic")
_array("xlogy", "x, y", c.xlogy, jax="jax.scipy.special.xlogy")

# Complex numbers.
_array("real", "val, /", lambda val: c.array(val).real)
_array("imag", "val, /", lambda val: c.array(val).imag)
_array("conj", "x, /", lambda x: np.conj(c.array(x)) if c.array(x).dtype.kind == "c" else c.array(x))
_array("conjugate", "x, /", OPERATIONS["conj"].numpy)
_array("angle", "z, deg=False", c.angle)

# Comparison, logic and bits.
_array("equal", "x, y, /", c.promoted(np.equal), decides="equality")
_array("not_equal", "x, y, /", c.promoted(np.not_equal), decides="equality")
_array("less", "x, y, /", c.promoted(np.less), decides="threshold")
_array("less_equal", "x, y, /", c.promoted(np.less_equal), decides="threshold")
_array("greater", "x, y, /", c.promoted(np.greater), decides="threshold")
_array("greater_equal", "x, y, /", c.promoted(np.greater_equal), decides="threshold")
_array("isclose", "a, b, rtol=1e-05, atol=1e-08, equal_nan=False", c.isclose, decides="threshold")
_array("allclose", "a, b, rtol=1e-05, atol=1e-08, equal_nan=False", c.allclose, decides="threshold")
_array(
    "array_equal",
    "a1, a2, equal_nan=False",
    lambda a1, a2, equal_nan=False: np.array_equal(a1, a2, equal_nan),
    decides="equality",
)
_array("isnan", "x, /", c.in_floats(np.isnan))
_array("isinf", "x, /", c.in_floats(np.isinf))
_array("isfinite", "x, /", c.in_floats(np.isfinite))
_array("signbit", "x, /", c.in_floats(np.signbit), decides="threshold")
_array("logical_and", "x, y, /", c.on_truth(np.logical_and), decides="threshold")
_array("logical_or", "x, y, /", c.on_truth(np.logical_or), decides="threshold")
_array("logical_xor", "x, y, /", c.on_truth(np.logical_xor), decides="threshold")
_array("logical_not", "x, /", c.on_truth(np.logical_not), decides="threshold")
_array("bitwise_and", "x, y, /", c.bitwise_and)
_array("bitwise_or", "x, y, /", c.bitwise_or)
_array("bitwise_xor", "x, y, /", c.bitwise_xor)
_array("bitwise_not", "x, /", c.invert)
_array("invert", "x, /", c.invert)
_array("bitwise_count", "x, /", c.promoted(np.bitwise_count))
_array("left_shift", "x, y, /", c.left_shift)
_array("right_shift", "x1, x2, /", c.right_shift)

# Reductions.
_sum = "a, axis=None, dtype=None, *, keepdims=False, initial=None, where=None"
_choice = "a, axis=None, *, keepdims=False, initial=None, where=None"
_array("sum", _sum, reductions.sum_, wide=2)
_array("prod", _sum, reductions.prod, wide=2)
_array("mean", "a, axis=None, dtype=None, *, keepdims=False, where=None", reductions.mean, wide=2)
_moments = "a, axis=None, dtype=None, *, ddof=0, keepdims=False, where=None, mean=None, correction=None"
_array("var", _moments, reductions.var, wide=2)
_array("std", _moments, reductions.std, wide=2)
_array("average", "a, axis=None, weights=None, *, keepdims=False", reductions.average, wide=2)
_nan = "a, axis=None, dtype=None, *, keepdims=False"
_array("nansum", _nan, reductions.nansum, wide=2)
_array("nanprod", _nan, reductions.nanprod, wide=2)
_array("nanmean", "a, axis=None, *, keepdims=False", reductions.nanmean)
_array("nanmax", "a, axis=None, *, keepdims=False", reductions.nanmax)
_array("nanmin", "a, axis=None, *, keepdims=False", reductions.nanmin)
_array("max", _choice, reductions.max_)
_array("min", _choice, reductions.min_)
_array("amax", _choice, reductions.max_)
_array("amin", _choice, reductions.min_)
_array("ptp", "a, axis=None, *, keepdims=False", reductions.ptp)
_array("any", "a, axis=None, *, keepdims=False, where=None", reductions.any_, decides="threshold")
_array("all", "a, axis=None, *, keepdims=False, where=None", reductions.all_, decides="threshold")
_array("argmax", "a, axis=None, *, keepdims=None", reductions.argmax, decides="largest")
_array("argmin", "a, axis=None, *, keepdims=None", reductions.argmin, decides="smallest")
_array("count_nonzero", "a, axis=None, keepdims=False", reductions.count_nonzero, decides="threshold")
_array("median", "a, axis=None, *, keepdims=False", reductions.median)
_array("quantile", "a, q, axis=None, *, method='linear', keepdims=False", reductions.quantile)
_array("percentile", "a, q, axis=None, *, method='linear', keepdims=False", reductions.percentile)
_array("logsumexp", "a, axis=None, b=None, keepdims=False, *, where=None", reductions.logsumexp, jax="jax.nn.logsumexp")
_array("logmeanexp", "x, axis=None, where=None, keepdims=False", reductions.logmeanexp, jax="jax.nn.logmeanexp")
_segments = "data, segment_ids, num_segments=None"
_array("segment_sum", _segments, reductions.segment_sum, jax="jax.ops.segment_sum")
_array("segment_prod", _segments, reductions.segment_prod, jax="jax.ops.segment_prod")
_array("segment_max", _segments, reductions.segment_max, jax="jax.ops.segment_max")
_array("segment_min", _segments, reductions.segment_min, jax="jax.ops.segment_min")

# Scans.
_array("cumsum", "a, axis=None, dtype=None", reductions.cumsum)
_array("cumprod", "a, axis=None, dtype=None", reductions.cumprod)
_scan = "operand, axis=0, reverse=False"
_array("cummax", _scan, reductions.cummax, jax="jax.lax.cummax")
_array("cummin", _scan, reductions.cummin, jax="jax.lax.cummin")
_array("cumlogsumexp", _scan, reductions.cumlogsumexp, jax="jax.lax.cumlogsumexp")
_array("diff", "a, n=1, axis=-1, prepend=None, append=None", shaping.diff)
_array("trapezoid", "y, x=None, dx=1.0, axis=-1", shaping.trapezoid)

# Linear algebra.
_product = "a, b, *, preferred_element_type=None"
_array("matmul", _product, c.matmul)
_array("dot", _product, algebra.dot)
_array("vdot", _product, algebra.vdot)
_array("inner", _product, algebra.inner)
_array("tensordot", "a, b, axes=2, *, preferred_element_type=None", algebra.tensordot)
_array("einsum", "subscripts, /, *operands, preferred_element_type=None", algebra.einsum)
_array("vecdot", "x1, x2, /, *, axis=-1", algebra.vecdot)
_array("matvec", "x1, x2, /", algebra.matvec)
_array("vecmat", "x1, x2, /", algebra.vecmat)
_array("outer", "a, b", algebra.outer)
_array("kron", "a, b", algebra.kron)
_array("cross", "a, b, axisa=-1, axisb=-1, axisc=-1, axis=None", algebra.cross)
_array("trace", "a, offset=0, axis1=0, axis2=1, dtype=None", algebra.trace)
_array("convolve", "a, v, mode='full'", algebra.convolve)
_array("correlate", "a, v, mode='valid'", algebra.correlate)
_array("polyval", "p, x", algebra.polyval)
_array("vander", "x, N=None, increasing=False", algebra.vander)
_array("inv", "a", algebra.inv, jax="jnp.linalg.inv")
_array("det", "a", algebra.det, jax="jnp.linalg.det")
_array("slogdet", "a", algebra.slogdet, jax="jnp.linalg.slogdet")
_array("solve", "a, b", algebra.solve, jax="jnp.linalg.solve")
_array("cholesky", "a, *, upper=False, symmetrize_input=True", algebra.cholesky, jax="jnp.linalg.cholesky")
_array(
    "solve_triangular",
    "a, b, trans=0, lower=False, unit_diagonal=False",
    algebra.solve_triangular,
    jax="jax.scipy.linalg.solve_triangular",
)
_array("matrix_power", "a, n", algebra.matrix_power, jax="jnp.linalg.matrix_power")
_array("svdvals", "x, /", algebra.svdvals, jax="jnp.linalg.svdvals")
_array("eigvalsh", "a", algebra.eigvalsh, jax="jnp.linalg.eigvalsh")
_array("norm", "x, ord=None, axis=None, keepdims=False", algebra.norm, jax="jnp.linalg.norm")
_array("vector_norm", "x, /, *, axis=None, keepdims=False, ord=2", algebra.vector_norm, jax="jnp.linalg.vector_norm")
_transform = "a, n=None, axis=-1, norm=None"
for _name, _numpy in (("fft", np.fft.fft), ("ifft", np.fft.ifft), ("rfft", np.fft.rfft), ("irfft", np.fft.irfft)):
    _array(_name, _transform, algebra.fourier(_numpy), jax=f"jnp.fft.{_name}")
_array("fftshift", "x, axes=None", shaping.moved(np.fft.fftshift), jax="jnp.fft.fftshift")
_array("ifftshift", "x, axes=None", shaping.moved(np.fft.ifftshift), jax="jnp.fft.ifftshift")

# Windows: `padding` is "SAME", "SAME_LOWER", "VALID", or a pair for each dimension.
_array(
    "conv_general_dilated",
    "lhs, rhs, window_strides, padding, lhs_dilation=None, rhs_dilation=None, dimension_numbers=None, "
    "feature_group_count=1, batch_group_count=1, *, preferred_element_type=None",
    windows.conv_general_dilated,
    jax="jax.lax.conv_general_dilated",
    wide=1,
)
_array(
    "conv",
    "lhs, rhs, window_strides, padding, *, preferred_element_type=None",
    windows.conv,
    jax="jax.lax.conv",
    wide=1,
)
_array(
    "conv_transpose",
    "lhs, rhs, strides, padding, rhs_dilation=None, dimension_numbers=None, transpose_kernel=False, *, "
    "preferred_element_type=None, use_consistent_padding=False",
    windows.conv_transpose,
    jax="jax.lax.conv_transpose",
    wide=1,
)
_array(
    "reduce_window",
    "operand, init_value, computation, window_dimensions, window_strides=None, padding='VALID', base_dilation=None, "
    "window_dilation=None",
    windows.reduce_window,
    jax="jax.lax.reduce_window",
)

# Creation.
_array("zeros", "shape, dtype=None", shaping.zeros)
_array("ones", "shape, dtype=None", shaping.ones)
_array("full", "shape, fill_value, dtype=None", shaping.full)
_array("zeros_like", "a, dtype=None, shape=None", shaping.zeros_like)
_array("ones_like", "a, dtype=None, shape=None", shaping.ones_like)
_array("full_like", "a, fill_value, dtype=None, shape=None", shaping.full_like)
_array("eye", "N, M=None, k=0, dtype=None", shaping.eye)
_array("identity", "n, dtype=None", shaping.identity)
_array("tri", "N, M=None, k=0, dtype=None", shaping.tri)
_array("arange", "start, stop=None, step=None, dtype=None", shaping.arange)
_array("linspace", "start, stop, num=50, endpoint=True, *, dtype=None, axis=0", shaping.linspace)
_array("iota", "dtype, size", shaping.iota, jax="jax.lax.iota")
_array("broadcasted_iota", "dtype, shape, dimension", shaping.broadcasted_iota, jax="jax.lax.broadcasted_iota")
_array("array", "object, dtype=None, *, ndmin=0", shaping.array_)
_array("asarray", "a, dtype=None", shaping.asarray)
_array("astype", "x, dtype, /", c.astype, decides="threshold")
_array("meshgrid", "*xi, sparse=False, indexing='xy'", shaping.meshgrid)

# Shape.
_array("reshape", "a, shape, order='C'", shaping.moved(np.reshape))
_array("ravel", "a, order='C'", shaping.moved(np.ravel))
_array("transpose", "a, axes=None", shaping.moved(np.transpose))
_array("permute_dims", "a, /, axes", shaping.moved(np.transpose))
_array("matrix_transpose", "x, /", shaping.moved(np.matrix_transpose))
_array("swapaxes", "a, axis1, axis2", shaping.moved(np.swapaxes))
_array("moveaxis", "a, source, destination", shaping.moved(np.moveaxis))
_array("expand_dims", "a, axis", shaping.moved(np.expand_dims))
_array("squeeze", "a, axis=None", shaping.moved(np.squeeze))
_array("broadcast_to", "array, shape", shaping.moved(np.broadcast_to))
_array("concatenate", "arrays, axis=0, dtype=None", shaping.joined(np.concatenate))
_array("concat", "arrays, /, *, axis=0", shaping.joined(np.concatenate))
_array("stack", "arrays, axis=0, *, dtype=None", shaping.joined(np.stack))
_array("vstack", "tup, dtype=None", shaping.piled(np.vstack))
_array("hstack", "tup, dtype=None", shaping.piled(np.hstack))
_array("dstack", "tup, dtype=None", shaping.piled(np.dstack))
_array("column_stack", "tup", shaping.piled(np.column_stack))
_array("append", "arr, values, axis=None", shaping.append)
_array("split", "ary, indices_or_sections, axis=0", shaping.moved(np.split))
_array("array_split", "ary, indices_or_sections, axis=0", shaping.moved(np.array_split))
_array("hsplit", "ary, indices_or_sections", shaping.moved(np.hsplit))
_array("vsplit", "ary, indices_or_sections", shaping.moved(np.vsplit))
_array("unstack", "x, /, *, axis=0", shaping.moved(np.unstack))
_array("tile", "A, reps", shaping.moved(np.tile))
_array("repeat", "a, repeats, axis=None, *, total_repeat_length=None", shaping.repeat)
_array("flip", "m, axis=None", shaping.moved(np.flip))
_array("fliplr", "m", shaping.moved(np.fliplr))
_array("flipud", "m", shaping.moved(np.flipud))
_array("rot90", "m, k=1, axes=(0, 1)", shaping.moved(np.rot90))
_array("roll", "a, shift, axis=None", shaping.roll)
_array("pad", "array, pad_width, mode='constant', *, constant_values=0", shaping.pad)
_array("tril", "m, k=0", shaping.moved(np.tril))
_array("triu", "m, k=0", shaping.moved(np.triu))
_array("diag", "v, k=0", shaping.moved(np.diag))
_array("diagonal", "a, offset=0, axis1=0, axis2=1", shaping.moved(np.diagonal))
_array("atleast_1d", "*arys", shaping.at_least(np.atleast_1d))
_array("atleast_2d", "*arys", shaping.at_least(np.atleast_2d))
_array("atleast_3d", "*arys", shaping.at_least(np.atleast_3d))

# Slicing and gathering.
_array("slice", "operand, start_indices, limit_indices, strides=None", indexing.slice_, jax="jax.lax.slice")
_array(
    "slice_in_dim",
    "operand, start_index, limit_index, stride=1, axis=0",
    indexing.slice_in_dim,
    jax="jax.lax.slice_in_dim",
)
_array("index_in_dim", "operand, index, axis=0, keepdims=True", indexing.index_in_dim, jax="jax.lax.index_in_dim")
_array("dynamic_slice", "operand, start_indices, slice_sizes", indexing.dynamic_slice, jax="jax.lax.dynamic_slice")
_array(
    "dynamic_update_slice",
    "operand, update, start_indices",
    indexing.dynamic_update_slice,
    jax="jax.lax.dynamic_update_slice",
)
_array(
    "dynamic_slice_in_dim",
    "operand, start_index, slice_size, axis=0",
    indexing.dynamic_slice_in_dim,
    jax="jax.lax.dynamic_slice_in_dim",
)
_array(
    "dynamic_update_slice_in_dim",
    "operand, update, start_index, axis",
    indexing.dynamic_update_slice_in_dim,
    jax="jax.lax.dynamic_update_slice_in_dim",
)
_array(
    "dynamic_index_in_dim",
    "operand, index, axis=0, keepdims=True",
    indexing.dynamic_index_in_dim,
    jax="jax.lax.dynamic_index_in_dim",
)
_array(
    "dynamic_update_index_in_dim",
    "operand, update, index, axis",
    indexing.dynamic_update_index_in_dim,
    jax="jax.lax.dynamic_update_index_in_dim",
)
_array("take", "a, indices, axis=None, *, mode=None, fill_value=None", indexing.take)
_array("take_along_axis", "arr, indices, axis=-1, mode=None, fill_value=None", indexing.take_along_axis)
_array("where", "condition, x, y, /", c.where)
_array("select", "condlist, choicelist, default=0", indexing.select)
_array("one_hot", "x, num_classes, *, dtype=None, axis=-1", activations.one_hot, jax="jax.nn.one_hot")

# Order and counting.
_array("sort", "a, axis=-1, *, stable=True, descending=False", indexing.sort)
_array("argsort", "a, axis=-1, *, stable=True, descending=False", indexing.argsort, decides="order")
_array("top_k", "operand, k, *, axis=-1", indexing.top_k, jax="jax.lax.top_k", decides="order")
_array("searchsorted", "a, v, side='left'", indexing.searchsorted, decides="threshold")
_array("digitize", "x, bins, right=False", indexing.digitize, decides="threshold")
_array("bincount", "x, weights=None, minlength=0, *, length=None", indexing.bincount)
_array("interp", "x, xp, fp, left=None, right=None, period=None", indexing.interp)

# Activations.


def _activation(name: str, numpy: Callable[..., Any], arguments: str = "x", **rest: Any) -> None:
    _array(name, arguments, numpy, f"jax.nn.{name}", **rest)


_activation("relu", activations.relu)
_activation("relu6", activations.relu6)
_activation("sigmoid", c.logistic)
_activation("silu", activations.silu)
_activation("swish", activations.silu)
_activation("gelu", activations.gelu, "x, approximate=True")
_activation("softplus", activations.softplus)
_activation("log_sigmoid", activations.log_sigmoid)
_activation("leaky_relu", activations.leaky_relu, "x, negative_slope=0.01")
_activation("elu", activations.elu, "x, alpha=1.0")
_activation("selu", activations.selu)
_activation("celu", activations.celu, "x, alpha=1.0")
_activation("hard_tanh", activations.hard_tanh)
_activation("hard_sigmoid", activations.hard_sigmoid)
_activation("hard_silu", activations.hard_silu)
_activation("hard_swish", activations.hard_silu)
_activation("soft_sign", activations.soft_sign)
_activation("sparse_plus", activations.sparse_plus)
_activation("sparse_sigmoid", activations.sparse_sigmoid)
_activation("squareplus", activations.squareplus, "x, b=4")
_activation("mish", activations.mish)
_activation("glu", activations.glu, "x, axis=-1")
_activation("softmax", activations.softmax, "x, axis=-1, where=None")
_activation("log_softmax", activations.log_softmax, "x, axis=-1, where=None")
_activation("standardize", activations.standardize, "x, axis=-1, mean=None, variance=None, epsilon=1e-05, where=None")
_activation(
    "dot_product_attention",
    algebra.dot_product_attention,
    "query, key, value, bias=None, mask=None, *, scale=None, is_causal=False",
    wide=2,
)

# Static values: Python's own numbers, known while JAX traces.
_row("shape", "a", "jnp.shape", shaping.shape_, kind="static")
_row("ndim", "a", "jnp.ndim", lambda a: np.ndim(a), kind="static")
_row("size", "a, axis=None", "jnp.size", shaping.size, kind="static")

# Collectives: `runner/language/collectives.py`.
_named = "x, axis_name, *, axis_index_groups=None"
_row("psum", _named, "jax.lax.psum", collectives.psum, kind="collective")
_row("pmean", _named, "jax.lax.pmean", collectives.pmean, kind="collective")
_row("pmax", _named, "jax.lax.pmax", collectives.pmax, kind="collective")
_row("pmin", _named, "jax.lax.pmin", collectives.pmin, kind="collective")
_row(
    "psum_scatter",
    "x, axis_name, *, scatter_dimension=0, axis_index_groups=None, tiled=False",
    "jax.lax.psum_scatter",
    collectives.psum_scatter,
    kind="collective",
)
_row(
    "all_gather",
    "x, axis_name, *, axis_index_groups=None, axis=0, tiled=False, to='varying'",
    "jax.lax.all_gather",
    collectives.all_gather,
    kind="collective",
)
_row(
    "all_to_all",
    "x, axis_name, split_axis, concat_axis, *, axis_index_groups=None, tiled=False",
    "jax.lax.all_to_all",
    collectives.all_to_all,
    kind="collective",
)
_row("ppermute", "x, axis_name, perm=None, *, shift=None", "jax.lax.ppermute", collectives.ppermute, kind="collective")
_row("pshuffle", "x, axis_name, perm", "jax.lax.pshuffle", collectives.pshuffle, kind="collective")
_row("pbroadcast", "x, axis_name, source", "jax.lax.pbroadcast", collectives.pbroadcast, kind="collective")
_row("pcast", "x, axis_name, *, to", "jax.lax.pcast", collectives.pcast, kind="collective")
_row("axis_index", "axis_name", "jax.lax.axis_index", collectives.axis_index, kind="collective")
_row("axis_size", "axis_name", "jax.lax.axis_size", collectives.axis_size, kind="static")

# Random keys: `runner/language/threefry.py`. `split` is `jnp.split`.
_row("key", "seed", "jax.random.key", threefry.key)
_row("PRNGKey", "seed", "jax.random.PRNGKey", threefry.PRNGKey)
_row("key_data", "keys", "jax.random.key_data", threefry.key_data)
_row("fold_in", "key, data", "jax.random.fold_in", threefry.fold_in)
_row("split_key", "key, num=2", "jax.random.split", threefry.split)
_row("bits", "key, shape=(), dtype='uint32'", "jax.random.bits", threefry.bits)
_row("uniform", "key, shape=(), dtype='float32', minval=0.0, maxval=1.0", "jax.random.uniform", threefry.uniform)
_row("normal", "key, shape=(), dtype='float32'", "jax.random.normal", threefry.normal)
_row("exponential", "key, shape=(), dtype='float32'", "jax.random.exponential", threefry.exponential)
_row("gumbel", "key, shape=(), dtype='float32'", "jax.random.gumbel", threefry.gumbel)
_row(
    "categorical",
    "key, logits, axis=-1, shape=None",
    "jax.random.categorical",
    threefry.categorical,
    decides="draw",
    draws="logits",
)
_row("bernoulli", "key, p=0.5, shape=None", "jax.random.bernoulli", threefry.bernoulli, decides="threshold", draws="p")
_row("randint", "key, shape, minval, maxval, dtype='int32'", "jax.random.randint", threefry.randint)
_row("permutation", "key, x, axis=0", "jax.random.permutation", threefry.permutation)
