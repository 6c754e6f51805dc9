"""What a diagnosis says of a wrong output if no edit mends the program: where it differs, and by which factor."""

from __future__ import annotations

import numpy as np

from runner.base.layout import Layout, Mesh, Spec
from runner.checks.output_differences import differences, sentences

WHOLE = np.arange(1.0, 9.0)
MESH = Mesh(("x",), (4,))
ROWS, COPIES = (Layout(MESH, WHOLE.shape, Spec.of(spec)) for spec in (["x"], []))


def blocks(value: np.ndarray) -> list[np.ndarray]:
    return [value[ROWS.index(position)].copy() for position in range(4)]


def test_equal_values_do_not_differ() -> None:
    assert differences(ROWS, [WHOLE], blocks(WHOLE)) is None
    assert differences(COPIES, [WHOLE], [WHOLE] * 4) is None


def test_a_factor_of_every_element_is_named() -> None:
    assert differences(ROWS, [WHOLE], blocks(4 * WHOLE)) == ("is 4× the reference on every element of every device")


def test_the_devices_and_the_block_that_differ_are_named() -> None:
    held = blocks(WHOLE)
    held[2][1] += 1.0
    assert differences(ROWS, [WHOLE], held) == (
        "begins to differ from the reference on device 2, in [5:6] of [8]; the other devices agree with it"
    )


def test_a_block_of_another_shape_is_named_with_its_device() -> None:
    held = [WHOLE[:3], *blocks(WHOLE)[1:]]
    assert differences(ROWS, [WHOLE], held) == "has shape [3] on device 0, not [2]"


def test_fewer_than_four_elements_are_off_by_a_number_of_devices_or_by_no_factor() -> None:
    loss = np.array(3.0)
    scalar = Layout(MESH, (), Spec())
    assert differences(scalar, [loss], [loss * 1.002] * 4) == "begins to differ from the reference on devices 0-3"
    for factor in (4, 2, 0.25):
        text = f"is {factor:.4g}× the reference on every element of every device"
        assert differences(scalar, [loss], [loss * factor] * 4) == text


def test_what_is_said_of_several_outputs_is_said_once() -> None:
    predicates = {f"new/{layer}/{name}": "differs" for layer in range(5) for name in "qk"} | {"loss": "is 4×"}
    assert sentences(predicates) == ["new/{0..4}/{q,k}: each differs", "loss is 4×"]
    assert sentences({f"r{n}": str(n) for n in range(9)})[5:] == ["r5 5", "3 more results differ"]
