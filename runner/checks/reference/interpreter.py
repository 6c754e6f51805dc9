"""Computes every value on every device from the statements and the shards. NumPy only.

This interpreter computes both oracles. `per_device` runs on the experiment's mesh, all devices in lock-step, so that a
collective sees every device's operand. `graph` runs on a mesh of one device without axes, which holds whole arrays.

A value is a list with one entry per device, by row-major position in the mesh. Devices that hold the same value hold
the same object, and an operation is computed once for each distinct combination of operands, so that replicated work is
done once.

An oracle computes in float64. On a `Machine` the same statements round as the programs do: see `rounded_numpy.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.layout import Layout, Mesh, Spec, first_holders
from runner.base.lazy import dataclass
from runner.base.untyped import is_list
from runner.base.words import quoted
from runner.checks.reference.arithmetic import ANY, EXACT, Arithmetic, cast, is_weak, with_type
from runner.checks.reference.decisions import Decision, PerDevice, Script
from runner.checks.reference.sizes import asked
from runner.experiment.extent import STEPS
from runner.experiment.model import Experiment, Line, Section
from runner.graph.language.casts import narrowed, of_own_dtype, own_dtype, to_float
from runner.graph.language.counterparts import indexing
from runner.graph.language.counterparts.arithmetic import Resized
from runner.graph.language.counterparts.collectives import Misplaced
from runner.graph.language.counterparts.promotion import identity, strong, x64
from runner.graph.language.operations import CONSTANTS, OPERATIONS, Decides, Operation, row_of
from runner.graph.language.operators import BY_NAME
from runner.graph.model import (
    CombiningFunction,
    Equation,
    Graph,
    Operand,
    Ref,
    Region,
    Repeat,
    Size,
    inside,
    is_number,
    literal,
    valued,
    walk,
)
from runner.graph.source import Source

_TOO_MANY_DIMENSIONS = re.compile(r"\bdimensions?\b.*\b64\b")
"""NumPy's messages for an array with too many dimensions."""


class CannotInterpret(ValueError):
    """An equation that has no value: its collective does not fit what it moves, or its while does not end."""

    def __init__(self, message: str, equation: Equation) -> None:
        super().__init__(message)
        self.source = equation.source


WHOLE = Mesh((), ())
"""The mesh of one device on which `graph` is interpreted."""


@dataclass
class Interpretation:
    """The kept named values, on every device.

    `work` is the number of elements that were computed, `computed` that of their arrays.
    """

    values: dict[str, PerDevice]
    work: int = 0
    computed: int = 0


def interpret(
    experiment: Experiment,
    section: Section,
    arrays: Mapping[str, np.ndarray],
    graph: Graph | None = None,
    *,
    keep: Iterable[str] | None = None,
    arithmetic: Arithmetic = EXACT,
    script: Script | None = None,
    given: Mapping[str, PerDevice] | None = None,
    most: int | None = None,
    copies: bool = True,
) -> Interpretation:
    """Run one section (or `graph` in its place) on `arrays`, which are whole and in their own dtype.

    `arrays` include the gradients, whole, if lines read them: `experiment.given`. For `per_device` each device has its
    block over the manual axes (`experiment.block`); devices that differ only along the other axes have the same block.

    `given` has the values of the inputs of `graph`, where these are not the arrays. Raises
    `OverflowError` for a value of more than `most` elements on a device, and, with `copies`, `CannotInterpret` where a
    `shard_map` in the graph gives copies that differ.

    `keep` are the names whose values are needed afterwards; None: all. Any other value is released once no later
    equation reads it. `script` sees, and may change, every discrete decision: `runner/checks/reference/decisions.py`.
    """
    mesh = experiment.mesh if section == "per_device" else WHOLE
    lines = experiment.computed(section) if graph is None else graph
    interpreter = Interpreter(
        mesh, experiment.mesh, experiment.dims, experiment.x64, arithmetic, script or Script(), most, copies=copies
    )
    values = dict(given or {})
    for array in experiment.given if given is None else ():
        whole = arithmetic.held(arrays[array.name], experiment.x64, array.dtype)
        values[array.name] = [whole] if mesh == WHOLE else sharded(experiment.block(array.layout), [whole] * mesh.size)
    interpreter.values = {value.number: values.pop(value.name) for value in lines.inputs}
    kept = lines.names if keep is None else {name: lines.names[name] for name in keep if name in lines.names}
    # Overflow and NaN are the experiment's own; the value check reports them.
    with np.errstate(all="ignore"), x64(experiment.x64):
        interpreter.run(lines, frozenset(kept.values()))
    return Interpretation({name: interpreter.values[number] for name, number in kept.items()}, interpreter.work,
                          interpreter.computed)  # fmt: skip


