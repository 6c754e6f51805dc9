"""What the compiler did with one program: the classes of its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from runner.codec import named
from runner.executions import Count, InBranch
from runner.link.events import RunTimes
from runner.sharding.plan import Reshard

if TYPE_CHECKING:
    from runner.evidence.work import ModuleWork


@dataclass(frozen=True, kw_only=True)
class Between:
    """Of a collective that the compiler inserted the lines whose values it takes, and those that take its result."""

    source: list[str] = field(metadata=named("from"))
    to: list[str]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a collective is there; `text` says it, and begins with `not explained` where nothing is known.

    - `by`: who asked for it: the `program` itself, JAX's `differentiation`, an `operation` that needs what a spec
      shards; null where it is not explained.
    - `operation`, `line`: what needs it, and where; `dims`: the dimensions that are sharded, by their names or sizes.
    - `keys`: the keys of the file that shard them, or ask for it.
    - `planned`: whether Shardy plans it too; null where the program asks for it, or there is no plan.
    - `instead`: what the plan has in its place, in words; `instead_sent`: what a device would send for that in all.
    """

    text: str
    by: Literal["program", "differentiation", "operation"] | None
    operation: str | None = None
    line: str | None = None
    dims: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])
    planned: bool | None = None
    instead: list[str] = field(default_factory=list[str])
    instead_sent: int | None = None


@dataclass(frozen=True, kw_only=True)
class MergedPart:
    """One operand of an all-reduce that the compiler merged of several: the lines that it is of, and its bytes."""

    nodes: list[str]
    gradient: bool
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One instruction of the compiled module that communicates.

    - `node`: the line that caused it; null where the module does not say. `nodes`: all lines that it serves.
    - `gradient`: whether it belongs to the backward pass; `inserted`: whether the compiler put it in, `between` what.
    - `backward`: of one that serves both passes, those of the `nodes` that it serves in the backward pass.
    - `axes`: the mesh axes over which it communicates; null where the groups are those of no axes.
    - `groups`: the positions in the mesh that communicate, of a permute `[from, to]`; null on many devices.
    - `reduction`: of one that reduces, `sum`, `max`, `min`, …; null where the module does not say, and for others.
    - `bytes_in`, `bytes_out`: per device and execution; `bytes` is the larger. Null where a size is not known.
    - `bytes_sent`: what a device sends, on a ring; null where that is not known.
    - `count`: how often it runs; a range where it stands in `branches`, null where that is not known.
    - `overlapped`: of an asynchronous one what is computed meanwhile; null where the module has no schedule.
    - `why`: the reason that it is there; `alone`: whether no device has a partner, since the axes have size 1: it moves
      nothing, and counts as nothing.
    - `again`: whether it is of what `jax.checkpoint` computes again in the backward pass.
    - `parts`: of an all-reduce that the compiler merged of several what each operand is of.
    """

    kind: str
    node: str | None
    nodes: list[str]
    gradient: bool
    inserted: bool
    between: Between | None
    axes: list[str] | None
    groups: list[list[int]] | None
    dtype: str
    bytes_in: int | None
    bytes_out: int | None
    bytes: int | None
    bytes_sent: int | None = None
    count: Count
    branches: list[InBranch] = field(default_factory=list[InBranch])
    asynchronous: bool
    overlapped: list[str] | None
    instruction: str
    reduction: str | None = None
    why: Reason | None = None
    alone: bool = False
    backward: list[str] = field(default_factory=list[str])
    again: bool = False
    parts: list[MergedPart] = field(default_factory=list[MergedPart])


@dataclass(frozen=True, kw_only=True)
class CompilerWarning:
    """What the compiler said of shardings, with the line that it names, if it names one.

    `reshard`: of an involuntary rematerialization the two layouts, where they can be read, and a way around it.
    """

    kind: str
    node: str | None
    text: str
    times: int
    reshard: Reshard | None = None


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """The `total` of all runs and devices; per run and device the others, null where the runs are not told apart."""

    median: float | None
    min: float | None
    max: float | None
    total: float


@dataclass(frozen=True, kw_only=True)
class ProfiledNode:
    """The time of a line without its collectives; `node` is null where instructions serve several `nodes`."""

    node: str | None
    nodes: list[str]
    gradient: bool
    seconds: Seconds


@dataclass(frozen=True, kw_only=True)
class ProfiledCollective:
    """The time of one collective; `executions` per run and device."""

    instruction: str
    node: str | None
    nodes: list[str]
    gradient: bool
    kind: str
    executions: int | None
    seconds: Seconds | None


@dataclass(frozen=True, kw_only=True)
class Unattributed:
    """What leads to no line."""

    seconds: Seconds
    instructions: list[str]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The time of each line and each collective; with no `devices` there is none, and `unknown` says why."""

    folder: str | None
    runs: int
    run_s: RunTimes | None
    devices: int
    seconds: Seconds | None
    nodes: list[ProfiledNode]
    collectives: list[ProfiledCollective]
    unattributed: Unattributed | None
    unknown: list[str]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is read of one program's compiled module, of what the compiler said, and of its profile.

    - `collectives`: null where the module could not be read.
    - `collectives_unknown`: what could not be read, attributed or counted; `collectives_missing`: those of these
      sentences after which a collective may be missing from the list.
    - `compiler_warnings`: null where nobody could hear the compiler.
    - `profile`: where one was asked for.
    """

    collectives: list[Collective] | None
    collectives_unknown: list[str]
    collectives_missing: list[str]
    compiler_warnings: list[CompilerWarning] | None
    profile: Profile | None = None


@dataclass(frozen=True)
class Gathered:
    """The evidence; `work` is what each line computes and moves, where a time is estimated and the module was read."""

    evidence: Evidence
    work: ModuleWork | None = None
