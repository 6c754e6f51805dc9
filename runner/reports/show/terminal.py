"""Draws a picture as text boxes: lines of styled pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from runner.base.lazy import dataclass
from runner.base.words import devices_text
from runner.reports.show.colours import ink
from runner.reports.show.pictures import ArrayPicture, Grid, Picture, balanced, clip
from runner.reports.show.table import Line, wrapped

_ROWS = 16
_SLICES = 4
_GAP = 4


def block(picture: Picture, width: int, paint: dict[int, str]) -> list[Line]:
    """Draw one picture: its heading, its grid or slices, and notes."""
    first, *others = picture.lines()
    style = "bold"
    heading = [f"{picture.name}  {first}" + (f"  {others.pop(0)}" if isinstance(picture, ArrayPicture) else "")]
    lines: list[Line] = []
    for text in heading + others:
        lines += [[(part, style)] for part in wrapped(text, width)]
        style = "dim"
    grids = picture.grids()
    shown = grids[:_SLICES]
    frame = _frame(shown, picture, width)
    notes = list(frame.notes)
    if len(grids) > len(shown):
        notes.append(f"{len(grids)} slices, {len(shown)} shown")
    if picture.without():
        notes.append(picture.without())
    drawn = [_grid(grid, frame, paint) for grid in shown]
    fitting = (width + _GAP) // (max(map(_length, drawn[0])) + _GAP)
    across = balanced(len(drawn), fitting)
    for start in range(0, len(drawn), across):
        lines += beside(drawn[start : start + across], width)
    return lines + [[(part, "italic")] for note in notes for part in wrapped(note, width, "")]


@dataclass(frozen=True)
class _TextFrame:
    """Data that all slices of one picture share, so that their cells have one size.

    - `rows`, `columns`: the indices that are drawn; `corner`: the axes' names; `margin`: the room for row headings.
    - `inner`, `height`: columns and lines in a cell; `spell`: the format of its devices.
    - `headed`: whether the columns have headings.
    """

    rows: Sequence[int | None]
    columns: Sequence[int | None]
    corner: str
    margin: int
    inner: int
    height: int
    spell: Callable[[Sequence[int]], str]
    headed: bool
    notes: tuple[str, ...]


def _frame(grids: Sequence[Grid], picture: Picture, width: int) -> _TextFrame:
    """Return a frame for grids at most `width` wide, and notes on what they leave out."""
    first = grids[0]
    across, down = len(first.columns), len(first.rows)
    rows = clip(down, _ROWS if down <= _ROWS else _ROWS // 2)
    axes = (f"{first.row_axis}↓" if first.row_axis else "", f"{first.column_axis}→" if first.column_axis else "")
    corner = " ".join(filter(None, axes))
    margin = max(len(corner), *(len(first.rows[i]) for i in rows if i is not None)) + 1
    margin = margin if margin > 1 else 0

    spellings: tuple[Callable[[Sequence[int]], str], ...] = (
        lambda devices: devices_text(devices, picture.platform),
        devices_text,
        lambda devices: devices_text(devices[:1]),
    )
    columns, inner, spell, headed = clip(across, across), 0, 0, True
    for padding, spell, headed in itertools.product((2, 0), range(len(spellings)), (True, False)):
        held = [cell.devices for grid in grids for i in rows if i is not None for cell in grid.cells[i]]
        inner = padding + max(len(spellings[spell](devices)) for devices in held)
        if headed:
            inner = max(inner, *(len(heading) + padding for heading in first.columns))
        if margin + 1 + across * (inner + 1) <= width:
            break
    else:
        columns = clip(across, (width - margin - 1 - len(" … │")) // (inner + 1))
        headed = all(len(first.columns[j]) <= inner for j in columns if j is not None)
    notes: list[str] = []
    if not headed and any(first.columns):
        notes.append(f"columns {_ranges(first)}")
    shown = [sum(i is not None for i in indices) for indices in (rows, columns)]
    if shown != [down, across]:
        notes.append(f"{down} × {across} {picture.unit}, {shown[0]} × {shown[1]} shown")
    copies = max(len(cell.devices) for grid in grids for row in grid.cells for cell in row)
    if spell == 2 and copies > 1:
        notes.append(f"each cell names the first of its {copies} {picture.platform.upper()} devices")
    elif spell:
        notes.append(f"each cell names its {picture.platform.upper()} device{'s' if copies > 1 else ''}")
    tall = isinstance(picture, ArrayPicture) and len(picture.shape) == 2
    if tall and across * (inner + 1) < 21:
        inner = 20 // across - 1
    # A box of nine lines for one, two and four rows, so that the arrays of one experiment line up.
    height = {1: 7 if across <= 4 else 3, 2: 3}.get(len(rows), 1) if tall else 1
    return _TextFrame(rows, columns, corner, margin, inner, height, spellings[spell], headed, tuple(notes))


def _grid(grid: Grid, frame: _TextFrame, paint: dict[int, str]) -> list[Line]:
    """Draw one grid."""
    margin, inner, columns = frame.margin, frame.inner, frame.columns

    def rule(left: str, cross: str, right: str) -> Line:
        return [(" " * margin + left + cross.join("─" * (3 if j is None else inner) for j in columns) + right, "")]

    lines: list[Line] = []
    if grid.title:
        lines.append([(grid.title, "bold")])
    if frame.headed and any(grid.columns):
        headings = ("…".center(3) if j is None else grid.columns[j].center(inner) for j in columns)
        lines.append([(frame.corner.ljust(margin) + " " + " ".join(headings), "dim")])
    elif frame.corner:
        lines.append([(frame.corner, "dim")])
    lines.append(rule("┌", "┬", "┐"))
    for number, i in enumerate(frame.rows):
        if number:
            lines.append(rule("├", "┼", "┤"))
        height = frame.height if i is not None else 1
        for part in range(height):
            middle = part == height // 2
            heading = grid.rows[i] if i is not None and middle else ""
            line: Line = [(heading.ljust(margin), "dim"), ("│", "")]
            for j in columns:
                if i is None or j is None:
                    mark = "⋮" if j is not None else "⋱" if i is None else "…"
                    line += [(mark.center(inner if j is not None else 3) if middle or i is None else "   ", "")]
                else:
                    devices = grid.cells[i][j].devices
                    label = frame.spell(devices) if middle else ""
                    line += filled(label, inner, part, [paint[device] for device in devices])
                line.append(("│", ""))
            lines.append(line)
    lines.append(rule("└", "┴", "┘"))
    return lines


def filled(label: str, width: int, line: int, fills: Sequence[str]) -> Line:
    """Return one line of a cell: in the colour of its device, or striped in those of all copies."""
    text = label.center(width)
    if len(fills) < 2:
        return [(text, f"{ink(fills[0])} on {fills[0]}" if fills else "")]
    start, end = (text.index(label) - 1, text.index(label) + len(label) + 1) if label else (width, width)
    pieces: Line = []
    for at, letter in enumerate(text):
        fill = "#FFFFFF" if start <= at < end else fills[(at // 2 + line) % len(fills)]
        style = f"{ink(fill)} on {fill}"
        if pieces and pieces[-1][1] == style:
            pieces[-1] = (pieces[-1][0] + letter, style)
        else:
            pieces.append((letter, style))
    return pieces


def _ranges(grid: Grid) -> str:
    """Return the headings of all columns; of equally wide columns the first two and the last."""
    shown = clip(len(grid.columns), 3 if len(set(grid.widths)) == 1 else len(grid.columns))
    return ", ".join("…" if j is None else grid.columns[j] for j in shown)


def beside(blocks: Iterable[list[Line]], width: int) -> list[Line]:
    """Set blocks of lines side by side, as many in a row as fit."""
    rows: list[list[list[Line]]] = []
    room = 0
    for block in blocks:
        need = max(map(_length, block), default=0)
        if rows and need + _GAP <= room:
            rows[-1].append(block)
            room -= need + _GAP
        else:
            rows.append([block])
            room = width - need
    lines: list[Line] = []
    for row in rows:
        widths = [max(map(_length, block), default=0) + _GAP for block in row]
        for parts in itertools.zip_longest(*row, fillvalue=[]):
            line: Line = []
            for part, column in zip(parts, widths, strict=True):
                line += [*part, (" " * (column - _length(part)), "")]
            lines.append(line[:-1])
    return lines


def _length(line: Line) -> int:
    return sum(len(text) for text, _ in line)
