"""Makes the HTML fragment of a record for notebooks: verdicts, what failed, collectives, source, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.base.printable import escape
from runner.reports.record.model import Record, Trace
from runner.reports.record.readable import readable
from runner.reports.show import collectives, modes, report, summary, svg, table, trace
from runner.reports.show.page import moves
from runner.reports.show.page.markup import Inside, grid, joined, tag
from runner.reports.show.status import HUES, look
from runner.reports.show.table import StatusCell, status_cell


def fragment(record: Record, folder: Path | None = None) -> str:
    """Return the fragment, which needs no external resource; the user's source needs the run's `folder`."""
    record = readable(record)
    outcome = joined(_coloured(status_cell(record.status, summary.line(record, ", "))))
    parts = [f"<p><b>{escape(record.experiment or 'no experiment')}</b>: {outcome}</p>"]
    if record.summary:
        parts.append(f"<p>{escape(record.summary)}</p>")
    if record.error:
        parts.append(f"<pre>{escape(record.error)}</pre>")
    if record.programs:
        parts.append(grid(report.summary_of_programs(record), _coloured))
    for _, text, lines in report.failures(record):
        parts.append(f"<pre>{escape(chr(10).join([text, *(f'  {line}' for line in lines)]))}</pre>")
    listed, folded = collectives.brief(record)
    if listed.rows:
        parts.append(grid(listed))
    totals = collectives.totals(record) if len(listed.rows) > 1 else []
    sentences = (*([folded] if folded else []), *totals, *collectives.lines(record))
    parts += [f"<p>{escape(line)}</p>" for line in sentences]
    if folder is not None and record.programs:
        parts += [tag("div", part) for part in moves.sources(record, folder)]
    if (compared := modes.compared(record)) is not None:
        parts.append(f"<p>{escape(compared)}</p>")
    if record.trace is not None and record.mesh is not None:
        text = escape(_trace(record.trace, record.mesh.axes))
        parts.append(f"<details><summary>trace</summary><pre>{text}</pre></details>")
    parts += [f"<p>warning: {escape(warning)}</p>" for warning in record.warnings]
    parts.append(svg.picture(record) or "")
    # Pictures and tables may be wider than a cell of a notebook.
    return '<div style="overflow-x: auto">' + "".join(parts) + "</div>"


def _trace(taken: Trace, axes: Sequence[str]) -> str:
    return table.text(trace.lines(taken, axes, "cpu"))


def _coloured(cell: StatusCell) -> Inside:
    hue = look(cell.status).hue if cell.status else None
    return tag("span", cell.text, style=f"color:{HUES[hue].anywhere}") if hue else cell.text
