"""Makes the standard streams able to write every character of the runner's output.

A terminal or pipe whose encoding lacks box-drawing characters gets ASCII ones in their place.
"""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

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
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char, char.encode("ascii", "backslashreplace").decode()) for char in lacking), error.end
