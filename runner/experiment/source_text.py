"""Prints terms of lines that were read from Python as the user's source spells them.

The lines of a Python function have names that the reader made, such as `y_3` for the third value of a line that assigns
`y`. Messages and pictures show the user's own expressions and variables instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from runner.graph.language.operations.arguments import AT
from runner.graph.language.printing import text
from runner.graph.language.python_source import is_compound
from runner.graph.source import Frame
from runner.graph.term import Apply, Group, Lambda, Listed, Name, Slice, Term, mapped


@dataclass(frozen=True)
class SourceText:
    """How the user's source spells the values and expressions of lines.

    - `spelled`: the source of an expression, or a variable's name, by term; `frames`: the places of the
      lines in the user's files, by name; `paths`: the paths of leaves of trees, by name.
    """

    spelled: Mapping[Term, str] = field(default_factory=dict[Term, str])
    frames: Mapping[str, Frame] = field(default_factory=dict[str, Frame])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def empty(self) -> bool:
        """Whether no name has another spelling."""
        return not (self.spelled or self.frames or self.paths)

    def operand(self, name: str) -> str:
        """Like `name`, in parentheses if an operator behind it would bind to a part of it alone."""
        return _enclosed(self.name(name), alone=Name(name) not in self.spelled)

    def of(self, term: Term) -> str:
        """The text of a term in which parts that the source has are spelled as there."""
        return text(term) if self.empty else text(self._shown(term, alone=True))

    def name(self, name: str) -> str:
        """The variable, the source or the place of a value; the path of a leaf; any other name as it is."""
        if (source := self.spelled.get(Name(name))) is not None:
            return source
        return self.paths.get(name) or (self.frames[name].place if name in self.frames else name)

    def _shown(self, term: Term, *, alone: bool) -> Term:
        """The term with names that print as the source; `alone`: where an expression needs no parentheses."""
        if isinstance(term, Name):
            loop, _, carried = term.name.partition(".")
            name = self.name(term.name)
            known = name != term.name or not carried or loop not in self.frames
            shown = name if known else f"{carried} of {self.frames[loop].place}"
            return Name(_enclosed(shown, alone=alone or term.name in self.paths))
        if isinstance(term, Apply | Group) and (source := self.spelled.get(term)) is not None:
            return Name(_enclosed(source, alone=alone))
        call = isinstance(term, Apply) and term.spelled == "call"
        inside = call or isinstance(term, Group | Lambda | Listed | Slice)
        # The array of an update is written before it, `x.at[0].set(y)`.
        updated = term.operands[0] if isinstance(term, Apply) and term.operation.startswith(AT) else None
        return mapped(term, lambda part: self._shown(part, alone=inside and part is not updated))


NO_SOURCE = SourceText()
"""The source text of lines that were not read from Python: none."""


def _enclosed(source: str, *, alone: bool) -> str:
    """The source of an expression, in parentheses if it needs them."""
    if alone or source.isidentifier():
        return source
    return f"({source})" if is_compound(source) else source
