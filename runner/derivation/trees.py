"""A template and the expressions in it, or an operation and its arguments, in; an expression of the language out."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from runner.language.bridge import called
from runner.language.operations import OPERATIONS
from runner.language.trees import text
from runner.untyped import is_tuple


def built(template: str, **parts: Any) -> ast.expr:
    """`built("psum({x}, {over})", x=tree, over=("x",))`: trees as they are, axes as the language names them."""
    return ast.parse(template.format(**{name: _text(part) for name, part in parts.items()}), mode="eval").body


def _text(part: Any) -> str:
    if isinstance(part, ast.expr):
        return f"({text(part)})"
    if is_tuple(part) and len(part) == 1 and isinstance(part[0], str):
        return repr(part[0])
    return repr(part)


def constant(value: Any) -> ast.expr:
    """A number, a tuple of numbers, or None as an expression."""
    return ast.parse(repr(value), mode="eval").body


def divided(tree: ast.expr, parts: int) -> ast.expr:
    """A size, as one device has it: `B // 4`, `16`."""
    if parts == 1:
        return tree
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return ast.Constant(tree.value // parts)
    return built("{n} // {parts}", n=tree, parts=parts)


SUBSCRIPT = "subscript"
"""What brackets are called, which no row has."""


def name_of(node: ast.expr) -> str:
    """The operation that a node is, by its name."""
    match node:
        case ast.Subscript():
            return SUBSCRIPT
        case ast.Attribute():
            return "transpose"
        case _:
            row = called(node)
            assert row is not None, ast.dump(node)
            return row.name


def arguments(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """The arguments of an operation by their places, as they are written; of any number of them `*arrays[0]`, …"""
    match node:
        case ast.Subscript(value=value, slice=index):
            return [("x", value), ("index", index)]
        case ast.Call(args=given, keywords=keywords):
            named = [(str(keyword.arg), keyword.value) for keyword in keywords]
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            given, named = [left, right], []
        case ast.UnaryOp(operand=operand) | ast.Attribute(value=operand):
            given, named = [operand], []
        case _:
            raise AssertionError(ast.dump(node))
    places: list[str] = []
    for parameter in OPERATIONS[name_of(node)].signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            places += [f"*{parameter.name}[{i}]" for i in range(len(given) - len(places))]
        else:
            places.append(parameter.name)
    return [*zip(places, given, strict=False), *named]


def rebuilt(node: ast.expr, visit: Callable[[str, ast.expr], ast.expr]) -> ast.expr:
    """An operation with other arguments: what `visit` makes of the place and the tree of each."""
    trees = [visit(place, tree) for place, tree in arguments(node)]
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            named = zip(keywords, trees[len(args) :], strict=True)
            return ast.Call(func, trees[: len(args)], [ast.keyword(each.arg, tree) for each, tree in named])
        case ast.Subscript():
            return ast.Subscript(trees[0], trees[1])
        case ast.BinOp(op=op):
            return ast.BinOp(trees[0], op, trees[1])
        case ast.Compare(ops=ops):
            return ast.Compare(trees[0], ops, trees[1:])
        case ast.UnaryOp(op=op):
            return ast.UnaryOp(op, *trees)
        case ast.Attribute(attr=attr):
            return ast.Attribute(trees[0], attr)
        case _:
            raise AssertionError(ast.dump(node))
