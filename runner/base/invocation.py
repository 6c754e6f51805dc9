"""Knows the command that started this process: how messages spell it, and when it began."""

from __future__ import annotations

import os
import sys
import time

_began: list[float] = []


def begin() -> None:
    """Note that a command begins, before it imports anything that takes long."""
    _began.append(time.monotonic())


def began() -> float:
    """Return when the command began, the first time; later, and outside of a command, the time now."""
    return _began.pop() if _began else time.monotonic()


def invocation() -> str:
    """Return `shardproof` in a process that this console script started, else `python -m runner`."""
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    return "shardproof" if os.path.splitext(name)[0] == "shardproof" else "python -m runner"


def libraries_first() -> None:
    """Let `python -m runner` find modules of the current folder only after Python's own and installed packages."""
    try:
        here = os.getcwd()
    except OSError:
        # The folder was removed.
        return
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        sys.path.append(sys.path.pop(0))
