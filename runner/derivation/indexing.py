"""Slices and updates: a dimension that is taken as a whole stays sharded, another one has to be whole or is masked."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.shaping import within
from runner.derivation.site import NotStatic, Site
from runner.derivation.trees import built, constant, divided
from runner.dtypes import NAMES, dtype
from runner.layout import Spec


def entries(node: ast.Subscript) -> list[ast.expr]:
    """What stands between the brackets, dimension by dimension."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


@dataclass(frozen=True)
class Taken:
    """What is taken of one dimension: `count` elements from `start` on, every `step`-th.

    - `count`: None where all of it is taken; `start`: a number, or what the devices compute, already in range;
      None where it is not known, and the dimension has to be whole.
    - `drops`: the result lacks the dimension.
    """

    count: int | None = None
    start: int | ast.expr | None = 0
    step: int = 1
    drops: bool = False

    def every(self, size: int) -> bool:
        """Whether it is every n-th of all, which says the same of each block."""
        if self.count is None or self.drops or not isinstance(self.start, int):
            return False
        return 0 <= self.start < self.step and self.count * self.step == size


Base = Callable[[list[ast.expr], Assignment, int | None], ast.expr]
"""What is written of the operand's block, with all of one dimension where that is given."""


def _read(site: Site, part: ast.expr, value: Value, takes: list[Taken], new: list[int], base: Base) -> Value | None:
    """Read a part of an array; along one that is sharded each device reads what lies in its block, the rest is 0.

    `new` are the places in the result of dimensions of size 1.
    """
    typed = site.type_of(part)
    if typed is None or value.shape is None:
        return None
    rank, writer = len(takes), site.writer
    numbers = typed.dtype in NAMES and dtype(typed.dtype).kind in ("float", "int", "complex")
    passing = {d for d, each in enumerate(takes) if each.count is None or each.every(typed.shape[d])}
    read = {d for d, each in enumerate(takes) if d not in passing and each.start is not None and numbers}
    kept = [d for d in range(rank) if not takes[d].drops]
    sizes = {d: typed.shape[d] for d in range(rank)}
    sizes |= {d: takes[d].count or typed.shape[d] for d in passing}
    # The places that are read of a dimension are a factor of their own.
    sizes |= {rank + d: takes[d].count or 1 for d in read}
    dimensions = tuple((d,) if d in passing | read else () for d in range(rank))
    result: list[tuple[int, ...]] = [(d,) if d in passing else (rank + d,) if d in read else () for d in kept]
    for at in new:
        result.insert(at, ())
    if len(result) != len(site.result.shape):
        return None
    # With the neighbours' edges an array is longer than its blocks; what is read of it is not.
    sizes |= {each[0]: site.result.shape[at] for at, each in enumerate(result) if each}

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        cut = [d for d in read if assignment.get(d)]
        if not cut:
            return base(trees, assignment, None)
        writer.ours("the reading of a block")
        (d,) = cut
        over, taken = assignment[d], takes[d]
        n = typed.shape[d] // writer.mesh.axis_size(over)
        at = _positions(site, taken, assignment.get(rank + d, ()))
        at = built("{at} - {start}", at=at, start=writer.offset(over, ast.Constant(n)))
        at = writer.define(writer.fresh(f"{writer.line}_at"), Value(at, None, Spec())).tree
        axis = sum(not takes[before].drops for before in range(d))
        inside = built("({at} >= 0) & ({at} < {n})", at=at, n=n)
        after = sum(not takes[later].drops for later in range(d + 1, rank))
        if after and not taken.drops:
            inside = built("({x})[:, " + ", ".join(["None"] * after) + "]", x=inside)
        found = built("take({x}, clip({at}, 0, {m}), axis={d})", x=base(trees, assignment, d), at=at, m=n - 1, d=axis)
        found = built("where({inside}, {found}, 0)", inside=inside, found=found)
        if new:
            items = ["None" if at in new else ":" for at in range(len(result))]
            found = built("({x})[" + ", ".join(items) + "]", x=found)
        return found

    def allowed(assignment: Assignment) -> bool:
        cut = [d for d in read if assignment.get(d)]
        return len(cut) < 2 and all(d in cut or not assignment.get(rank + d) for d in read)

    rule = Rule((dimensions,), tuple(result), sizes, write, dict.fromkeys(read, "sum"), allowed=allowed)
    return replace(writer.apply(site, [value], rule), below=value.below)


