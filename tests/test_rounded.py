"""The measured rounding covers JAX's results in every dtype, and finds the decisions that rounding may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from benchmarks.operations_rounding import DTYPES, compared, expressions
from runner.checks.reference import Oracle, Rounding, UndecidedLine, interpreter, measure, rounding
from runner.checks.reference.machine import Machine
from runner.checks.reference.rounded_numpy import NEAREST, plain, rounded
from runner.experiment import data
from runner.graph.language.operations import OPERATIONS
from runner.worker.types import infer
from tests.harness import experiment

EVERY = 60
"""One in this many expressions is computed in each dtype; `benchmarks/operations_rounding.py` computes all."""


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", DTYPES)
def test_jaxs_results_are_within_the_measured_rounding(dtype: str) -> None:
    sample = expressions()[DTYPES.index(dtype) :: EVERY]
    refused: list[str] = []
    rows = list(compared(dtype, sample, refused=refused))
    assert len(rows) + len(refused) == len(sample)
    assert len(rows) > 0.9 * len(sample)
    assert [str(row) for row in rows if row.outside] == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("expression", ["softmax(A)", "log_softmax(A, axis=0)", "cumlogsumexp(A)"])
def test_a_maximum_from_an_unsupported_infinity_is_not_compared(expression: str) -> None:
    (row,) = compared("float8_e4m3fn", [expression])
    assert (row.outside, row.apart.overflowing) == (False, row.apart.size)
    (row,) = compared("float8_e5m2", [expression])
    assert (row.outside, row.apart.overflowing) == (False, 0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_segments_are_rounded_after_each_step(name: str, dtype: str) -> None:
    (row,) = compared(dtype, [f"segment_{name}(B, J, num_segments=4)"])
    assert not row.outside
    assert (row.rounding > 0) == (name in ("sum", "prod"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
@pytest.mark.parametrize(
    "expression",
    [
        *("einsum('ij->', A)", "einsum('ij,jk->k', A, B)", "nanmean(A)", "nanmean(tile(A, (100, 1)))", "norm(A)"),
        *("sum(tile(A, (20, 1)), dtype=DTYPE)", "sum(A, 1, DTYPE, where=M, initial=0.25)", "matrix_power(S, 9)"),
    ],
)
def test_a_sum_is_rounded_as_often_as_jax_rounds_it(expression: str, dtype: str) -> None:
    for row in compared(dtype, [expression.replace("DTYPE", repr(dtype))], 3):
        assert not row.outside
        assert row.apart.share < 0.6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_long_sum_in_16_bits_does_not_stagnate(dtype: str) -> None:
    by_jax = jax.jit(lambda a: jnp.einsum("i->", a))(jnp.ones(5000, dtype))
    assert float(np.einsum("i->", rounded(np.ones(5000), dtype, NEAREST))) == float(by_jax) > 4900


def test_a_long_sum_in_8_bits_stagnates() -> None:
    lengths = (100, 5000)
    assert [float(np.sum(rounded(np.ones(n), "float8_e4m3fn", NEAREST))) for n in lengths] == [16.0, 16.0]


def test_einsum_of_many_operands_rounds_every_product() -> None:
    third = rounded(np.full((2, 2), 1 / 3), "bfloat16", NEAREST)
    by_hand = (third @ third) @ third
    np.testing.assert_array_equal(plain(OPERATIONS["einsum"].numpy("ij,jk,kl", third, third, third)), plain(by_hand))


def test_floor_divide_rounds_where_jaxs_does() -> None:
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    every = every[np.isfinite(every) & (np.abs(every.astype(np.float32)) > 0.1)]
    x, y = np.meshgrid(every, every)
    ours = OPERATIONS["floor_divide"].numpy(*(rounded(each, "float8_e4m3fn", NEAREST) for each in (x, y)))
    # Row by row: jaxlib 0.12 needs nine seconds to compile it for all rows at once.
    theirs = jax.jit(lambda x, y: jax.lax.map(lambda row: jnp.floor_divide(*row), (x, y)))(x, y)
    np.testing.assert_array_equal(plain(ours), np.asarray(theirs).astype(np.float32))


# Decisions that rounding may change.

TEXT = """
arrays:
  B: {shape: [4], init: [0.1, 0.2, 0.3, 0.4]}
