"""Variables, and what each choice and each pair of choices costs, in; the choice that costs least in all out.

Variable elimination is exact: a variable is minimised over for every choice of those that it shares a cost with, the
one with the smallest table first. Where tables would be too large, choices that another one beats in every cost are
left out; where that is not enough, HiGHS solves the same as a mixed-integer program, and bounds the least.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Costs: TypeAlias = NDArray[np.float64]
Choice: TypeAlias = tuple[int, ...]
"""For each variable the number of what is chosen."""

LARGEST = 20_000_000
"""The entries of a table of variable elimination, at most."""

LARGEST_PROGRAM = 1_000_000
"""The entries of all pairs of a network that is given to HiGHS, at most: more would take it hours."""

SECONDS = 60.0
"""How long HiGHS may take."""

Solver: TypeAlias = Literal["variable elimination", "HiGHS"]


@dataclass(frozen=True)
class Network:
    """What is chosen among, and what it costs.

    - `alone`: for each variable the cost of each of its choices; infinite for one that there is not.
    - `pairs`: for two variables, the smaller number first, the cost of each two choices.
    """

    alone: tuple[Costs, ...]
    pairs: Mapping[tuple[int, int], Costs]

    def cost(self, choice: Choice) -> float:
        """What a choice costs in all."""
        single = sum(float(costs[choice[at]]) for at, costs in enumerate(self.alone))
        return single + sum(float(costs[choice[a], choice[b]]) for (a, b), costs in self.pairs.items())

    def plus(self, extra: Mapping[int, Costs]) -> Network:
        """The network where choices of some variables cost more."""
        alone = list(self.alone)
        for at, costs in extra.items():
            alone[at] = alone[at] + costs
        return replace(self, alone=tuple(alone))


@dataclass(frozen=True)
class Solution:
    """The best choice that was found.

    - `cost`: what it costs; `bound`: what the best one costs at least: the same where it is proved to be the best.
    - `largest`: the entries of the largest table, or of the mixed-integer program the variables.
    """

    choice: Choice
    cost: float
    bound: float
    solver: Solver
    largest: int

    @property
    def proved(self) -> bool:
        """Whether no choice costs less."""
        return self.cost - self.bound <= 1e-6 * max(abs(self.cost), 1e-300)


class TooLarge(Exception):
    """A table would have more entries than `LARGEST`."""


class Unsolved(Exception):
    """No choice was found: the network is too large, or HiGHS found none within its time."""


def solved(network: Network, keeping: Sequence[int] = ()) -> Solution:
    """The best choice. Variables of `keeping` keep all of their choices. Raises `Unsolved`."""
    try:
        return eliminated(network)
    except TooLarge as error:
        if sum(costs.size for costs in network.pairs.values()) > LARGEST_PROGRAM:
            raise Unsolved(str(error)) from None
        smaller, kept = pruned(network, keeping)
    try:
        solution = eliminated(smaller)
    except TooLarge:
        solution = relaxed(smaller)
    choice = tuple(int(kept[at][number]) for at, number in enumerate(solution.choice))
    return replace(solution, choice=choice)


# Variable elimination.


@dataclass(frozen=True)
class _Table:
    """The cost of each choice of some variables, in the order of the table's dimensions."""

    over: tuple[int, ...]
    costs: Costs

    def spread(self, over: Sequence[int]) -> Costs:
        """The same along more variables, which are in the same order."""
        return self.costs.reshape(tuple(self.costs.shape[self.over.index(v)] if v in self.over else 1 for v in over))


@dataclass(frozen=True)
class _Bucket:
    """A variable that is minimised over: `costs` are those of all tables that it stood in.

    The dimensions of `costs` are the `others`, in the order of their numbers, and the variable last.
    """

    variable: int
    others: tuple[int, ...]
    costs: Costs

    @property
    def least(self) -> Costs:
        """For each choice of the others what the best choice of the variable costs."""
        return self.costs.min(axis=-1)


def eliminated(network: Network) -> Solution:
    """The best choice, by variable elimination. Raises `TooLarge`."""
    buckets, largest = _eliminate(network)
    choice = [0] * len(network.alone)
    for bucket in reversed(buckets):
        choice[bucket.variable] = int(bucket.costs[tuple(choice[v] for v in bucket.others)].argmin())
    found = tuple(choice)
    bound = sum(float(bucket.least) for bucket in buckets if not bucket.others)
    return Solution(found, network.cost(found), bound, "variable elimination", largest)


