"""`x.at[index].add(values)` as Python parses it in; a call of the operation `at[].add` out.

So whoever reads expressions knows one kind of call. The name is none that a user can write.
"""

from __future__ import annotations

import ast
from typing import Any

from runner.language.operations import OPERATIONS
from runner.language.operations.arguments import AT

METHODS = tuple(row.method for row in OPERATIONS.values() if row.method is not None)
"""What may follow `x.at[index]`."""


class Unknown(Exception):
    """What follows `x.at[index]` and is none of the `METHODS`: the node, which has the method as its `attr`."""

    def __init__(self, node: ast.Attribute) -> None:
        super().__init__(node.attr)
        self.node = node


def called(tree: ast.expr) -> ast.expr:
    """The tree with calls of operations in the place of `x.at[index].add(values)`. Raises `Unknown`."""
    return _Called().visit(tree)


class _Called(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Subscript(value=ast.Attribute(value=x, attr="at"), slice=index), attr=method):
                if method not in METHODS:
                    raise Unknown(node.func)
                name = ast.copy_location(ast.Name(f"{AT}{method}", ast.Load()), node.func)
                new = ast.Call(name, [x, _as_argument(index), *node.args], node.keywords)
                return ast.copy_location(new, node)
            case _:
                return node


def _as_argument(index: ast.expr) -> ast.expr:
    """The index; a slice, which is no value by itself, in a tuple."""
    alone = isinstance(index, ast.Slice) or (isinstance(index, ast.Constant) and index.value in (None, ...))
    return ast.copy_location(ast.Tuple([index], ast.Load()), index) if alone else index
