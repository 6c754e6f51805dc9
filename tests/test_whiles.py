"""A while takes steps until its condition is false, in every program and the oracle; rounding may change how many."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.checks import oracles
from runner.checks.diagnosis import mutants
from runner.checks.reference import CannotInterpret, interpret
from runner.experiment import data
from runner.reports.record.verdicts import ValueOutput
from tests import harness

NEWTON = """
arrays:
  a: {shape: [8], init: "arange(1, 9)", spec: [x]}
graph:
  newton:
    while: going
    carry: {x: a, going: "True", steps: 0}
    body:
      new: 0.5 * (x + a / x)
      going: max(abs(new - x)) > 1e-3
      steps: steps + 1
      x: new
  root: newton.x
  steps: newton.steps
per_device:
  newton:
    while: going
    carry: {x: a, going: "True", steps: 0}
    body:
      new: 0.5 * (x + a / x)
      going: pmax(max(abs(new - x)), 'x') > 1e-3
      steps: steps + 1
      x: new
  root: newton.x
  steps: newton.steps
outputs: {root: [x], steps: []}
"""


@pytest.fixture(scope="module")
def newton(tmp_path_factory: pytest.TempPathFactory) -> harness.Outcome:
    return harness.run(NEWTON, tmp_path_factory.mktemp("newton"))


@pytest.mark.in_turn
def test_every_program_takes_the_steps(newton: harness.Outcome) -> None:
    assert newton.failures() == []
    assert list(newton.runs) == ["auto", "constraint", "explicit", "derived", "shard_map", "vmap"]
    for name, source in newton.sources.items():
        assert "jax.lax.while_loop(lambda carry: carry[1], " in source or name == "derived"
        assert "jax.lax.while_loop(" in source
        np.testing.assert_allclose(newton.value(name, "root"), np.sqrt(np.arange(1, 9)), rtol=1e-6)
        assert newton.value(name, "steps") == 5


def test_the_number_of_its_collectives_is_not_known(newton: harness.Outcome) -> None:
    compiled = newton.record.compiled["shard_map"]
    (collective,) = [each for each in compiled.collectives or () if "newton.going" in each.nodes]
    assert (collective.kind, collective.count) == ("all-reduce", None)


@pytest.mark.in_turn
def test_a_derived_while_is_read_back_from_its_lines(newton: harness.Outcome) -> None:
    derivation = newton.types.derivation
    assert derivation is not None
    (loop,) = (line for line in derivation.per_device.values() if isinstance(line, dict))
    assert set(loop) == {"while", "carry", "body"}
    assert "counted for 10 steps of 'newton'" in "; ".join(derivation.notes)


SUMMED = """
arrays:
  tenth: {shape: [], init: "0.1", spec: []}
graph:
  summing:
    while: going
    carry: {s: 0.0 * tenth, count: 0, going: "True"}
    body: {s: s + tenth, count: count + 1, going: s < LIMIT}
  s: summing.s
  count: summing.count
outputs: {s: [], count: []}
program: auto
"""
"""In float64 ten tenths are less than 1, in float32 more."""


@pytest.mark.parametrize(("limit", "steps"), [("1.0", (10, 11)), ("0.95", None)])
def test_rounding_may_change_the_number_of_steps(limit: str, steps: tuple[int, int] | None, tmp_path: Path) -> None:
    outcome = harness.run(SUMMED.replace("LIMIT", limit), tmp_path)
    assert outcome.failures() == []
    assert outcome.value("auto", "count") == 10
    verdict = outcome.checks["auto"].value.outputs["count"]
    assert isinstance(verdict, ValueOutput)
    if steps is None:
        assert verdict.undecided is None
        return
    assert verdict.undecided is not None
    (place,) = (place for place in verdict.undecided.places if place.operation == "while")
    assert (place.line, place.least_steps, place.most_steps) == ("summing", *steps)


@pytest.mark.in_turn
def test_a_while_that_rounding_keeps_from_ending_is_warned_of(tmp_path: Path) -> None:
    text = GRAPH.replace("max(abs(new - x)) > 1e-3", "max(abs(x * x - a)) > 1e-12")
    context = harness.consulted(harness.experiment(text), tmp_path)
    (doubt,) = oracles.doubts(context)
    assert doubt == "rounding may keep the while of graph.newton from ending, by keeping its condition true"


@pytest.mark.in_turn
def test_devices_without_collectives_take_their_own_numbers_of_steps(tmp_path: Path) -> None:
    text = """
arrays:
  a: {shape: [4], init: [1.0, 9.0, 3.0, 40.0], spec: [x]}
