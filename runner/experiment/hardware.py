"""Reads `hardware:` into the speed, memory and links of its devices.

Units: bytes, seconds, floating-point operations. Bandwidths of links are one way. `conf/hardware/` names the source of
each number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from runner.base import dtypes
from runner.base.faults import Key, invalid, nearest
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.experiment import enumeration
from runner.experiment.forms import check

KEY: Key = ("hardware",)
PRECISIONS = ("high", "highest")
"""The precisions that may follow the slash in `flops: {float32/highest: …}`."""

_FAMILIES = ("float8",)
"""Names that stand for all dtypes beginning with them."""


@dataclass(frozen=True)
class Torus:
    """Chips along `dimensions`, each linked to its neighbours.

    - `bandwidth`: of one link, one way; `latency`: of one hop.
    - `ring`: a dimension whose size is a multiple of it wraps around; None: none does.
    - `cubes`: dimensions wrap around only if all are multiples of `ring`, since the switches that close them connect
      whole cubes.
    - `per_chip`: the devices on a chip, which share its links; `chip_bandwidth`: between them, one way.
    """

    dimensions: int
    bandwidth: float
    latency: float
    ring: int | None
    per_chip: int = 1
    chip_bandwidth: float = math.inf
    cubes: bool = False

    def rings(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Which dimensions of a torus of that shape wrap around."""
        if self.ring is None:
            return (False,) * len(shape)
        whole = [size > 2 and size % self.ring == 0 for size in shape]
        if self.cubes and not (all(whole) and len(shape) == self.dimensions):
            return (False,) * len(shape)
        return tuple(whole)


@dataclass(frozen=True)
class Switch:
    """Nodes of devices that are all linked to each other.

    - `bandwidth`: of one device, one way; `latency`: of a step.
    - `sharp`: the bus bandwidth of an all-reduce, where the switches sum (NVLink SHARP); None: they do not.
    """

    devices: int
    bandwidth: float
    latency: float
    sharp: float | None = None


@dataclass(frozen=True)
class NodeLinks:
    """The links between nodes or slices; `bandwidth`: of a device, one way, all sending; `latency`: of a step."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Hardware:
    """A device and its links.

    - `flops`: multiplications and additions per second, by dtype (`bfloat16`, `float32/highest`).
    - `memory_bytes`, `memory_bandwidth`: its capacity, and the bytes per second that it reads and writes.
    - `slices`: the number of tori; `shape`: the chips along each dimension of one.
    """

    name: str
    flops: Mapping[str, float]
    memory_bytes: float | None
    memory_bandwidth: float | None
    links: Torus | Switch | None
    network: NodeLinks | None
    slices: int = 1
    shape: tuple[int, ...] = ()

    @property
    def platform(self) -> str:
        """The platform whose compiler it has: chips that form a torus are TPUs."""
        return "tpu" if isinstance(self.links, Torus) else "gpu"

    def peak(self, dtype: str, precision: str) -> float | None:
        """Operations per second of products of that dtype; None if unknown."""
        family = next((name for name in _FAMILIES if dtype.startswith(name)), dtype)
        named = [f"{dtype}/{precision}", dtype, f"{family}/{precision}", family]
        return next((self.flops[name] for name in named if name in self.flops), None)


def read(config: Mapping[str, Any], mesh: Mesh, shape: tuple[int, ...] | None) -> Hardware | None:
    """The hardware of a configuration; None if it names none.

    `shape` are the chips along each dimension of the target's topology, if it has one.

    Raises `InvalidExperiment` for impossible numbers, and if the mesh does not fit onto the hardware.
    """
    if config["name"] is None:
        given = next(_given(config), None)
        if given is not None:
            raise invalid((*KEY, *given), "there is no hardware; name one (hardware=v5e) or give hardware.name")
        return None
    rates: Mapping[str, Any] = config["flops"] or {}
    check(rates, (*KEY, "flops"))
    flops = {name: float(value) for name, value in rates.items()}
    for name in flops:
        _check_dtype(name)
    links = _links(config)
    network = None
    if _is_given(config, "network"):
        network = NodeLinks(_number(config, "network", "bandwidth"), _latency(config, "network"))
    if not (flops or links or network or _is_given(config, "memory")):
        choose = "to choose a file write hardware=v5e, or hardware: v5e in the experiment"
        raise invalid((*KEY, "name"), f"{config['name']} has no numbers; {choose}")
    slices, wanted = config["slices"], config["shape"]
    check(slices, (*KEY, "slices"))
    if slices > 1 and network is None:
        raise invalid((*KEY, "slices"), f"{config['name']} has no network between slices: give hardware.network")
    hardware = Hardware(
        name=config["name"],
        flops=flops,
        memory_bytes=_number(config, "memory", "bytes") if _is_given(config, "memory", "bytes") else None,
        memory_bandwidth=_number(config, "memory", "bandwidth") if _is_given(config, "memory", "bandwidth") else None,
        links=links,
        network=network,
        slices=slices,
    )
    return _placed(hardware, mesh, wanted, shape)


@dataclass(frozen=True)
class Derive:
    """The key `derive`: what `derived` chooses by, the bytes that a device sends or the time on `hardware`."""

    cost: Literal["bytes", "time"] = "bytes"
    hardware: Hardware | None = None


def _links(config: Mapping[str, Any]) -> Torus | Switch | None:
    torus, switch = _is_given(config, "torus"), _is_given(config, "switch")
    if torus and switch:
        raise invalid((*KEY, "switch"), "hardware has a torus or a switch, not both")
    if switch:
        devices = _count(config, "switch", "devices")
        sharp = _number(config, "switch", "sharp") if _is_given(config, "switch", "sharp") else None
        return Switch(devices, _number(config, "switch", "bandwidth"), _latency(config, "switch"), sharp)
    if not torus:
        return None
    chip = _is_given(config, "torus", "chip")
    return Torus(
        dimensions=_count(config, "torus", "dimensions"),
        bandwidth=_number(config, "torus", "bandwidth"),
        latency=_latency(config, "torus"),
        ring=_count(config, "torus", "ring") if _is_given(config, "torus", "ring") else None,
        per_chip=_count(config, "torus", "chip", "devices") if chip else 1,
        chip_bandwidth=_number(config, "torus", "chip", "bandwidth") if chip else math.inf,
        cubes=bool(_at(config, ("torus", "cubes"))),
    )


def _placed(hardware: Hardware, mesh: Mesh, wanted: Iterable[Any] | None, known: tuple[int, ...] | None) -> Hardware:
    """The hardware with the chips along each dimension: from the topology, the configuration, or the mesh's axes."""
    links, slices = hardware.links, hardware.slices
    if mesh.needed > mesh.size and known is None:
        message = f"the estimate for {hardware.name} is of {mesh.size} devices, 0 to {mesh.size - 1}"
        raise invalid(("mesh", "devices"), message)
    if not isinstance(links, Torus):
        if wanted is not None:
            raise invalid((*KEY, "shape"), f"{hardware.name} is not a torus, and has no shape")
        return hardware
    chips = mesh.size // (slices * links.per_chip)
    if chips * slices * links.per_chip != mesh.size:
        slices_text = f" of {slices} slices" if slices > 1 else ""
        raise invalid(
            KEY, f"the mesh {mesh} has {mesh.size} devices, which do not fill chips{slices_text} of {hardware.name}"
        )
    shape = known
    if wanted is not None:
        check(wanted, (*KEY, "shape"))
        shape = tuple(wanted)
        if math.prod(shape) != chips:
            message = f"{' × '.join(map(str, shape))} chips are {math.prod(shape)}; the mesh {mesh} needs {chips}"
            raise invalid((*KEY, "shape"), message)
        if len(shape) > links.dimensions:
            message = f"the chips of {hardware.name} lie in {links.dimensions} dimensions, not {len(shape)}"
            raise invalid((*KEY, "shape"), message)
    if shape is None:
        shape = along(mesh, slices, links)
    return replace(hardware, shape=shape)


