"""A record in; the HTML out that a notebook shows of it: the verdicts, what failed, the collectives, the pictures."""

from __future__ import annotations

from collections.abc import Sequence

from runner.printable import escape
from runner.record.model import Record
from runner.show import collectives, figures, report, svg
from runner.show.status import look


def fragment(found: Record) -> str:
    """The fragment; it needs nothing from anywhere else."""
    parts = [f"<p><b>{escape(found.experiment or 'no experiment')}</b>: {_coloured(found.status)}</p>"]
    if found.summary:
        parts.append(f"<p>{escape(found.summary)}</p>")
    if found.error:
        parts.append(f"<pre>{escape(found.error)}</pre>")
    if found.programs:
        head, rows = report.programs(found)
        parts.append(_table(head, [[text for text, _ in row] for row in rows]))
    for (text, _), lines in report.failures(found):
        parts.append(f"<pre>{escape(chr(10).join([text, *(f'  {line}' for line in lines)]))}</pre>")
    listed = collectives.rows(found)
    if listed:
        parts.append(_table(collectives.HEAD, listed))
    parts += [f"<p>{escape(line)}</p>" for line in collectives.lines(found)]
    parts += [f"<p>warning: {escape(warning)}</p>" for warning in found.warnings]
    if found.pictures:
        mesh, arrays = figures.read(found.pictures)
        parts.append(svg.draw(mesh, arrays, found.experiment or "", found.summary))
    return "<div>" + "".join(parts) + "</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{_coloured(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def _coloured(text: str) -> str:
    colour = look(text).colour
    return escape(text) if colour is None else f'<span style="color:{colour}">{escape(text)}</span>'
