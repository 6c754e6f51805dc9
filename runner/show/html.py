"""A record in; the HTML out that a notebook shows of it: the verdicts, what failed, the collectives, the pictures."""

from __future__ import annotations

from collections.abc import Sequence

from runner.printable import escape
from runner.record.model import Record
from runner.show import collectives, figures, report, svg
from runner.show.status import look


def fragment(record: Record) -> str:
    """The fragment; it needs nothing from anywhere else."""
    parts = [f"<p><b>{escape(record.experiment or 'no experiment')}</b>: {_coloured(record.status)}</p>"]
    if record.summary:
        parts.append(f"<p>{escape(record.summary)}</p>")
    if record.error:
        parts.append(f"<pre>{escape(record.error)}</pre>")
    if record.programs:
        head, rows = report.programs(record)
        parts.append(_table(head, [[text for text, _ in row] for row in rows]))
    for (text, _), lines in report.failures(record):
        parts.append(f"<pre>{escape(chr(10).join([text, *(f'  {line}' for line in lines)]))}</pre>")
    listed = collectives.rows(record)
    if listed:
        parts.append(_table(collectives.HEAD, listed))
    parts += [f"<p>{escape(line)}</p>" for line in collectives.lines(record)]
    parts += [f"<p>warning: {escape(warning)}</p>" for warning in record.warnings]
    if record.pictures:
        mesh, arrays = figures.read(record.pictures)
        parts.append(svg.draw(mesh, arrays, record.experiment or "", record.summary))
    return "<div>" + "".join(parts) + "</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{_coloured(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def _coloured(text: str) -> str:
    colour = look(text).colour
    return escape(text) if colour is None else f'<span style="color:{colour}">{escape(text)}</span>'
