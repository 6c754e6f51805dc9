"""Compares two costs, apart from rounding and from what breaks ties."""

from __future__ import annotations

EQUAL = 1e-6
"""The relative difference up to which two costs are the same; terms that break ties are smaller."""


def costs_more(cost: float, other: float, of: float | None = None) -> bool:
    """Return whether `cost` is greater than `other` by more than `EQUAL` of `of`, by default of the smaller cost."""
    return cost - other > EQUAL * (min(abs(cost), abs(other)) if of is None else of)


def costs_the_same(cost: float, other: float, of: float | None = None) -> bool:
    """Return whether neither cost is greater than the other."""
    return not costs_more(cost, other, of) and not costs_more(other, cost, of)
