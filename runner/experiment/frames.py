"""A line and the calls around it in; its identity, and what it says once its static parameters are known, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.experiment.model import Line, Origin
from runner.experiment.plain import located
from runner.faults import InvalidExperiment, Key
from runner.graph.term import Term, heads, substituted
from runner.language import static
from runner.language.check import Scope, canonical
from runner.language.syntax import Expression, SyntaxFault, fault_in

_FEW = 4
"""So many names make one that can still be read."""


@dataclass(frozen=True)
class Frame:
    """Where lines are read: in a section, or in a function that is called there.

    - `statics`: the function's parameters that stand for what is known without arrays; `own`: all of its names.
    - `prefix`: what the names begin with that the section gives the function's lines; `names`: those that it has given.
    - `scopes`: the named scopes of the calls around the lines, outermost first; none in a section.
    - `uses`: the lines that call the function, innermost first; `inside`: the functions whose lines are being read,
      outermost first.
    """

    statics: Mapping[str, Term] = field(default_factory=dict[str, Term])
    own: frozenset[str] = frozenset()
    prefix: str = ""
    names: dict[str, str] = field(default_factory=dict[str, str])
    scopes: tuple[str, ...] = ()
    uses: tuple[Key, ...] = ()
    inside: tuple[str, ...] = ()

    def filled(self, expression: Expression, key: Key, scope: Scope) -> Term:
        """An expression, with what is known without arrays written out: parameters, comprehensions."""
        known = Expression(expression.text, substituted(expression.term, self.statics.get))
        mesh = scope.mesh if scope.section == "per_device" else None
        try:
            known = static.written_out(known, scope.sizes, mesh, scope.parameters)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, expression.text, fault, self.uses)) from None
        return canonical(known).term

    def line(self, label: str, within: Line | None, key: Key, *, parts: int = 0, result: bool = False) -> Line:
        """The identity of a line that the lines around it call `label`, `within` a repeat or in none.

        A `result` is what the innermost call gives, and has no scope of its own.
        """
        name = self.names.get(label, label)
        scopes = self.scopes if result else (*self.scopes, label)
        at = Line(name) if within is None else within.inside(name)
        return replace(at, origin=Origin(key, self.uses, scopes, label, parts))

    def in_repeat(self, given: Iterable[str], own: Iterable[str]) -> Frame:
        """The same inside a repeat: what it is given keeps its name, and hides what has the same outside."""
        names = {label: name for label, name in self.names.items() if label not in set(own)}
        return replace(self, names=names | {name: name for name in given}) if self.scopes else self


@dataclass(frozen=True)
class Place:
    """Where an expression stands: its key and text, what it may read, the function, the repeat; its line's `name`."""

    key: Key
    text: str
    scope: Scope
    frame: Frame
    within: Line | None
    name: str

    def fault(self, message: str, part: Term) -> InvalidExperiment:
        """What is wrong with a part of the expression."""
        return InvalidExperiment(located(self.key, self.text, fault_in(self.text, message, part.at), self.frame.uses))


def free(wish: str, taken: set[str]) -> str:
    """A name that is not `taken`, which it then is."""
    name, count = wish, 2
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name


def together(names: Sequence[str]) -> str:
    """A name for several values: that of all of them, or of the first and the last where they are many."""
    return "_".join(names if len(names) <= _FEW else (names[0], "to", names[-1]))


def cycle(start: str, scope: Scope) -> list[str] | None:
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
