"""Statements in; which names are read after each, and which for the last time, out: what is not, can be let go of."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from runner.experiment.model import Node, Statement


def read_later(statements: Sequence[Statement], wanted: frozenset[str] | None) -> list[frozenset[str] | None]:
    """For each statement, the names that are read after it, if `wanted` are read after the last one."""
    if wanted is None:
        return [None] * len(statements)
    later: list[frozenset[str] | None] = []
    for statement in reversed(statements):
        later.append(wanted)
        wanted = (wanted - statement.defines) | statement.names
    return later[::-1]


def read_once_more(statement: Node, later: frozenset[str] | None) -> frozenset[str]:
    """The names that stand once in a statement, and that nobody reads after it if `later` are read then."""
    if later is None:
        return frozenset()
    counts = Counter(node.id for node in ast.walk(statement.expression.tree) if isinstance(node, ast.Name))
    read = {name for name, count in counts.items() if count == 1}
    return frozenset(read - (later - statement.defines))
