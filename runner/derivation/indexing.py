"""Slices and updates: a dimension that is taken as a whole stays cut, another one has to be whole or is masked."""

from __future__ import annotations

import ast

from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.shaping import within
from runner.derivation.site import NotStatic, Site
from runner.derivation.trees import built, divided
from runner.layout import Spec


def entries(node: ast.Subscript) -> list[ast.expr]:
    """What stands between the brackets, dimension by dimension."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def subscript(site: Site) -> Value | None:
    """Slices, numbers and None: a dimension of which all is taken stays as it is cut."""
    node = site.node
    assert isinstance(node, ast.Subscript)
    typed = site.type_of(node.value)
    if typed is None:
        return None
    value = site.value(node.value)
    if value.shape is None:
        return None
    dimensions: list[tuple[int, ...]] = []
    result: list[tuple[int, ...]] = []
    for item in entries(node):
        d = len(dimensions)
        if isinstance(item, ast.Constant) and item.value is None:
            result.append(())
            continue
        if isinstance(item, ast.Slice):
            passes = d in value.halo or _whole(site, item, typed.shape[d])
            dimensions.append((d,) if passes else ())
            result.append((d,) if passes else ())
            continue
        index = site.type_of(item)
        if index is not None and (index.shape or index.dtype == "bool"):
            return None
        dimensions.append(())
    for d in range(len(dimensions), len(typed.shape)):
        dimensions.append((d,))
        result.append((d,))
    if len(result) != len(site.result.shape):
        return None
    sizes = {factors[0]: site.result.shape[at] for at, factors in enumerate(result) if factors}

    def write(trees: list[ast.expr], _: Assignment) -> ast.expr:
        return site.rewritten({id(node.value): trees[0]})

    return site.writer.apply(site, [value], Rule((tuple(dimensions),), tuple(result), sizes, write))


def _whole(site: Site, item: ast.Slice, size: int) -> bool:
    """Whether a slice takes all of a dimension."""
    try:
        lower = 0 if item.lower is None else site.writer.statics.value(item.lower)
        upper = size if item.upper is None else site.writer.statics.value(item.upper)
        step = 1 if item.step is None else site.writer.statics.value(item.step)
    except NotStatic:
        return False
    if lower == 0 and item.upper is not None:
        # On a block that is shorter the text would mean the same only if it is left away.
        return False
    return lower == 0 and upper >= size and step == 1


def _starts(site: Site, rank: int) -> tuple[list[ast.expr], list[int] | None, int | None]:
    """The starts of a dynamic operation, the sizes where it names them all, and the one dimension that it names."""
    if "start_indices" in site.arguments:
        starts = site.arguments["start_indices"]
        if not isinstance(starts, ast.Tuple | ast.List) or len(starts.elts) != rank:
            raise NotStatic
        sizes = site.static("slice_sizes")
        return list(starts.elts), None if sizes is None else list(sizes), None
    axis = site.static("axis", 0) % rank
    start = site.arguments["start_index" if "start_index" in site.arguments else "index"]
    return [start], None, axis


def dynamic_slice(site: Site) -> Value | None:
    """`dynamic_slice`, `dynamic_slice_in_dim`: dimensions of which all is taken stay as they are cut."""
    part = site.arguments["operand"]
    typed = site.type_of(part)
    if typed is None:
        return None
    rank = len(typed.shape)
    _, sizes, axis = _starts(site, rank)
    keeps = site.name != "dynamic_index_in_dim" or site.static("keepdims", True)
    if sizes is not None:
        passes = [size == whole for size, whole in zip(sizes, typed.shape, strict=True)]
    else:
        passes = [d != axis for d in range(rank)]
    dimensions = tuple((d,) if passes[d] else () for d in range(rank))
    result = tuple(each for d, each in enumerate(dimensions) if keeps or d != axis)

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        replaced = {id(part): trees[0]}
        given = site.arguments.get("slice_sizes")
        if isinstance(given, ast.Tuple | ast.List):
            for d, entry in enumerate(given.elts):
                static = site.writer.statics.tree(entry)
                assert static is not None
                replaced[id(entry)] = divided(static, site.writer.mesh.axis_size(assignment.get(d, ())))
        elif given is not None and any(assignment.values()):
            raise NotStatic
        return site.rewritten(replaced)

    rule = Rule((dimensions,), result, dict(enumerate(typed.shape)), write)
    return site.writer.apply(site, [site.value(part)], rule)


def dynamic_update(site: Site) -> Value | None:
    """An update: along a dimension that is cut, each device takes what falls into its block."""
    part, new = site.arguments["operand"], site.arguments["update"]
    typed, update = site.type_of(part), site.type_of(new)
    if typed is None or update is None:
        return None
    rank, writer = len(typed.shape), site.writer
    starts, _, axis = _starts(site, rank)
    lost = rank - len(update.shape)
    if lost not in (0, 1) or (lost and axis is None):
        return None
    own = [d for d in range(rank) if not (lost and d == axis)]
    short = dict(zip(own, update.shape, strict=True)) | ({axis: 1} if lost and axis is not None else {})
    partial = [d for d in range(rank) if short[d] != typed.shape[d] or (axis == d and axis is not None)]
    dimensions = tuple((d,) for d in range(rank))
    operands = (dimensions, tuple((d,) if d not in partial else () for d in own))
    start_of = dict.fromkeys(range(rank), starts[0]) if axis is not None else dict(enumerate(starts))

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        cut = [d for d in partial if assignment.get(d)]
        if not cut:
            return site.rewritten({id(part): trees[0], id(new): trees[1]})
        writer.ours("the update of a block")
        d = cut[0]
        over, size = assignment[d], typed.shape[d]
        fresh = trees[1] if not lost else built("expand_dims({x}, {d})", x=trees[1], d=d)
        n = size // writer.mesh.axis_size(over)
        first = built("clip({start}, 0, {last})", start=writer.whole(start_of[d]), last=size - short[d])
        positions = within(site, size, over, built("arange({n})", n=n))
        at = built("{positions} - {first}", positions=positions, first=first)
        at = writer.define(writer.fresh(f"{site.writer.line}_at"), Value(at, None, Spec())).tree
        template = "take({x}, clip({at}, 0, {last}), axis={d})"
        moved = built(template, x=fresh, at=at, last=short[d] - 1, d=d)
        inside = built("({at} >= 0) & ({at} < {count})", at=at, count=short[d])
        if rank - d > 1:
            inside = built("({x})[:, " + ", ".join(["None"] * (rank - d - 1)) + "]", x=inside)
        return built("where({inside}, {moved}, {x})", inside=inside, moved=moved, x=trees[0])

    def allowed(assignment: Assignment) -> bool:
        cut = [d for d in partial if assignment.get(d)]
        return not cut or (len(partial) == 1 and typed.dtype == update.dtype)

    rule = Rule(operands, dimensions, dict(enumerate(typed.shape)), write, allowed=allowed)
    return writer.apply(site, [site.value(part), site.value(new)], rule)
