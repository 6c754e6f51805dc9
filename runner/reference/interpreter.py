"""Statements and the shards of every device in; every value on every device out. NumPy only, float64.

Both oracles are this one interpreter. `per_device` runs on the experiment's mesh, all devices in lock-step, so that a
collective sees every device's operand. `graph` runs on a mesh of one device without axes, which holds whole arrays.

A value is a list with one entry per device, by row-major position in the mesh. Devices that hold the same value hold
the same object, and an operation is computed once for each distinct combination of operands, so that replicated work is
done once.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.experiment import Array, Experiment, Loop, Node, Section, Statement
from runner.language import counterparts
from runner.language.operations import CONSTANTS, OPERATIONS, Operation
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
    - `scale`: the largest magnitude of a term that any of these sums adds, in the value's own units: what is multiplied
      by 1e-6 afterwards counts as 1e-6 of itself.
    """

    steps: float = 0.0
    growth: float = 0.0
    scale: float = 0.0

    def joined(self, *others: Rounding) -> Rounding:
        """The worst of several ways."""
        ways = (self, *others)
        return Rounding(*(max(getattr(way, name) for way in ways) for name in ("steps", "growth", "scale")))

    def further(self, steps: float, scale: float | None = None, terms: int | None = None) -> Rounding:
        """One operation further on: so many roundings, the new scale, and the length of the sum if it is one."""
        growth = self.growth + (math.sqrt(max(1, terms)) if terms is not None else 0.0)
        return Rounding(self.steps + steps, growth, self.scale if scale is None else scale)


Rounded = tuple[PerDevice, Rounding]
"""A value on every device, and how far rounding can have carried it."""


@dataclass
class Interpretation:
    """Every named value that was to be kept, on every device; the `Rounding` of every named value."""

    values: dict[str, PerDevice]
    rounding: dict[str, Rounding]
    stopped: list[PerDevice] = field(default_factory=list)
    """What each `stop_gradient` gave, in the order in which they ran."""


def interpret(
    experiment: Experiment,
    section: Section,
    arrays: Mapping[str, np.ndarray],
    statements: Iterable[Statement] | None = None,
    *,
    keep: Iterable[str] | None = None,
    single: bool = False,
    stopped: Iterable[PerDevice] | None = None,
) -> Interpretation:
    """Run one section (or `statements` in its place) on `arrays`, which are whole and in their own dtype.

    `keep` are the names whose values are asked for afterwards; None: all. Any other value is let go of when no later
    statement reads it. `single` computes in float32 instead, to see what that loses. `stopped` is what another
    interpretation's `stop_gradient`s gave, and this one's are to give: to whoever differentiates, they are constants.
    """
    mesh = experiment.mesh if section == "per_device" else WHOLE
    interpreter = _Interpreter(
        mesh, experiment.dims, experiment.x64, single, constants=None if stopped is None else iter(stopped)
    )
    for array in experiment.arrays:
        interpreter.define(array.name, _shards(array, mesh, widen(arrays[array.name], experiment.x64, single=single)))
    # Overflow and NaN are the experiment's own; the value check reports them.
    with np.errstate(all="ignore"):
        interpreter.run(
            experiment.section(section) if statements is None else tuple(statements),
            None if keep is None else frozenset(keep),
        )
    return Interpretation(interpreter.values, interpreter.rounding, interpreter.stopped)


def _shards(array: Array, mesh: Mesh, whole: np.ndarray) -> PerDevice:
    if mesh == WHOLE:
        return [whole]
    blocks: dict[tuple[int, ...], np.ndarray] = {}
    for position in range(mesh.size):
        blocks.setdefault(array.layout.block(position), whole[array.layout.index(position)])
    return [blocks[array.layout.block(position)] for position in range(mesh.size)]


