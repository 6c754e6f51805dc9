"""Who communicates how many bytes with whom over which links in; the least time that it takes out.

Source: How to Scale Your Model, "Sharded matrices" and "How to think about GPUs", whose V / (2w) of a ring is that of
many chips. Exactly, a chip gets the `(n - 1) / n` of V bytes that it lacks over its own links: two along a ring, one at
the end of a line, and more where several dimensions share the work. So an all-gather takes no less than that, and no
less than its longest way, `n / 2` hops around a ring and `n - 1` along a line. An all-reduce is a reduce-scatter and an
all-gather, as XLA has it. Of an all-to-all, a quarter of the bytes crosses the middle each way. A permute takes what
`cuts.py` says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.estimate import cuts
from runner.estimate.model import Bound
from runner.experiment.hardware import Hardware, Switch, Torus
from runner.layout import Mesh
from runner.sharding.ring import RAGGED

Coordinates = tuple[int, ...]
"""Where a device is: its slice or node, the place of its chip in the torus, its number on the chip or in the node."""

GROUPS = 64
"""Up to so many groups of a collective are looked at; the others are alike."""

GATHERS = {"all-gather": 1, "reduce-scatter": 1, "collective-broadcast": 1, "all-reduce": 2}
"""How often a collective sends what an all-gather of the same whole would."""


@dataclass(frozen=True)
class TransferTime:
    """What one execution takes: `seconds`, what decides, over which links."""

    seconds: float
    bound: Bound
    over: str


NOTHING = TransferTime(0.0, "latency", "no link")


class Links:
    """The links between the devices of a mesh.

    `coordinates` are where the devices are, by their position in the mesh, where the target tells; else they lie
    row-major in the hardware's shape.
    """

    def __init__(self, hardware: Hardware, mesh: Mesh, coordinates: Sequence[Coordinates] | None = None) -> None:
        self._hardware = hardware
        self._places = list(coordinates) if coordinates else _in_mesh(mesh, list(_row_major(hardware, mesh)))
        self.known = bool(self._places)
        """Whether the hardware says what links the devices."""

    def time(self, kind: str, group: Sequence[int], bytes_in: int, bytes_out: int) -> TransferTime | None:
        """What a collective among the devices at these positions takes; None for a kind that is not known."""
        places = [self._places[position] for position in group]
        if len(places) < 2:
            return NOTHING
        if kind in GATHERS:
            whole = max(bytes_in, bytes_out)
            return _longest([self._scaled(part, GATHERS[kind]) for part in self._gather(places, whole)])
        if kind in ("all-to-all", RAGGED):
            # What sends as much as values say sends nothing at least, which takes the links' latency.
            return _longest(list(self._exchange(places, 0 if kind == RAGGED else bytes_in)))
        return None

    def permute(self, pairs: Sequence[tuple[int, int]], size: int) -> TransferTime:
        """What it takes to send `size` bytes from the first to the second position of each pair."""
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

    def _gather(self, places: Sequence[Coordinates], whole: int) -> Iterator[TransferTime]:
        """What each kind of link takes for every device to get all parts of a whole, one per device."""
        nodes, links = len({place[0] for place in places}), self._hardware.links
        inside = len(places) // nodes
        if nodes > 1:
            yield self._over_network(whole * (nodes - 1) / (nodes * inside), nodes - 1)
        if isinstance(links, Switch) and inside > 1:
            yield _taken(whole * (inside - 1) / (inside * links.bandwidth), links.latency, "the switch")
        if not isinstance(links, Torus):
            return
        on_chip = len({place[-1] for place in places})
        if on_chip > 1:
            yield _taken(whole * (on_chip - 1) / (on_chip * links.chip_bandwidth), 0.0, "the chip")
        lines = list(self._lines(links, places))
        if lines:
            # The devices of a chip share its links: where each is in a group of its own, all of these go over them.
            shared = links.per_chip / on_chip
            hops = sum(line.hops for line in lines)
            chips = len(places) // nodes // on_chip
            incoming = sum((2 if line.ring else 1) / line.stride for line in lines) * links.bandwidth
            yield _taken(whole * shared * (chips - 1) / (chips * incoming), hops * links.latency, _described(lines))

    def _exchange(self, places: Sequence[Coordinates], local: int) -> Iterator[TransferTime]:
        """What each kind of link takes for every device to give every other a part of its `local` bytes."""
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
            # Half of the chips give to the other half, of an odd number one less: V / 8w around a ring, V / 4w along
            # a line.
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
        """The dimensions of the torus along which the devices differ."""
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
        """Messages within slices, each over whatever links it likes."""
        shape = self._hardware.shape
        rings = links.rings(shape)
        longest = max(cuts.hops(shape, rings, start[1:-1], stop[1:-1]) for start, stop in pairs)
        slices = {start[0] for start, _ in pairs}
        load = max(
            cuts.load(shape, rings, [(a[1:-1], b[1:-1]) for a, b in pairs if a[0] == slice_number])
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
    """Devices along one dimension of a torus: every `stride`-th of it, all around it where it is a ring."""

    size: int
    stride: int
    ring: bool

    @property
    def hops(self) -> int:
        """How many links what travels farthest takes."""
        return (self.size // 2 if self.ring else self.size - 1) * self.stride


def _in_mesh(mesh: Mesh, places: list[Coordinates]) -> list[Coordinates]:
    """The coordinates of the mesh's devices, from those of all the hardware's, by device number; none of too few."""
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
    """`a ring of 16 and a line of 4`."""
    return " and ".join(f"a {'ring' if line.ring else 'line'} of {line.size}" for line in lines)
