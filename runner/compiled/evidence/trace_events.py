"""Reads the trace that a profiler writes for viewers, `NAME.trace.json.gz`, as planes of lines of events.

It has fewer events than the planes of `xplane.pb` (viewers take a million at the most), and no modules.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from dataclasses import field
from typing import Any

from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list
from runner.compiled.evidence.xspace import NoProfile

_LARGEST = 1 << 31
"""The most characters of a trace."""


@dataclass(frozen=True)
class TraceEvent:
    """One event; times in nanoseconds."""

    name: str
    start_ns: float
    duration_ns: float
    stats: list[tuple[str | None, Any]]


@dataclass
class TraceLine:
    """A thread or stream."""

    name: str = ""
    events: list[TraceEvent] = field(default_factory=list[TraceEvent])


@dataclass
class TracePlane:
    """A host or device."""

    name: str = ""
    by_number: dict[Any, TraceLine] = field(default_factory=dict[Any, TraceLine])

    @property
    def lines(self) -> list[TraceLine]:
        """The lines, in the order of the file."""
        return list(self.by_number.values())


def read(data: bytes) -> list[TracePlane]:
    """The planes of a trace. Raises `NoProfile`."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise NoProfile("it has more than 2 GB")
        content: Any = json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise NoProfile(str(error).split("\n")[0]) from None
    rows: Any = content.get("traceEvents") if is_dict(content) else None
    if not is_list(rows):
        raise NoProfile("it has no traceEvents")
    planes: dict[Any, TracePlane] = {}
    for row in rows:
        if not is_dict(row):
            continue
        if not all(isinstance(row.get(key, 0), int | str) for key in ("pid", "tid")):
            raise NoProfile("an event has no process and thread")
        plane = planes.setdefault(row.get("pid"), TracePlane())
        arguments: Any = row.get("args")
        details: dict[str, Any] = arguments if is_dict(arguments) else {}
        if row.get("ph") == "M" and row.get("name") == "process_name":
            plane.name = str(details.get("name", ""))
        elif row.get("ph") == "M" and row.get("name") == "thread_name":
            plane.by_number.setdefault(row.get("tid"), TraceLine()).name = str(details.get("name", ""))
        elif row.get("ph") == "X":
            start, duration = row.get("ts", 0), row.get("dur", 0)
            if not all(isinstance(time, int | float) and math.isfinite(time) for time in (start, duration)):
                raise NoProfile("an event has no time")
            event = TraceEvent(str(row.get("name", "")), start * 1000, duration * 1000, list(details.items()))
            plane.by_number.setdefault(row.get("tid"), TraceLine()).events.append(event)
    return list(planes.values())
