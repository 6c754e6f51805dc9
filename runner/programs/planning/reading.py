"""Reads an experiment and the layouts to choose into tensors, operations and transfers.

The rules are those of `programs/derivation/`: an operation without a rule gets whole operands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from runner.base import dtypes
from runner.base.layout import Parts, Spec, Typed
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.graph.language.operations import row_of
from runner.graph.model import Equation, Graph, Operand, Ref, Repeat
from runner.graph.sharding import moves
from runner.graph.term import Name, elements
from runner.programs.derivation.calls import DeviceValue, NotStatic, itemsize
from runner.programs.derivation.facts import leaves
from runner.programs.derivation.ruling import Ruled, Rulings
from runner.programs.derivation.scopes import Names
from runner.programs.derivation.work import between, work_of
from runner.programs.derivation.writer import below
from runner.programs.planning.model import Layable, Passing, RuledOperation, Tensor, Transfer
from runner.programs.planning.model import Operand as Read
from runner.programs.planning.rematerialising import regions, rematerialise

_Tensors: TypeAlias = tuple[int, ...] | None
"""The tensors of a value, several for a tuple; None if it is no array, and so the same on every device."""


@dataclass(frozen=True)
class _Elements:
    """What is known of an array's integers: `below` and `counts` as in `DeviceValue`."""

    below: int | None = None
    counts: int | None = None


def layable(experiment: Experiment, types: Parts, free: Collection[str]) -> Layable:
    """The tensors and operations of an experiment's graph; `free`: the keys of the layouts to choose.

    Raises `NotDerived` if shapes vary between the steps of a loop.
    """
    reader = _LayableReader(experiment, types, free)
    reader.read()
    _differentiate(experiment, reader.layable)
    rematerialise(reader.layable)
    return reader.layable


