"""A line as a section has it, and as the file has it, in; what one of both would be where the other is edited, out.

A section has a function's lines in the place of each call, under names of their own, and calls within an expression as
lines before it. So an edit is made of what the file says, and goes into every place that has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.experiment.model import Node
from runner.experiment.plain import read_expression
from runner.faults import InvalidExperiment
from runner.graph.term import Name, Term, substituted, swapped, within


def own(node: Node) -> Term:
    """What a line says in the names of the function that it stands in, or of the section."""
    return node.expression.term if node.expression.local is None else node.expression.local


def in_section(nodes: Iterable[Node]) -> dict[str, Term]:
    """For the names that the lines of one call have in the function those that they have in the section."""
    names: dict[str, Term] = {}
    for node in nodes:
        names[node.line.label] = Name(node.name)
        for one, other in zip(within(own(node)), within(node.expression.term), strict=True):
            if isinstance(one, Name) and one != other:
                names[one.name] = other
    return names


def in_file(node: Node, edited: Term) -> Term:
    """What the file says where a line is `edited`: calls that are lines of their own, and what stands around it."""
    try:
        written = read_expression(node.expression.text, node.line.key).term
    except InvalidExperiment:
        return edited
    # Two parts in one place are a part and what holds it alone.
    parts = {part.at: part for part in reversed([*within(written)])}
    line = own(node)
    read = {part.name: parts[part.at] for part in within(line) if isinstance(part, Name) and part.at in parts}
    calls = {name: part for name, part in read.items() if not isinstance(part, Name)}
    said = substituted(edited, calls.get)
    return swapped(written, parts[line.at], said) if line.at in parts else said
