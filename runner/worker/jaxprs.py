"""A function of JAX and the shapes of its operands in; the lines of a section that compute the same out.

The function is traced, and each equation of its jaxpr becomes an expression of the language (`primitives.py`). What is
read once, in the same line of the user's file, stands where it is read. Calls (`jit`, `custom_jvp_call`, `remat2`) are
read where they stand; a `scan` is a repeat; of a `cond` all branches are computed, and one is taken.
"""

from __future__ import annotations

import keyword
import linecache
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend import core as extended

from runner.derivation.terms import built, constant
from runner.experiment.frames import free
from runner.graph.source import Frame
from runner.graph.term import Apply, Const, Group, Name, Term
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.language.parts import at_index
from runner.language.printing import text
from runner.worker import calls
from runner.worker.primitives import LIBRARY, ORDERS, Application, Unread, expression, literal
from runner.worker.versions import scan_counts, user_frame
from runner.worker.walk import REFUSALS, function_of

_LONGEST = 96
"""How long an expression may be that stands where it is read."""

_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]+)?=[^=]")


@dataclass(frozen=True)
class FunctionLines:
    """A function as the lines of a section.

    - `lines`: names to expressions, and to repeats, as the YAML has them; `results`: what names its results have.
    - `arrays`: the arrays that the function captures, by the names that the lines have for them.
    - `frames`: where each line stands in the user's files, by its name.
    """

    lines: Mapping[str, Any]
    results: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    frames: Mapping[str, Frame]


class CannotRead(Exception):
    """What of a function has no expression in the language: the primitive, the user's line, and what may be done."""


def read(function: Callable[..., Any], operands: Mapping[str, Any]) -> FunctionLines:
    """The lines of a function of arrays, called by name in the order of `operands`, which have `shape` and `dtype`.

    Raises `CannotRead`, and whatever the function raises.
    """
    structs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands.values()]
    closed = calls.make_jaxpr(function)(*structs)
    reader = _Reader({*operands})
    body, arrays = _Body(reader, {}, {}), dict[str, np.ndarray]()
    reads = {v for equation in closed.jaxpr.eqns for v in equation.invars if isinstance(v, extended.Var)}
    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if variable not in {*reads, *closed.jaxpr.outvars}:
            continue
        name, is_key = reader.fresh("constant"), jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
        arrays[name] = np.asarray(jax.random.key_data(value) if is_key else value)
        body.known[variable] = built("wrap_key_data({x})", x=Name(name)) if is_key else Name(name)
    body.known.update((variable, Name(name)) for variable, name in zip(closed.jaxpr.invars, operands, strict=True))
    ends = body.run(closed.jaxpr)
    # What a function gives as it got it is a line of its own.
    given = {*operands, *arrays}
    results = [
        body.again(term, "result") if isinstance(term, Name) and term.name in given else body.named(term, "result")
        for term in ends
    ]
    return FunctionLines(body.lines, tuple(term.name for term in results), arrays, reader.frames)


@dataclass
class _Reader:
    """What all bodies of a function share."""

    taken: set[str]
    frames: dict[str, Frame] = field(default_factory=dict[str, Frame])

    def __post_init__(self) -> None:
        self.taken |= {*OPERATIONS, *CONSTANTS, *keyword.kwlist, "grad"}

    def fresh(self, wish: str) -> str:
        """A name that nothing has."""
        return free(re.sub(r"\W", "_", wish).strip("_") or "value", self.taken)


