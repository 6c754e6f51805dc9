"""Reduces on each device, then over the mesh axes that shard the reduced dimensions; chooses and draws so too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from runner.base.layout import Spec
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.operations.row import Reduction
from runner.graph.term import Term
from runner.programs.derivation.calls import Argument, Call, DeviceValue, is_number, itemsize
from runner.programs.derivation.matrices import aligned
from runner.programs.derivation.registry import Way, rule_for
from runner.programs.derivation.rules import Rule, Sent, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant


def along(call: Call) -> Rule | None:
    """Rule: an operation along some dimensions, which must be whole, and independent along the others."""
    shape = call.array.shape
    others = [argument for name, argument in call.arguments.items() if name not in ("axis", "axes", "keepdims")][1:]
    if any(not other.static for other in others):
        return None
    rank, result = len(shape), call.result.shape
    axes = call.axes("axes" if "axes" in call.arguments else "axis", rank=rank, default=default_axis(call))
    keeps = len(result) == rank
    if not keeps and len(result) != rank - len(axes):
        return None
    dimensions = every(shape, but=axes)
    kept = tuple(factors for d, factors in enumerate(dimensions) if keeps or d not in axes)
    return Rule({call.operand.place: dimensions}, kept, dict(enumerate(shape)))


ALONG = Way(along)


def default_axis(call: Call) -> int | None:
    """The default of `axis` or `axes` in the signature; None, all dimensions, if it has neither."""
    parameters = call.signature.parameters
    return next((parameters[name].default for name in ("axes", "axis") if name in parameters), None)


def reduced(call: Call, kind: Reduction) -> Rule | None:
    """Rule: the dimensions of `axis` are reduced, the others stay.

    `kind`: the reduction over devices that completes the result.
    """
    shape = call.array.shape
    if math.prod(shape) == 0 or call.given("weights", "returned"):
        return None
    axes = call.axes(rank=len(shape))
    keepdims = bool(call.static("keepdims", False))
    operands = {call.operand.place: every(shape)}
    if call.given("where"):
        mask = call.type_of("where").shape
        if kind == "mean" or len(mask) > len(shape):
            return None
        operands["where"] = aligned(mask, shape)
    return Rule(
        operands,
        tuple(() if d in axes else (d,) for d in range(len(shape)) if keepdims or d not in axes),
        dict(enumerate(shape)),
        dict.fromkeys(axes, kind),
        # Each device would add the initial value once more.
        whole=frozenset(axes if call.given("initial") and kind not in ("max", "min") else ()),
    )


for _row in OPERATIONS.values():
    if _row.reduction is not None and not _row.of:
        _otherwise = [ALONG] if _row.reduction == "mean" else []
        rule_for(_row.name, otherwise=_otherwise)(partial(reduced, kind=_row.reduction))
rule_for(
    "sort", "argsort", "median", "diff", "fft", "ifft", "rfft", "irfft", "trapezoid", "quantile", "percentile",
    "fftshift", "ifftshift",
)(along)  # fmt: skip


@rule_for("allclose", "array_equal")
def alike(call: Call) -> Rule | None:
    """Rule: the comparison of all elements, completed over all devices."""
    parts = [argument for name, argument in call.arguments.items() if name in ("a", "b", "a1", "a2")]
    shapes = [Call.type(part).shape for part in parts]
    if shapes[0] != shapes[1] or math.prod(shapes[0]) == 0:
        return None
    sizes = dict(enumerate(shapes[0]))
    return Rule({part.place: every(shapes[0]) for part in parts}, (), sizes, dict.fromkeys(sizes, "all"))


def _chosen(site: Site, kind: Literal["max", "min"]) -> Term:
    """Write an argmax or argmin: along a sharded dimension, the first position of the overall best."""
    shape, axes = site.call.array.shape, site.call.axes(rank=len(site.call.array.shape))
    axis = axes[0] if len(axes) == 1 else 0
    if not site.over(axis):
        return site.rewritten()
    site.ours("the choice among the blocks")
    x, size = (site.x, shape[axis]) if len(axes) == 1 else (built("ravel({x})", x=site.x), math.prod(shape))
    return first_best(site, kind, x, axis, size, is_number(site.call.array, "float"))


def first_best(site: Site, kind: Literal["max", "min"], x: Term, axis: int, size: int, may_be_nan: bool) -> Term:
    """Write the first position of the best of `x` along a sharded `axis`, which has `size` elements in all."""
    over, x = site.over(axis), site.named("of", x)
    mine = site.define("mine", built("{f}({x}, axis={d})", f=kind, x=x, d=axis))
    best = site.define(kind, built("{f}(stop_gradient({m}), {over})", f=f"p{kind}", m=mine, over=over))
    at = built(f"arg{kind}({{x}}, axis={{d}}) + {{start}}", x=x, d=axis, start=site.start(over, size))
    template = "where({m} == {best}, {at}, {size})"
    if not may_be_nan:
        return built("pmin(" + template + ", {over})", m=mine, best=best, at=at, size=size, over=over)
    # The first NaN wins, which no collective expresses: counted from the end, its position is the least.
    at = site.define("at", at)
    template = "pmin(where(isnan({m}), {at} - {size}, " + template + "), {over}) % {size}"
    return built(template, m=mine, best=best, at=at, size=size, over=over)


@rule_for("argmax", write=partial(_chosen, kind="max"), otherwise=[ALONG])
@rule_for("argmin", write=partial(_chosen, kind="min"), otherwise=[ALONG])
def chosen(call: Call) -> Rule | None:
    """Rule: `argmax` and `argmin` along one dimension, or of all elements, of which a device has rows.

    Each device finds its own, and two all-reduces find the overall one.
    """
    axes = call.axes(rank=len(call.array.shape))
    if not axes or call.given("keepdims") or not is_number(call.array, "float", "int"):
        return None
    return choosing(call, call.operand, axes)


def choosing(call: Call, operand: Argument, axes: Sequence[int]) -> Rule:
    """The rule of a choice along one dimension of an operand, or among all its elements."""
    typed = call.type(operand)
    shape = typed.shape
    # The factor of the chosen dimension may be split, but is not in the result, which is whole along it.
    axis, alone = axes[0], len(axes) == 1
    others = [(size, (d,), 0) for d, size in enumerate(shape) if d != axis] if alone else []
    widths = itemsize(typed.dtype), itemsize(call.result.dtype)
    kept = every(shape, but=[] if alone else range(1, len(shape)))
    return Rule(
        {operand.place: kept},
        tuple((d,) for d in range(len(shape)) if d != axis) if alone else (),
        dict(enumerate(shape)) if alone else {0: shape[0]},
        inside=tuple(Sent("all-reduce", (axis,), tuple(others), width) for width in widths),
        below=shape[axis] if alone else math.prod(shape),
    )


def _noise(site: Site) -> Term:
    """The Gumbel noise of one device's block, in the layout of the logits."""
    site.ours("the part of the noise")
    typed, key = site.call.type_of("logits"), site.whole("key")
    template = "gumbel({key}, {shape})" if typed.dtype == "float32" else "gumbel({key}, {shape}, {dtype})"
    shape = typed.shape
    noise = DeviceValue(
        built(template, key=key, shape=constant(shape), dtype=typed.dtype),
        shape,
        Spec().padded(len(shape)),
        typed.dtype,
    )
    return site.layouts.reshard(noise, Spec(site.over(d) for d in range(len(shape)))).term


