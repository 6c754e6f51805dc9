"""Draws each device's values before and after a collective of a trace, as text and SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.base.printable import escape
from runner.base.words import bytes_text, devices_text
from runner.graph.language.operations import row_of
from runner.graph.sharding import ring
from runner.reports.record.model import PLACED, TracedBlock, TracedDevice, TracedNode, TracedValue
from runner.reports.show.colours import colours, ink
from runner.reports.show.console import wrapped
from runner.reports.show.pictures import mesh_place
from runner.reports.show.shapes import DARK, GLYPH, INNER, Box, Card, card, document, rect, stripes, text
from runner.reports.show.table import Line
from runner.reports.show.terminal import filled

MOST = 24
"""The most collectives in an image."""

_TALL = 70
"""A collective that needs more lines of text is drawn in the image only."""

_SMALL = 32
"""The most elements per device for which the image shows each value."""

_ARROW = "→"


@dataclass(frozen=True)
class BlockOrigin:
    """The ids of the devices whose values a block holds (none if no device sent any), and the `part` of the operand.

    `part` is text such as `[0:2]`, and empty where it is the whole operand.
    """

    devices: tuple[int, ...]
    part: str = ""


@dataclass(frozen=True)
class Piece:
    """What one device holds: rows and columns of blocks, the number of elements along each, and the elements' values.

    Dimensions before the last are the rows, one after the other. `values` is None where they are not known.
    """

    heights: tuple[int, ...]
    widths: tuple[int, ...]
    origins: tuple[tuple[BlockOrigin, ...], ...]
    values: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True)
class DeviceExchange:
    """One device: its id, its mesh coordinates as text, and what it holds before and after."""

    device: int
    at: str
    before: Piece
    after: Piece


@dataclass(frozen=True)
class Exchange:
    """A collective: its line, its mesh axes, how it combines values, and what every device holds."""

    name: str
    expression: str
    axes: tuple[str, ...]
    combined: str | None
    devices: tuple[DeviceExchange, ...]
    sent: int | None = None
    """The bytes that a device sends, on a ring; None if unknown."""
    kept: str = "zeros"
    """The label of a block for which no device sent anything."""

    def label(self, origin: BlockOrigin) -> str:
        """Return the origin as text: `0`, `0[2:4]`, `(0+2)[1]`, `max 0-7`; `kept` if no device sent anything."""
        ids = origin.devices
        if len(ids) < 2:
            return f"{ids[0]}{origin.part}" if ids else self.kept
        if self.combined == "+" and len(ids) <= 4:
            total = "+".join(map(str, ids))
            return f"({total}){origin.part}" if origin.part else total
        return f"{'sum' if self.combined == '+' else self.combined or 'of'} {devices_text(ids)}{origin.part}"

    @property
    def over(self) -> str:
        """Return `over x, y, a device sends 96 B`."""
        over = f"over {', '.join(self.axes)}" if self.axes else "over no other device"
        return over if self.sent is None else f"{over}, a device sends {bytes_text(self.sent)}"


def read(node: TracedNode, devices: Sequence[TracedDevice], axes: Sequence[str]) -> Exchange | None:
    """Return the collective of a node of a trace; None if the node has none, or it is too large to draw."""
    before, collective = node.before, node.collective
    if node.origins is None or before is None or collective is None:
        return None
    rows: list[DeviceExchange] = []
    for k, device in enumerate(devices):
        whole = [TracedBlock(index=[[0, n] for n in before.shape], source=[device.id], part=None)]
        held = None if before.values is None else before.values[k]
        got = None if node.values is None else node.values[k]
        operand = _piece(whole, before.shape, held, before.shape)
        result = _piece(node.origins.blocks[k], node.shape, got, before.shape)
        rows.append(DeviceExchange(device.id, mesh_place(axes, device.coordinates), operand, result))
    sent = _sent(node, before, collective.operation)
    kept = "output" if row_of(collective.operation).over.does == "ragged" else "zeros"
    title, expression = titled(node)
    return Exchange(title, expression, tuple(collective.axes), node.origins.combined, tuple(rows), sent, kept)


def titled(node: TracedNode) -> tuple[str, str]:
    """The title of a line, which is its place in the user's file if it has one, and its expression."""
    expression, _, place = node.expression.partition(PLACED)
    return place or node.name, expression


def _sent(node: TracedNode, before: TracedValue, operation: str) -> int | None:
    """Return the bytes that a device sends; the group size is the number of devices whose values the first one gets."""
    kind = row_of(operation).over.collective
    if kind in (None, ring.RAGGED) or node.origins is None or before.dtype not in dtypes.NAMES:
        return None
    met = [{device for block in blocks for device in block.source} for blocks in node.origins.blocks]
    devices = max(map(len, met), default=1)
    if kind == "collective-permute":
        devices = 1 + any(sources - {at} for at, sources in enumerate(met))
    width = dtypes.dtype(before.dtype).itemsize
    return ring.sent(kind, devices, math.prod(before.shape) * width, math.prod(node.shape) * width)


