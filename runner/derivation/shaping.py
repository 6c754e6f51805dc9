"""Operations that only move elements: transposes, reshapes, broadcasts, joins."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from runner.derivation.reductions import operand
from runner.derivation.rules import Assignment, Dimensions, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built, constant, divided


def transposed(site: Site) -> Value | None:
    """`.T`, `swapaxes`, …: the dimensions in another order."""
    part = site.node.value if isinstance(site.node, ast.Attribute) else operand(site)
    typed = site.type_of(part)
    if typed is None:
        return None
    rank = len(typed.shape)
    order = list(range(rank))
    name = "transpose" if isinstance(site.node, ast.Attribute) else site.name
    if name in ("transpose", "permute_dims"):
        axes = None if isinstance(site.node, ast.Attribute) else site.static("axes")
        order = order[::-1] if axes is None else [axis % rank for axis in axes]
    elif name == "matrix_transpose":
        order[-2:] = order[:-3:-1]
    elif name == "swapaxes":
        one, other = site.static("axis1") % rank, site.static("axis2") % rank
        order[one], order[other] = order[other], order[one]
    else:
        source, destination = site.static("source"), site.static("destination")
        if not isinstance(source, int) or not isinstance(destination, int):
            return None
        order.insert(destination % rank, order.pop(source % rank))
    dimensions = tuple((d,) for d in range(rank))
    result = tuple((d,) for d in order)
    return site.run([(part, dimensions)], result, dict(enumerate(typed.shape)), moves=True)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[Dimensions, Dimensions, dict[int, int]] | None:
    """The factors that two shapes of as many elements share; dimensions that share none stay whole."""
    first: list[list[int]] = [[] for _ in one]
    second: list[list[int]] = [[] for _ in other]
    sizes: dict[int, int] = {}
    i = j = 0
    left, right = list(one), list(other)
    if 0 in one:
        return None
    while i < len(one) and j < len(other):
        if left[i] == 1:
            i += 1
        elif right[j] == 1:
            j += 1
        else:
            shared = min(left[i], right[j])
            crossing = left[i] % shared or right[j] % shared
            # Where dimensions cross, the blocks of their common divisor still agree; what is inside of them is whole.
            shared = math.gcd(left[i], right[j]) if crossing else shared
            if shared == 1:
                i, j = _past(left, right, i, j)
                continue
            factor = len(sizes)
            sizes[factor] = shared
            first[i].append(factor)
            second[j].append(factor)
            left[i] //= shared
            right[j] //= shared
            if crossing:
                i, j = _past(left, right, i, j)
    return tuple(map(tuple, first)), tuple(map(tuple, second)), sizes


def _past(left: list[int], right: list[int], i: int, j: int) -> tuple[int, int]:
    """Where the dimensions of both sides end together again."""
    a, b = left[i], right[j]
    while a != b:
        if a < b:
            i += 1
            a *= left[i]
        else:
            j += 1
            b *= right[j]
    return i + 1, j + 1


def reshaped(site: Site) -> Value | None:
    """`reshape`: a dimension is split and merged where its slowest factors stay together."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None or site.static("order", "C") != "C":
        return None
    shape = site.result.shape
    found = common(typed.shape, shape)
    if found is None:
        return None
    dimensions, result, sizes = found

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        if site.name == "ravel":
            return site.rewritten({id(part): trees[0]})
        given = site.arguments["shape"]
        cut = [site.writer.mesh.axis_size([a for f in factors for a in assignment.get(f, ())]) for factors in result]
        entries = given.elts if isinstance(given, ast.Tuple | ast.List) else None
        if entries is None or len(entries) != len(shape):
            local = constant(tuple(size // n for size, n in zip(shape, cut, strict=True)))
        else:
            local = ast.Tuple([_entry(site, entry, n) for entry, n in zip(entries, cut, strict=True)])
        return built("reshape({x}, {shape})", x=trees[0], shape=local)

    return site.writer.apply(site, [site.value(part)], Rule((dimensions,), result, sizes, write))


def _entry(site: Site, entry: ast.expr, n: int) -> ast.expr:
    static = site.writer.statics.tree(entry)
    assert static is not None
    minus = isinstance(static, ast.UnaryOp)
    return static if minus else divided(static, n)


def reshaped_by_name(site: Site) -> Value | None:
    """`expand_dims`, `squeeze`: dimensions of size 1 come and go."""
    part = operand(site)
    typed = site.type_of(part)
    found = None if typed is None else common(typed.shape, site.result.shape)
    if found is None:
        return None
    dimensions, result, sizes = found
    return site.run([(part, dimensions)], result, sizes, moves=True)


def broadcast(site: Site) -> Value | None:
    """`broadcast_to`: the new dimensions are made on each device, as long as it needs them."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None:
        return None
    shape = site.result.shape
    offset = len(shape) - len(typed.shape)
    dimensions = tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(typed.shape))

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        local = tuple(size // site.writer.mesh.axis_size(assignment.get(d, ())) for d, size in enumerate(shape))
        return built("broadcast_to({x}, {shape})", x=trees[0], shape=constant(local))

    result = tuple((d,) for d in range(len(shape)))
    return site.writer.apply(site, [site.value(part)], Rule((dimensions,), result, dict(enumerate(shape)), write))


_PILED = {"vstack": 0, "hstack": 1, "dstack": 2, "column_stack": 1}


def joined(site: Site) -> Value | None:
    """`concatenate`, `stack`, …: whole along the dimension that is joined."""
    first = operand(site)
    parts = list(first.elts) if isinstance(first, ast.Tuple | ast.List) else []
    if site.name == "append":
        parts = [site.arguments["arr"], site.arguments["values"]]
    typed = [site.type_of(part) for part in parts]
    ranks = {len(each.shape) for each in typed if each is not None}
    rank = len(site.result.shape)
    if not parts or None in typed or len(ranks) > 1 or (site.name == "append" and not site.given("axis")):
        return None
    axis: int | None = _PILED[site.name] if site.name in _PILED else site.static("axis", 0)
    if axis is None:
        return None
    axis %= rank
    if site.name == "hstack" and rank == 1:
        axis = 0
    lacks = ranks == {rank - 1}
    if ranks != {rank} and not lacks:
        return None
    whole = tuple((d,) if d != axis else () for d in range(rank))
    dimensions = tuple((d,) for d in range(rank) if d != axis) if lacks else whole
    return site.run([(part, dimensions) for part in parts], whole, dict(enumerate(site.result.shape)))


def repeated(site: Site) -> Value | None:
    """`repeat`: every element becomes a few, which stay together."""
    part = operand(site)
    typed = site.type_of(part)
    times, axis = site.static("repeats"), site.static("axis")
    if typed is None or not isinstance(times, int) or site.given("total_repeat_length"):
        return None
    rank = len(typed.shape)
    dimensions = tuple((d,) for d in range(rank))
    sizes = dict(enumerate(typed.shape)) | {rank: times}
    if axis is None:
        return site.run([(part, dimensions)], ((*range(rank), rank),), sizes, allowed=_whole(rank))
    result = tuple((d, rank) if d == axis % rank else (d,) for d in range(rank))
    return site.run([(part, dimensions)], result, sizes, allowed=_whole(rank))


def _whole(factor: int) -> Callable[[Assignment], bool]:
    """Assignments that do not split a factor."""
    return lambda assignment: not assignment.get(factor)


def triangle(site: Site) -> Value | None:
    """`tril`, `triu`: the diagonal begins elsewhere in each block of rows and columns."""
    part = operand(site)
    typed = site.type_of(part)
    k = site.static("k", 0)
    if typed is None or len(typed.shape) < 2 or not isinstance(k, int):
        return None
    rank, shape, writer = len(typed.shape), typed.shape, site.writer

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        rows, columns = assignment.get(rank - 2, ()), assignment.get(rank - 1, ())
        if not rows and not columns:
            return site.rewritten({id(part): trees[0]})
        first = within(site, shape[-2], rows, built("arange({n})[:, None]", n=shape[-2] // writer.mesh.axis_size(rows)))
        second = within(site, shape[-1], columns, built("arange({n})", n=shape[-1] // writer.mesh.axis_size(columns)))
        order = "<=" if site.name == "tril" else ">="
        template = "where({c} " + order + " {r} + {k}, {x}, {nothing})"
        nothing = False if typed.dtype == "bool" else 0
        return built(template, r=first, c=second, k=k, x=trees[0], nothing=nothing)

    dimensions = tuple((d,) for d in range(rank))
    return writer.apply(site, [site.value(part)], Rule((dimensions,), dimensions, dict(enumerate(shape)), write))


def within(site: Site, size: int, axes: tuple[str, ...], local: ast.expr) -> ast.expr:
    """Indices within a block as those of the whole: `arange(8) + axis_index('x') * 8`."""
    if not axes:
        return local
    n = site.writer.mesh.axis_size(axes)
    return built("{local} + {start}", local=local, start=site.writer.offset(axes, ast.Constant(size // n)))


def tiled(site: Site) -> Value | None:
    """`tile`: dimensions that are repeated have to be whole."""
    part = operand(site)
    typed = site.type_of(part)
    reps = site.static("reps")
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    if typed is None:
        return None
    rank = max(len(reps), len(typed.shape))
    reps = (1,) * (rank - len(reps)) + reps
    offset = rank - len(typed.shape)
    dimensions = tuple((d + offset,) if reps[d + offset] == 1 else () for d in range(len(typed.shape)))
    result = tuple((d,) if d >= offset and reps[d] == 1 else () for d in range(rank))
    sizes = {d + offset: size for d, size in enumerate(typed.shape)}
    return site.run([(part, dimensions)], result, sizes)
