"""Converts a checked Python tree to its term."""

from __future__ import annotations

import ast

from runner.graph.language.operations.arguments import AT
from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Span, Term

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "power",
    ast.MatMult: "matmul",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
    ast.USub: "negative",
    ast.UAdd: "positive",
    ast.Invert: "invert",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
"""The operations of Python's operators."""


def called(call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """The name that a call calls, and its positional operands; `x.at[index].add(v)` gives `at[].add`, x, index and v.

    None for a call of anything but a name or an update. Users cannot write the name `at[].add`.
    """
    match call.func:
        case ast.Name(id=name):
            return name, call.args
        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(value=x, attr="at"), slice=index), attr=method):
            return f"{AT}{method}", [x, index, *call.args]
        case _:
            return None


def term(tree: ast.expr) -> Term:
    """Convert a tree that `runner.graph.language.syntax` has checked."""
    at = span(tree)
    match tree:
        case ast.Constant(value=value) if not isinstance(value, bytes):
            return Const(value, at)
        case ast.Name(id=name):
            return Name(name, at)
        case ast.Attribute(value=value, attr="T"):
            return Apply("transpose", (term(value),), spelled=".T", at=at)
        case ast.Attribute(value=ast.Name(id=loop), attr=carried):
            return Name(f"{loop}.{carried}", at)
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return Apply(OPERATORS[type(op)], (term(left), term(right)), spelled="operator", at=at)
        case ast.UnaryOp(op=op, operand=operand):
            return Apply(OPERATORS[type(op)], (term(operand),), spelled="operator", at=at)
        case ast.Tuple(elts=elements):
            return Group(tuple(map(term, elements)), at=at)
        case ast.List(elts=elements):
            return Group(tuple(map(term, elements)), "list", at)
        case ast.Slice(lower=lower, upper=upper, step=step):
            lower, upper, step = (NOTHING if part is None else term(part) for part in (lower, upper, step))
            return Slice(lower, upper, step, at)
        case ast.Subscript(value=value, slice=index):
            return Apply("index", (term(value), term(index)), spelled="index", at=at)
        case ast.Call(keywords=keywords) if (call := called(tree)) is not None:
            name, operands = call
            parts = tuple(map(term, operands))
            if isinstance(tree.func, ast.Attribute):
                x, index, *values = parts
                parts = (x, _as_operand(index), *values)
            return Apply(name, parts, tuple((str(keyword.arg), term(keyword.value)) for keyword in keywords), at=at)
        case ast.Lambda(args=arguments, body=body):
            return Lambda(tuple(each.arg for each in arguments.args), term(body), at)
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=ast.Name(id=index), iter=ast.Call(args=bounds))]
        ):
            return Listed(term(element), index, tuple(map(term, bounds)), at)
        case _:
            raise AssertionError(ast.dump(tree))  # `runner/graph/language/syntax.py` rejects everything else


def _as_operand(index: Term) -> Term:
    """Return the index of an update; a slice, `None` or `...` alone, which is no value, is put in a tuple."""
    alone = isinstance(index, Slice) or (isinstance(index, Const) and index.value in (None, ...))
    return Group((index,), at=index.at) if alone else index


def span(tree: ast.AST) -> Span | None:
    """The half-open span of bytes from which a node was parsed; None for a generated node."""
    start, end = getattr(tree, "col_offset", None), getattr(tree, "end_col_offset", None)
    return None if start is None or end is None else (start, end)
