"""Shows the results of Hydra's sweep and writes them to its folder. A launcher may run it in parts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.cli.options import Options
from runner.app.cli.point import LOG
from runner.app.cli.sweep import Results
from runner.base import plain
from runner.base.faults import BadInput
from runner.base.invocation import invocation
from runner.base.printable import printable
from runner.base.words import of_system
from runner.base.words import shown as shortened
from runner.experiment.config import quoting
from runner.reports.record import consistent, manifest, measures
from runner.reports.record import record as records
from runner.reports.record.writing import write_text
from runner.reports.show import sheet
from runner.reports.show import sweep as shown
from runner.reports.show.console import captured, say

if TYPE_CHECKING:
    from runner.reports.record.model import Pictures, Record, Status


class Sweeping:
    """A sweep from its first point to its table.

    - `points`: the known overrides of every point, by number.
    - `statuses`: receives the statuses of all points at the end.
    - `report`: whether to write a page.
    """

    def __init__(self, folder: Path, options: Options, statuses: list[Status], *, report: bool = False) -> None:
        self.folder = folder
        self.options = options
        self.points: dict[int, Sequence[str]] = {}
        self.results = Results()
        self._statuses = statuses
        self.report = report
        self._finished = False

    def expect(self, points: Sequence[Sequence[str]], first: int) -> None:
        """Note the overrides of points that are launched."""
        self.points |= dict(enumerate(points, start=first))

    def returned(self, number: int) -> float | Status | None:
        """Return the result of a point's job for Hydra: the value of the objective, or else the status."""
        if self.options.objective is None:
            return self.results.statuses.get(number)
        return measures.objective(self.results.rows.get(number, []), self.options.objective)

    def leave(self) -> None:
        """Write the flat files of the results so far."""
        self._gather()
        if self.results.rows:
            self.results.leave(self.folder)

    def tell_how_to_go_on(self) -> None:
        """Print the progress of an interrupted sweep, and the command that resumes it."""
        self._gather()
        done = sum(status in measures.DONE for status in self.results.statuses.values())
        resumed = quoting.for_shell(f"resume={shortened(self.folder)}")
        print(f"{done} of {len(self.points)} points are done; to go on: {invocation()} {resumed}", file=sys.stderr)

    def _gather(self) -> None:
        """Read the records of points that ran elsewhere: a launcher may run them anywhere."""
        for number, overrides in self.points.items():
            if number in self.results.statuses:
                continue
            try:
                left = records.read(self.folder / str(number))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except records.UnreadableRecord as error:
                print(error, file=sys.stderr)
                left = _lost(overrides, str(error))
            self.results.add(number, left, overrides)

    def finish(self, *, whole: bool = True) -> None:
        """Show the table of all points, and write it and their layouts into the folder.

        If the sweep is not `whole`, the table has the points that left a record.
        """
        if self._finished:
            return
        self._finished = True
        self._gather()
        for number, overrides in self.points.items():
            if whole and number not in self.results.statuses:
                self.results.add(number, _lost(overrides, "no record: the job died"), overrides)
        statuses: list[Status] = [self.results.statuses[number] for number in sorted(self.results.statuses)]
        self._statuses[:] = statuses
        self.results.leave(self.folder)
        table = ""
        if statuses:
            table = captured(lambda: self._show(statuses))
            self._show(statuses)
        if len(statuses) < len(self.points):
            say(f"{len(self.points) - len(statuses)} of {len(self.points)} points left no record")
        self._leave_story(table)
        if self.report:
            self._leave_page()
        manifest.end(self.folder)

    def _leave_page(self) -> None:
        # Imported here, since few sweeps need it.
        from runner.app.cli import report

        try:
            say(shortened(report.of_sweep(self.folder)))
        except BadInput as error:
            say(f"there is no page: {error}")
        except OSError as error:
            say(f"there is no page: {of_system(error, self.folder)}")

    def _show(self, statuses: Sequence[Status]) -> None:
        all_rows = self.results.all_rows()
        rows = self.options.through(all_rows)
        view = shown.TableView(self.options.sort, self.options.best, len(all_rows) - len(rows))
        shown.show(rows, statuses, self.folder, view)
        same = len(self.results.waiting)
        if same:
            say(f"{same} of them equal another point up to a symmetry of the mesh, and were not run: see same_as")
        if kept := len(self.results.kept):
            say(f"{kept} of them had passed before, and were not run again")

    def _leave_story(self, story: str) -> None:
        """Write the log of the sweep, and a sheet of its layouts if there are several of one array."""
        names = {number: rows[0].experiment for number, rows in self.results.rows.items() if rows}
        files = sheet.files(names, _pictures(self.folder, names))
        if files is not None:
            text, image = files
            write_text(self.folder / "shardings.txt", text)
            write_text(self.folder / "shardings.svg", image)
            story += f"\n{text}"
        write_text(self.folder / LOG, printable(story))


def _lost(overrides: Sequence[str], why: str) -> Record:
    """Return a record for a point without a readable one."""
    lost = records.started(None, overrides)
    lost.status, lost.error = "error", why
    return lost


def _pictures(folder: Path, numbers: Mapping[int, Any]) -> dict[int, Pictures]:
    from runner.base import codec
    from runner.reports.record.model import Pictures

    pictures_of: dict[int, Pictures] = {}
    for number in sorted(numbers):
        try:
            drawn = plain.read(folder / str(number) / "result.json").get("pictures")
            if drawn is None:
                continue
            pictures = codec.build(Pictures, drawn)
            consistent.require_pictures(pictures)
        except (OSError, plain.NotJson, AttributeError, codec.Misfit):
            # The point was already reported to have no readable record.
            continue
        pictures_of[number] = pictures
    return pictures_of


def objective_of(folder: Path, objective: str) -> float | None:
    """Return the number for the sweeper from a job's folder."""
    return measures.objective(measures.rows(0, records.read(folder), ()), objective)
