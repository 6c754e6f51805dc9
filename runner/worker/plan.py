"""A lowered program in; what Shardy plans of it, as plain data, out.

Shardy's passes run on a copy of the module, without XLA: what they plan is not what the partitioner then compiles.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.evidence.nodes import Origins
from runner.experiment.model import Experiment
from runner.layout import Mesh, Spec
from runner.record.files import write_text
from runner.sharding.plan import CLAUSES, Collective, Operation, Plan, Planned
from runner.untyped import is_list
from runner.worker.versions import propagated

_AXES = re.compile(r"\[((?:\{[^}]*\}(?:, )?)*)\]")
_DIMENSION = re.compile(r"\{([^}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(?::(\(\d+\)\d+))?')
_SHARDING = re.compile(r"<@\w*, (\[[^\]]*\])[^>]*>")
_RULE = re.compile(r"op_sharding_rule<(.*?) ?\{([^}]*)\}(.*)>$")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^>]+)>")
_BITS = re.compile(r"(\d+)")

_REDUCTIONS = {
    "add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "and", "or": "or",
}  # fmt: skip

Place = tuple[str | None, str | None, bool]
"""The line of an operation, the place in its expression, and whether it is in the backward pass."""

Where = Callable[[str], Place]
"""From the name stack of an operation (`jit(f)/hidden/dot_general`) to where it stands."""

NOWHERE: Place = (None, None, False)


def plan(lowered: Any, mesh: Mesh, where: Where) -> Plan:
    """What Shardy plans of a lowered program; a plan with the reason where it cannot be asked."""
    modules = propagated(lowered)
    if isinstance(modules, str):
        return Plan(missing=modules)
    module, told = modules
    reader = _Reader(mesh, where, _origins(module, told))
    for function in module.body.operations:
        if function.operation.name == "func.func":
            reader.function(function)
    return Plan(tuple(reader.operations), tuple(reader.collectives), reader.values)


def of_program(experiment: Experiment, program: str, lowered: Any, folder: Path) -> Planned:
    """The plan of a program of the graph as the record has it; all of it is left in `folder`."""
    origins = Origins(experiment, "graph")

    def where(stack: str) -> Place:
        found = origins.of(stack)
        return (found[0].node, None, found[0].gradient) if found else NOWHERE

    found = plan(lowered, experiment.mesh, where)
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


@dataclass
class _Reader:
    mesh: Mesh
    where: Where
    origins: Mapping[Any, tuple[Mapping[str, str], ...]]
    operations: list[Operation] = field(default_factory=list[Operation])
    collectives: list[Collective] = field(default_factory=list[Collective])
    values: dict[str, dict[str, Spec]] = field(default_factory=dict[str, dict[str, Spec]])
    _layouts: dict[Any, Spec] = field(default_factory=dict[Any, Spec])
    _names: dict[Any, str] = field(default_factory=dict[Any, str])

    def function(self, function: Any) -> None:
        attributes = function.operation.attributes
        every = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else []
        for region in function.operation.regions:
            for block in region.blocks:
                for at, argument in enumerate(block.arguments):
                    given = str(every[at]) if at < len(every) else ""
                    self._layouts[argument] = _one(given) or self._replicated(argument)
                    self._names[argument] = _name_of(str(argument.location)) or f"argument {at}"
                self._block(block)

    def _block(self, block: Any) -> None:
        for operation in block.operations:
            self._operation(operation.operation)

    def _operation(self, operation: Any) -> None:
        dialect, _, name = operation.name.partition(".")
        if name in ("constant", "return"):
            for result in operation.results:
                self._layouts[result] = self._replicated(result)
                self._names[result] = "a constant"
            return
        if dialect == "sdy" and name in CLAUSES:
            self._collective(operation, name)
            return
        line, place, _ = self.where(_name_of(str(operation.location)) or "")
        layouts = self._shardings(operation)
        for result, spec in zip(operation.results, layouts, strict=False):
            self._layouts[result] = spec
            self._names[result] = line or name
        if operation.results:
            self._value(line, place, layouts[0])
            self.operations.append(
                Operation(
                    name,
                    line,
                    place,
                    tuple(self._layouts.get(operand) for operand in operation.operands),
                    tuple(layouts),
                    tuple(_shape(result) for result in operation.results),
                    *_rule(operation),
                    origins=self.origins.get(operation, ()),
                )
            )
        for region in operation.regions:
            for block in region.blocks:
                if dialect == "stablehlo" and name in ("reduce", "scatter", "reduce_window", "sort"):
                    continue  # what a reduction does to two numbers
                for at, argument in enumerate(block.arguments):
                    carried = layouts[at] if at < len(layouts) else None
                    self._layouts[argument] = carried if carried is not None else self._replicated(argument)
                    self._names[argument] = line or name
                self._block(block)

    def _collective(self, operation: Any, name: str) -> None:
        operand, result = operation.operands[0], operation.results[0]
        before = self._layouts.get(operand) or self._replicated(operand)
        after = _one(str(operation.attributes["out_sharding"])) or self._replicated(result)
        self._layouts[result], self._names[result] = after, self._names.get(operand, "")
        owner = next((use.owner.operation for use in result.uses), None)
        own = self.where(_name_of(str(operation.location)) or "")
        line, _, gradient = self.where(_name_of(str((owner or operation).location)) or "")
        reduces = name in ("all_reduce", "reduce_scatter")
        if reduces or line is None:
            line, gradient = own[0] or line, own[2] if own[0] else gradient
        if reduces:
            self._value(own[0], own[1], after)
        source = operand.owner if reduces else owner
        source = getattr(source, "operation", source)
        self.collectives.append(
            Collective(
                CLAUSES[name],
                _collective_axes(operation, name, before, after),
                line,
                source.name.partition(".")[2] if source is not None and hasattr(source, "name") else "",
                self._names.get(operand, ""),
                before,
                after,
                self._bytes(operand, before),
                self._bytes(result, after),
                _reduction(operation, operand) if reduces else None,
                gradient,
            )
        )

    def _value(self, line: str | None, place: str | None, spec: Spec | None) -> None:
        # The last operation of a place is the one whose result has the place's value.
        if line is not None and place is not None and spec is not None:
            self.values.setdefault(line, {})[place] = spec

    def _replicated(self, value: Any) -> Spec:
        return Spec().padded(len(_shape(value)))

    def _shardings(self, operation: Any) -> list[Spec]:
        text = str(operation.attributes["sdy.sharding"]) if "sdy.sharding" in operation.attributes else ""
        found = [_spec(each) for each in _SHARDING.findall(text)]
        if len(found) == len(operation.results):
            return found
        return [self._replicated(result) for result in operation.results]

    def _bytes(self, value: Any, spec: Spec) -> int:
        match = _TENSOR.match(str(value.type))
        if match is None:
            return 0
        bits = _BITS.search(match[2])
        width = max(int(bits[1]) if bits else 8, 8) // 8 * (2 if match[2].startswith("complex") else 1)
        width = 1 if match[2] == "i1" else width
        parts = math.prod(self._size(axis) for axes in spec for axis in axes)
        return math.prod(_shape(value)) * width // parts

    def _size(self, axis: str) -> int:
        name, _, part = axis.partition(":")
        return int(part.partition(")")[2]) if part else self.mesh.sizes[name]


def _shape(value: Any) -> tuple[int, ...]:
    match = _TENSOR.match(str(value.type))
    return tuple(int(size) for size in match[1].split("x")[:-1]) if match else ()


def _spec(text: str) -> Spec:
    return Spec(
        tuple(f"{axis}:{part}" if part else axis for axis, part in _AXIS.findall(dimension))
        for dimension in _DIMENSION.findall(text)
    )


def _one(text: str) -> Spec | None:
    found = _SHARDING.search(text)
    return None if found is None else _spec(found[1])


def _name_of(location: str) -> str | None:
    """The name stack in a location: `loc("jit(f)/hidden/dot_general"(callsite(…)))`."""
    found = re.match(r'loc\("([^"]*)"', location)
    return found[1] if found else None


def _rule(operation: Any) -> tuple[str | None, Mapping[str, int], tuple[str, ...]]:
    if "sdy.sharding_rule" not in operation.attributes:
        return None, {}, ()
    found = _RULE.search(str(operation.attributes["sdy.sharding_rule"]))
    if found is None:
        return None, {}, ()
    sizes = {name: int(size) for name, _, size in (one.strip().partition("=") for one in found[2].split(",") if one)}
    reduced = re.search(r"reduction=\{([^}]*)\}", found[3])
    return found[1], sizes, tuple(name.strip() for name in reduced[1].split(",")) if reduced else ()


def _origins(module: Any, told: Any) -> dict[Any, tuple[Mapping[str, str], ...]]:
    """The origins of the results' shardings, of operations that the two modules have in the same order."""
    mine, theirs = list(_computing(module.operation)), list(_computing(told.operation))
    if [one.name for one in mine] != [one.name for one in theirs]:
        return {}
    found: dict[Any, tuple[Mapping[str, str], ...]] = {}
    for one, other in zip(mine, theirs, strict=True):
        if "sdy.sharding_origins" in other.attributes:
            text = str(other.attributes["sdy.sharding_origins"])
            each = re.findall(r"\{[^}]*\}", text)
            found[one] = tuple(dict(re.findall(r'"?([^\s"{,]+)"? = "([^"]*)"', part)) for part in each)
    return found


