"""Reads Shardy's plan of a lowered program, as plain data.

Shardy's passes run on a copy of the module, without XLA: XLA's partitioner may compile something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.untyped import is_list
from runner.compiled.evidence.hlo import Location, Metadata
from runner.compiled.evidence.nodes import OperationOrigin, Origins, backward
from runner.compiled.evidence.source_lines import SourceLine, called_frame, distinguishing, frame, source_line
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.graph.inlining import Enclosing, enclosed
from runner.graph.language.operations import row_of
from runner.graph.sharding import ring
from runner.graph.sharding.propagation import (
    CLAUSES,
    KeyedArray,
    LayoutKeys,
    Plan,
    Planned,
    PlannedCollective,
    PlannedOperation,
    PlannedValue,
)
from runner.graph.source import Frame
from runner.link.steps import Spare
from runner.reports.record.writing import write_text
from runner.worker import sharding_origins, shardy
from runner.worker.modules import bytes_of, dtype_of, producer, shape_of, unchanged
from runner.worker.phases import spared
from runner.worker.regions import RegionNodes, Regions
from runner.worker.sharding_origins import Places, ShardingOrigins, automatic, computes, has_plan
from runner.worker.versions import ORIGINATING, PLANNED, propagated

Place = tuple[str | None, int | None, bool]
"""The line of an operation, the number of the value that it computes, and whether it is in the backward pass."""

Where = Callable[[Metadata], Place]
"""Gives the place of an operation by its name stack (`jit(f)/hidden/dot_general`) and the user's frames."""

NOWHERE: Place = (None, None, False)


def place(lines: Sequence[OperationOrigin]) -> Place:
    """The place of an operation of these lines, the innermost first."""
    if not lines:
        return NOWHERE
    # An operand of a loop that is sliced in each step is attributed to the whole value.
    return None if lines[0].primitive is None else lines[0].node, None, lines[0].gradient


@dataclass(frozen=True)
class ModuleNames:
    """The experiment's names for the operations (`where`) and the arguments (`array`) of a module.

    `outputs`: the names of the results in order; empty if no keys are needed.
    """

    where: Where
    array: Callable[[str], str | None] = lambda _: None
    outputs: tuple[str, ...] = ()


def plan(lowered: Any, experiment: Experiment, names: ModuleNames) -> Plan:
    """Shardy's plan of a lowered program of an experiment; if it is not available, a plan with the reason."""
    return read(lowered, keys_of(experiment), names)


def keys_of(experiment: Experiment) -> LayoutKeys:
    """The keys of an experiment's file that set layouts."""
    return LayoutKeys(
        mesh=experiment.mesh,
        keys=experiment.layout_keys,
        arrays={
            array.name: KeyedArray(array.dims, array.layout.spec, experiment.key_of_layout(array.name))
            for array in experiment.given
        },
        outputs={
            name: (experiment.key_of_layout(name), Spec() if name in experiment.imports.open else spec)
            for name, spec in experiment.outputs.items()
        },
        constraint=partial(_constraint, experiment),
        users=experiment.python_files.__contains__,
        results=_results(experiment),
    )


@dataclass(frozen=True)
class Propagated:
    """Copies of a lowered module after Shardy's passes: with its collectives, and with the origins of its shardings.

    A text says why one of them is missing.
    """

    planned: Any | str
    originating: Any | str

    @classmethod
    def of(cls, lowered: Any) -> Propagated:
        """Run the passes, each of which the job can do without."""
        planned = spared(Spare.PLAN, lambda: propagated(lowered, PLANNED))
        return cls(planned, planned if isinstance(planned, str) else spared(
            Spare.ORIGINS, lambda: propagated(lowered, ORIGINATING)
        ))  # fmt: skip


def read(lowered: Any, keys: LayoutKeys, names: ModuleNames) -> Plan:
    """Shardy's plan of a lowered module, whoever lowered it; if it is not available, a plan with the reason."""
    return _read(Propagated.of(lowered), keys, names)


