"""Finds the best choice of a network within a time limit, and a lower bound on the cost of any choice.

1. If the tables are small: variable elimination, which is exact. 2. Otherwise variables with at most two neighbours
are eliminated, which is exact too, and message passing finds a choice, a lower bound on any choice, and one on any
choice with a given value of a variable. Values whose bound is above the cost of a known choice are left out, which
loses nothing. 3. Variable elimination finds the best of the rest. If its tables are still too large, only the values
closest to the bound are kept; the result may then not be the best, and the bound limits the gap. 4. If a gap remains,
HiGHS gets the rest of the time for the rest of the network.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from runner.base.lazy import dataclass
from runner.programs.planning import clock, elimination, mixed_integer
from runner.programs.planning.costs import costs_more
from runner.programs.planning.lower_bound import Messages, Passed
from runner.programs.planning.network import Choice, Costs, Network, Numbers, greedy, restricted, trivial_bound
from runner.programs.planning.reduction import Reduced, reduced, unreduced

SECONDS = 30.0
"""The default time limit for solving a network, in seconds."""

_QUICK = 1_000_000
"""The most entries of the largest table for which a network is eliminated directly."""

_MOVED = 3_000_000
"""The most entries of the largest table for which mesh axes are moved, once values are left out."""

_SWEEPS = 8
"""The number of message passing sweeps before elimination is tried."""

_BESIDE = 200_000
"""The most entries of the largest table when looking for runners-up."""

_FEW = 4
"""The number of a variable's choices among which a runner-up is looked for."""

_ROUNDS = 4
"""The most rounds of leaving out choices, each with a better known choice."""

_PROGRESS = 0.05
"""HiGHS takes over when a round finds no better choice and closes less than this share of the gap."""

_SHRUNK = 0.7
"""A network is reduced only if at most this share of its entries is left."""

_PASSES, _UNTIMED = 4, 15
"""The number of times that `cheap` passes messages, and of the sweeps each time."""

_ENTRIES = 2_000_000
"""The most entries of all tables for which `cheap` passes messages."""

_RATE = 1_000_000
"""The entries of the largest table that elimination handles per second."""

_MAGNITUDES = 30.0
"""The smallest share of the gap that is tried, as a negative power of two."""

_HALVINGS = 10
"""The number of bisection steps for the share of the gap at which the tables are just small enough."""

_ELIMINATED, _PASSED = "variable elimination", "message passing"


@dataclass(frozen=True)
class Solution:
    """The best choice found.

    - `cost`: its cost; `bound`: a lower bound on the cost of any choice, equal to `cost` if it is proved to be the
      best.
    - `solver`: the method that found it; `largest`: the entries of the largest table eliminated, 0 if none was.
    """

    choice: Choice
    cost: float
    bound: float
    solver: str
    largest: int

    @property
    def proved(self) -> bool:
        """Whether the choice is proved to be the best."""
        return not costs_more(self.cost, self.bound)


def cheap(network: Network) -> Choice | None:
    """A choice found without regard to the clock, so that it is always the same; None if the network is too large.

    It is the best one if the tables are small, otherwise the best that is found near what a few sweeps of message
    passing meet, once variables with few neighbours are eliminated.
    """
    sizes = [len(costs) for costs in network.alone]
    if elimination.ordered(sizes, network.pairs)[1] <= _QUICK:
        return elimination.eliminated(network).choice
    if network.entries > _ENTRIES:
        return None
    less, best = reduced(network), None
    messages = Messages(less.network.pairs, [len(costs) for costs in less.network.alone])
    for _ in range(_PASSES):
        passed = messages.passed(less.network, _UNTIMED, math.inf)
        best = _narrowed(less.network, passed, _joined(best, passed), math.inf)
        if _close(best):
            break
    assert best is not None
    return less.whole(best.choice)


@dataclass(frozen=True, eq=False)
class _Start:
    """The result of the first message passing in a reduced network."""

    less: Reduced
    passed: Passed

    @cached_property
    def lower(self) -> Sequence[Costs]:
        """For each variable of the whole network, a lower bound on the cost of any choice with each of its values."""
        return self.less.lower(self.passed.lower)


