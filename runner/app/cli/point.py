"""Runs one configuration, alone or as a point of a sweep, and returns a record whatever goes wrong.

A run has two halves, so that a sweep can begin the next one while the worker is busy with this one.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.printable import Formatter
from runner.base.words import of_system
from runner.experiment.config.compose import Configuration, InvalidConfiguration
from runner.experiment.config.folders import added
from runner.experiment.config.sources import Sources
from runner.experiment.showing import Show
from runner.link.workers import Workers
from runner.reports.show.progress import Progress

if TYPE_CHECKING:
    from runner.app.flow.run import Running
    from runner.reports.record.model import Git, Record, Status

log = logging.getLogger("runner")

LOG = "runner.log"
"""The name of a run's log in `conf/hydra/job_logging`."""


@contextlib.contextmanager
def logged(folder: Path) -> Generator[None]:
    """Context manager: logging goes to the log of a run, as in `conf/hydra/job_logging/file.yaml`."""
    handler = logging.FileHandler(folder / LOG, encoding="utf-8")
    handler.setFormatter(Formatter("[%(asctime)s][%(name)s][%(levelname)s] %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


class Point:
    """A run of the configuration that `configure` returns, in a folder. Neither half raises if the run fails."""

    def __init__(
        self, folder: Path, sources: Sources, configure: Callable[[], Configuration], *, last: bool = False
    ) -> None:
        """`last` means that the workers get no further job after this one."""
        self.folder = folder
        self._sources = sources
        self._last = last
        self.show: Show = "auto"
        self._configure = configure
        self._config: Configuration | None = None
        self._running: Running | None = None
        self._ended: Record | None = None

    def begin(
        self, workers: Workers, progress: Progress | None = None, git: Callable[[], Git | None] | None = None
    ) -> None:
        """Give the worker its job. `git` returns the commit of the working directory."""
        self._try(lambda: self._begin(workers, progress, git))

    def finish(self) -> Record | None:
        """Return the record; None if even that could not be written, which has been reported."""
        self._try(self._finish)
        return self._ended

    def close(self) -> None:
        """Release a run that will not be finished."""
        if self._running is not None:
            self._running.close()

    @property
    def held(self) -> int:
        """The bytes of the arrays that it holds until it is finished."""
        return 0 if self._running is None else self._running.held

    @property
    def configuration(self) -> Configuration:
        """Its configuration. Raises `InvalidConfiguration`."""
        self._config = self._config or self._configure()
        return self._config

    def _begin(self, workers: Workers, progress: Progress | None, git: Callable[[], Git | None] | None) -> None:
        config = self.configuration
        workers.announce(config.plain)
        # Meanwhile the worker reads the experiment.
        from runner.app.flow.run import Running

        progress = progress or Progress(str(config.plain.get("name")))
        self._running = Running(config.plain, self.folder, config.sources, workers, progress, git, self._last)
        self._running.begin()

    def _finish(self) -> None:
        if self._running is None:
            return
        record, _ = self._running.finish()
        self._ended = record
        # In an invalid experiment this may be anything.
        if record.status != "invalid":
            self.show = self.configuration.plain.get("show", self.show)

    def _try(self, half: Callable[[], None]) -> None:
        if self._ended is not None:
            return
        try:
            half()
        except InvalidConfiguration as error:
            self._end("invalid", str(error))
        except OSError as error:
            message = of_system(error, self.folder)
            self.close()
            self._running = None
            try:
                self._end("error", message)
            except OSError:
                print(message, file=sys.stderr)
        except Exception as error:
            # In a sweep the other points still run; a single run shows the traceback, for a bug report.
            traceback.print_exc()
            log.exception("a bug in shardproof")
            self._end("error", f"this is a bug in shardproof, please report it: {type(error).__name__}: {error}")

    def _end(self, status: Status, message: str) -> None:
        """End with a message before there are results."""
        from runner.reports.record import record as records

        self.folder.mkdir(parents=True, exist_ok=True)
        self._ended = records.ended(self.folder, status, message, self._sources.overrides, added(self._sources.folders))
