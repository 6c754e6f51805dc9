"""Reads the events of a worker, one line of JSON each, into dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeAlias, cast

from runner.base import codec
from runner.base.faults import Fault
from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.experiment.traced import TracedLines
from runner.graph.sharding.propagation import AskedCollective, Derivation, Planned, Reshard
from runner.link.steps import Spare, Step

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A half-open index range for each dimension."""

ShardEntry: TypeAlias = tuple[int, Ranges | None, int]
"""A device's number, the index range that it holds, and the entry of its value in the file that the program left."""


@dataclass(kw_only=True)
class Devices:
    """The devices that an experiment ran on or was compiled for.

    - `devices`: their number; `kind`: the backend's name for one.
    - `topology`: null if the devices are here or simulated; else there is also `device_order`, and
      `device_order_reason` if it is not `topology-aware`.
    - `processes`: the number of processes that have the devices, in equal consecutive blocks.
    """

    platform: str
    devices: int
    kind: str | None
    topology: str | None
    device_order: str | None = None
    device_order_reason: str | None = None
    processes: int = 1


@dataclass(kw_only=True)
class Memory:
    """Bytes per device; null if the backend does not report them.

    - `alias_bytes`: the outputs that reuse the memory of an argument.
    - `peak_bytes`: the most that is alive at one time, if the compiler reports it; on TPUs with what lies in on-chip
      memory.
    - `needed_bytes`: what a device needs of its main memory: arguments + outputs + temporaries - aliased.
    """

    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None
    peak_bytes: int | None
    alias_bytes: int = 0
    needed_bytes: int | None = None

    @classmethod
    def of(cls, arguments: int, outputs: int, temps: int, aliased: int, peak: int | None) -> Memory:
        """Convert the compiler's report, in which -1 means unknown; `peak` is None if it reports no meaningful one."""
        known = [None if size < 0 else size for size in (arguments, outputs, temps)]
        there = None if peak is None or peak <= 0 else peak
        parts = [size for size in known if size is not None]
        together = sum(parts) - max(aliased, 0) if len(parts) == len(known) else None
        return cls(
            argument_bytes=known[0],
            output_bytes=known[1],
            temp_bytes=known[2],
            peak_bytes=there,
            alias_bytes=max(aliased, 0),
            needed_bytes=together,
        )


@dataclass(kw_only=True)
class Cost:
    """The compiler's estimate per device, in which the body of a loop counts once; null if it has none.

    - `total_flops`, `total_bytes_accessed`: with the steps of loops multiplied in; if they are unknown, `total_unknown`
      says why.
    """

    flops: float | None = None
    bytes_accessed: float | None = None
    optimal_seconds: float | None = None
    total_flops: float | None = None
    total_bytes_accessed: float | None = None
    total_unknown: str | None = None


@dataclass(kw_only=True)
class RunTimes:
    """The seconds of `n` blocked runs."""

    median: float
    min: float
    max: float
    n: int


@dataclass(kw_only=True)
class Timing:
    """Seconds; `place_s` and `run_s` are null if the program was only compiled.

    - `shared`: whether an earlier run of the same sweep had a program with the same text up to its data, whose
      compilation, in `compile_s`, was used.
    """

    place_s: float | None
    compile_s: float
    run_s: RunTimes | None
    shared: bool = False


@dataclass(kw_only=True)
class ValueLayout:
    """The layout that the compiler gave an intermediate value; `spec` is null if no PartitionSpec expresses it."""

    spec: Spec | None
    shape: list[int]
    text: str


@dataclass(kw_only=True)
class Keeping:
    """The memory and cost of the program if it keeps everything for the backward pass; null if not reported."""

    memory: Memory | None
    cost: Cost | None


# The results of a program.


