"""Matches paths with patterns (`params/**/{q,k,v}` matches `params/layers/attn/q`), and folds paths into patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from runner.base.untyped import is_mapping


def fits(pattern: str, path: str) -> bool:
    """Whether a path matches.

    `*` is any part of a name, `**` any number of names, `{a,b}` one of these, `{0..11}` one of these numbers.
    """
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

    Three consecutive numbers or more are a range, `layers/{0..11}`. A name without `/` stays as it is.
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
        "/".join(names[0] if len(names) == 1 else f"{{{_one_of(names)}}}" for names in pattern) for pattern in patterns
    ]


def _one_of(names: Sequence[str]) -> str:
    """Join names by commas; consecutive numbers, which the indices of layers are, as a range."""
    runs: list[list[str]] = []
    for name in names:
        follows = runs and name.isdecimal() and runs[-1][-1].isdecimal() and name == str(int(runs[-1][-1]) + 1)
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ",".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(run) for run in runs)


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
            return f"(?:{'|'.join(map(_alternative, part[1:-1].split(',')))})"
        case _:
            return re.escape(part)


def _alternative(name: str) -> str:
    ends = _RANGE.fullmatch(name)
    numbers = range(int(ends[1]), int(ends[2]) + 1) if ends else ()
    return "|".join(map(str, numbers)) or re.escape(name)


_RANGE = re.compile(r"(\d{1,4})\.\.(\d{1,4})")
"""A range of numbers, both ends included."""
