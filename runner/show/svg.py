"""Pictures in; one SVG image out, written by hand: no font, script, style sheet or address outside it."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from runner.show.pictures import (
    ArrayPicture,
    Cell,
    Grid,
    MeshPicture,
    Picture,
    clip,
    devices_text,
    figure_colours,
    ink,
    merge,
)

_PAGE = 1120
_MARGIN = 28
_GAP = 18
_PAD = 18
_INNER = _PAGE - 2 * _MARGIN - 2 * _PAD
_SIDE = 170
_LINES = 512
_CELLS = 1024
_SLICES = 16
_STRIPES = 16
_GLYPH = 0.61
"""The width of a monospaced glyph over its font size, rounded up from 0.602, so that text that is said to fit fits."""

_LETTER = 6.2
"""About the width of a letter of the 12-pixel text."""

_SANS = "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',Arial,sans-serif"
_MONO = "ui-monospace,SFMono-Regular,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
_STYLE = (
    f".sp{{font-family:{_SANS};font-size:12px;fill:#57606A}}"
    ".sp .h{font-size:22px;font-weight:700;fill:#1F2328}"
    ".sp .n{font-size:18px;font-weight:700;fill:#1F2328}"
    f".sp .t{{font-family:{_MONO};font-size:12.5px;fill:#1F2328}}"
    f".sp .s{{font-family:{_MONO};font-size:12.5px;fill:#0A4FA8}}"
    f".sp .r{{font-family:{_MONO};font-size:10px}}"
    ".sp .a{font-weight:700;fill:#1F2328}"
    f".sp .c{{font-family:{_MONO};text-anchor:middle}}"
    ".sp .m{text-anchor:middle}.sp .e{text-anchor:end}"
)


@dataclass(frozen=True)
class _Box:
    """A drawing with its size, its upper left corner at the origin."""

    width: float
    height: float
    body: str

    def at(self, x: float, y: float) -> str:
        return f'<g transform="translate({_n(x)} {_n(y)})">{self.body}</g>\n'


@dataclass(frozen=True)
class _Card:
    """One picture: its heading, and its body of grids and notes, which is set below the headings of its row."""

    head: _Box
    body: _Box

    @property
    def width(self) -> float:
        return max(self.head.width, self.body.width) + 2 * _PAD


_Sized = TypeVar("_Sized", _Box, _Card)


def draw(mesh: MeshPicture, arrays: Sequence[ArrayPicture], title: str) -> str:
    """The mesh and every array as an SVG document; the same pictures give the same bytes."""
    arrays = merge(arrays)
    paint = figure_colours(mesh, arrays)
    cards = _page([_card(picture, paint) for picture in (mesh, *arrays)])
    top = _MARGIN + 56
    height = top + cards.height + _MARGIN
    legend = "A cell is a shard. Its label names every device that holds a copy."
    if any(len(shard.devices) > 1 for picture in arrays for shard in picture.shards):
        legend += " ×2: there are two. Colour follows the first device; the stripe has the colour of each."
    summary = "; ".join(f"{p.name}: " + ", ".join(p.lines()) for p in (mesh, *arrays))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PAGE} {_n(height)}" width="{_PAGE}"'
        f' height="{_n(height)}" style="max-width:100%;height:auto" class="sp" role="img"'
        f' aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(summary)}</desc>\n<style>{_STYLE}</style>\n"
        f'<rect width="{_PAGE}" height="{_n(height)}" rx="16" fill="#F6F8FA"/>\n'
        + _text(title, _MARGIN, _MARGIN + 20, "h", _PAGE - 2 * _MARGIN, 13.5)
        + _text(legend, _MARGIN, _MARGIN + 41)
        + cards.at(_MARGIN, top)
        + "</svg>\n"
    )


def _card(picture: Picture, paint: dict[int, str]) -> _Card:
    """One picture: what it is in words, and its grid or slices with notes on what is left out."""
    grids = picture.grids()
    shown = grids[: max(1, min(_SLICES, _CELLS // (len(grids[0].rows) * len(grids[0].columns))))]
    flat = len(picture.shape) < 2
    drawn = [_grid(grid, picture, paint, flat=flat, sliced=len(grids) > 1) for grid in shown]
    notes = list(dict.fromkeys(note for _, grid_notes in drawn for note in grid_notes))
    if len(grids) > len(shown):
        notes.append(f"{len(grids)} slices, {len(shown)} shown")
    if picture.without():
        notes.append(picture.without())
    body = _flow([box for box, _ in drawn], _INNER)
    width = max(body.width, *(len(note) * _LETTER for note in notes), 0)
    below = "".join(_text(note, 0, body.height + 18 * (k + 1)) for k, note in enumerate(notes))
    body = _Box(min(width, _INNER), body.height + 18 * len(notes), body.body + below)

    first, *rest = picture.lines()
    typed = [(first, "t")] if first else []
    if isinstance(picture, ArrayPicture):
        typed.append((rest.pop(0), "s"))
    width = min(max(body.width, 210, *(len(text) * 12.5 * _GLYPH for text, _ in typed)), _INNER)
    words = [line for text in rest for line in textwrap.wrap(text.replace("  ", " · "), int(width / _LETTER))]
    lines = [(picture.name, "n", 11.0), *((*line, 12.5 * _GLYPH) for line in typed)]
    lines += [(line, "", _LETTER) for line in words]
    parts, wide = [], 0.0
    for k, (text, style, glyph) in enumerate(lines):
        parts.append(_text(text, 0, 15 + 4 * (k > 0) + 18 * k, style, width, glyph))
        wide = max(wide, min(len(text) * glyph, width))
    return _Card(_Box(wide, 10 + 18 * len(lines), "".join(parts)), body)


def _page(cards: Sequence[_Card]) -> _Box:
    """White cards in rows, as many in each as fit; in one row the bodies begin at one height."""
    page = _PAGE - 2 * _MARGIN
    parts, y = [], 0.0
    for row in _rows(cards, page):
        head = max(card.head.height for card in row) + 12
        height = head + max(card.body.height for card in row) + 2 * _PAD
        used = sum(card.width for card in row) + _GAP * (len(row) - 1)
        # Cards share what is left of a row that is nearly full, so that the page has a straight right edge.
        spare, x = (page - used) / len(row) if used > 0.66 * page else 0, 0.0
        for card in row:
            width = card.width + spare
            parts.append(_rect(x, y, width, height, "#FFFFFF", "#D0D7DE", radius=10))
            parts.append(card.head.at(x + _PAD, y + _PAD))
            parts.append(card.body.at(x + (width - card.body.width) / 2, y + _PAD + head))
            x += width + _GAP
        y += height + _GAP
    return _Box(page, y - _GAP, "".join(parts))


def _grid(
    grid: Grid, picture: Picture, paint: dict[int, str], *, flat: bool, sliced: bool
) -> tuple[_Box, tuple[str, ...]]:
    """One grid with its headings, as large as its labels need and the page allows, and notes on what it leaves out."""
    columns = clip(len(grid.columns), _LINES)
    rows = clip(len(grid.rows), min(_LINES, _CELLS // len(columns)))
    holders = [grid.cells[i][j].devices for i in rows if i is not None for j in columns if j is not None]
    left = max((len(grid.rows[i]) for i in rows if i is not None), default=0) * 10 * _GLYPH
    left += (8 if left else 0) + (len(grid.row_axis) * 8 + 10 if grid.row_axis else 0)
    headed = any(grid.columns)
    top = (20 if grid.title else 0) + (16 if headed else 0) + (16 if grid.column_axis else 0)

    longest = max(len(devices_text(devices)) for devices in holders)
    ids_width = longest * 11 * _GLYPH + 10
    full_width = (longest + len(picture.platform) + 1) * 11 * _GLYPH + 16
    room = _INNER - left
    across, down = len(columns), len(rows)
    side = 132 if sliced else _SIDE
    # Platform and ids where eight or fewer columns can have them, else the ids, else as much as there is.
    natural = across * (full_width if across <= 8 else ids_width)
    width = min(max(side, natural), room)
    aspect = sum(grid.heights) / max(sum(grid.widths), 1)
    copies = max(map(len, holders))
    least = min(down * (46 if down <= 2 else 32 if 1 < copies <= _STRIPES else 24), 620)
    height = 46 if flat else max(least, min(side * min(max(aspect, 0.62), 1.2), 1.2 * width))
    xs = _edges(width, [grid.widths[j] if j is not None else None for j in columns])
    ys = _edges(height, [grid.heights[i] if i is not None else None for i in rows])

    cell_width = min((b - a for (a, b), j in zip(xs, columns, strict=True) if j is not None), default=0)
    cell_height = min((b - a for (a, b), i in zip(ys, rows, strict=True) if i is not None), default=0)
    size, platform, whole = _fit(holders, picture.platform, cell_width, cell_height)
    parts = [_text(grid.title, left, 12, "a")] if grid.title else []
    if grid.column_axis:
        parts.append(_text(grid.column_axis, left + width / 2, top - 20 if headed else top - 6, "a m"))
    if grid.row_axis:
        parts.append(_text(grid.row_axis, 0, top + height / 2 + 4, "a"))
    parts += _headings(grid, rows, columns, xs, ys, left, top)
    for i, (y0, y1) in zip(rows, ys, strict=True):
        for j, (x0, x1) in zip(columns, xs, strict=True):
            x, y, w, h = left + x0, top + y0, x1 - x0, y1 - y0
            if i is None or j is None:
                mark = "⋮" if j is not None else "⋯" if i is not None else "⋱"
                parts.append(_text(mark, x + w / 2, y + h / 2 + 4, "m"))
            else:
                parts.append(_cell(grid.cells[i][j], picture, paint, (x, y, w, h), size, platform, whole))
    notes = []
    if None in rows or None in columns:
        parts_shown = f"{down - rows.count(None)} × {across - columns.count(None)}"
        notes.append(f"{len(grid.rows)} × {len(grid.columns)} {picture.unit}, {parts_shown} shown")
    if not size:
        notes.append("too small for labels: point at a cell to read its devices")
    elif not whole:
        notes.append("each cell names the first of its devices: point at it to read all")
    return _Box(left + width, top + height, "".join(parts)), tuple(notes)


def _fit(holders: list[tuple[int, ...]], platform: str, width: float, height: float) -> tuple[float, str, bool]:
    """The largest font with which every label fits, the platform or nothing before the ids, and whether all ids fit."""
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
        if label * size * _GLYPH + (6 if size > 10 else 2) <= width and size + 2 <= height:
            return size, before, whole
    return 0, "", False


def _cell(
    cell: Cell,
    picture: Picture,
    paint: dict[int, str],
    frame: tuple[float, float, float, float],
    size: float,
    platform: str,
    whole: bool,
) -> str:
    """One shard: filled with its first device's colour, labelled, and with a stripe and a number for its copies."""
    x, y, w, h = frame
    copies = len(cell.devices)
    fill = paint[cell.devices[0]] if copies else "#FFFFFF"
    ids = ",".join(map(str, cell.devices))
    tip = f"{picture.platform.upper()} {ids}: {picture.name if picture.unit == 'shards' else ''}{cell.index}"
    # Lines around cells of a few pixels would be all that there is to see.
    line, thick = ("#30363D", 1) if min(w, h) >= 12 else ("#FFFFFF", 0.4) if min(w, h) >= 3 else (fill, 0.2)
    parts = [f"<g><title>{escape(tip)}</title>", _rect(x, y, w, h, fill, line, thick)]
    stripe = 6 if 1 < copies <= _STRIPES and h >= 24 and w >= 3 * copies else 0
    for k, device in enumerate(cell.devices if stripe else ()):
        parts.append(_rect(x + k * w / copies, y + h - stripe, w / copies, stripe, paint[device], line, 0.5))
    if size:
        colour = f' fill="{ink(fill)}"'
        count = copies > 1 and h - stripe >= size + 22
        middle = y + (h - stripe) / 2 + size * 0.36 - (8 if count else 0)
        label = devices_text(cell.devices if whole else cell.devices[:1], platform)
        parts.append(_text(label, x + w / 2, middle, "c", extra=f' font-size="{_n(size)}"{colour}'))
        if count:
            parts.append(_text(f"×{copies}", x + w / 2, middle + 17, "c", extra=f' font-size="11"{colour}'))
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
    """The index ranges at the edges: at every place that has room, or at every second, third, …"""
    parts = []
    longest = max(map(len, grid.columns)) * 10 * _GLYPH + 6
    narrowest = min((b - a for a, b in xs), default=1)
    for k in range(0, len(columns), max(1, math.ceil(longest / narrowest))):
        j, (a, b) = columns[k], xs[k]
        # The heading of a narrow cell may be wider than it; at the right edge it would leave the card.
        if j is not None and grid.columns[j] and (a + b + longest) / 2 <= max(xs[-1][1], b) + 8:
            parts.append(_text(grid.columns[j], left + (a + b) / 2, top - 6, "r m"))
    for k in range(0, len(rows), max(1, math.ceil(12 / min((b - a for a, b in ys), default=1)))):
        i, (a, b) = rows[k], ys[k]
        if i is not None and grid.rows[i]:
            parts.append(_text(grid.rows[i], left - 7, top + (a + b) / 2 + 3.5, "r e"))
    return parts


