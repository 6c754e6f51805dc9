"""Makes one entry for each program of a record, with parameters and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

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
