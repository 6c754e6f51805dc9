"""Reductions: what is summed over a dimension that is cut is summed on each device, and then over the mesh axes."""

from __future__ import annotations

import ast
import math

from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.layout import Spec

_KINDS = {
    "sum": "sum", "mean": "mean", "max": "max", "amax": "max", "min": "min", "amin": "min", "any": "any", "all": "all",
    "nansum": "sum", "nanmax": "max", "nanmin": "min", "count_nonzero": "sum", "prod": "prod",
}  # fmt: skip
_OPERANDS = ("a", "x", "operand", "m", "v", "y")


def operand(site: Site) -> ast.expr:
    """The first argument."""
    return next(iter(site.arguments.values()))


def reduced(site: Site) -> Value | None:
    """`sum`, `max`, …: the dimensions that are summed over are reduced, the others stay."""
    if site.given("where", "initial"):
        return None
    part = operand(site)
    typed = site.type_of(part)
    if typed is None:
        return None
    rank = len(typed.shape)
    axes = site.axes(rank=rank)
    keepdims = bool(site.static("keepdims", False))
    kind = _KINDS[site.name]
    dimensions = tuple((d,) for d in range(rank))
    result = tuple(() if d in axes else (d,) for d in range(rank) if keepdims or d not in axes)
    if math.prod(typed.shape) == 0:
        return None

    def write(trees: list[ast.expr], _: Assignment) -> ast.expr:
        return site.rewritten({id(part): trees[0]})

    rule = Rule((dimensions,), result, dict(enumerate(typed.shape)), write, dict.fromkeys(axes, kind))
    return site.writer.apply(site, [site.value(part)], rule)


def along(site: Site) -> Value | None:
    """What works along one dimension, which has to be whole, and is the same for all others."""
    part = operand(site)
    typed = site.type_of(part)
    others = [argument for name, argument in site.arguments.items() if name not in ("axis", "keepdims")][1:]
    if typed is None or any(site.type_of(argument) is not None for argument in others):
        return None
    rank = len(typed.shape)
    axes = site.axes(rank=rank, default=_DEFAULTS.get(site.name, -1))
    shape = site.result.shape
    keeps = len(shape) == rank
    if not keeps and len(shape) != rank - len(axes):
        return None
    dimensions = tuple(() if d in axes else (d,) for d in range(rank))
    result = tuple(each for d, each in enumerate(dimensions) if keeps or d not in axes)
    if any(not each and not keeps for each in result):
        return None

    def write(trees: list[ast.expr], _: Assignment) -> ast.expr:
        return site.rewritten({id(part): trees[0]})

    rule = Rule((dimensions,), result, dict(enumerate(typed.shape)), write)
    return site.writer.apply(site, [site.value(part)], rule)


_DEFAULTS = {
    "cummax": 0, "cummin": 0, "cumlogsumexp": 0, "argmax": None, "argmin": None, "median": None, "ptp": None,
    "nanmean": None, "average": None, "var": None, "std": None, "logsumexp": None, "norm": None, "vector_norm": None,
    "cumsum": None, "cumprod": None, "roll": None, "flip": None, "logmeanexp": None,
}  # fmt: skip
"""The default of `axis`, where it is not the last dimension; None: all of them."""


def chosen(site: Site) -> Value | None:
    """`argmax` along a dimension that is cut: each device's best, and the first of the best of these."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None or site.given("keepdims"):
        return None
    rank = len(typed.shape)
    axes = site.axes(rank=rank)
    if len(axes) != 1 or not typed.dtype.startswith(("float", "bfloat", "int", "uint")):
        return None
    (axis,) = axes
    dimensions = tuple((d,) for d in range(rank))
    result = tuple((d,) for d in range(rank) if d != axis)
    largest = {"argmax": "max", "argmin": "min"}[site.name]
    writer, wish = site.writer, site.writer.line
    others = math.prod(typed.shape) / typed.shape[axis]

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        local = site.rewritten({id(part): trees[0]})
        if not over:
            return local
        size = typed.shape[axis] // writer.mesh.axis_size(over)
        best = writer.define(
            writer.fresh(f"{wish}_{largest}"),
            Value(
                built("all_gather({f}({x}, axis={d}), {over})", f=ast.Name(largest), x=trees[0], d=axis, over=over),
                None,
                Spec(),
            ),
        )
        start = writer.offset(over, ast.Constant(size))
        places = writer.define(
            writer.fresh(f"{wish}_at"),
            Value(built("all_gather({x} + {start}, {over})", x=local, start=start, over=over), None, Spec()),
        )
        device = built("{f}({best}, axis=0)", f=ast.Name(site.name), best=best.tree)
        if rank == 1:
            return built("{places}[{device}]", places=places.tree, device=device)
        template = "take_along_axis({places}, expand_dims({device}, 0), axis=0)[0]"
        return built(template, places=places.tree, device=device)

    def inner(assignment: Assignment) -> float:
        n = writer.mesh.axis_size(assignment.get(axis, ()))
        held = others / writer.mesh.axis_size([a for f, axes in assignment.items() if f != axis for a in axes])
        return (n - 1) * held * 8

    # The factor that is chosen along is split, and is not in the result, which every device then has whole.
    rule = Rule((dimensions,), result, dict(enumerate(typed.shape)), write, inner=inner)
    value = writer.apply(site, [site.value(part)], rule)
    return Value(value.tree, value.shape, value.spec, value.dtype, below=typed.shape[axis])
