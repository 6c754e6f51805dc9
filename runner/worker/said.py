"""Nothing in; what XLA writes to standard error from then on out: its warnings go nowhere else."""

from __future__ import annotations

import os
import sys


class CapturedStderr:
    """What is written to file descriptor 2 from now on: XLA's warnings go nowhere else."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._start = os.fstat(2).st_size

    def text(self) -> str | None:
        """What was written since; None where the descriptor is no file that can be read back."""
        sys.stderr.flush()
        try:
            return os.pread(2, os.fstat(2).st_size - self._start, self._start).decode(errors="replace")
        except OSError:
            return None
