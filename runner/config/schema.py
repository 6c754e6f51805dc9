"""The keys of an experiment and their types, as Hydra's structured configs.

They reject an unknown key and a value of the wrong type; null switches off what is optional. Where a type does not say
enough (a PartitionSpec is a list of null, a string or a list of strings) the key names its form, which
`runner/experiment/forms.py` declares. The defaults stand here and nowhere else.
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

Layout: TypeAlias = Annotated[Any, "spec"]
"""A list, or a word that stands for one; to OmegaConf nothing is both."""

Rate: TypeAlias = Annotated[float | None, "rate"]
Latency: TypeAlias = Annotated[float | None, "latency"]
Things: TypeAlias = Annotated[int | None, "things"]


@dataclass
class MeshConfig:
    """Axis names and sizes, in the order of `jax.make_mesh`."""

    axes: Annotated[list[Any], "axes"] = MISSING
    shape: Annotated[Any, "sizes-of-axes"] = MISSING
    """The size of each axis; `auto`: all shapes of the target's devices are planned, and the best is taken."""
    devices: Annotated[list[Any] | None, "devices"] = None
    """The numbers of the devices in the mesh, row-major or nested like it; null: in the order of `jax.make_mesh`."""
    types: Annotated[list[Any] | None, "types-of-axes"] = None
    """Of each axis whether it is `explicit` or `auto` in the program `explicit`; null: all are explicit."""


@dataclass
class TargetConfig:
    """What the programs are compiled for: `cpu` (simulated devices), `gpu` or `tpu` (the devices here), a topology."""

    platform: Annotated[str, "platform"] = "cpu"
    devices: int | None = None
    """The number of devices to simulate; null: as many as the mesh needs. Only for `cpu`."""
    topology: str | None = None
    """Hardware that is not here, to compile for and not to run on: `v5e:16x16`. It decides the platform."""
    slices: Annotated[int, "slices"] = 1
    """Of how many such topologies of TPUs, which the data-centre network links."""
    processes: Annotated[int, "processes"] = 1
    """Over how many processes of JAX the devices are divided, all on this machine. Only for `cpu`."""
    cluster: Annotated[bool, "boolean"] = False
    """The processes are those that a cluster started, each with this command; it says how many there are."""


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
    """Chips along so many dimensions, each linked to its neighbours."""

    dimensions: Things = None
    bandwidth: Rate = None
    """Bytes a second of one link, one way."""
    latency: Latency = None
    """Seconds a hop."""
    ring: Things = None
    """A dimension whose size is a multiple of it closes to a ring."""
    cubes: Annotated[bool | None, "boolean"] = None
    """Whether none closes unless all dimensions are multiples of `ring`."""
    chip: ChipConfig | None = field(default_factory=ChipConfig)


@dataclass
class SwitchConfig:
    """Nodes of so many devices, all linked to each other."""

    devices: Things = None
    bandwidth: Rate = None
    """Bytes a second of one device, one way."""
    latency: Latency = None


@dataclass
class NetworkConfig:
    """What links nodes, or slices."""

    bandwidth: Rate = None
    """Bytes a second of one device, one way."""
    latency: Latency = None


@dataclass
class HardwareConfig:
    """Hardware for which the time of a run is estimated."""

    name: str | None = None
    flops: Annotated[dict[str, Any] | None, "rates"] = field(default_factory=dict[str, Any])
    """Operations a second of products, by dtype: `{bfloat16: 1.97e+14, float32/highest: 3.28e+13}`."""
    memory: MemoryConfig | None = field(default_factory=MemoryConfig)
    torus: TorusConfig | None = field(default_factory=TorusConfig)
    switch: SwitchConfig | None = field(default_factory=SwitchConfig)
    network: NetworkConfig | None = field(default_factory=NetworkConfig)
    slices: Annotated[int, "tori"] = 1
    shape: Annotated[list[Any] | None, "chips"] = None
    """The chips along each dimension of a torus; null: those of the topology, else the axes of the mesh."""


