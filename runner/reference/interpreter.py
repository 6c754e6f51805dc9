"""Statements and the shards of every device in; every value on every device out. NumPy only, float64.

Both oracles are this one interpreter. `per_device` runs on the experiment's mesh, all devices in lock-step, so that a
collective sees every device's operand. `graph` runs on a mesh of one device without axes, which holds whole arrays.

A value is a list with one entry per device, by row-major position in the mesh. Devices that hold the same value hold the
same object, and an operation is computed once for each distinct combination of operands, so that replicated work is done
once.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.experiment import Experiment, Loop, Section, Statement
from runner.language import counterparts
from runner.language.operations import OPERATIONS, Operation
from runner.layout import Mesh

PerDevice = list[Any]
"""One value per device, by row-major position in the mesh."""

WHOLE = Mesh((), ())
"""The mesh of one device on which `graph` is interpreted."""

_NARROW = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}


@dataclass(frozen=True)
class Rounding:
    """How far rounding can carry a value from the oracle's.

    - `steps`: roundings to the storage dtype on the longest way from the arrays.
    - `growth`: the square roots of the lengths of the sums and contractions on that way, added up.
    - `scale`: the largest magnitude of a term that any of these sums adds.
    """

    steps: float = 0.0
    growth: float = 0.0
    scale: float = 0.0

    def joined(self, other: Rounding) -> Rounding:
        """The worse of two ways."""
        return Rounding(max(self.steps, other.steps), max(self.growth, other.growth), max(self.scale, other.scale))


@dataclass
class Interpretation:
    """Every named value on every device, with its `Rounding`."""

    values: dict[str, PerDevice]
    rounding: dict[str, Rounding]


def interpret(
    experiment: Experiment,
    section: Section,
    arrays: Mapping[str, np.ndarray],
    statements: Iterable[Statement] | None = None,
) -> Interpretation:
    """Run one section (or `statements` in its place) on `arrays`, which are whole and in their own dtype."""
    mesh = experiment.mesh if section == "per_device" else WHOLE
    interpreter = _Interpreter(mesh, experiment.dims, experiment.x64)
    for array in experiment.arrays:
        whole = widen(arrays[array.name], experiment.x64)
        if section == "graph":
            interpreter.define(array.name, [whole], Rounding())
            continue
        blocks: dict[tuple[int, ...], np.ndarray] = {}
        for position in range(mesh.size):
            blocks.setdefault(array.layout.block(position), whole[array.layout.index(position)])
        shards = [blocks[array.layout.block(position)] for position in range(mesh.size)]
        interpreter.define(array.name, shards, Rounding())
    # Overflow and NaN are the experiment's own; the value check reports them.
    with np.errstate(all="ignore"):
        interpreter.run(experiment.section(section) if statements is None else statements)
    return Interpretation(interpreter.values, interpreter.rounding)


def widen(value: Any, x64: bool) -> Any:
    """Floats to float64, complex to complex128; 64-bit integers to JAX's default of 32 unless `x64`."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    dtype = value.dtype
    if dtype.kind in "biu":
        return value.astype(_NARROW[dtype]) if not x64 and dtype in _NARROW else value
    if dtype.kind == "c":
        return value if dtype == np.complex128 else value.astype(np.complex128)
    if dtype == np.float64:
        return value
    if dtype.name in ("int4", "uint4"):
        return value.astype(np.int8 if dtype.name == "int4" else np.uint8)
    return value.astype(np.float64)


