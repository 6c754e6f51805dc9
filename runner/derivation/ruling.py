"""An operation where it stands, and its arguments as they lie, in; the rule that covers it out, found once.

What a rule says hangs on types and numbers alone: it is the same however often a graph is written, in other layouts.
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
    """An operation with the rule that covers it, and what one device computes; `whole`: none does."""

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
        """The cheapest way to run it; `moving`: what a device sends to have an operand, by its number, in a layout.

        `rounds`: in how many steps it is computed for each in which it is completed, which no other call changes.
        """
        ways = self._ways.get((lying, wanted))
        if ways is None:
            typed = self.call.result
            asked = Question(mesh, self.rule, lying, typed.shape, itemsize(typed.dtype), wanted, rounds)
            ways = self._ways[lying, wanted] = choices(asked)
        return cheapest(ways, moving)


class Rulings:
    """The rules of the operations of one graph, as far as they were asked for."""

    def __init__(self) -> None:
        self._rulings: dict[tuple[int, str, bool, bool, tuple[object, ...]], Ruled] = {}

    def of(self, names: Names, equation: Equation, values: Mapping[str, Value], *, free: bool, alone: bool) -> Ruled:
        """The rule of an operation; see `call_of`."""
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
