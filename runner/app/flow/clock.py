"""Interrupts this process if a part of a run takes longer than its time limit.

`link/` does the same for the worker. This process computes the references, makes the data and compares the results: a
signal interrupts it between two bytecodes.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType

_LONGEST = 10.0**8
"""Three years: timers of the operating system do not accept every number of seconds."""


class TimedOut(BaseException):
    """A part of a run took too long. Not an `Exception`, so that no handler of those continues the run."""


@contextlib.contextmanager
def limit(seconds: float, doing: str) -> Generator[None]:
    """Raise `TimedOut` if the body of the `with` statement, called `doing`, takes more than `seconds`.

    Only the main thread can be interrupted, and only where the system has signals; elsewhere this does nothing. A timer
    that was already set continues afterwards.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise TimedOut(f"{doing} took longer than the timeout of {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, over)
    left, every = signal.setitimer(signal.ITIMER_REAL, min(seconds, _LONGEST))
    start = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - start), 1e-3), every)