def _positions(site: Site, taken: Taken, over: tuple[str, ...]) -> ast.expr:
    """The places that are read, where the result is sharded over some axes those of one device."""
    start = constant(taken.start) if isinstance(taken.start, int) else taken.start
    assert start is not None
    if taken.drops:
        return start
    size = taken.count or 1
    at = within(site, size, over, built("arange({n})", n=size // site.writer.mesh.axis_size(over)))
    at = at if taken.step == 1 else built("{at} * {step}", at=at, step=taken.step)
    return at if taken.start == 0 else built("{at} + {start}", at=at, start=start)


def subscript(site: Site) -> Value | None:
    """Slices, numbers and None."""
    node = site.node
    assert isinstance(node, ast.Subscript)
    typed = site.type_of(node.value)
    if typed is None:
        return None
    value = site.value(node.value)
    halo = value.halo
    takes: list[Taken] = []
    items: list[ast.expr] = []
    new: list[int] = []
    for item in entries(node):
        d = len(takes)
        if isinstance(item, ast.Constant) and item.value is None:
            new.append(sum(not each.drops for each in takes) + len(new))
            continue
        if isinstance(item, ast.Constant) and item.value is ...:
            here = sum(not (isinstance(each, ast.Constant) and each.value in (None, ...)) for each in entries(node))
            takes += [Taken()] * (len(typed.shape) - here)
            items += [ast.Slice() for _ in range(len(typed.shape) - here)]
            continue
        index = None if isinstance(item, ast.Slice) else site.type_of(item)
        if index is not None and (index.shape or index.dtype == "bool"):
            return None
        takes.append(Taken() if d in halo else _item(site, item, typed.shape[d]))
        items.append(item)
    takes += [Taken() for _ in range(len(typed.shape) - len(takes))]

    def base(trees: list[ast.expr], assignment: Assignment, whole: int | None) -> ast.expr:
        replaced: dict[int, ast.expr] = {id(node.value): trees[0]}
        for d, item in enumerate(items):
            if isinstance(item, ast.Slice) and assignment.get(d) and d not in halo:
                step = None if takes[d].count is None else item.step
                replaced[id(item)] = ast.Slice(item.lower if step else None, None, step)
        if whole is None:
            return site.rewritten(replaced)
        parts = [ast.Slice() if d == whole else replaced.get(id(item), item) for d, item in enumerate(items)]
        if all(isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None for part in parts):
            return trees[0]
        return ast.Subscript(trees[0], ast.Tuple([site.writer.whole(part) for part in parts]))

    return _read(site, node.value, value, takes, new, base)


def _item(site: Site, item: ast.expr, size: int) -> Taken:
    """What stands between brackets for one dimension."""
    try:
        if not isinstance(item, ast.Slice):
            index = site.writer.statics.value(item)
            known = isinstance(index, int) and -size <= index < size
            return Taken(1, index % size if known else None, drops=True)
        given = (item.lower, item.upper, item.step)
        bounds = [None if part is None else site.writer.statics.value(part) for part in given]
        return _range(range(size)[slice(*bounds)], size)
    except NotStatic:
        return Taken(1, None, drops=not isinstance(item, ast.Slice))


def _range(found: range, size: int) -> Taken:
    if found == range(size):
        return Taken()
    return Taken(len(found), found.start if found else None, found.step)


def static_slice(site: Site) -> Value | None:
    """`slice`, `slice_in_dim`, `index_in_dim`: written in brackets where a dimension is sharded."""
    part = site.arguments["operand"]
    typed = site.type_of(part)
    if typed is None:
        return None
    rank, shape = len(typed.shape), typed.shape
    takes = [Taken() for _ in range(rank)]
    if site.name == "slice":
        strides = site.static("strides") or (1,) * rank
        bounds = zip(site.static("start_indices"), site.static("limit_indices"), strides, strict=True)
        takes = [_range(range(n)[slice(*each)], n) for n, each in zip(shape, bounds, strict=True)]
    else:
        axis: int = site.static("axis", 0) % rank
        n = shape[axis]
        if site.name == "index_in_dim":
            takes[axis] = Taken(1, site.static("index") % n, drops=not site.static("keepdims", True))
        else:
            each = slice(site.static("start_index"), site.static("limit_index"), site.static("stride", 1))
            takes[axis] = _range(range(n)[each], n)

    def base(trees: list[ast.expr], assignment: Assignment, whole: int | None) -> ast.expr:
        if not any(assignment.values()):
            return site.rewritten({id(part): trees[0]})
        items = [":" if d == whole else _text(site, each, shape[d], assignment.get(d)) for d, each in enumerate(takes)]
        while items and items[-1] == ":":
            items.pop()
        return built("{x}[" + ", ".join(items) + "]", x=trees[0]) if items else trees[0]

    return _read(site, part, site.value(part), takes, [], base)


def _text(site: Site, taken: Taken, size: int, over: tuple[str, ...] | None) -> str:
    """What is taken of a dimension, in brackets."""
    if taken.count is None:
        return ":"
    if taken.drops:
        return str(taken.start)
    assert isinstance(taken.start, int)
    end = "" if over else taken.start + taken.step * taken.count
    return f"{taken.start}:{end}" + (f":{taken.step}" if taken.step != 1 else "")


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
    """`dynamic_slice`, …: the start is clamped, so that all that is read is in range."""
    part = site.arguments["operand"]
    typed = site.type_of(part)
    if typed is None:
        return None
    rank, shape = len(typed.shape), typed.shape
    starts, sizes, axis = _starts(site, rank)
    keeps = site.name != "dynamic_index_in_dim" or site.static("keepdims", True)
    if sizes is None:
        assert axis is not None
        sizes = list(shape)
        sizes[axis] = 1 if site.name == "dynamic_index_in_dim" else site.static("slice_size")
        starts = [starts[0] if d == axis else ast.Constant(0) for d in range(rank)]

    def taken(d: int) -> Taken:
        drops = d == axis and not keeps
        if sizes[d] == shape[d] and not drops:
            return Taken()
        return Taken(sizes[d], _clamped(site, starts[d], shape[d], sizes[d]), drops=drops)

    def base(trees: list[ast.expr], assignment: Assignment, whole: int | None) -> ast.expr:
        replaced = {id(part): trees[0]}
        if whole is not None and "start_indices" not in site.arguments:
            return trees[0]
        given = site.arguments.get("slice_sizes")
        if isinstance(given, ast.Tuple | ast.List):
            for d, entry in enumerate(given.elts):
                static = site.writer.statics.tree(entry)
                assert static is not None
                replaced[id(entry)] = divided(static, site.writer.mesh.axis_size(assignment.get(d, ())))
            if whole is not None:
                replaced[id(given.elts[whole])] = ast.Constant(
                    shape[whole] // site.writer.mesh.axis_size(assignment.get(whole, ()))
                )
                replaced[id(starts[whole])] = ast.Constant(0)
        elif given is not None and any(assignment.values()):
            raise NotStatic
        return site.rewritten(replaced)

    return _read(site, part, site.value(part), [taken(d) for d in range(rank)], [], base)


def _clamped(site: Site, start: ast.expr, size: int, count: int) -> ast.expr:
    """Where `count` of `size` elements begin: JAX counts a negative start from the end, and clamps it."""
    tree = site.writer.whole(start)
    try:
        number = site.writer.statics.value(start)
        return constant(min(max(number + size * (number < 0), 0), size - count))
    except NotStatic:
        return built("clip(where({s} < 0, {s} + {n}, {s}), 0, {last})", s=tree, n=size, last=size - count)


def dynamic_update(site: Site) -> Value | None:
    """An update: along a dimension that is sharded, each device takes what falls into its block."""
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
        first = _clamped(site, start_of[d], size, short[d])
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
        return not cut or (len(partial) == 1 and typed.dtype == update.dtype and 0 not in update.shape)

    rule = Rule(operands, dimensions, dict(enumerate(typed.shape)), write, allowed=allowed)
    return writer.apply(site, [site.value(part), site.value(new)], rule)
