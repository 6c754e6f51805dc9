"""The edits of a section in; those that change, leave out or double what is there, as people do by mistake, out.

A collective doubled, of another kind, over another axis, in the other direction, on another dimension, before instead
of after; a loop one step short or long; another edge of a mask; another scale, term or sign.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import Parameter

from runner.checks.edits import Edit, Edits, Site, is_collective, is_reduced, is_reduction
from runner.experiment.model import Loop, Statement
from runner.language import trees
from runner.language.bridge import called
from runner.language.operations import DIAGONAL, DIMENSIONS, OPERATIONS, Operation, OverAxes
from runner.words import quoted

_EDGES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip


def changing(edits: Edits) -> list[Edit]:
    """The edits that change, leave out or double what is there."""
    found: list[Edit] = []
    for site in edits.sites:
        for node in trees.nodes(site.expression.tree):
            found += _of_node(_Part(edits, site, node))
    return [*found, *_of_loops(edits, edits.statements, ())]


def _of_loops(edits: Edits, statements: tuple[Statement, ...], path: tuple[str, ...]) -> Iterator[Edit]:
    for statement in statements:
        if not isinstance(statement, Loop):
            continue
        here = (*path, statement.name)
        # The steps of a scan are as many as there are slices.
        for by in () if statement.scans else (1, -1):
            if statement.steps + by >= 0:
                yield edits.stepped(here, statement, by)
        yield from _of_loops(edits, statement.body, here)


@dataclass(frozen=True)
class _Part:
    """A part of an expression, and where it stands."""

    edits: Edits
    site: Site
    node: ast.expr

    @property
    def shown(self) -> str:
        return trees.text(self.node)

    def edit(self, new: ast.expr, kind: str, meaning: str, rank: float) -> Edit:
        """The section with `new` in its place; `meaning` says of a program that this mends what was wrong with it."""
        mend = f"{self.site.named}: {meaning} it equals the graph"
        return self.edits.edit(self.site, self.node, new, kind, mend, rank)


def _of_node(part: _Part) -> Iterator[Edit]:
    shown = part.shown
    match part.node:
        case ast.Call() as call:
            operation = called(call)
            assert operation is not None
            if operation.over is not None:
                yield from _of_collective(part, call, operation, operation.over)
            yield from _exchanged(part, call, operation)
            yield from _dimensions(part, call, operation)
            yield from _before_instead(part, call)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for other in _EDGES[type(op)]:
                new = ast.Compare(left, [other()], [right])
                rank = 3.5 if isinstance(op, ast.Eq | ast.NotEq) else 5.0
                yield part.edit(new, "edge", f"{shown} has the wrong edge: with {trees.text(new)}", rank)
            for by in (1, -1):
                new = ast.Compare(left, [op], [trees.plus(right, by)])
                yield part.edit(new, "edge", f"{shown} has the wrong edge: with {trees.text(new)}", 6)
        case ast.BinOp() as binary:
            yield from _of_operator(part, binary)
            yield from _inside_instead(part, binary)
        case ast.Subscript(value=value, slice=index):
            for new in _shifted_index(index):
                changed = ast.Subscript(value, new, ast.Load())
                yield part.edit(changed, "number", f"{shown} takes the wrong part: with {trees.text(changed)}", 7)
        case ast.Attribute(value=value, attr="T"):
            yield part.edit(value, "dimension", f"{shown} is transposed once too often: without it,", 5)
        case _:
            return


def _of_collective(part: _Part, call: ast.Call, operation: Operation, over: OverAxes) -> Iterator[Edit]:
    if over.does in ("cast", "size"):
        return
    shown, name = part.shown, operation.name
    call = trees.axes_by_position(call)
    at = list(operation.signature.parameters).index("axis_name")
    if len(call.args) <= at:
        return
    for axes in part.edits.combinations:
        if trees.text(trees.axes_node(axes)) != trees.text(call.args[at]):
            instead = f"over {quoted(axes)} instead of {trees.text(call.args[at])}"
            new = _spelled(trees.with_argument(call, at, trees.axes_node(axes)), at, operation)
            yield part.edit(new, "axis", f"{shown} runs over the wrong axis: {instead}", 3)
    call = _spelled(call, at, operation)
    if not operation.communicates:
        return
    operand = call.args[0]
    again = is_reduced(part.site, operand)
    yield part.edit(operand, "missing", f"{shown} is one {name} too many: without it,", 0.5 if again else 2)
    yield part.edit(trees.with_argument(call, 0, call), "doubled", f"{shown} is left out once: with it twice,", 9)
    if operation.reduces:
        yield from _other_reductions(part, call, operation)
        yield from _after_instead(part, call, operation)
    if over.does == "permute":
        yield from _other_ways(part, call)


def _spelled(call: ast.Call, at: int, operation: Operation) -> ast.Call:
    """A call with its axes, which stand at the position `at`, by name, where JAX has them so."""
    if operation.signature.parameters["axis_name"].kind is not Parameter.KEYWORD_ONLY:
        return call
    axes = ast.keyword("axis_name", call.args[at])
    return ast.Call(call.func, [*call.args[:at], *call.args[at + 1 :]], [*call.keywords, axes])


def _other_reductions(part: _Part, call: ast.Call, operation: Operation) -> Iterator[Edit]:
    for other in OPERATIONS.values():
        if other.reduces and other.name != operation.name:
            new = ast.Call(ast.Name(other.name), call.args, call.keywords)
            does = {row.over.does for row in (operation, other) if row.over is not None}
            meaning = f"{part.shown} is a {operation.name} where a {other.name} is meant: with {other.name}"
            yield part.edit(new, "kind", meaning, 1.0 if does == {"sum", "mean"} else 2.5)


def _other_ways(part: _Part, call: ast.Call) -> Iterator[Edit]:
    """A permutation in the other direction, or by another number of devices."""
    shown = part.shown
    for i, keyword in enumerate(call.keywords):
        if keyword.arg == "shift":
            new = trees.with_keyword(call, i, ast.UnaryOp(ast.USub(), keyword.value))
            yield part.edit(new, "direction", f"{shown} shifts the wrong way: with the opposite shift", 4)
            for shift in range(1, max(part.edits.experiment.manual.shape)):
                if trees.text(keyword.value) != str(shift):
                    new = trees.with_keyword(call, i, ast.Constant(shift))
                    yield part.edit(new, "direction", f"{shown} shifts by the wrong number: with shift={shift}", 6)
        if keyword.arg == "perm" and isinstance(keyword.value, ast.Tuple):
            pairs = [pair.elts for pair in keyword.value.elts if isinstance(pair, ast.Tuple)]
            if pairs:
                turned = ast.Tuple([ast.Tuple(list(reversed(pair))) for pair in pairs])
                meaning = f"{shown} sends the wrong way: with every pair (source, destination) turned round"
                yield part.edit(trees.with_keyword(call, i, turned), "direction", meaning, 4)


def _exchanged(part: _Part, call: ast.Call, operation: Operation) -> Iterator[Edit]:
    """Two arguments that are easily taken for each other, in each other's place."""
    if operation.pair is None:
        return
    if operation.over is not None and operation.over.does != "ragged":
        call = trees.axes_by_position(call)
    names = list(operation.signature.parameters)
    first, second = sorted(map(names.index, operation.pair))
    if len(call.args) <= second:
        return
    new = trees.with_argument(trees.with_argument(call, first, call.args[second]), second, call.args[first])
    if set(operation.pair) <= set(DIMENSIONS):
        yield part.edit(new, "dimension", f"{part.shown} splits what it should join: with both exchanged", 4)
    elif operation.over is not None:
        told = " and ".join(operation.pair)
        yield part.edit(new, "argument", f"{told} of {part.shown} are the wrong way round: exchanged,", 4)
    else:
        yield part.edit(new, "edge", f"the branches of {part.shown} are the wrong way round: exchanged,", 6)


