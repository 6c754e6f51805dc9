"""Finds the statements of a user's file that give a name which a line reads: `width = x.shape[-1]` for `total / width`.

Where Python computes a number, no operation comes from that line, only a literal where it is read.
"""

from __future__ import annotations

import ast

from runner.base.lazy import dataclass
from runner.graph.language.passing import assigned, end_of, frame_of, function_at
from runner.graph.source import Frame


@dataclass(frozen=True)
class Given:
    """The statement that gives a name, by its first line; `last`: the number of its last line."""

    name: str
    frame: Frame
    last: int


@dataclass(frozen=True)
class Reading:
    """What a line reads: the statements that give its names, and the numbers that its source spells."""

    given: tuple[Given, ...]
    spelled: frozenset[float]


NOTHING_READ = Reading((), frozenset())


def reading(frame: Frame) -> Reading:
    """Return what a line of a function reads that a statement before it in the function gives; nothing where the file
    is not there.
    """
    function = function_at(frame.file, frame.line)
    if function is None:
        return NOTHING_READ
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    around = [node for node in statements if node.lineno <= frame.line <= end_of(node)]
    if not around:
        return NOTHING_READ
    inside = [*ast.walk(max(around, key=lambda node: node.lineno))]
    names = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    numbers = (node.value for node in inside if isinstance(node, ast.Constant))
    given: dict[str, Given] = {}
    for node in sorted(statements, key=lambda node: node.lineno):
        for name in assigned(node) if node.lineno < frame.line else ():
            if name in names:
                given[name] = Given(name, frame_of(frame.file, node.lineno), end_of(node))
    return Reading(tuple(given.values()), frozenset(float(n) for n in numbers if isinstance(n, int | float)))
