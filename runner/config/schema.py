"""The keys of an experiment and their types, as Hydra's structured configs.

They reject an unknown key and a value of the wrong type; null switches off what is optional. What a type cannot say (a
PartitionSpec is a list of null, a string or a list of strings) `runner/experiment/reader.py` checks. The defaults stand
here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

MISSING: Any = "???"
"""What a user has to give, as OmegaConf marks it; who only reads the defaults need not wait for its import."""

Flag: TypeAlias = Annotated[Any, "flag"]
"""True or false. OmegaConf would make true of any number that is not 0; `shape.py` knows better."""


@dataclass
class MeshConfig:
    """Axis names and sizes, in the order of `jax.make_mesh`."""

    axes: list[Any] = MISSING
    shape: list[Any] = MISSING
    devices: list[Any] | None = None
    """The numbers of the devices in the mesh, row-major or nested like it; null: in the order of `jax.make_mesh`."""
    types: list[Any] | None = None
    """Of each axis whether it is `explicit` or `auto` in the program `explicit`; null: all are explicit."""


@dataclass
class TargetConfig:
    """What the programs are compiled for: `cpu` (simulated devices), `gpu` or `tpu` (the devices here), a topology."""

    platform: str = "cpu"
    devices: int | None = None
    """The number of devices to simulate; null: as many as the mesh needs. Only for `cpu`."""
    topology: str | None = None
    """Hardware that is not here, to compile for and not to run on: `v5e:16x16`. It decides the platform."""
    slices: int = 1
    """Of how many such topologies of TPUs, which the data-centre network links."""
    processes: int = 1
    """Over how many processes of JAX the devices are divided, all on this machine. Only for `cpu`."""
    cluster: bool = False
    """The processes are those that a cluster started, each with this command; it says how many there are."""


@dataclass
class MemoryConfig:
    """The memory of one device."""

    bytes: float | None = None
    bandwidth: float | None = None
    """Bytes a second."""


@dataclass
class ChipConfig:
    """A chip that is several devices."""

    devices: int | None = None
    bandwidth: float | None = None
    """Bytes a second between them, one way."""


@dataclass
class TorusConfig:
    """Chips along so many dimensions, each linked to its neighbours."""

    dimensions: int | None = None
    bandwidth: float | None = None
    """Bytes a second of one link, one way."""
    latency: float | None = None
    """Seconds a hop."""
    ring: int | None = None
    """A dimension whose size is a multiple of it closes to a ring."""
    cubes: bool | None = None
    """Whether none closes unless all dimensions are multiples of `ring`."""
    chip: ChipConfig | None = field(default_factory=ChipConfig)


@dataclass
class SwitchConfig:
    """Nodes of so many devices, all linked to each other."""

    devices: int | None = None
    bandwidth: float | None = None
    """Bytes a second of one device, one way."""
    latency: float | None = None


@dataclass
class NetworkConfig:
    """What links nodes, or slices."""

    bandwidth: float | None = None
    """Bytes a second of one device, one way."""
    latency: float | None = None


@dataclass
class HardwareConfig:
    """Hardware for which the time of a run is estimated."""

    name: str | None = None
    flops: dict[str, Any] | None = field(default_factory=dict[str, Any])
    """Operations a second of products, by dtype: `{bfloat16: 1.97e+14, float32/highest: 3.28e+13}`."""
    memory: MemoryConfig | None = field(default_factory=MemoryConfig)
    torus: TorusConfig | None = field(default_factory=TorusConfig)
    switch: SwitchConfig | None = field(default_factory=SwitchConfig)
    network: NetworkConfig | None = field(default_factory=NetworkConfig)
    slices: int = 1
    shape: list[Any] | None = None
    """The chips along each dimension of a torus; null: those of the topology, else the axes of the mesh."""


@dataclass
class ArrayConfig:
    """One operand, or what a line says of several; what no line says of one is as in `ARRAY`."""

    shape: list[Any] = MISSING
    dtype: str = MISSING
    init: Any = MISSING
    spec: list[Any] = MISSING


ARRAY: Mapping[str, Any] = {"shape": None, "dtype": "float32", "init": "normal()", "spec": []}
"""What an array is unless a line says otherwise; its shape has to be said."""


@dataclass
class GradConfig:
    """The gradients that join the outputs."""

    of: str | None = None
    """The scalar output that is differentiated."""
    wrt: Any = field(default_factory=list[Any])
    """The arrays with respect to which: a list, or one name."""


@dataclass
class CommunicationConfig:
    """What is expected of collectives that are not the compiled module's."""

    collectives: Any = None
    no_collectives: Any = None
    max_bytes_per_device: Any = None


