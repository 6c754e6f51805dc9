"""Wraps the products in lines of a user's Python in a call: `y = x @ w` becomes `y = f(x @ w, P('data'))`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

PRODUCTS = {"dot", "matmul", "einsum", "dot_general", "tensordot", "conv", "conv_general_dilated", "vdot", "inner"}
"""The names of functions that are products, whatever module they are of."""


def around_products(source: str, function: str, arguments: Mapping[int, Sequence[str]]) -> str:
    """The source with each product of some lines in a call of a function, with a second argument.

    `arguments`: for each line the second arguments of its products, in the order in which they are computed; more than
    the line has are of a backward pass. Of a line without products the call of a layer is wrapped, if there is one
    and it computes one product. What is no Python stays as it is.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    starts = _starts(source)
    products = [node for node in ast.walk(tree) if _is_product(node)]
    inserted: list[tuple[int, int, bytes]] = []
    for line, texts in arguments.items():
        nodes: list[Any] = sorted(
            (node for node in products if getattr(node, "lineno", 0) == line), key=lambda node: _span(node, starts)[1]
        )
        if not nodes and len(texts) <= _OF_LAYER:
            nodes = _layers(tree, line)
        for node, text in zip(nodes, texts, strict=False):
            start, end = _span(node, starts)
            inserted += [(start, -end, f"{function}(".encode()), (end, -start, f", {text})".encode())]
    text = source.encode()
    for at, _, piece in sorted(inserted, reverse=True):
        text = text[:at] + piece + text[at:]
    return text.decode()


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) in PRODUCTS
    return False


_OF_LAYER = 3
"""The products of a layer: its own, and those of the gradients of its operands."""


def _layers(tree: ast.AST, line: int) -> list[Any]:
    """The call of a layer on a line: `nn.Dense(8)(x)`, else `self.dense(x)`, else its only call; none of several."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line]
    made = [node for node in calls if isinstance(node.func, ast.Call)]
    own = [node for node in calls if isinstance(node.func, ast.Attribute) and _is_self(node.func.value)]
    kinds = [kind for kind in (made, own, calls) if kind]
    return kinds[0] if kinds and len(kinds[0]) == 1 else []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _starts(source: str) -> list[int]:
    """The number of bytes before each line."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    return starts


def _span(node: Any, starts: Sequence[int]) -> tuple[int, int]:
    """The half-open span of bytes of a node."""
    first, last = int(node.lineno), int(node.end_lineno)
    return starts[first - 1] + int(node.col_offset), starts[last - 1] + int(node.end_col_offset)
