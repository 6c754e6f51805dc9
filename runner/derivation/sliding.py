"""Operations that reach into the next blocks: halos, shifts, sums of the blocks before."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.derivation.indexing import entries
from runner.derivation.reductions import operand
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import NotStatic, Site
from runner.derivation.trees import built, constant
from runner.dtypes import NAMES, dtype
from runner.experiment.model import Loop, Node
from runner.layout import Mesh, Spec
from runner.untyped import is_sequence

if TYPE_CHECKING:
    from runner.derivation.writer import Writer


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


def ordered(mesh: Mesh, over: tuple[str, ...]) -> bool:
    """Whether a permutation over these axes may name them: in the mesh's order."""
    return list(over) == sorted(over, key=mesh.axes.index)


@dataclass(frozen=True)
class Along:
    """The one dimension that an operation works along, and the shape."""

    axis: int
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)


_FLIPPED = {"fliplr": 1, "flipud": 0}
_FIRST = frozenset({"cummax", "cummin", "cumlogsumexp"})
"""The operations whose `axis` is 0 by default."""


def _along(site: Site) -> Along | None:
    typed = site.type_of(operand(site))
    axis = site.static("axis", _FLIPPED.get(site.name, 0 if site.name in _FIRST else None))
    axis = 0 if axis is None and typed is not None and len(typed.shape) == 1 else axis
    if typed is None or not isinstance(axis, int) or not typed.shape or 0 in typed.shape:
        return None
    return Along(axis % len(typed.shape), typed.shape)


