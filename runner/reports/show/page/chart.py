"""Draws points as SVG: scatter plots of one cost against another with the Pareto front, and line charts.

An axis is linear or logarithmic between two ends, with round ticks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from runner.base.lazy import dataclass
from runner.base.printable import escape
from runner.reports.show.page.markup import Markup
from runner.reports.show.shapes import GLYPH, Box, number, text

_WIDE = 30.0
"""Values that differ by more than this factor are drawn on a logarithmic scale."""


_LEAST = 1e-290
"""Smaller values count as zero: ticks between them would underflow."""


@dataclass(frozen=True)
class Scale:
    """A scale from `low` to `high`."""

    low: float
    high: float
    logarithmic: bool

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most `most` round values on the scale."""
        if not self.logarithmic:
            step = _round_up((self.high - self.low) / most)
            first = math.ceil(self.low / step - 1e-9)
            return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        powers = [10.0**k for k in range(first, last + 1)]
        if len(powers) > most:
            return powers[:: -(-len(powers) // most)]
        if len(powers) < 3:
            parts = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
            return [value for value in parts if self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)]
        return powers


def scale(values: Sequence[float]) -> Scale:
    """Return the scale for measured values: from zero, or logarithmic if they span too wide a range."""
    low, high = min(values), max(values)
    if low > _LEAST and high / low > _WIDE:
        return Scale(low / 1.15, high * 1.15, True)
    if high < _LEAST:
        return Scale(0, 1, False)
    return Scale(0, high * 1.06, False)


def of_sizes(values: Sequence[float]) -> Scale:
    """Return the scale for swept values: from the smallest to the largest, logarithmic if they grow by factors."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= 4:
        return Scale(low, high, True)
    return Scale(low, high if high > low else low + 1, False)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, …"""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))


COLOURS = 6
"""The number of series with a distinct colour, mark and dash: `c0` to `c5` in the style sheet."""

_NAMED = 60
"""The most places with names beside them."""

_JOINED = 4
"""The most names at one place."""

_SIZE = 10.5
"""The font size of names, in pixels."""

_LEFT, _TOP, _BELOW, _RIGHT = 74, 14, 46, 20


@dataclass(frozen=True)
class Dot:
    """A point of a scatter plot: `kind` selects its mark and colour; `id` links it to its table row.

    The chart labels it with `short`, or with `long` if it is on the front.
    """

    x: float
    y: float
    kind: int
    name: str
    link: str | None
    id: str
    short: str = ""
    long: str = ""