@dataclass
class ArrayConfig:
    """One operand, or what a line says of several; what no line says of one is as in `ARRAY`."""

    shape: Annotated[list[Any], "shape"] = MISSING
    dtype: Annotated[str, "dtype"] = field(default=MISSING, metadata={"unsaid": "float32"})
    init: Annotated[Any, "init"] = field(default=MISSING, metadata={"unsaid": "normal()"})
    spec: Layout = field(default=MISSING, metadata={"unsaid": []})
    tree: str | None = None
    """A pytree of arrays, by the call that makes it, in the place of a shape: `llama.init(key(0), B)`."""
    specs: str | None = None
    """The PartitionSpecs of its leaves, where Python says them: `llama.specs()`."""


ARRAY: Mapping[str, Any] = {key.name: key.metadata.get("unsaid") for key in dataclasses.fields(ArrayConfig)}
"""What an array is unless a line says otherwise; its shape has to be said."""


@dataclass
class GradConfig:
    """The gradients that join the outputs."""

    of: str | None = None
    """The scalar output that is differentiated."""
    wrt: Annotated[Any, "names"] = field(default_factory=list[Any])
    """The arrays with respect to which: a list, or one name."""


@dataclass
class CommunicationConfig:
    """What is expected of collectives that are not the compiled module's."""

    collectives: Annotated[Any, "counts"] = None
    no_collectives: Annotated[Any, "promise"] = None
    max_bytes_per_device: Annotated[Any, "most"] = None


@dataclass
class ExpectConfig:
    """What the experiment promises beyond agreement with the oracles. All but `values` may differ by program."""

    values: Annotated[dict[str, Any] | None, "values"] = field(default_factory=dict[str, Any])
    collectives: Annotated[Any, "counts"] = None
    """How many there are of each kind: `{all-reduce: 1}`; kinds that are not named are not there."""
    no_collectives: Annotated[Any, "promise"] = None
    max_bytes_per_device: Annotated[Any, "most"] = None
    """At most this many bytes that each device sends for collectives, on a ring, over all their executions."""
    max_memory_bytes: Annotated[Any, "most"] = None
    """At most this much memory on each device."""
    overlapped: Annotated[Any, "some-lines"] = None
    """The lines whose collectives run while something is computed."""
    not_overlapped: Annotated[Any, "some-lines"] = None
    layouts: Annotated[Any, "layouts"] = None
    """The PartitionSpecs that values in the middle of `graph` have."""
    lowered: CommunicationConfig | None = field(default_factory=CommunicationConfig)
    """The same of the collectives that a per-device program asks for, before any compiler."""
    planned: CommunicationConfig | None = field(default_factory=CommunicationConfig)
    """The same of the collectives that Shardy plans, and those that the program asks for."""
    sections: Annotated[dict[str, Any] | None, "shares"] = field(default_factory=dict[str, Any])
    """How far `per_device` may be from `graph` on purpose, for each output as a share of its root mean square."""
    weak: Annotated[Any, "weak"] = None
    """The outputs whose `value` check may be too blunt to notice a mistake of 10 %."""
    invalid: Annotated[Any, "message"] = None
    """A part of the message with which the experiment has to be refused."""
    wrong: Annotated[Any, "wrong"] = None
    """The outputs that JAX is known to give wrong, and with which versions: `{auto: [C], explicit: {C: "<0.12"}}`."""


@dataclass
class PlanConfig:
    """What is found where a spec, or the shape of the mesh, is `auto`."""

    least: Annotated[Any, "least"] = None
    """What is to be least: `bytes` that a device sends, `time` on the hardware, `memory`; null: time with hardware.

    Of several the first one counts most, and a front is found: `[bytes, memory]`.
    """
    memory: Annotated[Any, "amount"] = None
    """How much a device may hold of arrays and outputs, and need as compiled: bytes, or `90 GiB`."""
    candidates: Annotated[int, "number-of-plans"] = 3
    """How many plans are compiled, the best by prediction first; 0: none is."""
    seconds: Annotated[float, "seconds-of-a-plan"] = 30.0
    """How long a plan is looked for: when they are over, the best so far is taken, with a bound."""
    competitors: Annotated[list[Any] | None, "texts"] = None
    """Files of layouts by hand that are compiled beside the plans: `[megatron.yaml]`."""


