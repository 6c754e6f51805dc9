"""Adds execution counts with the branches around each.

The branch taken is known only at run time. So the count inside a branch is a range, and the counts in several branches
of one choice do not add up: the total is the least to the most over the branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeAlias

from runner.base.grouping import by_key
from runner.base.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Range:
    """Between `min` and `max` times, depending on the branches taken."""

    min: int
    max: int


Count: TypeAlias = int | Range | None
"""How often something runs; None where not known."""


@dataclass(frozen=True, kw_only=True)
class InBranch:
    """A branch around something.

    - `choice`: the choice, by a name that is unique in the program; `branch`: the number of the branch among `of`.
    - `times`: how often the choice runs per execution of the next branch around it, or of the program.
    """

    choice: str
    branch: int
    of: int
    times: int


Part: TypeAlias = tuple[Count, Sequence[InBranch], int | None]
"""How often something runs, the branches around it, outermost first, and the amount per execution."""


def count(times: int | None, branches: Sequence[InBranch]) -> Count:
    """How often something runs in all, given its `times` per execution of the innermost of its branches."""
    if times is None:
        return None
    most = times * prod(branch.times for branch in branches)
    return between(0, most) if branches else most


def total(parts: Iterable[Part]) -> Count:
    """The total amount over all executions; None where a count or an amount is not known."""
    least = most = 0
    chosen: dict[str, tuple[InBranch, dict[int, list[Part]]]] = {}
    for often, branches, amount in parts:
        if often is None or amount is None:
            return None
        low, high = ends(often)
        if not branches or not high:
            least, most = least + low * amount, most + high * amount
            continue
        outermost = branches[0]
        inside = count(high // prod(branch.times for branch in branches), branches[1:])
        _, of_branch = chosen.setdefault(outermost.choice, (outermost, {}))
        of_branch.setdefault(outermost.branch, []).append((inside, branches[1:], amount))
    for choice, of_branch in chosen.values():
        sums = [ends(total(of_branch.get(branch, ()))) for branch in range(choice.of)]
        least += choice.times * min(low for low, _ in sums)
        most += choice.times * max(high for _, high in sums)
    return between(least, most)


def by_kind(runs: Iterable[tuple[str, Count, Sequence[InBranch]]]) -> dict[str, int | Range]:
    """How often each kind runs; all counts must be known."""
    parts = by_key((kind, (often, branches, 1)) for kind, often, branches in runs)
    counts: dict[str, int | Range] = {}
    for kind, of_kind in parts.items():
        often = total(of_kind)
        assert often is not None
        counts[kind] = often
    return counts


def between(least: int, most: int) -> Count:
    """The range from `least` to `most`, or the number where they are equal."""
    return least if least == most else Range(min=least, max=most)


def ends(often: Count) -> tuple[int, int]:
    """The least and the most of a known count."""
    assert often is not None
    return (often.min, often.max) if isinstance(often, Range) else (often, often)


def most(often: Count) -> int | None:
    """The most of a count; None where not known."""
    return None if often is None else ends(often)[1]


def text(often: Count) -> str:
    """Format a count for a sentence: `3`, `between 0 and 1`, `an unknown number of`."""
    if isinstance(often, Range):
        return f"between {often.min} and {often.max}"
    return "an unknown number of" if often is None else str(often)


def short(often: Count) -> str:
    """Format a count for a table: `3`, `0 to 1`, `?`."""
    return f"{often.min} to {often.max}" if isinstance(often, Range) else "?" if often is None else str(often)
