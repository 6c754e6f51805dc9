"""Bounds the messages over the fullest link of a torus from below, for any routing.

Routing is free: either way around a ring, and around congestion. Three bounds hold for every routing: messages that
leave or enter a block of chips cross the links at its border, messages of one chip use its own links, and each message
uses one link for each hop of its shortest path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

Chip = tuple[int, ...]
"""The coordinates of a chip."""


def load(shape: Sequence[int], rings: Sequence[bool], messages: Sequence[tuple[Chip, Chip]]) -> float:
    """A lower bound on the number of messages over the fullest link; `rings`: the dimensions that wrap around."""
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
