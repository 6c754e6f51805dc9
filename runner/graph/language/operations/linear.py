"""The rows of matrix products, linear algebra, Fourier transforms, convolutions and `reduce_window`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from runner.graph.language import notation
from runner.graph.language.operations.deferred import algebra, np, shaping, windows
from runner.graph.language.operations.row import Shapes, array

_product = "a, b, *, preferred_element_type=None"
_transform = "a, n=None, axis=-1, norm=None"
_plane = "a, s=None, axes=(-2, -1), norm=None"
_transforms = "a, s=None, axes=None, norm=None"


def convolution(shapes: Shapes, static: Callable[[str], Any], result: tuple[int, ...]) -> float | None:
    """The multiply-adds of a convolution: each element of the result sums a window of the features of its group."""
    if "rhs" not in shapes:
        return None
    letters, kernel = static("dimension_numbers"), shapes["rhs"]
    features = kernel[0 if letters is None else letters[1].index("O")]
    return math.prod((*result, *kernel)) / features / math.prod(static("lhs_dilation") or (1,))


def _transposed(shapes: Shapes, static: Callable[[str], Any], _: tuple[int, ...]) -> float | None:
    """The multiply-adds of a transposed convolution: each element of the operand is multiplied with a window."""
    if not {"lhs", "rhs"} <= set(shapes):
        return None
    letters, kernel = static("dimension_numbers"), shapes["rhs"]
    return math.prod((*shapes["lhs"], *kernel)) / kernel[-2 if letters is None else letters[1].index("I")]


def _ragged(shapes: Shapes, _static: Callable[[str], Any], _: tuple[int, ...]) -> float | None:
    return math.prod(shapes["lhs"]) * shapes["rhs"][-1] if {"lhs", "rhs"} <= set(shapes) else None


ROWS = (
    # Linear algebra.
    array("matmul", _product, algebra.matmul, contraction=notation.matmul, out_sharding=True),
    array("dot", _product, algebra.product(notation.dot), contraction=notation.dot, out_sharding=True,
        on_arrays="method"),
    array("inner", _product, algebra.product(notation.inner), contraction=notation.inner),
    array("tensordot", "a, b, axes=2, *, preferred_element_type=None", algebra.product(notation.tensordot),
        contraction=notation.tensordot, out_sharding=True),
    array("einsum", "subscripts, /, *operands, preferred_element_type=None", algebra.einsum,
        contraction=notation.einsum, out_sharding=True),
    array("dot_general", "lhs, rhs, dimension_numbers, *, preferred_element_type=None",
        algebra.product(notation.dot_general), jax="jax.lax.dot_general", contraction=notation.dot_general,
        out_sharding=True),
    array("ragged_dot", "lhs, rhs, group_sizes, *, preferred_element_type=None", algebra.ragged_dot,
        jax="jax.lax.ragged_dot", costly=True, multiply_adds=_ragged),
    array("kron", "a, b", algebra.kron),
    array("cross", "a, b, axisa=-1, axisb=-1, axisc=-1, axis=None", algebra.cross),
    array("convolve", "a, v, mode='full'", algebra.convolve),
    array("correlate", "a, v, mode='valid'", algebra.correlate),
    array("polyval", "p, x", algebra.polyval),
    array("vander", "x, N=None, increasing=False", algebra.vander),
    array("inv", "a", algebra.inv, jax="jnp.linalg.inv", costly=True),
    array("det", "a", algebra.det, jax="jnp.linalg.det", costly=True),
    array("slogdet", "a", algebra.slogdet, jax="jnp.linalg.slogdet", costly=True),
    array("solve", "a, b", algebra.solve, jax="jnp.linalg.solve", costly=True),
    array("cholesky", "a, *, upper=False, symmetrize_input=True", algebra.cholesky, jax="jnp.linalg.cholesky",
        costly=True),
    array("solve_triangular", "a, b, trans=0, lower=False, unit_diagonal=False", algebra.solve_triangular,
        jax="jax.scipy.linalg.solve_triangular", costly=True),
    array("qr", "a, mode='reduced'", algebra.qr, jax="jnp.linalg.qr", costly=True),
    array("householder_product", "a, taus", algebra.householder_product, jax="jax.lax.linalg.householder_product",
        costly=True),
    array("ormqr", "a, taus, c, *, left=True, transpose=False", algebra.ormqr, jax="jax.lax.linalg.ormqr",
        costly=True),
    array("lu", "x", algebra.lu, jax="jax.lax.linalg.lu", costly=True),
    array("lu_pivots_to_permutation", "pivots, permutation_size", algebra.lu_pivots_to_permutation,
        jax="jax.lax.linalg.lu_pivots_to_permutation"),
    array("eigh", "a", algebra.eigh, jax="jnp.linalg.eigh", costly=True),
    array("svd", "a, full_matrices=True", algebra.svd, jax="jnp.linalg.svd", costly=True),
    array("block_diag", "*arrs", algebra.block_diag, jax="jax.scipy.linalg.block_diag"),
    array("matrix_power", "a, n", algebra.matrix_power, jax="jnp.linalg.matrix_power", costly=True),
    array("fft", _transform, algebra.fourier(np.fft.fft), jax="jnp.fft.fft"),
    array("ifft", _transform, algebra.fourier(np.fft.ifft), jax="jnp.fft.ifft"),
    array("rfft", _transform, algebra.fourier(np.fft.rfft), jax="jnp.fft.rfft"),
    array("irfft", _transform, algebra.fourier(np.fft.irfft), jax="jnp.fft.irfft"),
    array("fft2", _plane, algebra.fouriers(np.fft.fft2, (-2, -1)), jax="jnp.fft.fft2"),
    array("ifft2", _plane, algebra.fouriers(np.fft.ifft2, (-2, -1)), jax="jnp.fft.ifft2"),
    array("rfft2", _plane, algebra.fouriers(np.fft.rfft2, (-2, -1)), jax="jnp.fft.rfft2"),
    array("irfft2", _plane, algebra.fouriers(np.fft.irfft2, (-2, -1)), jax="jnp.fft.irfft2"),
    array("fftn", _transforms, algebra.fouriers(np.fft.fftn), jax="jnp.fft.fftn"),
    array("ifftn", _transforms, algebra.fouriers(np.fft.ifftn), jax="jnp.fft.ifftn"),
    array("rfftn", _transforms, algebra.fouriers(np.fft.rfftn), jax="jnp.fft.rfftn"),
    array("irfftn", _transforms, algebra.fouriers(np.fft.irfftn), jax="jnp.fft.irfftn"),
    array("fftfreq", "n, d=1.0", algebra.fftfreq, jax="jnp.fft.fftfreq"),
    array("rfftfreq", "n, d=1.0", algebra.rfftfreq, jax="jnp.fft.rfftfreq"),
    array("fftshift", "x, axes=None", shaping.moved(np.fft.fftshift), jax="jnp.fft.fftshift"),
    array("ifftshift", "x, axes=None", shaping.moved(np.fft.ifftshift), jax="jnp.fft.ifftshift"),
    # Windows: `padding` is "SAME", "SAME_LOWER", "VALID", or a pair for each dimension.
    array(
        "conv_general_dilated",
        "lhs, rhs, window_strides, padding, lhs_dilation=None, rhs_dilation=None, dimension_numbers=None, "
        "feature_group_count=1, batch_group_count=1, *, preferred_element_type=None",
        windows.conv_general_dilated,
        jax="jax.lax.conv_general_dilated",
        wide=1,
        out_sharding=True,
        costly=True,
        multiply_adds=convolution,
    ),
    array(
        "conv_transpose",
        "lhs, rhs, strides, padding, rhs_dilation=None, dimension_numbers=None, transpose_kernel=False, *, "
        "preferred_element_type=None, use_consistent_padding=False",
        windows.conv_transpose,
        jax="jax.lax.conv_transpose",
        wide=1,
        costly=True,
        multiply_adds=_transposed,
    ),
    array(
        "reduce_window",
        "operand, init_value, computation, window_dimensions, window_strides=None, padding='VALID', "
        "base_dilation=None, window_dilation=None",
        windows.reduce_window,
        jax="jax.lax.reduce_window",
        function="computation",
    ),
)  # fmt: skip