def _categorical(site: Site) -> Term:
    if not any(site.assignment.values()):
        return site.rewritten()
    shape = site.call.type_of("logits").shape
    axis: int = site.call.static("axis", -1) % len(shape)
    x = built("{noise} + {x}", noise=_noise(site), x=site.x)
    if not site.over(axis):
        return built("argmax({x}, axis={d})", x=x, d=axis)
    site.ours("the choice among the blocks")
    return first_best(site, "max", x, axis, shape[axis], may_be_nan=True)


@rule_for("categorical", write=_categorical)
def categorical(call: Call) -> Rule | None:
    """Rule: the argmax of the logits plus Gumbel noise."""
    typed = call.type_of("logits")
    if typed.dtype not in ("float32", "float64") or call.given("shape"):
        return None
    return choosing(call, call.arguments["logits"], [call.static("axis", -1) % len(typed.shape)])


def _axis(call: Call) -> int:
    return call.static("axis", default_axis(call)) % len(call.array.shape)


@rule_for("split", "array_split", "unstack")
def pieces(call: Call) -> Rule | None:
    """Rule: whole along the dimension that is split."""
    shape, axis = call.array.shape, _axis(call)
    dimensions = every(shape, but=[axis])
    keeps = len(call.result.shape) == len(shape)
    result = tuple(factors for d, factors in enumerate(dimensions) if d != axis or keeps)
    return Rule({call.operand.place: dimensions}, result, dict(enumerate(shape)))


def _largest(site: Site) -> Term:
    axis, place = _axis(site.call), site.call.operand.place
    over, d = site.over(axis), axis
    local = site.rewritten()
    if not over:
        return local
    site.ours("the choice among the largest of each block")
    mine = site.define("mine", local)
    values = site.define("values", site.gathered(built("{m}[0]", m=mine), over, axis=d, tiled=True))
    if site.call.alone:
        return site.rewritten({place: values})
    start = site.start(over, site.rule.sizes[axis])
    places = site.gathered(built("{m}[1] + {start}", m=mine, start=start), over, axis=d, tiled=True)
    places = site.define("places", places)
    best = site.define("best", site.rewritten({place: values}))
    return built("({b}[0], take_along_axis({p}, {b}[1], axis={d}))", b=best, p=places, d=d)


@rule_for("top_k", write=_largest, otherwise=[Way(pieces)])
def largest(call: Call) -> Rule | None:
    """Rule: along a sharded dimension, the largest among the largest of each block."""
    shape, k, axis = call.array.shape, call.static("k"), _axis(call)
    if not is_number(call.array, "float", "int"):
        return None
    others = tuple((size, (d,), 0) for d, size in enumerate(shape) if d != axis)
    width = itemsize(call.array.dtype) + (0 if call.alone else 4)
    # The factor of the chosen dimension may be split, but is not in the result, which is whole along it.
    return Rule(
        {call.operand.place: every(shape)},
        every(shape, but=[axis]),
        dict(enumerate(shape)),
        least={axis: k},
        inside=(Sent("all-gather", (axis,), (*others, (k, (), 0)), width),),
    )
