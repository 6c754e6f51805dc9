"""The names that an expression may use at its place: values, dims, repeats, operations and mesh axes."""

from __future__ import annotations

import pytest

from runner.base.layout import Mesh
from runner.graph.language import printing
from runner.graph.language.check import VisibleNames, canonical, check
from runner.graph.language.syntax import SyntaxFault, parse


def scope(section: str = "per_device") -> VisibleNames:
    return VisibleNames(
        section,  # type: ignore[arg-type]
        Mesh(("x", "y"), (2, 2)),
        values={"A", "B", "bias"},
        sizes={"I": 4},
        loops={"ring": ("acc", "lhs")},
        later={"C": parse("A + B"), "D": None},
    )


ACCEPTED = [
    "A @ B + bias[None, :] * I",
    "ring.acc + ring.lhs.T",
    "psum(A, 'x')",
    "psum(A, ('x', 'y'))",
    "psum(A, axis_name=['y'])",
    "axis_index('x') * I",
    "sum(A, axis=0, keepdims=True)",
    "ppermute(A, 'x', shift=-1)",
    "dynamic_slice(A, (axis_index('x'), 0), (1, 4))",
    "where(A > 0, A, -inf)",
    "reduce_window(A, -inf, 'max', (2, 2), padding='SAME')",
    "reduce_window(A, 0, computation='add', window_dimensions=(2, 2), padding=((0, 1), (1, 0)))",
]

REFUSED = {
    "AA": ("no array, dim or earlier name 'AA'; did you mean 'A'?", "AA"),
    "zzz + A": ("no array, dim or earlier name 'zzz'; there are A, B, I, bias, ring", "zzz"),
    "A + C": ("'C' is used before it is assigned; the lines run in order, so move it up", "C"),
    "A + D": ("'D' is used before it is assigned; the lines run in order, so move it up", "D"),
    "ring": ("'ring' is a repeat; its results are ring.acc, ring.lhs", "ring"),
    "ring.rhs": ("the repeat 'ring' carries no 'rhs'; it carries acc, lhs", "ring.rhs"),
    "A.acc": ("attribute '.acc' is not part of the language; only .T and the carries of a repeat are", "A.acc"),
    "A + tanh": ("'tanh' is an operation; call it: tanh(…)", "tanh"),
    "sigmiod(A)": ("no operation 'sigmiod'; did you mean 'sigmoid'?", "sigmiod"),
    "A(B)": ("no operation 'A'", "A"),
    "tanh(A, B)": ("tanh(): too many positional arguments; it takes (x, /)", "tanh(A, B)"),
    "tanh()": ("tanh(): missing a required argument: 'x'; it takes (x, /)", "tanh()"),
    "psum(A)": ("psum(): missing a required argument: 'axis_name'", "psum(A)"),
    "psum(A, 'z')": ("mesh axis 'z' does not exist; the mesh has x, y", "'z'"),
    "psum(A, ('x', 'z'))": ("mesh axis 'z' does not exist; the mesh has x, y", "'z'"),
    "psum(A, ('x', 'x'))": ("a mesh axis appears twice", "('x', 'x')"),
    "psum(A, x)": ("no array, dim or earlier name 'x'", "x"),
    "psum(A, I)": ("the axis_name must be a mesh axis in quotes, or a tuple of them", "I"),
    "psum(A, 0)": ("the axis_name must be a mesh axis in quotes, or a tuple of them", "0"),
    "reduce_window(A, 0, 'sum', (2, 2))": ("the computation must be one of 'add', 'mul', 'max', 'min'", "'sum'"),
    "reduce_window(A, 0, max, (2, 2))": ("'max' is an operation; call it: max(…)", "max"),
    "reduce_window(A, 0, A, (2, 2))": ("the computation must be one of 'add', 'mul', 'max', 'min'", "A"),
    "conv(A, B, (1,), 'EVEN')": (
        "the padding must be one of 'SAME', 'SAME_LOWER', 'VALID' or a pair of integers for each dimension", "'EVEN'",
    ),
    "tanh(psum(A, 'q') + missing)": ("mesh axis 'q' does not exist; the mesh has x, y", "'q'"),
}  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_line_of_known_names_is_accepted(text: str) -> None:
    check(parse(text), scope())


@pytest.mark.parametrize("text", REFUSED)
def test_an_unknown_name_is_refused_at_its_place(text: str) -> None:
    message, part = REFUSED[text]
    with pytest.raises(SyntaxFault) as caught:
        check(parse(text), scope())
    assert caught.value.message.startswith(message)
    assert text[caught.value.start : caught.value.end] == part


@pytest.mark.parametrize("text", ["psum(A, 'x')", "axis_index('x')", "axis_size('x')", "all_gather(A, 'x')"])
def test_graph_has_no_devices(text: str) -> None:
    with pytest.raises(SyntaxFault, match="graph computes on whole arrays and has none; it belongs in per_device"):
        check(parse(text), scope("graph"))


def test_the_lists_of_a_collective_become_tuples_and_those_of_an_array_stay() -> None:
    expression = canonical(parse("ppermute(concatenate([A, B]), ['x'], perm=[[0, 1], [1, 0]])"))
    assert printing.text(expression.term) == "ppermute(concatenate([A, B]), ('x',), perm=((0, 1), (1, 0)))"


def test_random_values_get_the_dtype_that_the_table_gives_them() -> None:
    given = canonical(parse("normal(key(0), (4,))"))
    assert printing.text(given.term) == "normal(key(0), (4,), dtype='float32')"
    kept = canonical(parse("normal(key(0), (4,), 'bfloat16')"))
    assert printing.text(kept.term) == "normal(key(0), (4,), 'bfloat16')"


def test_names_added_to_a_nested_scope_do_not_leak_out() -> None:
    outer = scope()
    inner = outer.nested()
    inner.values.add("inside")
    inner.loops["inner"] = ("a",)
    assert "inside" not in outer.values
    assert "inner" not in outer.loops
