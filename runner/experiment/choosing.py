"""A call of `cond` or `switch` in; the choice between calls that it is out.

`h: cond(p, f, g, x)` is a choice between the calls `g(x)` and `f(x)`, with a line `h: where(p, …, …)` for those who
compute both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.experiment.forms import choices
from runner.experiment.frames import Frame, Place, together
from runner.experiment.functions import RESULT, Function, is_static
from runner.experiment.model import Call, Choice, Invocation, Node, Statement
from runner.experiment.plain import read_expression
from runner.faults import nearest
from runner.graph.term import Apply, Const, Group, Lambda, Name, Term, children, substituted
from runner.language import forms
from runner.language.check import Scope
from runner.language.operations import CONSTANTS
from runner.language.syntax import Expression


@dataclass
class Choosing(ABC):
    """What reads the lines of a section, as far as it reads choices."""

    dims: Mapping[str, int]
    functions: Mapping[str, Function]
    taken: set[str]
    """The names that a line of a function cannot be given in the section."""

    @abstractmethod
    def _node(self, name: str, term: Term, place: Place, *, parts: int = 0, result: bool = False) -> Node: ...

    @abstractmethod
    def _add(self, name: str, size: int | None, scope: Scope) -> None: ...

    @abstractmethod
    def _check(self, expression: Expression, place: Place, name: str | None) -> None: ...

    @abstractmethod
    def _name(self, name: str, frame: Frame) -> str: ...

    @abstractmethod
    def _fresh(self, wish: str, place: Place) -> str: ...

    @abstractmethod
    def _hoisted(self, term: Term, place: Place, before: list[Statement]) -> Term: ...

    @abstractmethod
    def _call(
        self,
        function: Function,
        call: Apply,
        given: tuple[str, ...],
        place: Place,
        before: list[Statement],
        scope: str | None = None,
    ) -> list[Statement]: ...

    def _choice(self, call: Apply, given: tuple[str, ...], place: Place, before: list[Statement]) -> list[Statement]:
        """The choice; the lines of its operands go to `before`."""
        asked = forms.read(call)
        if isinstance(asked, str):
            raise place.fault(asked, call)
        outer = place.frame
        label = given[0] if len(given) == 1 else self._fresh(together(given), place)
        hidden = {name for case in asked.cases for name in self._hides(case)} | set(given if given[1:] else ())
        on = self._held(asked.on, f"{label}_{'on' if asked.name == 'cond' else 'index'}", hidden, place, before)
        operands = [
            operand if is_static(operand, self.dims) else self._held(operand, f"{label}_x", hidden, place, before)
            for operand in asked.operands
        ]
        names = outer.names | {name: self._name(name, outer) for name in given}
        # What a branch computes is there in the branch alone.
        frame = replace(outer, own=outer.own | set(given), names=names, scopes=(*outer.scopes, label))
        inside = replace(place, frame=frame, scope=place.scope.nested())
        branches: list[Invocation] = []
        for i, case in enumerate(asked.cases):
            word, scope = case.name if isinstance(case, Name) else asked.words[i], f"branch_{i}_fun"
            results = tuple(self._fresh(f"{name}_{word}", inside) for name in given)
            if isinstance(case, Lambda):
                branches.append(self._lambda(case, operands, f"{label}_{word}", results, inside, scope, place.scope))
            else:
                function = self._function(case, place)
                self._gives(function, given, place, case)
                handed = Apply(function.name, tuple(operands), at=call.at)
                (branch,) = self._call(function, handed, results, inside, before, scope)
                assert isinstance(branch, Invocation)
                branches.append(branch)
        taken = [
            tuple(Name(branch.call.results[i], case.at) for branch, case in zip(branches, asked.cases, strict=True))
            for i in range(len(given))
        ]
        gives = [
            self._node(name, _taken(asked.name, on, parts, call), inside, result=len(given) == 1)
            for name, parts in zip(given, taken, strict=True)
        ]
        for name in given:
            self._add(name, None, place.scope)
        made = Call(asked.name, label, given, (("on", on.name),))
        return [Choice(made, tuple(branches), tuple(gives))]

    def _hides(self, case: Term) -> frozenset[str]:
        function = self.functions.get(case.name) if isinstance(case, Name) else None
        return function.bound_in_repeats if function is not None else frozenset()

    def _function(self, case: Term, place: Place) -> Function:
        if isinstance(case, Name) and case.name in self.functions:
            return self.functions[case.name]
        what = f"'{case.name}' is none" if isinstance(case, Name) else "this is none"
        form = "functions of the experiment's own, or lambdas: lambda x: x * 2"
        raise place.fault(f"what is chosen are {form}; {what}{self._hint(case)}", case)

    def _hint(self, term: Term) -> str:
        """Which of the experiment's functions was meant, or may be."""
        known = tuple(self.functions)
        return (nearest(term.name, known) if isinstance(term, Name) else "") or (choices(known) if known else "")

    def _gives(self, function: Function, given: tuple[str, ...], place: Place, case: Term) -> None:
        value = function.result(place.scope.section)
        term = None if isinstance(value.value, Mapping) else read_expression(value.value, value.key).term
        count = len(term.items) if isinstance(term, Group) else 1
        if count != len(given):
            raise place.fault(_unlike(f"'{function.name}'", count, given), case)

    def _held(self, operand: Term, wish: str, hidden: set[str], place: Place, before: list[Statement]) -> Name:
        """An operand under a name, which it is given by a line before where it has none."""
        hidden = {*hidden, *self.dims, *CONSTANTS}
        if isinstance(operand, Name) and not operand.carried and operand.name not in hidden:
            return operand
        inside = replace(place, name=self._fresh(wish, place))
        before.append(self._node(inside.name, self._hoisted(operand, inside, before), inside))
        return Name(inside.name, operand.at)

    def _lambda(
        self,
        case: Lambda,
        operands: list[Term],
        called: str,
        given: tuple[str, ...],
        place: Place,
        scope: str,
        known: Scope,
    ) -> Invocation:
        """A lambda, `called` so, where it is called; it reads what is `known` around the choice."""
        parameters = case.parameters
        if len(parameters) != len(operands):
            message = f"the lambda takes {len(parameters)}, and {len(operands)} operands are given"
            raise place.fault(message, case)
        body = substituted(case.body, dict(zip(parameters, operands, strict=True)).get)
        single = len(given) == 1
        elements = body.items if isinstance(body, Group) else (body,)
        if len(elements) != len(given):
            raise place.fault(_unlike("the lambda", len(elements), given), case.body)
        outer = place.frame
        held = {*self.dims, *CONSTANTS, *self.functions, *forms.CALLING}
        read = tuple(dict.fromkeys(name for name in _free(body) if name not in held))
        label = given[0] if single else self._fresh(together(given), place)
        made = Call(called, label, given, tuple((name, name) for name in read))
        names = [self._name(name, outer) for name in given]
        labels = [RESULT if single else f"{RESULT}{i}" for i in range(len(given))]
        frame = replace(
            outer,
            names=outer.names | dict(zip(labels, names, strict=True)),
            prefix=f"{names[0]}_",
            scopes=(*outer.scopes, scope),
        )
        lines: list[Statement] = []
        here = replace(place, frame=frame, scope=known.nested(), name=RESULT)
        hoisted = [self._hoisted(part, here, lines) for part in elements]
        gives = [self._node(own, part, here, result=single) for own, part in zip(labels, hoisted, strict=True)]
        for name in given:
            self._add(name, None, place.scope)
        return Invocation(made, tuple(lines), tuple(gives))


