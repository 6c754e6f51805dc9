"""A network, and the seconds that there are, in; the best choice that is found, and a bound on the best there is, out.

1. Where the tables are small, variable elimination, which is exact.
2. Else message passing finds a choice, what the best one costs at least, and what any does that has a given choice of
   a variable. What costs more than a choice that is known is left out: that loses nothing.
3. Of what is left variable elimination finds the best. Where its tables are too large still, only the choices closest
   to the bound are kept: what is found then may not be the best, and the bound says how far it is from it at most.
4. Where that leaves a gap, HiGHS gets what is left of the time for what is left of the network.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.planning import elimination, program
from runner.planning.messages import Messages, Passed
from runner.planning.network import Choice, Costs, Network, Numbers, restricted

SECONDS = 30.0
"""How long a network is solved, unless somebody says otherwise."""

_QUICK = 1_000_000
"""Up to so many entries of its largest table a network is eliminated as it is."""

_SWEEPS = 15
"""How often messages are passed before elimination tries what is left."""

_BESIDE = 200_000
"""Up to so many entries of the largest table, to find what is second."""

_FEW = 4
"""How many choices of a variable are looked at to say which one is second."""

_ROUNDS = 4
"""How often choices are left out anew, since a better choice is known."""

_PROGRESS = 0.05
"""What share of the gap messages have to close, or nothing better be found, before HiGHS gets what is left."""

_SHRUNK = 0.7
"""The share of a network's entries that may be left where it is worth while to leave out the others."""

_RATE = 1_000_000
"""The entries of the largest table for which there has to be a second."""

_MAGNITUDES = 30.0
"""How small a share of the gap is tried, as a power of two."""

_HALVINGS = 10
"""How closely the share of the gap is found of which the tables are just small enough."""

_ELIMINATED, _PASSED = "variable elimination", "message passing"


@dataclass(frozen=True)
class Solution:
    """The best choice that was found.

    - `cost`: what it costs; `bound`: what the best one costs at least: the same where it is proved to be the best.
    - `solver`: what found it; `largest`: the entries of the largest table that was eliminated, 0 where none was.
    """

    choice: Choice
    cost: float
    bound: float
    solver: str
    largest: int

    @property
    def proved(self) -> bool:
        """Whether no choice costs less."""
        return self.cost - self.bound <= 1e-6 * max(abs(self.cost), 1e-300)


