"""A line of a function and a call of it in; the line with the names that it has where the function is called, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from runner.experiment.functions import at
from runner.experiment.model import Call, Line, Origin
from runner.experiment.plain import located
from runner.faults import InvalidExperiment, Key
from runner.graph.term import Name, Term, heads, substituted
from runner.language import static
from runner.language.check import Scope, canonical
from runner.language.syntax import Expression, SyntaxFault


@dataclass(frozen=True)
class Frame:
    """Where lines are read: in a section, or in a function that is called there.

    - `env`: the names of the function and what the section calls them; `statics`: parameters that stand for what is
      known without arrays.
    - `prefix`: what the names begin with that the section gives the function's lines; `own`: the function's own names.
    - `inside`: the functions whose lines are being read, outermost first.
    """

    env: dict[str, str] = field(default_factory=dict[str, str])
    statics: Mapping[str, Term] = field(default_factory=dict[str, Term])
    prefix: str = ""
    own: frozenset[str] = frozenset()
    calls: tuple[Call, ...] = ()
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

    def in_section(self, term: Term) -> Term:
        """A term with the section's names."""
        if not self.calls:
            return term
        return substituted(term, lambda name: Name(self.env[name]) if name in self.env else None)

    def in_repeat(self, carried: Iterable[str], own: Iterable[str]) -> Frame:
        """The same inside a repeat: what it carries keeps its name, and hides what has the same outside."""
        env = {name: known for name, known in self.env.items() if name not in set(own)}
        return replace(self, env=env | {name: name for name in carried})


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
        return InvalidExperiment(located(self.key, self.text, at(self.text, message, part), self.frame.uses))


def free(wish: str, taken: set[str]) -> str:
    """A name that is not `taken`, which it then is."""
    name, count = wish, 2
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name


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


def line_of(name: str, within: Line | None, origin: Origin) -> Line:
    """The identity of a line `within` a repeat, or of none."""
    return replace(Line(name) if within is None else within.inside(name), origin=origin)
