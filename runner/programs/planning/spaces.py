"""Lists the layouts of an array on a mesh, and the costs of reshards between them.

The steps between layouts are those of `graph/sharding/moves.py`. A step sends a share of the array's bytes that depends
on the layouts alone, so all shapes with the same layouts share their steps; all-pairs shortest paths give the cheapest
reshards. Partial sums are completed by reduce-scatters and an all-reduce.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Prices, Sending, collective, tiles
from runner.experiment import enumeration
from runner.graph.sharding import moves

Costs = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class _Step:
    """A step between two layouts, by number; `share`: the share of the array's bytes that a device sends."""

    before: int
    after: int
    kind: str
    axes: tuple[str, ...]
    share: float


@dataclass(frozen=True)
class _Ways:
    """The layouts that a set of shapes has in common, and the steps between them."""

    layouts: tuple[Spec, ...]
    steps: tuple[_Step, ...]


Units: TypeAlias = tuple[tuple[str, ...], ...]
"""The mesh axes of size above 1, in mesh order, grouped where they only split together."""


def plain_layouts(mesh: Mesh, shape: tuple[int, ...], units: Units | None = None) -> tuple[Spec, ...]:
    """The layouts that divide a shape evenly; several axes on one dimension are in mesh order."""
    units = split_axes(mesh) if units is None else units
    layouts: list[Spec] = []
    for places in itertools.product((None, *range(len(shape))), repeat=len(units)):
        spec = Spec(
            tuple(axis for unit, at in zip(units, places, strict=True) if at == d for axis in unit)
            for d in range(len(shape))
        )
        if mesh.divides(shape, spec):
            layouts.append(spec)
    return tuple(layouts)


def split_axes(mesh: Mesh) -> Units:
    """The mesh axes of size above 1, each in a group of its own."""
    return tuple((axis,) for axis in mesh.axes if mesh.sizes[axis] > 1)


@functools.lru_cache(maxsize=256)
def _ways(mesh: Mesh, layouts: tuple[Spec, ...], rank: int, units: Units) -> _Ways:
    index = {spec: at for at, spec in enumerate(layouts)}
    # The sizes only matter for divisibility, which `layouts` has settled; this shape is divisible by all axes.
    shape = (math.prod(mesh.shape),) * rank
    whole = math.prod(shape)
    steps: list[_Step] = []
    alike: dict[tuple[int, ...], list[int]] = {}
    for at, here in enumerate(layouts):
        alike.setdefault(tuple(mesh.axis_size(axes) for axes in here), []).append(at)
        for move in moves.splits_and_joins(mesh, shape, 1, here, None):
            if move.after in index:
                steps.append(_Step(at, index[move.after], move.kind, move.axes, move.sent / whole))
        for unit in units:
            # Axes that only split together are sliced in one step.
            if len(unit) > 1 and not set(unit) & set(here.axes):
                ends = (Spec((*here[:d], (*here[d], *unit), *here[d + 1 :])) for d in range(rank))
                steps += [_Step(at, index[end], "slice", unit, 0.0) for end in ends if end in index]
    # A collective-permute connects layouts with blocks of the same size.
    for numbers in alike.values() if mesh.size <= PERMUTED else ():
        for at, to in itertools.permutations(numbers, 2):
            share = moves.local_bytes(mesh, shape, 1, layouts[at]) / whole
            axes = moves.changed(mesh, layouts[at], layouts[to])
            steps.append(_Step(at, to, "collective-permute", axes, share))
    return _Ways(layouts, tuple(steps))


PERMUTED = 4096
"""The most devices of a mesh for which permutations are considered; finding the pairs takes too long on larger ones."""

LAYOUTS = 700
"""The most layouts of an array with all orders of axes on a dimension; beyond that only mesh order is considered."""


