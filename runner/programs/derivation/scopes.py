"""Holds the names, values and types at each point of a section whose lines are being written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TypeAlias

from runner.base.layout import Parts, Spec, Typed
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Sending
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, TracedTerm
from runner.graph.language.operations import CONSTANTS, row_of
from runner.graph.model import Equation, Graph, Operand, Ref, Repeat, Value, walk
from runner.graph.spelling import Spelling
from runner.graph.term import Name, Term
from runner.graph.term import names as names_in
from runner.programs.derivation.calls import DeviceValue
from runner.programs.derivation.statics import Statics
from runner.programs.derivation.terms import elements_of


class NotDerived(Exception):
    """The reason why lines cannot be derived."""


@dataclass(eq=False)
class Binding:
    """The value that a name is bound to; names of the same value may share a binding.

    `held`: the names of the same value in other layouts.
    """

    value: DeviceValue
    held: dict[Spec, DeviceValue] = field(default_factory=dict[Spec, DeviceValue])


@dataclass
class Scope:
    """The lines of a section or of a loop's body written so far.

    - `steps`: how often they run.
    - `collectives`: those already counted, until a name is bound again.
    - `again`: those of them that occur more than once.
    - `sent`: what each step sends, by collective.
    - `changing`: the names whose value changes from step to step.
    - `kept`: the names that change in any case, since the loop carries, slices or stacks them.
    """

    steps: int = 1
    lines: list[TracedLine] = field(default_factory=list[TracedLine])
    names: dict[str, Binding] = field(default_factory=dict[str, Binding])
    collectives: set[Term] = field(default_factory=set[Term])
    changing: set[str] = field(default_factory=set[str])
    kept: frozenset[str] = frozenset()
    sent: dict[Term, tuple[Sending, ...]] = field(default_factory=dict[Term, "tuple[Sending, ...]"])
    again: set[Term] = field(default_factory=set[Term])

    def put(self, name: str, term: Term) -> None:
        """Append a line."""
        if name in self.names:
            self.collectives.clear()  # from here on the name is bound to another value
        self.lines.append(TracedTerm(name, term))

    def copied(self) -> Scope:
        """An independent copy of the scope; names that share a binding share its copy."""
        copies = {binding: Binding(binding.value, dict(binding.held)) for binding in self.names.values()}
        names = {name: copies[binding] for name, binding in self.names.items()}
        counted, changing = set(self.collectives), set(self.changing)
        return Scope(
            self.steps, list(self.lines), names, counted, changing, self.kept, dict(self.sent),
            set(self.again),
        )  # fmt: skip


NamesState: TypeAlias = tuple[list[Scope], set[str], list[str]]


class Names:
    """The scopes being written, innermost last, and the bindings in them.

    `path`: the path of the current line.
    """

    def __init__(self, experiment: Experiment, types: Parts) -> None:
        self.experiment, self.mesh = experiment, experiment.mesh
        self.graph = experiment.computed("graph")
        self.scopes: list[Scope] = [Scope()]
        self.path = ""
        self.notes: list[str] = []
        self.index: frozenset[str] = frozenset()
        """The step indices of the unrolled loops around the current line."""
        self.taken: set[str] = {*experiment.dims, *CONSTANTS, *_names(self.graph)}
        self._types = types
        self.statics = Statics(experiment.dims, Spelling.of(self.graph), self._is_step, self.type_of)
        """The static values known at the current line."""

    def copied(self) -> NamesState:
        """A snapshot of the lines, the taken names and the notes, for `restore`."""
        return [scope.copied() for scope in self.scopes], set(self.taken), list(self.notes)

    def restore(self, copied: NamesState) -> None:
        """Go back to a snapshot."""
        self.scopes, self.taken, self.notes = copied

    def home(self, *terms: Term) -> Scope:
        """The innermost scope in which the terms change from step to step: their value can be computed there."""
        if len(self.scopes) == 1:
            return self.scopes[0]
        read = frozenset(name for term in terms for name in names_in(term))
        return next((scope for scope in reversed(self.scopes) if scope.changing & read), self.scopes[0])

    def put(self, name: str, term: Term, scope: Scope | None = None) -> None:
        """Append a line to a scope, by default the innermost."""
        scope = self.scopes[-1] if scope is None else scope
        (scope if name in scope.kept else self.home(term)).changing.add(name)
        scope.put(name, term)

    def define(self, written: str, value: DeviceValue, name: str | None = None) -> DeviceValue:
        """Append the line `written` and bind `name`, by default the same, to its value."""
        self.put(written, value.term)
        named_term = Name(written)
        parts = zip(value.elements, elements_of(named_term, len(value.elements)), strict=True)
        elements = tuple(replace(part, term=term, make=None) for part, term in parts)
        named = replace(value, term=named_term, make=None, elements=elements, turned=None)
        self.scopes[-1].names[name or written] = self._same(value) or Binding(named)
        return named

    def _same(self, value: DeviceValue) -> Binding | None:
        """The section's own binding of a value that another name repeats, so that both share its other layouts."""
        bound = self.bound_to(value)
        if bound is None or bound[0] is not self.scopes[0] or value.name in self.inner:
            return None
        return bound[1]

    def written(self, term: Term) -> str | None:
        """The name of a line in this scope with the same term, if its operands and its name are not bound again."""
        lines = self.scopes[-1].lines
        for at, line in enumerate(lines):
            if isinstance(line, TracedTerm) and line.term == term:
                gone = {name for later in lines[at + 1 :] for name in later.defines}
                return None if gone & (line.names | {line.name}) else line.name
        return None

    def read_once(self, name: str) -> TracedTerm | None:
        """The line of a name in this scope, if nothing but the line being written will read it, and that once."""
        scope, grad = self.scopes[-1], self.experiment.grad
        binding = scope.names.get(name)
        number = None if binding is None or binding.held else binding.value.made
        if number is None or (grad is not None and name == grad.of):
            return None
        readers = self.readers(number)
        if len(readers) != 1 or readers[0].reads.count(number) > 1 or any(name in line.names for line in scope.lines):
            return None
        lines = [line for line in scope.lines if name in line.defines]
        line = lines[0] if len(lines) == 1 else None
        return line if isinstance(line, TracedTerm) else None

    def rewrite(self, terms: Mapping[str, Term]) -> None:
        """Give lines of this scope other terms."""
        lines = self.scopes[-1].lines
        for at, line in enumerate(lines):
            if isinstance(line, TracedTerm) and line.name in terms:
                lines[at] = replace(line, term=terms[line.name])

    def _is_step(self, name: str) -> bool:
        return name in self.index or any(name in s.names and s.names[name].value.static for s in self.scopes)

    def equation(self, operand: Operand) -> Equation | None:
        """The equation inlined at an operand; None where a named line gives the operand."""
        return self.statics.spelling.parts.get(operand.number) if isinstance(operand, Ref) else None

    def type_of(self, operand: Operand) -> Typed | None:
        """The type of an operand, or None if it is no array."""
        return self.type_at(operand.number) if isinstance(operand, Ref) else None

    def type_at(self, number: int) -> Typed | None:
        """The type of a value by its number, None if it is no array. Raises `NotDerived` if it varies by step."""
        typed = self._types.get(number, ())
        if typed is None:
            raise NotDerived(f"the shapes in {self.path.replace('/', '.')} differ from step to step")
        return typed if isinstance(typed, Typed) else None

    def elements_at(self, number: int) -> tuple[Typed, ...]:
        """The types of the arrays in a tuple; empty if the value is no tuple of arrays."""
        typed = self._types.get(number)
        return () if typed is None or isinstance(typed, Typed) else typed

    def readers(self, number: int) -> list[Equation]:
        """The equations that read a line's result; empty if it has no name or a body returns it."""
        producer = self.graph.producers[number]
        return [] if not producer.results[0].name else self._readers.get(number, [])

    def stopped(self, result: Value) -> bool:
        """Whether no gradient flows through a result: the scalar does not depend on it, or only as on a constant."""
        grad, readers = self.experiment.grad, self._readers.get(result.number, [])
        if grad is not None and result.name == grad.of:
            return False
        if result.number not in self._leading_to_gradient:
            return True
        return bool(readers) and all(row_of(reader.operation).constant for reader in readers)

    @cached_property
    def _leading_to_gradient(self) -> frozenset[int]:
        """The numbers of the values that the differentiated result depends on, itself included."""
        grad = self.experiment.grad
        read = {self.graph.names[grad.of]} if grad is not None else set[int]()
        for equation in reversed(self.graph.equations):
            if read.intersection(value.number for value in equation.results):
                read.update(number for inner in _with_inner(equation) for number in inner.reads)
                read.update(number for body in equation.bodies for number in body.outputs)
        return frozenset(read)

    @cached_property
    def after_gradients(self) -> frozenset[int]:
        """The numbers of the values that depend on a gradient, which JAX does not differentiate again."""
        grad = self.experiment.grad
        after = {value.number for value in self.graph.inputs if grad is not None and value.name in grad.names}
        for equation in self.graph.equations if after else ():
            if after.intersection(equation.reads):
                after.update(value.number for inner in _with_inner(equation) for value in inner.results)
        return frozenset(after)

    @cached_property
    def unread(self) -> frozenset[int]:
        """The numbers of the values that no output, gradient, constraint or repeat depends on."""
        experiment = self.experiment
        known = {*experiment.results, *experiment.constraints, *([experiment.grad.of] if experiment.grad else [])}
        needed, unread = set[int](), set[int]()

        def back(graph: Graph) -> None:
            for equation in reversed(graph.equations):
                results = {value.number for value in equation.results}
                if equation.form or needed & results or known & {value.name for value in equation.results}:
                    for body in equation.bodies:
                        needed.update(body.outputs)
                        back(body)
                    needed.update(equation.reads)
                else:
                    unread.update(results)

        back(self.graph)
        return frozenset(unread)

    def reads(self, equation: Equation) -> Iterator[int]:
        """Yield the numbers of the values that a line reads, including those read by equations inlined in it."""
        for number in equation.reads:
            yield number
            if number in self.statics.spelling.parts:
                yield from self.reads(self.statics.spelling.parts[number])

    @cached_property
    def inner(self) -> frozenset[str]:
        """The names that the bodies of repeats bind."""
        bodies = [body for equation in walk(self.graph) for body in equation.bodies]
        lines = (value.name for body in bodies for equation in body.equations for value in equation.results)
        return frozenset((*lines, *(value.name for body in bodies for value in body.inputs)))

    @cached_property
    def _readers(self) -> Mapping[int, list[Equation]]:
        readers: dict[int, list[Equation]] = {}
        ends: set[int] = set()
        for equation in walk(self.graph):
            ends.update(*(body.outputs for body in equation.bodies))
            for number in dict.fromkeys(equation.reads):
                readers.setdefault(number, []).append(equation)
        return {number: equations for number, equations in readers.items() if number not in ends}

    def fresh(self, wish: str) -> str:
        """An unused name made from `wish`, which is then taken."""
        name, count = wish, 2
        while name in self.taken:
            name, count = f"{wish}{count}", count + 1
        self.taken.add(name)
        return name

    def note(self, note: str) -> None:
        """Add a note on the lines, unless it is there already."""
        if note not in self.notes:
            self.notes.append(note)

    @property
    def line(self) -> str:
        """The name of the current line."""
        return self.path.rpartition("/")[2]

    def binding(self, name: str) -> Binding:
        """The innermost binding of a name."""
        return next(scope.names[name] for scope in reversed(self.scopes) if name in scope.names)

    def bound_to(self, value: DeviceValue) -> tuple[Scope, Binding] | None:
        """The scope and the binding of the name that a value is read by; None if it has none."""
        if value.name is None:
            return None
        for scope in reversed(self.scopes):
            binding = scope.names.get(value.name)
            if binding is not None and binding.value.term is value.term:
                return scope, binding
        # The array may be bound to a second name.
        for scope in reversed(self.scopes):
            for binding in scope.names.values():
                if binding.value.term is value.term:
                    return scope, binding
        return None


def _names(graph: Graph) -> Iterator[str]:
    """Yield the names of a graph's arrays, lines, repeats and values in bodies."""
    yield from (value.name for value in graph.inputs)
    for equation in walk(graph):
        if isinstance(equation.form, Repeat):
            yield equation.form.line.name
            yield from (value.name for body in equation.bodies for value in body.inputs)
        else:
            yield from (value.name for value in equation.results)


def _with_inner(equation: Equation) -> Iterator[Equation]:
    yield equation
    for body in equation.bodies:
        yield from walk(body)
