"""The multiplications of a convolution are counted as XLA counts them, without padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from runner.compiled.evidence import hlo, work
from runner.compiled.evidence.hlo import Module
from runner.compiled.evidence.nodes import Origins
from runner.experiment.reader import read
from tests.harness import config

CASES: dict[str, dict[str, Any]] = {
    "valid": {"window_strides": (1, 1), "padding": "VALID"},
    "same": {"window_strides": (1, 1), "padding": "SAME"},
    "strides": {"window_strides": (2, 3), "padding": "SAME"},
    "mostly padding": {"window_strides": (1, 1), "padding": ((6, 6), (3, 0))},
    "less than nothing": {"window_strides": (1, 1), "padding": ((-1, 2), (0, -2))},
    "dilated image": {"window_strides": (1, 1), "padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 3)},
    "strides over a dilated image": {"window_strides": (6, 1), "padding": ((6, 6), (0, 0)), "lhs_dilation": (7, 1)},
    "dilated window": {"window_strides": (2, 1), "padding": ((3, 1), (0, 4)), "rhs_dilation": (2, 2)},
    "groups": {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 2},
}


def counted(module: Module) -> float:
    experiment = read(config("arrays: {A: {shape: [4], spec: []}}", graph={"C": "A"}, outputs={"C": []}))
    counted = work.read(module, Origins(experiment, "graph"))
    assert counted is not None
    assert counted.unknown == []
    return sum(sum(line.flops.values()) for line in counted.lines)


@pytest.mark.parametrize("case", CASES)
def test_padding_is_not_counted_as_multiplied(case: str) -> None:
    given = CASES[case]
    features = 4 // given.get("feature_group_count", 1)
    image, window = jnp.ones((2, 4, 9, 8)), jnp.ones((6, features, 7, 3))
    function = jax.jit(lambda image, window: jax.lax.conv_general_dilated(image, window, **given))
    compiled = function.lower(image, window).compile()
    analysis: Any = compiled.cost_analysis()
    assert counted(hlo.read(str(compiled.as_text()))) == analysis["flops"]


BATCHED = """\
HloModule batched, entry_computation_layout={()->f32[8,4,4096,512]{3,2,1,0}}

ENTRY %main (a: f32[8,4,4096,128], b: f32[8,4,512,128]) -> f32[8,4,4096,512] {
  %a = f32[8,4,4096,128]{3,2,1,0} parameter(0)
  %b = f32[8,4,512,128]{3,2,1,0} parameter(1)
  ROOT %c = f32[8,4,4096,512]{3,2,1,0} convolution(%a, %b), WINDOW
}
"""


def test_a_product_that_is_batched_as_libtpu_writes_it() -> None:
    """Each of 8 × 4 matrices of 4,096 × 128 is multiplied only by its own matrix of 128 × 512."""
    window = "window={size=8x4 stride=7x3 lhs_dilate=8x4}, dim_labels=01bf_01oi->01bf"
    assert counted(hlo.read(BATCHED.replace("WINDOW", window))) == 2.0 * 8 * 4 * 4096 * 512 * 128
