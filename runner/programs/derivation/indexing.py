"""Shards slices, lookups and updates: a dimension taken whole stays sharded, others may be masked.

Arrays of indices are looked up in each device's block of the table, zero elsewhere. Scatters by indices are the
reverse: each device adds up its own data, for the segments in its block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from runner.base.lazy import dataclass
from runner.graph.language.lines import at_index
from runner.graph.language.operations.row import Reduction
from runner.graph.model import INDEX, inside, kind_of
from runner.graph.model import entries as index_entries
from runner.graph.term import NOTHING, Const, Group, Slice, Term, elements
from runner.programs.derivation.calls import UNKNOWN, Argument, Call, NotStatic, is_number
from runner.programs.derivation.registry import Way, rule_for
from runner.programs.derivation.rules import Rule, every, followed_by
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import ALL, built, constant, divided, indexed, spread
from runner.programs.derivation.updating import READS

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


def _bracketed_indices(call: Call) -> tuple[Argument, int]:
    """The array of indices between brackets, and the dimension that it indexes."""
    return next((item, d) for d, item in enumerate(entries(call)) if item.typed is not None)


def _taken(call: Call) -> tuple[Argument, int]:
    """The array of indices of `take`, and the dimension that it indexes."""
    return call.arguments["indices"], call.static("axis") % len(call.array.shape)


def looked_up(site: Site) -> Term:
    """Write `table[ids]`, block by block if the dimension is sharded."""
    indices, axis = _bracketed_indices(site.call)
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
    return _lookup(call, *_bracketed_indices(call))


def _look_up_along(site: Site) -> Term:
    indices, axis = site.call.arguments["indices"], _axis(site.call)
    if not site.over(axis):
        return site.rewritten()
    place = site.call.operand.place
    return _masked(site, indices, axis, lambda x, i: site.rewritten({place: x, indices.place: i}))


def _axis(call: Call) -> int:
    return call.static("axis", -1) % len(call.array.shape)


@rule_for("take_along_axis", write=_look_up_along)
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


@dataclass(frozen=True)
class Taken:
    """The elements taken of one dimension: `count` from `start` on, every `step`-th.

    - `count`: None if all are taken.
    - `start`: None if only the devices know it. It is then the argument `given`, in range; without that nothing is
      known, and the dimension must be whole.
    - `drops`: whether the result lacks the dimension.
    - `place`: the place of its entry between the brackets.
    """

    count: int | None = None
    start: int | None = 0
    step: int = 1
    drops: bool = False
    given: Argument | None = None
    place: str = ""

    def passes(self, size: int) -> bool:
        """Whether all elements are taken, or every n-th, so that the same slice applies to each block."""
        if self.count is None or self.drops or self.start is None:
            return self.count is None
        return 0 <= self.start < self.step and self.count * self.step == size

    @property
    def located(self) -> bool:
        """Whether the start is known, now or on the devices."""
        return self.start is not None or self.given is not None


Base = Callable[[Site, list[Taken], int | None], Term]
"""Writes the slice of the operand's block; the third argument is a dimension to keep whole, if any."""

Takes = Callable[[Call], tuple[list[Taken], list[int]] | None]
"""The elements that a call takes of each dimension, and the positions of new dimensions of size 1 in the result."""


