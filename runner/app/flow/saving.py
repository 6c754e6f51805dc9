"""Chooses what checkpoints save for the backward pass, together with the layouts: each choice of names is planned.

What is saved takes memory, and what is not takes time, and collectives, to compute again. So the plan that saves
everything costs least, and is taken if its memory is within the limit. Of few names every choice is planned but those
that cannot cost less; of many, names are added one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from runner.base.chosen import EVERYTHING
from runner.base.lazy import dataclass
from runner.experiment import remat
from runner.experiment.remat import Saved
from runner.programs.planning.costs import costs_more, costs_the_same
from runner.programs.planning.plan import LayoutPlan


@dataclass(frozen=True, kw_only=True)
class OfSaved:
    """The plan with one choice of what is saved: its cost, the bytes that it needs, and the flops of what it computes
    again; `exceeds`: whether it needs more than the limit; `unlimited`: what it costs without one.
    """

    saved: tuple[str, ...] | str
    cost: float
    needed: float
    recomputed: float
    unlimited: float
    exceeds: bool = False


class HasPlan(Protocol):
    """What has a plan."""

    @property
    def plan(self) -> LayoutPlan:
        """The plan."""
        ...


P = TypeVar("P", bound=HasPlan)
S = TypeVar("S", bound=Saved)


def best(known: Sequence[str], plan_of: Callable[[Saved], P]) -> tuple[Saved, P, tuple[OfSaved, ...]]:
    """The best choice, its plan, and all that were planned, the best first.

    - `known`: the names of values; `plan_of`: makes the plan that saves some.
    """
    planned: dict[Saved, P] = {}
    planned[EVERYTHING] = plan_of(EVERYTHING)
    if not _is_unbound(planned[EVERYTHING].plan):
        if remat.are_few(known):
            _every(known, planned, plan_of)
        else:
            _one_by_one(known, planned, plan_of)
    first = _first(planned, planned)
    ranked = sorted(planned.items(), key=lambda each: (each[0] != first, _over(each[1].plan), each[1].plan.best.cost))
    return first, planned[first], tuple(_row(saved, each.plan) for saved, each in ranked)


def _every(known: Sequence[str], planned: dict[Saved, P], plan_of: Callable[[Saved], P]) -> None:
    """Plan every choice, those with most names first, but for parts of one to which the limit is no limit."""
    unbound = list[tuple[str, ...]]()
    for saved in remat.choices(known):
        if remat.supersets(saved, unbound):
            continue
        planned[saved] = plan_of(saved)
        if _is_unbound(planned[saved].plan):
            unbound.append(saved)


def _one_by_one(known: Sequence[str], planned: dict[Saved, P], plan_of: Callable[[Saved], P]) -> None:
    """Add the name to those that are saved with which the plan is best, as long as one makes it better."""
    saved: tuple[str, ...] = ()
    planned[saved] = plan_of(saved)
    while True:
        wider = [tuple(name for name in known if name in saved or name == more) for more in known if more not in saved]
        for each in wider:
            planned[each] = plan_of(each)
        better = [each for each in wider if _is_better(planned[each].plan, planned[saved].plan)]
        if not better:
            return
        saved = _first(better, planned)


def _first(some: Iterable[S], planned: Mapping[Saved, HasPlan]) -> S:
    """The choice than which fewest of some are better."""
    some = list(some)
    return min(some, key=lambda choice: sum(_is_better(planned[other].plan, planned[choice].plan) for other in some))


def number_of_choices(known: Sequence[str]) -> int:
    """How many choices of what is saved there are."""
    return 2 ** len(known) + 1


def _over(plan: LayoutPlan) -> float:
    """The bytes beyond the limit."""
    return max(0.0, plan.best.needed - plan.memory) if plan.memory is not None else 0.0


def _is_unbound(plan: LayoutPlan) -> bool:
    """Whether a plan is within the limit, and the limit costs nothing."""
    return not plan.exceeds and not costs_more(plan.best.cost, plan.unlimited)


def _is_better(plan: LayoutPlan, other: LayoutPlan) -> bool:
    """Whether a plan is closer to the limit, else costs less, else computes less again, else needs less."""
    if _over(plan) != _over(other):
        return _over(plan) < _over(other)
    if not costs_the_same(plan.best.cost, other.best.cost):
        return plan.best.cost < other.best.cost
    if not costs_the_same(plan.recomputed, other.recomputed):
        return plan.recomputed < other.recomputed
    return costs_more(other.best.needed, plan.best.needed)


def _row(saved: Saved, plan: LayoutPlan) -> OfSaved:
    best_ = plan.best
    return OfSaved(
        saved=saved, cost=best_.cost, needed=best_.needed, recomputed=plan.recomputed, unlimited=plan.unlimited,
        exceeds=_over(plan) > 0,
    )  # fmt: skip
