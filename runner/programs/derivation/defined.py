"""Follows an operation through its definition, to its rule and to the lines of a device that has a part of it.

Each reduction inside is completed over the devices. Where what it reduces is whole, the call stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.graph.language.definitions import compiled, names_read, read
from runner.graph.language.operations import OPERATIONS, Operation
from runner.graph.language.operators import BY_NAME
from runner.graph.term import Apply, Name, Term, bare
from runner.programs.derivation.calls import Call, NotStatic, is_number, itemsize
from runner.programs.derivation.laying import reduced
from runner.programs.derivation.reductions import ALONG
from runner.programs.derivation.registry import Way, rule_for
from runner.programs.derivation.rules import Dimensions, Factors, Rule, Sent, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant


@dataclass(frozen=True)
class _Part:
    """A value inside a definition: its term and the factors of its dimensions, of which a reduced one has none.

    - `sums`: the reductions that it contains, of which no value with the reduced dimensions was computed yet.
    - `stopped`: whether no derivative is taken through it.
    """

    term: Term
    dimensions: Dimensions
    sums: frozenset[Term] = frozenset()
    stopped: bool = False


class _Following:
    """Follows one call; with a site, writes it."""

    def __init__(self, call: Call, site: Site | None = None) -> None:
        self.call, self.site = call, site
        self.rounds: dict[Term, Factors] = {}
        """The factors that each reduction reduces."""
        self.completed: set[Term] = set()
        """Those that are written over the devices too."""
        self.back: set[Term] = set()
        """The reductions to which the backward pass adds another."""

    def result(self, operand: _Part) -> _Part:
        """The result of the call, whose first operand is given."""
        row, first = OPERATIONS[self.call.name], next(iter(self.call.arguments))
        arguments = {
            name: argument.known() for name, argument in self.call.arguments.items() if name not in (first, "ord")
        }
        return self.defined(row, {first: operand, **arguments})

    def defined(self, row: Operation, arguments: Mapping[str, Any]) -> _Part:
        """The result of an operation that others define, of arguments by name."""
        texts = names_read(row.definition)
        defaults = {name: parameter.default for name, parameter in row.signature.parameters.items()}
        unread = {*defaults} - {*texts} | {name for name, _ in read(row.definition)[0]}
        if any(name in unread and value != defaults[name] for name, value in arguments.items()):
            raise NotStatic

        def named(name: str, value: _Part) -> _Part:
            again = texts.count(name) > 1 and bare(value.term) is None
            if not (again or value.term in self.completed) or self.site is None:
                return value
            return replace(value, term=self.site.define(name, value.term))

        return compiled(row.definition, self._function, named)({**defaults, **arguments})

    def _function(self, call: Apply) -> Callable[..., Any]:
        row = OPERATIONS.get(call.operation)

        def apply(*operands: Any, **named: Any) -> Any:
            if row is None:
                raise NotStatic
            if row.key == "stop_gradient":
                return replace(operands[0], stopped=True)
            if row.key == "real":
                return operands[0]
            if not any(isinstance(operand, _Part) for operand in operands):
                return BY_NAME[call.operation].python(*operands)
            if row.elementwise:
                return self._elementwise(call, operands)
            x, arguments = operands[0], dict(zip(row.signature.parameters, operands, strict=False)) | named
            if row.key == "squeeze":
                axes = self._axes(x, arguments["axis"])
                squeezed = _Part(_applied(row, x, arguments), _without(x.dimensions, axes))
                return squeezed if axes else x
            if row.reduction is not None:
                return self._reduction(row, x, arguments)
            if row.definition:
                return self.defined(row, arguments)
            raise NotStatic

        return apply

    @staticmethod
    def _axes(x: _Part, axis: Any) -> tuple[int, ...]:
        rank = len(x.dimensions)
        listed: Sequence[int] = range(rank) if axis is None else axis if is_sequence(axis) else (axis,)
        return tuple(axis % rank for axis in listed)

    def _elementwise(self, call: Apply, operands: tuple[Any, ...]) -> _Part:
        parts = [operand for operand in operands if isinstance(operand, _Part)]
        rank = max(len(part.dimensions) for part in parts)
        rows = [((),) * (rank - len(part.dimensions)) + part.dimensions for part in parts]
        dimensions = tuple(next((row[d] for row in rows if row[d]), ()) for d in range(rank))
        run = {factor for factors in dimensions for factor in factors}
        sums = frozenset[Term]().union(*(part.sums for part in parts))
        met = frozenset(term for term in sums if run & {*self.rounds[term]})
        self.back |= met
        terms = tuple(operand.term if isinstance(operand, _Part) else constant(operand) for operand in operands)
        return _Part(replace(call, operands=terms, at=None), dimensions, sums - met)

    def _reduction(self, row: Operation, x: _Part, arguments: Mapping[str, Any]) -> _Part:
        kind, axes, keeps = row.reduction, self._axes(x, arguments.get("axis")), bool(arguments.get("keepdims"))
        assert kind is not None
        factors = tuple(factor for d in axes for factor in x.dimensions[d])
        dimensions = tuple(() if d in axes else factors for d, factors in enumerate(x.dimensions))
        term: Term = _applied(row, x, arguments)
        split = self.site.over(*factors) if self.site is not None else ()
        if self.site is not None and split:
            over = tuple(axis for axis in self.site.mesh.axes if axis in split)
            term = self._completed(self.site, row, x, arguments, over)
        self.rounds[term] = factors
        if kind not in ("sum", "mean") and not x.stopped:
            self.back.add(term)
        sums = frozenset[Term]() if x.stopped else frozenset({term})
        return _Part(term, dimensions if keeps else _without(dimensions, axes), sums)

    def _completed(
        self, site: Site, row: Operation, x: _Part, arguments: Mapping[str, Any], over: tuple[str, ...]
    ) -> Term:
        """The reduction over the devices too, or the name of an earlier line that has it, perhaps without keepdims."""
        derivative, axes = "stopped" if x.stopped else site.derivative, self._axes(x, arguments.get("axis"))
        lines, kind = site.layouts.names, row.reduction
        assert kind is not None

        def over_devices(keeps: Any) -> Term:
            return reduced(_applied(row, x, {**arguments, "keepdims": keeps}), kind, over, derivative)[0]

        whole = over_devices(arguments.get("keepdims"))
        line = lines.written(whole)
        squeezed = lines.written(over_devices(False)) if line is None and arguments.get("keepdims") else None
        if line is None and squeezed is None:
            self.completed.add(whole)
            return whole
        sent = next(site.rule.sendings(site.mesh, site.assignment, site.layouts.prices))
        site.layouts.unspend(sent, lines.home(whole))
        return (
            Name(line)
            if line
            else built("expand_dims({x}, {d})", x=Name(str(squeezed)), d=axes[0] if len(axes) == 1 else axes)
        )


def _applied(row: Operation, x: _Part, arguments: Mapping[str, Any]) -> Apply:
    """A call on a device's own part; the initial value of a reduction, which changes no other, is left out."""
    rest = ((name, value) for name, value in arguments.items() if value not in (x, None) and value is not False)
    return Apply(row.name, (x.term,), tuple((name, constant(value)) for name, value in rest if name != "initial"))


