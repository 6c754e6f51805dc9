"""Measures how far each equation of a program is from the same equation in float64 on the same operands.

The program runs once more, so that it returns the value of each of its equations on every device. Each equation is
then widened and evaluated on the values that its operands had. So what is measured is the equation's own error, without
what the equations before it passed on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from runner.base.lazy import dataclass
from runner.link.events import EquationError, Parted
from runner.worker import calls, widening
from runner.worker.compilation import Unsupported
from runner.worker.versions import CALLING, Literal, core, opened, user_places, varying_axes

_jax: Any = cast("Any", jax)
_jnp: Any = _jax.numpy

EQUATIONS = 2000
"""The most equations that are measured: each is compiled three times."""

ELEMENTS = 1 << 24
"""The most elements of all their values together."""

_WHOLE = frozenset({widening.DRAWS, widening.BOUNDED_DRAWS, widening.NORMAL_DRAWS})
"""The functions of `jax.random` that are widened as a whole."""

_DRAWN = 2
"""How often the operands of an equation are moved, to see what their rounding does."""

_Term: TypeAlias = "int | Any"
"""A value by its number, or a literal."""


class TooLarge(Unsupported):
    """A program has too many equations or values to be measured; the message says how many."""


def measured(function: Any, operands: Sequence[Any]) -> Parted:
    """Run a program with all its values, and measure each of its equations.

    Raises `TooLarge`.
    """
    jaxpr = _jax.make_jaxpr(function)(*operands)
    flat = _Flat()
    given = [flat.number(_jax.typeof(operand)) for operand in operands]
    results = flat.read(jaxpr, given, "", flat.entries)
    singles = list(flat.singles())
    elements = sum(math.prod(flat.avals[number].shape) for number in flat.kept())
    if len(singles) > EQUATIONS:
        raise TooLarge(f"it has {len(singles)} equations, and at most {EQUATIONS} are measured")
    if elements > ELEMENTS:
        raise TooLarge(f"its equations have {elements} elements, and those of at most {ELEMENTS} are measured")

    def evaluated(arrays: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        return flat.evaluate(dict(zip(given, arrays, strict=True)), results)

    def compared(arrays: list[Any]) -> dict[tuple[int, ...], Any]:
        return flat.compare(dict(zip(flat.kept(), arrays, strict=True)), bodies)

    values, outputs = _jax.jit(evaluated)(tuple(operands))
    with calls.enable_x64(True):
        wide = widening.Widening()
        bodies = {single.results: body for single in singles if (body := _widened(wide, single)) is not None}
        measures: dict[tuple[int, ...], Any] = _jax.jit(compared)(values)
        errors = {results: np.asarray(measure).reshape(-1, 3) for results, measure in measures.items()}
    # Last, since a program may take its operands' memory.
    own = _jax.tree.leaves(function(*operands))
    return Parted(
        of=len(singles),
        same=all(map(_same, outputs, own)),
        equations=[
            _equation_error(number, single, errors[single.results])
            for number, single in enumerate(singles, 1)
            if single.results in errors
        ],
    )


def _widened(wide: widening.Widening, single: _Single) -> Any:
    """The equation in float64; None if it has another meaning there."""
    try:
        return wide.jaxpr(single.body)
    except widening.CannotWiden:
        return None


def _equation_error(number: int, single: _Single, errors: np.ndarray) -> EquationError:
    error, scale, spread = (float(number) for number in errors.max(axis=0))
    return EquationError(
        number=number,
        primitive=single.equation.primitive.name,
        stack=f"{single.stack}/{single.equation.primitive.name}",
        places=user_places(single.equation.source_info),
        dtype=single.dtype,
        error=error if math.isfinite(error) else None,
        scale=scale,
        spread=spread,
    )


@dataclass(frozen=True)
class _Single:
    """One equation as a jaxpr of its own; `stack` is its name stack."""

    equation: Any
    body: Any
    operands: tuple[int, ...]
    results: tuple[int, ...]
    stack: str

    @property
    def dtype(self) -> str:
        """The dtype of its results that rounds most; that of booleans if none is a float."""
        kinds = [outvar.aval.dtype for outvar in self.body.outvars if widening.is_inexact(outvar.aval.dtype)]
        return str(max(kinds, key=lambda kind: float(_jnp.finfo(kind).eps), default="bool"))

    def evaluate(self, values: Mapping[int, Any], body: Any = None) -> dict[int, Any]:
        """Its results by their numbers."""
        arguments = [values[number] for number in self.operands]
        results = core.eval_jaxpr(self.body if body is None else body, (), *arguments)
        return dict(zip(self.results, results, strict=True))

    def error(self, values: Mapping[int, Any], body: Any, offset: Callable[[int], Any] = lambda _: 0) -> Any:
        """The largest error of its results on this device, the largest element, and what moved operands change."""
        with calls.enable_x64(True):
            wide = self.evaluate({number: _wide(values[number]) for number in self.operands}, body)
            moved = [
                self.evaluate(
                    {n: _moved(values[n], draw, place, offset(n)) for place, n in enumerate(self.operands)}, body
                )
                for draw in range(_DRAWN)
            ]
            parts = [_distance(values[at], wide[at], [each[at] for each in moved]) for at in self.results]
            return _jnp.stack(parts).max(axis=0)


@dataclass(frozen=True)
class _Held:
    """A value that a jitted function holds to a layout."""

    operand: int
    result: int
    sharding: Any

    def evaluate(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """The value, constrained."""
        types = getattr(self.sharding.mesh, "axis_types", ()) if hasattr(self.sharding, "mesh") else ()
        hold = calls.reshard if AxisType.Explicit in types else calls.with_sharding_constraint
        return {self.result: hold(values[self.operand], self.sharding)}


@dataclass(frozen=True)
class _Region:
    """A `shard_map`: the equations `inside`, on the `blocks` of its operands; it gives `returned`."""

    equation: Any
    avals: Sequence[Any]
    constants: Mapping[int, Any]
    operands: tuple[int, ...]
    blocks: tuple[int, ...]
    inside: tuple[_Single, ...]
    returned: tuple[_Term, ...]
    results: tuple[int | None, ...]

    def kept(self) -> list[int]:
        """The values inside that its equations read or give."""
        return _kept(self.inside, self.constants)

    def evaluate(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """Its results, and every value inside, stacked over the devices between which it differs."""
        kept = self.kept()

        def device(*blocks: Any) -> Any:
            held = {**self.constants, **dict(zip(self.blocks, blocks, strict=True))}
            for single in self.inside:
                held |= single.evaluate(held)
            returned = [held[each] if isinstance(each, int) else _value(each) for each in self.returned]
            return returned, [held[number][None] for number in kept]

        params = self.equation.params
        specs = [*params["out_specs"]], [self._spec(number) for number in kept]
        returned, stacked = self._mapped(device, params["in_specs"], specs)(*(values[n] for n in self.operands))
        results = {number: value for number, value in zip(self.results, returned, strict=True) if number is not None}
        return results | dict(zip(kept, stacked, strict=True))

    def compare(self, values: Mapping[int, Any], bodies: Mapping[tuple[int, ...], Any]) -> dict[tuple[int, ...], Any]:
        """The errors of the equations inside, by their results: a row for each device."""
        kept = self.kept()
        singles = [single for single in self.inside if single.results in bodies]

        def device(*stacked: Any) -> Any:
            held = {**self.constants, **{number: value[0] for number, value in zip(kept, stacked, strict=True)}}
            numbers = {axis: _jax.lax.axis_index(axis) * 31**k for k, axis in enumerate(self._axes)}

            def offset(operand: int) -> Any:
                # Sums over devices of values that are all moved alike would hide what rounding does.
                return 0 if operand in self.constants else sum(numbers[axis] for axis in self._over(operand))

            errors = [single.error(held, bodies[single.results], offset) for single in singles]
            # So they differ over all axes, whatever the equation's result does.
            return [(error + sum(numbers.values()) * 0.0)[None] for error in errors]

        if not singles:
            return {}
        specs = [PartitionSpec(self._axes)] * len(singles)
        errors = self._mapped(device, tuple(map(self._spec, kept)), specs)(*(values[number] for number in kept))
        return {single.results: error for single, error in zip(singles, errors, strict=True)}

    @property
    def _axes(self) -> tuple[str, ...]:
        """The mesh axes over which the region is manual."""
        params = self.equation.params
        return tuple(axis for axis in params["mesh"].axis_names if axis in params["newly_manual_axes"])

    def _over(self, number: int) -> tuple[str, ...]:
        """The axes over which a value inside may differ."""
        if not self.equation.params["check_vma"]:
            return self._axes
        varying = varying_axes(self.avals[number])
        return tuple(axis for axis in self._axes if axis in varying)

    def _spec(self, number: int) -> PartitionSpec:
        """The layout of a value inside, stacked over the devices between which it may differ."""
        return PartitionSpec(self._over(number))

    def _mapped(self, device: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        params = self.equation.params
        return calls.shard_map(
            device,
            mesh=params["mesh"],
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(params["newly_manual_axes"]),
            check_vma=params["check_vma"],
        )


@dataclass
class _Flat:
    """The equations of a program in their order, with those of the functions that it calls in place of the calls."""

    avals: list[Any] = field(default_factory=list[Any])
    constants: dict[int, Any] = field(default_factory=dict[int, Any])
    entries: list[_Single | _Held | _Region] = field(default_factory=list["_Single | _Held | _Region"])

    def number(self, aval: Any) -> int:
        """A new value's number."""
        self.avals.append(aval)
        return len(self.avals) - 1

    def singles(self) -> Iterator[_Single]:
        """Every equation, with those inside regions."""
        for entry in self.entries:
            if isinstance(entry, _Single):
                yield entry
            elif isinstance(entry, _Region):
                yield from entry.inside

    def kept(self) -> list[int]:
        """The values that the equations read or give."""
        outside = _kept([entry for entry in self.entries if isinstance(entry, _Single)], self.constants)
        return [*outside, *(n for entry in self.entries if isinstance(entry, _Region) for n in entry.kept())]

    def evaluate(self, given: Mapping[int, Any], results: Sequence[_Term]) -> tuple[list[Any], list[Any]]:
        """The kept values of the program, and its results."""
        values: dict[int, Any] = {**self.constants, **given}
        for entry in self.entries:
            values |= entry.evaluate(values)
        returned = [values[result] if isinstance(result, int) else _value(result) for result in results]
        return [values[number] for number in self.kept()], returned

    def compare(self, kept: Mapping[int, Any], bodies: Mapping[tuple[int, ...], Any]) -> dict[tuple[int, ...], Any]:
        """The errors of the equations, by the numbers of their results; `bodies` has those that can be widened."""
        values, errors = {**self.constants, **kept}, dict[tuple[int, ...], Any]()
        for entry in self.entries:
            if isinstance(entry, _Region):
                errors |= entry.compare(values, bodies)
            elif isinstance(entry, _Single) and entry.results in bodies:
                errors[entry.results] = entry.error(values, bodies[entry.results])
        return errors

    def read(
        self, jaxpr: Any, operands: Sequence[_Term], stack: str, into: list[Any], *, inside: bool = False
    ) -> list[_Term]:
        """Add the equations of a jaxpr to a list; return its results."""
        body, consts = opened(jaxpr)
        known: dict[Any, _Term] = dict(zip(body.invars, operands, strict=True))
        for variable, value in zip(body.constvars, consts, strict=True):
            known[variable] = self._constant(variable.aval, value)
        for equation in body.eqns:
            terms = [invar if isinstance(invar, Literal) else known[invar] for invar in equation.invars]
            at = "/".join(filter(None, (stack, str(equation.source_info.name_stack))))
            called = _called(equation)
            if called is not None:
                # Inside a `shard_map` a layout means nothing.
                layouts: Mapping[str, Any] = {} if inside else equation.params
                given = self._held(terms, layouts.get("in_shardings"), into)
                results = self.read(called, given, at, into, inside=inside)
                results = self._held(results, layouts.get("out_shardings"), into)
            elif equation.primitive.name == "shard_map" and not inside:
                results = self._region(equation, terms, at, into)
            else:
                results = self._single(equation, known, body, at, into)
            known |= zip(equation.outvars, results, strict=True)
        return [outvar if isinstance(outvar, Literal) else known[outvar] for outvar in body.outvars]

    def _constant(self, aval: Any, value: Any) -> int:
        number = self.number(aval)
        self.constants[number] = value
        return number

    def _numbers(self, terms: Sequence[_Term]) -> list[int]:
        """The numbers of values, with new ones for literals."""
        return [term if isinstance(term, int) else self._constant(term.aval, _value(term)) for term in terms]

    def _single(
        self, equation: Any, terms: Mapping[Any, _Term], within: Any, stack: str, into: list[Any]
    ) -> list[_Term]:
        variables = list(dict.fromkeys(v for v in equation.invars if not isinstance(v, Literal)))
        results: list[Any] = [None if _dropped(v) else self.number(v.aval) for v in equation.outvars]
        kept = [v for v in equation.outvars if not _dropped(v)]
        if kept:
            names = within.debug_info.with_unknown_names()
            body = within.replace(
                constvars=[],
                invars=variables,
                outvars=kept,
                eqns=[equation],
                effects=equation.effects,
                debug_info=names,
            )
            body = body.with_consts([]) if getattr(body, "consts", ()) else body
            operands = self._numbers([terms[v] for v in variables])
            numbers = tuple(result for result in results if result is not None)
            into.append(_Single(equation, body, tuple(operands), numbers, stack))
        return results

    def _held(self, terms: Sequence[_Term], shardings: Any, into: list[Any]) -> list[_Term]:
        """The values, where a call's layouts hold them."""
        held: list[_Term] = []
        wanted: Sequence[Any] = shardings or [None] * len(terms)
        for term, sharding in zip(terms, wanted, strict=True):
            if isinstance(term, int) and isinstance(sharding, jax.sharding.Sharding):
                held.append(self.number(self.avals[term]))
                into.append(_Held(term, held[-1], sharding))
            else:
                held.append(term)
        return held

    def _region(self, equation: Any, terms: Sequence[_Term], stack: str, into: list[Any]) -> list[_Term]:
        body = equation.params["jaxpr"]
        blocks, singles = [self.number(v.aval) for v in body.invars], list[Any]()
        returned = self.read(body, blocks, stack, singles, inside=True)
        results: list[Any] = [None if _dropped(v) else self.number(v.aval) for v in equation.outvars]
        into.append(
            _Region(
                equation,
                self.avals,
                self.constants,
                tuple(self._numbers(terms)),
                tuple(blocks),
                tuple(single for single in singles if isinstance(single, _Single)),
                tuple(returned),
                tuple(results),
            )
        )
        return results


