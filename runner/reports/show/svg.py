"""Makes one SVG image of pictures: no font, script, style sheet or external address."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from runner.base.lazy import dataclass
from runner.base.printable import escape
from runner.base.words import devices_text
from runner.reports.record.model import Record
from runner.reports.show.colours import ink, mean
from runner.reports.show.pictures import (
    ArrayPicture,
    Cell,
    Grid,
    MeshPicture,
    Picture,
    alike,
    clip,
    figure_colours,
    read,
)
from runner.reports.show.shapes import (
    DARK,
    GLYPH,
    INNER,
    Box,
    Card,
    card,
    document,
    evenly,
    noted,
    number,
    rect,
    stripes,
    text,
)

_SIDE = 170
_LINES = 512
_CELLS = 1024
_SLICES = 16
_STRIPES = 16


def picture(record: Record) -> str | None:
    """Draw `shardings.svg`: the mesh, and each distinct layout of the arrays and outputs; None if there are none."""
    if record.pictures is None:
        return None
    return draw(*read(record.pictures), record.experiment or "", record.summary)


def draw(mesh: MeshPicture, arrays: Sequence[ArrayPicture], title: str, summary: str = "") -> str:
    """Draw the mesh and each distinct layout of the arrays as an SVG document; equal pictures give equal bytes."""
    return sheet([(mesh, alike(arrays))], title, summary)


def sheet(figures: Sequence[tuple[MeshPicture, Sequence[ArrayPicture]]], title: str, summary: str = "") -> str:
    """Draw several meshes, each followed by its arrays, as one SVG document."""
    cards: list[Card] = []
    lines: list[str] = []
    for mesh, arrays in figures:
        paint = tuple(figure_colours(mesh, arrays).items())
        cards += [_card(picture, paint) for picture in (mesh, *arrays)]
        lines += [f"{picture.name}: " + ", ".join(picture.lines()) for picture in (mesh, *arrays)]
    legend = "A cell is a shard. Its label names every device that holds a copy."
    if any(len(shard.devices) > 1 for _, arrays in figures for picture in arrays for shard in picture.shards):
        legend += " ×2: there are two copies; a cell is striped in the colours of all that have one."
    return document(title, summary, legend, "; ".join(lines), cards)


@functools.lru_cache(maxsize=128)
def _card(picture: Picture, paint: tuple[tuple[int, str], ...]) -> Card:
    """Draw one picture: its heading, its grid or slices, and notes on what is left out.

    Cached, since points of a sweep share many pictures.
    """
    body = figure(picture, dict(paint))
    first, *rest = picture.lines()
    typed = [(first, "t")] if first else []
    if isinstance(picture, ArrayPicture):
        typed.append((rest.pop(0), "s"))
    return card(picture.name, typed, rest, body)


def figure(picture: Picture, paint: dict[int, str], *, marked: bool = False, room: float = INNER) -> Box:
    """Draw the grid or slices of one picture within `room` pixels, with notes on what is left out.

    If `marked`, each cell names its devices in `data-d`.
    """
    grids = picture.grids()
    shown = grids[: max(1, min(_SLICES, _CELLS // (len(grids[0].rows) * len(grids[0].columns))))]
    frame = _frame(shown, picture, sliced=len(grids) > 1, marked=marked, room=room)
    notes = list(frame.notes)
    if len(grids) > len(shown):
        notes.append(f"{len(grids)} slices, {len(shown)} shown")
    if picture.without():
        notes.append(picture.without())
    return noted(evenly([_grid(grid, frame, picture, paint) for grid in shown], room), notes)


@dataclass(frozen=True)
class _ImageFrame:
    """Data that all slices of one picture share, so that their cells have one size.

    - `rows`, `columns`: the indices that are drawn; `xs`, `ys`: the range of each of them.
    - `left`, `top`: the room for headings. `size`, `platform`, `whole`: the label format, from `_fit`.
    - `marked`: as in `figure`.
    """

    rows: Sequence[int | None]
    columns: Sequence[int | None]
    xs: Sequence[tuple[float, float]]
    ys: Sequence[tuple[float, float]]
    left: float
    top: float
    size: float
    platform: str
    whole: bool
    notes: tuple[str, ...]
    marked: bool


def _frame(grids: Sequence[Grid], picture: Picture, *, sliced: bool, marked: bool, room: float) -> _ImageFrame:
    """Return a frame as large as the labels of all slices need and the page allows, with notes on omissions."""
    first = grids[0]
    columns = clip(len(first.columns), _LINES)
    rows = clip(len(first.rows), min(_LINES, _CELLS // len(columns)))
    inside = [(i, j) for i in rows if i is not None for j in columns if j is not None]
    holders = [grid.cells[i][j].devices for grid in grids for i, j in inside]
    left = max((len(first.rows[i]) for i in rows if i is not None), default=0) * 10 * GLYPH
    left += (8 if left else 0) + (len(first.row_axis) * 8 + 10 if first.row_axis else 0)
    top = (20 if first.title else 0) + (16 if any(first.columns) else 0) + (16 if first.column_axis else 0)

    longest = max(len(devices_text(devices)) for devices in holders)
    ids_width = longest * 11 * GLYPH + 10
    full_width = (longest + len(picture.platform) + 1) * 11 * GLYPH + 16
    across, down = len(columns), len(rows)
    side = 132 if sliced else _SIDE
    # Platform and ids if at most eight columns can hold them, otherwise the ids, otherwise as much as fits.
    natural = across * (full_width if across <= 8 else ids_width)
    width = min(max(side, natural), room - left)
    aspect = sum(first.heights) / max(sum(first.widths), 1)
    copies = max(map(len, holders))
    least = min(down * (46 if down <= 2 else 32 if 1 < copies <= _STRIPES else 24), 620)
    flat = len(picture.shape) < 2
    height = 46 if flat else max(least, min(side * min(max(aspect, 0.62), 1.2), 1.2 * width))
    xs = _edges(width, [first.widths[j] if j is not None else None for j in columns])
    ys = _edges(height, [first.heights[i] if i is not None else None for i in rows])

    cell_width = min((b - a for (a, b), j in zip(xs, columns, strict=True) if j is not None), default=0)
    cell_height = min((b - a for (a, b), i in zip(ys, rows, strict=True) if i is not None), default=0)
    size, platform, whole = _fit(holders, picture.platform, cell_width, cell_height)
    notes: list[str] = []
    if None in rows or None in columns:
        parts_shown = f"{down - rows.count(None)} × {across - columns.count(None)}"
        notes.append(f"{len(first.rows)} × {len(first.columns)} {picture.unit}, {parts_shown} shown")
    if not size:
        notes.append("too small for labels: point at a cell to read its devices")
    elif not whole:
        notes.append("each cell names the first of its devices: point at it to read all")
    return _ImageFrame(rows, columns, xs, ys, left, top, size, platform, whole, tuple(notes), marked)


def _grid(grid: Grid, frame: _ImageFrame, picture: Picture, paint: dict[int, str]) -> Box:
    """Draw one grid with its headings."""
    left, top = frame.left, frame.top
    width, height = frame.xs[-1][1], frame.ys[-1][1]
    parts = [text(grid.title, left, 12, "a")] if grid.title else []
    if grid.column_axis:
        above = 20 if any(grid.columns) else 6
        parts.append(text(grid.column_axis, left + width / 2, top - above, "a m"))
    if grid.row_axis:
        parts.append(text(grid.row_axis, 0, top + height / 2 + 4, "a"))
    parts += _headings(grid, frame.rows, frame.columns, frame.xs, frame.ys, left, top)
    for i, (y0, y1) in zip(frame.rows, frame.ys, strict=True):
        for j, (x0, x1) in zip(frame.columns, frame.xs, strict=True):
            x, y, w, h = left + x0, top + y0, x1 - x0, y1 - y0
            if i is None or j is None:
                mark = "⋮" if j is not None else "⋯" if i is not None else "⋱"
                parts.append(text(mark, x + w / 2, y + h / 2 + 4, "m"))
            else:
                parts.append(_cell(grid.cells[i][j], picture, paint, (x, y, w, h), frame))
    return Box(left + width, top + height, "".join(parts))


def _fit(holders: list[tuple[int, ...]], platform: str, width: float, height: float) -> tuple[float, str, bool]:
    """Return the largest font for all labels, the prefix of the ids (the platform or ""), and whether all ids fit."""
    for size, before, whole in (
        (13, platform, True),
        (11, platform, True),
        (12, "", True),
        (10, "", True),
        (8.5, "", True),
        (7, "", True),
        (10, "", False),
        (7, "", False),
    ):
        label = max(len(devices_text(ids if whole else ids[:1], before)) for ids in holders)
        if label * size * GLYPH + (6 if size > 10 else 2) <= width and size + 2 <= height:
            return size, before, whole
    return 0, "", False


def _cell(
    cell: Cell, picture: Picture, paint: dict[int, str], place: tuple[float, float, float, float], frame: _ImageFrame
) -> str:
    """Draw one shard: in the colour of its device, or striped in those of all copies; labelled, with their number.

    A cell too small for stripes has the mean of their colours.
    """
    x, y, w, h = place
    copies = len(cell.devices)
    fills = [paint[device] for device in cell.devices] or ["#FFFFFF"]
    tip = devices_text(cell.devices, picture.platform, whole=True) + ": "
    tip += picture.name if picture.unit == "shards" else ""
    # Outlines would cover cells of a few pixels.
    small = min(w, h)
    line, thick = (DARK, 1) if small >= 12 else ("#FFFFFF", 0.4) if small >= 3 else (mean(fills), 0.2)
    mark = f' data-d="{" ".join(map(str, cell.devices))}" data-i="{escape(cell.index)}"' if frame.marked else ""
    parts = [f"<g{mark}><title>{escape(tip + cell.index)}</title>"]
    striped = copies > 1 and small >= 12
    if striped:
        parts += [stripes(x, y, w, h, fills), rect(x, y, w, h, "none", line, thick)]
    else:
        parts.append(rect(x, y, w, h, mean(fills), line, thick))
    size = frame.size
    if size:
        count = copies > 1 and h >= size + 26
        label = devices_text(cell.devices if frame.whole else cell.devices[:1], frame.platform)
        middle = y + h / 2 - (8 if count else 0)
        if striped:
            wide = min(len(label) * size * GLYPH + 8, w - 2)
            tall = min(size + 6 + (17 if count else 0), h - 2)
            parts.append(rect(x + (w - wide) / 2, y + (h - tall) / 2, wide, tall, "#FFFFFF", radius=3))
        colour = f' fill="{DARK if striped else ink(mean(fills))}"'
        base = middle + size * 0.36
        parts.append(text(label, x + w / 2, base, "c", extra=f' font-size="{number(size)}"{colour}'))
        if count:
            parts.append(text(f"×{copies}", x + w / 2, base + 17, "c", extra=f' font-size="11"{colour}'))
    parts.append("</g>\n")
    return "".join(parts)


def _headings(
    grid: Grid,
    rows: Sequence[int | None],
    columns: Sequence[int | None],
    xs: Sequence[tuple[float, float]],
    ys: Sequence[tuple[float, float]],
    left: float,
    top: float,
) -> list[str]:
    """Draw the index ranges at the edges: at every cell if there is room, or at every second, third, …"""
    parts: list[str] = []
    longest = max(map(len, grid.columns)) * 10 * GLYPH + 6
    narrowest = min((b - a for a, b in xs), default=1)
    for k in range(0, len(columns), max(1, math.ceil(longest / narrowest))):
        j, (a, b) = columns[k], xs[k]
        # The heading of a narrow cell may be wider than the cell; at the right edge it would leave the card.
        if j is not None and grid.columns[j] and (a + b + longest) / 2 <= max(xs[-1][1], b) + 8:
            parts.append(text(grid.columns[j], left + (a + b) / 2, top - 6, "r m"))
    for k in range(0, len(rows), max(1, math.ceil(12 / min((b - a for a, b in ys), default=1)))):
        i, (a, b) = rows[k], ys[k]
        if i is not None and grid.rows[i]:
            parts.append(text(grid.rows[i], left - 7, top + (a + b) / 2 + 3.5, "r e"))
    return parts


def _edges(length: float, sizes: Sequence[int | None]) -> list[tuple[float, float]]:
    """Split `length` in proportion to the sizes; no part gets less than a quarter of an even share.

    None marks an omission and gets room for its mark.
    """
    marks = 14.0 * sizes.count(None)
    known = [n for n in sizes if n is not None]
    mean = sum(known) / len(known)
    weights = [0.25 + 0.75 * n / mean if mean else 1.0 for n in known]
    shares = iter(weight * (length - marks) / sum(weights) for weight in weights)
    ends = list(itertools.accumulate(14.0 if n is None else next(shares) for n in sizes))
    return list(itertools.pairwise([0.0, *ends]))
