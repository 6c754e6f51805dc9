"""What Shardy plans of a program, as plain data: each operation's layouts, and the collectives between them.

Types in a plan are global, as Shardy's are. A mesh axis that is split stands as Shardy writes it: `data:(1)2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from runner import codec
from runner.layout import Spec, SpecEntries

CLAUSES = {
    "all_gather": "all-gather", "all_slice": "slice", "all_to_all": "all-to-all", "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter", "collective_permute": "collective-permute",
    "sharded_to_unreduced": "sharded-to-unreduced", "replicated_to_unreduced": "replicated-to-unreduced",
}  # fmt: skip
"""Shardy's collectives, and what the record calls them; a slice communicates nothing."""

SILENT = frozenset({"slice", "sharded-to-unreduced", "replicated-to-unreduced"})
"""Those that communicate nothing."""


@dataclass(frozen=True)
class Operation:
    """One operation: where it stands, how its operands and results lie, and Shardy's rule for it.

    - `line`, `place`: the line of the experiment that it comes of, and where in its expression (None: not known).
    - `operands`, `results`: their layouts; None for one that has no rank.
    - `rule`: as Shardy writes it, `([i, k], [k, j])->([i, j])`; `factors` has the sizes, `reduced` those summed over.
    - `origins`: for each result the mesh axes, and where Shardy has them from: `input: 1`, `constraint_0`, `self`.
    """

    name: str
    line: str | None
    place: str | None
    operands: tuple[Spec | None, ...]
    results: tuple[Spec | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    rule: str | None = None
    factors: Mapping[str, int] = field(default_factory=dict[str, int])
    reduced: tuple[str, ...] = ()
    origins: tuple[Mapping[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The operation as the file of the plan has it."""
        layouts = {
            name: [None if spec is None else spec.json() for spec in getattr(self, name)]
            for name in ("operands", "results")
        }
        return asdict(self) | layouts


@dataclass(kw_only=True)
class PlannedCollective:
    """A collective that Shardy plans between two operations.

    - `line`: the line of the operation that needs it, null where the module does not say; `of`: what it moves.
    - `before`, `after`: the entries of the layouts; of an axis that is used in part, as Shardy names the part.
    - `reduction`: of an all-reduce and a reduce-scatter, `sum`, `max`, …; `gradient`: it is in the backward pass.
    - `bytes_in`, `bytes_out`: what one device holds before and after.
    """

    kind: str
    axes: list[str]
    line: str | None
    operation: str
    of: str
    before: SpecEntries
    after: SpecEntries
    bytes_in: int
    bytes_out: int
    reduction: str | None
    gradient: bool


@dataclass(kw_only=True)
class Planned:
    """The collectives that Shardy plans of a program; null where there is no plan, and `missing` says why."""

    missing: str | None = None
    collectives: list[PlannedCollective] | None = None


@dataclass(kw_only=True)
class Derivation:
    """The lines of one device that were derived from a graph.

    - `per_device`: the section as the YAML has it; `check_vma`: whether JAX's types can tell what is the same.
    - `sent_bytes`: what a device sends in all, on a ring, without a backward pass.
    - `notes`: what is not the plan's; `floats`: the dtypes in the lines, where they are not those of every day.
    """

    per_device: dict[str, Any]
    check_vma: bool
    sent_bytes: int
    notes: list[str]
    plan: Planned
    floats: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Collective:
    """One collective between two operations.

    - `line`: the line of the operation that needs it; `of`: what it moves, the name of an array or of an operation.
    - `reduction`: of an all-reduce and a reduce-scatter, `sum`, `max`, …; that of the operation that it completes.
    - `bytes_in`, `bytes_out`: what one device holds before and after; `gradient`: it is in the backward pass.
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
    reduction: str | None = None
    gradient: bool = False

    def told(self) -> PlannedCollective:
        """The collective as the record has it."""
        return PlannedCollective(
            kind=self.kind,
            axes=list(self.axes),
            line=self.line,
            operation=self.operation,
            of=self.of,
            before=self.before.json(),
            after=self.after.json(),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            reduction=self.reduction,
            gradient=self.gradient,
        )


@dataclass(frozen=True)
class Plan:
    """The plan of one program; `missing` says why there is none.

    `values` has for each line, by the place in its expression, how what stands there lies.
    """

    operations: tuple[Operation, ...] = ()
    collectives: tuple[Collective, ...] = ()
    values: Mapping[str, Mapping[str, Spec]] = field(default_factory=dict[str, Mapping[str, Spec]])
    missing: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as its file has it."""
        told = codec.plain(self.summary())
        if self.missing is not None:
            return told
        return told | {"operations": [operation.to_json() for operation in self.operations]}

    def summary(self) -> Planned:
        """Its collectives; a slice communicates nothing, and is none."""
        if self.missing is not None:
            return Planned(missing=self.missing)
        return Planned(collectives=[one.told() for one in self.collectives if one.kind not in SILENT])


def whole_axes(spec: Spec) -> Spec:
    """The layout with what names a part of a mesh axis left away: the axes that a PartitionSpec can name."""
    return Spec(tuple(axis for axis in axes if ":" not in axis) for axes in spec)
