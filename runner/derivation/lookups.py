"""Lookups by arrays of indices: of a table that is cut, each device looks up what it has, and the rest is zero."""

from __future__ import annotations

import ast

from runner.derivation.indexing import entries
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.dtypes import NAMES, dtype
from runner.layout import Spec


def take(site: Site) -> Value | None:
    """`take` along one dimension."""
    axis = site.static("axis")
    table = site.type_of(site.arguments["a"])
    if not isinstance(axis, int) or table is None or site.given("mode", "fill_value"):
        return None
    return _lookup(site, site.arguments["a"], site.arguments["indices"], axis % len(table.shape), clamps=False)


def subscript(site: Site) -> Value | None:
    """`table[tokens]`, `x[:, tokens]`: one array of indices, all other dimensions whole as they are."""
    assert isinstance(site.node, ast.Subscript)
    items = entries(site.node)
    typed = [site.type_of(item) for item in items]
    arrays = [at for at, each in enumerate(typed) if each is not None and each.shape]
    others = [item for at, item in enumerate(items) if at not in arrays]
    if len(arrays) != 1 or not all(isinstance(i, ast.Slice) and i.lower is i.upper is i.step is None for i in others):
        return None
    return _lookup(site, site.node.value, items[arrays[0]], arrays[0], clamps=True)


def _lookup(site: Site, part: ast.expr, indices: ast.expr, axis: int, *, clamps: bool) -> Value | None:
    table, ids = site.type_of(part), site.type_of(indices)
    if table is None or ids is None or ids.dtype == "bool":
        return None
    rank, count, writer = len(table.shape), len(ids.shape), site.writer
    size = table.shape[axis]
    # The factors: the table's dimensions, then those of the indices.
    dimensions = tuple((d,) for d in range(rank))
    places = tuple((rank + d,) for d in range(count))
    result = (*dimensions[:axis], *places, *dimensions[axis + 1 :])
    sizes = dict(enumerate((*table.shape, *ids.shape)))
    at = site.value(indices)
    known = at.below is not None and at.below <= size
    numbers = table.dtype in NAMES and dtype(table.dtype).kind in ("float", "int")

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0], id(indices): trees[1]})
        local, inside, n = masked(site, trees[1], size, over, known)
        clipped = built("clip({local}, 0, {last})", local=local, last=n - 1)
        found = built("take({x}, {i}, axis={d})", x=trees[0], i=clipped, d=axis)
        if isinstance(site.node, ast.Subscript):
            found = site.rewritten({id(part): trees[0], id(indices): clipped})
        after = rank - axis - 1
        if after:
            index = ", ".join([":"] * count + ["None"] * after)
            inside = built("{x}[" + index + "]", x=inside)
        return built("where({inside}, {found}, 0)", inside=inside, found=found)

    rule = Rule(
        (dimensions, places),
        result,
        sizes,
        write,
        {axis: "sum"},
        allowed=lambda assignment: not assignment.get(axis) or (numbers and (known or clamps)),
    )
    return writer.apply(site, [site.value(part), at], rule)


def masked(site: Site, ids: ast.expr, size: int, over: tuple[str, ...], known: bool) -> tuple[ast.expr, ast.expr, int]:
    """Indices as those of this device's block, whether they are in it, and how long it is."""
    writer, wish = site.writer, site.writer.line
    writer.ours("the lookup in a block")
    n = size // writer.mesh.axis_size(over)
    if not known:
        template = "clip(where({i} < 0, {i} + {size}, {i}), 0, {last})"
        ids = writer.named(Value(ids, None, Spec()), f"{wish}_ids").tree
        ids = built(template, i=ids, size=size, last=size - 1)
    local = built("{ids} - {start}", ids=ids, start=writer.offset(over, ast.Constant(n)))
    local = writer.define(writer.fresh(f"{wish}_local"), Value(local, None, Spec())).tree
    inside = built("({local} >= 0) & ({local} < {n})", local=local, n=n)
    return local, inside, n


def along_axis(site: Site) -> Value | None:
    """`take_along_axis`: along a dimension that is cut, each device finds what lies in its block."""
    part, indices = site.arguments["arr"], site.arguments["indices"]
    table, ids = site.type_of(part), site.type_of(indices)
    axis = site.static("axis", -1)
    if table is None or ids is None or not isinstance(axis, int) or site.given("mode", "fill_value"):
        return None
    rank, writer = len(table.shape), site.writer
    axis %= rank
    if len(ids.shape) != rank:
        return None
    shape = site.result.shape
    dimensions = tuple((d,) if d == axis or table.shape[d] == shape[d] else () for d in range(rank))
    places = tuple((rank,) if d == axis else (d,) if ids.shape[d] == shape[d] else () for d in range(rank))
    result = tuple((rank,) if d == axis else (d,) for d in range(rank))
    sizes = {**dict(enumerate(shape)), axis: table.shape[axis], rank: ids.shape[axis]}
    at = site.value(indices)
    known = at.below is not None and at.below <= table.shape[axis]
    numbers = table.dtype in NAMES and dtype(table.dtype).kind in ("float", "int")

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0], id(indices): trees[1]})
        local, inside, n = masked(site, trees[1], table.shape[axis], over, True)
        clipped = built("clip({local}, 0, {last})", local=local, last=n - 1)
        found = site.rewritten({id(part): trees[0], id(indices): clipped})
        return built("where({inside}, {found}, 0)", inside=inside, found=found)

    rule = Rule(
        (dimensions, places),
        result,
        sizes,
        write,
        {axis: "sum"},
        allowed=lambda assignment: not assignment.get(axis) or (known and numbers),
    )
    return writer.apply(site, [site.value(part), at], rule)
