"""Names, their values and the types of expressions, as far as a section is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.derivation.lines import Writing, Written
from runner.derivation.statics import Statics
from runner.derivation.terms import elements_of
from runner.derivation.values import Value
from runner.experiment.model import Experiment, Line, Loop, Node, Statement
from runner.graph.term import Name, Term, place
from runner.language.operations import CONSTANTS
from runner.layout import Spec
from runner.programs.types import Typed

Parts = Mapping[str, Mapping[str, Typed | None]]
"""The type of every array in the expressions: for each line, by its place; None where a loop's steps differ."""


def element(where: str, index: int) -> str:
    """Where the type of an element of a tuple stands."""
    return f"{where}[{index}]"


class NotDerived(Exception):
    """What cannot be written, and why."""


@dataclass
class Binding:
    """A name and what it stands for.

    `held` are the names of the same value in other layouts; `made` is the line of which it is the result, and the place
    of its expression, where the layout is free.
    """

    value: Value
    held: dict[Spec, Value] = field(default_factory=dict[Spec, Value])
    made: tuple[str, str] | None = None


@dataclass
class Scope:
    """The lines of a section or of a loop's body, as far as they are written.

    `steps` is how often they run, `within` the loop; None for a section.
    """

    steps: int = 1
    within: Line | None = None
    lines: list[Writing] = field(default_factory=list[Writing])
    names: dict[str, Binding] = field(default_factory=dict[str, Binding])

    def line(self, name: str) -> Line:
        """The identity of a line here."""
        return Line(name) if self.within is None else self.within.inside(name)

    def put(self, name: str, term: Term) -> None:
        """Write a line."""
        self.lines.append(Written(self.line(name), term))

    def copied(self) -> Scope:
        """A scope that can be written on without this one."""
        names = {name: Binding(binding.value, dict(binding.held), binding.made) for name, binding in self.names.items()}
        return Scope(self.steps, self.within, list(self.lines), names)


class Names:
    """The lines that are written, and what names stand for; `path` is the line of the graph that is being written."""

    def __init__(self, experiment: Experiment, parts: Parts) -> None:
        self.experiment, self.mesh = experiment, experiment.mesh
        self.scopes: list[Scope] = [Scope()]
        self.path = ""
        self.beside: Sequence[Statement] = ()
        """The statements of the graph among which it stands."""
        self.prefix = ""
        self.kept: frozenset[str] = frozenset()
        """What each step of the loop keeps, to be stacked."""
        self.notes: list[str] = []
        self.index: frozenset[str] = frozenset()
        """The numbers of the steps of unrolled loops."""
        self.taken: set[str] = {*experiment.dims, *CONSTANTS, *_names(experiment.graph)}
        self.taken |= {array.name for array in experiment.arrays}
        self._parts = parts

    def copied(self) -> tuple[list[Scope], set[str], list[str]]:
        """What can be gone back to: the lines, the names and the notes, as they are now."""
        return [scope.copied() for scope in self.scopes], set(self.taken), list(self.notes)

    def restore(self, copied: tuple[list[Scope], set[str], list[str]]) -> None:
        """Go back to how it was."""
        self.scopes, self.taken, self.notes = copied

    def define(self, written: str, value: Value, name: str | None = None) -> Value:
        """Write a line and let `name` stand for it."""
        self.scopes[-1].put(written, value.term)
        known = Name(written)
        parts = zip(value.elements, elements_of(known, len(value.elements)), strict=True)
        elements = tuple(replace(part, term=term, make=None) for part, term in parts)
        named = replace(value, term=known, make=None, elements=elements)
        self.scopes[-1].names[name or written] = Binding(named)
        return named

    def written(self, term: Term) -> str | None:
        """The name of a line of this scope that says the same, while it still stands for that."""
        lines = self.scopes[-1].lines
        for at, line in enumerate(lines):
            if isinstance(line, Written) and line.term == term:
                gone = {name for later in lines[at + 1 :] for name in later.defines}
                return None if gone & (line.names | {line.name}) else line.name
        return None

    @property
    def statics(self) -> Statics:
        """What is known without arrays where the writer is."""
        return Statics(self.experiment.dims, self._is_step, self.type_of)

    def _is_step(self, name: str) -> bool:
        return name in self.index or any(name in s.names and s.names[name].value.static for s in self.scopes)

    def type_of(self, term: Term) -> Typed | None:
        """The type of an expression that is an array."""
        where = place(term)
        known = self._parts.get(self.path, {})
        if where is None or where not in known:
            return None
        typed = known[where]
        if typed is None:
            raise NotDerived(f"the shapes in {self.path.replace('/', '.')} are others in each step")
        return typed

    def elements_of(self, term: Term) -> tuple[Typed, ...]:
        """The types of the arrays of a tuple; none where the expression is no tuple of arrays."""
        where, known = place(term), self._parts.get(self.path, {})
        found: list[Typed] = []
        while where is not None and (typed := known.get(element(where, len(found)))) is not None:
            found.append(typed)
        return tuple(found)

    def type_at(self, path: str, term: Term) -> Typed | None:
        """The type of an expression of another line."""
        where = place(term)
        return None if where is None else self._parts.get(path, {}).get(where)

    def readers(self, term: Term) -> tuple[str, list[tuple[str, Statement]]] | None:
        """Where an expression is a whole line that only lines beside it read, its name, and these with their paths."""
        name = next((s.name for s in self.beside if isinstance(s, Node) and s.expression.term is term), None)
        if name is None or name in self.kept:
            return None
        return name, [(f"{self.prefix}{s.name}", s) for s in self.beside if name in s.names]

    def fresh(self, wish: str) -> str:
        """A name that nothing has."""
        name, count = wish, 2
        while name in self.taken:
            name, count = f"{wish}{count}", count + 1
        self.taken.add(name)
        return name

    def note(self, note: str) -> None:
        """Say something of the lines, once."""
        if note not in self.notes:
            self.notes.append(note)

    @property
    def line(self) -> str:
        """The name of the line that is written."""
        return self.path.rpartition("/")[2]

    def is_bound(self, name: str) -> bool:
        """Whether a name stands for something."""
        return any(name in scope.names for scope in self.scopes)

    def binding(self, name: str) -> Binding:
        """What a name stands for."""
        return next(scope.names[name] for scope in reversed(self.scopes) if name in scope.names)

    def bound_to(self, value: Value) -> tuple[Scope, Binding] | None:
        """The name that a value is read by, if it is, and the scope that has it."""
        if not isinstance(value.term, Name):
            return None
        for scope in reversed(self.scopes):
            binding = scope.names.get(value.term.name)
            if binding is not None and binding.value.term is value.term:
                return scope, binding
        # An array that stands for itself by another name.
        for scope in reversed(self.scopes):
            for binding in scope.names.values():
                if binding.value.term is value.term:
                    return scope, binding
        return None


def _names(statements: Sequence[Statement]) -> Iterator[str]:
    for statement in statements:
        yield statement.name
        if isinstance(statement, Loop):
            yield statement.index
            yield from statement.given
            yield from _names(statement.body)
