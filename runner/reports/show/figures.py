"""Chooses the pictures of a run and makes their lines for a terminal or a text file."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.experiment.showing import MESH, Show, names
from runner.reports.show import table
from runner.reports.show.console import PLAIN, wrapped
from runner.reports.show.pictures import ArrayPicture, MeshPicture, Picture, alike, figure_colours, merge, read
from runner.reports.show.table import Line
from runner.reports.show.terminal import beside, block

if TYPE_CHECKING:
    from runner.reports.record.model import Record

MOST = 48
"""The most lines of pictures that are shown by default."""


def shown(
    mesh: MeshPicture, arrays: Sequence[ArrayPicture], show: Show, width: int, most: int | None = MOST
) -> list[Line]:
    """Return the lines of the pictures that `show` asks for, at most `width` columns wide.

    `auto`: each distinct layout once, and in words those that do not fit into `most` lines, full copies first of all;
    `all`: every picture.
    """
    asked = names(show)
    if show == "none":
        return []
    if asked is not None:
        chosen = [picture for picture in merge(arrays) if picture.name in asked]
        return drawn(mesh, [*([mesh] if MESH in asked else []), *chosen], width)
    if show == "all":
        return drawn(mesh, [mesh, *merge(arrays)], width)
    layouts = alike(arrays)
    count = len(layouts)
    lines = drawn(mesh, [mesh, *layouts], width)
    if most is not None and len(lines) > most:
        layouts = sorted(layouts, key=lambda picture: picture.whole)
    while most is not None and count and len(lines) > most:
        count -= 1
        lines = drawn(mesh, [mesh, *layouts[:count]], width)
    left = layouts[count:]
    if not left:
        return lines
    notes = [f"{picture.name}  " + "  ".join(picture.lines()[:3]) for picture in left]
    notes.append("not drawn here, but in shardings.txt and shardings.svg; show=all draws every one")
    return [*lines, *([(part, "")] for line in notes for part in wrapped(line, width)), []]


def text(mesh: MeshPicture, arrays: Sequence[ArrayPicture], width: int) -> str:
    """Draw each distinct layout once, as text of at most `width` columns that ends in a newline."""
    return table.text(drawn(mesh, [mesh, *alike(arrays)], width)).rstrip("\n") + "\n"


def picture(record: Record) -> str | None:
    """Draw `shardings.txt`: the mesh, and each distinct layout of the arrays and outputs; None if there are none."""
    if record.pictures is None:
        return None
    title = f"{record.experiment}: {record.summary}" if record.summary else record.experiment
    return f"{title}\n\n{text(*read(record.pictures), PLAIN)}"


def drawn(mesh: MeshPicture, pictures: Sequence[Picture], width: int) -> list[Line]:
    """Draw the pictures of arrays on one mesh, side by side where they fit; an empty line follows each row."""
    paint = figure_colours(mesh, [picture for picture in pictures if isinstance(picture, ArrayPicture)])
    return beside([[*_block(picture, width, tuple(paint.items())), []] for picture in pictures], width)


@functools.lru_cache(maxsize=128)
def _block(picture: Picture, width: int, paint: tuple[tuple[int, str], ...]) -> Sequence[Line]:
    """Draw one picture; cached, since a run draws it for its folder and its log, and sweep points share pictures."""
    return tuple(block(picture, width, dict(paint)))
