"""A number of seconds and the work of this process in; the work cut off where it takes longer out.

Of the worker `link/` sees to it, which waits for its events no longer than until the `deadline`. This process computes
the references, reads data and evaluates each `init`: a signal interrupts it between two steps of Python's.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType


class TimedOut(BaseException):
    """The time of a run is over. No `Exception`, so that nothing that handles those goes on instead."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[float]:
    """The deadline, by `time.monotonic`; raises `TimedOut` in what stands under it when that has come.

    Only the main thread can be interrupted, and only where there are signals; elsewhere the deadline binds the worker
    alone. A timer of somebody else's goes on afterwards.
    """
    deadline = time.monotonic() + seconds
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield deadline
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise TimedOut

    handler = signal.signal(signal.SIGALRM, over)
    left, every = signal.setitimer(signal.ITIMER_REAL, min(seconds, _LONGEST))
    begun = time.monotonic()
    try:
        yield deadline
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 1e-3), every)


_LONGEST = 10.0**8
"""Three years: no timer of the system's takes all numbers of seconds."""
