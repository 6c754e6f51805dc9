"""What a diagnosis says of a wrong output if no edit mends the program: where it differs, and by which factor."""

from __future__ import annotations

import numpy as np

from runner.base.layout import Layout, Mesh, Spec
from runner.checks.output_differences import differences

WHOLE = np.arange(1.0, 9.0)
MESH = Mesh(("x",), (4,))
ROWS, COPIES = (Layout(MESH, WHOLE.shape, Spec.of(spec)) for spec in (["x"], []))


def blocks(value: np.ndarray) -> list[np.ndarray]:
    return [value[ROWS.index(position)].copy() for position in range(4)]


def test_equal_values_do_not_differ() -> None:
    assert differences("y", ROWS, [WHOLE], blocks(WHOLE)) is None
    assert differences("y", COPIES, [WHOLE], [WHOLE] * 4) is None


def test_a_factor_of_every_element_is_named() -> None:
    assert differences("y", ROWS, [WHOLE], blocks(4 * WHOLE)) == (
        "y is 4× the reference on every element of every device"
    )


def test_the_devices_and_the_block_that_differ_are_named() -> None:
    held = blocks(WHOLE)
    held[2][1] += 1.0
    assert differences("y", ROWS, [WHOLE], held) == (
        "y begins to differ from the reference on device 2, in [5:6] of [8]; the other devices agree with it"
    )


def test_a_block_of_another_shape_is_named_with_its_device() -> None:
    held = [WHOLE[:3], *blocks(WHOLE)[1:]]
    assert differences("y", ROWS, [WHOLE], held) == "y has shape [3] on device 0, not [2]"
