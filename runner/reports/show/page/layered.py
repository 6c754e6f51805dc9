"""Places boxes in layers from top to bottom, and routes the edges between them.

The method is Sugiyama, Tagawa and Toda's ("Methods for Visual Understanding of Hierarchical System Structures", 1981):
assign layers, order each layer to reduce crossings, then place. An edge over several layers has a dummy node in each.
Edges are vertical inside layers and bend only between two layers, so that none crosses a box.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from runner.base.grouping import by_key
from runner.base.lazy import dataclass

Name: TypeAlias = Hashable
Size: TypeAlias = tuple[float, float]
Edge: TypeAlias = tuple[Name, Name]
Point: TypeAlias = tuple[float, float]

_SWEEPS = 12
_BESIDE = 26.0
_STOP = 10.0
"""The width of a dummy node of an edge."""

_PORTS = 18.0
"""The distance between the edges of one box, if it is wide enough."""


@dataclass(frozen=True)
class Placed:
    """The upper left corner of each box, the points on each edge, and the size of the whole drawing."""

    corners: dict[Name, Point]
    paths: dict[Edge, list[Point]]
    width: float
    height: float


@dataclass
class _Layers:
    """The boxes and dummy nodes of each layer in order, with their sizes and neighbours."""

    rows: list[list[Name]]
    sizes: dict[Name, Size]
    above: dict[Name, list[Name]] = field(default_factory=dict[Name, list[Name]])
    below: dict[Name, list[Name]] = field(default_factory=dict[Name, list[Name]])

    def link(self, a: Name, b: Name) -> None:
        self.below.setdefault(a, []).append(b)
        self.above.setdefault(b, []).append(a)


def place(sizes: Mapping[Name, Size], edges: Sequence[Edge], between: float = 46) -> Placed:
    """Place boxes of given sizes; the edges lead down. `between` is the gap between layers.

    Edges from or to boxes that are not there, and those that close a circle, have no path.
    """
    edges = [(a, b) for a, b in dict.fromkeys(edges) if a in sizes and b in sizes]
    depth = _depths(list(sizes), edges)
    # A record that others have changed may say that a line reads itself.
    edges = [(a, b) for a, b in edges if depth[a] < depth[b]]
    layers = _Layers([[] for _ in range(max(depth.values(), default=0) + 1)], dict(sizes))
    for name in sizes:
        layers.rows[depth[name]].append(name)
    runs: dict[Edge, list[Name]] = {}
    for a, b in edges:
        stops: list[Name] = [(a, b, k) for k in range(depth[a] + 1, depth[b])]
        for k, stop in enumerate(stops, start=depth[a] + 1):
            layers.sizes[stop] = (_STOP, 0)
            layers.rows[k].append(stop)
        runs[a, b] = [a, *stops, b]
        for before, next_ in zip(runs[a, b], runs[a, b][1:], strict=False):
            layers.link(before, next_)
    _order(layers)
    centres = _centres(layers)
    left = min((x - layers.sizes[name][0] / 2 for name, x in centres.items()), default=0)
    across = {name: x - left for name, x in centres.items()}
    height, spans = _spans(layers, between)
    corners = {
        name: (across[name] - w / 2, (spans[name][0] + spans[name][1] - h) / 2) for name, (w, h) in sizes.items()
    }
    leaving, arriving = _ports(edges, runs, across, sizes)
    paths: dict[Edge, list[Point]] = {}
    for edge, run in runs.items():
        start, stop = run[0], run[-1]
        xa, xb = leaving[edge], arriving[edge]
        points = [(xa, corners[start][1] + sizes[start][1]), (xa, spans[start][1])]
        points += [(across[name], y) for name in run[1:-1] for y in spans[name]]
        points += [(xb, spans[stop][0]), (xb, corners[stop][1])]
        paths[edge] = points
    width = max((across[name] + layers.sizes[name][0] / 2 for name in across), default=0)
    return Placed(corners, paths, width, height)


def _ports(
    edges: Sequence[Edge], runs: Mapping[Edge, Sequence[Name]], across: Mapping[Name, float], sizes: Mapping[Name, Size]
) -> tuple[dict[Edge, float], dict[Edge, float]]:
    """Return where along its box each edge begins and ends: side by side, ordered by the other end."""

    def spread(end: int, near: int) -> dict[Edge, float]:
        of = by_key((edge[end], edge) for edge in edges)
        places: dict[Edge, float] = {}
        for name, several in of.items():
            several.sort(key=lambda edge: across[runs[edge][near]])
            gap = min(_PORTS, sizes[name][0] / (len(several) + 1))
            for k, edge in enumerate(several):
                places[edge] = across[name] + gap * (k - (len(several) - 1) / 2)
        return places

    return spread(0, 1), spread(1, -2)


def _depths(names: Sequence[Name], edges: Sequence[Edge]) -> dict[Name, int]:
    """Return each box's layer: below all its sources; a box without sources is just above its first reader."""
    after: dict[Name, list[Name]] = {}
    missing = dict.fromkeys(names, 0)
    for a, b in edges:
        after.setdefault(a, []).append(b)
        missing[b] += 1
    first = {name for name, count in missing.items() if not count}
    depth = dict.fromkeys(names, 0)
    ready = [name for name in names if name in first]
    for name in ready:
        for reader in after.get(name, ()):
            depth[reader] = max(depth[reader], depth[name] + 1)
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    for name in first:
        if readers := after.get(name):
            depth[name] = min(depth[reader] for reader in readers) - 1
    return depth


