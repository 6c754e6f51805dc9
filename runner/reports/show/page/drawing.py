"""Makes the inline SVG element of a drawing, with a name and a description for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from runner.reports.show.page.markup import Inside, Markup, scrolling, tag
from runner.reports.show.shapes import Box, number

_LEAST = 0.6
"""The least scale of a drawing on the page: below it the text would be unreadable, so the drawing scrolls."""


def svg(box: Box, id: str, title: str, words: Sequence[str], *, interactive: bool = False) -> Markup:
    """Return the drawing as an element; `id` is unique in the page. If `interactive`, it contains links."""
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
    """Return the image above its caption. It is scaled to the page, and scrolls if it would become too small."""
    return tag(
        "figure",
        tag("figcaption", caption) if caption else None,
        scrolling(image, title),
        data_name=data_name,
        class_=kind,
    )
