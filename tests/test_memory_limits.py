"""Plans within memory limits: what a device needs as compiled for a TPU is within the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory_limits import LIMITS, limited


@pytest.mark.whole
@pytest.mark.parametrize("case", LIMITS)
def test_a_plan_within_a_memory_limit_is_within_it_as_compiled(case: str, tmp_path: Path) -> None:
    result = limited(case, tmp_path, limit=LIMITS[case])
    assert result.held, f"{result.compiled} bytes of {result.limit}"
