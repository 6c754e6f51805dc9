"""Reads XLA's text of a sharding into the PartitionSpec on a mesh that it equals.

Source: xla/hlo/ir/hlo_sharding.cc and xla/hlo/ir/named_sharding.cc, which print these.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from runner.base.layout import Layout, Mesh, Spec

_NUMBERS = r"([0-9]+(?:,[0-9]+)*)"
_TILED = re.compile(rf"\{{devices=\[{_NUMBERS}\]<=\[{_NUMBERS}\](?:T\({_NUMBERS}\))?( last_tile_dim_replicate)?\}}")
_NAMED = re.compile(r"\{mesh\[[^\]]*\](?:, device_ids=\([^)]*\))?, \[(.*)\]\}")


def spec(text: str, rank: int, mesh: Mesh) -> Spec | None:
    """The layout of an array with this many dimensions; None if no PartitionSpec expresses it, or it cannot be read.

    - `{devices=[2,1,4]<=[4,2]T(1,0)}`: the number of shards of each dimension, and which device has which
    - `{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}`: the axes of each dimension
    """
    if text == "{replicated}":
        return Spec().padded(rank)
    named = _NAMED.fullmatch(text)
    if named:
        parsed = Spec(tuple(re.findall(r"'([^']+)'(?!:)", part)) for part in re.findall(r"\{([^}]*)\}", named[1]))
        expressible = all(axis in mesh.sizes for axis in parsed.axes) and ":" not in named[1]
        return parsed.padded(rank) if expressible and len(parsed) <= rank else None
    tiled = _TILED.fullmatch(text)
    if tiled is None:
        return None
    tiles, shape = (tuple(map(int, part.split(","))) for part in tiled.group(1, 2))
    if math.prod(shape) != mesh.size or math.prod(tiles) != mesh.size or len(tiles) not in (rank, rank + 1):
        return None
    devices = np.arange(mesh.size).reshape(shape)
    if tiled[3]:
        devices = devices.transpose([int(part) for part in tiled[3].split(",")])
    places = {int(device): at[:rank] for at, device in np.ndenumerate(devices.reshape(tiles))}
    for candidate in _candidates(mesh, tiles[:rank]):
        layout = Layout(mesh, tiles[:rank], candidate)
        if all(layout.block(position) == places[position] for position in range(mesh.size)):
            return candidate
    return None


def _candidates(mesh: Mesh, tiles: tuple[int, ...]) -> Iterator[Spec]:
    """The PartitionSpecs that shard the dimensions into this many parts."""

    def cut(left: tuple[str, ...], sizes: tuple[int, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
        if not sizes:
            yield ()
            return
        for count in range(len(left) + 1):
            for axes in itertools.permutations(left, count):
                if mesh.axis_size(axes) == sizes[0]:
                    rest = tuple(axis for axis in left if axis not in axes)
                    yield from ((axes, *inner) for inner in cut(rest, sizes[1:]))

    large = tuple(axis for axis in mesh.axes if mesh.sizes[axis] > 1)
    yield from map(Spec, cut(large, tiles))
