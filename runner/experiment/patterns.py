"""A pattern of paths in; whether a path fits it out. `params/**/{q,k,v}` fits `params/layers/attn/q`."""

from __future__ import annotations

import re
from functools import cache


def fits(pattern: str, path: str) -> bool:
    """Whether a path fits: `*` is any part of a name, `**` any number of names, `{a,b}` one of these."""
    return _compiled(pattern).fullmatch(path) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|/\*\*|\*\*|\*|\{[^{}]*\})", pattern)
    return re.compile("".join(map(_part, parts)))


def _part(part: str) -> str:
    match part:
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "(?:/.*)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case _ if part.startswith("{"):
            return f"(?:{'|'.join(map(re.escape, part[1:-1].split(',')))})"
        case _:
            return re.escape(part)
