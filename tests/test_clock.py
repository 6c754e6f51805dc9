"""Time limits of a run: a step that takes too long is interrupted, and one that cannot be is not claimed to be."""

from __future__ import annotations

import math
import signal
import threading
import time
from pathlib import Path

import pytest

from runner.app.flow import clock, run
from runner.app.flow.clock import TimedOut, limit
from runner.experiment.config.sources import Sources
from runner.reports.record import record
from tests.harness import config


def forever() -> None:
    while True:
        time.sleep(0.01)


def test_a_body_over_the_limit_is_interrupted_despite_exception_handlers() -> None:
    def stubborn() -> None:
        while True:
            try:
                forever()
            except Exception:
                continue

    with pytest.raises(TimedOut, match=r"^waiting took longer than the timeout of 0.05 s$"), limit(0.05, "waiting"):
        stubborn()


@pytest.mark.parametrize("seconds", [60.0, 1e300, math.inf])
def test_a_body_within_the_limit_leaves_no_timer_and_no_handler(seconds: float) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with limit(seconds, "nothing"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_an_existing_timer_continues() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with limit(60, "nothing"):
            time.sleep(0.2)
            assert not rung
        time.sleep(0.05)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_in_another_thread_nothing_is_interrupted() -> None:
    steps = []

    def work() -> None:
        with limit(0.01, "nothing"):
            time.sleep(0.05)
        steps.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert steps == ["done"]


SLOW = """
program: auto
arrays: {A: {shape: [4], init: "1", spec: [x]}}
graph:
  ring: {repeat: 1000000, unroll: false, carry: {a: A}, body: {a: a * 0.5 + 1}}
  C: ring.a
outputs: {C: [x]}
"""


def test_an_endless_reference_ends_the_run_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The worker's start takes time.
    monkeypatch.setattr(clock, "limit", lambda seconds, work: limit(0.5 if work == "the reference" else seconds, work))
    outcome = run.run(config(SLOW), tmp_path, Sources())
    assert outcome.status == "error"
    assert outcome.error == "the reference took longer than the timeout of 0.5 s"
    assert record.read(tmp_path).error == outcome.error
