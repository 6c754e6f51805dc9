"""The layouts of results, given those of operands, and the order in which repairs are tried: without JAX.

JAX's acceptance of the repairs is tested in `test_explicit.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.layout import Mesh, Spec
from runner.experiment.graphs import of_line
from runner.graph.language.syntax import parse
from runner.graph.model import Equation
from runner.graph.sharding.repairs import OperandLayout, Repair, candidates, of_result, resharded
from runner.graph.source import Line

MESH = Mesh(("x", "y"), (2, 4))


def equation(text: str) -> Equation:
    """Return the equation of a line."""
    return of_line(Line("C"), parse(text).term, "ABJ").equations[-1]


ALL = slice(None)


def spec(text: str) -> Spec:
    """Parse `x . xy`: three dimensions, sharded over x, replicated, over x and y."""
    return Spec(() if entry == "." else tuple(entry) for entry in text.split())


def held(text: str, size: int = 8, itemsize: int = 4) -> OperandLayout:
    return OperandLayout(spec(text), (size,) * len(text.split()), itemsize)


@pytest.mark.parametrize(
    ("call", "operands", "result"),
    [
        ("A @ B", [held("x y"), held("y .")], "x ."),
        # If both operands have an axis, the first one keeps it.
        ("A @ B", [held("x ."), held(". x")], "x ."),
        ("A @ B", [held("x . y"), held(". y")], "x . y"),
        ("A @ B", [held("x . ."), held(". y")], "x . y"),
        ("dot(A, B)", [held("x ."), held(".")], "x"),
        ("tensordot(A, B, axes=1)", [held("x y"), held("y ."), 1], "x ."),
        ("einsum('ij,kj->ki', A, B)", ["ij,kj->ki", held("x ."), held("y .")], "y x"),
        ("einsum('...j,jk', A, B)", ["...j,jk", held("y x ."), held(". .")], "y x ."),
        ("A[J]", [held("x y"), held(".")], ". y"),
        ("A[J]", [held("x y"), held("x")], "x y"),
        # The array's kept dimensions take precedence over the index arrays for an axis.
        ("A[J]", [held("x y"), held("y .")], ". . y"),
        ("A[:, J]", [held("x y"), ALL, held("y")], "x y"),
        ("A[:, J]", [held("x y"), ALL, held("x")], "x ."),
        # Sliced dimensions are replicated; new ones too.
        ("A[0:2, None, J]", [held("x y"), slice(0, 2), None, held(".")], ". . ."),
        # If a slice is between index arrays, their dimensions come first.
        ("A[J, :, J]", [held("x y ."), held("x"), ALL, held(".")], "x y"),
    ],
)
def test_the_layout_of_a_result_follows_from_its_operands(call: str, operands: list[Any], result: str) -> None:
    assert of_result(equation(call), operands) == spec(result)


@pytest.mark.parametrize(
    ("call", "operands"),
    [
        ("A + B", [held("x"), held("x")]),
        # JAX does not accept a layout for its result.
        ("inner(A, B)", [held("x ."), held("x .")]),
        ("A[0]", [held("x ."), 0]),
        ("A.T", [held("x .")]),
    ],
)
def test_other_calls_have_no_named_layout(call: str, operands: list[Any]) -> None:
    assert of_result(equation(call), operands) is None


def test_the_promised_layout_is_tried_first_if_jax_accepts_it() -> None:
    operands = [held("x y"), held("y .")]
    named, derived, *others = candidates(equation("A @ B"), operands, MESH, spec("x y"))
    assert (named, derived) == (Repair(out_sharding=spec("x y")), Repair(out_sharding=spec("x .")))
    assert all(repair.out_sharding is None for repair in others)
    assert all(repair.operands for repair in candidates(equation("A + B"), operands, MESH, spec("x y")))


def test_reshards_with_the_fewest_bytes_per_device_are_tried_first() -> None:
    summed = equation("A + B")
    first = next(candidates(summed, [held("x ."), held(". y")], MESH, None))
    # Over y a device holds a quarter, over x half.
    assert first == Repair(operands={0: spec(". y")})
    first = next(candidates(summed, [held(". y"), held(". x")], MESH, None))
    assert first == Repair(operands={1: spec(". y")})
    first = next(candidates(summed, [held("x .", itemsize=4), held(". x", itemsize=2)], MESH, None))
    assert first == Repair(operands={1: spec("x .")})


def test_an_indivisible_dimension_is_not_sharded() -> None:
    long, short = OperandLayout(spec("y"), (8,), 4), OperandLayout(spec("."), (6,), 4)
    repairs = list(candidates(equation("A + B"), [long, short], MESH, None))
    assert repairs == [Repair(operands={0: spec(".")})]


entries = st.sampled_from(["x", "y", "."])
specs_of_operands = st.lists(st.lists(entries, min_size=1, max_size=2, unique=True), min_size=1, max_size=4)


@settings(deadline=None, derandomize=True, database=None)
@given(specs_of_operands)
def test_a_reshard_lists_only_changes_and_uses_an_axis_once(texts: list[list[str]]) -> None:
    arrays = {i: held(" ".join(text)) for i, text in enumerate(texts)}
    ways = list(resharded(arrays))
    for way in ways:
        for i, new in way.items():
            assert new != arrays[i].spec
            assert len(new) == len(arrays[i].shape)
            used = [axis for axes in new for axis in axes]
            assert len(used) == len(set(used))
    replicated = {i: ((),) * len(array.shape) for i, array in arrays.items() if any(array.spec)}
    assert replicated in ways
