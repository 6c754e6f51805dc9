"""A line and what it is edited to say in; what the file says then, out.

A section has the calls within an expression as statements before the line. So the file says them where the line has
their names.
"""

from __future__ import annotations

from runner.experiment.model import Node
from runner.experiment.plain import read_expression
from runner.faults import InvalidExperiment
from runner.graph.term import Name, Term, substituted, swapped, within


def in_file(node: Node, edited: Term) -> Term:
    """What the file says where a line is `edited`: calls that are lines of their own, and what stands around it."""
    try:
        written = read_expression(node.expression.text, node.line.key).term
    except InvalidExperiment:
        return edited
    # Two parts in one place are a part and what holds it alone.
    parts = {part.at: part for part in reversed([*within(written)])}
    line = node.expression.term
    read = {part.name: parts[part.at] for part in within(line) if isinstance(part, Name) and part.at in parts}
    calls = {name: part for name, part in read.items() if not isinstance(part, Name)}
    said = substituted(edited, calls.get)
    return swapped(written, parts[line.at], said) if line.at in parts else said
