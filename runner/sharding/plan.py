"""What Shardy plans of a program, as plain data: each operation's layouts, and the collectives between them.

Types in a plan are global, as Shardy's are. A mesh axis that is split stands as Shardy writes it: `data:(1)2`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner import codec
from runner.executions import Count, InBranch
from runner.layout import Spec

CLAUSES = {
    "all_gather": "all-gather", "all_slice": "slice", "all_to_all": "all-to-all", "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter", "collective_permute": "collective-permute",
    "sharded_to_unreduced": "sharded-to-unreduced", "replicated_to_unreduced": "replicated-to-unreduced",
}  # fmt: skip
"""Shardy's collectives, and what the record calls them; a slice communicates nothing."""

SILENT = frozenset({"slice", "sharded-to-unreduced", "replicated-to-unreduced"})
"""Those that communicate nothing."""


@dataclass(frozen=True, kw_only=True)
class PlannedValue:
    """An operand or a result: what it is of (an array, a line), and how it lies.

    - `dims`: the names of its dimensions; null where one has none.
    - `origins`: for each mesh axis that shards it the keys of the experiment that say so, where these are known.
    """

    of: str
    shape: tuple[int, ...]
    dims: tuple[str | None, ...]
    spec: Spec
    origins: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True, kw_only=True)
class PlannedOperation:
    """An operation of StableHLO as Shardy plans it: where it stands, its values, and Shardy's rule for it.

    - `line`: the line of the experiment that it comes of; null where the module does not say.
    - `number`: its place among the operations of the program.
    - `rule`: as Shardy writes it, `([i, k], [k, j])->([i, j])`; `factors` has the sizes of its factors, `names` what
      the experiment calls them.
    - `reduced`: the factors that are summed over, or reduced otherwise; `whole`: those that have to be whole;
      `permuted`: those along which it does not go block by block, which the plan leaves to the partitioner.
    """

    name: str
    line: str | None
    number: int = 0
    gradient: bool = False
    operands: tuple[PlannedValue, ...]
    results: tuple[PlannedValue, ...]
    rule: str | None = None
    factors: Mapping[str, int] = field(default_factory=dict[str, int])
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    reduced: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    permuted: tuple[str, ...] = ()

    @property
    def sharded(self) -> bool:
        """Whether a mesh axis shards one of its values."""
        return any(value.spec.axes for value in (*self.operands, *self.results))


