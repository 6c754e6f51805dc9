"""Reduces a network to variables with more than two neighbours, with the same least cost.

Another variable is minimised over for each choice of its neighbours, which leaves a cost of one variable or of a pair.
It is kept if its choices and those of its neighbours have too many combinations.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from runner.base.lazy import dataclass
from runner.programs.planning import clock
from runner.programs.planning.network import Choice, Costs, Network, Table

_COMBINATIONS = 10_000_000
"""The most combinations of choices of a variable and of its neighbours for which it is removed."""


@dataclass(frozen=True)
class Removed:
    """A variable with one neighbour or two, by their numbers in the whole network.

    - `alone`: the cost of each of its choices; `pairs`: that of each combination with a neighbour's, a row per choice.
    - `least`: the cost of its best choice, for each choice of its neighbours.
    """

    variable: int
    others: tuple[int, ...]
    alone: Costs
    pairs: tuple[Costs, ...]
    least: Costs

    def best(self, choice: Mapping[int, int]) -> int:
        """The number of its best choice, given those of its neighbours."""
        costs = self.alone
        for other, pair in zip(self.others, self.pairs, strict=True):
            costs = costs + pair[:, choice[other]]
        return int(costs.argmin())

    def lower(self, bounds: Mapping[int, Costs]) -> Costs:
        """A lower bound on the cost of any choice with each of its values, from such bounds of its neighbours."""
        above = bounds[self.others[0]]
        if len(self.others) == 2:
            above = np.maximum(above[:, None], bounds[self.others[1]][None, :])
        # A choice costs more than the best one of its neighbours' choices by what it costs more itself.
        base = above - self.least
        return self.alone + [float((_outer(rows) + base).min()) for rows in zip(*self.pairs, strict=True)]


@dataclass(frozen=True)
class Reduced:
    """The network of the variables that are left; `kept`: their numbers in the whole network, in order."""

    network: Network
    kept: tuple[int, ...]
    removed: tuple[Removed, ...]

    def part(self, choice: Choice) -> Choice:
        """The choices of the variables that are left."""
        return tuple(choice[at] for at in self.kept)

    def whole(self, choice: Choice) -> Choice:
        """The best choice of the whole network, given one of the variables that are left."""
        numbers = dict(zip(self.kept, choice, strict=True))
        for each in reversed(self.removed):
            numbers[each.variable] = each.best(numbers)
        return tuple(numbers[at] for at in range(len(numbers)))

    def lower(self, bounds: Sequence[Costs]) -> tuple[Costs, ...]:
        """For each variable of the whole network a lower bound on the cost of any choice with each of its values.

        `bounds`: those of the variables that are left.
        """
        of = dict(zip(self.kept, bounds, strict=True))
        for each in reversed(self.removed):
            of[each.variable] = each.lower(of)
        return tuple(of[at] for at in range(len(of)))


def unreduced(network: Network) -> Reduced:
    """The network as it is."""
    return Reduced(network, tuple(range(len(network.alone))), ())


def reduced(network: Network, keep: Collection[int] = ()) -> Reduced:
    """Remove variables with at most two neighbours, the fewest combinations first; those in `keep` stay."""
    left = _Left(network)
    queue = [(left.combinations(at), at) for at in range(len(network.alone))]
    heapq.heapify(queue)
    while queue:
        many, variable = heapq.heappop(queue)
        if variable not in keep and many == left.combinations(variable) <= _COMBINATIONS:
            for other in left.remove(variable):
                heapq.heappush(queue, (left.combinations(other), other))
    return left.reduced(network)


class _Left:
    """The variables that are left, and their costs."""

    def __init__(self, network: Network) -> None:
        self.beside: dict[int, set[int]] = {at: set() for at in range(len(network.alone))}
        """The neighbours of each variable that is left."""
        self._alone, self._tables = list(network.alone), dict(network.tables)
        for a, b in network.tables:
            self.beside[a].add(b)
            self.beside[b].add(a)
        self._removed: list[Removed] = []
        self._joined: dict[Hashable, Table] = {}
        """The tables of variables with the same costs, which share them."""

    def combinations(self, variable: int) -> float:
        """The number of combinations of choices of a variable and its neighbours; infinite if it has not 1 or 2."""
        beside = self.beside.get(variable, ())
        if not 0 < len(beside) <= 2:
            return math.inf
        return math.prod((len(self._alone[at]) for at in beside), start=len(self._alone[variable]))

    def remove(self, variable: int) -> tuple[int, ...]:
        """Minimise over a variable, and return its neighbours."""
        others, alone = tuple(sorted(self.beside.pop(variable))), self._alone[variable]
        keys = [(min(variable, other), max(variable, other)) for other in others]
        tables = [self._tables.pop(key) for key in keys]
        # The choices of the variable are rows.
        pairs = tuple(t.costs if key[0] == variable else t.costs.T for t, key in zip(tables, keys, strict=True))
        turned = tuple(key[0] == variable for key in keys)
        key = alone.tobytes(), tuple(tables), turned
        if key not in self._joined:
            clock.count(0.6 * math.prod((len(alone), *(pair.shape[1] for pair in pairs))), len(alone))
            self._joined[key] = Table(_least(alone, pairs))
        least = self._joined[key]
        self._removed.append(Removed(variable, others, alone, pairs, least.costs))
        for other in others:
            self.beside[other].discard(variable)
        if len(others) == 1:
            self._alone[others[0]] = self._alone[others[0]] + least.costs
        else:
            a, b = others
            self.beside[a].add(b)
            self.beside[b].add(a)
            known = self._tables.get((a, b))
            if known is not None and (known, least) not in self._joined:
                self._joined[known, least] = Table(known.costs + least.costs)
            self._tables[a, b] = least if known is None else self._joined[known, least]
        return others

    def reduced(self, network: Network) -> Reduced:
        """The network that is left of a whole one."""
        kept = tuple(self.beside)
        numbers = {at: number for number, at in enumerate(kept)}
        tables = {(numbers[a], numbers[b]): table for (a, b), table in sorted(self._tables.items(), key=_pair)}
        places = tuple(network.places[at] for at in kept) if network.places else ()
        return Reduced(Network(tuple(self._alone[at] for at in kept), tables, places), kept, tuple(self._removed))


def _pair(item: tuple[tuple[int, int], Table]) -> tuple[int, int]:
    return item[0]


def _outer(rows: Sequence[Costs]) -> Costs:
    return rows[0] if len(rows) == 1 else np.add.outer(*rows)


def _least(alone: Costs, pairs: Sequence[Costs]) -> Costs:
    """The least cost of a variable's choices, for each choice of its neighbours."""
    least = np.full(tuple(pair.shape[1] for pair in pairs), np.inf)
    first = pairs[0] + alone[:, None]
    for rows in zip(first, *pairs[1:], strict=True):
        np.minimum(least, _outer(rows), out=least)
    return least
