"""Texts in; HTML out, in which every text is escaped but what is markup already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from runner.printable import escape
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


def table(
    caption: Inside,
    head: Sequence[Inside],
    rows: Iterable[Sequence[Inside]],
    *,
    kind: str | None = None,
    right: frozenset[int] = frozenset(),
) -> Markup:
    """A table with a caption; the first cell of a row is its heading, columns in `right` are numbers.

    It scrolls by itself where the page is too narrow, by keyboard too.
    """

    def cell(k: int, inside: Inside) -> Markup:
        style = "n" if k in right else None
        if k == 0:
            return tag("th", inside, scope="row", class_=style)
        return tag("td", inside, class_=style)

    titles = [tag("th", title, scope="col", class_="n" if k in right else None) for k, title in enumerate(head)]
    body = [tag("tr", [cell(k, inside) for k, inside in enumerate(row)]) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", titles)), tag("tbody", body), class_=kind)
    return scrolling(whole, _plain(caption))


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
