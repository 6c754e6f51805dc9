"""Bounds the time of a collective by its groups, bytes and links.

Source: How to Scale Your Model, "Sharded matrices" and "How to think about GPUs"; its V / (2w) for a ring is the limit
for many chips. Exactly, a chip receives the `(n - 1) / n` of V bytes that it lacks over its own links: two on a ring,
one at the end of a line, and more if several dimensions share the work. An all-gather takes at least that long, and at
least the latency of its longest path, `n / 2` hops on a ring and `n - 1` on a line. An all-reduce is a reduce-scatter
and an all-gather, as in XLA; where switches sum (NVLink SHARP), its bus bandwidth in a node is a figure of its own. In
an all-to-all, a quarter of the bytes crosses the middle each way. For permutes see `border_load`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.compiled.estimate.model import Bound
from runner.experiment.hardware import Hardware, Switch, Torus
from runner.graph.sharding.ring import RAGGED

Coordinates = tuple[int, ...]
"""The coordinates of a device: its slice or node, its chip's place in the torus, its number on the chip or node."""

GROUPS = 64
"""The most groups of a collective that are timed; the others are alike."""

GATHERS = {"all-gather": 1, "reduce-scatter": 1, "collective-broadcast": 1, "all-reduce": 2}
"""How often a collective sends as much as an all-gather of the same array."""


@dataclass(frozen=True)
class TransferTime:
    """The time of one execution in seconds, whether bandwidth or latency bounds it, and over which links."""

    seconds: float
    bound: Bound
    over: str


NOTHING = TransferTime(0.0, "latency", "no link")