def least_of_each(network: Network, variables: Collection[int]) -> dict[int, Costs]:
    """For each choice of some variables what the best choice of all others costs with it. Raises `TooLarge`.

    What is minimised over in one direction is told back in the other, so all of them take as long as two solutions.
    """
    buckets, _ = _eliminate(network)
    places = {bucket.variable: at for at, bucket in enumerate(buckets)}
    roots = [float(bucket.least) for bucket in buckets if not bucket.others]
    told: dict[int, list[int]] = {}
    for at, bucket in enumerate(buckets):
        if bucket.others:
            told.setdefault(min(places[v] for v in bucket.others), []).append(at)
    found: dict[int, Costs] = {}
    above: dict[int, Costs] = {}
    for at in reversed(range(len(buckets))):
        bucket = buckets[at]
        outside = above.pop(at) if bucket.others else np.array(sum(roots) - float(bucket.least))
        whole = bucket.costs + outside[..., None]
        if bucket.variable in variables:
            found[bucket.variable] = whole.min(axis=tuple(range(len(bucket.others))))
        over = (*bucket.others, bucket.variable)
        for below in told.get(at, ()):
            theirs = buckets[below]
            dropped = tuple(d for d, v in enumerate(over) if v not in theirs.others)
            kept = [v for v in over if v in theirs.others]
            seen = np.transpose(whole.min(axis=dropped), [kept.index(v) for v in theirs.others])
            least = theirs.least
            above[below] = np.where(np.isfinite(least), seen, 0.0) - np.where(np.isfinite(least), least, 0.0)
    return found


def _eliminate(network: Network) -> tuple[list[_Bucket], int]:
    """What each variable is minimised over with, in order; the entries of the largest table."""
    order, largest = _order(network)
    if largest > LARGEST:
        raise TooLarge(f"a table would have {largest:,} entries; name more layouts, or use fewer mesh axes")
    tables = [_Table((at,), costs) for at, costs in enumerate(network.alone)]
    tables += [_Table(pair, costs) for pair, costs in network.pairs.items()]
    buckets: list[_Bucket] = []
    for variable in order:
        mine = [table for table in tables if variable in table.over]
        tables = [table for table in tables if variable not in table.over]
        others = tuple(sorted({v for table in mine for v in table.over} - {variable}))
        joint = np.zeros((1,) * (len(others) + 1))
        for table in sorted(mine, key=lambda table: table.costs.size):
            joint = joint + _last(table, variable).spread((*others, variable))
        bucket = _Bucket(variable, others, joint)
        buckets.append(bucket)
        if others:
            tables.append(_Table(others, bucket.least))
    return buckets, largest


def _last(table: _Table, variable: int) -> _Table:
    """The table with a variable as its last dimension, the others in the order of their numbers."""
    over = (*sorted(set(table.over) - {variable}), variable)
    return _Table(over, np.transpose(table.costs, [table.over.index(v) for v in over]))


def _order(network: Network) -> tuple[list[int], int]:
    """The variables, the one with the smallest table first, and the entries of the largest table."""
    sizes = [len(costs) for costs in network.alone]
    beside: list[set[int]] = [set() for _ in sizes]
    for a, b in network.pairs:
        beside[a].add(b)
        beside[b].add(a)
    left, order, largest = set(range(len(sizes))), list[int](), 1

    def table(variable: int) -> float:
        return math.prod((sizes[v] for v in beside[variable]), start=float(sizes[variable]))

    entries = {variable: table(variable) for variable in left}
    while left:
        variable = min(left, key=lambda v: (entries[v], v))
        largest = max(largest, int(min(entries[variable], 1e18)))
        left.remove(variable)
        order.append(variable)
        near = beside[variable]
        for v in near:
            beside[v] |= near
            beside[v] -= {v, variable}
        for v in near:
            entries[v] = table(v)
    return order, largest


def fixed(network: Network, variable: int, number: int) -> Network:
    """The network in which a variable has no other choice."""
    only = np.full(len(network.alone[variable]), np.inf)
    only[number] = 0.0
    return network.plus({variable: only})


# Choices that are never better.


