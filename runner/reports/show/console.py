"""Writes text to standard output: coloured and within the width of a terminal, plain elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING

from runner.base.lazy import dataclass
from runner.base.printable import Page, printable, raw
from runner.reports.show import table
from runner.reports.show.table import Line, Texts, wrapped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

PLAIN = 100
"""The columns of text that wraps, if there is no terminal."""


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


_WIDTH: ContextVar[int | None] = ContextVar("width", default=None)


_UNLIMITED = 0
"""The width of text whose readers are programs or files."""


@contextmanager
def within(width: int) -> Generator[None]:
    """Fit what is printed meanwhile into so many columns, wherever it goes; 0: it may be of any width."""
    token = _WIDTH.set(width)
    try:
        yield
    finally:
        _WIDTH.reset(token)


def room() -> int | None:
    """Return the number of columns that lines must fit into: the terminal's; None if there is no limit."""
    width = _WIDTH.get()
    if width is not None:
        return width or None
    return shutil.get_terminal_size().columns if is_terminal() else None


def captured(show: Callable[[], None]) -> str:
    """Return what `show` prints, as plain text of unlimited width."""
    page = Page()
    with redirect_stdout(page), within(_UNLIMITED):
        show()
    return page.getvalue()


def say(text: str = "", style: str = "") -> None:
    """Print text; on a terminal its lines break between words."""
    width = room()
    if width is None:
        print(printable(text))
        return
    show_lines([[(part, style)] for line in text.split("\n") for part in wrapped(line, width)])


def tell(sentence: str) -> None:
    """Print a sentence that nothing parses, within the terminal, or within 100 columns."""
    say_all(wrapped(printable(sentence), room() or PLAIN))


def say_all(texts: Iterable[str], style: str = "") -> None:
    """Print texts, each on lines of its own."""
    for text in texts:
        say(text, style)


def print_table(shown: Texts) -> None:
    """Print a table within the width of the terminal; without one a row is a line, which other programs read."""
    show_lines(table.lines(shown, room()))


def print_report(shown: Texts) -> None:
    """Print a table of a report within the width of the terminal; where there is none within `COLUMNS`, or 100."""
    beside = None if _WIDTH.get() == _UNLIMITED else shutil.get_terminal_size((PLAIN, 0)).columns
    show_lines(table.lines(shown, room() or beside))


def show_lines(lines: Iterable[Line]) -> None:
    """Print lines of styled pieces."""
    if not is_terminal():
        for line in lines:
            print(printable("".join(text for text, _ in line).rstrip()))
        return
    from rich.console import Console

    # `Styled` keeps the runner's own colours; the texts are printable already.
    Console(width=room(), file=raw(sys.stdout)).print(Styled(tuple(lines)), soft_wrap=True, end="")


@dataclass(frozen=True)
class Styled:
    """Lines as a rich renderable."""

    lines: tuple[Line, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        # Users choose the sixteen colours of an old terminal themselves, so that no contrast is guaranteed on them.
        coloured = console.color_system in ("256", "truecolor")
        for line in self.lines:
            pieces = [(printable(text), style if coloured or " on " not in style else "") for text, style in line]
            yield Text.assemble(*pieces, no_wrap=True, end="\n")
