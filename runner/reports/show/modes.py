"""Makes the rows of a record's table of modes: what each program leaves to the compiler.

The program whose devices send the least comes first.
"""

from __future__ import annotations

import math

from runner.base.grouping import by_key
from runner.base.words import bytes_text, listed
from runner.compiled.why.least import Gap, parts
from runner.reports.record.model import Mode, Record, alike, compiled_on_mesh
from runner.reports.show.collectives import places

HEAD = ("program", "view", "who places", "who communicates", "each device sends", "lines")


def compared(record: Record) -> str | None:
    """Return a line on what each program sends; None if all send the same, or too little is known."""
    same = alike(compiled_on_mesh(record.programs))
    sent = {name: each.bytes_sent for name, each in same.items() if each.bytes_sent is not None}
    ranked = sorted(sent, key=lambda name: sent[name])
    by_bytes = by_key((bytes_text(sent[name]) if sent[name] else "nothing", name) for name in ranked)
    if len(by_bytes) < 2:
        return None
    sentences: list[str] = []
    for count, names in by_bytes.items():
        several = len(names) > 1
        whose = "the compiler's programs" if set(names) == _COMPILERS & set(sent) and several else listed(names)
        verb = "" if sentences else f" send{'' if several else 's'}"
        sentences.append(f"{whose}{verb} {count}")
    least, most = min(sent.values()), max(sent.values())
    return f"{', '.join(sentences)}{f': {most / least:.3g} ×' if least else ''}"


_COMPILERS = {"auto", "constraint", "explicit"}
"""The programs whose collectives the compiler chooses."""


def rows(record: Record) -> list[tuple[str, ...]]:
    """Return the rows under `HEAD`; none if there is nothing to compare."""
    modes = record.modes or []
    ranked = sorted(modes, key=lambda mode: math.inf if mode.bytes_sent is None else mode.bytes_sent)
    return [_row(mode) for mode in ranked] if len(modes) > 1 else []


def lines(record: Record) -> list[str]:
    """Say how much more than the least each program sends, and in which lines; equal programs share a line."""
    modes = record.modes or []
    programs_of = by_key(
        (_gap(mode, mode.gap), mode.program) for mode in (modes if len(modes) > 1 else ()) if mode.gap is not None
    )
    return [f"{listed(names)} send{'s' if len(names) == 1 else ''} {text}" for text, names in programs_of.items()]


def _gap(mode: Mode, gap: Gap) -> str:
    more = f"{_sent(mode)}, {gap.program} nothing"
    if gap.times is not None:
        more = f"{gap.times:g} times as much as {gap.program}"
    by_place: dict[str, tuple[int, int]] = {}
    for line, (mine, theirs) in gap.lines.items():
        place = places(parts(line))
        before = by_place.get(place, (0, 0))
        by_place[place] = before[0] + mine, before[1] + theirs
    lines = sorted(by_place.items(), key=lambda pair: pair[1][1] - pair[1][0])
    most = [f"{line} {bytes_text(mine)} instead of {bytes_text(theirs)}" for line, (mine, theirs) in lines[:_LINES]]
    left = len(lines) - _LINES
    rest = f"; {left} more line{'s differ' if left > 1 else ' differs'}" if left > 0 else ""
    return f"{more}: {'; '.join(most)}{rest}"


_LINES = 3


def _row(mode: Mode) -> tuple[str, ...]:
    by = mode.communicated_by
    return (
        mode.program,
        mode.view,
        mode.placed_by,
        "unknown" if by is None else listed(by) or "nobody",
        _sent(mode),
        str(mode.lines),
    )


def _sent(mode: Mode) -> str:
    if mode.bytes_sent is None:
        return "unknown"
    most = "at most " if mode.bytes_sent_min is not None else ""
    return f"{most}{bytes_text(mode.bytes_sent)}" if mode.bytes_sent else "–"
