"""`associative_scan`: each device scans its block, and what the blocks before it come to is combined with all of it."""

from __future__ import annotations

import ast

from runner.derivation.calls import Call, itemsize
from runner.derivation.registry import rule_for
from runner.derivation.rules import Rule, Sent, every
from runner.derivation.site import Site
from runner.derivation.trees import built
from runner.language.operations import OPERATIONS
from runner.language.trees import fields

_OPERATORS = {"add": "({a}) + ({b})", "mul": "({a}) * ({b})", "max": "maximum({a}, {b})", "min": "minimum({a}, {b})"}


def _axis(call: Call) -> int:
    return call.static("axis", 0) % len(call.result.shape)


def _scan(site: Site) -> ast.expr:
    call, axis = site.call, _axis(site.call)
    over, several, reverse = site.over(axis), call.arguments["elems"].parts is not None, call.static("reverse", False)
    mine = site.rewritten()
    if not over:
        return mine
    site.ours("the scan over blocks")
    n, count, fn = site.mesh.axis_size(over), len(site.trees), call.static("fn")
    mine = site.define("mine", mine)
    blocks = _each(mine, count) if several else [mine]
    edge = "slice_in_dim({x}, 0, 1, axis={d})" if reverse else "slice_in_dim({x}, -1, None, axis={d})"
    ends = [site.gathered(built(edge, x=block, d=axis), over, axis=axis, tiled=True) for block in blocks]
    totals = site.define("totals", site.rewritten(dict(zip(site.trees, ends, strict=True))))
    at = built("axis_index({over})", over=over)
    place = built("minimum({at} + 1, {last})" if reverse else "maximum({at} - 1, 0)", at=at, last=n - 1)
    template = "dynamic_slice_in_dim({x}, {p}, 1, axis={d})"
    before = [built(template, x=x, p=place, d=axis) for x in (_each(totals, count) if several else [totals])]
    first = built("{at} == {n}", at=at, n=n - 1 if reverse else 0)
    both = _combined(fn, before, blocks, several=several)
    found = [built("where({f}, {a}, {b})", f=first, a=a, b=b) for a, b in zip(blocks, both, strict=True)]
    return ast.Tuple(found) if several else found[0]


@rule_for("associative_scan", write=_scan)
def scan(call: Call) -> Rule | None:
    """Of arrays of one shape by what combines them element by element."""
    elems = call.arguments["elems"]
    typed = [Call.type(part) for part in (elems.parts if elems.parts is not None else [elems])]
    shape, axis = call.result.shape, _axis(call)
    if {each.shape for each in typed} != {shape} or not _by_element(call.static("fn"), several=elems.parts is not None):
        return None
    others = tuple((size, (d,), 0) for d, size in enumerate(shape) if d != axis)
    return Rule(
        {array.place: every(shape) for array in elems.arrays()},
        every(shape),
        dict(enumerate(shape)),
        inside=(Sent("all-gather", (axis,), others, sum(itemsize(each.dtype) for each in typed)),),
    )


def _each(tree: ast.expr, count: int) -> list[ast.expr]:
    return [built("{x}[{i}]", x=tree, i=i) for i in range(count)]


def _combined(fn: str | ast.Lambda, left: list[ast.expr], right: list[ast.expr], *, several: bool) -> list[ast.expr]:
    """What the function gives of two, one expression for each array."""
    if isinstance(fn, str):
        return [built(_OPERATORS[fn], a=a, b=b) for a, b in zip(left, right, strict=True)]
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


def _by_element(fn: str | ast.Lambda, *, several: bool) -> bool:
    """Whether what combines two values does so element by element."""
    if not isinstance(fn, ast.Lambda):
        return fn in _OPERATORS
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
                return OPERATIONS[name].elementwise and all(map(check, args))
            case _:
                return False

    if several:
        return isinstance(body, ast.Tuple | ast.List) and all(map(check, body.elts))
    return check(body)
