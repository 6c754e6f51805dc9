"""What is being done in; a line of it on a terminal out, for whoever has waited two seconds.

Of a sweep the line says how far it is. Where there is no terminal it is printed now and then, on lines of its own.
"""

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
        self._over.clear()
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


class Quiet(Progress):
    """Of one of many runs nothing is shown: the sweep that it belongs to has a line."""

    def __enter__(self) -> Progress:
        return self


class SweepProgress:
    """Under it a sweep's line is shown: points done, running, failed, the time that is left, the best so far.

    - `points`: how many there are; `every`: seconds between two lines where there is no terminal.
    """

    def __init__(self, points: int, every: float = 10.0) -> None:
        self._points = points
        self._every = every
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._line: threading.Thread | None = None
        self._live = False
        self.done = 0
        self.running = 0
        self.failed = 0
        self.ready = 0
        """Points of those done that cost no time here."""
        self.best = ""

    def text(self) -> str:
        """How far the sweep is."""
        parts = [f"{self.done} of {self._points} points done", f"{self.running} running"]
        parts += [f"{self.failed} failed"] if self.failed else []
        if (ran := self.done - self.ready) and self.done < self._points:
            seconds = (time.monotonic() - self._begun) / ran * (self._points - self.done)
            parts.append(f"about {_duration(seconds)} left")
        return ", ".join([*parts, *([f"best so far: {self.best}"] if self.best else [])])

    def __enter__(self) -> SweepProgress:
        self._live = sys.stderr.isatty()
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
        wait, shown = PATIENCE if self._live else self._every, False
        while not self._over.wait(wait):
            if self._live:
                _write(self.text()[: shutil.get_terminal_size().columns - 1])
            else:
                sys.stderr.write(self.text() + "\n")
                sys.stderr.flush()
            wait, shown = _EVERY if self._live else self._every, self._live
        if shown:
            _write("")


def _duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _write(line: str) -> None:
    """Write over the line that is there."""
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()
