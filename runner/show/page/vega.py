"""The points of a sweep in; a Vega-Lite specification with the same charts and the data out.

The format is https://vega.github.io/vega-lite/, which its editor, Altair, Observable and notebooks read.
"""

from __future__ import annotations

import json
from typing import Any

from runner.record.measures import ANSWERS
from runner.show.page import plots
from runner.show.page.measured import MeasuredSweep, flat, title
from runner.show.page.plots import Against, Growth, MeasureGrid
from runner.show.page.scale import Scale, scale

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


def specification(name: str, sweep: MeasuredSweep) -> dict[str, Any]:
    """Return a scatter plot of time against memory, a heat map and line charts, as far as the rows have the data."""
    table = flat(sweep)
    values = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    layouts, against = plots.layouts(sweep), plots.against(sweep)
    charts = [*([_heat(layouts)] if layouts else []), *([_against(sweep, against)] if against else [])]
    charts += [
        _growth(sweep, plot, measure)
        for plot in plots.growths(sweep)
        for measure in sweep.measures
        if any(row.measures.get(measure) is not None for row in sweep.passed)
    ]
    return {
        "$schema": SCHEMA,
        "title": name,
        "data": {"values": values},
        "transform": [{"filter": {"field": "status", "oneOf": list(ANSWERS)}}],
        "vconcat": charts or [{"mark": "point", "encoding": {"x": _field("point", "nominal")}}],
    }


def _field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    # A dot in a name stands for a field inside another, unless it is escaped.
    return {"field": name.replace(".", "\\."), "type": kind, "title": title(name), **more}


def _tips(sweep: MeasuredSweep) -> list[dict[str, Any]]:
    return [_field(name, "nominal") for name in ("point", *sweep.keys, "program", "bytes_sent")]


def _heat(plot: MeasureGrid) -> dict[str, Any]:
    return {
        "facet": {"column": _field("program", "nominal")},
        "spec": {
            "mark": "rect",
            "encoding": {
                "y": _field(plot.down, "nominal", sort=None),
                "x": _field(plot.across, "nominal", sort=None),
                "color": _field(plot.measure, "quantitative", aggregate="min", scale={"scheme": "yellowgreenblue"}),
                "tooltip": [_field(name, "nominal") for name in (plot.down, plot.across)],
            },
        },
    }


def _against(sweep: MeasuredSweep, plot: Against) -> dict[str, Any]:
    across, up = plot.scales
    return {
        "mark": {"type": "point", "filled": True},
        "width": 640,
        "height": 400,
        "encoding": {
            "x": _field(plot.x, "quantitative", scale=_scale(across)),
            "y": _field(plot.y, "quantitative", scale=_scale(up), axis={"format": "~s"}),
            "color": _field("program", "nominal"),
            "shape": _field("program", "nominal"),
            "tooltip": _tips(sweep),
        },
    }


def _growth(sweep: MeasuredSweep, plot: Growth, measure: str) -> dict[str, Any]:
    values = [value for row in sweep.passed if (value := row.measures.get(measure)) is not None]
    return {
        # Swept values are written as on the command line.
        "transform": [{"calculate": f"toNumber(datum[{json.dumps(plot.key)}])", "as": "size"}],
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "size", "type": "quantitative", "title": plot.key, "scale": _scale(plot.scale)},
            "y": _field(measure, "quantitative", aggregate="min", scale=_scale(scale(values))),
            "color": _field("program", "nominal"),
            "detail": [_field(name, "nominal") for name in plot.others],
        },
    }


def _scale(scale: Scale) -> dict[str, Any]:
    return {"type": "log" if scale.logarithmic else "linear"}
