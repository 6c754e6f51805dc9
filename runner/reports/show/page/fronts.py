"""Draws a chart of two quantities of the Pareto fronts of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.reports.show.page import chart, drawing
from runner.reports.show.page.chart import Axis, Dot
from runner.reports.show.page.markup import Markup
from runner.reports.show.page.scale import scale
from runner.reports.show.plan_layouts import amount

_TITLES = {"bytes": "bytes that a device sends", "memory": "memory of a device", "time": "estimated time"}


def figure(id: str, fronts: Mapping[str, Sequence[Mapping[str, float]]]) -> Markup | None:
    """Return the chart of the fronts of one or several plans, by their names; None for fewer than two points.

    The axes are the first two quantities of the first point. A dot has the number of its plan on its front, after the
    name of the front if there are several.
    """
    points = [(name, number, costs) for name, front in fronts.items() for number, costs in enumerate(front, 1)]
    if len(points) < 2 or len(points[0][2]) < 2:
        return None
    across, up = list(points[0][2])[:2]
    names = list(fronts)
    dots: list[Dot] = []
    for name, number, costs in points:
        short = f"{name}{number}" if len(fronts) > 1 else str(number)
        values = f"{amount(costs[across], across)}, {amount(costs[up], up)}"
        dots.append(
            Dot(costs[across], costs[up], names.index(name), f"{short}: {values}", None, f"{id}-{short}", short, short)
        )
    x, y = _axis(across, [dot.x for dot in dots]), _axis(up, [dot.y for dot in dots])
    label = f"{x.title} against {y.title} of {len(dots)} plans"
    image = drawing.svg(chart.scatter(dots, x, y), id, label, [dot.name for dot in dots])
    return drawing.figure(image, label, None)


def _axis(kind: str, values: Sequence[float]) -> Axis:
    return Axis(_TITLES.get(kind, kind), lambda value: amount(value, kind) if value else "0", scale(values))
