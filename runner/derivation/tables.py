"""An operation where it stands in; what one device computes in its place out.

`RULES` says for each operation which way it is written. An operation that is in no table gets whole operands.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from runner.derivation import (
    combining,
    creation,
    draws,
    indexing,
    inner,
    lookups,
    matrices,
    pointwise,
    products,
    reductions,
    several,
    shaping,
    sliding,
    updating,
    windows,
)
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import NotStatic, Site
from runner.language.operations import OPERATIONS
from runner.layout import Spec

Written = Callable[[Site], Value | None]
"""What one device computes; None where the rule does not cover the call."""

RULES: dict[str, tuple[Written, ...]] = {}
"""For each operation the ways to write it, the first that covers the call being taken."""


def _rows(names: str, *ways: Written) -> None:
    for name in names.split():
        assert name not in RULES, name
        RULES[name] = ways


_rows(" ".join(pointwise.NAMES), pointwise.called)
_rows("select", pointwise.selected)
_rows("sum max min amax amin any all nansum nanmax nanmin count_nonzero prod nanprod", reductions.reduced)
_rows("mean", reductions.reduced, reductions.along)
_rows("allclose array_equal", reductions.alike)
_rows("argmax argmin", reductions.chosen, reductions.along)
_rows("var std", inner.moment, reductions.along)
_rows("softmax log_softmax", inner.softmax, reductions.along)
_rows("logsumexp", inner.logsumexp, reductions.along)
_rows("standardize", inner.standardize, reductions.along)
_rows("norm vector_norm", inner.norm, reductions.along)
_rows("cumsum cumprod cummax cummin cumlogsumexp", sliding.scan, reductions.along)
_rows("associative_scan", combining.scan)
_rows("roll", sliding.roll, reductions.along)
_rows("flip fliplr flipud", sliding.flip, reductions.along)
_rows(
    "sort argsort median ptp nanmean average diff fft ifft rfft irfft logmeanexp trapezoid glu quantile percentile "
    "fftshift ifftshift",
    reductions.along,
)
_rows("matmul dot dot_general einsum inner outer tensordot vecdot matvec vecmat vdot", products.product)
_rows("ragged_dot", products.ragged)
_rows("dot_product_attention", products.attention)
_rows("inv det slogdet cholesky matrix_power svdvals eigvalsh", matrices.stacked)
_rows("qr eigh", matrices.factored)
_rows("solve solve_triangular", matrices.solved)
_rows("kron", matrices.kronecker)
_rows("trace diagonal", matrices.diagonals)
_rows("cross", matrices.crossed)
_rows("vander", matrices.powers)
_rows("conv_general_dilated conv", windows.convolved)
_rows("conv_transpose", windows.transposed)
_rows("reduce_window", windows.reduced)
_rows("transpose permute_dims matrix_transpose swapaxes moveaxis", shaping.transposed)
_rows("reshape ravel", shaping.reshaped)
_rows("expand_dims squeeze atleast_1d atleast_2d atleast_3d", shaping.reshaped_by_name)
_rows("broadcast_to", shaping.broadcast)
_rows("concatenate concat stack vstack hstack dstack column_stack append", shaping.joined)
_rows("repeat", shaping.repeated)
_rows("tril triu", shaping.triangle)
_rows("tile", shaping.tiled)
_rows("split array_split hsplit vsplit unstack", several.pieces)
_rows("divmod", several.quotients)
_rows("meshgrid", several.grid)
_rows("top_k", several.largest, several.pieces)
_rows("arange zeros ones full tri eye identity iota broadcasted_iota", creation.created)
_rows("zeros_like ones_like full_like empty_like", creation.like)
_rows("one_hot", creation.one_hot)
_rows("categorical", draws.categorical)
_rows("bernoulli", draws.bernoulli)
_rows("permutation", draws.permutation)
_rows("take", lookups.take)
_rows("take_along_axis", lookups.along_axis)
_rows("segment_sum segment_prod segment_max segment_min", lookups.segments)
_rows("bincount", lookups.counted)
_rows("searchsorted digitize interp polyval", lookups.searched)
_rows("pad", sliding.pad)
_rows("slice slice_in_dim index_in_dim", indexing.static_slice)
_rows("dynamic_slice dynamic_slice_in_dim dynamic_index_in_dim", indexing.dynamic_slice)
_rows("dynamic_update_slice dynamic_update_slice_in_dim dynamic_update_index_in_dim", indexing.dynamic_update)
_rows(" ".join(name for name, row in OPERATIONS.items() if row.method is not None), updating.by_index)

WHOLE = {
    "convolve correlate": "each element of the result reaches over as much of one signal as the other one is long",
    "diag rot90 block_diag": "elements move between dimensions",
    "svd": "the parts are of other shapes than the matrices",
    "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn": "a transform along several dimensions",
    "broadcast_arrays broadcast_in_dim": "new dimensions, of whose layout nothing says anything",
    "isin unravel_index cumulative_sum choice": "each element of the result may hang on all of them",
    "linspace logspace empty fftfreq rfftfreq tril_indices triu_indices diag_indices key PRNGKey key_data fold_in "
    "split_key bits uniform normal exponential gumbel randint rademacher laplace truncated_normal": (
        "no array enters, so that every device makes it and takes its part"
    ),
}
"""The operations that get whole operands, and why."""


def written(site: Site) -> Value:
    """What one device computes in the place of an operation."""
    ways: tuple[Written, ...]
    match site.node:
        case ast.BinOp(op=ast.MatMult()):
            ways = (products.product,)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            ways = (pointwise.operator,)
        case ast.Attribute(attr="T"):
            ways = (shaping.transposed,)
        case ast.Subscript(slice=index) if site.writer.elements_of(index) and not isinstance(index, ast.Tuple):
            # What stands for several indices is no array, which the rules take one index for.
            ways = (several.one_of,)
        case ast.Subscript():
            ways = (several.one_of, lookups.subscript, indexing.subscript)
        case ast.Call(func=ast.Name(id=name)):
            ways = RULES.get(name, ())
        case _:
            raise AssertionError(ast.dump(site.node))
    if site.typed is not None or site.elements:
        for way in ways:
            try:
                value = way(site)
            except NotStatic:
                continue
            if value is not None:
                return value
    return _whole(site)


def _whole(site: Site) -> Value:
    """The operation on whole operands, as every device can do it."""
    tree: ast.expr
    match site.node:
        case ast.Subscript(value=value, slice=index):
            tree = ast.Subscript(site.writer.whole(value), site.writer.whole(index))
        case _:
            tree = site.rewritten({})
    if site.typed is None:
        return Value(tree, None, Spec())
    dimensions = ((),) * len(site.result.shape)

    def write(_trees: list[ast.expr], _assignment: Assignment) -> ast.expr:
        return tree

    return site.writer.apply(site, [], Rule((), dimensions, {}, write))
