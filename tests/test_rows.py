"""Each row of the table of operations describes its JAX function and its NumPy counterpart correctly."""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from runner.base import dtypes
from runner.base.layout import Mesh
from runner.compiled.evidence import nodes
from runner.graph.language.counterparts import windows
from runner.graph.language.operations import COMPUTATIONS, OPERATIONS, Decides, Limit, Operation
from runner.graph.language.operations.row import Kind, Linear, Moves, OnArrays, Reduction
from runner.graph.language.operators import BY_NAME
from runner.graph.language.printing import text
from runner.graph.language.syntax import parse
from runner.graph.term import Apply, Name, Term
from runner.worker import support
from runner.worker.versions import abstract_mesh
from runner.worker.walk import function

X = Mesh(("x",), (2,))

CONTRACTIONS = {
    "matmul": [((4,), (4,)), ((3, 4), (4,)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (2, 4, 5)),
               ((2, 3, 4), (2, 4, 5)), ((6, 2, 3, 4), (2, 4, 5))],
    "dot": [((4,), (4,)), ((3, 4), (4,)), ((3, 4), (4, 5)), ((2, 3, 4), (6, 4, 5))],
    "dot_general": [((3, 4), (4, 5), [[1], [0]], [[], []]), ((2, 3, 4), (4, 2, 6), [[2], [0]], [[0], [1]]),
                    ((2, 3), (5,), [[], []], [[], []])],
    "inner": [((4,), (4,)), ((3, 4), (4,)), ((3, 4), (5, 4)), ((2, 3, 4), (5, 4))],
    "vdot": [((4,), (4,)), ((2, 2), (2, 2))],
    "vecdot": [((4,), (4,)), ((2, 3, 4), (2, 3, 4))],
    "matvec": [((3, 4), (4,)), ((2, 3, 4), (2, 4))],
    "vecmat": [((4,), (4, 3)), ((2, 4), (2, 4, 3))],
    "tensordot": [((2, 4), (4, 3), 1), ((2, 4, 6), (4, 6, 3), 2), ((2, 3), (5,), 0)],
    "einsum": [("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("...ij,jk", (2, 3, 4), (4, 5)),
               ("...ij,...jk->...ik", (6, 2, 3, 4), (2, 4, 5)), ("ki,ki->", (4, 3), (4, 3)), ("ij->j", (4, 3)),
               ("...Zj, ...jY -> ...ZY", (2, 3, 4), (2, 4, 5)), ("b...", (2, 3)), ("...,...", (2, 3), (3,))],
}  # fmt: skip
"""Calls for each row with a `contraction`; a shape stands for an array."""

CALLS = [(name, call) for name, calls in CONTRACTIONS.items() for call in calls]


def called_with(call: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=part) if isinstance(part, tuple) else part for part in call]


def computed(name: str, operands: list[Any]) -> Any:
    """Return the counterpart's result for operands with flattened tuples."""
    if name == "dot_general":
        operands = [*operands[:2], operands[2:]]
    return OPERATIONS[name].numpy(*operands)


def sums(name: str, call: Any) -> bool:
    """Return whether the result lacks a dimension of the operands."""
    contraction = OPERATIONS[name].contraction
    labels = None if contraction is None else contraction(called_with(call))
    return labels is not None and not set("".join(labels[0])) <= set(labels[1])


def rows(field: str) -> list[str]:
    return [name for name, row in OPERATIONS.items() if getattr(row, field)]


def test_every_contraction_is_tried() -> None:
    assert sorted(CONTRACTIONS) == sorted(rows("contraction"))


@pytest.mark.parametrize(("name", "call"), CALLS, ids=str)
def test_a_contraction_in_einsum_notation_equals_the_operation(name: str, call: Any) -> None:
    operands = called_with(call)
    row = OPERATIONS[name]
    assert row.contraction is not None
    labels = row.contraction(operands)
    assert labels is not None
    inputs, output = labels
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    np.testing.assert_allclose(np.einsum(f"{','.join(inputs)}->{output}", *arrays), computed(name, operands))


@pytest.mark.parametrize(("name", "call"), [("vdot", ((2, 2), (4,))), ("matmul", ((2,), 3)), ("dot", (3, (2,)))])
def test_a_contraction_is_none_for_unsupported_operands(name: str, call: Any) -> None:
    row = OPERATIONS[name]
    assert row.contraction is not None
    assert row.contraction(called_with(call)) is None


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, call in CALLS if sums(name, call)], ids=str)
def test_a_contraction_over_devices_is_completed_by_its_collective(name: str, call: Any) -> None:
    operands = called_with(call)
    row = OPERATIONS[name]
    assert row.contraction is not None
    labels = row.contraction(operands)
    assert labels is not None
    inputs, output = labels
    summed = next(label for labels in inputs for label in labels if label not in output)
    parts: list[list[Any]] = [[], []]
    names = iter(inputs)
    for operand in operands:
        mine = next(names) if isinstance(operand, np.ndarray) else ""
        halves = np.split(operand, 2, axis=mine.index(summed)) if summed in mine else [operand, operand]
        for part, half in zip(parts, halves, strict=True):
            part.append(half)
    assert row.completion == "sum"
    complete = OPERATIONS["psum"].numpy(X, [computed(name, part) for part in parts], "x")
    np.testing.assert_allclose(complete[0], computed(name, operands))


