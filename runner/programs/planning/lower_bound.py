"""Bounds the best cost of a network from below by passing messages, until a deadline, and finds a choice.

Sequential tree-reweighted message passing (Kolmogorov, 2006): costs are moved between variables that share a table,
forwards and backwards along an order, so that the sum of the chains' minima, a lower bound on every choice, grows. It
reaches the bound of the linear programming relaxation, or nearly so, with sweeps over the tables instead of a solver.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from runner.base.lazy import dataclass
from runner.programs.planning import clock
from runner.programs.planning.network import Choice, Costs, Network, Numbers, greedy, trivial_bound
from runner.programs.planning.reduction import Reduced

_FEWEST = 2
"""The fewest sweeps: the messages of the first one do not bound single choices yet."""

_CLOSE = 1e-5
"""The relative gap at which message passing stops; elimination decides between the choices that are left."""

_least = np.minimum.reduce
"""The method `min` of an array, without its wrapper, which takes as long as these small tables do."""


@dataclass(frozen=True)
class Passed:
    """The result of message passing.

    - `choice`, `cost`: the best choice met; `bound`: a lower bound on the cost of any choice.
    - `lower`: for each variable, a lower bound on the cost of any choice with each of its values.
    - `sweeps`: the number of completed sweeps forwards and backwards.
    """

    choice: Choice
    cost: float
    bound: float
    lower: tuple[Costs, ...]
    sweeps: int


class Messages:
    """The messages between a network's tables, kept as a warm start for networks with the same pairs."""

    def __init__(self, pairs: Mapping[tuple[int, int], Costs], sizes: Sequence[int]) -> None:
        self._before: list[list[int]] = [[] for _ in sizes]
        self._after: list[list[int]] = [[] for _ in sizes]
        self._costs: dict[tuple[int, int], Costs] = {}
        """The costs of the present network's pairs, in both directions."""
        self._messages: dict[tuple[int, int], Costs] = {}
        for a, b in pairs:
            self._after[a].append(b)
            self._before[b].append(a)
            self._messages[a, b], self._messages[b, a] = np.zeros(sizes[b]), np.zeros(sizes[a])
        chains = (max(len(after), len(before), 1) for after, before in zip(self._after, self._before, strict=True))
        self._share = [1.0 / many for many in chains]

    def restricted(self, network: Network, kept: Sequence[Numbers]) -> Messages:
        """The messages of the network in which each variable has only the choices in `kept`."""
        fewer = Messages(network.pairs, [len(mine) for mine in kept])
        for (a, b), message in self._messages.items():
            fewer._messages[a, b] = message[kept[b]]
        return fewer

    def reduced(self, less: Reduced) -> Messages:
        """The messages of the reduced network: from a removed variable, they are those from its other neighbour."""
        messages = dict(self._messages)
        for each in less.removed:
            received = {other: messages.pop((each.variable, other)) for other in each.others}
            for other in each.others:
                del messages[other, each.variable]
            if len(each.others) == 2:
                for before, after in itertools.permutations(each.others):
                    messages[before, after] = received[after] + messages.get((before, after), 0.0)
        fewer = Messages(less.network.pairs, [len(costs) for costs in less.network.alone])
        numbers = {at: number for number, at in enumerate(less.kept)}
        fewer._messages = {(numbers[a], numbers[b]): message for (a, b), message in messages.items()}
        return fewer

    def passed(self, network: Network, sweeps: int, until: float) -> Passed:
        """Pass messages until the gap is closed, `sweeps` are done, or the work counted reaches `until`."""
        for (a, b), costs in network.pairs.items():
            self._costs[a, b], self._costs[b, a] = costs, costs.T
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
        """The costs of a variable's choices with all messages to it."""
        costs = network.alone[variable]
        for other in (*self._before[variable], *self._after[variable]):
            costs = costs + self._messages[other, variable]
        return costs

    def _sent(self, variable: int, other: int, gathered: Costs) -> float:
        """Update the message from a variable to another; returns the minimum that is subtracted from it."""
        clock.count(self._costs[variable, other].size)
        along = self._share[variable] * gathered - self._messages[other, variable]
        message = _least(self._costs[variable, other] + along[:, None], axis=0)
        least = float(_least(message))
        self._messages[variable, other] = message - least
        return least

    def _forward(self, network: Network, bound: float | None, lower: list[Costs], until: float) -> Choice | None:
        """Sweep forwards, and return the choice made on the way; None if time is up.

        `bound`: the bound that the present messages prove, None before the first sweep backwards. It raises `lower` in
        place.
        """
        choice = [0] * len(network.alone)
        for variable, alone in enumerate(network.alone):
            if clock.now() > until:
                return None
            gathered = self._gathered(network, variable)
            # Here all chains through the variable have messages from both ends, so this excess holds for each choice.
            if bound is not None:
                np.maximum(lower[variable], bound + gathered - _least(gathered), out=lower[variable])
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
        """Sweep backwards, and return the bound that this proves; None if time is up."""
        bound = 0.0
        for variable in reversed(range(len(network.alone))):
            if clock.now() > until:
                return None
            gathered = self._gathered(network, variable)
            least = float(_least(gathered))
            bound += least
            for other in self._before[variable]:
                bound += self._sent(variable, other, gathered - least)
        return bound
