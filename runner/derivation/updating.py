"""`x.at[index]`: along a dimension that is sharded, each device updates what lies in its block, and drops the rest."""

from __future__ import annotations

import ast

from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.layout import Spec


def by_index(site: Site) -> Value | None:
    """An update, whose values lie as the dimensions that the index takes whole; or a `get` of such."""
    part, index, values = (site.arguments.get(name) for name in ("x", "index", "values"))
    assert part is not None
    assert index is not None
    typed = site.type_of(part)
    if typed is None:
        return None
    shape, rank = typed.shape, len(typed.shape)
    items = _items(index, rank)
    if items is None:
        return None
    arrays = [site.type_of(item) for item in items]
    if any(each is not None and each.dtype == "bool" for each in arrays):
        return None
    whole = [_is_whole(item) for item in items]
    placed = [d for d in range(rank) if not isinstance(items[d], ast.Slice)]
    reads = values is None
    # An index array has its own place in what is indexed: where the arrays are, or first.
    block = [None] * max((len(each.shape) for each in arrays if each is not None), default=0)
    together = not placed or placed[-1] - placed[0] == len(placed) - 1
    kept: list[int | None] = [d for d in range(rank) if d not in placed]
    at = placed[0] if placed and together else 0
    indexed: list[int | None] = [*kept[:at], *block, *kept[at:]]
    dimensions = tuple((d,) if whole[d] or (d in placed and not reads) else () for d in range(rank))
    operands = [dimensions]
    given = None if values is None else site.type_of(values)
    if values is not None and given is not None:
        if len(given.shape) > len(indexed):
            return None
        theirs = indexed[len(indexed) - len(given.shape) :]
        operands.append(
            tuple(
                (d,) if d is not None and whole[d] and size == shape[d] else ()
                for d, size in zip(theirs, given.shape, strict=True)
            )
        )

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        replaced = {id(part): trees[0]}
        if values is not None and given is not None:
            replaced[id(values)] = trees[1]
        for d in placed:
            if over := assignment.get(d):
                replaced[id(items[d])] = _in_block(site, items[d], shape[d], over)
        return site.rewritten(replaced)

    def allowed(assignment: Assignment) -> bool:
        # What is clamped lies in one block, and would be clamped in each.
        return not site.given("mode") or site.static("mode") != "clip" or not any(assignment.get(d) for d in placed)

    result = dimensions if not reads else tuple((d,) if d is not None and whole[d] else () for d in indexed)
    rule = Rule(tuple(operands), result, dict(enumerate(shape)), write, allowed=allowed)
    parts = [part] if values is None or given is None else [part, values]
    return site.writer.apply(site, [site.value(each) for each in parts], rule)


def _items(index: ast.expr, rank: int) -> list[ast.expr] | None:
    """What stands in an index for each dimension; None where it adds dimensions."""
    items = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    dots = [at for at, item in enumerate(items) if isinstance(item, ast.Constant) and item.value is ...]
    if any(isinstance(item, ast.Constant) and item.value is None for item in items):
        return None
    missing: list[ast.expr] = [ast.Slice() for _ in range(rank - len(items) + len(dots))]
    at = dots[0] if dots else len(items)
    return [*items[:at], *missing, *items[at + len(dots) :]]


def _is_whole(item: ast.expr) -> bool:
    return isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None


def _in_block(site: Site, item: ast.expr, size: int, over: tuple[str, ...]) -> ast.expr:
    """Indices of a dimension as indices of this device's block; those of other blocks lie behind its end."""
    writer, wish = site.writer, site.writer.line
    writer.ours("the update of a block")
    n = size // writer.mesh.axis_size(over)
    ids = Value(built("asarray({i})", i=writer.whole(item)), None, Spec())
    named = writer.define(writer.fresh(f"{wish}_ids"), ids).tree
    local = built(
        "where({i} < 0, {i} + {size}, {i}) - {start}", i=named, size=size, start=writer.offset(over, ast.Constant(n))
    )
    local = writer.define(writer.fresh(f"{wish}_local"), Value(local, None, Spec())).tree
    return built("where(({local} >= 0) & ({local} < {n}), {local}, {n})", local=local, n=n)