@pytest.mark.parametrize("name", rows("reduction"))
def test_partial_results_of_a_reduction_are_reduced_to_that_of_the_whole(name: str) -> None:
    row = OPERATIONS[name]
    assert row.reduction is not None
    x = np.random.default_rng(0).normal(size=(4, 3))
    parts = np.stack([row.numpy(half, axis=0) for half in np.split(x, 2)])
    np.testing.assert_allclose(OPERATIONS[row.reduction].numpy(parts, axis=0), row.numpy(x, axis=0))


MULTIPLIED: dict[str, list[tuple[tuple[int, ...], ...]]] = {
    "dot_product_attention": [((2, 5, 4, 3), (2, 6, 4, 3), (2, 6, 4, 3)), ((2, 5, 4, 3), (2, 6, 2, 3), (2, 6, 2, 3)),
                              ((5, 4, 3), (6, 4, 3), (6, 4, 3))],
    "conv": [((2, 6, 8, 9), (4, 6, 3, 2))],
    "conv_general_dilated": [((2, 6, 8, 9), (4, 3, 3, 2)), ((2, 8, 9, 6), (3, 2, 6, 4)), ((2, 6, 8), (4, 6, 3))],
    "conv_transpose": [((2, 8, 6), (3, 6, 4))],
    "ragged_dot": [((8, 3), (2, 3, 5))],
}  # fmt: skip

