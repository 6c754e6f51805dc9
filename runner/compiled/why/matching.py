"""Matches the collectives of a compiled program with those that Shardy plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from runner.base.grouping import by_key
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.compiled.evidence import groups
from runner.compiled.evidence.model import REDUCING, Collective, MergedPart
from runner.compiled.why import needs
from runner.graph.sharding.propagation import Planned, PlannedCollective


@dataclass(frozen=True)
class Match:
    """The planned collectives that a compiled one corresponds to; `left` are its parts that match none of them."""

    planned: tuple[PlannedCollective, ...] = ()
    left: tuple[MergedPart, ...] = ()


class Matching:
    """Matches the collectives of a compiled module with those of a plan.

    A compiled collective matches a planned one of the same kind, axes, line, direction, value and bytes. An all-reduce
    may match several whose bytes add up, or be one of several, axis by axis, that replace a planned one over several
    axes. Over parts of axes it is the groups that match.
    """

    def __init__(self, collectives: Sequence[Collective], plan: Planned, mesh: Mesh) -> None:
        self._planned, self._mesh = plan.collectives or [], mesh
        # The places of collectives in the plan, by their lines and those whose keys or own text ask for them.
        self._of_lines = by_key(
            (line, at)
            for at, planned in enumerate(self._planned)
            for line in {planned.line, _asking(planned), planned.stated_in}
            if line is not None
        )
        self._of_values = by_key((planned.of, at) for at, planned in enumerate(self._planned))
        self._inserted = [compiled for compiled in collectives if compiled.inserted]
        self._of_nodes = by_key((node, of) for of in self._inserted for node in dict.fromkeys(of.nodes))
        # An equal collective is a different one, so each is known by its address.
        self._matches = {id(compiled): self._match(compiled, compiled.nodes) for compiled in self._inserted}
        self._taken = {id(planned) for match in self._matches.values() for planned in match.planned}

    def of(self, compiled: Collective, lines: Sequence[str]) -> Match:
        """Return the match of a collective; `lines` are the lines that it is between, if it belongs to none."""
        match = self._matches.get(id(compiled))
        return match if match is not None and (match.planned or compiled.nodes) else self._match(compiled, lines)

    def instead(self, compiled: Collective, lines: Sequence[str]) -> list[PlannedCollective]:
        """The unmatched planned collectives in its place, preferably over its axes and of its value."""
        there = [
            planned
            for planned in self._concerning(compiled, lines)
            if id(planned) not in self._taken and _directed(planned, compiled)
        ]
        if compiled.kind == "collective-permute":
            # A permute never replaces a sum: it moves values that other devices need.
            there = [planned for planned in there if planned.kind not in REDUCING]
        over = [planned for planned in there if needs.axes_of(planned) & set(compiled.axes or ())] or there
        return [planned for planned in over if moves(planned, compiled)] or over

    def later(self, compiled: Collective) -> PlannedCollective | None:
        """The one planned collective of a value that a line makes of what the compiled one moves already."""
        there = [
            planned
            for planned in self._among(self._of_values, compiled.nodes)
            if planned.kind == compiled.kind
            and planned.stated_by is not None
            and needs.axes_of(planned) == set(compiled.axes or ())
            and (planned.bytes_in, planned.bytes_out) == (compiled.bytes_in, compiled.bytes_out)
            and planned.gradient == compiled.gradient
            and id(planned) not in self._taken
        ]
        return there[0] if len(there) == 1 else None

    def _match(self, compiled: Collective, lines: Sequence[str]) -> Match:
        if compiled.axes is None:
            return Match(self._along_parts(compiled, lines))
        if compiled.parts:
            return self._merged(compiled)
        sizes = (compiled.bytes_in, compiled.bytes_out)
        if compiled.at is not None:
            asked = [planned for planned in self._planned if planned.stated_at == compiled.at]
            asked = [planned for planned in asked if planned.kind == compiled.kind and self._over(planned, compiled)]
            if asked:
                return Match(tuple(_distinct(asked)))
        alike = [
            planned
            for planned in self._alike(compiled, lines, compiled.gradient)
            if moves(planned, compiled)
            and (sizes == (planned.bytes_in, planned.bytes_out) or _widened(planned, compiled, compiled.bytes_in))
        ]
        # A collective of the line itself is preferred to one that other lines need for its value.
        here = [
            planned
            for planned in alike
            if planned.line in lines or _asking(planned) in lines or planned.stated_in in lines
        ]
        alike = here or alike
        if compiled.between is not None:
            # A value that no line reads is an output.
            returned = not compiled.between.to
            alike = [planned for planned in alike if (planned.operation in needs.NOBODY) == returned] or alike
            alike = [planned for planned in alike if planned.of in compiled.between.source] or alike
        return Match(tuple(_distinct(alike)))

    def _along_parts(self, compiled: Collective, lines: Sequence[str]) -> tuple[PlannedCollective, ...]:
        """The planned collective over parts of axes of which a compiled one has the groups, or a step of it."""
        there = [
            planned
            for planned in self._planned
            if planned.kind == compiled.kind
            and planned.gradient == compiled.gradient
            and self._has_groups(planned, compiled)
            and planned.bytes_in <= (compiled.bytes_in or 0)
            and (compiled.bytes_out or 0) <= planned.bytes_out
        ]
        here = [planned for planned in there if concerns(planned, compiled, lines)] or there
        return tuple(here) if len(here) == 1 else ()

    def _has_groups(self, planned: PlannedCollective, compiled: Collective) -> bool:
        """Whether the groups of a compiled collective are those of some of a planned one's parts of axes."""
        if compiled.groups is None or not any(":" in axis for axis in planned.axes):
            return False
        of_some = (
            groups.along_parts(self._mesh, axes)
            for count in range(1, len(planned.axes) + 1)
            for axes in itertools.combinations(planned.axes, count)
        )
        device_groups = np.array(compiled.groups)
        return any(other is not None and groups.are_equal(device_groups, other) for other in of_some)

    def _merged(self, compiled: Collective) -> Match:
        """The matches of a merged all-reduce's parts; each planned sum matches one part at most."""
        planned: dict[int, PlannedCollective] = {}
        left: list[MergedPart] = []
        for part in compiled.parts:
            alike = [
                candidate
                for candidate in self._alike(compiled, part.nodes or compiled.nodes, part.gradient)
                if candidate.bytes_in == part.bytes or _widened(candidate, compiled, part.bytes)
            ]
            match = next((candidate for candidate in alike if id(candidate) not in planned), None)
            if match is None:
                left.append(part)
            else:
                planned[id(match)] = match
        return Match(tuple(planned.values()), tuple(left))

    def _alike(self, compiled: Collective, lines: Sequence[str], gradient: bool) -> list[PlannedCollective]:
        return [
            candidate
            for candidate in self._concerning(compiled, lines)
            if candidate.kind == compiled.kind
            and self._over(candidate, compiled)
            and candidate.gradient == gradient
            and (None in (candidate.reduction, compiled.reduction) or candidate.reduction == compiled.reduction)
        ]

    def _concerning(self, compiled: Collective, lines: Sequence[str]) -> list[PlannedCollective]:
        """The planned collectives that concern a compiled one, in the order of the plan."""
        values = () if compiled.between is None else compiled.between.source
        there = {**self._places(self._of_lines, lines), **self._places(self._of_values, values)}
        return [planned for at in sorted(there) if concerns(planned := self._planned[at], compiled, lines)]

    def _among(self, index: Mapping[str, Sequence[int]], names: Iterable[str]) -> list[PlannedCollective]:
        return [self._planned[at] for at in sorted(self._places(index, names))]

    def _places(self, index: Mapping[str, Sequence[int]], names: Iterable[str]) -> dict[int, None]:
        return dict.fromkeys(at for name in dict.fromkeys(names) for at in index.get(name, ()))

    def _over(self, planned: PlannedCollective, compiled: Collective) -> bool:
        """Whether its axes are a planned one's, or some of those, and other collectives cover the rest."""
        axes, planned_axes = set(compiled.axes or ()), needs.axes_of(planned)
        if axes == planned_axes or planned.kind != "all-reduce" or not axes < planned_axes:
            return axes == planned_axes
        beside = [other for node in dict.fromkeys(compiled.nodes) for other in self._of_nodes.get(node, ())]
        covered = [set(other.axes or ()) for other in beside if other.kind == compiled.kind]
        return planned_axes <= set[str]().union(*(axes for axes in covered if axes < planned_axes))