@dataclass
class TestConfig:
    """How `pytest` runs the experiment."""

    targets: Annotated[list[Any], "targets"] = field(default_factory=lambda: ["cpu"])
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
    rules: Annotated[Any, "rules"] = None
    """The mesh axes of logical names, which specs may use: `[[embed, x], [mlp, y]]`, or a file of MaxText's."""
    dims: Annotated[dict[str, Any] | None, "sizes"] = field(default_factory=dict[str, Any])
    verify_dims: Annotated[dict[str, Any] | None, "sizes"] = field(default_factory=dict[str, Any])
    """The sizes at which simulated CPU devices verify what is compiled for a topology that is not here."""
    require: Annotated[list[Any] | None, "texts"] = None
    """What has to hold of the dims: `[M >= S, M % S == 0]`."""
    arrays: dict[str, ArrayConfig] | None = field(default_factory=dict[str, ArrayConfig])
    imports: Annotated[dict[str, Any] | None, "imports"] = field(default_factory=dict[str, Any])
    """Modules and functions of your own, which lines call: `{llama: my_models/llama.py, loss: my_models.mlp:loss}`."""
    references: Annotated[dict[str, Any] | None, "imports"] = field(default_factory=dict[str, Any])
    """What computes the same as a function whose inside nobody can read: `{flash_attention: my_refs.py:attention}`."""
    specs: Annotated[dict[str, Any] | None, "specs-of-leaves"] = field(default_factory=dict[str, Any])
    """The PartitionSpecs of the leaves of trees, by patterns of their paths: `{"params/**/{q,k}": [embed, x]}`."""
    functions: Annotated[dict[str, Any] | None, "functions"] = field(default_factory=dict[str, Any])
    """Lines by a name, which other lines call: `rmsnorm(x, g): x * g`."""
    both: Annotated[dict[str, Any] | None, "shared-section"] = field(default_factory=dict[str, Any])
    """Lines that graph and per_device share and begin with; where they differ, `{graph: …, per_device: …}`."""
    graph: Annotated[dict[str, Any] | None, "section"] = field(default_factory=dict[str, Any])
    per_device: Annotated[dict[str, Any] | None, "section"] = field(default_factory=dict[str, Any])
    constraints: Annotated[dict[str, Any] | None, "specs"] = field(default_factory=dict[str, Any])
    outputs: Annotated[dict[str, Any] | None, "specs"] = field(default_factory=dict[str, Any])
    grad: GradConfig | None = field(default_factory=GradConfig)
    expect: ExpectConfig | None = field(default_factory=ExpectConfig)
    plan: PlanConfig | None = field(default_factory=PlanConfig)
    test: TestConfig | None = field(default_factory=TestConfig)
    program: Annotated[Any, "programs"] = "all"
    """`all`, one program, or a list of them."""
    seed: Annotated[int, "seed"] = 0
    precision: Annotated[str, "precision"] = "highest"
    manual: Annotated[list[Any] | None, "one-or-more"] = None
    """The mesh axes over which `per_device` is manual, the others being left to the compiler; null: all of them."""
    check_vma: Flag = True
    trace: Flag = False
    """Whether every value of `per_device`, or of the derived lines where there is none, is shown and recorded."""
    profile: Flag = False
    """Whether a profiler trace of each program is taken, and the time of each line and collective read off it."""
    report: Flag = False
    """Whether the run leaves its page, `report.html`; a sweep leaves its own too."""
    explain: Annotated[bool, "boolean"] = False
    """Whether the terminal says of each collective why it is there; the record always does."""
    show: Annotated[Any, "names"] = "auto"
    """What is drawn and printed on the terminal: `auto`, `all`, `none`, or names of arrays and outputs."""
    timeout: Annotated[float, "seconds"] = 600.0
    """Seconds after which a program that hangs is ended."""
    sort: str | None = None
    """Of a sweep the column by which its table is sorted: a measure, or a swept key."""
    best: Annotated[int | None, "at-least-1"] = None
    """Of a sweep how many rows of its table are shown."""
    where: str | None = None
    """Of a sweep the condition on the rows that its table shows: `bytes_sent < 1e6`."""
    objective: str | None = None
    """The number that a point of a sweep returns to Hydra's sweeper: `bytes_sent`, `auto.run_s`."""
    workers: Annotated[int, "at-least-1"] = 1
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


def whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's configuration with every key; one that is null has its default."""
    return completed({key: value for key, value in config.items() if value is not None})


def said(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a mapping says: neither null nor what nobody gave."""
    return {key: value for key, value in config.items() if value is not None and value != MISSING}
