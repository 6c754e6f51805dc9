"""Operations that reduce inside: along a dimension that is sharded they are written in their parts."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass

from runner.derivation.reductions import operand
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.dtypes import NAMES, dtype
from runner.layout import Spec


@dataclass(frozen=True)
class Cut:
    """The dimensions that are reduced, the mesh axes that shard them, and what a device sends for one sum."""

    axes: tuple[int, ...]
    over: tuple[str, ...]
    sent: float


Parts = Callable[[ast.expr, Cut], ast.expr]
"""From the operand's name to the last part."""


def _in_parts(site: Site, rounds: int, keeps: bool, parts: Parts, default: int | None = -1) -> Value | None:
    """Run the operation as it is where its dimension is whole, and in parts, with `rounds` sums, where not."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None or site.given("where", "b", "mean", "variance", "ddof", "correction", "dtype"):
        return None
    if typed.dtype not in NAMES or dtype(typed.dtype).kind != "float":
        return None
    rank, writer = len(typed.shape), site.writer
    axes = site.axes(rank=rank, default=default)
    kept = keeps or bool(site.static("keepdims", False))
    dimensions = tuple((d,) for d in range(rank))
    result = tuple((d,) if keeps or d not in axes else () for d in range(rank) if kept or d not in axes)

    def over(assignment: Assignment) -> tuple[str, ...]:
        return tuple(axis for d in axes for axis in assignment.get(d, ()))

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        cut = over(assignment)
        if not cut:
            return site.rewritten({id(part): trees[0]})
        named = writer.named(Value(trees[0], None, Spec()), f"{site.writer.line}_of").tree
        return parts(named, Cut(axes, tuple(axis for axis in writer.mesh.axes if axis in cut), one(assignment)))

    def one(assignment: Assignment) -> float:
        n = writer.mesh.axis_size(over(assignment))
        rest = math.prod(size for d, size in enumerate(typed.shape) if d not in axes)
        rest /= writer.mesh.axis_size([a for f, found in assignment.items() if f not in axes for a in found])
        return 2 * (n - 1) / n * rest * dtype(typed.dtype).itemsize

    sizes = dict(enumerate(typed.shape))
    rule = Rule((dimensions,), result, sizes, write, inner=lambda assignment: rounds * one(assignment))
    return writer.apply(site, [site.value(part)], rule)


def _axis(site: Site, axes: tuple[int, ...]) -> ast.expr:
    """The argument `axis`, as the call has it where it has it."""
    written = site.arguments.get("axis")
    if written is not None and isinstance(site.static("axis"), int):
        return written
    if len(axes) == 1 and written is None and site.name in ("softmax", "log_softmax", "standardize"):
        return ast.Constant(-1)
    return ast.Constant(axes[0]) if len(axes) == 1 else ast.Tuple([ast.Constant(axis) for axis in axes])


def _keepdims(site: Site) -> bool:
    return bool(site.static("keepdims", False))


def _largest(site: Site, x: ast.expr, cut: Cut) -> ast.expr:
    """The maximum, which no derivative passes."""
    template = "pmax(stop_gradient(max({x}, axis={axis}, keepdims=True)), {cut})"
    tree = built(template, x=x, axis=_axis(site, cut.axes), cut=cut.over)
    return _define(site, "max", tree)


def _define(site: Site, part: str, tree: ast.expr) -> ast.expr:
    writer = site.writer
    return writer.define(writer.fresh(f"{site.writer.line}_{part}"), Value(tree, None, Spec())).tree


def softmax(site: Site) -> Value | None:
    """`exp(x - m) / sum(exp(x - m))`, and its logarithm."""

    def parts(x: ast.expr, cut: Cut) -> ast.expr:
        largest, axis = _largest(site, x, cut), _axis(site, cut.axes)
        if site.name == "softmax":
            each = _define(site, "exp", built("exp({x} - {m})", x=x, m=largest))
            template = "{e} / psum(sum({e}, axis={axis}, keepdims=True), {cut})"
            return built(template, e=each, axis=axis, cut=cut.over)
        shifted = _define(site, "shifted", built("{x} - {m}", x=x, m=largest))
        template = "{s} - log(psum(sum(exp({s}), axis={axis}, keepdims=True), {cut}))"
        return built(template, s=shifted, axis=axis, cut=cut.over)

    return _in_parts(site, 2, True, parts)


def logsumexp(site: Site) -> Value | None:
    """`m + log(sum(exp(x - m)))`, with 0 for an `m` that is not finite."""

    def parts(x: ast.expr, cut: Cut) -> ast.expr:
        largest, axis = _largest(site, x, cut), _axis(site, cut.axes)
        largest = _define(site, "shift", built("where(isfinite({m}), {m}, 0.0)", m=largest))
        template = "log(psum(sum(exp({x} - {m}), axis={axis}, keepdims=True), {cut})) + {m}"
        tree = built(template, x=x, m=largest, axis=axis, cut=cut.over)
        return tree if _keepdims(site) else built("squeeze({x}, axis={axis})", x=tree, axis=axis)

    return _in_parts(site, 2, False, parts, default=None)


def _moments(site: Site, x: ast.expr, cut: Cut, keep: bool) -> tuple[ast.expr, ast.expr]:
    """The mean, and the mean of the squares around it."""
    axis = _axis(site, cut.axes)
    mean = built("pmean(mean({x}, axis={axis}, keepdims=True), {cut})", x=x, axis=axis, cut=cut.over)
    squeezed = built("pmean(mean({x}, axis={axis}), {cut})", x=x, axis=axis, cut=cut.over)
    known, narrow = site.writer.written(mean), site.writer.written(squeezed)
    if known is None and narrow is None:
        mean = _define(site, "mean", mean)
    else:
        # It has been taken already.
        site.writer.spend(-cut.sent)
        mean = ast.Name(known) if known else built("expand_dims({x}, {axis})", x=ast.Name(str(narrow)), axis=axis)
    template = "pmean(mean(({x} - {m}) ** 2, axis={axis}, keepdims={keep}), {cut})"
    return mean, built(template, x=x, m=mean, axis=axis, keep=keep, cut=cut.over)


def moment(site: Site) -> Value | None:
    """`var` and `std`: the mean first, then the mean of the squares around it."""

    def parts(x: ast.expr, cut: Cut) -> ast.expr:
        _, variance = _moments(site, x, cut, _keepdims(site))
        return variance if site.name == "var" else built("sqrt({x})", x=variance)

    return _in_parts(site, 2, False, parts, default=None)


def standardize(site: Site) -> Value | None:
    """`(x - mean) * rsqrt(var + epsilon)`."""
    epsilon = site.static("epsilon", 1e-5)

    def parts(x: ast.expr, cut: Cut) -> ast.expr:
        mean, variance = _moments(site, x, cut, True)
        return built("({x} - {m}) * rsqrt({v} + {epsilon})", x=x, m=mean, v=variance, epsilon=epsilon)

    return _in_parts(site, 2, True, parts)


def norm(site: Site) -> Value | None:
    """The root of the sum of the squares."""
    order = site.static("ord", None if site.name == "norm" else 2)
    part = site.type_of(operand(site))
    axis = site.static("axis")
    one = isinstance(axis, int) or (part is not None and len(part.shape) == 1)
    if not (order is None or (order == 2 and one)) or (order is None and isinstance(axis, tuple)):
        return None

    def parts(x: ast.expr, cut: Cut) -> ast.expr:
        template = "sqrt(psum(sum({x} ** 2, axis={axis}, keepdims={keep}), {cut}))"
        return built(template, x=x, axis=_axis(site, cut.axes), keep=_keepdims(site), cut=cut.over)

    return _in_parts(site, 1, False, parts, default=None)
