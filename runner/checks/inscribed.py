"""A line as a section has it, and as the file has it, in; what one of both would be where the other is edited, out.

A section has a function's lines in the place of each call, under names of their own, and calls within an expression as
lines before it. So an edit is made of what the file says, and goes into every place that has it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping

from runner.experiment.model import Node
from runner.experiment.plain import read_expression
from runner.faults import InvalidExperiment
from runner.language import bridge, trees

Names = Mapping[str, ast.expr]
"""What stands for a name elsewhere."""


def own(node: Node) -> ast.expr:
    """A line's tree in the names of the function that it stands in, or of the section."""
    return bridge.tree(node.expression.local) if node.expression.local is not None else node.expression.tree


def in_section(nodes: Iterable[Node]) -> dict[str, ast.expr]:
    """For the names that the lines of one call have in the function those that they have in the section."""
    found: dict[str, ast.expr] = {}
    for node in nodes:
        found[node.line.label] = ast.Name(node.name)
        if node.expression.local is not None:
            found |= dict(_apart(bridge.tree(node.expression.local), node.expression.tree))
    return found


def in_file(node: Node) -> dict[str, ast.expr]:
    """For the names in a line's own tree that the file does not have the calls that it has there."""
    return {name: tree for tree, name in _called(_as_written(node), own(node))}


def replaced(tree: ast.expr, names: Names) -> ast.expr:
    """A tree with what stands for them in the place of some names."""
    return _Replaced(names).visit(copy.deepcopy(tree)) if names else tree


def _as_written(node: Node) -> ast.expr | None:
    try:
        return read_expression(node.expression.text, node.line.key).tree
    except InvalidExperiment:
        return None


def _apart(one: ast.AST, other: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names of one tree, with what stands in their places in another one that is alike otherwise."""
    if isinstance(one, ast.Name):
        if isinstance(other, ast.expr):
            yield one.id, other
        return
    for a, b in zip(ast.iter_child_nodes(one), ast.iter_child_nodes(other), strict=False):
        if isinstance(one, ast.Call) and a is one.func:
            continue
        yield from _apart(a, b)


def _called(written: ast.AST | None, known: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The parts of what is written in the place of which a name is known."""
    if isinstance(known, ast.Name) and isinstance(written, ast.expr) and not isinstance(written, ast.Name):
        yield written, known.id
        return
    if written is None or type(written) is not type(known):
        return
    for a, b in zip(ast.iter_child_nodes(written), ast.iter_child_nodes(known), strict=False):
        yield from _called(a, b)


class _Replaced(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self._names.get(node.id, node))


def text(node: Node, tree: ast.expr) -> str:
    """How the file writes what a line would be."""
    return trees.text(replaced(tree, in_file(node)))
