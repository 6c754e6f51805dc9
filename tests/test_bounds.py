"""What an expression makes before any array is there: bounded, and told before it is made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.language.bounds import check
from runner.language.syntax import SyntaxFault, parse
from runner.layout import Mesh

MESH = Mesh(("x", "y"), (2, 4))
SIZES = {"I": 4, "N": 2**40}

FINE = [
    "2 ** 63 - 1",
    "-2 ** 63",
    "(2 ** 64) // 2 ** 40",
    "I ** 3 * A",
    "A ** 2000",
    "2.0 ** 1000",
    "(-1) ** 1000000",
    "2 ** axis_size(('x', 'y'))",
    "2 ** -1",
    "1 << 62",
    "reshape(A, [1] * 8)",
    "reshape(A, [I, I] + [1])",
    "'sum' + 'mer'",
    "True * 10 ** 9",
    "A * 10 ** 9",
]

BEYOND = {
    "9 ** 9 ** 9": ("it makes an integer of about 1,549,681,956 bits, and no dtype has more than 64", "9 ** 9 ** 9"),
    "A + 10 ** 10 ** 10": (
        "it makes an integer of about 40,000,000,000 bits, and no dtype has more than 64",
        "10 ** 10 ** 10",
    ),
    "((10 ** 30) ** 30) ** 30": (
        "it makes an integer of about 3,000 bits, and no dtype has more than 64",
        "(10 ** 30) ** 30",
    ),
    "1 << 10 ** 9": ("it makes an integer of about 1,000,000,001 bits, and no dtype has more than 64", "1 << 10 ** 9"),
    "N * N * N * N": ("it makes an integer of 162 bits, and no dtype has more than 64", "N * N * N * N"),
    "I << N": ("it makes an integer of about 1,099,511,627,779 bits, and no dtype has more than 64", "I << N"),
    "9" * 50: ("the integer has 167 bits, and no dtype has more than 64", "9" * 50),
    "reshape(A, [1] * 10 ** 9)": (
        "it makes 1,000,000,000 elements in a list or a text; 1,000,000 are the most",
        "[1] * 10 ** 9",
    ),
    "10 ** 9 * 'a'": ("it makes 1,000,000,000 elements in a list or a text; 1,000,000 are the most", "10 ** 9 * 'a'"),
    "[(1, 2) * 1000] * 1000": (
        "it makes 2,000,000 elements in a list or a text; 1,000,000 are the most",
        "[(1, 2) * 1000] * 1000",
    ),
    "(1,) * 2 ** axis_size(('x', 'y')) ** 2": (
        "it makes 18,446,744,073,709,551,616 elements in a list or a text; 1,000,000 are the most",
        "(1,) * 2 ** axis_size(('x', 'y')) ** 2",
    ),
}


@pytest.mark.parametrize("text", FINE)
def test_what_an_array_can_hold_is_let_through(text: str) -> None:
    check(parse(text), SIZES, MESH)


@pytest.mark.parametrize("text", BEYOND)
def test_what_no_array_can_hold_is_refused_where_it_stands(text: str) -> None:
    message, part = BEYOND[text]
    with pytest.raises(SyntaxFault) as caught:
        check(parse(text), SIZES, MESH)
    assert caught.value.message == message
    assert text[caught.value.start : caught.value.end] == part


numbers = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(
        inner, st.sampled_from(["+", "-", "*", "**", "<<", "//", "%", "|", "&", "^", ">>"]), inner
    ).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
    max_leaves=8,
)


@given(numbers)
def test_what_is_let_through_has_so_many_bits_at_most(text: str) -> None:
    try:
        check(parse(text), {})
    except SyntaxFault:
        return
    try:
        value = eval(text)
    except (ZeroDivisionError, ValueError, OverflowError):
        return
    if isinstance(value, int):
        assert value.bit_length() <= 129
