"""Sets the limit in the memory model of the next plan by what plans needed as compiled.

The model's bytes are not the compiler's. So the limit in the model moves until a compiled plan is within the limit and
leaves little of it unused: arrays and outputs take the same in both, and for the values in between the ratio of the
compiler's bytes to the model's is taken to be the same in the next plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from runner.base.lazy import dataclass
from runner.programs.planning.costs import costs_more

COMPILED = 6
"""The most plans that are compiled for one limit."""

SEARCHES = 12
"""The most plans that are made for one limit; of those with layouts that were compiled before nothing is compiled."""

_LOWERED = 2
"""How often the limit in the model is lowered before the plan that needs the least is compiled."""

_GAP = 0.02
"""The smallest difference of two limits in the model, as a share of the larger one, between which one is tried."""

ROOM = 0.05
"""The share of a limit that a compiled plan may leave unused, if the limit costs something."""

_LESS = 0.97
"""The share of the bytes of the smallest plan so far that the next one gets at most, if none is within the limit."""

_UNKNOWN = 0.75
"""That share if the compiler counted no bytes, as for a program that does not fit the hardware."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A plan within a limit of the model, and what its best candidate needs as compiled.

    - `limit`: the limit in the model, None for none; `candidate`: its folder, None if none was compiled.
    - `planned`: the bytes that the candidate needs in the model; `held`: those of arrays and outputs; `cost`: its cost.
    - `needed`: its bytes as compiled, None if unknown; `again`: whether an earlier round had the same candidates.
    - `exceeds`: whether the plan needs more than the limit in the model, since none was found that needs less.
    """

    limit: float | None
    planned: float
    held: float
    cost: float
    needed: int | None
    candidate: str | None = None
    again: bool = False
    exceeds: bool = False

    def within(self, memory: float) -> bool:
        """Whether the compiled candidate needs at most `memory` bytes."""
        return self.needed is not None and self.needed <= memory


def next_limit(rounds: Sequence[Round], memory: float, unlimited: float) -> float | None:
    """The limit in the model of the next plan: infinite for none, 0 for the least memory; None if there is no next one.

    After the plan within the limit comes that without one, unless it is the same. If a compiled plan is within the
    limit, larger limits in the model follow while it leaves some unused; if none is, smaller ones, then 0, then limits
    between those before, since a plan that needs more in the model may need less as compiled.

    `memory`: the limit of the compiled program; `unlimited`: the cost of the best plan without it.
    """
    compiled = sum(each.candidate is not None and not each.again for each in rounds)
    if compiled >= COMPILED or len(rounds) >= SEARCHES:
        return None
    limited = [each for each in rounds if each.limit is not None]
    if len(limited) == len(rounds) and all(costs_more(each.cost, unlimited) for each in limited):
        return math.inf
    within = [each for each in rounds if each.within(memory)]
    if within:
        return _larger(rounds, min(within, key=lambda each: each.cost), memory, unlimited)
    if any(each.exceeds for each in limited):
        return _between(rounds)
    if len([each for each in limited if each.limit != memory]) >= _LOWERED:
        return 0.0
    smallest = min(limited, key=lambda each: each.planned)
    return min(_corrected(smallest, memory), _LESS * smallest.planned)


def _larger(rounds: Sequence[Round], best: Round, memory: float, unlimited: float) -> float | None:
    """A limit in the model above the bytes of the best plan within `memory`; None if that leaves little to gain."""
    unused = 1 - (best.needed or 0) / memory
    if rounds[-1].again or not costs_more(best.cost, unlimited) or unused <= ROOM:
        return None
    larger = [each.planned for each in rounds if not each.within(memory) and each.planned > best.planned]
    limit = min(_corrected(best, memory), (best.planned + min(larger, default=math.inf)) / 2)
    return limit if limit > best.planned else None


def _between(rounds: Sequence[Round]) -> float | None:
    """The middle of the widest gap between limits in the model that plans were made for; None if it is small."""
    least = min(each.planned for each in rounds)
    sizes = [each.planned for each in rounds if each.candidate is not None]
    sizes += [each.limit for each in rounds if each.limit is not None]
    known = sorted(size for size in sizes if size >= least)
    gap, middle = max(((b - a) / b, (a + b) / 2) for a, b in itertools.pairwise([*known, known[-1]]))
    return middle if gap > _GAP else None


def _corrected(plan: Round, memory: float) -> float:
    """The limit in the model at which a plan such as this one needs `memory` bytes as compiled."""
    if plan.needed is None:
        return _UNKNOWN * plan.planned
    between, compiled = plan.planned - plan.held, plan.needed - plan.held
    if memory > plan.held and between > 0 and compiled > 0:
        return plan.held + (memory - plan.held) * between / compiled
    return plan.planned * memory / plan.needed
