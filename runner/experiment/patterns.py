"""Matches paths with patterns (`params/**/{q,k,v}` matches `params/layers/attn/q`), and folds paths into patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from runner.base.untyped import is_mapping


def fits(pattern: str, path: str) -> bool:
    """Whether a path matches: `*` is any part of a name, `**` any number of names, `{a,b}` one of these."""
    return _compiled(pattern).fullmatch(path) is not None


def is_pattern(key: str) -> bool:
    """Whether a key is a path or a pattern of paths rather than a name."""
    return any(character in key for character in "/*{")


def flattened(specs: Mapping[str, Any]) -> dict[str, Any]:
    """Specs by patterns; the file may nest names, since override keys cannot contain `/`."""

    def below(path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if is_mapping(value):
            for name, part in value.items():
                yield from below(f"{path}/{name}" if path else str(name), part)
        else:
            yield path, value

    return dict(below("", specs))


def folded(paths: Iterable[str]) -> list[str]:
    """Patterns that match these paths and no others: `params/{q,k}` for `params/q` and `params/k`.

    A name without `/` stays as it is.
    """
    patterns: dict[tuple[tuple[str, ...], ...], None] = dict.fromkeys(
        tuple((name,) for name in path.split("/")) for path in paths
    )
    count = 0
    while count != len(patterns):
        count = len(patterns)
        for depth in range(max(map(len, patterns), default=0) - 1, -1, -1):
            alike: dict[tuple[object, ...], tuple[tuple[str, ...], ...]] = {}
            for pattern in patterns:
                if len(pattern) <= max(depth, 1):  # It ends above this depth, or is not a path.
                    alike[pattern] = pattern
                    continue
                head, names, tail = pattern[:depth], pattern[depth], pattern[depth + 1 :]
                known = alike.get((head, None, tail))
                alike[head, None, tail] = (*head, (*known[depth], *names) if known else names, *tail)
            patterns = dict.fromkeys(alike.values())
    return [
        "/".join(names[0] if len(names) == 1 else f"{{{','.join(names)}}}" for names in pattern) for pattern in patterns
    ]


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
