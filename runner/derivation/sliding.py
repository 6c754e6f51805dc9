"""Operations that reach into the next blocks: halos, shifts, sums of the blocks before."""

from __future__ import annotations

import ast
import math
from typing import Any

from runner.derivation.indexing import entries
from runner.derivation.reductions import operand
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import NotStatic, Site
from runner.derivation.trees import built, constant
from runner.dtypes import NAMES, dtype
from runner.experiment.model import Loop, Node
from runner.layout import Spec
from runner.untyped import is_sequence


def _part(rank: int, axis: int, text: str) -> str:
    """`[:, -2:]`: a slice of one dimension."""
    return "[" + ", ".join([":"] * axis + [text]) + "]" if rank else ""


def _held(site: Site, assignment: Assignment, size: int = 1, axis: int | None = None) -> float:
    """The bytes of the operand on one device, of which `size` along `axis`, where it is given."""
    typed = site.type_of(operand(site))
    assert typed is not None
    mesh = site.writer.mesh
    parts = [n // mesh.axis_size(assignment.get(d, ())) for d, n in enumerate(typed.shape)]
    if axis is not None:
        parts[axis] = size
    return math.prod(parts) * (dtype(typed.dtype).itemsize if typed.dtype in NAMES else 8)


def _ordered(site: Site, over: tuple[str, ...]) -> bool:
    """Whether a permutation over these axes may name them: in the mesh's order."""
    axes = site.writer.mesh.axes
    return list(over) == sorted(over, key=axes.index)


def _one_axis(site: Site, name: str = "axis") -> tuple[int, int, tuple[int, ...]] | None:
    """The one dimension that the operation works along, the rank, and the shape."""
    typed = site.type_of(operand(site))
    axis = site.static(name)
    axis = 0 if axis is None and typed is not None and len(typed.shape) == 1 else axis
    if typed is None or not isinstance(axis, int) or not typed.shape or 0 in typed.shape:
        return None
    return axis % len(typed.shape), len(typed.shape), typed.shape


def cumsum(site: Site) -> Value | None:
    """The sums within the block, and those of the blocks before."""
    found = _one_axis(site)
    part = operand(site)
    typed = site.type_of(part)
    if found is None or typed is None or site.given("dtype") or typed.dtype != site.result.dtype:
        return None
    axis, rank, shape = found
    writer = site.writer

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0]})
        writer.ours("the sum of the blocks before")
        n = writer.mesh.axis_size(over)
        x = writer.named(Value(trees[0], None, Spec()), f"{writer.line}_of").tree
        template = "all_gather(sum({x}, axis={d}, keepdims=True), {over}, axis={d}, tiled=True)"
        sums = writer.define(
            writer.fresh(f"{writer.line}_sums"), Value(built(template, x=x, d=axis, over=over), None, Spec())
        )
        before = built("arange({n}) < axis_index({over})", n=n, over=over)
        if axis < rank - 1:
            before = built("({x})[:, " + ", ".join(["None"] * (rank - 1 - axis)) + "]", x=before)
        before = built(
            "sum(where({before}, {sums}, 0), axis={d}, keepdims=True)", before=before, sums=sums.tree, d=axis
        )
        return built("{mine} + {before}", mine=site.rewritten({id(part): x}), before=before)

    def inner(assignment: Assignment) -> float:
        return (writer.mesh.axis_size(assignment.get(axis, ())) - 1) * _held(site, assignment, 1, axis)

    dimensions = tuple((d,) for d in range(rank))
    rule = Rule((dimensions,), dimensions, dict(enumerate(shape)), write, inner=inner)
    return writer.apply(site, [site.value(part)], rule)


