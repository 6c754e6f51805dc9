"""The classes of a program's evidence: what the compiler and the profiler did."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from runner.base.codec import named
from runner.base.executions import Count, InBranch
from runner.base.lazy import dataclass
from runner.graph.sharding.propagation import Reshard
from runner.graph.source import Frame
from runner.link.events import RunTimes

if TYPE_CHECKING:
    from runner.compiled.evidence.work import ModuleWork


REDUCING = ("all-reduce", "reduce-scatter")
"""The kinds of collectives that combine values of several devices."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """For a collective that the compiler inserted, the lines whose values it reads, and those that read its result."""

    source: list[str] = field(metadata=named("from"))
    to: list[str]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """The reason for a collective; `text` is a sentence, which begins with `not explained` if nothing is known.

    - `by`: who asked for it: the `program` itself, JAX's `differentiation`, an `operation` that needs sharded values;
      null if it is not explained.
    - `operation`, `line`: the operation that needs it, and its line; `dims`: the sharded dimensions, by names or sizes.
    - `keys`: the keys of the file that shard them, or ask for it.
    - `at`: the line of the user's Python that asks for the layout, as by `reshard`; null if none does.
    - `planned`: whether Shardy plans it too; null if the program asks for it, or there is no plan.
    - `instead`: what the plan has in its place, as text; `instead_sent`: the bytes that a device would send for that in
      all.
    """

    text: str
    by: Literal["program", "differentiation", "operation"] | None
    operation: str | None = None
    line: str | None = None
    dims: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])
    at: Frame | None = None
    planned: bool | None = None
    instead: list[str] = field(default_factory=list[str])
    instead_sent: int | None = None


@dataclass(frozen=True, kw_only=True)
class MergedPart:
    """One operand of an all-reduce that the compiler merged from several: its lines, and its bytes."""

    nodes: list[str]
    gradient: bool
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One instruction of the compiled module that communicates.

    - `node`: the line that caused it; null if the module does not say. `nodes`: all lines that it serves.
    - `gradient`: whether it belongs to the backward pass; `inserted`: whether the compiler inserted it, `between` which
      lines.
    - `backward`: for one that serves both passes, those of the `nodes` that it serves in the backward pass.
    - `axes`: the mesh axes over which it communicates; null if the groups are not those of any axes.
    - `groups`: the mesh positions that communicate with each other, for a permute `[from, to]`; null on many devices.
    - `reduction`: for one that reduces, `sum`, `max`, `min`, …; null if the module does not say, and for others.
    - `bytes_in`, `bytes_out`: per device and execution; `bytes` is the larger. Null if a size is unknown.
    - `bytes_sent`: the bytes that a device sends per execution, on a ring; null if unknown.
    - `count`: how often it runs; a range if it is in `branches`, null if unknown.
    - `overlapped`: for an asynchronous one, the lines computed meanwhile; null if the module has no schedule.
    - `at`: the line of a user's Python that asks for it by stating a layout, as with `reshard`, if the module names it.
    - `why`: the reason for it; `alone`: whether all its axes have size 1, so that it moves nothing and is not counted.
    - `again`: whether it belongs to what `jax.checkpoint` recomputes in the backward pass.
    - `parts`: for an all-reduce that the compiler merged from several, the lines of each operand.
    - `of`: for a program of a user's Python, what tables say of it: `block.py:8 for block.py:9`; null for others.
    """

    kind: str
    node: str | None
    of: str | None = None
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
    at: Frame | None = None
    why: Reason | None = None
    alone: bool = False
    backward: list[str] = field(default_factory=list[str])
    again: bool = False
    parts: list[MergedPart] = field(default_factory=list[MergedPart])

    @property
    def asking(self) -> Frame | None:
        """The user's line that asks for the layout: by the plan, which knows its callers, or else by the module."""
        return (self.why and self.why.at) or self.at


@dataclass(frozen=True, kw_only=True)
class CompilerWarning:
    """A warning of the compiler about shardings, with the line that it names, if any.

    `reshard`: for an involuntary rematerialization the two layouts, if they can be read, and a way around it.
    """

    kind: str
    node: str | None
    text: str
    times: int
    reshard: Reshard | None = None


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """The `total` over all runs and devices; the others are over the time of each device in each run, null if the trace
    does not tell the runs apart.
    """

    median: float | None
    min: float | None
    max: float | None
    total: float


@dataclass(frozen=True, kw_only=True)
class ProfiledNode:
    """The time of a line without its collectives; `node` is null if instructions serve several `nodes`."""

    node: str | None
    nodes: list[str]
    gradient: bool
    seconds: Seconds


@dataclass(frozen=True, kw_only=True)
class ProfiledCollective:
    """The time of one collective; `executions` per run and device.

    - `exposed`: the part of `seconds`, or of the time from an asynchronous start to its completion, in which the device
      computes nothing.
    - `shortest_s`: the shortest time that a device is in one execution, `skew_s`: by how much the longest exceeds it,
      which is how long the first device waits for the last one; by the median over the executions.
    - `bus_bandwidth`: the bytes that a device sends on a ring, in a second of the shortest time: nccl-tests' `busbw`.
    """

    instruction: str
    node: str | None
    nodes: list[str]
    gradient: bool
    kind: str
    executions: int | None
    seconds: Seconds | None
    exposed: Seconds | None = None
    shortest_s: float | None = None
    skew_s: float | None = None
    bus_bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProfiledDevice:
    """What a device does in a run, in seconds, by the median over the runs.

    - `seconds`: from its first instruction to its last one: `computing`, `exposed` and `idle` add up to it in each run.
    - `exposed`: communication while nothing is computed; `hidden`: communication during computation.
    - `between`: from the end of a run to the start of the next one; null of a single run.
    """

    device: int
    seconds: float
    computing: float
    exposed: float
    hidden: float
    idle: float
    between: float | None = None


@dataclass(frozen=True, kw_only=True)
class Unattributed:
    """The time of instructions without a line."""

    seconds: Seconds
    instructions: list[str]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The time of each line and each collective; without `devices` there is no profile, and `unknown` says why."""

    folder: str | None
    runs: int
    run_s: RunTimes | None
    devices: int
    seconds: Seconds | None
    nodes: list[ProfiledNode]
    collectives: list[ProfiledCollective]
    unattributed: Unattributed | None
    unknown: list[str]
    by_device: list[ProfiledDevice] = field(default_factory=list[ProfiledDevice])


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of one program: from its compiled module, the compiler's messages, and its profile.

    - `collectives`: null if the module could not be read.
    - `collectives_unknown`: what could not be read, attributed or counted, a sentence each; `collectives_missing`:
      those of these sentences after which a collective may be missing from the list.
    - `compiler_warnings`: null if standard error was not captured.
    - `profile`: present with `profile=true`.
    """

    collectives: list[Collective] | None
    collectives_unknown: list[str]
    collectives_missing: list[str]
    compiler_warnings: list[CompilerWarning] | None
    profile: Profile | None = None


@dataclass(frozen=True)
class Gathered:
    """The evidence; `work` is what each line computes and moves, if time is estimated and the module was read."""

    evidence: Evidence
    work: ModuleWork | None = None
