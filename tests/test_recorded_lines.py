"""The lines of a record: what each of them reads, and which of these values a collective sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import run


@pytest.mark.in_turn
def test_the_lines_of_a_record_say_whose_values_they_read(tmp_path: Path) -> None:
    text = """
    arrays:
      x: {shape: [8], spec: [x]}
      w: {shape: [4, 8], spec: [null, x]}
    graph:
      layers: {repeat: 4, carry: {h: x}, body: {s: "sum(w[i])", h: h * s}}
      y: layers.h + x
    per_device:
      layers: {repeat: 4, carry: {h: x}, body: {s: "psum(sum(w[i]), 'x')", h: h * s}}
      y: layers.h + pmean(x, 'y')
    outputs: {y: [x]}
    """
    lines = run(text, tmp_path, program="all").record.lines
    assert {line.path: line.reads for line in lines["per_device"]} == {
        "layers": [],
        "layers/carry/h": ["x"],
        "layers/body/s": ["w"],
        "layers/body/h": ["layers/carry/h", "layers/body/s"],
        "y": ["layers/body/h", "x"],
    }
    by_path = {line.path: line for line in lines["per_device"]}
    assert (by_path["layers"].steps, by_path["layers"].expression) == (4, None)
    assert by_path["y"].sent == ["x"]
    assert by_path["layers/body/s"].sent == [], "what is sent is the sum, not w"
    assert (by_path["y"].shape, by_path["y"].dtype) == ([4], "float32")
    assert [line.shape for line in lines["graph"] if line.path == "y"] == [[8]]
    assert "layers/body/s" in {line.path for line in lines["derived"]}


def test_an_operation_is_not_the_line_of_its_name(tmp_path: Path) -> None:
    text = """
    arrays: {x: {shape: [8]}}
    graph: {mean: "mean(x)", loss: "mean((x - mean) ** 2)", total: sum(x)}
    outputs: {loss: [], total: []}
    """
    (mean, loss, total) = run(text, tmp_path, program="auto").record.lines["graph"]
    assert [line.reads for line in (mean, loss, total)] == [["x"], ["x", "mean"], ["x"]]
