"""Reads a JAX function, for operands of given shapes, into lines that compute the same, as terms.

The function is traced, and each equation of its jaxpr becomes an expression of the language (`primitives/`). A value
that is read once, in the same line of the user's file, is inlined, and an unread value has no line. Calls (`jit`,
`custom_jvp_call`, `remat2`) are inlined. A `scan` becomes a repeat, and so does a `while` of which constants say how
many steps it takes; of a `cond` all branches are computed and one is selected.
"""

from __future__ import annotations

import contextlib
import keyword
import linecache
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any, cast

import jax
import numpy as np

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.base.words import quoted
from runner.compiled.evidence.hlo import Location
from runner.compiled.evidence.source_lines import SourceLine, called_frame, distinguishing
from runner.experiment.extent import STEPS
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop, TracedTerm, UserSpelling
from runner.graph.language.check import canonical_term
from runner.graph.language.lines import at_index, axes_of
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.printing import is_within
from runner.graph.model import LoopForm, Region
from runner.graph.source import Frame
from runner.graph.term import NOTHING, Apply, Const, Group, Name, Term, within
from runner.programs.derivation.terms import built, constant, indexed
from runner.worker import calls
from runner.worker.jaxpr.decided import Constants
from runner.worker.jaxpr.marks import marked, stated, unmarked
from runner.worker.jaxpr.primitives import collectives
from runner.worker.jaxpr.primitives.collectives import over_axes
from runner.worker.jaxpr.primitives.random_bits import wrapped
from runner.worker.jaxpr.primitives.reading import expression
from runner.worker.jaxpr.primitives.registry import (
    LIBRARY,
    ORDERS,
    PLACING,
    REFERENCE,
    Application,
    Unread,
    as_array,
    literal,
    of_its_dtype,
    of_their_dtype,
)
from runner.worker.jaxpr.primitives.shaping import transposed
from runner.worker.jaxpr.source_expressions import SourceOf, is_derivative, position, spelled
from runner.worker.jaxpr.systems import system
from runner.worker.jaxpr.trips import steps
from runner.worker.setting import without
from runner.worker.versions import (
    CALLING,
    Literal,
    UserFrame,
    Var,
    abstract_mesh,
    asks_for_collective,
    expanded,
    implementation,
    is_own,
    opened,
    scan_counts,
    user_frame,
    varying_axes,
)
from runner.worker.walk import REFUSALS, function_of

_LONGEST = 96
"""The longest expression, in characters, that is inlined."""

_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]+)?=[^=]")


@dataclass(frozen=True)
class FunctionLines:
    """A function as the lines of a section.

    - `lines`: expressions and loops by name; `results`: the names of its results.
    - `arrays`: the arrays that the function captures, by their names in the lines.
    - `frames`: the place of each line in the user's files, by name.
    - `differentiated`: whether it contains the derivative of a collective.
    - `called`: the names of the functions called inside, if there are references.
    - `marked`: the paths of the values that were asked for, by the names of their lines.
    - `spelled`: how the user's source spells values and expressions of the lines.
    - `rules`: the places of the functions inside with a derivative of their own, which the lines do not have.
    - `added`: the lines of sums that JAX adds for operands that do not vary, each with the operand's name, if known.
    - `paths`: for lines at a place that several calls lead to, the user's lines that do, the innermost first.
    """

    lines: Mapping[str, TracedLine]
    results: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    frames: Mapping[str, Frame]
    differentiated: bool = False
    called: frozenset[str] = frozenset()
    marked: Mapping[str, str] = field(default_factory=dict[str, str])
    spelled: UserSpelling = field(default_factory=UserSpelling)
    rules: tuple[str, ...] = ()
    added: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: Mapping[str, tuple[Location, ...]] = field(default_factory=dict[str, "tuple[Location, ...]"])

    def traced(self, parameters: Iterable[str]) -> TracedLines:
        """The lines with the names of the operands; the captured arrays come behind them."""
        return TracedLines((*parameters, *self.arrays), tuple(self.lines.values()), self.results)


class CannotRead(Exception):
    """A part of a function cannot be expressed in the language: the primitive, the user's line, and a remedy."""


def read(
    function: Callable[..., Any],
    operands: Mapping[str, Any],
    *,
    mesh: Mesh | None = None,
    manual: Sequence[str] = (),
    varying: Mapping[str, frozenset[str]] | None = None,
    check_vma: bool = True,
    references: Mapping[str, Callable[..., Any]] | None = None,
    taken: Iterable[str] = (),
    marks: Callable[[str], bool] | None = None,
    states: Callable[[Mapping[str, Spec]], object] | None = None,
    unread: bool = False,
) -> FunctionLines:
    """The lines of a function of arrays, which it takes by position in the order of `operands`.

    - `operands`: by name, with `shape` and `dtype`.
    - `mesh`: the mesh of which a `shard_map` inside may be.
    - `manual`: the manual axes of a per-device function, whose operands are blocks; none for one of whole arrays.
    - `varying`: the mesh axes over which an operand may vary, by its name; none without an entry.
    - `check_vma`: whether JAX tracks the axes over which values may vary.
    - `references`: functions to read in place of functions called inside, by the names of these: a function with `jit`,
      `custom_jvp` or `custom_vjp`, a kernel, a callback. They take the same arrays by position.
    - `taken`: names that lines may not have.
    - `marks`: whether the value with a path inside the function gets a line of its own; only for whole arrays.
    - `states`: receives the layouts that the function's own code states, by path, before `marks` is asked.
    - `unread`: whether values that the user's lines compute, and that nothing reads, have lines too, and regions all
      their inputs: a mistake leaves such values.

    Raises `CannotRead`, and any exception of the function.
    """
    structs = [
        operand if isinstance(operand, jax.ShapeDtypeStruct) else jax.ShapeDtypeStruct(operand.shape, operand.dtype)
        for operand in operands.values()
    ]
    reader = _Reader({*operands, *taken}, mesh, frozenset(manual), unread=unread)
    if mesh is None or not manual:
        return _lines(function, {**operands}, structs, reader, references or {}, marks, states)
    readings: list[FunctionLines] = []
    over = [sorted((varying or {}).get(name, ())) for name in operands]

    def shard(*blocks: Any) -> tuple[()]:
        avals = [
            jax.typeof(calls.pcast(block, tuple(axes), to="varying") if axes and check_vma else block)
            for block, axes in zip(blocks, over, strict=True)
        ]
        readings.append(_lines(function, operands, avals, reader, references or {}, follows=check_vma))
        return ()

    _on_devices(shard, structs, mesh, manual, check_vma=check_vma)
    return readings[0]


def _on_devices(
    shard: Callable[..., tuple[()]],
    structs: Sequence[Any],
    mesh: Mesh | None,
    manual: Iterable[str],
    *,
    check_vma: bool,
) -> None:
    """Trace a function inside `shard_map`, for the mesh axes; without a mesh it is inside of one already.

    A mesh that is set around the user's call is another one, with devices.
    """
    mapped = calls.shard_map(
        shard,
        mesh=None if mesh is None else abstract_mesh(mesh),
        in_specs=jax.sharding.PartitionSpec(),
        out_specs=(),
        axis_names=set(manual),
        check_vma=check_vma,
    )
    with contextlib.nullcontext() if mesh is None else without():
        calls.eval_shape(mapped, *structs)


