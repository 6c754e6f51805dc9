"""How often things run, each in the branches in which it stands, in; how often they run together out.

Which branch is taken is known when the program runs. So what stands in one runs between so many and so many times, and
what is in several branches of one choice runs together as often as the branch that is taken says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class Range:
    """Between `min` and `max` times: which branches are taken decides."""

    min: int
    max: int


Count: TypeAlias = int | Range | None
"""How often something runs; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class InBranch:
    """A branch in which something stands.

    - `choice`: what chooses, by a name of its own in the program; `branch`: the number of the branch among `of`.
    - `times`: how often it chooses each time that what it stands in runs: the next branch around it, or the program.
    """

    choice: str
    branch: int
    of: int
    times: int


Part: TypeAlias = tuple[Count, Sequence[InBranch], int | None]
"""Something that runs: how often, the branches around it from the outermost on, and what one execution adds."""


def count(times: int | None, branches: Sequence[InBranch]) -> Count:
    """How often something runs that runs so many `times` each time that the innermost of its branches is taken."""
    if times is None:
        return None
    most = times * prod(branch.times for branch in branches)
    return between(0, most) if branches else most


def total(parts: Iterable[Part]) -> Count:
    """What all executions add up to; None where a part's number or what it adds is not known."""
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
    """How often each kind runs; how often each of them runs has to be known."""
    parts: dict[str, list[Part]] = {}
    for kind, often, branches in runs:
        parts.setdefault(kind, []).append((often, branches, 1))
    counts: dict[str, int | Range] = {}
    for kind, of_kind in parts.items():
        often = total(of_kind)
        assert often is not None
        counts[kind] = often
    return counts


def between(least: int, most: int) -> Count:
    """From `least` to `most`; a number where these are one."""
    return least if least == most else Range(min=least, max=most)


def ends(often: Count) -> tuple[int, int]:
    """The least and the most. What is not known has none, and is not asked for."""
    assert often is not None
    return (often.min, often.max) if isinstance(often, Range) else (often, often)


def most(often: Count) -> int | None:
    """The most; None where it is not known."""
    return None if often is None else ends(often)[1]


def text(often: Count) -> str:
    """`3`, `between 0 and 1`, `an unknown number of`."""
    if isinstance(often, Range):
        return f"between {often.min} and {often.max}"
    return "an unknown number of" if often is None else str(often)


def short(often: Count) -> str:
    """`3`, `0 to 1`, `?`: in a table."""
    return f"{often.min} to {often.max}" if isinstance(often, Range) else "?" if often is None else str(often)
