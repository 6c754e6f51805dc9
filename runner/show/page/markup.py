"""Texts in; HTML out, in which every text is escaped but what is markup already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runner.printable import escape
from runner.show.status import look
from runner.show.table import Cell, Table
from runner.untyped import is_sequence


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


Inside: TypeAlias = "str | Iterable[Inside] | None"
"""What an element may have inside: texts, which are escaped, markup, nothing, and several of these."""

_EMPTY = frozenset({"br", "input", "link", "meta"})


def tag(name: str, /, *inside: Inside, **attributes: str | bool | float | None) -> Markup:
    """An element. `class_` and `for_` are the attributes of these names, `data_d` is `data-d`.

    An attribute that is None or false is left out; one that is true has no value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(inside)}</{name}>")


def joined(inside: Inside) -> Markup:
    """Everything, one after the other."""
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
    """The cell of a number, with its `value`, by which a script sorts the rows; `title` says why there is none."""

    text: str
    value: float | None
    title: str | None = None


def table(
    caption: Inside,
    shown: Table[Cell | Number | Inside],
    *,
    kind: str | None = None,
    id: str | None = None,
    marks: Sequence[str] | None = None,
) -> Markup:
    """A table with a caption, which scrolls by itself where the page is too narrow, by keyboard too.

    `marks` are texts by which a script finds each row.
    """
    whole = grid(shown, caption=tag("caption", caption), kind=kind, id=id, marks=marks)
    return scrolling(whole, _plain(caption))


def grid(
    shown: Table[Cell | Number | Inside],
    cell: Callable[[Cell], Inside] = lambda cell: badge(cell.status, cell.text) if cell.status else cell.text,
    *,
    caption: Inside = None,
    kind: str | None = None,
    id: str | None = None,
    marks: Sequence[str] | None = None,
) -> Markup:
    """The element of a table; the first cell of a row is its heading. `cell` writes a text that may have a status."""

    def written(k: int, content: Cell | Number | Inside) -> Markup:
        style = "n" if k in shown.right else None
        inside: Inside = None
        number = why = None
        if isinstance(content, Cell):
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
    rows = [
        tag("tr", [written(k, content) for k, content in enumerate(row)], data_p=marks[i] if marks else None)
        for i, row in enumerate(shown.rows)
    ]
    body = tag("tbody", Markup("\n".join(rows)))
    return tag("table", caption, tag("thead", tag("tr", titles)), body, id=id, class_=kind)


def badge(status: str, text: str | None = None, *, large: bool = False) -> Markup:
    """The status as a word, or another text, with its mark, in its colour."""
    status = status.replace("_", " ")
    mark = tag("span", look(status).mark, aria_hidden="true")
    style = f"badge {status.replace(' ', '-')}" + (" large" if large else "")
    return tag("span", mark, " ", text or status, class_=style)


def scrolling(inside: Inside, label: str) -> Markup:
    """What may be wider than the page."""
    return tag("div", inside, class_="scroll", role="region", tabindex="0", aria_label=label)


def _plain(inside: Inside) -> str:
    """The texts of something without its markup, for a label."""
    if inside is None or isinstance(inside, Markup):
        return "table"
    return inside if isinstance(inside, str) else " ".join(map(_plain, inside)) if is_sequence(inside) else "table"


def code(text: str) -> Markup:
    """A piece of code in a sentence."""
    return tag("code", text)
