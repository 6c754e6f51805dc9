"""A call of `map` in; the repeat over the slices of an array that it is, and the line with what it gives, out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from runner.experiment.choosing import Choosing
from runner.experiment.frames import Place, line_of
from runner.experiment.functions import Function
from runner.experiment.model import Array, Loop, Origin, Section, Statement
from runner.experiment.plain import choices
from runner.faults import nearest
from runner.graph.term import Apply, Lambda, Name, Term, name_of, names
from runner.language import static
from runner.language.check import Scope
from runner.language.syntax import Expression, SyntaxFault
from runner.layout import Mesh

_FORM = "map(f, xs), or map(lambda x: x @ w, xs)"


def lengths(arrays: Iterable[Array], section: Section, seen: Mesh) -> dict[str, int]:
    """How many slices each array has along its first dimension, as the lines of a section see it, and the mesh."""
    blocks = {a.name: replace(a.layout, spec=a.layout.spec.over(seen.axes)) for a in arrays}
    shapes = {a.name: a.shape if section == "graph" else blocks[a.name].shard_shape for a in arrays}
    return {name: shape[0] for name, shape in shapes.items() if shape}


class Maps(Choosing):
    """What reads the lines of a section, as far as it reads maps."""

    @abstractmethod
    def _check(self, expression: Expression, place: Place, name: str | None) -> None: ...

    def _map(self, call: Apply, given: tuple[str, ...], place: Place, before: list[Statement]) -> list[Statement]:
        """The repeat and the line with what is stacked; the lines of its array go to `before`."""
        if len(call.operands) != 2 or any(name != "length" for name, _ in call.named):
            raise place.fault(f"map takes a function and an array: {_FORM}", call)
        label, *more = given
        if more:
            raise place.fault("a map gives one array; of several, write a repeat with 'over' and 'stack'", call)
        function, xs = call.operands
        frame, scope = place.frame, place.scope
        array = self._held(xs, f"{label}_xs", set(), place, before) if name_of(xs) is None else xs
        self._check(Expression(place.text, frame.in_section(array)), place, label)
        steps = self._length(call, array, place)
        head = self._fresh(f"{label}_map", frame)
        known = self._name(head, place)
        origin = Origin(place.key, frame.uses, frame.calls, head)
        itself = line_of(known, place.within, origin)
        over = Expression(place.text, frame.in_section(array), array if frame.calls else None)
        one = self._parameter(function, label, place)
        index = self._fresh(f"{label}_step", frame)
        result = self._fresh(f"{label}_each", frame)
        inside = scope.nested()
        inside.values |= {one, index}
        inside.lengths = {name: size for name, size in inside.lengths.items() if name != one}
        inner = frame.in_repeat({one, index}, {result}) if frame.calls else frame
        here = replace(place, scope=inside, frame=inner, within=itself, name=result)
        body = self._step(function, one, result, here, call)
        stacked = inner.env.get(result, result) if frame.calls else result
        loop = Loop(
            itself, steps, index, (), tuple(body), False, ((one, over),), ((label, stacked),), locally=(result,)
        )
        scope.loops[known] = (label,)
        value = Name(f"{head}.{label}", call.at)
        line = self._node(label, value, place)
        scope.lengths[line.name] = steps
        return [loop, line]

    def _parameter(self, function: Term, label: str, place: Place) -> str:
        if not isinstance(function, Lambda):
            return self._fresh(f"{label}_x", place.frame)
        if len(function.parameters) != 1:
            raise place.fault(f"what is mapped takes a slice: {_FORM}", function)
        return function.parameters[0]

    def _step(self, function: Term, one: str, result: str, place: Place, call: Apply) -> list[Statement]:
        """The lines of one step."""
        lines: list[Statement] = []
        if isinstance(function, Lambda):
            hoisted = self._hoisted(function.body, place, lines)
            return [*lines, self._node(result, hoisted, place)]
        mapped = self._mapped(function, place)
        handed = Apply(mapped.name, (Name(one, function.at),), at=call.at)
        lines += self._call(mapped, handed, (result,), place, lines)
        return lines

    def _mapped(self, function: Term, place: Place) -> Function:
        if isinstance(function, Name) and function.name in self.functions:
            return self.functions[function.name]
        known = tuple(self.functions)
        hint = (nearest(function.name, known) if isinstance(function, Name) else "") or (
            choices(known) if known else ""
        )
        raise place.fault(f"what is mapped is a function of the experiment's own, or a lambda: {_FORM}{hint}", function)

    def _length(self, call: Apply, array: Term, place: Place) -> int:
        """How many slices there are."""
        scope: Scope = place.scope
        for _, length in call.named:
            if not scope.parameters.isdisjoint(names(length)):
                return 1
            mesh = scope.mesh if scope.section == "per_device" else None
            try:
                return static.evaluate(Expression(place.text, length), {**scope.sizes, **scope.static}, mesh)
            except SyntaxFault as fault:
                raise place.fault(fault.message, length) from None
        name = str(name_of(place.frame.in_section(array)))
        if name in scope.parameters:
            # The function is read as if it were called: no call has said how many there are.
            return 1
        if name not in scope.lengths:
            message = "how many slices it has is not known without arrays; say it: map(f, xs, length=N)"
            raise place.fault(message, array)
        return scope.lengths[name]