def _piece(blocks: Sequence[TracedBlock], shape: Sequence[int], values: Any, operand: Sequence[int]) -> Piece:
    origin = {
        tuple(start for start, _ in block.index): BlockOrigin(tuple(block.source), _part(block.part, operand))
        for block in blocks
    }
    cuts = [sorted({(start, stop) for start, stop in (block.index[k] for block in blocks)}) for k in range(len(shape))]
    *leading, last = cuts or [[(0, 1)]]
    rows = [tuple(start for start, _ in lead) for lead in itertools.product(*leading)]
    heights = tuple(math.prod(stop - start for start, stop in lead) for lead in itertools.product(*leading))
    columns = [start for start, _ in last]
    origins = tuple(tuple(origin[(*row, column) if shape else ()] for column in columns) for row in rows)
    flat = _rows(values, len(shape)) if values is not None and len(shape) <= 2 else None
    return Piece(heights, tuple(stop - start for start, stop in last), origins, flat)


def _part(part: Sequence[Sequence[int]] | None, operand: Sequence[int]) -> str:
    if part is None:
        return ""
    texts = (
        ":" if [a, b] == [0, n] else f"{a}:{b}" if b - a > 1 else str(a)
        for (a, b), n in zip(part, operand, strict=True)
    )
    return f"[{', '.join(texts)}]"


