"""A table in; it as lines of a terminal, within its width, or as Markdown out. `page/markup.py` writes it as HTML.

On a terminal nothing is cut, and no line wraps.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runner.printable import printable
from runner.show.status import look


@dataclass(frozen=True)
class Cell:
    """A text in the colour of a status; in rows a text alone has none."""

    text: str
    status: str | None = None


Content = TypeVar("Content", covariant=True)


@dataclass(frozen=True)
class Table(Generic[Content]):
    """The names of the columns, and rows of as many cells: texts and `Cell`, on a page markup as well.

    `right` are the columns of numbers, by their places: a page aligns them.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Content]]
    right: frozenset[int] = frozenset()


Texts = Table[Cell | str]
"""A table that can be written anywhere."""

_Styled = tuple[str, str]

Line = list[tuple[str, str]]
"""Pieces of text, each with its rich style; "" is none."""

_GAP = 2

_NARROW = 16
"""A cell of at most this width is not broken."""


_EASY = 24
"""Where there are several tables, columns of at most this width are not narrowed to save one."""


def status_cell(status: str, text: str | None = None) -> Cell:
    """A status as a cell, or another text in its colour."""
    return Cell(text or status, status)


def markdown(table: Texts) -> list[str]:
    """The lines of the table in Markdown."""
    rows = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]
    written = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in (table.head, *rows)]
    return [written[0], "|---" * len(table.head) + "|", *written[1:]]


def lines(table: Texts, room: int | None = None) -> list[Line]:
    """The table within `room` columns (None: as wide as it needs).

    Where it is wider, long cells continue on lines of their own. Where that is not enough, it falls into several tables
    below one another, each of which begins with the first column, or with numbers where that does not tell rows apart.
    """
    # Before it is measured: what is spelled out is wider.
    head = [printable(name) for name in table.head]
    rows = [[_styled(cell) for cell in row] for row in table.rows]
    widths = _widths(head, rows)
    if room is None or _total(widths) <= room:
        return _block(head, rows, widths)
    least = _least(head, rows)
    if _total(least) > room and len({row[0][0] for row in rows}) < len(rows):
        head, rows = ["#", *head], [[(str(k), ""), *row] for k, row in enumerate(rows, start=1)]
        widths, least = _widths(head, rows), _least(head, rows)
    blocks: list[list[Line]] = []
    easy = [min(width, max(low, _EASY)) for width, low in zip(widths, least, strict=True)]
    for columns in _split(least if _total(least) <= room else easy, room):
        fitted = _narrowed([widths[k] for k in columns], [least[k] for k in columns], room)
        blocks.append(_block([head[k] for k in columns], [[row[k] for k in columns] for row in rows], fitted))
    return [line for k, block in enumerate(blocks) for line in [*([Line()] if k else ()), *block]]


def _styled(cell: Cell | str) -> _Styled:
    if isinstance(cell, str):
        return printable(cell), ""
    return printable(cell.text), look(cell.status).style if cell.status else ""


def _widths(head: Sequence[str], rows: Sequence[Sequence[_Styled]]) -> list[int]:
    return [max([len(name), *(len(row[k][0]) for row in rows)]) for k, name in enumerate(head)]


def _least(head: Sequence[str], rows: Sequence[Sequence[_Styled]]) -> list[int]:
    """How narrow columns may get: words stay whole, and so do narrow cells."""
    widths: list[int] = []
    for k, name in enumerate(head):
        words = [len(word) for row in rows for word in row[k][0].split()]
        cells = [min(len(row[k][0]), _NARROW) for row in rows]
        widths.append(max([*map(len, name.split()), *words, *cells], default=0))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _split(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each table, the first one in all of them."""
    tables = [[0]]
    for column in range(1, len(widths)):
        if len(tables[-1]) > 1 and _total([widths[k] for k in (*tables[-1], column)]) > room:
            tables.append([0])
        tables[-1].append(column)
    return tables


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of columns that are to fit: the widest gives first, none below its least unless it has to."""
    fitted = list(widths)
    for lowest in (least, [min(width, 4) for width in least]):
        while _total(fitted) > room:
            giving = [k for k, width in enumerate(fitted) if width > lowest[k]]
            if not giving:
                break
            fitted[max(giving, key=lambda k: fitted[k])] -= 1
    return fitted


def _block(head: Sequence[str], rows: Sequence[Sequence[_Styled]], widths: Sequence[int]) -> list[Line]:
    block: list[Line] = []
    for row in ([(name, "bold") for name in head], *rows):
        parts = [textwrap.wrap(text, width) or [""] for (text, _), width in zip(row, widths, strict=True)]
        for texts in itertools.zip_longest(*parts, fillvalue=""):
            line: Line = []
            for text, (_, style), width in zip(texts, row, widths, strict=True):
                line += [(text, style), (" " * (width - len(text) + _GAP), "")]
            block.append(_stripped(line))
    return block


def _stripped(line: Line) -> Line:
    """Without spaces at its end."""
    while line and not line[-1][0].strip():
        line = line[:-1]
    return line
