"""The first line of a device whose values no line of the graph has, also among lines with several results."""

from __future__ import annotations

import numpy as np

from runner.checks import departing
from runner.reference.interpreter import interpret
from tests import harness

FACTORS = """
arrays: {A: {shape: [8, 2], spec: [x, null]}}
graph: {s: A * 2, f: qr(s), out: "f[1]"}
per_device: {s: A * 2, f: qr(s), r: "f[1]", out: "psum(r, 'x')"}
outputs: {out: []}
"""


def departure(text: str) -> str | None:
    experiment = harness.experiment(text)
    arrays = {"A": np.arange(16.0, dtype=np.float32).reshape(8, 2) ** 2}
    graph, per_device = (interpret(experiment, section, arrays).values for section in ("graph", "per_device"))
    of = departing.DeviceLines.of(experiment)
    return departing.departure(of, graph, per_device, ["out"], 60.0)


def test_what_is_made_of_the_factors_of_a_block_departs_not_the_factors() -> None:
    line = departure(FACTORS)
    assert line is not None
    assert line.startswith("per_device.out: ")
