"""Prints the user's source with what each line communicates and computes in its margin."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import field

from runner.base import executions
from runner.base.lazy import dataclass
from runner.base.printable import printable
from runner.base.words import bytes_text
from runner.compiled.explanation.model import Explanation, PlacedCollective, PlannedLayout
from runner.graph.sharding import ring

SHORT = {
    "all-gather": "AG", "all-reduce": "AR", "reduce-scatter": "RS", "all-to-all": "A2A", "collective-permute": "CP",
    "collective-broadcast": "CB", "ragged-all-to-all": "RA2A", "send": "send", "recv": "recv",
}  # fmt: skip
"""The kinds of collectives as a margin has them."""

BACKWARD = "↩"
"""The mark of what belongs to the backward pass."""

_COLLECTIVES = 16
"""The columns of a collective in the margin: `3×AR data,model↩`."""

_BYTES = 7
_BAR = 4
_LAYOUT = 14
"""The most columns of a layout; there are none in less than `_WIDE` columns."""

_WIDE = 100
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_DEFINITION = re.compile(r"\s*(async def|def|class) ")
_NEAR = 2
"""A gap of at most so many lines is not folded."""


@dataclass(frozen=True)
class MarginEntry:
    """Alike collectives of one line: their kind, axes and direction, how often they run, what a device sends for them.

    - `callers`: the lines that lead to it, one path each.
    """

    kind: str
    over: str
    gradient: bool
    runs: str
    sent: int | None
    inserted: bool
    callers: list[list[str]]
    reasons: list[str]

    @property
    def text(self) -> str:
        """`3×AR data↩`."""
        return f"{self.runs}×{SHORT.get(self.kind, self.kind)} {self.over}{BACKWARD if self.gradient else ''}"


@dataclass
class AnnotatedLine:
    """A line of a file: its collectives, and its share of the work, between 0 and 1.

    - `layout`: that of what it computes, where it is known.
    - `share`: of the measured time, else of the estimated time, else of the operations in products.
    """

    number: int
    text: str
    entries: list[MarginEntry] = field(default_factory=list[MarginEntry])
    share: float = 0.0
    layout: PlannedLayout | None = None

    @property
    def marked(self) -> bool:
        """Whether its margin says anything."""
        return bool(self.entries) or self.share >= _SHOWN or (self.layout is not None and bool(self.layout.spec.axes))


_SHOWN = 0.005
"""The smallest share that is shown."""


@dataclass(frozen=True)
class AnnotatedFile:
    """A file with its annotated lines and their surroundings; None stands for folded lines."""

    name: str
    lines: list[AnnotatedLine | None]
    here: bool


def files(explanation: Explanation) -> list[AnnotatedFile]:
    """The user's files; without their text where they are not on this machine."""
    marked: dict[str, dict[int, AnnotatedLine]] = {}
    shares = _shares(explanation)
    entries = _entries(explanation)
    for name in dict.fromkeys([*entries, *shares, *explanation.layouts]):
        place = explanation.lines.get(name)
        if place is None:
            continue
        layout = explanation.layouts.get(name)
        line = AnnotatedLine(place.line, "", entries.get(name, []), shares.get(name, 0.0), layout)
        if line.marked:
            marked.setdefault(place.file, {})[place.line] = line
    return [
        AnnotatedFile(file, _folded(lines, explanation.sources.get(file, "").splitlines()), file in explanation.sources)
        for file, lines in sorted(marked.items(), key=lambda item: item[0] not in explanation.sources)
    ]


def _entries(explanation: Explanation) -> dict[str, list[MarginEntry]]:
    grouped: dict[str, dict[tuple[str, str, bool], list[PlacedCollective]]] = {}
    for entry in explanation.moving:
        if entry.node is not None:
            over = "?" if entry.axes is None else ",".join(entry.axes)
            grouped.setdefault(entry.node, {}).setdefault((entry.kind, over, entry.gradient), []).append(entry)
    return {node: [_entry(*key, alike) for key, alike in kinds.items()] for node, kinds in grouped.items()}


def _entry(kind: str, over: str, gradient: bool, alike: Sequence[PlacedCollective]) -> MarginEntry:
    return MarginEntry(
        kind=kind,
        over=over,
        gradient=gradient,
        runs=executions.short(ring.runs(alike)).replace(" to ", "–"),
        sent=executions.most(ring.total(alike)),
        inserted=all(entry.inserted for entry in alike),
        callers=list({tuple(entry.callers): entry.callers for entry in alike if entry.callers}.values()),
        reasons=list(dict.fromkeys(entry.why.text for entry in alike if entry.why is not None)),
    )


def _shares(explanation: Explanation) -> dict[str, float]:
    """The share of each line in what `share_of` names."""
    weights: dict[str, float] = {}
    if explanation.profile is not None:
        entries = [*explanation.profile.nodes, *explanation.profile.collectives]
        parts = [(entry.nodes, entry.seconds.total) for entry in entries if entry.seconds is not None]
    elif explanation.estimate is not None:
        parts = [(line.nodes, line.seconds or 0.0) for line in explanation.estimate.lines]
        parts += [(entry.nodes, (entry.seconds or 0.0) - entry.hidden) for entry in explanation.estimate.collectives]
    else:
        parts = [(line.nodes, line.flops) for line in explanation.computed or ()]
    for nodes, weight in parts:
        if nodes:
            weights[nodes[0]] = weights.get(nodes[0], 0.0) + weight
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()} if whole else {}


