"""The record: what one run found, as dataclasses. `docs/record.md` says what each field means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from runner.codec import ALWAYS, Numbers, named
from runner.estimate.model import Estimate
from runner.evidence.model import Evidence
from runner.graph.source import Frame
from runner.layout import Spec
from runner.link.events import Compilation, Devices
from runner.record.verdicts import Checks, FileChecks, RefusalVerdict
from runner.sharding.plan import Derivation
from runner.why.least import Gap

SCHEMA = 3
"""The number of the record's schema."""

Status: TypeAlias = Literal["passed", "known", "weak", "failed", "invalid", "error"]
"""The statuses of a run, a program or a whole."""

STATUSES: dict[Status, int] = {"passed": 0, "known": 0, "weak": 1, "failed": 1, "invalid": 2, "error": 3}
"""The statuses of a run from the best to the worst, and its exit status."""


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """The names and the sizes of a mesh's axes."""

    axes: list[str]
    shape: list[int]


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one device holds of an array: `[start, stop]` of each dimension, and the shape of that.

    - `process`: the number of the process that has the device, and told it; null where there is one.
    """

    device: int
    index: list[list[int]]
    shape: list[int]
    process: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArrayRecord:
    """An array: its whole shape, its PartitionSpec, and what each device holds.

    - `spec`: null where the layout has none.
    - `shards_from`: the program whose arrays told the `shards`, or `spec`; these are null on more than 64 devices.
    """

    shape: list[int]
    dtype: str
    spec: Spec | None
    shard_shape: list[int]
    shards_from: str
    shards: list[Held] | None


@dataclass(frozen=True, kw_only=True)
class OutputRecord(ArrayRecord):
    """An output of a program: what the program alone prints, and the values; null where there are none or too many."""

    text: str | None
    values: Numbers | None


@dataclass(frozen=True, kw_only=True)
class ProgramRecord:
    """A program. One that ended with an `error`, or only ran in a verification, has no more than this."""

    status: Status
    error: str | None
    checks: Checks


@dataclass(frozen=True, kw_only=True)
class CompiledProgram(Evidence, Compilation, ProgramRecord):
    """A program that was compiled, with the evidence of what the compiler did, and where it ran its outputs.

    - `collectives`: null where the module could not be read.
    - `collectives_unknown`: what could not be read, attributed or counted; `collectives_missing`: those of these
      sentences after which a collective may be missing from the list.
    - `compiler_warnings`: null where nobody could hear the compiler; `memory`, `cost`: where the backend does not say.
    - `layouts`: those that `expect.layouts` asks for; `profile`: where one was asked for.
    - `keeping_all`: where it rematerialises, what the same program costs that keeps everything.
    - `plan`: what Shardy planned of a program on the mesh; `lowered`: the collectives that it asks for itself.
    - `bytes_sent`: what a device sends for all collectives, on a ring; null where that is not known. Where branches
      decide it is the most, and `bytes_sent_min` the least.
    - `estimate`: the least time of a run on the `hardware` that the experiment names.
    """

    outputs: dict[str, OutputRecord]
    estimate: Estimate | None = None
    bytes_sent: int | None = None
    bytes_sent_min: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The run at `verify_dims` on simulated devices, for a target that is not here."""

    dims: dict[str, int]
    target: Devices
    status: Status
    folder: str


@dataclass(frozen=True, kw_only=True)
class TracedDevice:
    """A device, and where in the mesh it is; of several processes also the number of its own."""

    id: int
    coordinates: list[int]
    process: int | None = None


@dataclass(frozen=True, kw_only=True)
class TracedCollective:
    """The collective that a traced line calls."""

    operation: str
    axes: list[str]


@dataclass(frozen=True, kw_only=True)
class TracedValue:
    """A value on each device; `values` is null where it has too many elements."""

    name: str
    shape: list[int]
    dtype: str
    values: Numbers | None


@dataclass(frozen=True, kw_only=True)
class TracedBlock:
    """Part of what a device holds after a collective.

    - `index`: its `[start, stop]` of each dimension; `from`: the ids of the devices whose values are in it.
    - `part`: `[start, stop]` of each dimension of their operand; null for the whole.
    """

    index: list[list[int]]
    source: list[int] = field(metadata=named("from"))
    part: list[list[int]] | None


@dataclass(frozen=True, kw_only=True)
class TracedOrigins:
    """Who has whose values after a collective: per device its `blocks`, and how values that meet are `combined`."""

    combined: str | None
    blocks: list[list[TracedBlock]]


