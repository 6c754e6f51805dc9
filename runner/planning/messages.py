"""A network, and a time, in; a choice, a bound on what the best one costs, and one on what each choice does, out.

Sequential tree-reweighted message passing (Kolmogorov, 2006): costs are moved between variables that share a table,
along the chains of an order and back, so that the sum of each chain's least, which no choice is below, grows. It is
the bound of the linear program's relaxation, or close to it, for two sweeps over the tables instead of a solver.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.planning.network import Choice, Costs, Network, Numbers, greedy, trivial_bound

_FEWEST = 2
"""The sweeps that there are in any case: the first one's messages say nothing yet of single choices."""

_CLOSE = 1e-5
"""The share of its cost by which a choice may be above the bound: elimination decides between those that are left."""


@dataclass(frozen=True)
class Passed:
    """What message passing came to.

    - `choice`, `cost`: the best that was seen; `bound`: what the best one costs at least.
    - `lower`: for each variable what any choice costs at least that has this one of it.
    - `sweeps`: how often all tables were passed, there and back.
    """

    choice: Choice
    cost: float
    bound: float
    lower: tuple[Costs, ...]
    sweeps: int


class Messages:
    """The messages of a network's tables, which are kept: where only `alone` changes they are a good start."""

    def __init__(self, pairs: Mapping[tuple[int, int], Costs], sizes: Sequence[int]) -> None:
        self._before: list[list[int]] = [[] for _ in sizes]
        self._after: list[list[int]] = [[] for _ in sizes]
        self._costs: dict[tuple[int, int], Costs] = {}
        self._messages: dict[tuple[int, int], Costs] = {}
        for (a, b), costs in pairs.items():
            self._after[a].append(b)
            self._before[b].append(a)
            self._costs[a, b], self._costs[b, a] = costs, costs.T
            self._messages[a, b], self._messages[b, a] = np.zeros(sizes[b]), np.zeros(sizes[a])
        chains = (max(len(after), len(before), 1) for after, before in zip(self._after, self._before, strict=True))
        self._share = [1.0 / many for many in chains]

    def restricted(self, network: Network, kept: Sequence[Numbers]) -> Messages:
        """Those of the network in which each variable has some of its choices alone."""
        fewer = Messages(network.pairs, [len(mine) for mine in kept])
        for (a, b), message in self._messages.items():
            fewer._messages[a, b] = message[kept[b]]
        return fewer

    def passed(self, network: Network, sweeps: int, until: float) -> Passed:
        """Pass messages until the choice is close to the bound, at most so often, or till the clock is at `until`."""
        choice = greedy(network)
        cost, bound = network.cost(choice), trivial_bound(network)
        lower = [np.full(len(costs), -np.inf) for costs in network.alone]
        done = 0
        current: float | None = None
        while done < _FEWEST or (done < sweeps and cost - bound > _CLOSE * abs(cost)):
            passed = self._forward(network, current, lower, until)
            if passed is None:
                break
            now = network.cost(passed)
            raised = self._backward(network, until)
            if raised is None:
                break
            if now < cost:
                choice, cost = passed, now
            bound, current = max(bound, raised), raised
            done += 1
        return Passed(choice, cost, min(bound, cost), tuple(lower), done)

    def _gathered(self, network: Network, variable: int) -> Costs:
        """What the choices of a variable cost, with all that was moved to it."""
        costs = network.alone[variable]
        for other in (*self._before[variable], *self._after[variable]):
            costs = costs + self._messages[other, variable]
        return costs

    def _sent(self, variable: int, other: int, gathered: Costs) -> float:
        """Move costs from a variable to another one; what they have at least, which the message does not have."""
        along = self._share[variable] * gathered - self._messages[other, variable]
        message = (self._costs[variable, other] + along[:, None]).min(axis=0)
        least = float(message.min())
        self._messages[variable, other] = message - least
        return least

    def _forward(self, network: Network, bound: float | None, lower: list[Costs], until: float) -> Choice | None:
        """A sweep; the choice that it makes on the way, None where time is up.

        `bound` is what the messages prove as they are, None where no sweep back has made them agree yet.
        """
        choice = [0] * len(network.alone)
        for variable, alone in enumerate(network.alone):
            if time.perf_counter() > until:
                return None
            gathered = self._gathered(network, variable)
            # All chains through a variable have their messages from both ends here, so that each of them has this more.
            if bound is not None:
                np.maximum(lower[variable], bound + gathered - gathered.min(), out=lower[variable])
            costs = alone
            for other in self._before[variable]:
                costs = costs + self._costs[other, variable][choice[other]]
            for other in self._after[variable]:
                costs = costs + self._messages[other, variable]
            choice[variable] = int(costs.argmin())
            for other in self._after[variable]:
                self._sent(variable, other, gathered)
        return tuple(choice)

    def _backward(self, network: Network, until: float) -> float | None:
        """The sweep back; the bound that it proves, None where time is up."""
        bound = 0.0
        for variable in reversed(range(len(network.alone))):
            if time.perf_counter() > until:
                return None
            gathered = self._gathered(network, variable)
            least = float(gathered.min())
            bound += least
            for other in self._before[variable]:
                bound += self._sent(variable, other, gathered - least)
        return bound
