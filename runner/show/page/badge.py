"""A status in; the word for it with its mark, so that it is told by no colour alone, out."""

from __future__ import annotations

from runner.show.page.markup import Markup, tag

MARKS = {
    "passed": "✓", "known": "≈", "weak": "!", "failed": "✗", "invalid": "⊘", "error": "✗", "not run": "–",
}  # fmt: skip
"""The sign of each status."""


def badge(status: str, *, large: bool = False) -> Markup:
    """The status as a word with its mark, in its colour."""
    status = status.replace("_", " ")
    mark = tag("span", MARKS.get(status, "·"), aria_hidden="true")
    style = f"badge {status.replace(' ', '-')}" + (" large" if large else "")
    return tag("span", mark, " ", status, class_=style)