def _without(dimensions: Dimensions, axes: tuple[int, ...]) -> Dimensions:
    return tuple(factors for d, factors in enumerate(dimensions) if d not in axes)


def rule(call: Call) -> Rule | None:
    """Rule: each factor that a reduction inside reduces may be split, and devices then send its results."""
    shape, typed = call.array.shape, call.array
    if not is_number(typed, "float") and not (is_number(typed, "int") and call.result.dtype == typed.dtype):
        return None
    following = _Following(call)
    result = following.result(_Part(Name("x"), every(shape)))
    inside = tuple(
        Sent(
            "all-reduce", factors, tuple((size, (d,), 0) for d, size in enumerate(shape) if d not in factors),
            itemsize(typed.dtype), again=term in following.back,
        )
        for term, factors in following.rounds.items()
    )  # fmt: skip
    summed = frozenset(factor for sent in inside for factor in sent.over)
    exponentials = summed if OPERATIONS[call.name].exponential else frozenset[int]()
    operands = {call.operand.place: every(shape)}
    return Rule(operands, result.dimensions, dict(enumerate(shape)), inside=inside, exponentials=exponentials)


def written(site: Site) -> Term:
    """Write the call as it is on whole dimensions, and line by line where a reduced one is split."""
    if not site.over(*(factor for sent in site.rule.inside for factor in sent.over)):
        return site.rewritten()
    (dimensions,) = site.rule.operands.values()
    return _Following(site.call, site).result(_Part(site.named("of", site.x), dimensions)).term


@rule_for("norm", "vector_norm", write=written, otherwise=[ALONG])
def norm(call: Call) -> Rule | None:
    """Rule: of the norms, the square root of the sum of squares."""
    order, axis = call.static("ord", call.signature.parameters["ord"].default), call.static("axis")
    of_vectors = isinstance(axis, int) or len(call.array.shape) == 1
    return rule(call) if order is None or (order == 2 and of_vectors) else None


WAYS = (Way(rule, written), ALONG)
"""The ways to run an operation that others define."""
