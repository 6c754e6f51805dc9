"""Captures the text that XLA writes to standard error."""

from __future__ import annotations

import os
import sys


class CapturedStderr:
    """Records output to file descriptor 2 from now on, the only place where XLA writes its warnings."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._start = os.fstat(2).st_size

    def text(self) -> str | None:
        """The text written since; None if the descriptor is not a readable file."""
        sys.stderr.flush()
        try:
            return os.pread(2, os.fstat(2).st_size - self._start, self._start).decode(errors="replace")
        except OSError:
            return None