class Links:
    """The links between the devices of a mesh.

    `coordinates`: those of the devices by position in the mesh, if the target has them; by default the devices are in
    row-major order in the hardware's shape.
    """

    def __init__(self, hardware: Hardware, mesh: Mesh, coordinates: Sequence[Coordinates] | None = None) -> None:
        self._hardware = hardware
        self._places = list(coordinates) if coordinates else _in_mesh(mesh, list(_row_major(hardware, mesh)))
        self.known = bool(self._places)
        """Whether the hardware specifies the links of the devices."""

    def time(self, kind: str, group: Sequence[int], bytes_in: int, bytes_out: int) -> TransferTime | None:
        """The time of a collective among the devices at these positions; None for an unknown kind."""
        places = [self._places[position] for position in group]
        if len(places) < 2:
            return NOTHING
        if kind in GATHERS:
            whole = max(bytes_in, bytes_out)
            return _longest([self._scaled(part, GATHERS[kind]) for part in self._gather(places, whole, kind)])
        if kind in ("all-to-all", RAGGED):
            # A ragged exchange may send nothing; its lower bound is the latency.
            return _longest(list(self._exchange(places, 0 if kind == RAGGED else bytes_in)))
        return None

    def permute(self, pairs: Sequence[tuple[int, int]], size: int) -> TransferTime:
        """The time to send `size` bytes from the first to the second position of each pair."""
        ends = [(self._places[start], self._places[stop]) for start, stop in pairs if start != stop]
        if not ends:
            return NOTHING
        parts: list[TransferTime] = []
        abroad = [pair for pair in ends if pair[0][0] != pair[1][0]]
        if abroad:
            parts.append(self._over_network(size, 1))
        inside = [pair for pair in ends if pair[0][0] == pair[1][0]]
        links = self._hardware.links
        if inside and isinstance(links, Switch):
            parts.append(_taken(size / links.bandwidth, links.latency, "the switch"))
        elif inside and isinstance(links, Torus):
            parts += self._routed(links, inside, size)
        return _longest(parts) or NOTHING

    def _scaled(self, taken: TransferTime, times: int) -> TransferTime:
        return TransferTime(taken.seconds * times, taken.bound, taken.over)

    def _gather(self, places: Sequence[Coordinates], whole: int, kind: str) -> Iterator[TransferTime]:
        """Yield the time over each kind of link of an all-gather, or half of an all-reduce, of `whole` bytes in all."""
        nodes, links = len({place[0] for place in places}), self._hardware.links
        inside = len(places) // nodes
        if nodes > 1:
            yield self._over_network(whole * (nodes - 1) / (nodes * inside), nodes - 1)
        if isinstance(links, Switch) and inside > 1:
            sums = kind == "all-reduce" and links.sharp is not None
            bandwidth = max(links.bandwidth, links.sharp or 0.0) if sums else links.bandwidth
            # Switches that sum take one step where a reduce-scatter and an all-gather take two.
            waiting, over = (links.latency / 2, "the switch, which sums") if sums else (links.latency, "the switch")
            yield _taken(whole * (inside - 1) / (inside * bandwidth), waiting, over)
        if not isinstance(links, Torus):
            return
        on_chip = len({place[-1] for place in places})
        if on_chip > 1:
            yield _taken(whole * (on_chip - 1) / (on_chip * links.chip_bandwidth), 0.0, "the chip")
        lines = list(self._lines(links, places))
        if lines:
            # The devices of a chip share its links, also if they are in different groups.
            shared = links.per_chip / on_chip
            hops = sum(line.hops for line in lines)
            chips = len(places) // nodes // on_chip
            incoming = sum((2 if line.ring else 1) / line.stride for line in lines) * links.bandwidth
            yield _taken(whole * shared * (chips - 1) / (chips * incoming), hops * links.latency, _described(lines))

    def _exchange(self, places: Sequence[Coordinates], local: int) -> Iterator[TransferTime]:
        """Yield the time over each kind of link for an all-to-all of `local` bytes per device."""
        nodes, links = len({place[0] for place in places}), self._hardware.links
        inside = len(places) // nodes
        if nodes > 1:
            yield self._over_network(local * (nodes - 1) / nodes, nodes - 1)
        if isinstance(links, Switch) and inside > 1:
            yield _taken(local * (inside - 1) / (len(places) * links.bandwidth), links.latency, "the switch")
        if not isinstance(links, Torus):
            return
        on_chip = len({place[-1] for place in places})
        moved = inside * local / nodes
        for line in self._lines(links, places):
            # Each half of the chips (one less if odd) sends to the other half: V / 8w on a ring,
            # V / 4w on a line.
            crossing = (line.size // 2) * ((line.size + 1) // 2) / line.size
            seconds = moved * links.per_chip / on_chip / (inside / on_chip) * crossing * line.stride
            seconds /= (2 if line.ring else 1) * links.bandwidth
            yield _taken(seconds, line.hops * links.latency, _described([line]))

    def _over_network(self, size: float, steps: int) -> TransferTime:
        network = self._hardware.network
        if network is None:
            return _taken(math.inf, 0.0, "a network that the hardware does not have")
        return _taken(size / network.bandwidth, network.latency * steps, "the network")

    def _lines(self, links: Torus, places: Sequence[Coordinates]) -> Iterator[_TorusLine]:
        """Yield the dimensions of the torus along which the devices differ."""
        rings = links.rings(self._hardware.shape)
        for dimension, chips in enumerate(self._hardware.shape):
            values = sorted({place[1 + dimension] for place in places})
            if len(values) < 2:
                continue
            stride = max(1, (values[-1] - values[0]) // (len(values) - 1))
            yield _TorusLine(len(values), stride, rings[dimension] and len(values) * stride == chips)

    def _routed(
        self, links: Torus, pairs: Sequence[tuple[Coordinates, Coordinates]], size: int
    ) -> Iterator[TransferTime]:
        """Yield the times of messages within slices, for the best routing."""
        shape = self._hardware.shape
        rings = links.rings(shape)
        longest = max(hops(shape, rings, start[1:-1], stop[1:-1]) for start, stop in pairs)
        slices = {start[0] for start, _ in pairs}
        load = max(
            border_load(shape, rings, [(a[1:-1], b[1:-1]) for a, b in pairs if a[0] == slice_number])
            for slice_number in slices
        )
        if longest:
            over = f"{longest} hop{'s' if longest > 1 else ''} of the torus"
            over += f", {load:.3g} messages a link" if load > 1 else ""
            yield _taken(size * load / links.bandwidth, longest * links.latency, over)
        if any(start[-1] != stop[-1] for start, stop in pairs):
            yield _taken(size / links.chip_bandwidth, 0.0, "the chip")


@dataclass(frozen=True)
class _TorusLine:
    """Devices along one dimension of a torus, `stride` chips apart; `ring`: whether they wrap around."""

    size: int
    stride: int
    ring: bool

    @property
    def hops(self) -> int:
        """The number of links on the longest path."""
        return (self.size // 2 if self.ring else self.size - 1) * self.stride


def _in_mesh(mesh: Mesh, places: list[Coordinates]) -> list[Coordinates]:
    """The coordinates of the mesh's devices, from those of all devices by number; empty if there are too few."""
    numbers = range(mesh.size) if mesh.devices is None else mesh.devices
    if max(numbers) >= len(places):
        return []
    return places if mesh.devices is None else [places[number] for number in numbers]


def _row_major(hardware: Hardware, mesh: Mesh) -> Iterator[Coordinates]:
    links = hardware.links
    if isinstance(links, Switch):
        yield from ((position // links.devices, position % links.devices) for position in range(mesh.size))
        return
    shape = (hardware.slices, *hardware.shape, links.per_chip if isinstance(links, Torus) else 1)
    yield from itertools.product(*map(range, shape))


def _taken(sending: float, waiting: float, over: str) -> TransferTime:
    return TransferTime(max(sending, waiting), "bandwidth" if sending >= waiting else "latency", over)


def _longest(parts: Sequence[TransferTime]) -> TransferTime | None:
    return max(parts, key=lambda part: part.seconds, default=None)


def _described(lines: Sequence[_TorusLine]) -> str:
    """Text such as `a ring of 16 and a line of 4`."""
    return " and ".join(f"a {'ring' if line.ring else 'line'} of {line.size}" for line in lines)


Chip = tuple[int, ...]
"""The coordinates of a chip."""


def border_load(shape: Sequence[int], rings: Sequence[bool], messages: Sequence[tuple[Chip, Chip]]) -> float:
    """A lower bound on the number of messages over the fullest link; `rings`: the dimensions that wrap around.

    Routing is free: either way around a ring, and around congestion. Three bounds hold for every routing: messages that
    leave or enter a block of chips cross the links at its border, messages of one chip use its own links, and each
    message uses one link for each hop of its shortest path.
    """
    messages = [(start, stop) for start, stop in messages if start != stop]
    if not messages:
        return 0.0
    return max(_along(shape, rings, messages), *_at_chips(shape, rings, messages), _over_all(shape, rings, messages))


def hops(shape: Sequence[int], rings: Sequence[bool], start: Chip, stop: Chip) -> int:
    """The number of links on the shortest path."""
    apart = [abs(b - a) for a, b in zip(start, stop, strict=True)]
    return sum(min(d, size - d) if ring else d for d, size, ring in zip(apart, shape, rings, strict=True))


def _along(shape: Sequence[int], rings: Sequence[bool], messages: Sequence[tuple[Chip, Chip]]) -> float:
    """The load of the most loaded border of a block that consists of consecutive layers along one dimension."""
    fullest = 0.0
    for dimension, (size, ring) in enumerate(zip(shape, rings, strict=True)):
        between = np.zeros((size, size))
        np.add.at(between, tuple(np.array([(a[dimension], b[dimension]) for a, b in messages]).T), 1)
        rows = math.prod(shape) // size
        for first in range(size):
            for end in range(first + 1, size + (first > 0)):
                inside = slice(first, end)
                leaving = between[inside].sum() - between[inside, inside].sum()
                entering = between[:, inside].sum() - between[inside, inside].sum()
                borders = 2 if ring else (first > 0) + (end < size)
                fullest = max(fullest, float(max(leaving, entering)) / (borders * rows))
    return fullest


def _at_chips(shape: Sequence[int], rings: Sequence[bool], messages: Sequence[tuple[Chip, Chip]]) -> Iterator[float]:
    for chips in (Counter(start for start, _ in messages), Counter(stop for _, stop in messages)):
        yield max(number / _links_of(shape, rings, chip) for chip, number in chips.items())


def _over_all(shape: Sequence[int], rings: Sequence[bool], messages: Sequence[tuple[Chip, Chip]]) -> float:
    links = sum(
        2 * math.prod(shape) // size * (size if ring else size - 1) for size, ring in zip(shape, rings, strict=True)
    )
    return sum(hops(shape, rings, start, stop) for start, stop in messages) / links


def _links_of(shape: Sequence[int], rings: Sequence[bool], chip: Chip) -> int:
    """The number of links of a chip."""
    return sum(2 if ring else (at > 0) + (at < size - 1) for at, size, ring in zip(chip, shape, rings, strict=True))
