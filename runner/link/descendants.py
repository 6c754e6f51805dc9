"""Ends a process and every process below it. Only Linux says which these are."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

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
