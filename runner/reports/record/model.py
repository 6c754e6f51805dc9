"""The record of a run, as dataclasses. `docs/record.md` describes each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from runner.base.codec import ALWAYS, Numbers, named
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.model import Estimate
from runner.compiled.evidence.model import Evidence
from runner.compiled.why.least import Gap
from runner.experiment.program import Placer, Program
from runner.graph.sharding.propagation import Derivation
from runner.graph.source import Frame
from runner.link.events import Compilation, Devices
from runner.reports.record.verdicts import Checks, FileChecks, RefusalVerdict, ValueVerdict

SCHEMA = 3
"""The version of the record's schema."""

Status: TypeAlias = Literal["passed", "known", "weak", "failed", "invalid", "error"]
"""The status of a run, of a program, or of a sweep."""

STATUSES: dict[Status, int] = {"passed": 0, "known": 0, "weak": 1, "failed": 1, "invalid": 2, "error": 3}
"""The exit status for each status, from the best to the worst."""


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """The names and sizes of the mesh axes."""

    axes: list[str]
    shape: list[int]


@dataclass(frozen=True, kw_only=True)
class Held:
    """The shard of an array that one device holds: its `[start, stop]` in each dimension, and its shape.

    - `process`: with several processes, the number of the process that has the device; else null.
    """

    device: int
    index: list[list[int]]
    shape: list[int]
    process: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArrayRecord:
    """An array: its global shape, its PartitionSpec, and its shards.

    - `spec`: null if no PartitionSpec expresses the layout.
    - `shards_from`: the program whose arrays reported the `shards`; `spec` if they are computed from the PartitionSpec.
    - `shards`: one per device, in the order of the mesh; null on more than 64 devices.
    """

    shape: list[int]
    dtype: str
    spec: Spec | None
    shard_shape: list[int]
    shards_from: str
    shards: list[Held] | None


@dataclass(frozen=True, kw_only=True)
class OutputRecord(ArrayRecord):
    """An output of a program.

    - `text`: what the program prints when it is run alone; null if it was only compiled.
    - `values`: null if it was only compiled, and above 1,000 elements.
    """

    text: str | None
    values: Numbers | None


@dataclass(frozen=True, kw_only=True)
class ProgramRecord:
    """A program. It has only these fields if it ended with an `error`, or ran only in a verification."""

    status: Status
    error: str | None
    checks: Checks


@dataclass(frozen=True, kw_only=True)
class CompiledProgram(Evidence, Compilation, ProgramRecord):
    """A compiled program: the evidence read from the compiled module and, if it ran, its outputs.

    - `collectives`: null if the module could not be read.
    - `collectives_unknown`: what could not be read, attributed or counted in the module, a sentence each;
      `collectives_missing`: those of these sentences after which a collective may be missing from the list.
    - `compiler_warnings`: null if standard error was not captured; `memory`, `cost`: null if the backend does not
      report them.
    - `layouts`: the layouts of the values in `expect.layouts`; `profile`: present with `profile=true`.
    - `keeping_all`: for a program that rematerialises, the memory and cost of the same program without any
      `checkpoint`.
    - `plan`: Shardy's plan for a program on the mesh; `lowered`: the collectives that the program asks for itself.
    - `bytes_sent`: the bytes that a device sends for all collectives, on a ring; null if unknown. With branches it is
      the most, and `bytes_sent_min` the least.
    - `estimate`: the least time of a run on the experiment's `hardware`.
    """

    outputs: dict[str, OutputRecord]
    estimate: Estimate | None = None
    bytes_sent: int | None = None
    bytes_sent_min: int | None = None

    @property
    def uncompared(self) -> frozenset[str]:
        """The outputs that no oracle computes, where the values were checked."""
        value = self.checks.value
        if not isinstance(value, ValueVerdict):
            return frozenset()
        return frozenset(name for name, verdict in value.outputs.items() if verdict.status == "not_run")


def compiled_on_mesh(programs: Mapping[str, ProgramRecord]) -> dict[str, CompiledProgram]:
    """The programs that were compiled for all devices of the mesh."""
    return {
        name: program
        for name, program in programs.items()
        if Program(name).on_mesh and isinstance(program, CompiledProgram)
    }