def _reads(takes_of: Takes, base: Base) -> Way:
    """A way to read part of an array: along a sharded dimension a device reads from its block, and 0 elsewhere."""

    def split(call: Call, takes: list[Taken]) -> tuple[set[int], set[int]]:
        shape = call.array.shape
        passing = {d for d, taken in enumerate(takes) if taken.passes(shape[d])}
        return passing, {d for d, taken in enumerate(takes) if taken.located and is_number(call.array)} - passing

    def rule(call: Call) -> Rule | None:
        shape, reading = call.array.shape, takes_of(call)
        if reading is None:
            return None
        takes, new = reading
        passing, read = split(call, takes)
        rank = len(takes)
        # The positions read along a dimension are a factor of their own.
        sizes = dict(enumerate(shape)) | {d: takes[d].count or shape[d] for d in passing}
        sizes |= {rank + d: takes[d].count or 1 for d in read}
        kept = [d for d in range(rank) if not takes[d].drops]
        result: list[tuple[int, ...]] = [(d,) if d in passing else (rank + d,) if d in read else () for d in kept]
        for at in new:
            result.insert(at, ())
        if len(result) != len(call.result.shape):
            return None
        # The array has the neighbours' edges as well; the slice has not.
        sizes |= {factors[0]: call.result.shape[at] for at, factors in enumerate(result) if factors}
        dimensions, counts = tuple((d,) if d in passing | read else () for d in range(rank)), call.operand.counts
        return Rule(
            {call.operand.place: dimensions},
            tuple(result),
            sizes,
            dict.fromkeys(read, "sum"),
            single=frozenset(read),
            within={rank + d: d for d in read},
            below=call.operand.below,
            counts=None if counts is None or takes[counts].count else followed_by(dimensions, counts, tuple(result)),
        )

    def write(site: Site) -> Term:
        takes, new = takes_of(site.call) or ([], [])
        cut = [d for d in split(site.call, takes)[1] if site.over(d)]
        if not cut:
            return base(site, takes, None)
        site.ours("the reading of a block")
        (d,) = cut
        over, taken, size, rank = site.over(d), takes[d], site.call.array.shape[d], len(takes)
        n = size // site.mesh.axis_size(over)
        at = _positions(site, taken, size, site.over(rank + d))
        at = site.define("at", built("{at} - {start}", at=at, start=site.start(over, size)))
        axis = sum(not takes[before].drops for before in range(d))
        inside = built("({at} >= 0) & ({at} < {n})", at=at, n=n)
        after = sum(not takes[later].drops for later in range(d + 1, rank))
        inside = inside if taken.drops else spread(inside, after)
        block = base(site, takes, d)
        taken = built("take({x}, clip({at}, 0, {m}), axis={d})", x=block, at=at, m=n - 1, d=axis)
        taken = built("where({inside}, {taken}, 0)", inside=inside, taken=taken)
        if new:
            taken = indexed(taken, [NOTHING if at in new else ALL for at in range(len(site.call.result.shape))])
        return taken

    return Way(rule, write)


def _positions(site: Site, taken: Taken, size: int, over: tuple[str, ...]) -> Term:
    """The positions to read: one device's share where the result is sharded over the axes `over`."""
    count = taken.count or 1
    start = constant(taken.start) if taken.given is None else _clamped(site, taken.given, size, count)
    if taken.drops:
        return start
    at = site.indices(count, over)
    at = at if taken.step == 1 else built("{at} * {step}", at=at, step=taken.step)
    return at if taken.start == 0 else built("{at} + {start}", at=at, start=start)


def _clamped(site: Site, start: Argument, size: int, count: int) -> Term:
    """The start of `count` out of `size` elements; like JAX, counts a negative start from the end and clamps it."""
    if start.value is not UNKNOWN:
        return constant(min(max(start.value + size * (start.value < 0), 0), size - count))
    term = site.whole(start.place)
    return built("clip(where({s} < 0, {s} + {n}, {s}), 0, {last})", s=term, n=size, last=size - count)


# Brackets.


def _bracketed(call: Call) -> tuple[list[Taken], list[int]] | None:
    """Slices, numbers and None between brackets; None if the index has other entries."""
    shape, between, takes, new = call.array.shape, entries(call), list[Taken](), list[int]()
    for item in between:
        if item.value is None:
            new.append(sum(not take.drops for take in takes) + len(new))
        elif item.value is ...:
            count = sum(bound.value is not None and bound.value is not ... for bound in between)
            takes += [Taken()] * (len(shape) - count)
        elif item.kind in ("tuple", "list") or not (item.static or item.kind == "slice" or _is_index(item)):
            return None
        elif len(takes) in call.operand.halo:
            takes.append(Taken(place=item.place))
        else:
            takes.append(_item(item, shape[len(takes)]))
    return takes + [Taken()] * (len(shape) - len(takes)), new


def _is_index(item: Argument) -> bool:
    """Whether an entry is an integer known only on the devices."""
    return item.typed is not None and not item.typed.shape and item.typed.dtype != "bool"


def _item(item: Argument, size: int) -> Taken:
    """The elements that one entry between brackets takes."""
    if item.kind == "slice":
        if item.value is UNKNOWN:
            return Taken(1, None, place=item.place)
        bounds: slice = item.value
        return _range(range(size)[bounds], size, item.place)
    if item.static and item.value is UNKNOWN:
        return Taken(1, None, drops=True, given=item, place=item.place)
    inside = isinstance(item.value, int) and -size <= item.value < size
    return Taken(1, item.value % size if inside else None, drops=True, place=item.place)