def along(mesh: Mesh, slices: int, links: Torus) -> tuple[int, ...]:
    """The chips along each dimension if the mesh's axes are laid out in order.

    A mesh of fewer axes than the torus has dimensions lies in the most even shape in which each axis has dimensions of
    its own, as far as there is one.
    """
    sizes = list(mesh.shape)
    for part, order in ((slices, 1), (links.per_chip, -1)):
        for i in range(len(sizes))[::order]:
            shared = math.gcd(sizes[i], part)
            sizes[i], part = sizes[i] // shared, part // shared
    sizes = [size for size in sizes if size > 1] or [1]
    if len(sizes) < links.dimensions:
        return _compact(sizes, links.dimensions)
    first, rest = sizes[: links.dimensions - 1], sizes[links.dimensions - 1 :]
    return (*first, math.prod(rest)) if rest else tuple(first)


def _compact(sizes: Sequence[int], dimensions: int) -> tuple[int, ...]:
    ends = _products(sizes)

    def shared(shape: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        return len(ends - _products(shape)), max(shape) / min(shape), shape

    shape = min(map(tuple, enumeration.factorisations(math.prod(sizes), dimensions)), key=shared)
    return tuple(size for size in shape if size > 1) or (1,)


def _products(sizes: Sequence[int]) -> set[int]:
    """The products of the first of some sizes, of the first two, and so on."""
    return {math.prod(sizes[: end + 1]) for end in range(len(sizes))}


def _check_dtype(name: str) -> None:
    dtype, _, precision = name.partition("/")
    if precision and precision not in PRECISIONS:
        raise invalid((*KEY, "flops", name), f"no precision '{precision}'; there are {', '.join(PRECISIONS)}")
    if dtype not in (*dtypes.NAMES, *_FAMILIES):
        hint = nearest(dtype, (*dtypes.NAMES, *_FAMILIES))
        raise invalid((*KEY, "flops", name), f"no dtype {dtype!r}{hint or '; for example bfloat16'}")


def _at(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = config
    for name in path:
        value = value.get(name) if is_mapping(value) else None
    return value


def _is_given(config: Mapping[str, Any], *path: str) -> bool:
    """Whether a key, or one below it, has a value."""
    value = _at(config, path)
    return any(_is_given(value, name) for name in value) if is_mapping(value) else value is not None


def _given(config: Mapping[str, Any], key: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys whose values differ from the defaults."""
    for name, value in config.items():
        if is_mapping(value):
            yield from _given(value, (*key, name))
        elif value is not None and (name, value) != ("slices", 1):
            yield (*key, name)


def _value(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value = _at(config, path)
    if value is None:
        raise invalid((*KEY, *path[:-1]), f"there is no '{path[-1]}' in hardware.{'.'.join(path[:-1])}")
    check(value, (*KEY, *path))
    return value


def _number(config: Mapping[str, Any], *path: str) -> float:
    return float(_value(config, path))


def _latency(config: Mapping[str, Any], name: str) -> float:
    value = _at(config, (name, "latency"))
    if value is None:
        return 0.0
    check(value, (*KEY, name, "latency"))
    return float(value)


def _count(config: Mapping[str, Any], *path: str) -> int:
    return _value(config, path)
