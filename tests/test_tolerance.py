"""The distance of two arrays, and its tolerance: exact operations must be exact, others may differ by rounding only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base import dtypes
from runner.checks.compare import Alternatives, Difference, Tolerance, carried, difference, tolerance
from runner.checks.reference import Oracle, Rounding, flips, magnitude, measure
from runner.checks.reference.arithmetic import ANY
from runner.checks.reference.rounded_numpy import Machine, rounded
from runner.checks.whole import Whole, as_a_whole
from runner.experiment import data
from tests import harness
from tests.harness import experiment

EXACT = Tolerance(0.0, 0.0)
LOOSE = Tolerance(1e-6, 1e-6)


def apart(actual: Any, expected: Any, dtype: str, allowed: Tolerance = EXACT) -> Difference:
    return difference(np.asarray(actual, dtypes.dtype(dtype).numpy), np.asarray(expected), dtype, allowed)


@pytest.mark.parametrize("dtype", ["bool", "int4", "uint4", "int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_exact_dtypes_differ_by_one(dtype: str) -> None:
    assert apart([0, 1, 1], np.array([0, 1, 1], np.int64), dtype, LOOSE).wrong == 0
    comparison = apart([0, 1, 1], np.array([0, 0, 1], np.int64), dtype, Tolerance(9.0, 9.0))
    assert (comparison.wrong, comparison.first, comparison.max_abs) == (1, (1,), 1.0)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_beyond_2_to_the_53_are_told_apart(dtype: str) -> None:
    comparison = apart([2**60 + 1, 5], np.array([2**60, 5], dtype), dtype)
    assert (comparison.wrong, comparison.max_abs) == (1, 1.0)


def test_unsigned_differences_do_not_wrap() -> None:
    assert apart([0], np.array([3], np.uint8), "uint8").max_abs == 3.0
    assert apart([2**64 - 1], np.array([0], np.uint64), "uint64").max_abs == float(2**64)


def test_nan_equals_nan_and_is_counted() -> None:
    comparison = apart([math.nan, 1.0], [math.nan, 1.0], "float32")
    assert (comparison.wrong, comparison.nans, comparison.max_abs) == (0, 1, 0.0)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf), (math.inf, -math.inf), (math.nan, math.inf)],
)
def test_infinities_and_nan_equal_only_themselves(actual: float, expected: float) -> None:
    comparison = apart([actual], [expected], "float32", Tolerance(9.0, 9.0))
    assert (comparison.wrong, comparison.max_abs) == (1, math.inf)


def test_infinities_are_equal() -> None:
    assert apart([math.inf, -math.inf], [math.inf, -math.inf], "float32") == Difference(0.0, 0.0, 0, 2, None, 0)


@pytest.mark.parametrize(("got", "wrong"), [(math.nan, 0), (-448.0, 0), (448.0, 1), (1.0, 1)])
def test_an_unsupported_infinity_is_nan_or_the_largest_number(got: float, wrong: int) -> None:
    assert apart([got, 1.0], [-math.inf, 1.0], "float8_e4m3fn", LOOSE).wrong == wrong


def test_without_a_finite_draw_nothing_is_compared() -> None:
    beyond = Rounding(overflows=[np.array([True, True])])
    beside = Alternatives.of(beyond, lambda value: value[0])
    comparison = difference(np.array([math.nan, 40.0], np.float32), np.array([1.0, 1.0]), "float32", LOOSE, beside)
    assert (comparison.wrong, comparison.overflowing) == (0, 2)


@pytest.mark.parametrize(
    ("dtype", "overflow"), [("float16", math.inf), ("bfloat16", math.inf), ("float8_e4m3fn", math.nan)]
)
def test_values_beyond_the_dtype_overflow_in_the_reference_too(dtype: str, overflow: float) -> None:
    beyond = float(ml_dtypes.finfo(dtypes.dtype(dtype).numpy).max) * 8
    assert apart([overflow, 1.0], [beyond, 1.0], dtype, LOOSE).wrong == 0
    assert apart([2.0, 1.0], [beyond, 1.0], dtype, LOOSE).wrong == 1


def test_complex_numbers_are_compared_as_such() -> None:
    assert apart([1 + 1e-9j], [1 + 0j], "complex64", LOOSE).wrong == 0
    assert apart([1 + 1j], [1 - 1j], "complex64", LOOSE).max_abs == 2.0


@pytest.mark.parametrize(("actual", "expected"), [((4, 4), (4,)), ((4,), ()), ((1, 4), (4,)), ((0,), (4,))])
def test_another_shape_is_wrong_and_not_broadcast(actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    for dtype in ("float32", "int32"):
        assert apart(np.ones(actual), np.ones(expected), dtype, LOOSE).wrong


def test_the_first_wrong_element_is_named() -> None:
    comparison = apart([[1, 2], [3, 5]], [[1, 2], [3, 4]], "float32", LOOSE)
    assert (comparison.wrong, comparison.size, comparison.first, comparison.max_abs, comparison.max_rel) == (
        1,
        4,
        (1, 1),
        1.0,
        0.25,
    )


def test_the_worse_of_two_differences() -> None:
    first, second = Difference(1.0, 0.1, 1, 4, (0,), 2), Difference(0.5, 0.7, 3, 8, (1,), 1)
    assert first.joined(second) == Difference(1.0, 0.7, 4, 12, (0,), 3)


def test_the_magnitude_of_arrays_is_that_of_their_finite_values() -> None:
    assert magnitude([np.array([1.0, -7.0, math.inf, math.nan]), np.array([2 + 0j])]) == 7.0
    assert magnitude([np.zeros(0)]) == 0.0


# The tolerance.

MEASURED = Rounding(error=1e-3, elements=10_000)


def test_exact_dtypes_have_no_tolerance() -> None:
    assert tolerance("int32", MEASURED) == EXACT
    assert tolerance("bool", MEASURED) == EXACT


def test_the_tolerance_is_a_multiple_of_what_was_measured() -> None:
    assert tolerance("float32", MEASURED).atol == pytest.approx(4e-3, rel=1e-3)
    assert tolerance("bfloat16", MEASURED).atol == pytest.approx(3e-3, rel=1e-3)


def test_few_measurements_widen_the_tolerance() -> None:
    few = Rounding(error=1e-3, elements=8)
    assert tolerance("float32", few).atol == pytest.approx(8e-3)


@pytest.mark.parametrize(("dtype", "units"), [("float64", 4), ("float32", 4), ("complex64", 4), ("bfloat16", 1)])
def test_without_measured_rounding_a_few_units_in_the_last_place_are_allowed(dtype: str, units: float) -> None:
    assert tolerance(dtype, Rounding()) == Tolerance(units * dtypes.dtype(dtype).eps, 0.0)


def test_an_8_bit_float_that_is_one_place_off_is_wrong() -> None:
    exact = np.array([1.0, 1.125, 1.875, 2.0, 15.0])
    beside = np.nextafter(exact.astype(ml_dtypes.float8_e4m3fn), ml_dtypes.float8_e4m3fn(100))
    assert apart(beside, exact, "float8_e4m3fn", tolerance("float8_e4m3fn", Rounding())).wrong == 5


def reference(
    graph: str, n: int, dtype: str = "float32", seed: int = 0
) -> tuple[dict[str, Any], np.ndarray, Tolerance]:
    """Return the arrays, the oracle's result and the tolerance of an expression of A (8 × n) and B (n × 8)."""
    arrays = {"A": {"shape": [8, n], "dtype": dtype}, "B": {"shape": [n, 8], "dtype": dtype}}
    given = experiment("outputs: {C: []}", arrays=arrays, graph={"C": graph}, seed=seed)
    made = data.make(given, Path())
    floats = {"C": {ANY: dtype}}
    oracle = measure(given, "graph", made, floats)
    return made, np.asarray(oracle.values["C"][0]), tolerance(dtype, oracle.rounding["C"])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([8, 64, 512, 4096]), st.integers(0, 1000))
