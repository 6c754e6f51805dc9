"""The keys of an experiment and their types, as Hydra's structured configs.

They reject unknown keys and values of the wrong type; null switches an optional key off. Where a type does not say
enough (a PartitionSpec is a list of null, a string or a list of strings), the key names its form, which
`runner/experiment/forms.py` declares. All defaults are defined here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, TypeAlias

from runner.base.lazy import dataclass

MISSING: Any = "???"
"""OmegaConf's mark of a mandatory value, spelled out so that reading the defaults need not import OmegaConf."""

Flag: TypeAlias = Annotated[Any, "flag"]
"""True or false, checked by `shape.py`: OmegaConf would convert any number other than 0 to true."""

Explanation: TypeAlias = Annotated[Any, "explanation"]
"""A flag, or a word."""

Layout: TypeAlias = Annotated[Any, "spec"]
"""A list, or a word that stands for one; OmegaConf has no type for both."""

MeshShape: TypeAlias = Annotated[Any, "sizes-of-axes"]
"""A list, or `auto`."""

Rate: TypeAlias = Annotated[float | None, "rate"]
Latency: TypeAlias = Annotated[float | None, "latency"]
Things: TypeAlias = Annotated[int | None, "things"]


@dataclass
class MeshConfig:
    """Axis names and sizes, in the order of `jax.make_mesh`."""

    axes: Annotated[list[Any], "axes"] = MISSING
    shape: MeshShape = MISSING
    """The size of each axis; `auto`: plan all shapes of the target's devices, and take the best."""
    devices: Annotated[list[Any] | None, "devices"] = None
    """The ids of the devices in the mesh, row-major or nested like it; null: in the order of `jax.make_mesh`."""
    types: Annotated[list[Any] | None, "types-of-axes"] = None
    """For each axis, `explicit` or `auto`: its type in the program `explicit`; null: all are explicit."""


@dataclass
class TargetConfig:
    """The devices to compile for: `cpu` (simulated devices), `gpu` or `tpu` (the devices here), or a topology."""

    platform: Annotated[str, "platform"] = "cpu"
    devices: int | None = None
    """The number of devices to simulate; null: as many as the mesh needs. Only for `cpu`."""
    topology: str | None = None
    """Absent hardware to compile for without running, such as `v5e:16x16`. It sets the platform."""
    slices: Annotated[int, "slices"] = 1
    """The number of such TPU topologies, linked by the data-centre network."""
    processes: Annotated[int, "processes"] = 1
    """The number of JAX processes on this machine that share the devices. Only for `cpu`."""
    cluster: Annotated[bool, "boolean"] = False
    """Use the processes that a cluster manager started, each with this command; their number is the cluster's."""


@dataclass
class MemoryConfig:
    """The memory of one device."""

    bytes: Rate = None
    bandwidth: Rate = None
    """Bytes a second."""


@dataclass
class ChipConfig:
    """A chip that is several devices."""

    devices: Things = None
    bandwidth: Rate = None
    """Bytes a second between them, one way."""


@dataclass
class TorusConfig:
    """Chips in a torus of so many dimensions, each linked to its neighbours."""

    dimensions: Things = None
    bandwidth: Rate = None
    """Bytes a second of one link, one way."""
    latency: Latency = None
    """Seconds a hop."""
    ring: Things = None
    """A dimension whose size is a multiple of this number closes to a ring."""
    cubes: Annotated[bool | None, "boolean"] = None
    """Whether no dimension closes unless all are multiples of `ring`."""
    chip: ChipConfig | None = field(default_factory=ChipConfig)


@dataclass
class SwitchConfig:
    """Nodes of several devices, all linked to each other."""

    devices: Things = None
    bandwidth: Rate = None
    """Bytes a second of one device, one way."""
    sharp: Rate = None
    """The bus bandwidth of an all-reduce that the switches sum (NVLink SHARP), bytes a second; null: they do not."""
    latency: Latency = None


@dataclass
class NetworkConfig:
    """The network that links nodes or slices."""

    bandwidth: Rate = None
    """Bytes a second of one device, one way."""
    latency: Latency = None


