"""A record in; the rows of its table of modes out: of each program, what it leaves to the compiler."""

from __future__ import annotations

from runner.record.model import Mode, Record
from runner.words import bytes_text, listed

HEAD = ("program", "view", "who places", "who communicates", "bytes per device", "lines")


def rows(found: Record) -> list[tuple[str, ...]]:
    """The rows under `HEAD`; none where there is nothing to compare."""
    modes = found.modes or []
    return [_row(mode) for mode in modes] if len(modes) > 1 else []


def _row(mode: Mode) -> tuple[str, ...]:
    by = mode.communicated_by
    return (
        mode.program,
        mode.view,
        mode.placed_by,
        "unknown" if by is None else listed(by) or "nobody",
        "unknown" if mode.bytes is None else bytes_text(mode.bytes) if mode.bytes else "–",
        str(mode.lines),
    )