def _lines(
    function: Callable[..., Any],
    operands: Mapping[str, Any],
    types: Sequence[Any],
    reader: _Reader,
    references: Mapping[str, Callable[..., Any]],
    marks: Callable[[str], bool] | None = None,
    states: Callable[[Mapping[str, Spec]], object] | None = None,
    *,
    follows: bool = False,
) -> FunctionLines:
    closed = calls.make_jaxpr(function)(*types)
    if states is not None:
        states(stated(closed))
    if marks is not None:
        closed = marked(closed, marks)
    typed = tuple(zip(operands, types, strict=True)) if follows else ()
    body = _Body(reader, {}, {}, references, follows=follows, outermost=True, operands=typed)
    body.know(closed.jaxpr.constvars, closed.consts)
    body.known.update((variable, Name(name)) for variable, name in zip(closed.jaxpr.invars, operands, strict=True))
    ends = body.run(closed.jaxpr)
    # An operand or captured array that is returned unchanged gets a line of its own.
    given = {*operands, *reader.arrays}
    results = [
        body.again(term, "result") if isinstance(term, Name) and term.name in given else body.named(term, "result")
        for term in ends
    ]
    names = tuple(term.name for term in results)
    called = frozenset(reader.called)
    frames, paths = _with_callers(reader.frames, reader.paths)
    return FunctionLines(
        body.lines, names, reader.arrays, frames, reader.differentiated, called, reader.marked,
        UserSpelling({canonical_term(term): source for term, source in reader.spelled.items()}, reader.wishes),
        tuple(reader.rules), reader.added, paths,
    )  # fmt: skip


def _with_callers(
    frames: Mapping[str, Frame], paths: Mapping[str, tuple[Location, ...]]
) -> tuple[dict[str, Frame], dict[str, tuple[Location, ...]]]:
    """The places of lines with the callers that tell them apart, and the paths of those that have such."""
    lines = {name: SourceLine((frame.file, frame.line), paths.get(name, ())) for name, frame in frames.items()}
    callers = distinguishing(lines.values())
    of_lines = {name: callers[line] for name, line in lines.items()}
    apart = {name: called_frame(frame, of_lines[name]) for name, frame in frames.items()}
    several = {frames[name] for name, calls in of_lines.items() if calls}
    return apart, {name: paths[name] for name, frame in frames.items() if frame in several and name in paths}


@dataclass
class _Reader:
    """The state that all bodies of a function share.

    - `mesh`: the mesh of which a `shard_map` inside may be; `manual`: those of its axes that are manual here.
    - `arrays`: captured arrays by their names in lines; `captured`: the arrays as captured, with their terms.
    - `counts`: the number of further names made from each wish; `wishes`: these wishes, by the names; `meant`: the
      terms that names stand for.
    """

    taken: set[str]
    mesh: Mesh | None = None
    manual: frozenset[str] = frozenset()
    arrays: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    captured: list[tuple[Any, Term]] = field(default_factory=list["tuple[Any, Term]"])
    frames: dict[str, Frame] = field(default_factory=dict[str, Frame])
    counts: Counter[str] = field(default_factory=Counter[str])
    meant: dict[str, Term] = field(default_factory=dict[str, Term])
    wishes: dict[str, str] = field(default_factory=dict[str, str])
    live: dict[Any, _Live] = field(default_factory=dict[Any, "_Live"])
    differentiated: bool = False
    called: set[str] = field(default_factory=set[str])
    """The names of the functions called inside, if there are references."""
    inside: set[str] = field(default_factory=set[str])
    """The captured arrays that a `shard_map` reads; its lines see its operands alone."""
    marked: dict[str, str] = field(default_factory=dict[str, str])
    """The paths of marked values, by the names of their lines."""
    spelled: dict[Term, str] = field(default_factory=dict[Term, str])
    """How the user's source spells values and expressions."""
    rules: dict[str, None] = field(default_factory=dict[str, None])
    """The places of the user's functions with a derivative of their own."""
    unread: bool = False
    """Whether the user's values that nothing reads have lines too."""
    paths: dict[str, tuple[Location, ...]] = field(default_factory=dict[str, "tuple[Location, ...]"])
    """The user's lines that lead to the place of each line, the innermost first."""
    first_calls: dict[Any, tuple[Location, ...]] = field(default_factory=dict[Any, "tuple[Location, ...]"])
    """For each jaxpr that was inlined the path of its first call, at which JAX traced it."""
    added: dict[str, str] = field(default_factory=dict[str, str])
    """The lines of sums that JAX adds, each with the name of the operand whose cotangents it sums, if it is known."""

    def __post_init__(self) -> None:
        self.taken |= {*OPERATIONS, *CONSTANTS, *keyword.kwlist, "grad"}

    def fresh(self, wish: str) -> str:
        """An unused name made from `wish`, which is then taken."""
        name = wish = re.sub(r"\W+", "_", wish).strip("_") or "value"
        while name in self.taken:
            self.counts[wish] += 1
            name = f"{wish}_{self.counts[wish] + 1}"
        self.taken.add(name)
        if name != wish:
            self.wishes[name] = wish
        return name

    def parameter(self, wish: str | None, otherwise: str) -> str:
        """An unused name for a parameter of a body, which the user's function calls `wish`, if that is known."""
        name = self.fresh(wish or otherwise)
        if wish and name != wish:
            self.spelled.setdefault(Name(name), wish)
        return name

    def what(self, term: Term) -> Term:
        """Return the term that a name stands for; any other term is returned unchanged."""
        return self.meant.get(term.name, term) if isinstance(term, Name) else term

    def constant(self, value: Any) -> Term:
        """The term of a captured array."""
        term = next((term for array, term in self.captured if array is value), None)
        if term is None:
            term = self._captured(value)
            self.captured.append((value, term))
        self.inside.update(part.name for part in within(term) if isinstance(part, Name) and part.name in self.arrays)
        return term

    def _captured(self, value: Any) -> Term:
        if _is_key(value):
            return wrapped(self._captured(jax.random.key_data(value)), str(jax.random.key_impl(value)))
        array = np.asarray(value)
        if not array.size:
            return built("zeros({s}, {t})", s=array.shape, t=str(array.dtype))
        name = self.fresh("constant")
        self.arrays[name] = array
        return Name(name)


@dataclass(frozen=True)
class _Live:
    """The parts of a jaxpr that some of its outputs depend on: equations, inputs and variables.

    `unread` are the variables that nothing reads and that have lines all the same.
    """

    equations: tuple[Any, ...]
    inputs: tuple[bool, ...]
    variables: frozenset[Any]
    unread: frozenset[Any] = frozenset()


@dataclass(frozen=True)
class _Captured:
    """A captured array, which gets a name when it is read."""

    value: Any