class Space:
    """The layouts of an array of `total` bytes.

    - `rank`: the number of the array's dimensions.
    - `layouts`: all layouts; `index`: their numbers; `held`: the bytes that a device holds in each.
    - `cost`: the cost of the cheapest reshard from one layout to another, by their numbers.
    - `copied`: the bytes of a copy in another layout; 0 for a slice, which is read in place.

    `partitioned`: whether XLA's partitioner reshards, which gathers the whole array between some layouts.
    """

    def __init__(
        self,
        mesh: Mesh,
        shape: tuple[int, ...],
        itemsize: int,
        prices: Prices,
        units: Units,
        *,
        partitioned: bool = True,
    ) -> None:
        self.mesh, self.total, self._prices, self._units = mesh, float(math.prod(shape) * itemsize), prices, units
        self._shape = shape
        # Reshards may pass through layouts with axes in any order.
        several = units != split_axes(mesh) or enumeration.count_of_specs(shape, mesh) > LAYOUTS
        self.layouts = plain_layouts(mesh, shape, units) if several else tuple(enumeration.specs(shape, mesh))
        self.rank, self.index = len(shape), {spec: at for at, spec in enumerate(self.layouts)}
        self.held: Costs = np.array([self.total / mesh.axis_size(spec.axes) for spec in self.layouts])
        self._ways = _ways(mesh, self.layouts, len(shape), units)
        self._steps_from: dict[int, list[_Step]] = {at: [] for at in range(len(self.layouts))}
        for step in self._ways.steps:
            self._steps_from[step.before].append(step)
        self._direct = self._priced()
        self._cheapest = _shortest(self._direct)
        self._rematerialized = self._involuntary() if partitioned else np.zeros_like(self._direct, dtype=bool)
        whole = self.index[Spec().padded(self.rank)]
        self.cost = np.where(self._rematerialized, self._cheapest[:, whole, None], self._cheapest)
        self._completing: dict[tuple[int, tuple[str, ...], bool], tuple[list[_Completion], Costs]] = {}
        self._extensions: dict[tuple[int, tuple[str, ...], int], int | None] = {}
        self._collectives: dict[tuple[str, tuple[str, ...], float], Sending] = {}

    def _priced(self) -> Costs:
        direct = np.full((len(self.layouts),) * 2, np.inf)
        np.fill_diagonal(direct, 0.0)
        for step in self._ways.steps:
            direct[step.before, step.after] = min(direct[step.before, step.after], self._step(step).cost)
        return direct

    def _involuntary(self) -> NDArray[np.bool_]:
        """For each pair of layouts whether XLA's partitioner gathers the array: "involuntary full rematerialization".

        It does so where one dimension is split, and is to be split less, and others more: unless as many devices split
        one other dimension, or all devices of the mesh split the array where fewer did.
        """
        parts = np.array([[self.mesh.axis_size(axes) for axes in spec] for spec in self.layouts])
        parts = parts.reshape(len(self.layouts), self.rank)
        gathered = np.zeros((len(self.layouts),) * 2, dtype=bool)
        for before in np.flatnonzero((parts > 1).sum(axis=1) == 1):
            many, less, more = parts[before].prod(), (parts < parts[before]).any(axis=1), parts > parts[before]
            exchanged = (parts.prod(axis=1) == many) & (more.sum(axis=1) == 1)
            sliced = (parts.prod(axis=1) > many) & (parts.prod(axis=1) == self.mesh.size)
            gathered[before] = less & more.any(axis=1) & ~exchanged & ~sliced
        return gathered

    def _step(self, step: _Step) -> Sending:
        sent = step.share * self.total
        if step.kind == "slice":
            return Sending(step.kind, step.axes, 0.0, 0.0)
        # Only the time depends on the pairs of sender and receiver.
        timed = step.kind == "collective-permute" and self._prices.least == "time"
        rate = self._prices.permuting(self._pairs(step)) if timed else self._prices.rate(step.kind, step.axes)
        return Sending(step.kind, step.axes, sent, rate.cost(sent))

    def _pairs(self, step: _Step) -> tuple[tuple[int, int], ...]:
        before, after = self.layouts[step.before], self.layouts[step.after]
        differing = tuple(sorted({(a, b) for a, b in zip(before, after, strict=True) if a != b}))
        return _permutation(self.mesh, differing)

    @functools.cached_property
    def copied(self) -> Costs:
        entries = list(dict.fromkeys(entry for spec in self.layouts for entry in spec))
        starts = np.array([[after[: len(before)] == before for after in entries] for before in entries])
        numbers = np.array([[entries.index(entry) for entry in spec] for spec in self.layouts])
        numbers = numbers.reshape(len(self.layouts), self.rank)
        sliced = np.ones((len(self.layouts),) * 2, dtype=bool)
        for d in range(self.rank):
            sliced &= starts[numbers[:, d, None], numbers[None, :, d]]
        return np.where(sliced, 0.0, self.held[None, :])

    def path(self, before: int, after: int) -> list[Sending]:
        """The collectives of the cheapest reshard, as few as possible.

        On hardware without links collectives cost nothing, so the cheapest steps alone may lead in a circle.
        """
        if self._rematerialized[before, after]:
            return self.path(before, self.index[Spec().padded(self.rank)])
        reached: dict[int, _Step | None] = {before: None}
        queue = collections.deque([before])
        while after not in reached:
            here = queue.popleft()
            for step in self._steps_from[here]:
                cost = self._step(step).cost + self._cheapest[step.after, after]
                if step.after not in reached and math.isclose(cost, self._cheapest[here, after], rel_tol=1e-9):
                    reached[step.after] = step
                    if step.kind == "slice":
                        queue.appendleft(step.after)
                    else:
                        queue.append(step.after)
        steps: list[_Step] = []
        while (last := reached[after]) is not None:
            steps.append(last)
            after = last.before
        return [self._step(step) for step in reversed(steps) if step.kind != "slice"]

    def completing(self, partial: int, axes: tuple[str, ...], *, summed: bool) -> Costs:
        """For each layout the cost of completing a partial result, in layout `partial`, over `axes`.

        Only sums can be reduce-scattered (`summed`), and only where the compiler does so.
        """
        return self._completed(partial, axes, summed)[1]

    def completion(self, partial: int, axes: tuple[str, ...], after: int, *, summed: bool) -> list[Sending]:
        """The collectives that complete a partial result in the layout `after` at the least cost."""
        ways, _ = self._completed(partial, axes, summed)
        best = min(ways, key=lambda way: way.costs[after])
        return [*best.sendings, *self.path(best.after, after)]

    def _completed(self, partial: int, axes: tuple[str, ...], summed: bool) -> tuple[list[_Completion], Costs]:
        key = partial, axes, summed
        if key not in self._completing:
            ways = list(self._completions(partial, axes, summed))
            self._completing[key] = ways, np.min([way.costs for way in ways], axis=0)
        return self._completing[key]

    def _completions(self, partial: int, axes: tuple[str, ...], summed: bool) -> Iterator[_Completion]:
        """Yield the ways to complete a result, each axis reduce-scattered on a dimension or all-reduced."""
        block = tuple(
            n // self.mesh.axis_size(over) for n, over in zip(self._shape, self.layouts[partial], strict=True)
        )
        rule = self._prices.scattering
        places = (None, *range(self.rank)) if summed and tiles(block) >= rule.tiles else (None,)
        ends: list[tuple[int, dict[int | None, tuple[str, ...]]]] = [(partial, {})]
        # A layout with fewer of its units' axes exists too, so units are added one by one.
        for unit in (unit for unit in self._units if unit[0] in axes):
            ends = [
                (after, {**scattered, at: (*scattered.get(at, ()), *unit)})
                for before, scattered in ends
                for at in places
                if (after := before if at is None else self._extended(before, unit, at)) is not None
            ]
        for after, scattered in ends:
            along = [over for d, over in scattered.items() if d is not None]
            if math.prod(map(self.mesh.axis_size, along)) >= rule.fewer_than or (len(along) > 1 and not rule.several):
                continue
            held = float(self.held[partial])
            sendings: list[Sending] = []
            for d in range(self.rank):
                if mine := scattered.get(d):
                    sendings.append(self._collective("reduce-scatter", mine, held))
                    held /= self.mesh.axis_size(mine)
            if rest := scattered.get(None):
                sendings.append(self._collective("all-reduce", rest, held))
            costs = sum(sending.cost for sending in sendings) + self.cost[after]
            if along and not rule.several:
                # What has to be moved further is all-reduced over all axes.
                costs = np.where(np.arange(len(costs)) == after, costs, np.inf)
            yield _Completion(after, costs, tuple(sendings))

    def _extended(self, layout: int, unit: tuple[str, ...], d: int) -> int | None:
        """The number of a layout with further axes on dimension `d`; None if there is none."""
        key = layout, unit, d
        if key not in self._extensions:
            spec = self.layouts[layout]
            self._extensions[key] = self.index.get(Spec((*spec[:d], (*spec[d], *unit), *spec[d + 1 :])))
        return self._extensions[key]

    def _collective(self, kind: str, axes: tuple[str, ...], block: float) -> Sending:
        """A collective before which a device holds `block` bytes."""
        key = kind, axes, block
        if key not in self._collectives:
            self._collectives[key] = collective(self._prices, self.mesh, kind, axes, block)
        return self._collectives[key]