def test_a_float32_matmul_lies_inside_and_one_percent_of_one_element_outside(n: int, seed: int) -> None:
    made, whole, allowed = reference("A @ B", n, seed=seed)
    result = made["A"] @ made["B"]
    assert difference(result, whole, "float32", allowed).wrong == 0
    at = np.unravel_index(np.argsort(np.abs(whole), axis=None)[whole.size // 2], whole.shape)
    result[at] *= 1.01
    assert difference(result, whole, "float32", allowed).wrong == 1


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([8, 512, 4096]), st.integers(0, 1000))
def test_a_bfloat16_matmul_lies_inside_and_a_tenth_of_one_element_outside(n: int, seed: int) -> None:
    made, whole, allowed = reference("A @ B", n, "bfloat16", seed)
    result = (made["A"].astype(np.float32) @ made["B"].astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert difference(result, whole, "bfloat16", allowed).wrong == 0
    at = np.unravel_index(np.argmax(np.abs(whole)), whole.shape)
    result[at] = result[at] * 1.1
    assert difference(result, whole, "bfloat16", allowed).wrong == 1


MISTAKES = {
    "a partial sum": lambda a, b: a[:, :32] @ b[:32],
    "a doubled value": lambda a, b: 2 * (a @ b),
    "a hundred units in the last place": lambda a, b: a @ b * np.float32(1 + 100 * 2.0**-23),
    "a bias twice": lambda a, b: a @ b + np.float32(0.01),
    "two rows swapped": lambda a, b: (a @ b)[[1, 0, *range(2, 8)]],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_float32_is_caught(mistake: str) -> None:
    made, whole, allowed = reference("A @ B", 64)
    assert difference(MISTAKES[mistake](made["A"], made["B"]), whole, "float32", allowed).wrong


ROUNDING = {
    "cancelling terms": ("(A * 1e4 + A) - A * 1e4", lambda a, b: (a * np.float32(1e4) + a) - a * np.float32(1e4)),
    "a mean of large values": ("A - mean(A + 1e3)", lambda a, b: a - np.mean(a + np.float32(1e3))),
    "a product made small": ("(A @ B) * 1e-6", lambda a, b: (a @ b) * np.float32(1e-6)),
    "integers of the data": ("A @ B - 7 * sum(B)", lambda a, b: a @ b - np.float32(7) * b.sum(dtype=np.float32)),
    "a long chain": ("(A @ B) @ (A @ B) @ (A @ B)", lambda a, b: (a @ b) @ (a @ b) @ (a @ b)),
    "tanh": ("tanh(A @ B)", lambda a, b: np.tanh(a @ b)),
    "exp": ("exp(A * 10)", lambda a, b: np.exp(a * np.float32(10))),
}


@pytest.mark.parametrize("case", ROUNDING)
def test_float32s_own_rounding_is_no_mistake(case: str) -> None:
    text, function = ROUNDING[case]
    for seed in range(5):
        made, whole, allowed = reference(text, 64, seed=seed)
        result = function(made["A"], made["B"])
        assert result.dtype == np.float32
        assert difference(result, whole, "float32", allowed).wrong == 0


@pytest.mark.parametrize("text", ["(A @ B) * 1e-6", "(A @ B) / 1e8", "mean(A @ B) * 1e-9", "softmax(A @ B) * 1e-3"])
def test_a_small_result_of_large_terms_is_still_checked(text: str) -> None:
    _, whole, allowed = reference(text, 64)
    assert difference(1.05 * whole.astype(np.float32), whole, "float32", allowed).wrong


PRODUCT = """
mesh: {axes: [x], shape: [1]}
arrays: {A: {shape: [8, 64], dtype: bfloat16}, B: {shape: [64, 8], dtype: bfloat16}}
outputs: {C: []}
graph:
  p: A @ B
  C: %s
"""


def oracle_of(line: str) -> Oracle:
    """Return a line's value on a product of bfloat16 numbers, and its rounding."""
    given = experiment(PRODUCT % line)
    floats = harness.types(PRODUCT % line).floats["graph"]
    return measure(given, "graph", data.make(given, Path()), floats)


def test_a_wider_dtype_keeps_what_a_narrow_one_lost() -> None:
    oracle = oracle_of("astype(p, 'float32')")
    assert oracle.undecided == ()
    assert oracle.rounding["C"].error == pytest.approx(oracle.rounding["p"].error)
    assert oracle.rounding["C"].error > 2**-9 * np.max(np.abs(oracle.values["p"][0]))


@pytest.mark.parametrize(("moved", "least"), [(False, True), (True, False)])
def test_a_number_equals_an_exact_one_by_chance_if_its_equal_was_moved(moved: bool, least: bool) -> None:
    keys = [np.array([1, 2 if moved else 1], np.uint64), np.uint64(1)]
    operands, windows = (np.ones(2), 1.0), (np.full(2, 1e-15), None)
    decision = flips.LocalDecision("comparison", None, np.greater_equal, operands, windows, keys)
    assert [bool(np.all(other)) for other in flips.candidates(decision, np.ones(2, bool))] == [True, least]


def test_a_cast_of_numbers_as_coarse_as_it_rounds_and_decides_nothing() -> None:
    oracle = oracle_of("astype(astype(p, 'float32') * 1.25, 'bfloat16')")
    assert oracle.undecided == ()
    assert oracle.rounding["C"].error > oracle.rounding["p"].error
    fine = oracle_of("astype(astype(A, 'float32') @ astype(B, 'float32') * 1.25, 'bfloat16')")
    assert fine.rounding["C"].error < 2**-12


# Measured rounding.

FEW = Alternatives(low=np.array([1.0, 3, 5, 7]), high=np.array([1.0, 3, 9, 9]), alternatives=(np.array([1, 3, 9, 8]),))
SEVERAL = replace(FEW, alternatives=tuple(np.array([1, 3, other, 8]) for other in (9, 5, 7, 9, 8, 5)))
MANY = replace(SEVERAL, alternatives=(*SEVERAL.alternatives, np.array([1, 3, 6, 9])))


@pytest.mark.parametrize(
    ("actual", "wrong", "between", "excused"),
    [
        ([1, 3, 5, 7], 0, 0, 0),
        ([1, 3, 9, 8], 0, 0, 0),
        ([1, 3, 6, 7], 0, 0, 1),
        ([1, 3, 4, 7], 0, 0, 1),
        ([1, 4, 5, 7], 1, 0, 0),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_an_undecided_element_is_what_a_decision_leads_to_or_is_counted(
    actual: list[int], wrong: int, between: int, excused: int, dtype: str
) -> None:
    comparison = difference(np.asarray(actual, dtype), np.array([1, 3, 5, 7]), dtype, EXACT, FEW)
    assert (comparison.wrong, comparison.undecided, comparison.between, comparison.excused) == (
        wrong,
        2,
        between,
        excused,
    )


@pytest.mark.parametrize(("beside", "between", "excused"), [(FEW, 0, 1), (SEVERAL, 0, 1), (MANY, 1, 0)])
def test_an_element_lies_between_only_where_decisions_lead_to_many_things(
    beside: Alternatives, between: int, excused: int
) -> None:
    comparison = difference(np.array([1, 3, 6.5, 7], np.float32), np.array([1, 3, 5, 7]), "float32", EXACT, beside)
    assert (comparison.between, comparison.excused) == (between, excused)


def test_complex_numbers_lie_between_others_part_by_part() -> None:
    bounds = Alternatives(low=np.array([1 + 1j]), high=np.array([2 + 3j]))
    for actual, between, excused in ((1.5 + 2j, 1, 0), (1.5 + 4j, 0, 1)):
        comparison = difference(np.array([actual]), np.array([1 + 1j]), "complex64", LOOSE, bounds)
        assert (comparison.wrong, comparison.between, comparison.excused) == (0, between, excused)


@pytest.mark.parametrize(
    ("dtype", "bound", "start", "end", "further"),
    [
        ("bool", True, True, False, 0),
        ("uint8", 3, 200, 3, -194),
        ("int64", 2**62, 1, 3, 2**62 + 2),
        ("float32", 1.0, 2.0, -1.0, -2.0),
        ("float32", -math.inf, -math.inf, -math.inf, -math.inf),
        ("float32", 1.0, 1.0, math.inf, math.inf),
        ("complex64", 1 + 1j, 1.0, 2j, 3j),
    ],
)
def test_a_bound_is_carried_as_far_as_another(dtype: str, bound: Any, start: Any, end: Any, further: Any) -> None:
    kind = dtypes.dtype(dtype).numpy
    given = [np.asarray([value]).astype(kind) for value in (bound, start, end)]
    assert carried(given[0], given[1], given[2], dtype).tolist() == [further]


def test_an_overflowing_element_may_be_infinite_but_no_other_number() -> None:
    beyond = Alternatives(overflows=np.array([True, True, False]))
    comparison = apart_beside([math.nan, 3.0, 1.0], [500.0, 500.0, 1.0], beyond)
    assert (comparison.wrong, comparison.overflowing) == (1, 1)


@pytest.mark.parametrize(("dtype", "beyond"), [("float8_e4m3fn", -512.0), ("float16", 7e4)])
def test_overflowing_elements_do_not_affect_the_others(dtype: str, beyond: float) -> None:
    overflows = Alternatives(overflows=np.array([True, False]))
    with np.errstate(over="ignore"):
        nothing = np.asarray([beyond, 1.0]).astype(dtypes.dtype(dtype).numpy)
    comparison = difference(nothing, np.array([beyond, 1.0]), dtype, LOOSE, overflows)
    assert (comparison.wrong, comparison.overflowing) == (0, 1)
    comparison = difference(nothing[::-1], np.array([beyond, 1.0]), dtype, LOOSE, overflows)
    assert (comparison.wrong, comparison.overflowing) == (2, 0)


@pytest.mark.parametrize(("beyond", "wrong", "unforeseen"), [(100, 0, 1), (20, 1, 0)])
def test_unforeseen_overflow_is_allowed_only_among_many(beyond: int, wrong: int, unforeseen: int) -> None:
    overflows = np.arange(200) < beyond
    actual = np.where(np.arange(200) <= beyond, math.inf, 1.0)
    comparison = apart_beside(actual, np.ones(200), Alternatives(overflows=overflows))
    assert (comparison.wrong, comparison.overflowing, comparison.unforeseen) == (wrong, beyond + unforeseen, unforeseen)


def apart_beside(actual: Any, expected: Any, beside: Alternatives) -> Difference:
    return difference(np.asarray(actual, np.float32), np.asarray(expected), "float32", LOOSE, beside)


# Rounding averages out, mistakes do not.


def whole_of(dtype: str, mistake: Callable[[np.ndarray], np.ndarray], exact: np.ndarray | None = None) -> Whole:
    """Return the verdict on a result rounded to `dtype` after a mistake; of normal numbers, unless `exact`."""
    exact = np.random.default_rng(0).normal(size=(64, 64)) if exact is None else exact
    rounding = Rounding()
    for seed in range(3):
        drawn = rounded(exact, dtype, Machine(seed=seed))
        rounding.take_in([exact], [drawn], lambda value: value[0])
    actual = mistake(exact).astype(dtypes.dtype(dtype).numpy).astype(np.float64)
    whole = as_a_whole(actual, exact, dtype, rounding)
    assert whole is not None
    return whole


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_averages_out(dtype: str) -> None:
    assert whole_of(dtype, lambda exact: exact).outside == []


@pytest.mark.parametrize(("dtype", "factor"), [("bfloat16", 1.004), ("float16", 1.0005), ("float8_e4m3fn", 1.06)])
def test_a_scale_hidden_in_each_element_is_noticed_by_the_slope(dtype: str, factor: float) -> None:
    whole = whole_of(dtype, lambda exact: exact * factor)
    assert "slope" in whole.outside
    assert whole.power < factor - 1


def test_a_bias_of_a_column_is_noticed() -> None:
    bias = 0.004 * np.sign(np.random.default_rng(1).normal(size=64))
    assert "means along dimension 1" in whole_of("bfloat16", lambda exact: exact + bias).outside


def test_a_bias_of_all_elements_is_noticed_by_the_mean() -> None:
    assert "mean" in whole_of("bfloat16", lambda exact: exact + 0.003).outside


def test_errors_above_rounding_everywhere_are_noticed_by_the_spread() -> None:
    noise = np.random.default_rng(1).choice([-0.008, 0.008], size=(64, 64))
    assert whole_of("bfloat16", lambda exact: exact + noise).outside == ["spread"]


def columns(seed: int) -> np.ndarray:
    """Return numbers with some columns hundreds of times as large as others, as in a softmax with a bias."""
    draw = np.random.default_rng(seed)
    return np.exp(draw.normal(size=(16, 256)) + 2 * draw.normal(size=256))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_a_column_of_large_numbers_errs_more_than_the_others_do(dtype: str) -> None:
    for seed in range(24, 30):
        assert whole_of(dtype, lambda exact: exact, columns(seed)).outside == []


def test_a_mistake_in_a_column_of_large_numbers_is_noticed() -> None:
    exact = columns(0)
    worst = int(np.argmax(np.abs(exact).sum(axis=0)))
    factor = np.where(np.arange(256) == worst, 1.02, 1)
    assert "means along dimension 1" in whole_of("bfloat16", lambda exact: exact * factor, exact).outside


def test_a_few_large_numbers_do_not_hide_a_scale_of_the_others() -> None:
    exact = np.random.default_rng(0).normal(size=(64, 64))
    exact[0, :4] = 1e3
    assert "slope" in whole_of("bfloat16", lambda exact: np.where(exact < 100, exact * 1.01, exact), exact).outside


def normalised(dtype: str, divisor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers, and these divided in `dtype` by `divisor`, a 1 that was rounded."""
    exact = np.random.default_rng(0).normal(size=(64, 64))
    return exact, (exact / divisor).astype(dtypes.dtype(dtype).numpy).astype(np.float64)


@pytest.mark.parametrize(("divisor", "outside"), [(1.0, []), (1 - 2**-8, []), (1 + 2**-8, []), (1 + 2**-5, ["slope"])])
def test_a_shared_rounding_may_go_to_either_side(divisor: float, outside: list[str]) -> None:
    rounding = Rounding()
    exact, drawn = normalised("bfloat16", 1 - 2**-8)
    for _ in range(4):
        rounding.take_in([exact], [drawn], lambda value: value[0])
    whole = as_a_whole(normalised("bfloat16", divisor)[1], exact, "bfloat16", rounding)
    assert whole is not None
    assert whole.outside[:1] == outside


def test_with_overflow_the_rest_is_still_checked_as_a_whole() -> None:
    exact = np.random.default_rng(0).normal(size=(64, 64))
    drawn = rounded(exact, "float8_e4m3fn", Machine())
    np.asarray(drawn)[0, 0] = math.nan
    rounding = Rounding()
    rounding.take_in([exact], [drawn], lambda value: value[0])
    assert rounding.overflows is not None
    assert len(rounding.about) == 1


def test_few_elements_are_not_checked_as_a_whole() -> None:
    exact = np.ones((7, 9))
    assert as_a_whole(exact, exact, "float32", Rounding()) is None


# More elements than are compared at once.


def many(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a result with two wrong elements and one expected NaN, and the expected values."""
    expected = np.random.default_rng(seed).normal(size=(3, 50, 700))
    expected[1, 2, 3] = math.nan
    actual = expected.astype(np.float32)
    actual[1, 20, 5] += 3
    actual[2, 49, 699] = math.inf
    return actual, expected


def test_of_many_elements_the_first_wrong_one_and_all_others_are_found() -> None:
    actual, expected = many()
    comparison = difference(actual, expected, "float32", LOOSE)
    assert (comparison.size, comparison.wrong, comparison.first, comparison.nans) == (105_000, 2, (1, 20, 5), 1)
    assert comparison.max_abs == math.inf


def test_many_elements_may_lie_in_any_order() -> None:
    actual, expected = many()
    along = np.ascontiguousarray(actual.T).T
    assert difference(along, expected, "float32", LOOSE) == difference(actual, expected, "float32", LOOSE)
    turned = difference(actual.T, expected.T, "float32", LOOSE)
    assert (turned.wrong, turned.first) == (2, (5, 20, 1))


def test_many_integers_are_compared_exactly() -> None:
    expected = np.arange(50_000) + 2**60
    actual = expected.copy()
    actual[40_000] += 1
    comparison = difference(actual, expected, "int64", EXACT)
    assert (comparison.size, comparison.wrong, comparison.first, comparison.max_abs) == (50_000, 1, (40_000,), 1.0)
