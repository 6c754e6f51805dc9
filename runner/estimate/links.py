"""Who communicates how many bytes with whom over which links in; the least time that it takes out.

Source: How to Scale Your Model, "Sharded matrices" and "How to think about GPUs". On a ring each shard travels half of
the way in each direction, on a line without wrap-around all of it; several dimensions share the work. So an all-gather
of V bytes over n chips takes `V / n · hops / bandwidth` with `hops = n / 2` on a ring and `n - 1` on a line, no less
than `hops · latency`, and no less than what comes in over the links of the chip that has fewest. An all-reduce takes
twice that, an all-to-all on a ring a quarter.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.estimate.model import Bound
from runner.experiment.hardware import Hardware, Switch, Torus
from runner.layout import Mesh
from runner.sharding.ring import RAGGED

Coordinates = tuple[int, ...]
"""Where a device is: its slice or node, the place of its chip in the torus, its number on the chip or in the node."""

GATHERS = {"all-gather": 1, "reduce-scatter": 1, "collective-broadcast": 1, "all-reduce": 2}
"""How often a collective sends what an all-gather of the same whole would."""


@dataclass(frozen=True)
class Taken:
    """What one execution takes: `seconds`, what decides, over which links."""

    seconds: float
    bound: Bound
    over: str


NOTHING = Taken(0.0, "latency", "no link")


class Links:
    """The links between the devices of a mesh.

    `coordinates` are where the devices are, by their position in the mesh, where the target tells; else they lie
    row-major in the hardware's shape.
    """

    def __init__(self, hardware: Hardware, mesh: Mesh, coordinates: Sequence[Coordinates] | None = None) -> None:
        self._hardware = hardware
        self._places = list(coordinates) if coordinates else _in_mesh(mesh, list(_row_major(hardware, mesh)))

    def time(self, kind: str, group: Sequence[int], bytes_in: int, bytes_out: int) -> Taken | None:
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

    def permute(self, pairs: Sequence[tuple[int, int]], size: int) -> Taken:
        """What it takes to send `size` bytes from the first to the second position of each pair."""
        ends = [(self._places[start], self._places[stop]) for start, stop in pairs if start != stop]
        if not ends:
            return NOTHING
        parts: list[Taken] = []
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

    def _scaled(self, taken: Taken, times: int) -> Taken:
        return Taken(taken.seconds * times, taken.bound, taken.over)

    def _gather(self, places: Sequence[Coordinates], whole: int) -> Iterator[Taken]:
        """What each kind of link takes for every device to get a whole of which each has a part."""
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
            rate = sum(line.rate for line in lines)
            hops = sum(line.hops for line in lines)
            chips = len(places) // nodes // on_chip
            incoming = sum((2 if line.ring else 1) / line.stride for line in lines) * links.bandwidth
            sending = whole * shared * max(1 / rate, (chips - 1) / (chips * incoming))
            yield _taken(sending, hops * links.latency, _told(lines))

    def _exchange(self, places: Sequence[Coordinates], local: int) -> Iterator[Taken]:
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
            seconds = moved * links.per_chip / on_chip / (inside / on_chip) * line.size * line.stride
            seconds /= (8 if line.ring else 4) * links.bandwidth
            yield _taken(seconds, line.hops * links.latency, _told([line]))

    def _over_network(self, size: float, steps: int) -> Taken:
        network = self._hardware.network
        if network is None:
            return _taken(math.inf, 0.0, "a network that the hardware does not have")
        return _taken(size / network.bandwidth, network.latency * steps, "the network")

    def _lines(self, links: Torus, places: Sequence[Coordinates]) -> Iterator[_Line]:
        """The dimensions of the torus along which the devices differ."""
        for dimension, chips in enumerate(self._hardware.shape):
            values = sorted({place[1 + dimension] for place in places})
            if len(values) < 2:
                continue
            stride = max(1, (values[-1] - values[0]) // (len(values) - 1))
            ring = links.closes(chips) and len(values) * stride == chips
            yield _Line(len(values), stride, ring, links.bandwidth)

    def _routed(self, links: Torus, pairs: Sequence[tuple[Coordinates, Coordinates]], size: int) -> Iterator[Taken]:
        """Each message along one dimension after the other, the shorter way; the fullest link decides."""
        loads: Counter[tuple[Coordinates, int, int]] = Counter()
        longest, on_chip = 0, 0
        for start, stop in pairs:
            here, hops = list(start), 0
            for dimension, chips in enumerate(self._hardware.shape, start=1):
                distance = stop[dimension] - here[dimension]
                if links.closes(chips):
                    distance = (distance + chips // 2) % chips - chips // 2
                step = 1 if distance > 0 else -1
                for _ in range(abs(distance)):
                    loads[(*here[:-1],), dimension, step] += 1
                    here[dimension] = (here[dimension] + step) % chips
                hops += abs(distance)
            longest = max(longest, hops)
            on_chip += start[-1] != stop[-1]
        if loads:
            fullest = max(loads.values())
            over = f"{longest} hop{'s' if longest > 1 else ''} of the torus"
            over += f", {fullest} messages on one link" if fullest > 1 else ""
            yield _taken(size * fullest / links.bandwidth, longest * links.latency, over)
        if on_chip:
            yield _taken(size / links.chip_bandwidth, 0.0, "the chip")


@dataclass(frozen=True)
class _Line:
    """Devices along one dimension of a torus: every `stride`-th of it, all around it where it is a ring."""

    size: int
    stride: int
    ring: bool
    bandwidth: float

    @property
    def hops(self) -> int:
        """How many links what travels farthest takes."""
        return (self.size // 2 if self.ring else self.size - 1) * self.stride

    @property
    def rate(self) -> float:
        """At how many bytes of the gathered whole a second an all-gather goes along it."""
        return self.bandwidth * self.size / self.hops


def _in_mesh(mesh: Mesh, places: list[Coordinates]) -> list[Coordinates]:
    """Of the places of the hardware's devices, by their numbers, those of the mesh's."""
    return places if mesh.devices is None else [places[number] for number in mesh.devices]


def _row_major(hardware: Hardware, mesh: Mesh) -> Iterator[Coordinates]:
    links = hardware.links
    if isinstance(links, Switch):
        yield from ((position // links.devices, position % links.devices) for position in range(mesh.size))
        return
    shape = (hardware.slices, *hardware.shape, links.per_chip if isinstance(links, Torus) else 1)
    yield from itertools.product(*map(range, shape))


def _taken(sending: float, waiting: float, over: str) -> Taken:
    return Taken(max(sending, waiting), "bandwidth" if sending >= waiting else "latency", over)


def _longest(parts: Sequence[Taken]) -> Taken | None:
    return max(parts, key=lambda part: part.seconds, default=None)


def _told(lines: Sequence[_Line]) -> str:
    """`a ring of 16 and a line of 4`."""
    return " and ".join(f"a {'ring' if line.ring else 'line'} of {line.size}" for line in lines)
