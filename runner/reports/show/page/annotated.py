"""Makes the markup of annotated files for the page and for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base.words import bytes_text
from runner.compiled.explanation.model import Explanation
from runner.reports.show import annotated
from runner.reports.show.annotated import BACKWARD, SHORT, AnnotatedFile, AnnotatedLine, MarginEntry
from runner.reports.show.page.markup import Inside, Markup, scrolling, tag

_STYLE = Markup(
    "<style>.annotated{border-collapse:collapse;font:0.8125rem/1.45 ui-monospace,monospace;width:100%}"
    ".annotated td{padding:0 .6em;vertical-align:baseline;white-space:pre;border:0}"
    ".annotated td.n{text-align:right;opacity:.6}"
    ".annotated td.c{background:color-mix(in srgb,currentColor 5%,transparent);min-width:17em}"
    ".annotated summary span{margin-left:auto;padding-left:1em}"
    ".annotated td.s{min-width:5em;padding:0}.annotated td.s span{display:block;height:.7em;margin-top:.35em;"
    "background:currentColor;opacity:.35}"
    ".annotated td.l{opacity:.75}.annotated td.t{width:99%;white-space:pre-wrap}.annotated tr.fold td{opacity:.5}"
    ".annotated details{margin:0;white-space:normal;max-width:44em;font-family:inherit}"
    ".annotated summary{cursor:pointer;white-space:pre;width:auto;display:flex}"
    ".annotated summary::before{content:'▸ '}.annotated [open]>summary::before{content:'▾ '}"
    "@media(max-width:72rem){.annotated{font-size:.75rem}.annotated td{padding:0 .4em}.annotated td.c{min-width:23ch}"
    ".annotated td.s{min-width:2em}}"
    "</style>"
)


def source(explanation: Explanation) -> list[Inside]:
    """The annotated files; none if no line is known."""
    files = annotated.files(explanation)
    if not files:
        return []
    kinds = dict.fromkeys(entry.kind for entry in explanation.moving)
    named = ", ".join(f"{SHORT[kind]} {kind}" for kind in kinds if kind in SHORT)
    laid = (
        ", and the layout of what it computes by Shardy's plan, dimension by dimension" if explanation.layouts else ""
    )
    legend = (
        "For each line its collectives (runs × kind over axes), the bytes that a device sends for them, and its share "
        f"of the {annotated.share_of(explanation)}{laid}. {named}; {BACKWARD} backward. A collective opens to the "
        "calls that lead to it and its reason."
    )
    return [_STYLE, tag("p", legend), *(_file(file) for file in files)]


def _file(file: AnnotatedFile) -> Markup:
    title = file.name if file.here else f"{file.name} (not on this machine)"
    rows: list[Inside] = [_fold() if line is None else _line(line) for line in file.lines]
    table = tag("table", tag("tbody", rows), class_="annotated")
    return tag("figure", tag("figcaption", title), scrolling(table, title))


def _fold() -> Markup:
    return tag("tr", tag("td", "⋮", class_="n"), *[tag("td")] * 4, class_="fold")


def _line(line: AnnotatedLine) -> Markup:
    bar = tag("span", style=f"width:{100 * line.share:.1f}%") if line.share else None
    return tag(
        "tr",
        tag("td", str(line.number), class_="n"),
        tag("td", _collectives(line.entries), class_="c"),
        tag("td", bar, class_="s", title=f"{100 * line.share:.1f}%" if line.share else None),
        tag("td", _layout(line), class_="l"),
        tag("td", line.text or " ", class_="t"),
    )


def _layout(line: AnnotatedLine) -> Inside:
    if line.layout is None:
        return None
    title = f"Shardy plans {line.layout.spec} for {list(line.layout.shape)}"
    return tag("span", annotated.compact(line.layout), title=title)


def _collectives(entries: Sequence[MarginEntry]) -> list[Inside]:
    return [tag("details", tag("summary", entry.text, tag("span", _sent(entry))), _more(entry)) for entry in entries]


def _sent(entry: MarginEntry) -> str:
    return "?" if entry.sent is None else bytes_text(entry.sent)


def _more(entry: MarginEntry) -> list[Inside]:
    sentences = ["inserted by the compiler" if entry.inserted else "as written"]
    sentences += [f"called by {' ← '.join(path)}" for path in entry.callers]
    return [tag("div", sentence) for sentence in [*sentences, *entry.reasons]]
