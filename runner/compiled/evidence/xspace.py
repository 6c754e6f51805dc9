"""Reads a profiler's file, `NAME.xplane.pb`: its planes, lines and events, and the modules that ran meanwhile.

The format is the message `XSpace` of TSL's profiler (`tsl/profiler/protobuf/xplane.proto`), which has not changed since
its numbers were given. It is read here, without JAX, since a profile is looked at on machines that lack the devices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

from runner.base.lazy import dataclass

Stats: TypeAlias = list[tuple[str | None, Any]]

_MODULES = "/host:metadata"
"""The plane whose event metadata are the modules that ran; it has no events."""

_MODULE_STATS = frozenset({"hlo_proto", "Hlo Proto"})


class NoProfile(ValueError):
    """Some bytes are no profile, or end early; the message says which."""


@dataclass(frozen=True)
class Span:
    """A message inside the bytes of another one: where it begins and ends."""

    start: int
    end: int


@dataclass(frozen=True)
class ProfiledModule:
    """A module that ran during a profile: its name, the id of its program, and it as XLA serialized it (`HloProto`)."""

    name: str
    program: str
    serialized: bytes


class Event:
    """One event of a line; times in nanoseconds since the epoch of the profile."""

    __slots__ = ("_plane", "_stats", "duration_ns", "kind", "start_ns")

    def __init__(self, plane: Plane, kind: int, start_ns: float, duration_ns: float, stats: list[Span]) -> None:
        self._plane = plane
        self._stats = stats
        self.kind = kind
        self.start_ns = start_ns
        self.duration_ns = duration_ns

    @property
    def name(self) -> str:
        """What happened: the name of an instruction, a kernel, a function."""
        return self._plane.kinds[self.kind].name if self.kind in self._plane.kinds else ""

    @property
    def stats(self) -> Stats:
        """Names and values: those that all events of this kind share, then this event's own."""
        shared = self._plane.kinds[self.kind].stats if self.kind in self._plane.kinds else []
        return [*shared, *(self._plane.stat(span) for span in self._stats)]


@dataclass(frozen=True)
class EventKind:
    """What events have in common: a name, and stats."""

    name: str
    stats: Stats


class Line:
    """A line of a plane: a thread of a host, a stream of a device."""

    def __init__(self, plane: Plane, span: Span) -> None:
        self._plane = plane
        self.name = ""
        self._epoch = 0
        self._events: list[Span] = []
        for number, value in _fields(plane.data, span):
            if number == 2 and isinstance(value, Span):
                self.name = _text(plane.data, value)
            elif number == 3 and isinstance(value, int):
                self._epoch = _signed(value)
            elif number == 4 and isinstance(value, Span):
                self._events.append(value)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def events(self) -> Iterator[Event]:
        """The events, in the order of the file."""
        data, plane, epoch = self._plane.data, self._plane, self._epoch
        for span in self._events:
            kind = offset = duration = 0
            stats: list[Span] = []
            at, end = span.start, span.end
            while at < end:
                key = data[at]
                at += 1
                if at < end and data[at] < 0x80:
                    value = data[at]
                    at += 1
                else:
                    value, at = _number(data, at, end)
                if key == _KIND:
                    kind = value
                elif key == _OFFSET:
                    offset = value
                elif key == _DURATION:
                    duration = value
                elif key == _STAT:
                    if at + value > end:
                        raise NoProfile("an event ends behind its line")
                    stats.append(Span(at, at + value))
                    at += value
                elif key & 7 == _BYTES:
                    at += value
            yield Event(plane, kind, epoch + _signed(offset) / 1000, _signed(duration) / 1000, stats)


_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""The types of fields that protocol buffers have: how long a value is."""

_KIND, _OFFSET, _DURATION, _STAT = 1 << 3, 2 << 3, 3 << 3, 4 << 3 | _BYTES
"""The keys of an event's fields."""

_REPEATED = 24
"""The most bytes of a stat that is likely to occur again."""

_REMEMBERED = 1 << 17
"""The most stats of a plane that are remembered."""