def _range(bounds: range, size: int, place: str = "") -> Taken:
    if bounds == range(size):
        return Taken(place=place)
    return Taken(len(bounds), bounds.start if bounds else None, bounds.step, place=place)


def _in_brackets(site: Site, takes: list[Taken], whole: int | None) -> Term:
    operands = dict(
        zip((entry.place for entry in entries(site.call)), index_entries(site.equation.operands[1]), strict=True)
    )
    halo = site.call.operand.halo
    for d, taken in enumerate(takes):
        item = operands.get(taken.place)
        if item is not None and kind_of(item) == "slice" and site.over(d) and d not in halo:
            lower, _, step = inside(item)
            operands[taken.place] = Slice(lower, NOTHING, step) if taken.count is not None and step != NOTHING else ALL
    if whole is None:
        return site.rewritten({place: site.part(place, item) for place, item in operands.items()})
    while takes and not takes[-1].place:
        takes = takes[:-1]
    parts = [ALL if d == whole or not taken.place else operands[taken.place] for d, taken in enumerate(takes)]
    if all(part == ALL for part in parts):
        return site.x
    whole_parts = tuple(site.part(taken.place, part) for taken, part in zip(takes, parts, strict=True))
    return at_index(site.x, Group(whole_parts))


rule_for(INDEX, write=looked_up, otherwise=[_reads(_bracketed, _in_brackets), READS])(subscript)


# Static slices.


def _sliced(call: Call) -> tuple[list[Taken], list[int]]:
    """The ranges that `slice` takes."""
    shape = call.array.shape
    strides = call.static("strides") or (1,) * len(shape)
    bounds = zip(call.static("start_indices"), call.static("limit_indices"), strides, strict=True)
    return [_range(range(n)[slice(*bound)], n) for n, bound in zip(shape, bounds, strict=True)], []


def _sliced_along(call: Call) -> tuple[list[Taken], list[int]]:
    """The range that `slice_in_dim` takes."""
    between = slice(call.static("start_index"), call.static("limit_index"), call.static("stride", 1))
    return _along_axis(call, lambda n: _range(range(n)[between], n))


def _indexed_along(call: Call) -> tuple[list[Taken], list[int]]:
    """The position that `index_in_dim` takes."""
    return _along_axis(call, lambda n: Taken(1, call.static("index") % n, drops=not call.static("keepdims", True)))


def _along_axis(call: Call, taken: Callable[[int], Taken]) -> tuple[list[Taken], list[int]]:
    """What is taken along the argument `axis`, by the size of that dimension; the others are whole."""
    shape = call.array.shape
    axis: int = call.static("axis", 0) % len(shape)
    return [taken(n) if d == axis else Taken() for d, n in enumerate(shape)], []


def _as_brackets(site: Site, takes: list[Taken], whole: int | None) -> Term:
    """Write a static slice, with brackets if it is sharded."""
    if not any(site.assignment.values()):
        return site.rewritten()
    parts = [ALL if d == whole else _between(taken, site.over(d)) for d, taken in enumerate(takes)]
    while parts and parts[-1] == ALL:
        parts.pop()
    return indexed(site.x, parts) if parts else site.x


def _between(taken: Taken, over: tuple[str, ...]) -> Term:
    """The entry between brackets for one dimension."""
    if taken.count is None:
        return ALL
    if taken.drops:
        return constant(taken.start)
    assert taken.start is not None
    end = NOTHING if over else constant(taken.start + taken.step * taken.count)
    return Slice(constant(taken.start), end, constant(taken.step) if taken.step != 1 else NOTHING)


for _name, _takes in (("slice", _sliced), ("slice_in_dim", _sliced_along), ("index_in_dim", _indexed_along)):
    _way = _reads(_takes, _as_brackets)
    rule_for(_name, write=_way.write)(_way.rule)


# Dynamic slices. The start is clamped, so every read is in range.


def _starts(call: Call, rank: int) -> tuple[tuple[Argument, ...], int | None]:
    """The start arguments of a dynamic operation, and the dimension that it names, None if it names all."""
    if "start_indices" in call.arguments:
        starts = call.arguments["start_indices"].parts
        if starts is None or len(starts) != rank:
            raise NotStatic
        return starts, None
    start = call.arguments["start_index" if "start_index" in call.arguments else "index"]
    return (start,) * rank, call.static("axis", 0) % rank


