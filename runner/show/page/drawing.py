"""A drawing in; the SVG element that a page shows of it, with a name and a description for who cannot see it, out."""

from __future__ import annotations

from collections.abc import Sequence

from runner.show.page.markup import Inside, Markup, scrolling, tag
from runner.show.shapes import Box, number

_LEAST = 0.6
"""A drawing is scaled to the page, but not below this: then it scrolls, since its text could not be read."""


def svg(box: Box, id: str, title: str, words: Sequence[str], *, interactive: bool = False) -> Markup:
    """The drawing; `id` is no other element's. Where it is `interactive`, it has links of its own."""
    width, height = number(box.width + 2), number(box.height + 2)
    inside = [
        tag("title", title, id=f"{id}-t"),
        tag("desc", "; ".join(words), id=f"{id}-d"),
        Markup(f'<g transform="translate(1 1)">{box.body}</g>'),
    ]
    return tag(
        "svg", inside, class_="sp", viewBox=f"0 0 {width} {height}", width=width, height=height,
        role="group" if interactive else "img", style=f"min-width:{number(_LEAST * box.width)}px",
        aria_labelledby=f"{id}-t {id}-d",
    )  # fmt: skip


def figure(
    image: Markup, title: str, caption: Inside, *, data_name: str | None = None, kind: str | None = None
) -> Markup:
    """The image under its caption. It is scaled to the page, and scrolls where that would be too small."""
    return tag(
        "figure",
        tag("figcaption", caption) if caption else None,
        scrolling(image, title),
        data_name=data_name,
        class_=kind,
    )
