"""Updates each device's block by `x.at[index]`, drops the rest, and reads by several arrays.

Along a sharded dimension that a slice indexes, each element of a block gets the value at its place in the slice.
"""

from __future__ import annotations

import math
from functools import partial, reduce

from runner.base.layout import Typed
from runner.base.lazy import dataclass
from runner.graph.language.operations.row import Reduction
from runner.graph.model import Ref
from runner.graph.term import NOTHING, Term
from runner.programs.derivation.calls import Argument, Call, NotStatic, is_number
from runner.programs.derivation.registry import Way, rule_for
from runner.programs.derivation.rules import Dimensions, Rule
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import ALL, built, indexed, spread


def _items(call: Call) -> list[Argument | None]:
    """The entry of an index for each dimension, None for `:`. Raises `NotStatic` if it adds dimensions or is a mask."""
    index, rank = call.arguments["index"], len(call.array.shape)
    items = list(index.parts or ()) if index.kind == "tuple" else [index]
    dots = [at for at, item in enumerate(items) if item.value is ...]
    if any(item.value is None or (item.typed is not None and item.typed.dtype == "bool") for item in items):
        raise NotStatic
    if any(item.typed is None and not item.static and not item.kind for item in items):
        raise NotStatic  # neither an array nor static, such as a tuple of indices
    at = dots[0] if dots else len(items)
    indexed = [None if item.is_all else item for item in items]
    return [*indexed[:at], *[None] * (rank - len(items) + len(dots)), *indexed[at + len(dots) :]]


def _placed(items: list[Argument | None]) -> list[int]:
    """The dimensions that numbers or arrays index."""
    return [d for d, item in enumerate(items) if item is not None and item.kind != "slice"]


def _sliced(call: Call, items: list[Argument | None]) -> dict[int, range]:
    """The elements that slices take of the dimensions of an updated array, where they are known."""
    if "values" not in call.arguments:
        return {}
    bounds = {d: item.value for d, item in enumerate(items) if item is not None and item.kind == "slice"}
    ranges = {d: range(call.array.shape[d])[bound] for d, bound in bounds.items() if isinstance(bound, slice)}
    return {d: taken for d, taken in ranges.items() if taken}


def _write(site: Site, neutral: int | None = None) -> Term:
    """Write an update; `neutral` changes nothing, and stands where the derivative could be infinite otherwise."""
    items = _items(site.call)
    blocks = {d: item for d in _placed(items) if (item := items[d]) is not None and site.over(d)}
    written = {item.place: _in_block(site, item, d) for d, item in blocks.items()}
    over, place = site.over(*(factor for factor, kind in site.rule.reduced.items() if kind == "sum")), "values"
    if over and not _is_zero(site):
        # The initial values are counted once, on the first of the devices that add to them.
        first = built("where(axis_index({over}) == 0, {x}, 0)", over=over, x=site.x)
        written[site.call.operand.place] = first
    sliced = {d: taken for d, taken in _sliced(site.call, items).items() if site.over(d)}
    if not sliced:
        return site.rewritten(written)
    x = written[site.call.operand.place] = site.named("of", written.get(site.call.operand.place, site.x))
    dimensions, updated = _indexed(items, _Indices.of(site.call, items)), list[Term]()
    for d, taken in sliced.items():
        inside, at = _places(site, d, taken)
        updated.append(spread(inside, len(items) - 1 - d))
        after = len(dimensions) - 1 - dimensions.index(d)
        written[place] = _placed_values(site, written.get(place), spread(inside, after), at, after, neutral)
        item = items[d]
        assert item is not None
        written[item.place] = ALL
    return built("where({inside}, {new}, {x})", inside=reduce(_both, updated), new=site.rewritten(written), x=x)


def _both(condition: Term, further: Term) -> Term:
    return built("({a}) & ({b})", a=condition, b=further)


def _places(site: Site, d: int, taken: range) -> tuple[Term, Term]:
    """For each element of a block, whether a slice along the sharded dimension `d` takes it, and its place in that."""
    site.ours("the update of a block")
    at = site.indices(site.call.array.shape[d], site.over(d))
    at = site.define("at", built("{at} - {start}", at=at, start=taken.start) if taken.start else at)
    place = at if taken.step == 1 else site.define("place", built("{at} // {step}", at=at, step=taken.step))
    inside = built("({place} >= 0) & ({place} < {n})", place=place, n=len(taken))
    if taken.step != 1:
        inside = built("({at} % {step} == 0) & {inside}", at=at, step=taken.step, inside=inside)
    return site.define("inside", inside), built("clip({place}, 0, {last})", place=place, last=len(taken) - 1)


def _placed_values(site: Site, values: Term | None, inside: Term, at: Term, after: int, neutral: int | None) -> Term:
    """The values of an update for the elements of a block, along the dimension that `after` others follow.

    `neutral`: the value for the elements that no slice takes; None if any may be there.
    """
    given = site.call.arguments["values"]
    values = values or site.terms.get("values") or site.whole("values")
    shape = () if given.typed is None else given.typed.shape
    d = len(shape) - 1 - after
    if d >= 0 and shape[d] > 1:
        values = built("take({x}, {at}, axis={d})", x=values, at=at, d=d)
    return values if neutral is None else built("where({inside}, {x}, {kept})", inside=inside, x=values, kept=neutral)


def _is_zero(site: Site) -> bool:
    """Whether the operand is made by `zeros` or `zeros_like`."""
    operand = site.equation.operands[0]
    made = site.layouts.names.graph.producers.get(operand.number) if isinstance(operand, Ref) else None
    return made is not None and made.operation in ("zeros", "zeros_like")