@dataclass(kw_only=True)
class OutputTold:
    """An output of a program; `shape` and `spec` are null if it has no layout.

    - `shards`: what each device holds; the range is null for `vmap`, for which the experiment determines it.
    - `places`: for a program that was only compiled, each device's id and index range.
    """

    dtype: str
    shape: list[int] | None = None
    spec: Spec | None
    shards: list[ShardEntry] = field(default_factory=list[ShardEntry])
    places: list[tuple[int, Ranges]] | None = None


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What the compilation of a program reported, and the times to compile and to run it.

    - `layouts`: the layouts of the values in `expect.layouts`.
    - `keeping_all`: for a program that rematerialises, the cost of the same program without any `checkpoint`.
    - `plan`: Shardy's plan; `lowered`: the collectives that the program asks for itself; null without a mesh.
    """

    memory: Memory | None
    cost: Cost | None
    timing: Timing
    layouts: dict[str, ValueLayout] | None = None
    keeping_all: Keeping | None = None
    plan: Planned | None = None
    lowered: list[AskedCollective] | None = None


@dataclass(kw_only=True)
class Ran:
    """A program that ran, or was `only_compiled`.

    - `processes`: if several processes ran it, for each one the ids of its devices, whose values are in a file of its
      own; else empty.
    - `operands`: for each array and device, the device's id and the index range.
    - `stderr`: the compiler's output on standard error; null if it was not captured.
    - `unreadable`: why the compiled module could not be printed.
    - `reshards`: for the text of each warning of a rematerialization the layouts, and a way around it.
    - `coordinates`: for absent TPUs, for each device of the mesh its slice, the position of its chip in the torus, and
      its number on the chip.
    """

    only_compiled: bool = False
    processes: list[list[int]] = field(default_factory=list[list[int]])
    device_ids: list[int]
    outputs: dict[str, OutputTold]
    operands: dict[str, list[tuple[int, Ranges]]]
    stderr: str | None
    unreadable: str | None = None
    reshards: dict[str, Reshard] = field(default_factory=dict[str, Reshard])
    coordinates: list[list[int]] | None = None
    compilation: Compilation

    @property
    def process_of(self) -> dict[int, int]:
        """The number of each device's process, if several processes ran it."""
        return {device: number for number, devices in enumerate(self.processes) for device in devices}


@dataclass(kw_only=True)
class Traced:
    """The trace: the type of each value on a device.

    - `rows`: for each file `trace.bin`, one per process, the mesh positions of the devices whose values are stacked in
      it.
    """

    device_ids: list[int]
    values: dict[str, Typed]
    rows: list[list[int]]

    @property
    def process_of(self) -> dict[int, int]:
        """The number of each device's process, if several processes took the trace."""
        if len(self.rows) == 1:
            return {}
        return {self.device_ids[row]: number for number, rows in enumerate(self.rows) for row in rows}


@dataclass(kw_only=True)
class Profiled:
    """A profile, whose events are in `file`; `names` are the texts in them."""

    file: str
    names: list[str]
    unknown: list[str]
    folder: str
    runs: int
    run_s: RunTimes


@dataclass(kw_only=True)
class GradientFile:
    """The unsharded graph's gradients and draws of their rounding errors, in `file`; or an error.

    Empty if there is no graph.

    - `of_lines`: the number of gradients of the lines, each of all arrays: the gradient itself, then its draws.
    - `of_rules`: the number of those by the rules of the user's functions, which come after them, if there are rules.
    """

    file: str | None = None
    of_lines: int = 0
    of_rules: int = 0
    error: str | None = None


@dataclass(kw_only=True)
class EquationError:
    """How far an equation of a program is from the same equation in float64 on the same operands.

    - `number`: its place among the program's equations, from 1 on.
    - `stack`: its name stack, which ends in its `primitive`; `places`: its files and lines, the innermost first.
    - `dtype`: that of its results that rounds most; bool if none is a float.
    - `error`: the largest distance of an element, infinite if null; `scale`: the largest element; `spread`: what a move
      of the operands by one unit in the last place changes.
    """

    number: int
    primitive: str
    stack: str
    places: list[tuple[str, int]]
    dtype: str
    error: float | None
    scale: float
    spread: float


@dataclass(kw_only=True)
class Parted:
    """The equations of a program that were measured beside float64, in their order; `of`: how many it has.

    `same`: whether the program has the same outputs when it returns all its values.
    """

    of: int
    same: bool
    equations: list[EquationError]


# The events.


@dataclass(kw_only=True)
class Called:
    """A process of a cluster as the cluster manager describes it, before it has met the others.

    - `number`, `count`: its number, and the number of processes; `address`: that of JAX's future coordinator,
      `host:port`.
    - `local`: the devices of its machine that belong to it; null if JAX gives it all of them.
    """

    number: int
    count: int
    address: str
    local: list[int] | None
    jax: str


