"""Looks arrays of indices up in each device's block of the table, zero elsewhere.

Scatters by indices are the reverse: each device adds up its own data, for the segments in its block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from runner.graph.language.operations.row import Reduction
from runner.graph.model import INDEX
from runner.graph.term import NOTHING, Term
from runner.programs.derivation.calls import Argument, Call, is_number
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Rule, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import ALL, built, constant, indexed

Outside = Literal["none", "clamped", "clipped", "nan"]
"""How an index out of range is treated: there is none; it is clamped, after a negative one has counted from the end; it
is clipped, a negative one to 0; or it gives NaN."""


def entries(call: Call) -> tuple[Argument, ...]:
    """The entries between the brackets, dimension by dimension."""
    index = call.arguments["index"]
    return index.parts or () if index.kind == "tuple" else (index,)


def _outside(call: Call, indices: Argument, axis: int) -> Outside | None:
    """How indices out of range are treated; None if a sum over devices cannot express it."""
    if not is_number(call.array):
        return None
    if indices.below is not None and indices.below <= call.array.shape[axis]:
        return "none"
    if call.name == INDEX:
        return "clamped"
    mode = call.static("mode") if call.given("mode") else "fill"
    if mode == "fill":
        fills = call.static("fill_value") if call.given("fill_value") else math.nan
        return "nan" if is_number(call.array, "float") and fills != fills else None
    return "clipped" if mode == "clip" else None


def _masked(
    site: Site,
    indices: Argument,
    axis: int,
    lookup: Callable[[Term, Term], Term],
    spread: Sequence[Term] = (),
) -> Term:
    """The result of `lookup` in this device's block, and 0 for indices in other blocks.

    `spread`: the index that broadcasts the mask over the dimensions after it.
    """
    site.ours("the lookup in a block")
    over, size = site.over(axis), site.call.array.shape[axis]
    outside = _outside(site.call, indices, axis)
    ids, n, rest = site.terms[indices.place], size // site.mesh.axis_size(over), constant(0)
    if outside == "clipped":
        ids = built("clip({i}, 0, {last})", i=ids, last=size - 1)
    elif outside != "none":
        ids = site.named("ids", ids)
        valid = built("({i} >= {low}) & ({i} < {size})", i=ids, low=-size, size=size)
        ids = built("where({i} < 0, {i} + {size}, {i})", i=ids, size=size)
        if outside == "clamped":
            ids = built("clip({i}, 0, {last})", i=ids, last=size - 1)
        else:
            # NaN on every device gives NaN in the sum.
            rest = built("where({v}, 0, inf - inf)", v=indexed(valid, spread) if spread else valid)
    local = site.define("local", built("{ids} - {start}", ids=ids, start=site.start(over, size)))
    inside = built("({local} >= 0) & ({local} < {n})", local=local, n=n)
    inside = indexed(inside, spread) if spread else inside
    here = lookup(site.x, built("clip({local}, 0, {last})", local=local, last=n - 1))
    return built("where({inside}, {found}, {rest})", inside=inside, found=here, rest=rest)


def _bracketed(call: Call) -> tuple[Argument, int]:
    """The array of indices between brackets, and the dimension that it indexes."""
    return next((item, d) for d, item in enumerate(entries(call)) if item.typed is not None)


def _taken(call: Call) -> tuple[Argument, int]:
    """The array of indices of `take`, and the dimension that it indexes."""
    return call.arguments["indices"], call.static("axis") % len(call.array.shape)


def looked_up(site: Site) -> Term:
    """Write `table[ids]`, block by block if the dimension is sharded."""
    indices, axis = _bracketed(site.call)
    place = site.call.operand.place
    return _in_blocks(site, indices, axis, lambda x, i: site.rewritten({place: x, indices.place: i}))


def _take(site: Site) -> Term:
    indices, axis = _taken(site.call)
    return _in_blocks(site, indices, axis, lambda x, i: built("take({x}, {i}, axis={d})", x=x, i=i, d=axis))


def _in_blocks(site: Site, indices: Argument, axis: int, lookup: Callable[[Term, Term], Term]) -> Term:
    """Write a lookup along one dimension, block by block if that is sharded."""
    if not site.over(axis):
        return site.rewritten()
    count, after = len(Call.type(indices).shape), len(site.call.array.shape) - axis - 1
    spread = [*[ALL] * count, *[NOTHING] * after] if after and count else ()
    return _masked(site, indices, axis, lookup, spread)


def _lookup(call: Call, indices: Argument, axis: int) -> Rule | None:
    shape, ids = call.array.shape, Call.type(indices)
    if ids.dtype == "bool":
        return None
    # Factors: the table's dimensions, then those of the indices.
    dimensions = every(shape)
    places = tuple((len(shape) + d,) for d in range(len(ids.shape)))
    return Rule(
        {call.operand.place: dimensions, indices.place: places},
        (*dimensions[:axis], *places, *dimensions[axis + 1 :]),
        dict(enumerate((*shape, *ids.shape))),
        {axis: "sum"},
        whole=frozenset({axis} if _outside(call, indices, axis) is None else ()),
        looked_up=frozenset({axis}),
    )


@rule_for("take", write=_take)
def take(call: Call) -> Rule | None:
    """Rule: a lookup along one dimension."""
    return _lookup(call, *_taken(call)) if isinstance(call.static("axis"), int) else None


def subscript(call: Call) -> Rule | None:
    """Rule: `table[tokens]`, `x[:, tokens]`: one array of indices, and all other dimensions taken whole."""
    items = entries(call)
    others = [item for item in items if item.typed is None]
    if len(others) != len(items) - 1 or not all(item.is_all for item in others):
        return None
    return _lookup(call, *_bracketed(call))


def _along_axis(site: Site) -> Term:
    indices, axis = site.call.arguments["indices"], _axis(site.call)
    if not site.over(axis):
        return site.rewritten()
    place = site.call.operand.place
    return _masked(site, indices, axis, lambda x, i: site.rewritten({place: x, indices.place: i}))


def _axis(call: Call) -> int:
    return call.static("axis", -1) % len(call.array.shape)


@rule_for("take_along_axis", write=_along_axis)
def along_axis(call: Call) -> Rule | None:
    """Rule: along a sharded dimension each device looks up the indices in its block."""
    table, ids, shape = call.array.shape, call.type_of("indices").shape, call.result.shape
    if not isinstance(call.static("axis", -1), int) or len(ids) != len(table):
        return None
    rank, axis = len(table), _axis(call)
    return Rule(
        {
            "arr": tuple((d,) if d == axis or table[d] == shape[d] else () for d in range(rank)),
            "indices": tuple((rank,) if d == axis else (d,) if ids[d] == shape[d] else () for d in range(rank)),
        },
        tuple((rank,) if d == axis else (d,) for d in range(rank)),
        {**dict(enumerate(shape)), axis: table[axis], rank: ids[axis]},
        {axis: "sum"},
        whole=frozenset({axis} if _outside(call, call.arguments["indices"], axis) is None else ()),
        looked_up=frozenset({axis}),
    )


def _segments(site: Site) -> Term:
    rank, ids = len(site.call.array.shape), site.terms["segment_ids"]
    over, count = site.over(rank), site.rule.sizes[rank]
    if not over:
        return site.rewritten()
    site.ours("the scattering into a block")
    local = built("{ids} - {start}", ids=ids, start=site.start(over, count))
    return site.rewritten({"segment_ids": local, "num_segments": constant(count // site.mesh.axis_size(over))})


def segments(call: Call, kind: Reduction) -> Rule | None:
    """Rule: each device reduces its own data; ids in another block of segments are dropped."""
    shape, ids, count = call.array.shape, call.type_of("segment_ids").shape, call.static("num_segments")
    if len(ids) != 1 or shape[:1] != ids or 0 in shape or not isinstance(count, int) or not is_number(call.array):
        return None
    rank, rest = len(shape), tuple((d,) for d in range(1, len(shape)))
    operands = {"data": every(shape), "segment_ids": ((0,),)}
    return Rule(operands, ((rank,), *rest), dict(enumerate((*shape, count))), {0: kind})


rule_for("segment_sum", write=_segments)(partial(segments, kind="sum"))
rule_for("segment_prod", write=_segments)(partial(segments, kind="prod"))
rule_for("segment_max", write=_segments)(partial(segments, kind="max"))
rule_for("segment_min", write=_segments)(partial(segments, kind="min"))


@rule_for("bincount")
def counted(call: Call) -> Rule | None:
    """Rule: the counts of all devices are added up."""
    if call.static("length") is None:
        return None
    parts = {name: ((0,),) for name in ("x", "weights") if name in call.arguments and call.type_of(name)}
    return Rule(parts, ((),), {0: call.type_of("x").shape[0]}, {0: "sum"})


@rule_for("digitize", "interp")
def searched(call: Call, place: str = "x") -> Rule | None:
    """Rule: elementwise in the argument `place`, with a table that is whole on every device."""
    shape = call.type_of(place).shape
    return Rule({place: every(shape)}, every(shape), dict(enumerate(shape)))


rule_for("searchsorted")(partial(searched, place="v"))
