"""Finds the rule that covers an operation at its place with its operands' layouts, and caches it.

A rule depends only on types and static values, so it is the same each time a graph is written in other layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeAlias

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import Equation
from runner.programs.derivation import defined, indexing, matrices, reductions, shaping, sliding, updating
from runner.programs.derivation.calls import Call, DeviceValue, NotStatic, itemsize
from runner.programs.derivation.facts import call_of
from runner.programs.derivation.registry import WAYS, Write, as_written
from runner.programs.derivation.rules import Around, PricedAssignment, Question, Rule, cheapest, choices
from runner.programs.derivation.scopes import Names
from runner.programs.derivation.work import traffic_of

_Around: TypeAlias = tuple[tuple[Spec, ...], Spec | None, tuple[tuple[int, tuple[str, ...]], ...] | None]


@dataclass(frozen=True)
class Ruled:
    """An operation, the rule that covers it, and the function that writes one device's computation.

    `whole`: whether no rule covers it, so that it gets whole operands.
    """

    call: Call
    rule: Rule
    write: Write
    whole: bool = False
    _ways: dict[_Around, tuple[PricedAssignment, ...]] = field(
        default_factory=dict[_Around, tuple[PricedAssignment, ...]]
    )

    def choice(self, around: Around, moving: Callable[[int, Spec], float]) -> PricedAssignment:
        """The cheapest way to run the operation; `moving`: the cost of a reshard of an operand, given by number."""
        ways = self._choices(around)
        if around.binding:
            ways = tuple(way for way in ways if way.assignment == around.planned) or ways
        return cheapest(ways, moving, around.prices)

    def fewest(self, around: Around, moving: Callable[[int, Spec], float]) -> PricedAssignment:
        """The way for which a device sends the fewest bytes; `moving`: the bytes of a reshard of an operand."""
        return cheapest(self._choices(around), moving)

    def _choices(self, around: Around) -> tuple[PricedAssignment, ...]:
        planned = None if around.planned is None else tuple(around.planned.items())
        key = around.lying, around.wanted, planned
        if key not in self._ways:
            typed, whole = self.call.result, around.in_memory
            traffic = traffic_of(self.call, self.rule, whole)
            self._ways[key] = choices(Question(around, self.rule, typed.shape, itemsize(typed.dtype), traffic))
        return self._ways[key]


class Rulings:
    """A cache of the rules of one graph's operations."""

    def __init__(self) -> None:
        self._rulings: dict[tuple[object, ...], Ruled] = {}

    def of(
        self, names: Names, equation: Equation, values: Mapping[str, DeviceValue], *, free: bool, alone: bool
    ) -> Ruled:
        """The rule of an operation; for the arguments see `call_of`."""
        facts = tuple((value.shape is None, value.below, value.counts, value.halo) for value in values.values())
        key = equation.results[0].number, free, alone, facts
        ruled = self._rulings.get(key)
        if ruled is None:
            ruled = self._rulings[key] = _ruled(call_of(names, equation, values, free=free, alone=alone))
        return ruled


def _ruled(call: Call) -> Ruled:
    if call.typed is not None or call.elements:
        for way in WAYS.get(call.name, ()):
            try:
                rule = way.rule(call)
            except NotStatic:
                continue
            if rule is not None:
                return Ruled(call, rule, way.write)
    rank = 0 if call.typed is None else len(call.typed.shape)
    return Ruled(call, Rule({}, ((),) * rank, {}), as_written, whole=True)


FILES = (
    defined, indexing, matrices, reductions, shaping, sliding, updating,
)  # fmt: skip
"""The modules with rules, whose imports complete the registry."""

for _row in OPERATIONS.values():
    if _row.definition and _row.key not in WAYS:
        WAYS[_row.key] = defined.WAYS