class Solver:
    """Solves networks with the same pairs one after the other.

    The messages of one network are the warm start of the next.
    """

    def __init__(
        self, pairs: Collection[tuple[int, int]], sizes: Sequence[int], variables: Collection[int] = ()
    ) -> None:
        """A solver that looks for runners-up of `variables`."""
        self._sizes, self._variables = sizes, frozenset(variables)
        self._quick = elimination.ordered(sizes, pairs)[1] <= _QUICK
        self._messages: Messages | None = None
        self._known: Choice | None = None
        """The choice found for the last network, with which the search in the next one begins."""
        self._starts: weakref.WeakKeyDictionary[Network, _Start] = weakref.WeakKeyDictionary()
        """The first message passing in each network that still exists."""

    def solved(self, network: Network, until: float, *, thorough: bool = True) -> Solution:
        """The best choice found until the clock reaches `until`.

        `thorough`: whether all is tried to close the gap; otherwise what is found near the first messages is taken.
        """
        if self._quick:
            exact = elimination.eliminated(network)
            return Solution(exact.choice, exact.cost, exact.cost, _ELIMINATED, exact.largest)
        best = _first(network, self._known, until)
        less, messages = reduced(network, self._variables), self._messages
        if messages is None:
            messages = self._messages = Messages(less.network.pairs, [len(costs) for costs in less.network.alone])
        start = self._starts[network] = _Start(less, messages.passed(less.network, _SWEEPS, until))
        best = replace(best, choice=less.part(best.choice))
        if thorough:
            best = _improved(less.network, messages, start.passed, best, until)
        else:
            best = _narrowed(less.network, start.passed, _joined(best, start.passed), until)
        self._known = less.whole(best.choice)
        return replace(best, choice=self._known)

    def beside(self, network: Network, best: Choice) -> Beside:
        """The costs of other choices of the solver's variables, given the best choice of a network that was solved."""
        less = unreduced(network) if self._quick else self._starts[network].less
        numbers = {at: number for number, at in enumerate(less.kept) if at in self._variables}
        kept: Sequence[Numbers] = [np.arange(len(costs)) for costs in less.network.alone]
        if not self._quick:
            passed = self._starts[network].passed
            known = Solution(less.part(best), network.cost(best), passed.bound, _PASSED, 0)
            kept = _near(less.network, passed, known, list(numbers.values()))
        small = restricted(less.network, kept)
        every, least = elimination.least_of_each(small, list(numbers.values())), dict[int, Costs]()
        for variable, number in numbers.items():
            least[variable] = np.full(self._sizes[variable], np.inf)
            least[variable][kept[number]] = every[number]
        return Beside(least, numbers, less, small, kept)

    def lower(self, network: Network) -> Sequence[Costs]:
        """For each variable of a solved network, a lower bound on the cost of any choice with each of its values."""
        if self._quick:
            every = elimination.least_of_each(network, range(len(network.alone)))
            return [every[at] for at in range(len(network.alone))]
        return self._starts[network].lower


@dataclass(frozen=True)
class Beside:
    """The costs of choices other than the best, of some variables.

    - `least`: the cost of the best overall choice for each choice of some variables; infinite if not searched. If the
      tables are too large to search completely, a cheaper one may exist.
    """

    least: Mapping[int, Costs]
    _numbers: Mapping[int, int]
    _less: Reduced
    _network: Network
    _kept: Sequence[Numbers]

    def choice(self, variable: int, number: int) -> Choice:
        """The overall choice with this cost, for a value of a variable."""
        at = self._numbers[variable]
        only = [np.arange(len(costs)) for costs in self._network.alone]
        only[at] = np.array([int(np.searchsorted(self._kept[at], number))])
        choice = elimination.eliminated(restricted(self._network, only)).choice
        few = (int(mine[left[place]]) for mine, left, place in zip(self._kept, only, choice, strict=True))
        return self._less.whole(tuple(few))