def _kept(singles: Sequence[_Single], constants: Mapping[int, Any]) -> list[int]:
    numbers = (number for single in singles for number in (*single.operands, *single.results))
    return [number for number in dict.fromkeys(numbers) if number not in constants]


def _called(equation: Any) -> Any:
    """The jaxpr that an equation only evaluates; None of others."""
    whole = equation.params.get("name") in _WHOLE
    return None if whole else equation.params.get(CALLING.get(equation.primitive.name))


def _dropped(variable: Any) -> bool:
    return isinstance(variable, core.DropVar)


def _value(literal: Any) -> np.ndarray:
    return np.asarray(literal.val, literal.aval.dtype)


def _same(value: Any, own: Any) -> bool:
    """Whether an output is, on every device, the same to two units in the last place of each element."""
    if _jax.dtypes.issubdtype(own.dtype, _jax.dtypes.extended):
        return True
    whole = np.asarray(value)
    return all(_alike(whole[part.index], np.asarray(part.data)) for part in own.addressable_shards)


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    if not widening.is_inexact(a.dtype):
        return bool(np.array_equal(a, b))
    kind, step = widening.wide_dtype(a.dtype), float(_jnp.finfo(a.dtype).eps)
    return bool(np.allclose(a.astype(kind), b.astype(kind), 2 * step, 0.0, equal_nan=True))


