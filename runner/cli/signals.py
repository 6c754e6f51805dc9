"""Signals in; an orderly end out: what is being done is left in order, and where that takes too long the process ends.

Python runs its handlers between two of its own steps. While C code computes, a thread that the system wakes directly
sees to it that the process ends all the same. The worker ends with its parent, whatever the way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Generator
from types import FrameType

GRACE = 1.0
"""Seconds that an orderly end may take after SIGTERM or SIGHUP."""

_SOON = 0.02
"""Seconds after which a signal is looked at again that came while a module was imported."""

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(BaseException):
    """The process was asked to end by a signal. No `Exception`, so that nothing that handles those goes on instead."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status(number: int) -> int:
    """What a shell reports of a process that a signal ended."""
    return 128 + number


@contextlib.contextmanager
def handled() -> Generator[None]:
    """Under it SIGTERM and SIGHUP raise `Ended`, Ctrl-C raises `KeyboardInterrupt`; a second Ctrl-C ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    later: list[int] = []
    raised: list[BaseException] = []

    def deliver(number: int, frame: FrameType | None, error: BaseException) -> None:
        if _importing(frame):
            _send_again(number, later)
            return
        raised.append(error)
        raise error

    def end(number: int, frame: FrameType | None) -> None:
        deliver(number, frame, Ended(number))

    def interrupt(number: int, frame: FrameType | None) -> None:
        # The second one is the watching thread's.
        if not any(isinstance(error, KeyboardInterrupt) for error in raised):
            deliver(number, frame, KeyboardInterrupt())

    # A signal that whoever started us had ignored, as nohup does with SIGHUP, stays ignored.
    ours = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in ours}
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(woken, frozenset(ours), later), daemon=True)
    watch.start()
    try:
        yield
        if raised:
            # Somebody else's code took it for something else, and went on.
            raise raised[0]
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    finally:
        signal.set_wakeup_fd(fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        waker.close()
        watch.join()
        woken.close()


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported; one in C that is interrupted takes it for its own failure, and says so."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _send_again(number: int, later: list[int]) -> None:
    """Send this process a signal again soon, which is then not another one."""
    later.append(number)
    timer = threading.Timer(_SOON, os.kill, [os.getpid(), number])
    timer.daemon = True
    timer.start()


def _watch(woken: socket.socket, ending: frozenset[int], later: list[int]) -> None:
    """End the process where Python does not come to it; signals that come `later` once more have been counted."""
    interrupts = 0
    deadline: threading.Timer | None = None
    while received := woken.recv(16):
        for number in received:
            if number in later:
                later.remove(number)
                continue
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                os._exit(status(signal.SIGINT))
            if number in ending and deadline is None:
                deadline = threading.Timer(GRACE, os._exit, [status(number)])
                deadline.daemon = True
                deadline.start()
    if deadline is not None:
        deadline.cancel()
