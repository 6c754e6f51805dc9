"""Refuses a collective that some devices of its group never reach.

If the predicate of a branch differs between devices, only some of them take it, and if that of a while does, some take
more steps than others. A collective in the branch or in the while over an axis along which the predicate differs then
waits for the others until the runtime gives up; on XLA's CPU backend a collective-permute waits for all devices of the
mesh. The same is true of the sum that differentiation adds for a value that the branch reads and that is replicated
along such an axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field

from runner.base import dtypes
from runner.base.faults import InvalidExperiment
from runner.base.lazy import dataclass
from runner.base.words import quoted
from runner.experiment.model import Experiment
from runner.experiment.plain import located
from runner.graph.inlining import inlined
from runner.graph.language.lines import line_of
from runner.graph.language.operations import Operation, row_of
from runner.graph.language.operators import COMPARISONS
from runner.graph.language.syntax import fault_at
from runner.graph.model import Branches, Equation, Graph, Operand, Ref, Repeat, literal, read_by, walk
from runner.graph.source import Source


def check(experiment: Experiment) -> None:
    """Raise `InvalidExperiment` for a collective of `per_device` that some devices of its group never reach."""
    experiment = experiment.alone("per_device")
    graph = experiment.per_device
    differing = _Differing(experiment)
    for array, value in zip(experiment.given, graph.inputs, strict=True):
        differing.axes[value.number] = differing.split(array.layout.spec.axes)
        differing.names[value.number] = array.name
        if dtypes.dtype(array.dtype).kind in ("float", "complex"):
            differing.floats.add(value.number)
    differing.run(graph)


@dataclass
class _Differing:
    """The mesh axes over which values may differ between devices, and whether the values have a gradient."""

    experiment: Experiment
    axes: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    floats: set[int] = field(default_factory=set[int])
    names: dict[int, str] = field(default_factory=dict[int, str])
    """The names of values, by their numbers."""

    def split(self, axes: Iterable[str]) -> frozenset[str]:
        """The given axes that have more than one device."""
        return frozenset(axis for axis in axes if self.experiment.mesh.sizes[axis] > 1)

    def run(self, graph: Graph) -> None:
        for equation in graph.equations:
            match equation.form:
                case Repeat() as repeat:
                    self._repeat(equation, repeat)
                case Branches() as choice:
                    self._choice(equation, choice)
                case None:
                    (result,) = equation.results
                    self.axes[result.number] = self._of(equation)
                    self._mark(result.number, _moving(equation))
                case _:
                    (body,) = equation.bodies
                    self._bind(body, equation.operands)
                    self.run(body)
                    self._give(equation, body.outputs)
            self.names |= {value.number: value.name for value in equation.results}

    def _bind(self, body: Graph, operands: Iterable[Operand]) -> None:
        """Give the inputs of a body the axes of its operands."""
        for value, operand in zip(body.inputs, operands, strict=False):
            self.axes[value.number] = self._union([operand])
            self._mark(value.number, read_by(operand))
            self.names[value.number] = value.name

    def _give(self, equation: Equation, outputs: Iterable[int]) -> None:
        for result, output in zip(equation.results, outputs, strict=True):
            self.axes[result.number] = self.axes[output]
            self._mark(result.number, [output])

    def _mark(self, number: int, moved_by: Iterable[int]) -> None:
        if any(moved in self.floats for moved in moved_by):
            self.floats.add(number)

    def _repeat(self, equation: Equation, repeat: Repeat) -> None:
        (body,) = equation.bodies
        given = [value.number for value in body.inputs]
        self._bind(body, equation.operands)
        if repeat.indexed:
            self.axes[given.pop()] = frozenset()
        known: dict[int, frozenset[str]] = {}
        while known != {number: self.axes[number] for number in given}:
            known = {number: self.axes[number] for number in given}
            self.run(body)
            for number, output in zip(given[: repeat.carried], body.outputs, strict=False):
                self.axes[number] |= self.axes[output]
        self._give(equation, body.outputs)
        on = frozenset[str]() if repeat.going is None else self.axes[given[repeat.going]]
        for result, number in zip(equation.results, given[: repeat.carried], strict=False):
            self.axes[result.number] |= self.axes[number] | on
        if on:
            self._waits(repeat, body, on)

    def _waits(self, repeat: Repeat, body: Graph, on: frozenset[str]) -> None:
        """Raise for a collective of a while that devices may leave after different numbers of steps."""
        over = quoted([axis for axis in self.experiment.mesh.axes if axis in on])
        for equation in walk(body):
            row, axes = _collective(equation)
            if row.communicates and (axes & on or row.over.does == "permute"):
                message = (
                    f"whether the while '{repeat.line}' goes on depends on a value that may differ along {over}, and "
                    f"devices that have left it never reach this {row.name}; make all decide alike, for example by "
                    "its pmax"
                )
                _refuse(message, equation.source)

    def _choice(self, equation: Equation, choice: Branches) -> None:
        on = self._union(equation.operands)
        for body, given in zip(equation.bodies, choice.given, strict=True):
            self._bind(body, given or ())
            self.run(body)
            if on:
                self._communicates(choice, body, on)
        for i, result in enumerate(equation.results):
            outputs = [body.outputs[i] for body in equation.bodies]
            self.axes[result.number] = on.union(*(self.axes[output] for output in outputs))
            self._mark(result.number, outputs)

    def _communicates(self, choice: Branches, body: Graph, on: frozenset[str]) -> None:
        over = quoted([axis for axis in self.experiment.mesh.axes if axis in on])
        hangs = f"the choice '{choice.call.label}' depends on a value that may differ along {over}"
        why = f"{hangs}, and devices that take another branch"
        experiment = self.experiment
        differentiated = {line_of(equation) for equation in inlined(experiment.before("per_device")).equations}
        summed = (
            experiment.grad is not None
            and experiment.check_vma
            and any(source.line in differentiated for source in choice.taken)
        )
        own = {value.number for equation in walk(body) for value in equation.results}
        for equation in walk(body):
            row, axes = _collective(equation)
            message = None
            if row.communicates and (axes & on or row.over.does == "permute"):
                message = f"{why} never reach this {row.name}; move it before the choice"
            elif row.casts_axes and axes & on and summed:
                message = f"{why} never reach the sum in its gradient; cast before the choice"
            if message is not None:
                _refuse(message, equation.source)
            for ref in _refs(equation) if summed else ():
                name = self.names[ref.number]
                if ref.number in self.floats - own and ref.source is not None and (same := on - self.axes[ref.number]):
                    cast = sorted(same)
                    written = repr(cast[0] if len(cast) == 1 else tuple(cast))
                    message = (
                        f"{why} never reach the sum over {quoted(cast)} in the gradient of '{name}'; "
                        f"add a line before it: {name}_here: pcast({name}, {written}, to='varying')"
                    )
                    _refuse(message, ref.source)

    def _of(self, equation: Equation) -> frozenset[str]:
        """The axes over which the value of an equation may differ."""
        row, axes = _collective(equation)
        if not row.over.does:
            return self._union(equation.arguments)
        axes = self.split(axes)
        arguments = (equation.argument(name, row.signature) for name in row.over.operands)
        inside = self._union(operand for operand in arguments if operand is not None)
        grouped = any(name == "axis_index_groups" for name, _ in equation.named)
        match row.over.does:
            case "size":
                return frozenset()
            case "sum" | "mean" | "extreme" | "gather" | "broadcast" if not grouped:
                return inside - axes
            case _:
                return inside | axes

    def _union(self, operands: Iterable[Operand]) -> frozenset[str]:
        return frozenset[str]().union(*(self.axes[number] for operand in operands for number in read_by(operand)))


def _refuse(message: str, source: Source) -> None:
    key, uses = source.line.written("per_device")
    raise InvalidExperiment(located(key, source.text, fault_at(message, source), uses))


def _collective(equation: Equation) -> tuple[Operation, frozenset[str]]:
    """The equation's operation, and the mesh axes that it is over."""
    row = row_of(equation.operation)
    if not row.over.does:
        return row, frozenset()
    named = literal(equation.argument("axis_name", row.signature))
    return row, frozenset((named,) if isinstance(named, str) else named)


def _refs(equation: Equation) -> Iterator[Ref]:
    """The values that an equation reads, by number."""
    yield from (operand for operand in equation.flat if isinstance(operand, Ref))


def _moving(equation: Equation) -> Iterable[int]:
    """The operands through which a gradient flows: not those of comparisons, nor those under `stop_gradient`."""
    if equation.spelled == "operator" and equation.operation in COMPARISONS:
        return ()
    if row_of(equation.operation).constant:
        return ()
    return (number for operand in equation.arguments for number in read_by(operand))
