"""Makes untrusted text show literally on terminals, pages and in files.

Control characters move a terminal's cursor and hide what was printed before; bidirectional ones reorder the text.
They are written as Python's escapes: `\\x1b`, `\\u202e`. Line ends and tabs stay. A `guarded` stream escapes
whatever is written to it; code that writes control characters of its own uses the stream behind it, `raw`.
"""

from __future__ import annotations

import html
import io
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""Control characters, bidirectional controls, line ends that files do not use, and noncharacters."""


def printable(text: str) -> str:
    """Replace control characters by Python's escapes."""
    return _CONTROL.sub(_spelled, text)


class Formatter(logging.Formatter):
    """Formats log entries without control characters, since terminals show logs too."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log entry."""
        return printable(super().format(record))


def escape(text: str, *, quote: bool = True) -> str:
    """Escape a text for HTML or SVG."""
    return html.escape(printable(text), quote)


def json_text(text: str) -> str:
    """Serialize as JSON with control characters as JSON escapes, so that the parsed value is unchanged."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("ascii", "backslashreplace").decode() if ord(match[0]) > 0x7F else f"\\x{ord(match[0]):02x}"


class _Guard:
    """Wraps a stream; escapes control characters in what is written, then breaks its lines."""

    def __init__(self, behind: TextIO, laid: Callable[[str], str]) -> None:
        self.behind = behind
        self.laid = laid
        self.refused: OSError | None = None
        """The last error of the system for this stream, which the writing code may have ignored."""

    def write(self, text: str) -> int:
        """Write a text; return how many of its characters were written: all."""
        try:
            self.behind.write(self.laid(printable(text)))
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


def guarded(stream: TextIO, laid: Callable[[str], str] = str) -> TextIO:
    """Wrap a stream so that it escapes control characters, then breaks lines as `laid` does."""
    return stream if isinstance(stream, _Guard) else cast("TextIO", _Guard(stream, laid))


def raw(stream: TextIO) -> TextIO:
    """The stream that a guarded stream writes to."""
    return stream.behind if isinstance(stream, _Guard) else stream


def require_written(stream: TextIO) -> None:
    """Flush a guarded stream. Raises the `OSError` of an earlier write that failed."""
    if isinstance(stream, _Guard) and stream.refused is not None:
        raise stream.refused
    stream.flush()


class Page(io.StringIO):
    """Collects what is printed as one text."""

    def write(self, text: str, /) -> int:
        """Write a text."""
        super().write(printable(text))
        return len(text)
