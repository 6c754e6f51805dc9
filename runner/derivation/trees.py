"""A template and the expressions in it in; an expression of the language out."""

from __future__ import annotations

import ast
from typing import Any

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


def called(name: str, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> ast.expr:
    """A call of an operation."""
    return ast.Call(ast.Name(name), arguments, [ast.keyword(key, value) for key, value in keywords.items()])


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
