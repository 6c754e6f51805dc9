"""What is being done in; a line of it on a terminal out, for whoever has waited two seconds."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType

PATIENCE = 2.0
"""Seconds after which the line appears."""

_EVERY = 0.5
"""Seconds from one line to the next."""


class Progress:
    """Under it `tell` says what is being done: a terminal shows that, with the seconds, until the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._what = ""
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._line: threading.Thread | None = None

    def tell(self, what: str) -> None:
        """What is being done from now on."""
        self._what = what

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._line = threading.Thread(target=self._show, daemon=True)
            self._line.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._line is not None:
            self._line.join()

    def _show(self) -> None:
        wait, shown = PATIENCE, False
        while not self._over.wait(wait):
            text = f"{self._title}: {self._what}, {time.monotonic() - self._begun:.0f} s"
            _write(text[: shutil.get_terminal_size().columns - 1])
            wait, shown = _EVERY, True
        if shown:
            _write("")


def _write(line: str) -> None:
    """Write over the line that is there."""
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()