def roll(site: Site) -> Value | None:
    """A shift: what leaves a block goes to the next one."""
    found = _one_axis(site)
    shift = site.static("shift")
    if found is None or not isinstance(shift, int):
        return None
    axis, rank, shape = found
    part, writer = operand(site), site.writer
    by = shift % shape[axis]

    def split(assignment: Assignment) -> tuple[int, int, int]:
        size = shape[axis] // writer.mesh.axis_size(assignment.get(axis, ()))
        return size, *divmod(by, size)

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0]})
        writer.ours("the shift between blocks")
        _, blocks, rest = split(assignment)
        n = writer.mesh.axis_size(over)

        def from_before(tree: ast.expr, count: int) -> ast.expr:
            return built("ppermute({x}, {over}, shift={s})", x=tree, over=over, s=count % n) if count % n else tree

        if not rest:
            return from_before(trees[0], blocks)
        x = writer.named(Value(trees[0], None, Spec()), f"{writer.line}_of").tree
        last = built("{x}" + _part(rank, axis, f"-{rest}:"), x=x)
        first = built("{x}" + _part(rank, axis, f":-{rest}"), x=x)
        if rest == shape[axis] // n:
            return from_before(last, blocks + 1)
        template = "concatenate([{last}, {first}], axis={d})"
        return built(template, last=from_before(last, blocks + 1), first=from_before(first, blocks), d=axis)

    def inner(assignment: Assignment) -> float:
        if not assignment.get(axis):
            return 0.0
        size, blocks, rest = split(assignment)
        n = writer.mesh.axis_size(assignment[axis])
        moved = (rest if (blocks + 1) % n else 0) + (size - rest if blocks % n else 0)
        return _held(site, assignment, moved, axis)

    dimensions = tuple((d,) for d in range(rank))
    rule = Rule(
        (dimensions,),
        dimensions,
        dict(enumerate(shape)),
        write,
        inner=inner,
        allowed=lambda assignment: _ordered(site, assignment.get(axis, ())),
    )
    return writer.apply(site, [site.value(part)], rule)


def flip(site: Site) -> Value | None:
    """Blocks in the other order, each of them flipped."""
    found = _one_axis(site)
    if found is None:
        return None
    axis, rank, shape = found
    part, writer = operand(site), site.writer

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        local = site.rewritten({id(part): trees[0]})
        if not over:
            return local
        writer.ours("the exchange of blocks")
        n = writer.mesh.axis_size(over)
        pairs = constant([[i, n - 1 - i] for i in range(n)])
        return built("ppermute({x}, {over}, perm={pairs})", x=local, over=over, pairs=pairs)

    def inner(assignment: Assignment) -> float:
        return _held(site, assignment) if assignment.get(axis) else 0.0

    dimensions = tuple((d,) for d in range(rank))
    rule = Rule(
        (dimensions,),
        dimensions,
        dict(enumerate(shape)),
        write,
        inner=inner,
        allowed=lambda assignment: _ordered(site, assignment.get(axis, ())),
    )
    return writer.apply(site, [site.value(part)], rule)


def pad(site: Site) -> Value | None:
    """Zeros around: along a dimension that is cut a device takes its neighbours' edges, if all readers slice them."""
    part = operand(site)
    typed = site.type_of(part)
    widths = site.static("pad_width")
    if typed is None or site.static("mode", "constant") != "constant":
        return None
    rank = len(typed.shape)
    pairs = _pairs(widths, rank)
    whole = tuple((d,) if pairs[d] == (0, 0) else () for d in range(rank))
    value = site.value(part)
    halo = _halo(site, value, pairs) if site.static("constant_values", 0) == 0 else {}
    if halo:
        return _with_edges(site, value, pairs, halo)

    def write(trees: list[ast.expr], _: Assignment) -> ast.expr:
        return site.rewritten({id(part): trees[0]})

    return site.writer.apply(site, [value], Rule((whole,), whole, dict(enumerate(typed.shape)), write))


def _pairs(widths: Any, rank: int) -> list[tuple[int, int]]:
    if isinstance(widths, int):
        return [(widths, widths)] * rank
    if not is_sequence(widths) or not widths:
        raise NotStatic
    if all(isinstance(each, int) for each in widths):
        if len(widths) == 1:
            return [(widths[0], widths[0])] * rank
        if len(widths) == 2:
            return [(widths[0], widths[1])] * rank
        raise NotStatic
    pairs: list[tuple[Any, ...]] = [tuple(each) for each in widths]
    pairs = pairs * rank if len(pairs) == 1 else pairs
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise NotStatic
    return [(int(low), int(high)) for low, high in pairs]


