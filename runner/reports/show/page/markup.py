"""Makes HTML: of text, escaped unless it is markup already, and of the sections of a page its document.

The document is one file without external resources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from runner.base.lazy import dataclass
from runner.base.printable import escape, json_text
from runner.base.untyped import is_sequence
from runner.reports.show.status import look, style_sheet
from runner.reports.show.table import StatusCell, Table, unbroken


class Markup(str):
    """Text that already is HTML or SVG."""

    __slots__ = ()


Inside: TypeAlias = "str | Iterable[Inside] | None"
"""The content of an element: text, which is escaped, markup, None, or several of these."""

_EMPTY = frozenset({"br", "input", "link", "meta"})

_SENTENCES = frozenset({"p", "li", "dd"})
"""The elements in whose text no number is parted from its unit. Cells are searched, and code is copied, as it is."""


def tag(name: str, /, *inside: Inside, **attributes: str | bool | float | None) -> Markup:
    """Return an element. `class_` and `for_` are the attributes without the underscore, `data_d` is `data-d`.

    An attribute that is None or False is left out; one that is True has no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Markup(f"<{name}{written}>")
    parts = [unbroken(each) if type(each) is str else each for each in inside] if name in _SENTENCES else inside
    return Markup(f"<{name}{written}>{joined(parts)}</{name}>")


def joined(inside: Inside) -> Markup:
    """Concatenate everything."""
    if inside is None:
        return Markup()
    if isinstance(inside, Markup):
        return inside
    if isinstance(inside, str):
        return Markup(escape(inside, quote=False))
    return Markup("".join(map(joined, inside)))


def _attribute(key: str, value: str | bool | float | None) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{escape(str(value))}"'


@dataclass(frozen=True)
class Number:
    """A numeric cell; a script sorts rows by `value`; `title` says why there is no number."""

    text: str
    value: float | None
    title: str | None = None


def table(
    caption: Inside,
    shown: Table[StatusCell | Number | Inside],
    *,
    kind: str | None = None,
    id: str | None = None,
    marks: Sequence[str] | None = None,
) -> Markup:
    """Return a table with a caption that scrolls on its own on narrow pages, by keyboard too.

    `marks` identify the rows for scripts.
    """
    whole = grid(shown, caption=tag("caption", caption), kind=kind, id=id, marks=marks)
    return scrolling(whole, _plain(caption))


def grid(
    shown: Table[StatusCell | Number | Inside],
    cell: Callable[[StatusCell], Inside] = lambda cell: badge(cell.status, cell.text) if cell.status else cell.text,
    *,
    caption: Inside = None,
    kind: str | None = None,
    id: str | None = None,
    marks: Sequence[str] | None = None,
) -> Markup:
    """Return a table element; the first cell of a row is its heading. `cell` renders a cell with a status."""

    def written(k: int, content: StatusCell | Number | Inside) -> Markup:
        style = "n" if k in shown.right else None
        inside: Inside = None
        number = why = None
        if isinstance(content, StatusCell):
            inside = cell(content)
        elif isinstance(content, Number):
            inside, number = content.text, "" if content.value is None else f"{content.value:g}"
            why = content.title
        else:
            inside = content
        return tag("td" if k else "th", inside, scope=None if k else "row", class_=style, data_v=number, title=why)

    titles = [
        tag("th", title, scope="col", class_="n" if k in shown.right else None) for k, title in enumerate(shown.head)
    ]
    rows: list[Markup] = []
    for i, row in enumerate(shown.rows):
        beneath = [tag("p", line) for line in (shown.beneath[i] if shown.beneath else "").split("\n") if line]
        cells = [written(k, content) for k, content in enumerate(row)]
        rows.append(tag("tr", cells, data_p=marks[i] if marks else None, class_="explained" if beneath else None))
        if beneath:
            rows.append(tag("tr", tag("td", beneath, colspan=str(len(row))), class_="why"))
    body = tag("tbody", Markup("\n".join(rows)))
    return tag("table", caption, tag("thead", tag("tr", titles)), body, id=id, class_=kind)


def badge(status: str, text: str | None = None, *, large: bool = False) -> Markup:
    """Return the status, or another text, with its mark in the colour of the status."""
    status = status.replace("_", " ")
    mark = tag("span", look(status).mark, aria_hidden="true")
    style = f"badge {status.replace(' ', '-')}" + (" large" if large else "")
    return tag("span", mark, " ", text or status, class_=style)


def scrolling(inside: Inside, label: str) -> Markup:
    """Return a container that scrolls if its content is wider than the page."""
    return tag("div", inside, class_="scroll", role="region", tabindex="0", aria_label=label)


def _plain(inside: Inside) -> str:
    """Return the text without markup, for a label."""
    if inside is None or isinstance(inside, Markup):
        return "table"
    return inside if isinstance(inside, str) else " ".join(map(_plain, inside)) if is_sequence(inside) else "table"


def breakable(text: str) -> Markup:
    """Return a path or a spec that may be wrapped after a slash, a dot or a comma, outside of a short `{0..11}`."""
    return Markup(re.sub(r"(\{[^{}]{,24}\})|(?<=[^\d\s])[/.,]", _with_break, escape(text)))


def _with_break(part: re.Match[str]) -> str:
    return part[0] if part[1] else f"{part[0]}<wbr>"


def code(text: str) -> Markup:
    """Return a piece of inline code."""
    return tag("code", text)


GENERATOR = '<meta name="generator" content="Shardproof">'
"""Identifies a page as one that the runner wrote."""


@dataclass(frozen=True)
class Part:
    """A section: the id for links, the heading, and the content."""

    id: str
    title: str
    inside: Inside


def document(title: str, head: Inside, parts: Sequence[Part], data: Any, foot: Inside) -> str:
    """Return the page: `head` above all `parts`, `data` embedded as JSON, `foot` below.

    Equal arguments give equal bytes.
    """
    links = [tag("li", tag("a", part.title, href=f"#{part.id}")) for part in parts]
    # Labelled by a text, not by the heading: a screen reader has no heading of a section that is not rendered yet.
    sections = [tag("section", tag("h2", part.title), part.inside, id=part.id, aria_label=part.title) for part in parts]
    body = [
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", head),
        tag("nav", tag("ul", links), aria_label="Sections"),
        tag("main", sections, id="content", tabindex="-1"),
        tag("footer", foot),
        _json(data),
        Markup(f"<script>{_file('script.js')}</script>"),
    ]
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f'{GENERATOR}\n<link rel="icon" href="data:,">\n',
            tag("title", title),
            f"\n<style>{_file('style.css')}{style_sheet()}\n</style>\n</head>\n<body>\n",
            "\n".join(body),
            "\n</body>\n</html>\n",
        )
    )


def _json(data: Any) -> Markup:
    """Return data as JSON in which no text can close the surrounding element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    text = json_text(text)
    return Markup(f'<script type="application/json" id="data">{text}</script>')


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
