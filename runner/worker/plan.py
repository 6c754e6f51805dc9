"""A lowered program in; what Shardy plans of it, as plain data, out.

Shardy's passes run on a copy of the module, without XLA: what they plan is not what the partitioner then compiles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.evidence.nodes import Origins
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.layout import Mesh, Spec
from runner.record.files import write_text
from runner.sharding import ring
from runner.sharding.plan import CLAUSES, Collective, Operand, Operation, Plan, Planned
from runner.untyped import is_list
from runner.worker import shardy
from runner.worker.modules import Walk, bytes_of, name_of, shape_of
from runner.worker.versions import propagated

Place = tuple[str | None, str | None, bool]
"""The line of an operation, the place in its expression, and whether it is in the backward pass."""

Where = Callable[[str], Place]
"""From the name stack of an operation (`jit(f)/hidden/dot_general`) to where it stands."""

NOWHERE: Place = (None, None, False)


@dataclass(frozen=True)
class Names:
    """What the names in a module are in the experiment: operations' by `where`, arguments' by `array`.

    `outputs` are the results of its function, in their order; no names where nobody asks for keys.
    """

    where: Where
    array: Callable[[str], str | None] = lambda _: None
    outputs: tuple[str, ...] = ()


def plan(lowered: Any, experiment: Experiment, names: Names) -> Plan:
    """What Shardy plans of a lowered program; a plan with the reason where it cannot be asked."""
    modules = propagated(lowered)
    if isinstance(modules, str):
        return Plan(missing=modules)
    module, told = modules
    origins = _Told(told, experiment.mesh)
    origins.walk()
    reader = _Reader(module, experiment, names, origins)
    reader.walk()
    return Plan(tuple(reader.planned), tuple(reader.collectives), reader.values)


def of_program(experiment: Experiment, program: Program, lowered: Any, folder: Path) -> Planned:
    """The plan of a program on the mesh as the record has it; all of it is left in `folder`."""
    origins = Origins(experiment, program.lines)

    def where(stack: str) -> Place:
        found = origins.of(stack)
        return (found[0].node, None, found[0].gradient) if found else NOWHERE

    def array(name: str) -> str | None:
        found = origins.of(name)
        return found[0].node if found else None

    found = plan(lowered, experiment, Names(where, array, tuple(experiment.outputs)))
    write_text(folder / f"plan_{program}.json", _text(found))
    return found.summary()


def _text(found: Plan) -> str:
    """The plan as a file has it: a line for each collective and each operation."""
    parts = [
        f"{json.dumps(key)}: " + (f"[\n{_rows(value)}\n]" if is_list(value) and value else json.dumps(value))
        for key, value in found.to_json().items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(values: list[Any]) -> str:
    return ",\n".join(f"  {json.dumps(value)}" for value in values)


_KEPT = frozenset({"constant", "return", "call"})
"""What the plan has no entry for: it computes nothing."""


def _computes(operation: Any) -> bool:
    dialect, _, name = operation.name.partition(".")
    return dialect != "sdy" and name not in _KEPT


class _Told(Walk):
    """The origins of the results' shardings, of the operations that compute, in their order."""

    def __init__(self, module: Any, mesh: Mesh) -> None:
        super().__init__(module)
        self._mesh = mesh
        self.order: list[tuple[str, tuple[Mapping[str, str], ...]]] = []
        self.constraints: dict[str, tuple[str, Spec | None]] = {}
        """The name stacks and the layouts of constraints, by Shardy's names for them."""

    def operation(self, operation: Any) -> bool:
        attributes = operation.attributes
        if "sdy.sharding_origin_name" in attributes:
            name = str(attributes["sdy.sharding_origin_name"]).strip('"')
            given = shardy.one(str(attributes["sharding"])) if "sharding" in attributes else None
            self.constraints[name] = self.stack(operation), given
        if _computes(operation):
            self.order.append((operation.name, shardy.origins(operation)))
        return _has_plan(operation, self._mesh)


def _has_plan(operation: Any, mesh: Mesh) -> bool:
    """Whether what an operation has in its regions is planned.

    What a reduction does to two numbers is none of the program's operations; nor has a device's code a plan.
    """
    if operation.name == "sdy.manual_computation":
        return bool(_automatic(operation, mesh))
    return operation.name.partition(".")[2] not in _OF_NUMBERS


_OF_NUMBERS = frozenset({"reduce", "scatter", "reduce_window", "sort", "all_reduce", "reduce_scatter"})