class Plane:
    """A plane of a profile: a host, or a device."""

    def __init__(self, data: bytes, span: Span) -> None:
        self.data = data
        self.name = ""
        self._stats: dict[bytes, tuple[str | None, Any]] = {}
        self._lines: list[Span] = []
        self._read: list[Line] | None = None
        self._kinds: list[Span] = []
        self._named: list[Span] = []
        kept = {3: self._lines, 4: self._kinds, 5: self._named}
        for number, value in _fields(data, span):
            if not isinstance(value, Span):
                continue
            if number == 2:
                self.name = _text(data, value)
            elif number in kept:
                kept[number].append(value)

    @property
    def lines(self) -> list[Line]:
        """The lines, in the order of the file."""
        if self._read is None:
            self._read = [Line(self, span) for span in self._lines]
        return self._read

    @cached_property
    def stat_names(self) -> dict[int, str]:
        """The names of stats, by their ids."""
        names: dict[int, str] = {}
        for span in self._named:
            number, message = _entry(self.data, span)
            names[number] = next((_text(self.data, v) for k, v in message if k == 2 and isinstance(v, Span)), "")
        return names

    @cached_property
    def kinds(self) -> dict[int, EventKind]:
        """What events have in common, by the ids with which they refer to it."""
        kinds: dict[int, EventKind] = {}
        for span in self._kinds:
            number, message = _entry(self.data, span)
            name = next((_text(self.data, v) for k, v in message if k == 2 and isinstance(v, Span)), "")
            kinds[number] = EventKind(name, [self.stat(v) for k, v in message if k == 5 and isinstance(v, Span)])
        return kinds

    def stat(self, span: Span) -> tuple[str | None, Any]:
        """The name and the value of a stat; most stats of a plane are alike."""
        raw = self.data[span.start : span.end]
        stat = self._stats.get(raw)
        if stat is None:
            stat = self._read_stat(span)
            if len(raw) <= _REPEATED and len(self._stats) < _REMEMBERED:
                self._stats[raw] = stat
        return stat

    def _read_stat(self, span: Span) -> tuple[str | None, Any]:
        name: str | None = None
        result: Any = None
        for number, value in _fields(self.data, span):
            if number == 1 and isinstance(value, int):
                name = self.stat_names.get(value)
            elif isinstance(value, Span):
                result = _text(self.data, value) if number == 5 else self.data[value.start : value.end]
            elif isinstance(value, float):
                result = value
            elif number == 7:
                result = self.stat_names.get(value, "")
            else:
                result = _signed(value) if number == 4 else value
        return name, result

    def modules(self) -> list[ProfiledModule]:
        """The modules that ran; none in a plane of events."""
        modules: list[ProfiledModule] = []
        for kind in self.kinds.values() if self.name == _MODULES else ():
            title, _, program = kind.name.rstrip(")").partition("(")
            for name, value in kind.stats:
                if name in _MODULE_STATS and isinstance(value, bytes):
                    modules.append(ProfiledModule(title, program, value))
        return modules


def read(data: bytes) -> list[Plane]:
    """The planes of a file. Raises `NoProfile`, also later, while lines and events of broken bytes are read."""
    fields = _fields(data, Span(0, len(data)))
    return [Plane(data, value) for number, value in fields if number == 1 and isinstance(value, Span)]


def _entry(data: bytes, span: Span) -> tuple[int, list[tuple[int, Span | int | float]]]:
    """An entry of a map: its key, and the fields of its message."""
    key, message = 0, None
    for number, value in _fields(data, span):
        if number == 1 and isinstance(value, int):
            key = _signed(value)
        elif number == 2 and isinstance(value, Span):
            message = value
    return key, list(_fields(data, message)) if message is not None else []


def _fields(data: bytes, span: Span) -> Iterator[tuple[int, Span | int | float]]:
    """The fields of a message: their numbers and values; what is longer than a number as the span of its bytes."""
    at, end = span.start, span.end
    while at < end:
        key, at = _number(data, at, end)
        form = key & 7
        if form == _VARINT:
            value, at = _number(data, at, end)
            yield key >> 3, value
        elif form == _BYTES:
            size, at = _number(data, at, end)
            if at + size > end:
                raise NoProfile("it ends early")
            yield key >> 3, Span(at, at + size)
            at += size
        elif form in (_DOUBLE, _FLOAT):
            size = 8 if form == _DOUBLE else 4
            if at + size > end:
                raise NoProfile("it ends early")
            yield key >> 3, struct.unpack_from("<d" if form == _DOUBLE else "<f", data, at)[0]
            at += size
        else:
            raise NoProfile("it is no protocol buffer")


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return value, at
    raise NoProfile("it ends early")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _text(data: bytes, span: Span) -> str:
    return data[span.start : span.end].decode("utf-8", "replace")
