"""Finds the cheapest collectives from one layout of an array to another, and the bytes that a device sends.

Every step can be written in per-device code: an all-gather or a slice over the minor-most mesh axes of a dimension, an
all-to-all of these between two dimensions, or a permutation of blocks.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Literal, Protocol

from runner.base.layout import Layout, Mesh, Spec
from runner.base.lazy import dataclass
from runner.graph.sharding import ring

Kind = Literal["all-gather", "slice", "all-to-all", "collective-permute"]


@dataclass(frozen=True)
class Move:
    """One collective, or a slice, on the way from one layout to another.

    - `axes`: the mesh axes that it communicates over; in mesh order for a `collective-permute`.
    - `dimension`: the dimension that is gathered, sliced, or (all-to-all) concatenated; `split`: the dimension that an
      all-to-all splits.
    - `permutation`: pairs of source and destination index along `axes`, for a `collective-permute`.
    - `sent`: the bytes that a device sends, on a ring; `after`: the resulting layout.
    """

    kind: Kind
    axes: tuple[str, ...]
    dimension: int
    split: int
    permutation: tuple[tuple[int, int], ...]
    sent: float
    after: Spec


class Weights(Protocol):
    """The costs of moves; `digits`: how many decimal places of a cost matter. Must be hashable."""

    @property
    def digits(self) -> int:
        """How many decimal places of a cost matter."""
        ...

    def weight(self, mesh: Mesh, move: Move) -> float:
        """The cost of one move."""
        ...


@dataclass(frozen=True)
class _Sent:
    digits: int = 3

    def weight(self, mesh: Mesh, move: Move) -> float:
        return move.sent


SENT = _Sent()
"""A move costs the bytes that a device sends."""


@functools.lru_cache(maxsize=4096)
def moves(
    mesh: Mesh, shape: tuple[int, ...], itemsize: int, before: Spec, after: Spec, weights: Weights = SENT
) -> tuple[Move, ...]:
    """Find the steps from `before` to `after` that cost the least; neither layout may have axes of size 1."""
    if before == after:
        return ()
    counter = itertools.count()
    queue: list[tuple[float, int, Spec, tuple[Move, ...]]] = [(0.0, next(counter), before, ())]
    done: set[Spec] = set()
    # Of paths that cost equally much the shorter one wins.
    each = 10.0**-weights.digits
    while queue:
        cost, _, here, path = heapq.heappop(queue)
        if here == after:
            return path
        if here in done:
            continue
        done.add(here)
        for move in steps(mesh, shape, itemsize, here, after):
            if move.after not in done:
                entry = cost + weights.weight(mesh, move) + each, next(counter), move.after, (*path, move)
                heapq.heappush(queue, entry)
    raise AssertionError(f"no way from {before} to {after}")


@functools.lru_cache(maxsize=4096)
def sent(
    mesh: Mesh, shape: tuple[int, ...], itemsize: int, before: Spec, after: Spec, weights: Weights = SENT
) -> float:
    """The cost of the steps from `before` to `after`, by default the bytes that a device sends."""
    return sum(weights.weight(mesh, move) for move in moves(mesh, shape, itemsize, before, after, weights))


def local_bytes(mesh: Mesh, shape: tuple[int, ...], itemsize: int, spec: Spec) -> float:
    """The bytes of the shard that one device holds."""
    return math.prod(shape) * itemsize / math.prod(mesh.sizes[axis] for axes in spec for axis in axes)


@functools.lru_cache(maxsize=4096)
def plain(mesh: Mesh, spec: Spec, rank: int) -> Spec:
    """Pad a spec to `rank` entries and drop its axes of size 1, which shard nothing."""
    return Spec(tuple(axis for axis in axes if mesh.sizes[axis] > 1) for axes in spec.padded(rank))


def steps(mesh: Mesh, shape: tuple[int, ...], itemsize: int, here: Spec, after: Spec) -> Iterator[Move]:
    """Yield the steps from `here` that may be part of a path to `after`."""
    yield from splits_and_joins(mesh, shape, itemsize, here, after)
    ends = {after} if permutes(mesh, here, after) else set[Spec]()
    if mesh.size <= PERMUTED:
        # Blocks may also be permuted before they are gathered or exchanged, when they are smaller.
        ends |= {there for there in _alike(mesh, here) if there != here}
    size = local_bytes(mesh, shape, itemsize, here)
    for there in sorted(ends, key=str):
        involved = changed(mesh, here, there)
        yield Move("collective-permute", involved, 0, 0, _pairs(mesh, here, there, involved), size, there)


PERMUTED = 256
"""The most devices of a mesh for which permutations to other layouts than the last are considered."""


@functools.lru_cache(maxsize=1024)
def _alike(mesh: Mesh, spec: Spec) -> tuple[Spec, ...]:
    """The layouts with as many shards along each dimension as `spec` has."""
    counts, layouts = [mesh.axis_size(axes) for axes in spec], [((), frozenset[str]())]
    axes = [axis for axis in mesh.axes if mesh.sizes[axis] > 1]
    orders = [order for count in range(len(axes) + 1) for order in itertools.permutations(axes, count)]
    for count in counts:
        fitting = [order for order in orders if mesh.axis_size(order) == count]
        layouts = [
            ((*entries, order), used | {*order})
            for entries, used in layouts
            for order in fitting
            if used.isdisjoint(order)
        ]
    return tuple(Spec(entries) for entries, _ in layouts)


@functools.lru_cache(maxsize=4096)
def _pairs(mesh: Mesh, before: Spec, after: Spec, axes: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """The pairs of sender and receiver along `axes`, which are the same for all shapes that both layouts divide."""
    return permutation(mesh, (math.prod(mesh.shape),) * len(before), before, after, axes)


def splits_and_joins(
    mesh: Mesh, shape: tuple[int, ...], itemsize: int, here: Spec, after: Spec | None
) -> Iterator[Move]:
    """Yield the all-gathers, all-to-alls and slices from `here` that may lead to `after`; None: to any layout."""
    # Slice over any axis of the target, even on another dimension: an all-to-all can move it later.
    sliced = mesh.axes if after is None else after.axes
    size = local_bytes(mesh, shape, itemsize, here)
    used = {axis for axes in here for axis in axes}
    for dimension, axes in enumerate(here):
        for count in range(1, len(axes) + 1):
            rest, gathered = axes[: len(axes) - count], axes[len(axes) - count :]
            n = mesh.axis_size(gathered)
            sent = ring.of_block("all-gather", n, size)
            yield Move("all-gather", gathered, dimension, dimension, (), sent, _with(here, dimension, rest))
            for index, index_axes in enumerate(here):
                ends = (*index_axes, *gathered)
                # An all-to-all over several axes is tried only where the target has them, or the first, in this place.
                goal = () if after is None else after[index]
                stays = count == 1 or after is None or (goal and goal[: len(ends)] == ends[: len(goal)])
                if index == dimension or not stays:
                    continue
                if shape[index] % (mesh.axis_size(index_axes) * n) == 0:
                    there = _with(_with(here, dimension, rest), index, ends)
                    sent = ring.of_block("all-to-all", n, size)
                    yield Move("all-to-all", gathered, dimension, index, (), sent, there)
        for axis in mesh.axes:
            if (
                axis not in used
                and axis in sliced
                and shape[dimension] % (mesh.axis_size(axes) * mesh.sizes[axis]) == 0
            ):
                yield Move("slice", (axis,), dimension, dimension, (), 0.0, _with(here, dimension, (*axes, axis)))


def permutes(mesh: Mesh, here: Spec, after: Spec) -> bool:
    """Whether two different layouts have equal shard counts along each dimension, so that a permutation suffices."""
    return here != after and [mesh.axis_size(a) for a in here] == [mesh.axis_size(a) for a in after]


def changed(mesh: Mesh, here: Spec, after: Spec) -> tuple[str, ...]:
    """The mesh axes, in mesh order, of the dimensions whose entries differ between two layouts."""
    return tuple(
        axis for axis in mesh.axes if any((axis in a or axis in b) and a != b for a, b in zip(here, after, strict=True))
    )


def _with(spec: Spec, dimension: int, axes: tuple[str, ...]) -> Spec:
    return Spec((*spec[:dimension], axes, *spec[dimension + 1 :]))


def permutation(
    mesh: Mesh, shape: tuple[int, ...], before: Spec, after: Spec, axes: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    """The pairs of sender and receiver along `axes` that give each device its block under `after`."""
    source_layout, target = Layout(mesh, shape, before), Layout(mesh, shape, after)
    group = mesh.groups(axes)[0]
    holders: dict[tuple[int, ...], list[int]] = {}
    for index, position in enumerate(group):
        holders.setdefault(source_layout.block(position), []).append(index)
    # A device that already holds its block keeps it.
    source: dict[int, int] = {}
    for index, position in enumerate(group):
        if index in holders[target.block(position)]:
            source[index] = index
            holders[target.block(position)].remove(index)
    for index, position in enumerate(group):
        if index not in source:
            source[index] = holders[target.block(position)].pop(0)
    return tuple(sorted((sender, receiver) for receiver, sender in source.items()))
