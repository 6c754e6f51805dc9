"""Finds the experiment's lines that operations come from, by the name stacks and frames that JAX traced.

Each generated line has its own named scope. Operations from a call of the user's Python only have the scope of the
call; their frames in the user's file identify the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Protocol

from runner.base.lazy import dataclass, pattern
from runner.compiled.evidence.hlo import Location, Metadata
from runner.compiled.evidence.source_lines import is_users
from runner.experiment.identifiers import Identifiers
from runner.experiment.imported import Imported, inside
from runner.experiment.model import Experiment, Section
from runner.graph.language.lines import calls_in, line_of, lines, regions
from runner.graph.language.operations import OPERATIONS, Operation, row_of
from runner.graph.model import Equation, Graph, Repeat
from runner.graph.source import Line
from runner.graph.spelling import Spelling
from runner.graph.term import Term, spelled, within

_WRAPPED = pattern(r"^(?:[\w.]+\()*([^()]*)\)*$")
"""The transformations with which JAX wraps a scope: `jvp(C)`, `transpose(jvp(vmap(C)))`."""

_TRANSPOSE = pattern(r"(?:vmap\()*transpose\(")
"""The beginning of a scope of a backward pass, which may be that of one element of a batch."""

_FUNCTION = pattern(r"\bp?jit\([^()]*\)*$")
"""The name of a function in a name stack, which is not a line's, although a line may have the same name."""

PRIMITIVES = frozenset(
    {"pgather", "psend", "precv"} | {primitive for row in OPERATIONS.values() for primitive in row.over.primitives}
)
"""JAX's collective primitives: the last part of the name stack of a collective that the program itself asks for.

Some are the lowerings of operations of the language, some are not.

Source: jax/_src/lax/parallel.py, where those that begin an asynchronous one end in `_start`.
"""

STATING = frozenset({"reshard", "sharding_constraint"})
"""The primitives with which a program states the layout of a value."""

_PARAMETERS = pattern(r"(?<=\w)\[\w+=(?:[^\[\]]|\[[^\[\]]*\])*\]")
"""The parameters that older series of JAX wrote behind a primitive: `all_to_all[axis_name=('y',) split_axis=2]`."""


@dataclass(frozen=True)
class OperationOrigin:
    """Where an operation comes from: its line (`C`, `ring.lhs`, an array), and the JAX primitive.

    - `primitive`: empty for an array; None for an operation that only passes slices to the steps of a Python loop.
    """

    node: str
    primitive: str | None
    gradient: bool


def served(origins: Collection[OperationOrigin]) -> tuple[list[str], bool]:
    """The lines of some origins, and whether all of these are of the backward pass."""
    return list(dict.fromkeys(each.node for each in origins)), bool(origins) and all(each.gradient for each in origins)


def stacks(op_name: str) -> list[str]:
    """The name stacks in the name of an instruction; several where the compiler merged instructions.

    `a/b;a/c` if two computed the same, `a/(b:c)` if two became one collective (openxla/xla#40903).
    """
    if "[" in op_name:
        op_name = _PARAMETERS.sub("", op_name)
    opened = re.search(r"(?:^|/)\(", op_name)
    if opened is None or not op_name.endswith(")"):
        return op_name.split(";")
    before, inside = op_name[: opened.end() - 1], op_name[opened.end() : -1]
    return [stack for part in _parts(inside) for stack in stacks(before + part)]


def _parts(text: str) -> list[str]:
    """The parts between colons outside of parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def asked(stack: str) -> bool:
    """Whether a name stack is that of a collective that the program asks for, in a line or by JAX's differentiation."""
    scopes, _, primitive = stack.rpartition("/")
    return bool(scopes) and primitive.removesuffix("_start") in PRIMITIVES


def backward(stack: str) -> bool:
    """Whether a name stack belongs to a backward pass."""
    return any(_TRANSPOSE.match(part) for part in stack.split("/"))


def again(stack: str) -> bool:
    """Whether a name stack belongs to operations that `jax.checkpoint` recomputes in a backward pass."""
    return "rematted_computation" in stack.split("/")


@dataclass(frozen=True)
class StackScope:
    """A scope that may be in a name stack.

    - `line`: the line of operations that are in none of the scopes `inside`.
    - `imported`: for a call of the user's Python, its lines by their places there; None for other scopes.
    """

    line: str
    inside: dict[str, StackScope] = field(default_factory=dict[str, "StackScope"])
    imported: dict[Location, list[PlacedLine]] | None = None


@dataclass(frozen=True)
class PlacedLine:
    """A line of the user's Python.

    - `rows`: those of the operations that its expression calls, None for indexing; no tuple for a repeat.
    - `path`: the user's lines that lead to its place, the innermost first, if several do.
    """

    line: Line
    rows: tuple[Operation | None, ...] | None
    path: tuple[Location, ...] = ()