def sharded(layout: Layout, held: PerDevice) -> PerDevice:
    """Each device's shard of what it holds."""
    if not any(layout.spec):
        return held
    shards: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    keys = [(first, layout.block(position)) for position, first in enumerate(first_holders(held))]
    for position, key in enumerate(keys):
        if key not in shards:
            shards[key] = held[position][layout.index(position)]
    return [shards[key] for key in keys]


@dataclass
class Interpreter:
    """Runs the equations of a graph on values by their numbers."""

    mesh: Mesh
    devices: Mesh
    """The mesh on which the body of a `shard_map` runs."""
    sizes: Mapping[str, int]
    x64: bool
    arithmetic: Arithmetic
    script: Script
    most: int | None = None
    own: bool = False
    """Whether floats keep their own dtypes because `floats` has none."""
    copies: bool = True
    """Whether the copies that a `shard_map` gives must be equal."""
    values: dict[int, PerDevice] = field(default_factory=dict[int, PerDevice])
    work: int = 0
    computed: int = 0

    def run(self, graph: Graph, kept: frozenset[int]) -> None:
        """Run a graph whose inputs are among the values; those in `kept` are kept for later."""
        for value in graph.inputs:
            if value.number not in graph.last and value.number not in kept:
                del self.values[value.number]
        for equation, released in zip(graph.equations, graph.released, strict=True):
            gone = frozenset(released) - kept
            if isinstance(equation.form, Repeat) and equation.form.region is not None:
                self._region(equation, equation.form.region)
            elif isinstance(equation.form, Repeat) and equation.form.going is not None:
                self._while(equation, equation.form, equation.form.going, gone)
            elif isinstance(equation.form, Repeat):
                self._repeat(equation, equation.form, gone)
            else:
                self._line(equation, gone)
            for number in gone:
                self.values.pop(number, None)

    def _line(self, equation: Equation, gone: frozenset[int]) -> None:
        (result,) = equation.results
        moved = frozenset(number for number in gone if equation.reads.count(number) == 1)
        value = self._evaluate(equation, moved)
        self.values[result.number] = [self._bounded(held, equation.source.line) for held in value]

    def _bounded(self, value: Any, line: Line) -> Any:
        size = getattr(value, "size", 0)
        if self.most is not None and size > self.most:
            raise OverflowError(f"{line} has {size} elements on a device")
        return value

    def _repeat(self, equation: Equation, repeat: Repeat, gone: frozenset[int]) -> None:
        (body,) = equation.bodies
        firsts = [operand.number for operand in equation.operands if isinstance(operand, Ref)]
        of_carried, of_slices = firsts[: repeat.carried], firsts[repeat.carried :]
        *params, index = (value.number for value in body.inputs)
        carried = self._initial(of_carried, firsts, gone)
        if not repeat.unroll:
            carried = [self._as_array(value, source) for value, source in zip(carried, repeat.starts, strict=False)]
        slices = [self.values[number] for number in of_slices]
        stacked: list[list[PerDevice]] = [[] for _ in body.outputs[repeat.carried :]]
        kept = frozenset(body.outputs)
        assert repeat.steps is not None
        for step in range(repeat.steps):
            for param in params[: repeat.carried]:
                self.values[param] = carried.pop(0)
            for param, whole in zip(params[repeat.carried :], slices, strict=True):
                self.values[param] = self._slice(step, whole)
            self.values[index] = self._counter(step, unroll=repeat.unroll)
            self.run(body, kept)
            ends = [self.values[number] for number in body.outputs]
            for number in body.defines & kept:
                self.values.pop(number, None)
            carried = ends[: repeat.carried]
            for steps, value in zip(stacked, ends[repeat.carried :], strict=True):
                steps.append(value)
            del ends
        together = map(self._stacked, stacked)
        self.values |= zip((result.number for result in equation.results), (*carried, *together), strict=True)

    def _counter(self, step: int, *, unroll: bool) -> PerDevice:
        """The index of a step."""
        return self._everywhere(step if unroll else np.int32(step))

    def _slice(self, step: int, whole: PerDevice) -> PerDevice:
        """The slice of a step."""
        return self._lift(partial(_slice, step), None, whole)

    def _stacked(self, steps: list[PerDevice]) -> PerDevice:
        """The values of all steps as one."""
        return self._lift(lambda *slices: OPERATIONS["stack"].numpy(slices), None, *steps)

    def _initial(self, carried: list[int], firsts: list[int], gone: frozenset[int]) -> list[PerDevice]:
        """The initial values of carries, moved: no other reference to a value that the body replaces may remain."""
        return [self.values.pop(n) if n in gone and firsts.count(n) == 1 else self.values[n] for n in carried]

    def _as_array(self, value: PerDevice, source: Source) -> PerDevice:
        """The initial value of a carry; a Python number becomes an array, as in JAX."""
        if not isinstance(value[0], bool | int | float | complex):
            return value
        return self._everywhere(self.arithmetic.held(np.asarray(value[0]), self.x64, self._kind(source)))

    def _while(self, equation: Equation, repeat: Repeat, going: int, gone: frozenset[int]) -> None:
        """Take steps on all devices until none of them goes on; a device that has ended keeps its values."""
        (body,) = equation.bodies
        firsts = [operand.number for operand in equation.operands if isinstance(operand, Ref)]
        initial = zip(self._initial(firsts, firsts, gone), repeat.starts, strict=True)
        carried, kept = [self._as_array(value, source) for value, source in initial], frozenset(body.outputs)
        most = self.script.most_steps()
        longest = max(1, STEPS // max(1, sum(1 for _ in walk(body))))
        taken = [0] * self.mesh.size
        for step in itertools.count():
            goes = self.script.goes(step, [bool(np.all(value)) for value in carried[going]])
            if not any(goes):
                break
            if step == (longest if most is None else most):
                if most is None:
                    raise CannotInterpret(_endless(step), equation)
                self.script.endless.add(str(repeat.line))
                break
            taken = [count + go for count, go in zip(taken, goes, strict=True)]
            for param, value in zip(body.inputs, carried, strict=True):
                self.values[param.number] = value
            self.script.begin(step)
            self.run(body, kept)
            self.script.end()
            ends = [self.values[number] for number in body.outputs]
            for number in body.defines & kept:
                self.values.pop(number, None)
            if not all(goes):
                self._check_waiting(body, goes)
                ends = [
                    [new if go else old for new, old, go in zip(end, before, goes, strict=True)]
                    for end, before in zip(ends, carried, strict=True)
                ]
            carried = ends
        self.script.took(str(repeat.line), taken)
        self.values |= zip((result.number for result in equation.results), carried, strict=True)

    def _check_waiting(self, body: Graph, goes: list[bool]) -> None:
        """Raise for a collective of a while that some devices of a group have left."""
        for equation in walk(body):
            row = row_of(equation.operation)
            if not row.communicates or any(name == "axis_index_groups" for name, _ in equation.named):
                continue
            over = literal(equation.argument("axis_name", row.signature))
            axes = (over,) if isinstance(over, str) else tuple(over)
            if any(len({goes[position] for position in group}) > 1 for group in self.mesh.groups(axes)):
                message = (
                    f"devices along {quoted(axes)} end the while around this {row.name} after different numbers of "
                    "steps, and those that have ended it never reach it; make all decide alike, for example by a pmax"
                )
                raise CannotInterpret(message, equation)

    def _region(self, equation: Equation, region: Region) -> None:
        """Run a `shard_map` on all devices: shard the operands over its manual axes, and join the results.

        Devices that differ only along other axes have the same values, or, inside of another `shard_map`, what that
        gives them.
        """
        (body,) = equation.bodies
        outer, self.mesh = self.mesh, self.devices
        for param, operand, spec in zip(body.inputs, equation.operands, region.in_specs, strict=True):
            assert isinstance(operand, Ref)
            self.values[param.number] = self._shards(self.values[operand.number], spec, whole=outer != self.mesh)
        self.run(body, frozenset(body.outputs))
        for result, output, spec in zip(equation.results, body.outputs, region.out_specs, strict=True):
            held = self.values[output]
            layout = Layout.of_shards(self.mesh, np.shape(held[0]), spec)
            joined = self._joined(held, layout, region, equation, body.producers.get(output))
            self.values[result.number] = joined if outer == self.mesh else joined[:1]
        for number in body.defines:
            self.values.pop(number, None)
        self.mesh = outer

    def _shards(self, held: PerDevice, spec: Spec, *, whole: bool) -> PerDevice:
        """Each device's shard of a value, which is `whole` outside of all regions."""
        held = self._everywhere(held[0]) if whole else held
        return sharded(Layout(self.mesh, np.shape(held[0]), spec), held)

    def _joined(
        self, held: PerDevice, layout: Layout, region: Region, equation: Equation, line: Equation | None
    ) -> PerDevice:
        """For each device what the devices along the manual axes of a `shard_map` have together."""
        joined, done, first = list(held), dict[tuple[int, ...], Any](), first_holders(held)
        for group in self.mesh.groups(region.manual):
            # As if all devices belonged to this group.
            positions = [group[self.mesh.axis_index(at, region.manual)] for at in range(self.mesh.size)]
            members = [held[position] for position in positions]
            key = tuple(first[position] for position in positions)
            if key not in done:
                if self.copies and self.arithmetic.machine is None:
                    _check_copies(members, layout, equation, line)
                done[key] = layout.assembled(members) if any(layout.spec) else members[0]
            for position in group:
                joined[position] = done[key]
        return joined

    def _everywhere(self, value: Any) -> PerDevice:
        return [value] * self.mesh.size

    def _lift(self, function: Callable[..., Any], equation: Equation | None, *operands: PerDevice) -> PerDevice:
        """Apply a function device by device, once for each distinct combination of operands."""
        return self._lift_moved(function, equation, list(map(list, operands)))

    def _lift_moved(
        self, function: Callable[..., Any], equation: Equation | None, operands: list[PerDevice]
    ) -> PerDevice:
        """The same, emptying `operands` on the way, so that only one device's operands are in memory at a time."""
        kind = None if equation is None or self.own else self._kind(equation.source)
        if self.mesh.size == 1:
            here = [operand.pop() for operand in operands]
            return [self._result(function, equation, here, kind)]
        results: PerDevice = []
        for position, first in enumerate(first_holders(*operands) if operands else [0] * self.mesh.size):
            here = [operand[position] for operand in operands]
            if position == first:
                results.append(self._result(function, equation, here, kind))
            else:
                results.append(results[first])
            for operand in operands:
                operand[position] = None
            here.clear()
        return results

    def _result(
        self, function: Callable[..., Any], equation: Equation | None, operands: list[Any], kind: str | None
    ) -> Any:
        """The result of a function on one device, as it is stored."""
        value = self.arithmetic.held(self._computed(function, equation, operands), self.x64, kind)
        self.work += getattr(value, "size", 0)
        self.computed += 1
        if equation is None:
            return value
        return self._bounded(self.arithmetic.placed(value, equation.results[0].number), equation.source.line)

    def _computed(self, function: Callable[..., Any], equation: Equation | None, operands: list[Any]) -> Any:
        """Apply a NumPy function, which supports fewer dimensions than JAX."""
        try:
            value = function(*operands)
            return value if equation is None else strong(value)
        except (ValueError, IndexError) as error:
            if equation is not None and isinstance(error, Resized):
                raise CannotInterpret(str(error), equation) from None
            if equation is None or not _TOO_MANY_DIMENSIONS.search(str(error)):
                raise
            message = "it has more than 64 dimensions, and NumPy, which computes the reference, has at most 64"
            raise CannotInterpret(message, equation) from None

    def _kind(self, source: Source | None) -> str:
        """JAX's dtype of the floats that are made or read at `source`."""
        kind = dtypes.dtype(self._recorded(source))
        return "float32" if kind.exact else kind.name

    def _recorded(self, source: Source | None) -> str:
        """What is recorded of JAX's dtype at `source`."""
        if source is None:
            return "float32"
        floats = self.arithmetic.floats.get(source.line.path, {})
        return floats.get(source.part, floats.get(ANY, "float32"))

    def _read(self, operand: Operand, moved: frozenset[int]) -> PerDevice:
        """The value of an operand on every device; those in `moved` are read for the last time."""
        match operand:
            case Ref(number=number, source=source):
                held = self.values.pop(number) if number in moved else self.values[number]
                return _typed(held, weak=self._recorded(source).startswith(dtypes.WEAK))
            case Size(name=name):
                return self._everywhere(CONSTANTS[name] if name in CONSTANTS else self.sizes[name])
            case CombiningFunction(body=body):
                return self._everywhere(self._function(body))
            case _:
                parts = [self._read(part, moved) for part in inside(operand)]
                if not parts:
                    return self._everywhere(valued(operand, ()))
                return self._lift(lambda *values: valued(operand, values), None, *parts)

    def _function(self, body: Graph) -> Callable[..., Any]:
        """A function that combines two values of one device; on a machine its results are rounded."""

        def combine(*values: Any) -> Any:
            inside = Interpreter(WHOLE, WHOLE, self.sizes, self.x64, self.arithmetic, Script(), own=True)
            inside.values = {
                value_of_body.number: [value] for value_of_body, value in zip(body.inputs, values, strict=True)
            }
            inside.run(body, frozenset(body.outputs))
            return inside.values[body.outputs[0]][0]

        return combine

    def _evaluate(self, equation: Equation, moved: frozenset[int]) -> PerDevice:
        positional = [self._read(operand, moved) for operand in equation.operands]
        keywords = {name: self._read(operand, moved) for name, operand in equation.named}
        if self.most is not None:
            first = [held[0] for held in positional], {name: held[0] for name, held in keywords.items()}
            if (count := asked(equation, *first)) > self.most:
                raise OverflowError(f"{equation.source.line} asks for {count:g} elements on a device")
        match equation.spelled:
            case "name":
                return _typed(positional[0], weak=False)
            case ".T":
                return self._lift(np.transpose, equation, *positional)
            case "index":
                return self._lift(indexing.getitem, equation, *positional)
            case "operator":
                operator = BY_NAME[equation.operation]
                decides = operator.operation.decides
                if decides is not None and any(dtypes.is_floating(operand[0]) for operand in positional):
                    return self._decide(equation, decides, operator.numpy, positional)
                return self._lift(operator.numpy, equation, *positional)
            case "call":
                return self._call(OPERATIONS[equation.operation], equation, positional, keywords)

    def _decide(
        self,
        equation: Equation,
        decides: Decides,
        function: Callable[..., Any],
        operands: list[PerDevice],
        axis: Any = None,
    ) -> PerDevice:
        """Apply a function of floats that jumps, with the decision that the script makes."""
        result = self._lift(function, equation, *operands)
        line = str(equation.source.line)
        return self.script.decide(
            Decision(decides, function, operands, result, axis=axis, line=line, operation=_called(equation))
        )

    def _call(
        self, operation: Operation, equation: Equation, positional: list[PerDevice], keywords: dict[str, PerDevice]
    ) -> PerDevice:
        if operation.over.does:
            return self._collective(operation, equation, positional, keywords)
        count, names = len(positional), tuple(keywords)
        own: dict[str, str] = {}
        if operation.dtype_of:
            given = of_own_dtype(operation, equation)
            own["own_dtype"] = own_dtype(given, lambda operand: self._kind_of(operand, "float32"), x64=self.x64)
        if operation.default_int:
            own["own_int"] = "int64" if self.x64 else "int32"

        def function(*values: Any) -> Any:
            return operation.numpy(*values[:count], **dict(zip(names, values[count:], strict=True)), own=own)

        operands = [*positional, *keywords.values()]
        if operation.wide:
            operands = [self.arithmetic.widened(operand, operation.wide) for operand in operands]
        if operation.constant:
            return self.script.stop(operands[0])
        narrow = narrowed(operation, equation, lambda operand: self._kind_of(operand, "float64"))
        if narrow is not None:
            raw = self._lift(function, None, *operands)
            return self._cast(equation, narrow, raw) if self.arithmetic.casts else raw
        decides = operation.decides
        # A float that a wider dtype represents exactly does not jump.
        if (
            decides is not None
            and to_float(operation, equation) is None
            and any(dtypes.is_floating(operand[0]) for operand in operands)
        ):
            arguments = operation.signature.bind(*positional, **keywords)
            arguments.apply_defaults()
            axis = arguments.arguments.get("axis")
            axis = axis[0] if is_list(axis) else axis
            return self._decide(equation, decides, function, operands, axis)
        # The operands are no longer needed, and may be most of the memory.
        moved = [list(operand) for operand in operands]
        del operands
        positional.clear()
        keywords.clear()
        return self._lift_moved(function, equation, moved)

    def _kind_of(self, operand: Operand, literal: str) -> str:
        """The dtype of an operand's floats; for a Python number it is `literal`."""
        if is_number(operand):
            return literal
        return self._kind(operand.source if isinstance(operand, Ref) else None)

    def _cast(self, equation: Equation, narrow: str, raw: PerDevice) -> PerDevice:
        """Round floats to the dtype `narrow`; the direction of a float between two is a decision."""

        def rounding(value: Any) -> Any:
            return cast(value, narrow)

        result = self._lift(rounding, equation, raw)
        if not dtypes.is_floating(raw[0]):
            return result
        line = str(equation.source.line)
        return self.script.decide(Decision("cast", rounding, [raw], result, line=line, operation=_called(equation)))

    def _collective(
        self, operation: Operation, equation: Equation, positional: list[PerDevice], keywords: dict[str, PerDevice]
    ) -> PerDevice:
        arguments = operation.signature.bind(*positional, **keywords).arguments
        operands = operation.over.operands
        arguments = {name: value if name in operands else value[0] for name, value in arguments.items()}
        try:
            result = operation.numpy(self.mesh, **arguments)
        except Misplaced as error:
            raise CannotInterpret(str(error), equation) from None
        if operation.kind == "static":
            return self._everywhere(result)
        # Entries that are one object stay one object when they are widened.
        return self._lift(identity, equation, result)


_COPIES = 1e-9
"""By how much copies may differ, relative to their largest element: what float64 loses in sums of another order."""


def _endless(steps: int) -> str:
    """The message for a while that does not end."""
    return (
        f"this while has not ended after {steps:,} steps, which the oracle interprets one by one: bound it, as in "
        "`(i < 100) & (error > 1e-6)`, or, in Python, name a reference for a jitted function that contains it"
    )


def _check_copies(held: PerDevice, layout: Layout, equation: Equation, line: Equation | None) -> None:
    """Raise `CannotInterpret` where copies differ that the out_specs of a `shard_map` promise to be the same."""
    for _, (first, *others) in layout.holders():
        for other in others:
            if held[first] is held[other]:
                continue
            value, copy = np.asarray(held[first]), np.asarray(held[other])
            if value.dtype.kind not in "fc":
                same = np.array_equal(value, copy)
            else:
                finite = np.abs(value[np.isfinite(value)])
                scale = float(finite.max()) if finite.size else 0.0
                same = np.allclose(value, copy, rtol=_COPIES, atol=_COPIES * scale, equal_nan=True)
            if not same:
                at = (layout.mesh.coordinates[position] for position in (first, other))
                over = quoted([axis for axis, a, b in zip(layout.mesh.axes, *at, strict=True) if a != b])
                message = (
                    f"the out_specs of the shard_map, {layout.spec}, promise the same value on every device along "
                    f"{over}, and the devices have different ones"
                )
                raise CannotInterpret(message, equation if line is None else line)


def _typed(held: PerDevice, *, weak: bool) -> PerDevice:
    """A value on every device with a weak type, or without; what is one object stays one object."""
    if is_weak(held[0]) == weak or not dtypes.is_numeric(held[0]):
        return held
    typed: PerDevice = []
    for position, first in enumerate(first_holders(held)):
        typed.append(with_type(held[position], weak) if position == first else typed[first])
    return typed


def _slice(step: int, whole: Any) -> Any:
    return indexing.getitem(whole, step)


def _called(equation: Equation) -> str:
    """The call of a line, as it is written."""
    return BY_NAME[equation.operation].symbol if equation.spelled == "operator" else equation.operation