def _near(network: Network, passed: Passed, best: Solution, variables: Collection[int]) -> Sequence[Numbers]:
    """The values of the best choice, those closest to the bound, and a few more of `variables`."""
    closest = _closest(network, passed, best, 2 * best.cost - passed.bound, _BESIDE)
    kept = closest or [np.array([number]) for number in best.choice]
    wider: dict[int, Numbers] = {}
    for variable in variables:
        lower = np.where(np.isfinite(network.alone[variable]), passed.lower[variable], np.inf)
        wider[variable] = np.union1d(kept[variable], np.argsort(lower, kind="stable")[:_FEW])
    every = [wider.get(at, mine) for at, mine in enumerate(kept)]
    if _fits(network, every, elimination.LARGEST):
        return every
    for variable, few in wider.items():
        more = [few if at == variable else mine for at, mine in enumerate(kept)]
        kept = more if _fits(network, more, elimination.LARGEST) else kept
    return kept


def _joined(best: Solution | None, passed: Passed) -> Solution:
    """The better of the known solution and the result of message passing."""
    other = Solution(passed.choice, passed.cost, passed.bound, _PASSED, 0)
    if best is None:
        return other
    better = best if best.cost <= other.cost else replace(other, largest=best.largest)
    return replace(better, bound=min(max(best.bound, other.bound), better.cost))


def _improved(network: Network, messages: Messages, passed: Passed, best: Solution | None, until: float) -> Solution:
    """Improve a known solution, None if there is none, from the result of message passing on.

    Values that are in no better choice are left out, and the network of the others is reduced again.
    """
    while True:
        before, best = best, _joined(best, passed)
        best = _searched(network, passed, _narrowed(network, passed, best, until), until)
        if _close(best) or clock.now() > until:
            return best
        stays = before is not None and best.cost >= before.cost
        if before is not None and stays and best.bound - before.bound <= _PROGRESS * (best.cost - before.bound):
            return _programmed(network, passed, best, until)
        kept = _below(network, passed, best)
        smaller = restricted(network, kept)
        if smaller.entries <= _SHRUNK * network.entries:
            less = reduced(smaller)
            messages = messages.restricted(smaller, kept).reduced(less)
            places = tuple(int(np.searchsorted(few, at)) for few, at in zip(kept, best.choice, strict=True))
            passed = messages.passed(less.network, _SWEEPS, until)
            rest = _improved(less.network, messages, passed, replace(best, choice=less.part(places)), until)
            whole = less.whole(rest.choice)
            return replace(rest, choice=tuple(int(mine[at]) for mine, at in zip(kept, whole, strict=True)))
        passed = messages.passed(network, _SWEEPS, until)


def _narrowed(network: Network, passed: Passed, best: Solution, until: float) -> Solution:
    """Improve a solution by eliminating the values that may be better, or those closest to the bound.

    Tables are as large as the time until `until` allows, and quick ones if that is infinite.
    """
    for _ in range(_ROUNDS):
        if _close(best) or clock.now() > until or not passed.sweeps:
            break
        kept = _below(network, passed, best)
        entries = 0 if math.isinf(until) else int((until - clock.now()) * _RATE)
        exact = _fits(network, kept, min(elimination.LARGEST, max(_QUICK, entries)))
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
    """The best choice among the values in `kept`, if it is better than `best`."""
    exact = elimination.eliminated(restricted(network, kept))
    best = replace(best, solver=f"{_PASSED} and {_ELIMINATED}", largest=max(best.largest, exact.largest))
    if exact.cost >= best.cost:
        return best
    choice = tuple(int(mine[at]) for mine, at in zip(kept, exact.choice, strict=True))
    return replace(best, choice=choice, cost=network.cost(choice))


