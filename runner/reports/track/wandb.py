"""Writes entries as runs of Weights & Biases: a project for an experiment, a group for a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.reports.track.entry import Entry, library


class WandB:
    """Runs in `folder`; `mode` is `online`, or `offline` for a later `wandb sync`."""

    def __init__(self, mode: str, project: str | None, folder: str) -> None:
        self._wandb: Any = library("wandb", "wandb")
        self._mode, self._project, self._folder = mode, project, Path(folder)

    def log(self, entry: Entry) -> None:
        """Write an entry as a run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        run: Any = self._wandb.init(
            mode=self._mode,
            project=self._project or entry.experiment,
            group=entry.group,
            name=entry.name,
            config=dict(entry.params),
            tags=[entry.status],
            notes=entry.error,
            dir=str(self._folder),
            reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off", disable_git=True),
        )
        run.log(dict(entry.metrics))
        run.summary.update({"verdict": entry.status, "folder": str(entry.folder)})
        run.finish(exit_code=0 if entry.passed else 1)

    def close(self) -> None:
        """Do nothing: each run is finished when it is written."""
