"""Writes entries as sessions for TensorBoard's HPARAMS tab, without TensorFlow or PyTorch."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from runner.experiment.config.folders import folder_name
from runner.reports.track.entry import Entry, library


class TensorBoard:
    """Event files below `folder`, TensorBoard's `--logdir`: a folder for a sweep, and in it one for each entry."""

    def __init__(self, folder: str) -> None:
        self._library: Any = library("tensorboard", "tensorboardX")
        self._folder = Path(folder)

    def log(self, entry: Entry) -> None:
        """Write an entry as a session. Verdict and folder are hyperparameters, since the tab shows no other text."""
        parameters = {**entry.params, "verdict": entry.status, "folder": str(entry.folder)}
        summary: Any = importlib.import_module("tensorboardX.summary")
        # The name of a refused run may be anything.
        experiment = folder_name(entry.experiment, "unnamed")
        at = self._folder / experiment / entry.group / entry.name.replace(" ", "_")
        writer: Any = self._library.SummaryWriter(logdir=str(at))
        for part in summary.hparams(parameters, dict(entry.metrics)):
            writer.file_writer.add_summary(part)
        for name, value in entry.metrics.items():
            writer.add_scalar(name, value, 0)
        writer.close()

    def close(self) -> None:
        """Do nothing: each session is complete when it is written."""
