"""A command that ends before it has results prints one sentence, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.app.flow import verification
from runner.experiment.reader import read
from tests import harness
from tests.faults import GOOD
from tests.server import command


@pytest.mark.parametrize("module", ["runner derive", "runner mutate"])
def test_a_worker_that_ends_before_the_types_is_one_sentence(module: str, tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(GOOD, encoding="utf-8")
    given = ("--config-dir", "conf", "+experiment=mine", "hydra.run.dir=run", "timeout=0.01")
    done = command(tmp_path, *given, module=module, limit=60)
    assert done.returncode == 3
    assert done.stderr.startswith("no result after the timeout of 0.01 s, while ")
    assert done.stderr.count("\n") == 1


TEXT = """
dims: {I: 64, J: 64, K: 64}
verify_dims: {I: 8}
arrays:
  A: {shape: [I, J], spec: [null, x]}
  B: {shape: [J, K], spec: [x, null]}
graph: {C: A @ B}
outputs: {C: [null, null]}
target: {topology: "v5e:2x2"}
"""


@pytest.mark.parametrize("key", ["expect", "hardware", "grad", "constraints", "test", "both", "functions", "require"])
def test_a_null_key_counts_as_absent_in_a_verification(key: str) -> None:
    config = {**harness.config(TEXT), key: None}
    smaller = verification.smaller(read(config))
    assert not isinstance(smaller, str)
    assert smaller.dims == {"I": 8, "J": 64, "K": 64}
