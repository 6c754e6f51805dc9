"""The collectives of a compiled program and what Shardy plans of it in; which of these each of them is, out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.evidence.model import Collective
from runner.sharding.plan import Planned, PlannedCollective
from runner.why import needs

_REDUCING = ("all-reduce", "reduce-scatter")

_MOST = 4096
"""Sums of sizes that are tried at most for what was merged."""


@dataclass(frozen=True)
class Match:
    """The planned collectives that a compiled one is; `left` are the bytes of it that none of them accounts for."""

    planned: tuple[PlannedCollective, ...] = ()
    left: int = 0


class Matching:
    """What of a plan is in a compiled module, and where.

    A collective is a planned one of its kind, over its axes, in one of its lines, in its direction, of its value and of
    as many bytes. An all-reduce may be several, whose bytes add up, or one of those, axis by axis, that a planned one
    over several axes becomes.
    """

    def __init__(self, collectives: Sequence[Collective], plan: Planned) -> None:
        self._planned = plan.collectives or []
        self._inserted = [one for one in collectives if one.inserted]
        self._matches: dict[int, Match] = {}
        alone: set[int] = set()
        for merged in (False, True):
            for one in self._inserted:
                if (one.kind == "all-reduce" and len(one.nodes) > 1) == merged:
                    self._matches[id(one)] = found = self._match(one, one.nodes, alone)
                    alone |= set() if found.left else {id(each) for each in found.planned}
        self._taken = {id(each) for found in self._matches.values() for each in found.planned}

    def of(self, one: Collective, lines: Sequence[str]) -> Match:
        """What a collective is; `lines` are those that it is between, where it stands in none."""
        known = self._matches.get(id(one))
        return known if known is not None and (known.planned or one.nodes) else self._match(one, lines, set())

    def instead(self, one: Collective, lines: Sequence[str]) -> list[PlannedCollective]:
        """What the plan has where this one is, over an axis of its own, and the module has not."""
        over = [
            each
            for each in self._planned
            if id(each) not in self._taken
            and concerns(each, one, lines)
            and _directed(each, one)
            and needs.axes_of(each) & set(one.axes or ())
        ]
        return [each for each in over if moves(each, one)] or over

    def _match(self, one: Collective, lines: Sequence[str], taken: set[int]) -> Match:
        if one.axes is None:
            return Match()
        alike = [
            each
            for each in self._planned
            if each.kind == one.kind
            and self._over(each, one)
            and concerns(each, one, lines)
            and moves(each, one)
            and _directed(each, one)
            and (None in (each.reduction, one.reduction) or each.reduction == one.reduction)
        ]
        same = [each for each in alike if (each.bytes_in, each.bytes_out) == (one.bytes_in, one.bytes_out)]
        if same and len(one.nodes) < 2:
            return Match(tuple(_distinct(same)))
        if one.kind != "all-reduce" or one.bytes_in is None:
            return Match(tuple(_distinct(same)))
        for among in ([each for each in alike if id(each) not in taken], alike):
            whole = added(among, [each.bytes_in for each in among], one.bytes_in, lines)
            if whole is not None:
                return Match(tuple(whole))
        # XLA adds numbers of 16 bits up in 32 where the processor has no others.
        if one.dtype == "float32":
            whole = added(alike, [2 * each.bytes_in for each in alike], one.bytes_in, lines)
            if whole is not None:
                return Match(tuple(whole))
        fitting = _distinct([each for each in alike if each.bytes_in <= one.bytes_in])
        carried = sum(each.bytes_in for each in fitting)
        if carried > one.bytes_in:
            return Match()
        return Match(tuple(fitting), one.bytes_in - carried) if fitting else Match()

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


def added(
    planned: Sequence[PlannedCollective], sizes: Sequence[int], total: int, lines: Sequence[str]
) -> list[PlannedCollective] | None:
    """Those whose sizes add up to a total, of as many lines as there can be; None where none do."""
    sums: dict[int, tuple[int, ...]] = {0: ()}

    def covered(chosen: tuple[int, ...]) -> tuple[int, int]:
        return len({planned[at].line for at in chosen} & set(lines)), -len(chosen)

    for at, size in enumerate(sizes):
        for known, chosen in list(sums.items()):
            more = known + size
            if more > total or len(sums) > _MOST:
                continue
            longer = (*chosen, at)
            if more not in sums or covered(longer) > covered(sums[more]):
                sums[more] = longer
    return [planned[at] for at in sums[total]] if sums.get(total) else None


def concerns(planned: PlannedCollective, one: Collective, lines: Sequence[str]) -> bool:
    """Whether a planned collective is needed in one of these lines, or moves the value that this one moves."""
    return planned.line in lines or (one.between is not None and planned.of in one.between.source)


def moves(planned: PlannedCollective, one: Collective) -> bool:
    """Whether this one may move what the planned one moves: of what is made within a line, nobody knows the name."""
    if planned.kind in _REDUCING or one.between is None or not one.between.source:
        return True
    return planned.of in one.between.source or planned.of == planned.line


def _directed(planned: PlannedCollective, one: Collective) -> bool:
    return planned.gradient == one.gradient or (len(one.nodes) > 1 and not one.gradient)


def _distinct(planned: Sequence[PlannedCollective]) -> list[PlannedCollective]:
    """The first of those that move the same value for the same operation."""
    found: dict[tuple[object, ...], PlannedCollective] = {}
    for one in planned:
        found.setdefault((one.of, one.line, one.operation, str(one.before), str(one.after), one.gradient), one)
    return list(found.values())
