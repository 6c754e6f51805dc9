"""The errors of XLA's elementary functions: the table, what the oracle makes of it, and what a gradient does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks import elementary as measured
from runner.checks.reference import elementary
from runner.checks.reference.machine import Machine
from runner.checks.reference.rounded_numpy import plain, rounded
from runner.worker.gradient import DRAWS
from runner.worker.inexact import has_elementary, inexact
from tests import harness

UNIT = elementary.UNIT
X = np.linspace(-3, 3, 64, dtype=np.float32)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", measured.FUNCTIONS)
def test_no_error_of_an_array_is_larger_than_the_tables(name: str) -> None:
    function, exact, points = measured.FUNCTIONS[name]
    rng = np.random.default_rng(5)
    drawn = [each(rng, 2000).astype(np.float32) for each in points]
    operands = [each[: min(map(len, drawn))] for each in drawn]
    _, share, at = measured._worst(name, exact, operands, np.asarray(jax.jit(function)(*operands)))
    assert 0 < share <= 1, at


def test_every_function_of_the_table_is_measured() -> None:
    assert measured.FUNCTIONS.keys() == elementary.ON_CPU.keys()


def test_platforms_without_numbers_have_those_of_cpus() -> None:
    assert elementary.inexactness("sin", "gpu").result > elementary.inexactness("sin", "cpu").result
    assert elementary.inexactness("tanh", "tpu") == elementary.inexactness("tanh", "cpu")


@pytest.mark.parametrize(("ufunc", "name"), [(np.tanh, "tanh"), (np.exp, "exp"), (np.arctan, "atan")])
def test_the_oracle_moves_a_result_by_at_most_half_of_the_error(ufunc: np.ufunc, name: str) -> None:
    exact = ufunc(X.astype(np.float64))
    most = 0.0
    for seed in range(20):
        moved = plain(ufunc(rounded(X, "float32", Machine(seed=seed)))).astype(np.float64)
        most = max(most, float(np.max(np.abs(moved - exact) / np.abs(exact))) / UNIT)
    half = elementary.ON_CPU[name].result / 2
    # To this comes the rounding of the result, to either side.
    assert half < most < half + 2


def test_a_function_composed_in_a_narrow_dtype_is_off_by_places_of_that_dtype() -> None:
    def apart(ufunc: np.ufunc) -> float:
        exact, places = ufunc(X.astype(np.float64)), []
        for seed in range(20):
            moved = plain(ufunc(rounded(X, "bfloat16", Machine(seed=seed))))
            places.append(np.max(np.abs(moved - exact) / np.abs(exact)) / 2**-8)
        return float(max(places))

    assert apart(np.exp2) > 3 > apart(np.tanh)


def tripled(x: Any) -> Any:
    """A function whose `tanh` stands inside of a loop, a branch and a call."""
    loop = lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y) + 1, x)
    branch = lax.cond(x.sum() > 100, jnp.sin, jnp.tanh, x)
    scanned = lax.scan(lambda carry, y: (jnp.tanh(carry), y), x, None, 2)[0]
    waited = lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, x))[1]
    return loop, branch, scanned, waited, jax.jit(jnp.tanh)(x), jax.checkpoint(jnp.tanh)(x), jax.nn.silu(x)


def test_results_are_moved_inside_of_loops_branches_and_calls() -> None:
    function = jax.jit(inexact(tripled, "cpu"))
    plainly = [np.asarray(each, np.float64) for each in jax.jit(tripled)(X)]
    names = ["loop", "branch", "scan", "while", "jit", "remat", "silu"]
    for name, moved, exact in zip(names, function(np.uint32(1), X), plainly, strict=True):
        share = np.abs(np.asarray(moved, np.float64) - exact) / np.abs(exact)
        assert 0 < share.max() < 20 * UNIT, name
    for moved, exact in zip(function(np.uint32(0), X), plainly, strict=True):
        assert np.abs(np.asarray(moved, np.float64) - exact).max() < 4 * UNIT * np.abs(exact).max()


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "complex64"])
def test_the_dtype_of_a_result_stays(dtype: str) -> None:
    moved = inexact(lambda x: jnp.exp(x) * 2, "cpu")(np.uint32(3), jnp.asarray(X, dtype))
    assert [each.dtype for each in moved] == [jnp.dtype(dtype)]


def test_a_function_without_elementary_ones_is_recognised() -> None:
    assert not has_elementary(jax.make_jaxpr(lambda x: jax.jit(lambda y: y @ y)(x) + 1)(X), "cpu")
    assert has_elementary(jax.make_jaxpr(lambda x: lax.map(jnp.tanh, x))(X), "cpu")


MLP = """
mesh: {axes: [model], shape: [4]}
arrays:
  x: {shape: [16, 8], spec: [model, null]}
  w1: {shape: [8, 32], spec: [null, model]}
  w2: {shape: [32, 8], spec: [model, null]}
graph:
  h: gelu(x @ w1)
  y: h @ w2
  loss: mean(y ** 2)
outputs: {loss: []}
grad: {of: loss, wrt: [w1, w2]}
program: constraint
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_right_gradient_of_gelu_is_within_its_tolerance(tmp_path: Any, seed: int) -> None:
    # JAX 0.12 computes `tanh` less exactly in this program than on one device.
    result = harness.run(MLP, tmp_path, seed=seed)
    assert result.failures() == []


def test_the_gradient_is_drawn_with_other_errors_too() -> None:
    from tests.test_grad import drawn

    text = "{arrays: {w: {shape: [8]}}, graph: {loss: sum(F(w))}, outputs: {loss: []}, grad: {of: loss, wrt: [w]}}"
    assert len(drawn(text.replace("F", "tanh"))) == len(drawn(text.replace("F", "square"))) + DRAWS
