"""Statements and the shards of every device in; every value on every device out. NumPy only.

Both oracles are this one interpreter. `per_device` runs on the experiment's mesh, all devices in lock-step, so that a
collective sees every device's operand. `graph` runs on a mesh of one device without axes, which holds whole arrays.

A value is a list with one entry per device, by row-major position in the mesh. Devices that hold the same value hold
the same object, and an operation is computed once for each distinct combination of operands, so that replicated work is
done once.

An oracle computes in float64. On a `Machine` the same statements round as the programs do: `rounded.py` says how.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from runner import dtypes
from runner.experiment.model import Experiment, Line, Loop, Section, Statement
from runner.language.casts import drawn, narrowed, to_float
from runner.language.counterparts import indexing
from runner.language.counterparts.collectives import Misplaced
from runner.language.counterparts.promotion import identity
from runner.language.operations import CONSTANTS, OPERATIONS, Decides, Operation
from runner.language.operators import OPERATORS, Operator, called, operator_of
from runner.language.syntax import place
from runner.layout import Layout, Mesh
from runner.reference.arithmetic import ANY, EXACT, Arithmetic, cast
from runner.reference.decisions import Decision, PerDevice, Script
from runner.reference.lifetimes import read_later, read_once_more
from runner.untyped import is_list

_TOO_MANY_DIMENSIONS = re.compile(r"\bdimensions?\b.*\b64\b")
"""What NumPy says where an array would have more dimensions than it has for one."""


class Misfit(ValueError):
    """What a `call` in the expression of a `line` is told to move does not fit what is there."""

    def __init__(self, message: str, line: Line | None, call: ast.expr) -> None:
        super().__init__(message)
        self.line, self.call = line, call


WHOLE = Mesh((), ())
"""The mesh of one device on which `graph` is interpreted."""


@dataclass
class Interpretation:
    """Every named value that was to be kept, on every device; `work` is how many elements were computed on the way."""

    values: dict[str, PerDevice]
    work: int = 0


def interpret(
    experiment: Experiment,
    section: Section,
    arrays: Mapping[str, np.ndarray],
    statements: Iterable[Statement] | None = None,
    *,
    keep: Iterable[str] | None = None,
    arithmetic: Arithmetic = EXACT,
    script: Script | None = None,
    given: Mapping[str, PerDevice] | None = None,
    most: int | None = None,
) -> Interpretation:
    """Run one section (or `statements` in its place) on `arrays`, which are whole and in their own dtype.

    `arrays` have the gradients too, whole, where lines read them: `experiment.given`. For `per_device` each device has
    its block over the manual axes (`experiment.block`), the same as all that differ from it along the others.

    `given` are all values that are known already, the arrays' too, where `statements` are not the first ones. Raises
    `OverflowError` for a value of more than `most` elements on a device.

    `keep` are the names whose values are asked for afterwards; None: all. Any other value is let go of when no later
    statement reads it. `script` sees, and may change, every discrete decision: `runner/reference/decisions.py`.
    """
    mesh = experiment.mesh if section == "per_device" else WHOLE
    interpreter = _Interpreter(mesh, experiment.dims, experiment.x64, arithmetic, script or Script(), most)
    interpreter.values.update(given or {})
    for array in experiment.given if given is None else ():
        whole = arithmetic.held(arrays[array.name], experiment.x64, array.dtype)
        interpreter.values[array.name] = [whole] if mesh == WHOLE else _shards(experiment.block(array.layout), whole)
    # Overflow and NaN are the experiment's own; the value check reports them.
    with np.errstate(all="ignore"):
        interpreter.run(
            experiment.section(section) if statements is None else tuple(statements),
            None if keep is None else frozenset(keep),
        )
    return Interpretation(interpreter.values, interpreter.work)


def _shards(layout: Layout, whole: np.ndarray) -> PerDevice:
    blocks: dict[tuple[int, ...], np.ndarray] = {}
    for position in range(layout.mesh.size):
        blocks.setdefault(layout.block(position), whole[layout.index(position)])
    return [blocks[layout.block(position)] for position in range(layout.mesh.size)]


@dataclass
class _Interpreter:
    mesh: Mesh
    sizes: Mapping[str, int]
    x64: bool
    arithmetic: Arithmetic
    script: Script
    most: int | None = None
    own: bool = False
    """Whether floats keep the dtypes that they come with, of which nobody says others."""
    values: dict[str, PerDevice] = field(default_factory=dict[str, PerDevice])
    moved: frozenset[str] = frozenset()
    """The names that are read for the last time, and once, where they are read next."""
    work: int = 0
    _at: Line | None = None
    """The line whose expression is evaluated."""
    _floats: Mapping[str, str] = field(default_factory=dict[str, str])
    """The dtypes of the floats in the expression that is evaluated."""

    def run(self, statements: Sequence[Statement], wanted: frozenset[str] | None) -> None:
        """Run `statements`; of what they and those before them define, `wanted` is read afterwards (None: all)."""
        for statement, later in zip(statements, read_later(statements, wanted), strict=True):
            if isinstance(statement, Loop):
                self.moved = frozenset()
                self._repeat(statement, later)
            else:
                self.moved = read_once_more(statement, later)
                self.values[statement.name] = self._line(statement.expression.tree, statement.line)
            self._forget_all_but(later)

    def _line(self, tree: ast.expr, line: Line) -> PerDevice:
        self._at, self._floats = line, self.arithmetic.floats.get(line.path, {})
        return [self._bounded(value) for value in self._evaluate(tree)]

    def _bounded(self, value: Any) -> Any:
        size = getattr(value, "size", 0)
        if self.most is not None and size > self.most:
            raise OverflowError(f"{self._at} has {size} elements on a device")
        return value

    def _forget_all_but(self, names: frozenset[str] | None) -> None:
        if names is not None:
            for name in self.values.keys() - names:
                del self.values[name]

    def _repeat(self, loop: Loop, later: frozenset[str] | None) -> None:
        carried = {name: self._line(first.tree, loop.first(name)) for name, first in loop.carry}
        whole = {name: self._line(first.tree, loop.whole(name)) for name, first in loop.over}
        stacked: dict[str, list[PerDevice]] = {name: [] for name, _ in loop.stack}
        kept = frozenset(inner for _, inner in loop.stack).union(*(inside.names for inside in loop.body))
        self._forget_all_but(None if later is None else later | kept)
        names = None if later is None else loop.wanted
        outer = self.values
        for step in range(loop.steps):
            self.values = dict(outer)
            for name in tuple(carried):
                # Moved: nothing else may hold on to what the body replaces.
                self.values[name] = carried.pop(name)
            for name, value in whole.items():
                self.values[name] = self._lift(partial(_slice, step), None, value)
            self.values[loop.index] = self._everywhere(step if loop.unroll else np.int32(step))
            self.run(loop.body, names)
            carried = {name: self.values[name] for name, _ in loop.carry}
            for name, inner in loop.stack:
                stacked[name].append(self.values[inner])
        self.values = outer
        for name, value in carried.items():
            self.values[f"{loop.name}.{name}"] = value
        for name, steps in stacked.items():
            self.values[f"{loop.name}.{name}"] = self._lift(lambda *each: OPERATIONS["stack"].numpy(each), None, *steps)

    def _everywhere(self, value: Any) -> PerDevice:
        return [value] * self.mesh.size

    def _lift(self, function: Callable[..., Any], node: ast.expr | None, *operands: PerDevice) -> PerDevice:
        """Apply a function device by device, once for each distinct combination of operands."""
        return self._lift_moved(function, node, list(map(list, operands)))

    def _lift_moved(self, function: Callable[..., Any], node: ast.expr | None, operands: list[PerDevice]) -> PerDevice:
        """The same, emptying `operands` on the way: of what is held nowhere else, one device's is there at a time."""
        kind = None if node is None or self.own else self._kind(node)
        done: dict[tuple[int, ...], Any] = {}
        results: PerDevice = []
        for position in range(self.mesh.size):
            here = [operand[position] for operand in operands]
            key = tuple(map(id, here))
            if key not in done:
                done[key] = self._bounded(self.arithmetic.held(self._computed(function, node, here), self.x64, kind))
                self.work += getattr(done[key], "size", 0)
            results.append(done[key])
            for operand in operands:
                operand[position] = None
            here.clear()
        return results

    def _computed(self, function: Callable[..., Any], node: ast.expr | None, operands: list[Any]) -> Any:
        """What a function of NumPy's gives, which has arrays of fewer dimensions than JAX."""
        try:
            return function(*operands)
        except (ValueError, IndexError) as error:
            if node is None or not _TOO_MANY_DIMENSIONS.search(str(error)):
                raise
            message = "it has more than 64 dimensions, and NumPy, which computes the reference, has 64 at most"
            raise Misfit(message, self._at, node) from None

    def _kind(self, node: ast.expr) -> str:
        """The dtype that JAX says a floating node has."""
        return self._floats.get(place(node) or ANY, self._floats.get(ANY, "float32"))

    def _evaluate(self, tree: ast.expr) -> PerDevice:
        match tree:
            case ast.Constant(value=value):
                return self._everywhere(value)
            case ast.Name(id=name):
                if name in self.values:
                    return self.values.pop(name) if name in self.moved else self.values[name]
                return self._everywhere(CONSTANTS[name] if name in CONSTANTS else self.sizes[name])
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if f"{loop}.{carried}" in self.values:
                return self.values[f"{loop}.{carried}"]
            case ast.Attribute(value=value):
                return self._apply(tree, np.transpose, value)
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._operate(tree, OPERATORS[type(op)], left, right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._operate(tree, OPERATORS[type(op)], operand)
            case ast.Tuple(elts=elements):
                return self._lift(lambda *items: items, None, *map(self._evaluate, elements))
            case ast.List(elts=elements):
                return self._lift(lambda *items: list(items), None, *map(self._evaluate, elements))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = (ast.Constant(None) if part is None else part for part in (lower, upper, step))
                return self._lift(slice, None, *map(self._evaluate, parts))
            case ast.Subscript(value=value, slice=index):
                return self._apply(tree, indexing.getitem, value, index)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(OPERATIONS[name], tree)
            case ast.Lambda():
                return self._everywhere(self._function(tree))
            case _:
                raise AssertionError(ast.dump(tree))  # `runner/language/syntax.py` lets nothing else through

    def _function(self, tree: ast.Lambda) -> Callable[..., Any]:
        """What combines two values of one device; a machine's round by themselves."""
        names = [each.arg for each in tree.args.args]

        def combine(*values: Any) -> Any:
            inside = _Interpreter(WHOLE, self.sizes, self.x64, self.arithmetic, Script(), own=True)
            inside.values = {name: [value] for name, value in zip(names, values, strict=True)}
            (found,) = inside._evaluate(tree.body)
            return found

        return combine

    def _apply(self, node: ast.expr, function: Callable[..., Any], *parts: ast.expr) -> PerDevice:
        return self._lift(function, node, *map(self._evaluate, parts))

    def _operate(self, node: ast.expr, operator: Operator, *parts: ast.expr) -> PerDevice:
        operands = [self._evaluate(part) for part in parts]
        decides = operator.operation.decides
        if decides is not None and any(dtypes.is_floating(operand[0]) for operand in operands):
            return self._decide(node, decides, operator.numpy, operands)
        return self._lift(operator.numpy, node, *operands)

    def _decide(
        self,
        node: ast.expr,
        decides: Decides,
        function: Callable[..., Any],
        operands: list[PerDevice],
        axis: Any = None,
    ) -> PerDevice:
        """A function of floats that jumps, as the script has it decided."""
        result = self._lift(function, node, *operands)
        return self.script.decide(
            Decision(decides, function, operands, result, axis=axis, line=str(self._at), operation=_called(node))
        )

    def _call(self, operation: Operation, node: ast.Call) -> PerDevice:
        positional = [self._evaluate(argument) for argument in node.args]
        keywords = {str(k.arg): self._evaluate(k.value) for k in node.keywords}
        if operation.over is not None:
            return self._collective(operation, node, positional, keywords)
        count, names = len(positional), tuple(keywords)
        fixed: dict[str, str] = {}
        if operation.draws is not None:
            argument = drawn(operation, node)
            fixed["drawn"] = "float32" if argument is None else self._kind(argument)

        def function(*values: Any) -> Any:
            return operation.numpy(*values[:count], **dict(zip(names, values[count:], strict=True)), **fixed)

        operands = [*positional, *keywords.values()]
        if operation.wide:
            operands = [self.arithmetic.widened(operand, operation.wide) for operand in operands]
        if operation.constant:
            return self.script.stop(operands[0])
        if (narrow := narrowed(operation, node, self._float_of)) is not None:
            raw = self._lift(function, None, *operands)
            return self._cast(node, narrow, raw) if self.arithmetic.casts else raw
        decides = operation.decides
        # A float that a wider dtype holds as it is jumps nowhere.
        if (
            decides is not None
            and to_float(operation, node) is None
            and any(dtypes.is_floating(operand[0]) for operand in operands)
        ):
            bound = operation.signature.bind(*positional, **keywords)
            bound.apply_defaults()
            axis = bound.arguments.get("axis")
            axis = axis[0] if is_list(axis) else axis
            return self._decide(node, decides, function, operands, axis)
        # Nothing more is asked of the operands, which may be most of the memory that there is.
        moved = [list(operand) for operand in operands]
        del positional, keywords, operands
        return self._lift_moved(function, node, moved)

    def _float_of(self, node: ast.expr) -> str:
        """The dtype of a node for the question what it can hold: a number of Python's can hold anything."""
        if isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in (*self.sizes, *CONSTANTS)):
            return "float64"
        return self._kind(node)

    def _cast(self, node: ast.expr, narrow: str, raw: PerDevice) -> PerDevice:
        """Floats as the dtype `narrow` holds them; to which side a float between two falls, is a decision."""

        def rounding(value: Any) -> Any:
            return cast(value, narrow)

        result = self._lift(rounding, node, raw)
        if not dtypes.is_floating(raw[0]):
            return result
        return self.script.decide(
            Decision("cast", rounding, [raw], result, line=str(self._at), operation=_called(node))
        )

    def _collective(
        self, operation: Operation, node: ast.Call, positional: list[PerDevice], keywords: dict[str, PerDevice]
    ) -> PerDevice:
        bound = operation.signature.bind(*positional, **keywords)
        assert operation.over is not None
        operands = operation.over.operands
        arguments = {name: value if name in operands else value[0] for name, value in bound.arguments.items()}
        try:
            result = operation.numpy(self.mesh, **arguments)
        except Misplaced as error:
            raise Misfit(str(error), self._at, node) from None
        if operation.kind == "static":
            return self._everywhere(result)
        # Entries that are one object must stay one object through widening.
        return self._lift(identity, node, result)


def _slice(step: int, whole: Any) -> Any:
    return indexing.getitem(whole, step)


def _called(node: ast.expr) -> str:
    """The operation or the operator that a node calls."""
    operator, operation = operator_of(node), called(node)
    assert operation is not None
    return operation.name if operator is None else operator.symbol