@dataclass(frozen=True, kw_only=True)
class TracedNode(TracedValue):
    """A line of the trace.

    - `before`: the operand of its `collective`; `origins`: of one that is drawn, whose values it gives to whom.
    - `agrees`: whether it is the SPMD interpreter's; else `devices` says where not, and `expected` what was due.
    """

    expression: str
    collective: TracedCollective | None
    before: TracedValue | None
    origins: TracedOrigins | None
    agrees: bool | None
    max_abs_error: float | None
    devices: list[int]
    expected: Numbers | None


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first line of a trace that is not the SPMD interpreter's; `text` says it in words."""

    node: str
    expression: str
    devices: list[int]
    max_abs_error: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Every value on every device.

    - `taken_from`: `shard_map`, `derived` where the file has no `per_device`, or `interpreter` for the `reason`; null
      where there is no trace, for the `reason`.
    - `same_outputs`: whether the traced code's outputs are the program's, bit by bit.
    - `dims`: the sizes of the verification that it comes from.
    """

    taken_from: Literal["shard_map", "derived", "interpreter"] | None
    reason: str | None
    devices: list[TracedDevice]
    nodes: list[TracedNode]
    first_difference: FirstDifference | None
    same_outputs: bool | None
    steps_one_by_one: list[str]
    left_out: list[str]
    dims: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedLine:
    """A line of a section or of the body of a repeat, or what a carried name starts as; in their order.

    - `path`: what no other line of the section is: `C`, `ring/body/acc`, of what a carried name starts as
      `ring/carry/acc`; `line`: as collectives name it, `ring.acc`.
    - `expression`: null of a repeat, which has `steps`.
    - `reads`: the arrays, and the paths of the lines, whose values are in the expression; `sent`: those of them that a
      collective in it is given as they are.
    - `frame`: where it stands in the user's file, of a line of a function of Python.
    - `shape`, `dtype`: in `graph` of the whole value, else of one device's; null where they are not known.
    """

    path: str
    line: str
    expression: str | None
    reads: list[str]
    sent: list[str] = field(default_factory=list[str])
    shape: list[int] | None = None
    dtype: str | None = None
    steps: int | None = None
    frame: Frame | None = None


@dataclass(frozen=True, kw_only=True)
class AppliedRule:
    """A rule for a logical name: the mesh axes that it gives, its key, and where that stands, as far as it is known."""

    name: str
    axes: list[str]
    key: str
    place: str | None


@dataclass(frozen=True, kw_only=True)
class LogicalSpec:
    """A spec that is written with logical names.

    - `written`: its entries; `spec`: the mesh axes that came of them.
    - `rules`: per dimension the rule that gave them; null where the spec itself names mesh axes, or none.
    - `dropped`: the rules of its names that came to nothing, since an earlier rule took an axis of theirs.
    """

    written: Spec
    spec: Spec
    rules: list[AppliedRule | None]
    dropped: list[AppliedRule] = field(default_factory=list[AppliedRule])


View: TypeAlias = Literal["global", "per device"]
Placer: TypeAlias = Literal["compiler", "constraints", "types", "specs"]
Asker: TypeAlias = Literal["program", "differentiation", "compiler"]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a program on the mesh leaves to the compiler.

    - `placed_by`: who decides where values lie; `communicated_by`: who asked for the collectives.
    - `lines`: those of the function `program` in its file.
    - `bytes_sent`: what a device sends for the collectives, on a ring; `gap`: how much more than the least.
    - Where branches decide, `bytes_sent` is the most, and `bytes_sent_min` the least.

    Null is what is not known, since the compiled module may communicate more than was found.
    """

    program: str
    view: View
    placed_by: Placer
    communicated_by: list[Asker] | None
    bytes_sent: int | None = None
    bytes_sent_min: int | None = None
    gap: Gap | None = None
    lines: int


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures as plain data, from which `runner.show` draws them again."""

    mesh: dict[str, Any]
    arrays: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Git:
    """The commit of the folder that the user stood in."""

    sha: str
    dirty: bool


@dataclass(kw_only=True)
class Environment:
    """Versions; those of JAX are null where it was never imported."""

    jax: str | None
    jaxlib: str | None
    python: str
    runner: str
    git: Git | None


@dataclass(kw_only=True)
class Record:
    """What one run found.

    - `status`: the worst of its parts; `error`: the message of an invalid experiment, or how the worker ended.
    - `mesh`, `target`: null where the experiment did not come so far.
    - `not_supported`: the programs that were left out, each with the reason.
    - `modes`: what each program leaves to the compiler, where the programs were not chosen.
    - `lines`: those of `graph`, of `per_device` and of `derived`, as far as there are any.
    - `paths`: of the arrays and outputs that are leaves of trees: `params_q` is `params/q`.
    - `logical`: the specs that are written with logical names, by their keys: `arrays.w1.spec`.
    - `config_folders`: the folders that `--config-dir` and `hydra.searchpath` added; `config_hash`: of the resolved
      configuration, in hexadecimal; null where there was none.
    - `show`: which pictures were asked for.
    - `explain`: whether the reasons of collectives are to be shown; `places`: where the keys stand that they name.
    """

    schema: int = field(default=SCHEMA, metadata=ALWAYS)
    experiment: str | None
    summary: str
    overrides: list[str]
    status: Status
    error: str | None
    warnings: list[str]
    time: str
    mesh: MeshShape | None
    target: Devices | None
    checks: FileChecks
    arrays: dict[str, ArrayRecord]
    programs: dict[str, CompiledProgram | ProgramRecord]
    not_supported: dict[str, str]
    verification: Verification | None = None
    trace: Trace | None = None
    pictures: Pictures | None = None
    derivation: Derivation | None = None
    modes: list[Mode] | None = None
    lines: dict[str, list[RecordedLine]] = field(default_factory=dict[str, list[RecordedLine]])
    paths: dict[str, str] = field(default_factory=dict[str, str])
    logical: dict[str, LogicalSpec] = field(default_factory=dict[str, LogicalSpec])
    config_folders: list[str] = field(default_factory=list[str])
    config_hash: str | None = None
    show: str | list[str] = "auto"
    explain: bool = False
    places: dict[str, str] = field(default_factory=dict[str, str])
    environment: Environment

    @property
    def refused(self) -> str | None:
        """The message of the refusal that `expect.invalid` expects, as the command would have printed it."""
        verdict = self.checks.get("invalid")
        return verdict.refused if isinstance(verdict, RefusalVerdict) and verdict.status == "passed" else None

    @property
    def compiled(self) -> dict[str, CompiledProgram]:
        """The programs that were compiled for the target."""
        return {name: program for name, program in self.programs.items() if isinstance(program, CompiledProgram)}