def _slid(
    site: Site,
    along: Along,
    write: Callable[[ast.expr, tuple[str, ...]], ast.expr],
    sent: Callable[[Assignment], float],
    *,
    permutes: bool,
) -> Value:
    """Run the operation as it is where its dimension is whole; `write` says how from a block where it is sharded.

    `sent` are the bytes that a device then sends; `permutes` says whether it permutes blocks.
    """
    part, writer, axis = operand(site), site.writer, along.axis

    def written(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        return write(trees[0], over) if over else site.rewritten({id(part): trees[0]})

    dimensions = tuple((d,) for d in range(along.rank))
    rule = Rule(
        (dimensions,),
        dimensions,
        dict(enumerate(along.shape)),
        written,
        inner=lambda assignment: sent(assignment) if assignment.get(axis) else 0.0,
        allowed=lambda assignment: not permutes or ordered(writer.mesh, assignment.get(axis, ())),
    )
    return writer.apply(site, [site.value(part)], rule)


_SCANS = {
    "cumsum": ("sum", "0", "{mine} + {before}"),
    "cumprod": ("prod", "1", "{mine} * {before}"),
    "cummax": ("max", "-inf", "maximum({mine}, {before})"),
    "cummin": ("min", "inf", "minimum({mine}, {before})"),
    "cumlogsumexp": ("logsumexp", "-inf", "logaddexp({mine}, {before})"),
}
"""For each scan what makes one number of a block, its identity, and how the blocks before are added."""


def scan(site: Site) -> Value | None:
    """`cumsum`, …: within the block, and what the blocks before come to."""
    along, part = _along(site), operand(site)
    typed = site.type_of(part)
    if along is None or typed is None or site.given("dtype") or typed.dtype != site.result.dtype:
        return None
    axis, rank, writer = along.axis, along.rank, site.writer
    block, identity, joined = _SCANS[site.name]
    kinds = ("float",) if identity.endswith("inf") else ("float", "int", "complex")
    if typed.dtype not in NAMES or dtype(typed.dtype).kind not in kinds:
        return None
    order = ">" if site.static("reverse", False) else "<"

    def write(tree: ast.expr, over: tuple[str, ...]) -> ast.expr:
        writer.ours("what the blocks before come to")
        n, f = writer.mesh.axis_size(over), ast.Name(block)
        x = writer.named(Value(tree, None, Spec()), f"{writer.line}_of").tree
        template = "all_gather({f}({x}, axis={d}, keepdims=True), {over}, axis={d}, tiled=True)"
        blocks = Value(built(template, f=f, x=x, d=axis, over=over), None, Spec())
        blocks = writer.define(writer.fresh(f"{writer.line}_blocks"), blocks).tree
        before = built("arange({n}) " + order + " axis_index({over})", n=n, over=over)
        if axis < rank - 1:
            before = built("({x})[:, " + ", ".join(["None"] * (rank - 1 - axis)) + "]", x=before)
        template = "{f}(where({before}, {blocks}, " + identity + "), axis={d}, keepdims=True)"
        before = built(template, f=f, before=before, blocks=blocks, d=axis)
        return built(joined, mine=site.rewritten({id(part): x}), before=before)

    def sent(assignment: Assignment) -> float:
        return (writer.mesh.axis_size(assignment[axis]) - 1) * _held(site, assignment, 1, axis)

    return _slid(site, along, write, sent, permutes=False)


def roll(site: Site) -> Value | None:
    """A shift: what leaves a block goes to the next one."""
    along = _along(site)
    shift = site.static("shift")
    if along is None or not isinstance(shift, int):
        return None
    axis, rank, writer = along.axis, along.rank, site.writer
    size = along.shape[axis]

    def write(tree: ast.expr, over: tuple[str, ...]) -> ast.expr:
        writer.ours("the shift between blocks")
        n = writer.mesh.axis_size(over)
        blocks, rest = divmod(shift % size, size // n)

        def from_before(tree: ast.expr, count: int) -> ast.expr:
            return built("ppermute({x}, {over}, shift={s})", x=tree, over=over, s=count % n) if count % n else tree

        if not rest:
            return from_before(tree, blocks)
        x = writer.named(Value(tree, None, Spec()), f"{writer.line}_of").tree
        last = built("{x}" + _part(rank, axis, f"-{rest}:"), x=x)
        first = built("{x}" + _part(rank, axis, f":-{rest}"), x=x)
        template = "concatenate([{last}, {first}], axis={d})"
        return built(template, last=from_before(last, blocks + 1), first=from_before(first, blocks), d=axis)

    def sent(assignment: Assignment) -> float:
        n = writer.mesh.axis_size(assignment[axis])
        blocks, rest = divmod(shift % size, size // n)
        moved = (rest if (blocks + 1) % n else 0) + (size // n - rest if blocks % n else 0)
        return _held(site, assignment, moved, axis)

    return _slid(site, along, write, sent, permutes=True)


def flip(site: Site) -> Value | None:
    """Blocks in the other order, each of them flipped."""
    along, part, writer = _along(site), operand(site), site.writer
    if along is None:
        return None

    def write(tree: ast.expr, over: tuple[str, ...]) -> ast.expr:
        writer.ours("the exchange of blocks")
        n = writer.mesh.axis_size(over)
        pairs = constant([[i, n - 1 - i] for i in range(n)])
        local = site.rewritten({id(part): tree})
        return built("ppermute({x}, {over}, perm={pairs})", x=local, over=over, pairs=pairs)

    return _slid(site, along, write, lambda assignment: _held(site, assignment), permutes=True)


def edges(
    writer: Writer, tree: ast.expr, rank: int, d: int, over: tuple[str, ...], widths: tuple[int, int], fill: str = "0"
) -> ast.expr:
    """A block with so many elements of the blocks before and after it; at the ends of the whole, `fill`."""
    n, line = writer.mesh.axis_size(over), writer.line
    x = writer.named(Value(tree, None, Spec()), f"{line}_of").tree
    parts = [x]
    for width, by, part in ((widths[0], 1, f"-{widths[0]}:"), (widths[1], -1, f":{widths[1]}")):
        if not width:
            continue
        # Nobody sends to the ends, and they receive zeros.
        perm = constant([[i, i + by] for i in range(n) if 0 <= i + by < n])
        edge = built("{x}" + _part(rank, d, part), x=x)
        edge = built("ppermute({edge}, {over}, perm={perm})", edge=edge, over=over, perm=perm)
        if fill != "0":
            end = "axis_index({over}) == {last}"
            end = built(end, over=over, last=0 if by > 0 else n - 1)
            edge = built("where({end}, " + fill + ", {edge})", end=end, edge=edge)
        wish = writer.fresh(f"{line}_{'before' if by > 0 else 'after'}")
        edge = writer.define(wish, Value(edge, None, Spec())).tree
        parts = [edge, *parts] if by > 0 else [*parts, edge]
    return built("concatenate({parts}, axis={d})", parts=ast.List(parts), d=d)


def pad(site: Site) -> Value | None:
    """Zeros around: along a sharded dimension a device takes its neighbours' edges, if all readers slice them."""
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

    return site.run([(part, whole)], whole, dict(enumerate(typed.shape)))


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
    writer = site.writer
    assert value.shape is not None
    rank, x = len(value.shape), value.tree
    held = dict(enumerate(value.spec))
    for d, axes in cut.items():
        x = edges(writer, x, rank, d, axes, pairs[d])
        writer.spend(sum(_held(site, held, width, d) for width in pairs[d] if width))
    rest = [(0, 0) if d in cut else pair for d, pair in enumerate(pairs)]
    if any(pair != (0, 0) for pair in rest):
        x = built("pad({x}, {rest})", x=x, rest=constant(tuple(rest)))
    writer.ours("the exchange of edges")
    return Value(x, site.result.shape, value.spec, value.dtype, halo=frozenset(cut))