@dataclass
class ExpectConfig:
    """What the experiment promises beyond agreement with the oracles. All but `values` may differ by program."""

    values: dict[str, Any] | None = field(default_factory=dict[str, Any])
    collectives: Any = None
    """How many there are of each kind: `{all-reduce: 1}`; kinds that are not named are not there."""
    no_collectives: Any = None
    max_bytes_per_device: Any = None
    """At most this many bytes that each device sends for collectives, on a ring, over all their executions."""
    max_memory_bytes: Any = None
    """At most this much memory on each device."""
    overlapped: Any = None
    """The lines whose collectives run while something is computed."""
    not_overlapped: Any = None
    layouts: Any = None
    """The PartitionSpecs that values in the middle of `graph` have."""
    lowered: CommunicationConfig | None = field(default_factory=CommunicationConfig)
    """The same of the collectives that a per-device program asks for, before any compiler."""
    planned: CommunicationConfig | None = field(default_factory=CommunicationConfig)
    """The same of the collectives that Shardy plans, and those that the program asks for."""
    sections: dict[str, Any] | None = field(default_factory=dict[str, Any])
    """How far `per_device` may be from `graph` on purpose, for each output as a share of its root mean square."""
    weak: Any = None
    """The outputs whose `value` check may be too blunt to notice a mistake of 10 %."""
    invalid: Any = None
    """A part of the message with which the experiment has to be refused."""
    wrong: Any = None
    """The outputs that JAX is known to give wrong, and with which versions: `{auto: [C], explicit: {C: "<0.12"}}`."""


@dataclass
class TestConfig:
    """How `pytest` runs the experiment."""

    targets: list[Any] = field(default_factory=lambda: ["cpu"])
    """For which targets: options of the config group `target`."""


@dataclass
class SweepConfig:
    """What keeps a sweep within bounds."""

    most: int = 10_000
    """How many points it may have: more are refused before any is made."""


@dataclass
class ExperimentConfig:
    """One experiment."""

    name: str = MISSING
    summary: str = ""
    source: str = ""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    hardware: HardwareConfig | None = field(default_factory=HardwareConfig)
    """For which the time of a run is estimated; that of the topology, where the target has one."""
    rules: Any = None
    """The mesh axes of logical names, which specs may use: `[[embed, x], [mlp, y]]`, or a file of MaxText's."""
    dims: dict[str, Any] | None = field(default_factory=dict[str, Any])
    verify_dims: dict[str, Any] | None = field(default_factory=dict[str, Any])
    """The sizes at which simulated CPU devices verify what is compiled for a topology that is not here."""
    require: list[Any] | None = None
    """What has to hold of the dims: `[M >= S, M % S == 0]`."""
    arrays: dict[str, ArrayConfig] | None = field(default_factory=dict[str, ArrayConfig])
    functions: dict[str, Any] | None = field(default_factory=dict[str, Any])
    """Lines by a name, which other lines call: `rmsnorm(x, g): x * g`."""
    both: dict[str, Any] | None = field(default_factory=dict[str, Any])
    """Lines that graph and per_device share and begin with; where they differ, `{graph: …, per_device: …}`."""
    graph: dict[str, Any] | None = field(default_factory=dict[str, Any])
    per_device: dict[str, Any] | None = field(default_factory=dict[str, Any])
    constraints: dict[str, Any] | None = field(default_factory=dict[str, Any])
    outputs: dict[str, Any] | None = field(default_factory=dict[str, Any])
    grad: GradConfig | None = field(default_factory=GradConfig)
    expect: ExpectConfig | None = field(default_factory=ExpectConfig)
    test: TestConfig | None = field(default_factory=TestConfig)
    program: Any = "all"
    """`all`, one program, or a list of them."""
    seed: int = 0
    precision: str = "highest"
    manual: list[Any] | None = None
    """The mesh axes over which `per_device` is manual, the others being left to the compiler; null: all of them."""
    check_vma: Flag = True
    trace: Flag = False
    """Whether every value of `per_device` on every device is shown and recorded."""
    profile: Flag = False
    """Whether a profiler trace of each program is taken, and the time of each line and collective read off it."""
    report: Flag = False
    """Whether the run leaves its page, `report.html`; a sweep leaves its own too."""
    explain: bool = False
    """Whether the terminal says of each collective why it is there; the record always does."""
    show: Any = "auto"
    """What is drawn and printed on the terminal: `auto`, `all`, `none`, or names of arrays and outputs."""
    timeout: float = 600.0
    """Seconds after which a program that hangs is ended."""
    sort: str | None = None
    """Of a sweep the column by which its table is sorted: a measure, or a swept key."""
    best: int | None = None
    """Of a sweep how many rows of its table are shown."""
    where: str | None = None
    """Of a sweep the condition on the rows that its table shows: `bytes_sent < 1e6`."""
    objective: str | None = None
    """The number that a point of a sweep returns to Hydra's sweeper: `bytes_sent`, `auto.run_s`."""
    workers: int = 1
    """Of a sweep how many of its points are run at once, in a process each."""
    sweep: SweepConfig = field(default_factory=SweepConfig)


def completed(config: Mapping[str, Any], kind: type[Any] = ExperimentConfig) -> dict[str, Any]:
    """The configuration with the default of every key that is not there, as one that the command line deletes."""
    whole = dict(config)
    for key in dataclasses.fields(kind):
        default = key.default if key.default_factory is dataclasses.MISSING else key.default_factory()
        if dataclasses.is_dataclass(default):
            whole[key.name] = completed(whole.get(key.name) or {}, type(default))
        else:
            whole.setdefault(key.name, None if default == MISSING else default)
    return whole


def said(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a mapping says: neither null nor what nobody gave."""
    return {key: value for key, value in config.items() if value is not None and value != MISSING}
