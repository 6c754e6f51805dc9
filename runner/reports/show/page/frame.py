"""Makes the whole document of the sections of a page: one file without external resources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from runner.base.lazy import dataclass
from runner.base.printable import json_text
from runner.reports.show.page.markup import Inside, Markup, tag
from runner.reports.show.status import style_sheet

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