def _after_instead(part: _Part, call: ast.Call, operation: Operation) -> Iterator[Edit]:
    """psum(product + bias) counts the bias once per device; psum(tanh(x)) sums what is not partial."""
    name, over = operation.name, trees.text(call.args[1])
    summed = call.args[0]
    if isinstance(summed, ast.Name) and summed.id in part.site.before:
        summed = part.site.before[summed.id].tree
    if isinstance(summed, ast.BinOp) and isinstance(summed.op, ast.Add | ast.Sub):
        size = part.edits.experiment.mesh.axis_size(ast.literal_eval(call.args[1]))
        adds = operation.over is not None and operation.over.does == "sum"
        counts = f"so that it counts {size} times; " if adds else ""
        for inside, outside, left in ((summed.left, summed.right, True), (summed.right, summed.left, False)):
            reduced = trees.with_argument(call, 0, inside)
            new = ast.BinOp(reduced, summed.op, outside) if left else ast.BinOp(outside, summed.op, reduced)
            meaning = f"{trees.text(outside)} is added before the {name} over {over}, {counts}added after it,"
            yield part.edit(new, "order", meaning, 1.5)
    if isinstance(summed, ast.Call) and _is_plain(summed):
        new = ast.Call(summed.func, [trees.with_argument(call, 0, summed.args[0])], summed.keywords)
        yield part.edit(new, "order", f"{trees.text(summed)} stands before the {name} over {over}; after it,", 4)


def _before_instead(part: _Part, call: ast.Call) -> Iterator[Edit]:
    """tanh(psum(x)) as psum(tanh(x))."""
    if not (_is_plain(call) and is_reduction(call.args[0])):
        return
    inner = call.args[0]
    assert isinstance(inner, ast.Call)
    new = trees.with_argument(inner, 0, ast.Call(call.func, [inner.args[0]], call.keywords))
    yield part.edit(new, "order", f"{part.shown} stands after the collective; before it,", 4)


