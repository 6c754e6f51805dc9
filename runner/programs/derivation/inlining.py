"""Inlines short reshards where they are read once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from runner.experiment.traced import TracedLine, TracedTerm
from runner.graph.language.printing import is_within
from runner.graph.term import names, substituted

_LONGEST = 96
"""The longest line, in characters, that inlining may produce."""


def inlined(lines: Sequence[TracedLine], moved: Collection[str]) -> list[TracedLine]:
    """Inline each line in `moved` (a mere reshard) into its only reader, unless that becomes too long."""
    left = list(lines)
    for name in [line.name for line in lines if isinstance(line, TracedTerm) and line.name in moved]:
        at, line = next((i, each) for i, each in enumerate(left) if isinstance(each, TracedTerm) and each.name == name)
        readers = [i for i, each in enumerate(left) if name in each.names]
        reader = left[readers[0]] if len(readers) == 1 else None
        if not isinstance(reader, TracedTerm) or names(reader.term).count(name) > 1:
            continue
        term = substituted(reader.term, {name: line.term}.get)
        if is_within(term, _LONGEST):
            left[readers[0]] = replace(reader, term=term)
            del left[at]
    return left