@dataclass
class _Body:
    """The lines of a section or of a repeat's body written so far."""

    reader: _Reader
    lines: dict[str, TracedLine]
    known: dict[Any, Term | _Captured]
    """The terms of variables."""
    references: Mapping[str, Callable[..., Any]]
    frame: Frame | None = None
    mapped: bool = False
    """Whether the lines are inside a `vmap`."""
    derivative: bool = False
    """Whether the lines may be those of a derivative, which the source does not have."""
    follows: bool = False
    """Whether JAX tracks the mesh axes over which values may vary."""
    over: dict[Any, frozenset[str]] = field(default_factory=dict[Any, frozenset[str]])
    """The mesh axes over which a variable's term varies, where these are fewer than in the variable's type."""
    outermost: bool = False
    """Whether the lines are those of the traced function itself."""
    loop: UserFrame | None = None
    """The call that makes a loop of these lines."""
    path: tuple[Location, ...] = ()
    """The user's lines that lead to the equation that is read, its own first."""
    call: tuple[tuple[Location, ...], tuple[Location, ...]] = ((), ())
    """The paths of the call at which JAX traced these equations, and of the one that is read."""
    operands: tuple[tuple[str, Any], ...] = ()
    """The names and types of the operands of the innermost device function."""
    constants: Constants = field(default_factory=Constants)
    """The scalars among the variables that depend on no operand."""

    def inside(self, lines: dict[str, TracedLine]) -> _Body:
        """An empty body nested in this one."""
        return _Body(
            self.reader, lines, {}, self.references, self.frame, self.mapped, self.derivative, self.follows,
            path=self.path, call=self.call, operands=self.operands,
        )  # fmt: skip

    def _in_loop(self, equation: Any) -> _Body:
        """The empty body of a loop."""
        derivative = self.derivative or is_derivative(equation)
        return replace(self.inside({}), loop=user_frame(equation.source_info), derivative=derivative)

    def know(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Bind the arrays that a jaxpr captures."""
        self.known.update((variable, _Captured(value)) for variable, value in zip(variables, values, strict=True))
        self.constants.know(variables, values)

    def run(self, jaxpr: Any, wanted: Sequence[bool] | None = None) -> list[Term]:
        """Write the equations of a jaxpr whose inputs are known; returns its outputs' terms, 0 for unwanted ones."""
        wanted = tuple(wanted or (True,) * len(jaxpr.outvars))
        live = self.live(jaxpr, wanted)
        equations, frames = live.equations, [_frame(equation) for equation in live.equations]
        read = [self._read(equation, live.variables) for equation in equations]
        outputs = [v for v, kept in zip(jaxpr.outvars, wanted, strict=True) if kept]
        reads = Counter(v for each in (*read, outputs, live.unread) for v in each if isinstance(v, Var))
        # The only reader of each variable that is read once.
        reader_of = {v: at for at, each in enumerate(read) for v in each}
        # JAX may have cached the trace of a library's function at a call elsewhere.
        own = self.outermost or _defined(jaxpr) is not None
        sources: Mapping[Any, SourceOf] = spelled(equations, read) if own and not self.derivative else {}
        # The positions of the equations in the terms that are inlined.
        inlined: dict[Any, frozenset[tuple[Any, str]]] = {}
        for equation, frame, operands in zip(equations, frames, read, strict=True):
            self.frame = self._in_map(equation, frame) or self.frame
            self.path = self._called(_path(equation)) or self.path
            self.constants.note(equation)
            results = self._equation(equation, [reads[v] > 0 for v in equation.outvars])
            single = len(equation.outvars) == 1
            added = equation.primitive.name == "psum_invariant" and not asks_for_collective(equation.source_info)
            for variable, term in zip(equation.outvars, results, strict=True):
                if not reads[variable]:
                    continue
                at = reader_of.get(variable)
                inline = single and not added and reads[variable] == 1 and at is not None and frames[at] == frame
                inline = inline and at is not None and equations[at].primitive.name not in _HAS_BODY
                inline = inline and is_within(term, _LONGEST)
                if inline and at is not None:
                    # A loop that Python unrolls runs a line again: each step is written by itself.
                    of_term = frozenset((position(equation),)).union(*(inlined.get(v, ()) for v in operands))
                    inline = position(equations[at]) not in of_term
                    inlined |= {variable: of_term} if inline else {}
                short = isinstance(term, Name | Const)
                known = self.known[variable] = term if inline or short else self.named(term, self._wish(equation))
                if isinstance(known, Name) and self._counts(equation):
                    self.reader.frames.pop(known.name, None)
                if added and isinstance(known, Name):
                    self.reader.added[known.name] = self._replicated(equation, variable.aval)
                if (source := sources.get(variable)) is not None:
                    self._spell(term, known, source)
        return [self.term(v) if kept else Const(0) for v, kept in zip(jaxpr.outvars, wanted, strict=True)]

    def _counts(self, equation: Any) -> bool:
        """Whether an equation is the `i + 1` of a `fori_loop`, which no line of the user's says."""
        if self.loop is None or equation.primitive.name != "add" or not isinstance(equation.invars[1], Literal):
            return False
        aval = equation.outvars[0].aval
        return not aval.shape and aval.dtype.kind in "iu" and user_frame(equation.source_info) in (None, self.loop)

    def _called(self, path: tuple[Location, ...]) -> tuple[Location, ...]:
        """The path of an equation in the call that is read; JAX traces a jitted function once, and from its body on."""
        first, this = self.call
        if not first or not path or path[-len(first) :] == first:
            return (*path[: len(path) - len(first)], *this)
        return path if path[-1] == first[-1] else (*path, *this)

    def _replicated(self, equation: Any, aval: Any) -> str:
        """The operand of the device function whose cotangents a sum adds up; empty if several may be that.

        It does not vary over the sum's axes, and has the sum's shape, before which a `vmap` may put dimensions.
        """
        axes = over_axes(equation.primitive.name, equation.params)
        candidates = [
            name
            for name, operand in self.operands
            if not axes & varying_axes(operand)
            and operand.dtype == aval.dtype
            and operand.shape == aval.shape[len(aval.shape) - len(operand.shape) :]
        ]
        return candidates[0] if len(candidates) == 1 else ""

    def _spell(self, term: Term, known: Term, source: SourceOf) -> None:
        """Note how the source spells an expression, and the line that has its value, if there is one."""
        expression = self.reader.what(term)
        if isinstance(expression, Apply):
            self.reader.spelled.setdefault(expression, source.text or source.variable)
        if isinstance(known, Name) and known.name in self.reader.frames:
            self.reader.spelled.setdefault(known, source.variable or source.text)

    def live(self, jaxpr: Any, wanted: tuple[bool, ...]) -> _Live:
        """The parts of a jaxpr that its wanted outputs depend on."""
        key = jaxpr, wanted
        if key not in self.reader.live:
            needed = {v for v, kept in zip(jaxpr.outvars, wanted, strict=True) if kept and isinstance(v, Var)}
            equations: list[Any] = []
            unread = set[Any]()
            shown = self.reader.unread and (self.outermost or _defined(jaxpr) is not None)
            for equation in reversed(jaxpr.eqns):
                if shown and needed.isdisjoint(equation.outvars) and _is_own_value(equation):
                    unread.update(equation.outvars)
                    needed.update(equation.outvars)
                if not needed.isdisjoint(equation.outvars):
                    if shown and equation.primitive.name not in _HAS_BODY:
                        # One of several results, as of a `top_k`, may be forgotten.
                        unread.update(v for v in equation.outvars if v not in needed and type(v) is Var)
                        needed.update(equation.outvars)
                    equations.append(equation)
                    needed.update(self._read(equation, needed))
            inputs = tuple(v in needed for v in jaxpr.invars)
            parts = tuple(reversed(equations)), inputs, frozenset(needed), frozenset(unread)
            self.reader.live[key] = _Live(*parts)
        return self.reader.live[key]

    def _read(self, equation: Any, needed: Container[Any]) -> list[Any]:
        """The variables that an equation reads for those of its results that are needed."""
        name, operands = equation.primitive.name, equation.invars
        if name == "custom_linear_solve":
            operands = self._operands(equation)
        elif _checked(equation) is not None:
            operands = operands[1:]
        elif name in (*_BODIES, "shard_map") and self._reference(equation) is None:
            jaxpr, _ = opened(equation.params[_BODIES.get(name, "jaxpr")])
            if name == "shard_map" and self.reader.unread:
                return [v for v in operands if isinstance(v, Var)]
            inputs = self._inputs(equation, jaxpr, tuple(v in needed for v in equation.outvars))
            last = operands[len(operands) - len(inputs) :]
            operands = [v for v, kept in zip(last, inputs, strict=True) if kept]
        return [v for v in operands if isinstance(v, Var)]

    def _inputs(self, equation: Any, jaxpr: Any, wanted: tuple[bool, ...]) -> tuple[bool, ...]:
        """The inputs of a body that are read; of a user's scan all slices, if values that nothing reads are too."""
        inputs = self.live(jaxpr, wanted).inputs
        if equation.primitive.name != "scan" or not self.reader.unread or _defined(jaxpr) is None:
            return inputs
        return tuple(kept or at >= sum(scan_counts(equation.params)) for at, kept in enumerate(inputs))

    def _operands(self, equation: Any) -> list[Any]:
        """The operands of a linear solve: the matrix, or else the solver's operands; and the right-hand side."""
        linear_system, lengths = system(equation), equation.params["const_lengths"]
        if linear_system is not None:
            return [linear_system.matrix, equation.invars[-1]]
        before = lengths.matvec + lengths.vecmat
        last = equation.invars[sum(lengths) :]
        return [*equation.invars[before : before + lengths.solve], *last]

    def term(self, variable: Any) -> Term:
        """The term of a variable or literal."""
        if isinstance(variable, Literal):
            aval: Any = variable.aval
            if getattr(aval.dtype, "names", None):
                raise self._cannot(
                    "it has a gradient of integers (float0), and no array of an experiment has that dtype"
                )
            return literal(variable.val, str(aval.dtype))
        known = self.known[variable]
        if isinstance(known, _Captured):
            try:
                known = self.known[variable] = self.reader.constant(known.value)
            except Unread as error:
                raise self._cannot(str(error)) from None
        return known

    def named(self, term: Term, wish: str) -> Name:
        """The name of a term; one without a name gets a line."""
        if isinstance(term, Name) and term.name not in CONSTANTS:
            return term
        return self.again(term, wish)

    def again(self, term: Term, wish: str) -> Name:
        """Write a line for a term, and return the line's name."""
        name = self.reader.fresh(wish)
        self._put(TracedTerm(name, term))
        self.reader.meant[name] = term
        return Name(name)

    def _parameter(self, term: Term, aval: Any, wish: str | None) -> Term:
        """A value as an inner body reads it: a literal as it is, any other by the name of a line."""
        return term if isinstance(term, Const) else self.named(of_its_dtype(term, aval), wish or "operand")

    def own_line(self, end: Term, aval: Any, wish: str, taken: Container[str]) -> str:
        """The name of a line with this value; a new line if none has it, or if the line is `taken` already."""
        if isinstance(end, Name) and end.name in self.lines and end.name not in taken:
            return end.name
        return self.again(as_array(end, aval), wish).name

    def _in_map(self, equation: Any, frame: Frame | None) -> Frame | None:
        """The frame of an equation, with whether a map over it adds dimensions to its values."""
        mapped = self.mapped or "vmap(" in str(equation.source_info.name_stack)
        return frame and replace(frame, mapped=mapped)

    def _put(self, line: TracedLine) -> None:
        self.lines[line.name] = line
        if self.frame is not None:
            self.reader.frames[line.name] = self.frame
            if self.path[:1] == ((self.frame.file, self.frame.line),):
                # A library's wrapper around the whole function, as `nnx.jit` is, has no line of the user's above it.
                self.reader.paths[line.name] = tuple(place for place in self.path[1:] if is_own(place[0]))

    def _loop(
        self,
        name: str,
        form: LoopForm,
        lines: Mapping[str, TracedLine],
        carry: Mapping[str, Term] | None = None,
        over: Mapping[str, Term] | None = None,
    ) -> None:
        self._put(TracedLoop(name, form, tuple(lines.values()), carry or {}, over or {}))

    def _equation(self, equation: Any, wanted: Sequence[bool]) -> list[Term]:
        name = equation.primitive.name
        reference = self._reference(equation)
        if reference is not None:
            return self._referred(equation, reference)
        if name in _OPAQUE:
            raise self._cannot(_OPAQUE[name].format(name=f" '{_names(equation)[0]}'" if _names(equation) else ""))
        if name in _BODIES:
            body = equation.params[_BODIES[name]]
            if name.startswith("custom_") and (place := _defined(opened(body)[0])) is not None:
                self.reader.rules.setdefault(str(place))
            return self._call(equation, body, wanted)
        if name == "custom_linear_solve":
            return self._solve(equation)
        if name == "call_hi_primitive":
            closed = calls.make_jaxpr(expanded(equation.params))(*(v.aval for v in equation.invars))
            return self._within(closed.jaxpr, closed.consts, equation.invars, wanted, equation)
        if (function := implementation(equation)) is not None:
            closed = calls.make_jaxpr(function)(*(v.aval for v in equation.invars))
            return self._within(closed.jaxpr, closed.consts, equation.invars, wanted, equation)
        if name in PLACING and _is_key(equation.outvars[0].aval):
            return [self._placed_keys(equation)]
        if name in _COMPARING and _is_key(equation.invars[0].aval):
            return [built(_COMPARING[name], x=self.term(equation.invars[0]), y=self.term(equation.invars[1]))]
        if name in _DRAWS and any(v.aval.shape for v in equation.invars):
            return self._draws(equation)
        if name == "name" and (path := unmarked(equation.params["name"])) is not None:
            return [self._marked(self.term(equation.invars[0]), path)]
        written = {"scan": self._scan, "cond": self._cond, "while": self._while, "shard_map": self._region}.get(name)
        return self._applied(equation) if written is None else written(equation, wanted)

    def _reference(self, equation: Any) -> str | None:
        """The name of the called function, if there is a reference for it."""
        if not self.references:
            return None
        names = _names(equation)
        self.reader.called.update(names)
        return next((name for name in names if name in self.references), None)

    def _cannot(self, why: str) -> CannotRead:
        return CannotRead(f"{self.frame or 'the function'}: {why}")

    def _wish(self, equation: Any) -> str:
        """The preferred name of a value: the one that the user's line assigns, or that of the primitive."""
        assigned = _ASSIGNED.match(self.frame.text) if self.frame else None
        return assigned[1] if assigned else equation.primitive.name

    def _applied(self, equation: Any) -> list[Term]:
        if (decided := self.constants.decided(equation)) is not None:
            return [literal(decided, str(equation.outvars[0].aval.dtype))]
        operands = [self.term(v) for v in equation.invars]
        if self.follows:
            self._follow(equation, operands)
        sizes = {} if self.reader.mesh is None else self.reader.mesh.sizes
        if (fault := collectives.fault(equation.primitive.name, equation.params, sizes)) is not None:
            raise self._cannot(fault)
        application = Application(
            equation.primitive.name,
            equation.params,
            tuple(operands),
            tuple(v.aval for v in equation.invars),
            tuple(v.aval for v in equation.outvars),
            self.named,
            self.reader.what,
        )
        try:
            term = expression(application)
        except Unread as error:
            raise self._cannot(str(error)) from None
        if len(equation.outvars) == 1:
            return [term.items[0] if isinstance(term, Group) and equation.primitive.multiple_results else term]
        if isinstance(term, Group):
            return list(term.items)
        whole = self.named(term, equation.primitive.name)
        return [at_index(whole, Const(at)) for at in range(len(equation.outvars))]

    def _marked(self, term: Term, path: str) -> Name:
        """The line of a value that was requested by its path."""
        own = isinstance(term, Name) and term.name in self.lines
        line = cast("Name", term) if own else self.again(term, path.rpartition("/")[2])
        self.reader.marked[line.name] = path
        return line

    # JAX infers the axes over which a value varies, except for the initial carry of a loop. The lines cast explicitly
    # only there and for collectives, which need it.

    def _follow(self, equation: Any, operands: list[Term]) -> None:
        """Note the axes over which the results vary as JAX infers them; cast the operands of a collective."""
        axes = over_axes(equation.primitive.name, equation.params)
        self.reader.differentiated |= bool(axes) and "transpose(" in str(equation.source_info.name_stack)
        if axes and equation.primitive.name != "pvary":
            for at, variable in enumerate(equation.invars):
                operands[at] = self._cast(operands[at], variable, axes)
        differs = frozenset[str]().union(*map(self._differs, equation.invars), axes)
        for variable in equation.outvars:
            varying = varying_axes(variable.aval)
            if equation.primitive.name == "pvary":
                differs = self._differs(equation.invars[0])
            if not varying <= differs:
                self.over[variable] = varying & differs

    def _differs(self, variable: Any) -> frozenset[str]:
        """The mesh axes over which a variable's term varies."""
        if not self.follows or isinstance(variable, Literal):
            return frozenset()
        return self.over[variable] if variable in self.over else varying_axes(variable.aval)

    def _cast(self, term: Term, variable: Any, axes: frozenset[str] | None = None) -> Term:
        """The term of a variable, cast to varying over those of `axes` (or all axes of its type) that it lacks."""
        if not self.follows:
            return term
        missing = varying_axes(variable.aval) - self._differs(variable)
        missing = missing if axes is None else missing & axes
        return built("pcast({x}, {a}, to='varying')", x=term, a=axes_of(tuple(sorted(missing)))) if missing else term

    def _call(self, equation: Any, body: Any, wanted: Sequence[bool]) -> list[Term]:
        """The results of a call: its lines inlined, or a call of the operation if it is JAX's implementation of one."""
        own = self._library(equation, body) if equation.primitive.name == "jit" else None
        if own is not None:
            several = len(equation.outvars) > 1
            whole = self.named(own, equation.params["name"]) if several else own
            return [at_index(whole, Const(at)) for at in range(len(equation.outvars))] if several else [own]
        jaxpr, consts = opened(body)
        operands = equation.invars[len(equation.invars) - len(jaxpr.invars) :]
        return self._within(jaxpr, consts, operands, wanted, equation)

    def _within(self, jaxpr: Any, consts: Any, operands: Any, wanted: Sequence[bool], equation: Any) -> list[Term]:
        """Inline the lines of a jaxpr at some operands."""
        inside = self.inside(self.lines)
        inside.call = self.reader.first_calls.setdefault(jaxpr, self.path), self.path
        inside.mapped |= "vmap(" in str(equation.source_info.name_stack)
        inside.derivative |= is_derivative(equation)
        inside.know(jaxpr.constvars, consts)
        self.constants.give(inside.constants, jaxpr.invars, operands)
        live = self.live(jaxpr, tuple(wanted))
        reads = Counter(v for each in live.equations for v in each.invars if isinstance(v, Var))
        for variable, operand, wish, kept in zip(jaxpr.invars, operands, _parameters(jaxpr), live.inputs, strict=True):
            if not kept:
                continue
            term = self.term(operand)
            short = isinstance(term, Name) or reads[variable] == 0
            inside.known[variable] = term if short else self._parameter(term, operand.aval, wish)
            inside.over[variable] = self._differs(operand)
        results = inside.run(jaxpr, wanted)
        for variable, result in zip(equation.outvars, jaxpr.outvars, strict=True):
            self.over[variable] = inside._differs(result)
        return results

    def _referred(self, equation: Any, name: str) -> list[Term]:
        """Inline the lines of a reference in place of the called function."""
        info = equation.params["jaxpr"].jaxpr.debug_info if equation.primitive.name == "jit" else None
        if info is not None and (info.arg_names is None or info.result_paths is None):
            raise self._cannot(
                f"'{name}' is differentiated or mapped here, and its reference is only for the function itself: name a "
                "reference for a jitted function that contains the derivative or the map"
            )
        if self.mapped or "vmap(" in str(equation.source_info.name_stack):
            raise self._cannot(
                f"'{name}' is mapped by vmap here, and its reference is only for the function itself: name a reference "
                "for a jitted function that contains the vmap"
            )
        avals = [v.aval for v in equation.invars]
        try:
            closed = calls.make_jaxpr(self.references[name])(*avals)
        except REFUSALS as error:
            given = ", ".join(map(_typed, avals))
            message = str(error).strip().split("\n")[0]
            raise self._cannot(f"the reference of '{name}' cannot be called with {given}: {message}") from None
        has, wants = ([(v.aval.shape, v.aval.dtype) for v in each] for each in (closed.jaxpr.outvars, equation.outvars))
        if has != wants:
            gives, wanted = (
                ", ".join(_typed(v.aval) for v in each) for each in (closed.jaxpr.outvars, equation.outvars)
            )
            raise self._cannot(f"the reference of '{name}' gives {gives} instead of {wanted}")
        rest = {each: function for each, function in self.references.items() if each != name}
        replaced = replace(self, references=rest)
        return replaced._within(closed.jaxpr, closed.consts, equation.invars, [True] * len(wants), equation)

    def _library(self, equation: Any, closed: Any) -> Term | None:
        """The operation that JAX implements by a called function; None if there is none or it does something else.

        Draws that `vmap` makes with several keys become a repeat of draws with one.
        """
        name = equation.params["name"]
        if name not in LIBRARY or closed.consts or "/jax/_src/" not in str(closed.jaxpr.debug_info.func_src_info):
            return None
        if any(isinstance(v, Var) and v not in self.known for v in equation.invars):
            return None
        keyed = any(_is_key(v.aval) for v in equation.invars)
        if any(_is_key(v.aval) or (keyed and v.aval.dtype.kind == "c") for v in equation.outvars):
            return None
        operands = tuple(map(self.term, equation.invars))
        inputs, outputs = (tuple(v.aval for v in each) for each in (equation.invars, equation.outvars))
        several = _several_keys(inputs)
        if several:
            operands = (Name(self.reader.fresh("key")), *operands[1:])
            inputs = (inputs[0].update(shape=()), *inputs[1:])
            outputs = tuple(aval.update(shape=aval.shape[1:]) for aval in outputs)
        application = Application(name, equation.params, operands, inputs, outputs, self.named, self.reader.what)
        operation, statics = LIBRARY[name](application)
        names = ORDERS.get(operation, tuple(OPERATIONS[operation].signature.parameters))[: len(operands)]
        given = _statics(operation, names, statics)
        if len(names) < len(operands) or not _is_library(operation, names, given, name, closed, several=several):
            return None
        operands = operands if "dtype" in given else of_their_dtype(operands, inputs, outputs[0])
        call = Apply(operation, *_arguments(operation, dict(zip(names, operands, strict=True)), given))
        if not several:
            return call
        keys = equation.invars[0]
        return self._repeated(keys.aval.shape[0], {cast("Name", operands[0]).name: self.term(keys)}, call)

    def _solve(self, equation: Any) -> list[Term]:
        """The result of a linear solve: `solve` if it has a matrix, else the solver that JAX was given, inlined."""
        linear_system, operands = system(equation), self._operands(equation)
        if linear_system is None:
            jaxpr, consts = opened(equation.params["jaxprs"].solve)
            return self._within(jaxpr, consts, operands, [True] * len(equation.outvars), equation)
        a, b = map(self.term, operands)
        a = built("matrix_transpose({a})", a=a) if linear_system.transposed else a
        order, back = linear_system.order, tuple(map(linear_system.order.index, range(len(linear_system.order))))
        b = b if order == tuple(range(len(order))) else transposed(b, order)
        if len(order) > 1 and not linear_system.columns:
            return [transposed(built("solve({a}, {b}[..., None])[..., 0]", a=a, b=b), back)]
        return [transposed(built("solve({a}, {b})", a=a, b=b), back)]

    def _placed_keys(self, equation: Any) -> Term:
        """Keys at other places: each of their words is placed so, as keys have a dimension of words for the oracle."""
        keyed = [_is_key(v.aval) for v in equation.invars]

        def placed(*words: Any) -> Any:
            return equation.primitive.bind(*words, **equation.params)

        place = calls.vmap(
            placed,
            in_axes=tuple(-1 if key else None for key in keyed),
            out_axes=-1,
        )
        avals = [_words(v.aval) if key else v.aval for v, key in zip(equation.invars, keyed, strict=True)]
        closed = calls.make_jaxpr(place)(*avals)
        inside = self.inside(self.lines)
        inside.know(closed.jaxpr.constvars, closed.consts)
        for variable, operand, key in zip(closed.jaxpr.invars, equation.invars, keyed, strict=True):
            term = self.term(operand)
            inside.known[variable] = self.named(built("key_data({k})", k=term), "words") if key else term
        (words,) = inside.run(closed.jaxpr)
        return built("wrap_key_data({w})", w=words)

    def _draws(self, equation: Any) -> list[Term]:
        """A repeat that draws with each of several keys, one after the other."""
        (shape,) = {v.aval.shape for v in equation.invars} - {()}
        count = math.prod(shape)
        over = {
            self.reader.fresh("key" if at == 0 else "data"): _reshaped(self.term(v), v.aval, (count,))
            for at, v in enumerate(equation.invars)
            if v.aval.shape
        }
        each = iter(map(Name, over))
        operands = tuple(next(each) if v.aval.shape else self.named(self.term(v), "key") for v in equation.invars)
        avals = tuple(v.aval for v in (*equation.invars, *equation.outvars))
        drawn = Application(equation.primitive.name, equation.params, operands, avals[:-1], avals[-1:], self.named,
                            self.reader.what)  # fmt: skip
        (result,) = equation.outvars
        each = result.aval.shape[len(shape) :]
        stacked = self._repeated(count, over, expression(drawn))
        return [_reshaped(stacked, result.aval.update(shape=(count, *each)), (*shape, *each))]

    def _repeated(self, count: int, over: Mapping[str, Term], drawn: Term) -> Name:
        """A repeat that evaluates `drawn` for each of several keys; returns the name of the stacked results."""
        loop, index = self.reader.fresh(self._loop_name("draws")), self.reader.fresh("step")
        body, stack = self.reader.fresh("drawn"), self.reader.fresh("stacked")
        self._loop(loop, LoopForm(count, index, {stack: body}), {body: TracedTerm(body, drawn)}, over=over)
        return Name(f"{loop}.{stack}")

    def _initial(self, variable: Any) -> Term:
        """The initial value of a carry; a number becomes an array of the carried dtype."""
        return self._cast(as_array(self.term(variable), variable.aval), variable)

    def _scan(self, equation: Any, wanted: Sequence[bool]) -> list[Term]:
        params = equation.params
        closed, (same, count) = params["jaxpr"], scan_counts(params)
        jaxpr, reverse, length = closed.jaxpr, params["reverse"], params["length"]
        if not length:
            empty = (built("zeros({s}, {t})", s=tuple(v.aval.shape), t=str(v.aval.dtype)) for v in equation.outvars)
            return [*map(self.term, equation.invars[same : same + count]), *list(empty)[count:]]
        ended = (*(True for _ in range(count)), *wanted[count:])
        live = self._inputs(equation, jaxpr, ended)
        loop, index = self.reader.fresh(self._loop_name("scan")), self.reader.fresh("step")
        inside = self._in_loop(equation)
        inside.know(jaxpr.constvars, closed.consts)
        carry: dict[str, Term] = {}
        over: dict[str, Term] = {}
        inputs = zip(jaxpr.invars, equation.invars, _parameters(jaxpr), live, strict=True)
        for at, (variable, operand, wish, kept) in enumerate(inputs):
            if same <= at < same + count:
                name = self.reader.parameter(wish, "carry")
                carry[name], inside.known[variable] = self._initial(operand), Name(name)
            elif kept and at < same:
                inside.known[variable] = self._parameter(self.term(operand), operand.aval, wish)
                inside.over[variable] = self._differs(operand)
            elif kept:
                name, term = self.reader.parameter(wish, "slice"), self.term(operand)
                over[name] = built("flip({x}, 0)", x=term) if reverse else term
                inside.known[variable] = Name(name)
                inside.over[variable] = self._differs(operand)
        ends = inside.run(jaxpr, ended)
        stack: dict[str, str] = {}
        stacked: list[Term] = []
        for variable, end, kept in zip(jaxpr.outvars[count:], ends[count:], ended[count:], strict=True):
            if not kept:
                stacked.append(Const(0))
                continue
            line_of_end = inside.own_line(end, variable.aval, "each", stack.values())
            stack[name := self.reader.fresh("stacked")] = line_of_end
            whole = Name(f"{loop}.{name}")
            stacked.append(built("flip({x}, 0)", x=whole) if reverse else whole)
        inside.end(carry, [inside._cast(*each) for each in zip(ends[:count], jaxpr.outvars[:count], strict=True)])
        for variable, inner in zip(equation.outvars[count:], jaxpr.outvars[count:], strict=True):
            self.over[variable] = inside._differs(inner)
        self._loop(loop, LoopForm(length, index, stack), inside.lines, carry, over)
        return [*(Name(f"{loop}.{name}") for name in carry), *stacked]

    def _region(self, equation: Any, wanted: Sequence[bool]) -> list[Term]:
        """The results of a `shard_map`: a region that has the lines of a device."""
        params = equation.params
        jaxpr = params["jaxpr"]
        self.frame = _defined(jaxpr) or self.frame
        self._check_mesh(params["mesh"])
        self._check_specs(equation)
        manual = tuple(axis for axis in params["mesh"].axis_names if axis in params["newly_manual_axes"])
        read = self.live(jaxpr, tuple(wanted)).inputs
        name = self.reader.fresh(self._loop_name("shard_map"))
        named = tuple((name, v.aval) for name, v in zip(_parameters(jaxpr), jaxpr.invars, strict=True) if name)
        inside = replace(self.inside({}), follows=params["check_vma"], operands=named)
        inside.derivative |= is_derivative(equation)
        over: dict[str, Term] = {}
        in_specs: list[Any] = []
        inputs = zip(jaxpr.invars, equation.invars, params["in_specs"], _parameters(jaxpr), read, strict=True)
        for variable, operand, spec, wish, kept in inputs:
            if kept or self.reader.unread:
                shard = self.reader.parameter(wish, "shard")
                over[shard] = as_array(self.term(operand), variable.aval)
                inside.known[variable] = Name(shard)
                inside.over[variable] = varying_axes(variable.aval) & {*self._differs(operand), *Spec.of(spec).axes}
                in_specs.append(spec)
        ends: list[Term] = []

        def device() -> tuple[()]:
            ends.extend(inside.run(jaxpr, wanted))
            return ()

        around, captured = self.reader.manual, self.reader.inside
        self.reader.manual, self.reader.inside = around | {*manual}, set()
        _on_devices(device, (), None if around else self.reader.mesh, manual, check_vma=params["check_vma"])
        for array in sorted(self.reader.inside):
            over[array] = Name(array)
            in_specs.append(())
        self.reader.manual, self.reader.inside = around, captured | self.reader.inside
        stack: dict[str, str] = {}
        results: list[Term] = []
        out_specs: list[Any] = []
        ended = zip(jaxpr.outvars, equation.outvars, ends, params["out_specs"], wanted, strict=True)
        for variable, joins, end, spec, kept in ended:
            if not kept:
                results.append(Const(0))
                continue
            line_of_end = inside.own_line(end, variable.aval, "shard", stack.values())
            stack[joined := self.reader.fresh("joined")] = line_of_end
            out_specs.append(spec)
            results.append(Name(f"{name}.{joined}"))
            self.over[joins] = inside._differs(variable) - {*manual}
        specs = (tuple(map(Spec.of, each)) for each in (in_specs, out_specs))
        region = Region(manual, *specs, check_vma=bool(params["check_vma"]))
        self._loop(name, LoopForm(1, stack=stack, region=region), inside.lines, over=over)
        return results

    def _check_mesh(self, own: Any) -> None:
        """Raise `CannotRead` if the mesh of a `shard_map` is not that of the experiment."""
        given, mesh = Mesh(tuple(own.axis_names), tuple(own.axis_sizes)), self.reader.mesh
        if mesh is None or given.axes != mesh.axes or given.shape != mesh.shape:
            raise self._cannot(
                f"its shard_map is over the mesh {given}, and the experiment has the mesh {mesh}: give both the same, "
                "with the axes in the same order"
            )

    def _check_specs(self, equation: Any) -> None:
        """Raise `CannotRead` if a spec of a nested `shard_map` has an axis of the one around it."""
        for spec in (*equation.params["in_specs"], *equation.params["out_specs"]):
            twice = [axis for axis in Spec.of(spec).axes if axis in self.reader.manual]
            if twice:
                raise self._cannot(
                    f"a spec of its shard_map, {Spec.of(spec)}, has {quoted(twice)}, over which the shard_map around "
                    "it is manual already; JAX makes such specs for what a derivative keeps, and cannot compile them: "
                    "give the inner shard_map the function with jax.checkpoint, or take the derivative inside of it"
                )

    def end(self, carry: Iterable[str], ends: Sequence[Term]) -> None:
        """Write the last lines of a repeat's body, which set the carry for the next step."""
        # Compute all new values before any carried name is bound again.
        following = [
            (name, end if isinstance(end, Name) and end.name in self.lines else self.again(end, f"next_{name}"))
            for name, end in zip(carry, ends, strict=True)
            if end != Name(name)
        ]
        for name, end in following:
            self.lines[name] = TracedTerm(name, end)

    def _while(self, equation: Any, _: Sequence[bool]) -> list[Term]:
        """A repeat if constants say how many steps it takes, else a while.

        Its condition is evaluated before it, and on what each step gives; a further carried value has the result.
        Where `vmap` merged several whiles into one, a step changes only those that another carried value says go on.
        """
        condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
        asked = equation.params["cond_nconsts"]
        first = asked + equation.params["body_nconsts"]
        numbers = [self._number(v) for v in equation.invars]
        count = steps(condition.jaxpr, numbers[:asked], body.jaxpr, numbers[asked:first], numbers[first:])
        initial = [self._initial(v) for v in equation.invars[first:]]
        if count == 0:
            return initial
        if count is not None and count > STEPS:
            raise self._cannot(
                f"a while_loop of {count:,} steps, which the oracle would interpret one by one; the limit is "
                f"{STEPS:,}: take fewer, or name a reference for a jitted function that contains it"
            )
        loop = self.reader.fresh(self._loop_name("while"))
        inside = self._in_loop(equation)
        wishes = _parameters(body.jaxpr)[first - asked :]
        read = [(condition, equation.invars[:asked]), (body, equation.invars[asked:first])]
        if count is None:
            initial = [self.named(term, wish or "carry") for term, wish in zip(initial, wishes, strict=True)]
        carry = {self.reader.parameter(wish, "carry"): term for term, wish in zip(initial, wishes, strict=True)}
        index = self.reader.fresh("step")
        for closed, invars in read if count is None else read[1:]:
            inside.know(closed.jaxpr.constvars, closed.consts)
            for variable, operand, wish in zip(closed.jaxpr.invars, invars, _parameters(closed.jaxpr), strict=False):
                inside.known[variable] = self._parameter(self.term(operand), operand.aval, wish)
                inside.over[variable] = self._differs(operand)
        going = [self.reader.fresh(wish) for wish in (["each"] if condition.out_avals[0].shape else []) + ["going"]]
        if count is None:
            begins = self.inside(self.lines)
            begins.known, begins.over = dict(inside.known), dict(inside.over)
            carry.update(zip(going, begins._condition(condition.jaxpr, initial), strict=True))
        inside.known.update(zip(body.jaxpr.invars[first - asked :], map(Name, carry), strict=False))
        ends = [inside._cast(end, v) for end, v in zip(inside.run(body.jaxpr), body.jaxpr.outvars, strict=True)]
        if count is None:
            if len(going) > 1:
                ends = [
                    inside._changed(Name(going[0]), condition.out_avals[0], end, Name(name), variable.aval)
                    for end, name, variable in zip(ends, carry, body.jaxpr.outvars, strict=False)
                ]
            ends = [inside.named(end, f"next_{wish or 'carry'}") for end, wish in zip(ends, wishes, strict=True)]
            ends += inside._condition(condition.jaxpr, ends)
        inside.end(carry, ends)
        form = LoopForm(None, going=going[-1]) if count is None else LoopForm(count, index)
        self._loop(loop, form, inside.lines, carry)
        return [Name(f"{loop}.{name}") for name in list(carry)[: len(initial)]]

    def _condition(self, jaxpr: Any, carry: Sequence[Term]) -> list[Term]:
        """Whether a while goes on with what it carries; whiles that are mapped each have a result before that."""
        self.known.update(zip(jaxpr.invars[len(jaxpr.invars) - len(carry) :], carry, strict=True))
        (going,) = self.run(jaxpr)
        going = self._cast(as_array(going, jaxpr.outvars[0].aval), jaxpr.outvars[0])
        if not jaxpr.outvars[0].aval.shape:
            return [going]
        each = self.named(going, "each")
        return [each, built("any({e})", e=each)]

    def _changed(self, each: Term, of: Any, end: Term, start: Term, aval: Any) -> Term:
        """The end of a step for the mapped whiles that go on, the start for the others."""
        if end == start:
            return end
        if _is_key(aval):
            changed = self._changed(
                each, of, built("key_data({k})", k=end), built("key_data({k})", k=start), _words(aval)
            )
            return built("wrap_key_data({w})", w=changed)
        more = len(aval.shape) - len(of.shape)
        mask = indexed(each, [Const(...), *[NOTHING] * more]) if more else each
        return built("where({g}, {e}, {c})", g=mask, e=end, c=start)

    def _number(self, variable: Any) -> int | None:
        """The integer that a variable stands for, or None."""
        term = self.term(variable)
        return term.value if isinstance(term, Const) and type(term.value) is int else None

    def _loop_name(self, kind: str) -> str:
        assigned = _ASSIGNED.match(self.frame.text) if self.frame else None
        return f"{assigned[1]}_{kind}" if assigned else kind

    def _cond(self, equation: Any, wanted: Sequence[bool]) -> list[Term]:
        """Write all branches and select among their results."""
        if (taken := _checked(equation)) is not None:
            return self._within(taken.jaxpr, taken.consts, equation.invars[1:], wanted, equation)
        chosen, branches = self.term(equation.invars[0]), equation.params["branches"]
        if isinstance(chosen, Const):
            taken = branches[min(max(int(cast("int", chosen.value)), 0), len(branches) - 1)]
            return self._within(taken.jaxpr, taken.consts, equation.invars[1:], wanted, equation)
        which = self.named(chosen, "branch")
        every: list[list[Term]] = []
        differs = [self._differs(equation.invars[0])] * len(wanted)
        for branch in branches:
            ends = self._within(branch.jaxpr, branch.consts, equation.invars[1:], wanted, equation)
            ends = [of_its_dtype(end, v.aval) for end, v in zip(ends, equation.outvars, strict=True)]
            every.append([end if isinstance(end, Const) else self.named(end, "taken") for end in ends])
            differs = [over | self._differs(v) for over, v in zip(differs, equation.outvars, strict=True)]
        self.over.update(zip(equation.outvars, differs, strict=True))
        results: list[Term] = []
        for cases in zip(*every, strict=True):
            *others, taken = cases
            for number, case in reversed(list(enumerate(others))):
                taken = built("where({p} == {n}, {a}, {b})", p=which, n=number, a=case, b=taken)
            results.append(taken)
        return results


_BODIES = {**CALLING, "custom_lin": "call_jaxpr", "custom_partitioning": "call", "eval_jaxpr": "call_jaxpr"}
"""The primitives that call a jaxpr, with the name of the parameter that holds it."""

_HAS_BODY = {*_BODIES, "scan", "cond", "while", "shard_map"}

_DRAWS = ("random_bits", "random_split", "random_fold_in")

_COMPARING = {
    "eq": "all(key_data({x}) == key_data({y}), axis=-1)",
    "ne": "any(key_data({x}) != key_data({y}), axis=-1)",
}
"""The primitives that compare keys, by their words."""

_OPAQUE = {
    "pallas_call": f"a Pallas kernel{{name}} cannot be read: {REFERENCE}",
    "pure_callback": f"a Python callback{{name}} cannot be read: {REFERENCE}",
    "io_callback": f"a Python callback{{name}} cannot be read: {REFERENCE}",
    "ffi_call": f"foreign code{{name}} cannot be read: {REFERENCE}",
}
"""The primitives that cannot be read, with a remedy for each."""


def _checked(equation: Any) -> Any:
    """The branch of Equinox's `error_if` that is taken if the check passes; None for other equations.

    The other branch only raises, so the programs have no values then.
    """
    if equation.primitive.name != "cond":
        return None
    passing = [branch for branch in equation.params["branches"] if not any(map(_raises, branch.jaxpr.eqns))]
    return passing[0] if len(passing) == 1 < len(equation.params["branches"]) else None


def _raises(equation: Any) -> bool:
    """Whether an equation is the callback with which Equinox raises the exception of a check."""
    function = getattr(equation.params.get("callback"), "callback_func", None)
    return getattr(function, "__module__", None) == "equinox._errors"


def _names(equation: Any) -> list[str]:
    """The names by which the user may know the function that an equation calls, likeliest first."""
    params = equation.params
    names = [params.get("name"), params.get("target_name")]
    names += [getattr(getattr(params.get("callback"), "callback_func", None), "__name__", None)]
    body = params.get(_BODIES.get(equation.primitive.name, "jaxpr"))
    info = getattr(opened(body)[0], "debug_info", None)
    names += [getattr(info, "func_name", None)]
    return [name for name in names if isinstance(name, str) and name]


def _parameters(jaxpr: Any) -> list[str | None]:
    """The parameter names of a jaxpr's inputs, None where JAX does not know them."""
    named = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None) or ()
    return list(named) if len(named) == len(jaxpr.invars) else [None] * len(jaxpr.invars)