@dataclass(kw_only=True)
class Invalid:
    """The experiment is invalid; no event follows."""

    fault: Fault


@dataclass(kw_only=True)
class Types:
    """The results of JAX's abstract evaluation.

    - `unsupported`: the programs that JAX cannot express, with the reason.
    - `unwritten`: the programs that the runner itself failed to write, with what it raised.
    - `outputs`, `nodes`: shapes and dtypes of the outputs, and of every line of each section.
    - `floats`: the dtypes in the expressions of each section, and of `derived`, of floats that are neither float32 nor
      complex64, and of values of a weak type (`weak int32`).
    - `derived`: the lines derived from the graph, `derivation`: what is recorded of them; null if none were asked for,
      or there are none.
    - `advice`: suggestions that would make the experiment cheaper, a sentence each.
    """

    unsupported: dict[str, str]
    outputs: Mapping[str, Typed]
    nodes: Mapping[str, Mapping[str, Typed]]
    floats: dict[str, dict[str, dict[int, str]]]
    target: Devices
    jax: str
    jaxlib: str
    gradient: GradientFile | None = None
    derived: TracedLines | None = None
    derivation: Derivation | None = None
    unwritten: dict[str, str] = field(default_factory=dict[str, str])
    advice: list[str] = field(default_factory=list[str])


@dataclass(kw_only=True)
class Started:
    """A step of the job began."""

    step: Step


@dataclass(kw_only=True)
class Finished:
    """A step of the job ended: with its result, with an `error`, or as `unsupported` by JAX after all."""

    step: Step
    result: Ran | Traced | Profiled | Parted | None = None
    error: str | None = None
    unsupported: str | None = None


@dataclass(kw_only=True)
class FunctionsRead:
    """The imported Python functions of an experiment were traced; no event follows.

    - `definition`: the experiment's definition, with their lines.
    """

    definition: Mapping[str, Any]


@dataclass(kw_only=True)
class ValuesTyped:
    """The types of all values of a graph, by their numbers; no event follows.

    - `values`: the shape and dtype of an array, or those of each element of a tuple; null if a loop's steps differ.
    - `tuples`: the numbers of the values that are tuples.
    """

    values: dict[int, list[Typed] | None]
    tuples: list[int]


@dataclass(kw_only=True)
class Done:
    """A job is done, and the worker is ready for another.

    - `log`: the bytes that it has written to standard error so far.
    - `resident`: the bytes of its resident memory; null if the system does not report them.
    """

    log: int
    resident: int | None = None


@dataclass(kw_only=True)
class Phase:
    """The worker's current activity, in a step or before the first one: `compiling auto`.

    - `spare`: the part of the job that is running, if the job can do without it.
    - `shown`: the words for a line of progress: `XLA is compiling`; empty if the activity is short.
    """

    doing: str
    spare: Spare | None = None
    shown: str = ""


@dataclass(kw_only=True)
class Died:
    """The worker ended outside of a program, or reports why it cannot do any job."""

    error: str


@dataclass(kw_only=True)
class Log:
    """The output of an ended worker on standard error."""

    text: str


Event: TypeAlias = Invalid | FunctionsRead | ValuesTyped | Types | Started | Finished | Died | Log

WorkerEvent: TypeAlias = Event | Done | Called | Phase
"""An event that a worker sends, or that its parent creates for it."""


_KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (Called, Phase, Invalid, FunctionsRead, ValuesTyped, Types, Started, Finished, Done, Died)
}
"""The events that a worker sends by name; its parent learns of most ends in other ways."""


def encoded(event: WorkerEvent) -> str:
    """Return an event as a line."""
    return json.dumps({"event": type(event).__name__.lower(), **codec.plain(event)})


def heard(line: str) -> WorkerEvent | None:
    """Return the event in a line; None if other code wrote the line, or the worker died while it wrote it."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    kind = _KINDS.get(cast("dict[str, Any]", message).get("event", "")) if isinstance(message, dict) else None
    return None if kind is None else codec.build(kind, message)