@dataclass
class _Body:
    """The lines of a section, or of a repeat, as far as they are written."""

    reader: _Reader
    lines: dict[str, Any]
    known: dict[Any, Term]
    """What stands for the variables."""
    frame: Frame | None = None

    def run(self, jaxpr: Any) -> list[Term]:
        """Write the equations of a jaxpr whose inputs are known; what its outputs are."""
        reads = Counter(v for equation in jaxpr.eqns for v in equation.invars if not isinstance(v, extended.Literal))
        reads.update(v for v in jaxpr.outvars if not isinstance(v, extended.Literal))
        reader_of = {v: equation for equation in jaxpr.eqns for v in equation.invars if isinstance(v, extended.Var)}
        for equation in jaxpr.eqns:
            self.frame = _frame(equation) or self.frame
            self._equation(equation, reads, reader_of)
        return [self.term(variable) for variable in jaxpr.outvars]

    def term(self, variable: Any) -> Term:
        """What stands for a variable, or for a number."""
        if isinstance(variable, extended.Literal):
            aval: Any = variable.aval
            return literal(variable.val, str(aval.dtype))
        return self.known[variable]

    def named(self, term: Term, wish: str) -> Name:
        """A term by a name, which a line gives it if it has none."""
        if isinstance(term, Name) and term.name not in CONSTANTS:
            return term
        name = self.reader.fresh(wish)
        self._put(name, text(term))
        return Name(name)

    def _put(self, name: str, line: Any) -> None:
        self.lines[name] = line
        if self.frame is not None:
            self.reader.frames[name] = self.frame

    def _equation(self, equation: Any, reads: Counter[Any], reader_of: Mapping[Any, Any]) -> None:
        name = equation.primitive.name
        if name in _BODIES:
            results = self._call(equation, equation.params[_BODIES[name]])
        elif name == "scan":
            results = self._scan(equation)
        elif name == "cond":
            results = self._cond(equation)
        else:
            results = self._applied(equation)
        single = len(equation.outvars) == 1
        for variable, term in zip(equation.outvars, results, strict=True):
            if isinstance(variable, extended.DropVar):
                continue
            reader = reader_of.get(variable)
            inline = single and reads[variable] == 1 and reader is not None and reader.primitive.name not in _HAS_BODY
            inline = inline and _frame(reader) == _frame(equation) and len(text(term)) <= _LONGEST
            if reads[variable] == 0:
                continue
            short = isinstance(term, Name | Const)
            self.known[variable] = term if inline or short else self.named(term, self._wish(equation, inline=False))

    def _wish(self, equation: Any, *, inline: bool) -> str:
        """What the user calls the value of an equation, or what its primitive is."""
        frame = _frame(equation)
        assigned = _ASSIGNED.match(frame.text) if frame else None
        return assigned[1] if assigned else equation.primitive.name

    def _applied(self, equation: Any) -> list[Term]:
        application = Application(
            equation.primitive.name,
            equation.params,
            tuple(map(self.term, equation.invars)),
            tuple(v.aval for v in equation.invars),
            tuple(v.aval for v in equation.outvars),
            self.named,
        )
        try:
            term = expression(application)
        except Unread as error:
            where = _frame(equation)
            raise CannotRead(f"{where or 'the function'}: {error}") from None
        if len(equation.outvars) == 1:
            return [term.items[0] if isinstance(term, Group) and equation.primitive.multiple_results else term]
        if isinstance(term, Group):
            return list(term.items)
        whole = self.named(term, equation.primitive.name)
        return [at_index(whole, Const(at)) for at in range(len(equation.outvars))]

    def _call(self, equation: Any, body: Any) -> list[Term]:
        """The lines of what is called, where it is called; a function of JAX's own that the language has is a call."""
        own = self._library(equation, body) if equation.primitive.name in ("jit", "pjit") else None
        if own is not None:
            several = len(equation.outvars) > 1
            whole = self.named(own, equation.params["name"]) if several else own
            return [at_index(whole, Const(at)) for at in range(len(equation.outvars))] if several else [own]
        closed = body if hasattr(body, "jaxpr") else None
        jaxpr, consts = (closed.jaxpr, closed.consts) if closed is not None else (body, ())
        inside = _Body(self.reader, self.lines, {}, self.frame)
        operands = equation.invars[len(equation.invars) - len(jaxpr.invars) :]
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            inside.known[variable] = self._constant(value)
        for variable, operand in zip(jaxpr.invars, operands, strict=True):
            term = self.term(operand)
            short = isinstance(term, Name | Const)
            inside.known[variable] = term if short else self.named(term, equation.params.get("name", "operand"))
        return inside.run(jaxpr)

    def _library(self, equation: Any, closed: Any) -> Term | None:
        """The operation that a function is which JAX calls; None where it is none, or does something else here."""
        name = equation.params["name"]
        if name not in LIBRARY or closed.consts or "/jax/_src/" not in str(closed.jaxpr.debug_info.func_src_info):
            return None
        operands = tuple(map(self.term, equation.invars))
        inputs, outputs = (tuple(v.aval for v in each) for each in (equation.invars, equation.outvars))
        application = Application(name, equation.params, operands, inputs, outputs, self.named)
        operation, statics = LIBRARY[name](application)
        names = ORDERS.get(operation, tuple(OPERATIONS[operation].signature.parameters))[: len(operands)]
        given = _statics(operation, names, statics)
        if len(names) < len(operands) or not _is_library(operation, names, given, name, closed):
            return None
        return Apply(operation, *_arguments(operation, dict(zip(names, operands, strict=True)), given))

    def _constant(self, value: Any) -> Term:
        array = np.asarray(value)
        if array.shape:
            raise CannotRead("an array that a function inside captures")
        return literal(array[()], str(array.dtype))

    def _scan(self, equation: Any) -> list[Term]:
        params = equation.params
        closed, (consts, carried) = params["jaxpr"], scan_counts(params)
        jaxpr, reverse = closed.jaxpr, params["reverse"]
        operands = [self.term(v) for v in equation.invars]
        loop, index = self.reader.fresh(self._loop_name(equation)), self.reader.fresh("step")
        inside = _Body(self.reader, {}, {}, self.frame)
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            inside.known[variable] = self._constant(value)
        for variable, term in zip(jaxpr.invars[:consts], operands[:consts], strict=True):
            inside.known[variable] = term if isinstance(term, Const) else self.named(term, "operand")
        carry: dict[str, Term] = {}
        for variable, term in zip(jaxpr.invars[consts : consts + carried], operands[consts : consts + carried],
                                  strict=True):  # fmt: skip
            name = self.reader.fresh("carry")
            carry[name], inside.known[variable] = _array(term, variable.aval), Name(name)
        over: dict[str, Term] = {}
        for variable, term in zip(jaxpr.invars[consts + carried :], operands[consts + carried :], strict=True):
            name = self.reader.fresh("slice")
            whole = built("flip({x}, 0)", x=term) if reverse else term
            over[name], inside.known[variable] = whole, Name(name)
        ends = inside.run(jaxpr)
        stack: dict[str, str] = {}
        for variable, end in zip(jaxpr.outvars[carried:], ends[carried:], strict=True):
            if not isinstance(end, Name) or end.name not in inside.lines or end.name in stack.values():
                end = inside.again(_array(end, variable.aval), "each")
            stack[self.reader.fresh("stacked")] = end.name
        # All ends are computed before any of them is what the next step begins with.
        following = [
            (name, end if isinstance(end, Name) and end.name in inside.lines else inside.again(end, "next"))
            for name, end in zip(carry, ends[:carried], strict=True)
            if end != Name(name)
        ]
        for name, end in following:
            inside.lines[name] = end.name
        line: dict[str, Any] = {"repeat": params["length"], "index": index}
        line |= {"over": {name: text(term) for name, term in over.items()}} if over else {}
        line |= {"carry": {name: text(term) for name, term in carry.items()}} if carry else {}
        line |= {"body": inside.lines}
        line |= {"stack": stack} if stack else {}
        self._put(loop, {**line, "unroll": False})
        stacked: list[Term] = [Name(f"{loop}.{name}") for name in stack]
        if reverse:
            stacked = [built("flip({x}, 0)", x=each) for each in stacked]
        return [*(Name(f"{loop}.{name}") for name in carry), *stacked]

    def again(self, term: Term, wish: str) -> Name:
        """A term by a name of its own."""
        name = self.reader.fresh(wish)
        self._put(name, text(term))
        return Name(name)

    def _loop_name(self, equation: Any) -> str:
        frame = _frame(equation)
        assigned = _ASSIGNED.match(frame.text) if frame else None
        return f"{assigned[1]}_scan" if assigned else "scan"

    def _cond(self, equation: Any) -> list[Term]:
        """All branches, and what is taken of them."""
        which = self.named(self.term(equation.invars[0]), "branch")
        every: list[list[Term]] = []
        for branch in equation.params["branches"]:
            ends = self._call(equation, branch)
            every.append([end if isinstance(end, Const) else self.named(end, "taken") for end in ends])
        results: list[Term] = []
        for cases in zip(*every, strict=True):
            *others, taken = cases
            for number, case in reversed(list(enumerate(others))):
                taken = built("where({p} == {n}, {a}, {b})", p=which, n=number, a=case, b=taken)
            results.append(taken)
        return results


