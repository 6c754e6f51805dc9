"""Places values between two ends, on a linear or logarithmic scale, and finds round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.base.lazy import dataclass

_WIDE = 30.0
"""Values that differ by more than this factor are drawn on a logarithmic scale."""


_LEAST = 1e-290
"""Smaller values count as zero: ticks between them would underflow."""


@dataclass(frozen=True)
class Scale:
    """A scale from `low` to `high`."""

    low: float
    high: float
    logarithmic: bool

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most `most` round values on the scale."""
        if not self.logarithmic:
            step = _round_up((self.high - self.low) / most)
            first = math.ceil(self.low / step - 1e-9)
            return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        powers = [10.0**k for k in range(first, last + 1)]
        if len(powers) > most:
            return powers[:: -(-len(powers) // most)]
        if len(powers) < 3:
            parts = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
            return [value for value in parts if self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)]
        return powers


def scale(values: Sequence[float]) -> Scale:
    """Return the scale for measured values: from zero, or logarithmic if they span too wide a range."""
    low, high = min(values), max(values)
    if low > _LEAST and high / low > _WIDE:
        return Scale(low / 1.15, high * 1.15, True)
    if high < _LEAST:
        return Scale(0, 1, False)
    return Scale(0, high * 1.06, False)


def of_sizes(values: Sequence[float]) -> Scale:
    """Return the scale for swept values: from the smallest to the largest, logarithmic if they grow by factors."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= 4:
        return Scale(low, high, True)
    return Scale(low, high if high > low else low + 1, False)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, …"""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))
