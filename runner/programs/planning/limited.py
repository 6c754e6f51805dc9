"""Finds the best choice of a network within a limit of memory.

Memory has a price at each step of the schedule, so that the cheapest choice at some prices, less what the limit costs
at these, is a lower bound on the cost of any choice within the limit. 1. Rising prices at the steps at which choices
need most lead to a choice within the limit. 2. The prices of the highest bound are found with cutting planes: each
choice met bounds what any prices can prove. 3. Choices at prices lie on the convex hull of cost and memory; for those
between them HiGHS gets the limit itself, and the values that the bound does not exclude, as many as it can handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner.base.lazy import dataclass
from runner.programs.planning import clock, mixed_integer
from runner.programs.planning.memory import Memory
from runner.programs.planning.network import Costs, Network, Numbers, Table, restricted
from runner.programs.planning.solving import Solution, Solver

_ROUNDS = 24
"""The most prices that are tried."""

_IDLE = 6
"""The number of higher prices after which no choice that needs less is expected."""

_FIRST = 16.0
"""What the cost of the best choice is divided by for the first price of the whole limit, and how much prices rise."""

_CONVERGED = 1e-3
"""The relative distance of a bound from the highest that prices can prove at which the search for prices ends."""

_ENTRIES = 10_000
"""The most entries of all pairs of a network that HiGHS gets with a memory limit; it takes a few seconds for these."""

_HALVINGS = 12
"""The number of bisection steps for the share of the gap at which a network is just small enough."""


class TooLittleMemory(Exception):
    """Arrays and outputs alone exceed the limit; `least`: the bytes that they take in any layouts."""

    def __init__(self, least: float) -> None:
        super().__init__(f"no layout fits: arrays and outputs need at least {round(least)} bytes of a device")
        self.least = least


@dataclass(frozen=True)
class Limited:
    """The best choice within a limit, or that which needs the least memory of those that were met.

    - `priced`: the network with the prices of memory at which the bound is proved.
    - `unlimited`: the cost of the best choice without the limit.
    """

    solution: Solution
    priced: Network
    unlimited: float


@dataclass(frozen=True)
class _Met:
    """A choice at some prices, its cost without these, and the bytes that a device needs at each step."""

    solution: Solution
    profile: Costs

    @property
    def needed(self) -> float:
        return float(self.profile.max())


def limited(solver: Solver, network: Network, memory: Memory, limit: float | None, until: float) -> Limited:
    """The best choice that needs at most `limit` bytes of a device, found by `until`. Raises `TooLittleMemory`."""
    search = _Search(solver, network, memory, limit, until)
    first = search.at(None, 1.0 if limit is None else 0.5)
    if limit is None or first.needed <= limit:
        return Limited(first.solution, network, first.solution.cost)
    if memory.least > limit:
        raise TooLittleMemory(memory.least)
    search.raise_prices()
    search.improve_prices()
    search.choose_between()
    return Limited(search.solution(), search.priced, first.solution.cost)


class _Search:
    """The choices met so far, and the highest bound."""

    def __init__(self, solver: Solver, network: Network, memory: Memory, limit: float | None, until: float) -> None:
        self._solver, self._network, self._memory, self._until = solver, network, memory, until
        self._limit = float("inf") if limit is None else limit
        self._met: list[_Met] = []
        self._most = 0.0
        """The highest price of the whole limit so far."""
        self._bound, self._spent = -np.inf, 0.0
        """The highest bound, and the price of the whole limit at which it is proved."""
        self.priced = network
        """The network at the prices of the highest bound."""

    def at(self, prices: Costs | None, share: float) -> _Met:
        """Solve at the prices of the whole limit at each step, in a share of the time left."""
        now = clock.now()
        network = self._network
        if prices is not None:
            network = network.plus(self._memory.priced(prices / self._limit))
        until = min(self._until, now + max(1.0, share * (self._until - now)))
        solution = self._solver.solved(network, until, thorough=prices is None)
        spent = 0.0 if prices is None else float(prices.sum())
        if solution.bound - spent > self._bound:
            self._bound, self._spent, self.priced = solution.bound - spent, spent, network
        return self._record(replace(solution, cost=self._network.cost(solution.choice)))

    def _record(self, solution: Solution) -> _Met:
        self._met.append(_Met(solution, self._memory.profile(solution.choice)))
        return self._met[-1]

    @property
    def _best(self) -> _Met | None:
        """The cheapest choice met that is within the limit."""
        within = [met for met in self._met if met.needed <= self._limit]
        return min(within, key=lambda met: met.solution.cost, default=None)

    @property
    def _proved_or_late(self) -> bool:
        """Whether the best choice within the limit is proved, or there is no time left."""
        best = self._best
        proved = best is not None and replace(best.solution, bound=self._bound).proved
        return proved or clock.now() > self._until

    @property
    def _ended(self) -> bool:
        """Whether no further prices are tried."""
        return self._proved_or_late or len(self._met) > _ROUNDS

    def solution(self) -> Solution:
        """The best choice within the limit, else that which needs least."""
        best = self._best or min(self._met, key=lambda met: met.needed)
        return replace(best.solution, bound=min(self._bound, best.solution.cost))

    def raise_prices(self) -> None:
        """Raise the prices where choices need most, until one is within the limit or none needs less."""
        cost = self._met[0].solution.cost
        self._most = max(abs(cost), 1e-3 * self._network.largest, 1e-12)
        price = self._most / _FIRST
        steps = [int(self._met[0].profile.argmax())]
        idle, least = 0, self._met[0].needed
        while not self._ended and self._best is None and idle < _IDLE:
            prices = np.zeros_like(self._met[0].profile)
            prices[steps] = price / len(steps)
            met = self.at(prices, 0.25)
            peak = int(met.profile.argmax())
            idle, least = (0, met.needed) if met.needed < least else (idle + 1, least)
            if met.needed > self._limit and peak not in steps:
                steps.append(peak)
            elif self._best is None:
                price *= _FIRST
                self._most = max(self._most, price)

    def improve_prices(self) -> None:
        """Move the prices to those of the highest bound."""
        while not self._ended and self._best is not None:
            prices, provable = self._provable()
            if provable - self._bound <= _CONVERGED * abs(provable):
                break
            self.at(prices, 0.25)

    def _provable(self) -> tuple[Costs, float]:
        """The prices with the highest bound that the choices met so far leave possible, and that bound."""
        # SciPy is slow to import and rarely needed.
        import scipy.optimize as optimize  # pyright: ignore[reportMissingTypeStubs]

        costs = np.array([met.solution.cost for met in self._met])
        excess = np.stack([met.profile for met in self._met]) / self._limit - 1
        steps = np.flatnonzero((excess > 0).any(axis=0))
        scale = self._most
        # The variables are the bound and the prices; a choice's cost at the prices bounds the bound.
        rows = np.concatenate([np.ones((len(costs), 1)), -excess[:, steps]], axis=1)
        most = np.concatenate([[0.0], np.ones(len(steps))])[None, :]
        result: Any = optimize.linprog(  # pyright: ignore[reportUnknownMemberType]
            np.concatenate([[-1.0], np.zeros(len(steps))]),
            A_ub=np.concatenate([rows, most]),
            b_ub=np.concatenate([costs / scale, [1.0]]),
            bounds=[(None, None), *[(0.0, None)] * len(steps)],
        )
        prices = np.zeros(excess.shape[1])
        prices[steps] = scale * np.maximum(result.x[1:], 0.0)
        return prices, scale * float(result.x[0])

    def choose_between(self) -> None:
        """Let HiGHS choose between values that the bound does not exclude, within the limit at the steps that matter.

        If they are all of these, its bound holds for any choice.
        """
        if self._proved_or_late:
            return
        kept, whole = self._values()
        small = restricted(self._network, kept)
        steps = list(dict.fromkeys(int(met.profile.argmax()) for met in self._met if met.needed > self._limit))
        while not self._proved_or_late:
            left = self._until - clock.now()
            choice, bound = mixed_integer.programmed(small, left, [self._row(step, kept) for step in steps])
            if whole:
                best = self._best
                self._bound = max(self._bound, min(bound, np.inf if best is None else best.solution.cost))
            if choice is None:
                return
            choice = tuple(int(mine[at]) for mine, at in zip(kept, choice, strict=True))
            cost = self._network.cost(choice)
            met = self._record(Solution(choice, cost, self._bound, "HiGHS", 0))
            peak = int(met.profile.argmax())
            if met.needed <= self._limit or peak in steps:
                return
            steps.append(peak)

    def _values(self) -> tuple[list[Numbers], bool]:
        """For each variable the values that may be in a better choice, as many as HiGHS can handle; whether all."""
        lower = [costs - self._spent for costs in self._solver.lower(self.priced)]
        best = self._best

        def below(limit: float) -> list[Numbers]:
            """The values that were met, and those whose bound is at most `limit`."""
            values: list[Numbers] = []
            for at, (costs, alone) in enumerate(zip(lower, self._network.alone, strict=True)):
                near = (costs <= limit) & np.isfinite(alone)
                near[[met.solution.choice[at] for met in self._met]] = True
                values.append(np.flatnonzero(near))
            return values

        every = below(np.inf if best is None else best.solution.cost + 1e-9 * abs(best.solution.cost))
        if _entries(self._network, every) <= _ENTRIES:
            return every, True
        high = max(met.solution.cost for met in self._met) if best is None else best.solution.cost
        low, values = self._bound, below(-np.inf)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = below(middle)
            if _entries(self._network, tried) <= _ENTRIES:
                low, values = middle, tried
            else:
                high = middle
        return values, False

    def _row(self, step: int, kept: Sequence[Numbers]) -> dict[tuple[int, ...], Table]:
        """The share of the limit that a device needs at a step, for each of the kept values of variables and pairs."""
        prices = np.zeros_like(self._met[0].profile)
        prices[step] = 1 / self._limit
        tables = self._memory.priced(prices)
        return {
            variables: Table(table.costs[np.ix_(*(kept[at] for at in variables))])
            for variables, table in tables.items()
        }


def _entries(network: Network, kept: Sequence[Numbers]) -> int:
    return sum(len(kept[a]) * len(kept[b]) for a, b in network.tables)
