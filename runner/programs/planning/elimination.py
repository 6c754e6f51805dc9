"""Finds the cheapest choice of a network exactly, by variable elimination.

Each variable is minimised over for every choice of its neighbours, the variable with the smallest table first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence

import numpy as np

from runner.base.lazy import dataclass
from runner.programs.planning import clock
from runner.programs.planning.network import Choice, Costs, Network

LARGEST = 20_000_000
"""The most entries that a table may have."""


class TooLarge(Exception):
    """A table would have more than `LARGEST` entries."""


@dataclass(frozen=True)
class Eliminated:
    """The best choice, its cost, and the number of entries of the largest table."""

    choice: Choice
    cost: float
    largest: int


@dataclass(frozen=True)
class _Table:
    """The cost for each combination of choices of the variables `over`, one dimension per variable."""

    over: tuple[int, ...]
    costs: Costs

    def spread(self, over: Sequence[int]) -> Costs:
        """The costs with dimensions of size 1 added for the other variables of `over`, which has the same order."""
        return self.costs.reshape(tuple(self.costs.shape[self.over.index(v)] if v in self.over else 1 for v in over))


@dataclass(frozen=True)
class _Bucket:
    """An eliminated variable; `costs` is the sum of all tables that it occurred in.

    The dimensions of `costs` are the variable itself, then `others`, sorted by number.
    """

    variable: int
    others: tuple[int, ...]
    costs: Costs

    @property
    def least(self) -> Costs:
        """The cost of the variable's best choice, for each choice of the others."""
        return self.costs.min(axis=0)


def eliminated(network: Network) -> Eliminated:
    """The best choice of a network. Raises `TooLarge`."""
    buckets, largest = _eliminate(network)
    choice = [0] * len(network.alone)
    for bucket in reversed(buckets):
        choice[bucket.variable] = int(bucket.costs[(slice(None), *(choice[v] for v in bucket.others))].argmin())
    return Eliminated(tuple(choice), network.cost(tuple(choice)), largest)


def least_of_each(network: Network, variables: Collection[int]) -> dict[int, Costs]:
    """The cost of the best overall choice for each fixed choice of each of some variables.

    A backward pass over the elimination gives all of them in about the time of two solutions. Raises `TooLarge`.
    """
    buckets, _ = _eliminate(network)
    places = {bucket.variable: at for at, bucket in enumerate(buckets)}
    roots = math.fsum(float(bucket.least) for bucket in buckets if not bucket.others)
    children: dict[int, list[int]] = {}
    for at, bucket in enumerate(buckets):
        if bucket.others:
            children.setdefault(min(places[v] for v in bucket.others), []).append(at)
    marginals: dict[int, Costs] = {}
    above: dict[int, Costs] = {}
    for at in reversed(range(len(buckets))):
        bucket = buckets[at]
        outside = above.pop(at) if bucket.others else np.array(roots - float(bucket.least))
        whole = bucket.costs + outside
        if bucket.variable in variables:
            marginals[bucket.variable] = whole.min(axis=tuple(range(1, whole.ndim)))
        over = (bucket.variable, *bucket.others)
        for below in children.get(at, ()):
            theirs = buckets[below]
            dropped = tuple(d for d, v in enumerate(over) if v not in theirs.others)
            kept = [v for v in over if v in theirs.others]
            reduced = np.transpose(whole.min(axis=dropped), [kept.index(v) for v in theirs.others])
            least = theirs.least
            above[below] = np.where(np.isfinite(least), reduced, 0.0) - np.where(np.isfinite(least), least, 0.0)
    return marginals


def _eliminate(network: Network) -> tuple[list[_Bucket], int]:
    """The buckets of all variables in elimination order, and the number of entries of the largest table."""
    sizes = [len(costs) for costs in network.alone]
    order, largest = ordered(sizes, network.pairs)
    if largest > LARGEST:
        raise TooLarge(f"a table would have {largest:,} entries")
    alone, pairs = list(network.alone), dict[tuple[int, int], Costs]()
    for (a, b), costs in network.pairs.items():
        if sizes[a] == 1:
            alone[b] = alone[b] + costs[0]
        elif sizes[b] == 1:
            alone[a] = alone[a] + costs[:, 0]
        else:
            pairs[a, b] = costs
    # The numbers of the tables that each variable occurs in.
    tables = dict(enumerate(_Table((at,), costs) for at, costs in enumerate(alone)))
    tables |= {len(tables) + at: _Table(pair, costs) for at, (pair, costs) in enumerate(pairs.items())}
    of: list[set[int]] = [set() for _ in sizes]
    for number, table in tables.items():
        for variable in table.over:
            of[variable].add(number)
    after = len(tables)
    buckets: list[_Bucket] = []
    for variable in order:
        mine = [tables[number] for number in of[variable]]
        if len(mine) == 1 and mine[0].over == (variable,):
            buckets.append(_Bucket(variable, (), mine[0].costs))
            continue
        for number in list(of[variable]):
            for v in tables.pop(number).over:
                of[v].discard(number)
        others = tuple(sorted({v for table in mine for v in table.over} - {variable}))
        joint = np.zeros((1,) * (len(others) + 1))
        for table in sorted(mine, key=lambda table: table.costs.size):
            clock.count(math.prod(sizes[v] for v in (variable, *others)))
            part = _first(table, variable).spread((variable, *others))
            # Large tables are added in place.
            if np.broadcast_shapes(joint.shape, part.shape) == joint.shape:
                joint += part
            else:
                joint = joint + part
        bucket = _Bucket(variable, others, joint)
        buckets.append(bucket)
        if others:
            tables[after] = _Table(others, bucket.least)
            for v in others:
                of[v].add(after)
            after += 1
    return buckets, largest


def _first(table: _Table, variable: int) -> _Table:
    """The table with a variable as its first dimension and the others sorted by number."""
    over = (variable, *sorted(set(table.over) - {variable}))
    return _Table(over, np.transpose(table.costs, [table.over.index(v) for v in over]))


def ordered(sizes: Sequence[int], pairs: Collection[tuple[int, int]]) -> tuple[list[int], int]:
    """The elimination order, the smallest table first, and the number of entries of the largest table.

    - `sizes`: the number of choices of each variable.
    - `pairs`: the pairs of variables with a cost; variables with a single choice do not count.
    """
    beside: list[set[int]] = [set() for _ in sizes]
    for a, b in pairs:
        if sizes[a] > 1 and sizes[b] > 1:
            beside[a].add(b)
            beside[b].add(a)

    def table(variable: int) -> float:
        return math.prod((sizes[v] for v in beside[variable]), start=float(sizes[variable]))

    entries = [table(variable) for variable in range(len(sizes))]
    # Variables with a single choice, which are most in a late network, need no queue.
    order, largest, done = [at for at, size in enumerate(sizes) if size == 1], 1, [False] * len(sizes)
    queue = [(each, variable) for variable, each in enumerate(entries) if sizes[variable] != 1]
    heapq.heapify(queue)
    while queue:
        each, variable = heapq.heappop(queue)
        if done[variable] or each != entries[variable]:
            continue
        done[variable] = True
        largest = max(largest, int(min(each, 1e18)))
        order.append(variable)
        near = beside[variable]
        for v in near:
            beside[v] |= near
            beside[v] -= {v, variable}
        for v in near:
            entries[v] = table(v)
            heapq.heappush(queue, (entries[v], v))
    return order, largest