class Origins:
    """The lines of one section, by JAX's name stacks."""

    unplaced = "comes from no line of the experiment"

    def __init__(self, experiment: Experiment, section: Section) -> None:
        gradients = experiment.grad.names if experiment.grad else ()
        graph = experiment.computed(section)
        self._scopes = _scopes(graph, Spelling.of(graph), _imported(experiment, section))
        self._scopes |= {name: StackScope(name) for name in gradients}
        self._files = experiment.python_files
        names = Identifiers(experiment)
        self._arrays = {names[array.name]: array.name for array in experiment.arrays}
        by_hand = {axis for region in regions(graph) for axis in region.manual}
        self._automatic = frozenset(experiment.automatic if section == "per_device" else ()) - by_hand
        self.of = lru_cache(maxsize=None)(self._of)

    def leave(self, axes: Iterable[str]) -> bool:
        """Whether the lines leave all of these axes to the compiler."""
        over = frozenset(axes)
        return bool(over) and over <= self._automatic

    def array(self, name: str) -> str | None:
        """The array that is the program's parameter of this name."""
        return self._arrays.get(name)

    def _of(self, metadata: Metadata) -> tuple[OperationOrigin, ...]:
        """The origins of an instruction; several if operations were merged, none if the name belongs to no line."""
        candidates = (self._origin(stack, metadata.frames) for stack in stacks(metadata.op_name))
        origins = [origin for origin in candidates if origin is not None]
        return tuple(dict.fromkeys(origins))

    def lost(self, op_name: str) -> list[str]:
        """The name stacks of collectives that the program asks for outside of any line."""
        return [stack for stack in stacks(op_name) if asked(stack) and self._origin(stack, ()) is None]

    def tells(self, metadata: Metadata) -> bool:
        """Whether a name belongs to a line, or to a collective that the program asks for."""
        return bool(self.of(metadata) or self.lost(metadata.op_name)) or self.stated(metadata) is not None

    def stated(self, metadata: Metadata) -> Location | None:
        """The line of a user's Python that states a layout in the forward pass, if an instruction comes from one."""
        stated = any(stack.rpartition("/")[2] in STATING and not backward(stack) for stack in stacks(metadata.op_name))
        return next((frame for frame in metadata.frames if frame[0] in self._files), None) if stated else None

    def _origin(self, stack: str, frames: Sequence[Location]) -> OperationOrigin | None:
        if stack in self._arrays:
            return OperationOrigin(self._arrays[stack], "", False)
        parts = stack.split("/")
        scope, scopes = None, self._scopes
        skip = False
        for part, following in zip(parts, [*parts[1:], ""], strict=True):
            if skip:
                skip = False
                continue
            # JAX's own loop scope is between a repeat and its body, which may have lines of these names.
            skip = part == "while" and following in ("body", "cond")
            if skip:
                continue
            entered = scopes.get(_unwrapped(part))
            scope, scopes = (scope, scopes) if entered is None else (entered, entered.inside)
        if scope is None:
            return None
        if scope.imported is None:
            return OperationOrigin(scope.line, parts[-1], backward(stack))
        return _traced(scope, scope.imported, stack, frames)


def _traced(
    scope: StackScope, lines: Mapping[Location, Sequence[PlacedLine]], stack: str, frames: Sequence[Location]
) -> OperationOrigin | None:
    """The line of the user's Python in whose innermost frame an operation was traced; without one, that of the call.

    If several lines are there, it is one that calls such an operation: the first, in the backward pass the last.
    """
    primitive, gradient = stack.rpartition("/")[2], backward(stack)
    at = next((at for at, frame in enumerate(frames) if frame in lines), None)
    if at is None:
        # At the boundary of a region, and where the user's Python states a layout, values move from one line to
        # another, between which they are found.
        moved = primitive == "shard_map" or (primitive in STATING and not gradient)
        return None if moved else OperationOrigin(scope.line, primitive, gradient)
    there = _on_the_path(lines[frames[at]], [frame for frame in frames[at + 1 :] if is_users(frame[0])])
    of = [(placed.line, placed.rows) for placed in there if placed.rows is not None]
    fitting = [line for line, rows in of if any(_fits(row, primitive) for row in rows)]
    fitting = fitting or [line for line, _ in of]
    if not fitting:
        return OperationOrigin(str(there[-1].line), None, gradient)
    return OperationOrigin(str(fitting[-1 if gradient else 0]), primitive, gradient)