@dataclass
class HardwareConfig:
    """Hardware for which the time of a run is estimated."""

    name: str | None = None
    flops: Annotated[dict[str, Any] | None, "rates"] = field(default_factory=dict[str, Any])
    """Operations a second in matrix products, by dtype: `{bfloat16: 1.97e+14, float32/highest: 3.28e+13}`."""
    memory: MemoryConfig | None = field(default_factory=MemoryConfig)
    torus: TorusConfig | None = field(default_factory=TorusConfig)
    switch: SwitchConfig | None = field(default_factory=SwitchConfig)
    network: NetworkConfig | None = field(default_factory=NetworkConfig)
    slices: Annotated[int, "tori"] = 1
    shape: Annotated[list[Any] | None, "chips"] = None
    """The number of chips along each dimension of a torus; null: from the topology, else from the axes of the mesh."""


@dataclass
class ArrayConfig:
    """One input array, or what one line sets for several; `ARRAY` has the values of keys that no line sets."""

    shape: Annotated[list[Any], "shape"] = MISSING
    dtype: Annotated[str, "dtype"] = field(default=MISSING, metadata={"unsaid": "float32"})
    init: Annotated[Any, "init"] = field(default=MISSING, metadata={"unsaid": "normal()"})
    spec: Layout = field(default=MISSING, metadata={"unsaid": []})
    tree: str | None = None
    """Instead of a shape: a call that creates a pytree of arrays, `llama.init(key(0), B)`."""
    specs: str | None = None
    """A call that returns the PartitionSpecs of the tree's leaves: `llama.specs()`."""


ARRAY: Mapping[str, Any] = {key.name: key.metadata.get("unsaid") for key in dataclasses.fields(ArrayConfig)}
"""The values of an array's keys that no line sets; its shape must be set."""


@dataclass
class GradConfig:
    """The gradients that are computed in addition to the outputs."""

    of: str | None = None
    """The scalar output that is differentiated."""
    wrt: Annotated[Any, "names"] = field(default_factory=list[Any])
    """The arrays with respect to which it is differentiated: a list, or one name."""


@dataclass
class CommunicationConfig:
    """Expectations of collectives before compilation: lowered or planned."""

    collectives: Annotated[Any, "counts"] = None
    no_collectives: Annotated[Any, "promise"] = None
    max_bytes_per_device: Annotated[Any, "most"] = None


@dataclass
class ExpectConfig:
    """Expectations beyond agreement with the oracles. All but `values` may differ by program."""

    values: Annotated[dict[str, Any] | None, "values"] = field(default_factory=dict[str, Any])
    collectives: Annotated[Any, "counts"] = None
    """The number of collectives of each kind, `{all-reduce: 1}`; there must be none of other kinds."""
    no_collectives: Annotated[Any, "promise"] = None
    max_bytes_per_device: Annotated[Any, "most"] = None
    """The most bytes that each device may send for collectives, on a ring, over all their executions."""
    max_memory_bytes: Annotated[Any, "most"] = None
    """The most bytes of memory that each device may need."""
    state_layout: Annotated[Any, "state-layout"] = None
    """`kept`: what a step returns of its operands' next values, as its parameters, lies as the operands lie."""
    accuracy: Annotated[Any, "accuracy"] = None
    """The largest error of an element that each output may have, in units of the measured rounding."""
    overlapped: Annotated[Any, "some-lines"] = None
    """The lines whose collectives must overlap with computation."""
    not_overlapped: Annotated[Any, "some-lines"] = None
    layouts: Annotated[Any, "layouts"] = None
    """The expected PartitionSpecs of intermediate values of `graph`."""
    lowered: CommunicationConfig | None = field(default_factory=CommunicationConfig)
    """The same for the collectives that a per-device program contains as lowered, before compilation."""
    planned: CommunicationConfig | None = field(default_factory=CommunicationConfig)
    """The same for the collectives that Shardy plans and those that the program contains."""
    sections: Annotated[dict[str, Any] | None, "shares"] = field(default_factory=dict[str, Any])
    """For each output that `per_device` only approximates, the error allowed, relative to its root mean square."""
    weak: Annotated[Any, "weak"] = None
    """The outputs whose `value` check may be too blunt to notice a mistake of 10 %."""
    invalid: Annotated[Any, "message"] = None
    """A part of the message with which the experiment must be rejected."""
    wrong: Annotated[Any, "wrong"] = None
    """The outputs that JAX is known to compute wrongly, with its versions: `{auto: [C], explicit: {C: "<0.12"}}`."""


