"""Takes a line and its edited expression; returns the term of the line that the file would have.

A section has a call within an expression as a separate line before it. In the file, the call is written where the line
uses its name.
"""

from __future__ import annotations

from runner.graph.language.syntax import parse
from runner.graph.source import Source
from runner.graph.term import Term, bare, substituted, swapped, within


def in_file(source: Source, line: Term, edited: Term) -> Term:
    """The term of the line in the file if `line` is `edited`: with calls written out, and the text around it kept."""
    written = parse(source.text).term
    # Where a part and the only part inside it have the same columns, the outer one counts.
    parts = {part.at: part for part in reversed([*within(written)]) if part.at is not None}
    read = {name: parts[part.at] for part in within(line) if (name := bare(part)) and part.at in parts}
    calls = {name: part for name, part in read.items() if bare(part) is None}
    term = substituted(edited, calls.get)
    return swapped(written, parts[source.at], term) if source.at in parts else term