@dataclass
class _Interpreter:
    mesh: Mesh
    sizes: Mapping[str, int]
    x64: bool
    values: dict[str, PerDevice] = field(default_factory=dict)
    rounding: dict[str, Rounding] = field(default_factory=dict)

    def define(self, name: str, value: PerDevice, rounding: Rounding) -> None:
        self.values[name] = value
        self.rounding[name] = rounding

    def run(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Loop):
                self._repeat(statement)
            else:
                self.define(statement.name, *self._evaluate(statement.expression.tree))

    def _repeat(self, loop: Loop) -> None:
        carried = {name: self._evaluate(first.tree) for name, first in loop.carry}
        outer_values, outer_rounding = dict(self.values), dict(self.rounding)
        for step in range(loop.steps):
            self.values, self.rounding = dict(outer_values), dict(outer_rounding)
            for name, (value, rounding) in carried.items():
                self.define(name, value, rounding)
            self.define(loop.index, self._everywhere(step if loop.unroll else np.int32(step)), Rounding())
            self.run(loop.body)
            carried = {name: (self.values[name], self.rounding[name]) for name in carried}
        self.values, self.rounding = outer_values, outer_rounding
        for name, (value, rounding) in carried.items():
            self.define(f"{loop.name}.{name}", value, rounding)

    def _everywhere(self, value: Any) -> PerDevice:
        return [value] * self.mesh.size

    def _lift(self, function: Callable[..., Any], *operands: PerDevice) -> PerDevice:
        """Apply a function device by device, once for each distinct combination of operands."""
        done: dict[tuple[int, ...], Any] = {}
        results = []
        for position in range(self.mesh.size):
            here = [operand[position] for operand in operands]
            key = tuple(map(id, here))
            if key not in done:
                done[key] = widen(function(*here), self.x64)
            results.append(done[key])
        return results

    def _evaluate(self, tree: ast.expr) -> tuple[PerDevice, Rounding]:
        spent = _Spent()
        value = self._value(tree, spent)
        read = Rounding()
        for name in spent.names:
            read = read.joined(self.rounding[name])
        return value, Rounding(read.steps + spent.steps, read.growth + spent.growth, max(read.scale, spent.scale))

    def _value(self, node: ast.expr, spent: _Spent) -> PerDevice:
        match node:
            case ast.Constant(value=value):
                return self._everywhere(value)
            case ast.Name(id=name):
                if name in self.values:
                    spent.names.append(name)
                    return self.values[name]
                return self._everywhere(self.sizes[name])
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if f"{loop}.{carried}" in self.values:
                spent.names.append(f"{loop}.{carried}")
                return self.values[f"{loop}.{carried}"]
            case ast.Attribute(value=value):
                return self._lift(np.transpose, self._value(value, spent))
            case ast.BinOp(left=left, op=op, right=right):
                function = counterparts.binary[type(op)]
                first, second = self._value(left, spent), self._value(right, spent)
                result = self._lift(function, first, second)
                if isinstance(op, ast.MatMult):
                    spent.sum(np.shape(first[0])[-1], first, second)
                else:
                    spent.steps += 1
                return result
            case ast.UnaryOp(op=op, operand=operand):
                return self._lift(counterparts.unary[type(op)], self._value(operand, spent))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._lift(counterparts.compare[type(op)], self._value(left, spent), self._value(right, spent))
            case ast.Tuple(elts=elements):
                return self._lift(lambda *items: items, *(self._value(element, spent) for element in elements))
            case ast.List(elts=elements):
                return self._lift(lambda *items: list(items), *(self._value(element, spent) for element in elements))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [
                    self._everywhere(None) if part is None else self._value(part, spent)
                    for part in (lower, upper, step)
                ]
                return self._lift(slice, *parts)
            case ast.Subscript(value=value, slice=index):
                return self._lift(counterparts.getitem, self._value(value, spent), self._value(index, spent))
            case ast.Call(func=ast.Name(id=name)):
                return self._call(OPERATIONS[name], node, spent)
        raise AssertionError(ast.dump(node))  # `runner/language/syntax.py` lets nothing else through

    def _call(self, operation: Operation, node: ast.Call, spent: _Spent) -> PerDevice:
        positional = [self._value(argument, spent) for argument in node.args]
        keywords = {str(k.arg): self._value(k.value, spent) for k in node.keywords}
        if "axis_name" in operation.signature.parameters:
            return self._collective(operation, positional, keywords, spent)
        count = len(positional)

        def function(*values: Any) -> Any:
            return operation.numpy(*values[:count], **dict(zip(keywords, values[count:], strict=True)))

        operands = [*positional, *keywords.values()]
        result = self._lift(function, *operands)
        spent.steps += operation.roundings
        if operation.terms is not None:
            here = [value[0] for value in positional]
            terms = operation.terms(result[0], *here, **{key: value[0] for key, value in keywords.items()})
            spent.sum(terms, *operands, roundings=0)
        return result

    def _collective(
        self, operation: Operation, positional: list[PerDevice], keywords: dict[str, PerDevice], spent: _Spent
    ) -> PerDevice:
        bound = operation.signature.bind(*positional, **keywords)
        arguments = {name: value if name == "x" else value[0] for name, value in bound.arguments.items()}
        result = operation.numpy(self.mesh, **arguments)
        if operation.kind == "static":
            return self._everywhere(result)
        if operation.roundings and "x" in arguments:
            members = self.mesh.axis_size(arguments["axis_name"])
            spent.sum(members, arguments["x"], roundings=members * operation.roundings)
        # Entries that are one object must stay one object through widening.
        return self._lift(lambda value: value, result)


@dataclass
class _Spent:
    """What the evaluation of one expression reads and rounds."""

    names: list[str] = field(default_factory=list)
    steps: float = 0.0
    growth: float = 0.0
    scale: float = 0.0

    def sum(self, terms: int, *operands: PerDevice, roundings: int = 1) -> None:
        self.steps += roundings
        self.growth += math.sqrt(max(1, terms))
        self.scale = max(self.scale, math.prod(_largest(operand) for operand in operands))


def _largest(operand: PerDevice) -> float:
    """The largest finite magnitude in a floating operand on any device; 1 for anything else."""
    largest = 0.0
    for value in {id(v): v for v in operand}.values():
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "fc" or not value.size:
            return 1.0
        magnitude = max(abs(float(np.max(value.real))), abs(float(np.min(value.real))))
        if value.dtype.kind == "c":
            magnitude = float(np.max(np.abs(value)))
        if not math.isfinite(magnitude):
            everywhere = np.asarray(value)
            finite = np.abs(everywhere[np.isfinite(everywhere)])
            magnitude = float(finite.max()) if finite.size else 0.0
        largest = max(largest, magnitude)
    return largest
