"""What a worker tells in, one line of JSON each; the same as dataclasses out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from runner import codec
from runner.faults import Fault
from runner.layout import Spec, Typed
from runner.link.steps import Step
from runner.sharding.plan import AskedCollective, Derivation, Planned, Reshard

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A half-open index range for each dimension."""

ShardEntry: TypeAlias = tuple[int, Ranges | None, int]
"""A device's number, the index range that it holds, and the entry of its value in the file that the program left."""


@dataclass(kw_only=True)
class Devices:
    """The devices that an experiment ran on or was compiled for.

    - `devices`: how many; `kind`: what the backend calls one.
    - `topology`: null where they are here or simulated, else also `device_order` and why it is not the first kind.
    - `processes`: of how many processes they are, of which each has as many: the first the first ones.
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
    """Bytes per device; null where the backend does not say.

    - `alias_bytes`: of the outputs, those that lie where an argument did.
    - `peak_bytes`: the most that is held at one time, where the compiler tells that.
    - `needed_bytes`: what a device needs: the peak, else arguments + outputs + temporaries - aliased.
    """

    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None
    peak_bytes: int | None
    alias_bytes: int = 0
    needed_bytes: int | None = None

    @classmethod
    def of(cls, arguments: int, outputs: int, temps: int, aliased: int, peak: int | None) -> Memory:
        """What a compiler tells, who says -1 for what it does not know; `peak` is None where it tells no true one."""
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
            needed_bytes=together if there is None else there,
        )


@dataclass(kw_only=True)
class Cost:
    """The compiler's estimate per device, as far as it has one: the body of a loop counts once in it.

    - `total_flops`, `total_bytes_accessed`: with the steps of loops multiplied in; where that cannot be done,
      `total_unknown` says why.
    """

    flops: float | None = None
    bytes_accessed: float | None = None
    optimal_seconds: float | None = None
    total_flops: float | None = None
    total_bytes_accessed: float | None = None
    total_unknown: str | None = None


@dataclass(kw_only=True)
class RunTimes:
    """Seconds of `n` blocked runs."""

    median: float
    min: float
    max: float
    n: int


@dataclass(kw_only=True)
class Timing:
    """Seconds; `place_s` and `run_s` are null where the program was only compiled.

    - `shared`: whether a run before it, in the same sweep, had a program of the same text up to its data: then it was
      compiled for that one, in `compile_s` seconds.
    """

    place_s: float | None
    compile_s: float
    run_s: RunTimes | None
    shared: bool = False


@dataclass(kw_only=True)
class ValueLayout:
    """The layout that the compiler gave a value in the middle; `spec` is null where it has none."""

    spec: Spec | None
    shape: list[int]
    text: str


@dataclass(kw_only=True)
class Keeping:
    """What a program costs that keeps everything for the backward pass; null where the backend does not say."""

    memory: Memory | None
    cost: Cost | None


# What becomes of a program.


@dataclass(kw_only=True)
class OutputTold:
    """An output of a program; `shape` and `spec` are null where it has no layout.

    - `shards`: what each device holds; the range is null for `vmap`, where the experiment says it.
    - `places`: of a program that was only compiled for each device its id and the index range.
    """

    dtype: str
    shape: list[int] | None = None
    spec: Spec | None
    shards: list[ShardEntry] = field(default_factory=list[ShardEntry])
    places: list[tuple[int, Ranges]] | None = None


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What compiling a program told of it, and how long it took to compile and to run.

    - `layouts`: those that `expect.layouts` asks for.
    - `keeping_all`: where it rematerialises, what the same program costs that keeps everything.
    - `plan`: what Shardy planned of it; `lowered`: the collectives that it asks for itself; null
      where there is no mesh.
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

    - `processes`: for each of several processes that ran it the ids of its devices, whose values are in a file of its
      own; empty where there is one.
    - `operands`: for each array and device the device's id and the index range.
    - `said`: what the compiler wrote to standard error; null where nobody could hear it.
    - `unreadable`: why the compiled module could not be printed.
    - `reshards`: for the text of each warning of a rematerialization the layouts, and a way around it.
    - `coordinates`: of TPUs that are not here for each device of the mesh its slice, where in the torus its chip is,
      and its number on the chip.
    """

    only_compiled: bool = False
    processes: list[list[int]] = field(default_factory=list[list[int]])
    device_ids: list[int]
    outputs: dict[str, OutputTold]
    operands: dict[str, list[tuple[int, Ranges]]]
    said: str | None
    unreadable: str | None = None
    reshards: dict[str, Reshard] = field(default_factory=dict[str, Reshard])
    coordinates: list[list[int]] | None = None
    compilation: Compilation

    @property
    def process_of(self) -> dict[int, int]:
        """Where several processes ran it, for each device the number of its own."""
        return {device: number for number, devices in enumerate(self.processes) for device in devices}