graph:
  b: concatenate([a[:2] / 16, a[2:] / 64])
per_device:
  halving:
    while: going
    carry: {b: a, going: "max(a) > 1.0"}
    body: {b: b / 2, going: max(b) > 1.0}
  b: halving.b
outputs: {b: [x]}
"""
    outcome = harness.run(text, tmp_path)
    assert outcome.failures() == []
    np.testing.assert_array_equal(outcome.value("shard_map", "b"), [1 / 16, 9 / 16, 3 / 64, 40 / 64])


GRAPH = NEWTON[: NEWTON.index("per_device:")] + "outputs: {root: [x]}\n"
DEVICES = NEWTON.replace("going: pmax(max(abs(new - x)), 'x') > 1e-3", "going: max(new) > psum(max(x), 'x')")


REFUSED = {
    "'on' is not carried; the carried value of that name says whether another step is taken": GRAPH.replace(
        "while: going", "while: 'on'"
    ),
    "the body has no line 'going', so the while would never end": GRAPH.replace(
        "going: max(abs(new - x)) > 1e-3", "gone: max(abs(new - x)) > 1e-3"
    ),
    "the predicate of a while is float32; make it bool": GRAPH.replace('going: "True"', "going: max(a)"),
    "the predicate of a while is bool[8]; it must be one number (where(…) chooses for each element)": GRAPH.replace(
        'going: "True"', "going: a > 0"
    ),
    "a while has no key 'index'; a while has while, carry, body": GRAPH.replace(
        "while: going", "while: going\n    index: i"
    ),
    "the carry 'steps' starts as int32[] and ends the body as int32[1]; a while_loop keeps one type": GRAPH.replace(
        "steps: steps + 1", "steps: reshape(steps + 1, (1,))"
    ).replace("steps: 0}", 'steps: "asarray(0)"}'),
    "this while has not ended after 100 steps, which the oracle interprets one by one: bound it, as in "
    "`(i < 100) & (error > 1e-6)`, or, in Python, name a reference for a jitted function that contains it": (
        GRAPH.replace("max(abs(new - x)) > 1e-3", "max(x) > 0.0")
    ),
    "whether the while 'newton' goes on depends on a value that may differ along 'x', and devices that have left it "
    "never reach this psum; make all decide alike, for example by its pmax": DEVICES,
    "the gradient of 'total': JAX cannot differentiate a while in reverse (graph.newton): let it take a number of "
    "steps that is known, as a scan or a fori_loop does, or stop_gradient what it reads; if it has a derivative of "
    "its own, write that as a jax.custom_vjp in a Python function": GRAPH.replace(
        "  steps: newton.steps", "  total: sum(root)"
    ).replace("{root: [x]}", "{total: []}")
    + "grad: {of: total, wrt: [a]}\n",
}


@pytest.mark.parametrize("message", REFUSED, ids=lambda message: message[:40])
def test_a_faulty_while_is_refused(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.checks.reference.interpreter.STEPS", 700)

    def consult(text: str) -> Any:
        harness.consulted(harness.experiment(text), tmp_path)

    with pytest.raises(InvalidExperiment) as refused:
        consult(REFUSED[message])
    assert refused.value.fault.message.split("\n")[0] == message


def test_the_oracle_refuses_a_collective_in_a_while_that_some_devices_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are refused before: the oracle meets such a while only in edits."""
    monkeypatch.setattr("runner.experiment.divergence.check", lambda experiment: None)

    def steps(going: str) -> list[int]:
        body = f"      new: 0.5 * (x + a / x) + 0 * psum(max(x), 'x')\n      going: {going}\n"
        before, _, after = NEWTON.partition("per_device:")
        lines = re.sub(r"      new: .*\n      going: .*\n", body, after)
        read = harness.experiment(f"{before}per_device:{lines}")
        return [int(count) for count in interpret(read, "per_device", data.make(read, Path())).values["steps"]]

    with pytest.raises(CannotInterpret) as refused:
        steps("max(abs(new - x)) > 1e-3")
    message = str(refused.value)
    assert "those that have ended it never reach it; make all decide alike, for example by a pmax" in message
    assert len({*steps("pmax(max(abs(new - x)), 'x') > 1e-3")}) == 1


@pytest.mark.in_turn
def test_mutants_that_do_not_end_are_refused(tmp_path: Path) -> None:
    context = harness.consulted(harness.experiment(NEWTON), tmp_path)
    every = mutants.mutants(context)
    assert [mutant for mutant in every if mutant.refused == "ValueError: its while does not end: newton"]
    assert "survived" not in {mutant.outcome for mutant in every}