def _typed(aval: Any) -> str:
    """The type of a value in words."""
    return f"{aval.dtype}[{', '.join(map(str, aval.shape))}]"


def _statics(operation: str, names: Sequence[str], statics: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are no operands and differ from their defaults."""
    parameters = OPERATIONS[operation].signature.parameters
    return {
        name: value
        for name, value in statics.items()
        if name in parameters and name not in names and parameters[name].default != value
    }


def _arguments(
    operation: str, operands: Mapping[str, Term], given: Mapping[str, Any]
) -> tuple[tuple[Term, ...], tuple[tuple[str, Term], ...]]:
    """The arguments of a call, split into positional and named ones."""
    values = {**operands, **{name: constant(value) for name, value in given.items()}}
    parameters = list(OPERATIONS[operation].signature.parameters.values())
    count = next((at for at, p in enumerate(parameters) if p.name not in values or p.kind is p.KEYWORD_ONLY),
                 len(parameters))  # fmt: skip
    placed = [p.name for p in parameters[:count]]
    return tuple(values[name] for name in placed), tuple((n, v) for n, v in values.items() if n not in placed)


def _is_key(aval: Any) -> bool:
    """Whether a value holds random keys."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key))


def _words(aval: Any) -> Any:
    """The type of the words of keys."""
    return jax.ShapeDtypeStruct((*aval.shape, 2), np.uint32)


def _reshaped(term: Term, aval: Any, shape: tuple[int, ...]) -> Term:
    """The term with another shape; the words of keys are the last dimension of their data."""
    if aval.shape == shape:
        return term
    if _is_key(aval):
        return built("wrap_key_data(reshape(key_data({k}), {s}))", k=term, s=(*shape, 2))
    return built("reshape({x}, {s})", x=term, s=shape)


def _several_keys(inputs: Sequence[Any]) -> bool:
    """Whether the first operand is a vector of keys and the others are scalars."""
    if not inputs or not _is_key(inputs[0]):
        return False
    return len(inputs[0].shape) == 1 and not any(aval.shape for aval in inputs[1:])


def _is_library(
    operation: str, names: Sequence[str], given: Mapping[str, Any], name: str, closed: Any, *, several: bool
) -> bool:
    """Whether a call is exactly the operation: a transformed call keeps the name but computes something else.

    `several`: whether it is the operation mapped by `vmap` over several keys.
    """
    avals = tuple(v.aval for v in closed.jaxpr.invars)
    return str(closed) in _bodies(operation, tuple(names), tuple(given.items()), name, avals, several)


@cache
def _bodies(
    operation: str,
    names: tuple[str, ...],
    given: tuple[tuple[str, Any], ...],
    name: str,
    avals: tuple[Any, ...],
    several: bool,
) -> tuple[str, ...]:
    """The jaxprs of all functions of this name that JAX calls for an operation."""

    def call(*operands: Any) -> Any:
        parameters = OPERATIONS[operation].signature.parameters
        values = {**dict(zip(names, operands, strict=True)), **dict(given)}
        placed = [n for n in parameters if parameters[n].kind is parameters[n].POSITIONAL_ONLY]
        named = {n: value for n, value in values.items() if n not in placed}
        return function_of(OPERATIONS[operation])(*(values[n] for n in placed if n in values), **named)

    try:
        mapped = calls.vmap(call, in_axes=(0, *(None for _ in avals[1:]))) if several else call
        traced = calls.make_jaxpr(mapped)(*avals)
    except REFUSALS:
        return ()
    # With the operands in another order, the function would have the same jaxpr.
    return tuple(
        str(eqn.params["jaxpr"])
        for eqn in traced.jaxpr.eqns
        if eqn.params.get("name") == name and eqn.invars == traced.jaxpr.invars
    )


def _defined(jaxpr: Any) -> Frame | None:
    """The line where the function of a jaxpr is defined, in the user's own files."""
    location = re.fullmatch(r".* at (.*):(\d+)", str(getattr(jaxpr.debug_info, "func_src_info", "")))
    if location is None or not is_own(location[1]):
        return None
    return Frame(location[1], int(location[2]), linecache.getline(location[1], int(location[2])).strip())


def _is_own_value(equation: Any) -> bool:
    """Whether an equation computes a single value on a line of the user's, without a loop or a region."""
    name = equation.primitive.name
    if len(equation.outvars) != 1 or any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects):
        return False
    return user_frame(equation.source_info) is not None and (name not in _HAS_BODY or name in _BODIES)


def _frame(equation: Any) -> Frame | None:
    """The user's line that an equation comes from."""
    frame = user_frame(equation.source_info)
    if frame is None:
        return None
    caller = str(_line_of_file(*frame.callers[0])) if frame.callers else ""
    derivative = is_derivative(equation) and "transpose(" in str(equation.source_info.name_stack)
    return replace(_line_of_file(frame.file, frame.line), caller=caller, derivative=derivative)


def _path(equation: Any) -> tuple[Location, ...]:
    """The user's lines that lead to an equation, its own first; empty if it comes from none."""
    frame = user_frame(equation.source_info)
    return () if frame is None else ((frame.file, frame.line), *frame.callers)


def _line_of_file(file: str, line: int) -> Frame:
    return Frame(file, line, linecache.getline(file, line).strip())
