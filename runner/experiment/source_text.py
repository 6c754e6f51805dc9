"""Prints terms of lines that were read from Python as the user's source spells them, and names their values.

The lines of a Python function have names that the reader made, such as `y_3` for the third value of a line that assigns
`y`. Messages and pictures show the user's own expressions and variables instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property

from runner.base.lazy import dataclass
from runner.graph.language.operations.row import AT
from runner.graph.language.printing import text
from runner.graph.language.python_source import is_compound
from runner.graph.source import Frame
from runner.graph.term import Name, Term, bare, calls, mapped, spelled


@dataclass(frozen=True)
class SourceText:
    """How the user's source spells the values and expressions of lines.

    - `spelled`: the source of an expression, or a variable's name, by term; `frames`: the places of the
      lines in the user's files, by name; `names`: what a person calls each value, by name.
    """

    spelled: Mapping[Term, str] = field(default_factory=dict[Term, str])
    frames: Mapping[str, Frame] = field(default_factory=dict[str, Frame])
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def empty(self) -> bool:
        """Whether no name has another spelling."""
        return not (self.spelled or self.frames or self.names)

    def operand(self, name: str) -> str:
        """Like `name`, in parentheses if an operator behind it would bind to a part of it alone."""
        return _enclosed(self.name(name), alone=Name(name) not in self.spelled)

    def of(self, term: Term) -> str:
        """The text of a term in which parts that the source has are spelled as there."""
        return text(term) if self.empty else text(self._shown(term, alone=True))

    def name(self, name: str) -> str:
        """What a person calls a value: its variable or source, or the path of a leaf; any other name as it is."""
        if name in self.names:
            return self.names[name]
        loop, _, carried = name.rpartition(".")
        return f"{self.name(loop)}.{carried}" if loop else name

    def _shown(self, term: Term, *, alone: bool) -> Term:
        """The term with names that print as the source; `alone`: where an expression needs no parentheses."""
        if (name := bare(term)) is not None:
            return Name(_enclosed(self.name(name), alone=alone or term not in self.spelled))
        if (source := self.spelled.get(term)) is not None:
            return Name(_enclosed(source, alone=alone))
        inside = spelled(term) in ("call", None)
        # The array of an update is written before it, `x.at[0].set(y)`.
        updated = term.operands[0] if calls(term) and term.operation.startswith(AT) else None
        return mapped(term, lambda part: self._shown(part, alone=inside and part is not updated))


NO_SOURCE = SourceText()
"""The source text of lines that were not read from Python: none."""


@dataclass(frozen=True)
class NamedByReader:
    """A value of a line that was read from Python.

    - `name`: in the lines; `source`: its variable, or the source of its expression; empty if it has none.
    - `wish`: what the user's line calls the values that it makes.
    """

    name: str
    source: str
    wish: str


def names_of_values(
    values: Iterable[NamedByReader], given: Mapping[str, str], *, as_written: bool = False
) -> dict[str, str]:
    """What a person calls each value: names that differ, by the names in the lines; `given`: those of operands.

    A variable's value has the variable's name. What the lines call the same is numbered: `x` and `x#2` are the values
    of a variable that is assigned twice, `lse#2` is one that a line makes on the way to `lse`. With `as_written`
    a variable has its own name wherever it is assigned, as in the line of the source that reads it.
    """
    names, counts = dict(given), Counter(given.values())
    nameless: dict[str, str] = {}
    for value in values:
        source = value.source
        if value.name in names:
            continue
        if not source or (source in counts and not as_written and is_compound(source)):
            nameless[value.name] = value.wish
            continue
        counts[source] += 1
        names[value.name] = source if as_written or counts[source] == 1 else f"{source}#{counts[source]}"
    alike = Counter(nameless.values())
    for name, wish in nameless.items():
        counts[wish] += 1
        names[name] = wish if alike[wish] == counts[wish] == 1 else f"{wish}#{counts[wish]}"
    return names


def _enclosed(source: str, *, alone: bool) -> str:
    """The source of an expression, in parentheses if it needs them."""
    if alone or source.isidentifier():
        return source
    return f"({source})" if is_compound(source) else source
