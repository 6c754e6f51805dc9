"""Draws a bar chart of computation and communication of a program, line by line.

Lines are in the order of the compiled module's schedule. A collective runs beside the lines that the schedule
computes meanwhile, or alone: after its operands are computed, before its result is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runner.base import executions
from runner.base.lazy import dataclass
from runner.base.printable import escape
from runner.base.words import time_text
from runner.compiled.estimate.model import CollectiveTime, Estimate, LineTime, named
from runner.compiled.evidence.model import REDUCING, Collective
from runner.reports.record.model import RecordedLine
from runner.reports.show.page.chart import Scale
from runner.reports.show.shapes import GLYPH, Box, number, text

_WIDTH, _LEFT, _LANE, _GAP = 1060.0, 76.0, 30.0, 10.0

_FONT = 11.0


@dataclass(frozen=True)
class Bar:
    """A time span on a lane: what the device `computes`, or what it `communicates`; times in seconds."""

    lane: str
    name: str
    start: float
    stop: float

    @property
    def words(self) -> str:
        """Return the whole description, for a tooltip and screen readers."""
        return f"{time_text(self.start)} to {time_text(self.stop)}: {self.name}, {time_text(self.stop - self.start)}"


def bars(estimate: Estimate, collectives: Sequence[Collective], lines: Sequence[RecordedLine]) -> list[Bar]:
    """Return the bars ordered by start; none if a time is unknown, or nothing takes any."""
    if any(entry.seconds is None for entry in (*estimate.lines, *estimate.collectives)):
        return []
    if len(collectives) != len(estimate.collectives):
        return []
    computed = [line for line in estimate.lines if line.seconds]
    begin: dict[int, list[tuple[Collective, CollectiveTime, int | None]]] = {}
    earliest = 0
    for collective, taken in zip(collectives, estimate.collectives, strict=True):
        if not taken.seconds:
            continue
        meanwhile = [k for k, line in enumerate(computed) if set(line.nodes) & set(collective.overlapped or ())]
        # A name denotes a line in the forward and the backward pass: prefer the collective's own pass.
        meanwhile = [k for k in meanwhile if computed[k].gradient == collective.gradient] or meanwhile
        earliest = max(earliest, meanwhile[0] if meanwhile else _after(collective, computed, lines))
        begin.setdefault(earliest, []).append((collective, taken, meanwhile[-1] if meanwhile else None))
    return _drawn(computed, begin)


def _drawn(
    computed: Sequence[LineTime], begin: Mapping[int, Sequence[tuple[Collective, CollectiveTime, int | None]]]
) -> list[Bar]:
    """Return the bars: each waits for its inputs, and the links carry one collective at a time."""
    placed: list[Bar] = []
    now, free = 0.0, 0.0
    due: dict[int, float] = {}
    for k in range(len(computed) + 1):
        for collective, taken, last in begin.get(k, ()):
            start = max(now, free)
            free = start + (taken.seconds or 0.0)
            placed.append(Bar("communicates", _named(collective, taken), start, free))
            if last is None or last < k:
                now = free
            else:
                due[last] = free
        if k < len(computed):
            stop = now + (computed[k].seconds or 0.0)
            placed.append(Bar("computes", named(computed[k].nodes, computed[k].gradient), now, stop))
            now = max(stop, due.get(k, 0.0))
    return placed


def _named(collective: Collective, taken: CollectiveTime) -> str:
    of = f" of {', '.join(collective.nodes)}" if collective.nodes else ""
    over = f" over {', '.join(collective.axes)}" if collective.axes else ""
    times = "" if taken.count == 1 else f" × {executions.short(taken.count)}"
    return f"{taken.kind}{of}{over}{times}" + (" (backward)" if collective.gradient else "")


def _after(collective: Collective, computed: Sequence[LineTime], lines: Sequence[RecordedLine]) -> int:
    """Return after how many lines the operands of a collective that no line hides are ready."""
    own = [
        k
        for k, line in enumerate(computed)
        if set(line.nodes) & set(collective.nodes) and line.gradient == collective.gradient
    ]
    if own:
        reduces = collective.kind in REDUCING
        if collective.between is not None:
            reduces = collective.node in collective.between.source
        return own[-1] + 1 if reduces else own[0]
    needed = set(_read(collective.nodes, lines))
    return max((k + 1 for k, line in enumerate(computed) if needed & set(line.nodes) and not line.gradient), default=0)


def _read(names: Sequence[str], lines: Sequence[RecordedLine]) -> Iterator[str]:
    """Return the names of all lines on which some lines depend."""
    by_path = {line.path: line for line in lines}
    todo = [line.path for line in lines if line.line in names]
    reached: set[str] = set()
    while todo:
        line = by_path.get(todo.pop())
        if line is not None and line.path not in reached:
            reached.add(line.path)
            yield line.line
            todo += line.reads


def draw(placed: Sequence[Bar]) -> Box:
    """Draw two lanes over one time axis; a bar has its name if it fits, and a tooltip with everything."""
    whole = max(bar.stop for bar in placed)
    scale = Scale(0, whole, False)
    room = _WIDTH - _LEFT - 30
    height = 2 * _LANE + _GAP
    parts: list[str] = []
    for value in scale.ticks(6):
        x = number(_LEFT + room * scale.at(value))
        parts.append(f'<path class="grid" d="M{x} 0V{number(height + 4)}"/>')
        parts.append(text(time_text(value) if value else "0", float(x), height + 18, "tk m"))
    tops = {"computes": 0.0, "communicates": _LANE + _GAP}
    for lane, words in (("computes", "computes"), ("communicates", "sends")):
        parts.append(text(words, _LEFT - 8, tops[lane] + _LANE / 2 + 4, "e"))
    for bar in placed:
        x, width = _LEFT + room * scale.at(bar.start), room * (bar.stop - bar.start) / whole
        y = tops[bar.lane]
        box = f'x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.8))}" height="{number(_LANE)}"'
        parts.append(f'<g><title>{escape(bar.words)}</title><rect class="tb {bar.lane}" {box}/>')
        fits = int((width - 8) / (_FONT * GLYPH))
        if fits >= min(len(bar.name), 4):
            name = bar.name if len(bar.name) <= fits else f"{bar.name[: fits - 1]}…"
            parts.append(text(name, x + 4, y + _LANE / 2 + 4, f"tn {bar.lane}"))
        parts.append("</g>")
    return Box(_WIDTH, height + 24, "".join(parts))
