"""A status in; the word for it with its mark, so that it is told by no colour alone, out."""

from __future__ import annotations

from runner.show.page.markup import Markup, tag
from runner.show.status import look


def badge(status: str, *, large: bool = False) -> Markup:
    """The status as a word with its mark, in its colour."""
    status = status.replace("_", " ")
    mark = tag("span", look(status).mark, aria_hidden="true")
    style = f"badge {status.replace(' ', '-')}" + (" large" if large else "")
    return tag("span", mark, " ", status, class_=style)