def share_of(explanation: Explanation) -> str:
    """What the bars of lines are shares of."""
    if explanation.profile is not None:
        return "measured time"
    return "estimated time" if explanation.estimate is not None else "operations in products"


def _folded(marked: dict[int, AnnotatedLine], text: Sequence[str]) -> list[AnnotatedLine | None]:
    """The marked lines with their text, the definitions that they stand in, and short gaps."""
    shown = {number for number in marked if 0 < number <= len(text)} or set(marked)
    for number in sorted(shown):
        shown |= set(_around(number, text))
    numbers = sorted(shown)
    lines: list[AnnotatedLine | None] = []
    before = 0
    for number in numbers:
        gap = range(before + 1, number)
        # The lines of a file that is not here may be any numbers, beyond those that `len` returns.
        if before and 0 < number - before - 1 <= _NEAR:
            blank = not any(text[between - 1].strip() for between in gap if between <= len(text))
            lines += [_line(between, marked, text) for between in (gap[:1] if blank else gap)]
        elif gap and (before or number > 1):
            lines.append(None)
        lines.append(_line(number, marked, text))
        before = number
    return lines


def _line(number: int, marked: dict[int, AnnotatedLine], text: Sequence[str]) -> AnnotatedLine:
    line = marked.get(number) or AnnotatedLine(number, "")
    line.text = text[number - 1].rstrip() if 0 < number <= len(text) else ""
    return line


def _around(number: int, text: Sequence[str]) -> Iterator[int]:
    """The lines of the definitions around a line."""
    if not 0 < number <= len(text):
        return
    indent = len(text[number - 1]) - len(text[number - 1].lstrip())
    for at in range(number - 1, 0, -1):
        line = text[at - 1]
        own = len(line) - len(line.lstrip())
        if line.strip() and own < indent:
            if _DEFINITION.match(line):
                yield at
            indent = own


# The terminal.


def text_of(explanation: Explanation, width: int = 100) -> list[str]:
    """The annotated source as lines of at most `width` columns."""
    lines: list[str] = []
    shown = files(explanation)
    known = [line.layout for file in shown for line in file.lines if line is not None and line.layout is not None]
    laid = min(max(map(len, map(compact, known)), default=0), _LAYOUT) if width >= _WIDE else 0
    for file in shown:
        lines += ["", file.name if file.here else f"{file.name} (not on this machine)"]
        digits = max((len(str(line.number)) for line in file.lines if line is not None), default=1)
        for line in file.lines:
            lines += [f"{'⋮':>{digits}}"] if line is None else _rows(line, digits, width, laid)
    if not shown:
        return ["no line of a file is known"]
    kinds = dict.fromkeys(entry.kind for entry in explanation.moving)
    named = [f"{SHORT[kind]} {kind}" for kind in kinds if kind in SHORT]
    legend = (
        f"runs × collective over axes, bytes that a device sends, the line's share of the {share_of(explanation)}: "
    )
    legend += ", ".join([*named, f"{BACKWARD} backward"])
    if laid:
        legend += "; then the layout of what it computes, by Shardy's plan: the axes of each dimension"
    return [*lines[1:], "", *textwrap.wrap(legend, width)]


def compact(layout: PlannedLayout) -> str:
    """The mesh axes of each dimension, a dot for none: `data,·,model`."""
    return ",".join("+".join(axes) or "·" for axes in layout.spec.padded(len(layout.shape)))


def _rows(line: AnnotatedLine, digits: int, width: int, laid: int) -> Iterator[str]:
    left = digits + 1 + _COLLECTIVES + 1 + _BYTES + 1 + _BAR + 3 + (laid + 1 if laid else 0)
    source = _cut(printable(line.text.expandtabs(4)), max(width - left, 10))
    entries: Sequence[MarginEntry | None] = line.entries or [None]
    for at, entry in enumerate(entries):
        number = str(line.number) if at == 0 else ""
        what = "" if entry is None else _cut(entry.text, _COLLECTIVES)
        sent = "" if entry is None else "?" if entry.sent is None else bytes_text(entry.sent)
        bar = _bar(line.share) if at == 0 else " " * _BAR
        layout = compact(line.layout) if at == 0 and line.layout is not None else ""
        lies = f" {_cut(layout, laid):<{laid}}" if laid else ""
        margin = f"{number:>{digits}} {what:<{_COLLECTIVES}} {sent:>{_BYTES}} {bar}{lies} │ "
        yield (margin + (source if at == 0 else "")).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _bar(share: float) -> str:
    eighths = round(share * 8 * _BAR)
    if share >= _SHOWN:
        eighths = max(eighths, 1)
    full, rest = divmod(min(eighths, 8 * _BAR), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)