@dataclass(kw_only=True)
class Traced:
    """The trace: of each value its type on a device.

    - `rows`: for each file `trace.bin`, of which each process left its own, the positions in the mesh of the devices
      whose values are stacked in it.
    """

    device_ids: list[int]
    values: dict[str, Typed]
    rows: list[list[int]]

    @property
    def process_of(self) -> dict[int, int]:
        """Where several processes took it, for each device the number of its own."""
        if len(self.rows) == 1:
            return {}
        return {self.device_ids[row]: number for number, rows in enumerate(self.rows) for row in rows}


@dataclass(kw_only=True)
class Profiled:
    """A profile, whose events lie in `file`; `names` are the texts in them."""

    file: str
    names: list[str]
    unknown: list[str]
    folder: str
    runs: int
    run_s: RunTimes


@dataclass(kw_only=True)
class GradientFile:
    """The unsharded graph's gradients and `draws` of what rounding does to them, in `file`; or the error instead.

    Where there is no graph there is neither.
    """

    file: str | None = None
    draws: int = 0
    error: str | None = None


# The events.


@dataclass(kw_only=True)
class Called:
    """What the cluster that started this process calls it, before it has met the others.

    - `number`, `count`: which of how many it is; `address`: where JAX's coordinator is to be, `host:port`.
    - `local`: the devices of its machine that are its own; null where JAX leaves it all of them.
    """

    number: int
    count: int
    address: str
    local: list[int] | None
    jax: str


@dataclass(kw_only=True)
class Invalid:
    """The experiment is invalid; nothing follows."""

    fault: Fault


@dataclass(kw_only=True)
class Types:
    """What JAX's abstract evaluation found.

    - `unsupported`: the programs that JAX cannot express, with the reason.
    - `outputs`, `nodes`: shapes and dtypes of the outputs, and of every line of each section.
    - `floats`: the dtypes in the expressions of each section, and of `derived`, that are not float32 or complex64.
    - `derivation`: the lines derived from the graph; null where none were asked for, or there are none.
    - `advice`: what would make the experiment cheaper, in words.
    """

    unsupported: dict[str, str]
    outputs: Mapping[str, Typed]
    nodes: Mapping[str, Mapping[str, Typed]]
    floats: dict[str, dict[str, dict[int, str]]]
    target: Devices
    jax: str
    jaxlib: str
    gradient: GradientFile | None = None
    derivation: Derivation | None = None
    advice: list[str] = field(default_factory=list[str])


@dataclass(kw_only=True)
class Started:
    """A step of the job began."""

    step: Step


@dataclass(kw_only=True)
class Finished:
    """A step of the job ended: with what it found, with an `error`, or since JAX has it `unsupported` after all."""

    step: Step
    found: Ran | Traced | Profiled | None = None
    error: str | None = None
    unsupported: str | None = None


@dataclass(kw_only=True)
class FunctionsRead:
    """The functions of Python that an experiment imports were read; nothing follows.

    - `definition`: the experiment's, with their lines.
    """

    definition: Mapping[str, Any]


@dataclass(kw_only=True)
class ValuesTyped:
    """The types of all values of a graph, by their numbers; nothing follows.

    - `values`: the shape and the dtype of an array, of a tuple those of each; null where a loop's steps differ.
    - `tuples`: the numbers of those that are tuples.
    """

    values: dict[int, list[Typed] | None]
    tuples: list[int]


@dataclass(kw_only=True)
class Done:
    """A job was done, and the worker is ready for another.

    - `log`: how many bytes it has written to standard error so far.
    - `resident`: how many bytes of memory it holds; null where the system does not say.
    """

    log: int
    resident: int | None = None


@dataclass(kw_only=True)
class Phase:
    """What the worker does from now on, of a step or before the first one: `compiling auto`."""

    doing: str


@dataclass(kw_only=True)
class Died:
    """The worker ended where it ran no program, or says why it cannot do any job."""

    error: str


@dataclass(kw_only=True)
class Log:
    """What a worker that ended had written to standard error."""

    text: str


Event: TypeAlias = Invalid | FunctionsRead | ValuesTyped | Types | Started | Finished | Died | Log

Said: TypeAlias = Event | Done | Called | Phase
"""What a worker says, or is said of it."""


_KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (Called, Phase, Invalid, FunctionsRead, ValuesTyped, Types, Started, Finished, Done, Died)
}
"""What a worker says; of most of its ends its parent hears otherwise."""


def said(event: Said) -> str:
    """The line that tells an event."""
    return json.dumps({"event": type(event).__name__.lower(), **codec.plain(event)})


def heard(line: str) -> Said | None:
    """The event that a line tells; None where something else wrote it, or the worker died while it did."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    kind = _KINDS.get(cast("dict[str, Any]", message).get("event", "")) if isinstance(message, dict) else None
    return None if kind is None else codec.build(kind, message)
