"""A status in; how it is shown, on the terminal, in a notebook and on a page, out."""

from __future__ import annotations

from dataclasses import dataclass

from runner.show.table import Cell


@dataclass(frozen=True)
class Look:
    """Its mark, so that it is told by no colour alone, its style on the terminal, its colour in a notebook."""

    mark: str
    style: str
    colour: str | None = None


LOOKS = {
    "passed": Look("✓", "green", "#1a7f37"),
    "known": Look("≈", "yellow", "#9a6700"),
    "weak": Look("!", "bold yellow", "#9a6700"),
    "failed": Look("✗", "bold red", "#cf222e"),
    "invalid": Look("⊘", "bold yellow"),
    "error": Look("✗", "bold magenta", "#8250df"),
    "not run": Look("–", "dim"),
}
"""The statuses, from the best to the worst. A page has their colours from its style sheet, light and dark."""

ENDS = tuple(status for status in LOOKS if status != "not run")
"""Those that a run or a program may end with."""


def look(status: str) -> Look:
    """How a status is shown; what is none, without a style."""
    return LOOKS.get(status, Look("·", ""))


def status_cell(status: str, text: str | None = None) -> Cell:
    """A status as the cell of a table on the terminal, or another text in its style."""
    return text or status, look(status).style
