"""Where a function first computes what its reference has not, from what the reference has."""

from __future__ import annotations

import numpy as np
import pytest

from runner.checks.diagnosis.unmatched import strange
from runner.checks.reference import PerDevice
from runner.graph.model import walk
from tests import harness

TEXT = """
arrays:
  A: {shape: [4, 4], spec: []}
  B: {shape: [4, 4], spec: []}
outputs: {out: []}
"""


@pytest.mark.parametrize(
    ("known", "first", "read"),
    [
        # The product is as in the reference, what is taken of it is not.
        ({"product": True, "kept": False, "out": False}, {"kept"}, {"product", "mask", "index", "out"}),
        # A line whose value nobody has, and that gives right values, is of another algorithm.
        ({"product": False, "kept": True, "out": True}, {"product"}, {"A", "B", "kept"}),
        ({"product": True, "kept": True, "out": True}, set[str](), set[str]()),
        # The reference computes none of its arrays, and nothing tells of what is made of a strange value.
        ({"A": False, "product": False, "kept": None, "out": False}, {"product"}, {"A", "B", "kept"}),
    ],
)
def test_the_first_strange_value_and_what_it_is_made_of_and_what_is_made_of_it(
    known: dict[str, bool | None], first: set[str], read: set[str]
) -> None:
    lines = {"product": "A @ B", "index": "arange(4)", "mask": "index > 1", "kept": "where(mask, product, 0.5)",
             "out": "sin(kept)"}  # fmt: skip
    graph = harness.experiment(TEXT, graph=lines).computed("graph")
    names = {result.number: str(e.source.line) for e in walk(graph) for result in e.results}
    names |= {value.number: value.name for value in graph.inputs}
    values: dict[int, list[PerDevice]] = {number: [[np.array(number)]] for number in names}

    def has(value: PerDevice) -> bool | None:
        return known.get(names[int(value[0])])

    strange_numbers, read_numbers = strange(graph, values, has)
    assert {names[number] for number in strange_numbers} == first
    assert {names[number] for number in read_numbers} == read