def _automatic(operation: Any, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a `shard_map` leaves to the compiler: over these there is a plan of a device's code."""
    manual = str(operation.attributes["manual_axes"])
    return tuple(axis for axis in mesh.axes if f'"{axis}"' not in manual)


@dataclass(frozen=True)
class _Known:
    """What is known of a value: what it is of, the names of its dimensions, and the keys that cut it."""

    of: str
    dims: tuple[str | None, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict[str, str])


class _Reader(Walk):
    def __init__(self, module: Any, experiment: Experiment, names: Names, told: _Told) -> None:
        super().__init__(module)
        self._mesh: Mesh = experiment.mesh
        self._experiment, self._names, self._told = experiment, names, told
        self._order = iter(told.order)
        self._matched = True
        self.planned: list[Operation] = []
        self.collectives: list[Collective] = []
        self.values: dict[str, dict[str, Spec]] = {}
        self._layouts: dict[Any, Spec] = {}
        self._known: dict[Any, _Known] = {}
        self._inputs: list[str] = []
        self._last: list[Any] = []

    def enter(self, function: Any) -> None:
        attributes = function.attributes
        every = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else []
        for at, argument in enumerate(function.regions[0].blocks[0].arguments):
            given = str(every[at]) if at < len(every) else ""
            self._layouts[argument] = spec = shardy.one(given) or self._replicated(argument)
            found = shardy.name_of(str(argument.location))
            array = self._names.array(found) if found else None
            known = _Known(array or found or f"argument {at}")
            if array is not None:
                origins = dict.fromkeys(spec.axes, f"arrays.{array}.spec")
                known = _Known(array, self._experiment.array(array).dims, origins)
            self._known[argument] = known
            self._inputs.append(known.of)

    def argument(self, owner: Any, argument: Any, at: int) -> None:
        given = self.bindings.get(argument)
        carried = self._layouts.get(owner.results[at]) if owner.name == "stablehlo.while" else None
        if given in self._known:
            self._known[argument] = self._known[given]
        self._layouts[argument] = layout = carried or self._layouts.get(given) or self._replicated(argument)
        if owner.name == "sdy.manual_computation":
            known, automatic = self._of(given), _automatic(owner, self._mesh)
            self._layouts[argument] = layout.over(automatic)
            origins = {axis: key for axis, key in known.origins.items() if axis in automatic}
            self._known[argument] = replace(known, origins=origins)

    def operation(self, operation: Any) -> bool:
        dialect, _, name = operation.name.partition(".")
        if name == "constant":
            for result in operation.results:
                self._layouts[result] = self._replicated(result)
                self._known[result] = _Known("a constant")
            return False
        if name == "return":
            self._last = list(operation.operands)
            return False
        if dialect == "sdy" and name in CLAUSES:
            self._collective(operation, name)
            return False
        if name == "call":
            self._results(operation, self._shardings(operation))
            return True
        self._computed(operation, name)
        return _has_plan(operation, self._mesh)

    def returned(self, owner: Any) -> None:
        for result, value in zip(owner.results, self._last, strict=False):
            if value in self._known:
                self._known[result] = self._known[value]

    def _results(self, operation: Any, layouts: list[Spec]) -> None:
        for result, spec in zip(operation.results, layouts, strict=False):
            self._layouts[result] = spec

    def _computed(self, operation: Any, name: str) -> None:
        line, place, gradient = self._names.where(self.stack(operation))
        layouts = self._shardings(operation)
        rule = shardy.rule(operation)
        named = rule.named([self._of(operand).dims for operand in operation.operands])
        dims, origins = named.results, self._origins_of(operation)
        if operation.name == "stablehlo.while":
            carried = [self._of(operand) for operand in operation.operands]
            dims, origins = tuple(one.dims for one in carried), tuple(one.origins for one in carried)
        self._results(operation, layouts)
        for at, result in enumerate(operation.results):
            axes = layouts[at].axes
            keys = {axis: key for axis, key in origins[at].items() if axis in axes} if at < len(origins) else {}
            self._known[result] = _Known(line or name, dims[at] if at < len(dims) else (), keys)
        if not operation.results:
            return
        self._value(line, place, layouts[0])
        if _computes(operation):
            self.planned.append(
                Operation(
                    name,
                    line,
                    place,
                    gradient,
                    tuple(self._operand(operand) for operand in operation.operands),
                    tuple(self._operand(result) for result in operation.results),
                    rule.text,
                    rule.sizes,
                    named.names,
                    rule.reduced,
                    rule.whole,
                    rule.permuted,
                )
            )

    def _of(self, value: Any) -> _Known:
        return self._known.get(value, _Known(""))

    def _operand(self, value: Any) -> Operand:
        known, shape = self._of(value), shape_of(value)
        dims = known.dims if len(known.dims) == len(shape) else (None,) * len(shape)
        return Operand(known.of, shape, dims, self._layouts.get(value) or self._replicated(value), known.origins)

    def _origins_of(self, operation: Any) -> tuple[Mapping[str, str], ...]:
        """For each result the mesh axes, and the keys of the experiment that cut it so.

        As Shardy tells it, as long as the two modules have the same operations in the same order; what it does not
        tell is what the operands have it from.
        """
        if not _computes(operation):
            return ()
        told: tuple[Mapping[str, str], ...] = ()
        if self._matched:
            name, told = next(self._order, ("", ()))
            self._matched = name == operation.name
            told = told if self._matched else ()
        line = self._names.where(self.stack(operation))[0]
        given: dict[str, str] = {}
        for operand in operation.operands:
            given = {**self._of(operand).origins, **given}
        found: list[Mapping[str, str]] = []
        for at in range(len(operation.results)):
            keys = {axis: self._key(text, line) for axis, text in told[at].items()} if at < len(told) else {}
            found.append(given | {axis: key for axis, key in keys.items() if key is not None})
        return tuple(found)

    def _key(self, origin: str, line: str | None) -> str | None:
        """The key of the experiment that an origin of Shardy's is."""
        kind, _, number = origin.partition(": ")
        if kind == "input" and int(number) < len(self._inputs):
            return f"arrays.{self._inputs[int(number)]}.spec"
        if kind == "output" and int(number) < len(self._names.outputs):
            return f"outputs.{self._names.outputs[int(number)]}"
        given = None
        if origin in self._told.constraints:
            stack, given = self._told.constraints[origin]
            line = self._names.where(stack)[0]
        elif origin != "self":
            return None
        return None if line is None else _constraint(self._experiment, line, given)

    def _collective(self, operation: Any, name: str) -> None:
        operand, result = operation.operands[0], operation.results[0]
        before = self._layouts.get(operand) or self._replicated(operand)
        after = shardy.one(str(operation.attributes["out_sharding"])) or self._replicated(result)
        self._known[result] = self._of(operand)
        self._layouts[result] = after
        owner = _consumer(result)
        own = self._names.where(self.stack(operation))
        user = "/".join([*self.inside, name_of(owner)]) if owner is not None else self.stack(operation)
        line, _, gradient = self._names.where(user)
        reduces = name in ("all_reduce", "reduce_scatter")
        if reduces or line is None:
            line, gradient = own[0] or line, own[2] if own[0] else gradient
        if reduces:
            self._value(own[0], own[1], after)
        source = operand.owner if reduces else owner
        source = getattr(source, "operation", source)
        axes = shardy.collective_axes(operation, name, before, after)
        kind, sizes = CLAUSES[name], (bytes_of(operand, self._parts(before)), bytes_of(result, self._parts(after)))
        keys = self._of(operand).origins
        devices = math.prod(map(self._size, axes))
        self.collectives.append(
            Collective(
                kind,
                axes,
                line,
                source.name.partition(".")[2] if source is not None and hasattr(source, "name") else "",
                self._of(operand).of,
                before,
                after,
                *sizes,
                reduction=shardy.reduction(operation, operand) if reduces else None,
                gradient=gradient,
                dims=self._operand(operand).dims,
                origins={axis: keys[axis] for axis in before.axes if axis in keys},
                sent=ring.sent(kind, devices, *sizes),
                count=self.count,
                branches=self.branches,
                at=len(self.planned),
                alone=devices == 1,
            )
        )

    def _value(self, line: str | None, place: str | None, spec: Spec | None) -> None:
        # The last operation of a place is the one whose result has the place's value.
        if line is not None and place is not None and spec is not None:
            self.values.setdefault(line, {})[place] = spec

    def _replicated(self, value: Any) -> Spec:
        return Spec().padded(len(shape_of(value)))

    def _shardings(self, operation: Any) -> list[Spec]:
        found = shardy.shardings(operation)
        if len(found) == len(operation.results):
            return found
        return [self._replicated(result) for result in operation.results]

    def _parts(self, spec: Spec) -> int:
        return math.prod(self._size(axis) for axes in spec for axis in axes)

    def _size(self, axis: str) -> int:
        name, _, part = axis.partition(":")
        return int(part.partition(")")[2]) if part else self._mesh.sizes[name]


def _consumer(value: Any) -> Any:
    """The operation that takes a value in the end, through more collectives of Shardy's; None where none does."""
    owner = next((use.owner.operation for use in value.uses), None)
    while owner is not None and owner.name.partition(".")[2] in CLAUSES and owner.name.startswith("sdy."):
        owner = next((use.owner.operation for use in owner.results[0].uses), None)
    return owner


def _constraint(experiment: Experiment, line: str, given: Spec | None) -> str | None:
    """The key of the constraint that a program puts on a line; of an output, that of the output.

    None where the layout that was `given` is not the key's: explicit sharding asks for others on the way.
    """
    for key, specs in (("constraints", experiment.constraints), ("outputs", experiment.outputs)):
        if line in specs and (given is None or specs[line].padded(len(given)) == given):
            return f"{key}.{line}"
    return None
