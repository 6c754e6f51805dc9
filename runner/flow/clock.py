"""A number of seconds and the work of this process in; the work cut off where it takes longer out.

Of the worker `link/` sees to it. This process computes the references, makes the data and compares the results: a
signal interrupts it between two steps of Python's.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType

_LONGEST = 10.0**8
"""Three years: no timer of the system's takes all numbers of seconds."""


class TimedOut(BaseException):
    """A part of a run took too long. No `Exception`, so that nothing that handles those goes on instead."""


@contextlib.contextmanager
def limit(seconds: float, doing: str) -> Generator[None]:
    """Raise `TimedOut` in what stands under it, and is called `doing`, after so many seconds.

    Only the main thread can be interrupted, and only where there are signals; elsewhere nothing is. A timer of somebody
    else's goes on afterwards.
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