@dataclass(frozen=True, kw_only=True)
class PlannedCollective:
    """A collective that Shardy plans between two operations.

    - `line`: the line of the operation that needs it, null where the module does not say; `of`: what it moves.
    - `before`, `after`: the entries of the layouts; of an axis that is used in part, as Shardy names the part.
    - `shape`, `dims`, `origins`: of what it moves the whole shape, the names of the dimensions, and the keys that shard
      it `before`.
    - `needed_by`: the number of the operation that needs it, or whose result it reduces; `asked_by`: the key that asks
      for the layout `after`.
    - `reduction`: of an all-reduce and a reduce-scatter, `sum`, `max`, …; `gradient`: it is in the backward pass.
    - `bytes_in`, `bytes_out`: what one device holds before and after, of that `dtype`; `bytes_sent`: what it sends, on
      a ring.
    - `count`, `branches`, `alone`: as of what is asked for.
    """

    kind: str
    axes: tuple[str, ...]
    line: str | None
    operation: str
    of: str
    before: Spec
    after: Spec
    bytes_in: int
    bytes_out: int
    reduction: str | None
    gradient: bool
    dtype: str = ""
    shape: tuple[int, ...] = ()
    dims: tuple[str | None, ...] = ()
    origins: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    needed_by: int | None = None
    asked_by: str | None = None
    bytes_sent: int | None = None
    count: Count = None
    branches: tuple[InBranch, ...] = ()
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class AskedCollective:
    """A collective that a program asks for itself: as lowered, before any compiler.

    - `axes`: null where the groups are those of no axes; `line`: null where the module does not say.
    - `bytes_sent`: what a device sends, on a ring; null where that is not known.
    - `count`: how often it runs; a range where it stands in `branches`, null where that is not known.
    - `alone`: whether no device has a partner, since the axes have size 1: it counts as nothing.
    """

    kind: str
    axes: tuple[str, ...] | None
    line: str | None
    gradient: bool
    bytes_in: int
    bytes_out: int
    bytes_sent: int | None
    count: Count
    branches: tuple[InBranch, ...] = ()
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Reshard:
    """Two layouts between which the compiler knows no way but to gather the whole.

    - `through`: layouts on the way by which it does know one; null where none was found. They were compiled, and where
      they `ran`, the values were the same.
    - `bytes_sent`: what a device sends for that, on a ring.
    """

    before: Spec
    after: Spec
    shape: tuple[int, ...]
    dtype: str
    through: tuple[Spec, ...] | None = None
    bytes_sent: int | None = None
    ran: bool = False


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What Shardy plans of a program: its collectives; null where there is no plan, and `missing` says why.

    `operations` are those next to a collective, and those that reduce, permute or want whole what is sharded.
    """

    missing: str | None = None
    collectives: tuple[PlannedCollective, ...] | None = None
    operations: tuple[PlannedOperation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedLine:
    """A line of the graph as Shardy plans it, in the scaling book's notation, and its collectives with reasons."""

    line: str
    text: str
    collectives: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """The lines of one device that were derived from a graph.

    - `per_device`: the section as the YAML has it; `check_vma`: whether JAX's types can tell what is the same.
    - `sent_bytes`: what a device sends in all, on a ring, without a backward pass.
    - `notation`: the lines of the graph as Shardy plans them, which the derived lines may do for less.
    - `notes`: what is not the plan's.
    """

    per_device: dict[str, Any]
    check_vma: bool
    sent_bytes: int
    notes: list[str]
    plan: Planned
    notation: list[PlannedLine] = field(default_factory=list[PlannedLine])


@dataclass(frozen=True)
class Plan:
    """All of the plan of one program; `missing` says why there is none.

    - `following`: for each collective the number of the operation that follows it.
    - `values`: how values of the graph lie, by their numbers, where the program says which it computes.
    """

    operations: tuple[PlannedOperation, ...] = ()
    collectives: tuple[PlannedCollective, ...] = ()
    following: tuple[int, ...] = ()
    values: Mapping[int, Spec] = field(default_factory=dict[int, Spec])
    missing: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as its file has it."""
        summary = codec.plain(self.summary())
        if self.missing is not None:
            return summary
        return summary | {"operations": codec.plain(self.operations)}

    def summary(self) -> Planned:
        """Its collectives; a slice communicates nothing, and is none. Of its operations those that tell something."""
        if self.missing is not None:
            return Planned(missing=self.missing)
        moving = [
            (collective, at)
            for collective, at in zip(self.collectives, self.following, strict=True)
            if collective.kind not in SILENT
        ]
        beside = {number for collective, at in moving for number in (at - 1, at, collective.needed_by)}
        telling = tuple(
            operation
            for operation in self.operations
            if operation.sharded
            and (operation.number in beside or operation.reduced or operation.permuted or operation.whole)
        )
        return Planned(collectives=tuple(collective for collective, _ in moving), operations=telling)


def whole_axes(spec: Spec) -> Spec:
    """The layout with what names a part of a mesh axis left away: the axes that a PartitionSpec can name."""
    return Spec(tuple(axis for axis in axes if ":" not in axis) for axes in spec)


_TERM = re.compile(r"\[([^\]]*)\]")


def terms(text: str) -> list[list[list[str]]]:
    """For each array of a side of a rule, `([i, jk], [k, l])`, for each dimension its factors; one may be `z_1`."""
    return [
        [re.findall(r"[a-z](?:_\d+)?", dimension) for dimension in term.split(",") if term.strip()]
        for term in _TERM.findall(text)
    ]
