"""Writes the lines of one device from a graph, the types of its values and Shardy's layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.base.layout import Layout, Parts, Spec, Typed
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Prices, collective
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, TracedLoop, TracedTerm
from runner.experiment.traced_graphs import lines_of
from runner.graph.inlining import enclosed
from runner.graph.language import static
from runner.graph.language.lines import RepeatLines, operator
from runner.graph.language.lines import lines as lines_in
from runner.graph.language.syntax import Expression, SyntaxFault
from runner.graph.model import Equation, Graph, LoopForm, Operand, Repeat, literal
from runner.graph.sharding import moves
from runner.graph.source import Source
from runner.graph.term import Const, Name, Term, calls, children
from runner.programs.derivation.accumulating import Accumulation, accumulated
from runner.programs.derivation.calls import DeviceValue, is_number, itemsize
from runner.programs.derivation.expressions import Expressions, Hints
from runner.programs.derivation.laying import Layouts, LayoutsState, is_scalar
from runner.programs.derivation.ruling import Rulings
from runner.programs.derivation.scopes import Binding, Names, NamesState, NotDerived, Scope
from runner.programs.derivation.terms import built, gathered

_TRIALS = 24
"""The most layouts of a loop's carry that are tried."""

_STATES = 8
"""About how many states an attempt keeps, from which others go on."""


@dataclass(frozen=True)
class _State:
    """What was written before a line of the section, by the line's number."""

    line: int
    names: NamesState
    layouts: LayoutsState
    left_out: frozenset[int]


@dataclass(frozen=True)
class Attempt:
    """The lines of a graph, written for some layouts.

    - `cost`: that of the lines; `asked`: the layouts that their readers want results in, as in `Layouts`.
    - `asked_at`: the number of the first line that asked for the hint of a value; `states`: before some lines.
    """

    cost: float
    asked: Mapping[int, Spec]
    asked_at: Mapping[int, int]
    states: tuple[_State, ...]


@dataclass(frozen=True)
class Typing:
    """How the lines satisfy JAX's types of values that vary over mesh axes.

    - `invarying`: gathers mark their results as the same on all devices.
    - `casts`: initial carries of loops are cast to varying.
    - `check_vma`: JAX checks these types.
    - `spread`: arrays with a gradient are cast to varying before a loop, or several lines, so that their gradients are
      summed over devices once, not in each step or for each line.
    - `single`: arrays are marked as the same along mesh axes of size 1, which JAX does not infer.
    """

    invarying: bool = False
    casts: bool = False
    spread: bool = False
    single: bool = False
    check_vma: bool = True


