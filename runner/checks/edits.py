"""A per-device program in; every single edit of it that people make by mistake, or that mends one, out.

The edits are of one kind whether a program is broken with them (`runner/mutate.py`) or mended (`runner/checks/diagnosis.py`):
a collective missing, doubled, of another kind, over another axis, in the other direction, on another dimension, before
instead of after; a loop one step short or long; another edge of a mask; a missing scale, term or sign. What is missing can
only be put back by a mend, which takes it from the graph.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runner.experiment import Experiment, Loop, Node, Statement
from runner.language.operations import OPERATIONS
from runner.language.syntax import Expression

REDUCTIONS = ("psum", "pmean", "pmax", "pmin")
_OVER_AXES = (*REDUCTIONS, "psum_scatter", "all_gather", "all_to_all", "ppermute", "axis_index")
_MOVING = (*_OVER_AXES[:-1],)

MEANT = {
    **dict.fromkeys(("matmul", "dot", "einsum", "tensordot", "vdot", "inner", "sum"), "psum"),
    **dict.fromkeys(("mean", "average"), "pmean"),
    **dict.fromkeys(("max", "amax"), "pmax"),
    **dict.fromkeys(("min", "amin"), "pmin"),
}
"""The operations whose result over a sharded dimension is partial, and the collective that completes it."""

_DIMENSIONS = ("axis", "scatter_dimension", "split_axis", "concat_axis", "dimension")
"""The arguments that name a dimension."""

_EDGES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """One change of a per-device program.

    - `line`: where it is (`ring.acc`); `statements`: the program after it; `first`: the first statement that changes.
    - `kind`: what is changed; `before`, `after`: the part and what stands in its place.
    - `mend`: what it says of a program that it mends; `rank`: the lower, the likelier that is what somebody means.
    """

    line: str
    statements: tuple[Statement, ...]
    first: int
    kind: str
    before: str
    after: str
    mend: str
    rank: float


@dataclass(frozen=True)
class _Site:
    """One expression of the program: where it stands (`("ring", "acc")`) and what stands before it at its level."""

    path: tuple[str, ...]
    expression: Expression
    before: dict[str, Expression]

    @property
    def name(self) -> str:
        return ".".join(self.path)


class Edits:
    """The edits of one experiment's per-device program; `inserting` are those that only mend."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        mesh = experiment.mesh
        self._axes = [axis for axis, size in mesh.sizes.items() if size > 1]
        both = [tuple(self._axes)] if len(self._axes) > 1 else []
        self._combinations = [*((axis,) for axis in self._axes), *both]
        self._sites = list(_sites(experiment.per_device))

    def changing(self) -> list[Edit]:
        """The edits that change, leave out or double what is there."""
        found: list[Edit] = []
        for site in self._sites:
            for node in _nodes(site.expression.tree):
                found += self._of_node(site, node)
        return found + list(self._of_loops(self._experiment.per_device, ()))

    def inserting(self) -> list[Edit]:
        """The edits that put something back: collectives, and what the graph adds, multiplies or divides by."""
        found: list[Edit] = []
        parts = _operands(self._experiment)
        # Of two sites at which one edit helps, the one nearer the outputs is the likelier mistake.
        for site in reversed(self._sites):
            found += self._collectives_around(site)
            found += self._parts_of_graph(site, parts)
        return found

    def _edit(self, site: _Site, old: ast.expr, new: ast.expr, kind: str, mend: str, rank: float) -> Edit:
        tree = _swapped(site.expression.tree, old, new)
        statements = _replaced(self._experiment.per_device, site.path, tree)
        first = next(i for i, s in enumerate(self._experiment.per_device) if s.name == site.path[0])
        rank += 0.25 if len(site.path) > 1 else 0.0
        return Edit(site.name, statements, first, kind, _text(old), _text(new), mend, rank)

    def _of_node(self, site: _Site, node: ast.expr) -> Iterator[Edit]:
        where, shown = f"per_device.{site.name}", _text(node)

        def edit(new: ast.expr, kind: str, meaning: str, rank: float) -> Edit:
            return self._edit(site, node, new, kind, f"{where}: {meaning} it equals the graph", rank)

        match node:
            case ast.Call(func=ast.Name(id=name)) if name in _OVER_AXES:
                yield from self._of_collective(site, node, name, edit)
                yield from _dimensions(node, edit)
            case ast.Call(func=ast.Name(id="where"), args=[condition, yes, no]):
                yield edit(ast.Call(node.func, [condition, no, yes], []), "edge",
                           f"the branches of {shown} are the wrong way round: exchanged,", 6)  # fmt: skip
            case ast.Call():
                yield from _dimensions(node, edit)
                yield from self._before_instead(site, node, edit)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                for other in _EDGES[type(op)]:
                    new = ast.Compare(left, [other()], [right])
                    yield edit(new, "edge", f"{shown} has the wrong edge: with {_text(new)}", 5)
                for by in (1, -1):
                    new = ast.Compare(left, [op], [_plus(right, by)])
                    yield edit(new, "edge", f"{shown} has the wrong edge: with {_text(new)}", 6)
            case ast.BinOp(left=left, op=op, right=right):
                yield from _of_operator(node, left, op, right, edit)
                yield from self._inside_instead(site, node, edit)
            case ast.Subscript(value=value, slice=index):
                for new in _shifted_index(index):
                    changed = ast.Subscript(value, new, ast.Load())
                    yield edit(changed, "number", f"{shown} takes the wrong part: with {_text(changed)}", 7)
            case ast.Attribute(value=value, attr="T"):
                yield edit(value, "dimension", f"{shown} is transposed once too often: without it,", 5)

    def _of_collective(
        self, site: _Site, call: ast.Call, name: str, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        shown = _text(call)
        call = _axes_by_position(call)
        at = 0 if name == "axis_index" else 1
        if len(call.args) <= at:
            return
        for axes in self._combinations:
            if _text(_axes_node(axes)) != _text(call.args[at]):
                over = f"over {_axes_text(axes)} instead of {_text(call.args[at])}"
                new = _with_argument(call, at, _axes_node(axes))
                yield edit(new, "axis", f"{shown} runs over the wrong axis: {over}", 3)
        if name == "axis_index":
            return
        operand = call.args[0]
        yield edit(operand, "missing", f"{shown} is one {name} too many: without it,", 2)
        yield edit(_with_argument(call, 0, call), "doubled", f"{shown} is left out once: with it twice,", 9)
        if name in REDUCTIONS:
            for other in REDUCTIONS:
                if other != name:
                    new = ast.Call(ast.Name(other), call.args, call.keywords)
                    rank = 1.0 if {name, other} == {"psum", "pmean"} else 5.0
                    meaning = f"{shown} is a {name} where a {other} is meant: with {other}"
                    yield edit(new, "kind", meaning, rank)
            yield from self._after_instead(site, call, edit)
        for i, keyword in enumerate(call.keywords):
            if name == "ppermute" and keyword.arg == "shift":
                new = _with_keyword(call, i, ast.UnaryOp(ast.USub(), keyword.value))
                yield edit(new, "direction", f"{shown} shifts the wrong way: with the opposite shift", 4)
                for shift in range(1, max(self._experiment.mesh.shape)):
                    if _text(keyword.value) != str(shift):
                        new = _with_keyword(call, i, ast.Constant(shift))
                        meaning = f"{shown} shifts by the wrong number: with shift={shift}"
                        yield edit(new, "direction", meaning, 6)
            if name == "ppermute" and keyword.arg == "perm" and isinstance(keyword.value, ast.Tuple):
                pairs = [pair.elts for pair in keyword.value.elts if isinstance(pair, ast.Tuple)]
                turned = ast.Tuple([ast.Tuple(list(reversed(pair))) for pair in pairs])
                meaning = f"{shown} sends the wrong way: with every pair (source, destination) turned round"
                yield edit(_with_keyword(call, i, turned), "direction", meaning, 4)
        if name == "all_to_all" and len(call.args) >= 4:
            new = ast.Call(call.func, [*call.args[:2], call.args[3], call.args[2], *call.args[4:]], call.keywords)
            yield edit(new, "dimension", f"{shown} splits what it should join: with both exchanged", 4)

    def _after_instead(
        self, site: _Site, call: ast.Call, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        """psum(product + bias) counts the bias once per device; psum(tanh(x)) sums what is not partial."""
        assert isinstance(call.func, ast.Name)
        name, over = call.func.id, _text(call.args[1])
        summed = call.args[0]
        if isinstance(summed, ast.Name) and summed.id in site.before:
            summed = site.before[summed.id].tree
        if isinstance(summed, ast.BinOp) and isinstance(summed.op, ast.Add | ast.Sub):
            size = self._experiment.mesh.axis_size(ast.literal_eval(call.args[1]))
            counts = f"so that it counts {size} times; " if name == "psum" else ""
            for inside, outside, left in ((summed.left, summed.right, True), (summed.right, summed.left, False)):
                reduced = _with_argument(call, 0, inside)
                new = ast.BinOp(reduced, summed.op, outside) if left else ast.BinOp(outside, summed.op, reduced)
                meaning = f"{_text(outside)} is added before the {name} over {over}, {counts}added after it,"
                yield edit(new, "order", meaning, 1.5)
        if isinstance(summed, ast.Call) and len(summed.args) == 1 and _is_plain(summed):
            new = ast.Call(summed.func, [_with_argument(call, 0, summed.args[0])], summed.keywords)
            yield edit(new, "order", f"{_text(summed)} stands before the {name} over {over}; after it,", 4)

    def _before_instead(
        self, site: _Site, call: ast.Call, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        """tanh(psum(x)) as psum(tanh(x))."""
        if not (_is_plain(call) and len(call.args) == 1 and _reduction(call.args[0])):
            return
        inner = call.args[0]
        assert isinstance(inner, ast.Call)
        new = _with_argument(inner, 0, ast.Call(call.func, [inner.args[0]], call.keywords))
        yield edit(new, "order", f"{_text(call)} stands after the collective; before it,", 4)

    def _inside_instead(
        self, site: _Site, node: ast.BinOp, edit: Callable[[ast.expr, str, str, float], Edit]
    ) -> Iterator[Edit]:
        """psum(x) + b as psum(x + b)."""
        if not isinstance(node.op, ast.Add | ast.Sub):
            return
        for reduced, other, left in ((node.left, node.right, True), (node.right, node.left, False)):
            if _reduction(reduced):
                assert isinstance(reduced, ast.Call)
                inside = reduced.args[0]
                new = ast.BinOp(inside, node.op, other) if left else ast.BinOp(other, node.op, inside)
                meaning = f"{_text(other)} is added after the {_text(reduced.func)}; added before it,"
                yield edit(_with_argument(reduced, 0, new), "order", meaning, 4)

    def _of_loops(self, statements: tuple[Statement, ...], path: tuple[str, ...]) -> Iterator[Edit]:
        for statement in statements:
            if not isinstance(statement, Loop):
                continue
            here = (*path, statement.name)
            for by, what in ((1, "one step short"), (-1, "one step long")):
                if statement.steps + by < 0:
                    continue
                changed = _with_loop(self._experiment.per_device, here, statement.steps + by)
                first = next(i for i, s in enumerate(self._experiment.per_device) if s.name == here[0])
                steps = f"{statement.steps + by} step{'s' if statement.steps + by != 1 else ''}"
                mend = f"per_device.{'.'.join(here)}: the repeat is {what}: with {steps} it equals the graph"
                yield Edit(".".join(here), changed, first, "loop", f"{statement.steps} steps", steps, mend, 2.5)
            yield from self._of_loops(statement.body, here)

    def _collectives_around(self, site: _Site) -> Iterator[Edit]:
        """A collective around the whole expression, or around a part of it whose result is partial."""
        tree = site.expression.tree
        bare = isinstance(tree, ast.Name)
        for node in _nodes(tree):
            whole = node is tree
            meant = _meant(node)
            named = isinstance(node, ast.Name) and node.id not in self._experiment.dims
            if not (whole or meant or named):
                continue
            for new, name, over in self._wrapped(node, meant, whole=whole):
                text = _text(_swapped(tree, node, new))
                with_it = f"with per_device.{site.name}: {text} it equals the graph"
                article = "an" if name[0] in "ai" else "a"
                mend = f"{article} {name} over {over} is left out: {with_it}"
                likely = name == (meant or "psum")
                rank = (0.0 if likely else 2.0 if name in ("psum", "pmean") else 4.0) - (0.5 if bare else 0.0)
                rank += 0.0 if whole or meant else 3.0
                yield self._edit(site, node, new, "missing", mend, rank)

    def _wrapped(self, node: ast.expr, meant: str | None, *, whole: bool) -> Iterator[tuple[ast.expr, str, str]]:
        for axes in self._combinations:
            over, axes_node = _axes_text(axes), _axes_node(axes)
            for name in REDUCTIONS if whole or meant else ():
                yield ast.Call(ast.Name(name), [node, axes_node], []), name, over
            for dimension in range(3):
                keywords = [ast.keyword("axis", ast.Constant(dimension)), ast.keyword("tiled", ast.Constant(True))]
                yield ast.Call(ast.Name("all_gather"), [node, axes_node], keywords), "all_gather", over
                keywords[0] = ast.keyword("scatter_dimension", ast.Constant(dimension))
                yield ast.Call(ast.Name("psum_scatter"), [node, axes_node], keywords), "psum_scatter", over
                for other in range(3):
                    if other != dimension:
                        dimensions = [ast.Constant(dimension), ast.Constant(other)]
                        tiled = [ast.keyword("tiled", ast.Constant(True))]
                        yield (
                            ast.Call(ast.Name("all_to_all"), [node, axes_node, *dimensions], tiled),
                            "all_to_all",
                            over,
                        )
            if len(axes) == 1:
                for shift in (1, -1):
                    keywords = [ast.keyword("shift", ast.Constant(shift))]
                    yield ast.Call(ast.Name("ppermute"), [node, axes_node], keywords), "ppermute", over

    def _parts_of_graph(self, site: _Site, parts: list[tuple[ast.operator, ast.expr]]) -> Iterator[Edit]:
        """What the graph adds or multiplies by, put back around the line or a product in it."""
        tree = site.expression.tree
        there = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        known = {*(array.name for array in self._experiment.arrays), *self._experiment.dims, *site.before}
        for op, part in parts:
            names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} - OPERATIONS.keys()
            if not names <= known:
                continue
            for node in _nodes(tree):
                if node is not tree and not (isinstance(node, ast.Call) and _reduction(node)) and not _meant(node):
                    continue
                new = ast.BinOp(node, op, part)
                text = _text(_swapped(tree, node, new))
                what = "term" if isinstance(op, ast.Add | ast.Sub) else "scale"
                shown = _text(part)
                mend = f"the {what} {shown} is left out: with per_device.{site.name}: {text} it equals the graph"
                rank = (1.0 if what == "scale" else 1.2) + (0.0 if node is tree else 0.5)
                yield self._edit(site, node, new, "missing", mend, rank + (2.0 if names & there else 0.0))


def _sites(statements: tuple[Statement, ...], path: tuple[str, ...] = ()) -> Iterator[_Site]:
    before: dict[str, Expression] = {}
    for statement in statements:
        if isinstance(statement, Node):
            yield _Site((*path, statement.name), statement.expression, dict(before))
            before[statement.name] = statement.expression
        else:
            yield from _sites(statement.body, (*path, statement.name))


def _of_operator(
    node: ast.BinOp,
    left: ast.expr,
    op: ast.operator,
    right: ast.expr,
    edit: Callable[[ast.expr, str, str, float], Edit],
) -> Iterator[Edit]:
    shown = _text(node)
    opposite = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}.get(type(op))
    if opposite is not None:
        what = "sign" if isinstance(op, ast.Add | ast.Sub) else "scale"
        new = ast.BinOp(left, opposite(), right)
        yield edit(new, what, f"{shown} should be {_text(new)}: with that", 3)
    if isinstance(op, ast.Sub):
        new = ast.BinOp(right, op, left)
        yield edit(new, "sign", f"{shown} should be {_text(new)}: with that", 3.5)
    if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        what = "term" if isinstance(op, ast.Add | ast.Sub) else "scale"
        yield edit(left, what, f"{_text(right)} in {shown} is one {what} too many: without it,", 3)
        if isinstance(op, ast.Add | ast.Mult):
            yield edit(right, what, f"{_text(left)} in {shown} is one {what} too many: without it,", 3.5)
    if isinstance(op, ast.Add | ast.Sub) and isinstance(right, ast.Constant) and isinstance(right.value, int):
        for by in (1, -1):
            new = ast.BinOp(left, op, ast.Constant(right.value + by))
            yield edit(new, "number", f"{shown} is off by one: with {_text(new)}", 5)
    if isinstance(op, ast.MatMult):
        for new in (
            ast.BinOp(right, op, left),
            ast.BinOp(_transposed(left), op, right),
            ast.BinOp(left, op, _transposed(right)),
        ):
            yield edit(new, "dimension", f"{shown} should be {_text(new)}: with that", 6)


def _dimensions(call: ast.Call, edit: Callable[[ast.expr, str, str, float], Edit]) -> Iterator[Edit]:
    """The same call on another dimension, or with a diagonal beside its own."""
    assert isinstance(call.func, ast.Name)
    shown, operation = _text(call), OPERATIONS[call.func.id]
    if call.func.id == "all_gather" and all(keyword.arg != "axis" for keyword in call.keywords):
        call = ast.Call(call.func, call.args, [*call.keywords, ast.keyword("axis", ast.Constant(0))])
    names = list(operation.signature.parameters)
    places = [(i, name) for i, name in enumerate(names[: len(call.args)]) if name in (*_DIMENSIONS, "k")]
    for i, name in places:
        for value in _others(call.args[i], name):
            changed = _with_argument(call, i, ast.Constant(value))
            yield edit(changed, "dimension", f"{shown} works on the wrong dimension: with {_text(changed)}", 5)
    for i, keyword in enumerate(call.keywords):
        if keyword.arg in (*_DIMENSIONS, "k"):
            for value in _others(keyword.value, keyword.arg):
                changed = _with_keyword(call, i, ast.Constant(value))
                what = "has the wrong diagonal" if keyword.arg == "k" else "works on the wrong dimension"
                yield edit(changed, "dimension", f"{shown} {what}: with {keyword.arg}={value}", 5)


def _others(value: ast.expr, argument: str) -> list[int]:
    try:
        now = ast.literal_eval(value)
    except ValueError:
        return []
    if not isinstance(now, int) or isinstance(now, bool):
        return []
    return [now + 1, now - 1] if argument == "k" else [other for other in (0, 1, 2, -1) if other != now]


def _shifted_index(index: ast.expr) -> Iterator[ast.expr]:
    """An index or slice that is one off."""
    match index:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield from (ast.Constant(number + by) for by in (1, -1))
        case ast.Slice(lower=lower, upper=upper, step=step):
            for by in (1, -1):
                if lower is not None:
                    yield ast.Slice(_plus(lower, by), upper, step)
                if upper is not None:
                    yield ast.Slice(lower, _plus(upper, by), step)
        case ast.Tuple(elts=parts):
            for i, part in enumerate(parts):
                for new in _shifted_index(part):
                    yield ast.Tuple([*parts[:i], new, *parts[i + 1 :]])
        case ast.Name() | ast.BinOp():
            yield from (_plus(index, by) for by in (1, -1))


def _operands(experiment: Experiment) -> list[tuple[ast.operator, ast.expr]]:
    """What the graph adds, subtracts, multiplies or divides by."""
    found: dict[str, tuple[ast.operator, ast.expr]] = {}
    for site in _sites(experiment.graph):
        for node in _nodes(site.expression.tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                sides = [node.right] if isinstance(node.op, ast.Sub | ast.Div) else [node.right, node.left]
                for side in sides:
                    # A product of what the graph multiplies by may lack one factor.
                    parts = [side, side.left, side.right] if isinstance(side, ast.BinOp) else [side]
                    for part in parts:
                        found.setdefault(f"{type(node.op).__name__} {_text(part)}", (node.op, part))
    return list(found.values())


def _nodes(tree: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that have a value of their own, the whole first."""
    yield tree
    match tree:
        case ast.Call(args=args, keywords=keywords):
            children = [*args, *(keyword.value for keyword in keywords)]
        case ast.BinOp(left=left, right=right):
            children = [left, right]
        case ast.Compare(left=left, comparators=comparators):
            children = [left, *comparators]
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            children = elements
        case ast.UnaryOp(operand=operand):
            children = [operand]
        case ast.Subscript(value=value, slice=index):
            children = [value, *(index.elts if isinstance(index, ast.Tuple) else [index])]
            children = [child for child in children if not isinstance(child, ast.Slice)]
        case ast.Attribute(value=value, attr="T"):
            children = [value]
        case _:
            children = []
    for child in children:
        yield from _nodes(child)


def _meant(node: ast.expr) -> str | None:
    """The collective that completes a part whose result may be partial."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "psum"
    return MEANT.get(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def _reduction(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REDUCTIONS


def _is_plain(call: ast.Call) -> bool:
    """Whether a call is of one array alone, such as `tanh(x)`."""
    return isinstance(call.func, ast.Name) and call.func.id not in _MOVING and len(call.args) == 1


def _replaced(statements: tuple[Statement, ...], path: tuple[str, ...], tree: ast.expr) -> tuple[Statement, ...]:
    done: list[Statement] = []
    for statement in statements:
        if statement.name != path[0]:
            done.append(statement)
        elif isinstance(statement, Loop):
            done.append(replace(statement, body=_replaced(statement.body, path[1:], tree)))
        else:
            done.append(Node(statement.name, Expression(_text(tree), tree)))
    return tuple(done)


def _with_loop(statements: tuple[Statement, ...], path: tuple[str, ...], steps: int) -> tuple[Statement, ...]:
    done: list[Statement] = []
    for statement in statements:
        if statement.name != path[0] or not isinstance(statement, Loop):
            done.append(statement)
        elif len(path) == 1:
            done.append(replace(statement, steps=steps))
        else:
            done.append(replace(statement, body=_with_loop(statement.body, path[1:], steps)))
    return tuple(done)


def _swapped(tree: ast.expr, old: ast.expr, new: ast.expr) -> ast.expr:
    """`tree` with `new` in the place of `old`; what lies beside the way there is shared."""
    if tree is old:
        return new
    copied = copy.copy(tree)
    for name, value in ast.iter_fields(tree):
        if isinstance(value, ast.expr):
            setattr(copied, name, _swapped(value, old, new))
        elif isinstance(value, list):
            setattr(copied, name, [_swapped_in(each, old, new) for each in value])
    return copied


def _swapped_in(value: object, old: ast.expr, new: ast.expr) -> object:
    if isinstance(value, ast.expr):
        return _swapped(value, old, new)
    if isinstance(value, ast.keyword):
        return ast.keyword(value.arg, _swapped(value.value, old, new))
    return value


def _text(tree: ast.expr) -> str:
    return ast.unparse(tree)


def _plus(node: ast.expr, by: int) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return ast.Constant(node.value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _transposed(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return node.value
    return ast.Attribute(node, "T", ast.Load())


def _axes_text(axes: tuple[str, ...]) -> str:
    return " and ".join(f"'{axis}'" for axis in axes)


def _axes_node(axes: tuple[str, ...]) -> ast.expr:
    constants: list[ast.expr] = [ast.Constant(axis) for axis in axes]
    return constants[0] if len(constants) == 1 else ast.Tuple(constants)


def _with_argument(call: ast.Call, at: int, new: ast.expr) -> ast.Call:
    return ast.Call(call.func, [*call.args[:at], new, *call.args[at + 1 :]], call.keywords)


def _with_keyword(call: ast.Call, at: int, new: ast.expr) -> ast.Call:
    keywords = list(call.keywords)
    keywords[at] = ast.keyword(keywords[at].arg, new)
    return ast.Call(call.func, call.args, keywords)


def _axes_by_position(call: ast.Call) -> ast.Call:
    """`psum(x, axis_name='x')` as `psum(x, 'x')`."""
    named = [keyword for keyword in call.keywords if keyword.arg == "axis_name"]
    if not named:
        return call
    rest = [keyword for keyword in call.keywords if keyword is not named[0]]
    return ast.Call(call.func, [*call.args, named[0].value], rest)
