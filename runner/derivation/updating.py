"""`x.at[index]`: along a dimension that is sharded, each device updates what lies in its block, and drops the rest."""

from __future__ import annotations

from runner.derivation.calls import Argument, Call, NotStatic
from runner.derivation.registry import rule_for
from runner.derivation.rules import Rule
from runner.derivation.site import Site
from runner.derivation.terms import built
from runner.graph.term import Term
from runner.language.operations import OPERATIONS


def _items(call: Call) -> list[Argument | None]:
    """What stands in an index for each dimension, None for `:`. Raises `NotStatic` where it adds dimensions."""
    index, rank = call.arguments["index"], len(call.array.shape)
    items = list(index.parts or ()) if index.kind == "tuple" else [index]
    dots = [at for at, item in enumerate(items) if item.value is ...]
    if any(item.value is None or (item.typed is not None and item.typed.dtype == "bool") for item in items):
        raise NotStatic
    at = dots[0] if dots else len(items)
    indexed = [None if item.is_all else item for item in items]
    return [*indexed[:at], *[None] * (rank - len(items) + len(dots)), *indexed[at + len(dots) :]]


def _placed(items: list[Argument | None]) -> list[int]:
    """The dimensions that numbers or arrays index."""
    return [d for d, item in enumerate(items) if item is not None and item.kind != "slice"]


def _write(site: Site) -> Term:
    items = _items(site.call)
    blocks = {d: item for d in _placed(items) if (item := items[d]) is not None and site.over(d)}
    return site.rewritten({item.place: _in_block(site, item, d) for d, item in blocks.items()})


def _in_block(site: Site, item: Argument, d: int) -> Term:
    """Indices of a dimension as indices of this device's block; those of other blocks lie behind its end."""
    site.ours("the update of a block")
    over, size = site.over(d), site.call.array.shape[d]
    n = size // site.mesh.axis_size(over)
    ids = site.define("ids", built("asarray({i})", i=site.whole(item.place)))
    local = built("where({i} < 0, {i} + {size}, {i}) - {start}", i=ids, size=size, start=site.start(over, size))
    local = site.define("local", local)
    return built("where(({local} >= 0) & ({local} < {n}), {local}, {n})", local=local, n=n)


@rule_for(*(name for name, row in OPERATIONS.items() if row.method is not None), write=_write)
def by_index(call: Call) -> Rule | None:
    """An update, whose values lie as the dimensions that the index takes whole; or a `get` of such."""
    shape, items = call.array.shape, _items(call)
    placed, reads = _placed(items), "values" not in call.arguments
    # An index array has its own place in what is indexed: where the arrays are, or first.
    ranks = [len(item.typed.shape) for item in items if item is not None and item.typed is not None]
    together = not placed or placed[-1] - placed[0] == len(placed) - 1
    kept: list[int | None] = [d for d in range(len(shape)) if d not in placed]
    at = placed[0] if placed and together else 0
    indexed = [*kept[:at], *[None] * max(ranks, default=0), *kept[at:]]
    dimensions = tuple((d,) if item is None or (d in placed and not reads) else () for d, item in enumerate(items))
    operands = {call.operand.place: dimensions}
    given = None if reads else call.arguments["values"].typed
    if given is not None:
        if len(given.shape) > len(indexed):
            return None
        theirs = zip(indexed[len(indexed) - len(given.shape) :], given.shape, strict=True)
        operands["values"] = tuple(
            (d,) if d is not None and items[d] is None and size == shape[d] else () for d, size in theirs
        )
    result = tuple((d,) if d is not None and items[d] is None else () for d in indexed) if reads else dimensions
    # What is clamped lies in one block, and would be clamped in each.
    clamped = call.given("mode") and call.static("mode") == "clip"
    return Rule(operands, result, dict(enumerate(shape)), whole=frozenset(placed if clamped else ()))
