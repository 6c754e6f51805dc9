"""Lines in; the same with what is read once, and is short, written where it is read, out."""

from __future__ import annotations

import ast
from collections.abc import Collection

from runner.experiment.model import Node, Statement
from runner.language.syntax import parse
from runner.language.trees import text

_LONGEST = 96
"""How long a line may grow by what is written into it."""


def inlined(statements: tuple[Statement, ...], moved: Collection[str]) -> tuple[Statement, ...]:
    """The lines without those that only lay another one out for one reader that is short; the first comes first."""
    found = list(statements)
    for name in [line.name for line in statements if isinstance(line, Node) and line.name in moved]:
        at = next(i for i, line in enumerate(found) if isinstance(line, Node) and line.name == name)
        readers = [i for i, line in enumerate(found) if name in line.names]
        line = found[at]
        assert isinstance(line, Node)
        reader = found[readers[0]] if len(readers) == 1 else None
        if not isinstance(reader, Node):
            continue
        uses = [node for node in ast.walk(reader.expression.tree) if isinstance(node, ast.Name) and node.id == name]
        written = text(_Replaced(name, line.expression.tree).visit(ast.parse(reader.expression.text, mode="eval").body))
        if len(uses) == 1 and len(written) <= _LONGEST:
            found[readers[0]] = Node(reader.line, parse(written))
            del found[at]
    return tuple(found)


class _Replaced(ast.NodeTransformer):
    def __init__(self, name: str, tree: ast.expr) -> None:
        self._name, self._tree = name, tree

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._tree if node.id == self._name else node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node
