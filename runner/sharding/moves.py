"""Two layouts of one array in; the cheapest collectives from one to the other, and the bytes that a device sends, out.

Every step is one that a device's own code can write: a gather or a slice of a dimension's last mesh axes, an
all-to-all of these between two dimensions, a permutation of blocks.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from runner.layout import Layout, Mesh, Spec

Kind = Literal["all-gather", "slice", "all-to-all", "collective-permute"]

_STEP = 1e-3
"""What a step costs beside its bytes, so that between equal ways the shorter one wins."""


@dataclass(frozen=True)
class Move:
    """One step.

    - `axes`: the mesh axes that it is over; of a `collective-permute` in the mesh's order.
    - `dimension`: what is gathered, sliced, or (of an all-to-all) joined; `split` is what an all-to-all splits.
    - `permutation`: of a `collective-permute`, pairs of source and destination.
    - `sent`: the bytes that a device sends, on a ring; `after` is the layout that it ends with.
    """

    kind: Kind
    axes: tuple[str, ...]
    dimension: int
    split: int
    permutation: tuple[tuple[int, int], ...]
    sent: float
    after: Spec


@functools.lru_cache(maxsize=4096)
def moves(mesh: Mesh, shape: tuple[int, ...], itemsize: int, before: Spec, after: Spec) -> tuple[Move, ...]:
    """The steps that send the fewest bytes from `before` to `after`; axes of size 1 stand in neither."""
    if before == after:
        return ()
    counter = itertools.count()
    queue: list[tuple[float, int, Spec, tuple[Move, ...]]] = [(0.0, next(counter), before, ())]
    done: set[Spec] = set()
    while queue:
        cost, _, here, path = heapq.heappop(queue)
        if here == after:
            return path
        if here in done:
            continue
        done.add(here)
        for move in steps(mesh, shape, itemsize, here, after):
            if move.after not in done:
                heapq.heappush(queue, (cost + move.sent + _STEP, next(counter), move.after, (*path, move)))
    raise AssertionError(f"no way from {before} to {after}")


@functools.lru_cache(maxsize=4096)
def sent(mesh: Mesh, shape: tuple[int, ...], itemsize: int, before: Spec, after: Spec) -> float:
    """The bytes that a device sends on the way from one layout to the other."""
    return sum(move.sent for move in moves(mesh, shape, itemsize, before, after))


def local_bytes(mesh: Mesh, shape: tuple[int, ...], itemsize: int, spec: Spec) -> float:
    """What one device holds."""
    return math.prod(shape) * itemsize / math.prod(mesh.sizes[axis] for axes in spec for axis in axes)


@functools.lru_cache(maxsize=4096)
def plain(mesh: Mesh, spec: Spec, rank: int) -> Spec:
    """A layout with an entry for each dimension and without the axes of size 1, which split nothing."""
    return Spec(tuple(axis for axis in axes if mesh.sizes[axis] > 1) for axes in spec.padded(rank))


def steps(mesh: Mesh, shape: tuple[int, ...], itemsize: int, here: Spec, after: Spec) -> Iterator[Move]:
    """The single steps that may stand on the way from `here` to `after`."""
    yield from splits_and_joins(mesh, shape, itemsize, here, after)
    if permutes(mesh, here, after):
        held, involved = local_bytes(mesh, shape, itemsize, here), changed(mesh, here, after)
        pairs = permutation(mesh, shape, here, after, involved)
        yield Move("collective-permute", involved, 0, 0, pairs, held, after)


def splits_and_joins(
    mesh: Mesh, shape: tuple[int, ...], itemsize: int, here: Spec, after: Spec | None
) -> Iterator[Move]:
    """The gathers, the all-to-alls and the slices that `here` allows; None: wherever the way may lead."""
    # A slice that the end does not have helps before an axis is exchanged for another.
    sliced = mesh.axes if after is None else after.axes
    held = local_bytes(mesh, shape, itemsize, here)
    used = {axis for axes in here for axis in axes}
    for dimension, axes in enumerate(here):
        for count in range(1, len(axes) + 1):
            rest, gathered = axes[: len(axes) - count], axes[len(axes) - count :]
            n = mesh.axis_size(gathered)
            yield Move("all-gather", gathered, dimension, dimension, (), (n - 1) * held, _with(here, dimension, rest))
            for index, index_axes in enumerate(here):
                ends = (*index_axes, *gathered)
                # Several axes are exchanged together where they are to stay so.
                stays = count == 1 or after is None or after[index][: len(ends)] == ends
                if index == dimension or not stays:
                    continue
                if shape[index] % (mesh.axis_size(index_axes) * n) == 0:
                    there = _with(_with(here, dimension, rest), index, ends)
                    yield Move("all-to-all", gathered, dimension, index, (), (n - 1) / n * held, there)
        for axis in mesh.axes:
            if (
                axis not in used
                and axis in sliced
                and shape[dimension] % (mesh.axis_size(axes) * mesh.sizes[axis]) == 0
            ):
                yield Move("slice", (axis,), dimension, dimension, (), 0.0, _with(here, dimension, (*axes, axis)))


def permutes(mesh: Mesh, here: Spec, after: Spec) -> bool:
    """Whether the blocks of two layouts are as large, and only others have them."""
    return here != after and [mesh.axis_size(a) for a in here] == [mesh.axis_size(a) for a in after]


def changed(mesh: Mesh, here: Spec, after: Spec) -> tuple[str, ...]:
    """The mesh axes along which two layouts differ."""
    return tuple(
        axis for axis in mesh.axes if any((axis in a or axis in b) and a != b for a, b in zip(here, after, strict=True))
    )


def _with(spec: Spec, dimension: int, axes: tuple[str, ...]) -> Spec:
    return Spec((*spec[:dimension], axes, *spec[dimension + 1 :]))


def permutation(
    mesh: Mesh, shape: tuple[int, ...], before: Spec, after: Spec, axes: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    """Who sends its block to whom along `axes`, so that each device has the block that `after` gives it."""
    source_layout, target = Layout(mesh, shape, before), Layout(mesh, shape, after)
    group = mesh.groups(axes)[0]
    holders: dict[tuple[int, ...], list[int]] = {}
    for index, position in enumerate(group):
        holders.setdefault(source_layout.block(position), []).append(index)
    # What need not move stays.
    source: dict[int, int] = {}
    for index, position in enumerate(group):
        if index in holders[target.block(position)]:
            source[index] = index
            holders[target.block(position)].remove(index)
    for index, position in enumerate(group):
        if index not in source:
            source[index] = holders[target.block(position)].pop(0)
    return tuple(sorted((sender, receiver) for receiver, sender in source.items()))
