"""The limits in the model of the plans for one memory limit, from what compiled plans need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.app.flow.memory_limit import COMPILED, ROOM, SEARCHES, Round, next_limit
from runner.app.flow.planning import as_compiled
from runner.compiled.estimate.model import Estimate
from tests.evidence import program

LEAST, MOST = 40.0, 100.0
"""The bytes of the smallest plan in the model, and of the one without a limit, which costs least."""


def rounds(compiled: Callable[[float], float], memory: float) -> list[Round]:
    """Return the plans for a limit: the model can have any bytes between both, and less costs more.

    `compiled`: the bytes of a plan as compiled, from those in the model; a tenth of these are arrays and outputs.
    """
    made: list[Round] = []
    limit: float | None = memory
    while limit is not None:
        planned = min(MOST, max(LEAST, limit))
        needed = int(compiled(planned))
        made.append(
            Round(
                limit=None if limit > MOST * 10 else limit,
                planned=planned,
                held=0.1 * planned,
                cost=MOST / planned,
                needed=needed,
                candidate=f"at {planned}",
                again=any(each.planned == planned for each in made),
                exceeds=planned > limit,
            )
        )
        limit = next_limit(made, memory, 1.0)
    assert len(made) <= SEARCHES
    assert sum(not each.again for each in made) <= COMPILED
    return made


def within(made: list[Round], memory: float) -> Round | None:
    """Return the cheapest plan within a limit."""
    return min((each for each in made if each.within(memory)), key=lambda each: each.cost, default=None)


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.0, 1.3, 1.9])
@pytest.mark.parametrize("memory", [80.0, 95.0])
def test_the_best_plan_within_a_limit_leaves_little_of_it_unused(ratio: float, memory: float) -> None:
    made = rounds(lambda planned: 0.1 * planned + ratio * 0.9 * planned, memory)
    best = within(made, memory)
    assert best is not None
    assert best.cost == 1.0 or (best.needed or 0) >= (1 - ROOM) * memory - 1


def test_the_plan_without_a_limit_is_taken_if_it_needs_less_as_compiled() -> None:
    best = within(rounds(lambda planned: 60.0 if planned == MOST else 90.0, 70.0), 70.0)
    assert best is not None
    assert best.limit is None


def test_a_plan_that_needs_more_in_the_model_may_be_the_only_one_within_the_limit() -> None:
    """The smallest plan in the model and that without a limit both need more as compiled."""
    best = within(rounds(lambda planned: 50.0 if 60 < planned < 80 else 120.0, 55.0), 55.0)
    assert best is not None
    assert 60 < best.planned < 80


def test_a_limit_that_nothing_is_within_is_given_up_after_the_least_and_those_in_between() -> None:
    made = rounds(lambda planned: 2 * planned, 30.0)
    assert within(made, 30.0) is None
    assert min(each.planned for each in made) == LEAST
    assert max(each.planned for each in made) == MOST


def test_a_plan_that_fits_and_costs_nothing_is_the_only_one() -> None:
    assert len(rounds(lambda planned: planned, 120.0)) == 1


def test_a_program_whose_bytes_are_unknown_is_followed_by_a_smaller_one() -> None:
    first = Round(limit=90.0, planned=90.0, held=9.0, cost=1.0, needed=None, candidate="a")
    assert next_limit([first], 90.0, 1.0) == pytest.approx(0.75 * 90.0)


def test_the_estimate_of_collectives_that_cannot_be_read_is_not_known() -> None:
    estimate = Estimate(
        hardware="v5p", seconds=1e-3, compute=1e-3, communication=0.0, hidden=0.0, overlapped=1e-3, bottleneck=None,
        fits=True, lines=[], collectives=[], unknown=[],
    )  # fmt: skip
    known = as_compiled("auto", program(estimate=estimate))
    assert (known.bytes_sent, known.seconds) == (0, 1e-3)
    unknown = as_compiled("auto", program(estimate=estimate, bytes_sent=None))
    assert (unknown.bytes_sent, unknown.seconds) == (None, None)