@dataclass(frozen=True)
class _Completion:
    """Collectives that complete a result in the layout `after`; `costs`: with the reshard to each layout."""

    after: int
    costs: Costs
    sendings: tuple[Sending, ...]


def _shortest(direct: Costs) -> Costs:
    """The costs of the cheapest paths between all pairs, from the costs of single steps, by Bellman and Ford.

    Few steps lead from each layout, and the longest path has few steps.
    """
    steps = int(np.isfinite(direct).sum(axis=1).max(initial=0))
    ends = np.argsort(direct, axis=1, kind="stable")[:, :steps]
    lengths = np.take_along_axis(direct, ends, axis=1)
    cost, joined = direct.copy(), np.empty_like(direct)
    while True:
        before = cost.copy()
        for step in range(steps):
            np.take(before, ends[:, step], axis=0, out=joined, mode="clip")
            np.add(joined, lengths[:, step, None], out=joined)
            np.minimum(cost, joined, out=cost)
        if np.array_equal(cost, before):
            return cost


@functools.lru_cache(maxsize=4096)
def _permutation(
    mesh: Mesh, differing: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
) -> tuple[tuple[int, int], ...]:
    """The pairs of sender and receiver on the whole mesh when dimensions change from the first to the second axes."""
    before, after = (Spec(pair[side] for pair in differing) for side in (0, 1))
    shape = (math.prod(mesh.shape),) * len(differing)
    axes = moves.changed(mesh, before, after)
    pairs = moves.permutation(mesh, shape, before, after, axes)
    return tuple((group[a], group[b]) for group in mesh.groups(axes) for a, b in pairs if a != b)


class Spaces:
    """The spaces of all shapes in one plan."""

    def __init__(self, mesh: Mesh, prices: Prices, units: Units, *, partitioned: bool = True) -> None:
        self.mesh, self.prices, self.units, self._partitioned = mesh, prices, units, partitioned
        self._spaces: dict[tuple[tuple[int, ...], int], Space] = {}

    def of(self, shape: Sequence[int], itemsize: int) -> Space:
        """The space of an array with this shape and itemsize."""
        key = tuple(shape), itemsize
        if key not in self._spaces:
            self._spaces[key] = Space(self.mesh, *key, self.prices, self.units, partitioned=self._partitioned)
        return self._spaces[key]
