"""Shows the current activity on the terminal, within two seconds of its beginning.

A bar shows the share that is done, where it is known: of a run's programs, of a sweep's points. Without a terminal a
line is printed every ten seconds, unless nothing has happened since the last one.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self

from runner.base.invocation import began
from runner.base.printable import printable, raw

PATIENCE = 1.8
"""Seconds after the beginning of a command, or of a call, until the line appears."""

_EVERY = 0.5
"""Seconds between two updates."""

PIPED = 10.0
"""Seconds between two lines without a terminal."""

_BAR = 10
"""The characters of a bar."""


class _ProgressLine:
    """Context manager: a thread rewrites `text` on one line of a terminal.

    - `every`: seconds between two lines without a terminal.
    """

    def __init__(self, every: float | None = None) -> None:
        self._every = PIPED if every is None else every
        self._started = began()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def text(self) -> str:
        """The text of the line."""
        raise NotImplementedError

    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None if it is not known."""
        return None

    def news(self) -> object:
        """The value that must change before another line is printed without a terminal."""
        return self.text()

    @property
    def seconds(self) -> float:
        """The seconds since it began."""
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
        first, later = (max(PATIENCE - self.seconds, 0.0), _EVERY) if live else (self._every, self._every)
        wait, shown, news = first, False, None
        while not self._over.wait(wait):
            if live:
                _write(printable(_bar(self.share()) + self.text())[: shutil.get_terminal_size().columns - 1])
            elif self.news() != news:
                news = self.news()
                sys.stderr.write(self.text() + "\n")
                sys.stderr.flush()
            wait, shown = later, live
        if shown:
            _write("")


class Progress(_ProgressLine):
    """Context manager: `tell` sets the current activity, which a terminal shows with its seconds until the end.

    - `every`: seconds between two lines without a terminal.
    """

    def __init__(self, title: str, every: float | None = None) -> None:
        super().__init__(every)
        self._title = title
        self._what = ""
        self._part = ""
        self._share: float | None = None

    def tell(self, what: str, share: float | None = None) -> None:
        """Set the current activity, and the share that is done before it."""
        self._what, self._part, self._share = what, "", share

    def share(self) -> float | None:
        """The share that was told."""
        return self._share

    def tell_part(self, part: str) -> None:
        """Set what is being done of the current activity."""
        self._part = part

    def news(self) -> object:
        """The current activity: elapsed seconds alone are not news."""
        return self._what, self._part

    def text(self) -> str:
        """The current activity and its duration."""
        what = f"{self._what}: {self._part}" if self._part else self._what
        return f"{self._title}: {what}, {self.seconds:.0f} s"


class Quiet(Progress):
    """Shows nothing: the run is one of many, and the sweep prints a line for it."""

    def __enter__(self) -> Self:
        return self


class SweepProgress(_ProgressLine):
    """Context manager: a line with the points done, running and failed, the time left, and the best value so far.

    - `points`: their number; `every`: seconds between two lines without a terminal.
    """

    def __init__(self, points: int, every: float | None = None) -> None:
        super().__init__(every)
        self._points = points
        self.done = 0
        self.running = 0
        self.failed = 0
        self.ready = 0
        """The done points that took no time in this run."""
        self.best = ""

    def share(self) -> float | None:
        """The share of the points that are done."""
        return self.done / self._points if self._points else None

    def news(self) -> object:
        """The state of the sweep without the time left, which alone is not news."""
        return self.done, self.running, self.failed, self.best

    def text(self) -> str:
        """The state of the sweep."""
        parts = [f"{self.done} of {self._points} points done", f"{self.running} running"]
        parts += [f"{self.failed} failed"] if self.failed else []
        if (ran := self.done - self.ready) and self.done < self._points:
            parts.append(f"about {_duration(self.seconds / ran * (self._points - self.done))} left")
        return ", ".join([*parts, *([f"best so far: {self.best}"] if self.best else [])])


def _duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _bar(share: float | None) -> str:
    """A bar with a share filled, before the text of a line."""
    return "" if share is None else "█" * (filled := round(_BAR * share)) + "░" * (_BAR - filled) + " "


def _write(line: str) -> None:
    """Overwrite the current line."""
    raw(sys.stderr).write(f"\r\x1b[K{line}")
    sys.stderr.flush()