def concerns(planned: PlannedCollective, compiled: Collective, lines: Sequence[str]) -> bool:
    """Whether a planned collective belongs to one of these lines, or moves the value that the compiled one moves."""
    if planned.line in lines or _asking(planned) in lines or planned.stated_in in lines:
        return True
    return planned.kind not in REDUCING and compiled.between is not None and planned.of in compiled.between.source


def moves(planned: PlannedCollective, compiled: Collective) -> bool:
    """Whether the compiled one may move the planned one's value; values made within a line have no name."""
    if planned.kind in REDUCING or compiled.between is None or set(compiled.between.source) <= set(compiled.nodes):
        return True
    return not {planned.of, _asking(planned)}.isdisjoint(compiled.between.source) or planned.of == planned.line


def _asking(planned: PlannedCollective) -> str:
    """The line whose key asks for the layout."""
    return (planned.asked_by or "").partition(".")[2]


def _directed(planned: PlannedCollective, compiled: Collective) -> bool:
    return planned.gradient == compiled.gradient or (len(compiled.nodes) > 1 and not compiled.gradient)


def _widened(planned: PlannedCollective, compiled: Collective, size: int | None) -> bool:
    """Whether 16-bit numbers are reduced in 32 bits, as XLA does on processors that cannot add 16-bit numbers."""
    wide = "float32" in compiled.dtype and planned.dtype in ("bfloat16", "float16")
    return wide and planned.kind == compiled.kind == "all-reduce" and size == 2 * planned.bytes_in


def _distinct(planned: Sequence[PlannedCollective]) -> list[PlannedCollective]:
    """The planned collectives, with only the first of those that move the same value for the same operation."""
    distinct: dict[tuple[object, ...], PlannedCollective] = {}
    for collective in planned:
        distinct.setdefault(
            (
                collective.of,
                collective.line,
                collective.operation,
                str(collective.before),
                str(collective.after),
                collective.gradient,
            ),
            collective,
        )
    return list(distinct.values())
