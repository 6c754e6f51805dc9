"""Draws the lines of a section as a graph, with a program's collectives on its edges."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from runner.base import executions
from runner.base.layout import spec_text
from runner.base.lazy import dataclass
from runner.base.printable import escape
from runner.base.words import bytes_text
from runner.compiled.evidence.model import REDUCING, Collective
from runner.compiled.evidence.words import renamed
from runner.reports.record.model import ArrayRecord, RecordedLine
from runner.reports.show.page.folding import FoldedLines, folded, parent
from runner.reports.show.page.layered import Name, place
from runner.reports.show.shapes import GLYPH, Box, number, text

_SIZE = 12.5
_ROW = 18
_PAD = 10
_WRAP = 38

_LINES = 120
"""In a section with more lines those that are away from the collectives are folded."""

_NAMED = 3
"""The most lines that are named in a fold."""


@dataclass(frozen=True)
class Pill:
    """One or several equal collectives as an edge shows them: two lines of text, and the origin."""

    what: str
    detail: str
    kind: str


@dataclass(frozen=True)
class GraphDrawing:
    """A drawing, and its description for screen readers; `only`: what of its section is drawn, "" for all."""

    box: Box
    words: list[str]
    only: str = ""


@dataclass(frozen=True)
class _Figure:
    """Data shared by all levels of a graph: the lines by path, the arrays, the places of pills."""

    lines: Mapping[str, RecordedLine]
    arrays: Mapping[str, ArrayRecord]
    outputs: Mapping[str, str]
    on_edges: Mapping[tuple[str, str], Sequence[Pill]]
    at_lines: Mapping[str, Sequence[Pill]]
    folds: Mapping[str, Sequence[RecordedLine]]


def draw(
    lines: Sequence[RecordedLine],
    arrays: Mapping[str, ArrayRecord],
    outputs: Mapping[str, str],
    collectives: Sequence[Collective],
) -> GraphDrawing:
    """Draw the graph of a section; `outputs` has the layout of each output in words.

    Of a large section the lines with collectives and their neighbours are drawn, and a box for others together.
    """
    on_edges, at_lines, elsewhere = _placed(lines, arrays, collectives)
    only = f"of {len(lines)} lines those with collectives, and those beside them" if len(lines) > _LINES else ""
    shown = folded(lines, {*at_lines, *itertools.chain(*on_edges)}) if only else FoldedLines(list(lines), {})
    lines, by_path = shown.lines, {line.path: line for line in shown.lines}
    figure = _Figure(by_path, arrays, outputs, on_edges, at_lines, shown.folds)
    read = [name for name in arrays if any(name in line.reads for line in lines)]
    box = _level(figure, _children(lines, ""), read, "")
    words = [*_words(lines, shown.folds), *(f"in no line of it: {_pill_text(pill)}" for pill in elsewhere)]
    for (a, b), pills in on_edges.items():
        words += [f"from {_named(by_path, a)} to {_named(by_path, b)}: {_pill_text(pill)}" for pill in pills]
    for path, pills in at_lines.items():
        words += [f"at {_named(by_path, path)}: {_pill_text(pill)}" for pill in pills]
    return GraphDrawing(box, words, only)


def _pill_text(pill: Pill) -> str:
    return f"{pill.what}, {pill.detail}"


def _named(lines: Mapping[str, RecordedLine], path: str) -> str:
    return (lines[path].variable or lines[path].line) if path in lines else path


def _words(lines: Sequence[RecordedLine], folds: Mapping[str, Sequence[RecordedLine]]) -> Iterator[str]:
    for line in lines:
        where = f" ({line.frame})" if line.frame else ""
        if line.path in folds:
            yield f"{line.variable}: {', '.join(member.path for member in folds[line.path])}"
        elif line.expression is None:
            often = "while its condition holds" if line.steps is None else f"{line.steps} times"
            yield f"{line.line} repeats {often}{where}"
        else:
            yield f"{line.variable or line.line} = {line.source or line.expression}{where}"


# Placing the collectives.


def pill(collective: Collective, times: int) -> Pill:
    """Describe a collective; `times` is the number of equal instructions. A merged collective lists its parts."""
    over = "groups along no axis" if collective.axes is None else ", ".join(collective.axes) or "no axis"
    runs = "" if collective.count == 1 else f" × {executions.short(collective.count)}"
    several = f"{times} × " if times > 1 else ""
    size = bytes_text(collective.bytes_sent) if collective.bytes_sent is not None else "? B"
    how = (
        "inserted by the compiler"
        if collective.inserted
        else "of the backward pass"
        if collective.gradient
        else "as written"
    )
    how = f"{how}, backward" if collective.inserted and collective.gradient else how
    backward = [f"{node} (backward)" if node in collective.backward else node for node in collective.nodes]
    merged = f" of {', '.join(backward)}" if len(collective.nodes) > 1 else ""
    kind = "inserted" if collective.inserted else "backward" if collective.gradient else "written"
    return Pill(f"{several}{collective.kind} over {over}{merged}", f"{size}{runs} · {how}", kind)


def _placed(
    lines: Sequence[RecordedLine], arrays: Mapping[str, ArrayRecord], collectives: Sequence[Collective]
) -> tuple[dict[tuple[str, str], list[Pill]], dict[str, list[Pill]], list[Pill]]:
    """Assign collectives to edges and to lines; the last list has those with no place in the section."""
    by_name: dict[str, list[RecordedLine]] = {}
    for line in lines:
        # The start of a carried value has the same name as its update, which does the work and comes first.
        by_name.setdefault(line.line, []).insert(0, line)
    places = {line.line: line.frame.place for line in lines if line.frame}
    alike: dict[tuple[object, ...], list[Collective]] = {}
    for collective in collectives:
        between = (tuple(collective.between.source), tuple(collective.between.to)) if collective.between else None
        where = (between, tuple(collective.axes or ()), collective.count, tuple(collective.branches))
        key = (
            collective.kind,
            tuple(collective.nodes),
            tuple(collective.backward),
            collective.gradient,
            collective.inserted,
            collective.bytes_sent,
            *where,
        )
        alike.setdefault(key, []).append(collective)
    on_edges: dict[tuple[str, str], list[Pill]] = {}
    at_lines: dict[str, list[Pill]] = {}
    elsewhere: list[Pill] = []
    for group in alike.values():
        collective, shown = group[0], pill(renamed(group[0], places), len(group))
        alone = sum(
            other.node == collective.node and not (other.inserted or other.gradient) for other in collectives
        ) == len(group)
        edge = (
            None
            if collective.gradient or len(collective.nodes) > 1
            else _edge(collective, by_name, arrays, alone=alone)
        )
        if edge is not None:
            on_edges.setdefault(edge, []).append(shown)
        elif collective.node is not None and collective.node in by_name:
            at_lines.setdefault(by_name[collective.node][0].path, []).append(shown)
        elif collective.node is not None and collective.node in arrays:
            at_lines.setdefault(collective.node, []).append(shown)
        else:
            elsewhere.append(shown)
    return on_edges, at_lines, elsewhere


def _edge(
    collective: Collective,
    by_name: Mapping[str, Sequence[RecordedLine]],
    arrays: Mapping[str, ArrayRecord],
    *,
    alone: bool,
) -> tuple[str, str] | None:
    """Return the edge whose value a collective moves unchanged; None if there is none.

    A reduction adds up what its line computes on each device, which no edge into the line carries. `alone`: the line
    asks for no other collective.
    """
    if collective.between is not None:
        if len(collective.between.source) > 1 or (
            collective.kind in REDUCING and collective.node not in collective.between.source
        ):
            return None
        for to in collective.between.to:
            for source in collective.between.source:
                for line in by_name.get(to, ()):
                    paths = {source} if source in arrays else {other.path for other in by_name.get(source, ())}
                    for read in line.reads:
                        if read in paths:
                            return read, line.path
        return None
    for line in by_name.get(collective.node or "", ()):
        if len(line.sent) == 1 and alone:
            return line.sent[0], line.path
    return None


# The drawing, level by level: a repeat is a box with a graph of its own.


def _children(lines: Sequence[RecordedLine], repeat: str) -> list[RecordedLine]:
    """Return the lines directly in a repeat, or in the section itself."""
    return [line for line in lines if parent(line.path) == repeat]


def _inside(path: str, repeat: str) -> bool:
    return not repeat or path.startswith(f"{repeat}/")


def _level(figure: _Figure, lines: Sequence[RecordedLine], read: Sequence[str], repeat: str) -> Box:
    """Draw the lines of one level; `read` are the values from outside, drawn at the top."""
    boxes: dict[Name, Box] = {name: _value(figure, name, port=bool(repeat)) for name in read}
    edges: list[tuple[Name, Name]] = []
    for line in lines:
        inner = [] if line.expression is not None else list(_within(figure, line.path))
        outer = list(dict.fromkeys(name for nested in inner for name in nested.reads if not _inside(name, line.path)))
        boxes[line.path] = _repeat(figure, line, inner, outer) if inner else _line(figure, line)
    here = {line.path for line in lines}
    for line in lines:
        for name in _needs(figure, line):
            start = name if name in read or name in here else _holder(name, here)
            if start is None or start == line.path:
                continue
            pills = figure.on_edges.get((name, line.path), ()) if line.expression is not None else ()
            for k, shown in enumerate(pills):
                stop = ("pill", name, line.path, k)
                boxes[stop] = _pill(shown)
                edges.append((start, stop))
                start = stop
            edges.append((start, line.path))
    sizes = {name: (box.width, box.height) for name, box in boxes.items()}
    placed = place(sizes, edges, between=30 if repeat else 34)
    parts = [_path(points) for points in placed.paths.values()]
    parts += [box.at(*placed.corners[name]) for name, box in boxes.items()]
    return Box(placed.width, placed.height, "".join(parts))


def _within(figure: _Figure, path: str) -> Iterator[RecordedLine]:
    """Return everything inside a repeat."""
    return (line for other, line in figure.lines.items() if other.startswith(f"{path}/"))


def _needs(figure: _Figure, line: RecordedLine) -> list[str]:
    if line.expression is not None:
        return line.reads
    names = (name for nested in _within(figure, line.path) for name in nested.reads if not _inside(name, line.path))
    return list(dict.fromkeys(names))


def _holder(path: str, here: set[str]) -> str | None:
    """Return the repeat of this level that contains a line."""
    while path and path not in here:
        path = parent(path)
    return path or None


def _repeat(figure: _Figure, line: RecordedLine, inner: Sequence[RecordedLine], outer: Sequence[str]) -> Box:
    """Draw a repeat: its body in a frame."""
    body = _level(figure, _children(inner, line.path), outer, line.path)
    title = f"{line.line} × {'?' if line.steps is None else line.steps}"
    width = max(body.width, len(title) * _SIZE * GLYPH) + 2 * 16
    height = body.height + 52
    frame = (
        f'<rect class="gl" width="{number(width)}" height="{number(height)}" rx="12"/>'
        + text(title, 16, 23, "gn")
        + body.at((width - body.width) / 2, 38)
    )
    return Box(width, height, f"<g>{frame}</g>")


def _value(figure: _Figure, name: str, *, port: bool) -> Box:
    """Draw an array, or at the top of a repeat the name of a value from outside."""
    if port or name not in figure.arrays:
        words = _named(figure.lines, name)
        width = len(words) * _SIZE * GLYPH + 2 * _PAD
        shape = f'<rect class="gp" width="{number(width)}" height="24" rx="12"/>'
        return Box(width, 24, shape + text(words, width / 2, 16.5, "gt m"))
    array = figure.arrays[name]
    lines = [f"{array.dtype}{array.shape}", spec_text(array.spec)]
    return _boxed(name, lines, "ga", figure.at_lines.get(name, ()))


def _line(figure: _Figure, line: RecordedLine) -> Box:
    if line.path in figure.folds:
        members = figure.folds[line.path]
        names = [member.path.rpartition("/")[2] for member in members[:_NAMED]]
        names += ["…"] if len(members) > _NAMED else []
        return _boxed(_named(figure.lines, line.path), textwrap.wrap(", ".join(names), _WRAP), "gl", ())
    *_, where, name = ("", *line.path.split("/"))
    begins = {"carry": "starts as ", "over": "a slice of "}.get(where)
    first = begins is not None
    says = line.source or line.expression or ""
    lines = textwrap.wrap((begins or "= ") + says, _WRAP, subsequent_indent="  ")
    if line.dtype is not None and line.shape is not None:
        lines.append(f"{line.dtype}{line.shape}")
    output = figure.outputs.get(line.line) if "/" not in line.path else None
    if output is not None:
        lines.append(f"output {output}")
    style = "gc" if first else "go" if output is not None else "gb"
    named = line.frame.place if line.variable == line.source and line.frame is not None else line.variable or name
    return _boxed(named, lines, style, figure.at_lines.get(line.path, ()))


def _boxed(name: str, lines: Sequence[str], style: str, pills: Sequence[Pill]) -> Box:
    """Draw a box with a name, lines of code, and the collectives that belong to the line as a whole."""
    drawn = [_pill(box) for box in pills]
    longest = max(len(name) + 1, *map(len, lines)) * _SIZE * GLYPH
    width = max(longest + 2 * _PAD, 96, *(box.width + 2 * _PAD for box in drawn))
    top = 2 * _PAD + _ROW * (len(lines) + 1) - 6
    height = top + sum(box.height + 6 for box in drawn) + (4 if drawn else 0)
    parts = [f'<rect class="{style}" width="{number(width)}" height="{number(height)}" rx="8"/>']
    parts.append(text(name, _PAD, _PAD + 12, "gn"))
    parts += [text(line, _PAD, _PAD + 12 + _ROW * (k + 1), "gt") for k, line in enumerate(lines)]
    y = top
    for box in drawn:
        parts.append(box.at((width - box.width) / 2, y))
        y += box.height + 6
    return Box(width, height, f"<g>{''.join(parts)}</g>")


def _pill(shown: Pill) -> Box:
    width = max(len(shown.what), len(shown.detail) * 0.92) * 11.5 * GLYPH + 24
    body = (
        f'<rect class="q {shown.kind}" width="{number(width)}" height="40" rx="20"/>'
        f'<text class="qn {shown.kind}" x="{number(width / 2)}" y="17">{escape(shown.what)}</text>'
        f'<text class="qt" x="{number(width / 2)}" y="32">{escape(shown.detail)}</text>'
    )
    return Box(width, 40, f"<g>{body}</g>")


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a smooth line through points, vertical at each of them, with an arrow at the end."""
    (x, y), *rest = points
    commands = [f"M{number(x)} {number(y)}"]
    for a, b in rest:
        half = (b - y) / 2
        if a == x:
            commands.append(f"V{number(b)}" if b > y else "")
        else:
            commands.append(f"C{number(x)} {number(y + half)} {number(a)} {number(b - half)} {number(a)} {number(b)}")
        x, y = a, b
    tip = f"M{number(x - 4)} {number(y - 7)}L{number(x)} {number(y)}L{number(x + 4)} {number(y - 7)}"
    return f'<path class="ge" d="{"".join(commands)}"/><path class="gh" d="{tip}Z"/>'