def _halo(site: Site, value: Value, pairs: list[tuple[int, int]]) -> dict[int, tuple[str, ...]]:
    """The dimensions that are padded and cut, with the axes, if every reader takes as long a slice of them."""
    assert value.shape is not None
    writer = site.writer
    cut: dict[int, tuple[str, ...]] = {}
    for d, axes in enumerate(value.spec):
        local = value.shape[d] // writer.mesh.axis_size(axes)
        if axes and pairs[d] != (0, 0):
            if len(axes) > 1 or max(pairs[d]) > local or min(pairs[d]) < 0:
                return {}
            cut[d] = axes
    name = writer.root_of(site.node)
    if not cut or name is None or site.goal is not None:
        return {}
    for path, reader in writer.readers(name):
        if isinstance(reader, Loop) or not _slices(site, reader, path, name, value.shape, cut):
            return {}
    return cut


def _slices(
    site: Site, reader: Node, path: str, name: str, shape: tuple[int, ...], cut: dict[int, tuple[str, ...]]
) -> bool:
    """Whether a line reads the padded array only in slices that are as long as the array was."""
    tree = reader.expression.tree
    slices = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript) and _is(node.value, name)]
    if len(slices) != sum(_is(node, name) for node in ast.walk(tree)):
        return False
    for node in slices:
        typed = site.writer.type_at(path, node)
        items = entries(node)
        if typed is None or len(typed.shape) != len(shape) or not all(isinstance(item, ast.Slice) for item in items):
            return False
        for d in cut:
            if typed.shape[d] != shape[d] or d >= len(items) or not _from_edges(site, items[d]):
                return False
    return True


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _from_edges(site: Site, item: ast.expr) -> bool:
    """Whether a slice counts from the edges: `1:-1`, `:-2`, `2:`; so it says the same of a block."""
    assert isinstance(item, ast.Slice)
    try:
        lower = 0 if item.lower is None else site.writer.statics.value(item.lower)
        upper = -1 if item.upper is None else site.writer.statics.value(item.upper)
    except NotStatic:
        return False
    return item.step is None and isinstance(lower, int) and lower >= 0 and isinstance(upper, int) and upper < 0


def _with_edges(site: Site, value: Value, pairs: list[tuple[int, int]], cut: dict[int, tuple[str, ...]]) -> Value:
    writer, line = site.writer, site.writer.line
    assert value.shape is not None
    rank, x = len(value.shape), writer.named(value, f"{line}_of").tree
    held = dict(enumerate(value.spec))
    for d, axes in cut.items():
        low, high = pairs[d]
        n = writer.mesh.axis_size(axes)
        parts = [x]
        # Nobody sends to the ends, and they receive the zeros that the padding asks for.
        for width, by, text in ((low, 1, f"-{low}:"), (high, -1, f":{high}")):
            if width:
                perm = constant([[i, i + by] for i in range(n) if 0 <= i + by < n])
                edge = built("{x}" + _part(rank, d, text), x=x)
                edge = built("ppermute({edge}, {over}, perm={perm})", edge=edge, over=axes, perm=perm)
                wish = writer.fresh(f"{line}_{'before' if by > 0 else 'after'}")
                edge = writer.define(wish, Value(edge, None, Spec())).tree
                parts = [edge, *parts] if by > 0 else [*parts, edge]
                writer.spend(_held(site, held, width, d))
        x = built("concatenate({parts}, axis={d})", parts=ast.List(parts), d=d)
    rest = [(0, 0) if d in cut else pair for d, pair in enumerate(pairs)]
    if any(pair != (0, 0) for pair in rest):
        x = built("pad({x}, {rest})", x=x, rest=constant(tuple(rest)))
    writer.ours("the exchange of edges")
    return Value(x, site.result.shape, value.spec, value.dtype, halo=frozenset(cut))
