"""Comprehensions over ranges, written out while the file is read; `...` in an index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.graph.language import printing
from runner.graph.language.lines import expressions
from tests import harness

RING = """
mesh: {axes: [x], shape: [4]}
dims: {n: 4}
arrays: {v: {shape: [8], init: "arange(8)", spec: [x]}}
functions:
  turned(v, by): "ppermute(v, 'x', perm=[(i, (i + by) % axis_size('x')) for i in range(axis_size('x'))])"
per_device:
  a: ppermute(v, 'x', [(i, (i + 1) % n) for i in range(n)])
  b: turned(v, 2)
outputs: {a: [x], b: [x]}
"""


def test_a_ring_is_written_as_in_jax(tmp_path: Path) -> None:
    outcome = harness.run(RING, tmp_path)
    assert outcome.failures() == []
    for program in ("shard_map", "vmap"):
        np.testing.assert_array_equal(outcome.value(program, "a"), np.roll(np.arange(8), 2))
        np.testing.assert_array_equal(outcome.value(program, "b"), np.roll(np.arange(8), 4))


def test_a_comprehension_is_replaced_by_its_elements() -> None:
    (_, *_), (_, expression), *_ = expressions(harness.experiment(RING).per_device)
    assert printing.text(expression.term) == "ppermute(v, 'x', perm=((0, 2), (1, 3), (2, 0), (3, 1)))"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("range(n)]", "range(0, n, 0)]", "the step of a range cannot be 0"),
        ("range(n)]", "range(9 ** 9)]", "it has 387,420,489 elements; the limit is 100,000"),
        ("(i + 1) % n)", "(i + 1) % m)", "no dim 'm'; the dims are: n, i"),
        ("range(n)]", "range(v)]", "no dim 'v'; the dims are: n"),
        ("(i + 1) % n)", "(i + 1) / n)", "sizes are integers: use // instead of /"),
    ],
)
def test_a_comprehension_over_arrays_is_refused(old: str, new: str, message: str) -> None:
    assert RING.count(old) == 1
    with pytest.raises(InvalidExperiment) as error:
        harness.experiment(RING.replace(old, new))
    assert error.value.fault.message == message
    assert error.value.fault.key == ("per_device", "a")


@pytest.mark.in_turn
def test_dots_in_an_index_in_every_program(tmp_path: Path) -> None:
    text = """
    arrays: {t: {shape: [4, 2, 8], init: "arange(64)", spec: [x, null, y]}}
    both:
      last: t[..., 1, :]
      first: t[:, 0, ...]
      all_of_it: t[...]
    graph: {column: "t[..., 3]", row: "t[1, ...]"}
    per_device: {column: "all_gather(t, 'y', axis=2, tiled=True, to='invarying')[..., 3]",
                 row: "all_gather(t, 'x', tiled=True, to='invarying')[1, ...]"}
    outputs: {last: [x, y], first: [x, y], all_of_it: [x, null, y], column: [x], row: [null, y]}
    """
    outcome = harness.run(text, tmp_path)
    assert outcome.failures() == []
    assert len(outcome.runs) == 6
    t = np.arange(64).reshape(4, 2, 8)
    for program in outcome.runs:
        np.testing.assert_array_equal(outcome.value(program, "column"), t[..., 3])
        np.testing.assert_array_equal(outcome.value(program, "row"), t[1, ...])
