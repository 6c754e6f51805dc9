"""The rows of operations over mesh axes, with their primitives in JAX and their limits."""

from __future__ import annotations

from runner.graph.language.operations.deferred import collectives
from runner.graph.language.operations.row import Limit, Operation, OverAxes, over_axes

_reduction = "x, axis_name, *, axis_index_groups=None"
_sums = ("psum", "psum_invariant", "psum2", "unreduced_psum")
_limits: tuple[Limit, ...] = ("groups without check_vma", "axes of one kind")
_dimensions = range(3)
_ragged = ("operand", "output", "input_offsets", "send_sizes", "output_offsets", "recv_sizes")

ROWS = (
    over_axes("psum", _reduction, collectives.psum, OverAxes("sum", _sums, _limits, ("",), reduction="sum")),
    over_axes("pmean", _reduction, collectives.pmean, OverAxes("mean", _sums, _limits, ("",), reduction="mean")),
    over_axes("pmax", _reduction, collectives.pmax,
        OverAxes("extreme", ("pmax", "unreduced_pmax"), ("axes of one kind",), ("",), reduction="max")),
    over_axes("pmin", _reduction, collectives.pmin,
        OverAxes("extreme", ("pmin", "unreduced_pmin"), ("axes of one kind",), ("",), reduction="min")),
    over_axes(
        "psum_scatter",
        "x, axis_name, *, scatter_dimension=0, axis_index_groups=None, tiled=False",
        collectives.psum_scatter,
        OverAxes(
            "scatter",
            ("reduce_scatter", "psum_scatter", "unreduced_reduce_scatter"),
            ("adds no booleans", "one axis under vmap", "axes of one kind"),
            tuple(f"scatter_dimension={i}, tiled=True" for i in _dimensions),
        ),
    ),
    over_axes(
        "all_gather",
        "x, axis_name, *, axis_index_groups=None, axis=0, tiled=False, to='varying'",
        collectives.all_gather,
        OverAxes(
            "gather",
            ("all_gather", "all_gather_invariant", "all_gather_reduced"),
            ("one axis under vmap", "axes of one kind"),
            tuple(f"axis={i}, tiled=True" for i in _dimensions),
            ("varying", "invarying"),
        ),
    ),
    over_axes(
        "all_to_all",
        "x, axis_name, split_axis, concat_axis, *, axis_index_groups=None, tiled=False",
        collectives.all_to_all,
        OverAxes(
            "exchange",
            ("all_to_all",),
            ("axes of one kind",),
            tuple(f"{i}, {j}, tiled=True" for i in _dimensions for j in _dimensions),
        ),
        pair=("split_axis", "concat_axis"),
    ),
    over_axes(
        "ragged_all_to_all",
        ", ".join(_ragged) + ", *, axis_name, axis_index_groups=None",
        collectives.ragged_all_to_all,
        OverAxes(
            "ragged",
            ("ragged_all_to_all",),
            ("never under vmap", "ragged operands", "typed as its output"),
            operands=_ragged,
            not_on=("cpu",),
        ),
        pair=("input_offsets", "output_offsets"),
    ),
    over_axes(
        "ppermute",
        "x, axis_name, perm=None, *, shift=None",
        collectives.ppermute,
        OverAxes(
            "permute",
            ("ppermute",),
            (
                "axes in the mesh's order",
                "takes pairs or a shift",
                "one axis under vmap",
                "every device under vmap",
                "axes of one kind",
            ),
            ("shift=1", "shift=-1"),
        ),
    ),
    over_axes(
        "pshuffle",
        "x, axis_name, perm",
        collectives.pshuffle,
        OverAxes(
            "permute",
            ("ppermute",),
            ("axes in the mesh's order", "takes a permutation", "one axis under vmap", "axes of one kind"),
        ),
    ),
    over_axes(
        "pbroadcast",
        "x, axis_name, source",
        collectives.pbroadcast,
        OverAxes(
            "broadcast",
            ("pbroadcast", "pcollectivebroadcast", "pbroadcast_dynamic"),
            ("compiles for GPUs only", "axes of one kind"),
        ),
    ),
    over_axes("pcast", "x, axis_name, *, to", collectives.pcast,
        OverAxes("cast", limits=("casts what is the same",), to=("varying",))),
    over_axes("axis_index", "axis_name", collectives.axis_index, OverAxes("index", operands=())),
    Operation("axis_size", "axis_name", "jax.lax.axis_size", collectives.axis_size, kind="static",
        over=OverAxes("size", operands=())),
)  # fmt: skip
