"""Draws what a run communicates: a table, the user's source or the graph with its collectives, and Shardy's plan."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from runner.base.grouping import by_key
from runner.base.words import bytes_text, listed
from runner.compiled.evidence.model import Collective
from runner.experiment.program import Program
from runner.reports.record.model import Record
from runner.reports.record.readable import lines_of, readable
from runner.reports.show import collectives, explained_runs
from runner.reports.show.explained_runs import ExplainedPrograms
from runner.reports.show.page import annotated, drawing, graph, layouts
from runner.reports.show.page.markup import Inside, Markup, Part, table, tag
from runner.reports.show.page.verdicts import callout
from runner.reports.show.table import Table


def parts(record: Record, folder: Path) -> Iterator[Part]:
    """Return the sections of the collectives, of the source and of the graph that the record has data for.

    The source of Python functions, annotated, takes the place of their graph.
    """
    inside = list(_collectives(readable(record)))
    if inside:
        yield Part("collectives", "Collectives", inside)
    explained = explained_runs.explained(readable(record), folder)
    annotated_files = list(_sources(explained))
    if annotated_files:
        yield Part("source", "Source", annotated_files)
    drawn = list(_graphs(record, {name for group in explained for name in group.names}))
    if drawn:
        yield Part("graph", "Graph", drawn)


_LEAD = (
    "Values flow down. A collective is drawn on the edge whose value it moves, or in the line whose result it "
    "completes, with what a device sends for it."
)

_KEY = (
    ("written", "as written: a line calls it"),
    ("inserted", "inserted by the compiler"),
    ("backward", "of the backward pass of the line"),
)


def sources(record: Record, folder: Path) -> list[Inside]:
    """Return the annotated source of a run's Python functions; none for an experiment without functions."""
    return list(_sources(explained_runs.explained(readable(record), folder)))


def _sources(explained: Sequence[ExplainedPrograms]) -> Iterator[Inside]:
    """Return the annotated source, once for all programs that do the same at the same lines."""
    for group in explained:
        yield tag("h3", listed(group.names)) if len(explained) > 1 else None
        yield from annotated.source(group.explanation)
        for file in group.changed:
            yield tag("p", f"{file} has changed since the run: only the lines that the record has are shown.")


def _graphs(record: Record, sourced: Container[str]) -> Iterator[Inside]:
    """Return one drawing for all programs with equal graphs and collectives, if not `sourced` already."""
    outputs = layouts.names(record.pictures) if record.pictures else {}
    groups: dict[tuple[str, ...], tuple[graph.GraphDrawing, str, list[str]]] = {}
    for name, program in record.compiled.items():
        lines = record.lines.get(lines_of(name, record.lines))
        if name in sourced or not Program(name).on_mesh or program.collectives is None or not lines:
            continue
        shown = graph.draw(lines, record.arrays, outputs, program.collectives)
        section = lines_of(name, record.lines)
        about = "; ".join(filter(None, (_caption(section, program.collectives), shown.only)))
        new = shown, about, list[str]()
        groups.setdefault((section, *shown.words), new)[-1].append(name)
    if not groups:
        return
    figures: list[Inside] = []
    for number, (shown, about, programs) in enumerate(groups.values()):
        caption = [tag("h3", listed(programs)), tag("span", about, class_="told")]
        title = f"{listed(programs)}: {about}"
        image = drawing.svg(shown.box, f"graph-{number}", title, shown.words)
        words = tag("details", tag("summary", "In words"), tag("ul", [tag("li", word) for word in shown.words]))
        drawn = [drawing.figure(image, title, caption), words]
        # One drawing of a large section is as high as two screens.
        large = bool(shown.only and figures)
        figures.append(tag("details", tag("summary", title), drawn) if large else tag("div", drawn))
    yield tag("p", _LEAD, class_="lead")
    yield tag("ul", [tag("li", tag("span", class_=f"key {kind}"), meaning) for kind, meaning in _KEY], class_="legend")
    yield tag("div", figures, class_="graphs")


def _caption(name: str, moved: list[Collective]) -> str:
    lines = {
        "graph": "the lines of graph, on whole arrays",
        "per_device": "the lines of per_device, on each device",
        "written": "the lines of the functions themselves, in place of their references",
    }
    how = lines.get(name, "the lines that were derived from graph, on each device")
    return f"{how}; {len(moved) or 'no'} collective{'' if len(moved) == 1 else 's'}"


def _collectives(record: Record) -> Iterator[Inside]:
    rows, several = collectives.explained(record, collectives.several_in_brief), len(record.compiled) > 1
    for line in collectives.totals(record):
        yield tag("p", line, class_="lead")
    if len(rows) > _TOGETHER:
        yield from _by_way(rows, several)
    elif rows:
        yield _table("What the compiled programs communicate, and why", rows, several)
    for line in collectives.lines(record):
        yield tag("p", line)
    for programs, move in collectives.compiler_warnings(record, complete=False):
        words = tag("p", move.text)
        if move.way is not None:
            words = [tag("p", move.way), tag("details", tag("summary", "The compiler's words"), words)]
        yield callout("weak", f"{listed(programs)}: the compiler warns: {move.about}", words)
    planned = [
        [
            move.kind, name, move.of, ", ".join(move.axes), move.line or "–", move.operation,
            f"{bytes_text(move.bytes_in)} → {bytes_text(move.bytes_out)}", bytes_text(move.bytes_sent),
            move.reduction or "–", "yes" if move.gradient else "no",
        ]
        for name, program in record.compiled.items()
        for move in (program.plan.collectives if program.plan else None) or ()
    ]  # fmt: skip
    if planned:
        head = (
            "collective",
            "of",
            "moves",
            "over",
            "for",
            "operation",
            "in → out per device",
            "sends",
            "reduction",
            "backward",
        )
        summary = tag("summary", "Shardy's plan, from which the compiler may differ")
        plan = table("The plan of each program of whole arrays", Table(head, planned), kind="small")
        yield tag("details", summary, plan)


_TOGETHER = 12
"""The most rows of collectives in one table; more are folded by kind and axes."""


def _by_way(rows: Sequence[collectives.ExplainedRow], several: bool) -> Iterator[Inside]:
    """Yield a folded table for each kind of collective over the same axes, the one that sends most first."""
    ways = by_key((row.way, row) for row in rows)
    for way, group in sorted(ways.items(), key=lambda item: -collectives.sent(item[1])):
        each = f"{len(group)} line{'s' if len(group) > 1 else ''}"
        summary = tag("summary", tag("b", way), f" · {each} · a device sends {collectives.together(group)}")
        yield tag("details", summary, _table(f"{way}, and why", group, several))


def _table(caption: str, rows: Sequence[collectives.ExplainedRow], several: bool) -> Markup:
    """Return the table of collectives, with the reasons for a row beneath it; its programs if there are `several`."""
    beneath = ["\n".join(row.reasons) for row in rows]
    columns = slice(None if several else -1)
    cells = [row.cells[columns] for row in rows]
    right = frozenset({collectives.HEAD.index("sends")})
    return table(caption, Table(collectives.HEAD[columns], cells, right, beneath=beneath), kind="collectives")
