"""Shardy's plan of a program as plain data: the layouts of each operation, and the collectives between operations.

Types are global, as in Shardy. Part of a mesh axis is written as Shardy writes it: `data:(1)2`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, TypeAlias

from runner.base import codec
from runner.base.executions import Count, InBranch
from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.graph.source import Frame

CLAUSES = {
    "all_gather": "all-gather", "all_slice": "slice", "all_to_all": "all-to-all", "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter", "collective_permute": "collective-permute",
    "sharded_to_unreduced": "sharded-to-unreduced", "replicated_to_unreduced": "replicated-to-unreduced",
}  # fmt: skip
"""The names of Shardy's collectives in the record; a slice communicates nothing."""

SILENT = frozenset({"slice", "sharded-to-unreduced", "replicated-to-unreduced"})
"""The kinds that communicate nothing."""


@dataclass(frozen=True, kw_only=True)
class PlannedValue:
    """An operand or a result: the array or line that it belongs to (`of`), and its layout.

    - `dims`: the names of its dimensions; null for a dimension without one.
    - `origins`: for each mesh axis that shards it, the keys of the experiment that cause this, where known.
    """

    of: str
    shape: tuple[int, ...]
    dims: tuple[str | None, ...]
    spec: Spec
    origins: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True, kw_only=True)
