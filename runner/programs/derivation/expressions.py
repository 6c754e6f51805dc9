"""Writes the term that one device computes for an equation, with the layout of its value.

Each operation is split in the way that sends the fewest bytes (`rules.py`) given the layout that the plan has for its
result. An operation without a rule gets whole operands, which is always correct.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.base.words import bytes_text, flops_text, time_text
from runner.compiled.estimate.prices import BYTES
from runner.graph.model import Equation, Operand, Ref, inside, kind_of, with_parts
from runner.graph.sharding import moves
from runner.graph.term import Name, Term, bare, elements
from runner.programs.derivation.accumulating import added_up
from runner.programs.derivation.calls import DeviceValue, NotStatic, Unmade, is_number
from runner.programs.derivation.facts import leaves
from runner.programs.derivation.laying import Derivative, Layouts, completed, together
from runner.programs.derivation.registry import Write
from runner.programs.derivation.rules import Around, Assignment, PricedAssignment, Question, assigned, followed
from runner.programs.derivation.ruling import Ruled, Rulings
from runner.programs.derivation.scopes import Scope
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, elements_of
from runner.programs.derivation.work import work_of


@dataclass(frozen=True)
class Hints:
    """A plan of a graph.

    - `layouts`: the layouts of values, by number.
    - `assignments`: the mesh axes that split the factors of operations, by the numbers of their results.
    - `binding`: whether an operation takes its assignment although another one costs less where it stands, since
      readers may gain more.
    """

    layouts: Mapping[int, Spec]
    assignments: Mapping[int, Assignment] = field(default_factory=dict[int, Assignment])
    binding: bool = False


_CLOSE = 1.001
"""Costs that differ by less are the same."""


class Expressions:
    """Writes expressions and the lines that they need.

    - `differentiated`: whether JAX takes a gradient of the lines before it.
    - `spread`: whether arrays with a gradient are cast to varying once before a loop, or several lines, that combine
      them with varying values.
    """

    def __init__(self, layouts: Layouts, hints: Hints, rulings: Rulings, *, differentiated: bool, spread: bool) -> None:
        self.layouts, self.names, self.mesh = layouts, layouts.names, layouts.mesh
        self.differentiated = differentiated
        self.hints, self._rulings = hints, rulings
        self.line = 0
        """The number of the section's line that is being written."""
        self.asked_at: dict[int, int] = {}
        """The number of the first line that asked for the hint of a value's layout, by the value's number."""
        grad = layouts.names.experiment.grad
        self._spread = frozenset(grad.wrt if spread and grad is not None else ()) - self.names.inner
        readers = Counter(read for equation in self.names.graph.equations for read in dict.fromkeys(equation.reads))
        self._read_again = frozenset(value.name for value in self.names.graph.inputs if readers[value.number] > 1)
        """The arrays that several lines read."""
        self._added_up = added_up(self.names.graph)
        self._arrays = frozenset(value.number for value in self.names.graph.inputs)

    def value(self, operand: Operand, goal: Spec | None = None, *, alone: bool = False) -> DeviceValue:
        """The value of an operand on one device, in the layout that is cheapest towards `goal` or the plan's.

        `alone`: whether only the first of several arrays is read.
        """
        names = self.names
        if (equation := names.equation(operand)) is not None:
            return self.result(equation, goal, alone=alone)
        if (static := names.statics.term(operand)) is not None:
            return DeviceValue(static, None, Spec(), static=True)
        match operand:
            case Ref(number=number):
                return names.binding(names.statics.spelling.named[number]).value
            case _:
                # A tuple or a list: no other operand can depend on an array.
                return DeviceValue(self.whole(operand), None, Spec())

    def result(self, equation: Equation, goal: Spec | None = None, *, alone: bool = False) -> DeviceValue:
        """The value of an equation on one device; for the arguments see `value`."""
        names, statics = self.names, self.names.statics
        if equation.spelled == "name":
            return self.value(equation.operands[0], goal, alone=alone)
        if (static := statics.of(equation)) is not None:
            return DeviceValue(static, None, Spec(), static=True)
        match equation:
            case Equation(operands=(x, _), spelled="index") if names.type_of(x) is None and statics.term(x) is None:
                return self._element(equation, goal)
            case _:
                values = {place: self.value(part) for place, part in leaves(statics, equation)}
                return self._operation(equation, values, goal, alone=alone)

    def _element(self, equation: Equation, goal: Spec | None) -> DeviceValue:
        """The value of `parts[1]`, in its present layout."""
        names, index = self.names, None
        parts, at = equation.operands
        with contextlib.suppress(NotStatic):
            index = names.statics.value(at)
        typed = names.type_at(equation.results[0].number)
        wanted = None if typed is None else self._wanted(equation, (typed,), goal)
        value = self.value(parts, wanted, alone=index == 0)
        if value.elements and isinstance(index, int):
            return value.elements[index]
        rest = {place: self.value(part) for place, part in leaves(names.statics, equation) if place != "x"}
        return self._operation(equation, {"x": value, **rest}, goal)

    def _operation(
        self, equation: Equation, values: Mapping[str, DeviceValue], goal: Spec | None, *, alone: bool = False
    ) -> DeviceValue:
        """The value of an operation by its rule, or on whole operands if it has none."""
        names, layouts = self.names, self.layouts
        ruled = self._rulings.of(names, equation, values, free=goal is None, alone=alone)
        call, rule, write = ruled.call, ruled.rule, ruled.write
        site = Site(call, rule, equation, values, layouts, names.statics)
        if call.typed is None and ruled.whole:
            return DeviceValue(site.rewritten(), None, Spec())
        typed, operands = call.result, [values[place] for place in rule.operands]
        # A block with its neighbours' edges is no shard of the array and cannot be resharded.
        wanted = None if rule.edges else self._wanted(equation, call.elements or (typed,), goal)
        # The other arguments may depend on the step of a loop.
        scope = names.home(*(value.term for value in values.values()), names.statics.spelling.equation(equation))

        def moving(at: int, spec: Spec) -> float:
            return layouts.cost_of(operands[at], spec, scope)

        number = equation.results[0].number
        around = Around(
            self.mesh, tuple(value.spec for value in operands), wanted, self._added_up.get(number, 1), layouts.prices,
            self._in_memory(equation), self.hints.assignments.get(number), self.hints.binding,
        )  # fmt: skip
        choice = ruled.choice(around, moving)
        if layouts.prices.least == "time":
            self._compare(ruled, around, choice, operands, scope)
        laid = [layouts.reshard(value, spec).term for value, spec in zip(operands, choice.operands, strict=True)]
        axes = {axis for spec in choice.operands for axis in spec.axes}
        laid = [self._spread_out(term, axes - {*spec.axes}) for term, spec in zip(laid, choice.operands, strict=True)]
        terms = dict(zip(rule.operands, laid, strict=True))
        derivative = self._derivative(equation, typed)
        partial = write(replace(site, assignment=choice.assignment, terms=terms, derivative=derivative))
        partial = together(layouts, partial, typed, operands)
        made = completed(layouts, partial, choice, typed, derivative)
        layouts.spend(rule.sendings(self.mesh, choice.assignment, layouts.prices), scope)
        layouts.compute(choice.computing, scope)
        if call.elements:
            results = elements(made) or elements_of(made, len(call.elements))
            # Results of another rank than the first, such as the factors of `qr`, share its dimensions of the stack.
            specs = [Spec(choice.spec.padded(len(t.shape))[: len(t.shape)]) for t in call.elements]
            parts = zip(results, call.elements, specs, strict=True)
            several = tuple(DeviceValue(part, t.shape, spec, t.dtype) for part, t, spec in parts)
            return DeviceValue(made, None, Spec(), elements=several)
        make = self._maker(site, write)
        halo = frozenset(d for d in rule.edges if choice.spec[d])
        value = DeviceValue(
            made, typed.shape, choice.spec, typed.dtype, make,
            below=rule.below, counts=rule.counts, halo=halo, free=make is not None,
            turned=operands[0] if equation.spelled == ".T" and choice.operands[0] == operands[0].spec else None,
            made=equation.results[0].number if goal is None else None,
        )  # fmt: skip
        if wanted is not None and wanted != choice.spec:
            steps = layouts.moves(typed.shape, typed.dtype, choice.spec, wanted)
            if all(step.kind == "slice" for step in steps):
                return layouts.reshard(value, wanted)
            # Its operands may then as well have that layout.
            for operand in operands if goal is not None else ():
                if operand.made is not None and operand.shape == typed.shape:
                    layouts.asked.setdefault(operand.made, wanted)
        return value

    def _in_memory(self, equation: Equation) -> frozenset[str]:
        """The places of the operands that are arrays of the experiment."""
        parts = leaves(self.names.statics, equation)
        return frozenset(place for place, part in parts if isinstance(part, Ref) and part.number in self._arrays)

    def _compare(
        self, ruled: Ruled, around: Around, choice: PricedAssignment, operands: Sequence[DeviceValue], scope: Scope
    ) -> None:
        """Note it where another way to run an operation sends fewer bytes than the one that takes the least time."""
        layouts = self.layouts

        def sent(way: PricedAssignment) -> float:
            return way.sent + sum(map(moved, range(len(operands)), way.operands))

        def moved(at: int, spec: Spec) -> float:
            return layouts.cost_of(operands[at], spec, scope, BYTES)

        def seconds(way: PricedAssignment) -> float:
            pairs = zip(operands, way.operands, strict=True)
            return way.cost + sum(layouts.cost_of(operand, spec, scope) for operand, spec in pairs)

        fewest = ruled.fewest(around, moved)
        if sent(choice) > sent(fewest) * _CLOSE and seconds(fewest) > seconds(choice) * _CLOSE:
            flops = work_of(ruled.call).flops
            least, other = (
                f"{bytes_text(round(sent(way)))}" + (f" and {flops_text(flops / way.shards)}" if flops else "")
                for way in (choice, fewest)
            )
            took, longer = (time_text(seconds(way)) for way in (choice, fewest))
            self.names.note(
                f"'{self.names.line}' takes the least time, not the fewest bytes: {took} with {least} on each device; "
                f"with {other} it would be {longer}"
            )

    def _spread_out(self, term: Term, axes: Collection[str]) -> Term:
        """Cast an array with a gradient to varying over `axes`, once before the loop, or the lines, that read it.

        Its gradient is then summed over these axes once instead of in each step, or for each line.
        """
        names = self.names
        name = bare(term)
        if not axes or name is None or name not in self._spread:
            return term
        if names.scopes[-1].steps == 1 and name not in self._read_again:
            return term
        over = tuple(axis for axis in self.mesh.axes if axis in axes)
        spread = self.layouts.spread.get((name, over))
        if spread is None:
            spread = names.fresh(f"{name}_varying")
            names.put(spread, built("pcast({x}, {over}, to='varying')", x=term, over=over), names.scopes[0])
            self.layouts.spread[name, over] = spread
        return Name(spread)

    def _derivative(self, equation: Equation, typed: Typed) -> Derivative:
        if not self.differentiated or equation.results[0].number in self.names.after_gradients:
            return "none"
        stopped = not is_number(typed, "float", "complex") or self.names.stopped(equation.results[0])
        return "stopped" if stopped else "taken"

    def _maker(self, site: Site, write: Write) -> Callable[[Spec], Term] | None:
        """A function that writes the value in any layout, if it depends on no array; else None."""
        rule, mesh = site.rule, self.mesh
        makers = {place: site.values[place].make for place in rule.operands}
        if rule.reduced or None in makers.values():
            return None

        def make(spec: Spec) -> Term:
            assignment = assigned(mesh, rule, rule.result, spec)
            choice = followed(Question(Around(mesh), rule, site.call.result.shape, 1), assignment)
            if choice is None or choice.spec != spec or choice.sent:
                raise Unmade
            needed = zip(makers.items(), choice.operands, strict=True)
            terms = {place: maker(each) for (place, maker), each in needed if maker is not None}
            return write(replace(site, assignment=assignment, terms=terms))

        return make

    def whole(self, operand: Operand) -> Term:
        """The term of a whole operand; of a tuple or list, with each element whole."""
        if kind_of(operand):
            return with_parts(operand, list(map(self.whole, inside(operand))))
        return self.layouts.whole(self.value(operand))

    def _wanted(self, equation: Equation, results: Sequence[Typed], goal: Spec | None) -> Spec | None:
        """The layout that the result must end in, or else the plan's; None if there is neither."""
        shape = results[0].shape
        if any(result.shape != shape for result in results):
            return None
        if goal is not None and len(goal) <= len(shape):
            return moves.plain(self.mesh, goal, len(shape))
        return self.hint(equation, shape)

    def hint(self, equation: Equation, shape: tuple[int, ...]) -> Spec | None:
        """The plan's layout of a result, without the axes that do not divide its dimensions; None if unplanned."""
        number = equation.results[0].number
        self.asked_at.setdefault(number, self.line)
        hint = self.hints.layouts.get(number)
        if hint is None or len(hint) != len(shape):
            return None
        spec: list[tuple[str, ...]] = []
        for size, axes in zip(shape, moves.plain(self.mesh, hint, len(shape)), strict=True):
            while axes and size % self.mesh.axis_size(axes):
                axes = axes[:-1]
            spec.append(axes)
        return Spec(spec)