def _on_the_path(lines: Sequence[PlacedLine], path: Sequence[Location]) -> list[PlacedLine]:
    """Those of the lines at one place whose calls an operation has for longest."""

    def shared(line: PlacedLine) -> int:
        return next((at for at, (a, b) in enumerate(zip(line.path, path, strict=False)) if a != b), len(line.path))

    longest = max(map(shared, lines))
    return [line for line in lines if shared(line) == longest]


def _rows(term: Term) -> tuple[Operation | None, ...]:
    """The rows of the operations that an expression calls, each once; None for indexing."""
    rows = {row.name: row for _, row in calls_in(term)}
    return (*rows.values(), *{None for part in within(term) if spelled(part) == "index"})


def _fits(row: Operation | None, primitive: str) -> bool:
    """Whether an operation is that of a JAX primitive."""
    of_primitive = row_of(primitive)
    if row is None:
        return primitive in ("gather", "squeeze") or of_primitive.moves == "part"
    if row.over.does:
        return primitive.removesuffix("_start") in row.over.primitives
    if row.method is not None:
        return primitive.startswith("scatter")
    products = row.contraction is not None and of_primitive.contraction is not None
    return products or row.name == primitive.removeprefix("reduce_")


def unwrapped(part: str) -> str:
    """A part of a name stack without the transformations around it."""
    return _WRAPPED.sub(r"\1", part)


def _unwrapped(part: str) -> str:
    return "" if _FUNCTION.search(part) else unwrapped(part)


def _scopes(
    graph: Graph, spelling: Spelling, imported: Mapping[str, _PythonCall], around: int = 0
) -> dict[str, StackScope]:
    """The scopes of lines inside `around` enclosing scopes; `imported` has the calls of Python lines, by path."""
    scopes: dict[str, StackScope] = {}
    for equation in lines(graph):
        line = line_of(equation)
        call = imported.get(line.path)
        *outer, own = line.scopes[around : None if call is None else call.depth]
        here = scopes
        for scope in outer:
            # A scope without a line belongs to the first line inside it.
            here = here.setdefault(scope, StackScope(str(line))).inside
        if call is None:
            body = (
                _scopes(equation.bodies[0], spelling, imported, len(line.scopes) - 1)
                if isinstance(equation.form, Repeat)
                else {}
            )
            known = here.get(own, StackScope(""))
            here[own] = StackScope(str(line), {**known.inside, **body})
            continue
        known = here.setdefault(own, StackScope(call.line, imported={}))
        assert known.imported is not None
        for inner in _with_bodies(equation):
            label = line_of(inner).label
            frame = call.function.frames.get(label)
            if frame is not None:
                rows = None if isinstance(inner.form, Repeat) else _rows(spelling.equation(inner))
                placed = PlacedLine(line_of(inner), rows, call.function.paths.get(label, ()))
                known.imported.setdefault((frame.file, frame.line), []).append(placed)
    return scopes


def _with_bodies(equation: Equation) -> Iterator[Equation]:
    yield equation
    for body in equation.bodies:
        for inner in lines(body):
            yield from _with_bodies(inner)


@dataclass(frozen=True)
class _PythonCall:
    """A call of the user's Python: the function, its first line, and the number of enclosing scopes."""

    function: Imported
    line: str
    depth: int


def _imported(experiment: Experiment, section: Section) -> dict[str, _PythonCall]:
    """The calls of the user's Python, by the paths of their lines."""
    calls: dict[str, _PythonCall] = {}
    for line, call, function in inside(experiment.section(section), experiment.imports):
        first, several = call.gives[0], len(call.gives) > 1
        # A single result has the call's scope; each of several results has one of its own inside that.
        calls[line.path] = _PythonCall(function, str(first), len(first.scopes) - several)
    return calls


class Attribution(Protocol):
    """Names the lines of instructions: those of an experiment (`Origins`), or of the files that were traced.

    The second needs nothing but the module (`runner.compiled.explanation.places`).
    """

    unplaced: str
    """What is said of an instruction without a line, behind its name."""

    @property
    def of(self) -> Callable[[Metadata], tuple[OperationOrigin, ...]]:
        """The lines of an instruction; several if operations were merged, none if the module does not say."""
        ...

    def leave(self, axes: Iterable[str]) -> bool:
        """Whether the lines leave all of these axes to the compiler."""
        ...

    def lost(self, op_name: str) -> list[str]:
        """The name stacks of collectives that the program asks for outside of any line."""
        ...

    def tells(self, metadata: Metadata) -> bool:
        """Whether a name belongs to a line, or to a collective that the program asks for."""
        ...

    def stated(self, metadata: Metadata) -> Location | None:
        """The user's line that states the layout of a value, where it is none of these lines; None if there is none."""
        ...