outputs: {out: []}
"""


def measured(**lines: Any) -> tuple[Oracle, Rounding]:
    of = experiment(TEXT, program="auto", graph=lines)
    oracle = measure(of, "graph", data.make(of, Path()), {})
    return oracle, oracle.rounding["out"]


def test_a_decision_far_from_its_edge_is_decided() -> None:
    oracle, rounding = measured(out="floor(B * 10 + 0.25)")
    assert (oracle.undecided, rounding.places, rounding.low) == ((), (), None)


@pytest.mark.parametrize(
    ("lines", "places"),
    [
        ({"a": "B * 10", "out": "floor(a)"}, [("out", "floor", 4)]),
        ({"a": "floor(B * 10)", "out": "a * 2"}, [("a", "floor", 4)]),
        ({"a": "B * 10", "out": "a // 1"}, [("out", "//", 4)]),
        ({"a": "B * 10", "out": "where(a < arange(4), 1, 2)"}, []),
        ({"a": "B * 10", "out": "where(a < 1 + arange(4), 1, 2)"}, [("out", "<", 4)]),
        ({"a": "B * 10", "out": "astype(a, 'int32')"}, [("out", "astype", 4)]),
        ({"a": "floor(B * 10)", "b": "floor(B * 10)", "out": "a + 1"}, [("a", "floor", 4)]),
        ({"a": "floor(B * 10)", "out": "floor(B * 5 * 2) + a"}, [("a", "floor", 4), ("out", "floor", 4)]),
    ],
)
def test_an_undecided_value_says_which_lines_decide(lines: dict[str, str], places: list[tuple[str, str, int]]) -> None:
    assert list(measured(**lines)[1].places) == [UndecidedLine(*place) for place in places]


def of_float8(line: str, init: Any) -> Rounding:
    arrays = {"B": {"shape": [40, 10], "dtype": "float8_e4m3fn", "init": init}}
    of = experiment("outputs: {out: []}", program="auto", arrays=arrays, graph={"out": line})
    return measure(of, "graph", data.make(of, Path()), infer(of).floats["graph"]).rounding["out"]


def test_only_8_bit_floats_are_drawn_often() -> None:
    of = experiment("outputs: {out: []}", program="auto", arrays={"B": {"shape": [4]}}, graph={"out": "B * 3"})
    arrays = data.make(of, Path())
    often, as_usual, without = (
        measure(of, "graph", arrays, {"out": kinds}).rounding["out"].elements
        for kinds in ({0: "float8_e4m3fn"}, {0: "weak bool"}, {})
    )
    assert often > as_usual == without


def test_rounding_between_exact_operands_and_a_jump_is_measured() -> None:
    # 2.75 / 0.203125 is 13.5, in float8_e4m3fn 14.
    assert of_float8("B // astype(0.203125, 'float8_e4m3fn')", 2.75).error == 1.0


def test_rounding_between_exact_operands_and_a_choice_makes_it_undecided() -> None:
    rounding = of_float8("categorical(key(0), B)", "normal")
    (place,) = rounding.places
    assert (place.line, place.operation) == ("out", "categorical")
    assert 0 < place.elements < 20


def test_the_line_of_a_loop_that_decides_is_named_as_everywhere_with_all_its_steps() -> None:
    ring = {"repeat": 3, "carry": {"acc": "B * 0"}, "body": {"acc": "acc + floor(B * 10)"}}
    assert measured(ring=ring, out="ring.acc")[1].places == (UndecidedLine("ring.acc", "floor", 12),)


CHOSEN = {
    "max": lambda x: np.max(x, axis=0),
    "maximum": lambda x: np.maximum(x[0], x[1]),
    "where": lambda x: np.where(x > 0, x, -x),
    "concatenate": lambda x: np.concatenate([x, x[:1]]),
    "take": lambda x: np.take(x, [2, 0], axis=0),
    "sort": lambda x: np.sort(x, axis=1),
    "stack": lambda x: np.stack([x, x]),
    "abs": np.abs,
}


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CHOSEN)
def test_selections_and_movements_do_not_round(name: str, dtype: str, seed: int | None) -> None:
    """The largest element of a row equals the largest on every machine."""
    x = rounded(np.random.default_rng(0).normal(size=(4, 8)), dtype, Machine(seed=seed))
    got = plain(CHOSEN[name](x))
    assert np.isin(np.abs(got), np.abs(plain(x))).all()


def test_a_fused_multiply_add_leaves_a_rest_where_equal_products_cancel() -> None:
    """The mean of one square less the square of that mean, as XLA computes the variance of a single element."""
    numbers = np.random.default_rng(0).uniform(0.5, 1.0, (64, 1)).astype(np.float32)

    def rest(machine: Machine) -> np.ndarray:
        x = rounded(numbers, "float32", machine)
        mean = np.sum(np.square(x), axis=1, keepdims=True)
        return np.abs(plain(mean - np.sum(x, axis=1, keepdims=True) ** 2))

    assert not rest(NEAREST).any()
    drawn = rest(Machine(seed=1))
    assert np.count_nonzero(drawn) > 48
    assert drawn.max() <= 2.0**-23


LOOP = """
arrays: {A: {shape: [20], spec: []}}
graph:
  loop: {repeat: 30, carry: {x: A}, body: {y: sin(x), z: y * 0.5, x: x + z}}
  out: loop.x * 2
outputs: {out: []}
program: auto
"""


@pytest.mark.parametrize(("most", "interpretations"), [(1_000, 5), (50, 3)])
def test_a_loop_of_many_small_steps_is_interpreted_less_often(
    most: int, interpretations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreted: list[Any] = []

    def interpret(*arguments: Any, **options: Any) -> Any:
        interpreted.append(arguments)
        return interpreter.interpret(*arguments, **options)

    monkeypatch.setattr(rounding, "interpret", interpret)
    monkeypatch.setattr(rounding, "_LONG", most)
    long = experiment(LOOP)
    arrays = data.make(long, Path())
    oracle = measure(long, "graph", arrays, {}, keep=["out"])
    assert len(interpreted) == interpretations
    assert oracle.computed > 3 * 30
    (error,) = {float(np.max(each.error)) > 0 for each in oracle.rounding.values()}
    assert error
