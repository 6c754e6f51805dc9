"""An operation at its place in the graph and its operands' layouts in; the rule that covers it, cached, out.

A rule depends only on types and static values, so it is the same each time a graph is written in other layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runner.derivation.calls import Call, NotStatic, itemsize
from runner.derivation.facts import call_of
from runner.derivation.operations import WAYS
from runner.derivation.registry import Write, as_written
from runner.derivation.rules import Choice, Question, Rule, cheapest, choices
from runner.derivation.scopes import Names
from runner.derivation.values import Value
from runner.graph.model import Equation
from runner.layout import Mesh, Spec


@dataclass(frozen=True)
class Ruled:
    """An operation, the rule that covers it, and the function that writes one device's computation.

    `whole`: whether no rule covers it, so that it gets whole operands.
    """

    call: Call
    rule: Rule
    write: Write
    whole: bool = False
    _ways: dict[tuple[tuple[Spec, ...], Spec | None], tuple[Choice, ...]] = field(
        default_factory=dict[tuple[tuple[Spec, ...], Spec | None], tuple[Choice, ...]]
    )

    def choice(
        self,
        mesh: Mesh,
        lying: tuple[Spec, ...],
        wanted: Spec | None,
        moving: Callable[[int, Spec], float],
        rounds: int = 1,
    ) -> Choice:
        """The cheapest way to run the operation.

        - `moving`: the bytes that a device sends to reshard an operand, given by number, to a layout.
        - `rounds`: the number of times it is computed for each time it is completed; the same in every call.
        """
        ways = self._ways.get((lying, wanted))
        if ways is None:
            typed = self.call.result
            asked = Question(mesh, self.rule, lying, typed.shape, itemsize(typed.dtype), wanted, rounds)
            ways = self._ways[lying, wanted] = choices(asked)
        return cheapest(ways, moving)


class Rulings:
    """A cache of the rules of one graph's operations."""

    def __init__(self) -> None:
        self._rulings: dict[tuple[int, str, bool, bool, tuple[object, ...]], Ruled] = {}

    def of(self, names: Names, equation: Equation, values: Mapping[str, Value], *, free: bool, alone: bool) -> Ruled:
        """The rule of an operation; for the arguments see `call_of`."""
        known = tuple((value.shape is None, value.below, value.counts, value.halo) for value in values.values())
        key = equation.results[0].number, equation.operation, free, alone, known
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