def _unlike(what: str, count: int, given: tuple[str, ...]) -> str:
    gives = "one value" if count == 1 else f"{count} values"
    names = "one name stands" if len(given) == 1 else f"{len(given)} names stand"
    return f"{what} gives {gives}, and {names} before the choice: a, b: cond(p, f, g, x) where both give (a, b)"


def _taken(name: str, on: Name, parts: tuple[Name, ...], call: Apply) -> Term:
    """Which of the branches' values is taken; an index out of range takes the nearest."""
    if name == "cond":
        return Apply("where", (on, parts[1], parts[0]), at=call.at)
    # Each part has a place of its own.
    compared = None if call.at is None else (call.at[0], call.at[0] + len(name))
    taken: Term = parts[-1]
    for i, part in reversed(list(enumerate(parts[:-1]))):
        index = Name(on.name, on.at)
        condition = Apply("less_equal", (index, Const(i, on.at)), spelled="operator", at=compared)
        taken = Apply("where", (condition, part, taken), at=call.at)
    return taken


def _free(term: Term) -> Iterator[str]:
    """The names that an expression reads, without those of lambdas in it."""
    if isinstance(term, Lambda):
        yield from (name for name in _free(term.body) if name not in term.parameters)
    elif isinstance(term, Name):
        yield term.name
    else:
        for child in children(term):
            yield from _free(child)