def widen(value: Any, x64: bool, *, single: bool = False) -> Any:
    """Floats to float64 and complex to complex128, or half of that if `single`; integers to 32 bits unless `x64`."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    dtype = value.dtype
    if dtype.kind in "biu":
        return value.astype(_NARROW[dtype]) if not x64 and dtype in _NARROW else value
    if dtype.kind == "c":
        return value.astype(np.complex64 if single else np.complex128, copy=False)
    if dtype.name in ("int2", "int4", "uint2", "uint4"):
        return value.astype(np.int8 if dtype.name.startswith("int") else np.uint8)
    return value.astype(np.float32 if single else np.float64, copy=False)


@dataclass
class _Interpreter:
    mesh: Mesh
    sizes: Mapping[str, int]
    x64: bool
    single: bool = False
    values: dict[str, PerDevice] = field(default_factory=dict)
    rounding: dict[str, Rounding] = field(default_factory=dict)
    constants: Iterator[PerDevice] | None = None
    stopped: list[PerDevice] = field(default_factory=list)
    moved: frozenset[str] = frozenset()
    """The names that are read for the last time, and once, where they are read next."""

    def define(self, name: str, value: PerDevice, rounding: Rounding = Rounding()) -> None:
        self.values[name] = value
        self.rounding[name] = rounding

    def run(self, statements: Sequence[Statement], wanted: frozenset[str] | None) -> None:
        """Run `statements`; of what they and those before them define, `wanted` is read afterwards (None: all)."""
        for statement, later in zip(statements, _read_later(statements, wanted), strict=True):
            if isinstance(statement, Loop):
                self.moved = frozenset()
                self._repeat(statement, later)
            else:
                self.moved = _read_once_more(statement, later)
                self.define(statement.name, *self._evaluate(statement.expression.tree))
            self._forget_all_but(later)

    def _forget_all_but(self, names: frozenset[str] | None) -> None:
        if names is not None:
            for name in self.values.keys() - names:
                del self.values[name]

    def _repeat(self, loop: Loop, later: frozenset[str] | None) -> None:
        carried = {name: self._evaluate(first.tree) for name, first in loop.carry}
        self._forget_all_but(None if later is None else later.union(*(inside.names for inside in loop.body)))
        names = None if later is None else frozenset(carried)
        outer_values, outer_rounding = self.values, self.rounding
        for step in range(loop.steps):
            self.values, self.rounding = dict(outer_values), dict(outer_rounding)
            for name in tuple(carried):
                # Moved: nothing else may hold on to what the body replaces.
                self.define(name, *carried.pop(name))
            self.define(loop.index, self._everywhere(step if loop.unroll else np.int32(step)))
            self.run(loop.body, names)
            carried = {name: (self.values[name], self.rounding[name]) for name, _ in loop.carry}
        self.values, self.rounding = outer_values, outer_rounding
        for name, (value, rounding) in carried.items():
            self.define(f"{loop.name}.{name}", value, rounding)

    def _everywhere(self, value: Any) -> PerDevice:
        return [value] * self.mesh.size

    def _lift(self, function: Callable[..., Any], *operands: PerDevice) -> PerDevice:
        """Apply a function device by device, once for each distinct combination of operands."""
        return self._lift_moved(function, list(map(list, operands)))

    def _lift_moved(self, function: Callable[..., Any], operands: list[PerDevice]) -> PerDevice:
        """The same, emptying `operands` on the way: of what is held nowhere else, one device's is there at a time."""
        done: dict[tuple[int, ...], Any] = {}
        results = []
        for position in range(self.mesh.size):
            here = [operand[position] for operand in operands]
            key = tuple(map(id, here))
            if key not in done:
                done[key] = widen(function(*here), self.x64, single=self.single)
            results.append(done[key])
            for operand in operands:
                operand[position] = None
            here.clear()
        return results

    def _evaluate(self, tree: ast.expr) -> Rounded:
        match tree:
            case ast.Constant(value=value):
                return self._everywhere(value), Rounding()
            case ast.Name(id=name):
                if name in self.values:
                    value = self.values.pop(name) if name in self.moved else self.values[name]
                    return value, self.rounding[name]
                return self._everywhere(CONSTANTS[name] if name in CONSTANTS else self.sizes[name]), Rounding()
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if f"{loop}.{carried}" in self.values:
                return self.values[f"{loop}.{carried}"], self.rounding[f"{loop}.{carried}"]
            case ast.Attribute(value=value):
                return self._exactly(np.transpose, value)
            case ast.BinOp(left=left, op=op, right=right):
                operands = [self._evaluate(left), self._evaluate(right)]
                result = self._lift(counterparts.binary[type(op)], *(value for value, _ in operands))
                return result, _of_operator(type(op), result, *operands)
            case ast.UnaryOp(op=op, operand=operand):
                return self._exactly(counterparts.unary[type(op)], operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._exactly(counterparts.compare[type(op)], left, right)
            case ast.Tuple(elts=elements):
                return self._exactly(lambda *items: items, *elements)
            case ast.List(elts=elements):
                return self._exactly(lambda *items: list(items), *elements)
            case ast.Slice(lower=lower, upper=upper, step=step):
                return self._exactly(slice, *(ast.Constant(None) if p is None else p for p in (lower, upper, step)))
            case ast.Subscript(value=value, slice=index):
                return self._exactly(counterparts.getitem, value, index)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(OPERATIONS[name], tree)
        raise AssertionError(ast.dump(tree))  # `runner/language/syntax.py` lets nothing else through

    def _exactly(self, function: Callable[..., Any], *parts: ast.expr) -> Rounded:
        """What rounds nothing."""
        operands = [self._evaluate(part) for part in parts]
        result = self._lift(function, *(value for value, _ in operands))
        return result, Rounding().joined(*(rounding for _, rounding in operands))

    def _call(self, operation: Operation, node: ast.Call) -> Rounded:
        positional = [self._evaluate(argument) for argument in node.args]
        keywords = {str(k.arg): self._evaluate(k.value) for k in node.keywords}
        if "axis_name" in operation.signature.parameters:
            return self._collective(operation, positional, keywords)
        count, names = len(positional), tuple(keywords)

        def function(*values: Any) -> Any:
            return operation.numpy(*values[:count], **dict(zip(names, values[count:], strict=True)))

        operands = [*positional, *keywords.values()]
        if not operation.roundings and operation.terms is None and operation.name not in ("stop_gradient", *_OPERATORS):
            # Nothing more is asked of the operands, which may be most of the memory that there is.
            way = Rounding().joined(*(rounding for _, rounding in operands))
            moved = [list(value) for value, _ in operands]
            del positional, keywords, operands
            return self._lift_moved(function, moved), way
        result = self._lift(function, *(value for value, _ in operands))
        if operation.name == "stop_gradient":
            result = result if self.constants is None else next(self.constants)
            self.stopped.append(result)
        operator = _OPERATORS.get(operation.name)
        if operator is not None:
            return result, _of_operator(operator, result, *operands)
        way = Rounding().joined(*(rounding for _, rounding in operands))
        if operation.terms is not None:
            here = [value[0] for value, _ in positional]
            terms = operation.terms(result[0], *here, **{key: value[0] for key, (value, _) in keywords.items()})
            return result, way.further(operation.roundings, _added(*operands), terms)
        if not operation.roundings or not way.scale:
            return result, way.further(operation.roundings)
        # tanh(x) is off by as much as x at most, softmax(x) by as much as x of itself: the smaller of the two.
        out = _largest(result)
        into = max((_largest(value) for value, rounding in operands if rounding.scale), default=1.0)
        return result, way.further(operation.roundings, way.scale * min(1.0, max(out, out / into if into else 1.0)))

    def _collective(self, operation: Operation, positional: list[Rounded], keywords: dict[str, Rounded]) -> Rounded:
        bound = operation.signature.bind(*positional, **keywords)
        arguments = {name: value if name == "x" else value[0] for name, (value, _) in bound.arguments.items()}
        result = operation.numpy(self.mesh, **arguments)
        if operation.kind == "static":
            return self._everywhere(result), Rounding()
        rounding = Rounding()
        if "x" in bound.arguments:
            rounding = bound.arguments["x"][1]
            if operation.roundings:
                members = self.mesh.axis_size(arguments["axis_name"])
                rounding = rounding.further(members * operation.roundings, _added(bound.arguments["x"]), members)
        # Entries that are one object must stay one object through widening.
        return self._lift(lambda value: value, result), rounding


def _read_later(statements: Sequence[Statement], wanted: frozenset[str] | None) -> list[frozenset[str] | None]:
    """For each statement, the names that are read after it, if `wanted` are read after the last one."""
    if wanted is None:
        return [None] * len(statements)
    later: list[frozenset[str] | None] = []
    for statement in reversed(statements):
        later.append(wanted)
        wanted = (wanted - statement.defines) | statement.names
    return later[::-1]


def _read_once_more(statement: Node, later: frozenset[str] | None) -> frozenset[str]:
    """The names that stand once in a statement, and that nobody reads after it if `later` are read then."""
    if later is None:
        return frozenset()
    counts = Counter(node.id for node in ast.walk(statement.expression.tree) if isinstance(node, ast.Name))
    read = {name for name, count in counts.items() if count == 1}
    return frozenset(read - (later - statement.defines))


_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add, "subtract": ast.Sub, "multiply": ast.Mult, "divide": ast.Div, "true_divide": ast.Div,
    "matmul": ast.MatMult,
}  # fmt: skip
"""The operations that are operators by another name."""