def alike(programs: Mapping[str, CompiledProgram]) -> dict[str, CompiledProgram]:
    """Those programs that compute the same: not one whose outputs are compared in another program only."""
    uncompared = [program.uncompared for program in programs.values()]
    nowhere = frozenset[str].intersection(*uncompared) if uncompared else frozenset[str]()
    return {name: program for name, program in programs.items() if program.uncompared <= nowhere}


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The run at `verify_dims` on simulated devices, for a target that is not available on this machine."""

    dims: dict[str, int]
    target: Devices
    status: Status
    folder: str


@dataclass(frozen=True, kw_only=True)
class TracedDevice:
    """A device, its coordinates in the mesh and, with several processes, the number of its process."""

    id: int
    coordinates: list[int]
    process: int | None = None


@dataclass(frozen=True, kw_only=True)
class TracedCollective:
    """The collective that a line of the trace calls."""

    operation: str
    axes: list[str]


@dataclass(frozen=True, kw_only=True)
class TracedValue:
    """A value on each device; `values` is null if it has too many elements."""

    name: str
    shape: list[int]
    dtype: str
    values: Numbers | None


@dataclass(frozen=True, kw_only=True)
class TracedBlock:
    """A block of what a device holds after a collective.

    - `index`: its `[start, stop]` in each dimension; `from`: the ids of the devices whose values are in it.
    - `part`: its `[start, stop]` in each dimension of their operand; null for the whole operand.
    """

    index: list[list[int]]
    source: list[int] = field(metadata=named("from"))
    part: list[list[int]] | None


@dataclass(frozen=True, kw_only=True)
class TracedOrigins:
    """Which devices' values each device holds after a collective.

    - `blocks`: per device the blocks of its result.
    - `combined`: how values that meet are combined: `+`, `mean`, `max`, `min`, or null.
    """

    combined: str | None
    blocks: list[list[TracedBlock]]


PLACED = "  # "
"""Separates the expression of a traced line from its place in the user's file."""


@dataclass(frozen=True, kw_only=True)
class TracedNode(TracedValue):
    """A line of the trace, with its value on each device.

    - `expression`: with the place of the line in the user's file behind it, if it has one.

    - `before`: the operand of its `collective`; `origins`: for a collective that is drawn, which devices' values it
      gives to which.
    - `agrees`: whether it equals the SPMD interpreter's value; if not, `devices` says where, and `expected` has that
      value.
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
    """The first line of a trace that differs from the SPMD interpreter; `text` says it in a sentence."""

    node: str
    expression: str
    devices: list[int]
    max_abs_error: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Every value on every device.

    - `taken_from`: the traced program: `shard_map`; if the file has no `per_device`, `auto` for the lines of the user's
      own `shard_map`s, and else `derived`; `interpreter` if no program reported the values, with the `reason`; null if
      there is no trace, with the `reason`.
    - `same_outputs`: whether the traced code's outputs equal those of the program, bit by bit; null if that did not
      run, and for `auto`.
    - `steps_one_by_one`: the loops of `jax.lax.fori_loop` whose steps were traced one by one.
    - `left_out`: what the trace omits, and why.
    - `dims`: the sizes of the verification, if the trace was taken there.
    """

    taken_from: Literal["shard_map", "derived", "auto", "interpreter"] | None
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
    """A line of a section or of the body of a repeat, or the initial value of a carry.

    - `path`: its unique name in the section: `C`, `ring/body/acc`, for an initial value `ring/carry/acc`; `line`: its
      name as collectives use it, `ring.acc`.
    - `expression`: null for a repeat, which has `steps`, and for a while, whose number of steps is not known.
    - `reads`: the arrays, and the paths of the lines, whose values are in the expression; `sent`: those of them that
      are the direct operand of a collective in it.
    - `frame`: for a line of a Python function, its place in the user's file; `source`: its expression as that file has
      it; `variable`: the variable that it is assigned to there, or else its expression, or what its line assigns,
      numbered where several values have one name; null for other lines.
    - `shape`, `dtype`: in `graph` those of the whole value, else those of one device's; null if they are not known.
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
    source: str | None = None
    variable: str | None = None


@dataclass(frozen=True, kw_only=True)
class AppliedRule:
    """A rule for a logical axis name: its mesh axes, its key, and the place of that key in a file, if known."""

    name: str
    axes: list[str]
    key: str
    place: str | None


@dataclass(frozen=True, kw_only=True)
class LogicalSpec:
    """A spec that is written with logical axis names.

    - `written`: its entries as written; `spec`: the mesh axes that the rules give.
    - `rules`: per dimension the rule that gave the mesh axes; null if the entry names mesh axes itself, or is null.
    - `dropped`: the rules without effect, because an earlier one took one of their axes.
    """

    written: Spec
    spec: Spec
    rules: list[AppliedRule | None]
    dropped: list[AppliedRule] = field(default_factory=list[AppliedRule])


View: TypeAlias = Literal["global", "per device"]
Asker: TypeAlias = Literal["program", "differentiation", "compiler"]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a program on the mesh leaves to the compiler.

    - `view`: whether it is written over whole arrays or over a device's shards.
    - `placed_by`: who decides the layouts of intermediate values; `communicated_by`: who asked for the collectives.
    - `lines`: the number of code lines of the function `program` in its file.
    - `bytes_sent`: the bytes that a device sends for the collectives, on a ring; `gap`: how much more that is than the
      least of all programs. With branches, `bytes_sent` is the most, and `bytes_sent_min` the least.

    Fields are null if the compiled module may have more collectives than were found.
    """

    program: str
    view: View
    placed_by: Placer
    communicated_by: list[Asker] | None
    bytes_sent: int | None = None
    bytes_sent_min: int | None = None
    gap: Gap | None = None
    lines: int


