"""The process's arguments in; the command that started it, as messages suggest it again, out."""

from __future__ import annotations

import sys
from pathlib import PurePath


def invocation() -> str:
    """Return `shardproof` in a process that this console script started, else `python -m runner`."""
    return "shardproof" if PurePath(sys.argv[0] if sys.argv else "").stem == "shardproof" else "python -m runner"
