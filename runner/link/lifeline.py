"""Ends the worker when the process that started it ends, whatever the worker is computing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
"""The `prctl(2)` option for the signal that the kernel sends a process when its parent ends."""

_GLANCE = 0.5
"""Seconds between two checks of the parent where the kernel sends no signal."""


def die_with(parent: int) -> None:
    """Make this process end when the process `parent`, which started it, has ended.

    On Linux the kernel ends it, even while C code computes and no Python runs. Elsewhere a thread watches the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        # The parent ended before this process asked.
        os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    os._exit(0)