@dataclass
class PlanConfig:
    """How to plan the specs, or the shape of the mesh, that are `auto`."""

    least: Annotated[Any, "least"] = None
    """What to minimise: `bytes` that a device sends, `time` on the hardware, `memory`; null: time with hardware.

    Several, `[bytes, memory]`, give a front; the first counts most.
    """
    memory: Annotated[Any, "amount"] = None
    """The memory that arrays and outputs may take on a device, and that it may need as compiled: bytes, or `90 GiB`."""
    candidates: Annotated[int, "number-of-plans"] = 3
    """How many plans to compile, the best predicted first; 0: none."""
    seconds: Annotated[float, "seconds-of-a-plan"] = 30.0
    """The time limit in seconds, tables of costs included; the best plan so far is then taken, with a bound."""
    verify: Annotated[Any, "verify-of-a-plan"] = "auto"
    """Whether candidates are run, and their values checked; `auto`: if that takes no longer than five seconds each."""
    competitors: Annotated[list[Any] | None, "files"] = None
    """Files of hand-written layouts to compile beside the plans: `[megatron.yaml]`."""


@dataclass
class DeriveConfig:
    """How `derived` chooses among the ways to run an operation on several devices."""

    cost: Annotated[str, "cost-of-derived"] = "bytes"
    """What is to be small: the `bytes` that a device sends, or the estimated `time` on the hardware."""
    hardware: Annotated[Any, "hardware-by-name"] = None
    """The hardware of that time, a file of the config group `hardware`: `v5p`; null: that of the experiment."""


@dataclass
class TestConfig:
    """How `pytest` runs the experiment."""

    targets: Annotated[list[Any], "targets"] = field(default_factory=lambda: ["cpu"])
    """The targets to test: options of the config group `target`."""


@dataclass
class SweepConfig:
    """The limits of a sweep."""

    most: int = 10_000
    """The most points that a sweep may have; one with more is rejected before any is composed."""


