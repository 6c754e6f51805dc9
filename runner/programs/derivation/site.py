"""Gives a writing function one operation with its call, rule and assignment, and the operands' blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.graph.model import Equation, Operand, inside, kind_of, with_parts
from runner.graph.term import Term, elements, spelled
from runner.programs.derivation.calls import Call, DeviceValue
from runner.programs.derivation.laying import Derivative, Layouts
from runner.programs.derivation.rules import Assignment, Factors, Rule
from runner.programs.derivation.statics import Statics
from runner.programs.derivation.terms import arguments, built, constant, gathered, rebuilt


@dataclass(frozen=True)
class Site:
    """One operation under an assignment, and the services that writers use.

    - `values`: the values of all arguments that depend on arrays, by place, in their present layouts.
    - `layouts`: the lines written so far and the layouts of their values; `statics`: the static values.
    - `equation`: the operation in the graph.
    - `terms`: the operands in the layouts that the assignment requires, by place.
    - `derivative`: how the result is differentiated.
    """

    call: Call
    rule: Rule
    equation: Equation
    values: Mapping[str, DeviceValue]
    layouts: Layouts
    statics: Statics
    assignment: Assignment = field(default_factory=dict[int, tuple[str, ...]])
    terms: Mapping[str, Term] = field(default_factory=dict[str, Term])
    derivative: Derivative = "none"

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.layouts.mesh

    @property
    def x(self) -> Term:
        """The first operand's block."""
        return next(iter(self.terms.values()))

    def over(self, *factors: int) -> tuple[str, ...]:
        """The mesh axes that split these factors, in this order."""
        return tuple(axis for factor in factors for axis in self.assignment.get(factor, ()))

    def parts(self, factors: Factors) -> int:
        """The number of parts that these factors are split into."""
        return self.mesh.axis_size(self.over(*factors))

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of one device's block of the result."""
        shape = self.call.result.shape
        return tuple(size // self.parts(factors) for size, factors in zip(shape, self.rule.result, strict=True))

    # Writing terms.

    def rewritten(self, others: Mapping[str, Term] = MappingProxyType({})) -> Term:
        """The operation on the operands' blocks, with `others` by place, and on the other arguments whole."""
        terms = {**self.terms, **others}
        return rebuilt(self.equation, lambda place, part: self.part(place, part, terms))

    def part(self, place: str, part: Operand, terms: Mapping[str, Term] = MappingProxyType({})) -> Term:
        """The term of an argument or a part of one: from `terms` by place, otherwise whole."""
        if place in terms:
            return terms[place]
        if kind_of(part):
            return with_parts(part, [self.part(f"{place}[{i}]", each, terms) for i, each in enumerate(inside(part))])
        static = self.statics.term(part)
        return self.layouts.whole(self.values[place]) if static is None else static

    def argument(self, place: str) -> Operand | None:
        """An argument, or an element of one, in the equation; None if it is absent."""
        operands = dict(arguments(self.equation))
        if place in operands or not place.endswith("]"):
            return operands.get(place)
        outer, _, at = place[:-1].rpartition("[")
        around = elements(self.argument(outer))
        return None if around is None else around[int(at)]

    def whole(self, place: str) -> Term:
        """The term of a whole argument."""
        part = self.argument(place)
        assert part is not None
        return self.part(place, part)

    def define(self, what: str, term: Term) -> Term:
        """Write a line for an intermediate result, named like `out_max`; returns its name as a term."""
        names = self.layouts.names
        return names.define(names.fresh(f"{names.line}_{what}"), DeviceValue(term, None, Spec())).term

    def named(self, what: str, term: Term) -> Term:
        """A term that can be read twice: itself if it is short, else the name of a new line."""
        return term if spelled(term) in (None, ".T") else self.define(what, term)

    def ours(self, what: str) -> None:
        """Note that a part of the line is not in the plan, which leaves it to the partitioner."""
        names = self.layouts.names
        names.note(f"{what} in '{names.line}' is Shardproof's own; the plan leaves it to the partitioner")

    def gathered(self, term: Term, over: tuple[str, ...], **keywords: Any) -> Term:
        """An all-gather along some axes, marked as the same on all devices if the typing says so."""
        return gathered(term, over, **keywords, **self.layouts.invarying)

    def start(self, over: tuple[str, ...], size: int) -> Term:
        """The start of this device's block along a dimension of `size` elements that `over` splits."""
        return self.layouts.offset(over, constant(size // self.mesh.axis_size(over)))

    def within(self, size: int, over: tuple[str, ...], local: Term) -> Term:
        """Convert indices within a block to global ones: `arange(8) + axis_index('x') * 8`."""
        return built("{local} + {start}", local=local, start=self.start(over, size)) if over else local

    def indices(self, size: int, over: tuple[str, ...]) -> Term:
        """The global indices in this device's block."""
        return self.within(size, over, built("arange({n})", n=size // self.mesh.axis_size(over)))
