"""A call of `map` in; the repeat over the slices of an array that it is, and the line with what it gives, out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from runner.experiment.choosing import Choosing
from runner.experiment.frames import Place
from runner.experiment.functions import Function
from runner.experiment.model import Array, Loop, Section, Statement
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
        over = Expression(place.text, array)
        self._check(over, place, label)
        steps = self._length(call, array, place)
        head = self._fresh(f"{label}_map", place)
        self._name(head, frame)
        itself = frame.line(head, place.within, place.key)
        parameter = self._parameter(function, label, place)
        index = self._fresh(f"{label}_step", place)
        result = self._fresh(f"{label}_each", place)
        inside = scope.nested()
        inside.values |= {parameter, index}
        inside.lengths = {name: size for name, size in inside.lengths.items() if name != parameter}
        here = replace(
            place, scope=inside, frame=frame.in_repeat({parameter, index}, {result}), within=itself, name=result
        )
        body = self._step(function, parameter, result, here, call)
        loop = Loop(itself, steps, index, (), tuple(body), False, ((parameter, over),), ((label, result),))
        scope.loops[head] = (label,)
        line = self._node(label, Name(f"{head}.{label}", call.at), place)
        scope.lengths[label] = steps
        return [loop, line]

    def _parameter(self, function: Term, label: str, place: Place) -> str:
        if not isinstance(function, Lambda):
            return self._fresh(f"{label}_x", place)
        if len(function.parameters) != 1:
            raise place.fault(f"what is mapped takes a slice: {_FORM}", function)
        return function.parameters[0]

    def _step(self, function: Term, parameter: str, result: str, place: Place, call: Apply) -> list[Statement]:
        """The lines of one step."""
        lines: list[Statement] = []
        if isinstance(function, Lambda):
            hoisted = self._hoisted(function.body, place, lines)
            return [*lines, self._node(result, hoisted, place)]
        mapped = self._mapped(function, place)
        handed = Apply(mapped.name, (Name(parameter, function.at),), at=call.at)
        lines += self._call(mapped, handed, (result,), place, lines)
        return lines

    def _mapped(self, function: Term, place: Place) -> Function:
        if isinstance(function, Name) and function.name in self.functions:
            return self.functions[function.name]
        message = f"what is mapped is a function of the experiment's own, or a lambda: {_FORM}{self._hint(function)}"
        raise place.fault(message, function)

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
        name = str(name_of(array))
        if name in scope.parameters:
            # The function is read as if it were called: no call has said how many there are.
            return 1
        if name not in scope.lengths:
            message = "how many slices it has is not known without arrays; say it: map(f, xs, length=N)"
            raise place.fault(message, array)
        return scope.lengths[name]
