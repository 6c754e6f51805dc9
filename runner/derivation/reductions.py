"""Reductions: what is summed over a dimension that is sharded is summed on each device, and then over the mesh axes."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from runner.derivation.pointwise import aligned
from runner.derivation.rules import Assignment, Dimensions, Rule, Value
from runner.derivation.site import NotStatic, Site
from runner.derivation.trees import built
from runner.layout import Spec
from runner.untyped import is_tuple

KINDS = {
    "sum": "sum", "mean": "mean", "max": "max", "amax": "max", "min": "min", "amin": "min", "any": "any", "all": "all",
    "nansum": "sum", "nanmax": "max", "nanmin": "min", "count_nonzero": "sum", "prod": "prod",
    "nanprod": "prod",
}  # fmt: skip


def operand(site: Site) -> ast.expr:
    """The first argument; of those of which there may be any number, the only one. Raises `NotStatic`."""
    first = next(iter(site.arguments.values()))
    several: Any = first
    if is_tuple(several):
        if len(several) != 1:
            raise NotStatic
        return several[0]
    return first


def reduced(site: Site) -> Value | None:
    """`sum`, `max`, …: the dimensions that are summed over are reduced, the others stay."""
    part, mask = operand(site), site.arguments.get("where")
    typed = site.type_of(part)
    masked = None if mask is None else site.type_of(mask)
    if typed is None or math.prod(typed.shape) == 0 or (site.given("where") and masked is None):
        return None
    rank = len(typed.shape)
    axes = site.axes(rank=rank)
    keepdims = bool(site.static("keepdims", False))
    kind = KINDS[site.name]
    dimensions = tuple((d,) for d in range(rank))
    result = tuple(() if d in axes else (d,) for d in range(rank) if keepdims or d not in axes)
    operands: list[tuple[ast.expr, Dimensions]] = [(part, dimensions)]
    if mask is not None and masked is not None:
        if kind == "mean" or len(masked.shape) > rank:
            return None
        operands.append((mask, aligned(masked.shape, typed.shape)))

    def allowed(assignment: Assignment) -> bool:
        # What is added once to the whole would be added on each device.
        return kind in ("max", "min") or not site.given("initial") or not any(assignment.get(d) for d in axes)

    return site.run(operands, result, dict(enumerate(typed.shape)), dict.fromkeys(axes, kind), allowed=allowed)


def alike(site: Site) -> Value | None:
    """`allclose`, `array_equal`: all elements are, on all devices."""
    parts = [argument for name, argument in site.arguments.items() if name in ("a", "b", "a1", "a2")]
    typed = [site.type_of(part) for part in parts]
    shapes = [each.shape for each in typed if each is not None]
    if len(shapes) < 2 or shapes[0] != shapes[1] or math.prod(shapes[0]) == 0:
        return None
    dimensions = tuple((d,) for d in range(len(shapes[0])))
    sizes = dict(enumerate(shapes[0]))
    return site.run([(part, dimensions) for part in parts], (), sizes, dict.fromkeys(sizes, "all"))


def along(site: Site) -> Value | None:
    """What works along one dimension, which has to be whole, and is the same for all others."""
    part = operand(site)
    typed = site.type_of(part)
    others = [argument for name, argument in site.arguments.items() if name not in ("axis", "axes", "keepdims")][1:]
    if typed is None or any(site.type_of(argument) is not None for argument in others):
        return None
    rank = len(typed.shape)
    axes = site.axes("axes" if "shift" in site.name else "axis", rank=rank, default=_DEFAULTS.get(site.name, -1))
    shape = site.result.shape
    keeps = len(shape) == rank
    if not keeps and len(shape) != rank - len(axes):
        return None
    dimensions = tuple(() if d in axes else (d,) for d in range(rank))
    result = tuple(each for d, each in enumerate(dimensions) if keeps or d not in axes)
    if any(not each and not keeps for each in result):
        return None
    return site.run([(part, dimensions)], result, dict(enumerate(typed.shape)))


_DEFAULTS = {
    "cummax": 0, "cummin": 0, "cumlogsumexp": 0, "argmax": None, "argmin": None, "median": None, "ptp": None,
    "nanmean": None, "average": None, "var": None, "std": None, "logsumexp": None, "norm": None, "vector_norm": None,
    "cumsum": None, "cumprod": None, "roll": None, "flip": None, "logmeanexp": None, "fftshift": None,
    "ifftshift": None, "quantile": None, "percentile": None, "mean": None,
}  # fmt: skip
"""The default of `axis`, where it is not the last dimension; None: all of them."""


def chosen(site: Site) -> Value | None:
    """`argmax` along one dimension."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None or site.given("keepdims"):
        return None
    axes = site.axes(rank=len(typed.shape))
    if len(axes) != 1 or not typed.dtype.startswith(("float", "bfloat", "int", "uint")):
        return None
    return best(site, site.name, [site.value(part)], axes[0], lambda trees: trees[0])


def best(
    site: Site, name: str, values: list[Value], axis: int, element: Callable[[list[ast.expr]], ast.expr]
) -> Value | None:
    """The place of the largest or smallest along a dimension; along a sharded one, the first of each device's best.

    The values are of one shape, the operation's own operand first; `element` is what is compared of their blocks.
    """
    shape, writer, wish = values[0].shape, site.writer, site.writer.line
    assert shape is not None
    rank = len(shape)
    axis %= rank
    part = site.arguments["logits"] if "logits" in site.arguments else operand(site)
    dimensions = tuple((d,) for d in range(rank))
    result = tuple((d,) for d in range(rank) if d != axis)
    largest = {"argmax": "max", "argmin": "min"}[name]
    others = math.prod(shape) / shape[axis]

    def define(what: str, template: str, **parts: object) -> ast.expr:
        value = Value(built(template, **parts), None, Spec())
        return writer.define(writer.fresh(f"{wish}_{what}"), value).tree

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over and (len(values) == 1 or not any(assignment.values())):
            return site.rewritten({id(part): trees[0]})
        x, call = element(trees), ast.Name(name)
        if not over:
            return built("{f}({x}, axis={d})", f=call, x=x, d=axis)
        x = writer.named(Value(x, None, Spec()), f"{wish}_of").tree
        start = writer.offset(over, ast.Constant(shape[axis] // writer.mesh.axis_size(over)))
        template = "all_gather({f}({x}, axis={d}), {over}" + writer.invarying + ")"
        found = define(largest, template, f=ast.Name(largest), x=x, d=axis, over=over)
        template = "all_gather({f}({x}, axis={d}) + {start}, {over}" + writer.invarying + ")"
        places = define("at", template, f=call, x=x, d=axis, start=start, over=over)
        device = built("{f}({best}, axis=0)", f=call, best=found)
        if rank == 1:
            return built("{places}[{device}]", places=places, device=device)
        template = "take_along_axis({places}, expand_dims({device}, 0), axis=0)[0]"
        return built(template, places=places, device=device)

    def inner(assignment: Assignment) -> float:
        n = writer.mesh.axis_size(assignment.get(axis, ()))
        held = others / writer.mesh.axis_size([a for f, axes in assignment.items() if f != axis for a in axes])
        return (n - 1) * held * 8

    # The factor that is chosen along is split, and is not in the result, which every device then has whole.
    rule = Rule((dimensions,) * len(values), result, dict(enumerate(shape)), write, inner=inner)
    value = writer.apply(site, values, rule)
    return Value(value.tree, value.shape, value.spec, value.dtype, below=shape[axis])
