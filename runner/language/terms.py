"""A checked tree of Python in; the term that it says out."""

from __future__ import annotations

import ast

from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Span, Term
from runner.language.operators import OPERATORS


def term(tree: ast.expr) -> Term:
    """The term of a tree that `runner.language.syntax` lets through, `x.at[index].add(…)` a call already."""
    at = _span(tree)
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
            return Apply(OPERATORS[type(op)].name, (term(left), term(right)), spelled="operator", at=at)
        case ast.UnaryOp(op=op, operand=operand):
            return Apply(OPERATORS[type(op)].name, (term(operand),), spelled="operator", at=at)
        case ast.Tuple(elts=elements):
            return Group(tuple(map(term, elements)), at=at)
        case ast.List(elts=elements):
            return Group(tuple(map(term, elements)), "list", at)
        case ast.Slice(lower=lower, upper=upper, step=step):
            lower, upper, step = (NOTHING if part is None else term(part) for part in (lower, upper, step))
            return Slice(lower, upper, step, at)
        case ast.Subscript(value=value, slice=index):
            return Apply("index", (term(value), term(index)), spelled="index", at=at)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = tuple((str(keyword.arg), term(keyword.value)) for keyword in keywords)
            return Apply(name, tuple(map(term, args)), named, at=at)
        case ast.Lambda(args=arguments, body=body):
            return Lambda(tuple(each.arg for each in arguments.args), term(body), at)
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=ast.Name(id=index), iter=ast.Call(args=bounds))]
        ):
            return Listed(term(element), index, tuple(map(term, bounds)), at)
        case _:
            raise AssertionError(ast.dump(tree))  # `runner/language/syntax.py` lets nothing else through


def _span(tree: ast.expr) -> Span | None:
    if not hasattr(tree, "lineno"):
        return None
    assert tree.end_col_offset is not None
    return tree.col_offset, tree.end_col_offset
