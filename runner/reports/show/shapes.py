"""Makes pieces of an SVG document: boxes, rectangles, lines of text, stripes, the page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from runner.base.lazy import dataclass
from runner.base.printable import escape
from runner.reports.show.pictures import balanced

PAGE = 1120
MARGIN = 28
GAP = 18
PAD = 18
INNER = PAGE - 2 * MARGIN - 2 * PAD
"""The inner width of a card as wide as the page."""

GLYPH = 0.61
"""The width of a monospaced glyph over its font size, rounded up from 0.602, so that text never overflows."""

LETTER = 6.2
"""The approximate width of a letter of the 12-pixel text."""

DARK = "#1F2328"
"""The ink on a white plate, and the edges of cells."""

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
    # A viewer without support for this rule shows the light page.
    "@media (prefers-color-scheme:dark){.sp{fill:#9DA7B3}.sp .h,.sp .n,.sp .t,.sp .a{fill:#F0F6FC}"
    ".sp .s{fill:#79B8FF}.sp .p{fill:#0D1117}.sp .k{fill:#161B22;stroke:#3D444D}}"
)


@dataclass(frozen=True)
class Box:
    """A drawing with its size; its upper left corner is the origin."""

    width: float
    height: float
    body: str

    def at(self, x: float, y: float) -> str:
        """Return the drawing with its upper left corner at a point."""
        return f'<g transform="translate({number(x)} {number(y)})">{self.body}</g>\n'


@dataclass(frozen=True)
class Card:
    """A heading, and a body of drawings and notes, aligned below the headings of its row."""

    head: Box
    body: Box

    @property
    def width(self) -> float:
        """The width of the card with its padding."""
        return max(self.head.width, self.body.width) + 2 * PAD


def document(title: str, summary: str, legend: str, description: str, cards: Sequence[Card]) -> str:
    """Return a page of cards under a title, a summary and a legend; `description` is for screen readers."""
    words = [*textwrap.wrap(summary, int((PAGE - 2 * MARGIN) / LETTER)), legend]
    body = _page(cards)
    top = MARGIN + 38 + 18 * len(words)
    height = top + body.height + MARGIN
    lines = "".join(text(line, MARGIN, MARGIN + 41 + 18 * k) for k, line in enumerate(words))
    # No `style` on the root: renderers with little CSS support read `height:auto` as zero height.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PAGE} {number(height)}" width="{PAGE}"'
        f' height="{number(height)}" class="sp" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n<style>{_STYLE}</style>\n"
        f'<rect class="p" width="{PAGE}" height="{number(height)}" rx="16" fill="#F6F8FA"/>\n'
        + text(title, MARGIN, MARGIN + 20, "h", PAGE - 2 * MARGIN, 13.5)
        + lines
        + body.at(MARGIN, top)
        + "</svg>\n"
    )


def card(name: str, typed: Sequence[tuple[str, str]], notes: Sequence[str], body: Box) -> Card:
    """Return a card: its name, lines of code with their CSS classes, and notes below them."""
    wide = max(body.width, 210, *(len(line) * 12.5 * GLYPH for line, _ in typed), len(name) * 11.0)
    width = min(wide, INNER)
    words = [line for part in notes for line in textwrap.wrap(part.replace("  ", " · "), int(width / LETTER))]
    lines = [(name, "n", 11.0), *((*line, 12.5 * GLYPH) for line in typed)]
    lines += [(line, "", LETTER) for line in words]
    parts: list[str] = []
    widest = 0.0
    for k, (line, style, glyph) in enumerate(lines):
        parts.append(text(line, 0, 15 + 4 * (k > 0) + 18 * k, style, width, glyph))
        widest = max(widest, min(len(line) * glyph, width))
    return Card(Box(widest, 10 + 18 * len(lines), "".join(parts)), body)


def noted(body: Box, notes: Sequence[str]) -> Box:
    """Return a drawing with notes beneath."""
    width = max(body.width, *(len(note) * LETTER for note in notes), 0)
    below = "".join(text(note, 0, body.height + 18 * (k + 1)) for k, note in enumerate(notes))
    return Box(min(width, INNER), body.height + 18 * len(notes), body.body + below)


def evenly(boxes: Sequence[Box], width: float) -> Box:
    """Arrange boxes of one size in equally full rows."""
    widest = max(box.width for box in boxes)
    across = balanced(len(boxes), int((width + GAP) // (widest + GAP)))
    parts: list[str] = []
    y = 0.0
    for first in range(0, len(boxes), across):
        row = boxes[first : first + across]
        parts += [box.at(k * (widest + GAP), y) for k, box in enumerate(row)]
        y += max(box.height for box in row) + GAP
    return Box(across * (widest + GAP) - GAP, y - GAP, "".join(parts))


def _page(cards: Sequence[Card]) -> Box:
    """Arrange cards in rows, as many in each as fit; in one row the bodies begin at one height."""
    page = PAGE - 2 * MARGIN
    parts: list[str] = []
    y = 0.0
    for row in _rows(cards, page):
        head = max(card.head.height for card in row) + 12
        height = head + max(card.body.height for card in row) + 2 * PAD
        used = sum(card.width for card in row) + GAP * (len(row) - 1)
        # Cards share the rest of a nearly full row, so that the page has a straight right edge.
        spare, x = (page - used) / len(row) if used > 0.66 * page else 0, 0.0
        for card in row:
            width = card.width + spare
            parts.append(rect(x, y, width, height, "#FFFFFF", "#D0D7DE", radius=10, style="k"))
            parts.append(card.head.at(x + PAD, y + PAD))
            parts.append(card.body.at(x + (width - card.body.width) / 2, y + PAD + head))
            x += width + GAP
        y += height + GAP
    return Box(page, y - GAP, "".join(parts))


def _rows(boxes: Sequence[Card], width: float) -> list[list[Card]]:
    """Split boxes into rows, as many in each as fit."""
    rows: list[list[Card]] = []
    room = 0.0
    for box in boxes:
        if rows and box.width + GAP <= room:
            rows[-1].append(box)
            room -= box.width + GAP
        else:
            rows.append([box])
            room = width - box.width
    return rows


def rect(
    x: float,
    y: float,
    w: float,
    h: float,
    fill: str,
    edge: str = "none",
    stroke: float = 1,
    radius: float = 0,
    style: str = "",
) -> str:
    """Return a rectangle."""
    line = f' stroke="{edge}" stroke-width="{number(stroke)}"' if edge != "none" else ""
    rounded = f' rx="{number(radius)}"' if radius else ""
    marked = f' class="{style}"' if style else ""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}"'
    return f'<rect {place}{rounded}{marked} fill="{fill}"{line}/>'


def stripes(x: float, y: float, w: float, h: float, fills: Sequence[str]) -> str:
    """Return a rectangle in diagonal stripes of all `fills`, each colour twice if no stripe gets narrower than 6.

    Diagonal, since vertical ones would look like a split. If there are too many colours, a sample in their order.
    """
    room = max(int((w + h) / 6), 1)
    if len(fills) > room:
        fills = [fills[k * (len(fills) - 1) // max(room - 1, 1)] for k in range(room)]
    count = len(fills) * max(1, min(2, room // len(fills)))
    step = (w + h) / count
    paths: dict[str, list[str]] = {}
    for k in range(count):
        fill = fills[k % len(fills)]
        if fill != fills[0]:
            points = _stripe(w, h, k * step, (k + 1) * step)
            paths.setdefault(fill, []).append("M" + "L".join(f"{number(x + a)} {number(y + b)}" for a, b in points))
    drawn = "".join(f'<path d="{"Z".join(parts)}Z" fill="{fill}"/>' for fill, parts in paths.items())
    return rect(x, y, w, h, fills[0]) + drawn


def _stripe(w: float, h: float, low: float, high: float) -> list[tuple[float, float]]:
    """Return the corners of the part of a rectangle where x + y is from `low` to `high`."""

    def above(s: float) -> tuple[float, float]:
        return (s, 0) if s <= w else (w, s - w)

    def below(s: float) -> tuple[float, float]:
        return (0, s) if s <= h else (s - h, h)

    right = [(w, 0.0)] if low < w < high else []
    left = [(0.0, h)] if low < h < high else []
    return [above(low), *right, above(high), below(high), *left, below(low)]


def text(line: str, x: float, y: float, style: str = "", width: float = 0, glyph: float = 1, *, extra: str = "") -> str:
    """Return a line of text; if `width` is given, shortened to it with the whole text in a tooltip."""
    tip = ""
    if width and len(line) * glyph > width + 1:
        tip, line = f"<title>{escape(line)}</title>", line[: max(math.floor(width / glyph) - 1, 0)] + "…"
    marked = f' class="{style}"' if style else ""
    return f'<text x="{number(x)}" y="{number(y)}"{marked}{extra}>{tip}{escape(line)}</text>'


def number(value: float) -> str:
    """Return a coordinate rounded to a hundredth, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