def _order(layers: _Layers) -> None:
    """Order each layer by the positions of its neighbours, sweep up and down, and keep the fewest crossings."""
    best, fewest = [list(row) for row in layers.rows], _crossings(layers)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = layers.above if down else layers.below
        for row in layers.rows if down else reversed(layers.rows):
            at = {name: k for other in layers.rows for k, name in enumerate(other)}
            places = {name: [at[other] for other in near.get(name, ())] or [at[name]] for name in row}
            wanted = {name: sum(among) / len(among) for name, among in places.items()}
            row.sort(key=wanted.__getitem__)
        count = _crossings(layers)
        if count < fewest:
            best, fewest = [list(row) for row in layers.rows], count
    layers.rows = best


def _crossings(layers: _Layers) -> int:
    count = 0
    for upper, lower in zip(layers.rows, layers.rows[1:], strict=False):
        at = {name: k for k, name in enumerate(lower)}
        ends = [at[b] for a in upper for b in sorted(layers.below.get(a, ()), key=at.__getitem__)]
        count += sum(ends[i] > ends[j] for i in range(len(ends)) for j in range(i + 1, len(ends)))
    return count


def _centres(layers: _Layers) -> dict[Name, float]:
    """Return the horizontal centre of each box, as near to its neighbours' centres as the boxes beside it allow."""
    centre: dict[Name, float] = {}
    for row in layers.rows:
        x = 0.0
        for name in row:
            width = layers.sizes[name][0]
            centre[name] = x + width / 2
            x += width + _BESIDE
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        near = layers.above if down else layers.below
        for row in layers.rows if down else reversed(layers.rows):
            wanted = [
                sum(centre[other] for other in others) / len(others) if (others := near.get(name)) else centre[name]
                for name in row
            ]
            # A straight edge matters more than a centred box.
            weights = [4.0 if layers.sizes[name][1] == 0 else 1.0 for name in row]
            room = [(layers.sizes[a][0] + layers.sizes[b][0]) / 2 + _BESIDE for a, b in itertools.pairwise(row)]
            centre.update(zip(row, _apart(wanted, weights, room), strict=True))
    return centre


def _apart(wanted: Sequence[float], weights: Sequence[float], room: Sequence[float]) -> list[float]:
    """Return the positions nearest to `wanted` (weighted squares) that keep the order and the required gaps.

    With the gaps subtracted this is isotonic regression, solved by pooling adjacent violators.
    """
    offsets = [0.0]
    for gap in room:
        offsets.append(offsets[-1] + gap)
    pools: list[tuple[float, float, int]] = []
    for value, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, total, count = value - offset, weight, 1
        while pools and pools[-1][0] > mean:
            other, heavy, several = pools.pop()
            mean = (other * heavy + mean * total) / (heavy + total)
            total, count = total + heavy, count + several
        pools.append((mean, total, count))
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]


def _spans(layers: _Layers, between: float) -> tuple[float, dict[Name, tuple[float, float]]]:
    """Return the total height, and the vertical range of the layer of each box and dummy node."""
    spans: dict[Name, tuple[float, float]] = {}
    y = 0.0
    for row in layers.rows:
        tallest = max((layers.sizes[name][1] for name in row), default=0)
        spans |= dict.fromkeys(row, (y, y + tallest))
        y += tallest + between
    return y - between, spans
