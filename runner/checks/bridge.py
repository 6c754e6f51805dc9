"""A term in; the expression that it is out, for those who read an expression's tree."""

from __future__ import annotations

import ast

from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Term
from runner.language.operators import SYNTAX
from runner.language.printing import text
from runner.language.syntax import Expression


def expression(term: Term) -> Expression:
    """The expression of a term; its parts stand where those of the term do."""
    return Expression(text(term), _tree(term))


def _tree(term: Term) -> ast.expr:
    tree = _bare(term)
    if term.at is not None:
        tree.lineno = tree.end_lineno = 1
        tree.col_offset, tree.end_col_offset = term.at
    return tree


def _bare(term: Term) -> ast.expr:
    match term:
        case Name(name=name):
            return ast.parse(name, mode="eval").body if "." in name else ast.Name(name)
        case Const(value=value):
            return ast.Constant(value)
        case Group(items=items, kind=kind):
            elements = list(map(_tree, items))
            return ast.Tuple(elements) if kind == "tuple" else ast.List(elements)
        case Slice(lower=lower, upper=upper, step=step):
            return ast.Slice(*(None if part == NOTHING else _tree(part) for part in (lower, upper, step)))
        case Lambda(parameters=parameters, body=body):
            arguments = ast.arguments([], [ast.arg(each) for each in parameters], None, [], [], None, [])
            return ast.Lambda(arguments, _tree(body))
        case Listed(element=element, index=index, bounds=bounds):
            over = ast.comprehension(ast.Name(index), ast.Call(ast.Name("range"), list(map(_tree, bounds)), []), [], 0)
            return ast.ListComp(_tree(element), [over])
        case Apply(operation=operation, operands=operands, spelled="operator"):
            return SYNTAX[operation](*map(_tree, operands))
        case Apply(operands=(x, index), spelled="index"):
            return ast.Subscript(_tree(x), _tree(index))
        case Apply(operands=(x,), spelled=".T"):
            return ast.Attribute(_tree(x), "T")
        case Apply(operation=operation, operands=operands, named=named):
            keywords = [ast.keyword(name, _tree(value)) for name, value in named]
            return ast.Call(ast.Name(operation), list(map(_tree, operands)), keywords)