def pruned(network: Network, keeping: Sequence[int] = ()) -> tuple[Network, list[NDArray[np.intp]]]:
    """The network without choices that another one beats in every cost; for each variable the choices that are left."""
    alone, pairs = list(network.alone), dict(network.pairs)
    left = [np.arange(len(costs)) for costs in alone]
    more = True
    while more:
        more = False
        for variable, costs in enumerate(alone):
            if variable in keeping or len(costs) < 2:
                continue
            mine = [costs[:, None]]
            mine += [table if a == variable else table.T for (a, b), table in pairs.items() if variable in (a, b)]
            kept = _undominated(np.concatenate(mine, axis=1))
            if len(kept) == len(costs):
                continue
            more = True
            alone[variable], left[variable] = costs[kept], left[variable][kept]
            for (a, b), table in pairs.items():
                if a == variable:
                    pairs[a, b] = table[kept]
                elif b == variable:
                    pairs[a, b] = table[:, kept]
    return Network(tuple(alone), pairs), left


def _undominated(rows: Costs) -> NDArray[np.intp]:
    """The rows than which no other one is nowhere larger; of rows that are the same, the first."""
    kept: list[int] = []
    for at in np.argsort(np.where(np.isfinite(rows), rows, 1e30).sum(axis=1), kind="stable"):
        row = rows[at]
        if np.isfinite(row[0]) and not any((rows[other] <= row).all() for other in kept):
            kept.append(int(at))
    return np.array(sorted(kept) or [0])


# A mixed-integer program.


def relaxed(network: Network) -> Solution:
    """The best choice that HiGHS finds in its time, and the bound that it proves. Raises `Unsolved`."""
    # SciPy takes a while to import, and is rarely asked.
    import scipy.optimize as optimize  # pyright: ignore[reportMissingTypeStubs]
    from scipy.sparse import coo_array  # pyright: ignore[reportMissingTypeStubs]

    sizes = [len(costs) for costs in network.alone]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    ends, edges = int(starts[-1]), list(network.pairs)
    firsts: list[int] = []
    for a, b in edges:
        firsts.append(ends)
        ends += sizes[a] * sizes[b]
    flat = np.concatenate([*network.alone, *(network.pairs[edge].ravel() for edge in edges)])
    rows, columns, values, wanted = list[NDArray[np.intp]](), list[NDArray[np.intp]](), list[Costs](), list[float]()

    def constrain(ones: NDArray[np.intp], minus: int | None, equals: float) -> None:
        number = len(wanted)
        members = ones if minus is None else np.append(ones, minus)
        rows.append(np.full(len(members), number))
        columns.append(members)
        values.append(np.where(members == minus, -1.0, 1.0) if minus is not None else np.ones(len(members)))
        wanted.append(equals)

    for variable, size in enumerate(sizes):
        constrain(starts[variable] + np.arange(size), None, 1.0)
    for (a, b), first in zip(edges, firsts, strict=True):
        numbers = first + np.arange(sizes[a] * sizes[b]).reshape(sizes[a], sizes[b])
        for i in range(sizes[a]):
            constrain(numbers[i], int(starts[a]) + i, 0.0)
        for j in range(sizes[b]):
            constrain(numbers[:, j], int(starts[b]) + j, 0.0)
    place = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_array((np.concatenate(values), place), shape=(len(wanted), ends))
    integral = np.zeros(ends)
    integral[: starts[-1]] = 1
    there = np.isfinite(flat)
    # HiGHS wants numbers of about 1.
    scale = float(np.max(flat[there], initial=0.0)) or 1.0
    result: Any = optimize.milp(  # pyright: ignore[reportUnknownMemberType]
        np.where(there, flat, 0.0) / scale,
        integrality=integral,
        bounds=optimize.Bounds(np.zeros(len(flat)), there.astype(float)),  # pyright: ignore[reportArgumentType]
        constraints=optimize.LinearConstraint(matrix.tocsr(), wanted, wanted),  # pyright: ignore[reportArgumentType]
        options={"time_limit": SECONDS, "mip_rel_gap": 1e-6},
    )
    if result.x is None:
        raise Unsolved(str(result.message))
    shares: Costs = np.asarray(result.x)
    choice = tuple(int(shares[start : start + size].argmax()) for start, size in zip(starts[:-1], sizes, strict=True))
    least = float(result.mip_dual_bound)
    cost = network.cost(choice)
    bound = min(cost, least * scale)
    return Solution(choice, cost, bound, "HiGHS", ends)