@dataclass(frozen=True)
class Series:
    """A line: points ordered by x, and a colour; None is the grey of background series."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: int | None


@dataclass(frozen=True)
class Axis:
    """The title of an axis, the format of its values, and their scale."""

    title: str
    text: Callable[[float], str]
    scale: Scale


def front(dots: Sequence[Dot]) -> list[Dot]:
    """Return the Pareto front: the dots that no other dot beats in one measure without losing in the other."""
    frontier: list[Dot] = []
    for dot in sorted(dots, key=lambda dot: (dot.x, dot.y)):
        if not frontier or dot.y < frontier[-1].y:
            frontier.append(dot)
    return frontier


def scatter(dots: Sequence[Dot], x: Axis, y: Axis, width: float = 760, height: float = 440) -> Box:
    """Draw the dots, and the front as a staircase."""
    best = front(dots)
    place = _ChartScale(x.scale, y.scale, width, height)
    parts = [_frame(place, x, y)]
    corners = [place.of(dot.x, dot.y) for dot in best]
    steps = [(corners[0][0], float(_TOP))]
    for (a, b), (c, _) in zip(corners, [*corners[1:], (width - _RIGHT, 0.0)], strict=True):
        steps += [(a, b), (c, b)]
    parts.append(f'<path class="front" d="M{"L".join(f"{number(a)} {number(b)}" for a, b in steps)}"/>')
    on_front = {dot.id for dot in best}
    for dot in sorted(dots, key=lambda dot: dot.id in on_front):
        parts.append(_dot(dot, *place.of(dot.x, dot.y), first=dot.id in on_front))
    parts += _labels(dots, on_front, place, list(map(_around, steps, steps[1:])))
    return Box(width, height, "".join(parts))


_Corners: TypeAlias = tuple[float, float, float, float]


def _around(begin: tuple[float, float], end: tuple[float, float]) -> _Corners:
    """Return the box around a horizontal or vertical line."""
    (a, b), (c, d) = begin, end
    return min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1


def _labels(dots: Sequence[Dot], best: Collection[str], place: _ChartScale, lines: Sequence[_Corners]) -> Iterator[str]:
    """Return labels beside the dots: long names on the front, short ones elsewhere, joined for dots at one place.

    A name is left out if it would cover another name, a dot or one of the `lines` at every position.
    """
    at: dict[tuple[float, float], list[Dot]] = {}
    for dot in sorted(dots, key=lambda dot: dot.id not in best):
        x, y = place.of(dot.x, dot.y)
        at.setdefault((round(x), round(y)), []).append(dot)
    taken = [*((x - 6, y - 6, x + 6, y + 6) for x, y in at), *lines]
    for k, ((x, y), several) in enumerate(at.items()):
        if k >= _NAMED:
            return
        short = list(dict.fromkeys(dot.short for dot in several))
        joined = ", ".join(short[:_JOINED]) + ("…" if len(short) > _JOINED else "")
        names = [several[0].long, joined] if several[0].id in best and len(short) == 1 else [joined]
        for name in filter(None, names):
            width = len(name) * _SIZE * GLYPH
            corners = [(x + 9, y + 5), (x - 9 - width, y - 6), (x + 9, y - 18), (x - width / 2, y - 21)]
            if several[0].id not in best:
                # The line of the front runs to the right of its dots.
                corners.insert(0, (x + 9, y - 6))
            box = _room([(a, b, a + width, b + 13) for a, b in corners], [*taken[:k], *taken[k + 1 :]], place)
            if box is not None:
                taken.append(box)
                yield text(name, box[0], box[1] + 10, "nm")
                break


def _room(boxes: Sequence[_Corners], taken: Sequence[_Corners], place: _ChartScale) -> _Corners | None:
    """Return the first box (left, top, right, bottom) inside the chart that covers nothing; None if there is none."""
    for left, top, right, bottom in boxes:
        inside = left >= _LEFT and right <= place.width - 2 and top >= 0 and bottom <= place.height - _BELOW
        if inside and not any(left < c and a < right and top < d and b < bottom for a, b, c, d in taken):
            return left, top, right, bottom
    return None


def _dot(dot: Dot, x: float, y: float, *, first: bool) -> str:
    style = f"d c{dot.kind % COLOURS}{' best' if first else ''}"
    shape = mark(dot.kind, x, y, 5.5 if first else 4.2)
    # A title names the element whose child it is: Chromium does not always name a link after the title of its path.
    drawn = f'<title>{escape(dot.name)}</title><path class="{style}" d="{shape}"/>'
    if dot.link is None:
        return f'<g data-p="{escape(dot.id)}">{drawn}</g>'
    # The keyboard reaches only the dots on the front: the table links all points.
    reached = "" if first else ' tabindex="-1"'
    return f'<a href="{escape(dot.link)}" data-p="{escape(dot.id)}"{reached}>{drawn}</a>'


def mark(kind: int, x: float, y: float, r: float) -> str:
    """Return the outline of a mark: a disc, a square, a triangle, a diamond, an inverted triangle, a cross."""
    shape = kind % COLOURS
    if shape == 0:
        half = f"a{number(r)} {number(r)} 0 1 0"
        return f"M{number(x - r)} {number(y)}{half} {number(2 * r)} 0{half} {number(-2 * r)} 0Z"
    s = 1.1 * r
    outlines = {
        1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2: [(0, -1.1), (1.05, 0.8), (-1.05, 0.8)],
        3: [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
        4: [(0, 1.1), (1.05, -0.8), (-1.05, -0.8)],
        5: [
            (-0.35, -1.1), (0.35, -1.1), (0.35, -0.35), (1.1, -0.35), (1.1, 0.35), (0.35, 0.35), (0.35, 1.1),
            (-0.35, 1.1), (-0.35, 0.35), (-1.1, 0.35), (-1.1, -0.35), (-0.35, -0.35),
        ],
    }  # fmt: skip
    return "M" + "L".join(f"{number(x + s * a)} {number(y + s * b)}" for a, b in outlines[shape]) + "Z"


def lines(series: Sequence[Series], x: Axis, y: Axis, width: float = 380, height: float = 280) -> Box:
    """Draw a line for each series, the background series first."""
    sizes = sorted({a for line in series for a, _ in line.points})
    place = _ChartScale(x.scale, y.scale, width, height)
    parts = [_frame(place, x, y, sizes)]
    for line in sorted(series, key=lambda line: line.kind is not None):
        points = [place.of(a, b) for a, b in line.points]
        style = "many" if line.kind is None else f"c{line.kind}"
        d = "M" + "L".join(f"{number(a)} {number(b)}" for a, b in points)
        parts.append(f'<g><title>{escape(line.name)}</title><path class="ln {style}" d="{d}"/>')
        if line.kind is not None:
            parts += [f'<path class="d {style}" d="{mark(line.kind, a, b, 3.6)}"/>' for a, b in points]
        parts.append("</g>")
    return Box(width, height, "".join(parts))


def swatch(kind: int, *, line: bool = False) -> Markup:
    """Draw the legend's sample of a series."""
    drawn = f'<path class="ln c{kind}" d="M1 8L27 8"/>' if line else ""
    drawn += f'<path class="d c{kind}" d="{mark(kind, 14, 8, 4.6)}"/>'
    return Markup(f'<svg class="sp swatch" width="28" height="16" aria-hidden="true">{drawn}</svg>')


