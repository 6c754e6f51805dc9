"""The time of a run: what takes longer is cut off, and what nobody can cut off is not claimed to be."""

from __future__ import annotations

import math
import signal
import threading
import time

import pytest

from runner.flow.clock import TimedOut, limit


def forever() -> None:
    while True:
        time.sleep(0.01)


def test_what_takes_longer_is_cut_off_even_where_exceptions_are_handled() -> None:
    def stubborn() -> None:
        while True:
            try:
                forever()
            except Exception:
                continue

    with pytest.raises(TimedOut), limit(0.05):
        stubborn()


@pytest.mark.parametrize("seconds", [60.0, 1e300, math.inf])
def test_what_is_done_in_time_leaves_no_timer_and_no_handler(seconds: float) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with limit(seconds) as deadline:
        assert deadline > time.monotonic()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_timer_of_somebody_else_goes_on() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with limit(60):
            time.sleep(0.2)
            assert not rung
        time.sleep(0.05)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_in_another_thread_the_deadline_is_told_and_nothing_is_cut_off() -> None:
    told = []

    def work() -> None:
        with limit(0.01) as deadline:
            time.sleep(0.05)
            told.append(deadline < time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == [True]
