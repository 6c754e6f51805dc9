"""A text that anybody may have written in; one that a terminal, a page and a file show as it stands out.

Control characters move a terminal's cursor, ring its bell and hide what was printed before; those of bidirectional
writing show a text in another order than it has. They are spelled as Python does: `\\x1b`, `\\u202e`. Line ends and
tabs stay. Whatever a stream that is `guarded` is given is spelled so; who writes control characters of its own takes
the stream behind it, `raw`.
"""

from __future__ import annotations

import html
import io
import logging
import re
from collections.abc import Iterable
from typing import Any, TextIO, cast

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""Control characters, those of bidirectional writing, line ends that no file has, and what is no character at all."""


def printable(text: str) -> str:
    """The text with its control characters spelled out."""
    return _CONTROL.sub(_spelled, text)


class Formatter(logging.Formatter):
    """Of a log, which terminals show too."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or the lines, of an entry."""
        return printable(super().format(record))


def escape(text: str, *, quote: bool = True) -> str:
    """The text in HTML or SVG."""
    return html.escape(printable(text), quote)


def json_text(text: str) -> str:
    """JSON whose texts have these characters as escapes, which every reader of JSON takes for the same."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "backslashreplace").decode() if ord(match[0]) > 0x7F else f"\\x{ord(match[0]):02x}"


class _Guard:
    """What a stream is, except that it is given only what is printable."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind
        self.refused: OSError | None = None
        """What the system last raised of it, which whoever wrote may have passed over."""

    def write(self, text: str) -> int:
        """Write a text; return how many of its characters were written: all."""
        try:
            self.behind.write(printable(text))
        except OSError as error:
            self.refused = error
            raise
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def guarded(stream: TextIO) -> TextIO:
    """The stream, for whatever texts come."""
    return stream if isinstance(stream, _Guard) else cast("TextIO", _Guard(stream))


def raw(stream: TextIO) -> TextIO:
    """The stream behind a guarded one."""
    return stream.behind if isinstance(stream, _Guard) else stream


def require_written(stream: TextIO) -> None:
    """Raise what a guarded stream could not write, or cannot write now."""
    if isinstance(stream, _Guard) and stream.refused is not None:
        raise stream.refused
    stream.flush()


class Page(io.StringIO):
    """A text that is printed into."""

    def write(self, text: str, /) -> int:
        """Write a text."""
        super().write(printable(text))
        return len(text)