def _rows(values: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    rows = [[values]] if rank == 0 else [values] if rank == 1 else values
    return tuple(tuple(map(_short, row)) for row in rows)


def _short(value: Any) -> str:
    if isinstance(value, complex):
        return f"{value.real:.3g}{value.imag:+.3g}j"
    return str(value) if isinstance(value, bool | int | str) else f"{value:.4g}"


def lines(exchange: Exchange, platform: str, width: int) -> list[Line]:
    """Draw the collective as text: a row of blocks for each device before and after, labelled by the senders."""
    paint = colours(place.device for place in exchange.devices)
    sides = [[place.before for place in exchange.devices], [place.after for place in exchange.devices]]
    cells = [max(len(exchange.label(o)) for piece in side for row in piece.origins for o in row) + 2 for side in sides]
    heads = [f"{platform.upper()} {place.device}  {place.at}" for place in exchange.devices]
    margin = max(map(len, heads)) + 2
    across = [max(len(piece.widths) for piece in side) for side in sides]
    spans = [n * (cell + 1) + 1 for n, cell in zip(across, cells, strict=True)]
    tall = sum(2 * len(piece.heights) for piece in sides[1]) + 3
    if margin + spans[0] + len(f"  {_ARROW}  ") + spans[1] > width or tall > _TALL:
        return _dimmed(f"{exchange.over}: too large to be drawn here; collectives.svg has the picture", width)
    gap = " " * len(f"  {_ARROW}  ")
    drawn: list[Line] = [
        *_dimmed(f"{exchange.over}, each block named after the device that it comes from", width),
        [(" " * margin + "before".ljust(spans[0]) + gap + "after", "dim")],
    ]

    def rule(marks: tuple[str, str, str], side: int) -> str:
        return marks[0] + marks[1].join("─" * cells[side] for _ in range(across[side])) + marks[2]

    top, inner, bottom = ("┌", "┬", "┐"), ("├", "┼", "┤"), ("└", "┴", "┘")
    drawn.append([(" " * margin + rule(top, 0) + gap + rule(top, 1), "")])
    for k, (head, place) in enumerate(zip(heads, exchange.devices, strict=True)):
        before, after = place.before, place.after
        count = len(after.origins)
        for row, origins in enumerate(after.origins):
            middle = row == count // 2
            line: Line = [((head if middle else "").ljust(margin), "dim"), ("│", "")]
            line += _cells(exchange, before.origins[0], cells[0], row, paint, labelled=middle)
            line += [(f"  {_ARROW}  " if middle else gap, ""), ("│", "")]
            line += _cells(exchange, origins, cells[1], row, paint)
            drawn.append(line)
            last = row == count - 1
            if not last:
                empty = "│" + " " * (spans[0] - 2) + "│"
                drawn.append([(" " * margin + empty + gap + rule(inner, 1), "")])
        ends = bottom if k == len(heads) - 1 else inner
        drawn.append([(" " * margin + rule(ends, 0) + gap + rule(ends, 1), "")])
    return drawn


def _dimmed(text: str, width: int) -> list[Line]:
    return [[(part, "dim")] for part in wrapped(text, width)]


def _cells(
    exchange: Exchange,
    origins: Sequence[BlockOrigin],
    width: int,
    row: int,
    paint: dict[int, str],
    *,
    labelled: bool = True,
) -> Line:
    line: Line = []
    for origin in origins:
        fills = [paint[device] for device in origin.devices]
        line += [*filled(exchange.label(origin) if labelled else "", width, row, fills), ("│", "")]
    return line


def draw(exchanges: Sequence[Exchange], platform: str, title: str, summary: str) -> str:
    """Draw the collectives as an SVG document, in their order."""
    shown = exchanges[:MOST]
    left = len(exchanges) - len(shown)
    rest = f" {left} more collectives are not drawn." if left else ""
    legend = "Each device's operand has a colour, which moves with its values. Striped: made of several. White: zeros."
    description = "; ".join(f"{collective.name} = {collective.expression}, {collective.over}" for collective in shown)
    return document(title, summary, legend + rest, description, [_card(collective, platform) for collective in shown])


def _card(exchange: Exchange, platform: str) -> Card:
    return card(exchange.name, [(exchange.expression, "t")], [exchange.over], figure(exchange, platform))


def figure(exchange: Exchange, platform: str) -> Box:
    """Draw what every device holds before and after a collective."""
    paint = colours(place.device for place in exchange.devices)
    sides = [[place.before for place in exchange.devices], [place.after for place in exchange.devices]]
    heads = [(f"{platform.upper()} {place.device}", place.at) for place in exchange.devices]
    margin = max(max(len(name) * 7.5, len(place) * _PLACE) for name, place in heads) + 14
    drawn = [_drawn(exchange, side, paint, valued=True) for side in sides]
    if margin + _wide(drawn[0]) + _TO + _wide(drawn[1]) > INNER:
        drawn = [_drawn(exchange, side, paint, valued=False) for side in sides]
    spans = [_wide(side) for side in drawn]
    starts = (margin, margin + spans[0] + _TO)
    parts = [text("before", starts[0], 12, "a"), text("after", starts[1], 12, "a")]
    y = 22.0
    for (name, place), before, after in zip(heads, *drawn, strict=True):
        height = max(before.height, after.height, 30)
        middle = y + height / 2
        parts += [text(name, 0, middle - 2, "a"), text(place, 0, middle + 13, "r")]
        parts.append(before.at(starts[0], middle - before.height / 2))
        parts.append(text(_ARROW, starts[1] - _TO / 2, middle + 5, "n m"))
        parts.append(after.at(starts[1], middle - after.height / 2))
        y += height + 8
    return Box(starts[1] + spans[1], y - 8, "".join(parts))


_TO = 56
"""The width of an arrow."""

_PLACE = 10 * GLYPH

_CELL = 26


def _wide(boxes: Sequence[Box]) -> float:
    return max(box.width for box in boxes)


def _drawn(exchange: Exchange, pieces: Sequence[Piece], paint: dict[int, str], *, valued: bool) -> list[Box]:
    """Draw what every device holds: element by element with values if there are few, otherwise block by block."""
    grids: list[tuple[list[list[str]], list[list[BlockOrigin]]]] = []
    small = all(sum(piece.heights) * sum(piece.widths) <= _SMALL for piece in pieces)
    for piece in pieces:
        if valued and small and piece.values is not None:
            rows = [k for k, count in enumerate(piece.heights) for _ in range(count)]
            columns = [k for k, count in enumerate(piece.widths) for _ in range(count)]
            texts = [[*row] for row in piece.values]
        else:
            rows, columns = list(range(len(piece.heights))), list(range(len(piece.widths)))
            texts = [[exchange.label(piece.origins[i][j]) for j in columns] for i in rows]
        grids.append((texts, [[piece.origins[i][j] for j in columns] for i in rows]))
    longest = max((len(label) for texts, _ in grids for row in texts for label in row), default=1)
    width = max(longest * 11 * GLYPH + 14, _CELL)
    return [_boxed(exchange, texts, origins, width, paint) for texts, origins in grids]


def _boxed(
    exchange: Exchange,
    texts: Sequence[Sequence[str]],
    origins: Sequence[Sequence[BlockOrigin]],
    width: float,
    paint: dict[int, str],
) -> Box:
    parts: list[str] = []
    for i, row in enumerate(origins):
        for j, origin in enumerate(row):
            x, y = j * width, i * _CELL
            fills = [paint[device] for device in origin.devices] or ["#FFFFFF"]
            parts.append(f"<g><title>{escape(exchange.label(origin))}</title>")
            parts.append(stripes(x, y, width, _CELL, fills))
            parts.append(rect(x, y, width, _CELL, "none", DARK, 1))
            if len(origin.devices) > 1:
                plate = len(texts[i][j]) * 11 * GLYPH + 6
                parts.append(rect(x + (width - plate) / 2, y + 5, plate, _CELL - 10, "#FFFFFF", radius=3))
            ink_on = DARK if len(origin.devices) != 1 else ink(fills[0])
            extra = f' font-size="11" fill="{ink_on}"'
            parts.append(text(texts[i][j], x + width / 2, y + _CELL / 2 + 4, "c", extra=extra) + "</g>\n")
    return Box(max(map(len, texts), default=0) * width, len(texts) * _CELL, "".join(parts))
