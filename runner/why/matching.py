"""The collectives of a compiled program and what Shardy plans of it in; which of these each of them is, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.evidence.model import Collective, MergedPart
from runner.sharding.plan import Planned, PlannedCollective
from runner.why import needs

_REDUCING = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class Match:
    """The planned collectives that a compiled one is; `left` are its parts that are none of them."""

    planned: tuple[PlannedCollective, ...] = ()
    left: tuple[MergedPart, ...] = ()


class Matching:
    """What of a plan is in a compiled module, and where.

    A collective is a planned one of its kind, over its axes, in one of its lines, in its direction, of its value and of
    as many bytes. An all-reduce may be several, whose bytes add up, or one of those, axis by axis, that a planned one
    over several axes becomes.
    """

    def __init__(self, collectives: Sequence[Collective], plan: Planned) -> None:
        self._planned = plan.collectives or []
        self._inserted = [one for one in collectives if one.inserted]
        self._matches = {id(one): self._match(one, one.nodes) for one in self._inserted}
        self._taken = {id(each) for found in self._matches.values() for each in found.planned}

    def of(self, one: Collective, lines: Sequence[str]) -> Match:
        """What a collective is; `lines` are those that it is between, where it stands in none."""
        known = self._matches.get(id(one))
        return known if known is not None and (known.planned or one.nodes) else self._match(one, lines)

    def instead(self, one: Collective, lines: Sequence[str]) -> list[PlannedCollective]:
        """What the plan has in its place, and the module has not: of its axes and its value, where there is such."""
        there = [
            each
            for each in self._planned
            if id(each) not in self._taken and concerns(each, one, lines) and _directed(each, one)
        ]
        if one.kind == "collective-permute":
            # Values that are needed elsewhere are moved in the place of no sum.
            there = [each for each in there if each.kind not in _REDUCING]
        over = [each for each in there if needs.axes_of(each) & set(one.axes or ())] or there
        return [each for each in over if moves(each, one)] or over

    def _match(self, one: Collective, lines: Sequence[str]) -> Match:
        if one.axes is None:
            return Match()
        if one.parts:
            return self._merged(one)
        sizes = (one.bytes_in, one.bytes_out)
        alike = [
            each
            for each in self._alike(one, lines, one.gradient)
            if moves(each, one) and (sizes == (each.bytes_in, each.bytes_out) or _widened(each, one, one.bytes_in))
        ]
        # What is needed in the line is it, rather than what is needed of the line elsewhere.
        here = [each for each in alike if each.line in lines or _asking(each) in lines]
        alike = here or alike
        if one.between is not None:
            # What nothing takes is returned.
            returned = not one.between.to
            alike = [each for each in alike if (each.operation in needs.NOBODY) == returned] or alike
            alike = [each for each in alike if each.of in one.between.source] or alike
        return Match(tuple(_distinct(alike)))

    def _merged(self, one: Collective) -> Match:
        """What the parts of a merged one are, each planned sum being one part at most."""
        planned: list[PlannedCollective] = []
        left: list[MergedPart] = []
        for part in one.parts:
            alike = [
                each
                for each in self._alike(one, part.nodes or one.nodes, part.gradient)
                if each.bytes_in == part.bytes or _widened(each, one, part.bytes)
            ]
            other = next((each for each in alike if not any(each is known for known in planned)), None)
            if other is None:
                left.append(part)
            else:
                planned.append(other)
        return Match(tuple(planned), tuple(left))

    def _alike(self, one: Collective, lines: Sequence[str], gradient: bool) -> list[PlannedCollective]:
        return [
            each
            for each in self._planned
            if each.kind == one.kind
            and self._over(each, one)
            and concerns(each, one, lines)
            and each.gradient == gradient
            and (None in (each.reduction, one.reduction) or each.reduction == one.reduction)
        ]

    def _over(self, planned: PlannedCollective, one: Collective) -> bool:
        """Whether it is over the axes of a planned one, or over some of which others are over the rest."""
        mine, theirs = set(one.axes or ()), needs.axes_of(planned)
        if mine == theirs or planned.kind != "all-reduce" or not mine < theirs:
            return mine == theirs
        rest: set[str] = set()
        for other in self._inserted:
            if other.kind == one.kind and set(other.nodes) & set(one.nodes) and set(other.axes or ()) < theirs:
                rest |= set(other.axes or ())
        return theirs <= rest


def concerns(planned: PlannedCollective, one: Collective, lines: Sequence[str]) -> bool:
    """Whether a planned collective is needed in one of these lines, or moves the value that this one moves."""
    if planned.line in lines or _asking(planned) in lines:
        return True
    return planned.kind not in _REDUCING and one.between is not None and planned.of in one.between.source


def moves(planned: PlannedCollective, one: Collective) -> bool:
    """Whether this one may move what the planned one moves: of what is made within a line, nobody knows the name."""
    if planned.kind in _REDUCING or one.between is None or set(one.between.source) <= set(one.nodes):
        return True
    return not {planned.of, _asking(planned)}.isdisjoint(one.between.source) or planned.of == planned.line


def _asking(planned: PlannedCollective) -> str:
    """The line whose key asks for a layout."""
    return (planned.asked_by or "").partition(".")[2]


def _directed(planned: PlannedCollective, one: Collective) -> bool:
    return planned.gradient == one.gradient or (len(one.nodes) > 1 and not one.gradient)


def _widened(planned: PlannedCollective, one: Collective, size: int | None) -> bool:
    """Whether numbers of 16 bits are reduced in 32, as XLA does where the processor adds no others."""
    wide = "float32" in one.dtype and planned.dtype in ("bfloat16", "float16")
    return wide and planned.kind == one.kind == "all-reduce" and size == 2 * planned.bytes_in


def _distinct(planned: Sequence[PlannedCollective]) -> list[PlannedCollective]:
    """The first of those that move the same value for the same operation."""
    found: dict[tuple[object, ...], PlannedCollective] = {}
    for one in planned:
        found.setdefault((one.of, one.line, one.operation, str(one.before), str(one.after), one.gradient), one)
    return list(found.values())
