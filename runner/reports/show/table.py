"""Fits a table into a terminal's width, or prints it as Markdown. `page/markup.py` renders it as HTML.

On a terminal no text is lost, and no line wraps.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.base.printable import printable
from runner.reports.show.status import look


@dataclass(frozen=True)
class StatusCell:
    """Text in the colour of a status; plain `str` cells have no colour."""

    text: str
    status: str | None = None


Content = TypeVar("Content", covariant=True)


@dataclass(frozen=True)
class Table(Generic[Content]):
    """The names of the columns, and rows of as many cells: texts and `StatusCell`, on a page markup as well.

    - `right`: the indices of numeric columns, which a page aligns to the right.
    - `beneath`: for each row a text under it, on a page one paragraph for each line; none for no row.
    - `grouping`: the names of columns that a narrow terminal turns into headings of their rows, as few as it needs.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Content]]
    right: frozenset[int] = frozenset()
    beneath: Sequence[str] = ()
    grouping: Sequence[str] = ()


Texts = Table[StatusCell | str]
"""A table that the terminal, Markdown and pages can all show."""

_Styled = tuple[str, str]

Line = list[tuple[str, str]]
"""Pieces of text, each with its rich style; "" is none."""

_GAP = 2
_INDENT = "    "

_NARROW = 16
"""The width up to which a cell is not wrapped."""


_EASY = 24
"""The width up to which a column is not narrowed just to save one of several tables."""


def status_cell(status: str, text: str | None = None) -> StatusCell:
    """Return a status, or another text, as a cell in the colour of the status."""
    return StatusCell(text or status, status)


def markdown(table: Texts) -> list[str]:
    """Return the table as lines of Markdown."""
    rows = [[cell.text if isinstance(cell, StatusCell) else cell for cell in row] for row in table.rows]
    written = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in (table.head, *rows)]
    return [written[0], "|---" * len(table.head) + "|", *written[1:]]


def text(lines: Iterable[Line]) -> str:
    """Return lines as text without styles."""
    return "\n".join("".join(piece for piece, _ in line).rstrip() for line in lines)


def wrapped(line: str, width: int, indent: str | None = None, *, breaking: bool = False) -> list[str]:
    """Wrap a line at a width; a shape, a layout and a number with its unit stay whole.

    Lines after the first are indented by `indent`, by default two columns more than the first. A word that is wider,
    such as a path, stays whole unless `breaking`.
    """
    if indent is None:
        indent = line[: len(line) - len(line.lstrip())] + "  "
    parts = textwrap.wrap(
        unbroken(line), width, subsequent_indent=indent, break_long_words=breaking, break_on_hyphens=False
    )
    return [part.replace(_UNBROKEN, " ") for part in parts] or [""]


def unbroken(line: str) -> str:
    """Return a line in which each shape, layout and number with its unit is one word."""
    return _WHOLE.sub(lambda part: part[0].replace(" ", _UNBROKEN), line)


_WHOLE = re.compile(
    r"(?:\bshard )?\[[\w, ]{0,40}\]|\bP\([^()]{1,40}\)"
    r"|\b[\d.,]+ (?:[kMGTP]?B|[mµn]?s|flops|[kMGTPE]flop|×|more|times|lines?|points?|devices)(?!\w)"
)
"""Text that no line breaks: `[2, 32, 8]`, `shard [2, 4]`, `P('x', None)`, `24.6 kB`, `6 more`."""

_UNBROKEN = "\u00a0"
"""A space at which no line is wrapped."""


def lines(table: Texts, room: int | None = None) -> list[Line]:
    """Return the table within `room` columns (None: unlimited).

    If it is wider, long cells continue on lines of their own. If that is not enough, columns of one value become a
    sentence below the table, and the `grouping` column headings. If that is not enough either, the table is split into
    several, each of which begins with the first column, or with row numbers if the first column does not identify rows.
    """
    # Escape before measuring: escaped characters are wider.
    head = [printable(name) for name in table.head]
    rows = [[_styled(cell) for cell in row] for row in table.rows]
    beneath = [_beneath(text, room) for text in table.beneath]
    widths = _widths(head, rows)
    if room is None or _total(widths) <= room:
        return _block(head, rows, widths, beneath)
    if _total(_least(head, rows)) <= room:
        return _fitted(head, rows, beneath, room)
    head, rows, constant = _without_constant(head, rows)
    sentences = [[(line, "dim")] for line in wrapped(constant, room)] if constant else []
    columns = [head.index(name) for name in table.grouping if name in head]
    counts = range(1, 1 + len(columns))
    grouped = next(filter(None, (_grouped(head, rows, columns[:count], room) for count in counts)), None)
    return [*(grouped or _fitted(head, rows, beneath, room)), *sentences]


def _without_constant(head: list[str], rows: list[list[_Styled]]) -> tuple[list[str], list[list[_Styled]], str]:
    """Return the columns whose rows differ, with the first; and a sentence with the values of the others."""
    alike = [k for k in range(1, len(head)) if len(rows) > 1 and len({row[k][0] for row in rows}) == 1]
    kept = [k for k in range(len(head)) if k not in alike]
    sentences = ", ".join(f"{head[k]} {rows[0][k][0]}" for k in alike if rows[0][k][0].strip("– "))
    return (
        [head[k] for k in kept],
        [[row[k] for k in kept] for row in rows],
        f"in every row: {sentences}" if sentences else "",
    )


