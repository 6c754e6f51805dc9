"""The rows of reductions and of scans over prefixes."""

from __future__ import annotations

import math

from runner.graph.language.operations.deferred import reductions, shaping, windows
from runner.graph.language.operations.row import Scan, array

_sum = "a, axis=None, dtype=None, *, keepdims=False, initial=None, where=None"
_choice = "a, axis=None, *, keepdims=False, initial=None, where=None"
_nan = "a, axis=None, dtype=None, *, keepdims=False"
_segments = "data, segment_ids, num_segments=None"
_scan = "operand, axis=0, reverse=False"
_SUM = Scan("sum", 0, "{mine} + {before}")

ROWS = (
    # Reductions.
    array("sum", _sum, reductions.sum_, wide=2, reduction="sum", on_arrays="method", moves="added"),
    array("prod", _sum, reductions.prod, wide=2, reduction="prod", on_arrays="method"),
    array("mean", "a, axis=None, dtype=None, *, keepdims=False, where=None", reductions.mean, wide=2, reduction="mean",
        on_arrays="method", moves="added"),
    array("average", "a, axis=None, weights=None, *, keepdims=False", reductions.average, wide=2, reduction="mean"),
    array("nanmax", "a, axis=None, *, keepdims=False", reductions.nanmax, reduction="max"),
    array("nanmin", "a, axis=None, *, keepdims=False", reductions.nanmin, reduction="min"),
    array("max", _choice, reductions.max_, reduction="max", also=("amax",), on_arrays="method"),
    array("min", _choice, reductions.min_, reduction="min", also=("amin",), on_arrays="method"),
    array("any", "a, axis=None, *, keepdims=False, where=None", reductions.any_, decides="threshold", reduction="any",
        on_arrays="method"),
    array("all", "a, axis=None, *, keepdims=False, where=None", reductions.all_, decides="threshold", reduction="all",
        on_arrays="method"),
    array("argmax", "a, axis=None, *, keepdims=None", reductions.argmax, decides="largest", on_arrays="method"),
    array("argmin", "a, axis=None, *, keepdims=None", reductions.argmin, decides="smallest", on_arrays="method"),
    array("quantile", "a, q, axis=None, *, method='linear', keepdims=False", reductions.quantile),
    array("segment_sum", _segments, reductions.segment_sum, jax="jax.ops.segment_sum"),
    array("segment_prod", _segments, reductions.segment_prod, jax="jax.ops.segment_prod"),
    array("segment_max", _segments, reductions.segment_max, jax="jax.ops.segment_max"),
    array("segment_min", _segments, reductions.segment_min, jax="jax.ops.segment_min"),
    # Scans.
    array("cumsum", "a, axis=None, dtype=None", reductions.cumsum, on_arrays="method", scan=_SUM, moves="added"),
    array("cumulative_sum", "x, /, *, axis=None, dtype=None, include_initial=False", reductions.cumulative_sum,
        scan=_SUM),
    array("cumprod", "a, axis=None, dtype=None", reductions.cumprod, on_arrays="method",
        scan=Scan("prod", 1, "{mine} * {before}")),
    array("cummax", _scan, reductions.cummax, jax="jax.lax.cummax",
        scan=Scan("max", -math.inf, "maximum({mine}, {before})")),
    array("cummin", _scan, reductions.cummin, jax="jax.lax.cummin",
        scan=Scan("min", math.inf, "minimum({mine}, {before})")),
    array("cumlogsumexp", _scan, reductions.cumlogsumexp, jax="jax.lax.cumlogsumexp",
        scan=Scan("logsumexp", -math.inf, "logaddexp({mine}, {before})")),
    array("associative_scan", "fn, elems, reverse=False, axis=0", windows.associative_scan,
        jax="jax.lax.associative_scan", function="fn"),
    array("diff", "a, n=1, axis=-1, prepend=None, append=None", shaping.diff),
    array("trapezoid", "y, x=None, dx=1.0, axis=-1", shaping.trapezoid),
)  # fmt: skip