class _LayableReader:
    """Reads the equations of a graph in order."""

    def __init__(self, experiment: Experiment, types: Parts, free: Collection[str]) -> None:
        self.experiment, self.mesh = experiment, experiment.mesh
        self.layable = Layable(paths=experiment.imports.paths)
        self._frames = experiment.frames["graph"]
        self._free = free
        self._types = types
        self._names = Names(experiment, types)
        self._rulings = Rulings()
        self._regions, self.layable.checkpoints = regions(experiment.graph)
        self._tensors = self.layable.values
        self._gradients: dict[int, int] = {}
        """The tensors of the arrays whose gradients are values, by the numbers of these."""
        self._elements: dict[int, _Elements] = {}
        """What is known of elements, by the number of the tensor."""

    def read(self) -> None:
        """Read the whole graph, with its arrays, gradients and outputs."""
        experiment, graph = self.experiment, self._names.graph
        numbers = {value.name: value.number for value in graph.inputs}
        arrays: dict[str, int] = {}
        for array in experiment.arrays:
            key = f"arrays.{array.name}.spec"
            at = arrays[array.name] = self._tensor(array.name, array.name, Typed(array.shape, array.dtype))
            tensor = self.layable.tensors[at]
            tensor.copies = 1
            self.layable.arrays[at] = array.dims
            self._lay(at, key, array.layout.spec)
            self._elements[at] = _Elements(below(array.init, experiment))
            tensor_read = at
            if array.name in experiment.constraints:
                tensor_read = self._again(at, array.name, "constraints", experiment.constraints[array.name])
            self._tensors[numbers[array.name]] = (tensor_read,)
        for name in experiment.grad.names if experiment.grad else ():
            # A gradient has the layout of its array, unless `outputs` gives another.
            at = of = arrays[name.partition(".")[2]]
            self.layable.gradients[of] = []
            if name not in experiment.implied:
                at = self._again(at, name, "outputs", experiment.outputs[name])
            self._output(at)
            if name in numbers:
                self._tensors[numbers[name]] = (at,)
                self._gradients[numbers[name]] = of
        self._run(graph, 1, inside=False)
        for name, spec in experiment.results.items():
            tensors = self._tensors.get(graph.names[name])
            if tensors and name in experiment.constraints:
                tensors = (self._again(tensors[0], name, "outputs", spec),)
            if tensors:
                self._output(tensors[0])
                self._carry(tensors[0], arrays.get(experiment.imports.state.get(name, "")))

    def _output(self, at: int) -> None:
        """Count an output that is a tensor."""
        self.layable.tensors[at].copies += 1
        self.layable.tensors[at].outputs += 1

    def _carry(self, result: int, array: int | None) -> None:
        """Note that a result is the next value of an array, if the layout of one of them is to be found."""
        free = self.layable.free.values()
        if array is not None and array != result and (array in free or result in free):
            self.layable.states.append((result, array))

    # Tensors.

    def _tensor(self, name: str, line: str, typed: Typed, steps: int = 1) -> int:
        size = itemsize(typed.dtype)
        self.layable.tensors.append(Tensor(name, line, typed.shape, typed.dtype, size, steps=steps))
        return len(self.layable.tensors) - 1

    def _lay(self, at: int, key: str, spec: Spec) -> None:
        """Give a tensor the layout of a key, or mark it as free."""
        tensor = self.layable.tensors[at]
        if key in self._free:
            self.layable.free[key] = at
        else:
            tensor.spec = moves.plain(self.mesh, spec, len(tensor.shape))

    def _again(self, at: int, name: str, section: str, spec: Spec) -> int:
        """A copy of an array in the layout that `section` gives it."""
        tensor = self.layable.tensors[at]
        again = self._tensor(name, tensor.line, Typed(tensor.shape, tensor.dtype))
        self._lay(again, f"{section}.{name}", spec)
        self._pass(at, again, "as it is", tensor.line, 1)
        self._elements[again] = self._elements.get(at, _Elements())
        return again

    def _pass(self, before: int, after: int, kind: Passing, line: str, steps: int) -> None:
        self.layable.transfers.append(Transfer(before, after, kind, line, steps))
        self.layable.tensors[before].readers += 1

    def _goal(self, name: str, path: str, *, inside: bool) -> tuple[str, Spec] | None:
        """The key that gives the layout of a line, and the layout; None if none does."""
        experiment = self.experiment
        if inside:
            named = experiment.constraint_names.get(path)
            return None if named is None else (experiment.key_of_constraint(named), experiment.constraints[named])
        for section, specs in (("constraints", experiment.constraints), ("outputs", experiment.results)):
            if name in specs:
                key = experiment.key_of_constraint(name) if section == "constraints" else f"{section}.{name}"
                return key, specs[name]
        return None

    # Equations.

    def _run(self, graph: Graph, steps: int, *, inside: bool) -> None:
        for equation in graph.equations:
            line = equation.source.line
            self._names.path = line.path
            if str(line) in self._frames:
                self.layable.frames[line.path] = self._frames[str(line)]
            if isinstance(equation.form, Repeat):
                self._repeat(equation, equation.form, steps, inside=inside)
            else:
                self._equation(equation, steps, inside=inside)

    def _equation(self, equation: Equation, steps: int, *, inside: bool) -> None:
        (result,) = equation.results
        tensors = self._computed(equation, steps)
        goal = self._goal(result.name, equation.source.line.path, inside=inside) if result.name else None
        if result.name and tensors and len(tensors) == 1:
            tensor = self.layable.tensors[tensors[0]]
            if tensor.name or (goal is not None and tensor.spec is not None):
                # The tensor already has a name or a layout, so it is passed on to a new one.
                if goal is not None:
                    tensors = (self._named_again(tensors[0], result.name, goal, steps),)
            else:
                tensor.name = result.name
                if goal is not None:
                    self._lay(tensors[0], *goal)
            line = str(equation.source.line)
            if not inside:
                self.layable.named[result.name] = tensors[0]
            elif line not in self._frames:
                self.layable.inside[line] = tensors[0]
        self._tensors[result.number] = tensors

    def _named_again(self, at: int, name: str, goal: tuple[str, Spec], steps: int) -> int:
        tensor = self.layable.tensors[at]
        again = self._tensor(name, tensor.line, Typed(tensor.shape, tensor.dtype), steps)
        self._lay(again, *goal)
        self._pass(at, again, "as it is", tensor.line, steps)
        return again

    def _read(self, operand: Operand) -> _Tensors:
        if isinstance(operand, Ref):
            return self._tensors.get(operand.number)
        items = elements(operand)
        parts = [self._read(item) for item in items or ()]
        return None if items is None or not all(parts) else tuple(at for part in parts if part for at in part)

    def _computed(self, equation: Equation, steps: int) -> _Tensors:
        """The tensors of an equation's result."""
        names, statics = self._names, self._names.statics
        if equation.spelled == "name":
            return self._read(equation.operands[0])
        if statics.of(equation) is not None:
            return None
        if equation.spelled == "index":
            x, at = equation.operands
            several = self._read(x)
            if names.type_of(x) is None and several:
                return self._element(several, at)
        values: dict[str, DeviceValue] = {}
        read: dict[str, _Tensors] = {}
        for place, part in leaves(statics, equation):
            tensors = read[place] = self._read(part)
            if isinstance(part, Ref) and part.number in self._gradients:
                self._reads_gradient(self._gradients[part.number])
            typed = names.type_of(part)
            if typed is None or not tensors:
                values[place] = DeviceValue(Name(place), None, Spec())
            else:
                whole, known = Spec().padded(len(typed.shape)), self._elements.get(tensors[0], _Elements())
                values[place] = DeviceValue(
                    Name(place), typed.shape, whole, typed.dtype, below=known.below, counts=known.counts
                )
        ruled = self._rulings.of(names, equation, values, free=False, alone=False)
        return self._operation(equation, ruled, read, steps)

    def _reads_gradient(self, array: int) -> None:
        """Note that the next operation reads the gradient of an array."""
        layable = self.layable
        layable.forward = len(layable.operations) if layable.forward is None else layable.forward
        layable.gradients[array].append(len(layable.operations))

    def _element(self, several: tuple[int, ...], at: Operand) -> _Tensors:
        """The tensor of `parts[1]`; None if the index is not static."""
        try:
            number = self._names.statics.value(at)
        except NotStatic:
            return None
        return (several[number],) if isinstance(number, int) and -len(several) <= number < len(several) else None

    def _operation(self, equation: Equation, ruled: Ruled, read: Mapping[str, _Tensors], steps: int) -> _Tensors:
        call, rule, line = ruled.call, ruled.rule, equation.source.line.path
        given = call.elements or (() if call.typed is None else (call.typed,))
        if ruled.whole and any(read.values()):
            self.layable.note(
                f"'{call.name}' in '{self.layable.written(line)}' has no rule: its operands are planned whole"
            )
        work = work_of(call)
        operands: list[Read] = []
        for place, tensors in read.items():
            for at in tensors or ():
                tensor = self.layable.tensors[at]
                tensor.readers += 1
                # Operations other than products are fused with those that read or write.
                operands.append(Read(at, place if place in rule.operands else None, bool(work.flops or tensor.copies)))
        results = tuple(self._tensor("", line, typed, steps) for typed in given)
        if len(results) == 1:
            self._elements[results[0]] = _Elements(rule.below, rule.counts)
        self.layable.operations.append(
            RuledOperation(
                call.name,
                equation.results[0].number,
                line,
                rule,
                tuple(operands),
                results,
                steps,
                work,
                bool(work.flops),
                inside=between(call),
                region=self._regions.get(line),
                names_result=str(call.static("name")) if call.name == "checkpoint_name" else "",
            )
        )
        return results or None

    def _repeat(self, equation: Equation, form: Repeat, steps: int, *, inside: bool) -> None:
        body, many = equation.bodies[0], steps * form.counted
        given, index = (body.inputs[:-1], body.inputs[-1]) if form.indexed else (body.inputs, None)
        if form.steps is None:
            self.layable.note(f"'{form.line}' is counted with {many:,} steps: how many it takes is not known")
        carried: list[int | None] = []
        for value, operand, result in zip(given, equation.operands[: form.carried], equation.results, strict=False):
            typed = self._types.get(value.number) or self._types.get(body.outputs[len(carried)])
            first = self._read(operand)
            if not isinstance(typed, Typed):
                carried.append(None)
                continue
            goal = self._goal(result.name, form.line.inside(value.name).path, inside=inside)
            at = self._tensor(result.name, form.line.path, typed, many)
            if goal is not None:
                self._lay(at, *goal)
            if first and len(first) == 1:
                self._pass(first[0], at, "as it is", form.line.path, steps)
            carried.append(at)
            if not inside:
                self.layable.named[result.name] = at
        for value, at in zip(given, carried, strict=False):
            self._tensors[value.number] = None if at is None else (at,)
        for value, operand in list(zip(given, equation.operands, strict=True))[form.carried :]:
            self._tensors[value.number] = self._sliced(self._read(operand), value.name, form, steps, many)
        outer = self._names.index
        if index is not None:
            self._tensors[index.number] = None
            if form.unroll:
                self._names.index = outer | {index.name}
        first = len(self.layable.operations)
        if form.counted:
            self._run(body, many, inside=True)
        self.layable.loops[form.line.path] = first, max(first, len(self.layable.operations) - 1)
        self._names.index = outer
        for at, number in zip(carried, body.outputs, strict=False):
            end = self._tensors.get(number)
            if at is not None and end and len(end) == 1 and form.counted and end[0] != at:
                self._pass(end[0], at, "as it is", form.line.path, many)
        for result, at in zip(equation.results, carried, strict=False):
            self._tensors[result.number] = None if at is None else (at,)
        for result, number in list(zip(equation.results, body.outputs, strict=True))[form.carried :]:
            self._tensors[result.number] = self._stacked(self._tensors.get(number), result.name, form, many, inside)

    def _sliced(self, whole: _Tensors, name: str, form: Repeat, steps: int, many: int) -> _Tensors:
        if not whole or len(whole) != 1:
            return None
        tensor = self.layable.tensors[whole[0]]
        at = self._tensor(name, form.line.path, Typed(tensor.shape[1:], tensor.dtype), many)
        self._pass(whole[0], at, "slice", form.line.path, steps)
        return (at,)

    def _stacked(self, each: _Tensors, name: str, form: Repeat, many: int, inside: bool) -> _Tensors:
        if not each or len(each) != 1:
            return None
        tensor = self.layable.tensors[each[0]]
        at = self._tensor(name, form.line.path, Typed((form.counted, *tensor.shape), tensor.dtype))
        self.layable.tensors[at].whole_first = True
        goal = self._goal(name, name, inside=inside)
        if goal is not None:
            self._lay(at, *goal)
        self._pass(each[0], at, "stack", form.line.path, many)
        if not inside:
            self.layable.named[name] = at
        return (at,)


