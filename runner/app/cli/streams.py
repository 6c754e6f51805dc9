"""Makes the standard streams able to write every character of the runner's output.

A terminal or pipe whose encoding lacks box-drawing characters gets ASCII ones in their place.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
from io import TextIOWrapper

from runner.base.invocation import invocation
from runner.base.printable import guarded

_PLAIN = {
    **dict.fromkeys("─━┄┈", "-"),
    **dict.fromkeys("│┃┆┊", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
    **dict.fromkeys("–—", "-"),
    **dict.fromkeys("↓", "v"),
    **dict.fromkeys("×", "x"),
    **dict.fromkeys("·", "*"),
    **dict.fromkeys("✗", "x"),
    "✓": "v",
    "≈": "~",
    "⊘": "o",
    "⋮": ":",
    "⋱": ":",
    "⋯": "...",
    "⌈": "[",
    "⌉": "]",
    "₂": "2",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "↩": "<-",
    **dict.fromkeys("█▉▊▋", "#"),
    "░": ".",
    **dict.fromkeys("▌▍▎▏", "|"),
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "√": "sqrt ",
    "∂": "d",
    "∑": "sum ",
    "’": "'",
    "µ": "u",
}
"""The replacements for characters that an encoding lacks; other characters are written as their code."""


_SOURCE = " " * 4
"""The indentation of source in a message."""


class Closed(Exception):
    """Standard output is closed: nothing could be reported."""


def ready() -> None:
    """Make both streams accept every character, and escape terminal control characters. Raises `Closed`."""
    codecs.register_error("plain", _replaced)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process exits
    if sys.stdout is None:
        raise Closed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="plain")
    sys.stdout = guarded(sys.stdout)
    sys.stderr = guarded(sys.stderr, _fitted if sys.stderr.isatty() else str)


def _fitted(message: str) -> str:
    """Break the lines of a message between words, within the terminal; not source, nor a command to copy."""
    width = shutil.get_terminal_size().columns
    if len(message) <= width:
        return message
    # Most commands print no long message.
    from runner.reports.show.table import wrapped

    return "\n".join(
        line
        if len(line) <= width or line.startswith(_SOURCE) or invocation() in line
        else "\n".join(wrapped(line, width))
        for line in message.split("\n")
    )


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char, char.encode("ascii", "backslashreplace").decode()) for char in lacking), error.end