def _in_block(site: Site, item: Argument, d: int) -> Term:
    """Convert indices to indices in this device's block; those in other blocks become out of range."""
    site.ours("the update of a block")
    over, size = site.over(d), site.call.array.shape[d]
    n, start = size // site.mesh.axis_size(over), site.start(over, size)
    ids = site.terms.get(item.place) or site.whole(item.place)
    if (d,) in site.rule.operands.get(item.place, ()):
        # The indices are the positions of this device's block, 0, 1, … within it.
        assert item.typed is not None
        shape, first = item.typed.shape, built("arange({n})", n=n)
        if math.prod(shape) > size:
            return built("{i} - {start}", i=ids, start=start)
        return (
            indexed(first, [ALL if at == item.counts else NOTHING for at in range(len(shape))]) if shape[1:] else first
        )
    ids = site.define("ids", built("asarray({i})", i=ids))
    local = built("where({i} < 0, {i} + {size}, {i}) - {start}", i=ids, size=size, start=start)
    local = site.define("local", local)
    return built("where(({local} >= 0) & ({local} < {n}), {local}, {n})", local=local, n=n)


@dataclass(frozen=True)
class _Indices:
    """The common shape of the arrays in an index.

    - `shape`: the shape that they broadcast to.
    - `factors`: a factor for each dimension. Where an array's elements are 0, 1, 2, … along it, this is the factor of
      the indexed dimension: no index crosses blocks.
    """

    shape: tuple[int, ...]
    factors: tuple[int, ...]

    @classmethod
    def of(cls, call: Call, items: list[Argument | None]) -> _Indices:
        """The indices of a call."""
        shapes = [item.typed.shape for item in items if item is not None and item.typed is not None]
        rank = max(map(len, shapes), default=0)
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
        factors = [len(items) + at for at in range(rank)]
        for d, item in enumerate(items):
            if item is not None and item.typed is not None and item.counts is not None:
                at = item.counts + rank - len(item.typed.shape)
                if shape[at] == call.array.shape[d] and factors[at] >= len(items) and d not in factors:
                    factors[at] = d
        return cls(shape, tuple(factors))

    def dimensions(self, typed: Typed, split: frozenset[int]) -> Dimensions:
        """The factors of one array's dimensions, without those that may not be `split`."""
        named = zip(self.factors[len(self.factors) - len(typed.shape) :], typed.shape, strict=True)
        shape = self.shape[len(self.shape) - len(typed.shape) :]
        pairs = zip(named, shape, strict=True)
        return tuple((factor,) if size == n and factor in split else () for (factor, size), n in pairs)


def _indexed(items: list[Argument | None], indices: _Indices) -> list[int]:
    """The factors of the indexed elements' dimensions, those of index arrays where these stand together, else first."""
    placed = _placed(items)
    kept = [d for d in range(len(items)) if d not in placed]
    at = placed[0] if placed and placed[-1] - placed[0] == len(placed) - 1 else 0
    return [*kept[:at], *indices.factors, *kept[at:]]


@rule_for("at[].set", "at[].get", write=_write)
def by_index(call: Call, kind: Reduction | None = None) -> Rule | None:
    """Rule: an update, or a `get`; values are sharded as the dimensions that the index takes whole.

    `kind`: the reduction over devices that completes the update; with one, the indices may be split among devices.
    """
    shape, items = call.array.shape, _items(call)
    placed, reads = _placed(items), "values" not in call.arguments
    indices = _Indices.of(call, items)
    kept = [d for d in range(len(shape)) if d not in placed]
    # A clamped index belongs to one block, but each block would clamp it.
    clamped = bool(call.given("mode")) and call.static("mode") == "clip"
    counted = {factor for factor in indices.factors if factor < len(shape)} - {*(placed if clamped else ())}
    completed = kind if is_number(call.array) else None
    own = {factor for factor in indices.factors if factor >= len(shape)}
    own = own if (completed or reads) and all(map(_is_known, items)) else set[int]()
    split = frozenset({d for d in kept if items[d] is None} | counted | own)
    indexed, sliced = _indexed(items, indices), _sliced(call, items)
    sizes = dict(enumerate(shape)) | dict(zip(indices.factors, indices.shape, strict=True))
    dimensions = tuple(
        (d,) if item is None or d in counted or d in sliced or (d in placed and not reads) else ()
        for d, item in enumerate(items)
    )
    operands: dict[str, Dimensions] = {call.operand.place: dimensions}
    for item in items:
        if item is not None and item.typed is not None and item.typed.shape:
            operands[item.place] = indices.dimensions(item.typed, split)
    typed = None if reads else call.arguments["values"].typed
    if typed is not None:
        if len(typed.shape) > len(indexed):
            return None
        theirs = zip(indexed[len(indexed) - len(typed.shape) :], typed.shape, strict=True)
        operands["values"] = tuple((d,) if d in split and size == sizes[d] else () for d, size in theirs)
    result = tuple((d,) if d in split else () for d in indexed) if reads else dimensions
    if len(result) != len(call.result.shape):
        return None
    return Rule(
        operands,
        result,
        sizes,
        dict.fromkeys(own, completed) if completed else {},
        whole=frozenset(placed if clamped else ()),
    )


READS = Way(by_index, _write)


rule_for("at[].multiply", "at[].mul", "at[].divide", "at[].power", write=partial(_write, neutral=1))(by_index)
rule_for("at[].add", "at[].subtract", write=_write)(partial(by_index, kind="sum"))
rule_for("at[].max", write=_write)(partial(by_index, kind="max"))
rule_for("at[].min", write=_write)(partial(by_index, kind="min"))


def _is_known(item: Argument | None) -> bool:
    """Whether an entry is an array, a number, a slice or absent, rather than a tuple or list of positions."""
    return item is None or item.typed is not None or item.kind in ("", "slice")
