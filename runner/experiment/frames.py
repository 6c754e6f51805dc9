"""Identifies a line and the calls around it, and writes its expression with static parameters in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from runner.base.faults import InvalidExperiment, Key
from runner.base.lazy import dataclass
from runner.experiment.graphs import GraphBuilder
from runner.experiment.model import Line, Origin
from runner.experiment.plain import located
from runner.graph.language import static
from runner.graph.language.check import VisibleNames, canonical
from runner.graph.language.syntax import Expression, SyntaxFault, fault_in
from runner.graph.term import Term, heads, substituted

_FEW = 4
"""The largest number of names that are joined into one."""


@dataclass(frozen=True)
class ReadingFrame:
    """Where lines are read: in a section, or in a function that is called there.

    - `statics`: the function's parameters that stand for what is known without arrays; `own`: all of its names.
    - `hidden`: the names that mean another value here than in the section: the function's own, and those of the repeats
      around the lines.
    - `prefix`: what the names begin with that the section gives the function's lines; `names`: those that it has given.
    - `scopes`: the named scopes of the calls around the lines, outermost first; none in a section.
    - `uses`: the lines that call the function, innermost first; `inside`: the functions whose lines are being read,
      outermost first.
    """

    statics: Mapping[str, Term] = field(default_factory=dict[str, Term])
    own: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    prefix: str = ""
    names: dict[str, str] = field(default_factory=dict[str, str])
    scopes: tuple[str, ...] = ()
    uses: tuple[Key, ...] = ()
    inside: tuple[str, ...] = ()

    def filled(self, expression: Expression, key: Key, scope: VisibleNames) -> Term:
        """The term of an expression with static parameters and comprehensions written out."""
        known = Expression(expression.text, substituted(expression.term, self.statics.get))
        mesh = scope.mesh if scope.section == "per_device" else None
        try:
            known = static.written_out(known, scope.sizes, mesh, scope.parameters)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, expression.text, fault, self.uses)) from None
        return canonical(known).term

    def line(self, label: str, within: Line | None, key: Key, *, parts: int = 0, result: bool = False) -> Line:
        """The identity of a line that the lines around it call `label`, `within` a repeat or in none.

        A `result` is the value that the innermost call returns, and has no scope of its own.
        """
        name = self.names.get(label, label)
        scopes = self.scopes if result else (*self.scopes, label)
        at = Line(name) if within is None else within.inside(name)
        return replace(at, origin=Origin(key, self.uses, scopes, label, parts))

    def named(self, name: str, taken: set[str]) -> str:
        """The name of a line in the section: for a function's line, a name that nothing in the section has."""
        if not self.scopes:
            return name
        if name not in self.names:
            self.names[name] = free(f"{self.prefix}{name}", taken)
        return self.names[name]

    def in_repeat(self, given: Iterable[str], own: Iterable[str]) -> ReadingFrame:
        """The same frame inside a repeat: the names that the repeat gives hide those outside."""
        hiding = replace(self, hidden=self.hidden | {*given})
        names = {label: name for label, name in self.names.items() if label not in set(own)}
        return replace(hiding, names=names | {name: name for name in given}) if self.scopes else hiding


@dataclass(frozen=True)
class Place:
    """The place of an expression: its key, its scope, the function, the graph of its line, and the line's `name`.

    `written` is the expression as it is written at the key.
    """

    key: Key
    written: Expression
    scope: VisibleNames
    frame: ReadingFrame
    into: GraphBuilder
    name: str

    @property
    def text(self) -> str:
        """The text of the expression."""
        return self.written.text

    def line(self, label: str, *, parts: int = 0, result: bool = False) -> Line:
        """The identity of a line here that the lines around it call `label`."""
        return self.frame.line(label, self.into.within, self.key, parts=parts, result=result)

    def fault(self, message: str, part: Term) -> InvalidExperiment:
        """Return a fault at a part of the expression."""
        return InvalidExperiment(located(self.key, self.text, fault_in(self.text, message, part.at), self.frame.uses))


def free(wish: str, taken: set[str]) -> str:
    """A name that is not in `taken`, to which it is added."""
    name, count = wish, 2
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name


def together(names: Sequence[str]) -> str:
    """A name for several values: all of their names, or the first and the last if there are many."""
    return "_".join(names if len(names) <= _FEW else (names[0], "to", names[-1]))


def cycle(start: str, scope: VisibleNames) -> list[str] | None:
    """The names along which `start` depends on itself, if it does."""
    paths = [[start]]
    while paths:
        path = paths.pop()
        expression = scope.later.get(path[-1])
        for name in heads(expression.term) if expression else ():
            if name in scope.values or name not in scope.later:
                continue
            if name == start:
                return [*path, start]
            if name not in path:
                paths.append([*path, name])
    return None