def _differentiate(experiment: Experiment, layable: Layable) -> None:
    """Mark the tensors and operations that the backward pass runs through."""
    if experiment.grad is None:
        return
    of = layable.named.get(experiment.grad.of)
    if of is None:
        return
    first = {name: at for at, tensor in reversed(list(enumerate(layable.tensors))) if (name := tensor.name)}
    floats = {at for at, tensor in enumerate(layable.tensors) if dtypes.is_inexact(tensor.dtype)}
    reached = {first[name] for name in experiment.grad.wrt}
    edges: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        (tuple(operand.tensor for operand in operation.operands), operation.results)
        for operation in layable.operations
        if not row_of(operation.called).constant
    ]
    passing = (transfer for transfer in layable.transfers if not _is_gradient(layable, transfer))
    edges += [((transfer.before,), (transfer.after,)) for transfer in passing]
    reached = _spread(reached, edges, floats)
    needed = _spread({of}, [(after, before) for before, after in edges], floats)
    for at in reached & needed:
        layable.tensors[at].differentiated = True
    for operation in layable.operations:
        operation.differentiated = any(layable.tensors[at].differentiated for at in operation.results) and any(
            layable.tensors[operand.tensor].differentiated for operand in operation.operands
        )
    if any(operation.differentiated for operation in layable.operations):
        kept = "checkpoints save" if layable.checkpoints else "it reads"
        layable.note(f"assumed: the backward pass is sharded like the forward pass; all values that {kept} are kept")


def _is_gradient(layable: Layable, transfer: Transfer) -> bool:
    """Whether a transfer leads from an array to its gradient."""
    return layable.tensors[transfer.after].name.startswith("grad.")


def _spread(begin: set[int], edges: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], within: set[int]) -> set[int]:
    """The tensors reachable from `begin` along the edges, cycles included."""
    edges, reached, more = list(edges), set(begin), True
    while more:
        more = False
        for before, after in edges:
            new = set(after) & within - reached
            if new and reached & set(before):
                reached |= new
                more = True
    return reached
