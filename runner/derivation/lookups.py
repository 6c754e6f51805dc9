"""Lookups by arrays of indices: of a table that is sharded, each device looks up what it has, and the rest is zero.

What scatters by indices is written the other way about: each device adds up what it has, for the segments that it has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Literal

from runner.derivation.indexing import entries
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.dtypes import NAMES, dtype
from runner.language.trees import text
from runner.layout import Spec
from runner.programs.types import Typed

Outside = Literal["none", "clamped", "nan"]
"""What becomes of an index that is out of range: there is none, it is the nearest that is not, it gives NaN."""


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
    arrays = [at for at, each in enumerate(typed) if each is not None]
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
    outside = _outside(at, table, axis, clamps=clamps)

    def found(x: ast.expr, i: ast.expr) -> ast.expr:
        if isinstance(site.node, ast.Subscript):
            return site.rewritten({id(part): x, id(indices): i})
        return built("take({x}, {i}, axis={d})", x=x, i=i, d=axis)

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0], id(indices): trees[1]})
        after = rank - axis - 1
        index = "[" + ", ".join([":"] * count + ["None"] * after) + "]" if after and count else ""
        assert outside is not None
        return _masked(site, trees, size, over, outside, found, index)

    rule = Rule(
        (dimensions, places),
        result,
        sizes,
        write,
        {axis: "sum"},
        allowed=lambda assignment: not assignment.get(axis) or outside is not None,
    )
    return writer.apply(site, [site.value(part), at], rule)


def _masked(
    site: Site,
    trees: list[ast.expr],
    size: int,
    over: tuple[str, ...],
    outside: Outside,
    found: Callable[[ast.expr, ast.expr], ast.expr],
    index: str = "",
) -> ast.expr:
    """What `found` finds in this device's block, and 0 for what lies in another's; `index` spreads the mask."""
    writer, wish = site.writer, site.writer.line
    writer.ours("the lookup in a block")
    table, ids = trees
    n = size // writer.mesh.axis_size(over)
    rest = "0"
    if outside != "none":
        ids = writer.named(Value(ids, None, Spec()), f"{wish}_ids").tree
        valid = built("({i} >= {low}) & ({i} < {size})", i=ids, low=-size, size=size)
        ids = built("where({i} < 0, {i} + {size}, {i})", i=ids, size=size)
        if outside == "clamped":
            ids = built("clip({i}, 0, {last})", i=ids, last=size - 1)
        else:
            # Every device has NaN then, and so has their sum.
            rest = text(built("where({v}" + index + ", 0, inf - inf)", v=valid))
    local = built("{ids} - {start}", ids=ids, start=writer.offset(over, ast.Constant(n)))
    local = writer.define(writer.fresh(f"{wish}_local"), Value(local, None, Spec())).tree
    inside = built("({local} >= 0) & ({local} < {n})", local=local, n=n)
    inside = built("{x}" + index, x=inside) if index else inside
    here = found(table, built("clip({local}, 0, {last})", local=local, last=n - 1))
    return built("where({inside}, {found}, " + rest + ")", inside=inside, found=here)


def _outside(at: Value, table: Typed, axis: int, *, clamps: bool) -> Outside | None:
    """What becomes of indices that are out of range; None where that is more than a sum over devices can say."""
    if not _numbers(table):
        return None
    if at.below is not None and at.below <= table.shape[axis]:
        return "none"
    return "clamped" if clamps else "nan" if dtype(table.dtype).kind == "float" else None


def _numbers(typed: Typed) -> bool:
    """Whether a sum over the devices may complete it."""
    return typed.dtype in NAMES and dtype(typed.dtype).kind in ("float", "int", "complex")


def along_axis(site: Site) -> Value | None:
    """`take_along_axis`: along a dimension that is sharded, each device finds what lies in its block."""
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
    outside = _outside(at, table, axis, clamps=False)

    def found(x: ast.expr, i: ast.expr) -> ast.expr:
        return site.rewritten({id(part): x, id(indices): i})

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0], id(indices): trees[1]})
        assert outside is not None
        return _masked(site, trees, table.shape[axis], over, outside, found)

    rule = Rule(
        (dimensions, places),
        result,
        sizes,
        write,
        {axis: "sum"},
        allowed=lambda assignment: not assignment.get(axis) or outside is not None,
    )
    return writer.apply(site, [site.value(part), at], rule)


_SEGMENTS = {"segment_sum": "sum", "segment_prod": "prod", "segment_max": "max", "segment_min": "min"}


def segments(site: Site) -> Value | None:
    """`segment_sum`, …: the data of each device by itself; an id that lies in another block of segments is dropped."""
    data, ids = site.arguments["data"], site.arguments["segment_ids"]
    one, other = site.type_of(data), site.type_of(ids)
    if one is None or other is None or len(other.shape) != 1 or one.shape[:1] != other.shape or not one.shape:
        return None
    count, given, writer = site.static("num_segments"), site.arguments.get("num_segments"), site.writer
    if not isinstance(count, int) or given is None or not _numbers(one) or 0 in one.shape:
        return None
    rank = len(one.shape)
    rest = tuple((d,) for d in range(1, rank))

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(rank, ())
        replaced = {id(data): trees[0], id(ids): trees[1]}
        if over:
            writer.ours("the scattering into a block")
            n = count // writer.mesh.axis_size(over)
            local = built("{ids} - {start}", ids=trees[1], start=writer.offset(over, ast.Constant(n)))
            replaced |= {id(ids): local, id(given): ast.Constant(n)}
        return site.rewritten(replaced)

    rule = Rule(
        (((0,), *rest), ((0,),)),
        ((rank,), *rest),
        dict(enumerate((*one.shape, count))),
        write,
        {0: _SEGMENTS[site.name]},
    )
    return writer.apply(site, [site.value(data), site.value(ids)], rule)


def counted(site: Site) -> Value | None:
    """`bincount`: what each device counts is added up."""
    x, weights = site.arguments["x"], site.arguments.get("weights")
    typed = site.type_of(x)
    if typed is None or site.static("length") is None or (weights is not None and site.type_of(weights) is None):
        return None
    parts = [x] if weights is None else [x, weights]
    return site.run([(part, ((0,),)) for part in parts], ((),), {0: typed.shape[0]}, {0: "sum"})


def searched(site: Site) -> Value | None:
    """`searchsorted`, `digitize`, `interp`, `polyval`: element by element, of a table that every device has."""
    part = site.arguments["v" if site.name == "searchsorted" else "x"]
    typed = site.type_of(part)
    if typed is None:
        return None
    dimensions = tuple((d,) for d in range(len(typed.shape)))
    return site.run([(part, dimensions)], dimensions, dict(enumerate(typed.shape)))
