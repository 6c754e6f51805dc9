"""A program whose section differs from the graph is not passed, though it computes what its section says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import harness

PRODUCT = """
mesh: {axes: [x], shape: [2]}
arrays:
  A: {shape: [4, 6], spec: [null, x]}
  B: {shape: [6, 4], spec: [x]}
graph: {C: A @ B}
per_device: {C: "psum(A @ B, 'x')"}
outputs: {C: []}
"""


@pytest.mark.in_turn
def test_programs_of_the_wrong_section_fail(tmp_path: Path) -> None:
    result = harness.run(PRODUCT.replace("'x')\"", "'x') * 1.5\""), tmp_path)
    statuses = {name: program.status for name, program in result.record.programs.items()}
    assert statuses == {
        "auto": "passed", "constraint": "passed", "explicit": "passed", "derived": "passed",
        "shard_map": "failed", "vmap": "failed",
    }  # fmt: skip
    assert {checks.value.status for checks in result.checks.values()} == {"passed"}
    assert result.record.status == "failed"


def test_a_section_that_is_right_fails_no_program(tmp_path: Path) -> None:
    result = harness.run(PRODUCT, tmp_path)
    assert {program.status for program in result.record.programs.values()} == {"passed"}
