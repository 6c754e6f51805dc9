"""Sizes: expressions of integers and dims, evaluated before JAX is imported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.layout import Mesh
from runner.graph.language.static import evaluate
from runner.graph.language.syntax import SyntaxFault, parse

DIMS = {"I": 4, "J": 6}
MESH = Mesh(("x", "y"), (2, 4))

VALUES = {
    "I": 4,
    "I * J + 1": 25,
    "-I": -4,
    "J // I": 1,
    "-J // I": -2,
    "J % I": 2,
    "2 ** I": 16,
    "(I + J) * 2": 20,
    "axis_size('x')": 2,
    "axis_size(('x', 'y')) - 1": 7,
    "axis_size(['y'])": 4,
}

FAULTS = {
    "K": ("no dim 'K'; the dims are: I, J", "K"),
    "I / 2": ("sizes are integers: use // instead of /", "I / 2"),
    "I // (J - 6)": ("division by zero", "I // (J - 6)"),
    "I % 0": ("division by zero", "I % 0"),
    "2 ** -1": ("sizes are integers: the exponent is at least 0", "2 ** -1"),
    "2 ** 1000": ("it makes an integer of about 2,000 bits, and no dtype has more than 64", "2 ** 1000"),
    "1.5": ("a size is made of integers, dims and + - * // % ** << >> & | only", "1.5"),
    "True": ("a size is made of integers, dims and + - * // % ** << >> & | only", "True"),
    "'I'": ("a size is made of integers, dims and + - * // % ** << >> & | only", "'I'"),
    "I + sum(J)": ("a size is made of integers, dims and + - * // % ** << >> & | only", "sum(J)"),
    "I[0]": ("a size is made of integers, dims and + - * // % ** << >> & | only", "I[0]"),
    "axis_size('z')": ("mesh axis 'z' does not exist; the mesh has x, y", "'z'"),
    "axis_size(I)": ("axis_size takes the name of a mesh axis, in quotes", "I"),
    "axis_index('x')": ("a size is made of integers, dims and + - * // % ** << >> & | only", "axis_index('x')"),
}


@pytest.mark.parametrize("text", VALUES)
def test_an_expression_of_dims_has_its_size(text: str) -> None:
    assert evaluate(parse(text), DIMS, MESH) == VALUES[text]


@pytest.mark.parametrize("text", FAULTS)
def test_an_expression_that_is_no_size_is_refused_at_its_place(text: str) -> None:
    message, part = FAULTS[text]
    with pytest.raises(SyntaxFault) as caught:
        evaluate(parse(text), DIMS, MESH)
    assert caught.value.message == message
    assert text[caught.value.start : caught.value.end] == part


def test_without_a_mesh_there_are_no_axes() -> None:
    with pytest.raises(SyntaxFault, match="a size is made of"):
        evaluate(parse("axis_size('x')"), DIMS)


@given(
    st.recursive(
        st.integers(0, 9).map(str) | st.sampled_from(["I", "J"]),
        lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        max_leaves=12,
    )
)
def test_sizes_are_pythons_integers(text: str) -> None:
    try:
        expected = eval(text, {}, DIMS)
    except ZeroDivisionError:
        with pytest.raises(SyntaxFault, match="division by zero"):
            evaluate(parse(text), DIMS)
    else:
        assert evaluate(parse(text), DIMS) == expected