_BODIES = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr",
}  # fmt: skip
"""The calls, and which of their parameters is what they call."""

_HAS_BODY = {*_BODIES, "scan", "cond", "while"}


def _statics(operation: str, names: Sequence[str], statics: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are no operands, but those that it has by default."""
    parameters = OPERATIONS[operation].signature.parameters
    return {
        name: value
        for name, value in statics.items()
        if name in parameters and name not in names and parameters[name].default != value
    }


def _arguments(
    operation: str, operands: Mapping[str, Term], given: Mapping[str, Any]
) -> tuple[tuple[Term, ...], tuple[tuple[str, Term], ...]]:
    """The operands of a call, by position as far as there is no gap, and by name."""
    values = {**operands, **{name: constant(value) for name, value in given.items()}}
    parameters = list(OPERATIONS[operation].signature.parameters.values())
    count = next((at for at, p in enumerate(parameters) if p.name not in values or p.kind is p.KEYWORD_ONLY),
                 len(parameters))  # fmt: skip
    placed = [p.name for p in parameters[:count]]
    return tuple(values[name] for name in placed), tuple((n, v) for n, v in values.items() if n not in placed)


def _is_library(operation: str, names: Sequence[str], given: Mapping[str, Any], name: str, closed: Any) -> bool:
    """Whether a call is the operation: under a transformation of JAX it has its name, and does something else."""

    def call(*operands: Any) -> Any:
        parameters = OPERATIONS[operation].signature.parameters
        values = {**dict(zip(names, operands, strict=True)), **given}
        placed = [n for n in parameters if parameters[n].kind is parameters[n].POSITIONAL_ONLY]
        named = {n: value for n, value in values.items() if n not in placed}
        return function_of(OPERATIONS[operation])(*(values[n] for n in placed if n in values), **named)

    try:
        traced = calls.make_jaxpr(call)(*(_struct(v.aval) for v in closed.jaxpr.invars))
    except REFUSALS:
        return False
    bodies = (each.params["jaxpr"] for each in traced.jaxpr.eqns if each.params.get("name") == name)
    return any(str(body) == str(closed) for body in bodies)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _array(term: Term, aval: Any) -> Term:
    """What a repeat begins with; a number becomes an array of the dtype that it is carried in."""
    return built("asarray({x}, {t})", x=term, t=str(aval.dtype)) if isinstance(term, Const) else term


def _frame(equation: Any) -> Frame | None:
    """The user's line that an equation comes from."""
    if equation is None:
        return None
    frame = user_frame(equation.source_info)
    return None if frame is None else Frame(*frame, linecache.getline(*frame).strip())