def _computing(operation: Any) -> Iterator[Any]:
    """The operations inside of another that compute: not Shardy's own, nor constants, which it duplicates."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                inner = inner.operation
                if not inner.name.startswith("sdy.") and not inner.name.endswith((".constant", ".return")):
                    yield inner
                yield from _computing(inner)


def _collective_axes(operation: Any, name: str, before: Spec, after: Spec) -> tuple[str, ...]:
    for key in ("reduction_axes", "reduce_scatter_axes", "gathering_axes", "slicing_axes"):
        if key in operation.attributes:
            return tuple(f"{a}:{part}" if part else a for a, part in _AXIS.findall(str(operation.attributes[key])))
    if name == "all_to_all" and "params" in operation.attributes:
        return tuple(a for a, _ in _AXIS.findall(str(operation.attributes["params"])))
    one, other = ({axis for axes in spec for axis in axes} for spec in (before, after))
    moved = {axis for a, b in zip(before, after, strict=False) for axis in {*a, *b} if a != b}
    return tuple(sorted((one | other) & moved))


def _reduction(operation: Any, operand: Any) -> str | None:
    """What an all-reduce does: the operation that it completes says so, where Shardy's text does not."""
    if "reduction_kind" in operation.attributes:
        kind = str(operation.attributes["reduction_kind"]).strip('"').lower()
        found = next((name for name in ("sum", "max", "min", "prod", "and", "or") if name in kind), None)
        if found:
            return found
    owner = getattr(operand.owner, "operation", operand.owner)
    while owner is not None and owner.name.startswith("sdy.") and len(owner.operands):
        owner = getattr(owner.operands[0].owner, "operation", None)
    if owner is None or not hasattr(owner, "regions"):
        return None
    for region in owner.regions:
        for block in region.blocks:
            for inner in block.operations:
                kind = inner.operation.name.partition(".")[2]
                if kind in _REDUCTIONS:
                    return _REDUCTIONS[kind]
    return "sum"
