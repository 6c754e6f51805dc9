"""Makes the section of the estimates: the least time on named hardware, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.base import executions
from runner.base.grouping import by_key
from runner.base.words import bytes_text, flops_text, listed, time_text
from runner.compiled.estimate.model import Estimate, named
from runner.reports.record.model import Record
from runner.reports.record.readable import lines_of, readable
from runner.reports.show import estimates
from runner.reports.show.page import drawing, timeline
from runner.reports.show.page.markup import Inside, Markup, Part, joined, table, tag
from runner.reports.show.table import Table

_WIDEST = 14.0
"""The width of the longest bar, in rem."""


def part(record: Record) -> Part | None:
    """Return the section; None if the experiment names no hardware."""
    estimate_of = {name: program.estimate for name, program in readable(record).compiled.items() if program.estimate}
    if not estimate_of:
        return None
    merged = _merged(estimate_of)
    inside: list[Inside] = [tag("p", *estimates.head(estimate_of), ".", class_="lead"), _bars(merged)]
    inside += list(_timelines(record))
    inside.append(table("The quickest first", estimates.compared(merged), kind="estimates"))
    inside += [times(estimate, f" of {programs}") for programs, estimate in merged.items()]
    return Part("estimates", "Estimates", inside)


def times(estimate: Estimate, whose: str = "") -> Markup | None:
    """Return the folded table of what takes how long; None if nothing is known to."""
    rows = list(_rows(estimate))
    if not rows:
        return None
    head = ("what", "does", "bound by", "takes", "hidden")
    content = table("The longest first", Table(head, rows), kind="small")
    return tag("details", tag("summary", f"Where the time{whose} goes"), content)


def _merged(estimate_of: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return each distinct estimate once under its programs' names; names of instructions may differ between them."""
    alike: dict[str, tuple[list[str], Estimate]] = {}
    for program, estimate in estimate_of.items():
        unnamed = [replace(collective, instruction="") for collective in estimate.collectives]
        alike.setdefault(repr(replace(estimate, collectives=unnamed)), ([], estimate))[0].append(program)
    return {listed(programs): estimate for programs, estimate in alike.values()}


def _timelines(record: Record) -> Iterator[Inside]:
    """Return a timeline for each program compiled for real hardware; a simulated device has another schedule."""
    if record.target is None or record.target.platform == "cpu":
        return
    programs_of: dict[tuple[timeline.Bar, ...], list[str]] = {}
    for name, program in record.compiled.items():
        if program.estimate is not None and program.collectives is not None:
            bars = timeline.bars(
                program.estimate, program.collectives, record.lines.get(lines_of(name, record.lines), ())
            )
            programs_of.setdefault(tuple(bars), []).append(name)
    drawn: list[Inside] = []
    for number, (bars, programs) in enumerate(programs_of.items()):
        if bars:
            title = f"{listed(programs)}: what is computed and sent when"
            image = drawing.svg(timeline.draw(bars), f"time-{number}", title, [bar.words for bar in bars])
            drawn.append(drawing.figure(image, title, tag("h4", listed(programs))))
    if drawn:
        yield tag("h3", "What is computed and sent when")
        yield tag("p", _TIMELINE, class_="lead")
        yield drawn


_TIMELINE = (
    "Lines in the order of the schedule, each as long as its estimate; a loop's lines appear once, with the time of "
    "all steps. A collective begins with the lines that the schedule computes meanwhile, or alone, once its values are "
    "ready."
)


def unknown(record: Record) -> dict[str, list[str]]:
    """Return what the estimates omit, each with its programs."""
    estimate_of = {program: result.estimate for program, result in record.compiled.items() if result.estimate}
    return by_key((f"estimate: {text}", program) for program, of in estimate_of.items() for text in of.unknown)


def _bars(estimate_of: Mapping[str, Estimate]) -> Markup:
    """Return a bar for each program: the time of computation, then of exposed communication."""
    longest = max((estimate.seconds for estimate in estimate_of.values()), default=0.0) or 1.0
    rows = [
        [
            program,
            joined(
                [
                    _bar("computes", max(estimate.seconds - _open(estimate), 0.0) / longest),
                    _bar("communicates", _open(estimate) / longest),
                    f" {time_text(estimate.seconds)}",
                    " and does not fit into the memory" if estimate.fits is False else "",
                ]
            ),
        ]
        for program, estimate in estimate_of.items()
    ]
    key = [
        tag("li", tag("span", class_=f"key {kind}", aria_hidden="true"), words)
        for kind, words in (("computes", "computes"), ("communicates", "communicates, and is not hidden"))
    ]
    least = table("The least time of a run", Table(("program", "at least"), rows))
    return joined([tag("ul", key, class_="legend"), least])


def _open(estimate: Estimate) -> float:
    """Return the seconds of communication that no computation hides."""
    return max(estimate.communication - estimate.hidden, 0.0)


def _bar(kind: str, share: float) -> Markup:
    return tag("span", class_=f"bar {kind}", style=f"width:{share * _WIDEST:.2f}rem", aria_hidden="true")


def _rows(estimate: Estimate) -> Iterator[list[Inside]]:
    entries: list[tuple[float, list[Inside]]] = []
    for line in estimate.lines:
        does = f"{flops_text(line.flops)}, {bytes_text(round(line.bytes))}"
        of = named(line.nodes, line.gradient)
        entries.append((line.seconds or 0.0, [of, does, line.bound or "–", time_text(line.seconds), "–"]))
    for collective in estimate.collectives:
        of = f"{collective.kind} of {', '.join(collective.nodes)}" if collective.nodes else collective.kind
        times = "" if collective.count == 1 else f" × {executions.short(collective.count)}"
        does = f"over {collective.over or ', '.join(collective.axes or []) or 'groups along no axis'}{times}"
        hidden = time_text(collective.hidden) if collective.hidden else "–"
        entries.append(
            (collective.seconds or 0.0, [of, does, collective.bound or "–", time_text(collective.seconds), hidden])
        )
    for _, row in sorted(entries, key=lambda entry: -entry[0]):
        yield row
