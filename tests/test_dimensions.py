"""An output's dimensions have the names of the arrays' dimensions, even if two dims have the same size."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from runner.app.flow import dimensions
from runner.base import dtypes
from runner.base.layout import Layout
from runner.checks.reference import interpret
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from tests.harness import experiment

SQUARE = """
dims: {I: 4, J: 4, K: 4, HALF: J // 2}
arrays:
  A: {shape: [I, J], spec: [null, x]}
  B: {shape: [J, K], spec: [x, null]}
"""


def names(text: str, **changes: Any) -> dimensions.Names:
    return named(experiment(text, **changes))


def named(given: Experiment) -> dimensions.Names:
    """Return the names of the outputs' dimensions; NumPy computes the shapes at the sizes of the file."""
    zeros = {a.name: np.broadcast_to(dtypes.dtype(a.dtype).numpy.type(0), a.shape) for a in given.arrays}
    section = "graph" if given.graph else "per_device"
    values = interpret(given, section, zeros, keep=given.results).values
    shapes = {f"grad.{array.name}": array.shape for array in given.arrays}
    for name, spec in given.outputs.items():
        if name in values:
            shape = np.shape(values[name][0])
            shapes[name] = shape if section == "graph" else Layout.of_shards(given.mesh, shape, spec).shape
    return dimensions.names(dimensions.fitting(given), given.dims, shapes)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("A @ B", ("I", "K")),
        ("(A @ B).T", ("K", "I")),
        ("einsum('ij,jk->ki', A, B)", ("K", "I")),
        ("sum(A, axis=0)", ("J",)),
        ("sum(A)", ()),
        ("A[:, :HALF]", ("I", "HALF")),
        ("concatenate([A, A], axis=1)", ("I", None)),
        ("A[1:]", (None, "J")),
        ("reshape(A, (I * J,))", (None,)),
        ("expand_dims(A, 0)", (None, "I", "J")),
    ],
)
def test_a_result_has_the_dimension_names_of_its_arrays(expression: str, expected: tuple[str | None, ...]) -> None:
    expected = tuple(None if name == "HALF" else name for name in expected)
    assert names(SQUARE, graph={"C": expression}, outputs={"C": []}) == {"C": expected}


def test_a_computed_dim_of_an_array_is_a_name_too() -> None:
    halved = SQUARE + "  H: {shape: [HALF], spec: []}\n"
    assert names(halved, graph={"C": "A[:, :HALF] * H"}, outputs={"C": []}) == {"C": ("I", "HALF")}


def test_without_a_graph_the_names_come_from_per_device() -> None:
    assert names(SQUARE, per_device={"C": "psum(A @ B, 'x')"}, outputs={"C": []}) == {"C": ("I", "K")}


def test_a_gradient_has_the_names_of_its_array() -> None:
    graph = {"loss": "sum(A @ B)"}
    of_gradient = names(SQUARE, graph=graph, outputs={"loss": []}, grad={"of": "loss", "wrt": ["B"]})
    assert of_gradient == {"loss": (), "grad.B": ("J", "K")}


def test_the_gradient_of_an_array_whose_size_is_an_expression_has_the_expression() -> None:
    given = {"graph": {"loss": "sum(t ** 2)"}, "outputs": {"loss": []}, "grad": {"of": "loss", "wrt": ["t"]}}
    assert names("dims: {B: 8}\narrays: {t: {shape: [4 * B], spec: [x]}}", **given) == {
        "loss": (),
        "grad.t": ("4 * B",),
    }


def test_an_expression_that_holds_only_at_the_sizes_of_the_file_names_nothing() -> None:
    assert names(SQUARE, graph={"C": "reshape(A, (16,))"}, outputs={"C": []}) == {}
    assert names("arrays: {A: {shape: [4, 4], spec: []}}", graph={"C": "A * 2"}, outputs={"C": []}) == {}


def test_a_size_that_only_equals_a_dim_has_no_name() -> None:
    """The sizes at which the names are found are none of the file's."""
    for size in dimensions._SIZES:
        text = f"dims: {{I: {size}, J: 4}}\narrays: {{A: {{shape: [I, J], spec: []}}}}"
        given = {"graph": {"C": f"zeros(({size},)) + A[0, 0]", "D": "A + 1"}, "outputs": {"C": [], "D": []}}
        assert names(text, **given) == {"C": (None,), "D": ("I", "J")}


def test_the_file_is_read_once_more_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[Any] = []
    monkeypatch.setattr(dimensions, "read", lambda definition: [sizes.append(definition["dims"]), read(definition)][1])
    text = "arrays: {A: {shape: [I, 3], spec: []}}"
    given = {"graph": {"C": "A * 7.25"}, "outputs": {"C": []}}
    assert names("dims: {I: 4}\n" + text, **given) == {"C": ("I", None)}
    assert sizes == [{"I": 7}]
    # Without dims there is nothing to find.
    assert names(text.replace("I", "4"), **given) == {}
    assert len(sizes) == 1


def test_points_that_differ_only_in_layouts_have_the_same_names() -> None:
    given = {"graph": {"C": "A @ B"}, "constraints": {"C": ["x", None]}}
    letters = names(SQUARE, **given, outputs={"C": ["x", None]})
    other = SQUARE.replace("[null, x]", "[[x, y]]")
    assert names(other, **given, outputs={"C": [None, "y"]}) == letters == {"C": ("I", "K")}
    assert names(SQUARE, graph={"C": "(A @ B).T"}, outputs={"C": []}) == {"C": ("K", "I")}


def test_arrays_of_other_sizes_than_dims_take_no_memory() -> None:
    text = """
    mesh: {axes: [x], shape: [2]}
    dims: {M: 8}
    arrays: {A: {shape: [M, 4], spec: [x]}, huge: {shape: [4000000, 4000000], dtype: int8}}
    graph: {C: "A * 2.0", D: "huge[0, :4]"}
    outputs: {C: [x], D: []}
    """
    tracemalloc.start()
    assert names(text)["C"] == ("M", None)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