def _edges(length: float, sizes: Sequence[int | None]) -> list[tuple[float, float]]:
    """`length` divided in proportion to the sizes, though no part gets less than a quarter of an even share.

    None, a mark for what is left out, gets room for the mark.
    """
    marks = 14.0 * sizes.count(None)
    known = [n for n in sizes if n is not None]
    mean = sum(known) / len(known)
    weights = [0.25 + 0.75 * n / mean if mean else 1.0 for n in known]
    shares = iter(weight * (length - marks) / sum(weights) for weight in weights)
    ends = list(itertools.accumulate(14.0 if n is None else next(shares) for n in sizes))
    return list(itertools.pairwise([0.0, *ends]))


def _flow(boxes: Sequence[_Box], width: float) -> _Box:
    """Boxes in rows, as many in each as fit."""
    parts, y, widest = [], 0.0, 0.0
    for row in _rows(boxes, width):
        x = 0.0
        for box in row:
            parts.append(box.at(x, y))
            x += box.width + _GAP
        widest = max(widest, x - _GAP)
        y += max(box.height for box in row) + _GAP
    return _Box(widest, y - _GAP, "".join(parts))


def _rows(boxes: Sequence[_Sized], width: float) -> list[list[_Sized]]:
    """What stands in each row where every row takes as many as fit."""
    rows: list[list[_Sized]] = []
    room = 0.0
    for box in boxes:
        if rows and box.width + _GAP <= room:
            rows[-1].append(box)
            room -= box.width + _GAP
        else:
            rows.append([box])
            room = width - box.width
    return rows


def _rect(
    x: float, y: float, w: float, h: float, fill: str, edge: str = "none", stroke: float = 1, radius: float = 0
) -> str:
    line = f' stroke="{edge}" stroke-width="{_n(stroke)}"' if edge != "none" else ""
    rounded = f' rx="{_n(radius)}"' if radius else ""
    return f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}"{rounded} fill="{fill}"{line}/>'


def _text(
    text: str, x: float, y: float, style: str = "", width: float = 0, glyph: float = 1, *, extra: str = ""
) -> str:
    """A line of text; where `width` is given, shortened to it, the whole of it in a tooltip."""
    tip = ""
    if width and len(text) * glyph > width + 1:
        tip, text = f"<title>{escape(text)}</title>", text[: int(width / glyph) - 1] + "…"
    marked = f' class="{style}"' if style else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{marked}{extra}>{tip}{escape(text)}</text>'


def _n(number: float) -> str:
    """A coordinate to a hundredth, without trailing zeros."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
