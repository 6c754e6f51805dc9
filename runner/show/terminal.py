"""Pictures in; boxes of text out: coloured by rich on a terminal, without any escape code everywhere else."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from runner.show.pictures import (
    ArrayPicture,
    Grid,
    MeshPicture,
    Picture,
    clip,
    devices_text,
    figure_colours,
    ink,
    merge,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Line = list[tuple[str, str]]
"""Pieces of text, each with its rich style; "" is none."""

_ROWS = 16
_SLICES = 4
_GAP = 4


@dataclass(frozen=True)
class _Figure:
    """A rich renderable: it is laid out when rich asks, for then the width is known."""

    mesh: MeshPicture
    arrays: tuple[ArrayPicture, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        # The sixteen colours of an old terminal are the user's own: no contrast can be promised on them.
        coloured = console.color_system in ("256", "truecolor")
        for line in _figure(self.mesh, self.arrays, options.max_width):
            pieces = ((text, style if coloured or " on " not in style else "") for text, style in line)
            yield Text.assemble(*pieces, no_wrap=True, end="\n")


def render(mesh: MeshPicture, arrays: Sequence[ArrayPicture]) -> _Figure:
    """The mesh and every array as a rich renderable, side by side where the console is wide enough."""
    return _Figure(mesh, tuple(arrays))


def plain(mesh: MeshPicture, arrays: Sequence[ArrayPicture], width: int = 100) -> str:
    """The same as text of at most `width` columns, without escape codes; ends in a newline."""
    lines = ("".join(text for text, _ in line).rstrip() for line in _figure(mesh, arrays, width))
    return "\n".join(lines).rstrip("\n") + "\n"


def show(mesh: MeshPicture, arrays: Sequence[ArrayPicture], file: TextIO | None = None) -> None:
    """Print the figure: with colours to a terminal, as plain text to a pipe or a file."""
    from rich.console import Console

    console = Console(file=file)
    if console.is_terminal:
        console.print(render(mesh, arrays))
    else:
        console.file.write(plain(mesh, arrays))


def _figure(mesh: MeshPicture, arrays: Sequence[ArrayPicture], width: int) -> list[Line]:
    arrays = merge(arrays)
    paint = figure_colours(mesh, arrays)
    blocks = [_block(picture, width, paint) for picture in (mesh, *arrays)]
    return _beside([[*block, []] for block in blocks], width)


def _block(picture: Picture, width: int, paint: dict[int, str]) -> list[Line]:
    """One picture: its heading, its grid or slices, and what the reader has to be told about them."""
    first, *others = picture.lines()
    style = "bold"
    heading = [f"{picture.name}  {first}" + (f"  {others.pop(0)}" if isinstance(picture, ArrayPicture) else "")]
    lines: list[Line] = []
    for text in heading + others:
        lines += [[(part, style)] for part in textwrap.wrap(text, width, subsequent_indent="  ")]
        style = "dim"
    grids = picture.grids()
    shown = grids[:_SLICES]
    tall = isinstance(picture, ArrayPicture) and len(picture.shape) == 2
    drawn = [_grid(grid, picture, width, paint, tall) for grid in shown]
    notes = list(dict.fromkeys(note for _, grid_notes in drawn for note in grid_notes))
    if len(grids) > len(shown):
        notes.append(f"{len(grids)} slices, {len(shown)} shown")
    if picture.without():
        notes.append(picture.without())
    lines += _beside([grid_lines for grid_lines, _ in drawn], width)
    return lines + [[(part, "italic")] for note in notes for part in textwrap.wrap(note, width)]


def _grid(
    grid: Grid, picture: Picture, width: int, paint: dict[int, str], tall: bool
) -> tuple[list[Line], tuple[str, ...]]:
    """One grid at most `width` wide, and notes on what it leaves out."""
    across, down = len(grid.columns), len(grid.rows)
    rows = clip(down, _ROWS if down <= _ROWS else _ROWS // 2)
    axes = (f"{grid.row_axis}↓" if grid.row_axis else "", f"{grid.column_axis}→" if grid.column_axis else "")
    corner = " ".join(filter(None, axes))
    margin = max(len(corner), *(len(grid.rows[i]) for i in rows if i is not None)) + 1
    margin = margin if margin > 1 else 0

    spellings = (
        lambda devices: devices_text(devices, picture.platform),
        devices_text,
        lambda devices: devices_text(devices[:1]),
    )
    columns, inner, spell, headed = clip(across, across), 0, 0, True
    for padding, spell, headed in itertools.product((2, 0), range(len(spellings)), (True, False)):
        inner = padding + max(
            len(spellings[spell](cell.devices)) for i in rows if i is not None for cell in grid.cells[i]
        )
        if headed:
            inner = max(inner, *(len(heading) + padding for heading in grid.columns))
        if margin + 1 + across * (inner + 1) <= width:
            break
    else:
        columns = clip(across, (width - margin - 1 - len(" … │")) // (inner + 1))
        headed = all(len(grid.columns[j]) <= inner for j in columns if j is not None)
    notes = []
    if not headed and any(grid.columns):
        notes.append(f"columns {_ranges(grid)}")
    shown = [sum(i is not None for i in indices) for indices in (rows, columns)]
    if shown != [down, across]:
        notes.append(f"{down} × {across} {picture.unit}, {shown[0]} × {shown[1]} shown")
    copies = max(len(cell.devices) for row in grid.cells for cell in row)
    if spell == 2 and copies > 1:
        notes.append(f"each cell names the first of its {copies} {picture.platform.upper()} devices")
    elif spell:
        notes.append(f"each cell names its {picture.platform.upper()} device{'s' if copies > 1 else ''}")
    if tall and across * (inner + 1) < 21:
        inner = 20 // across - 1

    def rule(left: str, cross: str, right: str) -> Line:
        return [(" " * margin + left + cross.join("─" * (3 if j is None else inner) for j in columns) + right, "")]

    lines: list[Line] = []
    if grid.title:
        lines.append([(grid.title, "bold")])
    if headed and any(grid.columns):
        headings = ("…".center(3) if j is None else grid.columns[j].center(inner) for j in columns)
        lines.append([(corner.ljust(margin) + " " + " ".join(headings), "dim")])
    elif corner:
        lines.append([(corner, "dim")])
    lines.append(rule("┌", "┬", "┐"))
    # A box of nine lines for one, two and four rows, so that the arrays of one experiment line up.
    height = {1: 7 if across <= 4 else 3, 2: 3}.get(len(rows), 1) if tall else 1
    for number, i in enumerate(rows):
        if number:
            lines.append(rule("├", "┼", "┤"))
        for part in range(height if i is not None else 1):
            middle = part == height // 2
            heading = grid.rows[i] if i is not None and middle else ""
            line: Line = [(heading.ljust(margin), "dim"), ("│", "")]
            for j in columns:
                if i is None or j is None:
                    mark = "⋮" if j is not None else "⋱" if i is None else "…"
                    line += [(mark.center(inner if j is not None else 3) if middle or i is None else "   ", "")]
                else:
                    devices = grid.cells[i][j].devices
                    label = spellings[spell](devices) if middle else ""
                    background = paint[devices[0]] if devices else ""
                    line.append((label.center(inner), f"{ink(background)} on {background}" if background else ""))
                line.append(("│", ""))
            lines.append(line)
    lines.append(rule("└", "┴", "┘"))
    return lines, tuple(notes)


def _ranges(grid: Grid) -> str:
    """The headings of all columns, or of equally wide ones the first two and the last."""
    shown = clip(len(grid.columns), 3 if len(set(grid.widths)) == 1 else len(grid.columns))
    return ", ".join("…" if j is None else grid.columns[j] for j in shown)


def _beside(blocks: Iterable[list[Line]], width: int) -> list[Line]:
    """Blocks of lines set side by side, as many in a row as fit."""
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