def _wide(value: Any) -> Any:
    return value.astype(widening.wide_dtype(value.dtype)) if widening.is_narrow(value.dtype) else value


def _moved(value: Any, draw: int, place: int, offset: Any) -> Any:
    """The operand at a place, widened, each element moved up or down by one unit in the last place of its dtype."""
    if not widening.is_narrow(value.dtype):
        return value
    at = _jnp.arange(value.size, dtype=_jnp.uint32).reshape(value.shape)
    seed = np.uint32((draw + _DRAWN * place) * 0x9E3779B9 % (1 << 32)) + _jnp.uint32(offset) * np.uint32(0x85EBCA6B)
    signs = ((at * np.uint32(2654435761) + seed) >> np.uint32(13)) & np.uint32(1)
    return _wide(value) * (1 + float(_jnp.finfo(value.dtype).eps) * (signs.astype(np.float64) * 2 - 1))


def _distance(value: Any, wide: Any, moved: Sequence[Any]) -> Any:
    """The largest distance of a value from that in float64, its largest element, and the largest that moves change."""
    nothing = _jnp.zeros(3, np.float64)
    if _jax.dtypes.issubdtype(value.dtype, _jax.dtypes.extended) or not value.size:
        return nothing
    if not widening.is_inexact(value.dtype):
        # An integer or a boolean that moved operands change is no evidence.
        decided = _jnp.stack([wide == each for each in moved]).all(axis=0)
        return nothing.at[0].set(_jnp.where((value != wide) & decided, 1.0, 0.0).max())
    kind = _jnp.finfo(value.dtype)
    sizes = _jnp.stack([abs(each) for each in (wide, *moved)])
    # What is beyond the dtype's range, or close to its smallest number, is no evidence either.
    there = (_jnp.isfinite(sizes) & (sizes < float(kind.max) / 2)).all(axis=0)
    error = _jnp.where(there, abs(_wide(value) - wide), 0.0)
    error = _jnp.where(error > 4 * float(kind.tiny), error, 0.0)
    error = _jnp.where(there & _jnp.isnan(value), np.inf, error)
    spread = _jnp.where(there, abs(_jnp.stack(moved) - wide).max(axis=0), 0.0)
    return _jnp.stack([error.max(), _jnp.where(there, abs(wide), 0.0).max(), spread.max()])
