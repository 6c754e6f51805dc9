"""Makes one entry for each program of a record, with parameters and metrics, and finds the tracker that takes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from runner.base.lazy import dataclass
from runner.experiment.forms import KINDS
from runner.reports.record import measures
from runner.reports.record.model import Record


@dataclass(frozen=True)
class Entry:
    """The entry of one program of one run.

    - `group`: the sweep, or the run itself if it belongs to none; `name`: the entry's name in it.
    - `params`: the keys that the command line sets, and the program; `metrics`: the known columns of `results.csv`,
      bytes and seconds, and how often each kind of collective runs.
    - `status`: the verdict; `error`: why it did not pass; `folder`: the record's folder.
    """

    experiment: str
    group: str
    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    status: str
    error: str | None
    folder: Path

    @property
    def passed(self) -> bool:
        """Whether the program passed, apart from known failures."""
        return self.status in measures.DONE


class Tracker(Protocol):
    """Writes entries to an experiment tracker."""

    def log(self, entry: Entry) -> None:
        """Write an entry."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class Missing(Exception):
    """A tracker's library is not installed; the message says how to install it."""

    def __init__(self, extra: str, error: ImportError) -> None:
        super().__init__(f"{extra} is not installed ({error}): pip install 'shardproof[{extra}]'")


def library(extra: str, module: str) -> Any:
    """Import a module of a tracker's library. Raises `Missing`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Missing(extra, error) from None


def entries(record: Record, folder: Path, group: str, number: int | None, overrides: Sequence[str]) -> list[Entry]:
    """The entries of a run; `number` is the number of its point in a sweep."""
    listed: list[Entry] = []
    for row in measures.rows(number or 0, record, overrides):
        program = row.program or "–"
        known = {name: row.measure(name) for name in (*measures.MEASURES, *KINDS)}
        listed.append(
            Entry(
                experiment=row.experiment or "–",
                group=group,
                name=program if number is None else f"{number} {program}",
                params={**row.keys, "program": program, **({"hardware": row.hardware} if row.hardware else {})},
                metrics={name: value for name, value in known.items() if value is not None},
                status=row.status,
                error=row.error,
                folder=folder.resolve(),
            )
        )
    return listed


GROUP = "shardproof.trackers"
"""The group of the entry points that name trackers."""

SHIPPED = {
    "mlflow": "runner.reports.track.mlflow:MLflow",
    "tensorboard": "runner.reports.track.tensorboard:TensorBoard",
    "wandb": "runner.reports.track.wandb:WandB",
}
"""Those that come with shardproof, which no installed package replaces."""


class UnknownTracker(Exception):
    """No tracker has that name; the message lists the known ones."""


def maker(name: str) -> Callable[..., Tracker]:
    """The constructor of a tracker. Raises `UnknownTracker`, or `ImportError` where it does not import.

    It is looked up by entry point and never by a dotted name, so a configuration names only what was installed.
    """
    named = {point.name: point for point in entry_points(group=GROUP)}
    named |= {shipped: EntryPoint(shipped, value, GROUP) for shipped, value in SHIPPED.items()}
    if name not in named:
        raise UnknownTracker(
            f"there is no tracker {name!r}; there are {', '.join(sorted(named))}; "
            f"one of your own is an entry point of an installed package, in the group {GROUP}"
        )
    return named[name].load()
