"""An output's dimensions have the names of the arrays' dimensions, even if two dims have the same size."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from runner.flow import dimensions
from tests.harness import experiment

SQUARE = """
dims: {I: 4, J: 4, K: 4, HALF: J // 2}
arrays:
  A: {shape: [I, J], spec: [null, x]}
  B: {shape: [J, K], spec: [x, null]}
"""


def names(text: str, **changes: Any) -> dimensions.Names:
    return dimensions.names(experiment(text, **changes))


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
    found = names(SQUARE, per_device={"C": "psum(A @ B, 'x')"}, outputs={"C": []})
    assert found == {"C": ("I", "K")}


def test_a_gradient_has_the_names_of_its_array() -> None:
    graph = {"loss": "sum(A @ B)"}
    found = names(SQUARE, graph=graph, outputs={"loss": []}, grad={"of": "loss", "wrt": ["B"]})
    assert found == {"loss": (), "grad.B": ("J", "K")}


def test_an_expression_that_holds_only_at_the_sizes_of_the_file_names_nothing() -> None:
    assert names(SQUARE, graph={"C": "reshape(A, (16,))"}, outputs={"C": []}) == {}
    assert names("arrays: {A: {shape: [4, 4], spec: []}}", graph={"C": "A * 2"}, outputs={"C": []}) == {}


def test_points_that_differ_only_in_layouts_share_the_names() -> None:
    given = {"graph": {"C": "A @ B"}, "constraints": {"C": ["x", None]}}
    found = names(SQUARE, **given, outputs={"C": ["x", None]})
    before = dimensions._named.cache_info()
    other = SQUARE.replace("[null, x]", "[[x, y]]")
    assert names(other, **given, outputs={"C": [None, "y"]}) == found == {"C": ("I", "K")}
    assert dimensions._named.cache_info() == before._replace(hits=before.hits + 1)
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
