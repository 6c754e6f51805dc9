"""The points of a sweep in; a Vega-Lite specification with the same charts and the data in it out.

https://vega.github.io/vega-lite/ is what reads it: the editor, Altair, Observable, notebooks.
"""

from __future__ import annotations

from typing import Any

from runner.show.page import heat
from runner.show.page.measured import Sweep, flat, title
from runner.show.page.sweep import TIMES

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


def specification(name: str, sweep: Sweep) -> dict[str, Any]:
    """A chart of time against memory, a heat map and lines, as far as the rows have what they show."""
    table = flat(sweep)
    values = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    charts = [chart for chart in (_heat(sweep), _against(sweep)) if chart]
    return {
        "$schema": SCHEMA,
        "title": name,
        "data": {"values": values},
        "transform": [{"filter": {"field": "status", "oneOf": ["passed", "known"]}}],
        "vconcat": charts or [{"mark": "point", "encoding": {"x": _field("point", "nominal")}}],
    }


def _field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    # A dot in a name stands for a field inside another, unless it is escaped.
    return {"field": name.replace(".", "\\."), "type": kind, "title": title(name), **more}


def _tips(sweep: Sweep) -> list[dict[str, Any]]:
    return [_field(name, "nominal") for name in ("point", *sweep.keys, "program", "bytes_sent")]


def _heat(sweep: Sweep) -> dict[str, Any] | None:
    keys = heat.chosen(sweep)
    if keys is None or "bytes_sent" not in sweep.measures:
        return None
    down, across = keys
    return {
        "facet": {"column": _field("program", "nominal")},
        "spec": {
            "mark": "rect",
            "encoding": {
                "y": _field(down, "nominal", sort=None),
                "x": _field(across, "nominal", sort=None),
                "color": _field("bytes_sent", "quantitative", aggregate="min", scale={"scheme": "yellowgreenblue"}),
                "tooltip": [_field(name, "nominal") for name in (down, across)],
            },
        },
    }


def _against(sweep: Sweep) -> dict[str, Any] | None:
    time = next((name for name in TIMES if name in sweep.measures), None)
    if time is None or "memory_bytes" not in sweep.measures:
        return None
    return {
        "mark": {"type": "point", "filled": True},
        "width": 640,
        "height": 400,
        "encoding": {
            "x": _field(time, "quantitative", scale={"type": "log"}),
            "y": _field("memory_bytes", "quantitative", scale={"type": "log"}, axis={"format": "~s"}),
            "color": _field("program", "nominal"),
            "shape": _field("program", "nominal"),
            "tooltip": _tips(sweep),
        },
    }