class Solver:
    """Solves networks that have the same pairs, one after the other, each in `seconds`.

    A network's messages are where those of the next one begin.
    """

    def __init__(self, pairs: Mapping[tuple[int, int], Costs], sizes: Sequence[int], seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._sizes = sizes
        quick = elimination.ordered(sizes, pairs)[1] <= _QUICK
        self._messages = None if quick else Messages(pairs, sizes)
        self._last: tuple[Network | None, Passed] = None, Passed((), np.inf, -np.inf, (), 0)
        """What message passing came to last, and of which network."""

    def solved(self, network: Network, until: float | None = None) -> Solution:
        """The best choice, or the best that was found in the time that there is."""
        until = until or time.perf_counter() + self.seconds
        if self._messages is None:
            exact = elimination.eliminated(network)
            return Solution(exact.choice, exact.cost, exact.cost, _ELIMINATED, exact.largest)
        best: Solution | None = None
        whole, messages = network, self._messages
        left = [np.arange(len(costs)) for costs in network.alone]
        while best is None or not (_close(best) or time.perf_counter() > until):
            passed = messages.passed(network, _SWEEPS, until)
            if network is whole:
                self._last = whole, passed
            before, best = best, _joined(best, passed)
            best = _searched(network, passed, _narrowed(network, passed, best, until), until)
            stays = before is not None and best.cost >= before.cost
            if before is not None and stays and best.bound - before.bound <= _PROGRESS * (best.cost - before.bound):
                best = _programmed(network, passed, best, until)
                break
            # What is in no better choice need not be passed again.
            kept = _below(network, passed, best)
            smaller = restricted(network, kept)
            if smaller.entries <= _SHRUNK * network.entries:
                network, messages = smaller, messages.restricted(smaller, kept)
                left = [mine[few] for mine, few in zip(left, kept, strict=True)]
                places = (np.searchsorted(few, at) for few, at in zip(kept, best.choice, strict=True))
                best = replace(best, choice=tuple(int(at) for at in places))
        return replace(best, choice=tuple(int(mine[at]) for mine, at in zip(left, best.choice, strict=True)))

    def beside(self, network: Network, best: Choice, variables: Collection[int]) -> Beside:
        """What other choices of some variables cost, of a network whose best choice is known."""
        if self._messages is None:
            kept: Sequence[Numbers] = [np.arange(len(costs)) for costs in network.alone]
            small = network
        else:
            known, passed = self._last
            if known is not network:
                passed = self._messages.passed(network, _SWEEPS, time.perf_counter() + self.seconds)
            kept = self._near(network, passed, Solution(best, network.cost(best), passed.bound, _PASSED, 0), variables)
            small = restricted(network, kept)
        least: dict[int, Costs] = {}
        for variable, costs in elimination.least_of_each(small, variables).items():
            least[variable] = np.full(self._sizes[variable], np.inf)
            least[variable][kept[variable]] = costs
        return Beside(least, small, kept)

    def _near(self, network: Network, passed: Passed, best: Solution, variables: Collection[int]) -> Sequence[Numbers]:
        """The best one's choices, those closest to the bound, and of some variables a few more."""
        closest = _closest(network, passed, best, 2 * best.cost - passed.bound, _BESIDE)
        kept = closest or [np.array([number]) for number in best.choice]
        for variable in variables:
            lower = np.where(np.isfinite(network.alone[variable]), passed.lower[variable], np.inf)
            few = np.argsort(lower, kind="stable")[:_FEW]
            wider = [np.union1d(mine, few) if at == variable else mine for at, mine in enumerate(kept)]
            kept = wider if _fits(network, wider, elimination.LARGEST) else kept
        return kept


@dataclass(frozen=True)
class Beside:
    """What choices cost that are not the best.

    - `least`: for each choice of some variables what the best choice of all others costs with it, infinite where that
      was not looked into. Where tables are too large for all choices of the others, there may be a cheaper one.
    """

    least: Mapping[int, Costs]
    _network: Network
    _kept: Sequence[Numbers]

    def choice(self, variable: int, number: int) -> Choice:
        """The choice of all that costs this."""
        place = int(np.searchsorted(self._kept[variable], number))
        only = [np.arange(len(costs)) for costs in self._network.alone]
        only[variable] = np.array([place])
        found = elimination.eliminated(restricted(self._network, only)).choice
        return tuple(int(self._kept[at][only[at][mine]]) for at, mine in enumerate(found))


def _joined(best: Solution | None, passed: Passed) -> Solution:
    """The better of what is known and of what message passing came to."""
    other = Solution(passed.choice, passed.cost, passed.bound, _PASSED, 0)
    if best is None:
        return other
    better = best if best.cost <= other.cost else replace(other, largest=best.largest)
    return replace(better, bound=min(max(best.bound, other.bound), better.cost))


def _narrowed(network: Network, passed: Passed, best: Solution, until: float) -> Solution:
    """What elimination makes better, of the choices that may be in a better one, or of those closest to the bound."""
    for _ in range(_ROUNDS):
        if _close(best) or time.perf_counter() > until or not passed.sweeps:
            break
        kept = _below(network, passed, best)
        entries = (until - time.perf_counter()) * _RATE
        exact = _fits(network, kept, min(elimination.LARGEST, max(_QUICK, int(entries))))
        if not exact:
            kept = _closest(network, passed, best, best.cost, _QUICK)
            if kept is None:
                break
        before, best = best, _eliminated(network, kept, best)
        if exact:
            return replace(best, bound=best.cost)
        if _same(best.cost, before.cost):
            break
    return best


def _eliminated(network: Network, kept: Sequence[Numbers], best: Solution) -> Solution:
    """The best of some choices, where it is better."""
    exact = elimination.eliminated(restricted(network, kept))
    best = replace(best, solver=f"{_PASSED} and {_ELIMINATED}", largest=max(best.largest, exact.largest))
    if exact.cost >= best.cost:
        return best
    choice = tuple(int(mine[at]) for mine, at in zip(kept, exact.choice, strict=True))
    return replace(best, choice=choice, cost=network.cost(choice))


def _searched(network: Network, passed: Passed, best: Solution, until: float) -> Solution:
    """What moving one mesh axis, or two, of all variables at once makes better, until none does."""
    axes = range(network.places[0].shape[1]) if network.places else ()
    moves = [moved for many in (1, 2) for moved in itertools.combinations(axes, many)] if len(axes) > 2 else []
    failed = 0
    for moved in itertools.cycle(moves):
        if failed == len(moves) or _close(best) or time.perf_counter() > until:
            break
        failed += 1
        others = [axis for axis in axes if axis not in moved]
        kept: list[Numbers] = []
        for rows, mine, below in zip(network.places, best.choice, _below(network, passed, best), strict=True):
            kept.append(below[(rows[below][:, others] == rows[mine, others]).all(axis=1)])
        if _fits(network, kept, _QUICK):
            before, best = best, _eliminated(network, kept, best)
            failed = failed if _same(best.cost, before.cost) else 0
    return best


def _programmed(network: Network, passed: Passed, best: Solution, until: float) -> Solution:
    """What HiGHS makes better in the time that is left, where what is left of the network is not too large for it."""
    left = until - time.perf_counter()
    kept = _below(network, passed, best)
    small = restricted(network, kept)
    if left < 1.0 or small.entries > program.LARGEST:
        return best
    choice, bound = program.programmed(small, left)
    if choice is not None and small.cost(choice) < best.cost:
        choice = tuple(int(mine[at]) for mine, at in zip(kept, choice, strict=True))
        best = replace(best, choice=choice, cost=network.cost(choice), solver="HiGHS")
    return replace(best, bound=min(max(best.bound, bound), best.cost))


def _same(cost: float, other: float) -> bool:
    return abs(cost - other) <= 1e-9 * abs(other)


def _close(best: Solution) -> bool:
    return best.cost - best.bound <= 1e-9 * abs(best.cost)


def _fits(network: Network, kept: Sequence[Numbers], largest: int) -> bool:
    """Whether no table of an elimination has more entries."""
    return elimination.ordered([len(mine) for mine in kept], network.pairs)[1] <= largest


def _below(network: Network, passed: Passed, best: Solution, limit: float | None = None) -> list[Numbers]:
    """For each variable the choices with which a choice of all may cost no more than a limit, and the best one's.

    Where there is no limit, no more than the best one costs.
    """
    above = best.cost if limit is None else limit
    above += 1e-9 * abs(above)
    kept: list[Numbers] = []
    for costs, lower, mine in zip(network.alone, passed.lower, best.choice, strict=True):
        left = (lower <= above) & np.isfinite(costs)
        left[mine] = True
        kept.append(np.flatnonzero(left))
    return kept


def _closest(network: Network, passed: Passed, best: Solution, above: float, largest: int) -> list[Numbers] | None:
    """As many of the choices below a cost as can be eliminated, those closest to the bound; None where that is none."""
    low, high = -_MAGNITUDES, 0.0
    closest: list[Numbers] | None = None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        kept = _below(network, passed, best, passed.bound + (above - passed.bound) * 2.0**middle)
        if _fits(network, kept, largest):
            low, closest = middle, kept
        else:
            high = middle
    return closest


def solved(network: Network, seconds: float = SECONDS) -> Solution:
    """The best choice of one network."""
    return Solver(network.pairs, [len(costs) for costs in network.alone], seconds).solved(network)
