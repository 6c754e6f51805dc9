"""What is being done in; a line of it on a terminal out, for whoever has waited two seconds.

Of a sweep the line says how far it is. Where there is no terminal it is printed every ten seconds, on lines of its own,
unless nothing has happened since.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self

from runner.printable import printable, raw

PATIENCE = 2.0
"""Seconds after which the line appears."""

_EVERY = 0.5
"""Seconds from one line to the next."""

PIPED = 10.0
"""The same where there is no terminal."""


class _Line:
    """Under it a thread shows `text` again and again, on one line of a terminal.

    - `every`: seconds between two lines where there is no terminal.
    """

    def __init__(self, every: float | None = None) -> None:
        self._every = PIPED if every is None else every
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def text(self) -> str:
        """What is shown."""
        raise NotImplementedError

    def news(self) -> object:
        """What has to differ for another line where there is no terminal."""
        return self.text()

    @property
    def seconds(self) -> float:
        """Since when it is there."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        self._over.clear()
        self._thread = threading.Thread(target=self._show, args=(sys.stderr.isatty(),), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self, live: bool) -> None:
        first, later = (PATIENCE, _EVERY) if live else (self._every, self._every)
        wait, shown, news = first, False, None
        while not self._over.wait(wait):
            if live:
                _write(printable(self.text())[: shutil.get_terminal_size().columns - 1])
            elif self.news() != news:
                news = self.news()
                sys.stderr.write(self.text() + "\n")
                sys.stderr.flush()
            wait, shown = later, live
        if shown:
            _write("")


class Progress(_Line):
    """Under it `tell` says what is being done: a terminal shows that, with the seconds, until the end.

    - `every`: seconds between two lines where there is no terminal.
    """

    def __init__(self, title: str, every: float | None = None) -> None:
        super().__init__(every)
        self._title = title
        self._what = ""

    def tell(self, what: str) -> None:
        """What is being done from now on."""
        self._what = what

    def news(self) -> object:
        """What is being done: the seconds alone are no news."""
        return self._what

    def text(self) -> str:
        """What is being done, and for how long this has been there."""
        return f"{self._title}: {self._what}, {self.seconds:.0f} s"


class Quiet(Progress):
    """One of many runs shows nothing: its sweep has a line."""

    def __enter__(self) -> Self:
        return self


class SweepProgress(_Line):
    """Under it a sweep's line is shown: points done, running, failed, the time that is left, the best so far.

    - `points`: how many there are; `every`: seconds between two lines where there is no terminal.
    """

    def __init__(self, points: int, every: float | None = None) -> None:
        super().__init__(every)
        self._points = points
        self.done = 0
        self.running = 0
        self.failed = 0
        self.ready = 0
        """Done points that cost no time here."""
        self.best = ""

    def news(self) -> object:
        """How far the sweep is: the time that is left alone is no news."""
        return self.done, self.running, self.failed, self.best

    def text(self) -> str:
        """How far the sweep is."""
        parts = [f"{self.done} of {self._points} points done", f"{self.running} running"]
        parts += [f"{self.failed} failed"] if self.failed else []
        if (ran := self.done - self.ready) and self.done < self._points:
            parts.append(f"about {_duration(self.seconds / ran * (self._points - self.done))} left")
        return ", ".join([*parts, *([f"best so far: {self.best}"] if self.best else [])])


def _duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _write(line: str) -> None:
    """Write over the line that is there."""
    raw(sys.stderr).write(f"\r\x1b[K{line}")
    sys.stderr.flush()
