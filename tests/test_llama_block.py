"""A training step in YAML against the same in plain JAX: not longer, no repetition, the same numbers."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import llama_block
from runner.experiment.config.folders import conf_folder
from tests import harness

YAML = conf_folder() / "experiment" / "llama_block_adamw.yaml"
PLAIN = Path(llama_block.__file__)


def lines(file: Path) -> list[str]:
    """Return the code lines of a file, without blank lines, comments, docstrings and the surrounding code."""
    text = file.read_text(encoding="utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)) if file.suffix == ".py" else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [line for number, line in numbered if line and not line.startswith("#") and number not in left_out]


def test_the_yaml_is_no_longer_than_the_plain_jax_of_one_of_its_programs() -> None:
    assert len(lines(YAML)) <= len(lines(PLAIN))


@pytest.mark.parametrize("name", ["llama_block_adamw", "llama_block_sequence_parallel", "latent_attention", "top2_moe"])
def test_no_line_is_repeated(name: str) -> None:
    counted = Counter(lines(YAML.with_name(f"{name}.yaml")))
    assert [line for line, count in counted.items() if count > 1] == []


@pytest.mark.whole
def test_plain_jax_equals_the_oracle(tmp_path: Path) -> None:
    experiment, _ = harness.shipped("llama_block_adamw", conf_folder())
    context = harness.consulted(experiment, tmp_path)
    arrays, mesh, specs = context.arrays, llama_block.make_mesh(), llama_block.SPECS
    state = [
        llama_block.placed(mesh, {name: arrays[f"{name}{moment}"] for name in specs}, specs)
        for moment in ("", "_m", "_v")
    ]
    batch = llama_block.placed(mesh, (arrays["x"], arrays["t"]), (llama_block.BATCH, llama_block.BATCH))
    loss, norm, *new = llama_block.program(mesh)(*state, *batch)
    results = {"loss": loss, "norm": norm}
    for moment, held in zip(("", "_m", "_v"), new, strict=True):
        results |= {f"new_{name}{moment}": held[name] for name in specs}
    assert set(results) == set(experiment.results)
    for name, value in results.items():
        expected = np.asarray(context.oracle("graph").values[name][0])
        # Products are in bfloat16, which has eight bits.
        size = float(np.sqrt(np.mean(expected**2)))
        np.testing.assert_allclose(np.asarray(value), expected, atol=0.05 * size, rtol=0, err_msg=name)
