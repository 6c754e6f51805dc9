"""`associative_scan`: each device scans its block, and what the blocks before it come to is combined with all of it."""

from __future__ import annotations

import ast
import math

from runner.derivation.laying import itemsize
from runner.derivation.pointwise import NAMES
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.language.trees import fields
from runner.layout import Spec

_OPERATORS = {"add": "({a}) + ({b})", "mul": "({a}) * ({b})", "max": "maximum({a}, {b})", "min": "minimum({a}, {b})"}


def scan(site: Site) -> Value | None:
    """A scan of arrays of one shape by what combines them element by element."""
    elems, fn, writer = site.arguments["elems"], site.arguments["fn"], site.writer
    several = isinstance(elems, ast.Tuple | ast.List)
    parts = list(elems.elts) if isinstance(elems, ast.Tuple | ast.List) else [elems]
    typed = [site.type_of(part) for part in parts]
    shapes = {None if each is None else each.shape for each in typed}
    if len(shapes) != 1 or None in shapes or not parts or not _by_element(fn, several=several):
        return None
    shape = site.result.shape
    rank = len(shape)
    axis = site.static("axis", 0) % rank
    reverse = bool(site.static("reverse", False))
    dimensions = tuple((d,) for d in range(rank))

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        mine = site.rewritten({id(part): tree for part, tree in zip(parts, trees, strict=True)})
        if not over:
            return mine
        writer.ours("the scan over blocks")
        line, n = writer.line, writer.mesh.axis_size(over)
        mine = writer.define(writer.fresh(f"{line}_mine"), Value(mine, None, Spec())).tree
        blocks = _each(mine, len(parts)) if several else [mine]
        edge = "slice_in_dim({x}, 0, 1, axis={d})" if reverse else "slice_in_dim({x}, -1, None, axis={d})"
        template = "all_gather(" + edge + ", {over}, axis={d}, tiled=True" + writer.invarying + ")"
        ends = [built(template, x=block, over=over, d=axis) for block in blocks]
        totals = site.rewritten({id(part): end for part, end in zip(parts, ends, strict=True)})
        totals = writer.define(writer.fresh(f"{line}_totals"), Value(totals, None, Spec())).tree
        at = built("axis_index({over})", over=over)
        place = built("minimum({at} + 1, {last})" if reverse else "maximum({at} - 1, 0)", at=at, last=n - 1)
        before = [
            built("dynamic_slice_in_dim({x}, {p}, 1, axis={d})", x=x, p=place, d=axis)
            for x in (_each(totals, len(parts)) if several else [totals])
        ]
        first = built("{at} == {n}", at=at, n=n - 1 if reverse else 0)
        both = _combined(fn, before, blocks, several=several)
        found = [built("where({f}, {a}, {b})", f=first, a=a, b=b) for a, b in zip(blocks, both, strict=True)]
        return ast.Tuple(found) if several else found[0]

    def inner(assignment: Assignment) -> float:
        n = writer.mesh.axis_size(assignment.get(axis, ()))
        rest = math.prod(size for d, size in enumerate(shape) if d != axis)
        rest /= writer.mesh.axis_size([a for f, axes in assignment.items() if f != axis for a in axes])
        return (n - 1) * rest * sum(itemsize(each.dtype) for each in typed if each is not None)

    rule = Rule((dimensions,) * len(parts), dimensions, dict(enumerate(shape)), write, inner=inner)
    return writer.apply(site, [site.value(part) for part in parts], rule)


def _each(tree: ast.expr, count: int) -> list[ast.expr]:
    return [built("{x}[{i}]", x=tree, i=i) for i in range(count)]


def _combined(fn: ast.expr, left: list[ast.expr], right: list[ast.expr], *, several: bool) -> list[ast.expr]:
    """What the function gives of two, one expression for each array."""
    if isinstance(fn, ast.Constant):
        return [built(_OPERATORS[str(fn.value)], a=a, b=b) for a, b in zip(left, right, strict=True)]
    assert isinstance(fn, ast.Lambda)
    one, other = (each.arg for each in fn.args.args)
    body = _Applied({one: left, other: right}, several=several).visit(fn.body)
    return list(body.elts) if several else [body]


class _Applied(ast.NodeTransformer):
    """The body of a lambda with its arguments in the place of its parameters; builds new nodes."""

    def __init__(self, arguments: dict[str, list[ast.expr]], *, several: bool) -> None:
        self._arguments = arguments
        self._several = several

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**fields(node, self.visit))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        assert isinstance(node.value, ast.Name)
        assert isinstance(node.slice, ast.Constant)
        return self._arguments[node.value.id][node.slice.value]  # pyright: ignore

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._arguments[node.id][0] if node.id in self._arguments else ast.Name(node.id)


def _by_element(fn: ast.expr, *, several: bool) -> bool:
    """Whether what combines two values does so element by element."""
    if not isinstance(fn, ast.Lambda):
        return isinstance(fn, ast.Constant) and fn.value in _OPERATORS
    own = {each.arg for each in fn.args.args}
    body = fn.body

    def check(node: ast.expr) -> bool:
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return not several or name not in own
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int())):
                return several and name in own
            case ast.BinOp(left=left, op=op, right=right):
                return not isinstance(op, ast.MatMult) and check(left) and check(right)
            case ast.Compare(left=left, comparators=[right]):
                return check(left) and check(right)
            case ast.UnaryOp(operand=operand):
                return check(operand)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return name in NAMES and all(map(check, args))
            case _:
                return False

    if several:
        return isinstance(body, ast.Tuple | ast.List) and all(map(check, body.elts))
    return check(body)