@dataclass
class ExperimentConfig:
    """One experiment."""

    name: str = MISSING
    summary: str = ""
    source: str = ""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    hardware: HardwareConfig | None = field(default_factory=HardwareConfig)
    """The hardware for which the time of a run is estimated; by default that of the target's topology."""
    rules: Annotated[Any, "rules"] = None
    """The mesh axes of logical names, which specs may use: `[[embed, x], [mlp, y]]`, or a file of MaxText's."""
    dims: Annotated[dict[str, Any] | None, "sizes"] = field(default_factory=dict[str, Any])
    verify_dims: Annotated[dict[str, Any] | None, "sizes"] = field(default_factory=dict[str, Any])
    """The sizes at which simulated CPU devices verify what is compiled for an absent topology."""
    require: Annotated[list[Any] | None, "texts"] = None
    """Conditions on the dims: `[M >= S, M % S == 0]`."""
    arrays: dict[str, ArrayConfig] | None = field(default_factory=dict[str, ArrayConfig])
    imports: Annotated[dict[str, Any] | None, "imports"] = field(default_factory=dict[str, Any])
    """Modules and functions of your own, which lines call: `{llama: my_models/llama.py, loss: my_models.mlp:loss}`."""
    references: Annotated[dict[str, Any] | None, "imports"] = field(default_factory=dict[str, Any])
    """References for functions whose operations cannot be read: `{flash_attention: my_refs.py:attention}`."""
    specs: Annotated[dict[str, Any] | None, "specs-of-leaves"] = field(default_factory=dict[str, Any])
    """The PartitionSpecs of the leaves of trees, by patterns of their paths: `{"params/**/{q,k}": [embed, x]}`."""
    functions: Annotated[dict[str, Any] | None, "functions"] = field(default_factory=dict[str, Any])
    """Functions that lines call: `rmsnorm(x, g): x * g`."""
    both: Annotated[dict[str, Any] | None, "shared-section"] = field(default_factory=dict[str, Any])
    """Lines with which both graph and per_device begin; where they differ, `{graph: …, per_device: …}`."""
    graph: Annotated[dict[str, Any] | None, "section"] = field(default_factory=dict[str, Any])
    per_device: Annotated[dict[str, Any] | None, "section"] = field(default_factory=dict[str, Any])
    constraints: Annotated[dict[str, Any] | None, "specs"] = field(default_factory=dict[str, Any])
    outputs: Annotated[dict[str, Any] | None, "specs"] = field(default_factory=dict[str, Any])
    grad: GradConfig | None = field(default_factory=GradConfig)
    expect: ExpectConfig | None = field(default_factory=ExpectConfig)
    remat: Annotated[Any, "remat"] = None
    """What each `checkpoint: auto`, and a function's `policy=runner.AUTO`, saves: the values of these names,
    `everything`, or `auto`: the planner chooses.
    """
    plan: PlanConfig | None = field(default_factory=PlanConfig)
    derive: DeriveConfig | None = field(default_factory=DeriveConfig)
    test: TestConfig | None = field(default_factory=TestConfig)
    program: Annotated[Any, "programs"] = "all"
    """`all`, one program, or a list of them."""
    seed: Annotated[int, "seed"] = 0
    precision: Annotated[str, "precision"] = "highest"
    verify: Annotated[str, "verify"] = "auto"
    """What decides whether a value is right: the measured rounding and, where that leaves doubt (`auto`), always
    (`twin`) or never (`rounding`), the same program in float64.
    """
    diagnose: Annotated[float, "search"] = 30.0
    """How long edits are tried to find what is wrong with a program, in seconds of 20,000 equations each; 0: none is.
    """
    manual: Annotated[list[Any] | None, "one-or-more"] = None
    """The mesh axes over which `per_device` is manual; the others are left to the compiler; null: all are manual."""
    check_vma: Flag = True
    trace: Flag = False
    """Whether to show and record every value of `per_device`, or without one of the derived lines, on every device."""
    profile: Flag = False
    """Whether to profile each program, and report the time of each line and collective from the trace."""
    report: Flag = False
    """Whether to write the page `report.html` of the run; a sweep has one of its own too."""
    explain: Explanation = False
    """Whether the terminal shows each collective with its reason in brief, or `full`; the record always has it."""
    show: Annotated[Any, "names"] = "auto"
    """What to draw and print on the terminal: `auto`, `all`, `none`, or names of arrays and outputs."""
    timeout: Annotated[float, "seconds"] = 600.0
    """Seconds after which a program that hangs is ended."""
    sort: str | None = None
    """The column by which the table of a sweep is sorted: a measure, or a swept key."""
    best: Annotated[int | None, "at-least-1"] = None
    """How many rows of a sweep's table to show."""
    where: str | None = None
    """The condition on the rows that a sweep's table shows: `bytes_sent < 1e6`."""
    objective: str | None = None
    """The number that a point of a sweep returns to Hydra's sweeper: `bytes_sent`, `auto.run_s`."""
    workers: Annotated[int, "at-least-1"] = 1
    """How many points of a sweep run at once, each in its own process."""
    sweep: SweepConfig = field(default_factory=SweepConfig)


def completed(config: Mapping[str, Any], kind: type[Any] = ExperimentConfig) -> dict[str, Any]:
    """Return the configuration with the default of every absent key, such as one that the command line deleted."""
    whole = dict(config)
    for key in dataclasses.fields(kind):
        default = key.default if key.default_factory is dataclasses.MISSING else key.default_factory()
        if dataclasses.is_dataclass(default):
            whole[key.name] = completed(whole.get(key.name) or {}, type(default))
        else:
            whole.setdefault(key.name, None if default == MISSING else default)
    return whole


def whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's configuration with every key; absent and null ones have their default."""
    return completed({key: value for key, value in config.items() if value is not None})


def given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of a mapping whose value is neither null nor missing."""
    return {key: value for key, value in config.items() if value is not None and value != MISSING}