@dataclass(frozen=True)
class Shard:
    """One half-open index range per dimension, and the ids of all devices that hold it."""

    ranges: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each dimension."""
        return tuple(stop - start for start, stop in self.ranges)


@dataclass(frozen=True)
class PicturedArray:
    """An array, or an output with the layout that it has in `programs`."""

    name: str
    role: Literal["array", "output"]
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str | None, ...]
    spec: str
    shards: tuple[Shard, ...]
    itemsize: int
    platform: str
    programs: tuple[str, ...] = field(default=(), metadata=ALWAYS)


@dataclass(frozen=True)
class PicturedMesh:
    """The mesh: `device_ids` are row-major, the last axis fastest; `topology` is that of absent devices.

    `processes` has for each of several the ids of its devices.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    device_ids: tuple[int, ...]
    platform: str
    topology: str = field(default="", metadata=ALWAYS)
    processes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures as plain data, from which `runner.reports.show` can draw them again."""

    mesh: PicturedMesh
    arrays: list[PicturedArray]


@dataclass(frozen=True, kw_only=True)
class Git:
    """The commit of the current folder."""

    sha: str
    dirty: bool


@dataclass(kw_only=True)
class Environment:
    """Versions; those of JAX are null if it was not imported.

    - `worker`: whether the process that ran the programs was a `copy` of the calling one, or a `new` one, and
      `worker_reason` why it was not a copy, if one was asked for; null if there was none, or several.
    """

    jax: str | None
    jaxlib: str | None
    python: str
    runner: str
    git: Git | None
    worker: Literal["copy", "new"] | None = None
    worker_reason: str | None = None


@dataclass(kw_only=True)
class Record:
    """The results of one run.

    - `status`: the worst status of its parts; `error`: the message of an invalid experiment, or how the worker ended.
    - `mesh`, `target`: null if the run ended before they were known.
    - `not_supported`: the programs that were omitted, each with the reason.
    - `modes`: what each program leaves to the compiler, for a run of all programs.
    - `lines`: the lines of `graph`, `per_device` and `derived`, as far as the experiment has them; `written`: those of
      `graph` with the user's functions themselves in the place of their references, if these have a `shard_map`.
    - `paths`: the paths of leaves of trees, by the names of their arrays and outputs: `params_q` is `params/q`.
    - `logical`: the specs that are written with logical axis names, by their keys: `arrays.w1.spec`.
    - `config_folders`: the folders that `--config-dir` and `hydra.searchpath` added; `config_hash`: the SHA-256 of the
      resolved configuration, in hexadecimal; null if there is none.
    - `show`: which pictures were asked for.
    - `explain`: whether reasons of collectives are shown, in brief or `full`; `places`: the places of the keys in them.
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
    explain: bool | Literal["full"] = False
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