def _dynamic(call: Call, *, by_index: bool = False) -> tuple[list[Taken], list[int]]:
    """The blocks that a dynamic slice takes; with `by_index` one position, whose dimension may be dropped."""
    shape = call.array.shape
    starts, axis = _starts(call, len(shape))
    drops = by_index and not call.static("keepdims", True)
    sizes = list(shape)
    if axis is None:
        sizes = list(call.static("slice_sizes"))
    else:
        sizes[axis] = 1 if by_index else call.static("slice_size")

    def taken(d: int) -> Taken:
        if sizes[d] == shape[d] and not (d == axis and drops):
            return Taken()
        return Taken(sizes[d], None, drops=d == axis and drops, given=starts[d])

    return [taken(d) for d in range(len(shape))], []


def _as_dynamic(site: Site, takes: list[Taken], whole: int | None) -> Term:
    given = site.argument("slice_sizes")
    if given is None:
        _, axis = _starts(site.call, len(takes))
        # A slice of the size of its dimension is the operand: its start is clamped to 0.
        all_of_it = axis is not None and takes[axis].count is None and site.over(axis)
        return site.x if all_of_it or whole is not None else site.rewritten()
    sizes = elements(given) or map(Const, site.call.static("slice_sizes"))
    local = [divided(site.part("", size), site.parts((d,))) for d, size in enumerate(sizes)]
    if whole is None:
        return site.rewritten({"slice_sizes": Group(tuple(local))} if any(site.assignment.values()) else {})
    local[whole] = constant(site.call.array.shape[whole] // site.parts((whole,)))
    return site.rewritten({"slice_sizes": Group(tuple(local)), f"start_indices[{whole}]": constant(0)})


_by_start = _reads(_dynamic, _as_dynamic)
rule_for("dynamic_slice", "dynamic_slice_in_dim", write=_by_start.write)(_by_start.rule)
_by_index = _reads(functools.partial(_dynamic, by_index=True), _as_dynamic)
rule_for("dynamic_index_in_dim", write=_by_index.write)(_by_index.rule)


# Updates.


def _updated(call: Call) -> tuple[list[int], dict[int, int], list[int]]:
    """The dimensions that are updated in part, the update's length along each dimension, and those that it has."""
    shape, update = call.array.shape, call.type_of("update").shape
    rank = len(shape)
    _, axis = _starts(call, rank)
    lost = rank - len(update)
    if lost not in (0, 1) or (lost and axis is None):
        raise NotStatic
    dims = [d for d in range(rank) if not (lost and d == axis)]
    short = dict(zip(dims, update, strict=True)) | ({axis: 1} if lost and axis is not None else {})
    return [d for d in range(rank) if short[d] != shape[d] or d == axis], short, dims


def _update(site: Site) -> Term:
    shape = site.call.array.shape
    partial, short, dims = _updated(site.call)
    cut = [d for d in partial if site.over(d)]
    if not cut:
        return site.rewritten()
    site.ours("the update of a block")
    (d,) = cut
    x, new = site.terms.values()
    new = built("expand_dims({x}, {d})", x=new, d=d) if d not in dims else new
    first = _clamped(site, _starts(site.call, len(shape))[0][d], shape[d], short[d])
    at = built("{positions} - {first}", positions=site.indices(shape[d], site.over(d)), first=first)
    at = site.define("at", at)
    moved = built("take({x}, clip({at}, 0, {last}), axis={d})", x=new, at=at, last=short[d] - 1, d=d)
    inside = spread(built("({at} >= 0) & ({at} < {count})", at=at, count=short[d]), len(shape) - d - 1)
    return built("where({inside}, {moved}, {x})", inside=inside, moved=moved, x=x)


@rule_for("dynamic_update_slice", "dynamic_update_slice_in_dim", "dynamic_update_index_in_dim", write=_update)
def dynamic_update(call: Call) -> Rule | None:
    """Rule: along a sharded dimension each device writes the part of the update in its block."""
    shape, update = call.array.shape, call.type_of("update")
    partial, _, dims = _updated(call)
    masked = len(partial) == 1 and call.array.dtype == update.dtype and 0 not in update.shape
    return Rule(
        {"operand": every(shape), "update": tuple((d,) if d not in partial else () for d in dims)},
        every(shape),
        dict(enumerate(shape)),
        whole=frozenset(() if masked else partial),
    )
