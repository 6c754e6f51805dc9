"""A drawn collective shows whose values each device holds afterwards, and which: the drawing matches the values."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from runner.checks import origins
from runner.checks.reference import interpret
from runner.graph.language.lines import expressions
from runner.reports.record.model import TracedCollective, TracedDevice, TracedNode, TracedValue
from runner.reports.show import exchange
from tests.harness import experiment

SHAPE = (4, 4)
AXES = """
mesh: {axes: [x, y], shape: [2, 2]}
arrays: {A: {shape: [8, 8], init: "arange(64) % 37", spec: [x, y]}}
per_device: {C: "CALL"}
outputs: {C: []}
"""
REDUCE = {"+": np.add, "max": np.maximum, "min": np.minimum}

CALLS = [
    "psum(A, 'x')",
    "psum(A, ('x', 'y'))",
    "pmax(A, 'y')",
    "pmin(A, 'y')",
    "pmean(A, 'x')",
    "all_gather(A, 'x')",
    "all_gather(A, 'y', axis=1, tiled=True)",
    "all_gather(A, ('y', 'x'), tiled=True)",
    "psum_scatter(A, 'x', tiled=True)",
    "psum_scatter(A, 'y', scatter_dimension=1, tiled=True)",
    "all_to_all(A, 'x', 0, 1, tiled=True)",
    "all_to_all(A, 'y', 1, 0, tiled=True)",
    "ppermute(A, 'x', [[0, 1]])",
    "ppermute(A, 'x', shift=1)",
    "pshuffle(A, 'y', [1, 0])",
]


def blocks_of(call: str) -> tuple[list[np.ndarray], list[np.ndarray], str, list[list[origins.Block]]]:
    """Return what every device holds before and after, the operation, and the blocks that the drawing shows."""
    checked = experiment(AXES.replace("CALL", call), check_vma=False)
    whole = (np.arange(64) % 37).reshape(8, 8).astype(np.float32)
    values = interpret(checked, "per_device", {"A": whole}).values
    ((line, expression), *_) = expressions(checked.per_device)
    operation = call.split("(")[0]
    blocks = origins.of_collective(checked, line, expression.term, operation, "A", values)
    assert blocks is not None
    return [np.asarray(v) for v in values["A"]], [np.asarray(v) for v in values["C"]], operation, blocks


@pytest.mark.parametrize("call", CALLS)
def test_each_block_has_the_values_of_its_origin(call: str) -> None:
    before, after, operation, device_blocks = blocks_of(call)
    combined = origins.reduction(operation)
    for device, blocks in enumerate(device_blocks):
        covered = np.zeros(after[device].shape, int)
        for block in blocks:
            index = tuple(slice(*bounds) for bounds in block.ranges)
            covered[index] += 1
            held = after[device][index]
            if not block.positions:
                assert not held.any()
                continue
            parts = [slice(*bounds) for bounds in block.part or ((0, n) for n in SHAPE)]
            taken = [before[position][tuple(parts)] for position in block.positions]
            made = taken[0]
            if combined == "mean":
                made = np.mean(taken, axis=0)
            elif combined is not None:
                made = functools.reduce(REDUCE[combined], taken)
            else:
                assert len(taken) == 1
            np.testing.assert_array_equal(held.reshape(made.shape), made)
        assert (covered == 1).all()


def test_many_devices_or_blocks_have_no_origins() -> None:
    call = "psum(A, 'x')"
    many = experiment(AXES.replace("CALL", call).replace("[2, 2]", "[4, 8]"))
    ((line, expression), *_) = expressions(many.per_device)
    assert origins.of_collective(many, line, expression.term, "psum", "A", {"A": [np.zeros((2, 1))] * 32}) is None
    assert len(origins._blocks(np.arange(4) % 2, np.arange(4), (4,), 2)) == 4


def node_of(call: str) -> TracedNode:
    """Return the collective as in a trace."""
    before, after, operation, blocks = blocks_of(call)
    axes = ["x", "y"] if "('" in call else [call.split("'")[1]]
    return TracedNode(
        name="C",
        shape=list(after[0].shape),
        dtype="float32",
        values=[value.tolist() for value in after],
        expression=call,
        collective=TracedCollective(operation=operation, axes=axes),
        before=TracedValue(name="A", shape=list(SHAPE), dtype="float32", values=[value.tolist() for value in before]),
        origins=origins.recorded(blocks, operation, [4, 5, 6, 7]),
        agrees=None,
        max_abs_error=None,
        devices=[],
        expected=None,
    )


DEVICES = [TracedDevice(id=4 + k, coordinates=[k // 2, k % 2]) for k in range(4)]


def drawing(call: str, width: int = 100) -> list[str]:
    drawn = exchange.read(node_of(call), DEVICES, ("x", "y"))
    assert drawn is not None
    return ["".join(text for text, _ in line).rstrip() for line in exchange.lines(drawn, "cpu", width)]


def test_a_sum_names_all_summands_and_a_part_its_range_in_the_operand() -> None:
    assert drawing("psum_scatter(A, 'x', tiled=True)")[:5] == [
        "over x, a device sends 32 B, each block named after the device that it comes from",
        "                 before     after",
        "                 ┌───┐     ┌───────────────┐",
        "CPU 4  x=0, y=0  │ 4 │  →  │ (4+6)[0:2, :] │",
        "                 ├───┤     ├───────────────┤",
    ]
    assert "CPU 5  x=0, y=1  │ 5 │  →  │ max 4,5 │" in drawing("pmax(A, 'y')")
    assert "CPU 5  x=0, y=1  │ 5 │  →  │ mean 5,7 │" in drawing("pmean(A, 'x')")
    assert "CPU 4  x=0, y=0  │ 4 │  →  │ zeros │" in drawing("ppermute(A, 'x', [[0, 1]])")


def test_rows_of_blocks_are_drawn_below_each_other() -> None:
    assert drawing("all_gather(A, 'x', tiled=True)")[2:7] == [
        "                 ┌───┐     ┌───┐",
        "                 │   │     │ 4 │",
        "                 │   │     ├───┤",
        "CPU 4  x=0, y=0  │ 4 │  →  │ 6 │",
        "                 ├───┤     ├───┤",
    ]


def test_where_the_terminal_is_too_narrow_the_image_is_named() -> None:
    words = " ".join(drawing("psum(A, 'x')", 20)).split()
    assert " ".join(words) == "over x, a device sends 64 B: too large to be drawn here; collectives.svg has the picture"
    assert max(map(len, drawing("psum(A, 'x')", 40))) <= 40


def test_rows_that_a_ragged_collective_keeps_are_the_outputs() -> None:
    call = "ragged_all_to_all(A, A * 2, asarray([0, 0]), asarray([0, 1]), asarray([0, 0]), here, axis_name='x')"
    node = replace(node_of("ppermute(A, 'x', [[0, 1]])"), expression=call)
    node = replace(node, collective=TracedCollective(operation="ragged_all_to_all", axes=["x"]))
    drawn = exchange.read(node, DEVICES, ("x", "y"))
    assert drawn is not None
    assert drawn.sent is None
    assert {drawn.label(origin) for row in drawn.devices[0].after.origins for origin in row} == {"output"}


def test_a_line_without_a_collective_is_not_drawn() -> None:
    node = replace(node_of("psum(A, 'x')"), collective=None, before=None, origins=None)
    assert exchange.read(node, DEVICES, ("x", "y")) is None


@pytest.mark.parametrize("call", ["all_gather(A, 'x', tiled=True)", "psum(A, 'x')", "ppermute(A, 'x', [[0, 1]])"])
def test_the_image_has_the_values_in_the_colours_of_their_devices(call: str) -> None:
    drawn = exchange.read(node_of(call), DEVICES, ("x", "y"))
    assert drawn is not None
    image = exchange.draw([drawn], "cpu", "<T>", "what & why")
    tree = ElementTree.fromstring(image)
    svg = "{http://www.w3.org/2000/svg}"
    assert tree.findtext(f"{svg}title") == "<T>"
    cells = [group for group in tree.iter(f"{svg}g") if group.find(f"{svg}title") is not None]
    shown = [(cell.findtext(f"{svg}title"), cell.findtext(f"{svg}text")) for cell in cells]
    before, after, *_ = blocks_of(call)
    expected = []
    for device in range(4):
        expected += [f"{value:.4g}" for value in before[device].ravel()]
        expected += [f"{value:.4g}" for value in after[device].ravel()]
    assert [text for _, text in shown] == expected
    fills = {
        cell.findtext(f"{svg}title"): rect.get("fill") for cell in cells for rect in cell.findall(f"{svg}rect")[:1]
    }
    assert len({fills[str(device)] for device in (4, 5, 6, 7)}) == 4
    assert not re.search(r"href|url\(|style=", image)
