"""Builds the network whose cheapest choice is a plan, from costs of single variables and of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.base.lazy import dataclass

Costs: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.intp]
Choice: TypeAlias = tuple[int, ...]
"""The number of the chosen value of each variable."""


@dataclass(frozen=True, eq=False)
class Table:
    """Costs that several pairs of variables may share. A table equals only itself, so it can be a key."""

    costs: Costs


@dataclass(frozen=True, eq=False)
class Network:
    """Variables, their choices and the costs of these. A network equals only itself, so it can be a key.

    - `alone`: the cost of each choice of each variable; infinite if it is excluded.
    - `tables`: the cost of each combination of choices of two variables, the smaller number first; all finite.
    - `places`: for each variable a row per choice that says where it puts each mesh axis, or empty if unknown. Choices
      that differ in few axes are close to each other.
    """

    alone: tuple[Costs, ...]
    tables: Mapping[tuple[int, int], Table]
    places: tuple[Numbers, ...] = ()

    @cached_property
    def pairs(self) -> Mapping[tuple[int, int], Costs]:
        """The costs of each pair of variables."""
        return {pair: table.costs for pair, table in self.tables.items()}

    def cost(self, choice: Choice) -> float:
        """The total cost of a choice."""
        single = sum(float(costs[choice[at]]) for at, costs in enumerate(self.alone))
        return single + sum(float(costs[choice[a], choice[b]]) for (a, b), costs in self.pairs.items())

    @property
    def entries(self) -> int:
        """The number of entries of all pairs together."""
        return sum(costs.size for costs in self.pairs.values())

    @property
    def distinct(self) -> int:
        """The number of entries of all tables, those that pairs share counted once."""
        return sum(table.costs.size for table in dict.fromkeys(self.tables.values()))

    @property
    def largest(self) -> float:
        """The largest cost of a pair."""
        return max((float(table.costs.max()) for table in dict.fromkeys(self.tables.values())), default=0.0)

    def plus(self, extra: Mapping[tuple[int, ...], Table], factor: float = 1.0) -> Network:
        """The network with extra costs, times a factor, for the choices of some variables and pairs that it has."""
        alone, tables = list(self.alone), dict(self.tables)
        # Pairs that share a table keep sharing it.
        shared: dict[tuple[Table, Table], Table] = {}
        for variables, more in extra.items():
            if len(variables) == 1:
                (at,) = variables
                alone[at] = alone[at] + factor * more.costs
            else:
                a, b = variables
                key = tables[a, b], more
                if key not in shared:
                    shared[key] = Table(tables[a, b].costs + factor * more.costs)
                tables[a, b] = shared[key]
        return replace(self, alone=tuple(alone), tables=tables)


def restricted(network: Network, kept: Sequence[Numbers]) -> Network:
    """The network in which each variable has only the choices in `kept`."""
    alone = tuple(costs[mine] for costs, mine in zip(network.alone, kept, strict=True))
    whole = [len(mine) == len(costs) for costs, mine in zip(network.alone, kept, strict=True)]
    # Pairs that share a table keep sharing it if they keep the same choices.
    shared: dict[tuple[Table, bytes, bytes], Table] = {}
    tables: dict[tuple[int, int], Table] = {}
    for (a, b), table in network.tables.items():
        if whole[a] and whole[b]:
            tables[a, b] = table
            continue
        key = table, kept[a].tobytes(), kept[b].tobytes()
        if key not in shared:
            shared[key] = Table(table.costs[np.ix_(kept[a], kept[b])])
        tables[a, b] = shared[key]
    places = tuple(rows[mine] for rows, mine in zip(network.places, kept, strict=True)) if network.places else ()
    return Network(alone, tables, places)


def greedy(network: Network) -> Choice:
    """A choice made variable by variable, each the cheapest given those before it."""
    costs = list(network.alone)
    of: list[list[int]] = [[] for _ in costs]
    for a, b in network.pairs:
        of[a].append(b)
    choice: list[int] = []
    for variable, mine in enumerate(costs):
        choice.append(int(mine.argmin()))
        for other in of[variable]:
            costs[other] = costs[other] + network.pairs[variable, other][choice[-1]]
    return tuple(choice)


def trivial_bound(network: Network) -> float:
    """The sum of the minima of all tables, a lower bound on the cost of any choice."""
    return sum(float(costs.min()) for costs in network.alone) + sum(float(c.min()) for c in network.pairs.values())
