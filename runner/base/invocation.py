"""Spells the command that started this process, as messages suggest it again."""

from __future__ import annotations

import os
import sys


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
