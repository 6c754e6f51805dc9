"""Finds the choices that no other one dominates, in networks of several costs of the same choices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from runner.programs.planning import clock
from runner.programs.planning.costs import costs_more, costs_the_same
from runner.programs.planning.network import Choice, Costs, Network, Table
from runner.programs.planning.solving import Solver

_POINTS = 12
"""The most points of a front that are searched for."""


def front(networks: Sequence[Network], until: float) -> list[Choice]:
    """The choices found on the Pareto front, sorted by their costs, so that the first costs least in `networks[0]`.

    The networks have the same variables and choices, each with one kind of cost. Bisection over weightings of each two
    of them finds the points, so those in a concave part of the front are missed. The search ends when the work reaches
    `until`.
    """
    choices = [_best(networks, [at == number for at in range(len(networks))], until) for number in range(len(networks))]
    for a, b in itertools.combinations(range(len(networks)), 2):
        choices += _between(networks, (a, b), (choices[a], choices[b]), until, _POINTS // len(networks))
    return undominated(networks, choices)


def _between(
    networks: Sequence[Network], pair: tuple[int, int], ends: tuple[Choice, Choice], until: float, most: int
) -> Iterator[Choice]:
    """Yield choices below the line between two choices, found with weights that make the two cost the same."""
    queue = [ends]
    for _ in range(most):
        if not queue or clock.now() > until:
            return
        first, second = queue.pop(0)
        (a, b), costs = pair, [[networks[at].cost(choice) for at in pair] for choice in (first, second)]
        weights = [0.0] * len(networks)
        weights[a], weights[b] = costs[0][1] - costs[1][1], costs[1][0] - costs[0][0]
        if min(weights[a], weights[b]) <= 0:
            continue
        middle = _best(networks, weights, until)
        line, there = (
            weights[a] * networks[a].cost(choice) + weights[b] * networks[b].cost(choice) for choice in (first, middle)
        )
        if costs_more(line, there):
            yield middle
            queue += [(first, middle), (middle, second)]


def _best(networks: Sequence[Network], weights: Sequence[float], until: float) -> Choice:
    """The best choice for some weights, found in half of the time left, so that others have time too."""
    whole = weighted(networks, weights)
    now = clock.now()
    solver = Solver(whole.pairs, [len(costs) for costs in whole.alone])
    return solver.solved(whole, now + (until - now) / 2).choice


def weighted(networks: Sequence[Network], weights: Sequence[float]) -> Network:
    """The network of the weighted sum of costs; costs of weight 0 only break ties."""
    scales = [
        max((float(costs[np.isfinite(costs)].max(initial=0)) for costs in n.alone), default=1.0) for n in networks
    ]
    least = [_TIE * scales[0] / scale if scale else 0.0 for scale in scales]
    factors = [float(weight) or few for weight, few in zip(weights, least, strict=True)]

    def total(costs: Sequence[Costs]) -> Costs:
        return functools.reduce(np.add, [factor * each for factor, each in zip(factors, costs, strict=True)])

    shared: dict[tuple[Table, ...], Table] = {}
    tables: dict[tuple[int, int], Table] = {}
    for pair in dict.fromkeys(pair for network in networks for pair in network.tables):
        summands = tuple(network.tables[pair] for network in networks)
        if summands not in shared:
            shared[summands] = Table(total([table.costs for table in summands]))
        tables[pair] = shared[summands]
    alone = tuple(total(costs) for costs in zip(*(network.alone for network in networks), strict=True))
    return Network(alone, tables, networks[0].places)


_TIE = 1e-9


def undominated(networks: Sequence[Network], choices: Sequence[Choice]) -> list[Choice]:
    """The choices that no other one beats in one cost without losing in another, sorted by their costs."""
    costs = {choice: [network.cost(choice) for network in networks] for choice in choices}

    def beats(other: Choice, choice: Choice) -> bool:
        pairs = list(zip(costs[other], costs[choice], strict=True))
        less = any(costs_more(theirs, mine) for mine, theirs in pairs)
        return less and not any(costs_more(mine, theirs) for mine, theirs in pairs)

    left = [choice for choice in costs if not any(beats(other, choice) for other in costs)]
    kept: list[Choice] = []
    for choice in sorted(left, key=lambda choice: costs[choice]):
        if not any(all(map(costs_the_same, costs[choice], costs[other])) for other in kept):
            kept.append(choice)
    return kept
