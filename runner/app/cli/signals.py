"""Ends a command in order after a signal, with all work in a consistent state, or exits if that takes long.

Python runs its handlers between two bytecodes. While C code computes, a thread that the system wakes directly ends the
process nevertheless. The worker ends with its parent in every case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from types import FrameType

GRACE = 1.0
"""Seconds that an orderly exit may take after SIGTERM or SIGHUP."""

_SOON = 0.02
"""Seconds until a signal that came during an import is handled again."""

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(BaseException):
    """A signal asked the process to exit. Not an `Exception`, so that no handler of those continues the work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status(number: int) -> int:
    """Return the exit status that a shell reports for a process that a signal ended."""
    return 128 + number


@contextlib.contextmanager
def handled() -> Generator[None]:
    """In its context SIGTERM and SIGHUP raise `Ended`, Ctrl-C raises `KeyboardInterrupt`; a second Ctrl-C exits.

    At its end the process has no worker and no temporary folder.
    """
    if threading.current_thread() is not threading.main_thread():
        try:
            yield
        finally:
            leave_nothing()
        return
    later: list[int] = []
    raised: list[BaseException] = []

    def deliver(number: int, frame: FrameType | None, error: BaseException) -> None:
        # The watching thread handles another one, which must not interrupt what the first one makes the process do.
        if raised:
            return
        if _importing(frame):
            _send_again(number, later)
            return
        raised.append(error)
        raise error

    def end(number: int, frame: FrameType | None) -> None:
        deliver(number, frame, Ended(number))

    def interrupt(number: int, frame: FrameType | None) -> None:
        deliver(number, frame, KeyboardInterrupt())

    # A signal that the parent process ignores, as nohup does with SIGHUP, stays ignored.
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
        try:
            yield
        except Exception:
            if raised:
                raise raised[0] from None
            raise
        finally:
            leave_nothing()
        if raised:
            # Other code caught the exception and continued.
            raise raised[0]
    finally:
        signal.set_wakeup_fd(fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        waker.close()
        watch.join()
        woken.close()


def leave_nothing(*, at_once: bool = False) -> None:
    """End the workers of this process, and remove its temporary files; `at_once` while other threads may run."""
    # Nothing to do, and to import, for a command that has started no worker.
    process = sys.modules.get("runner.link.process")
    if process is not None:
        process.abandon(at_once=at_once)


def _exit(code: int) -> None:
    """Exit at once, whatever the main thread is doing."""
    try:
        leave_nothing(at_once=True)
    finally:
        os._exit(code)


def _importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported: an interrupted C module reports it as its own failure."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _send_again(number: int, later: list[int]) -> None:
    """Send this process the same signal again soon, marked so that it does not count as another one."""
    later.append(number)
    timer = threading.Timer(_SOON, os.kill, [os.getpid(), number])
    timer.daemon = True
    timer.start()


def _watch(woken: socket.socket, ending: frozenset[int], later: list[int]) -> None:
    """End the process if Python does not handle a signal in time; signals resent `later` were already counted."""
    interrupts = 0
    deadline: threading.Timer | None = None
    while received := woken.recv(16):
        for number in received:
            if number in later:
                later.remove(number)
                continue
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                _exit(status(signal.SIGINT))
            if number in ending and deadline is None:
                deadline = threading.Timer(GRACE, _exit, [status(number)])
                deadline.daemon = True
                deadline.start()
    if deadline is not None:
        deadline.cancel()