@dataclass(frozen=True)
class _ChartScale:
    """Maps values to positions in a chart of some size."""

    across: Scale
    up: Scale
    width: float
    height: float

    def of(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a pair of values."""
        return self.column(x), self.row(y)

    def column(self, x: float) -> float:
        return _LEFT + self.across.at(x) * (self.width - _LEFT - _RIGHT)

    def row(self, y: float) -> float:
        return _TOP + (1 - self.up.at(y)) * (self.height - _TOP - _BELOW)


def _frame(place: _ChartScale, x: Axis, y: Axis, sizes: Sequence[float] | None = None) -> str:
    """Draw the axes with ticks and titles."""
    parts: list[str] = []
    right, bottom = place.width - _RIGHT, place.height - _BELOW
    for value in y.scale.ticks(5):
        at = place.row(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {number(at)}H{number(right)}"/>')
        parts.append(text(y.text(value), _LEFT - 8, at + 4, "tk e"))
    shown = list(sizes) if sizes is not None and len(sizes) <= 6 else x.scale.ticks(6)
    last = -1e9
    for value in shown:
        at, words = place.column(value), x.text(value)
        half = len(words) * 11 * GLYPH / 2
        parts.append(f'<path class="grid" d="M{number(at)} {number(_TOP)}V{number(bottom)}"/>')
        if at - half > last:
            parts.append(text(words, at, bottom + 17, "tk m"))
            last = at + half + 6
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{number(bottom)}H{number(right)}"/>')
    parts.append(text(f"{x.title}{_scaled(x.scale)}", (right + _LEFT) / 2, place.height - 8, "a m"))
    middle = number((_TOP + bottom) / 2)
    turned = f' transform="rotate(-90 13 {middle})"'
    parts.append(text(f"{y.title}{_scaled(y.scale)}", 13, (_TOP + bottom) / 2, "a m", extra=turned))
    return "".join(parts)


def _scaled(scale: Scale) -> str:
    return " (log)" if scale.logarithmic else ""