def _grouped(head: list[str], rows: list[list[_Styled]], by: Sequence[int], room: int) -> list[Line] | None:
    """Return the table with the values of some columns above their rows; None if it does not fit either."""
    others = [k for k in range(len(head)) if k not in by]
    groups = by_key((": ".join(row[k][0] for k in by), [row[k] for k in others]) for row in rows)
    rest, every = [head[k] for k in others], [row for group in groups.values() for row in group]
    least = _least(rest, every)
    if _total(least) > room:
        return None
    fitted = _narrowed(_widths(rest, every), least, room)
    lines = _block(rest, [], fitted)
    for value, group in groups.items():
        heading = wrapped(value if len(by) > 1 else f"{head[by[0]]}: {value}", room, _INDENT)
        lines += [*([(line, "dim")] for line in heading), *_block(rest, group, fitted)[1:]]
    return lines


def _fitted(head: list[str], rows: list[list[_Styled]], beneath: Sequence[Sequence[Line]], room: int) -> list[Line]:
    """Return a table within `room` columns: with cells that continue below, or split into several tables."""
    widths, least = _widths(head, rows), _least(head, rows)
    if _total(widths) <= room:
        return _block(head, rows, widths, beneath)
    if _total(least) > room and len({row[0][0] for row in rows}) < len(rows):
        head, rows = ["#", *head], [[(str(k), ""), *row] for k, row in enumerate(rows, start=1)]
        widths, least = _widths(head, rows), _least(head, rows)
    blocks: list[list[Line]] = []
    easy = [min(width, max(low, _EASY)) for width, low in zip(widths, least, strict=True)]
    for columns in _split(least if _total(least) <= room else easy, room):
        fitted = _narrowed([widths[k] for k in columns], [least[k] for k in columns], room)
        narrow = [[row[k] for k in columns] for row in rows]
        blocks.append(_block([head[k] for k in columns], narrow, fitted, () if blocks else beneath))
    return [line for k, block in enumerate(blocks) for line in [*([Line()] if k else ()), *block]]


def _styled(cell: StatusCell | str) -> _Styled:
    if isinstance(cell, str):
        return printable(cell), ""
    return printable(cell.text), look(cell.status).style if cell.status else ""


def _widths(head: Sequence[str], rows: Sequence[Sequence[_Styled]]) -> list[int]:
    return [max([len(name), *(len(row[k][0]) for row in rows)]) for k, name in enumerate(head)]


def _least(head: Sequence[str], rows: Sequence[Sequence[_Styled]]) -> list[int]:
    """Return the minimum width of each column: words and narrow cells stay whole."""
    widths: list[int] = []
    for k, name in enumerate(head):
        words = [len(word) for row in rows for word in unbroken(row[k][0]).split(" ")]
        cells = [min(len(row[k][0]), _NARROW) for row in rows]
        widths.append(max([*map(len, name.split()), *words, *cells], default=0))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _split(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each table; the first column is in all of them."""
    tables = [[0]]
    for column in range(1, len(widths)):
        if len(tables[-1]) > 1 and _total([widths[k] for k in (*tables[-1], column)]) > room:
            tables.append([0])
        tables[-1].append(column)
    return tables


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that fit into `room`: the widest column shrinks first, below its minimum only if necessary."""
    fitted = list(widths)
    for lowest in (least, [min(width, 4) for width in least]):
        while _total(fitted) > room:
            giving = [k for k, width in enumerate(fitted) if width > lowest[k]]
            if not giving:
                break
            fitted[max(giving, key=lambda k: fitted[k])] -= 1
    return fitted


def _beneath(text: str, room: int | None) -> list[Line]:
    """The lines of a text under a row."""
    if room is None or not text:
        return [[(f"{_INDENT}{printable(text)}", "dim")]] if text else []
    parts = wrapped(printable(text), max(room - len(_INDENT), _NARROW), "")
    return [[(f"{_INDENT}{part}", "dim")] for part in parts]


def _block(
    head: Sequence[str],
    rows: Sequence[Sequence[_Styled]],
    widths: Sequence[int],
    beneath: Sequence[Sequence[Line]] = (),
) -> list[Line]:
    """Lay out the rows of one table; `beneath` has the lines under each of them, or nothing."""
    block: list[Line] = []
    for number, row in enumerate(([(name, "bold") for name in head], *rows)):
        parts = [wrapped(text, width, "", breaking=True) for (text, _), width in zip(row, widths, strict=True)]
        for texts in itertools.zip_longest(*parts, fillvalue=""):
            line: Line = []
            for text, (_, style), width in zip(texts, row, widths, strict=True):
                line += [(text, style), (" " * (width - len(text) + _GAP), "")]
            block.append(_stripped(line))
        block += beneath[number - 1] if number and beneath else []
    return block


def _stripped(line: Line) -> Line:
    """Return the line without trailing spaces."""
    while line and not line[-1][0].strip():
        line = line[:-1]
    return line
