"""The statements of a graph, their types and Shardy's layouts in; the lines of one device out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.derivation.calls import NotStatic
from runner.derivation.expressions import Expressions, Hints
from runner.derivation.laying import Layouts
from runner.derivation.lines import Repeated, Writing
from runner.derivation.ruling import Rulings
from runner.derivation.scopes import Binding, Names, NotDerived, Parts, Scope
from runner.derivation.statics import Statics
from runner.derivation.terms import built, gathered
from runner.derivation.values import Value
from runner.experiment.model import Experiment, Loop, Node, Statement
from runner.graph.term import Apply, Const, Name, Term, place
from runner.language.syntax import Expression
from runner.layout import Spec
from runner.sharding import moves

_TRIALS = 24
"""How many layouts of what a loop carries are tried, at most."""


class Writer:
    """Writes the per-device lines of one graph."""

    def __init__(
        self, experiment: Experiment, parts: Parts, hints: Hints, rulings: Rulings, *, invarying: bool, casts: bool
    ) -> None:
        self.experiment, self.mesh = experiment, experiment.mesh
        self.names = Names(experiment, parts)
        self.layouts = Layouts(self.names, invarying=invarying)
        self.casts = casts
        """Whether JAX is told what differs from device to device."""
        self.expressions = Expressions(self.layouts, hints, rulings, differentiated=experiment.grad is not None)
        self._singled: dict[str, Term] = {}

    # What is written.

    def write(self) -> Sequence[Writing]:
        """The lines of the graph, whose outputs lie as `outputs` says."""
        experiment = self.experiment
        for array in experiment.given:
            spec = moves.plain(self.mesh, array.layout.spec, len(array.shape))
            term = self._singled.get(array.name, Name(array.name))
            value = Value(term, array.shape, spec, array.dtype, below=_below(array.init, experiment))
            self.names.scopes[0].names[array.name] = Binding(value)
            if array.name in experiment.constraints:
                moved = self.layouts.reshard(value, self._plain(experiment.constraints[array.name], value))
                self.names.scopes[0].names[array.name] = Binding(moved)
        self._run(experiment.graph, "", {})
        for name, spec in experiment.results.items():
            if name in self._twice():
                value = self.names.binding(name).value
                self.names.scopes[0].put(name, self.layouts.reshard(value, self._plain(spec, value)).term)
        return self.names.scopes[0].lines

    def singled(self) -> None:
        """Say that arrays are the same along the mesh axes of size 1 in their specs; nothing is sent for it."""
        for array in self.experiment.arrays:
            term: Term = Name(array.name)
            for d, axes in enumerate(array.layout.spec):
                if single := tuple(axis for axis in axes if self.mesh.sizes[axis] == 1):
                    term = gathered(term, single, axis=d, tiled=True, to="invarying")
            if not isinstance(term, Name):
                name = self.names.fresh(f"{array.name}_same")
                self.names.scopes[0].put(name, term)
                self._singled[array.name] = Name(name)

    def _twice(self) -> set[str]:
        """The outputs that a constraint lays out otherwise where they are computed."""
        experiment = self.experiment
        return {
            name
            for name, spec in experiment.results.items()
            if name in experiment.constraints and experiment.constraints[name] != spec
        }

    def _run(self, statements: Sequence[Statement], path: str, forced: Mapping[str, Spec]) -> None:
        for at, statement in enumerate(statements):
            here = f"{path}{statement.name}"
            self.names.beside, self.names.prefix = statements, path
            if isinstance(statement, Loop):
                self._loop(statement, here)
            else:
                again = bool(forced) and any(later.name == statement.name for later in statements[at + 1 :])
                self._line(statement, here, forced={} if again else forced, inside=bool(path))

    def _line(self, line: Node, path: str, forced: Mapping[str, Spec], inside: bool) -> None:
        experiment, name = self.experiment, line.name
        self.names.path = path
        goal: Spec | None = forced.get(name, experiment.constrained.get(path))
        renamed = not inside and name in self._twice()
        if not inside:
            goal = experiment.constraints.get(name, experiment.results.get(name))
        for call in line.line.calls:
            if call.checkpoint is not None:
                self.names.note(f"what the function '{call.function}' computes is kept: these lines have no functions")
            if call.chooses:
                why = "these lines have no functions to choose between"
                self.names.note(f"every branch of '{call.label}' is computed: {why}")
        value = self.expressions.value(line.expression.term, goal)
        if goal is not None and value.shape is not None:
            value = self.layouts.reshard(value, self._plain(goal, value))
        if goal is not None and value.shape is None and any(goal):
            raise NotDerived(f"'{name}' is no array, which could lie so")
        self.names.define(self.names.fresh(f"{name}_inner") if renamed else name, value, name)
        where = place(line.expression.term)
        if goal is None and where is not None:
            self.names.binding(name).made = path, where

    def _loop(self, loop: Loop, path: str) -> None:
        firsts: list[Value] = []
        for name, first in loop.carry:
            self.names.path = f"{path}/carry/{name}"
            value = self.expressions.value(first.term, None)
            if value.static:
                value = Value(value.term, (), Spec(), _number(value))
            if value.elements:
                value = Value(self.expressions.whole(first.term), None, Spec())
            firsts.append(value)
        overs = [self._over(name, whole, f"{path}/over/{name}") for name, whole in loop.over]
        best: tuple[float, int, tuple[Spec, ...]] | None = None
        tried = list(itertools.islice(itertools.product(*self._layouts(loop, path, firsts)), _TRIALS))
        for order, specs in enumerate(tried):
            if len(tried) > 1:
                names, layouts = self.names.copied(), self.layouts.copied()
                self._repeat(loop, path, firsts, specs, overs)
                found = (round(self.layouts.cost, 3), order, specs)
                self.names.restore(names)
                self.layouts.restore(layouts)
            else:
                found = (0.0, 0, specs)
            best = found if best is None or found < best else best
        assert best is not None
        self._repeat(loop, path, firsts, best[2], overs)

    def _over(self, name: str, whole: Expression, path: str) -> Value:
        """What a repeat takes slices of, whole along its first dimension."""
        self.names.path = path
        value = self.expressions.value(whole.term, None)
        if value.shape is None:
            raise NotDerived(f"'{name}' is a slice of what is no array")
        return self.layouts.reshard(value, Spec(((), *self._plain(value.spec, value)[1:])))

    def _repeat(self, loop: Loop, path: str, firsts: list[Value], specs: tuple[Spec, ...], overs: list[Value]) -> None:
        carried = [
            (n, self.layouts.reshard(first, spec))
            for (n, _), first, spec in zip(loop.carry, firsts, specs, strict=True)
        ]
        scope = Scope(self.names.scopes[-1].steps * max(loop.steps, 1), self.names.scopes[-1].line(loop.name))
        for name, value in carried:
            scope.names[name] = Binding(replace(value, term=Name(name), make=None, free=False))
        for (name, _), whole in zip(loop.over, overs, strict=True):
            assert whole.shape is not None
            value = Value(Name(name), whole.shape[1:], Spec(whole.spec[1:]), whole.dtype)
            scope.names[name] = Binding(value)
        outer = self.names.index, self.names.kept
        self.names.kept = frozenset(inner for _, inner in loop.stack)
        if loop.unroll:
            self.names.index = self.names.index | {loop.index}
        else:
            scope.names[loop.index] = Binding(Value(Name(loop.index), (), Spec(), "int32"))
        self.names.scopes.append(scope)
        forced = {name: value.spec for name, value in carried if value.shape is not None}
        if loop.steps:
            self._run(loop.body, f"{path}/body/", forced)
        stacked = self._stacked(loop)
        # Another one where the layouts of a repeat inside were tried.
        scope = self.names.scopes.pop()
        ends = {name: scope.names[name].value for name, _ in carried}
        self.names.index, self.names.kept = outer
        carry = tuple((name, self._varying(value)) for name, value in carried)
        over = tuple((name, value.term) for (name, _), value in zip(loop.over, overs, strict=True))
        stack = tuple((name, value.term.name) for name, value in stacked if isinstance(value.term, Name))
        line = self.names.scopes[-1].line(loop.name)
        body = tuple(scope.lines) if loop.steps else loop.body
        self.names.scopes[-1].lines.append(Repeated(line, loop, carry, over, stack, body))
        for name, value in stacked:
            term = Name(f"{loop.name}.{name}")
            shape, spec = (loop.steps, *(value.shape or ())), Spec(((), *value.spec))
            self.names.scopes[-1].names[f"{loop.name}.{name}"] = Binding(Value(term, shape, spec, value.dtype))
        for name, value in carried:
            if ends[name].shape != value.shape:
                raise NotDerived(f"what the repeat '{loop.name}' carries changes its shape")
            term = Name(f"{loop.name}.{name}")
            self.names.scopes[-1].names[f"{loop.name}.{name}"] = Binding(replace(ends[name], term=term, make=None))

    def _stacked(self, loop: Loop) -> list[tuple[str, Value]]:
        """What each step gives to be stacked, by a name in the body, laid out as the whole has to be."""
        found: list[tuple[str, Value]] = []
        for name, inner in loop.stack:
            value, result = self.names.binding(inner).value, f"{loop.name}.{name}"
            if value.shape is None:
                raise NotDerived(f"what '{result}' is stacked of is no array")
            goal = None
            if len(self.names.scopes) == 2:
                goal = self.experiment.constraints.get(result, self.experiment.results.get(result))
            if goal is not None:
                goal = moves.plain(self.mesh, goal, len(value.shape) + 1)
                if goal[0]:
                    raise NotDerived(f"the steps of '{result}' are to be on several devices")
                value = self.layouts.reshard(value, Spec(goal[1:]))
            if not isinstance(value.term, Name):
                value = self.names.define(self.names.fresh(f"{name}_each"), value)
            found.append((name, value))
        return found

    def _varying(self, value: Value) -> Term:
        """What a loop starts with: JAX has to be told that what no array entered differs from device to device."""
        axes = tuple(axis for axis in self.mesh.axes if axis in value.spec.axes)
        if not self.casts or not value.free or not axes:
            return value.term
        return built("pcast({x}, {over}, to='varying')", x=value.term, over=axes)

    def _layouts(self, loop: Loop, path: str, firsts: list[Value]) -> Iterator[list[Spec]]:
        """For each name that a loop carries the layouts that it may have."""
        for (name, _), first in zip(loop.carry, firsts, strict=True):
            result = f"{loop.name}.{name}"
            goal = self.experiment.constraints.get(result, self.experiment.results.get(result))
            if first.shape is None:
                yield [Spec()]
            elif goal is not None and len(self.names.scopes) == 1:
                yield [self._plain(goal, first)]
            else:
                last = next((s for s in loop.body if isinstance(s, Node) and s.name == name), None)
                fixed = self.experiment.constrained.get(f"{path}/body/{name}")
                if fixed is not None:
                    yield [self._plain(fixed, first)]
                    continue
                hint = (
                    None
                    if last is None
                    else self.expressions.hint(last.expression.term, first.shape, f"{path}/body/{name}")
                )
                whole = Spec().padded(len(first.shape))
                yield list(dict.fromkeys([*([hint] if hint is not None else []), first.spec, whole]))

    def _plain(self, spec: Spec, value: Value) -> Spec:
        assert value.shape is not None
        return moves.plain(self.mesh, spec, len(value.shape))


def _number(value: Value) -> str:
    """The dtype of an array that is made of a number."""
    literal = value.term.value if isinstance(value.term, Const) else None
    return "bool" if isinstance(literal, bool) else "int32" if isinstance(literal, int) else "float32"


def _below(init: Any, experiment: Experiment) -> int | None:
    """A bound of the integers of an array whose `init` says it: `integers(0, V)`."""
    match init:
        case Expression(term=Apply(operation="integers", operands=(Const(value=0), bound), named=())):
            try:
                return int(Statics(experiment.dims, lambda _: False, lambda _: None).value(bound))
            except NotStatic:
                return None
        case _:
            return None
