"""Trees of Python for those who read them still: a term in, its tree out; what knows operators by their nodes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Term
from runner.language import terms
from runner.language.operations import OPERATIONS, Operation
from runner.language.operators import BY_NAME, Operator

OPERATORS: dict[type[ast.AST], Operator] = {kind: BY_NAME[name] for kind, name in terms.OPERATORS.items()}


def called(node: ast.expr) -> Operation | None:
    """The operation that a node calls, by its name or by an operator, if it calls one."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return OPERATIONS[name]
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.Compare(ops=[op]):
            return OPERATORS[type(op)].operation
        case _:
            return None


def _written(kind: type[ast.AST], *operands: ast.expr) -> ast.expr:
    node = kind()
    if isinstance(node, ast.cmpop):
        return ast.Compare(operands[0], [node], [operands[1]])
    if isinstance(node, ast.unaryop):
        return ast.UnaryOp(node, operands[0])
    assert isinstance(node, ast.operator)
    return ast.BinOp(operands[0], node, operands[1])


SYNTAX: dict[str, Callable[..., ast.expr]] = {name: partial(_written, kind) for kind, name in terms.OPERATORS.items()}
"""By the names of the operations that operators are, what makes an expression with one of its operands."""


def name_of(node: ast.AST) -> str | None:
    """The name that a node is: `A`, `ring.acc` (or `A.T`, which looks like one); None for any other node."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}"
        case _:
            return None


def place(node: ast.expr) -> str | None:
    """Where a node stands in its expression, which no other evaluated node does; None for one that was not parsed."""
    if not hasattr(node, "lineno"):
        return None
    return f"{node.col_offset}:{node.end_col_offset}"


def tree(term: Term) -> ast.expr:
    """The tree of a term, with its spans; a call of an operation in the place of `x.at[index].add(values)`."""
    made = _tree(term)
    if term.at is not None:
        made.lineno = made.end_lineno = 1
        made.col_offset, made.end_col_offset = term.at
    return made


def _tree(term: Term) -> ast.expr:
    match term:
        case Const(value=value):
            return ast.Constant(value)
        case Name(name=name):
            head, _, carried = name.partition(".")
            if not carried:
                return ast.Name(name, ast.Load())
            at = None if term.at is None else (term.at[0], term.at[0] + len(head.encode()))
            return ast.Attribute(tree(Name(head, at)), carried, ast.Load())
        case Group(items=items, kind=kind):
            return (ast.List if kind == "list" else ast.Tuple)([tree(item) for item in items], ast.Load())
        case Slice(lower=lower, upper=upper, step=step):
            return ast.Slice(*(None if part == NOTHING else tree(part) for part in (lower, upper, step)))
        case Lambda(parameters=parameters, body=body):
            names = [ast.arg(name) for name in parameters]
            arguments = ast.arguments(posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[])
            return ast.Lambda(arguments, tree(body))
        case Listed(element=element, index=index, bounds=bounds):
            over = ast.Call(ast.Name("range", ast.Load()), [tree(bound) for bound in bounds], [])
            generator = ast.comprehension(ast.Name(index, ast.Store()), over, [], 0)
            return ast.ListComp(tree(element), [generator])
        case Apply(spelled=".T", operands=(x,)):
            return ast.Attribute(tree(x), "T", ast.Load())
        case Apply(spelled="index", operands=(x, index)):
            return ast.Subscript(tree(x), tree(index), ast.Load())
        case Apply(operation=operation, spelled="operator", operands=operands):
            return SYNTAX[operation](*(tree(operand) for operand in operands))
        case Apply(operation=operation, operands=operands, named=named):
            function = ast.Name(operation, ast.Load())
            if term.at is not None:
                function.lineno = function.end_lineno = 1
                function.col_offset = term.at[0]
                function.end_col_offset = term.at[0] + len(operation.encode())
            keywords = [ast.keyword(name, tree(operand)) for name, operand in named]
            return ast.Call(function, [tree(operand) for operand in operands], keywords)
