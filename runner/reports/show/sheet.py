"""Draws one sheet of the pictures of several runs: each distinct layout once, and the runs that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.base.words import devices_text
from runner.reports.record.model import Pictures
from runner.reports.show import figures, svg, table
from runner.reports.show.console import PLAIN
from runner.reports.show.pictures import ArrayPicture, MeshPicture, merge, read

MOST = 64
"""The most layouts on a sheet."""

Figures = list[tuple[MeshPicture, list[ArrayPicture]]]


def files(names: Mapping[int, str | None], pictures: Mapping[int, Pictures]) -> tuple[str, str] | None:
    """Return the sheet of a sweep as text and as SVG; None if no point has pictures.

    `names` are the points' experiments, `pictures` the pictures of the records, both by point number.
    """
    if not pictures:
        return None
    pictured, left = of_points({number: read(drawn) for number, drawn in pictures.items()})
    title = ", ".join(dict.fromkeys(str(names[number]) for number in pictures))
    summary = f"The layouts of {len(pictures)} point{'s' if len(pictures) > 1 else ''}."
    summary += f" {left} more layouts are in the points' own folders." if left else ""
    return f"{title}: {summary}\n\n{text(pictured, PLAIN)}", svg.sheet(pictured, title, summary)


def of_points(points: Mapping[int, tuple[MeshPicture, Sequence[ArrayPicture]]]) -> tuple[Figures, int]:
    """Return every mesh with its distinct layouts, labelled with point numbers; and how many were left out."""
    layouts_of: dict[MeshPicture, dict[ArrayPicture, list[tuple[int, ArrayPicture]]]] = {}
    for number, (mesh, arrays) in points.items():
        for picture in merge(arrays):
            layout = replace(picture, name="", role="array", programs=())
            layouts_of.setdefault(mesh, {}).setdefault(layout, []).append((number, picture))
    count = 0
    drawn: list[tuple[MeshPicture, list[ArrayPicture]]] = []
    for mesh, layouts in layouts_of.items():
        cards = [_card(members, len(points)) for members in layouts.values()]
        drawn.append((mesh, cards[: max(MOST - count, 0)]))
        count += len(cards)
    return [figure for figure in drawn if figure[1]], max(count - MOST, 0)


def _card(pictures: Sequence[tuple[int, ArrayPicture]], points: int) -> ArrayPicture:
    numbers = sorted({number for number, _ in pictures})
    label = f"point{'s' if len(numbers) > 1 else ''} {devices_text(numbers)}" if len(numbers) < points else "all points"
    names = ", ".join(dict.fromkeys(picture.name for _, picture in pictures))
    return replace(pictures[0][1], name=names, role="array", programs=(), captions=(label,))


def text(sheet: Figures, width: int) -> str:
    """Return the sheet as text of at most `width` columns."""
    lines = [line for mesh, arrays in sheet for line in figures.drawn(mesh, [mesh, *arrays], width)]
    return table.text(lines).rstrip("\n") + "\n"
