"""Writes a profiler's file (`XSpace`) for tests, from planes, lines and events; independent of what reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Made:
    """An event: its name, start and duration in nanoseconds, and its stats."""

    name: str
    start: int
    duration: int
    stats: Mapping[str, Any] = field(default_factory=dict[str, Any])


Lines = Mapping[str, Sequence[Made]]


def number(value: int) -> bytes:
    """A number of variable length."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def whole(key: int, value: int) -> bytes:
    """A field that is a number."""
    return number(key << 3) + number(value)


def message(key: int, content: bytes | str) -> bytes:
    """A field that is a text or a message."""
    content = content.encode() if isinstance(content, str) else content
    return number(key << 3 | 2) + number(len(content)) + content


def stat(names: dict[str, int], name: str, value: Any) -> bytes:
    """A stat with its name's id."""
    at = whole(1, names.setdefault(name, len(names) + 1))
    if isinstance(value, bytes):
        return at + message(6, value)
    return at + (message(5, value) if isinstance(value, str) else whole(4, value))


def plane(name: str, lines: Lines, modules: Mapping[str, bytes] | None = None) -> bytes:
    """A plane; `modules` are serialized modules by their names, which `/host:metadata` has."""
    stats: dict[str, int] = {}
    kinds: dict[str, int] = {}
    body = message(2, name)
    for title, events in lines.items():
        line = message(2, title) + whole(3, 1000)
        for event in events:
            content = whole(1, kinds.setdefault(event.name, len(kinds) + 1))
            content += whole(2, event.start * 1000) + whole(3, event.duration * 1000)
            content += b"".join(message(4, stat(stats, key, value)) for key, value in event.stats.items())
            line += message(4, content)
        body += message(3, line)
    for kind, key in kinds.items():
        body += message(4, whole(1, key) + message(2, whole(1, key) + message(2, kind)))
    for at, (kind, serialized) in enumerate((modules or {}).items(), 100):
        held = message(5, stat(stats, "Hlo Proto", serialized))
        body += message(4, whole(1, at) + message(2, whole(1, at) + message(2, kind) + held))
    for text, key in stats.items():
        body += message(5, whole(1, key) + message(2, whole(1, key) + message(2, text)))
    return body


def space(*planes: bytes) -> bytes:
    """A file with these planes."""
    return b"".join(message(1, each) for each in planes)