class Writer:
    """Writes the per-device lines of one graph."""

    def __init__(
        self,
        experiment: Experiment,
        types: Parts,
        hints: Hints,
        rulings: Rulings,
        prices: Prices,
        typing: Typing,
    ) -> None:
        self.experiment, self.mesh = experiment, experiment.mesh
        self.names = Names(experiment, types)
        self.layouts = Layouts(self.names, prices, invarying=typing.invarying)
        self.casts = typing.casts
        """Whether the initial carry of a loop is cast to varying."""
        self.expressions = Expressions(
            self.layouts, hints, rulings, differentiated=experiment.grad is not None, spread=typing.spread
        )  # fmt: skip
        self._enclosed = dict(enclosed(experiment.graph))
        self._left_out: set[int] = set()
        """The unread values whose lines are left out."""
        self._singled: dict[str, Term] = {}
        self._states: list[_State] | None = None
        """The states of the present attempt; None if none is kept."""

    # Writing lines.

    def write(self) -> Sequence[TracedLine]:
        """The lines of the graph, with its results in the layouts of `outputs`."""
        self._begin()
        self._finish(0)
        return self.names.scopes[0].lines

    def first(self) -> Attempt:
        """The lines of the graph, as an attempt with which others are compared."""
        self._states = []
        self._begin()
        return self._attempted(0)

    def other(self, hints: Hints, before: Attempt, number: int) -> Attempt:
        """The lines for hints that differ from those of the attempt `before` only in the layout of this value.

        All lines are the same up to the first that asked for it.
        """
        if number not in before.asked_at:
            return before
        kept = [state for state in before.states if state.line <= before.asked_at[number]]
        state = kept[-1]
        self._states, self._left_out = kept, {*state.left_out}
        # What is written from here on changes a copy; the state is also that of `before`.
        self.names.restore(state.names)
        self.names.restore(self.names.copied())
        self.layouts.restore(state.layouts)
        self.layouts.restore(self.layouts.copied())
        self.expressions.hints = hints
        self.expressions.asked_at = {number: line for number, line in before.asked_at.items() if line < state.line}
        return self._attempted(state.line)

    def _attempted(self, start: int) -> Attempt:
        self._finish(start)
        assert self._states is not None
        layouts = self.layouts
        return Attempt(layouts.cost, layouts.asked, self.expressions.asked_at, tuple(self._states))

    def _begin(self) -> None:
        """Bind the names of the arrays."""
        experiment = self.experiment
        for array in experiment.given:
            spec = moves.plain(self.mesh, array.layout.spec, len(array.shape))
            term = self._singled.get(array.name, Name(array.name))
            value = DeviceValue(term, array.shape, spec, array.dtype, below=below(array.init, experiment))
            self.names.scopes[0].names[array.name] = Binding(value)
            if array.name in experiment.constraints:
                moved = self.layouts.reshard(value, self._plain(experiment.constraints[array.name], value))
                self.names.scopes[0].names[array.name] = Binding(moved)

    def _finish(self, start: int) -> None:
        """Write the lines of the graph from one on, and the outputs that are laid out once more."""
        self._run(self.names.graph, {}, inside=False, start=start)
        for name, spec in self.experiment.results.items():
            if name in self._twice():
                value = self.names.binding(name).value
                self.names.put(name, self.layouts.reshard(value, self._plain(spec, value)).term)

    def singled(self) -> None:
        """Mark arrays as the same along the mesh axes of size 1 in their specs; this sends nothing."""
        for array in self.experiment.arrays:
            term: Term = Name(array.name)
            for d, axes in enumerate(array.layout.spec):
                if single := tuple(axis for axis in axes if self.mesh.sizes[axis] == 1):
                    term = gathered(term, single, axis=d, tiled=True, to="invarying")
            if term != Name(array.name):
                name = self.names.fresh(f"{array.name}_same")
                self.names.put(name, term)
                self._singled[array.name] = Name(name)

    def _twice(self) -> set[str]:
        """The outputs that a constraint lays out otherwise at the line that computes them."""
        experiment = self.experiment
        return {
            name
            for name, spec in experiment.results.items()
            if name in experiment.constraints and experiment.constraints[name] != spec
        }

    def _run(self, graph: Graph, forced: Mapping[str, Spec], *, inside: bool, start: int = 0) -> None:
        """Write the lines of a graph or of a repeat's body, whose carry ends in the layouts `forced`.

        `inside`: whether it is the body of a repeat; `start`: the number of the first line to write.
        """
        lines = list(lines_in(graph))
        for at, equation in enumerate(lines[start:], start):
            if not inside:
                self._reach(at, len(lines))
            if isinstance(equation.form, Repeat):
                self._loop(equation, equation.form)
                continue
            (value,) = equation.results
            again = bool(forced) and any(
                value.name == result.name for later in lines[at + 1 :] for result in later.results
            )
            if value.number in self.names.unread:
                self._unread(equation, value.name, inside)
            else:
                self._line(equation, value.name, {} if again else forced, inside)

    def _reach(self, line: int, many: int) -> None:
        """Begin one of so many lines of the section."""
        self.expressions.line = line
        states = self._states
        if states is not None and line % (many // _STATES + 1) == 0 and (not states or states[-1].line < line):
            state = _State(line, self.names.copied(), self.layouts.copied(), frozenset(self._left_out))
            states.append(state)

    def _unread(self, equation: Equation, name: str, inside: bool) -> None:
        """Write a line that nothing reads, unless this would send something or it reads a line left out."""
        number = equation.results[0].number
        if not self._left_out.isdisjoint(self.names.reads(equation)):
            self._left_out.add(number)
            return
        names, layouts = self.names.copied(), self.layouts.copied()
        self._line(equation, name, {}, inside)
        if self.layouts.cost > layouts[0]:
            self.names.restore(names)
            self.layouts.restore(layouts)
            self._left_out.add(number)

    def _line(self, equation: Equation, name: str, forced: Mapping[str, Spec], inside: bool) -> None:
        experiment, line = self.experiment, equation.source.line
        self.names.path = line.path
        goal: Spec | None = forced.get(name, experiment.constrained.get(line.path))
        renamed = not inside and name in self._twice()
        if not inside:
            goal = experiment.constraints.get(name, experiment.results.get(name))
        for around in self._enclosed.get(line, ()):
            call = around.call
            if call.checkpoint is not None:
                self.names.note(
                    f"the checkpoint policy of '{call.function}' is left out, since derived lines have no functions"
                )
            if around.chooses:
                why = "derived lines have no functions to choose between"
                self.names.note(f"every branch of '{call.label}' is computed: {why}")
        value = self.expressions.result(equation, goal)
        if goal is not None and value.shape is not None:
            value = self.layouts.reshard(value, self._plain(goal, value))
        if goal is not None and value.shape is None and any(goal):
            raise NotDerived(f"'{name}' is not an array, so it has no layout")
        self.names.define(self.names.fresh(f"{name}_inner") if renamed else name, value, name)

    def _loop(self, equation: Equation, form: Repeat) -> None:
        loop = RepeatLines(equation, form)
        if form.steps is None:
            often = f"{form.counted} steps of '{loop.name}'"
            self.names.note(f"what a device sends is counted for {often}: how many it takes is not known")
        firsts: list[DeviceValue] = []
        for operand, source in zip(equation.operands[: form.carried], form.starts, strict=False):
            self.names.path = source.line.path
            value = self.expressions.value(operand, None)
            if value.static:
                value = DeviceValue(value.term, (), Spec(), _number(value))
            if value.elements:
                value = DeviceValue(self.expressions.whole(operand), None, Spec())
            firsts.append(value)
        sliced = list(zip(equation.operands, form.starts, strict=True))[form.carried :]
        overs = [self._over(operand, source) for operand, source in sliced]
        tried = list(itertools.islice(itertools.product(*self._layouts(loop, firsts)), _TRIALS))
        best = min(tried, key=lambda specs: self._tried(loop, firsts, specs, overs)) if len(tried) > 1 else tried[0]
        self._repeat(loop, firsts, best, overs)

    def _tried(
        self, loop: RepeatLines, firsts: list[DeviceValue], specs: tuple[Spec, ...], overs: list[DeviceValue]
    ) -> float:
        """What everything costs with a repeat whose carry has these layouts, which is not kept."""
        names, layouts = self.names.copied(), self.layouts.copied()
        self._repeat(loop, firsts, specs, overs)
        cost = round(self.layouts.cost, self.layouts.prices.digits)
        self.names.restore(names)
        self.layouts.restore(layouts)
        return cost

    def _over(self, operand: Operand, source: Source) -> DeviceValue:
        """The array that a repeat takes slices of, whole along its first dimension."""
        self.names.path = source.line.path
        value = self.expressions.value(operand, None)
        if value.shape is None:
            raise NotDerived(f"'{source.line.name}' is a slice of something that is not an array")
        return self.layouts.reshard(value, Spec(((), *self._plain(value.spec, value)[1:])))

    def _repeat(
        self, loop: RepeatLines, firsts: list[DeviceValue], specs: tuple[Spec, ...], overs: list[DeviceValue]
    ) -> None:
        form, body = loop.form, loop.body
        carried = [
            (n, self.layouts.reshard(first, spec)) for n, first, spec in zip(loop.carry, firsts, specs, strict=True)
        ]
        inputs = frozenset(value.name for value in body.inputs)
        scope = Scope(
            self.names.scopes[-1].steps * max(form.counted, 1),
            changing=set(inputs), kept=inputs.union(loop.stack.values()),
        )  # fmt: skip
        for name, value in carried:
            # Bounds on the initial values need not hold in later steps.
            known = replace(value, term=Name(name), make=None, below=None, counts=None, free=False, made=None)
            scope.names[name] = Binding(known)
        for name, whole in zip(loop.over, overs, strict=True):
            assert whole.shape is not None
            value = DeviceValue(Name(name), whole.shape[1:], Spec(whole.spec[1:]), whole.dtype)
            scope.names[name] = Binding(value)
        outer = self.names.index
        if form.unroll:
            self.names.index = self.names.index | {loop.index}
        elif form.indexed:
            scope.names[loop.index] = Binding(DeviceValue(Name(loop.index), (), Spec(), "int32"))
        self.names.scopes.append(scope)
        forced = {name: value.spec for name, value in carried if value.shape is not None}
        if form.counted:
            self._run(body, forced, inside=True)
        stacked = self._stacked(loop)
        # Trying layouts of an inner repeat may have replaced the scope.
        scope = self.names.scopes.pop()
        ends = {name: scope.names[name].value for name, _ in carried}
        self.names.index = outer
        sums = self._summed_after(loop, scope, carried)
        starts = [(name, self._nothing(value, sums[name]) if name in sums else value) for name, value in carried]
        carry = {name: self._varying(value) for name, value in starts}
        over = {name: value.term for name, value in zip(loop.over, overs, strict=True)}
        stack = {name: value.name for name, value in stacked if value.name is not None}
        goals = {name: self._goal(loop, name, first) for name, first in carried}
        moved = {name: goal for name, first in carried if (goal := goals[name]) is not None and first.spec != goal}
        again = bool(moved) or self._read_by_name(loop, sums)
        given = self.names.fresh(f"{loop.name}_steps") if again else loop.name
        # JAX need not trace a body that never runs, whose types are unknown.
        lines = tuple(scope.lines) if form.counted else lines_of(body, self.names.statics.spelling)
        by_name = replace(loop.by_name, stack=stack, unroll=form.unroll or not form.counted)
        written = TracedLoop(given, by_name, lines, carry, over)
        self.names.scopes[-1].changing.update(written.defines)
        self.names.scopes[-1].lines.append(written)
        for name, value in stacked:
            term = Name(f"{given}.{name}")
            shape, spec = (form.counted, *(value.shape or ())), Spec(((), *value.spec))
            self.names.scopes[-1].names[f"{loop.name}.{name}"] = Binding(DeviceValue(term, shape, spec, value.dtype))
        for name, value in carried:
            if ends[name].shape != value.shape:
                raise NotDerived(f"a carry of the repeat '{loop.name}' changes its shape")
            end = replace(ends[name], term=Name(f"{given}.{name}"), make=None, made=None)
            if name in sums:
                end = self._summed(f"{loop.name}_{name}", value, end, sums[name])
            names, result = self.names.scopes[-1].names, f"{loop.name}.{name}"
            names[result] = Binding(end)
            if name in moved:
                names[result] = Binding(self.layouts.reshard(end, moved[name]), {end.spec: end})
        if again:
            self._named_again(loop, [name for name, _ in carried])

    def _summed_after(
        self, loop: RepeatLines, scope: Scope, carried: Sequence[tuple[str, DeviceValue]]
    ) -> dict[str, Accumulation]:
        """Take the sums over devices out of the lines of a scope, to be done once after the loop.

        Returns the accumulations by the names in the carry.
        """
        sums: dict[str, Accumulation] = {}
        if loop.form.counted < 2 or (loop.stack and self._read_by_name(loop, loop.carry)):
            return sums
        numbers = {*self.experiment.dims, *self.names.index, *([loop.index] if loop.form.unroll else [])}
        for name, value in carried:
            if value.shape is None or not is_number(Typed(value.shape, value.dtype)):
                continue
            accumulation = accumulated(scope.lines, name, lambda term: is_scalar(term, numbers))
            if accumulation is None or any(total not in scope.sent for total in accumulation.sums):
                continue
            for sent in (scope.sent.pop(total) for total in accumulation.sums):
                for sending in sent:
                    self.layouts.unspend(sending, scope)
            scope.lines = list(accumulation.body)
            sums[name] = accumulation
        return sums

    def _nothing(self, value: DeviceValue, accumulation: Accumulation) -> DeviceValue:
        """The zeros that a device starts its partial sum with, in the shape before the sum over devices."""
        assert value.shape is not None
        shape = list(Layout(self.mesh, value.shape, value.spec).shard_shape)
        if accumulation.scatters is not None:
            shape[accumulation.scatters] *= self.mesh.axis_size(accumulation.axes)
        term = built("zeros({shape}, {dtype})", shape=tuple(shape), dtype=Const(value.dtype))
        over = tuple(axis for axis in self.mesh.axes if axis in {*value.spec.axes, *accumulation.axes})
        term = built("pcast({x}, {over}, to='varying')", x=term, over=over)
        return replace(value, term=term, make=None, free=False)

    def _summed(self, name: str, first: DeviceValue, end: DeviceValue, accumulation: Accumulation) -> DeviceValue:
        """The sum over devices of what a repeat has accumulated, added to the initial value."""
        assert end.shape is not None
        n, term = self.mesh.axis_size(accumulation.axes), accumulation.of(end.term)
        size = moves.local_bytes(self.mesh, end.shape, itemsize(end.dtype), end.spec)
        kind, block = ("all-reduce", size) if accumulation.scatters is None else ("reduce-scatter", n * size)
        self.layouts.spend_once(term, [collective(self.layouts.prices, self.mesh, kind, accumulation.axes, block)])
        return self.names.define(self.names.fresh(name), replace(end, term=operator("add", first.term, term)))

    def _read_by_name(self, loop: RepeatLines, names: Iterable[str]) -> bool:
        """Whether an output or the gradient names one of these results of a repeat."""
        experiment = self.experiment
        results = {*experiment.results, *([] if experiment.grad is None else [experiment.grad.of])}
        return len(self.names.scopes) == 1 and any(f"{loop.name}.{name}" in results for name in names)

    def _named_again(self, loop: RepeatLines, carried: Sequence[str]) -> None:
        """Append a repeat of one step that gives the results of a renamed repeat the graph's names."""
        scope, results = self.names.scopes[-1], tuple(f"{loop.name}.{name}" for name in carried)
        carry = {name: scope.names[result].value.term for name, result in zip(carried, results, strict=True)}
        body = tuple(TracedTerm(name, Name(name)) for name in carried)
        form = LoopForm(1, loop.index or self.names.fresh("step"), unroll=True)
        scope.lines.append(TracedLoop(loop.name, form, body, carry))
        for result in results:
            binding = scope.names[result]
            scope.names[result] = Binding(replace(binding.value, term=Name(result)), binding.held)

    def _stacked(self, loop: RepeatLines) -> list[tuple[str, DeviceValue]]:
        """The values to stack, each as a named line of the body, in the layout of the stacked result."""
        stacked: list[tuple[str, DeviceValue]] = []
        for name, inner in loop.stack.items():
            value, result = self.names.binding(inner).value, f"{loop.name}.{name}"
            if value.shape is None:
                raise NotDerived(f"'{result}' stacks a value that is not an array")
            goal = None
            if len(self.names.scopes) == 2:
                goal = self.experiment.constraints.get(result, self.experiment.results.get(result))
            if goal is not None:
                goal = moves.plain(self.mesh, goal, len(value.shape) + 1)
                if goal[0]:
                    raise NotDerived(f"the steps of '{result}' are sharded over devices")
                value = self.layouts.reshard(value, Spec(goal[1:]))
            if value.name is None:
                value = self.names.define(self.names.fresh(f"{name}_each"), value)
            stacked.append((name, value))
        return stacked

    def _varying(self, value: DeviceValue) -> Term:
        """The initial value of a carry, cast to varying where it depends on no array but is sharded."""
        axes = tuple(axis for axis in self.mesh.axes if axis in value.spec.axes)
        if not self.casts or not value.free or not axes:
            return value.term
        return built("pcast({x}, {over}, to='varying')", x=value.term, over=axes)

    def _layouts(self, loop: RepeatLines, firsts: list[DeviceValue]) -> Iterator[list[Spec]]:
        """Yield the candidate layouts of each name in a loop's carry."""
        for name, first in zip(loop.carry, firsts, strict=True):
            result, goal = f"{loop.name}.{name}", self._goal(loop, name, first)
            if first.shape is None:
                yield [Spec()]
                continue
            fixed = self.experiment.constrained.get(loop.form.line.inside(name).path)
            if goal is not None and (result in self.experiment.constraints or loop.stack or not loop.form.steps):
                yield [goal]
            elif goal is None and fixed is not None:
                yield [self._plain(fixed, first)]
            else:
                last = next((line for line in lines_in(loop.body) if line.results[0].name == name), None)
                hint = None if last is None else self.expressions.hint(last, first.shape)
                whole = Spec().padded(len(first.shape))
                yield list(dict.fromkeys(spec for spec in (goal, hint, first.spec, whole) if spec is not None))

    def _goal(self, loop: RepeatLines, name: str, first: DeviceValue) -> Spec | None:
        """The layout in which an output or a constraint of the graph wants the result of an array that is carried."""
        experiment, result = self.experiment, f"{loop.name}.{name}"
        goal = experiment.constraints.get(result, experiment.results.get(result))
        return None if goal is None or first.shape is None or len(self.names.scopes) > 1 else self._plain(goal, first)

    def _plain(self, spec: Spec, value: DeviceValue) -> Spec:
        assert value.shape is not None
        return moves.plain(self.mesh, spec, len(value.shape))


def _number(value: DeviceValue) -> str:
    """The dtype of the array that a static number becomes."""
    number = literal(value.term)
    return "bool" if isinstance(number, bool) else "int32" if isinstance(number, int) else "float32"


def below(init: Any, experiment: Experiment) -> int | None:
    """The exclusive bound on an array's integers that its `init` sets, as `integers(0, V)` does; None if none."""
    if not isinstance(init, Expression) or not calls(init.term, ("integers",)) or len(children(init.term)) != 2:
        return None
    first, bound = children(init.term)
    try:
        return static.evaluate(Expression.of(bound), experiment.dims) if literal(first) == 0 else None
    except SyntaxFault:
        return None
