"""Makes the page of an explanation, and its fragment for notebooks, from the data alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.base import codec
from runner.base.layout import spec_text
from runner.base.words import bytes_text, time_text
from runner.compiled.evidence import words
from runner.compiled.evidence.model import Profile
from runner.compiled.explanation.model import Explanation
from runner.reports.show import estimates, explained, measured
from runner.reports.show.page import annotated, estimated, markup
from runner.reports.show.page.headline import item
from runner.reports.show.page.markup import Inside, Markup, Part, grid, joined, table, tag
from runner.reports.show.table import Table
from runner.version import __version__


def document(explanation: Explanation) -> str:
    """Return the page: one file without external resources."""
    about = explained.head(explanation)[0].removeprefix(f"{explanation.module}: ")
    lead = tag("p", "Shardproof explain", class_="over"), tag("h1", explanation.module), tag("p", about, class_="lead")
    numbers = list(_numbers(explanation))
    lead = (*lead, tag("dl", numbers, class_="numbers") if numbers else None)
    foot = tag("p", f"Shardproof {__version__}, from {explanation.source}")
    return markup.document(explanation.module, joined(lead), list(_parts(explanation)), codec.plain(explanation), foot)


def _numbers(explanation: Explanation) -> Iterator[Markup]:
    """Yield the headline: what a device sends in a run, the memory that it needs, and the least time."""
    if explanation.placed is not None and (explanation.moving or not explanation.missing):
        yield item("a device sends", words.total(explanation.sent()), "in a run")
    if explanation.memory is not None and explanation.memory.peak is not None:
        yield item("memory of a device", bytes_text(explanation.memory.peak), "")
    if (estimate := explanation.estimate) is not None:
        yield item("a run takes at least", time_text(estimate.seconds), f"on {estimate.hardware}")


def fragment(explanation: Explanation) -> str:
    """Return the tables as a fragment that needs no external resource."""
    shown: list[Inside] = [tag("p", tag("b", explained.head(explanation)[0]))]
    shown += [part.inside for part in _parts(explanation)]
    return tag("div", shown, style="overflow-x: auto")


def _parts(explanation: Explanation) -> Iterator[Part]:
    yield Part("collectives", "Collectives", _collectives(explanation))
    if explanation.profile is not None:
        yield Part("measured", "Measured", _measured(explanation, explanation.profile))
    marked = annotated.source(explanation)
    if marked:
        yield Part("source", "Source", marked)
    rows = explained.lines(explanation)
    if rows:
        caption = "What each source line communicates, computes and moves on one device in a run"
        columns = explained.line_columns(explanation)
        yield Part(
            "lines",
            "Source lines",
            table(caption, Table(columns, rows, right=frozenset({1, 2, 3, 4, 5}))),
        )
    yield Part("memory", "Memory", _memory(explanation))
    if explanation.estimate is not None:
        estimate = {"": explanation.estimate}
        compared = estimates.compared(estimate)
        of_step = replace(compared, head=compared.head[1:], rows=[row[1:] for row in compared.rows])
        shown: list[Inside] = [table(estimates.head(estimate)[0], of_step)]
        shown += [tag("p", line) for line in estimates.beneath(estimate, complete=False)]
        shown.append(estimated.times(explanation.estimate))
        yield Part("estimate", "Estimate", shown)
    sentences = explained.notes(explanation)
    if sentences:
        yield Part("notes", "Notes", tag("ul", [tag("li", sentence) for sentence in sentences]))


def _collectives(explanation: Explanation) -> list[Inside]:
    rows = explained.collectives(explanation)
    shown: list[Inside] = [tag("p", line, class_="lead") for line in explained.totals(explanation)]
    if rows:
        caption = "The collectives and why they are there, those for which a device sends most first"
        beneath = ["\n".join(reasons) for reasons in explained.reasons(explanation, complete=True)]
        head = explained.COLLECTIVES
        kept = [k for k, name in enumerate(head) if name != "of" or any(row[k] != "–" for row in rows)]
        cells = [[row[k] for k in kept] for row in rows]
        right = frozenset(at for at, k in enumerate(kept) if head[k] in ("runs", "sends in all"))
        listed = Table([head[k] for k in kept], cells, right=right, beneath=beneath)
        shown.append(table(caption, listed, kind="collectives"))
    return shown


def _measured(explanation: Explanation, profile: Profile) -> list[Inside]:
    shown: list[Inside] = [tag("p", line) for line in measured.head(profile)]
    rows = explained.measured_collectives(explanation)
    if rows:
        caption = "The time of each collective in a run, the bandwidth that it reaches, and how long devices wait"
        shown.append(table(caption, Table(measured.COLLECTIVES, rows, right=frozenset(range(3, 9)))))
    if profile.by_device:
        each = grid(Table(measured.DEVICES, measured.devices(profile), right=frozenset(range(7))))
        shown.append(tag("details", tag("summary", "Device by device"), each))
    return shown


def _memory(explanation: Explanation) -> list[Inside]:
    shown: list[Inside] = [tag("p", line) for line in explained.memory(explanation)]
    if explanation.buffers:
        rows = [explained.buffer_row(buffer) for buffer in explanation.buffers]
        shown.append(table("The largest arrays when the most memory is in use", Table(explained.BUFFERS, rows)))
    if explanation.arguments:
        head = ("argument", "array on a device", "bytes", "layout", "reused by")
        rows = [
            (
                argument.name,
                f"{argument.dtype}{list(argument.shape)}",
                bytes_text(argument.bytes),
                "–" if argument.spec is None else spec_text(argument.spec),
                "–" if argument.output is None else f"result {{{argument.output}}}",
            )
            for argument in explanation.arguments
        ]
        listed: Markup = grid(Table(head, rows))
        shown.append(tag("details", tag("summary", "The arguments"), listed))
    return shown
