"""Reads the value of `show`."""

from __future__ import annotations

from collections.abc import Sequence

WORDS = ("auto", "all", "none")
"""The words for as many pictures as fit, all, and none."""

MESH = "mesh"
"""The name of the mesh's picture in `show`."""

Show = str | Sequence[str]
"""One of the `WORDS`, a name, or names: of arrays and outputs, and `mesh`."""


def names(show: Show) -> tuple[str, ...] | None:
    """The names that `show` asks for; None if it is one of the words."""
    if isinstance(show, str):
        return None if show in WORDS else (show,)
    return tuple(show)