class PlannedOperation:
    """A StableHLO operation in Shardy's plan: its line, its values, and its sharding rule.

    - `line`: the line of the experiment that it is lowered from; null where the module does not say.
    - `number`: its position among the operations of the program.
    - `rule`: the sharding rule as Shardy writes it, `([i, k], [k, j])->([i, j])`; `factors`: the sizes of its factors;
      `names`: the experiment's names for them.
    - `reduced`: the reduction factors; `whole`: the factors that need replication; `permuted`: the permutation factors,
      along which it does not work block by block and which the plan leaves to the partitioner.
    - `computes`: what it computes, if its name does not say it: `cumulative sum`, for a window over all that is before.
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
    computes: str | None = None

    @property
    def sharded(self) -> bool:
        """Whether any of its operands or results is sharded."""
        return any(value.spec.axes for value in (*self.operands, *self.results))


@dataclass(frozen=True, kw_only=True)
class PlannedCollective:
    """A collective that Shardy plans between two operations.

    - `line`: the line of the operation that needs it, null where the module does not say; `of`: the value it moves.
    - `before`, `after`: the layouts of that value; part of a mesh axis is named as Shardy names it.
    - `shape`, `dims`, `origins`: its global shape, the names of its dimensions, and the keys that shard it `before`.
    - `needed_by`: the number of the operation that needs it, or whose result it reduces; `asked_by`: the key that asks
      for the layout `after`.
    - `stated_by`: what gives it the layout `after` in a user's Python, `the out_sharding in llama.py:41`; `stated_in`:
      that line's name, if it has one; `stated_at`: that line.
    - `reduction`: `sum`, `max`, …, of an all-reduce or a reduce-scatter; `gradient`: it is in the backward pass.
    - `bytes_in`, `bytes_out`: the bytes, in `dtype`, that a device holds before and after; `bytes_sent`: those that it
      sends, on a ring.
    - `count`, `branches`, `alone`: as in `AskedCollective`.
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
    stated_by: str | None = None
    stated_in: str | None = None
    stated_at: Frame | None = None
    bytes_sent: int | None = None
    count: Count = None
    branches: tuple[InBranch, ...] = ()
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class AskedCollective:
    """A collective that the program itself contains: as lowered, before compilation.

    - `axes`: null where the groups match no mesh axes; `line`: null where the module does not say.
    - `bytes_sent`: the bytes that a device sends, on a ring; null where not known.
    - `count`: how often it runs: a range inside `branches`, null where not known.
    - `alone`: whether its axes have size 1, so that no device has a partner; such a collective is not counted.
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
    """A reshard that the compiler can do only by replicating the whole array.

    - `through`: intermediate layouts that avoid this; null where none were found. They were compiled, and if they
      `ran`, the values were equal.
    - `bytes_sent`: the bytes that a device sends by way of `through`, on a ring.
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
    """Shardy's plan of a program: its collectives; null where there is no plan, and `missing` says why.

    - `unknown`: what is not known of the plan, and why.
    - `operations`: those next to a collective, and those on sharded values that reduce, permute or replicate.
    """

    missing: str | None = None
    unknown: str | None = None
    collectives: tuple[PlannedCollective, ...] | None = None
    operations: tuple[PlannedOperation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlannedLine:
    """A line of the graph in Shardy's plan, in the scaling book's notation, and its collectives with their reasons."""

    line: str
    text: str
    collectives: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """The `per_device` section that was derived from a graph.

    - `per_device`: the section as in the YAML; `check_vma`: whether JAX's types can infer what is replicated.
    - `sent_bytes`: the bytes that a device sends in total, on a ring, without a backward pass.
    - `notation`: the lines of the graph in Shardy's plan; the derived lines may send less.
    - `notes`: where the derived lines differ from the plan.
    """

    per_device: dict[str, Any]
    check_vma: bool
    sent_bytes: int
    notes: list[str]
    plan: Planned
    notation: list[PlannedLine] = field(default_factory=list[PlannedLine])


@dataclass(frozen=True)
class Plan:
    """The whole plan of one program; `missing` says why there is none, `unknown` what is not known of it.

    - `following`: for each collective, the number of the operation after it.
    - `values`: the layouts of the graph's values, by their numbers, as far as the module identifies them.
    """

    operations: tuple[PlannedOperation, ...] = ()
    collectives: tuple[PlannedCollective, ...] = ()
    following: tuple[int, ...] = ()
    values: Mapping[int, Spec] = field(default_factory=dict[int, Spec])
    missing: str | None = None
    unknown: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data for its file."""
        summary = codec.plain(self.summary())
        if self.missing is not None:
            return summary
        return summary | {"operations": codec.plain(self.operations)}

    def summary(self) -> Planned:
        """The communicating collectives, the operations that need them, and of sharded ones those beside them or that
        reduce, permute or need replication.
        """
        if self.missing is not None:
            return Planned(missing=self.missing)
        moving = [
            (collective, at)
            for collective, at in zip(self.collectives, self.following, strict=True)
            if collective.kind not in SILENT
        ]
        needing = {collective.needed_by for collective, _ in moving}
        beside = {number for _, at in moving for number in (at - 1, at)}
        telling = tuple(
            operation
            for operation in self.operations
            if operation.number in needing
            or (
                operation.sharded
                and (operation.number in beside or operation.reduced or operation.permuted or operation.whole)
            )
        )
        collectives = tuple(collective for collective, _ in moving)
        return Planned(unknown=self.unknown, collectives=collectives, operations=telling)


def whole_axes(spec: Spec) -> Spec:
    """Drop the parts of mesh axes from a layout: what remains a PartitionSpec can name."""
    return Spec(tuple(axis for axis in axes if ":" not in axis) for axes in spec)


_TERM = re.compile(r"\[([^\]]*)\]")

Factors: TypeAlias = list[list[list[str]]]
"""For each array, for each of its dimensions, the factors that it consists of, such as `z_1`."""


@cache
def parsed_rule(rule: str | None) -> tuple[Factors, Factors]:
    """Parse the text of Shardy's rule, `([i, jk], [k, l])->([i, l])`: the factors of the operands and of the results.

    None is the rule of an operation that has none.
    """
    operands, _, results = (rule or "").partition("->")
    return _factors(operands), _factors(results)


def _factors(side: str) -> Factors:
    return [
        [re.findall(r"[a-z](?:_\d+)?", dimension) for dimension in term.split(",") if term.strip()]
        for term in _TERM.findall(side)
    ]


@dataclass(frozen=True)
class KeyedArray:
    """An array that a program is given: the names of its dimensions, its layout, and the key that sets it."""

    dims: tuple[str | None, ...]
    spec: Spec | None
    key: str


@dataclass(frozen=True)
class LayoutKeys:
    """What the reader of a plan needs of the file, or the process, that a module comes from.

    - `keys`: the keys that set layouts, in their order; those of constraints may be missing. `arrays`, `outputs`: by
      name.
    - `constraint`: the key that constrains one of these lines to a layout, or to any; None if none does.
    - `typed`: whether a line's key also holds for a value whose type has the layout, without a request for it.
    - `users`: whether a file is a user's Python, whose lines lay out values without a key.
    - `results`: for each line inside calls the names of the calls' results, the innermost call first.
    """

    mesh: Mesh
    keys: Sequence[str]
    arrays: Mapping[str, KeyedArray]
    outputs: Mapping[str, tuple[str, Spec]] = field(default_factory=dict[str, tuple[str, Spec]])
    constraint: Callable[[Sequence[str], Spec | None], str | None] = lambda names, layout: None
    typed: bool = True
    users: Callable[[str], bool] = lambda file: False
    results: Mapping[str, list[tuple[str, ...]]] = field(default_factory=dict[str, list[tuple[str, ...]]])