def _read(modules: Propagated, keys: LayoutKeys, names: ModuleNames) -> Plan:
    module, originating = modules.planned, modules.originating
    if isinstance(module, str):
        return Plan(missing=module)
    counted = Places(module, keys.mesh)
    counted.walk()
    unknown = f"the origins of its shardings: {originating}" if isinstance(originating, str) else None
    origins = ShardingOrigins(originating if unknown is None else module, keys.mesh)
    if unknown is None:
        origins.walk()
    reader = _PlanReader(module, keys, names, origins, counted)
    reader.walk()
    return replace(reader.plan(), unknown=unknown)


def of_program(experiment: Experiment, program: Program, modules: Propagated, folder: Path) -> Planned:
    """The plan of a program on the mesh for the record; the whole plan is written to `folder`."""
    origins = Origins(experiment, program.lines)

    def where(metadata: Metadata) -> Place:
        return place(origins.of(metadata))

    whole = _read(modules, keys_of(experiment), ModuleNames(where, origins.array, tuple(experiment.outputs)))
    write_text(folder / f"plan_{program}.json", _text(whole))
    return whole.summary()


def _text(whole: Plan) -> str:
    """The plan as JSON, with a line for each collective and each operation."""
    parts = [
        f"{json.dumps(key)}: " + (f"[\n{_rows(value)}\n]" if is_list(value) and value else json.dumps(value))
        for key, value in whole.to_json().items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(values: list[Any]) -> str:
    return ",\n".join(f"  {json.dumps(value)}" for value in values)


def is_split(operation: Any, split: set[Any]) -> bool:
    """Whether Shardy lays out an operation's results for each reader: a constant, or a scalar broadcast.

    Its pass `sdy-constant-or-scalar-splitter` does that; `split` are the values known to be so.
    """
    if operation.name == "stablehlo.broadcast_in_dim" and shape_of(operation.operands[0]) == ():
        return True
    return not operation.regions and split.issuperset(operation.operands)


_STATING = ("out_sharding", "with_sharding_constraint", "reshard")
"""What may give a value its layout in a line of a user's Python."""


@dataclass(frozen=True)
class _StatedLayout:
    """A layout that a line of the user's Python gives a value: `by` what, the line, and its name if it has one."""

    layout: Spec
    by: str
    at: Frame
    line: str | None


@dataclass(frozen=True)
class _KnownValue:
    """What is known of a value: its array or line, and the names of its dimensions.

    - `fixed`: the key of an array, and its layout, which holds for all readers.
    - `asked`: the keys that constrain it, with their layouts; `met`: those that its type already satisfies.
    - `stated`: the layouts that the user's Python gives it.
    """

    of: str
    dims: tuple[str | None, ...] = ()
    fixed: tuple[str, Spec] | None = None
    asked: tuple[tuple[str, Spec], ...] = ()
    met: tuple[tuple[str, Spec], ...] = ()
    stated: tuple[_StatedLayout, ...] = ()


@dataclass(frozen=True)
class _Sharded:
    """The dimensions of a value that axes shard, and the keys of what it is computed from."""

    nodes: RegionNodes
    sources: frozenset[str]


class _PlanReader(Places):
    def __init__(
        self, module: Any, keys: LayoutKeys, names: ModuleNames, origins: ShardingOrigins, counted: Places
    ) -> None:
        super().__init__(module, keys.mesh)
        self._keys, self._names, self._origins = keys, names, origins
        self._counted = counted
        self._regions = Regions(keys.keys)
        self._results = keys.results
        self._planned: list[tuple[PlannedOperation, list[_Sharded], list[_Sharded]]] = []
        self._collectives: list[tuple[PlannedCollective, _Sharded, int]] = []
        # The collectives whose results an operation needs, until it is visited; the numbers of visited operations.
        self._awaited: dict[Any, list[int]] = {}
        self._visited: dict[Any, int] = {}
        self._values: dict[int, Spec] = {}
        self._layouts: dict[Any, Spec] = {}
        self._known: dict[Any, _KnownValue] = {}
        self._numbers: dict[Any, int] = {}
        # Values that Shardy lays out for each of their readers, and those of them that have a reader.
        self._split: set[Any] = set()
        self._read: set[Any] = set()
        # The keys of what each value is computed from, and of all that the forward pass has read so far.
        self._sources: dict[Any, frozenset[str]] = {}
        self._read_before = frozenset[str]()
        self._inputs: list[str] = []
        self._last: list[Any] = []

    def plan(self) -> Plan:
        """The plan that was read, with the keys that shard each value."""

        def named(operands: tuple[PlannedValue, ...], sharded: list[_Sharded]) -> tuple[PlannedValue, ...]:
            pairs = zip(operands, sharded, strict=True)
            return tuple(replace(planned, origins=self._causes(at)) for planned, at in pairs)

        operations = tuple(
            replace(
                planned, operands=named(planned.operands, operand_nodes), results=named(planned.results, result_nodes)
            )
            for planned, operand_nodes, result_nodes in self._planned
        )
        moved = [(replace(planned, origins=self._causes(at)), follows) for planned, at, follows in self._collectives]
        return Plan(operations, tuple(planned for planned, _ in moved), tuple(at for _, at in moved), self._values)

    def _causes(self, sharded: _Sharded) -> dict[str, list[str]]:
        """For each axis that shards a value the keys that cause it; types of Explicit axes come from operands alone."""
        causes = self._regions.origins(sharded.nodes)
        for axis in self._origins.typed & causes.keys():
            causes[axis] = [key for key in causes[axis] if key in sharded.sources] or causes[axis]
        return causes

    def _sharded(self, value: Any, nodes: RegionNodes, gradient: bool) -> _Sharded:
        # A cotangent has the type of a value of the forward pass, from which it need not be computed.
        before = self._read_before if gradient else frozenset[str]()
        return _Sharded(nodes, self._sources_of([value]) | before)

    def _sources_of(self, values: Iterable[Any]) -> frozenset[str]:
        """The keys of what values are computed from."""
        return frozenset[str]().union(*(self._sources.get(value, ()) for value in values))

    def _derive(self, value: Any, sources: frozenset[str]) -> None:
        """Record the keys of what a value is computed from, with its own."""
        known = self._known[value]
        own = [*([known.fixed] if known.fixed else []), *known.asked, *known.met]
        self._sources[value] = sources.union(key for key, _ in own)

    def enter(self, function: Any) -> None:
        attributes = function.attributes
        every = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else []
        for at, argument in enumerate(function.regions[0].blocks[0].arguments):
            text = str(every[at]) if at < len(every) else ""
            self._layouts[argument] = spec = shardy.read_spec(text) or self._replicated(argument)
            name = shardy.name_of(str(argument.location))
            array = self._names.array(name) if name else None
            known = _KnownValue(array or name or f"argument {at}")
            if array is not None:
                given = self._keys.arrays[array]
                known = _KnownValue(array, given.dims, (given.key, spec))
            self._known[argument] = self._asking(argument, known, (("", "", at), 0))
            self._derive(argument, frozenset[str]())
            self._inputs.append(known.of)

    def argument(self, owner: Any, argument: Any, at: int) -> None:
        bound = self.bindings.get(argument)
        carried = self._layouts.get(owner.results[at]) if owner.name == "stablehlo.while" else None
        known = self._of(bound)
        self._layouts[argument] = layout = carried or self._layouts.get(bound) or self._replicated(argument)
        if owner.name == "sdy.manual_computation":
            left = automatic(owner, self._mesh)
            self._layouts[argument] = layout.over(left)
        if owner.name == "stablehlo.while" and not unchanged(owner, at):
            # The layout of a carry depends on its values in all steps.
            known = replace(known, fixed=None)
            self._numbers[argument] = self._number_of(owner.results[at])
        elif known.fixed is None:
            self._numbers[argument] = self._number_of(bound)
        self._known[argument] = known
        carried_on = owner.name == "stablehlo.while" and not unchanged(owner, at)
        self._derive(argument, self._sources_of(owner.operands if carried_on else [bound]))

    def operation(self, operation: Any) -> bool:
        dialect, _, name = operation.name.partition(".")
        if name == "constant":
            for result in operation.results:
                self._layouts[result] = self._replicated(result)
                self._known[result] = _KnownValue("a constant")
                self._split.add(result)
            return False
        if name == "return":
            self._last = list(operation.operands)
            parent = operation.parent
            if parent is not None and parent.name != "func.func":
                for result, value in zip(parent.results, self._last, strict=False):
                    self._regions.join(self._nodes(result, made=True), self._nodes(value))
            return False
        if dialect == "sdy" and name in CLAUSES:
            self._collective(operation, name)
            return False
        if name == "call":
            self._lie(operation, self._shardings(operation))
            return True
        self._computed(operation, name)
        return has_plan(operation, self._mesh)

    def returned(self, owner: Any) -> None:
        for result, value in zip(owner.results, self._last, strict=False):
            if value in self._known:
                self._known[result] = self._known[value]
                self._numbers[result] = self._number_of(value)
                self._derive(result, self._sources_of([value]))

    def _lie(self, operation: Any, layouts: list[Spec]) -> None:
        for result, spec in zip(operation.results, layouts, strict=False):
            self._layouts[result] = spec
            self._numbers[result] = self._regions.number()

    def _computed(self, operation: Any, name: str) -> None:
        metadata = self.metadata(operation)
        line, value, gradient = self._names.where(metadata)
        layouts = self._shardings(operation)
        rule = shardy.rule(operation)
        known_operands = [self._of(operand) for operand in operation.operands]
        named = rule.named([known.dims for known in known_operands])
        dims = tuple(known.dims for known in known_operands) if operation.name == "stablehlo.while" else named.results
        operands = tuple(self._operand(operand) for operand in operation.operands)
        operand_nodes = [self._nodes(operand) for operand in operation.operands]
        # What a branch reads is not an operand of the choice.
        choice = operation.name in ("stablehlo.case", "stablehlo.if")
        sources = self._read_before if choice else self._sources_of(operation.operands)
        self._lie(operation, layouts)
        if is_split(operation, self._split):
            self._split.update(operation.results)
        where = self._place_of(operation, metadata.op_name)
        passes = name == "convert" or row_of(name).moves in ("shape", "order", "part")
        of = line or (known_operands[0].of if known_operands and passes else name)
        for at, result in enumerate(operation.results):
            known = _KnownValue(of, dims[at] if at < len(dims) else ())
            self._known[result] = known if where is None else self._asking(result, known, (where, at))
            self._derive(result, sources)
        if not gradient:
            self._read_before |= sources
        result_nodes = [self._nodes(result, made=True) for result in operation.results]
        if rule.text is not None:
            self._regions.compute(rule.text, operand_nodes, result_nodes)
        elif operation.name in ("stablehlo.while", "sdy.sharding_constraint"):
            for collective, other in zip(operand_nodes, result_nodes, strict=False):
                self._regions.join(collective, other)
        for nodes, keys in zip(result_nodes, self._origins.origins[where] if where else (), strict=False):
            for along in nodes:
                for axis in along.keys() & keys.keys():
                    key = self._key(keys[axis], axis, line)
                    if key is not None:
                        self._regions.hint(along[axis], key)
        if not operation.results:
            return
        self._value(value, layouts[0])
        if computes(operation):
            # If a function is called several times, the collectives before each call wait for that call.
            self._visited[operation] = at = len(self._planned)
            for number in self._awaited.pop(operation, ()):
                collective, nodes, follows = self._collectives[number]
                self._collectives[number] = replace(collective, needed_by=at), nodes, follows
            results = tuple(self._operand(result) for result in operation.results)
            planned = PlannedOperation(
                name=name, line=line, number=at, gradient=gradient, operands=operands, results=results, rule=rule.text,
                factors=rule.sizes, names=named.names, reduced=rule.reduced, whole=rule.whole, permuted=rule.permuted,
                computes=shardy.computes(operation),
            )  # fmt: skip
            self._planned.append(
                (
                    planned,
                    [self._sharded(*pair, gradient) for pair in zip(operation.operands, operand_nodes, strict=True)],
                    [self._sharded(*pair, gradient) for pair in zip(operation.results, result_nodes, strict=True)],
                )
            )

    def _of(self, value: Any) -> _KnownValue:
        return self._known.get(value, _KnownValue(""))

    def _number_of(self, value: Any) -> int:
        if value not in self._numbers:
            self._numbers[value] = self._regions.number()
        return self._numbers[value]

    def _nodes(self, value: Any, *, made: bool = False) -> RegionNodes:
        """The nodes of a value where it is `made` or read.

        Each reader of a value with a fixed layout has its own, and so has each further one of a value that is split.
        """
        known, spec = self._of(value), self._layouts.get(value) or self._replicated(value)
        asked = [*([known.fixed] if known.fixed else []), *known.asked]
        fixed = known.fixed is not None or any(spec == whole for _, whole in known.asked)
        if not made and value in self._split:
            fixed |= value in self._read
            self._read.add(value)
        number = self._regions.number() if fixed and not made else self._number_of(value)
        nodes = self._regions.nodes(number, spec)
        for key, whole in (*asked, *known.met):
            self._regions.lie(nodes, whole, key)
        return nodes

    def _asking(
        self, value: Any, known: _KnownValue, where: tuple[sharding_origins.OperationPlace, int]
    ) -> _KnownValue:
        """What is known of a value, with the keys of the constraints on it."""
        asked: list[tuple[str, Spec]] = []
        met: list[tuple[str, Spec]] = []
        stated: list[_StatedLayout] = []
        for name in self._origins.constrained.get(where, ()):
            constraint = self._origins.constraints[name]
            layout = constraint.spec
            if layout is None or len(layout) != len(shape_of(value)):
                continue
            line = self._names.where(constraint.metadata)[0]
            if line is None and backward(constraint.stack):
                # It transposes the constraint on an array.
                continue
            key = self._key_of(line, layout, known.of) if constraint.asked or self._keys.typed else None
            stating = self._stating(constraint)
            # The layout of a result may also be that of a value inside, for which the user's line asks.
            if stating is not None and (key is None or (constraint.asked and not key.startswith("constraints."))):
                stated.append(_StatedLayout(layout, *stating, line))
            elif key is not None:
                (asked if constraint.asked else met).append((key, layout))
        return replace(known, asked=tuple(asked), met=tuple(met), stated=tuple(stated))

    def _stating(self, constraint: sharding_origins.Constraint) -> tuple[str, Frame] | None:
        """What gives a value a layout in the user's Python, by the word in the line or the primitive; and the line."""
        line = source_line(constraint.metadata.frames)
        if line is None or not self._keys.users(line.at[0]) or backward(constraint.stack):
            return None
        written = called_frame(frame(line.at), self._callers[line])
        primitive = constraint.stack.rpartition("/")[2]
        word = next((word for word in _STATING if word in frame(line.at).text), primitive)
        return f"the {word} in {written.place}", written

    @cached_property
    def _callers(self) -> dict[SourceLine, tuple[Location, ...]]:
        """The callers that tell the lines of constraints apart."""
        lines = (source_line(constraint.metadata.frames) for constraint in self._origins.constraints.values())
        return distinguishing(line for line in lines if line is not None)

    def _operand(self, value: Any) -> PlannedValue:
        known, shape = self._of(value), shape_of(value)
        dims = known.dims if len(known.dims) == len(shape) else (None,) * len(shape)
        spec = self._layouts.get(value) or self._replicated(value)
        return PlannedValue(of=known.of, shape=shape, dims=dims, spec=spec)

    def _place_of(self, operation: Any, stack: str) -> sharding_origins.OperationPlace | None:
        """The place of an operation in the module with the origins; None if it is ambiguous there."""
        if not computes(operation):
            return None
        place = self.place(operation, stack)
        same = self._counted.counts[place[:2]] == self._origins.counts[place[:2]]
        return place if same and place in self._origins.origins else None

    def _key(self, origin: str, axis: str, line: str | None) -> str | None:
        """The key for one of Shardy's origins; None if that key does not have the axis."""
        kind, _, number = origin.partition(": ")
        if kind == "input" and int(number) < len(self._inputs):
            array = self._keys.arrays.get(self._inputs[int(number)])
            return array.key if array and array.spec and axis in array.spec.axes else None
        if kind == "output" and int(number) < len(self._names.outputs):
            key, spec = self._keys.outputs[self._names.outputs[int(number)]]
            return key if axis in spec.axes else None
        layout = None
        if origin in self._origins.constraints:
            constraint = self._origins.constraints[origin]
            if not constraint.asked:
                return None
            layout, line = constraint.spec, self._names.where(constraint.metadata)[0]
        elif origin != "self":
            return None
        if layout is not None and axis not in layout.axes:
            return None
        return self._key_of(line, layout)

    def _key_of(self, line: str | None, layout: Spec | None, value: str | None = None) -> str | None:
        """The key of a constraint in a line, and on `value` if given.

        The result of a call is constrained after the call, in the scope of its lines.
        """
        calls = self._results.get(line or "", [])
        own = [value] if value and any(value in names for names in calls) else []
        for names in ([line] if line else [value] if value else [], own, *calls):
            key = self._keys.constraint(names, layout)
            if key is not None:
                return key
        return None

    def _collective(self, operation: Any, name: str) -> None:
        operand, result = operation.operands[0], operation.results[0]
        before = self._layouts.get(operand) or self._replicated(operand)
        after = shardy.read_spec(str(operation.attributes["out_sharding"])) or self._replicated(result)
        known = self._of(operand)
        taken = self._nodes(operand)
        self._known[result] = replace(known, fixed=None)
        self._derive(result, self._sources_of([operand]))
        self._layouts[result] = after
        self._numbers[result] = self._regions.number()
        self._regions.move(taken, self._nodes(result))
        owner, user = self.consumer(result)
        traced = self.metadata(operation)
        own = self._names.where(traced)
        asks = own[0] is not None and self._origins.asks(traced.op_name, after)
        line, _, gradient = self._names.where(traced if owner is None else user)
        reduces = name in ("all_reduce", "reduce_scatter")
        maker = producer(operand)
        if owner is not None and owner.name.endswith(".return") and maker is not None:
            # A value that is only returned is moved for the line that constrains or computes it.
            line, _, gradient = own if asks and own[0] not in self._results else self._names.where(self.metadata(maker))
        if reduces or line is None:
            line, gradient = own[0] or line, own[2] if own[0] else gradient
        if reduces:
            self._value(own[1], after)
        source = maker if reduces else owner
        if not reduces and source is not None:
            self._awaited.setdefault(source, []).append(len(self._collectives))
        asked_by = next((key for key, spec in known.asked if spec == after != before), None)
        stated = None
        if asked_by is None and not gradient:
            stated = next((stated for stated in known.stated if stated.layout == after != before), None)
        if asked_by is None and stated is None and asks:
            asked_by = self._key_of(own[0], after, known.of)
        needing = "" if source is None else self._needing(source)
        if asked_by is None and asks and own[2]:
            # The backward pass transposes the constraint of a line.
            (line, _, gradient), needing = own, "reshard"
        axes = shardy.collective_axes(operation, before, after)
        kind, sizes = CLAUSES[name], (bytes_of(operand, self._parts(before)), bytes_of(result, self._parts(after)))
        devices = math.prod(map(self._size, axes))
        collective = PlannedCollective(
            kind=kind,
            axes=axes,
            line=line,
            operation=needing,
            of=known.of,
            before=before,
            after=after,
            bytes_in=sizes[0],
            bytes_out=sizes[1],
            reduction=shardy.reduction(operation, operand) if reduces else None,
            gradient=gradient,
            dims=self._operand(operand).dims,
            dtype=dtype_of(operand),
            shape=shape_of(operand),
            bytes_sent=ring.sent(kind, devices, *sizes),
            count=self.count,
            branches=self.branches,
            alone=devices == 1,
            needed_by=self._visited.get(source) if reduces else None,
            asked_by=asked_by,
            stated_in=stated and stated.line,
            stated_at=stated and stated.at,
            stated_by=stated and stated.by,
        )
        self._collectives.append((collective, self._sharded(operand, taken, gradient), len(self._planned)))

    def _needing(self, operation: Any) -> str:
        """The name of the operation that needs a value; for a return, that of the call or loop."""
        if operation.name.endswith(".return") and operation.parent != self.main:
            operation = operation.parent
        dialect, _, name = operation.name.partition(".")
        return "call" if dialect == "func" and name == "func" else name

    def _value(self, number: int | None, spec: Spec | None) -> None:
        # The last operation of an equation gives its value.
        if number is not None and spec is not None:
            self._values[number] = spec

    def _replicated(self, value: Any) -> Spec:
        return Spec().padded(len(shape_of(value)))

    def _shardings(self, operation: Any) -> list[Spec]:
        specs = shardy.shardings(operation)
        if len(specs) == len(operation.results):
            return specs
        return [self._replicated(result) for result in operation.results]

    def _parts(self, spec: Spec) -> int:
        return math.prod(self._size(axis) for axes in spec for axis in axes)

    def _size(self, axis: str) -> int:
        name, _, part = axis.partition(":")
        return int(part.partition(")")[2]) if part else self._mesh.sizes[name]


def _results(experiment: Experiment) -> dict[str, list[tuple[str, ...]]]:
    """For each line inside calls the names of the calls' results, innermost call first."""
    calls: list[tuple[Enclosing, tuple[str, ...]]] = []

    def gives(enclosing: Enclosing) -> tuple[str, ...]:
        # Written once for all lines of a call: both may be thousands.
        given = next((texts for call, texts in reversed(calls) if call is enclosing), None)
        if given is None:
            given = tuple(map(str, enclosing.gives))
            calls.append((enclosing, given))
        return given

    return {
        str(line): [gives(each) for each in reversed(around)]
        for graph in (experiment.per_device, experiment.graph)
        for line, around in enclosed(graph)
    }


def _written(experiment: Experiment, spec: Spec, rank: int) -> tuple[Spec, ...]:
    """The forms in which a program may write the layout of a key."""
    whole = spec.padded(rank)
    return (whole, whole.over(experiment.automatic)) if experiment.automatic else (whole,)


def _constraint(experiment: Experiment, names: Sequence[str], layout: Spec | None) -> str | None:
    """The key of the constraint that a program puts on one of these lines; an output's own key for an output.

    None if `layout` is not that of the key, but an intermediate one. A stacked result is constrained after its repeat;
    per-device lines constrain only the axes that they leave to the compiler.
    """
    outputs = {name: spec for name, spec in experiment.outputs.items() if name not in experiment.imports.open}
    for key, specs in (("constraints", experiment.constraints), ("outputs", outputs)):
        there = [name for name in names if name in specs]
        there = there or [spec for spec in specs if any(spec.startswith(f"{name}.") for name in names)]
        same = [name for name in there if layout is None or layout in _written(experiment, specs[name], len(layout))]
        if len(same) == 1:
            return experiment.key_of_layout(same[0]) if key == "outputs" else experiment.key_of_constraint(same[0])
    return None