CONVOLVED: list[tuple[str, int, dict[str, Any]]] = [
    ("conv", 0, {"window_strides": (2, 1), "padding": "VALID"}),
    ("conv_general_dilated", 0, {"window_strides": (2, 1), "padding": "VALID", "feature_group_count": 2}),
    ("conv_general_dilated", 1, {"window_strides": (1, 1), "padding": "VALID",
                                 "dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
    ("conv_general_dilated", 2, {"window_strides": (1,), "padding": ((0, 0),), "lhs_dilation": (3,)}),
    ("conv_transpose", 0, {"strides": (4,), "padding": "VALID"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "at", "static"), CONVOLVED, ids=str)
def test_multiply_adds_of_a_convolution_are_those_that_xla_counts(name: str, at: int, static: dict[str, Any]) -> None:
    row, shapes = OPERATIONS[name], MULTIPLIED[name][at]
    assert row.multiply_adds is not None
    lowered = jax.jit(functools.partial(function(row.jax), **static)).lower(*map(jnp.zeros, shapes))
    analysis: Any = lowered.cost_analysis()
    given = dict(zip(row.signature.parameters, shapes, strict=False))
    assert row.multiply_adds(given, static.get, lowered.out_info.shape) == analysis["flops"] / 2


def test_multiply_adds_are_those_of_the_products_that_jax_makes() -> None:
    assert sorted(MULTIPLIED) == sorted(rows("multiply_adds"))
    convolved = {name for name, _, _ in CONVOLVED}
    for name, shapes in ((name, shapes) for name, calls in MULTIPLIED.items() for shapes in calls):
        row = OPERATIONS[name]
        if name in convolved:
            continue
        assert row.multiply_adds is not None
        if name == "ragged_dot":
            # Each row of the operand is multiplied by the matrix of its group alone.
            assert row.multiply_adds({"lhs": (8, 3), "rhs": (2, 3, 5)}, str, ()) == 8 * 3 * 5
            continue
        jaxpr = jax.make_jaxpr(function(row.jax))(*map(jnp.zeros, shapes))
        products = [each for each in equations(jaxpr.jaxpr) if each.primitive.name == "dot_general"]
        made = 0
        for each in products:
            (contracted, _), _ = each.params["dimension_numbers"]
            summed = [each.invars[0].aval.shape[d] for d in contracted]
            made += math.prod((*each.outvars[0].aval.shape, *summed))
        assert len(products) > 1
        assert row.multiply_adds(dict(zip(row.signature.parameters, shapes, strict=False)), str, ()) == made


@pytest.mark.parametrize("name", rows("out_sharding"))
def test_the_layout_of_a_result_is_named_where_jax_takes_it(name: str) -> None:
    row = OPERATIONS[name]
    takes = function(row.jax) if row.method is None else getattr(jnp.zeros(1).at[0], row.method)
    assert "out_sharding" in inspect.signature(takes).parameters


@pytest.mark.parametrize("name", rows("constant"))
def test_operations_with_constant_derivative_have_gradient_zero(name: str) -> None:
    def of(x: Any) -> Any:
        return function(OPERATIONS[name].jax)(x)

    assert jax.grad(of)(jnp.float32(3.0)) == 0.0
    assert of(jnp.float32(3.0)) == 3.0


@pytest.mark.parametrize("name", rows("neutral"))
def test_a_neutral_operand_changes_nothing_and_the_inverse_undoes_an_operation(name: str) -> None:
    row, x, y = OPERATIONS[name], np.array([1.5, -2.0, 4.0]), np.array([0.5, 4.0, -8.0])
    assert row.neutral is not None
    assert row.inverse is not None
    left, right = row.neutral
    np.testing.assert_array_equal(row.numpy(x, right), x)
    if left is not None:
        np.testing.assert_array_equal(row.numpy(left, x), x)
    np.testing.assert_array_equal(OPERATIONS[row.inverse].numpy(row.numpy(x, y), y), x)
    assert np.array_equal(row.numpy(x, y), row.numpy(y, x)) == row.commutes


@pytest.mark.parametrize("name", rows("linear"))
def test_an_operation_is_linear_in_the_operands_that_its_row_says(name: str) -> None:
    row, (x, y, z) = OPERATIONS[name], np.array([[1.5, -2.0, 4.0], [0.5, 4.0, -8.0], [2.0, 0.25, 1.0]])
    if len(row.signature.parameters) == 1:
        np.testing.assert_array_equal(row.numpy(x + y), row.numpy(x) + row.numpy(y))
        return
    together = np.array_equal(row.numpy(x + y, z + x), row.numpy(x, z) + row.numpy(y, x))
    first = np.array_equal(row.numpy(x + y, z), row.numpy(x, z) + row.numpy(y, z))
    second = np.array_equal(row.numpy(z, x + y), row.numpy(z, x) + row.numpy(z, y))
    expected = {"together": (True, False, False), "each": (False, True, True), "first": (False, True, False)}
    assert row.linear is not None
    assert (together, first, second) == expected[row.linear]


@pytest.mark.parametrize("name", [name for name, row in OPERATIONS.items() if row.over.linear])
def test_a_collective_that_adds_up_is_linear(name: str) -> None:
    row, (x, y) = OPERATIONS[name], np.arange(16.0).reshape(2, 2, 2, 2)
    for of_sum, of_x, of_y in zip(*(row.numpy(X, list(each), "x") for each in (x + y, x, y)), strict=True):
        np.testing.assert_array_equal(of_sum, of_x + of_y)


@pytest.mark.parametrize("name", [name for name, row in OPERATIONS.items() if row.reduces])
def test_a_reduction_over_devices_names_the_one_over_a_dimension(name: str) -> None:
    over, x = OPERATIONS[name].over, np.arange(6.0).reshape(2, 3)
    result = OPERATIONS[name].numpy(X, list(x), "x")[0]
    np.testing.assert_array_equal(result, OPERATIONS[over.reduction].numpy(x, axis=0))


@pytest.mark.parametrize("name", rows("in_float32"))
def test_what_jax_computes_in_float32_is_that_far_from_float64(name: str) -> None:
    row, values = OPERATIONS[name], np.random.default_rng(0).normal(size=(3, 1, 4, 2, 8))
    with jax.enable_x64(True):
        theirs = function(row.jax)(*map(jnp.asarray, values))
    assert theirs.dtype == np.float64
    error = np.abs(np.asarray(theirs) - row.numpy(*values)).max()
    assert 1e-12 < error < 1e-5


@pytest.mark.parametrize("name", rows("on_arrays"))
def test_what_arrays_spell_arrays_have(name: str) -> None:
    row = OPERATIONS[name]
    had = getattr(jnp.ones((2, 2)), "mT" if name == "matrix_transpose" else name)
    assert callable(had) == (row.on_arrays != "attribute")


@pytest.mark.parametrize("name", rows("counts"))
def test_an_operation_that_counts_from_0_ends_before_its_argument(name: str) -> None:
    row = OPERATIONS[name]
    given = {"dtype": "int32"} if "size" in row.signature.parameters else {}
    np.testing.assert_array_equal(row.numpy(**given, **{str(row.counts): 3}), [0, 1, 2])


def test_what_is_confused_with_an_operation_is_one_with_the_same_arguments() -> None:
    for row in OPERATIONS.values():
        for other in row.confused_with:
            assert OPERATIONS[other].arguments == row.arguments
            assert other != row.name


def test_an_argument_that_a_row_names_is_one_of_its_own() -> None:
    for row in OPERATIONS.values():
        named = [row.indices, *row.dtype_of, *(row.pair or ())]
        assert set(row.signature.parameters) >= {name for name in named if name is not None}, row.name


def test_operations_over_axes_declare_what_they_do() -> None:
    for row in OPERATIONS.values():
        assert ("axis_name" in row.signature.parameters) == (row.over.does is not None), row.name
        assert row.kind != "collective" or row.over.does, row.name
        assert row.communicates == (bool(row.over.operands) and row.name != "pcast")
        assert set(row.over.operands) <= set(row.signature.parameters), row.name


COMMUNICATING = [row for row in OPERATIONS.values() if row.communicates]
OTHERWISE = {
    "pshuffle": "x, 'x', perm=(1, 0)", "pbroadcast": "x, 'x', source=0",
    "ragged_all_to_all": "x, x, n, n, n, n, axis_name='x'",
}  # fmt: skip
"""The calls of the collectives that no repair uses."""


def calls(row: Operation) -> list[Apply]:
    given = [f"x, 'x', {trailing}" for trailing in row.over.calls] or [OTHERWISE[row.name]]
    terms = (parse(f"{row.name}({arguments})").term for arguments in given)
    return [term for term in terms if isinstance(term, Apply)]


def value(term: Term) -> Any:
    return ast.literal_eval(text(term))


@pytest.mark.parametrize("row", COMMUNICATING, ids=lambda row: row.name)
def test_a_call_that_mends_is_one_of_the_language(row: Operation) -> None:
    for call in calls(row):
        assert call.operation == row.name
        row.signature.bind(*call.operands, **dict(call.named))


def equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("row", COMMUNICATING, ids=lambda row: row.name)
def test_jax_makes_the_primitives_of_a_collective_that_its_row_names(row: Operation, check_vma: bool) -> None:
    call = calls(row)[0]
    names = {"x": 0, "n": 1}
    named = {name: value(operand) for name, operand in call.named}
    if "shift" in named:
        named = {"perm": [(0, 1), (1, 0)]}
    mapped = jax.shard_map(
        lambda *given: function(row.jax)(
            *(
                given[names[each.name]] if isinstance(each, Name) else ast.literal_eval(text(each))
                for each in call.operands
            ),
            **named,
        ),
        mesh=abstract_mesh(X),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=check_vma,
    )
    given = jax.ShapeDtypeStruct((8, 8, 8), np.float32), jax.ShapeDtypeStruct((8,), np.int32)
    traced = jax.make_jaxpr(mapped)(*given)
    primitives = {each.primitive.name for each in equations(traced.jaxpr)} & nodes.PRIMITIVES
    assert primitives
    assert primitives <= set(row.over.primitives)


@pytest.mark.parametrize(
    ("field", "values"),
    [("kind", Kind), ("decides", Decides), ("linear", Linear), ("moves", Moves), ("on_arrays", OnArrays),
     ("reduction", Reduction)],
    ids=str,
)  # fmt: skip
def test_rows_have_the_values_that_a_field_may_have(field: str, values: Any) -> None:
    assert {getattr(row, field) for row in OPERATIONS.values()} - {None} == set(get_args(values))


def test_every_limit_is_checked_and_used_by_some_row() -> None:
    looked_at = [limit for limit, _ in support.LIMITS if limit is not None]
    assert sorted(looked_at) == sorted(get_args(Limit))
    assert set(looked_at) == {limit for row in OPERATIONS.values() for limit in row.over.limits}


def test_every_computation_has_its_counterpart() -> None:
    assert windows.COMPUTATIONS.keys() == COMPUTATIONS.keys()
    x = np.array([1.0, -2.0, 3.0])
    for name, computation in COMPUTATIONS.items():
        ours, (counterpart, identity) = OPERATIONS[computation.operation].numpy, windows.COMPUTATIONS[name]
        np.testing.assert_array_equal(ours(x, x[::-1]), counterpart(x, x[::-1]))
        np.testing.assert_array_equal(ours(x, computation.identity), x)
        assert identity(np.dtype(np.float32)) == computation.identity


def test_every_operator_is_an_operation() -> None:
    assert BY_NAME.keys() <= OPERATIONS.keys()


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_a_dtype_is_described_as_numpy_has_it(name: str) -> None:
    described = dtypes.dtype(name)
    assert (described.numpy.name, described.numpy.itemsize) == (name, described.itemsize)
    assert described.eps == (0.0 if described.exact else float(jnp.finfo(described.numpy).eps))
    floating = jnp.issubdtype(described.numpy, jnp.floating)
    assert described.kind == (
        "bool" if name == "bool" else "float" if floating else "complex" if "complex" in name else "int"
    )