def _first(network: Network, known: Choice | None, until: float) -> Solution:
    """A good solution, found before any message is passed: from a known choice, or where axes are split together."""
    choice = known or greedy(network)
    best = Solution(choice, network.cost(choice), trivial_bound(network), _ELIMINATED, 0)
    axes = range(network.places[0].shape[1]) if network.places else ()
    if known is None and len(axes) > 2:
        for at in range(1, len(axes)):
            kept = [_together(rows, np.flatnonzero(np.isfinite(costs)), (axes[:at], axes[at:]))
                    for rows, costs in zip(network.places, network.alone, strict=True)]  # fmt: skip
            if _fits(network, kept, _QUICK):
                best = _eliminated(network, kept, best)
        best = _searched(network, None, best, until)
    return best


def _together(rows: Numbers, values: Numbers, groups: Sequence[Sequence[int]]) -> Numbers:
    """The values that put all mesh axes of a group in the same place; all if none does."""
    alike = np.all([rows[values][:, group[0]] == rows[values][:, axis] for group in groups for axis in group], axis=0)
    return values[alike] if alike.any() else values


def _searched(network: Network, passed: Passed | None, best: Solution, until: float) -> Solution:
    """Improve a solution by moving one or two mesh axes in all variables at once, until nothing improves."""
    axes = range(network.places[0].shape[1]) if network.places else ()
    moves = [moved for many in (1, 2) for moved in itertools.combinations(axes, many)] if len(axes) > 2 else []
    failed = 0
    for moved in itertools.cycle(moves):
        if failed == len(moves) or _close(best) or clock.now() > until:
            break
        failed += 1
        others = [axis for axis in axes if axis not in moved]
        kept: list[Numbers] = []
        for rows, mine, below in zip(network.places, best.choice, _below(network, passed, best), strict=True):
            kept.append(below[(rows[below][:, others] == rows[mine, others]).all(axis=1)])
        if _fits(network, kept, _QUICK if passed is None else _MOVED):
            before, best = best, _eliminated(network, kept, best)
            failed = failed if _same(best.cost, before.cost) else 0
    return best


def _programmed(network: Network, passed: Passed, best: Solution, until: float) -> Solution:
    """Improve a solution by HiGHS in the time left, if the rest of the network is small enough."""
    left = until - clock.now()
    kept = _below(network, passed, best)
    small = restricted(network, kept)
    if left < 1.0 or small.entries > mixed_integer.LARGEST:
        return best
    choice, bound = mixed_integer.programmed(small, left)
    if choice is not None and small.cost(choice) < best.cost:
        choice = tuple(int(mine[at]) for mine, at in zip(kept, choice, strict=True))
        best = replace(best, choice=choice, cost=network.cost(choice), solver="HiGHS")
    return replace(best, bound=min(max(best.bound, bound), best.cost))


def _same(cost: float, other: float) -> bool:
    return abs(cost - other) <= 1e-9 * abs(other)


def _close(best: Solution) -> bool:
    return best.cost - best.bound <= 1e-9 * abs(best.cost)


def _fits(network: Network, kept: Sequence[Numbers], largest: int) -> bool:
    """Whether elimination needs no table with more than `largest` entries."""
    return elimination.ordered([len(mine) for mine in kept], network.pairs)[1] <= largest


def _below(network: Network, passed: Passed | None, best: Solution, limit: float | None = None) -> list[Numbers]:
    """For each variable the values whose bound is at most `limit`, and that of the best choice.

    The default limit is the cost of the best choice. Before any message is passed, they are all values.
    """
    if passed is None:
        return [np.flatnonzero(np.isfinite(costs)) for costs in network.alone]
    above = best.cost if limit is None else limit
    above += 1e-9 * abs(above)
    kept: list[Numbers] = []
    for costs, lower, mine in zip(network.alone, passed.lower, best.choice, strict=True):
        left = (lower <= above) & np.isfinite(costs)
        left[mine] = True
        kept.append(np.flatnonzero(left))
    return kept


def _closest(network: Network, passed: Passed, best: Solution, above: float, largest: int) -> list[Numbers] | None:
    """The values closest to the bound, as many below the cost `above` as fit elimination; None if none do."""
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