def _inside_instead(part: _Part, node: ast.BinOp) -> Iterator[Edit]:
    """psum(x) + b as psum(x + b)."""
    if not isinstance(node.op, ast.Add | ast.Sub):
        return
    for reduced, other, left in ((node.left, node.right, True), (node.right, node.left, False)):
        if is_reduction(reduced):
            assert isinstance(reduced, ast.Call)
            inside = reduced.args[0]
            new = ast.BinOp(inside, node.op, other) if left else ast.BinOp(other, node.op, inside)
            meaning = f"{trees.text(other)} is added after the {trees.text(reduced.func)}; added before it,"
            yield part.edit(trees.with_argument(reduced, 0, new), "order", meaning, 4)


_OPPOSITES: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip


def _of_operator(part: _Part, node: ast.BinOp) -> Iterator[Edit]:
    shown, left, op, right = part.shown, node.left, node.op, node.right
    opposite = _OPPOSITES.get(type(op))
    if opposite is not None:
        what = "sign" if isinstance(op, ast.Add | ast.Sub) else "scale"
        new = ast.BinOp(left, opposite(), right)
        yield part.edit(new, what, f"{shown} should be {trees.text(new)}: with that", 3)
    if isinstance(op, ast.Sub):
        new = ast.BinOp(right, op, left)
        yield part.edit(new, "sign", f"{shown} should be {trees.text(new)}: with that", 3.5)
    if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        what = "term" if isinstance(op, ast.Add | ast.Sub) else "scale"
        yield part.edit(left, what, f"{trees.text(right)} in {shown} is one {what} too many: without it,", 3)
        if isinstance(op, ast.Add | ast.Mult):
            yield part.edit(right, what, f"{trees.text(left)} in {shown} is one {what} too many: without it,", 3.5)
    if isinstance(op, ast.Add | ast.Sub) and isinstance(right, ast.Constant) and isinstance(right.value, int):
        for by in (1, -1):
            new = ast.BinOp(left, op, ast.Constant(right.value + by))
            yield part.edit(new, "number", f"{shown} is off by one: with {trees.text(new)}", 5)
    if isinstance(op, ast.MatMult):
        for new in (
            ast.BinOp(right, op, left),
            ast.BinOp(trees.transposed(left), op, right),
            ast.BinOp(left, op, trees.transposed(right)),
        ):
            yield part.edit(new, "dimension", f"{shown} should be {trees.text(new)}: with that", 6)


def _dimensions(part: _Part, call: ast.Call, operation: Operation) -> Iterator[Edit]:
    """The same call on another dimension, or with a diagonal beside its own."""
    shown = part.shown
    gathers = operation.over is not None and operation.over.does == "gather"
    if gathers and all(keyword.arg != "axis" for keyword in call.keywords):
        call = ast.Call(call.func, call.args, [*call.keywords, ast.keyword("axis", ast.Constant(0))])
    names = list(operation.signature.parameters)
    places = [(i, name) for i, name in enumerate(names[: len(call.args)]) if name in (*DIMENSIONS, DIAGONAL)]
    for i, name in places:
        for value in _others(call.args[i], name):
            new = trees.with_argument(call, i, ast.Constant(value))
            yield part.edit(new, "dimension", f"{shown} works on the wrong dimension: with {trees.text(new)}", 5)
    for i, keyword in enumerate(call.keywords):
        if keyword.arg in (*DIMENSIONS, DIAGONAL):
            for value in _others(keyword.value, keyword.arg):
                changed = trees.with_keyword(call, i, ast.Constant(value))
                what = "has the wrong diagonal" if keyword.arg == DIAGONAL else "works on the wrong dimension"
                yield part.edit(changed, "dimension", f"{shown} {what}: with {keyword.arg}={value}", 5)


def _others(value: ast.expr, argument: str) -> list[int]:
    try:
        now = ast.literal_eval(value)
    except ValueError:
        return []
    if not isinstance(now, int) or isinstance(now, bool):
        return []
    return [now + 1, now - 1] if argument == DIAGONAL else [other for other in (0, 1, 2, -1) if other != now]


def _shifted_index(index: ast.expr) -> Iterator[ast.expr]:
    """An index or slice that is one off."""
    match index:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield from (ast.Constant(number + by) for by in (1, -1))
        case ast.Slice(lower=lower, upper=upper, step=step):
            for by in (1, -1):
                if lower is not None:
                    yield ast.Slice(trees.plus(lower, by), upper, step)
                if upper is not None:
                    yield ast.Slice(lower, trees.plus(upper, by), step)
        case ast.Tuple(elts=parts):
            for i, part in enumerate(parts):
                for new in _shifted_index(part):
                    yield ast.Tuple([*parts[:i], new, *parts[i + 1 :]])
        case ast.Name() | ast.BinOp():
            yield from (trees.plus(index, by) for by in (1, -1))
        case _:
            return


def _is_plain(call: ast.Call) -> bool:
    """Whether a call is of one array alone, such as `tanh(x)`."""
    return not is_collective(call) and len(call.args) == 1
