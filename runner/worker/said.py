"""Nothing in; the text that XLA writes to standard error from then on out."""

from __future__ import annotations

import os
import sys


class CapturedStderr:
    """Records file descriptor 2 from now on, the only place for XLA's warnings."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._start = os.fstat(2).st_size

    def text(self) -> str | None:
        """The text written since; None where the descriptor is no readable file."""
        sys.stderr.flush()
        try:
            return os.pread(2, os.fstat(2).st_size - self._start, self._start).decode(errors="replace")
        except OSError:
            return None
