"""Writes entries as runs of MLflow: one experiment of MLflow for one of ours, a tag for the sweep."""

from __future__ import annotations

import time
from typing import Any

from runner.reports.track.entry import Entry, library


class MLflow:
    """A tracking server or store at `uri`: `sqlite:///mlflow.db`, `file:./mlruns`, `http://…`."""

    def __init__(self, uri: str) -> None:
        self._client: Any = library("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
        self._entities: Any = library("mlflow", "mlflow.entities")

    def log(self, entry: Entry) -> None:
        """Write an entry as a run, which is marked failed unless the program passed."""
        tags = {"sweep": entry.group, "verdict": entry.status, "folder": entry.folder.as_uri()}
        if entry.error is not None:
            tags["mlflow.note.content"] = entry.error
        run = self._client.create_run(self._experiment(entry.experiment), run_name=entry.name, tags=tags).info.run_id
        now = int(time.time() * 1000)
        self._client.log_batch(
            run,
            params=[self._entities.Param(_key(name), value) for name, value in entry.params.items()],
            metrics=[self._entities.Metric(name, value, now, 0) for name, value in entry.metrics.items()],
        )
        self._client.set_terminated(run, status="FINISHED" if entry.passed else "FAILED")

    def close(self) -> None:
        """Do nothing: each entry is written at once."""

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment is not None else self._client.create_experiment(name)


def _key(name: str) -> str:
    """A key in MLflow's characters: `/` stays, unsupported characters become `_`."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
