"""Sends the records of Hydra jobs that ended to an experiment tracker, through a Hydra callback.

`hydra/callbacks=mlflow` (or `wandb`, `tensorboard`) selects it; Hydra creates it, and calls it after each job, here or
in the process in which another launcher runs the job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.experiment.config.compose import InvalidConfiguration
from runner.reports.record import record as records
from runner.reports.track.entry import Missing, Tracker, UnknownTracker, entries, maker


class Tracking(Callback):
    """Reports each ended job to the tracker named `to` (`reports/track/entry.py`); `settings` are the tracker's own.

    Raises `InvalidConfiguration` if there is no such tracker or its library is not installed, before anything is run.
    """

    def __init__(self, to: str, **settings: Any) -> None:
        self._to, self._settings = to, settings
        self._tracker: Tracker | None = None
        self._open()

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Report a run, or a point of a sweep, if it left a record."""
        hydra = config.hydra
        folder = Path(hydra.runtime.output_dir)
        try:
            record = records.read(folder)
        except FileNotFoundError:
            return
        many = hydra.mode == RunMode.MULTIRUN
        group = Path(hydra.sweep.dir).name if many else folder.name
        for entry in entries(record, folder, group, hydra.job.num if many else None, list(hydra.overrides.task)):
            self._open().log(entry)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Close the tracker."""
        self._close()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Close the tracker."""
        self._close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: without the connection."""
        return {**self.__dict__, "_tracker": None}

    def _open(self) -> Tracker:
        if self._tracker is None:
            try:
                self._tracker = maker(self._to)(**self._settings)
            except Missing as missing:
                raise InvalidConfiguration(f"hydra/callbacks={self._to}\n  {missing}") from None
            except UnknownTracker as unknown:
                raise InvalidConfiguration(f"hydra.callbacks\n  {unknown}") from None
        assert self._tracker is not None
        return self._tracker

    def _close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None
