"""Prices a collective, or the work of an operation, in the unit of the objective.

Seconds are those of the estimate: for a collective see `compiled/estimate/links.py`; an operation takes the longer of
its flops at the hardware's peak and of its bytes through the memory. Nothing overlaps.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.compiled.estimate.links import GROUPS, Links
from runner.experiment.hardware import Hardware
from runner.experiment.open_layouts import Least
from runner.graph.sharding import ring
from runner.graph.sharding.moves import Move

_PLACES = 4096
"""The most devices whose groups are timed for a collective; at least two groups are."""

_LARGE = 1 << 40
"""A size in bytes at which the latency of a collective is negligible."""


@dataclass(frozen=True)
class Rate:
    """The cost of a collective: `slope` for each byte that a device sends on a ring, and at least `floor`."""

    slope: float
    floor: float = 0.0

    def cost(self, sent: float) -> float:
        """The cost of sending this many bytes."""
        return max(sent * self.slope, self.floor)


@dataclass(frozen=True)
class Sending:
    """A collective; `sent`: the bytes that a device sends on a ring; `cost`: in the unit of the objective."""

    kind: str
    axes: tuple[str, ...]
    sent: float
    cost: float


@dataclass(frozen=True)
class Work:
    """The work of one operation on all devices together: `flops` of products with operands of `dtype`."""

    flops: float = 0.0
    dtype: str = ""


@dataclass(frozen=True)
class Scattering:
    """The sums that XLA reduce-scatters where they are sharded afterwards; it all-reduces and slices all others.

    - `tiles`: the fewest tiles of such a sum; `several`: whether it scatters along several dimensions at once.
    - `fewer_than`: the number of devices from which it all-reduces.
    """

    tiles: float = 0.0
    several: bool = True
    fewer_than: float = math.inf


def scattering(platform: str, hardware: Hardware | None) -> Scattering:
    """What the compiler of a platform reduce-scatters; XLA for CPUs has no reduce-scatter of its own.

    The rules for TPUs were measured for v5e, v5p and v6e, on 4 to 256 chips, with JAX 0.10.2. A sum over all chips of a
    slice is scattered only if they are a ring: 1 × n or 2 × n.
    """
    if platform != "tpu":
        return Scattering(tiles=math.inf if platform == "cpu" else 0.0)
    fewer_than = math.inf
    if hardware is not None and hardware.slices == 1:
        *others, _ = sorted(size for size in (1, *hardware.shape) if size > 1) or [1]
        if others not in ([], [2]):
            fewer_than = math.prod(hardware.shape)
    return Scattering(16.0, several=False, fewer_than=fewer_than)


_ROWS, _COLUMNS = 8, 128
"""The elements of a tile."""


def tiles(shape: Sequence[int]) -> int:
    """The number of tiles of an array on one device, the last of which along a dimension may not be full."""
    *outer, rows, columns = (1, 1, *shape)
    return math.prod(outer) * math.ceil(rows / _ROWS) * math.ceil(columns / _COLUMNS)


def sending(prices: Prices, kind: str, axes: tuple[str, ...], sent: float) -> Sending:
    """A collective that sends `sent` bytes, with its cost."""
    return Sending(kind, axes, sent, prices.rate(kind, axes).cost(sent))


def collective(prices: Prices, mesh: Mesh, kind: str, axes: tuple[str, ...], block: float) -> Sending:
    """A collective over mesh axes before which a device holds `block` bytes, with its cost."""
    return sending(prices, kind, axes, ring.of_block(kind, mesh.axis_size(axes), block))


def permuted(prices: Prices, mesh: Mesh, axes: tuple[str, ...], permutation: Sequence[tuple[int, int]]) -> Rate:
    """The cost of a permutation of blocks along mesh axes, given pairs of source and destination along them."""
    return prices.permuting(
        tuple((group[a], group[b]) for group in mesh.groups(axes) for a, b in permutation if a != b)
    )


@dataclass(frozen=True)
class Bytes:
    """The bytes sent; for `least: memory` the bytes held, with the bytes sent as a tie-break."""

    least: Least = "bytes"
    scattering: Scattering = Scattering()
    divided: bool = True
    order: float = 1e-12
    digits: int = 3

    @property
    def held(self) -> float:
        """The cost of a byte held: a tie-break unless the objective is memory."""
        return 1.0 if self.least == "memory" else _TIE

    def rate(self, kind: str, axes: tuple[str, ...]) -> Rate:
        """The cost of a byte sent, the same for every collective: a tie-break if the objective is memory."""
        return Rate(_TIE if self.least == "memory" else 1.0)

    def weight(self, mesh: Mesh, move: Move) -> float:
        """The cost of the bytes that a step sends."""
        return self.rate(move.kind, move.axes).cost(move.sent)

    def permuting(self, pairs: Sequence[tuple[int, int]]) -> Rate:
        """The rate of a collective-permute."""
        return self.rate("collective-permute", ())

    def computing(self, work: Work, shards: int, moved: float) -> float:
        """Always 0: computing is free."""
        return 0.0


BYTES = Bytes()
"""The prices of the bytes that a device sends."""

_TIE = 1e-9
"""The weight of a tie-break: a terabyte of it costs about a kilobyte."""


class EstimatedSeconds:
    """The time on the hardware, by the estimate's model."""

    least: Least = "time"
    divided = False
    order = 1e-27
    digits = 15
    held = 1e-24
    """A tie-break in favour of plans that hold less: a terabyte costs a picosecond."""

    def __init__(self, hardware: Hardware, mesh: Mesh, precision: str) -> None:
        self._hardware, self._mesh, self._precision = hardware, mesh, precision
        self.name = hardware.name
        self.scattering = scattering(hardware.platform, hardware)
        self._links = Links(hardware, mesh)
        self.unknown: list[str] = []
        """What the hardware does not specify, so that it is free."""

    @functools.cache  # noqa: B019  (a plan has one of these)
    def rate(self, kind: str, axes: tuple[str, ...]) -> Rate:
        """The time per byte and the latency, in the slowest group of the mesh."""
        n = self._mesh.axis_size(axes)
        if n == 1 or not self._linked():
            return Rate(0.0)
        if kind in ("permute", "shift"):
            pairs = [pair for group in self._groups(axes) for pair in itertools.pairwise(group)]
            return self.permuting(tuple(pairs))
        local = _LARGE // n if kind == "all-gather" else _LARGE
        whole = _LARGE // n if kind == "reduce-scatter" else _LARGE
        sent = ring.sent(kind, n, local, whole)
        assert sent is not None, kind
        slope = floor = 0.0
        for group in self._groups(axes):
            large, small = (self._links.time(kind, group, *sizes) for sizes in ((local, whole), (0, 0)))
            assert large is not None, kind
            assert small is not None, kind
            slope, floor = max(slope, large.seconds / sent), max(floor, small.seconds)
        return Rate(slope, floor)

    @functools.cache  # noqa: B019
    def _groups(self, axes: tuple[str, ...]) -> list[list[int]]:
        """The groups of device positions that communicate; a sample from all over the mesh if there are many."""
        mesh, n = self._mesh, self._mesh.axis_size(axes)
        inner = [mesh.axes.index(axis) for axis in axes]
        outer = [at for at in range(len(mesh.axes)) if at not in inner]
        groups = np.arange(mesh.size).reshape(mesh.shape).transpose(*outer, *inner).reshape(-1, n)
        some = min(len(groups), GROUPS, max(2, _PLACES // n))
        return groups[np.linspace(0, len(groups) - 1, some).astype(int)].tolist()

    def weight(self, mesh: Mesh, move: Move) -> float:
        """The time of one step of a reshard; a slice takes none."""
        if move.kind == "slice":
            return 0.0
        if move.kind == "collective-permute":
            return permuted(self, mesh, move.axes, move.permutation).cost(move.sent)
        return self.rate(move.kind, move.axes).cost(move.sent)

    @functools.cache  # noqa: B019
    def permuting(self, pairs: Sequence[tuple[int, int]]) -> Rate:
        """The time per byte and the latency on the fullest link."""
        if not self._linked():
            return Rate(0.0)
        large, small = self._links.permute(pairs, _LARGE), self._links.permute(pairs, 0)
        return Rate(large.seconds / _LARGE, small.seconds)

    def computing(self, work: Work, shards: int, moved: float) -> float:
        """The longer of the time for the flops and for the memory traffic, in seconds."""
        hardware = self._hardware
        multiplying = 0.0
        if work.flops:
            peak = hardware.peak(work.dtype, self._precision)
            if peak is None:
                self._note(f"{hardware.name} does not say how fast it multiplies {work.dtype}")
            else:
                multiplying = work.flops / shards / peak
        if hardware.memory_bandwidth is None:
            self._note(f"{hardware.name} does not say how fast its memory is")
            return multiplying
        return max(multiplying, moved / hardware.memory_bandwidth)

    def _linked(self) -> bool:
        if not self._links.known:
            self._note(f"{self._hardware.name} does not say what links its devices")
        return self._links.known

    def _note(self, what: str) -> None:
        if what not in self.unknown:
            self.unknown.append(what)


Prices: TypeAlias = Bytes | EstimatedSeconds
"""The prices of an objective, `least`.

- `held`: the cost of each byte that a device holds of arrays and outputs.
- `order`: the cost of an array's mesh axis per dimension further back; it only breaks ties.
- `digits`: how many decimal places of a cost matter.
- `divided`: whether every product must be split over as many devices as its sizes allow. Where computing is free, the
  cheapest plan would otherwise compute everything on every device.
- `scattering`: which sums are reduce-scattered where they are sharded afterwards.
- `weight`: the cost of one step of a reshard; `rate`: that of a collective over mesh axes; `permuting`: that of a
  permutation of blocks, given pairs of source and destination.
- `computing`: the cost of one device's share of an operation, which moves `moved` bytes through its memory.
"""
