"""Ends a process when the process that started it ends, whatever it is computing; all that a worker started too."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""The `prctl(2)` option for the signal that the kernel sends a process when the thread that started it ends."""

_PR_SET_CHILD_SUBREAPER = 36
"""The `prctl(2)` option by which a process becomes the parent of its descendants whose own parents have ended."""

_GLANCE = 0.5
"""Seconds between two checks of the parent where the kernel sends no signal."""

_BY_THREAD = "thread"
_BY_GUARD = "guard"


def owner() -> str:
    """This process, for a process that it starts and that passes it to `die_with`."""
    by_main = threading.current_thread() is threading.main_thread()
    return f"{os.getpid()}{'' if by_main else f':{_BY_THREAD}'}"


def die_with(owner: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Make the signal `number` end this process when the `owner`, which started it, has ended.

    On Linux the kernel sends it, even while C code computes and no Python runs. Elsewhere, and where a thread started
    the process that may end before the owner does, a thread of this process watches.
    """
    parent, _, by = owner.partition(":")
    if sys.platform == "linux" and by != _BY_THREAD:
        _prctl(_PR_SET_PDEATHSIG, int(number))
    else:
        threading.Thread(target=_watch, args=(int(parent), number), daemon=True).start()
    if os.getppid() != int(parent):
        # The owner ended before this process asked.
        os._exit(0)


def guard(owner: str) -> str:
    """Make this process the guard of a copy of it, in which this returns the owner for `die_with`.

    The guard ends with `owner` or with the copy, and before that ends everything that the copy has started, in C and in
    sessions of its own too. It ends as the copy ended, so the process that waits for it sees no difference. Only Linux
    has this: elsewhere there is no guard.
    """
    if sys.platform != "linux" or owner.endswith(f":{_BY_GUARD}"):
        return owner
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    guarded = os.fork()
    if guarded == 0:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        return f"{guard}:{_BY_GUARD}"
    try:
        _guard(guarded, owner)
    finally:
        os._exit(1)


def _guard(guarded: int, owner: str) -> None:
    def end(number: int, frame: object) -> None:
        kill_below(guard)
        os._exit(128 + number)

    guard = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    die_with(owner, signal.SIGTERM)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        # The pipes are the copy's.
        os.dup2(nothing, stream)
    while True:
        # Orphans of the copy are children of this process.
        pid, status = os.wait()
        if pid == guarded:
            break
    kill_below(guard)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(guard, -code)
    signal.pause()


def keep_children(in_child: Callable[[], None]) -> None:
    """Make the processes that this one forks end with it, and let its other descendants be found below it.

    A user's module may fork, and its children may begin sessions of their own. `in_child` is called in each child.
    """
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    home = threading.get_ident()
    owners: list[str] = []

    def before() -> None:
        # The kernel's signal comes at the end of the thread that forked.
        by_home = threading.get_ident() == home
        owners[:] = [f"{os.getpid()}{'' if by_home else f':{_BY_THREAD}'}"]

    def in_each_child() -> None:
        nonlocal home
        home = threading.get_ident()
        in_child()
        die_with(owners[0])

    os.register_at_fork(before=before, after_in_child=in_each_child)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _watch(parent: int, number: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    if number == signal.SIGKILL:
        os._exit(0)
    os.kill(os.getpid(), number)


_ROUNDS = 20
"""How often processes are looked for below one that may be starting more of them."""


def kill(pid: int) -> None:
    """End the processes below a process, which is stopped meanwhile so that it starts no others, and then itself.

    The process has to be this one's child, not yet waited for.
    """
    # Another thread of this process may be waiting for its end.
    with contextlib.suppress(ProcessLookupError):
        if any(_below(pid)):
            os.kill(pid, signal.SIGSTOP)
            kill_below(pid)
        os.kill(pid, signal.SIGKILL)


def kill_below(pid: int) -> None:
    """End the processes below one that starts no others meanwhile: it is stopped, or this one."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        # Those whose parent has just ended are children of the process that adopts them.
        left = {each for each in _below(pid) if each not in ended}
        if not left:
            break
        for each in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        ended |= left


def _below(pid: int) -> Iterator[int]:
    """Yield the processes below one."""
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text("ascii").split()):
                yield child
                yield from _below(child)
