"""The costs of single variables and of pairs in; the network whose cheapest choice is a plan out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Costs: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.intp]
Choice: TypeAlias = tuple[int, ...]
"""The number of the chosen value of each variable."""


@dataclass(frozen=True)
class Network:
    """Variables, their choices and the costs of these.

    - `alone`: the cost of each choice of each variable; infinite if it is excluded.
    - `pairs`: the cost of each combination of choices of two variables, the smaller number first; all finite.
    - `places`: for each variable a row per choice that says where it puts each mesh axis, or empty if unknown. Choices
      that differ in few axes are close to each other.
    """

    alone: tuple[Costs, ...]
    pairs: Mapping[tuple[int, int], Costs]
    places: tuple[Numbers, ...] = ()

    def cost(self, choice: Choice) -> float:
        """The total cost of a choice."""
        single = sum(float(costs[choice[at]]) for at, costs in enumerate(self.alone))
        return single + sum(float(costs[choice[a], choice[b]]) for (a, b), costs in self.pairs.items())

    @property
    def entries(self) -> int:
        """The number of entries of all pairs together."""
        return sum(costs.size for costs in self.pairs.values())

    @property
    def largest(self) -> float:
        """The largest cost of a pair."""
        return max(
            (float(costs.max()) for costs in {id(each): each for each in self.pairs.values()}.values()), default=0.0
        )

    def plus(self, extra: Mapping[tuple[int, ...], Costs], factor: float = 1.0) -> Network:
        """The network with extra costs, times a factor, for the choices of some variables and pairs that it has."""
        alone, pairs = list(self.alone), dict(self.pairs)
        # Pairs that share a table keep sharing it.
        shared: dict[tuple[int, int], Costs] = {}
        for variables, costs in extra.items():
            if len(variables) == 1:
                (at,) = variables
                alone[at] = alone[at] + factor * costs
            else:
                a, b = variables
                key = id(pairs[a, b]), id(costs)
                if key not in shared:
                    shared[key] = pairs[a, b] + factor * costs
                pairs[a, b] = shared[key]
        return replace(self, alone=tuple(alone), pairs=pairs)


def restricted(network: Network, kept: Sequence[Numbers]) -> Network:
    """The network in which each variable has only the choices in `kept`."""
    alone = tuple(costs[mine] for costs, mine in zip(network.alone, kept, strict=True))
    whole = [len(mine) == len(costs) for costs, mine in zip(network.alone, kept, strict=True)]
    # Pairs that share a table keep sharing it if they keep the same choices.
    shared: dict[tuple[int, bytes, bytes], Costs] = {}
    pairs: dict[tuple[int, int], Costs] = {}
    for (a, b), costs in network.pairs.items():
        if whole[a] and whole[b]:
            pairs[a, b] = costs
            continue
        key = id(costs), kept[a].tobytes(), kept[b].tobytes()
        if key not in shared:
            shared[key] = costs[np.ix_(kept[a], kept[b])]
        pairs[a, b] = shared[key]
    places = tuple(rows[mine] for rows, mine in zip(network.places, kept, strict=True)) if network.places else ()
    return Network(alone, pairs, places)


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
