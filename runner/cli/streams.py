"""The standard streams in; the same out, in which every character of ours can be written.

A terminal or a pipe whose encoding has no box-drawing characters gets plain ones in their place.
"""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

from runner.printable import guarded

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
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "√": "sqrt ",
    "∂": "d",
    "∑": "sum ",
    "’": "'",
    "µ": "u",
}
"""What is written for what an encoding lacks; of everything else the code."""


class Closed(Exception):
    """Standard output is closed: nobody would hear what is found."""


def ready() -> None:
    """See to it that both streams take every character, and show none that controls a terminal. Raises `Closed`."""
    codecs.register_error("plain", _replaced)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it is open as long as the process is there
    if sys.stdout is None:
        raise Closed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="plain")
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char, char.encode("ascii", "backslashreplace").decode()) for char in lacking), error.end
