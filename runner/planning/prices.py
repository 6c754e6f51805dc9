"""A collective, or what a line computes, in; what it costs out, in the unit of what is to be least.

Seconds are those of the estimate: a collective takes what `estimate/links.py` says, a line the longer of its products
at the hardware's peak and of its bytes through the memory. Nothing overlaps.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from runner.estimate.links import GROUPS, Links
from runner.experiment.auto import Least
from runner.experiment.hardware import Hardware
from runner.layout import Mesh
from runner.sharding import ring

_PLACES = 4096
"""Of how many devices the groups of a collective are looked at, in all, at least two groups."""

_LARGE = 1 << 40
"""Bytes for which the latency of a collective is nothing."""


@dataclass(frozen=True)
class Rate:
    """What a collective costs: `slope` for each byte that a device sends on a ring, and `floor` at least."""

    slope: float
    floor: float = 0.0

    def cost(self, sent: float) -> float:
        """What it costs to send so many bytes."""
        return max(sent * self.slope, self.floor)


@dataclass(frozen=True)
class Work:
    """What one operation computes on all devices together: `flops` of products of a `dtype`."""

    flops: float = 0.0
    dtype: str = ""


class Prices(Protocol):
    """What costs what.

    - `held`: what each byte costs that a device holds of arrays and outputs.
    - `order`: what it costs an array to have an axis of the mesh one dimension later; it only breaks ties.
    - `divided`: whether every product is split over as many devices as its sizes allow. Where computing costs nothing
      the least is else that every device computes everything.
    """

    @property
    def least(self) -> Least:
        """What is to be least."""
        ...

    @property
    def held(self) -> float:
        """What a byte costs that is held."""
        ...

    @property
    def order(self) -> float:
        """What a later dimension costs."""
        ...

    @property
    def divided(self) -> bool:
        """Whether every product is split."""
        ...

    def rate(self, kind: str, axes: tuple[str, ...]) -> Rate:
        """What a collective over mesh axes costs."""
        ...

    def permuting(self, pairs: Sequence[tuple[int, int]]) -> Rate:
        """What a permutation of blocks costs, of pairs of source and destination."""
        ...

    def computing(self, work: Work, shards: int, moved: float) -> float:
        """What a device takes for its share of an operation that moves so many bytes through its memory."""
        ...


@dataclass(frozen=True)
class Bytes:
    """What is sent costs, and nothing else; of what is `least: memory`, what is held, and what is sent breaks ties."""

    least: Least = "bytes"
    divided: bool = True
    order: float = 1e-12

    @property
    def held(self) -> float:
        """Of plans that send as much, the one is taken that holds less."""
        return 1.0 if self.least == "memory" else _TIE

    def rate(self, kind: str, axes: tuple[str, ...]) -> Rate:
        """A byte costs what a byte costs."""
        return Rate(_TIE if self.least == "memory" else 1.0)

    def permuting(self, pairs: Sequence[tuple[int, int]]) -> Rate:
        """The same."""
        return self.rate("collective-permute", ())

    def computing(self, work: Work, shards: int, moved: float) -> float:
        """Nothing."""
        return 0.0


_TIE = 1e-9
"""The weight of what only breaks ties: a terabyte of it weighs less than a kilobyte."""


class Seconds:
    """The time on hardware, by the estimate's model."""

    least: Least = "time"
    divided = False
    order = 1e-27
    held = 1e-24
    """Of plans that take as long, the one is taken that holds less: a terabyte weighs a picosecond."""

    def __init__(self, hardware: Hardware, mesh: Mesh, precision: str) -> None:
        self._hardware, self._mesh, self._precision = hardware, mesh, precision
        self._links = Links(hardware, mesh)
        self.unknown: list[str] = []
        """What the hardware does not say, so that it costs nothing."""

    @functools.cache  # noqa: B019  (a plan has one of these)
    def rate(self, kind: str, axes: tuple[str, ...]) -> Rate:
        """The time of a byte, and the latency, of the group of the mesh in which it takes longest."""
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
        """The positions of devices that communicate over mesh axes; of many groups some, from all over the mesh."""
        mesh, n = self._mesh, self._mesh.axis_size(axes)
        inner = [mesh.axes.index(axis) for axis in axes]
        outer = [at for at in range(len(mesh.axes)) if at not in inner]
        groups = np.arange(mesh.size).reshape(mesh.shape).transpose(*outer, *inner).reshape(-1, n)
        some = min(len(groups), GROUPS, max(2, _PLACES // n))
        return groups[np.linspace(0, len(groups) - 1, some).astype(int)].tolist()

    @functools.cache  # noqa: B019
    def permuting(self, pairs: Sequence[tuple[int, int]]) -> Rate:
        """The time of the fullest link."""
        if not self._linked():
            return Rate(0.0)
        large, small = self._links.permute(pairs, _LARGE), self._links.permute(pairs, 0)
        return Rate(large.seconds / _LARGE, small.seconds)

    def computing(self, work: Work, shards: int, moved: float) -> float:
        """The longer of multiplying and of moving through the memory."""
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
