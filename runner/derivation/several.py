"""Operations that give several arrays, and one array of several: `top_k(x, 2)[0]`, `split(x, 3)[1]`."""

from __future__ import annotations

import ast
import math
from dataclasses import replace

from runner.derivation import pointwise
from runner.derivation.reductions import operand
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.dtypes import NAMES, dtype
from runner.layout import Spec


def one_of(site: Site) -> Value | None:
    """`parts[1]`: the array, as it lies."""
    assert isinstance(site.node, ast.Subscript)
    if site.type_of(site.node.value) is not None or site.writer.statics.tree(site.node.value) is not None:
        return None
    index = site.writer.statics.value(site.node.slice)
    match site.node.value:
        case ast.Call(func=ast.Name(id="top_k")) as call if index == 0:
            first = largest(replace(site.writer.site(call, site.wanted), alone=True))
            return None if first is None else first.elements[0]
        case _:
            value = site.writer.value(site.node.value, site.wanted)
    if not value.elements or not isinstance(index, int):
        return None
    return value.elements[index]


def pieces(site: Site) -> Value | None:
    """`split`, `unstack`, …: whole along the dimension that is sharded into pieces."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None:
        return None
    rank = len(typed.shape)
    named = {"hsplit": 1 if rank > 1 else 0, "vsplit": 0}
    axis: int = named[site.name] if site.name in named else site.static("axis", -1 if site.name == "top_k" else 0)
    axis %= rank
    dimensions = tuple((d,) if d != axis else () for d in range(rank))
    result = tuple(each for d, each in enumerate(dimensions) if d != axis or site.name != "unstack")
    return site.run([(part, dimensions)], result, dict(enumerate(typed.shape)))


def quotients(site: Site) -> Value | None:
    """`divmod`: element by element."""
    return pointwise.called(site)


def grid(site: Site) -> Value | None:
    """`meshgrid`: each array along its own dimension."""
    given = site.arguments["xi"]
    assert isinstance(given, tuple)
    parts: list[ast.expr] = list(given)
    if site.given("sparse") or site.static("indexing", "xy") not in ("xy", "ij"):
        return None
    order = list(range(len(parts)))
    if site.static("indexing", "xy") == "xy" and len(parts) > 1:
        order[:2] = [1, 0]
    typed = [site.type_of(part) for part in parts]
    if any(each is None or len(each.shape) != 1 for each in typed):
        return None
    sizes = {i: each.shape[0] for i, each in enumerate(typed) if each is not None}
    return site.run([(part, ((i,),)) for i, part in enumerate(parts)], tuple((i,) for i in order), sizes)


def largest(site: Site) -> Value | None:
    """`top_k`: along a dimension that is sharded the largest of each block, and of these the largest."""
    part = operand(site)
    typed = site.type_of(part)
    k: int = site.static("k")
    axis: int = site.static("axis", -1)
    if typed is None or typed.dtype not in NAMES or dtype(typed.dtype).kind not in ("float", "int"):
        return None
    rank, shape, writer = len(typed.shape), typed.shape, site.writer
    axis %= rank
    width = dtype(typed.dtype).itemsize

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        local = site.rewritten({id(part): trees[0]})
        if not over:
            return local
        line = writer.line
        writer.ours("the choice among the largest of each block")
        mine = writer.define(writer.fresh(f"{line}_mine"), Value(local, None, Spec())).tree
        start = writer.offset(over, ast.Constant(shape[axis] // writer.mesh.axis_size(over)))
        template = "all_gather({m}[0], {over}, axis={d}, tiled=True" + writer.invarying + ")"
        values = Value(built(template, m=mine, over=over, d=axis), None, Spec())
        values = writer.define(writer.fresh(f"{line}_values"), values).tree
        if site.alone:
            return site.rewritten({id(part): values})
        template = "all_gather({m}[1] + {start}, {over}, axis={d}, tiled=True" + writer.invarying + ")"
        places = Value(built(template, m=mine, start=start, over=over, d=axis), None, Spec())
        places = writer.define(writer.fresh(f"{line}_places"), places).tree
        best = Value(site.rewritten({id(part): values}), None, Spec())
        best = writer.define(writer.fresh(f"{line}_best"), best).tree
        return built("({b}[0], take_along_axis({p}, {b}[1], axis={d}))", b=best, p=places, d=axis)

    def inner(assignment: Assignment) -> float:
        n = writer.mesh.axis_size(assignment.get(axis, ()))
        rest = math.prod(size for d, size in enumerate(shape) if d != axis)
        rest /= writer.mesh.axis_size([a for f, axes in assignment.items() if f != axis for a in axes])
        return (n - 1) * k * rest * (width if site.alone else width + 4)

    def allowed(assignment: Assignment) -> bool:
        return k <= shape[axis] // writer.mesh.axis_size(assignment.get(axis, ()))

    dimensions = tuple((d,) for d in range(rank))
    result = tuple((d,) if d != axis else () for d in range(rank))
    sizes = dict(enumerate(shape))
    # The factor that is chosen along is split, and is not in the result, which every device then has whole.
    rule = Rule((dimensions,), result, sizes, write, inner=inner, allowed=allowed)
    return writer.apply(site, [site.value(part)], rule)
