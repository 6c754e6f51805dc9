"""Rewrites lines as others that give the same values and for which devices send less, before they are derived.

What reads one element of a scan needs no scan, what reads the first elements of a sorted array needs no others, and a
trace needs nothing of a product but its diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.experiment.changing import ChangingGraph
from runner.graph.language.lines import line_of, lines
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import INDEX, Equation, Graph, Operand, Ref, Repeat, walk
from runner.graph.source import Line
from runner.graph.spelling import Spelling
from runner.graph.term import NOTHING, Apply, Const, Slice, Term
from runner.programs.derivation.calls import NotStatic, is_number, itemsize
from runner.programs.derivation.scopes import Names
from runner.programs.derivation.terms import ALL, built, constant, indexed, items, spread

_SCANS: Mapping[str, tuple[str, float]] = {
    "cumsum": ("sum", 0), "cumulative_sum": ("sum", 0), "cumprod": ("prod", 1), "cummax": ("max", -math.inf),
    "cummin": ("min", math.inf), "cumlogsumexp": ("logsumexp", -math.inf),
}  # fmt: skip
"""For each scan the reduction that gives its last element, and the element that changes no result of it."""


def rewritten(names: Names, layouts: Mapping[int, Spec]) -> Graph | None:
    """The graph of an experiment with lines rewritten; None if there are none to rewrite.

    `layouts`: those of values, by number: a line is rewritten only where what it reads is sharded.
    """
    if not any(equation.operation in _RULES for equation in walk(names.graph)):
        return None
    arrays = {array.name: array.layout.spec for array in names.experiment.given}
    given = {value.number: arrays[value.name] for value in names.graph.inputs if value.name in arrays}
    graph, rewriting = names.graph, _Rewriting.of_names(names, {**given, **layouts})
    terms: dict[Line, Term] = {}
    for equation in lines(graph):
        if not isinstance(equation.form, Repeat):
            term = rewriting.equation(equation)
            if term != names.statics.spelling.equation(equation):
                terms[line_of(equation)] = term
    if not terms:
        return None
    kept = tuple(equation for equation in graph.equations if equation.source.line not in rewriting.unread)
    left_out = {graph.names[line.name] for line in rewriting.unread}
    known = {name: number for name, number in graph.names.items() if number not in left_out}
    return ChangingGraph(replace(graph, equations=kept, names=known)).changed(terms)


_Function = TypeVar("_Function", bound="Callable[[_Rewriting, Equation], Term | None]")

_RULES: dict[str, Callable[[_Rewriting, Equation], Term | None]] = {}
"""The rules by the operation that they replace; one returns None or raises `NotStatic` for what it leaves."""


def _replaces(operation: str) -> Callable[[_Function], _Function]:
    def register(rule: _Function) -> _Function:
        _RULES[operation] = rule
        return rule

    return register


@dataclass(frozen=True)
class _Rewriting(Spelling):
    """Spells equations as they are rewritten.

    `unread`: the lines that nothing reads any more.
    """

    names: Names
    layouts: Mapping[int, Spec]
    unread: set[Line] = field(default_factory=set[Line])

    @classmethod
    def of_names(cls, names: Names, layouts: Mapping[int, Spec]) -> _Rewriting:
        """Build the rewriting of the graph of `names`."""
        spelling = names.statics.spelling
        return cls(spelling.parts, spelling.named, names, layouts)

    def equation(self, equation: Equation) -> Term:
        """The term of an equation."""
        rule = _RULES.get(equation.operation)
        try:
            term = None if rule is None else rule(self, equation)
        except NotStatic:
            term = None
        return super().equation(equation) if term is None else term

    def producer(self, operand: Operand) -> Equation | None:
        """The equation whose result is an operand, if nothing else reads that."""
        names, equation = self.names, self.names.equation(operand)
        if equation is not None or not isinstance(operand, Ref):
            return equation
        equation, experiment = names.graph.producers.get(operand.number), names.experiment
        known = {*experiment.results, *experiment.constraints, *([experiment.grad.of] if experiment.grad else [])}
        if equation is None or equation.form is not None or equation.results[0].name in known:
            return None
        readers = names.readers(operand.number)
        return equation if len(readers) == 1 and readers[0].reads.count(operand.number) == 1 else None

    def argument(self, equation: Equation, name: str) -> Any:
        """The static value of an argument, or its default. Raises `NotStatic`."""
        signature = OPERATIONS[equation.operation].signature
        given = equation.argument(name, signature)
        return signature.parameters[name].default if given is None else self.names.statics.value(given)

    def blocks(self, operand: Operand, d: int | None = None) -> int:
        """The number of parts into which a value is divided: along one dimension, or in all."""
        spec = self.layouts.get(operand.number, Spec()) if isinstance(operand, Ref) else Spec()
        axes = [*spec.axes] if d is None else [*spec[d]] if d < len(spec) else []
        return self.names.mesh.axis_size(axes)

    def read(self, producer: Equation) -> None:
        """Note that the line of a producer is not read any more."""
        if producer.results[0].name:
            self.unread.add(producer.source.line)


@_replaces(INDEX)
def _element(rewriting: _Rewriting, equation: Equation) -> Term | None:
    """Of one element of a scan: the reduction of what is before it. Of the ends of a sorted array: of sorted blocks."""
    producer = rewriting.producer(equation.operands[0])
    if producer is None or not producer.operands or producer.operation not in {*_SCANS, "sort"}:
        return None
    x, taken = producer.operands[0], [*items(equation.operands[1])]
    typed, result = rewriting.names.type_of(x), rewriting.names.type_of(equation.operands[0])
    axis = rewriting.argument(producer, "axis")
    if typed is None or typed != result or len(taken) > len(typed.shape) or (axis is None and len(typed.shape) > 1):
        return None
    d = (axis or 0) % len(typed.shape)
    others = [item for at, item in enumerate(taken) if at != d]
    if rewriting.blocks(x, d) < 2 or d >= len(taken) or any(not isinstance(item, Slice) for item in others):
        return None
    entry, size = taken[d], typed.shape[d]
    if isinstance(entry, Slice):
        places = range(size)[slice(*map(rewriting.names.statics.value, (entry.lower, entry.upper, entry.step)))]
    else:
        at = rewriting.names.statics.value(entry)
        places = range(size)[at : at + 1 or None] if isinstance(at, int) else range(0)
    # A sum of smaller integers has a wider type.
    if not places or not (is_number(typed, "float") or (is_number(typed, "int") and itemsize(typed.dtype) >= 4)):
        return None
    write = _of_scan if producer.operation in _SCANS else _of_sorted
    term = write(rewriting, producer, typed, d, places, keeps=isinstance(entry, Slice))
    if term is None:
        return None
    rewriting.read(producer)
    terms = list(map(rewriting.operand, taken))
    terms[d : d + 1] = [ALL] if isinstance(entry, Slice) else []
    return term if all(each == ALL for each in terms) else indexed(term, terms)


def _of_scan(rewriting: _Rewriting, scan: Equation, typed: Typed, d: int, places: range, *, keeps: bool) -> Term | None:
    """The element of a scan along `d` at the only one of `places`."""
    reduction, nothing = _SCANS[scan.operation]
    given = {"include_initial", "reverse"}.intersection(OPERATIONS[scan.operation].signature.parameters)
    back = any(rewriting.argument(scan, name) for name in sorted(given))
    if len(places) > 1 or (back and "reverse" not in given):
        return None
    if math.isinf(nothing) and not is_number(typed, "float"):
        return None
    x, (at,) = rewriting.operand(scan.operands[0]), places
    if at != (0 if back else typed.shape[d] - 1):
        mask = built("arange({n}) " + (">=" if back else "<=") + " {at}", n=typed.shape[d], at=at)
        mask = spread(mask, len(typed.shape) - 1 - d)
        x = built("where({mask}, {x}, {nothing})", mask=mask, x=x, nothing=_number(nothing))
    return built("{f}({x}, axis={d}" + (", keepdims=True)" if keeps else ")"), f=reduction, x=x, d=d)


def _number(number: float) -> Term:
    return built("-inf" if number < 0 else "inf") if math.isinf(number) else Const(int(number))


def _of_sorted(
    rewriting: _Rewriting, sort: Equation, typed: Typed, d: int, places: range, *, keeps: bool
) -> Term | None:
    """Elements near an end of an array that is sorted along `d`, from those near that end of each sorted block."""
    size, blocks = typed.shape[d], rewriting.blocks(sort.operands[0], d)
    last = size - min(places) < max(places) + 1
    reach = size - min(places) if last else max(places) + 1
    # What is kept of all blocks is sorted on every device, and has to be less than a block.
    if size % blocks or reach * blocks * blocks > size:
        return None
    named = tuple((name, rewriting.operand(operand)) for name, operand in sort.named if name != "axis")
    before, after = typed.shape[:d], typed.shape[d + 1 :]
    x = built(
        "reshape({x}, {shape})", x=rewriting.operand(sort.operands[0]), shape=(*before, blocks, size // blocks, *after)
    )

    def ordered(x: Term, axis: int) -> Term:
        return Apply("sort", (x,), (("axis", constant(axis)), *named))

    part = Slice(constant(-reach), NOTHING, NOTHING) if last else Slice(NOTHING, constant(reach), NOTHING)
    ends = indexed(ordered(x, d + 1), [*[ALL] * (d + 1), part])
    ends = built("reshape({x}, {shape})", x=ends, shape=(*before, blocks * reach, *after))
    first = places[0] - (size - blocks * reach if last else 0)
    if not keeps:
        return indexed(ordered(ends, d), [*[ALL] * d, constant(first)])
    end, step = first + places.step * len(places), None if places.step == 1 else places.step
    bounds = Slice(constant(first or None), constant(end if end >= 0 else None), constant(step))
    return indexed(ordered(ends, d), [*[ALL] * d, bounds])


@_replaces("trace")
def _of_product(rewriting: _Rewriting, equation: Equation) -> Term | None:
    """The trace of a product of matrices: the sum of the products of their elements."""
    producer = rewriting.producer(equation.operands[0]) if equation.operands else None
    if producer is None or len(equation.arguments) > 1 or producer.operation != "matmul" or producer.named:
        return None
    a, b = producer.operands
    types = rewriting.names.type_of(a), rewriting.names.type_of(b)
    if any(each is None or len(each.shape) != 2 or not is_number(each, "float") for each in types):
        return None
    if max(rewriting.blocks(a), rewriting.blocks(b)) < 2:
        return None
    rewriting.read(producer)
    return built("einsum('ij,ji->', {a}, {b})", a=rewriting.operand(a), b=rewriting.operand(b))