def _of_operator(
    operator: type[ast.operator], result: PerDevice, first: Rounded, second: Rounded, *_: Rounded
) -> Rounding:
    """The rounding of `first` operator `second`."""
    (left, on_left), (right, on_right) = first, second
    way = on_left.joined(on_right)
    if operator is ast.MatMult:
        return way.further(1, _added(first, second, integers=True), np.shape(left[0])[-1])
    if not _is_floating(result):
        return way.further(1)
    if operator in (ast.Add, ast.Sub):
        return way.further(1, max(way.scale, magnitude(left), magnitude(right)))
    if way.scale and operator in (ast.Mult, ast.Div):
        out, scale = magnitude(result), 0.0
        for rounding, operand in ((on_left, left), (on_right, right)):
            if rounding.scale:
                scale = max(scale, rounding.scale / (magnitude(operand) or 1.0) * out)
        return way.further(1, scale)
    return way.further(1)


def _added(*operands: Rounded, integers: bool = False) -> float:
    """The largest magnitude of the products that a sum adds, or of what they stand for where they cancelled before."""
    terms, cancelled = 1.0, 1.0
    for value, rounding in operands:
        largest = magnitude(value) if integers else _largest(value)
        terms *= largest
        if rounding.scale > largest > 0:
            cancelled = max(cancelled, rounding.scale / largest)
    return terms * cancelled


def _is_floating(operand: PerDevice) -> bool:
    return isinstance(operand[0], np.ndarray | np.generic) and operand[0].dtype.kind in "fc"


def _largest(operand: PerDevice) -> float:
    """The largest finite magnitude in a floating operand on any device; 1 for anything else."""
    return magnitude(operand) if all(_is_floating([value]) and value.size for value in operand) else 1.0


def magnitude(operand: Sequence[Any]) -> float:
    """The largest finite magnitude in some numbers or arrays of numbers, such as an operand on every device."""
    largest = 0.0
    for value in {id(v): np.asarray(v) for v in operand}.values():
        if not value.size:
            continue
        if value.dtype.kind == "c":
            here = float(np.max(np.abs(value)))
        else:
            here = max(abs(float(np.max(value))), abs(float(np.min(value))))
        if not math.isfinite(here):
            finite = np.abs(value[np.isfinite(value)])
            here = float(finite.max()) if finite.size else 0.0
        largest = max(largest, here)
    return largest
